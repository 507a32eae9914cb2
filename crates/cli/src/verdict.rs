//! The verdict on a run, in one line: how many of its syncs were absorbed, or why none was. A
//! program that synced nothing and lost nothing by that is said nothing about.

use std::collections::BTreeMap;
use std::path::Path;

use holdfast_keeper::config::Durability;
use holdfast_keeper::status::{BypassedFile, Summary, SyncedFile, UnseenProgram};
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
        let told = reasons(before, after, durability);
        return match (told, syncs) {
            (Some(told), _) => Some(format!("NOTHING was absorbed: {told}")),
            (None, 0) => None,
            (None, _) => {
                let why = first_syncs(before, after).map(|why| format!(": {why}")).unwrap_or_default();
                Some(format!("none of {} syncs absorbed{}{why}", human_count(syncs), whose(before)))
            }
        };
    }
    if syncs == 0 {
        return None;
    }
    // Never rounded up: 100 % is all of them.
    let share = absorbed * 1000 / syncs;
    let percent = if real == 0 { "100".to_owned() } else { format!("{}.{}", share / 10, share % 10) };
    let why = if share < SHARE_LOW { reasons(before, after, Durability::Sync) } else { None };
    let why = why.map(|why| format!("; {why}")).unwrap_or_default();
    Some(format!("{percent} % of {} syncs absorbed{}{why}", human_count(syncs), whose(before)))
}

fn whose(before: &Before) -> String {
    let shared = before.shared_with;
    shared.map(|pid| format!(" (all programs of keeper {pid} meanwhile)")).unwrap_or_default()
}

/// How many syncs of a file the kernel answered since, if that is known.
fn syncs_since(before: &Before, file: &BypassedFile) -> Option<u64> {
    let known = before.summary.bypassed.iter().find(|known| known.path == file.path);
    file.syncs.map(|syncs| syncs.saturating_sub(known.and_then(|known| known.syncs).unwrap_or(0)))
}

/// Whether something was to be absorbed of a file that was left to the kernel. What a shell opened
/// for a program is known from the first write on, and `ls > file` asks for nothing, except where
/// every write is to be durable.
fn was_to_be_absorbed(before: &Before, file: &BypassedFile, durability: Durability) -> bool {
    let syncs = syncs_since(before, file);
    let is_known = before.summary.bypassed.iter().any(|known| known.path == file.path);
    match (is_known, file.is_inherited() && durability == Durability::Sync) {
        (true, _) => syncs.is_some_and(|syncs| syncs > 0),
        (false, true) => syncs != Some(0),
        (false, false) => true,
    }
}

/// Of syncs that the kernel answered of files that are managed: why, if each was synced once.
fn first_syncs(before: &Before, after: &Summary) -> Option<String> {
    let new = |file: &&SyncedFile| !before.summary.synced_by_kernel.contains(file);
    let files: Vec<&SyncedFile> = after.synced_by_kernel.iter().filter(new).collect();
    let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    let was = if paths.len() == 1 { "was" } else { "were" };
    (!files.is_empty() && files.iter().all(|file| file.syncs == 1)).then(|| {
        format!(
            "{} {was} synced once, and the first sync of a file that the run did not make is the kernel's; \
             those that follow are absorbed",
            counted(&paths)
        )
    })
}

