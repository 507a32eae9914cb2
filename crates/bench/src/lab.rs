//! Where benchmarks run: directories, pools, and how a program is started on each side.
//!
//! It owns what it creates and removes it at the end; it must never write outside its own
//! directories.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use tempfile::TempDir;

use crate::machine;
use crate::running::{Running, Summaries, done};

/// The pool `holdfast run --volatile` makes by default.
pub const DEFAULT_POOL_BYTES: u64 = 256 << 20;

/// What the user asked for.
pub struct Options {
    /// Times each side is run.
    pub rounds: u32,
    /// Length of one run of one side.
    pub seconds: u64,
    /// Directory on the file system to measure.
    pub dir: PathBuf,
    /// The user's pool.
    pub pool: Option<PathBuf>,
    /// Size of the main pool when it is created.
    pub pool_bytes: u64,
    /// Whether Holdfast is told that nobody else uses the directory.
    pub exclusive: bool,
    /// The user's holdfast program.
    pub holdfast: Option<PathBuf>,
}

/// How a program is started.
#[derive(Clone, Debug)]
pub enum Side {
    /// As it is, on the file system under test.
    Native,
    /// Under eatmydata, on the file system under test: syncs are dropped, nothing is durable.
    Eatmydata,
    /// As it is, on tmpfs: nothing is durable.
    Tmpfs,
    /// Under Holdfast with this pool and these further options.
    Holdfast(PathBuf, Vec<String>),
}

/// What `--summary=FILE` says, as far as benchmarks care.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Summary {
    writes_absorbed: u64,
    syncs_absorbed: u64,
    syncs_real: u64,
    keeper_fsyncs: u64,
    stalls: u64,
    stall_ns: u64,
    bypassed: Vec<Bypassed>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Bypassed {
    path: String,
    reason: String,
}

/// The place where benchmarks run.
pub struct Lab {
    /// What the user asked for.
    pub options: Options,
    /// The main pool.
    pub pool: PathBuf,
    /// The holdfast program.
    pub holdfast: PathBuf,
    files: TempDir,
    memory: TempDir,
    made_pools: RefCell<Vec<PathBuf>>,
    summaries: RefCell<Vec<Summary>>,
}

impl Lab {
    /// Finds the program and makes the directories.
    pub fn new(mut options: Options) -> Result<Self> {
        options.dir = options
            .dir
            .canonicalize()
            .with_context(|| format!("cannot use --dir {}", options.dir.display()))?;
        let kind = machine::file_system(&options.dir).unwrap_or_default();
        if !["ext4 ", "xfs ", "btrfs "].iter().any(|known| kind.starts_with(known)) {
            bail!(
                "{} is on {kind}, which Holdfast leaves to the kernel; choose a directory on ext4, xfs or btrfs with --dir",
                options.dir.display()
            );
        }
        let holdfast = find_holdfast(options.holdfast.take())?;
        let temporary = |dir: &Path| {
            tempfile::Builder::new()
                .prefix("holdfast-bench-")
                .tempdir_in(dir)
                .with_context(|| format!("could not make a directory in {}", dir.display()))
        };
        let files = temporary(&options.dir)?;
        let memory = temporary(Path::new("/dev/shm"))?;
        Ok(Self {
            pool: options.pool.clone().unwrap_or_else(|| memory.path().join("main.pool")),
            options,
            holdfast,
            files,
            memory,
            made_pools: RefCell::default(),
            summaries: RefCell::default(),
        })
    }

    /// The directory where a side keeps its files.
    pub fn home(&self, side: &Side) -> &Path {
        match side {
            Side::Tmpfs => self.memory.path(),
            _ => self.files.path(),
        }
    }

    /// A directory in memory for scripts, sockets and results.
    pub fn scratch(&self) -> &Path {
        self.memory.path()
    }

    /// Holdfast with the main pool, which is made when first asked for.
    pub fn main_side(&self) -> Result<Side> {
        if !self.pool.exists() {
            self.make_pool(&self.pool, self.options.pool_bytes)?;
        }
        Ok(Side::Holdfast(self.pool.clone(), Vec::new()))
    }

    /// As `main_side`, with one more option.
    pub fn main_side_with(&self, option: &str) -> Result<Side> {
        Ok(match self.main_side()? {
            Side::Holdfast(pool, _) => Side::Holdfast(pool, vec![option.to_owned()]),
            side => side,
        })
    }

