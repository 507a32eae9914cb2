//! What a thread that is opening a file wants with it, read from `/proc` while it waits for
//! permission.
//!
//! While a thread waits in the kernel, the arguments of its system call cannot change, so "it reads
//! only" is certain. Those of `openat2` lie in its memory, which another thread could change: a
//! program that does that may write to the file, and has what it wrote written over, no more than
//! it could do itself. Everything else is answered with "may write". Never guesses in the other
//! direction.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// What an opening thread wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    /// Its description cannot write, nor does the open itself change the file.
    Read,
    /// It can write, or we cannot tell; the description will be in its table of open files.
    Write,
    /// As `Write`, but the description may live where no table of open files shows it (io_uring,
    /// the kernel itself, a process outside our pid namespace or with more privilege than we have).
    Hidden,
}

/// Where a thread is, as far as an open that it began is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It may still be inside the open: the description is not in the table yet.
    Opening,
    /// The open is over, one way or the other.
    Past,
    /// The thread is gone, so its open is over.
    Gone,
}

/// How often and how long to wait for the opener to fall asleep. On a busy machine it may be
/// preempted.
const SETTLE_TRIES: u32 = 50;
const SETTLE_PAUSE: Duration = Duration::from_micros(50);

const SYS_OPEN: i64 = libc::SYS_open;
const SYS_CREAT: i64 = libc::SYS_creat;
const SYS_OPENAT: i64 = libc::SYS_openat;
const SYS_OPENAT2: i64 = libc::SYS_openat2;
const SYS_OPEN_BY_HANDLE: i64 = libc::SYS_open_by_handle_at;
const SYS_EXECVE: i64 = libc::SYS_execve;
const SYS_EXECVEAT: i64 = libc::SYS_execveat;

/// What `/proc/<tid>/syscall` says.
enum Call {
    Running,
    Blocked {
        number: i64,
        args: [u64; 3],
    },
    /// In the kernel, but in no system call: a kernel thread or an io_uring worker.
    Kernel,
}

fn current_call(tid: u32) -> io::Result<Call> {
    let text = fs::read_to_string(format!("/proc/{tid}/syscall"))?;
    Ok(parse_call(&text))
}

fn parse_call(text: &str) -> Call {
    let mut words = text.split_ascii_whitespace();
    let number = match words.next() {
        None | Some("running") => return Call::Running,
        Some(word) => word.parse().unwrap_or(-1),
    };
    if number < 0 {
        return Call::Kernel;
    }
    let mut args = [0; 3];
    for arg in &mut args {
        let word = words.next().and_then(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok());
        match word {
            Some(word) => *arg = word,
            None => return Call::Kernel,
        }
    }
    Call::Blocked { number, args }
}

/// What the thread that waits for permission wants. The numbers are those of x86_64: a 32-bit
/// process waits under numbers that cannot open a file here, and so counts as hidden.
pub(crate) fn intent(tid: u32) -> Intent {
    if tid == 0 {
        return Intent::Hidden;
    }
    // The event is queued a moment before the thread falls asleep.
    let mut call = current_call(tid);
    for _ in 0..SETTLE_TRIES {
        if !matches!(call, Ok(Call::Running)) {
            break;
        }
        thread::sleep(SETTLE_PAUSE);
        call = current_call(tid);
    }
    match call {
        Ok(call) => intent_of(&call, |address| word_of(tid, address).ok()),
        // Nor could a scan look into it.
        Err(err) if err.kind() == io::ErrorKind::PermissionDenied => Intent::Hidden,
        Err(_) => Intent::Write,
    }
}

/// A word of a thread's memory.
fn word_of(tid: u32, address: u64) -> io::Result<u64> {
    let mut word = [0; 8];
    fs::File::open(format!("/proc/{tid}/mem"))?.read_exact_at(&mut word, address)?;
    Ok(u64::from_ne_bytes(word))
}

