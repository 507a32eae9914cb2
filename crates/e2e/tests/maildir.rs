//! Mail delivery, whose renames slots hold (docs/crash/names.md): nobody waits for the disk,
//! and whatever is killed or cut off at any moment, every delivered message is there once and
//! whole. `HOLDFAST_E2E_ROUNDS` multiplies the rounds, `HOLDFAST_E2E_SEED` repeats them.

use holdfast_e2e::crash;
use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::report;
use holdfast_e2e::site::Workload;
use holdfast_e2e::storm::Storm;
use holdfast_e2e::workload::maildir::{Maildir, maildir};
use holdfast_testkit::rounds;

/// One deliverer by itself, two of them with a reader, or all of them through before they are cut
/// off.
fn mail(choice: u64) -> Box<dyn Workload> {
    let deliveries = if choice.is_multiple_of(5) { 40 } else { 1_000_000 };
    Box::new(Maildir { seed: choice % 1_000_000, deliverers: 1 + choice / 5 % 2, deliveries, links: false })
}

fn cut(name: &str, disk: &Disk, times: u64) {
    let mut storm = Storm::new(disk, name);
    while storm.goes_on(times * rounds()) {
        let choice = storm.random();
        storm.cut_power(&*mail(choice));
    }
    storm.tell(name);
}

#[test]
fn mail_survives_kills() {
    let disk = Disk::new(Kind::Ext4);
    let mut storm = Storm::new(&disk, "kills of mail delivery");
    while storm.goes_on(15 * rounds()) {
        let choice = storm.random();
        storm.kill(&*mail(choice));
    }
    storm.tell("kills of mail delivery");
}

#[test]
fn mail_survives_power_cuts_of_ext4() {
    cut("power cuts of mail on ext4", &Disk::forgetful(Kind::Ext4), 20);
}

#[test]
fn mail_survives_power_cuts_of_xfs() {
    cut("power cuts of mail on xfs", &Disk::forgetful(Kind::Xfs), 20);
}

#[test]
fn mail_survives_power_cuts_of_btrfs() {
    cut("power cuts of mail on btrfs", &Disk::forgetful(Kind::Btrfs), 20);
}

#[test]
fn control_without_syncs_loses_mail() {
    crash::control_loses_on_forgetful_disk(&maildir(2), Kind::Ext4);
}

#[test]
fn control_native_mail_survives() {
    crash::native_survives_forgetful_disk(&maildir(2), Kind::Ext4);
}

/// Each delivery syncs a file and a directory and renames: none of that waits for the disk.
#[test]
fn deliveries_do_not_wait_for_the_disk() {
    const DELIVERIES: u64 = 500;
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let mail = Maildir { seed: 7, deliverers: 1, deliveries: DELIVERIES, links: false };
    mail.make(&disk.root);
    let command = mail.command(&disk.root);
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    let (output, summary) = pool.run_summarised(&[], &command);
    output.expect(&[0]);
    let (absorbed, real) =
        (report::number(&summary, "syncs_absorbed"), report::number(&summary, "syncs_real"));
    assert!(absorbed >= 2 * DELIVERIES - 20, "{absorbed} syncs absorbed, {real} real\n{summary:#}");
    assert_eq!(report::number(&summary, "settles"), 0, "{summary:#}");
}
