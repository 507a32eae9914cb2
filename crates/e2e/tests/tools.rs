//! Looking at a keeper: `top` in a real terminal, `files`, `status --watch`, `metrics` held to
//! Prometheus' own parsers, and the verdict at the end of a run.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use holdfast_e2e::cmd::{Cmd, Output};
use holdfast_e2e::disk::{self, Disk, Kind};
use holdfast_e2e::need;
use holdfast_e2e::pool::Pool;
use holdfast_e2e::proc;
use holdfast_e2e::report;
use holdfast_e2e::running::Running;
use serde_json::Value;

/// What happens soon takes no longer, on a machine that is busy.
const SOON: Duration = Duration::from_secs(30);

fn text(path: &Path) -> &str {
    path.to_str().expect("paths are text")
}

/// Something mounted, for the length of a test.
struct Mount(tempfile::TempDir);

impl Mount {
    fn tmpfs() -> Self {
        need::root();
        let dir = disk::directory();
        Cmd::new("mount").args(["-t", "tmpfs", "-o", "size=24m", "tmpfs"]).arg(dir.path()).ok();
        Self(dir)
    }

    fn overlay(lower: &Disk) -> Self {
        let dir = disk::directory();
        for name in ["lower", "upper", "work"] {
            std::fs::create_dir(lower.root.join(name)).expect("directory");
        }
        let at = |name: &str| format!("{name}dir={}", text(&lower.root.join(name)));
        let options = format!("{},{},{}", at("lower"), at("upper"), at("work"));
        Cmd::new("mount").args(["-t", "overlay", "-o", &options, "overlay"]).arg(dir.path()).ok();
        Self(dir)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        drop(Cmd::new("umount").arg("-l").arg(self.0.path()).output());
    }
}

/// Writes and syncs each file that it is given so many times.
const SYNC: &str = "
import os, sys
for name in sys.argv[2:]:
    fd = os.open(name, os.O_WRONLY | os.O_CREAT, 0o600)
    for number in range(int(sys.argv[1])):
        os.write(fd, b'x' * 100)
        os.fsync(fd)
";

fn sync(options: &[&str], count: &str, files: &[PathBuf]) -> Output {
    let pool = Pool::new();
    pool.run(options).args(["--", "python3", "-c", SYNC, count]).args(files).ok()
}

/// The verdict of a run: what Holdfast says last.
fn verdict(output: &Output) -> Option<&str> {
    let mut lines = output.stderr.lines().filter_map(|line| line.strip_prefix("holdfast: "));
    lines.rfind(|line| line.contains("absorbed"))
}

#[test]
fn a_run_ends_with_its_verdict() {
    let disk = Disk::new(Kind::Ext4);
    let output = sync(&[], "500", &[disk.root.join("file")]);
    let told = verdict(&output).unwrap_or_else(|| panic!("no verdict\n{}", output.told()));
    let (percent, rest) = told.split_once(" % of ").expect("a share");
    assert!(rest.starts_with("500 syncs absorbed"), "{told}");
    assert!(percent.parse::<f64>().expect("a number") > 95.0, "{told}");

    let nothing = |dir: &Path, kind: &str| {
        let output = sync(&[], "3", &[dir.join("one\u{1b}[31m"), dir.join("two")]);
        let told = verdict(&output).unwrap_or_else(|| panic!("no verdict\n{}", output.told()));
        assert!(told.starts_with("NOTHING was absorbed: 2 files ("), "{told}");
        assert!(told.ends_with(&format!("are on {kind}; use a volume on ext4, xfs or btrfs")), "{told}");
        assert!(!output.stderr.contains('\u{1b}'), "{told:?}");
    };
    let tmpfs = Mount::tmpfs();
    nothing(tmpfs.0.path(), "tmpfs");
    let overlay = Mount::overlay(&disk);
    nothing(overlay.0.path(), "overlay");

    // Nothing is said of who syncs nothing, and nothing to who wants to hear nothing.
    for output in [
        Pool::new().run(&[]).args(["--", "true"]).ok(),
        sync(&["--quiet"], "3", &[disk.root.join("quiet")]),
        sync(&["--quiet"], "3", &[tmpfs.0.path().join("quiet")]),
    ] {
        assert_eq!(verdict(&output), None, "{}", output.told());
    }
    // A summary ends with it, once; as JSON it holds it.
    let output = sync(&["--summary"], "300", &[disk.root.join("summary")]);
    assert_eq!(output.stderr.matches("syncs absorbed  ").count(), 1, "{}", output.told());
    assert_eq!(output.stderr.matches(" % of 300 syncs absorbed").count(), 1, "{}", output.told());
    assert!(output.stderr.trim_end().ends_with("% of 300 syncs absorbed"), "{}", output.told());
    let file = text(&disk.root.join("json")).to_owned();
    let (_, summary) = Pool::new().run_summarised(&[], &["python3", "-c", SYNC, "300", &file]);
    let told = summary["verdict"].as_str().expect("a verdict");
    assert!(told.contains(" % of 300 syncs absorbed"), "{summary:#}");
}

