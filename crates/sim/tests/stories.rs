//! The histories that broke the design once, each under the name of what now holds: with all rules
//! in place, none loses, tears, rolls back or blocks. `holdfast-sim --stories` takes the rules out,
//! one at a time, and sees them fail.

use holdfast_sim::stories::{STORIES, Story};

fn tell(name: &str) {
    let story = Story::named(name).expect("a story of this name");
    let (counts, failure) = story.play();
    if let Some(failure) = failure {
        panic!(
            "history {}: {}\n{}{:#?}\nagain: cargo run --release -p holdfast-sim -- {}",
            story.number, failure.violation, failure.history, failure.violation.trail, failure.replay
        );
    }
    assert!(counts.images > 100, "{} images are no attack", counts.images);
}

macro_rules! told {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            tell(stringify!($name));
        })*

        #[test]
        fn every_story_is_told() {
            let told = [$(stringify!($name)),*];
            let known: Vec<&str> = STORIES.iter().map(|story| story.name).collect();
            assert_eq!(told[..], known[..]);
        }
    };
}

told! {
    a_segment_is_never_emptied_by_writing_its_newest_records_to_the_file
    the_members_of_a_group_live_and_die_together
    no_number_is_given_out_twice_and_no_old_record_comes_alive
    a_torn_name_never_takes_a_slot_with_it
    log_and_file_have_two_writers_of_the_same_bytes_in_one_order
    what_the_kernel_refused_or_cut_short_is_never_replayed
    a_sync_counts_only_for_what_was_changed_before_it_began
    a_sync_is_real_when_something_changed_that_the_log_does_not_hold
    the_first_sync_of_a_file_leaves_nothing_unlogged
    nothing_goes_around_the_log_over_live_records
    recovery_never_writes_over_what_others_wrote
    who_waits_for_log_space_holds_nothing_that_others_wait_for
    nothing_expires_that_was_numbered_but_not_yet_written
    a_dead_writers_record_is_finished_before_others_see_its_bytes
    a_dead_writers_long_write_is_finished_whatever_the_disk_says
    a_removed_file_stays_away_and_one_that_stays_is_whole
    a_truncation_keeps_its_place_among_the_writes
    bytes_that_a_failed_sync_dropped_are_written_again
    a_file_that_recovery_builds_anew_survives_its_crash
    a_segment_or_slot_in_new_hands_shows_nothing_of_its_old_ones
    a_read_in_state_behind_sees_every_write_and_nothing_older
    a_file_that_is_renamed_over_another_takes_its_place_or_leaves_it
}
