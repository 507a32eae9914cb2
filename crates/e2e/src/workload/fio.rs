//! fio with `--verify=crc32c` cut off under load: every file that was completed before verifies
//! afterwards, block by block.

use crate::cmd::Cmd;
use crate::need;
use crate::site::{Site, Workload};

/// fio that writes one file after the other.
pub struct Fio;

/// The command line of fio on one file.
pub fn job(file: &str, more: &[&str]) -> Vec<String> {
    let options = [
        "--name=job",
        "--thread",
        "--rw=randwrite",
        "--bs=4k",
        "--size=512k",
        "--fallocate=none",
        "--verify=crc32c",
        // Its notes would stay in the working directory.
        "--verify_state_save=0",
        "--output=/dev/null",
    ];
    let mut argv = vec![need::tool("fio").to_str().expect("text").to_owned(), format!("--filename={file}")];
    argv.extend(options.into_iter().chain(more.iter().copied()).map(str::to_owned));
    argv
}

impl Workload for Fio {
    fn name(&self) -> String {
        "fio".into()
    }

    fn prepare(&self, _site: &Site) {}

    /// One file after the other, each written at random with an fsync per block and one at the end.
    fn program(&self, site: &Site) -> Vec<String> {
        let fio = job("\"$1/file-$i\"", &["--fsync=1", "--end_fsync=1", "--do_verify=0"]).join(" ");
        let script = format!("i=0; while :; do i=$((i+1)); {fio} || exit 1; echo ack $i; done");
        vec!["/bin/sh".into(), "-c".into(), script, "sh".into(), site.dir.to_str().expect("text").into()]
    }

    fn check(&self, site: &Site, acks: &[String]) -> Result<(), String> {
        for number in acks {
            let argv = job(&site.path(&format!("file-{number}")), &["--verify_only", "--verify_fatal=1"]);
            // fio makes a missing file and finds nothing to complain of.
            let whole = std::fs::metadata(site.path(&format!("file-{number}")))
                .is_ok_and(|meta| meta.len() == 512 << 10);
            if !whole {
                return Err(format!("file {number} of {} is missing or short", acks.len()));
            }
            let verified = Cmd::new(&argv[0]).args(&argv[1..]).dir(&site.aside).output();
            if !verified.status.success() {
                return Err(format!("file {number} of {}:\n{}", acks.len(), verified.told()));
            }
        }
        Ok(())
    }

    fn life_ms_max(&self) -> u64 {
        1200
    }

    fn acks_min(&self) -> usize {
        2
    }
}