/// `word`: what stands in the thread's memory.
fn intent_of(call: &Call, word: impl FnOnce(u64) -> Option<u64>) -> Intent {
    let Call::Blocked { number, args } = *call else {
        return match call {
            Call::Running => Intent::Write,
            _ => Intent::Hidden,
        };
    };
    let by_flags = |flags: u64| {
        // O_TRUNC changes the file even through a description that can only read.
        if flags & (libc::O_ACCMODE | libc::O_TRUNC) as u64 == 0 { Intent::Read } else { Intent::Write }
    };
    match number {
        SYS_OPEN => by_flags(args[1]),
        SYS_OPENAT | SYS_OPEN_BY_HANDLE => by_flags(args[2]),
        SYS_EXECVE | SYS_EXECVEAT => Intent::Read,
        // They begin with the flags.
        SYS_OPENAT2 => word(args[2]).map_or(Intent::Write, by_flags),
        SYS_CREAT => Intent::Write,
        _ => Intent::Hidden,
    }
}

/// Whether a thread whose open was allowed has come out of it.
pub(crate) fn progress(tid: u32) -> Progress {
    match current_call(tid) {
        Ok(Call::Blocked {
            number:
                SYS_OPEN | SYS_OPENAT | SYS_OPEN_BY_HANDLE | SYS_EXECVE | SYS_EXECVEAT | SYS_CREAT | SYS_OPENAT2,
            ..
        })
        | Ok(Call::Running) => Progress::Opening,
        Ok(Call::Blocked { .. } | Call::Kernel) => Progress::Past,
        Err(_) if alive(tid) => Progress::Opening,
        Err(_) => Progress::Gone,
    }
}

/// Whether a thread or process of this id exists.
pub(crate) fn alive(tid: u32) -> bool {
    Path::new(&format!("/proc/{tid}")).exists()
}

/// The process a thread belongs to.
pub(crate) fn process_of(tid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(text: &str) -> Intent {
        intent_of(&parse_call(text), |_| None)
    }

    #[test]
    fn flags_of_openat2_are_read_where_they_are() {
        let judged = |flags| {
            intent_of(&parse_call("437 0x3 0x7ff0 0x7fe8 0x18 0x0 0x0 0x1 0x2"), |address| {
                assert_eq!(address, 0x7fe8);
                flags
            })
        };
        assert_eq!(judged(Some(libc::O_CLOEXEC as u64)), Intent::Read);
        for flags in [libc::O_RDWR, libc::O_WRONLY, libc::O_TRUNC] {
            assert_eq!(judged(Some(flags as u64)), Intent::Write);
        }
        assert_eq!(judged(None), Intent::Write);
        let word = 0x1234_5678_9abc_def0_u64;
        assert_eq!(word_of(std::process::id(), (&raw const word).addr() as u64).unwrap(), word);
        assert!(word_of(std::process::id(), 0).is_err());
    }

    #[test]
    fn only_plain_reads_count_as_reads() {
        assert_eq!(judged("257 0xffffff9c 0x7ff0 0x0 0x0 0x0 0x0 0x1 0x2"), Intent::Read);
        assert_eq!(judged("257 0xffffff9c 0x7ff0 0x80800 0x0 0x0 0x0 0x1 0x2"), Intent::Read);
        assert_eq!(judged("257 0xffffff9c 0x7ff0 0x200 0x0 0x0 0x0 0x1 0x2"), Intent::Write);
        assert_eq!(judged("257 0xffffff9c 0x7ff0 0x3 0x0 0x0 0x0 0x1 0x2"), Intent::Write);
        assert_eq!(judged("2 0x7ff0 0x2 0x0 0x0 0x0 0x0 0x1 0x2"), Intent::Write);
        assert_eq!(judged("85 0x7ff0 0x0 0x0 0x0 0x0 0x0 0x1 0x2"), Intent::Write);
        assert_eq!(judged("437 0x3 0x7ff0 0x0 0x18 0x0 0x0 0x1 0x2"), Intent::Write);
        assert_eq!(judged("59 0x7ff0 0x0 0x0 0x0 0x0 0x0 0x1 0x2"), Intent::Read);
        assert_eq!(judged("426 0x3 0x1 0x0 0x0 0x0 0x0 0x1 0x2"), Intent::Hidden);
        assert_eq!(judged("-1 0x7ff0 0x0"), Intent::Hidden);
        assert_eq!(judged("running\n"), Intent::Write);
        assert_eq!(judged("257 0xffffff9c"), Intent::Hidden);
    }
}
