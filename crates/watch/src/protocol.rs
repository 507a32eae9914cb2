//! What a keeper and its watch say to each other: packets of one size over a connection that keeps
//! their bounds. Either end asks, and the other one answers in any order.
//!
//! Must never wait for who does not read: a packet that finds no room is an error.

use std::collections::HashMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, Shutdown,
};

use crate::Opener;

/// Length of a packet.
const PACKET_BYTES: usize = 40;
/// The first packet, from the watch, answers this.
pub const HELLO: u64 = 0;

/// A slot and the generation of its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The slot.
    pub slot: u32,
    /// Which file's it is.
    pub generation: u64,
}

/// What is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// Keeper: watch the file of the descriptor that comes along. Answer: an errno, or 0.
    Watch(Place),
    /// Keeper: watch it no more. The descriptor, if there is one, leads to the file.
    Unwatch(Place),
    /// Keeper: an outsider has the file of the descriptor open already.
    Present(Place),
    /// Watch: who is this thread? Answer: see [`opener_in`].
    Opener(u32),
    /// Watch: whether this process is one of ours.
    IsOurs(u32),
    /// Watch: this client goes past its library.
    Past(u32),
    /// Watch: an outsider that may write waits.
    Arrived(Place),
    /// Watch: an outsider that reads waits.
    Reads(Place),
    /// Watch: no outsider that can write is left; whether any wrote.
    Left(Place, bool),
    /// To what was asked under the packet's number.
    Answer(u64),
}

/// As it is sent: number, kind, slot, generation, value.
type Words = [u64; PACKET_BYTES / 8];

