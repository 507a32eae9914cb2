//! git commits and collections cut off under load: every commit that was reported is reachable
//! afterwards and `git fsck` is content.

use std::collections::BTreeSet;

use crate::cmd::Cmd;
use crate::disk::Kind;
use crate::site::{Site, Workload};

/// One repository.
pub struct Git {
    /// Where it is.
    pub kind: Kind,
    /// Whether it is packed now and then.
    pub packs: bool,
}

/// Commits for ever, packs everything now and then, and names each commit once git has returned.
const COMMITS: &str = "
cd \"$1\" || exit 1
i=0
while :; do
    i=$((i+1))
    echo \"line $i\" >> file-$((i % 7))
    git add . && git commit -q -m \"commit $i\" || exit 1
    echo ack $(git rev-parse HEAD)
    if [ $((i % $2)) = 0 ]; then git gc -q --prune=now || exit 1; fi
done
";

impl Workload for Git {
    fn name(&self) -> String {
        "git".into()
    }

    fn prepare(&self, site: &Site) {
        let git = |args: &[&str]| Cmd::new("git").arg("-C").arg(&site.dir).args(args).ok();
        git(&["init", "-q", "-b", "main"]);
        for (name, value) in [
            ("user.name", "Tester"),
            ("user.email", "tester@example.org"),
            ("core.fsync", "all"),
            ("core.fsyncMethod", "fsync"),
            ("gc.auto", "0"),
        ] {
            git(&["config", name, value]);
        }
        git(&["commit", "-q", "--allow-empty", "-m", "start"]);
    }

    fn program(&self, site: &Site) -> Vec<String> {
        let dir = site.dir.to_str().expect("text").to_owned();
        let every = if self.packs { "12" } else { "1000000" };
        vec!["/bin/sh".into(), "-c".into(), COMMITS.into(), "sh".into(), dir, every.into()]
    }

    fn check(&self, site: &Site, acks: &[String]) -> Result<(), String> {
        let git = |args: &[&str]| {
            let output = Cmd::new("git").arg("-C").arg(&site.dir).args(args).output();
            if output.status.success() { Ok(output.stdout) } else { Err(output.told()) }
        };
        git(&["fsck", "--full", "--strict", "--no-reflogs"])?;
        let list = git(&["rev-list", "HEAD"])?;
        let commits: BTreeSet<&str> = list.lines().collect();
        match acks.iter().position(|commit| !commits.contains(commit.as_str())) {
            Some(at) => Err(format!("commit {} of {} is not in the history", at + 1, acks.len())),
            None => Ok(()),
        }
    }

    fn acks_min(&self) -> usize {
        15
    }

    /// git does not sync the directory after the rename that moves a branch: it becomes durable
    /// with the next commit's syncs where a journal keeps their order.
    fn acks_loose_max(&self) -> usize {
        if self.kind == Kind::Btrfs { usize::MAX } else { 1 }
    }

    fn life_ms_max(&self) -> u64 {
        1000
    }
}
