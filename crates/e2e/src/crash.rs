//! Cutting a program off under load and judging what is left. A workload says how it is prepared,
//! started and checked; this module kills, cuts power, recovers, and demands every acknowledged
//! item. Acknowledgements are kept in the memory of the test, outside everything that is cut.

use std::time::Duration;

use holdfast_forgetful::Page;

use crate::disk::{Disk, Kind};
use crate::job::{Cut, Guard, Job};
use crate::need;
use crate::pool::Pool;
use crate::proc::wait_until;
use crate::site::Workload;
use crate::tally::Tally;
use holdfast_testkit::{Random, rounds};

/// Kills of all kinds under load on a file system that stays up; nothing acknowledged may be
/// missing.
pub fn survives_kills(workload: &dyn Workload) {
    let (disk, pool) = (Disk::new(Kind::Ext4), pool_for(workload));
    let (mut random, mut tally) = (Random::named(&workload.name()), Tally::new());
    for round in 0..rounds() {
        for cut in [Cut::Program, Cut::KeeperAndProgram, Cut::All] {
            let mut job = Job::start(workload, &disk, &pool, Guard::Holdfast);
            job.load(&mut random);
            job.must_absorb(&pool);
            let status = job.cut(cut, &pool);
            assert!(!status.success(), "success after {cut:?} was killed\n{}", job.told());
            tally.kill(cut);
            let acks = job.end();
            // A kill leaves the page cache as it was: then a sync does, unless the log is asked
            // for.
            let options: &[&str] = if random.between(0, 1) == 0 { &[] } else { &["--replay"] };
            let recovered = pool.recover(options);
            recovered.ok();
            if let Err(error) = workload.check(&job.site, &acks) {
                panic!(
                    "{} lost after {cut:?} was killed (round {round}, {} acknowledged): {error}\n{}\nrecovery:\n{}",
                    workload.name(),
                    acks.len(),
                    job.told(),
                    recovered.told()
                );
            }
        }
    }
    tally.tell(&workload.name(), &random);
}

/// The power of the file system is cut under load, everything is killed, power comes back; nothing
/// acknowledged may be missing.
pub fn survives_power_cut(workload: &dyn Workload, kind: Kind) {
    survives_power_cuts_of(workload, &Disk::new(kind), rounds(), false);
}

/// The same on a disk that forgets what was not flushed, cut while everything runs.
pub fn survives_forgetful_disk(workload: &dyn Workload, kind: Kind) {
    survives_power_cuts_of(workload, &Disk::forgetful(kind), 3 * rounds(), false);
}

/// The same, and a flush fails before.
pub fn survives_failed_flush(workload: &dyn Workload, kind: Kind) {
    survives_power_cuts_of(workload, &Disk::forgetful(kind), 3 * rounds(), true);
}

fn survives_power_cuts_of(workload: &dyn Workload, disk: &Disk, rounds: u64, flush_fails: bool) {
    let pool = pool_for(workload);
    let (mut random, mut tally) = (Random::named(&workload.name()), Tally::new());
    for round in 0..rounds {
        let mut job = Job::start(workload, disk, &pool, Guard::Holdfast);
        job.load(&mut random);
        job.must_absorb(&pool);
        if flush_fails {
            disk.fail_a_flush();
            tally.add("failed flushes", 1);
            std::thread::sleep(Duration::from_millis(random.between(0, 200)));
        }
        job.lose_power(disk, &pool, &mut random);
        tally.power_cut(disk);
        let acks = job.end();
        disk.restore_power();
        let recovered = pool.recover(&[]);
        recovered.ok();
        if let Err(error) = workload.check(&job.site, promised(workload, &acks)) {
            panic!(
                "{} lost in a power cut of {disk} (round {round}, a flush failed before: {flush_fails}, {} \
                 acknowledged): {error}\n{}\nrecovery:\n{}",
                workload.name(),
                acks.len(),
                job.told(),
                recovered.told()
            );
        }
    }
    tally.tell(&format!("{} on {disk}", workload.name()), &random);
}

/// The acknowledgements that the program itself promises through a power cut.
pub(crate) fn promised<'a>(workload: &dyn Workload, acks: &'a [String]) -> &'a [String] {
    &acks[..acks.len().saturating_sub(workload.acks_loose_max())]
}

/// The control: the same power cut with every sync dropped must lose acknowledged data, or the test
/// above proves nothing.
pub fn control_loses_in_power_cut(workload: &dyn Workload, kind: Kind) {
    control_loses_on(workload, &Disk::new(kind));
}

/// The same control on a forgetful disk.
pub fn control_loses_on_forgetful_disk(workload: &dyn Workload, kind: Kind) {
    control_loses_on(workload, &Disk::forgetful(kind));
}

