//! Those of the known histories (docs/crash/histories.md) that only real kernels, programs and
//! processes can tell; the others are scripts of the simulator. Each test must fail when the rule
//! that it is about is taken out: [`every_rule_that_is_taken_out_is_missed`] does so, with a build
//! that can have deliberate bugs.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::{canaries, need, tally};

#[path = "histories/damage.rs"]
mod damage;
#[path = "histories/deaths.rs"]
mod deaths;
#[path = "histories/decisions.rs"]
mod decisions;
#[path = "histories/files.rs"]
mod files;
#[path = "histories/insides.rs"]
mod insides;
#[path = "histories/places.rs"]
mod places;
#[path = "histories/recovered.rs"]
mod recovered;
#[path = "histories/recovered_places.rs"]
mod recovered_places;

/// The rules, each by the deliberate bug (`crates/canary`) that takes it out, and the test that
/// must notice.
const RULES: [(&str, &str); 43] = [
    ("DeadKeeperServed", "deaths::h11_nothing_is_acknowledged_after_the_keepers_death"),
    ("DeadKeeperServed", "deaths::h11_nothing_is_acknowledged_to_those_who_are_forked_later"),
    ("RecoveryPutOff", "deaths::h12_recovery_follows_the_keepers_death_at_once"),
    ("LinksUncounted", "recovered_places::a_file_that_loses_the_name_its_user_knows_keeps_its_bytes"),
    ("DeathUnwatched", "deaths::h22_a_dead_program_is_noticed_though_its_child_lives"),
    ("SignalsAtOnce", "insides::h23_a_signal_handler_may_write_to_the_page_its_thread_writes_to"),
    ("FaultsBlocked", "insides::h23_a_bad_address_ends_nobody_where_a_signal_was_put_off"),
    ("RefusalIgnored", "insides::h24_a_program_that_cannot_be_patched_keeps_its_own_syncs"),
    ("AnyFileSystem", "files::h25_unknown_file_systems_are_left_alone"),
    ("TimesUndrained", "files::h26_a_file_is_as_old_as_its_last_write"),
    ("SizeUntold", "files::h26_times_and_sizes_are_what_the_program_made_them"),
    ("TimesUntold", "files::h26_a_file_is_as_old_as_its_last_write"),
    ("TimesKept", "files::h26_a_file_is_as_old_as_its_last_write"),
    ("LinksFollowed", "places::h27_recovery_builds_nothing_behind_a_link"),
    ("IdentityUnchecked", "places::h27_recovery_writes_to_no_other_file"),
    ("DrainCommandIdle", "places::h28_a_drained_file_system_can_be_copied_without_the_pool"),
    ("AgeIgnored", "places::h28_bytes_wait_in_the_log_for_about_a_second"),
    ("DrainSkipped", "places::h28_a_drained_file_system_can_be_copied_without_the_pool"),
    ("VectorInPlace", "insides::a_vector_that_changes_during_its_call_harms_nobody"),
    ("RoomUnchecked", "insides::a_vector_that_changes_during_its_call_harms_nobody"),
    ("LossIgnored", "damage::a_file_that_lost_a_record_is_set_aside_by_name"),
    ("PlaceUnchecked", "damage::slots_in_each_others_places_are_told"),
    ("ReplayedWhileRunning", "recovered::what_others_sync_right_after_a_kill_stays"),
    ("AheadForgotten", "recovered::what_only_the_log_has_comes_back_after_a_kill"),
    ("RollbackUnseen", "recovered::an_older_state_of_a_volume_is_left_as_it_is"),
    ("WitnessForgotten", "recovered::an_older_state_is_seen_though_its_newest_file_is_closed"),
    ("NameLossIgnored", "recovered_places::a_file_that_loses_the_name_its_user_knows_keeps_its_bytes"),
    ("VacancyBelieved", "recovered_places::a_new_file_that_somebody_removed_after_the_crash_stays_away"),
    ("PutBackBelieved", "damage::a_time_that_is_put_back_hides_no_write"),
    ("AttributesAreBytes", "decisions::attributes_that_change_at_boot_keep_no_records_from_a_file"),
    ("ClockBelieved", "recovered::a_clock_that_was_set_back_hides_nobodys_change"),
    ("ParentUnchecked", "recovered_places::a_new_file_waits_for_its_bind_mount"),
    ("PathBelieved", "recovered_places::a_file_whose_path_nobody_knows_is_recovered"),
    ("TimesOfRecovery", "recovered::replayed_files_are_as_old_as_their_last_change"),
    ("SupersededForgotten", "decisions::no_old_records_go_over_a_later_life_of_their_file"),
    ("BirthIgnored", "recovered::a_handle_that_is_given_twice_leads_to_nobody_elses_file"),
    ("ParentUnchecked", "recovered_places::a_rename_is_made_again_in_the_directory_that_it_was_made_in"),
    ("FixedManaged", "decisions::an_append_only_file_is_left_to_the_kernel"),
    ("MadeUnannounced", "files::what_is_made_while_others_sync_is_not_overtaken"),
    ("AllMeant", "decisions::two_files_of_one_path_are_told_apart"),
    ("ObstaclesDecide", "decisions::what_stands_in_the_way_is_no_decision"),
    ("LifeForgotten", "decisions::a_file_that_is_put_off_is_judged_by_its_own_crash"),
    ("SetAsideUnsaid", "decisions::no_program_is_started_on_files_that_are_set_aside"),
];