/// Syncs by which nothing is absorbed: new files of over a megabyte, and the whole file system.
const REAL: &str = "
import ctypes, os, sys
for number in range(10):
    fd = os.open('%s/large-%d' % (sys.argv[1], number), os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(fd, bytes(1200000))
    os.fsync(fd)
for number in range(20): assert ctypes.CDLL(None).syncfs(fd) == 0
";

/// They were in no count: a program that made nothing else heard nothing.
#[test]
fn syncs_that_wait_for_the_disk_are_counted() {
    let disk = Disk::new(Kind::Ext4);
    let program = ["python3", "-c", REAL, text(&disk.root)];
    let (_, summary) = Pool::new().logs_from_sync().run_summarised(&[], &program);
    let [absorbed, real] = ["syncs_absorbed", "syncs_real"].map(|name| report::number(&summary, name));
    assert_eq!((absorbed, real), (0, 30), "{summary:#}");
}

/// New files with nothing in them, and others whose first write is a synchronous one.
const EMPTY: &str = "
import os, sys
for number in range(50):
    fd = os.open('%s/empty-%d' % (sys.argv[1], number), os.O_WRONLY | os.O_CREAT, 0o600)
    os.fsync(fd)
    fd = os.open('%s/written-%d' % (sys.argv[1], number), os.O_WRONLY | os.O_CREAT | os.O_DSYNC, 0o600)
    os.write(fd, b'bytes')
";

/// Each waited for the disk once, and the second one counted as absorbed all the same.
#[test]
fn first_syncs_of_empty_files_are_absorbed() {
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs] {
        let (disk, pool) = (Disk::new(kind), Pool::new().logs_from_sync());
        let program = ["python3", "-c", EMPTY, text(&disk.root)];
        let (_, summary) = pool.run_summarised(&[], &program);
        let counts = ["syncs_absorbed", "syncs_real"].map(|name| report::number(&summary, name));
        // On btrfs the first file's name waits for the disk.
        let real_max = u64::from(kind == Kind::Btrfs);
        assert!(counts[0] + counts[1] == 100 && counts[1] <= real_max, "{kind:?} {summary:#}");
    }
}

/// Writes each file that it is given a hundred times: durable by what it was opened with, and by
/// what each second call asks for.
const SYNCHRONOUS: &str = "
import os, sys
for name in sys.argv[1:]:
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_DSYNC, 0o600)
    for number in range(50): os.pwrite(fd, b'x' * 100, number * 100)
    fd = os.open(name, os.O_WRONLY)
    for number in range(50): os.pwritev(fd, [b'y' * 100], number * 100, os.RWF_DSYNC)
";