/// Why files and programs were left to the kernel since.
fn reasons(before: &Before, after: &Summary, durability: Durability) -> Option<String> {
    let is_new = |file: &&BypassedFile| was_to_be_absorbed(before, file, durability);
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

/// What to do about a file that was open before the program.
const INHERITED_REMEDY: &str =
    " (was it opened for the program, by its shell, say? What a program opens itself can be absorbed)";

fn what_is_wrong(file: &BypassedFile) -> String {
    if file.is_of_file_system() {
        format!("{ON}{}", locate::kind_of_file_system(Path::new(&file.path)))
    } else {
        let remedy = if file.is_inherited() { INHERITED_REMEDY } else { "" };
        format!("{}{remedy}", file.reason)
    }
}

/// How many files, and the first one.
fn counted(paths: &[&str]) -> String {
    let first = shown(paths.first().copied().unwrap_or_default());
    match paths.len() {
        1 => format!("1 file ({first})"),
        many => format!("{many} files ({first}, ...)"),
    }
}

fn in_words(wrong: &str, paths: &[&str]) -> String {
    let (files, are) = (counted(paths), if paths.len() == 1 { "is" } else { "are" });
    match wrong.strip_prefix(ON) {
        Some(kind) => format!("{files} {are} on {kind}; use a volume on ext4, xfs or btrfs"),
        None => format!("{files} {are} left to the kernel: {wrong}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told_of(syncs_absorbed: u64, syncs_real: u64) -> Summary {
        Summary { syncs_absorbed, syncs_real, ..Summary::default() }
    }

    const INHERITED: &str = "its opening was not seen";

    fn judged(after: &Summary) -> Option<String> {
        verdict(&Before::default(), after, Durability::Sync)
    }

    fn bypassed(path: &str, reason: &str) -> BypassedFile {
        BypassedFile { path: path.to_owned(), reason: reason.to_owned(), syncs: None }
    }

    #[test]
    fn the_share_is_told_and_never_rounded_up() {
        for (absorbed, real, told) in [
            (3782, 15, "99.6 % of 3,797 syncs absorbed"),
            (9_999, 1, "99.9 % of 10,000 syncs absorbed"),
            (7, 0, "100 % of 7 syncs absorbed"),
            (1, 2, "33.3 % of 3 syncs absorbed"),
        ] {
            assert_eq!(judged(&told_of(absorbed, real)).as_deref(), Some(told));
        }
    }

    #[test]
    fn who_syncs_nothing_is_said_nothing_about() {
        assert_eq!(judged(&told_of(0, 0)), None);
        let written = Summary { writes_absorbed: 7, ..Summary::default() };
        assert_eq!(verdict(&Before::default(), &written, Durability::Write), None);
        let mut inherited = told_of(0, 0);
        inherited.bypassed.push(BypassedFile { syncs: Some(0), ..bypassed("/out", INHERITED) });
        assert_eq!(judged(&inherited), None);
        assert!(verdict(&Before::default(), &inherited, Durability::Write).is_some());
    }

    /// What is open from before, and was never synced, is no reason for anything.
    #[test]
    fn a_redirection_is_named_only_if_it_was_synced() {
        let out = |syncs| BypassedFile { syncs, ..bypassed("/out", INHERITED) };
        let synced = |path: &str, syncs| SyncedFile { path: path.to_owned(), syncs };
        let mut after = told_of(0, 1);
        after.bypassed = vec![out(Some(0))];
        assert_eq!(judged(&after).as_deref(), Some("none of 1 syncs absorbed"));
        after.synced_by_kernel = vec![synced("/a\n", 1)];
        let told = judged(&after).expect("a verdict");
        assert!(
            told.starts_with("none of 1 syncs absorbed: 1 file (/a\\n) was synced once, and the"),
            "{told}"
        );
        after.synced_by_kernel[0].syncs = 2;
        assert_eq!(judged(&after).as_deref(), Some("none of 1 syncs absorbed"));
        after.bypassed.push(bypassed("/dev/shm/b", "its file system is not ext4, xfs or btrfs"));
        let told = judged(&after).expect("a verdict");
        assert!(told.contains("1 file (/dev/shm/b) is on tmpfs") && !told.contains("/out"), "{told}");
        for syncs in [Some(1), None] {
            after.bypassed = vec![out(syncs)];
            let told = judged(&after).expect("a verdict");
            assert!(told.starts_with("NOTHING was absorbed: 1 file (/out) is left to"), "{told}");
            assert!(told.contains("opened for the program"), "{told}");
        }
        // One that was known to a keeper that was joined, and was not synced since.
        let before = Before {
            summary: Summary { bypassed: vec![out(Some(3))], ..told_of(0, 3) },
            shared_with: Some(1),
        };
        let mut after = Summary { bypassed: vec![out(Some(3))], ..told_of(0, 4) };
        let verdict = |after: &Summary| verdict(&before, after, Durability::Sync).expect("a verdict");
        assert!(verdict(&after).starts_with("none of 1 syncs absorbed"));
        after.bypassed = vec![out(Some(4))];
        assert!(verdict(&after).contains("/out"));
    }

    #[test]
    fn reasons_beyond_the_first_are_counted() {
        let mut after = told_of(0, 3);
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
        let mut after = told_of(0, 3);
        after.bypassed.push(bypassed("/dev/shm/a\u{1b}[2J", "its file system is not ext4, xfs or btrfs"));
        after.bypassed.push(bypassed("/dev/shm/b", "its file system is not ext4, xfs or btrfs"));
        after.bypassed.push(bypassed("/c", "mapped shared and writable"));
        assert_eq!(
            judged(&after).expect("a verdict"),
            "NOTHING was absorbed: 2 files (/dev/shm/a\\u{1b}[2J, ...) are on tmpfs; use a volume on ext4, xfs or btrfs; \
             1 file (/c) is left to the kernel: mapped shared and writable"
        );
        assert_eq!(judged(&told_of(0, 2)).as_deref(), Some("none of 2 syncs absorbed"));
    }

    #[test]
    fn of_a_keeper_that_was_joined_only_what_is_new_counts() {
        let mut summary = told_of(100, 1);
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
