//! The verdict on a run, in one line: how many of its syncs were absorbed, or why none was. A
//! program that synced nothing and lost nothing by that is said nothing about.

use std::collections::BTreeMap;
use std::path::Path;

use holdfast_keeper::config::Durability;
use holdfast_keeper::status::{BypassedFile, Summary, UnseenProgram};
use serde::Serialize;

use crate::locate;
use crate::sizes::human_count;
use crate::words::shown;

/// What a keeper had counted before the program was started.
#[derive(Default)]
pub struct Before {
    /// Its counters.
    pub summary: Summary,
    /// The keeper that was joined, whose other programs are counted, too.
    pub shared_with: Option<u32>,
}

/// A summary with its verdict, as JSON.
#[derive(Serialize)]
pub struct Judged<'a> {
    /// The counters.
    #[serde(flatten)]
    pub summary: &'a Summary,
    /// The verdict, if there is one.
    pub verdict: Option<&'a str>,
}

/// Reasons that are told; `--summary` tells all.
const REASONS_MAX: usize = 2;
/// Below this share the reasons are told, too, in thousandths.
const SHARE_LOW: u64 = 500;

/// The verdict on what happened since.
pub fn verdict(before: &Before, after: &Summary, durability: Durability) -> Option<String> {
    let since = |count: fn(&Summary) -> u64| count(after).saturating_sub(count(&before.summary));
    let (absorbed, real) = (since(|told| told.syncs_absorbed), since(|told| told.syncs_real));
    let other = since(|told| told.writes_absorbed) + since(|told| told.truncates_absorbed);
    let syncs = absorbed + real;
    if absorbed + other == 0 {
        // `ls > file` syncs nothing, and had nothing to be absorbed.
        let is_asked = durability == Durability::Write || real > 0;
        let told = reasons(before, after, is_asked);
        return match (told, syncs) {
            (Some(told), _) => Some(format!("NOTHING was absorbed: {told}")),
            (None, 0) => None,
            (None, _) => Some(format!("none of {} syncs absorbed{}", human_count(syncs), whose(before))),
        };
    }
    if syncs == 0 {
        return None;
    }
    // Never rounded up: 100 % is all of them.
    let share = absorbed * 1000 / syncs;
    let percent = if real == 0 { "100".to_owned() } else { format!("{}.{}", share / 10, share % 10) };
    let why = if share < SHARE_LOW { reasons(before, after, false) } else { None };
    let why = why.map(|why| format!("; {why}")).unwrap_or_default();
    Some(format!("{percent} % of {} syncs absorbed{}{why}", human_count(syncs), whose(before)))
}

fn whose(before: &Before) -> String {
    let shared = before.shared_with;
    shared.map(|pid| format!(" (all programs of keeper {pid} meanwhile)")).unwrap_or_default()
}

/// Why files and programs were left to the kernel since.
fn reasons(before: &Before, after: &Summary, with_inherited: bool) -> Option<String> {
    let known: Vec<&String> = before.summary.bypassed.iter().map(|file| &file.path).collect();
    let is_new =
        |file: &&BypassedFile| (with_inherited || !file.is_inherited()) && !known.contains(&&file.path);
    let is_new_program = |one: &&UnseenProgram| !before.summary.programs_unseen.contains(one);
    let mut told: Vec<String> = after
        .programs_unseen
        .iter()
        .filter(is_new_program)
        .map(|one| format!("{}: {}", shown(&one.program), one.reason))
        .collect();
    // By what is wrong, most files first.
    let mut groups: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for file in after.bypassed.iter().filter(is_new) {
        groups.entry(what_is_wrong(file)).or_default().push(&file.path);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, paths)| std::cmp::Reverse(paths.len()));
    told.extend(groups.into_iter().map(|(wrong, paths)| in_words(&wrong, &paths)));
    let more = told.len().saturating_sub(REASONS_MAX);
    told.truncate(REASONS_MAX);
    if more > 0 {
        let reasons = if more == 1 { "reason" } else { "reasons" };
        told.push(format!("and {more} {reasons} more (--summary lists them)"));
    }
    (!told.is_empty()).then(|| told.join("; "))
}

/// Marks what follows as the name of a file system.
const ON: &str = "on ";

