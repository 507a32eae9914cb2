//! What the tests need from the machine. A missing piece fails the test with the command that
//! installs it; nothing is skipped.

use std::path::{Path, PathBuf};

/// Directories searched for programs, in order.
pub const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin:/usr/lib/postgresql/15/bin:/usr/local/go/bin";

/// Debian's package for each program that the tests start.
const PACKAGES: &[(&str, &str)] = &[
    ("btrfs", "btrfs-progs"),
    ("busybox", "busybox-static"),
    ("db_bench", "rocksdb-tools"),
    ("dpkg", "dpkg"),
    ("dpkg-deb", "dpkg"),
    ("dpkg-query", "dpkg"),
    ("eatmydata", "eatmydata"),
    ("fio", "fio"),
    ("findmnt", "mount util-linux"),
    ("fusermount3", "fuse3"),
    ("gcc", "gcc libc6-dev"),
    ("git", "git"),
    ("go", "golang-go"),
    ("groff", "groff-base"),
    ("initdb", "postgresql-15"),
    ("ldb", "rocksdb-tools"),
    ("ldd", "libc-bin"),
    ("innochecksum", "mariadb-server-core"),
    ("losetup", "mount util-linux"),
    ("lsof", "lsof"),
    ("mariadb", "mariadb-client-core"),
    ("mariadb-install-db", "mariadb-server-core"),
    ("mariadbd", "mariadb-server-core"),
    ("mdb_dump", "lmdb-utils"),
    ("mdb_load", "lmdb-utils"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("musl-gcc", "musl-tools"),
    ("ndctl", "ndctl"),
    ("nm", "binutils"),
    ("objdump", "binutils"),
    ("pg_amcheck", "postgresql-15"),
    ("pg_checksums", "postgresql-15"),
    ("pgbench", "postgresql-15"),
    ("postgres", "postgresql-15"),
    ("promtool", "prometheus"),
    ("psql", "postgresql-15"),
    ("python3", "python3"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("readelf", "binutils"),
    ("redis-check-aof", "redis-tools"),
    ("redis-server", "redis-server"),
    ("rsync", "rsync"),
    ("setpriv", "util-linux"),
    ("sqlite3", "sqlite3"),
    ("stress-ng", "stress-ng"),
    ("strip", "binutils"),
    ("su", "login"),
    ("sudo", "sudo"),
    ("systemd-analyze", "systemd"),
    ("tmux", "tmux"),
    ("unshare", "util-linux"),
    ("valgrind", "valgrind libc6-dbg"),
    ("vim", "vim"),
    ("xfs_io", "xfsprogs"),
];

/// The full path of a program; fails the test, naming the package, when it is not installed.
pub fn tool(name: &str) -> PathBuf {
    PATH.split(':').map(|dir| Path::new(dir).join(name)).find(|path| path.exists()).unwrap_or_else(|| {
        let package = PACKAGES.iter().find(|(tool, _)| *tool == name).map_or(name, |(_, package)| package);
        panic!("this test needs `{name}`: apt-get install -y --no-install-recommends {package}")
    })
}

/// Fails the test, naming the package, when a file that one brings is missing.
pub fn debian_file(path: &str, package: &str) {
    assert!(
        Path::new(path).exists(),
        "this test needs `{path}`: apt-get install -y --no-install-recommends {package}"
    );
}

/// Fails the test when it does not run as root.
pub fn root() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test mounts file systems and changes users: run it as root"
    );
}

/// A program of this crate, built beside the tests.
pub fn own(name: &str) -> PathBuf {
    let tests = std::env::current_exe().expect("the test's own path");
    // target/PROFILE/deps/TEST; the program is one level up.
    let built = tests.ancestors().skip(1).take(2).map(|dir| dir.join(name)).find(|path| path.exists());
    built.unwrap_or_else(|| panic!("{name} is not beside {}: cargo build -p holdfast-e2e", tests.display()))
}

/// The built program: `HOLDFAST_BIN`, else `target/release/holdfast` of this workspace.
pub fn holdfast() -> PathBuf {
    let path = std::env::var_os("HOLDFAST_BIN")
        .map(PathBuf::from)
        .unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/release/holdfast"));
    let path = path.canonicalize().unwrap_or_else(|error| {
        panic!(
            "{}: {error}: build it first with `cargo build --release`, or set HOLDFAST_BIN",
            path.display()
        )
    });
    assert!(
        path.with_file_name("libholdfast.so").exists(),
        "{} has no libholdfast.so beside it: `cargo build --release`",
        path.display()
    );
    path
}