    /// Holdfast with a pool of another size, beside the main one.
    pub fn sized_side(&self, pool_bytes: u64) -> Result<Side> {
        self.side_beside(&format!("{}m", pool_bytes >> 20), pool_bytes)
    }

    fn side_beside(&self, suffix: &str, pool_bytes: u64) -> Result<Side> {
        ensure!(
            !self.pool.starts_with("/dev/dax"),
            "this benchmark needs a pool of {} MiB beside the main one; give --pool on a DAX file system",
            pool_bytes >> 20
        );
        let mut name = self.pool.file_name().unwrap_or_default().to_os_string();
        name.push(format!(".{suffix}"));
        let path = self.pool.with_file_name(name);
        if !path.exists() {
            self.make_pool(&path, pool_bytes)?;
        }
        Ok(Side::Holdfast(path, Vec::new()))
    }

    /// The same where the log goes on in a file when it is full. The file is made now: that is done
    /// once for all runs.
    pub fn spilling(&self, side: &Side, bytes: u64) -> Result<Side> {
        let Side::Holdfast(pool, options) = side else { return Ok(side.clone()) };
        let file = self.files.path().join("spill");
        let mut options = options.clone();
        options.push(format!("--spill={}", file.display()));
        options.push(format!("--spill-size={bytes}"));
        let side = Side::Holdfast(pool.clone(), options);
        self.run(&side, &["true".into()])?;
        self.summaries.borrow_mut().pop();
        Ok(side)
    }

    /// Holdfast with a pool of a user's own, for programs that run as this user: a keeper serves
    /// one.
    pub fn side_of(&self, user: &str) -> Result<Side> {
        let Side::Holdfast(path, options) = self.side_beside(user, self.options.pool_bytes)? else {
            bail!("no side of Holdfast's")
        };
        done(Command::new("chown").arg(user).arg(&path))?;
        // Its user has to get there, and to the summary.
        fs::set_permissions(self.memory.path(), fs::Permissions::from_mode(0o711))?;
        Ok(Side::Holdfast(path, options))
    }

    fn make_pool(&self, path: &Path, bytes: u64) -> Result<()> {
        self.made_pools.borrow_mut().push(path.to_path_buf());
        self.holdfast(&["format", "--volatile", "--size", &bytes.to_string(), "--pool"], path).map(drop)
    }

    /// Runs a subcommand of holdfast on a pool and returns what it printed.
    pub fn holdfast(&self, args: &[&str], pool: &Path) -> Result<String> {
        let mut command = Command::new(&self.holdfast);
        command.args(args).arg(pool);
        done(&mut command)
    }

    /// Runs a program on a side and returns what it printed.
    pub fn run(&self, side: &Side, program: &[String]) -> Result<String> {
        self.start(side, program, Stdio::null())?.finish(self)
    }

    /// Starts a program on a side.
    pub fn start(&self, side: &Side, program: &[String], stdin: Stdio) -> Result<Running> {
        self.start_as(None, side, program, stdin)
    }

    /// The same as another user, if one is named, who is given the fence of root; and so all of
    /// Holdfast.
    pub fn start_as(
        &self,
        user: Option<&str>,
        side: &Side,
        program: &[String],
        stdin: Stdio,
    ) -> Result<Running> {
        let mut summary = None;
        let mut command = match side {
            Side::Native | Side::Tmpfs => Command::new(&program[0]),
            Side::Eatmydata => Command::new("eatmydata"),
            Side::Holdfast(..) => Command::new(&self.holdfast),
        };
        match side {
            Side::Native | Side::Tmpfs => {
                command.args(&program[1..]);
            }
            Side::Eatmydata => {
                command.args(program);
            }
            Side::Holdfast(pool, extra) => {
                let path = self.memory.path().join("summary.json");
                // A summary of the run before must not be taken for this one's.
                fs::remove_file(&path).ok();
                if let Some(user) = user {
                    fs::write(&path, "")?;
                    done(Command::new("chown").arg(user).arg(&path))?;
                }
                command.args(["run", "--volatile"]).arg("--pool").arg(pool).args(extra);
                // What is measured is what writes cost that are durable, all of them; a side may
                // say otherwise.
                if !extra.iter().any(|option| option.starts_with("--durability")) {
                    command.arg("--durability=write");
                }
                command.arg(format!("--summary={}", path.display()));
                if self.options.exclusive {
                    command.arg("--exclusive").arg(self.files.path());
                }
                command.arg("--").args(program);
                summary = Some(path);
            }
        }
        if let Some(user) = user {
            let inner = std::mem::replace(&mut command, Command::new("setpriv"));
            let (uid, gid) = (format!("--reuid={user}"), format!("--regid={user}"));
            command.args([&uid, &gid, "--clear-groups"]);
            // For fanotify.
            command.args(["--inh-caps=+sys_admin", "--ambient-caps=+sys_admin"]);
            command.arg(inner.get_program()).args(inner.get_args());
        }
        Running::start(command, stdin, summary)
    }