fn what_is_wrong(file: &BypassedFile) -> String {
    if file.is_of_file_system() {
        format!("{ON}{}", locate::kind_of_file_system(Path::new(&file.path)))
    } else {
        file.reason.clone()
    }
}

fn in_words(wrong: &str, paths: &[&str]) -> String {
    let first = shown(paths.first().copied().unwrap_or_default());
    let (files, are) = match paths.len() {
        1 => (format!("1 file ({first})"), "is"),
        many => (format!("{many} files ({first}, ...)"), "are"),
    };
    match wrong.strip_prefix(ON) {
        Some(kind) => format!("{files} {are} on {kind}; use a volume on ext4, xfs or btrfs"),
        None => format!("{files} {are} left to the kernel: {wrong}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(syncs_absorbed: u64, syncs_real: u64) -> Summary {
        Summary { syncs_absorbed, syncs_real, ..Summary::default() }
    }

    fn judged(after: &Summary) -> Option<String> {
        verdict(&Before::default(), after, Durability::Sync)
    }

    fn bypassed(path: &str, reason: &str) -> BypassedFile {
        BypassedFile { path: path.to_owned(), reason: reason.to_owned() }
    }

    #[test]
    fn the_share_is_told_and_never_rounded_up() {
        for (absorbed, real, told) in [
            (3782, 15, "99.6 % of 3,797 syncs absorbed"),
            (9_999, 1, "99.9 % of 10,000 syncs absorbed"),
            (7, 0, "100 % of 7 syncs absorbed"),
            (1, 2, "33.3 % of 3 syncs absorbed"),
        ] {
            assert_eq!(judged(&counted(absorbed, real)).as_deref(), Some(told));
        }
    }

    #[test]
    fn who_syncs_nothing_is_said_nothing_about() {
        assert_eq!(judged(&counted(0, 0)), None);
        let written = Summary { writes_absorbed: 7, ..Summary::default() };
        assert_eq!(verdict(&Before::default(), &written, Durability::Write), None);
        let mut inherited = counted(0, 0);
        inherited.bypassed.push(bypassed("/out", "its opening was not seen"));
        assert_eq!(judged(&inherited), None);
        assert!(verdict(&Before::default(), &inherited, Durability::Write).is_some());
    }

    #[test]
    fn reasons_beyond_the_first_are_counted() {
        let mut after = counted(0, 3);
        for (more, told) in [(1, "and 1 reason more ("), (2, "and 2 reasons more (")] {
            while after.bypassed.len() < REASONS_MAX + more {
                let number = after.bypassed.len();
                after.bypassed.push(bypassed(&format!("/{number}"), &format!("reason {number}")));
            }
            let verdict = judged(&after).expect("a verdict");
            assert!(verdict.contains(told), "{verdict}");
        }
    }

    #[test]
    fn nothing_says_why_and_escapes_names() {
        let mut after = counted(0, 3);
        after.bypassed.push(bypassed("/dev/shm/a\u{1b}[2J", "its file system is not ext4, xfs or btrfs"));
        after.bypassed.push(bypassed("/dev/shm/b", "its file system is not ext4, xfs or btrfs"));
        after.bypassed.push(bypassed("/c", "mapped shared and writable"));
        assert_eq!(
            judged(&after).expect("a verdict"),
            "NOTHING was absorbed: 2 files (/dev/shm/a\\u{1b}[2J, ...) are on tmpfs; use a volume on ext4, xfs or btrfs; \
             1 file (/c) is left to the kernel: mapped shared and writable"
        );
        assert_eq!(judged(&counted(0, 2)).as_deref(), Some("none of 2 syncs absorbed"));
    }

    #[test]
    fn of_a_keeper_that_was_joined_only_what_is_new_counts() {
        let mut summary = counted(100, 1);
        summary.bypassed.push(bypassed("/c", "mapped shared and writable"));
        let before = Before { summary: summary.clone(), shared_with: Some(12) };
        assert_eq!(verdict(&before, &summary, Durability::Write), None);
        let after = Summary { syncs_absorbed: 150, ..summary };
        assert_eq!(
            verdict(&before, &after, Durability::Sync).as_deref(),
            Some("100 % of 50 syncs absorbed (all programs of keeper 12 meanwhile)")
        );
    }
}
