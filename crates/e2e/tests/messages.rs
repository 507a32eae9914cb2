//! What commands say where something is not as it was meant to be: plainly, soon, and with what to
//! do, in a form that can be pasted into a shell.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::pool::Pool;
use holdfast_e2e::running::{Running, SOON};
use holdfast_e2e::{disk, need, proc};
use rustix::process::Signal;

/// The format that pools have.
const FORMAT: u32 = 5;
/// Nothing came of it.
const FAILED: i32 = 1;
/// `run` refused.
const REFUSED: i32 = 120;
/// `run` was given up, or nothing else is said of why.
const KEEPER: i32 = 121;

/// A program that says where its keeper listens, and waits.
const WAITS: &str = "
import os, sys
print('socket ' + os.environ['HOLDFAST_SOCKET'], flush=True)
sys.stdin.read()
";

/// Such a program, and that place.
fn waiting(pool: &Pool) -> (Running, String) {
    let mut run = Running::start(&pool.run(&[]).args(["--", "python3", "-c", WAITS]));
    let socket = run.until("socket ");
    (run, socket["socket ".len()..].to_owned())
}

/// Something beside it, in Python, which gets the socket's path and says when it is ready.
fn beside(script: &str, socket: &str) -> Running {
    let mut run = Running::start(&Cmd::new(need::tool("python3")).args(["-c", script, socket]));
    run.until("ready");
    run
}

#[test]
fn the_version_names_the_format_of_pools() {
    let told = Cmd::holdfast("--version").ok().stdout;
    // Bytes 8 to 12 of a pool (docs/format.md).
    let pool = Pool::formatted();
    let bytes = std::fs::read(&pool.path).expect("pool");
    let version = u32::from_le_bytes(bytes[8..12].try_into().expect("four bytes"));
    assert!(told.contains(&format!("pools of format version {version}")), "{told}");
}

/// The words of the command that stands in a message between backquotes, as a shell reads them.
fn pasted(message: &str, begins: &str) -> Vec<String> {
    let from =
        message.find(&format!("`{begins}")).unwrap_or_else(|| panic!("`{begins} is not in {message}")) + 1;
    let command = &message[from..from + message[from..].find('`').expect("its end")];
    let script = format!("printf '%s\\0' {command}");
    let words = Cmd::new("bash").args(["-c", &script]).ok().stdout;
    words.trim_end_matches('\0').split('\0').map(str::to_owned).collect()
}

#[test]
fn commands_in_messages_can_be_pasted() {
    let home = disk::directory();
    let path = home.path().join("a pool; of $(it)'s own");
    let path = path.to_str().expect("text");
    let told = Cmd::holdfast("recover").args(["--pool", path]).output();
    told.expect(&[FAILED]);
    assert_eq!(pasted(&told.stderr, "holdfast format"), ["holdfast", "format", "--pool", path]);

    // A pool that was not closed.
    let mut pool = Pool::new();
    pool.path = pool.path.with_extension("$(it)'s; pool");
    let mut run = Running::start(&pool.run(&[]).args(["--", "sh", "-c", "echo begun; exec sleep 60"]));
    run.until("begun");
    run.kill_all(&pool);
    let told = pool.command("format").args(["--size", "64M", "--volatile"]).output();
    told.expect(&[FAILED]);
    assert_eq!(pasted(&told.stderr, "holdfast recover"), ["holdfast", "recover", "--pool", pool.text()]);
    pool.command("recover").ok();
}

/// Connects until nobody more can wait to be let in.
const CROWD: &str = "
import socket, sys, time
crowd = []
while True:
    crowd.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    crowd[-1].setblocking(False)
    try: crowd[-1].connect(sys.argv[1])
    except BlockingIOError: break
print('ready', flush=True)
time.sleep(60)
";

