//! Media mapped into the process.
//!
//! It must never hand out a reference into the mapping, and must never let an access pass its end.
#![allow(unsafe_code)] // Maps memory and accesses it through raw pointers.

use std::arch::asm;
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::bytes::{Bytes, out_of_range};
use crate::cpu::{Choice, CopyPath, FlushPath};
use crate::delay::{Delay, Throttle};
use crate::detect::{detect, open_media};
use crate::error::MediaError;
use crate::holes;
use crate::kind::{HUGE_PAGE_BYTES, MediaInfo, MediaKind};
use crate::nvm::{LINE_BYTES, Nvm};
use crate::stream::{sfence, stream};

const PAGE_BYTES: u64 = 4096;
/// Address space on either side of a mapping at which stores fault: those of a program that runs
/// over the end of something of its own.
pub(crate) const GUARD_BYTES: usize = 64 << 10;

/// What the mapping may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Loads only. A store faults.
    ReadOnly,
    /// Loads and stores.
    ReadWrite,
}

/// The media of a pool, mapped shared. Unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: u64,
    flush: FlushPath,
    copy: Choice,
    throttle: Throttle,
}

// SAFETY: the mapping is plain memory shared with other processes anyway; all access is by raw
// copies, atomics and flushes, none of which is bound to a thread.
unsafe impl Send for Mapping {}
// SAFETY: as for Send; no method hands out a reference into the memory.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Opens and maps the media at `path`: all of it.
    pub fn open(path: impl AsRef<Path>, mode: OpenMode) -> Result<(Mapping, MediaInfo), MediaError> {
        let path = path.as_ref();
        let fd = open_media(path, mode == OpenMode::ReadWrite)?;
        Mapping::open_fd(fd.as_fd(), path, mode)
    }

    /// Maps media that the caller has opened (with write access for [`OpenMode::ReadWrite`]);
    /// `path` is for messages.
    pub fn open_fd(
        fd: BorrowedFd<'_>,
        path: impl AsRef<Path>,
        mode: OpenMode,
    ) -> Result<(Mapping, MediaInfo), MediaError> {
        let path = path.as_ref();
        let info = detect(fd, path)?;
        if info.len == 0 {
            return Err(MediaError::Empty { path: path.to_owned() });
        }
        let read_only_front = if mode == OpenMode::ReadOnly { info.len } else { 0 };
        let has_holes = match mode {
            OpenMode::ReadWrite => holes::fill(fd, path, &info).map(|()| false)?,
            OpenMode::ReadOnly => holes::refuse_unreadable(fd, path, &info)?,
        };
        let mapping = map(fd, &info, read_only_front)
            .map_err(|e| MediaError::Map { path: path.to_owned(), source: e.into() })?;
        if has_holes && !mapping.populate() {
            return Err(holes::no_room(fd, path, &info, holes::missing(fd, &info)));
        }
        Ok((mapping, info))
    }

    /// Maps media whose descriptor was passed by the process that opened it. The first
    /// `read_only_front` bytes (whole pages) can only be read; a store there faults.
    ///
    /// Allocates nothing and opens nothing: it runs inside foreign programs.
    pub fn from_fd(
        fd: BorrowedFd<'_>,
        info: &MediaInfo,
        read_only_front: u64,
    ) -> Result<Mapping, MediaError> {
        map(fd, info, read_only_front).map_err(|errno| MediaError::MapDescriptor { len: info.len, errno })
    }

    /// Has the kernel look at every page now, which fails where a load would end the process.
    fn populate(&self) -> bool {
        // SAFETY: the mapping's own range, of which nothing is changed.
        let populated =
            unsafe { madvise(self.base.as_ptr().cast(), self.len as usize, Advice::LinuxPopulateRead) };
        // A kernel before 5.14 does not know it.
        !matches!(populated, Err(Errno::FAULT | Errno::NOMEM))
    }

    /// Slows this mapping down from now on.
    pub fn set_delay(&self, delay: Delay) {
        self.throttle.set(delay);
    }

    /// How cache lines are written back.
    pub fn flush_path(&self) -> FlushPath {
        self.flush
    }

    /// Streams by `path` instead of the fastest one, to compare them. A path that the processor
    /// lacks is refused.
    pub fn with_copy_path(mut self, path: CopyPath) -> Option<Mapping> {
        self.copy = Choice::made(path);
        path.is_available().then_some(self)
    }

    /// How bytes are streamed and summed.
    pub fn copy_path(&self) -> CopyPath {
        self.copy.get()
    }

    /// Address of `len` bytes at `offset`.
    #[inline(always)]
    fn at(&self, offset: u64, len: u64) -> *mut u8 {
        if offset > self.len || len > self.len - offset {
            out_of_range();
        }
        // SAFETY: offset is at most the mapping's length, so the result lies within or one past the
        // mapping.
        unsafe { self.base.as_ptr().add(offset as usize) }
    }

    #[inline(always)]
    fn word(&self, offset: u64) -> &AtomicU64 {
        if !offset.is_multiple_of(8) {
            out_of_range();
        }
        // SAFETY: the word lies within the mapping (checked), is aligned (checked; the base is
        // aligned to 2 MiB), lives as long as the mapping, and is shared with other processes only
        // through atomic or raw accesses.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }
}