/// Writes that ask to be durable were counted where they were absorbed, and nowhere else.
#[test]
fn synchronous_writes_of_files_left_to_the_kernel_count() {
    let disk = Disk::new(Kind::Ext4);
    let (held, left) = (disk.root.join("held"), disk.root.join("left"));
    let program = ["python3", "-c", SYNCHRONOUS, text(&held), text(&left)];
    let (output, summary) = Pool::new().run_summarised(&["--exclude", "**/left"], &program);
    output.ok();
    let told = verdict(&output).unwrap_or_else(|| panic!("no verdict\n{}", output.told()));
    assert!(told.contains(" % of 200 syncs absorbed"), "{told}\n{summary:#}");
    let left = summary["bypassed"].as_array().expect("a list").iter().find(|row| row["path"] == text(&left));
    assert_eq!(left.expect("it is named")["syncs"], 100, "{summary:#}");
    // As whole, where the pool was removed while it was in use.
    let pool = Pool::new();
    let script = format!("rm {}; sleep 1; exec \"$@\"", pool.text());
    let late = disk.root.join("late");
    let program = ["sh", "-c", &script, "sh", "python3", "-c", SYNCHRONOUS, text(&late)];
    let (_, summary) = pool.run_summarised(&[], &program);
    assert!(report::number(&summary, "syncs_real") >= 100, "{summary:#}");
}

/// A file that was there, cut and written anew: its syncs wait for a commit of its new size, or are
/// the kernel's.
#[test]
fn who_syncs_in_vain_is_told_why() {
    let disk = Disk::new(Kind::Ext4);
    let to = format!("of={}", text(&disk.root.join("file")));
    for _ in 0..5 {
        let pool = Pool::new().logs_from_sync();
        let output =
            pool.run(&[]).args(["--", "dd", "if=/dev/zero", &to, "bs=4k", "count=20", "oflag=dsync"]).ok();
        let told = verdict(&output).unwrap_or_else(|| panic!("no verdict\n{}", output.told()));
        let percent = told.split_once(" % of ").and_then(|(percent, _)| percent.parse::<f64>().ok());
        let is_most = percent.is_some_and(|percent| percent >= 50.0);
        assert!(is_most || told.contains("the kernel's"), "{told}");
    }
}

/// A run at work on a file with a name that would change a terminal, and two more.
struct Work {
    run: Running,
    pool: Pool,
    disk: Disk,
}

const HOSTILE: &str = "a\u{1b}[31mb\u{7}\nc";
const LOAD: &str = "
import mmap, os, sys, time
fds = [os.open(os.path.join(sys.argv[1], name), os.O_RDWR | os.O_CREAT, 0o600) for name in ('plain.db', sys.argv[2])]
mapped = os.open(os.path.join(sys.argv[1], 'mapped'), os.O_RDWR | os.O_CREAT)
os.ftruncate(mapped, 4096)
area = mmap.mmap(mapped, 4096)
os.fsync(mapped)
# Of no file system that is managed: the kernel's.
other = os.open('/dev/shm', os.O_TMPFILE | os.O_RDWR)
os.fsync(other)
number = 0
while True:
    for fd in fds:
        os.pwrite(fd, b'x' * 512, number % 64 * 512)
        os.fsync(fd)
    number += 1
    if number == 100:
        os.write(1, b'at work\\n')
    time.sleep(0.001)
";

impl Work {
    fn start() -> Self {
        let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
        let cmd = pool.run(&[]).args(["--", "python3", "-c", LOAD, text(&disk.root), HOSTILE]);
        let mut run = Running::start(&cmd);
        run.until("at work");
        let work = Self { run, pool, disk };
        // How many of the first go to the kernel depends on when names are committed.
        proc::wait_until(SOON, "syncs to be absorbed", || {
            report::number(&work.look("status"), "syncs_absorbed") >= 200
        });
        work
    }

    /// A look, as JSON.
    fn look(&self, subcommand: &str) -> Value {
        report::parse(&self.pool.command(subcommand).arg("--json").ok().stdout)
    }
}

