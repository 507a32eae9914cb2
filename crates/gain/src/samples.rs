//! Samples of one side: their median, how far they lie apart, and whether two sets of them differ
//! by more than that.

/// Fewer samples than this on either side tell nothing: two sets of four lie apart by chance in one
/// comparison of thirty-five, two sets of five in one of 126.
pub const SAMPLES_MIN: usize = 4;

/// Median, lowest and highest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

impl Spread {
    /// Of samples in any order; nothing of none.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted: Vec<f64> = samples.iter().copied().filter(|sample| sample.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            1 => sorted[middle],
            _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
        };
        Some(Self { median, low, high })
    }
}

/// What became of a rate from one report to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Each sample is above all of the earlier ones.
    Faster,
    /// Each sample is below all of the earlier ones.
    Slower,
    /// The samples overlap.
    Noise,
    /// There are too few samples to say.
    TooFew,
}

/// Compares the samples of two reports.
pub fn change(before: &[f64], after: &[f64]) -> Change {
    let (Some(old), Some(new)) = (Spread::of(before), Spread::of(after)) else { return Change::TooFew };
    match () {
        () if before.len() < SAMPLES_MIN || after.len() < SAMPLES_MIN => Change::TooFew,
        () if new.low > old.high => Change::Faster,
        () if new.high < old.low => Change::Slower,
        () => Change::Noise,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_of_the_middle() {
        let of = |samples: &[f64]| Spread::of(samples).map(|spread| (spread.low, spread.median, spread.high));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[3.0]), Some((3.0, 3.0, 3.0)));
        assert_eq!(of(&[9.0, 1.0, 2.0]), Some((1.0, 2.0, 9.0)));
        assert_eq!(of(&[4.0, 1.0, 2.0, 9.0]), Some((1.0, 3.0, 9.0)));
        assert_eq!(of(&[f64::NAN, 1.0]), Some((1.0, 1.0, 1.0)));
    }

    #[test]
    fn what_overlaps_is_noise() {
        let before = [10.0, 11.0, 12.0, 13.0];
        assert_eq!(change(&before, &[12.9, 20.0, 21.0, 22.0]), Change::Noise);
        assert_eq!(change(&before, &[13.0, 20.0, 21.0, 22.0]), Change::Noise);
        assert_eq!(change(&before, &[13.1, 20.0, 21.0, 22.0]), Change::Faster);
        assert_eq!(change(&before, &[9.9, 2.0, 2.0, 2.0]), Change::Slower);
        assert_eq!(change(&before, &[2.0, 2.0, 2.0]), Change::TooFew);
        assert_eq!(change(&[], &before), Change::TooFew);
    }
}