fn control_loses_on(workload: &dyn Workload, disk: &Disk) {
    need::tool("eatmydata");
    let pool = pool_for(workload);
    let mut random = Random::named(&workload.name());
    // Anybody on this machine may call sync at the wrong moment, but hardly three times.
    let lost = (0..3).any(|_| {
        let mut job = Job::start(workload, disk, &pool, Guard::Eatmydata);
        job.load(&mut random);
        job.lose_power(disk, &pool, &mut random);
        let acks = job.end();
        disk.restore_power();
        let verdict = workload.check(&job.site, &acks);
        println!("{} on {disk}: control, {} acknowledged: {verdict:?}", workload.name(), acks.len());
        verdict.is_err()
    });
    assert!(lost, "{}: without syncs nothing was lost on {disk}: the power cut is none", workload.name());
}

/// The other control: the same power cut of the program by itself keeps what it acknowledged, so
/// the cut takes only what was not synced.
pub fn native_survives_power_cut(workload: &dyn Workload, kind: Kind) {
    native_survives_on(workload, &Disk::new(kind));
}

/// The same control on a forgetful disk.
pub fn native_survives_forgetful_disk(workload: &dyn Workload, kind: Kind) {
    native_survives_on(workload, &Disk::forgetful(kind));
}

fn native_survives_on(workload: &dyn Workload, disk: &Disk) {
    let pool = pool_for(workload);
    let mut random = Random::named(&workload.name());
    for _ in 0..rounds() {
        let mut job = Job::start(workload, disk, &pool, Guard::Native);
        job.load(&mut random);
        job.lose_power(disk, &pool, &mut random);
        let acks = job.end();
        disk.restore_power();
        if let Err(error) = workload.check(&job.site, promised(workload, &acks)) {
            panic!("{} on {disk}: natively lost in a power cut: {error}\n{}", workload.name(), job.told());
        }
    }
}

/// The power of a forgetful disk goes in the midst of a page that the program's database writes
/// anew, in two rounds of another page each. What the checks say of them.
fn torn(workload: &dyn Workload, page: Page, guard: Guard) -> Vec<Result<(), String>> {
    let disk = Disk::forgetful(Kind::Ext4);
    let pool = pool_for(workload);
    let mut random = Random::named(&workload.name());
    let rounds = (0..2 * rounds()).map(|round| {
        let mut job = Job::start(workload, &disk, &pool, guard);
        job.load(&mut random);
        if guard == Guard::Holdfast {
            job.must_absorb(&pool);
        }
        let cuts = || disk.counts().map(|counts| counts.cuts);
        let before = cuts();
        disk.tear(page, 20 * round);
        wait_until(Duration::from_secs(60), "a page to be written anew", || cuts() > before);
        job.lose_power(&disk, &pool, &mut random);
        let acks = job.end();
        disk.restore_power();
        if guard == Guard::Holdfast {
            pool.recover(&[]).ok();
        }
        let verdict = workload.check(&job.site, promised(workload, &acks));
        println!("{}, {guard:?}, a page torn, {} acknowledged: {verdict:?}", workload.name(), acks.len());
        verdict
    });
    rounds.collect()
}

/// A page is torn, and nothing is lost: the log has it as a whole.
pub fn survives_a_torn_page(workload: &dyn Workload, page: Page) {
    for verdict in torn(workload, page, Guard::Holdfast) {
        verdict.unwrap_or_else(|error| panic!("{} under Holdfast, a page torn: {error}", workload.name()));
    }
}

/// The control: a program that takes for granted what the disk does not give is damaged natively.
/// Not in each round: a page that is made anew by the program's log does no harm.
pub fn native_is_damaged_by_a_torn_page(workload: &dyn Workload, page: Page) {
    let verdicts = torn(workload, page, Guard::Native);
    assert!(verdicts.iter().any(Result::is_err), "{}: torn pages damaged nothing", workload.name());
}

/// The other control: one that guards itself is not.
pub fn native_survives_a_torn_page(workload: &dyn Workload, page: Page) {
    for verdict in torn(workload, page, Guard::Native) {
        verdict.unwrap_or_else(|error| panic!("{} natively, a page torn: {error}", workload.name()));
    }
}

/// The program is ended by force without a power cut and without Holdfast; the checker must be
/// content, or it proves nothing.
pub fn checker_accepts_native_kill(workload: &dyn Workload) {
    let disk = Disk::new(Kind::Ext4);
    let pool = pool_for(workload);
    let mut random = Random::named(&workload.name());
    let mut job = Job::start(workload, &disk, &pool, Guard::Eatmydata);
    job.load(&mut random);
    job.cut(Cut::All, &pool);
    let acks = job.end();
    if let Err(error) = workload.check(&job.site, &acks) {
        panic!("{}: the checker complains of a plain kill: {error}\n{}", workload.name(), job.told());
    }
}

fn pool_for(workload: &dyn Workload) -> Pool {
    match workload.user() {
        Some((user, capabilities)) => Pool::of_user(user, capabilities),
        None => Pool::new(),
    }
}
