//! What a user would gain: `bench` on a file system of its own, its reports, its refusals and its
//! end by a signal; and `demo`, which cuts the power where it may, and kills where it may not.

use std::path::Path;
use std::time::Duration;

use holdfast_e2e::cmd::{Cmd, Output};
use holdfast_e2e::disk::{self, Disk, Kind};
use holdfast_e2e::need;
use holdfast_e2e::pool;
use holdfast_e2e::proc::wait_until;
use holdfast_e2e::report;
use serde_json::Value;

/// What happens soon takes no longer, on a machine that is busy.
const SOON: Duration = Duration::from_secs(60);
const WORKLOADS: [&str; 6] = ["random", "append", "transactions", "create", "replace", "plain"];

fn text(path: &Path) -> &str {
    path.to_str().expect("paths are text")
}

/// Names in a directory.
fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("a directory").flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().into_string().expect("text")).collect();
    names.sort();
    names
}

/// The shortest comparison that there is.
fn bench(dir: &Path) -> Cmd {
    Cmd::holdfast("bench").arg(dir).args(["--rounds", "1", "--time", "20ms"])
}

#[test]
fn each_workload_is_measured_on_each_side_and_nothing_is_left() {
    need::tool("eatmydata");
    need::tool("sqlite3");
    let (disk, out) = (Disk::new(Kind::Ext4), disk::directory());
    let dir = disk.root.join("<b>&\u{1b}[31m");
    std::fs::create_dir(&dir).expect("directory");
    let (json, html) = (out.path().join("report.json"), out.path().join("report.html"));
    let output = bench(&dir).arg("--json").arg(&json).arg("--html").arg(&html).ok();
    assert!(names(&dir).is_empty(), "{:?}", names(&dir));
    assert_eq!(names(out.path()), ["report.html", "report.json"]);

    let found: Value = report::parse(&std::fs::read_to_string(&json).expect("a report"));
    assert_eq!(found["directory"], text(&dir), "{found:#}");
    assert_eq!(found["file_system"]["kind"], "ext4", "{found:#}");
    assert_eq!(found["pool"]["is_emulated"], true, "{found:#}");
    // Its pool was of its own, in memory.
    let pool = found["pool"]["path"].as_str().expect("a path");
    assert!(pool.starts_with("/dev/shm/holdfast-bench-") && !Path::new(pool).exists(), "{pool}");
    let rows = found["workloads"].as_array().expect("a list");
    let found_names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().expect("a name")).collect();
    assert_eq!(found_names, WORKLOADS);
    for row in rows {
        let sides = row["sides"].as_object().expect("sides");
        assert_eq!(sides.len(), 4, "{row:#}");
        for (side, samples) in sides {
            assert!(samples["per_s"][0].as_f64().expect("a rate") > 0.0, "{side}: {row:#}");
        }
        // Holdfast had a part in it, wherever it says that it does.
        let absorbed = report::number(&row["sides"]["Holdfast"], "syncs_absorbed");
        let name = row["name"].as_str().expect("a name");
        assert!(absorbed > 0 || ["replace", "plain"].contains(&name), "{row:#}");
        assert_eq!(row["floor"].as_array().expect("a list").is_empty(), name == "plain", "{row:#}");
    }
    assert!(rows[2]["program"].as_str().expect("text").starts_with("the sqlite3 shell 3."), "{found:#}");

    let page = std::fs::read_to_string(&html).expect("a page");
    assert!(page.contains("&lt;b&gt;&amp;") && !page.contains("<b>"), "{page}");
    assert!(page.contains("EMULATED NVM") && !page.contains("<script") && !page.contains("://"), "{page}");
    assert_eq!(page.matches("<svg ").count(), 7, "{page}");
    assert!(!output.stdout.contains('\u{1b}') && !output.stderr.contains('\u{1b}'), "{}", output.told());
    for line in ["EMULATED NVM", "Too few rounds", "floor"] {
        assert!(output.stdout.contains(line), "{line}\n{}", output.told());
    }
    compare(&json, found, out.path());
}

/// A report against itself, against one that was slower, and against what is none.
fn compare(json: &Path, mut found: Value, out: &Path) {
    let compare =
        |before: &Path, after: &Path| Cmd::holdfast("bench").arg("compare").arg(before).arg(after).output();
    let same = compare(json, json);
    // One round tells nothing, not even of itself.
    same.expect(&[1]).says(&["nothing can be told", "4 rounds"], &[]);
    assert!(same.stdout.contains("too few rounds"), "{}", same.told());
    let mut report = |name: &str, per_s: [f64; 4]| {
        found["rounds"] = 4.into();
        found["workloads"][0]["sides"]["Holdfast"]["per_s"] = per_s.into_iter().collect();
        let path = out.join(name);
        std::fs::write(&path, found.to_string()).expect("written");
        path
    };
    let fast = report("fast", [200.0, 210.0, 220.0, 230.0]);
    let slow = report("slow", [100.0, 110.0, 120.0, 130.0]);
    let near = report("near", [229.0, 240.0, 250.0, 260.0]);
    let slower = compare(&fast, &slow);
    slower.expect(&[3]);
    assert!(slower.stdout.contains("SLOWER under Holdfast: random."), "{}", slower.told());
    let faster = compare(&slow, &fast);
    faster.ok();
    assert!(faster.stdout.contains("faster"), "{}", faster.told());
    let noise = compare(&near, &fast);
    noise.ok();
    assert!(noise.stdout.contains("noise"), "{}", noise.told());
    compare(&fast, &out.join("report.html")).expect(&[1]).says(&["report.html", "no JSON"], &[]);
    compare(&fast, &out.join("none")).expect(&[1]).says(&["none"], &["no such file"]);
}