#[test]
fn files_are_listed_and_their_names_harm_nobody() {
    let work = Work::start();
    let output = work.pool.command("files").ok();
    assert!(!output.stdout.contains(['\u{1b}', '\u{7}']), "{:?}", output.stdout);
    let line = |name: &str| {
        let found = output.stdout.lines().find(|line| line.contains(name));
        found.unwrap_or_else(|| panic!("{name} is not listed\n{}", output.told()))
    };
    assert!(line("plain.db").starts_with("through"), "{}", output.told());
    assert!(line(r"a\u{1b}[31mb\u{7}\nc").starts_with("through"), "{}", output.told());
    assert!(line("/mapped (mapped shared").starts_with("bypassed"), "{}", output.told());
    let files = work.look("files");
    let rows = files["files"].as_array().expect("a list");
    let hostile = rows.iter().find(|row| row["path"] == text(&work.disk.root.join(HOSTILE)));
    assert_eq!(hostile.expect("its name as it is")["state"], "through", "{files:#}");

    let mut watch = work.pool.command("status").args(["--watch=1", "--json"]).spawn();
    let mut lines = BufReader::new(watch.stdout.take().expect("piped")).lines();
    let mut syncs = || {
        let line = lines.next().expect("a line").expect("text");
        report::number(&report::parse(&line), "syncs_absorbed")
    };
    let (before, after) = (syncs(), syncs());
    drop(watch.kill());
    drop(watch.wait());
    assert!(after > before, "{before} and then {after}");
}

fn parsed_as_openmetrics(text: &str) -> Output {
    need::debian_file(
        "/usr/lib/python3/dist-packages/prometheus_client/__init__.py",
        "python3-prometheus-client",
    );
    const PARSE: &str = "
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
for family in text_string_to_metric_families(sys.stdin.read()):
    for sample in family.samples:
        print(family.type, sample.name, sample.labels.get('by', ''), sample.value)
";
    Cmd::new("/usr/bin/python3").args(["-c", PARSE]).stdin(text).ok()
}

/// What is behind a head that says how long it is.
fn ask(mut stream: impl Read + Write, accept: &str) -> (String, String) {
    let request = format!("GET /metrics HTTP/1.1\r\nHost: here\r\nAccept: {accept}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it listens");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    (head.to_owned(), body.to_owned())
}

struct Listening {
    child: Child,
    said: String,
}

