//! What changes names is pending until it is committed, and nothing else is: syncs beside it are
//! absorbed. Told by counts, on each file system.

use std::path::Path;

use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::report;
use serde_json::Value;

const KINDS: [Kind; 3] = [Kind::Ext4, Kind::Xfs, Kind::Btrfs];

fn text(path: &Path) -> &str {
    path.to_str().expect("paths are text")
}

fn run(kind: Kind, pool: &Pool, script: &str) -> Value {
    let disk = Disk::new(kind);
    let (output, summary) = pool.run_summarised(&[], &["python3", "-c", script, text(&disk.root)]);
    output.ok();
    summary
}

fn count(summary: &Value, name: &str) -> u64 {
    report::number(summary, name)
}

/// Processes that end beside a log, of each kind that ends: by exec, fork and vfork.
const ENDING: &str = "
import os, subprocess, sys
log = os.open(sys.argv[1] + '/log', os.O_WRONLY | os.O_CREAT, 0o644)
def entry():
    os.write(log, b'x' * 100)
    os.fdatasync(log)
entry()
for number in range(40):
    subprocess.run(['true'])
    entry()
    if os.fork() == 0:
        os.listdir(sys.argv[1])
        os._exit(0)
    os.wait()
    entry()
    os.posix_spawn('/bin/true', ['true'], os.environ)
    os.wait()
    entry()
";

#[test]
fn a_process_that_ends_leaves_nothing_pending() {
    for kind in KINDS {
        for pool in [Pool::new(), Pool::new().logs_from_sync()] {
            let summary = run(kind, &pool, ENDING);
            let real = count(&summary, "syncs_real") + count(&summary, "keeper_fsyncs");
            println!("{kind:?}: {real} syncs of 121 are real");
            assert!(count(&summary, "syncs_absorbed") >= 115 && real <= 12, "{kind:?}: {summary:#}");
        }
    }
}