/// From here on the processor's own copy beats memcpy on bytes that no cache has.
const LONG_READ_BYTES: usize = 1024;

impl Nvm for Mapping {
    fn len(&self) -> u64 {
        self.len
    }

    #[inline]
    fn read(&self, offset: u64, buf: &mut [u8]) {
        let from = self.at(offset, buf.len() as u64);
        if buf.len() < LONG_READ_BYTES {
            // SAFETY: the range lies within the mapping, which is readable as long as `self` lives.
            unsafe { Bytes::from_raw(from, buf.len()) }.copy_to(buf);
            return;
        }
        // SAFETY: as above; `buf` is exclusive and of that length, and the direction flag is clear
        // by the calling convention. A source that changes meanwhile yields a mix, as a byte copy
        // does.
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") buf.len() => _,
                inout("rsi") from.cast_const() => _,
                inout("rdi") buf.as_mut_ptr() => _,
                options(nostack, preserves_flags),
            );
        }
    }

    fn lend(&self, offset: u64, len: u64) -> Option<Bytes<'_>> {
        // SAFETY: the range lies within the mapping, which is readable as long as `self` lives.
        Some(unsafe { Bytes::from_raw(self.at(offset, len), len as usize) })
    }

    #[inline]
    fn prefetch(&self, offset: u64) {
        if offset < self.len {
            // SAFETY: the byte lies within the mapping; what it is does not matter.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.at(offset, 1).cast_const().cast()) };
        }
    }

    #[inline]
    fn write(&self, offset: u64, bytes: &[u8]) {
        let to = self.at(offset, bytes.len() as u64);
        // SAFETY: the range lies within the mapping, to which no references exist, so it cannot
        // overlap `bytes`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    #[inline]
    fn write_streaming(&self, offset: u64, src: Bytes<'_>, crc: u32) -> u32 {
        if !offset.is_multiple_of(LINE_BYTES) {
            out_of_range();
        }
        let lines = (src.len() as u64).next_multiple_of(LINE_BYTES);
        let to = self.at(offset, lines);
        if self.throttle.is_on() {
            self.throttle.charge(lines);
        }
        // SAFETY: the whole lines lie within the mapping (checked), `to` is aligned as offset
        // (checked) and base are, no references into the mapping exist, and the path was chosen on
        // this processor.
        unsafe { stream(self.copy.get(), to, src, crc) }
    }

    #[inline]
    fn load_u64(&self, offset: u64) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }

    #[inline]
    fn store_u64(&self, offset: u64, value: u64) {
        self.word(offset).store(value, Ordering::Release);
    }

    fn flush(&self, offset: u64, len: u64) {
        let from = self.at(offset, len);
        if len == 0 {
            return;
        }
        let skew = offset % LINE_BYTES;
        let lines = (skew + len).div_ceil(LINE_BYTES);
        if self.throttle.is_on() {
            self.throttle.charge(lines * LINE_BYTES);
        }
        let first = from.wrapping_sub(skew as usize);
        for line in 0..lines {
            let line = first.wrapping_add((line * LINE_BYTES) as usize);
            // SAFETY: the line holds a byte of the checked range, hence lies in a page of the
            // mapping; the instruction was found on this processor. The asm blocks count as reading
            // and writing memory, so that earlier stores stay before them.
            unsafe {
                match self.flush {
                    FlushPath::Clwb => asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)),
                    FlushPath::ClflushOpt => {
                        asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
                    }
                    FlushPath::Clflush => {
                        asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags))
                    }
                    FlushPath::None => return,
                }
            }
        }
    }

    #[inline]
    fn fence(&self) {
        sfence();
        if self.throttle.is_on() {
            self.throttle.wait();
        }
    }
}

