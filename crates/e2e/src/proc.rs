//! Processes as /proc shows them: who descends from whom, which one is the keeper of a pool, how
//! much CPU one used. Signals go to ids found here, never to names.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Child;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

struct Row {
    pid: u32,
    parent: u32,
    dead: bool,
    stopped: bool,
    ticks: u64,
}

fn row(pid: u32) -> Option<Row> {
    row_at(&format!("/proc/{pid}/stat"), pid)
}

fn row_at(path: &str, pid: u32) -> Option<Row> {
    let text = std::fs::read_to_string(path).ok()?;
    let fields: Vec<&str> = text[text.rfind(')')? + 2..].split(' ').collect();
    Some(Row {
        pid,
        parent: fields[1].parse().ok()?,
        dead: matches!(fields[0], "Z" | "X"),
        stopped: matches!(fields[0], "T" | "t"),
        ticks: fields[11].parse::<u64>().ok()? + fields[12].parse::<u64>().ok()?,
    })
}

fn pids() -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// All living processes below `root`, without itself.
pub fn descendants(root: u32) -> Vec<u32> {
    let mut found = families(&[root]);
    found.retain(|pid| *pid != root);
    found
}

/// All living processes among `roots` and below them.
pub fn families(roots: &[u32]) -> Vec<u32> {
    let rows: Vec<Row> = pids().into_iter().filter_map(row).collect();
    let mut found = roots.to_vec();
    let mut at = 0;
    while at < found.len() {
        let parent = found[at];
        found.extend(rows.iter().filter(|row| row.parent == parent).map(|row| row.pid));
        at += 1;
    }
    found.retain(|pid| rows.iter().any(|row| row.pid == *pid && !row.dead));
    found
}

/// All living processes whose environment holds `text`.
pub fn with_environment(text: &str) -> Vec<u32> {
    let holds = |pid: &u32| {
        std::fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|bytes| bytes.windows(text.len()).any(|window| window == text.as_bytes()))
    };
    pids().into_iter().filter(|pid| holds(pid) && alive(*pid)).collect()
}

/// Whether any thread of the process is left; the first one may be a zombie long before the last
/// has let go of the files.
pub fn alive(pid: u32) -> bool {
    threads(pid).iter().any(|thread| !thread.dead)
}

/// Whether no thread of the process is running or inside the kernel any more: all are stopped by a
/// signal, or dead.
pub fn at_rest(pid: u32) -> bool {
    threads(pid).iter().all(|thread| thread.dead || thread.stopped)
}

/// Where the threads of a process are in the kernel, for messages.
pub fn place(pid: u32) -> String {
    let read = |path: &str| std::fs::read_to_string(format!("/proc/{pid}/{path}")).unwrap_or_default();
    let told = |row: &Row| {
        let thread = |what: &str| read(&format!("task/{}/{what}", row.pid));
        format!("{} in {}, call {}, {:?}", row.pid, thread("wchan"), thread("syscall").trim(), thread("stat"))
    };
    threads(pid).iter().map(told).collect::<Vec<_>>().join("; ")
}

fn threads(pid: u32) -> Vec<Row> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let ids = threads.filter_map(|thread| thread.ok()?.file_name().to_str()?.parse().ok());
    ids.filter_map(|id: u32| row_at(&format!("/proc/{pid}/task/{id}/stat"), id)).collect()
}

/// CPU time used so far, user and system, in clock ticks.
pub fn cpu_ticks(pid: u32) -> u64 {
    row(pid).unwrap_or_else(|| panic!("process {pid} is gone")).ticks
}

/// Whether the process runs the `holdfast` program itself.
pub fn is_holdfast(pid: u32) -> bool {
    std::fs::read_link(format!("/proc/{pid}/exe"))
        .is_ok_and(|path| path.file_name().is_some_and(|name| name == "holdfast"))
}

fn is_keeper(pid: u32) -> bool {
    let Ok(line) = std::fs::read(format!("/proc/{pid}/cmdline")) else { return false };
    matches!(line.split(|byte| *byte == 0).nth(1), Some(b"keeper" | b"serve"))
}

/// The keepers that have `pool` mapped; never more than one, or something is wrong.
pub fn keepers(pool: &Path) -> Vec<u32> {
    let name = pool.to_str().expect("pool paths are text");
    let maps = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains(name))
    };
    pids().into_iter().filter(|pid| is_keeper(*pid) && alive(*pid) && maps(pid)).collect()
}

/// The keeper of `pool`; waits up to ten seconds for it.
pub fn keeper(pool: &Path) -> u32 {
    let mut found = Vec::new();
    wait_until(Duration::from_secs(10), &format!("a keeper of {}", pool.display()), || {
        found = keepers(pool);
        !found.is_empty()
    });
    assert_eq!(found.len(), 1, "several keepers on one pool: {found:?}");
    found[0]
}

/// Sends SIGKILL; a process that is gone already is fine.
pub fn kill_hard(pid: u32) {
    signal(pid, Signal::KILL);
}

/// Sends a signal; a process that is gone already is fine.
pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        let _gone = kill_process(pid, signal);
    }
}

/// Waits for something; fails the test, naming it, when it does not come.
pub fn wait_until(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < limit, "waited {limit:?} in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The lines that a child with a piped standard output says, as they come.
pub fn lines(child: &mut Child) -> Receiver<String> {
    let stdout = BufReader::new(child.stdout.take().expect("piped"));
    let (sender, lines) = std::sync::mpsc::channel();
    // Ends with the program's output, or with the receiver.
    std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    lines
}
