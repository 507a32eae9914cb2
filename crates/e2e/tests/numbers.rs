//! Threads that close, replace and open anew the descriptor numbers that others are in the midst of
//! using, and threads that end in the midst of calls: programs see what they see natively, and
//! every byte is in the file that it was written to.

use std::path::{Path, PathBuf};

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk;
use holdfast_e2e::pool::Pool;
use holdfast_e2e::report;
use holdfast_e2e::running::Running;
use tempfile::TempDir;

/// For so long numbers are used and changed, in each state of the files.
const SECONDS: &str = "1.2";

const STATES: [&[&str]; 4] = [
    &["--durability=write"],
    &["--durability=sync"],
    &["--durability=write", "--write-behind=on"],
    &["--durability=sync", "--write-behind=at-once"],
];

fn compiled(name: &str, into: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name).with_extension("c");
    let program = into.join(name);
    Cmd::new("cc").args(["-O1", "-w", "-pthread", "-o"]).args([&program, &source]).ok();
    program
}

/// A program and a place for what it makes, which is empty each time that it is asked for.
struct Storm {
    home: TempDir,
    program: PathBuf,
}

impl Storm {
    fn new() -> Self {
        let home = disk::directory();
        let program = compiled("numbers", home.path());
        Self { home, program }
    }

    /// The program's arguments.
    fn arguments(&self, what: &str) -> Vec<String> {
        let path = |name| self.home.path().join(name).to_str().expect("text").to_owned();
        vec![self.program.to_str().expect("text").to_owned(), what.to_owned(), path("files"), path("results")]
    }

    fn begin(&self) {
        drop(std::fs::remove_dir_all(self.home.path().join("files")));
        drop(std::fs::remove_file(self.home.path().join("results")));
        std::fs::create_dir(self.home.path().join("files")).expect("directory");
    }

    /// Compares what the calls said with what the files hold.
    fn check(&self, place: &str) {
        let arguments = self.arguments("check");
        let output = Cmd::new(&arguments[0]).args(&arguments[1..]).output();
        let right = "lost 0, there although refused 0, twice 0, failed 0\nenough 1\n";
        assert_eq!(output.ok().stdout, right, "{place}\n{}", output.told());
    }
}

const SEEN: &str = "begun\ntorn reads 0, wrong results 0\n";

#[test]
fn a_call_goes_to_one_file_whoever_changes_its_number() {
    let storm = Storm::new();
    storm.begin();
    let mut arguments = storm.arguments("parents");
    arguments.push("0.5".into());
    let native = Cmd::new(&arguments[0]).args(&arguments[1..]).ok();
    assert_eq!(native.stdout, SEEN, "{}", native.told());
    storm.check("natively");
    for (index, state) in STATES.iter().enumerate() {
        storm.begin();
        // Half of them with children.
        let mut arguments = storm.arguments(if index % 2 == 0 { "storm" } else { "parents" });
        arguments.push(SECONDS.into());
        let program: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let (held, summary) = Pool::with_size("256M").run_summarised(state, &program);
        assert_eq!(held.ok().stdout, SEEN, "{state:?}\n{}", held.told());
        storm.check(&format!("{state:?}"));
        assert!(report::number(&summary, "writes_absorbed") > 5, "{state:?}: {summary:#}");
    }
}

/// No record stands for another place than the one that has its bytes. With numbers that are all
/// written to at their cursors half of the runs found rows that recovery had put elsewhere: a call
/// took its number for one of which nothing is known, where another one waited to change it, or
/// where a duplicate had just been given that number.
#[test]
fn recovery_changes_nothing_after_numbers_were_changed() {
    let storm = Storm::new();
    for (state, what) in [(STATES[0], "storm"), (STATES[3], "storm"), (STATES[0], "cursors")] {
        storm.begin();
        let pool = Pool::with_size("256M");
        let mut options = vec!["--age-max", "600000", "--batch-min", "200M", "--batch-max", "220M"];
        options.extend(state);
        let cmd = pool.run(&options).arg("--").args(storm.arguments(what)).args([SECONDS, "stay"]);
        let mut run = Running::start(&cmd);
        assert_eq!(run.until("torn"), "torn reads 0, wrong results 0");
        run.kill_all(&pool);
        pool.recover(&["--replay"]).expect(&[0, 1]);
        storm.check(&format!("{state:?}, {what}, recovered"));
    }
}

/// What was seen is what recovery makes, however the cursor came to where a write found it.
#[test]
fn recovery_puts_bytes_where_the_cursor_was() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/cursors.py");
    for state in [STATES[0], STATES[1]] {
        let (home, pool) = (disk::directory(), Pool::with_size("256M"));
        let mut options = vec!["--age-max", "600000", "--batch-min", "200M", "--batch-max", "220M"];
        options.extend(state);
        let mut run =
            Running::start(&pool.run(&options).arg("--").arg("python3").arg(&script).arg(home.path()));
        assert_eq!(run.until("written"), "written");
        run.kill_all(&pool);
        let content = |name| std::fs::read_to_string(home.path().join(name)).expect("content");
        let names = ["named", "twice", "filled"];
        let seen = names.map(content);
        pool.recover(&["--replay"]).expect(&[0, 1]);
        for ((name, seen), expected) in names.into_iter().zip(seen).zip(["abc", "abBcCdD", "abac"]) {
            let letters =
                |text: &str| text.as_bytes().chunks(100).map(|it| it[0] as char).collect::<String>();
            assert_eq!(letters(&seen), expected, "{name}, {state:?}");
            assert_eq!(letters(&content(name)), expected, "{name} after recovery, {state:?}");
        }
    }
}

/// Runs the program natively, and in each of the states; returns the summaries.
fn compare_cancels(what: &str, states: &[&[&str]]) -> Vec<serde_json::Value> {
    let home = disk::directory();
    let program = compiled("cancels", home.path());
    let fresh = |name: String| {
        let place = home.path().join(name);
        std::fs::create_dir(&place).expect("directory");
        place
    };
    let native = Cmd::new(&program).arg(what).dir(fresh("natively".into())).ok();
    let held = |(index, options): (usize, &&[&str])| {
        let (pool, file) = (Pool::new(), home.path().join("summary"));
        let cmd = pool.run(options).arg(format!("--summary={}", file.display())).arg("--").arg(&program);
        let output = cmd.arg(what).dir(fresh(format!("held-{index}"))).ok();
        assert_eq!(output.stdout, native.stdout, "{options:?}");
        report::parse(&std::fs::read_to_string(file).expect("summary"))
    };
    states.iter().enumerate().map(held).collect()
}

#[test]
fn a_cancel_that_came_before_acts_in_every_cancellation_point() {
    compare_cancels("pending", &STATES);
}

#[test]
fn threads_that_end_in_calls_hold_nothing_and_the_program_goes_on() {
    for summary in compare_cancels("storm", &[STATES[0], STATES[3]]) {
        assert!(report::number(&summary, "writes_absorbed") > 200, "{summary:#}");
    }
}