#[test]
fn what_cannot_be_measured_is_refused_with_a_reason() {
    need::root();
    let disk = Disk::with_size(Kind::Ext4, 300 << 20);
    let out = disk::directory();
    let small = bench(&disk.root).output();
    small.expect(&[1]).says(&["has only", "free", "384.0 MiB are needed"], &[]);

    let large = Disk::new(Kind::Ext4);
    let no_pool = bench(&large.root).args(["--pool", "/proc/none/pool"]).output();
    no_pool.expect(&[1]).says(&["Holdfast cannot run here", "/proc/none/pool"], &[]);
    let file = large.root.join("file");
    std::fs::write(&file, "the user's").expect("written");
    let taken = bench(&large.root).arg("--pool").arg(&file).output();
    taken.expect(&[1]).says(&["already"], &[]);
    assert_eq!(std::fs::read_to_string(&file).expect("there"), "the user's");
    bench(&file).output().expect(&[1]).says(&["is no directory"], &[]);
    bench(&large.root.join("none")).output().expect(&[1]).says(&["none"], &["no such file"]);
    let no_report = bench(&large.root).args(["--json", "/proc/none/report"]).output();
    no_report.expect(&[1]).says(&["cannot write /proc/none/report"], &[]);
    let both = out.path().join("report");
    let twice = bench(&large.root).arg("--json").arg(&both).arg("--html").arg(out.path().join("./report"));
    twice.output().expect(&[1]).says(&["--json and --html name the same file"], &[]);
    assert!(names(out.path()).is_empty());
    let denied = bench(&large.root).user("nobody", "").output();
    denied.expect(&[1]).says(&["cannot make a directory in"], &["permission denied"]);

    let memory = tempfile::tempdir_in("/dev/shm").expect("directory");
    bench(memory.path()).output().expect(&[1]).says(&["is on tmpfs", "nothing to gain"], &[]);
    bench(Path::new("/proc")).output().expect(&[1]).says(&["is on proc", "ext4, xfs or btrfs"], &[]);
    bench(&large.root).args(["--rounds", "0"]).output().expect(&[2]);
    assert_eq!(names(&large.root), ["file", "lost+found"]);
}

#[test]
fn who_is_interrupted_leaves_nothing() {
    let disk = Disk::new(Kind::Ext4);
    // In memory, but beside nobody else's.
    let pool = pool::fresh_path("bench");
    let bench = Cmd::holdfast("bench").arg(&disk.root).args(["--time", "10m"]).arg("--pool").arg(&pool);
    let mut child = bench.spawn();
    let home = || names(&disk.root).into_iter().find(|name| name.starts_with("holdfast-bench-"));
    wait_until(SOON, "a workload", || {
        home().is_some_and(|home| disk.root.join(home).join("native/synced").exists())
    });
    assert!(pool.exists());
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("interrupted");
    let status = child.wait().expect("ended");
    assert_eq!(status.code(), Some(130));
    assert_eq!(names(&disk.root), ["lost+found"]);
    assert!(!pool.exists() && !pool.with_extension("pool.floor").exists());
}

/// The numbers of a line of the table: acknowledged, on disk alone, found, lost.
fn counts(output: &Output, side: &str) -> [u64; 4] {
    let (_, table) = output.stdout.split_once("on disk alone").expect("a table");
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix(side));
    let line = line.unwrap_or_else(|| panic!("no line for {side}\n{}", output.told()));
    let numbers: Vec<u64> =
        line.split_whitespace().map(|word| word.replace(',', "").parse().expect("a number")).collect();
    numbers.try_into().unwrap_or_else(|_| panic!("four numbers\n{}", output.told()))
}

#[test]
fn a_power_cut_takes_what_was_not_durable() {
    need::tool("eatmydata");
    let disk = Disk::new(Kind::Ext4);
    let output = Cmd::holdfast("demo").args(["--seconds", "1", "--dir"]).arg(&disk.root).ok();
    let [acknowledged, on_disk, found, lost] = counts(&output, "native ");
    assert!(acknowledged > 0 && on_disk == found && lost == 0, "{}", output.told());
    let [acknowledged, _, found, lost] = counts(&output, "eatmydata ");
    assert!(lost > 0 && lost == acknowledged - found, "{}", output.told());
    let [acknowledged, on_disk, found, lost] = counts(&output, "Holdfast ");
    assert!(acknowledged > 0 && on_disk <= found && lost == 0, "{}", output.told());
    assert!(output.stdout.contains("PASS"), "{}", output.told());
    assert_eq!(names(&disk.root), ["lost+found"]);
}

#[test]
fn who_may_cut_no_power_is_shown_a_kill() {
    let disk = Disk::new(Kind::Ext4);
    disk::give_to(&disk.root, "nobody");
    let output = Cmd::holdfast("demo").args(["--seconds", "1", "--dir"]).arg(&disk.root);
    let output = output.user("nobody", "").ok();
    for told in ["No power cut: it takes root", "the page cache survives it", "PASS", "rows acknowledged"] {
        assert!(output.stdout.contains(told), "{told}\n{}", output.told());
    }
    assert_eq!(output.stdout.matches("acknowledged rows lost   0\n").count(), 2, "{}", output.told());
}
