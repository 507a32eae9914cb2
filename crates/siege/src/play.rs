//! Plays one case to its cut: processes that take turns, a copy of the device at the end, all
//! killed, the copy mounted, recovered if Holdfast was there, and read. It judges nothing.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde::Serialize;

use crate::disk::{Disk, Kind, Mounted};
use crate::op::{Case, Step, Who};
use crate::tree::Tree;

/// A step that takes longer hangs.
const STEP_MAX: Duration = Duration::from_secs(30);
/// So does a recovery.
const RECOVERY_MAX: Duration = Duration::from_secs(20);
/// How long a call may take that was under way when its process was stopped.
const STILL_MAX: Duration = Duration::from_millis(200);
const POOL_BYTES: &str = "16M";
const BOARD_BYTES: u64 = 4 * 65;
/// Bytes of a file that every case finds.
const FILE_BYTES: usize = 12_288;

/// What the machine needs to play cases.
pub struct Tools {
    /// The compiled actor.
    pub actor: PathBuf,
    /// The `holdfast` program.
    pub holdfast: PathBuf,
    /// How long after an outsider's step the next one begins.
    pub pause_ms: u64,
    /// Options for every `holdfast run`.
    pub options: Vec<String>,
    /// A deliberate bug that is to show.
    pub canary: Option<String>,
    /// Drop every sync instead of running under Holdfast: the control.
    pub forgets: bool,
}

/// What stands between the programs and the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// Nothing.
    Native,
    /// Holdfast.
    Holdfast,
}

/// A sync that the oracle puts behind a step, numbered from one, or before all of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Spontaneous {
    /// Behind how many steps of the case.
    pub after: usize,
    /// What it is, as the actor spells it.
    pub call: String,
}

/// What recovery said.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Recovery {
    /// How it ended; none if it did not within the time it has.
    pub status: Option<i32>,
    /// Files that were set aside, with the reason.
    pub set_aside: BTreeMap<String, String>,
    /// Records that it found.
    pub records: u64,
    /// What it printed.
    pub told: String,
}

/// What became of a case.
#[derive(Clone, Debug)]
pub struct Played {
    /// The error of each step of the case, or 0.
    pub results: Vec<i32>,
    /// What was there before recovery, where there was one.
    pub before: Option<Arc<Tree>>,
    /// What is there in the end.
    pub tree: Arc<Tree>,
    /// What recovery said.
    pub recovery: Option<Recovery>,
    /// A step that did not come to its end, a process that died.
    pub trouble: Option<String>,
}

/// A worker's place: its disk, pool, script and board. All lies on tmpfs.
pub struct Stage {
    home: PathBuf,
    disk: Disk,
    tools: Arc<Tools>,
}

/// The processes of a case. They are killed in the end, whatever happened.
struct Cast {
    children: Vec<Child>,
}

impl Stage {
    /// Makes the image that all cases start from.
    pub fn new(kind: Kind, home: &Path, tools: Arc<Tools>) -> anyhow::Result<Self> {
        let disk = Disk::new(kind, home, |root| {
            for dir in ["a", "b", "a/sub"] {
                std::fs::create_dir(root.join(dir))?;
            }
            for (name, letter) in [("a/old", b'o'), ("a/live", b'l'), ("b/clean", b'c')] {
                std::fs::write(root.join(name), vec![letter; FILE_BYTES])?;
            }
            Ok(())
        })?;
        Ok(Self { home: home.to_owned(), disk, tools })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.home.join(name)
    }

    /// Plays a case, with syncs of the oracle between its steps.
    pub fn play(&self, case: &Case, between: &[Spontaneous], guard: Guard) -> anyhow::Result<Played> {
        let script = script(case, between);
        std::fs::write(self.at("script"), script.text())?;
        let board =
            File::options().read(true).write(true).create(true).truncate(true).open(self.at("board"))?;
        board.set_len(BOARD_BYTES)?;
        let mounted = self.disk.power_on()?;
        let (results, trouble) = {
            let mut cast = self.start(case, guard)?;
            let (results, trouble) = cast.act(&board, &script)?;
            cast.hold_still()?;
            mounted.cut()?;
            cast.end()?;
            (results, trouble.map(|trouble| format!("{trouble}\n{}", self.told())))
        };
        mounted.unmount()?;
        let mounted = match self.disk.power_back() {
            Ok(mounted) => mounted,
            Err(error) => {
                drop(std::fs::remove_file(self.at("pool")));
                let trouble = Some(format!("{error:#}"));
                return Ok(Played { results, before: None, tree: Arc::default(), recovery: None, trouble });
            }
        };
        let (mut before, mut recovery) = (None, None);
        if guard == Guard::Holdfast && !self.tools.forgets {
            before = Some(Arc::new(Tree::read(&self.disk.root)?));
            recovery = Some(self.recover()?);
        }
        let tree = self.read(&mounted)?;
        mounted.unmount()?;
        Ok(Played { results, before, tree, recovery, trouble })
    }

