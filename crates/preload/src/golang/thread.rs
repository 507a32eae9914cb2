//! What each of Go's threads has to run hooks with: a stack, and thread-local storage as the
//! loader made it for the first thread. Both lie in its area, which the GS base points to: Go on
//! this processor leaves that register alone.
//!
//! Go's own thread pointer is changed for the length of a call. The word below the other one holds
//! the same goroutine, so that a handler of Go's that comes meanwhile finds it. Such a handler
//! never comes back to a hook, never ends one by a jump, and waits for nobody who could wait for
//! one. A new thread inherits the GS base of the one that made it: an area knows the thread pointer
//! of its owner, and whoever has another one gets an area of its own, or one whose owner has ended.
//! Nothing here may use thread-local storage but on an area.
#![allow(unsafe_code)] // Instructions, memory that the loader laid out.

use core::arch::{asm, global_asm};
use core::ffi::{c_int, c_long, c_void};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use holdfast_enter::Refusal;

use super::calls;
use crate::raw::{self, call};
use crate::tls;

/// Of an area: what cannot be accessed, then the stack, then thread-local storage, then [`Area`].
const GUARD_BYTES: usize = 4096;
const STACK_BYTES: usize = 64 << 10;
const STORAGE_BYTES: usize = 24 << 10;
const AREA_AT: usize = STACK_BYTES + STORAGE_BYTES;
const AREA_BYTES: usize = AREA_AT + 4096;
/// What glibc keeps above the thread pointer that our calls of it may look at.
const HEAD_BYTES: usize = 704;
/// Room for it, and for what it may have beyond.
const HEAD_ROOM: usize = 4096;
/// How many areas are looked at for one whose owner has ended.
const LOOKS: u32 = 32;

const FREE: u32 = 0;
/// Its owner makes a call.
const BUSY: u32 = 1;
/// It gets another owner.
const TAKEN: u32 = 2;

/// What belongs to one thread. The instructions below know the places of its fields.
#[repr(C)]
pub struct Area {
    /// The thread pointer for hooks.
    pointer: usize,
    /// Go's thread pointer of the owner.
    owner: AtomicU64,
    state: AtomicU32,
    /// The owner's number.
    thread: AtomicU32,
    stack: usize,
    /// Go's registers.
    saved: [usize; 3],
    number: c_long,
    arguments: [usize; 6],
    next: AtomicPtr<Area>,
}

impl Area {
    /// The call that its thread makes.
    pub fn call(&self) -> (c_long, [usize; 6]) {
        (self.number, self.arguments)
    }
}

/// All areas.
static FIRST: AtomicPtr<Area> = AtomicPtr::new(core::ptr::null_mut());
/// Where to look next.
static CURSOR: AtomicPtr<Area> = AtomicPtr::new(core::ptr::null_mut());
/// The first thread's storage, and how much of it lies below its thread pointer.
static POINTER: AtomicUsize = AtomicUsize::new(0);
static BELOW: AtomicUsize = AtomicUsize::new(0);
/// Where Go goes on after it made a child in its memory: where that failed, and where not.
static VFORK_FAILED: AtomicUsize = AtomicUsize::new(0);
static VFORK_DONE: AtomicUsize = AtomicUsize::new(0);

/// Where `Syscall6` leads.
pub const CALL_WAY: unsafe extern "C" fn() = holdfast_go_call;
/// Where `rawVforkSyscall` leads.
pub const VFORK_WAY: unsafe extern "C" fn() = holdfast_go_vfork;

/// Sets where `rawVforkSyscall` goes on.
pub fn set_vfork_ways(failed: usize, done: usize) {
    VFORK_FAILED.store(failed, Ordering::Relaxed);
    VFORK_DONE.store(done, Ordering::Relaxed);
}

unsafe extern "C" {
    fn holdfast_go_call();
    fn holdfast_go_vfork();
}

