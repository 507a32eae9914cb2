//! git commits and collections cut off under load: every commit that was reported is reachable afterwards and `git fsck` is
//! content.

use std::collections::BTreeSet;

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::crash::{self, Site, Workload};
use holdfast_e2e::disk::Kind;

struct Git;

/// Commits for ever, packs everything now and then, and names each commit once git has returned.
const COMMITS: &str = "
cd \"$1\" || exit 1
i=0
while :; do
    i=$((i+1))
    echo \"line $i\" >> file-$((i % 7))
    git add . && git commit -q -m \"commit $i\" || exit 1
    echo ack $(git rev-parse HEAD)
    if [ $((i % 12)) = 0 ]; then git gc -q --prune=now || exit 1; fi
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
        vec!["/bin/sh".into(), "-c".into(), COMMITS.into(), "sh".into(), dir]
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

    /// git does not sync the directory after the rename that moves a branch.
    fn acks_loose_max(&self) -> usize {
        1
    }
}

#[test]
fn survives_kills() {
    crash::survives_kills(&Git);
}

#[test]
fn survives_a_power_cut_of_ext4() {
    crash::survives_power_cut(&Git, Kind::Ext4);
}

#[test]
fn survives_a_power_cut_of_xfs() {
    crash::survives_power_cut(&Git, Kind::Xfs);
}

#[test]
fn control_without_syncs_loses_commits() {
    crash::control_loses_in_power_cut(&Git, Kind::Ext4);
    crash::control_loses_in_power_cut(&Git, Kind::Xfs);
}

#[test]
fn control_checker_accepts_a_plain_kill() {
    crash::checker_accepts_native_kill(&Git);
}

#[test]
fn control_native_survives_a_power_cut() {
    for kind in [Kind::Ext4, Kind::Xfs] {
        crash::native_survives_power_cut(&Git, kind);
    }
}
