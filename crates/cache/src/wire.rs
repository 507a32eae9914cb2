//! The hello of a client and the keeper's answer: the only bytes that cross the socket for a
//! client.
//!
//! With the answer come two descriptors: the board, then the pool (`SCM_RIGHTS`).

use holdfast_media::{Delay, FlushPath, MediaInfo, MediaKind};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Changes with every incompatible change of board, wire or format.
pub const WIRE_VERSION: u32 = 8;

/// First byte of a client's hello; control requests begin with other bytes.
pub const HELLO: u8 = b'H';
/// First byte of a request for the keeper's status (answered in JSON).
pub const STATUS: u8 = b'S';
/// First byte of a request to drain (answered in JSON when done).
pub const DRAIN: u8 = b'D';

/// First byte of a request for the files that have a slot, from the slot on whose number is the
/// argument (answered in JSON, in parts).
pub const FILES: u8 = b'F';

/// Bytes of a request that is answered: its first byte, its number among those of its connection,
/// its argument and [`WIRE_VERSION`] (`u32` all, little-endian). So it stays, as what is answered
/// to another version ([`OTHER_VERSION`]) does: old and new must understand that much.
pub const REQUEST_BYTES: usize = 13;
/// The only field of the JSON that answers a request of another version: what the keeper is, in
/// words.
pub const OTHER_VERSION: &str = "other_version";

/// A request as it is sent.
pub fn request(kind: u8, number: u32, argument: u32, version: u32) -> [u8; REQUEST_BYTES] {
    let mut bytes = [kind; REQUEST_BYTES];
    bytes[1..5].copy_from_slice(&number.to_le_bytes());
    bytes[5..9].copy_from_slice(&argument.to_le_bytes());
    bytes[9..].copy_from_slice(&version.to_le_bytes());
    bytes
}

/// The argument of a request, if it is of this version.
pub fn argument(request: &[u8]) -> Option<u32> {
    let request: &[u8; REQUEST_BYTES] = request.try_into().ok()?;
    let word =
        |at: usize| u32::from_le_bytes([request[at], request[at + 1], request[at + 2], request[at + 3]]);
    (word(9) == WIRE_VERSION).then(|| word(5))
}
/// An answer begins with the number of its request.
pub const ANSWER_NUMBER_BYTES: usize = 4;

/// First byte of a supervisor's notice that it is about to start a program (not answered): the
/// keeper waits for that program's hello, whatever becomes of the supervisor.
pub const EXPECT: u8 = b'E';

/// What brings the calls of a process to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrontEnd {
    /// Functions of glibc lead to hooks.
    Glibc = 0,
    /// Functions of musl that the program calls lead to hooks.
    Musl = 1,
    /// Those of glibc do, and the calls of Go's code.
    GoWithC = 2,
    /// Calls of Go's code do, in a program with a loader and without C code.
    GoWithLoader = 3,
    /// Calls of Go's code do, in a static program.
    StaticGo = 4,
    /// It serves a mount.
    Mount = 5,
    /// Nothing does, or not everything: its files are the kernel's.
    None = 6,
    /// System calls of a static program that Go did not build do.
    StaticC = 7,
}

impl FrontEnd {
    const ALL: [Self; 8] = [
        Self::Glibc,
        Self::Musl,
        Self::GoWithC,
        Self::GoWithLoader,
        Self::StaticGo,
        Self::Mount,
        Self::None,
        Self::StaticC,
    ];

    /// Decodes what a client said.
    pub fn from_u8(value: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|front_end| *front_end as u8 == value)
    }
}

impl core::fmt::Display for FrontEnd {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Glibc => "glibc",
            Self::Musl => "musl",
            Self::GoWithC => "Go with C code",
            Self::GoWithLoader => "Go with a loader",
            Self::StaticGo => "static Go",
            Self::Mount => "mount",
            Self::None => "none",
            Self::StaticC => "static C",
        })
    }
}

/// What a client says first. The keeper learns its pid from the kernel.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Hello {
    /// [`HELLO`].
    pub kind: u8,
    /// 1 when this process was announced by its parent (`forks_pending`).
    pub forked: u8,
    /// 1 when this process opens and writes files where its hooks do not see it.
    pub blind: u8,
    /// A [`FrontEnd`].
    pub front_end: u8,
    /// [`WIRE_VERSION`].
    pub version: U32,
}

/// The keeper's answer; all zero but `version` when the client is refused.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Welcome {
    /// [`WIRE_VERSION`].
    pub version: U32,
    /// The client's number, unique in the keeper's life; never 0.
    pub client: U32,
    /// File slots of the pool.
    pub slot_count: U32,
    /// Segments of the pool.
    pub segment_count: U32,
    /// Bytes of the pool.
    pub pool_bytes: U64,
    /// Bytes at its start that clients map read-only.
    pub read_only_bytes: U64,
    /// The pool's UUID.
    pub uuid: [u8; 16],
    media: U32,
    flush_path: U32,
    delay_ns: U64,
    bandwidth_bytes_per_s: U64,
}

impl Welcome {
    /// Fills an answer.
    pub fn new(
        client: u32,
        layout: &holdfast_pool::Layout,
        uuid: [u8; 16],
        media: &MediaInfo,
        delay: Delay,
    ) -> Self {
        Self {
            version: WIRE_VERSION.into(),
            client: client.into(),
            slot_count: layout.slot_count.into(),
            segment_count: layout.segment_count.into(),
            pool_bytes: layout.pool_bytes.into(),
            read_only_bytes: layout.offset(holdfast_pool::Zone::Segments).into(),
            uuid,
            media: (media.kind as u32).into(),
            flush_path: (media.flush as u32).into(),
            delay_ns: delay.write_latency_ns.into(),
            bandwidth_bytes_per_s: delay.bandwidth_bytes_per_s.into(),
        }
    }

    /// The answer to somebody who may not be a client.
    pub fn refusal() -> Self {
        Self { version: WIRE_VERSION.into(), ..Self::new_zeroed() }
    }

    /// The media and the injected delay, if this code knows them.
    pub fn media(&self) -> Option<(MediaInfo, Delay)> {
        let kind = [MediaKind::DaxDevice, MediaKind::DaxFile, MediaKind::Volatile]
            .into_iter()
            .find(|kind| *kind as u32 == self.media.get())?;
        let flush = [FlushPath::Clwb, FlushPath::ClflushOpt, FlushPath::Clflush, FlushPath::None]
            .into_iter()
            .find(|path| *path as u32 == self.flush_path.get())?;
        let delay = Delay {
            write_latency_ns: self.delay_ns.get(),
            bandwidth_bytes_per_s: self.bandwidth_bytes_per_s.get(),
        };
        Some((MediaInfo { kind, len: self.pool_bytes.get(), flush }, delay))
    }
}