// Go calls with the number in rax and arguments in rbx, rcx, rdi, rsi, r8, r9; it gets results in
// rax and rbx and the error in rcx, and keeps nothing but rsp, rbp, r14 and xmm15 = 0.
global_asm!(
    ".hidden holdfast_go_call",
    ".globl holdfast_go_call",
    ".type holdfast_go_call,@function",
    "holdfast_go_call:",
    "cmp rax, {numbers}",
    "jae 9f",
    "lea r11, [rip + {hooked}]",
    "cmp byte ptr [r11 + rax], 0",
    "je 9f",
    "rdfsbase r12",
    "rdgsbase r11",
    "test r11, r11",
    "jz 5f",
    "3:",
    "cmp qword ptr [r11 + 8], r12",
    "jne 5f",
    "mov r13, rax",
    "xor eax, eax",
    "mov r10d, {busy}",
    "lock cmpxchg dword ptr [r11 + 16], r10d",
    "mov r10d, eax",
    "mov rax, r13",
    "jne 4f",
    "cmp qword ptr [r11 + 8], r12",
    "jne 6f",
    "mov qword ptr [r11 + 32], rsp",
    "mov qword ptr [r11 + 40], rbp",
    "mov qword ptr [r11 + 48], r14",
    "mov qword ptr [r11 + 56], rax",
    "mov qword ptr [r11 + 64], rbx",
    "mov qword ptr [r11 + 72], rcx",
    "mov qword ptr [r11 + 80], rdi",
    "mov qword ptr [r11 + 88], rsi",
    "mov qword ptr [r11 + 96], r8",
    "mov qword ptr [r11 + 104], r9",
    "mov r10, qword ptr [r11]",
    "mov r12, qword ptr fs:[-8]",
    "mov qword ptr [r10 - 8], r12",
    "mov rsp, qword ptr [r11 + 24]",
    "wrfsbase r10",
    "xor ebp, ebp",
    "mov rdi, r11",
    "call {enter}",
    "rdgsbase r11",
    "mov r12, qword ptr [r11 + 8]",
    "wrfsbase r12",
    "mov rsp, qword ptr [r11 + 32]",
    "mov rbp, qword ptr [r11 + 40]",
    "mov r14, qword ptr [r11 + 48]",
    "pxor xmm15, xmm15",
    "cld",
    "test rdx, rdx",
    "jnz 7f",
    "mov rdx, qword ptr [r11 + 80]",
    "mov dword ptr [r11 + 16], {free}",
    "2:",
    "cmp rax, -4095",
    "jae 8f",
    "mov rbx, rdx",
    "xor ecx, ecx",
    "ret",
    "8:",
    "neg rax",
    "mov rcx, rax",
    "mov rax, -1",
    "xor ebx, ebx",
    "ret",
    // It has an owner's call in it: a handler's own call. Or it gets another owner.
    "4:",
    "cmp r10d, {busy}",
    "je 9f",
    "jmp 5f",
    // It got another owner a moment before.
    "6:",
    "mov dword ptr [r11 + 16], {free}",
    "5:",
    "call holdfast_go_claim",
    "rdfsbase r12",
    "test r11, r11",
    "jnz 3b",
    "mov rax, -12",
    "jmp 2b",
    // The call is Go's to make.
    "7:",
    "mov rax, qword ptr [r11 + 56]",
    "mov rbx, qword ptr [r11 + 64]",
    "mov rcx, qword ptr [r11 + 72]",
    "mov rdi, qword ptr [r11 + 80]",
    "mov rsi, qword ptr [r11 + 88]",
    "mov r8, qword ptr [r11 + 96]",
    "mov r9, qword ptr [r11 + 104]",
    "mov dword ptr [r11 + 16], {free}",
    "9:",
    "mov r10, rsi",
    "mov rdx, rdi",
    "mov rsi, rcx",
    "mov rdi, rbx",
    "syscall",
    "jmp 2b",
    ".size holdfast_go_call, . - holdfast_go_call",
    // Gives this thread an area, in r11; 0 where there is no memory. Keeps everything else but rcx,
    // which the call of it has free, and xmm15.
    ".type holdfast_go_claim,@function",
    "holdfast_go_claim:",
    "push rax",
    "push rbx",
    "push rcx",
    "push rdi",
    "push rsi",
    "push r8",
    "push r9",
    "push rdx",
    "push r10",
    "push r12",
    "mov eax, {mmap}",
    "xor edi, edi",
    "mov esi, {area_bytes}",
    "mov edx, 3",
    "mov r10d, 0x22",
    "mov r8, -1",
    "xor r9d, r9d",
    "syscall",
    "xor r11d, r11d",
    "cmp rax, -4095",
    "jae 2f",
    "mov rdi, rax",
    "rdfsbase rsi",
    "mov rbx, rsp",
    "lea rsp, [rdi + {stack_bytes}]",
    "call {make}",
    "mov rsp, rbx",
    "mov r12, rax",
    "test rdx, rdx",
    "jz 3f",
    "mov eax, {munmap}",
    "mov rdi, rdx",
    "mov esi, {area_bytes}",
    "syscall",
    "3:",
    "mov r11, r12",
    "wrgsbase r11",
    "2:",
    "pop r12",
    "pop r10",
    "pop rdx",
    "pop r9",
    "pop r8",
    "pop rsi",
    "pop rdi",
    "pop rcx",
    "pop rbx",
    "pop rax",
    "ret",
    ".size holdfast_go_claim, . - holdfast_go_claim",
    // Runs the function at r13 on the area at r11. Keeps rbx, rbp, r12, r14.
    ".type holdfast_go_run,@function",
    "holdfast_go_run:",
    "push rbp",
    "push rbx",
    "mov rbx, rsp",
    "mov r10, qword ptr [r11]",
    "mov rax, qword ptr fs:[-8]",
    "mov qword ptr [r10 - 8], rax",
    "mov r15, qword ptr [r11 + 8]",
    "mov rsp, qword ptr [r11 + 24]",
    "wrfsbase r10",
    "call r13",
    "wrfsbase r15",
    "mov rsp, rbx",
    "pop rbx",
    "pop rbp",
    "ret",
    ".size holdfast_go_run, . - holdfast_go_run",
    // The number is in rax and the arguments are where the kernel takes them; the return address
    // lies on the stack, which the child uses, too.
    ".hidden holdfast_go_vfork",
    ".globl holdfast_go_vfork",
    ".type holdfast_go_vfork,@function",
    "holdfast_go_vfork:",
    "rdfsbase r12",
    "rdgsbase r11",
    "test r11, r11",
    "jz 3f",
    "cmp qword ptr [r11 + 8], r12",
    "je 4f",
    "3:",
    "call holdfast_go_claim",
    "test r11, r11",
    "jz 5f",
    "4:",
    "push rax",
    "push rdi",
    "push rsi",
    "push rdx",
    "lea r13, [rip + {begins}]",
    "call holdfast_go_run",
    "pop rdx",
    "pop rsi",
    "pop rdi",
    "pop rax",
    "xor r10d, r10d",
    "xor r8d, r8d",
    "xor r9d, r9d",
    "pop r12",
    "syscall",
    "push r12",
    "test rax, rax",
    "jz 6f",
    "mov r12, rax",
    "rdgsbase r11",
    // The child may have ended in a hook.
    "mov dword ptr [r11 + 16], {free}",
    "lea r13, [rip + {ends}]",
    "call holdfast_go_run",
    "mov rax, r12",
    "6:",
    "pxor xmm15, xmm15",
    "cld",
    "cmp rax, -4095",
    "jae 7f",
    "jmp qword ptr [rip + {done}]",
    "5:",
    "mov rax, -12",
    "7:",
    "jmp qword ptr [rip + {failed}]",
    ".size holdfast_go_vfork, . - holdfast_go_vfork",
    numbers = const calls::NUMBERS,
    hooked = sym calls::HOOKED,
    enter = sym calls::enter,
    make = sym make,
    begins = sym tls::spawning_begins,
    ends = sym tls::spawning_ends,
    done = sym VFORK_DONE,
    failed = sym VFORK_FAILED,
    busy = const BUSY,
    free = const FREE,
    mmap = const libc::SYS_mmap,
    munmap = const libc::SYS_munmap,
    area_bytes = const AREA_BYTES,
    stack_bytes = const STACK_BYTES,
);