    fn read(&self, _: &Mounted<'_>) -> anyhow::Result<Arc<Tree>> {
        Ok(Arc::new(Tree::read(&self.disk.root)?))
    }

    fn told(&self) -> String {
        std::fs::read_to_string(self.at("told")).unwrap_or_default()
    }

    fn command(&self, program: &Path) -> anyhow::Result<Command> {
        let told = File::options().create(true).append(true).open(self.at("told"))?;
        let mut command = Command::new(program);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(told).env("LC_ALL", "C.UTF-8");
        for name in
            ["LD_PRELOAD", "HOLDFAST_POOL", "HOLDFAST_DURABILITY", "HOLDFAST_SOCKET", "XDG_RUNTIME_DIR"]
        {
            command.env_remove(name);
        }
        Ok(command)
    }

    fn holdfast(&self, subcommand: &str) -> anyhow::Result<Command> {
        let mut command = self.command(&self.tools.holdfast)?;
        command.arg(subcommand).arg("--pool").arg(self.at("pool"));
        if let Some(canary) = &self.tools.canary {
            command.env("HOLDFAST_CANARY", canary);
        }
        Ok(command)
    }

    fn start(&self, case: &Case, guard: Guard) -> anyhow::Result<Cast> {
        drop(std::fs::remove_file(self.at("told")));
        let act = |command: &mut Command, who: Who| {
            command.arg(who.letter().to_string());
            command.args([self.at("script"), self.at("board"), self.disk.root.clone()]);
        };
        let mut program = match guard {
            Guard::Holdfast if self.tools.forgets => {
                let mut command = self.command(&holdfast_e2e::need::tool("eatmydata"))?;
                command.arg(&self.tools.actor);
                command
            }
            Guard::Holdfast => {
                let mut command = self.holdfast("run")?;
                command.args(["--volatile", "--size", POOL_BYTES]).args(&self.tools.options);
                command.arg("--").arg(&self.tools.actor);
                command
            }
            Guard::Native => self.command(&self.tools.actor)?,
        };
        act(&mut program, Who::P);
        let mut cast = Cast { children: vec![program.spawn().context("cannot start the program")?] };
        if case.has(Who::O) {
            let mut outsider = self.command(&self.tools.actor)?;
            act(&mut outsider, Who::O);
            if guard == Guard::Holdfast {
                outsider.arg(self.tools.pause_ms.to_string());
            }
            cast.children.push(outsider.spawn().context("cannot start the outsider")?);
        }
        Ok(cast)
    }

    fn recover(&self) -> anyhow::Result<Recovery> {
        let out = File::create(self.at("recovered"))?;
        let mut command = self.holdfast("recover")?;
        let mut child = command.arg("--json").stdout(out).spawn()?;
        let started = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default()));
            }
            if started.elapsed() > RECOVERY_MAX {
                child.kill()?;
                child.wait()?;
                break None;
            }
            std::thread::sleep(Duration::from_micros(200));
        };
        let told = std::fs::read_to_string(self.at("recovered"))?;
        let report: serde_json::Value = serde_json::from_str(&told).unwrap_or_default();
        let files = report["files"].as_array().cloned().unwrap_or_default();
        let text = |file: &serde_json::Value, name: &str| file[name].as_str().unwrap_or_default().to_owned();
        let below = format!("{}/", self.disk.root.display());
        let set_aside = files
            .iter()
            .filter(|file| matches!(&*text(file, "outcome"), "set aside" | "put off"))
            .map(|file| (text(file, "path").replace(&below, ""), text(file, "reason")))
            .collect();
        let recovery = Recovery {
            status,
            set_aside,
            records: report["records"].as_u64().unwrap_or_default(),
            told: format!("{told}{}", self.told()),
        };
        if recovery.status != Some(0) || !recovery.set_aside.is_empty() {
            // What it still holds belongs to this case.
            drop(std::fs::remove_file(self.at("pool")));
        }
        Ok(recovery)
    }
}

/// What the actors read, and which lines are the case's own.
struct Script {
    lines: Vec<String>,
    own: Vec<usize>,
}

impl Script {
    fn text(&self) -> String {
        self.lines.iter().map(|line| format!("{line}\n")).collect()
    }
}

/// Files that a case names and that have to be brought to their state first, by the program itself:
/// one that it has synced, and one that it has made and synced.
pub(crate) const BEFORE: &[(&str, &[&str])] = &[
    ("a/live", &["over a/live", "fsync a/live", "append a/live", "fsync a/live"]),
    ("a/made", &["create a/made", "fill a/made", "fsync a/made", "fsync a"]),
];

