//! Kernel features, fences and limits. Features are tried where trying is harmless, else told from
//! the version.

use std::io::IoSlice;

use nix::sys::fanotify::{EventFFlags, Fanotify, InitFlags, MarkFlags, MaskFlags};
use rustix::fs::{MemfdFlags, OFlags, fcntl_setfl, memfd_create};
use rustix::io::{ReadWriteFlags, pwritev2};
use rustix::process::{Pid, PidfdFlags, Resource, getrlimit, pidfd_open};

use super::finding::{Finding, read};
use crate::sizes::human_bytes;

pub(super) fn findings() -> Vec<Finding> {
    vec![
        pidfd(),
        appends(),
        collapse(),
        fanotify(),
        inotify(),
        leases(),
        locked_memory(),
        shared_memory(),
        code_patches(),
    ]
}

fn version() -> (u32, u32) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn pidfd() -> Finding {
    let own = Pid::from_raw(std::process::id().cast_signed());
    match own.map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
        Some(Ok(_)) => Finding::good("pidfd", "works"),
        _ => Finding::missing(
            "pidfd",
            "refused",
            "use Linux 5.3 or newer, and allow pidfd_open in the sandbox",
        ),
    }
}

fn appends() -> Finding {
    const SUBJECT: &str = "O_APPEND files";
    const RWF_NOAPPEND: u32 = 0x20;
    let tried = memfd_create("holdfast-doctor", MemfdFlags::CLOEXEC).and_then(|file| {
        fcntl_setfl(&file, OFlags::APPEND)?;
        pwritev2(&file, &[IoSlice::new(b"x")], 0, ReadWriteFlags::from_bits_retain(RWF_NOAPPEND))
    });
    match tried {
        Ok(_) => Finding::good(SUBJECT, "RWF_NOAPPEND works"),
        Err(_) => {
            Finding::limited(SUBJECT, "no RWF_NOAPPEND", "Linux 6.9 or newer handles them without a detour")
        }
    }
}

