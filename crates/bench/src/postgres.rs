//! PostgreSQL: its own pgbench against a server on each side. It must never run the server as root,
//! which refuses that.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::geteuid;

use crate::behind_writes::behind;
use crate::lab::{Lab, Side};
use crate::machine::find_program;
use crate::report::{Check, Outcome, Run, interleave};
use crate::running::done;

/// Whom Debian makes for the server.
const USER: &str = "postgres";
/// A million accounts, about 150 MiB.
const SCALE: &str = "10";
/// Twice this machine's processors keep both of them busy while others wait.
const CLIENTS: &str = "4";

/// TPC-B as pgbench has it: durable commits, and a server that syncs nothing for comparison.
pub fn tpcb(lab: &Lab) -> Result<Outcome> {
    let cluster = Cluster::make(lab)?;
    let held = user().map_or_else(|| lab.main_side(), |user| lab.side_of(user))?;
    let sides = [
        ("native", Side::Native, true),
        ("holdfast", held.clone(), true),
        ("native, fsync=off (not durable)", Side::Native, false),
        ("holdfast, write-behind", behind(held), true),
    ];
    let runs = sides
        .into_iter()
        .map(|(label, side, durable)| -> Run<'_> {
            let cluster = &cluster;
            (label.into(), Box::new(move || cluster.sample(lab, &side, durable)))
        })
        .collect();
    let series = interleave(lab.options.rounds, "tx/s", runs)?;
    let checks = vec![
        Check::ratio(&series[1], &series[0], None),
        Check::ratio(&series[1], &series[2], None),
        Check::ratio(&series[3], &series[2], None),
    ];
    let notes = vec![format!("pgbench -c {CLIENTS}, scale {SCALE}, one cluster that all sides use in turn")];
    Ok(Outcome { series, checks, notes, ..Outcome::default() })
}

/// Whom the server runs as, if not as whoever runs this.
fn user() -> Option<&'static str> {
    geteuid().is_root().then_some(USER)
}

/// A data directory with pgbench's tables, and the socket beside it.
struct Cluster {
    dir: PathBuf,
    programs: PathBuf,
}

impl Cluster {
    fn make(lab: &Lab) -> Result<Self> {
        let programs =
            find_program("initdb").and_then(|path| Some(path.canonicalize().ok()?.parent()?.to_path_buf()));
        let programs = programs.context("initdb went away")?;
        let dir = lab.home(&Side::Native).join("postgres");
        let cluster = Self { dir, programs };
        fs::create_dir(&cluster.dir)?;
        // Its user has to get there.
        fs::set_permissions(lab.home(&Side::Native), Permissions::from_mode(0o755))?;
        if geteuid().is_root() {
            done(Command::new("chown").arg(USER).arg(&cluster.dir))?;
        }
        done(&mut cluster.command("initdb", &["-N", "-A", "trust", "-U", USER, "-D", &cluster.data()]))?;
        let server = lab.start_as(user(), &Side::Native, &cluster.server(true), Stdio::null())?;
        cluster.wait(|| server.complaints())?;
        cluster.pgbench(&["-i", "-q", "-s", SCALE])?;
        cluster.stop()?;
        server.finish(lab)?;
        Ok(cluster)
    }

    fn sample(&self, lab: &Lab, side: &Side, durable: bool) -> Result<f64> {
        lab.settle()?;
        let server = lab.start_as(user(), side, &self.server(durable), Stdio::null())?;
        self.wait(|| server.complaints())?;
        let told = self.pgbench(&["-n", "-c", CLIENTS, "-j", "2", "-T", &lab.options.seconds.to_string()])?;
        self.stop()?;
        server.finish(lab)?;
        told.lines()
            .find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok())
            .with_context(|| format!("pgbench printed no result: {told}"))
    }

    fn data(&self) -> String {
        self.dir.join("data").display().to_string()
    }

    /// A program of PostgreSQL with its arguments, as the server's user.
    fn argv(&self, program: &str, args: &[&str]) -> Vec<String> {
        let mut argv = Vec::new();
        if let Some(user) = user() {
            let uid = format!("--reuid={user}");
            argv.extend(["setpriv", &uid, "--regid", user, "--clear-groups"].map(str::to_owned));
        }
        argv.push(self.programs.join(program).display().to_string());
        argv.extend(args.iter().map(|&arg| arg.to_owned()));
        argv
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let argv = self.argv(program, args);
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]).current_dir(&self.dir);
        command
    }

    fn server(&self, durable: bool) -> Vec<String> {
        let (data, sockets) = (self.data(), self.dir.display().to_string());
        let fsync = if durable { "fsync=on" } else { "fsync=off" };
        let args = ["-D", &data, "-k", &sockets, "-c", "listen_addresses=", "-c", fsync];
        let program = self.programs.join("postgres").display().to_string();
        std::iter::once(program).chain(args.map(str::to_owned)).collect()
    }

    fn wait(&self, complaints: impl Fn() -> String) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(30);
        while done(&mut self.command("pg_isready", &["-q", "-h", text(&self.dir)?])).is_err() {
            ensure!(Instant::now() < deadline, "postgres does not answer: {}", complaints());
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn pgbench(&self, args: &[&str]) -> Result<String> {
        let mut command = self.command("pgbench", args);
        done(command.args(["-h", text(&self.dir)?, "-U", USER, USER]))
    }

    fn stop(&self) -> Result<()> {
        done(&mut self.command("pg_ctl", &["stop", "-m", "fast", "-D", &self.data()])).map(drop)
    }
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not text", path.display()))
}
