#!/bin/sh
# Makes a Debian package and a tarball of what `cargo build --release` has built.
#
#   cargo build --release && contrib/deb/build.sh [DIRECTORY]      [default: target/package]
#
# The tarball is the package's tree, to be unpacked at /.
set -eu
umask 022
cd "$(dirname "$0")/../.."
out=${1:-target/package}
built=${HOLDFAST_BUILT:-target/release}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
[ -x "$built/holdfast" ] || {
    echo "build.sh: there is no $built/holdfast: cargo build --release" >&2
    exit 1
}
mkdir -p "$out"
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
chmod 755 "$tree"

install -d "$tree/usr/lib/holdfast" "$tree/usr/bin"
install -m 755 "$built/holdfast" "$built/holdfast-watch" "$built/holdfast-enter" "$tree/usr/lib/holdfast/"
install -m 644 "$built/libholdfast.so" "$tree/usr/lib/holdfast/"
strip --strip-debug "$tree/usr/lib/holdfast/"*
ln -s ../lib/holdfast/holdfast "$tree/usr/bin/holdfast"
# By this name mount(8) starts it.
install -d "$tree/usr/sbin"
ln -s ../lib/holdfast/holdfast "$tree/usr/sbin/mount.holdfast"

# Units, and the drop-ins as examples: which services use it is for the administrator to say.
install -d "$tree/usr/lib/systemd/system"
examples=$tree/usr/share/doc/holdfast/examples
install -d "$examples"
for unit in contrib/systemd/*.service; do
    sed 's|/usr/local/lib/holdfast/|/usr/lib/holdfast/|' "$unit" >"$tree/usr/lib/systemd/system/${unit##*/}"
done
for dir in contrib/systemd/*.d; do
    install -d "$examples/${dir##*/}"
    sed 's|/usr/local/lib/holdfast|/usr/lib/holdfast|' "$dir/holdfast.conf" >"$examples/${dir##*/}/holdfast.conf"
done
cp -R contrib/prometheus contrib/grafana "$examples/"
sed 's|/usr/local/lib/holdfast|/usr/lib/holdfast|' contrib/systemd/README.md >"$examples/README.md"
install -m 644 README.md CHANGELOG.md "$tree/usr/share/doc/holdfast/"
{
    echo "Holdfast is licensed under either of the Apache License 2.0 (/usr/share/common-licenses/Apache-2.0)"
    echo "or the following one, at your option."
    echo
    cat LICENSE-MIT
} >"$tree/usr/share/doc/holdfast/copyright"

"$built/holdfast" man --dir "$tree/usr/share/man"
find "$tree/usr/share/man" -type f -exec gzip -9n {} +
for shell in bash:bash-completion/completions/holdfast zsh:zsh/vendor-completions/_holdfast \
    fish:fish/vendor_completions.d/holdfast.fish; do
    install -d "$tree/usr/share/$(dirname "${shell#*:}")"
    "$built/holdfast" completions "${shell%%:*}" >"$tree/usr/share/${shell#*:}"
done

install -d "$tree/etc/holdfast/pools.d"
install -m 644 contrib/deb/holdfast.toml "$tree/etc/holdfast/"
# Whoever logs in hears of a pool that waits.
install -d "$tree/etc/update-motd.d"
install -m 755 contrib/deb/motd "$tree/etc/update-motd.d/60-holdfast"

# The newest symbol of glibc that anything asks for.
glibc=$(objdump -T "$tree/usr/lib/holdfast/"* | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -V | tail -n 1)
tar -C "$tree" --owner=0 --group=0 --sort=name -czf "$out/holdfast-$version-x86_64.tar.gz" etc usr

install -d "$tree/DEBIAN"
cat >"$tree/DEBIAN/control" <<END
Package: holdfast
Version: $version
Architecture: amd64
Maintainer: The Holdfast developers <holdfast@localhost>
Depends: libc6 (>= $glibc)
Suggests: fuse3, sqlite3
Section: database
Priority: optional
Installed-Size: $(du -sk --exclude=DEBIAN "$tree" | cut -f 1)
Description: durable writes at memory speed for unmodified programs
 Holdfast logs what a program writes on non-volatile memory (NVM), answers
 fsync from that log, and brings the files up to date in the background
 through the stock kernel. It is a preloaded library and a daemon: no kernel
 module, no new file system and no change to the program.
END
printf '%s\n' /etc/holdfast/holdfast.toml /etc/update-motd.d/60-holdfast >"$tree/DEBIAN/conffiles"
for script in postinst prerm postrm; do
    install -m 755 "contrib/deb/$script" "$tree/DEBIAN/$script"
done
(cd "$tree" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
dpkg-deb --root-owner-group -Zgzip --build "$tree" "$out/holdfast_${version}_amd64.deb" >/dev/null
ls "$out/holdfast_${version}_amd64.deb" "$out/holdfast-$version-x86_64.tar.gz"