impl Mapping {
    /// Puts empty memory of this process alone in the place of all that is mapped, for who may go
    /// on using it: nothing that is written there reaches anybody.
    pub fn cover(&self) {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: replaces this mapping, of which nobody relies on what it holds.
        let _ = unsafe { mmap_anonymous(self.base.as_ptr().cast(), self.len as usize, access, flags) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and len are the mapping made in `map`, and nothing refers into it any more.
        unsafe { release(self.base, self.len as usize) };
    }
}

/// Maps `fd` at a 2 MiB boundary, so that huge pages can be used, with its front read-only.
fn map(fd: BorrowedFd<'_>, info: &MediaInfo, read_only_front: u64) -> Result<Mapping, Errno> {
    let len = usize::try_from(info.len).map_err(|_| Errno::NOMEM)?;
    if len == 0
        || read_only_front > info.len
        || !read_only_front.is_multiple_of(PAGE_BYTES) && read_only_front < info.len
    {
        return Err(Errno::INVAL);
    }
    let kind = match info.kind {
        MediaKind::DaxFile => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
        MediaKind::DaxDevice | MediaKind::Volatile => MapFlags::SHARED,
    };
    let base = reserve(len)?;
    let mapping = Mapping {
        base,
        len: info.len,
        flush: info.flush,
        copy: Choice::default(),
        throttle: Throttle::default(),
    };
    let all = base.as_ptr().cast();
    let flags = kind | MapFlags::FIXED;
    // From here on the drop of `mapping` removes what was mapped. SAFETY: replaces the address
    // range just reserved, which nobody else knows, and then its front.
    unsafe {
        if read_only_front < info.len {
            mmap(all, len, ProtFlags::READ | ProtFlags::WRITE, flags, fd, 0)?;
        }
        if read_only_front > 0 {
            mmap(all, read_only_front as usize, ProtFlags::READ, flags, fd, 0)?;
        }
        // A core dump of the program must not carry the pool. Refused for some devices, which are
        // not dumped anyway.
        let _ = madvise(all, len, Advice::LinuxDontDump);
    }
    Ok(mapping)
}

/// Reserves address space for `len` bytes at a 2 MiB boundary, between guards.
pub(crate) fn reserve(len: usize) -> Result<NonNull<u8>, Errno> {
    let align = HUGE_PAGE_BYTES as usize;
    let pages = len.checked_next_multiple_of(PAGE_BYTES as usize).ok_or(Errno::NOMEM)?;
    let room = pages.checked_add(align + 2 * GUARD_BYTES).ok_or(Errno::NOMEM)?;
    // SAFETY: new address space at a place of the kernel's choice, not accessible.
    let start = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            room,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )?
    }
    .cast::<u8>();
    let front = start.wrapping_add(GUARD_BYTES).align_offset(align);
    let base = start.wrapping_add(GUARD_BYTES + front);
    let back = room - front - pages - 2 * GUARD_BYTES;
    // SAFETY: both ranges are whole pages of the reservation just made and outside what is kept.
    unsafe {
        if front > 0 {
            munmap(start.cast(), front)?;
        }
        if back > 0 {
            munmap(base.wrapping_add(pages + GUARD_BYTES).cast(), back)?;
        }
    }
    NonNull::new(base).ok_or(Errno::NOMEM)
}