/// Nothing is brought to the files by itself within a test.
const LATE: &str = "--age-max=3600000";

const BEHIND: [&str; 3] = ["--write-behind=at-once", LATE, "--fence=fanotify"];

fn text(path: &Path) -> &str {
    path.to_str().expect("paths are text")
}

/// Lines with their numbers, each said once it is durable.
const APPEND: &str = "
import os, sys, time
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
for number in range(int(sys.argv[2]) if len(sys.argv) > 2 else 1000000):
    try:
        os.write(fd, b'%09d\\n' % number)
        os.fsync(fd)
    except OSError as error:
        os.write(1, b'errno %d\\n' % error.errno)
        break
    if 'sync' in sys.argv and number == 99:
        os.sync()
    os.write(1, b'ack %d\\n' % number)
time.sleep(60)
";

/// Deliberate bugs are in the build that is made for them, and in nothing that ships.
#[test]
fn what_ships_can_have_no_deliberate_bug() {
    let has = |path: &Path| {
        let bytes = std::fs::read(path).expect("a built file");
        // The name of one: that of the variable may be part of the code that compares it.
        bytes.windows(13).any(|part| part == b"SignalsAtOnce")
    };
    for (program, can) in [(need::holdfast(), false), (canaries::binary(), true)] {
        for path in [program.clone(), program.with_file_name("libholdfast.so")] {
            assert_eq!(has(&path), can, "{}", path.display());
        }
    }
}

/// One test of this file, in a process of its own, with the build that can have deliberate bugs.
/// Returns whether it passed.
fn play(test: &str, bug: Option<&str>, holdfast: &Path) -> (bool, String) {
    let this = std::env::current_exe().expect("the test's own path");
    let mut cmd = Cmd::new(&this).args(["--exact", test, "--test-threads=1"]).env("HOLDFAST_BIN", holdfast);
    if let Some(bug) = bug {
        cmd = cmd.env("HOLDFAST_CANARY", bug);
    }
    let output = cmd.limit(Duration::from_secs(60)).output();
    let [passed, failed] =
        ["1 passed; 0 failed;", "0 passed; 1 failed;"].map(|end| output.stdout.contains(end));
    assert!(passed != failed, "{test} with {bug:?} was not run\n{}", output.told());
    (passed, output.told())
}

/// How often a test is played with a rule taken out, until it fails.
const PLAYS_MAX: usize = 3;

/// Every test above, with all rules and with each of those taken out that it is about.
#[test]
fn every_rule_that_is_taken_out_is_missed() {
    let holdfast = canaries::binary();
    let mut plays: Vec<(&str, Option<&str>)> = RULES.iter().map(|(bug, test)| (*test, Some(*bug))).collect();
    let mut tests: Vec<&str> = RULES.iter().map(|(_, test)| *test).collect();
    tests.dedup();
    tests.sort_unstable();
    tests.dedup();
    plays.extend(tests.iter().map(|test| (*test, None)));
    let (next, wrong) = (AtomicUsize::new(0), std::sync::Mutex::new(Vec::new()));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((test, bug)) = plays.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (mut passed, mut told) = play(test, *bug, &holdfast);
                    // Another rule may stand in, by how late something comes.
                    for _ in 1..PLAYS_MAX {
                        if passed && bug.is_some() {
                            (passed, told) = play(test, *bug, &holdfast);
                        }
                    }
                    if passed != bug.is_none() {
                        let what = if passed { "SURVIVED" } else { "fails with all rules" };
                        let told = if passed { String::new() } else { told };
                        wrong.lock().expect("list").push(format!("{what}: {bug:?} in {test}\n{told}"));
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().expect("list");
    let caught = RULES.len() - wrong.iter().filter(|line| line.starts_with("SURVIVED")).count();
    let seconds = begun.elapsed().as_secs();
    tally::say(&format!(
        "known histories, real: histories {}, rules taken out {}, rules missed {caught}; {seconds} s",
        tests.len(),
        RULES.len()
    ));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
