//! The verdict on a run, in one line: how many of its syncs were absorbed, or why none was. A
//! program that synced nothing and lost nothing by that is said nothing about.

use std::collections::BTreeMap;
use std::path::Path;

use holdfast_keeper::config::Durability;
use holdfast_keeper::status::{BypassedFile, Summary, SyncedFile, UnseenProgram};
use serde::Serialize;

use crate::report;
use crate::sizes::human_count;
use crate::summary_file::Target;
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

/// Writes the summary of what was run, and the verdict on it.
pub fn write(target: Target, summary: &Summary, verdict: Option<&str>) -> anyhow::Result<()> {
    let to_people = || report::summary(summary) + verdict.unwrap_or_default();
    target.write(to_people, &Judged { summary, verdict })
}

/// Reasons that are told; `--summary` tells all.
const REASONS_MAX: usize = 2;
/// Below this share the reasons are told, too, in thousandths.
const SHARE_LOW: u64 = 500;

/// The verdict on what happened since.
pub fn verdict(before: &Before, after: &Summary, durability: Durability) -> Option<String> {
    if after.is_board_damaged {
        let damaged = "the board is damaged: a program has written over what it shares with its keeper, and what was absorbed \
                       is not known";
        return Some(damaged.to_owned());
    }
    let since = |count: fn(&Summary) -> u64| count(after).saturating_sub(count(&before.summary));
    let (absorbed, real) = (since(|told| told.syncs_absorbed), since(|told| told.syncs_real));
    let other = since(|told| told.writes_absorbed) + since(|told| told.truncates_absorbed);
    let syncs = absorbed + real;
    if absorbed + other == 0
        && let Some(told) = reasons(before, after, durability)
    {
        return Some(format!("NOTHING was absorbed: {told}"));
    }
    if syncs == 0 {
        return None;
    }
    if absorbed == 0 {
        let why = why_not(before, after).unwrap_or_else(|| NEVER_ABSORBED.to_owned());
        return Some(format!("none of {} syncs absorbed{}: {why}", human_count(syncs), whose(before)));
    }
    // Never rounded up: 100 % is all of them.
    let share = absorbed * 1000 / syncs;
    let percent = if real == 0 { "100".to_owned() } else { format!("{}.{}", share / 10, share % 10) };
    let why = if share < SHARE_LOW { why_not(before, after) } else { None };
    let why = why.map(|why| format!("; {why}")).unwrap_or_default();
    Some(format!("{percent} % of {} syncs absorbed{}{why}", human_count(syncs), whose(before)))
}

/// Why syncs were left to the kernel, if that is known: it is asked for in one order, however many
/// were absorbed beside them.
fn why_not(before: &Before, after: &Summary) -> Option<String> {
    reasons(before, after, Durability::Sync)
        .or_else(|| first_syncs(before, after))
        .or_else(|| crowded(before, after))
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
/// every write is to be durable. `is_explained`: what the kernel synced has a reason of its own.
fn was_to_be_absorbed(
    before: &Before,
    file: &BypassedFile,
    durability: Durability,
    is_explained: bool,
) -> bool {
    let syncs = syncs_since(before, file);
    let is_known = before.summary.bypassed.iter().any(|known| known.path == file.path);
    match (is_known, file.is_inherited() && durability == Durability::Sync) {
        (true, _) => syncs.is_some_and(|syncs| syncs > 0),
        (false, true) => syncs.map_or(!is_explained, |syncs| syncs > 0),
        (false, false) => true,
    }
}

/// Where nothing else is known of syncs that the kernel answered.
const NEVER_ABSORBED: &str = "those of directories and devices, of files that are only read, and the first one of a \
                              file are the kernel's";

/// Files that are managed and that the kernel synced since, and their paths.
fn synced_by_kernel<'a>(before: &Before, after: &'a Summary) -> (Vec<&'a SyncedFile>, Vec<&'a str>) {
    let new = |file: &&SyncedFile| !before.summary.synced_by_kernel.contains(file);
    let files: Vec<&SyncedFile> = after.synced_by_kernel.iter().filter(new).collect();
    let paths = files.iter().map(|file| file.path.as_str()).collect();
    (files, paths)
}