fn script(case: &Case, between: &[Spontaneous]) -> Script {
    let mut script = Script { lines: Vec::new(), own: Vec::new() };
    let named = case.paths();
    for (path, steps) in BEFORE.iter().filter(|(path, _)| named.iter().any(|named| named == path)) {
        let letter = path.as_bytes()[2] as char;
        script.lines.extend(steps.iter().map(|step| format!("p {letter} {step}")));
    }
    let here = |after: usize| between.iter().filter(move |sync| sync.after == after);
    script.lines.extend(here(0).map(spontaneous));
    for (index, step) in case.steps.iter().enumerate() {
        script.own.push(script.lines.len());
        script.lines.push(line(index, step));
        script.lines.extend(here(index + 1).map(spontaneous));
    }
    script
}

fn spontaneous(sync: &Spontaneous) -> String {
    format!("p z {}", sync.call)
}

fn line(index: usize, step: &Step) -> String {
    let tag = char::from(b'A' + index as u8);
    format!("{} {tag} {} {}", step.who.letter(), step.verb.name, step.paths.join(" "))
}

impl Cast {
    /// Waits until every step is made. Returns what came of the case's own.
    fn act(&mut self, board: &File, script: &Script) -> anyhow::Result<(Vec<i32>, Option<String>)> {
        let word = |index: usize| -> anyhow::Result<u32> {
            let mut bytes = [0; 4];
            board.read_exact_at(&mut bytes, 4 * index as u64)?;
            Ok(u32::from_ne_bytes(bytes))
        };
        ensure!(script.lines.len() < 64, "a script has 63 lines at most");
        let (mut turn, mut since, mut looks) = (0, Instant::now(), 0_u32);
        let mut trouble = None;
        while (turn as usize) < script.lines.len() {
            let now = word(0)?;
            if now != turn {
                (turn, since) = (now, Instant::now());
                continue;
            }
            looks += 1;
            if since.elapsed() > STEP_MAX {
                trouble = Some(format!("`{}` does not end", script.lines[turn as usize]));
                break;
            }
            if looks % 64 == 0
                && let Some(status) =
                    self.children.iter_mut().find_map(|child| child.try_wait().ok().flatten())
            {
                trouble = Some(format!("died ({status}) at `{}`", script.lines[turn as usize]));
                break;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        let results = script.own.iter().map(|index| Ok(word(1 + index)? as i32));
        Ok((results.collect::<anyhow::Result<_>>()?, trouble))
    }

    /// Stops all but the actors, which wait for the end: nobody writes while the device is copied.
    fn hold_still(&mut self) -> anyhow::Result<()> {
        // Children first: the keeper's work ends before its parent stands still.
        for pid in self.family()?.into_iter().rev() {
            let _gone = kill_process(pid, Signal::STOP);
            let started = Instant::now();
            // Who is in the kernel for longer waits for somebody that stands still: a keeper's
            // thread for the fence's.
            while !holdfast_e2e::proc::at_rest(pid.as_raw_nonzero().get() as u32)
                && started.elapsed() < STILL_MAX
            {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        Ok(())
    }

    /// All processes, parents before their children.
    fn family(&self) -> anyhow::Result<Vec<Pid>> {
        let roots = self.children.iter().map(Pid::from_child);
        let mut found: Vec<Pid> = roots.collect();
        let mut at = 0;
        while let Some(pid) = found.get(at).map(|pid| pid.as_raw_nonzero()) {
            let tasks = match std::fs::read_dir(format!("/proc/{pid}/task")) {
                Ok(tasks) => tasks,
                Err(_) => {
                    at += 1;
                    continue;
                }
            };
            for task in tasks.flatten() {
                let children = std::fs::read_to_string(task.path().join("children"));
                let Ok(children) = children else {
                    ensure!(!task.path().exists(), "this machine needs a kernel with CONFIG_PROC_CHILDREN");
                    // A thread that has just ended.
                    continue;
                };
                let pids = children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
                found.extend(pids);
            }
            at += 1;
        }
        Ok(found)
    }

    /// Kills all, and waits until the last has let go of everything.
    fn end(&mut self) -> anyhow::Result<()> {
        let family = self.family()?;
        for pid in &family {
            let _gone = kill_process(*pid, Signal::KILL);
        }
        for child in &mut self.children {
            child.wait()?;
        }
        // Orphans are ours: main asked for them.
        for pid in &family[self.children.len()..] {
            let _not_ours = waitpid(Some(*pid), WaitOptions::empty());
        }
        self.children.clear();
        Ok(())
    }
}

impl Drop for Cast {
    fn drop(&mut self) {
        if !self.children.is_empty() {
            let _failed = self.end();
        }
    }
}
