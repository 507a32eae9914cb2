//! What a client that means harm to the keeper of its own user can do with the descriptor of the
//! pool that every client gets, and what not (docs/trust.md, "A hostile client"): each row of the
//! table there is a test.

use std::time::Duration;

use holdfast_e2e::cmd::{Cmd, Output};
use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::proc;
use holdfast_e2e::running::{Running, SOON};

const PAGES: usize = 16;

/// Writes a file whose pages are all `a`, on the disk, and then all `b`, in the log; says where its
/// keeper listens; and on a word writes `c` over the first page.
const PROGRAM: &str = "
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
os.pwrite(fd, b'a' * 65536, 0)
os.fsync(fd)
print('socket ' + os.environ['HOLDFAST_SOCKET'], flush=True)
sys.stdin.readline()
for page in range(16): os.pwrite(fd, b'b' * 4096, 4096 * page)
os.fsync(fd)
print('written', flush=True)
sys.stdin.readline()
try:
    os.pwrite(fd, b'c' * 4096, 0)
    os.fsync(fd)
    print('went on', flush=True)
except OSError as error: print('was told', error, flush=True)
sys.stdin.readline()
";

/// Says hello as the library does, and keeps what it gets: `pool` can be written to.
const HELLO: &str = "
import fcntl, mmap, os, socket, struct, sys
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.connect(sys.argv[1])
connection.send(b'H\\0\\0\\0' + struct.pack('<I', 8))
board, pool = socket.recv_fds(connection, 4096, 4)[1]
size = os.fstat(pool).st_size
";

struct Stage {
    disk: Disk,
    pool: Pool,
    run: Option<Running>,
    socket: String,
}

impl Stage {
    /// With the program's `b` in the log and its `a` in the file, if `behind`; else in both.
    fn new(options: &[&str]) -> Self {
        let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
        let options: Vec<&str> = options.iter().copied().chain(["--age-max=1h", "--exclusive=/"]).collect();
        let mut run = Running::python(&pool, &options, PROGRAM, &disk.root.join("file"));
        let socket = run.until("socket ")["socket ".len()..].to_owned();
        // So that what is on the disk is known.
        pool.command("drain").ok();
        run.go_on();
        run.until("written");
        Self { disk, pool, run: Some(run), socket }
    }

    /// A client of the same user does this with what it got, and ends.
    fn hostile(&self, does: &str) -> Output {
        let script = format!("{HELLO}{does}");
        Cmd::new("python3").args(["-c", &script, &self.socket]).limit(SOON).output()
    }

    /// The file, which must hold nothing but what the program wrote, each page as it wrote it.
    fn pages(&self) -> String {
        let bytes = std::fs::read(self.disk.root.join("file")).expect("a file");
        assert_eq!(bytes.len(), PAGES * 4096);
        let letter = |page: &[u8]| {
            let is_whole = page.iter().all(|byte| *byte == page[0]);
            assert!(is_whole && b"abc".contains(&page[0]), "{:?}", &page[..16]);
            char::from(page[0])
        };
        bytes.chunks(4096).map(letter).collect()
    }

    /// Has the program write once more; what it says of that.
    fn go_on(&mut self, says: &str) -> String {
        let run = self.run.as_mut().expect("it runs");
        run.go_on();
        run.until(says)
    }

    fn kill_all(&mut self) {
        if let Some(run) = self.run.take() {
            run.kill_all(&self.pool);
        }
        proc::wait_until(SOON, "the keeper's end", || proc::keepers(&self.pool.path).is_empty());
    }
}

/// The pool stays the keeper's: nobody else gets it by what a client does to its own description.
#[test]
fn it_cannot_take_the_pool_from_its_keeper() {
    let mut stage = Stage::new(&[]);
    let does = "
for lock in fcntl.LOCK_UN, fcntl.LOCK_EX | fcntl.LOCK_NB:
    try: fcntl.flock(pool, lock); print('locked' if lock != fcntl.LOCK_UN else 'no lock of its own')
    except OSError as error: print(error)
try: fcntl.lockf(pool, fcntl.LOCK_UN)
except OSError as error: print(error)
";
    let told = stage.hostile(does);
    told.ok();
    assert!(!told.stdout.contains("locked"), "{}", told.told());
    let recover = stage.pool.command("recover").output();
    recover.expect(&[1]).says(&["is in use by process"], &[]);
    stage.go_on("went on");
    stage.kill_all();
}

