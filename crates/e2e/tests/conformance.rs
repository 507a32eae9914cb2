//! Transparency: several hundred checks run twice, natively and under Holdfast, in equal fresh
//! directories on ext4, xfs, btrfs and tmpfs. What each check saw of its calls, and the tree it
//! left, must be the same, line by line; and where files are managed the summary must show that the
//! checks' writes were absorbed, or the comparison proves nothing.
//!
//! The checks are C programs in `conformance/`, compiled here. `HOLDFAST_CONFORMANCE=NAME` runs one
//! theme or check.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::transcript::differences;
use holdfast_e2e::{disk, need, proc, report, tally};
use tempfile::TempDir;

/// How often the log is brought to disk while the checks run: one of them waits for it.
const AGE_MAX_MS: &str = "200";
/// Names the mode in which files are in state Behind.
const BEHIND: &str = "write-behind";
/// Percent of the checks' writes: those with flags that the kernel may refuse are made by the
/// kernel in this state.
const ABSORBED_BEHIND: u64 = 99;
/// Differences shown for one theme.
const SHOWN_MAX: usize = 12;

/// The compiled checks.
fn program() -> &'static Path {
    static BUILT: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    &BUILT.get_or_init(|| build(|_| Vec::new())).1
}

/// The same with a function of its own for each name that the library hooks, as beam.smp has
/// `sigaction`: each goes on to the next library's.
fn exporting_program() -> &'static Path {
    static BUILT: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let export = |home: &Path| {
        let library = need::holdfast().with_file_name("libholdfast.so");
        let symbols = Cmd::new(need::tool("nm")).args(["-D", "--defined-only"]).arg(library).ok().stdout;
        let names = symbols.lines().filter_map(|line| line.rsplit(' ').next());
        let names: Vec<&str> = names.filter(|name| !name.starts_with("holdfast_")).collect();
        assert!(names.len() > 200, "{} names: {symbols}", names.len());
        let slots: String = names.iter().map(|name| format!("EXPORT({name})\n")).collect();
        std::fs::write(home.join("names.h"), slots).expect("written");
        let forward = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance/exports/forward.c");
        vec!["-rdynamic".into(), "-I".into(), home.into(), forward]
    };
    &BUILT.get_or_init(|| build(export)).1
}

fn build(more: impl Fn(&Path) -> Vec<PathBuf>) -> (TempDir, PathBuf) {
    let home = disk::directory();
    let program = home.path().join("conform");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance");
    let sources = std::fs::read_dir(sources).expect("sources").map(|entry| entry.expect("source").path());
    let sources: Vec<PathBuf> =
        sources.filter(|path| path.extension().is_some_and(|name| name == "c")).collect();
    let gcc = Cmd::new("gcc").args(["-O1", "-w", "-pthread", "-o"]).arg(&program).args(sources);
    gcc.args(more(home.path())).arg("-lutil").ok();
    (home, program)
}

/// Whether one theme or check is asked for.
fn asked_for() -> bool {
    std::env::var_os("HOLDFAST_CONFORMANCE").is_some()
}

/// Themes with the writes that their checks have absorbed at least, and how many checks there are.
fn themes() -> (BTreeMap<String, u64>, usize) {
    let list = Cmd::new(program()).arg("list").ok().stdout;
    let wanted = std::env::var("HOLDFAST_CONFORMANCE").ok();
    let mut themes = BTreeMap::new();
    let mut count = 0;
    for line in list.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [theme, name, writes] = fields[..] else { panic!("not a check: {line}") };
        count += 1;
        let group = match &wanted {
            Some(wanted) if wanted == name => name,
            Some(wanted) if wanted != theme => continue,
            _ => theme,
        };
        *themes.entry(group.to_owned()).or_default() += writes.parse::<u64>().expect("writes");
    }
    (themes, count)
}

fn must_agree(place: &str, native: &str, held: &str) {
    let found = differences(native, held);
    let shown = found.iter().take(SHOWN_MAX).cloned().collect::<Vec<_>>().join("\n");
    assert!(found.is_empty(), "{place}: {} checks differ\n{shown}", found.len());
}

