//! Files whose durability nobody has asked for yet (durability = sync): the first to ask has them
//! logged from then on. What a new file holds is read back for that.

use holdfast_cache::{Client, Content, Errno, Origin};
use holdfast_media::{Bytes, Nvm};

use crate::backing::{Backing, Stat};
use crate::description::{DSYNC, Description, State};

/// A file as the page cache has it.
pub(crate) struct Whole<'a, B>(pub(crate) &'a B);

impl<B: Backing> Content for Whole<'_, B> {
    fn size(&self) -> Result<u64, Errno> {
        self.0.stat().map(|stat| stat.size)
    }

    fn read(&self, bytes: u64, log: &mut dyn FnMut(&[Bytes<'_>])) -> bool {
        self.0.read_whole(bytes, log)
    }

    fn check(&self) -> Result<(), Errno> {
        self.0.check()
    }
}

/// Whether a sync is better left to the kernel, of a file of whose durability nobody has asked
/// before. Of a new one whose like is renamed over another file when it is written: the log would
/// have to be settled for that. And of any that would need a commit besides.
pub fn leaves_sync<N: Nvm, B: Backing>(client: &Client<N>, description: &Description, backing: &B) -> bool {
    let State::Pending(origin @ (Origin::Created | Origin::Opened)) = description.state() else {
        return false;
    };
    let Some((device, ino)) = description.file() else { return false };
    let is_open = backing.bypasses_all().is_none();
    if description.flags() & DSYNC != 0 || client.find(device, ino).is_some() || !is_open {
        return false;
    }
    // Without a keeper nothing is acknowledged.
    if !client.keeper_alive() {
        return false;
    }
    let kind = if origin == Origin::Created { description.take_kind() } else { None };
    if kind.is_some_and(|kind| client.board().header().habits.expects_rename_over(kind)) {
        return true;
    }
    let is_crowded = client.is_crowded(device, description.noted());
    if is_crowded {
        client.note_crowded_sync();
    }
    is_crowded
}

/// Makes a call that changes content without the log, and leaves the cursor alone, if nobody has
/// asked for the file's durability yet and it has no row. `None`: it must be made otherwise.
#[inline]
pub fn pass<N: Nvm, B: Backing, R>(
    client: &Client<N>,
    description: &Description,
    backing: &B,
    raw: impl FnOnce() -> R,
) -> Option<R> {
    let is_theirs = matches!(description.state(), State::Pending(Origin::Created | Origin::Opened));
    if !is_theirs || description.flags() & DSYNC != 0 || backing.may_write_unseen() {
        return None;
    }
    let (device, ino) = description.file()?;
    backing.section(|| client.pass(device, ino, raw))
}

/// As [`pass`], for a call that moves the cursor: whoever follows that one is kept out meanwhile
/// ([`Description::moving_cursor`]).
#[inline]
pub fn pass_moving_cursor<N: Nvm, B: Backing, R>(
    client: &Client<N>,
    description: &Description,
    backing: &B,
    raw: impl FnOnce() -> R,
) -> Option<R> {
    pass(client, description, backing, || description.moving_cursor(raw))
}

/// Something was done to the file that no slot will hold, a new file's creation neither: it is
/// pending.
pub fn note_change(description: &Description) {
    if description.state() == State::Pending(Origin::Created) {
        description.set_state(State::Pending(Origin::Opened));
        description.take_noted();
    }
}

/// Makes a call that may set the attributes of a file, if that is new and nothing but that is done
/// to it: then it stays as new as it was, and its slot is going to have what it is when its first
/// change is logged. `None`: it is not new.
pub fn as_born<N: Nvm, B: Backing, R>(
    client: &Client<N>,
    description: &Description,
    backing: &B,
    call: impl FnOnce() -> R,
) -> Option<R> {
    let before = backing.stat().ok()?;
    let is_new = description.state() == State::Pending(Origin::Created) && description.is_as_born(&before);
    if !is_new || client.find(before.dev, before.ino).is_some() {
        return None;
    }
    let result = call();
    let same = |after: &Stat| (after.size, after.times.modified) == (before.size, before.times.modified);
    if let Ok(after) = backing.stat()
        && same(&after)
    {
        description.renew_birth(&after);
    }
    Some(result)
}
