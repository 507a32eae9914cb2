//! The `doctor` subcommand: what this machine has, and what to do about what is missing. Every
//! finding that is not good carries its remedy. It changes nothing on the machine.

mod inspect;
mod kernel;
mod mounts;
mod nvm;

use std::fmt::Write as _;

use serde::Serialize;

use crate::args::DoctorArgs;
use crate::report;

/// How good a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    /// As it should be.
    Good,
    /// Works, but slower or with less.
    Limited,
    /// Does not work.
    Missing,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Finding {
    /// What was looked at.
    subject: String,
    level: Level,
    /// What is there.
    found: String,
    /// What to do; empty if nothing needs doing.
    advice: String,
}

impl Finding {
    fn good(subject: &str, found: impl Into<String>) -> Self {
        Self { subject: subject.to_string(), level: Level::Good, found: found.into(), advice: String::new() }
    }

    fn limited(subject: &str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        let (found, advice) = (found.into(), advice.into());
        Self { subject: subject.to_string(), level: Level::Limited, found, advice }
    }

    fn is_missing_nvm(&self) -> bool {
        self.level == Level::Missing && self.subject == nvm::SUBJECT
    }

    fn missing(subject: &str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { level: Level::Missing, ..Self::limited(subject, found, advice) }
    }
}

/// What comes of all findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// What is acknowledged here survives a power cut.
    Ready,
    /// It survives kills alone: there is no NVM.
    Trials,
    /// No program can be served until something is mended.
    Unusable,
}

impl Verdict {
    fn of(machine: &[Finding]) -> Self {
        match stopping(machine).next() {
            Some(_) => Self::Unusable,
            None if machine.iter().any(Finding::is_missing_nvm) => Self::Trials,
            None => Self::Ready,
        }
    }
}

/// What is missing that nothing can do without.
fn stopping(machine: &[Finding]) -> impl Iterator<Item = &Finding> {
    machine.iter().filter(|finding| finding.level == Level::Missing && !finding.is_missing_nvm())
}

/// What `doctor --json` prints.
#[derive(Serialize)]
struct Answer {
    verdict: Verdict,
    machine: Vec<Finding>,
    program: Option<inspect::Inspection>,
}

/// The `doctor` subcommand.
pub fn run(args: &DoctorArgs) -> anyhow::Result<u8> {
    let mut machine = nvm::findings();
    machine.extend(kernel::findings());
    machine.extend(mounts::findings());
    let program = match args.program.is_empty() {
        true => None,
        false => Some(inspect::inspect(&args.program)?),
    };
    let answer = Answer { verdict: Verdict::of(&machine), machine, program };
    report::print(if args.json { report::json(&answer)? } else { in_words(&answer) })?;
    Ok(u8::from(answer.verdict == Verdict::Unusable))
}

fn in_words(answer: &Answer) -> String {
    let mut text = String::from("This machine\n");
    let width = answer.machine.iter().map(|finding| finding.subject.len()).max().unwrap_or(0);
    for Finding { subject, level, found, advice } in &answer.machine {
        let mark = match level {
            Level::Good => "ok",
            Level::Limited => "limited",
            Level::Missing => "MISSING",
        };
        let _ = writeln!(text, "  {mark:7}  {subject:width$}  {found}");
        if !advice.is_empty() {
            let _ = writeln!(text, "  {:7}  {:width$}  -> {advice}", "", "");
        }
    }
    if let Some(program) = &answer.program {
        let _ = write!(text, "\n{}", program.in_words());
    }
    let verdict = match answer.verdict {
        Verdict::Ready => {
            "ready: what is acknowledged in a pool on this NVM survives kills and power cuts".to_owned()
        }
        Verdict::Trials => {
            "for trials: without NVM a pool needs --volatile, and what is acknowledged survives \
                            kills, not a power cut"
                .to_owned()
        }
        Verdict::Unusable => {
            let subjects: Vec<&str> =
                stopping(&answer.machine).map(|finding| finding.subject.as_str()).collect();
            format!("not usable until this is mended: {}", subjects.join(", "))
        }
    };
    let _ = writeln!(text, "\nVerdict: {verdict}");
    text
}

/// A file of /proc or /sys as trimmed text; empty if it is not there.
fn read(path: impl AsRef<std::path::Path>) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_is_as_bad_as_what_nothing_can_do_without() {
        let good = || Finding::good("x", "y");
        let nvm = || Finding::missing(nvm::SUBJECT, "none", "buy some");
        let pidfd = || Finding::missing("pidfd", "refused", "allow it");
        assert_eq!(Verdict::of(&[good(), Finding::limited("l", "f", "a")]), Verdict::Ready);
        assert_eq!(Verdict::of(&[good(), nvm()]), Verdict::Trials);
        assert_eq!(Verdict::of(&[nvm(), pidfd()]), Verdict::Unusable);
        let machine = vec![nvm(), pidfd()];
        let told = in_words(&Answer { verdict: Verdict::of(&machine), machine, program: None });
        assert!(told.ends_with("Verdict: not usable until this is mended: pidfd\n"), "{told}");
    }

    #[test]
    fn whatever_is_not_good_comes_with_a_remedy() {
        let mut all = nvm::findings();
        all.extend(kernel::findings());
        all.extend(mounts::findings());
        assert!(all.len() > 8);
        for finding in all {
            assert_eq!(finding.advice.is_empty(), finding.level == Level::Good, "{finding:?}");
            assert!(!finding.found.is_empty(), "{finding:?}");
        }
    }
}