    /// Brings the file system under test to rest, so that no side pays for the one before.
    pub fn settle(&self) -> Result<()> {
        let dir = fs::File::open(self.files.path())?;
        rustix::fs::syncfs(dir).context("could not sync the file system under test")
    }

    /// What Holdfast absorbed since the last call, in words; a side that was `expected` to absorb
    /// and did not proves nothing, and that is said.
    pub fn take_absorbed_notes(&self, expected: bool) -> Vec<String> {
        let summaries = std::mem::take(&mut *self.summaries.borrow_mut());
        if summaries.is_empty() {
            return Vec::new();
        }
        let sum = |field: fn(&Summary) -> u64| summaries.iter().map(field).sum::<u64>();
        let mut notes = vec![format!(
            "{} runs under Holdfast absorbed {} writes and {} syncs; {} syncs were passed on, the keeper made {}; \
             {} stalls, {} ms in all",
            summaries.len(),
            sum(|s| s.writes_absorbed),
            sum(|s| s.syncs_absorbed),
            sum(|s| s.syncs_real),
            sum(|s| s.keeper_fsyncs),
            sum(|s| s.stalls),
            sum(|s| s.stall_ns) / 1_000_000,
        )];
        if expected && summaries.iter().any(|s| s.writes_absorbed == 0) {
            notes.push(
                "NOTHING WAS ABSORBED in at least one run: the numbers prove nothing about Holdfast".into(),
            );
        }
        let mut seen: Vec<String> = summaries
            .iter()
            .flat_map(|s| &s.bypassed)
            // Pipes' and helpers' files of this program are bypassed too, and rightly.
            .filter(|file| Path::new(&file.path).starts_with(self.files.path()))
            .map(|file| format!("bypassed: {} ({})", file.path, file.reason))
            .collect();
        seen.sort();
        seen.dedup();
        seen.truncate(5);
        notes.extend(seen);
        notes
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for path in self.made_pools.borrow().iter() {
            fs::remove_file(path).ok();
        }
    }
}

/// Writes a file of `bytes` by 4 KiB writes, so that the page cache holds it warm and in small
/// folios on every side alike, and syncs it. A file of the right size is left alone.
pub fn lay_out(path: &Path, bytes: u64) -> Result<()> {
    use std::io::Write;
    if fs::metadata(path).is_ok_and(|found| found.size() == bytes) {
        return Ok(());
    }
    let mut file = fs::File::create(path).with_context(|| format!("could not create {}", path.display()))?;
    let mut block = [0u8; 4096];
    for number in 0..bytes / 4096 {
        block[..8].copy_from_slice(&number.to_le_bytes());
        file.write_all(&block).with_context(|| format!("could not fill {}", path.display()))?;
    }
    file.sync_all().with_context(|| format!("could not sync {}", path.display()))
}

fn find_holdfast(given: Option<PathBuf>) -> Result<PathBuf> {
    let path = match given {
        Some(path) => path,
        None => std::env::current_exe()?.with_file_name("holdfast"),
    };
    let library = path.with_file_name("libholdfast.so");
    for file in [&path, &library] {
        ensure!(
            file.is_file(),
            "{} is missing; build it with: cargo build --release (or name the program with --holdfast)",
            file.display()
        );
    }
    Ok(path)
}

impl Summaries for Lab {
    fn keep_summary(&self, path: &Path) -> Result<()> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("holdfast left no summary at {}", path.display()))?;
        let summary = serde_json::from_str(&text).context("the summary is not what was expected")?;
        self.summaries.borrow_mut().push(summary);
        Ok(())
    }
}
