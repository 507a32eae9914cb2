//! The Debian package: it is made, installed into this machine's own root directory as nobody else
//! sees it, run, and purged, and nothing is left. `contrib/deb/try.sh` does the same in a bare one.

use std::path::Path;

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::need;

fn text(path: &Path) -> &str {
    path.to_str().expect("paths are text")
}

/// A root directory over the real one, whose changes are in memory, and go with this process.
const OVER: &str = r#"
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
root=$1/root
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/dev"
mkdir "$root/dev/shm"
for device in null zero urandom; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mkdir -p "$root/var/trial"
mount --bind "$2" "$root/var/trial"
cp "$3" "$root/holdfast.deb"
# Others' file systems are theirs to unmount: no copy of them stays here.
cd /
awk '{ print $5 }' /proc/self/mountinfo | tac | while read -r point; do
    case $point in
    / | /proc* | /sys* | /dev* | "$1"*) ;;
    *) umount -l "$point" 2>/dev/null || true ;;
    esac
done
exec "$4/trial.sh" "$root"
"#;

#[test]
fn the_package_is_installed_runs_and_leaves_nothing() {
    need::root();
    let contrib = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/deb");
    let out = tempfile::tempdir().expect("a directory");
    let built = need::holdfast();
    let built = text(built.parent().expect("a directory"));
    let made = Cmd::new(contrib.join("build.sh")).arg(out.path()).env("HOLDFAST_BUILT", built).ok();
    let package = made.stdout.lines().find(|line| line.ends_with(".deb")).expect("a package").to_owned();
    let listed = Cmd::new("dpkg-deb").args(["--contents", &package]).ok().stdout;
    for name in [
        "./usr/lib/holdfast/libholdfast.so",
        "./usr/lib/systemd/system/holdfast-recover.service",
        "./usr/share/man/man1/holdfast-run.1.gz",
        "./usr/share/man/man1/holdfast-bench.1.gz",
        "./usr/share/man/man5/holdfast-pool.5.gz",
        "./usr/share/man/man5/holdfast.toml.5.gz",
        "./usr/share/man/man8/mount.holdfast.8.gz",
        "./usr/sbin/mount.holdfast -> ../lib/holdfast/holdfast",
        "./usr/share/bash-completion/completions/holdfast",
        "./etc/holdfast/holdfast.toml",
    ] {
        assert!(listed.contains(name), "{name} is missing\n{listed}");
    }
    let (disk, place) = (Disk::new(Kind::Ext4), tempfile::tempdir().expect("a directory"));
    let words =
        ["-m", "sh", "-c", OVER, "sh", text(place.path()), text(&disk.root), &package, text(&contrib)];
    let tried = Cmd::new("unshare").args(words).ok();
    assert!(tried.stdout.contains("nothing is left"), "{}", tried.told());
    assert!(tried.stdout.contains("% of 100 syncs absorbed"), "{}", tried.told());
}

/// `strip`, as the package has it, leaves the probes that documents name to tracers.
#[test]
fn tracers_find_the_probes() {
    let dir = tempfile::tempdir().expect("a directory");
    let library = dir.path().join("libholdfast.so");
    std::fs::copy(need::holdfast().with_file_name("libholdfast.so"), &library).expect("copied");
    Cmd::new("strip").arg("--strip-debug").arg(&library).ok();
    let notes = Cmd::new("readelf").arg("--notes").arg(&library).ok().stdout;
    for probe in ["sync_begin", "sync_end"] {
        let found = notes.lines().zip(notes.lines().skip(1));
        let found = found.filter(|(provider, name)| {
            provider.trim() == "Provider: holdfast" && name.trim() == format!("Name: {probe}")
        });
        assert!(found.count() > 0, "{probe}\n{notes}");
    }
}

/// A program does not start with a library that asks for a symbol which its C library lacks.
#[test]
fn the_library_loads_with_older_glibc() {
    let library = need::holdfast().with_file_name("libholdfast.so");
    let asked = Cmd::new("objdump").arg("-T").arg(&library).ok().stdout;
    let versions = asked.split("(GLIBC_").skip(1).filter_map(|rest| rest.split(')').next());
    let minors: Vec<u32> = versions
        .map(|version| version.split('.').nth(1).and_then(|minor| minor.parse().ok()).expect("2.N"))
        .collect();
    assert!(minors.len() > 10, "{asked}");
    assert!(minors.iter().all(|minor| *minor <= 17), "{minors:?}\n{asked}");
}

/// What man says of a page is what was meant: no warnings, and nothing that is taken for a request.
#[test]
fn man_reads_the_pages() {
    let dir = tempfile::tempdir().expect("a directory");
    Cmd::holdfast("man").arg("--dir").arg(dir.path()).ok();
    for section in ["man1", "man5", "man8"] {
        for page in std::fs::read_dir(dir.path().join(section)).expect("pages").flatten() {
            let read = Cmd::new("groff").args(["-man", "-Tutf8", "-ww", "-z"]).arg(page.path()).ok();
            assert_eq!(read.stderr, "", "{}", read.told());
        }
    }
}
