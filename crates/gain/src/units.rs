//! Numbers for people, in units that suit them.

/// A rate, with the digits that mean something: `7.3`, `1,523`, `512,300`.
pub fn rate(per_s: f64) -> String {
    if !per_s.is_finite() {
        return "?".to_owned();
    }
    if per_s < 100.0 {
        return format!("{per_s:.1}");
    }
    // Three digits tell more than a measurement knows.
    let unit = 10f64.powf((per_s.log10().floor() - 3.0).max(0.0));
    count(((per_s / unit).round() * unit) as u64)
}

/// A count with its thousands apart.
pub fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Some things, by their name for one of them.
pub fn counted(number: u64, thing: &str) -> String {
    format!("{} {thing}{}", count(number), if number == 1 { "" } else { "s" })
}

/// A ratio, with fewer digits the larger it is.
pub fn ratio(ratio: f64) -> String {
    match ratio {
        ratio if !ratio.is_finite() => "?".to_owned(),
        ratio if ratio < 10.0 => format!("{ratio:.2} x"),
        ratio if ratio < 100.0 => format!("{ratio:.1} x"),
        ratio => format!("{} x", count(ratio.round() as u64)),
    }
}

/// A time, with no more digits than three.
pub fn time(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    if value < 99.95 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

/// A size.
pub fn bytes(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_claims_more_than_it_knows() {
        for (per_s, told) in
            [(7.28, "7.3"), (0.04, "0.0"), (152.6, "153"), (1_523.4, "1,523"), (512_345.0, "512,300")]
        {
            assert_eq!(rate(per_s), told);
        }
        assert_eq!(rate(f64::NAN), "?");
        assert_eq!((counted(1, "round"), counted(5, "round")), ("1 round".to_owned(), "5 rounds".to_owned()));
        assert_eq!((ratio(0.979), ratio(11.96), ratio(338.4)).0, "0.98 x");
        assert_eq!((ratio(11.96), ratio(1338.4)), ("12.0 x".to_owned(), "1,338 x".to_owned()));
        assert_eq!((time(999), time(12_340)), ("999 ns".to_owned(), "12.3 us".to_owned()));
        assert_eq!((time(500_000_000), time(30_000_000_000)), ("500 ms".to_owned(), "30.0 s".to_owned()));
        assert_eq!((bytes(512), bytes(256 << 20)), ("512 B".to_owned(), "256.0 MiB".to_owned()));
    }
}
