//! What a benchmark found: samples, medians, ratios and their bars, for people and as JSON. It
//! measures nothing.

use std::fmt;

use anyhow::Result;
use serde::Serialize;

/// Everything one invocation found.
#[derive(Serialize)]
pub struct Results {
    /// Where the numbers come from.
    pub machine: String,
    /// Benchmarks that ran.
    pub outcomes: Vec<Outcome>,
    /// Benchmarks that could not run.
    pub failed: Vec<Failure>,
}

/// A benchmark that could not run.
#[derive(Serialize)]
pub struct Failure {
    /// Its name.
    pub name: &'static str,
    /// Why.
    pub error: String,
}

/// What one benchmark found.
#[derive(Default, Serialize)]
pub struct Outcome {
    /// Its name.
    pub name: &'static str,
    /// What it shows.
    pub about: &'static str,
    /// One row per side.
    pub series: Vec<Series>,
    /// Ratios and values, with their bars.
    pub checks: Vec<Check>,
    /// Anything the reader needs to judge the numbers.
    pub notes: Vec<String>,
}

/// Samples of one side.
#[derive(Serialize)]
pub struct Series {
    /// The side.
    pub label: String,
    /// Unit of the samples.
    pub unit: &'static str,
    /// One sample per round.
    pub samples: Vec<f64>,
}

impl Series {
    /// The middle sample, or the mean of the two middle ones.
    pub fn median(&self) -> f64 {
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
    }

    fn min(&self) -> f64 {
        self.samples.iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn max(&self) -> f64 {
        self.samples.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }
}

/// What the project promises.
#[derive(Clone, Copy, Serialize)]
pub enum Bar {
    /// The value reaches this.
    AtLeast(f64),
    /// The value stays within this.
    AtMost(f64),
}

/// A ratio or a value, with its bar if there is one.
#[derive(Serialize)]
pub struct Check {
    /// What is compared.
    pub what: String,
    /// The ratio or value.
    pub value: f64,
    /// `x` for ratios.
    pub unit: &'static str,
    /// The promise.
    pub bar: Option<Bar>,
    /// Whether it is kept.
    pub met: Option<bool>,
}

impl Check {
    /// A value against a bar.
    pub fn value(what: impl Into<String>, value: f64, unit: &'static str, bar: Option<Bar>) -> Self {
        let met = bar.map(|bar| match bar {
            Bar::AtLeast(least) => value >= least,
            Bar::AtMost(most) => value <= most,
        });
        Self { what: what.into(), value, unit, bar, met }
    }

    /// The ratio of two medians against a bar.
    pub fn ratio(of: &Series, to: &Series, bar: Option<Bar>) -> Self {
        Self::value(format!("{} / {}", of.label, to.label), of.median() / to.median(), "x", bar)
    }
}

/// One side of a comparison: its label and what takes one sample of it.
pub type Run<'a> = (String, Box<dyn FnMut() -> Result<f64> + 'a>);

/// Samples all sides in turn, `rounds` times, so that drift of the machine hits all of them alike.
pub fn interleave(rounds: u32, unit: &'static str, mut sides: Vec<Run<'_>>) -> Result<Vec<Series>> {
    let mut all: Vec<Series> =
        sides.iter().map(|(label, _)| Series { label: label.clone(), unit, samples: Vec::new() }).collect();
    for _ in 0..rounds {
        for (series, (_, sample)) in all.iter_mut().zip(&mut sides) {
            series.samples.push(sample()?);
        }
    }
    Ok(all)
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.name, self.about)?;
        let labels = self.series.iter().map(|s| &s.label).chain(self.checks.iter().map(|c| &c.what));
        let width = labels.map(|label| label.chars().count()).max().unwrap_or(0);
        for series in &self.series {
            let (median, min, max) = (number(series.median()), number(series.min()), number(series.max()));
            writeln!(f, "  {:width$} {median:>10} {}  ({min} .. {max})", series.label, series.unit)?;
        }
        for check in &self.checks {
            let verdict = match (check.bar, check.met) {
                (Some(bar), Some(met)) => format!("  {bar}: {}", if met { "met" } else { "MISSED" }),
                _ => String::new(),
            };
            writeln!(f, "  {:width$} {:>10} {}{verdict}", check.what, number(check.value), check.unit)?;
        }
        for note in &self.notes {
            writeln!(f, "  note: {note}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(bar) => write!(f, "bar: at least {bar}"),
            Self::AtMost(bar) => write!(f, "bar: at most {bar}"),
        }
    }
}

fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => {
            let digits = format!("{:.0}", v);
            let groups: Vec<&str> =
                digits.as_bytes().rchunks(3).rev().filter_map(|c| std::str::from_utf8(c).ok()).collect();
            format!("{}{}", if value < 0.0 { "-" } else { "" }, groups.join(","))
        }
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(samples: &[f64]) -> Series {
        Series { label: "a".into(), unit: "ops/s", samples: samples.to_vec() }
    }

    #[test]
    fn median_of_odd_and_even_counts() {
        assert_eq!(series(&[3.0, 1.0, 2.0]).median(), 2.0);
        assert_eq!(series(&[4.0, 1.0, 2.0, 3.0]).median(), 2.5);
    }

    #[test]
    fn bars_say_in_words_whether_they_are_met() {
        let check = Check::ratio(&series(&[1.0]), &series(&[2.0]), Some(Bar::AtLeast(0.55)));
        assert_eq!(check.met, Some(false));
        let outcome = Outcome { checks: vec![check], ..Outcome::default() };
        assert!(outcome.to_string().contains("0.500 x  bar: at least 0.55: MISSED"), "{outcome}");
    }

    #[test]
    fn sides_take_turns() -> Result<()> {
        let order = std::cell::RefCell::new(String::new());
        let side = |name: &'static str| -> Run<'_> {
            let order = &order;
            (
                name.into(),
                Box::new(move || {
                    order.borrow_mut().push_str(name);
                    Ok(1.0)
                }),
            )
        };
        interleave(3, "x", vec![side("a"), side("b")])?;
        assert_eq!(*order.borrow(), "ababab");
        Ok(())
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!(number(1234567.0), "1,234,567");
        assert_eq!(number(-1234.4), "-1,234");
        assert_eq!(number(12.34), "12.3");
    }
}
