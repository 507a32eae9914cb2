//! How schedules are chosen: at random, by priorities (PCT, which finds bugs of few ordering
//! constraints with a known probability), or all of them.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{SystemTime, UNIX_EPOCH};

use shuttle::scheduler::{DfsScheduler, PctScheduler, RandomScheduler};
use shuttle::{Config, FailurePersistence, Runner};

/// Ordering constraints that a schedule by priorities can break.
const PCT_DEPTH: usize = 3;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
}

fn seed() -> u64 {
    let seed = number("HOLDFAST_MODEL_SEED").unwrap_or_else(|| {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64)
    });
    println!("HOLDFAST_MODEL_SEED={seed}");
    seed
}

/// `base` schedules, times `HOLDFAST_MODEL_FACTOR`.
pub fn schedules(base: usize) -> usize {
    base * number("HOLDFAST_MODEL_FACTOR").unwrap_or(1) as usize
}

fn config() -> Config {
    let mut config = Config::new();
    config.silence_warnings = true;
    config.stack_size = 0x4_0000;
    config
}

/// Runs `model` under `schedules` schedules, half of them random, half by priorities.
pub fn explore(schedules: usize, model: impl Fn() + Clone + Send + Sync + 'static) {
    let seed = seed();
    let half = schedules.div_ceil(2);
    let random = Runner::new(RandomScheduler::new_from_seed(seed, half), config()).run(model.clone());
    let by_priority = Runner::new(PctScheduler::new_from_seed(seed, PCT_DEPTH, half), config()).run(model);
    tell(random + by_priority, &format!("seed {seed}"));
}

/// Runs `model` under every schedule there is; returns how many.
pub fn exhaust(model: impl Fn() + Send + Sync + 'static) -> usize {
    let all = Runner::new(DfsScheduler::new(None, false), config()).run(model);
    tell(all, "all there are");
    all
}

/// Says how many schedules were explored, past the test harness, which keeps what passing tests
/// print.
fn tell(schedules: usize, which: &str) {
    let line = format!("tally: model: schedules {schedules}; {which}\n");
    let _ = std::io::stdout().lock().write_all(line.as_bytes());
}

/// Runs a model of a protocol that is broken on purpose: one of the schedules must fail, with
/// `complaint`, or with one of several that `|` stands between.
pub fn caught(schedules: usize, complaint: &str, model: impl Fn() + Clone + Send + Sync + 'static) {
    let seed = seed();
    let mut config = config();
    config.failure_persistence = FailurePersistence::None;
    let run = |by_priority: bool| {
        let (model, config) = (model.clone(), config.clone());
        catch_unwind(AssertUnwindSafe(move || match by_priority {
            true => Runner::new(PctScheduler::new_from_seed(seed, PCT_DEPTH, schedules), config).run(model),
            false => Runner::new(RandomScheduler::new_from_seed(seed, schedules), config).run(model),
        }))
    };
    let Err(panic) = run(false).and_then(|_| run(true)) else {
        panic!("{} schedules did not notice that the protocol is broken", 2 * schedules);
    };
    let said = panic.downcast_ref::<String>().cloned();
    let said = said.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default();
    assert!(
        complaint.split('|').any(|complaint| said.contains(complaint)),
        "it failed for another reason: {said}"
    );
}