const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(Area, owner) == 8 && offset_of!(Area, state) == 16 && offset_of!(Area, stack) == 24);
    assert!(offset_of!(Area, saved) == 32 && offset_of!(Area, number) == 56);
    assert!(offset_of!(Area, arguments) == 64);
};

/// Two words, as C returns them.
#[repr(C)]
struct Made {
    area: *mut Area,
    /// What is not needed of the new memory: all of it, or nothing.
    unneeded: usize,
}

/// An area for the thread with Go's thread pointer `owner`: of one that has ended, or the new
/// memory at `base`, on whose stack this runs.
unsafe extern "C" fn make(base: usize, owner: u64) -> Made {
    let thread = raw::gettid();
    if let Some(area) = left_behind() {
        area.owner.store(owner, Ordering::SeqCst);
        area.thread.store(thread, Ordering::SeqCst);
        area.state.store(FREE, Ordering::SeqCst);
        return Made { area: core::ptr::from_ref(area).cast_mut(), unneeded: base };
    }
    let (below, from) = (BELOW.load(Ordering::Relaxed), POINTER.load(Ordering::Relaxed));
    let pointer = base + AREA_AT - HEAD_ROOM;
    let area: *mut Area = core::ptr::with_exposed_provenance_mut(base + AREA_AT);
    // SAFETY: the new memory is ours and zero; `look` has found that what is copied fits. The first
    // thread's storage is used by nobody any more.
    unsafe {
        call!(libc::SYS_mprotect, base, GUARD_BYTES, libc::PROT_NONE);
        let to = |address: usize| core::ptr::with_exposed_provenance_mut::<u8>(address);
        let (first, all) = (from - below, below + HEAD_BYTES);
        core::ptr::copy_nonoverlapping(to(first).cast_const(), to(pointer - below), all);
        // A new thread's block of ours is zero.
        let block = tls::offset();
        core::ptr::write_bytes(to(pointer.wrapping_add_signed(block)), 0, size_of::<tls::Thread>());
        // Where the block says that it lies itself.
        for word in [0, 16] {
            to(pointer + word).cast::<usize>().write(pointer);
        }
        let next = AtomicPtr::new(core::ptr::null_mut());
        area.write(Area {
            pointer,
            owner: AtomicU64::new(owner),
            state: AtomicU32::new(FREE),
            thread: AtomicU32::new(thread),
            stack: base + STACK_BYTES,
            saved: [0; 3],
            number: 0,
            arguments: [0; 6],
            next,
        });
        let mut first = FIRST.load(Ordering::SeqCst);
        loop {
            (*area).next.store(first, Ordering::SeqCst);
            match FIRST.compare_exchange(first, area, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => break,
                Err(now) => first = now,
            }
        }
    }
    Made { area, unneeded: 0 }
}