impl Listening {
    fn start(pool: &Pool, place: &str) -> Self {
        let mut child = pool.command("metrics").args(["--listen", place]).spawn();
        let mut said = String::new();
        BufReader::new(child.stderr.take().expect("piped")).read_line(&mut said).expect("a line");
        Self { child, said }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn metrics_are_what_prometheus_reads() {
    let work = Work::start();
    let open = work.pool.command("metrics").ok().stdout;
    let parsed = parsed_as_openmetrics(&open);
    let value = |line: &str| -> f64 {
        let found = parsed.stdout.lines().find_map(|told| told.strip_prefix(line));
        found.unwrap_or_else(|| panic!("no {line} in {}", parsed.told())).trim().parse().expect("a number")
    };
    assert_eq!(value("gauge holdfast_up "), 1.0);
    assert!(value("counter holdfast_syncs_total log") >= 200.0);
    assert!(value("counter holdfast_absorbed_bytes_total ") >= 75_000.0);
    assert!(value("histogram holdfast_kernel_sync_seconds_count ") >= 1.0);
    assert!(value("histogram holdfast_kernel_sync_seconds_sum ") > 0.0);
    assert!(!open.contains("plain.db"), "names of files are told\n{open}");
    let old = work.pool.command("metrics").args(["--format", "prometheus"]).ok().stdout;
    let lint = Cmd::new("promtool").args(["check", "metrics"]).stdin(old.clone()).output();
    assert_eq!(
        (lint.code(), lint.stdout.as_str(), lint.stderr.as_str()),
        (0, "", ""),
        "{}\n{old}",
        lint.told()
    );

    let home = tempfile::tempdir().expect("a directory");
    let socket = home.path().join("metrics.sock");
    let place = format!("unix:{}", text(&socket));
    let tcp = Listening::start(&work.pool, "127.0.0.1:0");
    let address =
        tcp.said.split("http://").nth(1).and_then(|rest| rest.split('/').next()).expect("an address");
    let (head, body) = ask(TcpStream::connect(address).expect("it listens"), "application/openmetrics-text");
    assert!(head.contains("application/openmetrics-text") && body.ends_with("# EOF\n"), "{head}\n{body}");
    {
        let _unix = Listening::start(&work.pool, &place);
        let (head, body) = ask(UnixStream::connect(&socket).expect("it listens"), "*/*");
        assert!(head.contains("text/plain") && !body.contains("# EOF"), "{head}\n{body}");
        work.pool.command("metrics").args(["--listen", &place]).output().expect(&[1]).says(&["already"], &[]);
    }
    // What is left over is in nobody's way, and a keeper that has gone is down.
    let Work { run, pool, disk } = work;
    run.kill_all(&pool);
    let _unix = Listening::start(&pool, &place);
    let (_, body) = ask(UnixStream::connect(&socket).expect("it listens"), "*/*");
    assert!(body.lines().any(|line| line.starts_with("holdfast_up{") && line.ends_with(" 0")), "{body}");
    for refused in ["0.0.0.0:0", "[::]:0", "unix:here", "192.0.2.1:80"] {
        pool.command("metrics").args(["--listen", refused]).output().expect(&[2]).says(&["--listen"], &[]);
    }
    drop(disk);
}

/// Who asks half and waits kept everybody else waiting, two seconds each.
#[test]
fn half_a_request_keeps_nobody_from_metrics() {
    let pool = Pool::formatted();
    let home = tempfile::tempdir().expect("a directory");
    let socket = home.path().join("metrics.sock");
    let tcp = Listening::start(&pool, "127.0.0.1:0");
    let address =
        tcp.said.split("http://").nth(1).and_then(|rest| rest.split('/').next()).expect("an address");
    let _unix = Listening::start(&pool, &format!("unix:{}", text(&socket)));
    let mut half = Vec::new();
    for _ in 0..130 {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.write_all(b"GET /metrics").expect("it listens");
        half.push(stream);
    }
    let mut other_half = Vec::new();
    for _ in 0..130 {
        let mut stream = UnixStream::connect(&socket).expect("it listens");
        stream.write_all(b"GET /metrics").expect("it listens");
        other_half.push(stream);
    }
    let begun = Instant::now();
    ask(TcpStream::connect(address).expect("it listens"), "*/*");
    ask(UnixStream::connect(&socket).expect("it listens"), "*/*");
    assert!(begun.elapsed() < SOON / 3, "{:?}", begun.elapsed());
}

/// Alerts and dashboard ask for nothing that is not told.
#[test]
fn alerts_and_dashboard_know_the_metrics() {
    let work = Work::start();
    let told = work.pool.command("metrics").args(["--format", "prometheus"]).ok().stdout;
    let known: Vec<&str> =
        told.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let contrib = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib");
    let rules = contrib.join("prometheus/holdfast.rules.yml");
    Cmd::new("promtool").args(["check", "rules"]).arg(&rules).ok();
    let rules = std::fs::read_to_string(rules).expect("rules");
    let dashboard = std::fs::read_to_string(contrib.join("grafana/holdfast.json")).expect("a dashboard");
    let panels = report::parse(&dashboard);
    assert!(panels["panels"].as_array().is_some_and(|panels| panels.len() > 10));
    let mut expressions = Vec::new();
    for panel in panels["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().expect("targets") {
            expressions.push(target["expr"].as_str().expect("an expression").to_owned());
        }
    }
    // Each by Prometheus' own parser.
    let mut probe = "groups:\n- name: dashboard\n  rules:\n".to_owned();
    for (number, expression) in expressions.iter().enumerate() {
        let expression = expression.replace("$__rate_interval", "1m");
        probe += &format!("  - record: panel_{number}\n    expr: '{expression}'\n");
    }
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), probe).expect("written");
    Cmd::new("promtool").args(["check", "rules"]).arg(file.path()).ok();
    expressions.push(rules);
    let mut asked = 0;
    for name in
        expressions.iter().flat_map(|text| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
    {
        if name.starts_with("holdfast_") {
            let name = name.strip_suffix("_bucket").unwrap_or(name);
            assert!(known.contains(&name), "{name} is asked for, and told are {known:?}");
            asked += 1;
        }
    }
    assert!(asked > 20, "{asked} names were looked at");
}

/// A terminal of its own, by a tmux server of its own.
struct Terminal {
    home: tempfile::TempDir,
}