fn fresh(root: &Path, name: &str) -> PathBuf {
    let path = root.join(name);
    std::fs::create_dir(&path).expect("directory");
    path
}

fn native(program: &Path, theme: &str, directory: &Path) -> String {
    Cmd::new(program).args(["run", theme]).arg(directory).ok().stdout
}

/// What a theme tells natively on disks of a kind, run once: what it tells is the same each time,
/// or it could not be compared at all.
fn native_once(program: &Path, kind: &str, theme: &str, root: &Path) -> String {
    type Told = Arc<OnceLock<String>>;
    static TOLD: Mutex<BTreeMap<(PathBuf, String, String), Told>> = Mutex::new(BTreeMap::new());
    let told = {
        let mut all = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry((program.to_owned(), kind.to_owned(), theme.to_owned())).or_default())
    };
    told.get_or_init(|| native(program, theme, &fresh(root, &format!("native-{theme}")))).clone()
}

fn tree(directory: &Path) -> String {
    format!("== tree\n{}== over\n", Cmd::new(program()).arg("tree").arg(directory).ok().stdout)
}

fn tree_of(transcript: &str) -> &str {
    &transcript[transcript.rfind("== tree\n").expect("a tree at the end")..]
}

/// Runs a theme both ways and compares transcripts, trees at the end, and trees after the drain.
fn compare(
    program: &Path,
    root: &Path,
    (kind, mode): (&str, &str),
    theme: &str,
    options: &[&str],
    writes_min: u64,
) {
    let natively = native_once(program, kind, theme, root);
    let place = format!("{kind}-{mode}");
    let directory = fresh(root, &format!("held-{place}-{theme}"));
    let text = directory.to_str().expect("text");
    let place = format!("{place}, {theme}");
    let pool = Pool::new();
    let mut all = vec!["--age-max", AGE_MAX_MS];
    all.extend(options);
    if let Some(last) = all.last_mut().filter(|last| **last == "--exclusive") {
        *last = "--exclusive";
        all.push(text);
    }
    let argv = [program.to_str().expect("text"), "run", theme, text];
    let (output, summary) = pool.run_summarised(&all, &argv);
    output.ok();
    must_agree(&place, &natively, &output.stdout);
    must_agree(&format!("{place}, after the drain"), tree_of(&natively), &tree(&directory));
    assert!(report::flag(&summary, "drained"), "{place}: not everything is on disk");
    let absorbed = report::number(&summary, "writes_absorbed");
    // A file that has lost its last name needs no log, and when the keeper sees that is the
    // machine's; and a path may be longer here than a slot can hold.
    assert!(
        absorbed >= writes_min - writes_min / 16,
        "{place}: {absorbed} writes absorbed, {writes_min} expected; left to the kernel: {}",
        {
            let left = report::find(&summary, "bypassed")
                .and_then(|files| files.as_array().cloned())
                .unwrap_or_default();
            let text = |file: &serde_json::Value, name| {
                let text = report::find(file, name)
                    .and_then(|text| text.as_str().map(str::to_owned))
                    .unwrap_or_default();
                text.replace(&format!("{}/", directory.display()), "")
            };
            left.iter()
                .map(|file| format!("{} ({})", text(file, "path"), text(file, "reason")))
                .collect::<Vec<_>>()
                .join(", ")
        }
    );
}

/// `absorbed` says which part of the checks' writes must have been, in percent.
fn all_themes(root: &Path, place: &str, modes: &[(&str, &[&str])], absorbed: u64) {
    themes_where(program(), |_| true, root, place, modes, absorbed);
}

