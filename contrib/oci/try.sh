#!/bin/bash
# Builds the image and runs the compose file with podman, over a base that debootstrap makes where
# no registry is at hand: Redis is absorbed, its container is killed and starts anew, the power of
# its volume is cut, it is stopped, and what was acknowledged is there each time. Needs root and a
# mirror; takes some four minutes, most of them for the base, which is kept.
#
#   contrib/deb/build.sh && contrib/oci/try.sh [MIRROR]
set -eu
cd "$(dirname "$0")/../.."
mirror=${1:-http://deb.debian.org/debian}
base=target/oci-base.tar
fail() { echo "try.sh: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || fail "needs root: sudo contrib/oci/try.sh"
for tool in podman:podman podman-compose:podman-compose crun:crun debootstrap:debootstrap ip:iproute2 \
    /usr/lib/podman/netavark:netavark iptables:iptables unshare:util-linux mkfs.ext4:e2fsprogs xfs_io:xfsprogs; do
    command -v "${tool%:*}" >/dev/null ||
        fail "needs ${tool%:*}: apt-get install -y --no-install-recommends ${tool#*:}"
done
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
[ -f "target/package/holdfast_${version}_amd64.deb" ] || fail "there is no package: contrib/deb/build.sh"
# Mounts of its own, which go with it.
[ -n "${HOLDFAST_TRY_APART:-}" ] || HOLDFAST_TRY_APART=1 exec unshare --mount --propagation private "$0" "$@"

home=$(mktemp -d /var/tmp/holdfast-oci-XXXXXX)
network=""
end() {
    podman kill --all >/dev/null 2>&1 || true
    podman rm --all --force >/dev/null 2>&1 || true
    [ -z "$network" ] || kill "$network" 2>/dev/null || true
    umount "$home/volume" "$home/pool" 2>/dev/null || true
    umount --recursive "$home/store" 2>/dev/null || true
    rm -rf --one-file-system "$home" "$base.part"
}
trap end EXIT
# Containers of this trial alone, also inside of another container: there, groups and limits are not
# for us to set.
[ -f /sys/fs/cgroup/cgroup.controllers ] || mount -t cgroup2 cgroup2 /sys/fs/cgroup
export CONTAINERS_STORAGE_CONF=$home/storage.conf CONTAINERS_CONF=$home/containers.conf
mkdir "$home/store" "$home/run" "$home/volume" "$home/pool" "$home/networks"
cat >"$CONTAINERS_STORAGE_CONF" <<END
[storage]
driver = "overlay"
graphroot = "$home/store"
runroot = "$home/run"
END
cat >"$CONTAINERS_CONF" <<END
[containers]
cgroups = "disabled"
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "crun"
tmp_dir = "$home/run/libpod"
[network]
network_config_dir = "$home/networks"
END

echo "== the base"
if [ ! -f "$base" ]; then
    debootstrap --variant=minbase bookworm "$home/base" "$mirror" >"$home/log" || { tail "$home/log" >&2; exit 1; }
    tar -C "$home/base" -cf "$base.part" .
    mv "$base.part" "$base"
    rm -rf --one-file-system "$home/base"
fi
podman import --quiet "$base" docker.io/library/debian:bookworm-slim
echo "== the images"
# By chroot: what a container of a build may set, podman does not let us say.
export BUILDAH_ISOLATION=chroot
podman build --quiet --network=host -t holdfast -f contrib/oci/Containerfile target/package
podman build --quiet --network=host -t localhost/oci_redis -f contrib/oci/redis.Containerfile target/package
# The image by itself says what it found.
podman run --rm --network=none holdfast --version
podman run --rm --network=none holdfast | grep -i 'verdict\|nvm' || fail "doctor says nothing"

echo "== the service"
mkfs.ext4 -q "$home/disk" 256M
# Nothing is committed because time passes.
put() { mount -o loop,commit=300 "$home/disk" "$home/volume"; }
put
mount -t tmpfs -o size=128M tmpfs "$home/pool"
# No NVM is here: the pool lies in memory, which a power cut of the volume does not touch. Nothing
# is brought to the disk because time passes.
export HOLDFAST_POOLS=$home/pool HOLDFAST_DATA=$home/volume HOLDFAST_OPTIONS="--size 64M --volatile --age-max 1h"
# A network of its own: the host's ports and rules are left alone.
unshare --net sleep infinity &
network=$!
apart() { nsenter --net="/proc/$network/ns/net" "$@"; }
until [ "$(readlink "/proc/$network/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
apart ip link set lo up
compose() { apart podman-compose -f contrib/oci/compose.yaml "$@"; }
container() { podman ps --filter status=running --format '{{.Names}}' | head -n 1; }
ask() { apart podman exec "$(container)" redis-cli "$@"; }
await() {
    local begun=$SECONDS
    until "$@" >/dev/null 2>&1; do
        [ $((SECONDS - begun)) -lt 120 ] || { podman ps --all; podman logs "$(podman ps -aq | head -n 1)"; fail "waited in vain for: $*"; }
        sleep 0.2
    done
}
answers() { [ "$(ask ping)" = PONG ]; }
# Commands, each acknowledged before the next.
load() {
    : >"$home/acknowledged"
    (while echo "INCR n"; do :; done) 2>/dev/null |
        apart podman exec -i "$(container)" redis-cli >"$home/acknowledged" 2>/dev/null &
    loader=$!
}
acknowledged() { grep -c . "$home/acknowledged"; }
newest() { grep -x '[0-9][0-9]*' "$home/acknowledged" | sort -n | tail -n 1; }
many() { [ "$(acknowledged)" -gt 300 ]; }
found() {
    local n
    n=$(ask get n)
    echo "$1: acknowledged $last, found $n"
    [ "$n" -ge "$last" ] || fail "acknowledged commands are lost"
}
compose up --detach --no-build
await answers
# The port is the host's.
apart bash -c 'exec 3<>/dev/tcp/127.0.0.1/6379; echo PING >&3; read -r -t 20 answer <&3; [ "${answer%?}" = +PONG ]'
first=$(container)

echo "== its first process is killed"
load
await many
kill -9 "$(podman inspect --format '{{.State.Pid}}' "$first")"
wait "$loader" || true
last=$(newest)
# `restart: on-failure` starts it anew.
await answers
found "killed"

echo "== the power of its volume is cut"
load
await many
podman kill --signal KILL "$(container)" >/dev/null
wait "$loader" || true
last=$(newest)
podman wait "$first" >/dev/null
xfs_io -x -c shutdown "$home/volume"
umount "$home/volume"
put
disk=$(cat "$home"/volume/appendonlydir/*.incr.aof | grep -c INCR || true)
[ "$disk" -lt "$last" ] || fail "the disk had lost nothing, so that the cut shows nothing"
apart podman start "$first" >/dev/null
await answers
found "cut (the disk alone had $disk)"

echo "== it is stopped"
yes "INCR n" | head -n 500 | apart podman exec -i "$(container)" redis-cli >"$home/acknowledged"
last=$(newest)
# podman-compose does not read stop_grace_period.
compose stop --timeout 90
podman logs "$first" 2>&1 | tail -n 5 | grep '^holdfast: [0-9.]* % of .* syncs absorbed' ||
    fail "it does not say that it absorbed: $(podman logs "$first" 2>&1 | tail -n 5)"
podman run --rm --network=none -v "$home/pool:/pool" holdfast recover --dry-run --pool /pool/redis.pool
total=$(cat "$home"/volume/appendonlydir/*.incr.aof | grep -c INCR)
[ "$total" -ge "$last" ] || fail "the disk has $total of $last commands after a clean end"
compose down >/dev/null 2>&1
echo "built, run, killed, cut off, stopped: nothing acknowledged is lost"
