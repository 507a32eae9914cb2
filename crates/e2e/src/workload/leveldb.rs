//! LevelDB, closed and reopened all the time: every key that was put with a synchronous write is
//! there, and the database can be opened with all its checks on.

use crate::cmd::Cmd;
use crate::need;
use crate::site::{Site, Workload};

const SCRIPT: &str = include_str!("../../tests/leveldb.py");

/// One database.
pub struct LevelDb {
    /// Decides the values, and when it is reopened.
    pub seed: u64,
}

impl LevelDb {
    fn command(&self, site: &Site, what: &str) -> Vec<String> {
        need::debian_file("/usr/lib/python3/dist-packages/plyvel", "python3-plyvel");
        let python = need::tool("python3").to_str().expect("text").to_owned();
        vec![python, "-c".into(), SCRIPT.into(), what.into(), site.path("db"), self.seed.to_string()]
    }
}

impl Workload for LevelDb {
    fn name(&self) -> String {
        format!("LevelDB, seed {}", self.seed)
    }

    fn prepare(&self, _site: &Site) {}

    fn program(&self, site: &Site) -> Vec<String> {
        self.command(site, "load")
    }

    fn life_ms_max(&self) -> u64 {
        700
    }

    fn check(&self, site: &Site, acks: &[String]) -> Result<(), String> {
        let judge = self.command(site, "judge");
        let judged = Cmd::new(&judge[0]).args(&judge[1..]).arg(acks.len().to_string()).output();
        if judged.status.success() {
            return Ok(());
        }
        let names = std::fs::read_dir(site.dir.join("db")).into_iter().flatten().flatten();
        let names: Vec<String> =
            names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        let current = std::fs::read_to_string(site.dir.join("db/CURRENT"));
        let told = judged.stderr.lines().last().unwrap_or_default();
        Err(format!("{told}\nCURRENT: {current:?}, files: {}", names.join(" ")))
    }
}
