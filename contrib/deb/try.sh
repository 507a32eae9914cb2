#!/bin/sh
# Installs the package in a bare Debian 12, runs a program under it, removes it, and sees that
# nothing is left. Needs root, debootstrap and a mirror; takes a few minutes.
#
#   contrib/deb/build.sh && contrib/deb/try.sh [MIRROR]
set -eu
cd "$(dirname "$0")/../.."
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
package=$PWD/target/package/holdfast_${version}_amd64.deb
[ -f "$package" ] || { echo "try.sh: there is no $package: contrib/deb/build.sh" >&2; exit 1; }
root=$(mktemp -d /var/tmp/holdfast-try-XXXXXX)
end() {
    for dir in dev/shm dev proc; do umount "$root/$dir" 2>/dev/null || true; done
    rm -rf --one-file-system "$root"
}
trap end EXIT
debootstrap --variant=minbase bookworm "$root" "${1:-http://deb.debian.org/debian}"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/dev/shm"
cp "$package" "$root/holdfast.deb"
contrib/deb/trial.sh "$root"
