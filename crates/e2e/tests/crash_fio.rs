//! fio with `--verify=crc32c` cut off under load: every file that was completed before verifies afterwards, block by block.

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::crash::{self, Site, Workload};
use holdfast_e2e::disk::Kind;
use holdfast_e2e::{need, pool::Pool, report};

struct Fio;

fn job(file: &str, more: &[&str]) -> Vec<String> {
    let options = [
        "--name=job",
        "--thread",
        "--rw=randwrite",
        "--bs=4k",
        "--size=512k",
        "--fallocate=none",
        "--verify=crc32c",
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

    fn acks_min(&self) -> usize {
        2
    }
}

#[test]
fn verifies_its_own_writes_in_one_run() {
    let pool = Pool::new();
    let disk = holdfast_e2e::disk::Disk::new(Kind::Ext4);
    let file = disk.root.join("file");
    let argv = job(file.to_str().expect("text"), &["--fsync=1", "--do_verify=1", "--verify_fatal=1"]);
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    let (output, summary) = pool.run_summarised(&[], &argv);
    output.ok();
    assert!(report::number(&summary, "writes_absorbed") >= 128, "{summary:#}");
    assert!(report::number(&summary, "syncs_absorbed") >= 100, "{summary:#}");
}

#[test]
fn survives_kills() {
    crash::survives_kills(&Fio);
}

#[test]
fn survives_a_power_cut_of_ext4() {
    crash::survives_power_cut(&Fio, Kind::Ext4);
}

#[test]
fn survives_a_power_cut_of_xfs() {
    crash::survives_power_cut(&Fio, Kind::Xfs);
}

#[test]
fn control_without_syncs_loses_files() {
    crash::control_loses_in_power_cut(&Fio, Kind::Ext4);
    crash::control_loses_in_power_cut(&Fio, Kind::Xfs);
}

#[test]
fn control_checker_accepts_a_plain_kill() {
    crash::checker_accepts_native_kill(&Fio);
}

#[test]
fn control_native_survives_a_power_cut() {
    for kind in [Kind::Ext4, Kind::Xfs] {
        crash::native_survives_power_cut(&Fio, kind);
    }
}
