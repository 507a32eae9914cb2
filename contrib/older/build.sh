#!/bin/sh
# Makes a package and a tarball that run where glibc is older than that of this machine, from 2.17
# on. libholdfast.so asks for no later symbol wherever it was built; zig links the programs against
# the symbols of glibc 2.17.
#
#   pip install ziglang cargo-zigbuild
#   contrib/older/build.sh [DIRECTORY]      [default: target/older/package]
set -eu
cd "$(dirname "$0")/../.."
command -v cargo-zigbuild >/dev/null || {
    echo "build.sh: needs cargo-zigbuild: pip install ziglang cargo-zigbuild" >&2
    exit 1
}
cargo build --release -p holdfast-preload
cargo zigbuild --release -p holdfast -p holdfast-watch -p holdfast-enter --target x86_64-unknown-linux-gnu.2.17 \
    --target-dir target/older
built=target/older/built
mkdir -p "$built"
cp target/release/libholdfast.so "$built/"
for program in holdfast holdfast-watch holdfast-enter; do
    cp "target/older/x86_64-unknown-linux-gnu/release/$program" "$built/"
done
HOLDFAST_BUILT=$built contrib/deb/build.sh "${1:-target/older/package}"
