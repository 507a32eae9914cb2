#!/bin/sh
# Makes the root file system that `holdfast-guest services` boots: a bare Debian 12 with systemd,
# Redis and sqlite3, as an image of ext4. Needs root, debootstrap and a mirror; takes three minutes.
#
#   crates/guest/src/root.sh [IMAGE [MIRROR]]      [default: target/guest-root.ext4]
set -eu
umask 022
image=${1:-target/guest-root.ext4}
tree=$(mktemp -d /var/tmp/holdfast-root-XXXXXX)
trap 'rm -rf --one-file-system "$tree" "$image.part"' EXIT
chmod 755 "$tree"
debootstrap --variant=minbase --include=systemd,systemd-sysv,udev,redis-server,sqlite3 \
    bookworm "$tree" "${2:-http://deb.debian.org/debian}"
# What no boot reads.
rm -rf "$tree"/usr/share/doc/* "$tree"/usr/share/locale/* "$tree"/usr/share/man/* \
    "$tree"/var/cache/apt/* "$tree"/var/lib/apt/lists/*
rm -f "$image.part"
mkfs.ext4 -q -d "$tree" "$image.part" 640M
mv "$image.part" "$image"