/// It can cut the pool, and so end its keeper and that one's clients, which all are its own user's.
/// What was acknowledged and on no disk is gone; what is left says so, and no file is wrong.
#[test]
fn it_can_cut_the_pool_which_ends_its_keeper_and_is_told_of() {
    let mut stage = Stage::new(&[]);
    let keeper = proc::keeper(&stage.pool.path);
    stage.hostile("os.ftruncate(pool, 1 << 20)").ok();
    // It is met by whoever goes there next, and the run ends with it.
    let run = stage.run.as_mut().expect("it runs");
    run.go_on();
    proc::wait_until(Duration::from_secs(30), "the end of the run", || {
        run.child.try_wait().expect("its status").is_some_and(|status| !status.success())
    });
    proc::wait_until(SOON, "the keeper's end", || !proc::alive(keeper));
    stage.kill_all();
    let recover = stage.pool.command("recover").output();
    recover.expect(&[1]).says(&["truncated"], &[]);
    let run = stage.pool.run(&[]).args(["--", "echo", "the program ran"]).output();
    run.expect(&[120]).says(&["truncated"], &[]);
    assert!(!run.stdout.contains("the program ran"), "{}", run.told());
    stage.pages();
}

/// It can write over all records, and none of that reaches a file: neither when it is drained nor
/// when it is recovered.
#[test]
fn what_it_writes_over_records_reaches_no_file() {
    for options in [&[][..], &["--write-behind=at-once"]] {
        let mut stage = Stage::new(options);
        // Behind superblock and slots: the second half is all segments.
        let does = "
import random
noise = random.Random(7).randbytes(1 << 20)
for at in range(size // 2, size, len(noise)): os.pwrite(pool, noise, at)
at = 0
whole = os.pread(pool, size, 0)
while (at := whole.find(b'b' * 4096, at)) >= 0:
    os.pwrite(pool, b'z' * 100, at + 1000)
    at += 4096
";
        stage.hostile(does).ok();
        let drained = stage.pool.command("drain").limit(Duration::from_secs(30)).output();
        let told = stage.pool.status()["errors"].to_string();
        if options.is_empty() {
            // The page cache has what the program wrote.
            drained.ok();
        } else {
            drained.expect(&[1]);
            assert!(told.contains("is not what was written"), "{told}");
        }
        stage.kill_all();
        let recover = stage.pool.command("recover").output();
        assert!(options.is_empty() || recover.code() == 1, "{}", recover.told());
        stage.pages();
    }
}

/// Has `rows` and `keys`: where the board has what it says of the newest bytes of the file's pages.
const ROWS: &str = "
import random
board_bytes = os.fstat(board).st_size
memory = mmap.mmap(board, board_bytes)
words = memoryview(memory).cast('Q')
# A whole page in the log; the number of its oldest record, and a check, behind that.
whole = lambda word: word >> 40 == 4095 << 12 and not word >> 39 & 1 and word & (1 << 39) - 1
rows = [at for at in range(len(words) - 2) if whole(words[at]) and words[at + 1] and words[at + 2]]
# Some may be in the page cache by now: the kernel is told the size.
count = len(rows)
assert count > 12 and all(at == rows[0] + 24 * i for i, at in enumerate(rows)), rows
is_keys = lambda at: 0 < words[at] < 1 << 17 and all(words[at + 8 * i] == words[at] for i in range(count))
found = [at for at in range(rows[0] - count * 8) if is_keys(at)]
assert len(found) == 1, found
keys = [found[0] + 8 * i for i in range(count)]
";

/// It can write over what the board says of where the newest bytes of a file are: none of them is
/// lost, or comes to another place, without a word.
#[test]
fn what_it_writes_over_page_rows_loses_nothing_in_silence() {
    let cases = [
        (
            "bits of rows",
            "for turn in range(10): words[random.choice(rows) + turn % 3] ^= 1 << random.randrange(64)",
        ),
        ("a bit of a key", "words[random.choice(keys)] ^= 1 << random.randrange(17)"),
        ("no key", "words[random.choice(keys)] = 0"),
        ("no row", "at = random.choice(rows); words[at] = words[at + 1] = words[at + 2] = 0"),
        ("keys", "for at in range(keys[3], keys[6]): words[at] = 0"),
        ("fewer bytes", "words[rows[5]] -= 1 << 52"),
        ("an older record", "words[rows[5]], words[rows[6]] = words[rows[6]], words[rows[5]]"),
        (
            "text",
            "at = 8 * rows[4]; memory[at:at + 100] = b'a string that is longer than where it was to go' .ljust(100, b'.')",
        ),
    ];
    for (what, does) in cases {
        let mut stage = Stage::new(&["--write-behind=at-once"]);
        let does = stage.hostile(&format!("{ROWS}{does}\n"));
        does.ok();
        let drained = stage.pool.command("drain").limit(Duration::from_secs(30)).output();
        drained.expect(&[1]);
        let told = stage.pool.status()["errors"].to_string();
        assert!(told.contains("something stored into"), "{what}: {told}");
        // Some pages may be there by now, whole and at their places.
        stage.pages();
        stage.kill_all();
        let recover = stage.pool.command("recover").output();
        assert_eq!(stage.pages(), "b".repeat(PAGES), "{what}: {}", recover.told());
    }
}

/// It can write over superblocks and slots: the pool is damaged then, which its keeper or the next
/// one says, and no file is written to on their word.
#[test]
fn what_it_writes_over_superblocks_and_slots_reaches_no_file() {
    let cases = [
        ("superblocks", "
for at in 0, 4096, 6144: os.pwrite(pool, b'\\xff' * 2048, at)
"),
        // Behind the first two pages, as far as there is something but zeros before the segments.
        ("slots", "
head = os.pread(pool, size // 8, 0)
for at in range(8192, len(head), 4096):
    if any(head[at:at + 4096]): os.pwrite(pool, bytes(byte ^ 0x55 for byte in head[at:at + 64]) + head[at + 64:at + 4096], at)
"),
        ("mapped", "
memory = mmap.mmap(pool, size)
for at in range(8192, size // 8, 512): memory[at + 40:at + 48] = b'/etc/own'
"),
    ];
    for (what, does) in cases {
        let mut stage = Stage::new(&["--write-behind=at-once"]);
        let does = stage.hostile(does);
        does.ok();
        stage.kill_all();
        let recover = stage.pool.command("recover").output();
        let pages = stage.pages();
        // Whatever recovery still could do is right; it does not call a loss none.
        let is_told = [1, 2].contains(&recover.code()) && !recover.told().contains("holdfast format");
        assert!(is_told || pages == "b".repeat(PAGES), "{what}: {pages}\n{}", recover.told());
        assert!(!recover.stderr.contains("panicked"), "{}", recover.told());
    }
}

/// Who has it open when all is over keeps the next keeper from the pool, which says who that is.
#[test]
fn it_can_keep_the_next_keeper_from_the_pool_and_is_named() {
    let mut stage = Stage::new(&[]);
    let script = format!("{HELLO}print('has it', flush=True)\nsys.stdin.read()\n");
    let mut keeps = Running::start(&Cmd::new("python3").args(["-c", &script, &stage.socket]));
    keeps.until("has it");
    stage.kill_all();
    let pid = keeps.child.id().to_string();
    let run = || stage.pool.run(&[]).args(["--", "true"]).limit(Duration::from_secs(60)).output();
    run().expect(&[120]).says(&["is open", &pid], &[]);
    drop(keeps);
    run().ok();
    assert_eq!(stage.pages(), "b".repeat(PAGES));
}

/// What no program means to do it cannot: superblock and slots are mapped for reading.
#[test]
fn a_stray_store_into_superblock_and_slots_faults() {
    const STORES: &str = "
import ctypes, sys
maps = [line.split() for line in open('/proc/self/maps') if line.rstrip().endswith(sys.argv[1])]
head = [line for line in maps if line[1] == 'r--s' and line[2] == '00000000']
assert len(head) == 1, maps
first, end = (int(part, 16) for part in head[0][0].split('-'))
print('slots end at', end - first, flush=True)
ctypes.memset(first + int(sys.argv[2]), 0, 8)
print('stored', flush=True)
";
    let pool = Pool::new();
    for at in ["0", "4096", "16384"] {
        let run = pool.run(&[]).args(["--", "python3", "-c", STORES, pool.text(), at]).output();
        run.expect(&[128 + 11]);
        assert!(run.stdout.contains("slots end at") && !run.stdout.contains("stored"), "{}", run.told());
    }
    pool.command("recover").ok();
}