/// Of syncs that the kernel answered: why, if they would have taken commits of others' changes.
fn crowded(before: &Before, after: &Summary) -> Option<String> {
    let paths = synced_by_kernel(before, after).1;
    let files = if paths.is_empty() { "files".to_owned() } else { counted(&paths) };
    let was = if paths.len() == 1 { "was" } else { "were" };
    (after.syncs_crowded > before.summary.syncs_crowded).then(|| {
        format!(
            "{files} {was} synced while other changes (of names and sizes) waited for their file system to commit \
             them, and such syncs are the kernel's; a run that goes on longer absorbs more"
        )
    })
}

/// Of syncs that the kernel answered of files that are managed: why, if each was synced once.
fn first_syncs(before: &Before, after: &Summary) -> Option<String> {
    let (files, paths) = synced_by_kernel(before, after);
    let was = if paths.len() == 1 { "was" } else { "were" };
    (!files.is_empty() && files.iter().all(|file| file.syncs == 1)).then(|| {
        format!(
            "{} {was} synced once, and the first sync of a file that the run did not make is the kernel's; \
             those that follow are absorbed",
            counted(&paths)
        )
    })
}

/// What is said whatever the share is, a line each, unless it stands in what was `said`: a program
/// that has other rights than its keeper, and a keeper that nobody tells of outsiders any more.
pub fn left_out(before: &Before, after: &Summary, said: &str) -> Vec<String> {
    let is_new =
        |one: &&UnseenProgram| one.has_other_rights() && !before.summary.programs_unseen.contains(one);
    let mut told: Vec<String> = Vec::new();
    for one in after.programs_unseen.iter().filter(is_new) {
        let (program, reason) = (shown(&one.program), &one.reason);
        let line = format!("not absorbed: what {program} writes: {reason}");
        if !said.contains(&line) && !said.contains(&format!("{program}: {reason}")) {
            told.push(line);
        }
    }
    if after.has_lost_watch() {
        told.push(
            "root's watch (holdfast-watch) has ended, and nothing says any more who opens files: all of them were \
             left to the kernel from then on. The next run starts a new one, once this keeper has ended"
                .to_owned(),
        );
    }
    told
}

/// Why files and programs were left to the kernel since.
fn reasons(before: &Before, after: &Summary, durability: Durability) -> Option<String> {
    let is_explained = after.syncs_crowded > before.summary.syncs_crowded;
    let is_new = |file: &&BypassedFile| was_to_be_absorbed(before, file, durability, is_explained);
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
        format!("{ON}{}", kind_of_file_system(Path::new(&file.path)))
    } else {
        let remedy = if file.is_inherited() { INHERITED_REMEDY } else { "" };
        format!("{}{remedy}", file.reason)
    }
}

