#!/bin/busybox sh
# The first process of the guest with systemd: it makes what the first boot needs, lets its root file
# system be the root, and leaves the machine to systemd. The host says by variables on the kernel's
# command line whether this boot is the first.
. /first

mkdir -p /root
mount /dev/vda /root || tell "failed: mount the root file system"
if [ -n "$setup" ]; then
    ndctl create-namespace -f -e namespace0.0 -m fsdax >/dev/null
    ndctl create-namespace -f -e namespace1.0 -m devdax --align=2M >/dev/null
    mkfs.ext4 -q -F -b 4096 /dev/pmem0
    mkfs.ext4 -q -F -b 4096 /dev/vdb
    mkdir -p /root/srv /root/mnt/pmem
    cp /holdfast.deb /newer.deb /root/
    # Nothing is committed because time passes.
    cat >/root/etc/fstab <<'END'
/dev/pmem0 /mnt/pmem ext4 dax=always 0 0
/dev/vdb /srv ext4 commit=300 0 0
END
    cat >/root/etc/systemd/system/trial.service <<'END'
[Unit]
Description=What is to happen in this boot
[Service]
ExecStart=/usr/local/sbin/trial
[Install]
WantedBy=multi-user.target
END
    ln -s ../trial.service /root/etc/systemd/system/multi-user.target.wants/trial.service
    # Nobody logs in, and what Debian does once a day takes time.
    for unit in serial-getty@ttyS0.service getty@tty1.service getty-static.service \
        systemd-update-utmp-runlevel.service apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer \
        e2scrub_reap.service fstrim.timer dpkg-db-backup.timer systemd-update-utmp.service; do
        ln -sf /dev/null "/root/etc/systemd/system/$unit"
    done
    echo guest >/root/etc/hostname
    cp /steps /root/usr/local/lib/steps
    cp /before /root/usr/local/sbin/trial
else
    # What the disk has by itself, before anybody recovers.
    mkdir /disk
    mount -t ext4 -o ro /dev/vdb /disk || tell "failed: mount the disk"
    tell "disk $(cat /disk/redis/appendonlydir/*.incr.aof | grep -c INCR)"
    umount /disk
    cp /after /root/usr/local/sbin/trial
fi
umount /proc /sys
mount --move /dev /root/dev
exec switch_root /root /sbin/init
