//! Why a program is refused, in words that name what to do.

use core::fmt;

/// Why a program cannot be entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It was not built by Go.
    NotGo,
    /// It has a loader, C code, or no fixed addresses.
    NotPlain,
    /// The calls are not where they are known to be.
    Unknown,
    /// The processor or the kernel lacks FSGSBASE.
    Machine,
    /// The system did not let it be mapped.
    Forbidden,
    /// Not Go's: here it calls the kernel in a way that cannot be led, or may do so.
    Call(u64),
    /// Not Go's, on such a machine.
    PlainMachine,
    /// Not Go's, and not mapped.
    PlainForbidden,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotGo => "is statically linked: no library can be loaded into it. Use a dynamically linked build",
            Self::NotPlain => {
                "is a static Go program with C code or without fixed addresses: build it with CGO_ENABLED=0"
            }
            Self::Unknown => {
                "is a Go program whose system calls are not where they are known to be: build it with go1.19 or \
                 later, by Go's own compiler"
            }
            Self::Machine => {
                "is a static Go program, which takes FSGSBASE to absorb: this processor or kernel has none (Linux \
                 5.9, no `nofsgsbase`)"
            }
            Self::Forbidden => "is a static Go program, and the system does not let its code be changed",
            Self::Call(address) => {
                return write!(
                    f,
                    "is statically linked, and its system call at {address:#x} cannot be led to the log: use a \
                     dynamically linked build, or `holdfast mount` for the directory that it writes to"
                );
            }
            Self::PlainMachine => {
                "is statically linked, and this processor or kernel lacks what it takes to enter it (FSGSBASE, \
                 XSAVEC, Linux 5.9): use a dynamically linked build, or `holdfast mount`"
            }
            Self::PlainForbidden => {
                "is statically linked, and the system does not let its code be changed: use a dynamically linked \
                 build, or `holdfast mount`"
            }
        })
    }
}
