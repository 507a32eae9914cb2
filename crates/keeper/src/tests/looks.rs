//! Who only looks at a keeper: is told everything, and changes nothing.

use std::time::Duration;

use super::{NEVER_MS, house, house_looked_at};
use crate::control::Control;

/// A keeper that was looked at right after its start, before the run that it was started for, ended
/// before that run.
#[test]
fn a_look_before_the_first_program_does_not_end_the_keeper() {
    let look = |pool: &std::path::Path| {
        for _ in 0..20 {
            let mut control = Control::connect(pool).unwrap();
            control.status().unwrap();
            control.files().unwrap();
            control.drain().unwrap();
            drop(control);
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    let house = house_looked_at("looked-at", |config| config.age_ms_max = NEVER_MS, look);
    house.create("file");
    assert_eq!(Control::connect(&house.pool).unwrap().status().unwrap().clients.len(), 1);
}

#[test]
fn all_files_are_listed_in_as_many_parts_as_it_takes() {
    let house = house("listed", NEVER_MS);
    let name = |number: usize| format!("{number:03}-{}", "\u{1b}\u{1}x".repeat(50));
    let count = 150;
    let kept: Vec<_> = (0..count).map(|number| house.create(&name(number))).collect();
    let mut control = Control::connect(&house.pool).unwrap();
    let files = control.files().unwrap();
    assert_eq!(files.len(), count);
    assert!(files.windows(2).all(|pair| pair[0].slot < pair[1].slot));
    for (number, (_, place)) in kept.iter().enumerate() {
        let line = files.iter().find(|line| line.slot == place.slot.number()).unwrap();
        assert!(line.path.ends_with(&name(number)), "{}", line.path);
    }
    let status = control.status().unwrap();
    assert_eq!(status.files_dirty as usize, files.iter().filter(|line| line.dirty).count());
}

#[test]
fn what_is_not_on_disk_has_an_age() {
    let house = house("aged", NEVER_MS);
    let (file, place) = house.create("file");
    super::write_at(&house.client, place, &file, 0, b"some bytes");
    let begun = std::time::Instant::now();
    let mut control = Control::connect(&house.pool).unwrap();
    // The expirer sees it in a moment.
    while control.status().unwrap().oldest_ns.is_none() {
        assert!(begun.elapsed() < Duration::from_secs(10), "never aged");
        std::thread::sleep(Duration::from_millis(5));
    }
    let line = control.files().unwrap().into_iter().find(|line| line.slot == place.slot.number()).unwrap();
    assert!(line.dirty && line.oldest_ns.is_some_and(|ns| ns > 0), "{line:?}");
    assert!(control.drain().unwrap().drained);
    assert_eq!(control.status().unwrap().oldest_ns, None);
    let line = control.files().unwrap().into_iter().find(|line| line.slot == place.slot.number()).unwrap();
    assert!(!line.dirty && line.oldest_ns.is_none(), "{line:?}");
}
