//! A descriptor of the program, as the session sees a file.
//!
//! What a new file holds is read back by a description of our own where the program's cannot be
//! read.
#![allow(unsafe_code)] // System calls, and memory for what they read.

use core::cell::Cell;
use core::ffi::c_int;

use holdfast_cache::{Asked, Errno, FileRef, Look, Reason};
use holdfast_media::Bytes;
use holdfast_session::{Backing, Stat, note_open};

use crate::open_flags::{kernel_flags, may_read};
use crate::raw::{self, call, check};
use crate::reopen::is_sole;
use crate::{adoption, critical, locks, mapped, process, relog, stream_marks};

/// A descriptor of the program.
#[derive(Clone, Copy)]
pub struct Descriptor(pub c_int);

impl Backing for Descriptor {
    fn fd(&self) -> c_int {
        self.0
    }

    #[inline]
    fn stat(&self) -> Result<Stat, Errno> {
        raw::fstat(self.0)
    }

    #[inline]
    fn look(&self) -> Result<Look, Errno> {
        raw::look(self.0)
    }

    fn kernel_flags(&self) -> Option<u32> {
        let now = raw::fcntl(self.0, libc::F_GETFL, 0);
        (now >= 0).then(|| kernel_flags(now as c_int))
    }

    fn fsync(&self, asked: Asked) -> Result<(), Errno> {
        // SAFETY: touches no memory.
        let sync = || unsafe { call!(libc::SYS_fsync, self.0) };
        let result = match asked {
            Asked::Whole => relog::synced(self.0, sync),
            Asked::Data => relog::synced_whole(self.0, sync),
        };
        check(result).map(|_| ())
    }

    fn check(&self) -> Result<(), Errno> {
        // Nothing is there that it would have to wait for; what it looks at besides is whether this
        // description has something to tell of the whole file (`file_check_and_advance_wb_err`).
        const NOWHERE: i64 = i64::MAX - 1;
        // SAFETY: touches no memory.
        let told = check(unsafe {
            call!(libc::SYS_sync_file_range, self.0, NOWHERE, 1, libc::SYNC_FILE_RANGE_WAIT_BEFORE)
        });
        let told = match told {
            // Forbidden, perhaps: then by a sync, which takes its time.
            Err(Errno(libc::EPERM | libc::ENOSYS | libc::EINVAL)) => check(raw::fdatasync(self.0)),
            told => told,
        };
        told.map(drop)
    }

    fn read_whole(&self, bytes: u64, log: &mut dyn FnMut(&[Bytes<'_>])) -> bool {
        let flags = raw::fcntl(self.0, libc::F_GETFL, 0);
        if flags < 0 {
            return false;
        }
        if may_read(flags as c_int) && flags as c_int & libc::O_DIRECT == 0 {
            return read_all(self.0, bytes, log);
        }
        // A description of our own would break the lease, and whoever breaks it waits for the lock
        // that we hold: the sync is the kernel's then. None is granted while we hold it.
        if raw::is_leased(self.0) {
            return false;
        }
        let read = locks::reopening(self.0, || {
            // The fence takes the open for ours.
            if let (Some(client), Ok(stat)) = (process::client(), raw::fstat(self.0)) {
                note_open(client, &stat);
            }
            let Ok(own) = reopen(self.0) else { return false };
            let is_logged = read_all(own, bytes, log);
            raw::close(own);
            is_logged
        });
        read.unwrap_or(false)
    }

    fn is_sole(&self) -> bool {
        is_sole(self.0)
    }

    fn may_be_managed(&self) -> bool {
        raw::is_on_managed_file_system(self.0)
    }

    #[inline(always)]
    fn section<R>(&self, work: impl FnOnce() -> R) -> R {
        critical::section(work)
    }

    fn bypasses_all(&self) -> Option<Reason> {
        process::bypasses_all().then_some(Reason::AsyncIo)
    }

    fn writes_unseen(&self, stat: &Stat) -> Option<Reason> {
        let by_libc = stream_marks::hold(self.0, stat).then_some(Reason::Libc);
        by_libc.or_else(|| mapped::is_written(stat).then_some(Reason::MappedShared))
    }

    #[inline]
    fn may_write_unseen(&self) -> bool {
        process::bypasses_all() || stream_marks::active() || mapped::is_any_written()
    }

    fn adopted(&self, file: FileRef, stat: &Stat) {
        // The mapping shows what the page cache has (invariant 6).
        if mapped::is_mapped(stat)
            && let Some(client) = process::client()
        {
            // Fails only when every write to the file fails too.
            let _ = client.leave_behind(file, true);
        }
        adoption::adopt_others(file, stat);
    }
}

/// A description of the same file that can be read.
fn reopen(fd: c_int) -> Result<c_int, Errno> {
    let mut path = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0\0";
    let (digits, mut rest) = (fd.max(1).ilog10() as usize + 1, fd);
    for place in (14..14 + digits).rev() {
        path[place] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    // SAFETY: the path ends with a zero.
    let open = || unsafe {
        call!(
            libc::SYS_openat,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOATIME
        )
    };
    check(process::announced(open)).map(|fd| fd as c_int)
}

/// Reads the first `bytes` bytes into memory of its own, for the while.
fn read_all(fd: c_int, bytes: u64, log: &mut dyn FnMut(&[Bytes<'_>])) -> bool {
    const ANONYMOUS: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
    // SAFETY: new memory, at no address of the program's.
    let mapped = unsafe {
        call!(libc::SYS_mmap, 0, bytes, libc::PROT_READ | libc::PROT_WRITE, ANONYMOUS, usize::MAX, 0)
    };
    let Ok(memory) = check(mapped) else { return false };
    let read = Cell::new(0);
    while read.get() < bytes {
        let (to, left) = (memory + read.get() as usize, bytes - read.get());
        // SAFETY: `left` bytes from `to` on lie in the memory mapped above.
        match check(unsafe { call!(libc::SYS_pread64, fd, to, left, read.get()) }) {
            Ok(0) | Err(_) => break,
            Ok(got) => read.set(read.get() + got as u64),
        }
    }
    let is_whole = read.get() == bytes;
    if is_whole {
        // SAFETY: mapped above, written by the kernel, and unmapped only below.
        log(&[unsafe { Bytes::from_raw(core::ptr::with_exposed_provenance(memory), bytes as usize) }]);
    }
    // SAFETY: mapped above, and nobody has its address any more.
    unsafe { call!(libc::SYS_munmap, memory, bytes) };
    is_whole
}