/// The kind of file system that a file is on, or was, by the name people know it by.
fn kind_of_file_system(path: &Path) -> &'static str {
    let known = rustix::fs::statfs(path).or_else(|_| {
        let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
        rustix::fs::statfs(directory.unwrap_or(Path::new(".")))
    });
    match known.map(|facts| facts.f_type as u32) {
        Ok(0xEF53) => "ext2, ext3 or ext4",
        Ok(0x0102_1994) => "tmpfs",
        Ok(0x8584_58F6) => "ramfs",
        Ok(0x794C_7630) => "overlay",
        Ok(0x6969) => "NFS",
        Ok(0xFF53_4D42 | 0xFE53_4D42) => "SMB",
        Ok(0x0102_1997) => "9p",
        Ok(0x6573_5546) => "FUSE",
        Ok(0x2FC1_2FC1) => "ZFS",
        Ok(0xCA45_1A4E) => "bcachefs",
        Ok(0xF2F5_2010) => "f2fs",
        Ok(0x4D44) => "FAT",
        Ok(0x2011_BAB0) => "exFAT",
        Ok(0x00C3_6400) => "Ceph",
        _ => "another file system",
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

    #[test]
    fn what_cannot_be_true_is_not_told() {
        let after = Summary { is_board_damaged: true, ..told_of(9, 1 << 47) };
        let told = verdict(&Before::default(), &after, Durability::Sync).unwrap();
        assert!(told.starts_with("the board is damaged") && !told.contains('%'), "{told}");
        assert!(after.is_above(1 << 46) && !told_of(9, 8).is_above(9));
    }

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
        let unknown = format!("none of 1 syncs absorbed: {NEVER_ABSORBED}");
        assert_eq!(judged(&after), Some(unknown));
        after.synced_by_kernel = vec![synced("/a\n", 1)];
        let told = judged(&after).expect("a verdict");
        assert!(
            told.starts_with("none of 1 syncs absorbed: 1 file (/a\\n) was synced once, and the"),
            "{told}"
        );
        after.synced_by_kernel[0].syncs = 2;
        let unknown = format!("none of 1 syncs absorbed: {NEVER_ABSORBED}");
        assert_eq!(judged(&after), Some(unknown));
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
        let told = judged(&told_of(0, 2)).expect("a verdict");
        assert_eq!(told, format!("none of 2 syncs absorbed: {NEVER_ABSORBED}"));
    }

    #[test]
    fn syncs_that_would_take_commits_of_others_are_told() {
        let mut after = Summary { syncs_crowded: 3, ..told_of(0, 3) };
        let told = |after: &Summary| verdict(&Before::default(), after, Durability::Sync).expect("a verdict");
        assert!(
            told(&after).starts_with("none of 3 syncs absorbed: files were synced while"),
            "{}",
            told(&after)
        );
        after.synced_by_kernel.push(SyncedFile { path: "/x".to_owned(), syncs: 3 });
        after.syncs_absorbed = 1;
        let few = told(&after);
        assert!(few.starts_with("25.0 % of 4 syncs absorbed; 1 file (/x) was synced while"), "{few}");
        // What a shell opened is no reason unless it is known to have been synced.
        after.bypassed.push(bypassed("/out", INHERITED));
        assert!(!told(&after).contains("/out"), "{}", told(&after));
        after.bypassed[0].syncs = Some(1);
        assert!(told(&after).contains("/out"), "{}", told(&after));
        after.syncs_absorbed = 9;
        assert!(told(&after).ends_with("% of 12 syncs absorbed"), "{}", told(&after));
    }

    /// With `--durability=write` a run may have its writes absorbed and its one sync not.
    #[test]
    fn no_sync_among_writes_that_were_absorbed_has_its_reason() {
        let mut after = Summary { writes_absorbed: 7, ..told_of(0, 1) };
        let told = |after: &Summary| {
            verdict(&Before::default(), after, Durability::Write).expect("a sync that was not absorbed")
        };
        assert_eq!(told(&after), format!("none of 1 syncs absorbed: {NEVER_ABSORBED}"));
        after.synced_by_kernel.push(SyncedFile { path: "/v".to_owned(), syncs: 1 });
        assert!(
            told(&after).starts_with("none of 1 syncs absorbed: 1 file (/v) was synced once, and the first"),
            "{}",
            told(&after)
        );
        after.syncs_absorbed = 1;
        after.syncs_real = 3;
        assert!(told(&after).starts_with("25.0 % of 4 syncs absorbed; 1 file (/v) was"), "{}", told(&after));
    }

    #[test]
    fn other_rights_and_a_lost_watch_are_told_whatever_the_share_is() {
        const DROPPED: &str = "it gave up rights: it dropped capabilities";
        const PRIVILEGED: &str = "it runs with more privilege, and the loader ignores the library";
        let unseen = |program: &str, reason: &str| UnseenProgram {
            program: program.to_owned(),
            reason: reason.to_owned(),
        };
        let mut after = told_of(1000, 1);
        after.programs_unseen = vec![
            unseen("/a\u{1b}", DROPPED),
            unseen("/b", "it is statically linked"),
            unseen("/c", PRIVILEGED),
        ];
        let told = left_out(&Before::default(), &after, "");
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].starts_with("not absorbed: what /a\\u{1b} writes: it gave up rights"), "{told:?}");
        // What was said already, and what was before, is not said again.
        assert_eq!(left_out(&Before::default(), &after, &format!("/a\\u{{1b}}: {DROPPED}")).len(), 1);
        let before = Before { summary: after.clone(), shared_with: None };
        assert!(left_out(&before, &after, "").is_empty());
        after.fence = "lost".to_owned();
        assert!(left_out(&before, &after, "")[0].starts_with("root's watch"), "{after:?}");
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
