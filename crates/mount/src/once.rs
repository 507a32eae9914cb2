//! Requests whose effect must not come twice. The next server gets the request again that the one
//! before had not answered when it was killed, and cannot tell from the files whether it was done:
//! a name that is there may have been made by it, or by somebody else before. So a thread notes
//! that it begins with such a request, and then what came of it.
//!
//! Requests that may come twice (writes at a place, truncations, syncs, reads) are not noted: the
//! kernel lets nobody else change the file while they are under way.

use std::cell::Cell;
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fuser::Request;
use nix::errno::Errno;

use crate::kept::{DEEDS_MAX, Deed, Kept};
use crate::raw::Result;

/// A request that is sent again has this bit in its number.
const AGAIN: u64 = 1 << 63;
/// Stages of a deed, in their order.
const BEGUN: u64 = 1;
const FAILED: u64 = 2;
const DONE: u64 = 3;

thread_local! {
    /// Which place of its server's a thread has.
    static PLACE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// What is known of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// Nobody has begun with it.
    New,
    /// A server that is gone has begun with it, and noted this value; maybe it was done.
    Begun(u64),
}

impl Before {
    /// What was noted, if it may have been done already.
    pub fn value(self) -> Option<u64> {
        match self {
            Self::New => None,
            Self::Begun(value) => Some(value),
        }
    }
}

/// Notes on requests.
pub struct Once {
    kept: Arc<Kept>,
    first: usize,
    threads: AtomicUsize,
    /// What servers before noted last.
    noted: HashMap<u64, (u64, u64)>,
}

impl Once {
    /// For a server that begins, with so many threads.
    pub fn new(kept: Arc<Kept>, threads: usize) -> Self {
        let first = kept.begin_server() as usize * threads;
        let mut noted = HashMap::new();
        for [request, stage, value, result] in (0..DEEDS_MAX).map(|index| kept.deed(index).read()) {
            let known = noted.entry(request).or_insert((0, 0));
            // Of two servers the later one knows more.
            if stage > known.0 {
                *known = (stage, if stage == BEGUN { value } else { result });
            }
        }
        Self { kept, first, threads: AtomicUsize::new(0), noted }
    }

    fn deed(&self) -> Deed {
        let place = PLACE.get().unwrap_or_else(|| self.threads.fetch_add(1, Ordering::Relaxed));
        PLACE.set(Some(place));
        self.kept.deed(self.first + place)
    }

    /// Does what a request asks for, unless it is done already. `value` is noted before, and handed
    /// to `act` if a server before may have done it.
    pub fn act(
        &self,
        request: &Request,
        value: impl FnOnce() -> u64,
        act: impl FnOnce(Before) -> Result<()>,
    ) -> Result<()> {
        self.opened(request, value, |before| act(before).map(|()| 0)).map(drop)
    }

    /// The same of what gives a descriptor, which is the same one then.
    pub fn opened(
        &self,
        request: &Request,
        value: impl FnOnce() -> u64,
        act: impl FnOnce(Before) -> Result<RawFd>,
    ) -> Result<RawFd> {
        self.play(request.unique().0, value, act)
    }

    fn play(
        &self,
        unique: u64,
        value: impl FnOnce() -> u64,
        act: impl FnOnce(Before) -> Result<RawFd>,
    ) -> Result<RawFd> {
        let request = unique & !AGAIN;
        let noted = if unique & AGAIN == 0 { None } else { self.noted.get(&request) };
        let (before, value) = match noted {
            Some((DONE, fd)) => return Ok(*fd as RawFd),
            Some((FAILED, error)) => return Err(Errno::from_raw(*error as i32)),
            Some((BEGUN, value)) => (Before::Begun(*value), *value),
            _ => (Before::New, value()),
        };
        let deed = self.deed();
        deed.begin(request, BEGUN, value);
        let done = act(before);
        match done {
            Ok(fd) => deed.end(DONE, fd as u64),
            Err(error) => deed.end(FAILED, error as u64),
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_comes_again_is_answered_as_it_was_done() {
        let kept = Arc::new(Kept::new().expect("memory"));
        let first = Once::new(Arc::clone(&kept), 1);
        assert_eq!(first.play(4, || 0, |_| Ok(77)), Ok(77));
        let second = Once::new(Arc::clone(&kept), 1);
        assert_eq!(second.play(4 | AGAIN, || 0, |_| panic!("twice")), Ok(77));
        assert_eq!(second.play(6, || 0, |_| Err(Errno::EEXIST)), Err(Errno::EEXIST));
        // It was killed in the midst of this one.
        kept.deed(2).begin(8, BEGUN, 5);
        let third = Once::new(Arc::clone(&kept), 1);
        assert_eq!(third.play(6 | AGAIN, || 0, |_| panic!("twice")), Err(Errno::EEXIST));
        let act = |before| {
            assert_eq!(before, Before::Begun(5));
            Ok(0)
        };
        assert_eq!(third.play(8 | AGAIN, || 0, act), Ok(0));
        let act = |before| {
            assert_eq!(before, Before::New);
            Ok(0)
        };
        assert_eq!(third.play(10 | AGAIN, || 0, act), Ok(0));
    }
}
