#!/bin/sh
# In a root directory with /proc, /dev, /dev/shm and holdfast.deb: installs the package, runs a
# program, installs and removes a pool, purges the package, and compares. The files of /var/trial
# are written under Holdfast: it has to be on ext4, xfs or btrfs to be absorbed.
#
#   trial.sh ROOT
set -eu
root=$1
inside() { chroot "$root" "$@"; }
# Where packages put things, but for what dpkg itself notes. Not when directories changed.
tree() {
    inside find /etc /opt /run /srv /usr /var/lib /var/spool -xdev -path /var/lib/dpkg -prune -o \
        -printf '%y %m %p %l\n' | sort
}
inside mkdir -p /var/trial
before=$(tree)
# Not what others would do about it, such as to index the manual pages.
inside dpkg --no-triggers -i /holdfast.deb
inside holdfast --version
inside holdfast config check
inside holdfast install --pool /dev/shm/trial.pool --user root --size 64M --volatile
told=$(inside holdfast run -- sh -c 'dd if=/dev/zero of=/var/trial/file bs=4k count=100 oflag=dsync 2>&1' 2>&1)
echo "$told"
case "$told" in
*"syncs absorbed"* | *"NOTHING was absorbed"*) ;;
*) echo "trial.sh: it does not say what was absorbed" >&2; exit 1 ;;
esac
inside test "$(inside stat -c %s /var/trial/file)" = 409600
# A pool that waits is named to whoever logs in, and one that was recovered is not.
hint() { inside run-parts /etc/update-motd.d | grep 'pool /dev/shm/trial.pool waits' || true; }
[ -z "$(hint)" ] || { echo "trial.sh: it says that a clean pool waits" >&2; exit 1; }
keeper='holdfast status --json | sed -n "s/.*\"keeper_pid\": *\([0-9]*\).*/\1/p"'
inside holdfast run --age-max 1h -- sh -c "dd if=/dev/zero of=/var/trial/cut bs=4k count=9 oflag=dsync 2>/dev/null
    keeper=\$($keeper); kill -9 \$PPID \$keeper" || true
[ -n "$(hint)" ] || { echo "trial.sh: nobody hears of a pool that waits" >&2; exit 1; }
inside holdfast recover --all
[ -z "$(hint)" ] || { echo "trial.sh: it says that a recovered pool waits" >&2; exit 1; }
inside holdfast remove --pool /dev/shm/trial.pool
inside test ! -e /dev/shm/trial.pool
inside dpkg --no-triggers --purge holdfast
after=$(tree)
if [ "$before" != "$after" ]; then
    echo "trial.sh: what it left, or took:" >&2
    printf '%s\n' "$before" >"$root/tmp/before"
    printf '%s\n' "$after" | diff "$root/tmp/before" - >&2 || true
    exit 1
fi
echo "installed, run, removed: nothing is left"
