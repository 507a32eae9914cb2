//! Files that several processes have: who is a client, who is an outsider, and that a file is managed again when nothing speaks
//! against it any more.

use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::need;
use holdfast_e2e::pool::Pool;
use holdfast_e2e::report;
use serde_json::Value;

/// Processes open each file at the same moment and write to it at the same moment.
const AT_ONCE: &str = "
import os, sys, time
root, files, processes = sys.argv[1], 12, 5
start = time.time() + 0.3
def work(mine):
    for number in range(files):
        while time.time() < start + number * 0.04: pass
        fd = os.open('%s/file-%d' % (root, number), os.O_RDWR | os.O_CREAT, 0o644)
        for turn in range(20):
            os.pwrite(fd, bytes([65 + mine]) * 100, (turn * processes + mine) * 100)
        os.fsync(fd)
    return 0
children = []
for mine in range(processes):
    child = os.fork()
    if child == 0:
        os._exit(work(mine))
    children.append(child)
assert not any(os.waitpid(child, 0)[1] for child in children)
print('done', flush=True)
sys.stdin.readline()
";

fn states(summary: &Value) -> String {
    let files = report::find(summary, "files").map(ToString::to_string).unwrap_or_default();
    let bypassed = report::find(summary, "bypassed").map(ToString::to_string).unwrap_or_default();
    format!("{files} {bypassed}")
}

#[test]
fn processes_that_first_open_a_file_at_the_same_moment_have_it_managed() {
    // The second of them was taken for a stranger, and the file was left to the kernel for good.
    need::root();
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let exclusive = format!("--exclusive={}", disk.root.display());
    for option in ["--fence=fanotify", "--fence=inotify", &exclusive] {
        let root = disk.root.join(option.trim_start_matches('-').replace(['/', '='], "-"));
        std::fs::create_dir(&root).expect("directory");
        let root = root.to_str().expect("paths are text");
        let (output, summary) = pool.run_summarised(&[option], &["python3", "-c", AT_ONCE, root]);
        output.ok();
        assert_eq!(
            report::number(&summary, "writes_absorbed"),
            12 * 5 * 20,
            "{option}: {}",
            states(&summary)
        );
        for number in 0..12 {
            let bytes = std::fs::read(format!("{root}/file-{number}")).expect("file");
            let whole = bytes
                .chunks(100)
                .enumerate()
                .all(|(at, part)| part.iter().all(|&byte| byte == 65 + (at % 5) as u8));
            assert!(whole && bytes.len() == 10_000, "{option}: file {number}");
        }
    }
}
