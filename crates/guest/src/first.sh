# What the first process of a guest begins with, in busybox's shell: the kernel's file systems, the
# modules in their order, and the second serial line, by which the host hears of everything.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
for module in $(cat /etc/modules); do
    insmod "/lib/modules/$module.ko" || echo "insmod $module failed"
done
line=/dev/ttyS1
stty -F $line raw -echo
tell() { echo "$*" >$line; }