/// Where the keeper had room for who waits, that took twenty seconds; where it had none, as long,
/// and nobody was told why.
#[test]
fn a_keeper_that_is_stopped_is_named_by_who_cannot_even_wait_for_it() {
    let pool = Pool::new();
    let (run, socket) = waiting(&pool);
    let keeper = proc::keeper(&pool.path);
    proc::signal(keeper, Signal::STOP);
    proc::wait_until(SOON, "the keeper's stop", || proc::at_rest(keeper));
    let crowd = beside(CROWD, &socket);
    let told = format!("kill -CONT {keeper}");
    let (status, second, recover) = std::thread::scope(|scope| {
        let output = |cmd: Cmd| scope.spawn(move || cmd.output());
        let status = output(pool.command("status"));
        let second = output(pool.run(&[]).args(["--", "echo", "the program ran"]));
        let recover = output(pool.command("recover"));
        [status, second, recover].map(|asked| asked.join().expect("asked")).into()
    });
    proc::signal(keeper, Signal::CONT);
    status.expect(&[FAILED]).says(&["is stopped", &told], &[]);
    second.expect(&[REFUSED, KEEPER]).says(&["is stopped", &told], &[]);
    assert!(!second.stdout.contains("the program ran"), "{}", second.told());
    recover.expect(&[FAILED]).says(&["is stopped", &told], &[]);
    drop(crowd);
    pool.command("status").ok();
    run.kill_all(&pool);
}

/// Says that it is a keeper of another version, or what nobody understands.
const OTHER_KEEPER: &str = "
import os, socket, sys
path = sys.argv[1]
os.rename(path, path + '.real')
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(path)
listener.listen()
print('ready', flush=True)
for answer in 3 * [b'{\"other_version\": \"9.9.9 (wire 99)\"}'] + [b'{}']:
    connection, _ = listener.accept()
    request = connection.recv(100)
    connection.send(request[1:5] + answer)
    connection.recv(100)
";

#[test]
fn a_keeper_of_another_version_is_told_of() {
    let pool = Pool::new();
    let (run, socket) = waiting(&pool);
    let other = beside(OTHER_KEEPER, &socket);
    let pid = format!("pid {}", other.child.id());
    let join = Cmd::holdfast("run").args(["--volatile", "--pool", pool.text(), "--join", "--", "true"]);
    for (asks, status) in [(pool.command("status"), FAILED), (pool.command("files"), FAILED), (join, REFUSED)]
    {
        let known = ["is of another version of holdfast: 9.9.9 (wire 99)", &pid, env!("CARGO_PKG_VERSION")];
        asks.output().expect(&[status]).says(&known, &[]);
    }
    let unknown = ["is of another version of holdfast: its answer is not understood", &pid];
    pool.command("drain").output().expect(&[FAILED]).says(&unknown, &[]);
    drop(other);
    std::fs::rename(format!("{socket}.real"), Path::new(&socket)).expect("the real one");
    pool.command("status").ok();
    run.kill_all(&pool);
}

/// Makes a pool one of another version of the format, with the checksums that every version has.
fn make_other_format(pool: &Path, version: u32) {
    let mut bytes = std::fs::read(pool).expect("pool");
    for at in [0, 4096 + 2048] {
        bytes[at + 8..at + 12].copy_from_slice(&version.to_le_bytes());
        let check = crc32c::crc32c(&bytes[at..at + 124]);
        bytes[at + 124..at + 128].copy_from_slice(&check.to_le_bytes());
    }
    // In place: whoever serves it has it mapped.
    File::options()
        .write(true)
        .open(pool)
        .and_then(|file| file.write_all_at(&bytes[..8192], 0))
        .expect("written");
}

