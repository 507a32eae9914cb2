//! Files that several processes have: who is a client, who is an outsider, and that a file is
//! managed again when nothing speaks against it any more.

use std::time::Duration;

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::need;
use holdfast_e2e::pool::Pool;
use holdfast_e2e::{proc, report};
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

/// Asks what the file cannot do, and is refused: an exchange of its bytes with another file's, and
/// a mapping that is synchronous. Then it writes.
const PROBES: &str = "
import ctypes, fcntl, mmap, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
FIEXCHANGE_RANGE, MAP_SHARED_VALIDATE, MAP_SYNC = 0x40285881, 3, 0x80000
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
other = os.open(sys.argv[1] + '.other', os.O_RDWR | os.O_CREAT, 0o644)
os.pwrite(fd, b'a' * 8192, 0)
os.fsync(fd)
# Of a descriptor that is none.
for source in (other, 1 << 20):
    try:
        fcntl.ioctl(fd, FIEXCHANGE_RANGE, struct.pack('=iiqqqQ', source, 0, 1, 1, 1 << 40, 0))
        sys.exit('an exchange beyond the end was made')
    except OSError as error: print(error)
mapped = libc.mmap(None, 4096, mmap.PROT_READ | mmap.PROT_WRITE, MAP_SHARED_VALIDATE | MAP_SYNC, fd, 0)
assert mapped == ctypes.c_void_p(-1).value, 'a synchronous mapping of a disk'
for turn in range(100):
    os.pwrite(fd, b'%4d' % turn, turn * 64)
    os.fsync(fd)
";

#[test]
fn a_file_that_was_asked_in_vain_what_it_can_do_stays_in_the_log() {
    for kind in [Kind::Ext4, Kind::Xfs] {
        for options in [&["--exclusive=/"][..], &["--exclusive=/", "--write-behind=at-once"]] {
            let (disk, pool) = (Disk::new(kind), Pool::new());
            let file = disk.root.join("file");
            let program = ["python3", "-c", PROBES, file.to_str().expect("text")];
            let (output, summary) = pool.run_summarised(options, &program);
            output.ok();
            assert!(report::number(&summary, "writes_absorbed") >= 100, "{kind:?}: {}", states(&summary));
            assert!(report::number(&summary, "syncs_absorbed") >= 100, "{kind:?}: {}", states(&summary));
        }
    }
}

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
        let (absorbed, all) = (report::number(&summary, "writes_absorbed"), 12 * 5 * 20);
        // inotify does not say whose an open was. A process that loses its processor between making
        // a file, which another one was faster to make, and saying so is taken for a stranger, and
        // the file left to the kernel until that is cleared up.
        let enough = if option == "--fence=inotify" { all * 2 / 3 } else { all };
        assert!((enough..=all).contains(&absorbed), "{option}: {absorbed} absorbed, {}", states(&summary));
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

/// Writes a file in a directory, renames that, puts another file where the first one was, and goes
/// on writing.
const RENAMES: &str = "
import os, sys
root = sys.argv[1]
os.mkdir(root + '/before')
fd = os.open(root + '/before/file', os.O_RDWR | os.O_CREAT, 0o644)
os.write(fd, b'early ')
os.fsync(fd)
os.rename(root + '/before', root + '/after')
os.mkdir(root + '/before')
open(root + '/before/file', 'w').write('another')
os.write(fd, b'late')
print('written', flush=True)
sys.stdin.readline()
";

#[test]
fn files_below_a_renamed_directory_are_recovered() {
    // Their slots held names that led nowhere, or to other files, and their records were set aside.
    need::root();
    let disk = Disk::new(Kind::Ext4);
    holdfast_e2e::disk::give_to(&disk.root, "nobody");
    let exclusive = format!("--exclusive={}", disk.root.display());
    for (user, pool) in [("root", Pool::new()), ("nobody", Pool::of_user("nobody", ""))] {
        let root = disk.root.join(user);
        std::fs::create_dir(&root).expect("directory");
        holdfast_e2e::disk::give_to(&root, user);
        let program = ["--", "python3", "-c", RENAMES, root.to_str().expect("paths are text")];
        let run = pool.run(&[&exclusive, "--age-max=3600000"]).args(program);
        let mut child = run.spawn();
        let mut line = String::new();
        let mut told = std::io::BufReader::new(child.stdout.take().expect("piped"));
        std::io::BufRead::read_line(&mut told, &mut line).expect("a line");
        assert_eq!(line, "written\n");
        let family = proc::descendants(child.id());
        drop(child.kill());
        family.iter().for_each(|pid| proc::kill_hard(*pid));
        drop(child.wait());
        proc::wait_until(Duration::from_secs(10), "the end of all", || {
            !family.iter().any(|pid| proc::alive(*pid))
        });
        let recovered = pool.recover(&[]);
        let report = report::parse(&recovered.ok().stdout);
        assert!(report::number(&report, "records") >= 2, "{user}: {report:#}");
        assert_eq!(std::fs::read_to_string(root.join("after/file")).expect("file"), "early late", "{user}");
        assert_eq!(std::fs::read_to_string(root.join("before/file")).expect("file"), "another", "{user}");
    }
}