impl Terminal {
    fn start(columns: &str, rows: &str, script: &str) -> Self {
        let terminal = Self { home: tempfile::tempdir().expect("a directory") };
        let shell = ["new-session", "-d", "-s", "top", "-x", columns, "-y", rows, "/bin/sh", "-c", script];
        terminal.tmux(&shell).ok();
        terminal
    }

    fn tmux(&self, args: &[&str]) -> Cmd {
        let socket = self.home.path().join("tmux");
        Cmd::new("tmux").args(["-f", "/dev/null", "-u", "-S", text(&socket)]).args(args)
    }

    fn press(&self, keys: &[&str]) {
        self.tmux(&["send-keys", "-t", "top"]).args(keys).ok();
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-t", "top"]).ok().stdout
    }

    /// Waits until the screen shows all of these.
    fn until(&self, words: &[&str]) -> String {
        let begun = Instant::now();
        loop {
            let screen = self.screen();
            if words.iter().all(|word| screen.contains(word)) {
                return screen;
            }
            assert!(begun.elapsed() < SOON, "the screen never showed {words:?}, but\n{screen}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        drop(self.tmux(&["kill-server"]).output());
    }
}

fn top(pool: &Pool) -> String {
    let line = pool.command("top").args(["--interval", "100ms"]).line();
    format!(
        "stty -a > /dev/null; {line}; echo \"status $?\"; stty -a | tr ' ;' '\\n\\n' | grep -x -e icanon -e echo; exec cat"
    )
}

#[test]
fn top_shows_a_keeper_at_work_and_its_death_and_gives_the_terminal_back() {
    let work = Work::start();
    let terminal = Terminal::start("80", "24", &top(&work.pool));
    let screen =
        terminal.until(&["holdfast top", "/s absorbed", "plain.db", "fence", r"a\u{1b}[31mb\u{7}\nc"]);
    assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
    assert!(screen.contains("1 mapped shared and writable"), "{screen}");
    terminal.press(&["s", "s", "s", "r"]);
    terminal.until(&["by path, reversed"]);
    terminal.press(&["/", "plain", "Enter"]);
    let screen = terminal.until(&["1 of 3", "/plain"]);
    assert!(!screen.contains("mapped (mapped"), "{screen}");
    terminal.press(&["Escape"]);
    terminal.until(&["3 of 3"]);
    terminal.press(&["?"]);
    terminal.until(&["any key goes back"]);
    terminal.press(&["x"]);
    terminal.until(&["3 of 3"]);
    terminal.press(&["+"]);
    terminal.until(&["every 200.0 ms"]);
    terminal.tmux(&["resize-window", "-t", "top", "-x", "170", "-y", "40"]).ok();
    // The head fills the line.
    let begun = Instant::now();
    while !terminal.screen().lines().any(|line| line.chars().count() > 100) {
        assert!(begun.elapsed() < SOON, "it stays narrow\n{}", terminal.screen());
        std::thread::sleep(Duration::from_millis(50));
    }
    let Work { run, pool, disk } = work;
    run.kill_all(&pool);
    terminal.until(&["no keeper runs", "no answer"]);
    terminal.press(&["q"]);
    terminal.until(&["status 0", "icanon", "echo"]);
    drop(disk);
}

#[test]
fn top_leaves_at_a_signal_and_needs_a_terminal() {
    let pool = Pool::formatted();
    let idle = pool.command("top").output();
    idle.expect(&[1]).says(&["terminal", "status --watch"], &[]);
    let terminal = Terminal::start("40", "8", &top(&pool));
    terminal.until(&["no keeper runs"]);
    let pane = terminal.tmux(&["display-message", "-p", "-t", "top", "#{pane_pid}"]).ok();
    let shell: u32 = pane.stdout.trim().parse().expect("a number");
    let of_it = proc::descendants(shell).into_iter().find(|pid| proc::is_holdfast(*pid)).expect("top runs");
    proc::signal(of_it, rustix::process::Signal::TERM);
    terminal.until(&["status 0", "icanon", "echo"]);
}