/// All commands that look at a keeper, or would have a pool for themselves, name it, its version,
/// and what to do.
#[test]
fn a_keeper_of_another_format_is_told_of() {
    let pool = Pool::new();
    let (run, _) = waiting(&pool);
    let keeper = proc::keeper(&pool.path);
    make_other_format(&pool.path, 4);
    let own = format!("holdfast: {} (wire ", env!("CARGO_PKG_VERSION"));
    let (pid, kill) = (format!("pid {keeper}"), format!("`kill {keeper}`"));
    for command in ["status", "files", "drain", "metrics"] {
        let told = pool.command(command).output();
        let known = ["is of another version of ", &own, "the pool has format version 4", &pid, &kill];
        told.expect(&[FAILED]).says(&known, &[]);
    }
    let format = pool.command("format").args(["--volatile", "--size", "64M"]);
    for owner in [pool.command("recover"), format] {
        let told = owner.output();
        told.expect(&[FAILED]).says(&["is in use by process", &keeper.to_string(), "format version 4"], &[]);
    }
    let join = pool.run(&[]).args(["--", "echo", "the program ran"]).output();
    join.expect(&[REFUSED]).says(&["is of another version of holdfast", "format version 4", &pid], &[]);
    assert!(!join.stdout.contains("the program ran"), "{}", join.told());
    make_other_format(&pool.path, FORMAT);
    pool.command("status").ok();
    run.kill_all(&pool);
    // Nobody serves it: there is only the pool to be told of.
    make_other_format(&pool.path, 4);
    for command in ["status", "files", "drain", "recover"] {
        let told = pool.command(command).output();
        told.expect(&[FAILED]).says(&["format version 4", "with the version of Holdfast that made it"], &[]);
    }
}

/// Asks as a command of an older and of a newer version would.
const OTHER_COMMANDS: &str = "
import socket, struct, sys
for request in (b'S' + struct.pack('<II', 7, 0), b'D' + struct.pack('<III', 7, 0, 999), b'?' + struct.pack('<IIQ', 7, 0, 999)):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(sys.argv[1])
    connection.send(request)
    answer = connection.recv(10000)
    print(struct.unpack('<I', answer[:4])[0], answer[4:].decode(), flush=True)
print('ready', flush=True)
";

/// The form of such an answer stays: it is what an older command understands.
#[test]
fn a_command_of_another_version_hears_which_the_keeper_is_of() {
    let pool = Pool::new();
    let (run, socket) = waiting(&pool);
    let told = Cmd::new(need::tool("python3")).args(["-c", OTHER_COMMANDS, &socket]).ok().stdout;
    let lines: Vec<&str> = told.lines().collect();
    let begins = format!("7 {{\"other_version\":\"{} (wire ", env!("CARGO_PKG_VERSION"));
    assert!(lines.len() == 4 && lines[..3].iter().all(|line| line.starts_with(&begins)), "{told}");
    pool.command("status").ok();
    run.kill_all(&pool);
}

/// Gives a question up that a stopped keeper does not answer, and asks another one on the same
/// connection; then the keeper goes on.
const LATE: &str = "
import json, os, re, signal, socket, struct, sys, time
def ask(connection, kind, number, version):
    connection.send(kind + struct.pack('<III', number, 0, version))
def hear(connection):
    answer = connection.recv(1 << 20)
    return struct.unpack('<I', answer[:4])[0], json.loads(answer[4:])
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.connect(sys.argv[1])
ask(connection, b'S', 1, 0)
version = int(re.search('wire ([0-9]+)', hear(connection)[1]['other_version'])[1])
keeper = int(sys.argv[2])
os.kill(keeper, signal.SIGSTOP)
while open('/proc/%d/stat' % keeper).read().rsplit(') ', 1)[1][0] != 'T': time.sleep(0.01)
connection.settimeout(0.3)
ask(connection, b'S', 2, version)
try: print('answered while it was stopped', hear(connection))
except TimeoutError: pass
connection.settimeout(None)
ask(connection, b'F', 3, version)
os.kill(keeper, signal.SIGCONT)
number, status = hear(connection)
print(number, 'keeper_pid' in status, flush=True)
number, files = hear(connection)
print(number, 'files' in files and not 'keeper_pid' in files, flush=True)
";

/// The late answer says which question it is to. That nobody takes it for that to another one is a
/// test of `keeper/src/control.rs`.
#[test]
fn late_answers_of_a_keeper_that_was_stopped_have_their_numbers() {
    let pool = Pool::new();
    let (run, socket) = waiting(&pool);
    let keeper = proc::keeper(&pool.path).to_string();
    let told = Cmd::new(need::tool("python3")).args(["-c", LATE, &socket, &keeper]).ok();
    assert_eq!(told.stdout, "2 True\n3 True\n", "{}", told.told());
    run.kill_all(&pool);
}