/// An area whose owner has ended, taken.
fn left_behind() -> Option<&'static Area> {
    let pid = raw::getpid();
    let mut at = CURSOR.load(Ordering::SeqCst);
    for _ in 0..LOOKS {
        if at.is_null() {
            at = FIRST.load(Ordering::SeqCst);
        }
        // SAFETY: null, or an area, and these are never unmapped.
        let area = unsafe { at.as_ref() }?;
        at = area.next.load(Ordering::SeqCst);
        // SAFETY: touches no memory; signal 0 is none.
        let found = unsafe { call!(libc::SYS_tgkill, pid, area.thread.load(Ordering::SeqCst), 0) };
        if found == -(libc::ESRCH as isize)
            && area.state.compare_exchange(FREE, TAKEN, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        {
            CURSOR.store(at, Ordering::SeqCst);
            return Some(area);
        }
    }
    CURSOR.store(at, Ordering::SeqCst);
    None
}

/// Looks whether areas can be made here: what the processor has, and how the loader has laid out
/// thread-local storage. On the first thread, before Go.
pub fn look() -> Result<(), Refusal> {
    const AT_HWCAP2: u64 = 26;
    const FSGSBASE: u64 = 2;
    // SAFETY: asks the loader for a number.
    if unsafe { libc::getauxval(AT_HWCAP2) } & FSGSBASE == 0 {
        return Err(Refusal::Machine);
    }
    let pointer: usize;
    // SAFETY: the first word at the thread pointer is its address.
    unsafe { asm!("mov {0}, qword ptr fs:[0]", out(reg) pointer) };
    let mut found = Storage { lowest: pointer, program: 0 };
    // SAFETY: the callback gets back the pointer passed here, during this call only.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut found).cast()) };
    let below = pointer - found.lowest;
    if found.program != pointer || below + HEAD_ROOM > STORAGE_BYTES {
        return Err(Refusal::Forbidden);
    }
    POINTER.store(pointer, Ordering::Relaxed);
    BELOW.store(below, Ordering::Relaxed);
    Ok(())
}

struct Storage {
    /// The first byte of all objects' storage.
    lowest: usize,
    /// Where the program's own ends.
    program: usize,
}

unsafe extern "C" fn each(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: `data` is what `look` passed; `info` is valid during the callback.
    let (found, info) = unsafe { (&mut *data.cast::<Storage>(), &*info) };
    if info.dlpi_tls_data.is_null() {
        return 0;
    }
    found.lowest = found.lowest.min(info.dlpi_tls_data.addr());
    // SAFETY: the loader's name for the object, a string; the program's own is empty.
    if info.dlpi_name.is_null() || unsafe { *info.dlpi_name } == 0 {
        // SAFETY: the table of program headers.
        let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        if let Some(storage) = headers.iter().find(|header| header.p_type == libc::PT_TLS) {
            found.program = info.dlpi_tls_data.addr() + storage.p_memsz as usize;
        }
    }
    0
}
