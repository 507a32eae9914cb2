//! Charts: one dot for each median, with a line from the lowest to the highest sample, on an axis
//! of powers of ten. Places are percentages, so that a chart is as wide as its page and its text
//! keeps its size.
//!
//! Nothing in a chart is told by its colour alone: each line bears its name and its number.

use maud::{Markup, html};

use crate::samples::Spread;

/// Height of a line of a chart, with the text above it.
const LINE_PX: u32 = 36;
/// Room for the numbers of the axis.
const AXIS_PX: u32 = 22;
/// What stays free on both sides, in percent.
const MARGIN: f64 = 3.0;

/// One line of a chart.
pub struct Line {
    /// Its name, at the left.
    pub name: String,
    /// Its number, at the right.
    pub told: String,
    /// What is drawn.
    pub spread: Spread,
    /// How it looks: the class of the style.
    pub class: &'static str,
}

/// An axis of powers of ten.
struct Axis {
    low: i32,
    high: i32,
}

impl Axis {
    /// One that has all lines, and a mark.
    fn of(lines: &[Line], mark: Option<f64>) -> Self {
        let numbers = lines.iter().flat_map(|line| [line.spread.low, line.spread.high]).chain(mark);
        let logs = numbers.filter(|number| *number > 0.0).map(f64::log10);
        let (low, high) = logs.fold((f64::MAX, f64::MIN), |(low, high), log| (log.min(low), log.max(high)));
        if low > high {
            return Self { low: 0, high: 1 };
        }
        let low = low.floor() as i32;
        Self { low, high: (high.ceil() as i32).max(low + 1) }
    }

    /// Where a number is, in percent from the left.
    fn place(&self, number: f64) -> f64 {
        let span = f64::from(self.high - self.low);
        let share = (number.max(1e-9).log10() - f64::from(self.low)) / span;
        MARGIN + share.clamp(0.0, 1.0) * (100.0 - 2.0 * MARGIN)
    }

    fn ticks(&self) -> impl Iterator<Item = (f64, String)> {
        // Not so many that they meet.
        let step = ((self.high - self.low + 4) / 5).max(1) as usize;
        let places: Vec<_> = (self.low..=self.high).step_by(step).collect();
        places.into_iter().map(|power| {
            let number = 10f64.powi(power);
            (self.place(number), short(number))
        })
    }
}

fn short(number: f64) -> String {
    match number {
        number if number >= 1e9 => format!("{} G", number / 1e9),
        number if number >= 1e6 => format!("{} M", number / 1e6),
        number if number >= 1e3 => format!("{} k", number / 1e3),
        number => format!("{number}"),
    }
}

fn percent(place: f64) -> String {
    format!("{place:.2}%")
}

/// A chart; `mark` is where a dashed line stands.
pub fn chart(title: &str, lines: &[Line], mark: Option<f64>) -> Markup {
    let axis = Axis::of(lines, mark);
    let bottom = lines.len() as u32 * LINE_PX;
    let told =
        lines.iter().map(|line| format!("{}: {}", line.name, line.told)).collect::<Vec<_>>().join("; ");
    html! {
        svg role="img" height=(bottom + AXIS_PX) aria-label=(format!("{title}. {told}")) {
            @for (place, label) in axis.ticks() {
                line class="grid" x1=(percent(place)) x2=(percent(place)) y1="0" y2=(bottom) {}
                text class="tick" x=(percent(place)) y=(bottom + AXIS_PX - 6) text-anchor="middle" { (label) }
            }
            @if let Some(place) = mark.map(|mark| axis.place(mark)) {
                line class="one" x1=(percent(place)) x2=(percent(place)) y1="0" y2=(bottom) {}
            }
            @for (number, line) in lines.iter().enumerate() {
                @let top = number as u32 * LINE_PX;
                @let y = top + LINE_PX - 9;
                g class=(line.class) {
                    text x="0" y=(top + 15) { (line.name) }
                    text x="100%" y=(top + 15) text-anchor="end" { (line.told) }
                    line class="range" x1=(percent(axis.place(line.spread.low)))
                        x2=(percent(axis.place(line.spread.high))) y1=(y) y2=(y) {}
                    circle class="dot" cx=(percent(axis.place(line.spread.median))) cy=(y) r="5" {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, low: f64, high: f64) -> Line {
        let spread = Spread { median: (low + high) / 2.0, low, high };
        Line { name: name.into(), told: "a number".into(), spread, class: "native" }
    }

    #[test]
    fn numbers_lie_where_they_belong() {
        let axis = Axis::of(&[line("a", 20.0, 900.0)], Some(1.0));
        assert_eq!((axis.low, axis.high), (0, 3));
        assert_eq!(axis.place(1.0), MARGIN);
        assert_eq!(axis.place(1000.0), 100.0 - MARGIN);
        assert!(axis.place(0.0) >= MARGIN && axis.place(1e12) <= 100.0 - MARGIN);
        let ticks: Vec<_> = axis.ticks().map(|(_, label)| label).collect();
        assert_eq!(ticks, ["1", "10", "100", "1 k"]);
        let wide = Axis { low: 0, high: 12 };
        assert!(wide.ticks().count() <= 6);
        assert_eq!((Axis::of(&[], None).low, Axis::of(&[], None).high), (0, 1));
    }

    #[test]
    fn names_are_text() {
        let drawn = chart("<b>", &[line("a<b>&\"", 1.0, 2.0)], None).into_string();
        assert!(!drawn.contains("<b>") && drawn.contains("a&lt;b&gt;&amp;"), "{drawn}");
    }
}
