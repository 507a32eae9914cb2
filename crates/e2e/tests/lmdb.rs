//! LMDB: readers map the file and writers use `pwrite` and `fdatasync`, so what is absorbed must be
//! seen in the map at once.

use std::fmt::Write as _;
use std::path::Path;

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::need;
use holdfast_e2e::pool::Pool;
use holdfast_e2e::report;

const ENTRIES: usize = 3000;

/// What `mdb_load` reads, with values that depend on the round.
fn entries(round: usize) -> String {
    let mut text = String::from("VERSION=3\nformat=print\ntype=btree\nmapsize=104857600\nHEADER=END\n");
    for at in 0..ENTRIES {
        let (key, length) = ((at * 7919 + round) % 20_000, 20 + at * 31 % 1500);
        writeln!(text, " key {key:06}\n round {round} {}", "v".repeat(length)).expect("text");
    }
    text.push_str("DATA=END\n");
    text
}

fn dump(home: &Path) -> String {
    Cmd::new(need::tool("mdb_dump")).arg("-p").arg(home).ok().stdout
}

#[test]
fn lmdb_reads_what_it_wrote() {
    for options in [&[][..], &["--write-behind=at-once"][..]] {
        let disk = Disk::new(Kind::Ext4);
        let (held, native) = (disk.root.join("held"), disk.root.join("native"));
        for home in [&held, &native] {
            std::fs::create_dir(home).expect("directory");
        }
        let pool = Pool::new();
        for round in 0..3 {
            let input = disk.root.join("entries");
            std::fs::write(&input, entries(round)).expect("entries");
            let load = need::tool("mdb_load");
            Cmd::new(&load).arg("-f").arg(&input).arg(&native).ok();
            // The dump runs in the same pool, while the log holds what was loaded.
            let line = format!(
                "{} -f {} {home} && {} -p {home}",
                load.display(),
                input.display(),
                need::tool("mdb_dump").display(),
                home = held.display()
            );
            let (output, summary) = pool.run_summarised(options, &["sh", "-c", &line]);
            output.ok();
            assert!(output.stdout == dump(&native), "round {round}: another content");
            assert!(report::number(&summary, "writes_absorbed") > 20, "{summary:#}");
            assert!(report::flag(&summary, "drained"), "{summary:#}");
        }
        assert!(dump(&held) == dump(&native), "another content on the disk");
    }
}