impl Said {
    fn encode(self, number: u64) -> [u8; PACKET_BYTES] {
        let nowhere = Place { slot: 0, generation: 0 };
        let (kind, place, value) = match self {
            Said::Watch(place) => (1, place, 0),
            Said::Unwatch(place) => (2, place, 0),
            Said::Present(place) => (3, place, 0),
            Said::Opener(tid) => (4, nowhere, tid.into()),
            Said::IsOurs(pid) => (5, nowhere, pid.into()),
            Said::Past(pid) => (6, nowhere, pid.into()),
            Said::Arrived(place) => (7, place, 0),
            Said::Reads(place) => (8, place, 0),
            Said::Left(place, wrote) => (9, place, wrote.into()),
            Said::Answer(value) => (10, nowhere, value),
        };
        let words: Words = [number, kind, place.slot.into(), place.generation, value];
        let mut bytes = [0; PACKET_BYTES];
        for (part, word) in bytes.chunks_exact_mut(8).zip(words) {
            part.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// `None`: no packet of ours.
    fn decode(bytes: &[u8]) -> Option<(u64, Said)> {
        let bytes: &[u8; PACKET_BYTES] = bytes.try_into().ok()?;
        let mut words: Words = [0; PACKET_BYTES / 8];
        for (word, part) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(part.try_into().ok()?);
        }
        let [number, kind, slot, generation, value] = words;
        let place = Place { slot: slot.try_into().ok()?, generation };
        let process = u32::try_from(value);
        let said = match kind {
            1 => Said::Watch(place),
            2 => Said::Unwatch(place),
            3 => Said::Present(place),
            4 => Said::Opener(process.ok()?),
            5 => Said::IsOurs(process.ok()?),
            6 => Said::Past(process.ok()?),
            7 => Said::Arrived(place),
            8 => Said::Reads(place),
            9 => Said::Left(place, value != 0),
            10 => Said::Answer(value),
            _ => return None,
        };
        Some((number, said))
    }
}

/// An opener as the answer to [`Said::Opener`].
pub fn opener_out(opener: Opener) -> u64 {
    match opener {
        Opener::Ours => 0,
        Opener::Client(pid) => 1 << 32 | u64::from(pid),
        Opener::Outsider(pid) => 2 << 32 | u64::from(pid),
    }
}

/// The same back; what means nothing is an outsider.
pub fn opener_in(answer: u64) -> Opener {
    match (answer >> 32, answer as u32) {
        (0, _) => Opener::Ours,
        (1, pid) => Opener::Client(pid),
        (_, pid) => Opener::Outsider(pid),
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct Line {
    socket: OwnedFd,
    numbers: AtomicU64,
    /// Who waits for which answer; none any more once the line is closed.
    waiting: Mutex<Option<HashMap<u64, SyncSender<u64>>>>,
}

impl Line {
    /// Of a connected socket of sequenced packets.
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, numbers: AtomicU64::new(HELLO + 1), waiting: Mutex::new(Some(HashMap::new())) }
    }

    fn waiting(&self) -> MutexGuard<'_, Option<HashMap<u64, SyncSender<u64>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks, and waits for the answer. An error when the line is closed, or the answer does not
    /// come in time.
    pub fn ask(&self, what: Said, file: Option<BorrowedFd<'_>>, patience: Duration) -> io::Result<u64> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let (answered, answer) = sync_channel(1);
        self.waiting().as_mut().ok_or(io::ErrorKind::BrokenPipe)?.insert(number, answered);
        let answer = self
            .send(number, what, file)
            .and_then(|()| answer.recv_timeout(patience).map_err(|error| error_kind(error).into()));
        if let Some(waiting) = self.waiting().as_mut() {
            waiting.remove(&number);
        }
        answer
    }

    /// Answers what was asked under a number.
    pub fn answer(&self, number: u64, value: u64) -> io::Result<()> {
        self.send(number, Said::Answer(value), None)
    }

    fn send(&self, number: u64, said: Said, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let files: Vec<BorrowedFd<'_>> = file.into_iter().collect();
        if !files.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&files));
        }
        let packet = said.encode(number);
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg(&self.socket, &[IoSlice::new(&packet)], &mut ancillary, flags)?;
        Ok(())
    }

    /// The next thing that is asked, with its number; answers go to who waits for them. `None` at
    /// the end of the line, and when the other end says what nobody understands.
    pub fn hear(&self) -> Option<(u64, Said, Option<OwnedFd>)> {
        loop {
            let (number, said, file) = self.receive().ok()??;
            let Said::Answer(value) = said else { return Some((number, said, file)) };
            if number == HELLO {
                return Some((number, said, file));
            }
            let waits = self.waiting().as_mut().and_then(|waiting| waiting.remove(&number));
            if let Some(waits) = waits {
                // Who lost patience does not listen any more.
                let _ = waits.try_send(value);
            }
        }
    }

    fn receive(&self) -> io::Result<Option<(u64, Said, Option<OwnedFd>)>> {
        let mut packet = [0; PACKET_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut parts = [IoSliceMut::new(&mut packet)];
            match rustix::net::recvmsg(&self.socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                other => break other?,
            }
        };
        let mut file = None;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                file = files.into_iter().next().or(file);
            }
        }
        let bytes = packet.get(..received.bytes).unwrap_or_default();
        Ok(Said::decode(bytes).map(|(number, said)| (number, said, file)))
    }

    /// Ends the line: nobody waits any more, here or at the other end.
    pub fn close(&self) {
        *self.waiting() = None;
        // The other end may have gone first.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}

fn error_kind(error: RecvTimeoutError) -> io::ErrorKind {
    match error {
        RecvTimeoutError::Timeout => io::ErrorKind::TimedOut,
        RecvTimeoutError::Disconnected => io::ErrorKind::BrokenPipe,
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let place = Place { slot: u32::MAX, generation: u64::MAX - 1 };
        for said in [
            Said::Watch(place),
            Said::Unwatch(place),
            Said::Present(place),
            Said::Opener(7),
            Said::IsOurs(7),
            Said::Past(u32::MAX),
            Said::Arrived(place),
            Said::Reads(place),
            Said::Left(place, true),
            Said::Left(place, false),
            Said::Answer(u64::MAX),
        ] {
            assert_eq!(Said::decode(&said.encode(3)), Some((3, said)));
        }
        for opener in [Opener::Ours, Opener::Client(9), Opener::Outsider(u32::MAX)] {
            assert_eq!(opener_in(opener_out(opener)), opener);
        }
    }

    #[test]
    fn nonsense_is_no_packet() {
        assert_eq!(Said::decode(&[]), None);
        assert_eq!(Said::decode(&[0; PACKET_BYTES - 1]), None);
        assert_eq!(Said::decode(&[0; PACKET_BYTES]), None);
        assert_eq!(Said::decode(&[0xff; PACKET_BYTES]), None);
        let mut slot_too_high = Said::Watch(Place { slot: 1, generation: 1 }).encode(1);
        slot_too_high[20] = 1;
        assert_eq!(Said::decode(&slot_too_high), None);
    }
}
