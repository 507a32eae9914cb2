//! The rules that the known histories gave rise to (`holdfast_sim::stories`), taken out one after
//! the other: each story must then fail. Every rule is taken out in a process of its own, as in
//! [`crate::canaries`].

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use holdfast_canary::Canary;
use holdfast_sim::stories::{STORIES, Story};

use crate::canaries::{self, Fate, named, shorten};

/// Children at a time.
const CHILDREN: usize = 2;

/// Plays one story in this process, with one bug, and prints its fate as JSON.
pub fn one(name: &str, canary: Option<Canary>) -> anyhow::Result<()> {
    let story = Story::named(name).context("there is no such story")?;
    holdfast_canary::arm(canary);
    let begun = Instant::now();
    let (counts, failure) = story.play();
    let (what, again) =
        failure.map_or_else(Default::default, |failure| (failure.violation.what, failure.replay));
    let caught = !what.is_empty();
    let seconds = begun.elapsed().as_secs_f64();
    println!("{}", serde_json::to_string(&Fate { caught, images: counts.images, seconds, what, again })?);
    Ok(())
}

/// Plays all stories: with every rule, and with each that stands against it taken out.
pub fn all(limit: Duration) -> anyhow::Result<ExitCode> {
    let mut plays: Vec<(&Story, Option<Canary>)> = Vec::new();
    for story in &STORIES {
        plays.push((story, None));
        for bug in story.bugs {
            plays.push((story, Some(named(bug).map_err(anyhow::Error::msg)?)));
        }
    }
    let begun = Instant::now();
    let (next, fates) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..CHILDREN {
            scope.spawn(|| {
                while let Some((story, canary)) = plays.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let bug = canary.map_or("", Canary::name);
                    let mut arguments = vec!["--story", story.name];
                    arguments.extend(canary.iter().flat_map(|_| ["--canary", bug]));
                    let fate = canaries::child(&arguments, limit);
                    fates.lock().expect("fates").push((story.number, bug, fate));
                }
            });
        }
    });
    let mut fates = fates.into_inner().expect("fates");
    fates.sort_by_key(|(number, bug, _)| (*number, *bug));
    let (mut right, mut missed, mut images) = (0, 0, 0);
    for (number, bug, fate) in &fates {
        let fate = fate.as_ref().map_err(|error| anyhow::anyhow!("history {number}, {bug}: {error:#}"))?;
        images += fate.images;
        let expected = fate.caught != bug.is_empty();
        right += usize::from(expected);
        missed += usize::from(expected && fate.caught);
        let rule = if bug.is_empty() { "all rules" } else { bug };
        let what = match (fate.caught, expected) {
            (false, true) => "keeps every promise".to_owned(),
            (true, true) => shorten(&fate.what),
            (true, false) => format!("FAILS: {} ({})", fate.what, fate.again),
            (false, false) => "SURVIVED: the history does not show the rule".to_owned(),
        };
        println!("{number:3}  {rule:24} {:>8} {:>6.2}  {what}", fate.images, fate.seconds);
    }
    let taken_out = plays.iter().filter(|(_, canary)| canary.is_some()).count();
    println!(
        "{} histories with {taken_out} rules taken out, {right} of {} as expected, {images} crash images checked",
        STORIES.len(),
        plays.len()
    );
    println!(
        "tally: known histories, simulated: histories {}, rules taken out {taken_out}, rules missed {missed}, \
         crash images {images}; {:.1} s",
        STORIES.len(),
        begun.elapsed().as_secs_f64()
    );
    Ok(if right == plays.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
