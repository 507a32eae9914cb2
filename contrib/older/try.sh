#!/bin/bash
# Installs the package of contrib/older/build.sh in root file systems with another glibc, by
# debootstrap: Debian 11 (2.31), Ubuntu 18.04 (2.27), 16.04 (2.23) and 22.04 (2.35). In each it
# comes and goes without a trace, and sqlite3 and Redis are absorbed, killed, cut off and recovered.
# Needs root, debootstrap and mirrors; takes some three minutes for each the first time, then
# seconds: they are kept in target/older/roots.
#
#   contrib/older/build.sh && contrib/older/try.sh [SUITE...]
set -eu
cd "$(dirname "$0")/../.."
[ $# -gt 0 ] || set -- bullseye bionic xenial jammy
fail() { echo "try.sh: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || fail "needs root: sudo contrib/older/try.sh"
for tool in debootstrap:debootstrap mkfs.ext4:e2fsprogs xfs_io:xfsprogs unshare:util-linux; do
    command -v "${tool%:*}" >/dev/null ||
        fail "needs ${tool%:*}: apt-get install -y --no-install-recommends ${tool#*:}"
done
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
package=target/older/package/holdfast_${version}_amd64.deb
[ -f "$package" ] || fail "there is no $package: contrib/older/build.sh"
# Mounts of its own, which go with it.
[ -n "${HOLDFAST_TRY_APART:-}" ] || HOLDFAST_TRY_APART=1 exec unshare --mount --propagation private "$0" "$@"
home=$(mktemp -d /var/tmp/holdfast-older-XXXXXX)
end() {
    umount "$home/root/var/trial" 2>/dev/null || true
    umount --recursive "$home/root" 2>/dev/null || true
    umount "$home/upper" 2>/dev/null || true
    rm -rf --one-file-system "$home"
}
trap end EXIT

# A root file system, made once.
made() {
    local suite=$1 root=target/older/roots/$1 mirror=http://deb.debian.org/debian options=()
    if [ ! -d "$root" ]; then
        [ -e "/usr/share/debootstrap/scripts/$suite" ] || fail "debootstrap does not know $suite"
        case $(readlink -f "/usr/share/debootstrap/scripts/$suite") in
        *gutsy*) mirror=http://archive.ubuntu.com/ubuntu options=(--components=main,universe) ;;
        esac
        # Debian has no keys of Ubuntu's; nothing of such a root leaves this trial.
        [ "${#options[@]}" = 0 ] || options+=(--no-check-gpg)
        mkdir -p target/older/roots
        debootstrap --variant=minbase "${options[@]}" --include=sqlite3,redis-server "$suite" "$root.part" \
            "$mirror" >"$home/log" || { tail "$home/log" >&2; fail "cannot make $suite"; }
        mv "$root.part" "$root"
    fi
}
inside() { chroot "$home/root" "$@"; }
# Nothing is committed because time passes, or because a program that dies lets go of its files.
put() { mount -o loop,commit=300,noauto_da_alloc "$home/disk" "$home/root/var/trial"; }
# What is not in the log and not flushed is gone.
cut() {
    xfs_io -x -c shutdown "$home/root/var/trial"
    umount "$home/root/var/trial"
    put
}
pool="--pool /dev/shm/power.pool"
# Whatever runs under Holdfast, and the keeper, in the midst of it.
kill_all() {
    local keeper
    keeper=$(inside holdfast status --json $pool | sed -n 's/.*"keeper_pid": *\([0-9]*\).*/\1/p')
    kill -9 "$supervisor" "$keeper" $(pgrep -P "$supervisor")
    wait "$supervisor" 2>/dev/null || true
}
absorbed() {
    tail -n 3 "$home/told" | grep -E '^holdfast: (100|9[0-9](\.[0-9])?) % of .* syncs absorbed' ||
        fail "$1 was not absorbed: $(tail -n 5 "$home/told")"
}
many() {
    local begun=$SECONDS
    until [ "$(wc -l <"$home/acknowledged")" -gt 300 ]; do
        [ $((SECONDS - begun)) -lt 60 ] || fail "waited in vain: $(tail -n 5 "$home/told")"
        sleep 0.1
    done
}
newest() { grep -x '[0-9][0-9]*' "$home/acknowledged" | sort -n | tail -n 1; }
compare() {
    local what=$1 acknowledged=$2 disk=$3 found=$4
    echo "$what: acknowledged $acknowledged, on the disk alone $disk, recovered $found"
    [ "$disk" -lt "$acknowledged" ] || fail "the disk had lost nothing, so that the cut shows nothing"
    [ "$found" -ge "$acknowledged" ] || fail "$what lost what it had acknowledged"
}

sqlite() {
    local rows="INSERT INTO t(x) VALUES(printf('%0200d', 1)); SELECT max(rowid) FROM t;"
    local begin="PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
    inside sqlite3 /var/trial/a.db "$begin CREATE TABLE t(x);" >/dev/null
    { echo "$begin"; yes "$rows" | head -n 500; } |
        inside holdfast run $pool --volatile --size 64M -- sqlite3 -batch /var/trial/a.db >"$home/acknowledged" 2>"$home/told"
    absorbed sqlite3
    sync -f "$home/root/var/trial"
    : >"$home/acknowledged"
    # Nor because the log is written to the table.
    { echo "$begin PRAGMA wal_autocheckpoint=0;"; yes "$rows"; } 2>/dev/null | {
        chroot "$home/root" holdfast run $pool --volatile --age-max 1h -- sqlite3 -batch /var/trial/a.db \
            >"$home/acknowledged" 2>"$home/told" &
        supervisor=$!
        many
        kill_all
    }
    last=$(newest)
    cut
    local disk
    disk=$(inside sh -c 'cp /var/trial/a.db* /tmp/; sqlite3 /tmp/a.db "SELECT count(*) FROM t"; rm /tmp/a.db*')
    inside holdfast recover $pool >/dev/null
    [ "$(inside sqlite3 /var/trial/a.db 'PRAGMA integrity_check')" = ok ] || fail "sqlite3's database is damaged"
    compare sqlite3 "$last" "$disk" "$(inside sqlite3 /var/trial/a.db 'SELECT count(*) FROM t')"
}

redis() {
    local server="redis-server --dir /var/trial --appendonly yes --appendfsync always --unixsocket /tmp/redis.sock --port 0"
    local ask="redis-cli -s /tmp/redis.sock"
    chroot "$home/root" holdfast run $pool --volatile --age-max 1h -- $server >"$home/told" 2>&1 &
    supervisor=$!
    until [ "$(inside $ask ping 2>/dev/null)" = PONG ]; do sleep 0.1; done
    : >"$home/acknowledged"
    yes "INCR n" 2>/dev/null | head -n 100000 | inside $ask >"$home/acknowledged" 2>/dev/null &
    many
    kill_all
    last=$(newest)
    cut
    local disk
    disk=$(cat "$home/root/var/trial/appendonly.aof" 2>/dev/null | grep -c -i incr || true)
    inside holdfast recover $pool >/dev/null
    chroot "$home/root" holdfast run $pool --volatile -- $server >"$home/told" 2>&1 &
    supervisor=$!
    until [ "$(inside $ask ping 2>/dev/null)" = PONG ]; do sleep 0.1; done
    compare redis "$last" "$disk" "$(inside $ask get n)"
    yes "INCR n" | head -n 500 | inside $ask >/dev/null
    kill "$supervisor"
    wait "$supervisor" || true
    absorbed redis
}

mkdir "$home/root" "$home/upper"
for suite in "$@"; do
    made "$suite"
    # Changes are in memory, and go with the mount.
    mount -t tmpfs tmpfs "$home/upper"
    mkdir "$home/upper/upper" "$home/upper/work"
    mount -t overlay -o "lowerdir=$PWD/target/older/roots/$suite,upperdir=$home/upper/upper,workdir=$home/upper/work" \
        overlay "$home/root"
    mount -t proc proc "$home/root/proc"
    mount --bind /dev "$home/root/dev"
    mount -t tmpfs tmpfs "$home/root/dev/shm"
    mount -t tmpfs tmpfs "$home/root/run"
    mount -t tmpfs tmpfs "$home/root/tmp"
    mkdir -p "$home/root/var/trial"
    rm -f "$home/disk"
    mkfs.ext4 -q "$home/disk" 256M
    put
    cp "$package" "$home/root/holdfast.deb"
    echo "== $suite, $(inside getconf GNU_LIBC_VERSION)"
    contrib/deb/trial.sh "$home/root"
    inside dpkg --no-triggers -i /holdfast.deb >/dev/null
    sqlite
    redis
    inside dpkg --no-triggers --purge holdfast >/dev/null
    umount "$home/root/var/trial"
    umount --recursive "$home/root"
    umount "$home/upper"
done
echo "all of $*: installed, absorbed, cut off, recovered, removed"