/// Gives address space back that was reserved, with its guards. It cannot fail on a whole
/// reservation, and there would be nothing to do about it.
///
/// # Safety
/// `base` and `len` are those of a reservation, into which nothing refers any more.
pub(crate) unsafe fn release(base: NonNull<u8>, len: usize) {
    let pages = len.next_multiple_of(PAGE_BYTES as usize);
    // SAFETY: our caller's promise, and the guards lie on either side.
    let _ = unsafe { munmap(base.as_ptr().sub(GUARD_BYTES).cast(), pages + 2 * GUARD_BYTES) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocate::allocate;
    use std::fs::File;

    const LEN: u64 = 2 * HUGE_PAGE_BYTES;

    fn pool() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir_in("/dev/shm").expect("tests need a tmpfs at /dev/shm");
        let path = dir.path().join("pool");
        allocate(&path, LEN, |_, _| ()).unwrap();
        (dir, path)
    }

    /// The signal that ends a forked child which does `act`, if one does.
    fn signal_of(act: impl FnOnce()) -> Option<i32> {
        // SAFETY: the child only does `act`, which stores to memory, and leaves without running
        // anything else.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            act();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: our own child, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status))
    }

    #[test]
    fn stores_reach_the_file_and_other_mappings() {
        let (_dir, path) = pool();
        let (mapping, info) = Mapping::open(&path, OpenMode::ReadWrite).unwrap();
        assert_eq!((info.kind, info.len, mapping.len()), (MediaKind::Volatile, LEN, LEN));
        assert_ne!(info.flush, FlushPath::None);
        mapping.write(5, b"cached");
        mapping.flush(5, 6);
        let crc = mapping.write_streaming(128, Bytes::from_slice(b"streamed"), 0);
        mapping.store_u64(256, 42);
        mapping.flush(256, 8);
        mapping.fence();
        assert_eq!(crc, crc32c::crc32c(b"streamed"));

        let (other, _) = Mapping::open(&path, OpenMode::ReadOnly).unwrap();
        let mut buf = [0xFF; 8];
        other.read(128, &mut buf);
        assert_eq!(&buf, b"streamed");
        assert_eq!(other.load_u64(136), 0);
        assert_eq!(other.load_u64(256), 42);
        assert_eq!(&std::fs::read(&path).unwrap()[5..11], b"cached");
    }

    #[test]
    fn base_is_aligned_for_huge_pages() {
        let (_dir, path) = pool();
        let (mapping, _) = Mapping::open(&path, OpenMode::ReadWrite).unwrap();
        assert_eq!(mapping.base.as_ptr() as u64 % HUGE_PAGE_BYTES, 0);
    }

    #[test]
    fn read_only_front_faults_on_stores_only_there() {
        let (_dir, path) = pool();
        let (_, info) = Mapping::open(&path, OpenMode::ReadWrite).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let mapping = Mapping::from_fd(file.as_fd(), &info, HUGE_PAGE_BYTES).unwrap();
        assert_eq!(mapping.load_u64(HUGE_PAGE_BYTES - 8), 0);
        assert_eq!(signal_of(|| mapping.write(HUGE_PAGE_BYTES - 1, b"x")), Some(libc::SIGSEGV));
        assert_eq!(signal_of(|| mapping.store_u64(0, 1)), Some(libc::SIGSEGV));
        assert_eq!(signal_of(|| mapping.write(HUGE_PAGE_BYTES, b"x")), None);
        // The child's store is seen: the mapping is shared.
        assert_eq!(mapping.load_u64(HUGE_PAGE_BYTES), u64::from(b'x'));
    }

    /// Ends at the mapping's edge, on both sides, what comes from outside.
    #[test]
    fn stores_beside_the_mapping_fault() {
        let (_dir, path) = pool();
        let (mapping, _) = Mapping::open(&path, OpenMode::ReadWrite).unwrap();
        let (first, end) = (mapping.base, mapping.base.as_ptr().wrapping_add(LEN as usize));
        for outside in [first.as_ptr().wrapping_sub(1), end, end.wrapping_add(GUARD_BYTES - 1)] {
            // SAFETY: a store that is to fault, in a child that nothing else happens in.
            assert_eq!(signal_of(|| unsafe { outside.write_volatile(1) }), Some(libc::SIGSEGV));
        }
        let guard = format!("{:x}-", first.as_ptr() as usize - GUARD_BYTES);
        let is_mapped =
            || std::fs::read_to_string("/proc/self/maps").unwrap().contains(&format!("\n{guard}"));
        assert!(is_mapped());
        drop(mapping);
        assert!(!is_mapped(), "the guards stayed");
    }

    #[test]
    fn read_only_mapping_faults_on_stores() {
        let (_dir, path) = pool();
        let (mapping, _) = Mapping::open(&path, OpenMode::ReadOnly).unwrap();
        assert_eq!(signal_of(|| mapping.write(0, b"x")), Some(libc::SIGSEGV));
    }

    #[test]
    fn accesses_outside_end_the_process() {
        let (_dir, path) = pool();
        let (mapping, _) = Mapping::open(&path, OpenMode::ReadWrite).unwrap();
        #[cfg(debug_assertions)]
        let fails = |act: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).is_err();
        #[cfg(not(debug_assertions))]
        let fails = |act: &dyn Fn()| signal_of(act) == Some(libc::SIGABRT);
        let line = Bytes::from_slice(&[1; 64]);
        assert!(fails(&|| mapping.write(LEN - 1, b"ab")));
        assert!(fails(&|| mapping.read(LEN + 1, &mut [])));
        assert!(fails(&|| mapping.flush(u64::MAX, 2)));
        assert!(fails(&|| _ = mapping.load_u64(LEN - 4)));
        assert!(fails(&|| mapping.store_u64(12, 0)));
        assert!(fails(&|| _ = mapping.write_streaming(LEN, line, 0)));
        assert!(fails(&|| _ = mapping.write_streaming(32, line, 0)));
        assert!(fails(&|| _ = line.slice(60, 5)));
        // The very ends are inside.
        mapping.write(LEN - 1, b"a");
        mapping.flush(LEN, 0);
        mapping.write_streaming(LEN - 64, line, 0);
    }

    #[test]
    fn an_odd_front_is_refused() {
        let (_dir, path) = pool();
        let (_, info) = Mapping::open(&path, OpenMode::ReadWrite).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        for front in [1, LEN + 4096] {
            let error = Mapping::from_fd(file.as_fd(), &info, front).unwrap_err();
            assert!(matches!(error, MediaError::MapDescriptor { errno: Errno::INVAL, .. }), "{error}");
        }
    }

    #[test]
    fn delay_slows_fences() {
        let (_dir, path) = pool();
        let (mapping, _) = Mapping::open(&path, OpenMode::ReadWrite).unwrap();
        mapping.set_delay(Delay { write_latency_ns: 100_000, bandwidth_bytes_per_s: 4 << 20 });
        let start = std::time::Instant::now();
        mapping.write_streaming(0, Bytes::from_slice(&[7; 4096]), 0);
        mapping.flush(0, 4096);
        mapping.fence();
        // 8 KiB at 4 MiB/s.
        assert!(start.elapsed().as_micros() >= 1950);
        mapping.set_delay(Delay { write_latency_ns: 1_000_000, bandwidth_bytes_per_s: 0 });
        let start = std::time::Instant::now();
        mapping.fence();
        assert!(start.elapsed().as_micros() >= 1000);
    }

    #[test]
    fn what_is_not_media_is_refused_with_advice() {
        let open = |path: &str| Mapping::open(path, OpenMode::ReadOnly).unwrap_err();
        assert!(matches!(open("/dev/shm/no-such-pool"), MediaError::Open { .. }));
        assert!(matches!(open("/dev/null"), MediaError::NotMedia { .. }));
        assert!(matches!(open("/dev"), MediaError::NotMedia { .. }));
        let (dir, _) = pool();
        let empty = dir.path().join("empty");
        File::create(&empty).unwrap();
        assert!(matches!(open(empty.to_str().unwrap()), MediaError::Empty { .. }));
    }

    #[test]
    fn a_file_on_an_ordinary_disk_is_not_persistent() {
        // The test program itself lies on a disk, unless someone builds on tmpfs or on real NVM.
        let program = std::env::current_exe().unwrap();
        match Mapping::open(&program, OpenMode::ReadOnly) {
            Err(error @ MediaError::NotPersistent { .. }) => {
                assert!(error.to_string().contains("--volatile"), "{error}");
                let beside = program.with_extension("pool");
                let error = allocate(&beside, LEN, |_, _| ()).unwrap_err();
                assert!(matches!(error, MediaError::NotPersistent { .. }), "{error}");
                assert!(!beside.exists());
            }
            other => assert!(other.is_ok(), "{other:?}"),
        }
    }
}
