//! Redis: `appendfsync always`, driven by redis-benchmark over a Unix socket.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::behind_writes::behind;
use crate::lab::{Lab, Side};
use crate::report::{Bar, Check, Outcome, Run, Series, interleave};

/// SET, one request in flight per client and then many.
pub fn set(lab: &Lab) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    // Requests per second only size the runs.
    for (clients, pipeline, per_s) in [(8, 1, 50_000), (50, 1, 60_000), (50, 16, 300_000)] {
        let sides = [
            ("native", Side::Native),
            ("holdfast", lab.main_side()?),
            ("eatmydata", Side::Eatmydata),
            ("holdfast, write-behind", behind(lab.main_side()?)),
        ];
        let runs = sides
            .into_iter()
            .map(|(label, side)| -> Run<'_> {
                let load = Load { clients, pipeline, requests: per_s * lab.options.seconds };
                let label = format!("{label}, {clients} clients, pipeline {pipeline}");
                (label, Box::new(move || load.sample(lab, &side)))
            })
            .collect();
        let series: Vec<Series> = interleave(lab.options.rounds, "SET/s", runs)?;
        outcome.checks.push(Check::ratio(&series[1], &series[2], Some(Bar::AtLeast(0.75))));
        outcome.checks.push(Check::ratio(&series[3], &series[2], Some(Bar::AtLeast(0.95))));
        outcome.checks.push(Check::ratio(&series[1], &series[0], None));
        outcome.series.extend(series);
    }
    Ok(outcome)
}

struct Load {
    clients: u64,
    pipeline: u64,
    requests: u64,
}

impl Load {
    fn sample(&self, lab: &Lab, side: &Side) -> Result<f64> {
        let dir = lab.home(side).join("redis");
        std::fs::remove_dir_all(&dir).ok();
        std::fs::create_dir(&dir)?;
        lab.settle()?;
        let socket = lab.scratch().join("redis.sock");
        std::fs::remove_file(&socket).ok();
        let server: Vec<String> = [
            "redis-server",
            "--port",
            "0",
            "--unixsocket",
            &socket.display().to_string(),
            "--dir",
            &dir.display().to_string(),
            "--save",
            "",
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
            // A rewrite in the middle of a run would hit one side and not the other.
            "--auto-aof-rewrite-percentage",
            "0",
        ]
        .iter()
        .map(ToString::to_string)
        .collect();
        let server = lab.start(side, &server, Stdio::null())?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while !client(&socket, &["ping"]).is_ok_and(|answer| answer.contains("PONG")) {
            ensure!(Instant::now() < deadline, "redis-server does not answer: {}", server.complaints());
            std::thread::sleep(Duration::from_millis(50));
        }
        let rate = self.drive(&socket)?;
        client(&socket, &["shutdown", "nosave"]).ok();
        server.finish(lab)?;
        Ok(rate)
    }

    fn drive(&self, socket: &Path) -> Result<f64> {
        let mut command = Command::new("redis-benchmark");
        command.arg("-s").arg(socket).args(["-t", "set", "-d", "100", "-r", "100000", "--csv"]);
        for (flag, value) in [("-c", self.clients), ("-P", self.pipeline), ("-n", self.requests)] {
            command.arg(flag).arg(value.to_string());
        }
        let output = command.output().context("could not start redis-benchmark")?;
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines()
            .find_map(|line| line.strip_prefix("\"SET\",\"")?.split('"').next()?.parse().ok())
            .with_context(|| format!("redis-benchmark printed no result: {text}"))
    }
}

fn client(socket: &Path, args: &[&str]) -> Result<String> {
    let output = Command::new("redis-cli").arg("-s").arg(socket).args(args).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
