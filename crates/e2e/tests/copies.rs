//! `tar` and `cp -a` under Holdfast leave the same tree: contents, modes, owners, times, links,
//! holes.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::report;
use holdfast_testkit::Random;

/// A tree with one of everything that a copy must keep.
fn plant(root: &Path) {
    let mut random = Random::named("tree");
    for dir in 0..8 {
        let dir = root.join(format!("dir-{dir}"));
        std::fs::create_dir_all(&dir).expect("directory");
        for number in 0..25 {
            let size = [0, 1, 100, 4096, 5000, 70_000, 600_000][random.between(0, 7) as usize] as usize;
            let bytes: Vec<u8> = (0..size).map(|_| random.draw() as u8).collect();
            let file = dir.join(format!("file {number}"));
            std::fs::write(&file, bytes).expect("file");
            let mode = [0o600, 0o644, 0o755, 0o400][random.between(0, 4) as usize];
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("mode");
            let time =
                format!("@{}.{:09}", random.between(1, 1_700_000_000), random.between(0, 1_000_000_000));
            Cmd::new("touch").arg("-d").arg(time).arg(&file).ok();
        }
        symlink("file 3", dir.join("link")).expect("symbolic link");
        std::fs::hard_link(dir.join("file 4"), dir.join("same as 4")).expect("hard link");
    }
    symlink("/nowhere/at all", root.join("dangling")).expect("symbolic link");
    let sparse = std::fs::File::create(root.join("sparse")).expect("file");
    sparse.set_len(9_000_000).expect("size");
    Cmd::new("dd")
        .args(["if=/bin/sh", "bs=4k", "count=3", "seek=500", "conv=notrunc"])
        .arg(format!("of={}", root.join("sparse").display()))
        .ok();
    Cmd::new("chown").args(["1234:4321"]).arg(root.join("dir-1/file 1")).ok();
}

type Row = (u32, u32, u32, (i64, i64), u64, Vec<u8>);

fn tree(root: &Path) -> BTreeMap<String, Row> {
    let mut rows = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(path) = open.pop() {
        let meta = path.symlink_metadata().expect("metadata");
        let bytes = if meta.is_dir() {
            open.extend(
                std::fs::read_dir(&path).expect("directory").map(|entry| entry.expect("entry").path()),
            );
            Vec::new()
        } else if meta.is_symlink() {
            std::fs::read_link(&path).expect("link").into_os_string().into_encoded_bytes()
        } else {
            std::fs::read(&path).expect("file")
        };
        let name = path.strip_prefix(root).expect("below").display().to_string();
        rows.insert(
            name,
            (meta.mode(), meta.uid(), meta.gid(), (meta.mtime(), meta.mtime_nsec()), meta.nlink(), bytes),
        );
    }
    rows
}

fn must_agree(one: &Path, other: &Path) {
    let (one, other) = (tree(one), tree(other));
    for (name, row) in &one {
        let twin = other.get(name).unwrap_or_else(|| panic!("`{name}` was not copied"));
        assert!(row.5 == twin.5, "`{name}` has other contents ({} and {} bytes)", row.5.len(), twin.5.len());
        let of = |row: &Row| (format!("{:o}", row.0), row.1, row.2, row.3, row.4);
        assert_eq!(of(row), of(twin), "`{name}`: mode, owner, group, time, links");
    }
    assert_eq!(one.len(), other.len(), "names too many");
}

#[test]
fn cp_keeps_everything() {
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs] {
        let (disk, pool) = (Disk::new(kind), Pool::new());
        let (from, to) = (disk.root.join("from"), disk.root.join("to"));
        plant(&from);
        pool.run(&[]).args(["--", "cp", "-a"]).arg(&from).arg(&to).ok();
        must_agree(&from, &to);
    }
}

#[test]
fn tar_keeps_everything() {
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs] {
        let (disk, pool) = (Disk::new(kind), Pool::new());
        let (from, to, archive) =
            (disk.root.join("from"), disk.root.join("to"), disk.root.join("archive.tar"));
        plant(&from);
        std::fs::create_dir(&to).expect("directory");
        let text = |path: &Path| path.to_str().expect("text").to_owned();
        let pack =
            ["tar", "--format=posix", "-C", &text(&from), "-cf", &text(&archive), "."].map(str::to_owned);
        let unpack = ["tar", "-C", &text(&to), "-xpf", &text(&archive)].map(str::to_owned);
        for argv in [pack.as_slice(), unpack.as_slice()] {
            let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
            let (output, summary) = pool.run_summarised(&[], &argv);
            output.ok();
            assert!(report::number(&summary, "writes_absorbed") > 20, "{summary:#}");
        }
        must_agree(&from, &to);
    }
}