fn collapse() -> Finding {
    const SUBJECT: &str = "huge pages";
    let setting = read("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    let chosen = setting.split(['[', ']']).nth(1).unwrap_or("unknown").to_string();
    if version() < (6, 1) {
        let advice = "Linux 6.1 or newer has MADV_COLLAPSE, which makes first touches of a tmpfs pool cheap";
        return Finding::limited(SUBJECT, format!("no MADV_COLLAPSE, shmem_enabled={chosen}"), advice);
    }
    Finding::good(SUBJECT, format!("MADV_COLLAPSE, shmem_enabled={chosen}"))
}

fn fanotify() -> Finding {
    const SUBJECT: &str = "fence: fanotify";
    let group = match Fanotify::init(InitFlags::FAN_CLASS_CONTENT, EventFFlags::O_RDONLY) {
        Ok(group) => group,
        Err(error) => {
            let advice = "run as root (CAP_SYS_ADMIN) for it, or vouch for directories with --exclusive; else inotify \
                          is used: outsiders are noticed, not held back";
            return Finding::limited(SUBJECT, format!("refused ({})", error.desc()), advice);
        }
    };
    let marked = tempfile::NamedTempFile::new().is_ok_and(|file| {
        group
            .mark(MarkFlags::FAN_MARK_ADD, MaskFlags::FAN_OPEN_PERM, rustix::fs::CWD, Some(file.path()))
            .is_ok()
    });
    if marked {
        Finding::good(SUBJECT, "permission events work")
    } else {
        let advice = "use a kernel with CONFIG_FANOTIFY_ACCESS_PERMISSIONS; else inotify is used";
        Finding::limited(SUBJECT, "no permission events", advice)
    }
}

fn inotify() -> Finding {
    const SUBJECT: &str = "fence: inotify";
    const WATCHES_MIN: u64 = 65_536;
    let limit = |name: &str| read(format!("/proc/sys/fs/inotify/{name}")).parse::<u64>().unwrap_or(0);
    let (watches, instances) = (limit("max_user_watches"), limit("max_user_instances"));
    let found = format!("{watches} watches, {instances} instances per user");
    match watches {
        0 => Finding::missing(SUBJECT, "not available", "use a kernel with CONFIG_INOTIFY_USER"),
        1..WATCHES_MIN => {
            Finding::limited(SUBJECT, found, format!("sysctl fs.inotify.max_user_watches={WATCHES_MIN}"))
        }
        _ => Finding::good(SUBJECT, found),
    }
}

/// What `--fence lease` needs: it holds outsiders back without privilege.
fn leases() -> Finding {
    const SUBJECT: &str = "fence: lease";
    if let Some(obstacle) = holdfast_keeper::fence::lease_obstacle() {
        return Finding::limited(SUBJECT, "not possible", obstacle);
    }
    let scope = read("/proc/sys/kernel/yama/ptrace_scope").parse::<u32>().unwrap_or(0);
    if scope > 0 && !rustix::process::geteuid().is_root() {
        let advice = "programs' descriptors cannot be shared with the keeper: sysctl kernel.yama.ptrace_scope=0, or run as \
                      root; else files are only watched, as by inotify";
        return Finding::limited(SUBJECT, format!("kernel.yama.ptrace_scope={scope}"), advice);
    }
    let seconds = read("/proc/sys/fs/lease-break-time");
    Finding::good(SUBJECT, format!("possible (--fence lease); others wait for {seconds} s at most"))
}

fn locked_memory() -> Finding {
    const SUBJECT: &str = "RLIMIT_MEMLOCK";
    match getrlimit(Resource::Memlock).current {
        None => Finding::good(SUBJECT, "unlimited"),
        Some(bytes) => Finding::limited(
            SUBJECT,
            human_bytes(bytes),
            "matters only to programs that call mlockall: raise it by the pool's size with `ulimit -l`",
        ),
    }
}

fn shared_memory() -> Finding {
    const SUBJECT: &str = "/dev/shm";
    const USEFUL_BYTES: u64 = 512 << 20;
    let Ok(facts) = rustix::fs::statvfs("/dev/shm") else {
        return Finding::missing(
            SUBJECT,
            "not there",
            "mount -t tmpfs tmpfs /dev/shm, or name another --pool",
        );
    };
    let (all, free) = (facts.f_blocks * facts.f_frsize, facts.f_bavail * facts.f_frsize);
    let found = format!("{} free of {}", human_bytes(free), human_bytes(all));
    if free < USEFUL_BYTES {
        let advice = "volatile pools live there: mount -o remount,size=1G /dev/shm (docker run --shm-size=1g), or \
                      give a smaller --size";
        return Finding::limited(SUBJECT, found, advice);
    }
    Finding::good(SUBJECT, found)
}

/// What may forbid patching libc's code in memory, or the keeper's look at a client's descriptors.
fn code_patches() -> Finding {
    const SUBJECT: &str = "security modules";
    let mut hints = Vec::new();
    if read("/sys/fs/selinux/enforce") == "1" {
        hints.push("SELinux enforces: allow execmod to the program's domain, or files it opens by fopen are bypassed");
    }
    if read("/proc/sys/kernel/yama/ptrace_scope").parse::<u32>().unwrap_or(0) >= 2 {
        hints.push(
            "kernel.yama.ptrace_scope is 2 or more: the keeper has to run as root to reach clients' files",
        );
    }
    if read("/proc/self/status").contains("NoNewPrivs:\t1") {
        hints.push("privileges are locked here (no_new_privs): a service with MemoryDenyWriteExecute=yes needs it off");
    }
    if hints.is_empty() {
        return Finding::good(SUBJECT, "nothing in the way");
    }
    Finding::limited(SUBJECT, "may be in the way", hints.join("; "))
}
