//! The `doctor` subcommand: what this machine has, and what to do about what is missing. Every
//! finding that is not good carries its remedy. It changes nothing on the machine.

mod finding;
mod inspect;
mod kernel;
mod mounts;
mod nvm;

use std::fmt::Write as _;

use serde::Serialize;

use crate::args::DoctorArgs;
use crate::report;
use crate::words::shown;
use finding::{Finding, Level};

/// Whether it says that there is no NVM.
fn is_missing_nvm(finding: &Finding) -> bool {
    finding.level == Level::Missing && finding.subject == nvm::SUBJECT
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
            None if machine.iter().any(is_missing_nvm) => Self::Trials,
            None => Self::Ready,
        }
    }
}

/// What is missing that nothing can do without.
fn stopping(machine: &[Finding]) -> impl Iterator<Item = &Finding> {
    machine.iter().filter(|finding| finding.level == Level::Missing && !is_missing_nvm(finding))
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
        let (found, advice) = (shown(found), shown(advice));
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