#[test]
fn a_declined_file_is_seen_with_its_reason() {
    // Written through a descriptor from before the run: it was in no count.
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let (root, aside) = (disk.root.to_str().expect("paths are text"), holdfast_e2e::disk::directory());
    let told = aside.path().join("summary");
    let summary = format!("--summary={}", told.display());
    let run = pool.run(&["--exclusive", root, &summary]);
    let script = format!("exec 3>{root}/file; exec {} -- sh -c 'echo hello >&3'", run.line());
    Cmd::new("sh").args(["-c", &script]).ok();
    let summary = report::parse(&std::fs::read_to_string(&told).expect("summary"));
    let text = states(&summary);
    assert!(text.contains("its opening was not seen") && text.contains("/file"), "{text}");
    assert_eq!(report::number(&summary, "declined"), 1, "{text}");
    assert_eq!(std::fs::read_to_string(disk.root.join("file")).expect("file"), "hello\n");
}

/// Maps a file shared, so that it is left to the kernel; lets go of all and opens it again.
const MAPS: &str = "
import mmap, os, subprocess, sys, time
path, how = sys.argv[1], sys.argv[2]
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
os.write(fd, bytes(4096))
if how == 'mapped':
    view = mmap.mmap(fd, 4096)
    view[0:5] = b'store'
    view.close()
    os.close(fd)
else:
    # A program without the library has it open for writing, and ends.
    child = subprocess.Popen(['sh', '-c', 'exec 3>>' + path + '; echo here; read line'], env={},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
    os.write(fd, b'beside an outsider')
    os.close(fd)
    child.communicate(b'\\n')
for turn in range(200):
    time.sleep(0.05)
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, b'again', 100)
    os.close(fd)
";

#[test]
fn a_file_that_was_left_to_the_kernel_is_managed_when_it_is_opened_anew() {
    need::root();
    for (how, fence) in [("mapped", "fanotify"), ("outsider", "fanotify"), ("outsider", "inotify")] {
        let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
        let file = disk.root.join(how);
        let program = ["python3", "-c", MAPS, file.to_str().expect("paths are text"), how];
        let (output, summary) = pool.run_summarised(&["--fence", fence], &program);
        output.ok();
        let absorbed = report::number(&summary, "writes_absorbed");
        assert!(
            absorbed >= 50,
            "{how}, {fence}: {absorbed} of 200 writes were absorbed: {}",
            states(&summary)
        );
        let bytes = std::fs::read(&file).expect("file");
        assert_eq!(&bytes[100..105], b"again");
    }
}

/// A keeper looked by itself whether a file was opened by one only, before the notice of another
/// client's open had come, which then passed for an outsider's: the file was left to the kernel.
/// Only where opens wait for the keeper may it do so; else the client takes the lease that tells,
/// which is in its own calls.
#[test]
fn who_hears_late_of_opens_leaves_the_look_at_them_to_the_client() {
    let script = "import os, sys\nos.write(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), b'x' * 100)";
    let disk = Disk::new(Kind::Ext4);
    for (fence, looks) in [("inotify", true), ("fanotify", false)] {
        let (file, trace) = (disk.root.join(fence), disk.root.join(format!("trace-{fence}")));
        let (file, trace) = (file.to_str().expect("text"), trace.to_str().expect("text"));
        let strace = need::tool("strace");
        let strace = strace.to_str().expect("text");
        let traced = [strace, "-f", "-e", "trace=fcntl", "-o", trace, "python3", "-c", script, file];
        let (output, summary) = Pool::new().run_summarised(&["--fence", fence], &traced);
        output.ok();
        assert!(report::number(&summary, "writes_absorbed") >= 1, "{fence}: {}", states(&summary));
        let calls = std::fs::read_to_string(trace).expect("trace");
        let leases: Vec<&str> = calls.lines().filter(|line| line.contains("F_SETLEASE, F_WRLCK")).collect();
        assert_eq!(!leases.is_empty(), looks, "{fence}: {leases:#?}");
    }
}

/// Opens the file that it writes to by calls which no function of libc makes, or by its handle.
const OPENS_BESIDE: &str = "
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
how = struct.pack('QQQ', os.O_RDONLY, 0, 0)
mount = os.open(os.path.dirname(sys.argv[1]), os.O_RDONLY)
handle, mount_id = ctypes.create_string_buffer(struct.pack('Ii', 120, 0), 128), ctypes.c_int()
assert libc.name_to_handle_at(-100, sys.argv[1].encode(), handle, ctypes.byref(mount_id), 0) == 0
def by_name():
    return libc.syscall(437, -100, sys.argv[1].encode(), how, len(how))
def by_handle():
    return libc.open_by_handle_at(mount, handle, os.O_RDONLY)
for turn in range(400):
    os.pwrite(fd, b'again' * 100, turn % 8 * 500)
    os.fsync(fd)
    for beside in range(20):
        other = by_name() if sys.argv[2] == 'name' else by_handle()
        assert other >= 0, os.strerror(ctypes.get_errno())
        os.close(other)
";

/// Under a fence that counts opens these were nobody's, and the file was the kernel's from the
/// first of them on.
#[test]
fn opens_by_openat2_and_by_handle_are_a_clients_own() {
    need::root();
    let disk = Disk::new(Kind::Ext4);
    for how in ["name", "handle"] {
        let file = disk.root.join(how);
        let program = ["python3", "-c", OPENS_BESIDE, file.to_str().expect("paths are text"), how];
        let (output, summary) = Pool::new().run_summarised(&["--fence", "inotify"], &program);
        output.ok();
        let absorbed = report::number(&summary, "syncs_absorbed");
        assert!(absorbed >= 300, "{how}: {absorbed} of 400 syncs were absorbed: {}", states(&summary));
    }
}
