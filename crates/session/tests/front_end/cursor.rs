//! Writes at the cursor that go past the log, beside others that follow the cursor.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use holdfast_cache::Origin;
use holdfast_keeper::config::Durability;
use holdfast_session::{Backing, Description, WRITE_ONLY, pass, pass_moving_cursor};

use crate::house::House;
use crate::plain::Plain;

/// How long a call waits for whoever is not to come in before it is over.
const CALL: Duration = Duration::from_millis(200);

/// What somebody who follows the cursor of `description` is seen to do while a call is under way,
/// which `make` makes: what it goes by, or nothing, because it is kept out.
fn followed_amid(
    description: &Description,
    make: impl FnOnce(&mut dyn FnMut() -> usize) -> Option<usize>,
) -> Result<Option<u64>, RecvTimeoutError> {
    let (begun, is_begun) = channel();
    let (followed, is_followed) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            is_begun.recv().unwrap();
            let cursor = description.locked(|| description.cursor());
            followed.send(cursor).unwrap();
        });
        let mut seen = None;
        let written = make(&mut || {
            begun.send(()).unwrap();
            seen = Some(is_followed.recv_timeout(CALL));
            7
        });
        assert_eq!(written, Some(7), "the call did not go past the log");
        seen.expect("the call was made")
    })
}

/// Who followed the cursor amid such a write would log the next one for the place where it began:
/// recovery would make something of it that nobody saw (invariant 1).
#[test]
fn a_write_past_the_log_keeps_out_who_follows_its_cursor() {
    let house = House::new("toy-cursor", |config| config.durability = Durability::Sync);
    let client = house.attach();
    let plain = Plain::create(&house.path("a")).unwrap();
    let description = Description::new();
    description.begin(WRITE_ONLY, Origin::Created);
    description.remember_birth(&plain.stat().unwrap());

    description.locked(|| description.set_cursor(Some(40)));
    let beside = followed_amid(&description, |call| pass(&client, &description, &plain, call));
    assert_eq!(beside, Ok(Some(40)), "a call that leaves the cursor alone keeps nobody out");

    let amid = followed_amid(&description, |call| pass_moving_cursor(&client, &description, &plain, call));
    assert_eq!(amid, Err(RecvTimeoutError::Timeout), "the cursor was followed while a call moved it");
    assert_eq!(description.locked(|| description.cursor()), None, "the cursor is remembered where it was");
}