fn themes_where(
    program: &Path,
    wanted: impl Fn(&str) -> bool,
    root: &Path,
    place: &str,
    modes: &[(&str, &[&str])],
    absorbed: u64,
) {
    let (begun, (mut themes, count)) = (Instant::now(), themes());
    assert!(count >= 300, "{count} checks");
    themes.retain(|theme, _| wanted(theme));
    let mut failures = Vec::new();
    for (theme, writes) in &themes {
        for (mode, options) in modes {
            let writes_min = writes * absorbed / 100;
            let run = || compare(program, root, (place, mode), theme, options, writes_min);
            if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
                let told = panic.downcast_ref::<String>().cloned();
                failures.push(told.unwrap_or_else(|| format!("{place}-{mode}")));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let (modes, seconds) = (modes.len(), begun.elapsed().as_secs());
    tally::say(&format!(
        "conformance on {place}: checks {}; {count} in {modes} modes, {seconds} s",
        count * modes
    ));
}

type Mode = (&'static str, &'static [&'static str]);

fn both_fences() -> &'static [Mode; 2] {
    &[("fanotify", &[]), ("exclusive", &["--exclusive"])]
}

/// All of `both_fences` for who runs everything: the fences are the same on all file systems.
fn some(modes: &'static [Mode]) -> &'static [Mode] {
    if runs_everything() { both_fences() } else { modes }
}

/// `HOLDFAST_TEST_ALL` is set.
fn runs_everything() -> bool {
    std::env::var_os("HOLDFAST_TEST_ALL").is_some()
}

#[test]
fn ext4_shows_no_difference() {
    let disk = Disk::new(Kind::Ext4);
    all_themes(&disk.root, "ext4", &both_fences()[..], 100);
}

/// Files are logged from their first sync on: most of what the checks write is the kernel's.
#[test]
fn ext4_with_durability_sync_shows_no_difference() {
    let disk = Disk::new(Kind::Ext4);
    all_themes(&disk.root, "ext4", &[("sync", &["--durability=sync"])], 0);
}

#[test]
fn ext4_behind_inotify_shows_no_difference() {
    let disk = Disk::new(Kind::Ext4);
    // This fence may take our own opens for others' and leave a file to the kernel: slower, never
    // wrong.
    all_themes(&disk.root, "ext4", &[("inotify", &["--fence", "inotify"])], 50);
}

#[test]
fn ext4_in_state_behind_shows_no_difference() {
    let disk = Disk::new(Kind::Ext4);
    let modes: &[(&str, &[&str])] = &[(BEHIND, &["--write-behind=at-once", "--exclusive"])];
    all_themes(&disk.root, "ext4", modes, ABSORBED_BEHIND);
}

/// Of a file with one description its program's own is leased; of others this fence only has
/// notices of opens.
#[test]
fn ext4_behind_leases_shows_no_difference() {
    let disk = Disk::new(Kind::Ext4);
    let modes: &[(&str, &[&str])] = &[("leases", &["--fence", "lease", "--write-behind=at-once"])];
    // What a lease can be seen by; the rest with everything.
    let themes = ["locks", "opening"];
    let wanted = |theme: &str| runs_everything() || asked_for() || themes.contains(&theme);
    themes_where(program(), wanted, &disk.root, "ext4", modes, 50);
}

#[test]
fn xfs_in_state_behind_shows_no_difference() {
    let disk = Disk::new(Kind::Xfs);
    // What the file system has a say in; the rest is the same as on ext4.
    let wanted =
        |theme: &str| ["copies", "mapping", "metadata", "sizing", "writing"].contains(&theme) || asked_for();
    let modes: &[(&str, &[&str])] = &[(BEHIND, &["--write-behind=at-once"])];
    themes_where(program(), wanted, &disk.root, "xfs", modes, ABSORBED_BEHIND);
}

#[test]
fn xfs_shows_no_difference() {
    let disk = Disk::new(Kind::Xfs);
    all_themes(&disk.root, "xfs", some(&both_fences()[..1]), 100);
}

#[test]
fn btrfs_shows_no_difference() {
    let disk = Disk::new(Kind::Btrfs);
    // While names are pending there, and no commit is due, a new file's writes are the kernel's.
    all_themes(&disk.root, "btrfs", some(&both_fences()[1..]), 96);
}

#[test]
fn tmpfs_shows_no_difference() {
    let memory = Memory::new();
    all_themes(memory.0.path(), "tmpfs", &[("unmanaged", &[])], 0);
}

/// Erlang's machine exports `sigaction` and asks for the next library's: the library's own calls of
/// it led back to the program, for ever.
#[test]
fn a_program_that_exports_every_hooked_name_shows_no_difference() {
    let disk = Disk::new(Kind::Ext4);
    themes_where(exporting_program(), |_| true, &disk.root, "ext4-exporting", &both_fences()[..1], 100);
}

/// A tmpfs of its own, small enough to be filled up.
struct Memory(TempDir);

impl Memory {
    fn new() -> Self {
        let home = disk::directory();
        Cmd::new("mount").args(["-t", "tmpfs", "-o", "size=600m", "none"]).arg(home.path()).ok();
        Self(home)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        drop(Cmd::new("umount").arg("-l").arg(self.0.path()).output());
    }
}

/// A file whose directory was renamed under it is not found again, and its records wait for a
/// person.
const LOST_FROM_SIGHT: &str = "/rename_of_a_directory_with_open_files/";

/// What recovery did not dare to write, but for what is known.
fn set_aside(report: &serde_json::Value) -> Vec<String> {
    let files = report::find(report, "files").and_then(|files| files.as_array().cloned()).unwrap_or_default();
    let text = |file: &serde_json::Value, name| {
        report::find(file, name).and_then(|text| text.as_str().map(str::to_owned)).unwrap_or_default()
    };
    let outcome = |file: &serde_json::Value| text(file, "outcome");
    files
        .iter()
        .filter(|file| !matches!(outcome(file).as_str(), "replayed" | "unlinked"))
        .map(|file| format!("{}: {} ({})", text(file, "path"), outcome(file), text(file, "reason")))
        .filter(|line| !line.contains(LOST_FROM_SIGHT))
        .collect()
}

/// What the log holds is what the kernel did: after all checks of a theme everything is killed, and
/// recovery writes what is live in the log over files that are right already. Nothing may change.
#[test]
fn the_log_says_what_the_kernel_did() {
    recovery_changes_nothing(&[]);
}

/// The same where the log is all there is to most writes.
#[test]
fn the_log_says_what_the_kernel_would_have_done() {
    recovery_changes_nothing(&["--write-behind=at-once"]);
}

fn recovery_changes_nothing(mode: &[&str]) {
    let disk = Disk::new(Kind::Ext4);
    let mut failures = Vec::new();
    for theme in themes().0.keys() {
        let directory = fresh(&disk.root, &format!("killed-{theme}"));
        let pool = Pool::with_size("256M");
        let text = directory.to_str().expect("text");
        let mut options =
            vec!["--age-max", "600000", "--batch-min", "200M", "--batch-max", "220M", "--exclusive", text];
        options.extend(mode);
        let run = pool.run(&options).arg("--").arg(program()).args(["run-and-stay", theme.as_str(), text]);
        let mut supervisor = run.spawn();
        let mut told = Vec::new();
        let mut lines = BufReader::new(supervisor.stdout.take().expect("piped"));
        while !told.ends_with(b"== over\n") {
            let bytes = lines.read_until(b'\n', &mut told).expect("transcript");
            assert!(bytes > 0, "{theme}: it ended early\n{}", String::from_utf8_lossy(&told));
        }
        let told = String::from_utf8_lossy(&told);
        let below = proc::descendants(supervisor.id());
        // The supervisor first, or it would recover; then the keeper, or it would bring everything
        // to disk.
        proc::kill_hard(supervisor.id());
        supervisor.wait().expect("wait");
        proc::keepers(&pool.path).into_iter().chain(below).for_each(proc::kill_hard);
        let recovered = pool.recover(&["--replay"]);
        recovered.expect(&[0, 1]);
        failures.extend(set_aside(&report::parse(&recovered.stdout)));
        // A replay is a change: it moves the time.
        let timeless = |tree: &str| -> String {
            let line = |line: &str| {
                let fields: Vec<&str> = line.split(' ').collect();
                let time = fields.iter().position(|field| *field == "modified");
                let kept = fields.iter().enumerate();
                let kept = kept.filter(|(at, _)| time.is_none_or(|time| *at != time && *at != time + 1));
                kept.map(|(_, field)| *field).collect::<Vec<_>>().join(" ") + "\n"
            };
            tree.lines().map(line).collect()
        };
        let (before, after) = (timeless(tree_of(&told)), timeless(&tree(&directory)));
        let found = differences(&before, &after);
        failures.extend(found.into_iter().map(|found| format!("{theme}: {found}")));
    }
    assert!(failures.is_empty(), "recovery changed what was right\n{}", failures.join("\n"));
}
