//! Sizes and counts as people write and read them. Units are powers of 1024; decimal units (KB, MB)
//! are refused rather than guessed at.

/// Reads `4096`, `64K`, `64KiB`, `1.5G`.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit.trim_start() {
        "" | "B" => 0,
        "k" | "K" | "KiB" => 10,
        "m" | "M" | "MiB" => 20,
        "g" | "G" | "GiB" => 30,
        "t" | "T" | "TiB" => 40,
        other => return Err(format!("unknown unit {other:?}: write K, M, G or T (powers of 1024)")),
    };
    let bytes = match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(1 << shift),
        // A fraction such as 1.5G; f64 is exact enough below 2^53 and larger values are refused.
        Err(_) => number
            .parse::<f64>()
            .ok()
            .filter(|_| number.starts_with(|c: char| c.is_ascii_digit()))
            .map(|value| value * (1u64 << shift) as f64)
            .filter(|bytes| *bytes < (1u64 << 53) as f64)
            .map(|bytes| bytes as u64),
    };
    match bytes {
        Some(0) => Err("must be more than zero".to_string()),
        Some(bytes) => Ok(bytes),
        None => Err(format!("{text:?} is not a size such as 4096, 64K or 1.5G")),
    }
}

/// As [`parse_bytes`], where none at all is a choice, too.
pub fn parse_bytes_or_none(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { parse_bytes(text) }
}

/// Reads a bandwidth: a size, with `/s` or without. Slower than any memory is a slip of the
/// fingers, and a program under such a pool would seem to hang.
pub fn parse_bytes_per_s(text: &str) -> Result<u64, String> {
    const LEAST: u64 = 1 << 20;
    match parse_bytes(text.strip_suffix("/s").unwrap_or(text))? {
        bytes if bytes < LEAST => {
            Err(format!("{bytes} bytes a second is slower than any memory: at least 1M/s, for example 2G/s"))
        }
        bytes => Ok(bytes),
    }
}

/// Reads a time from 1 ms to an hour: `200ms`, `5s`, `2m`, or milliseconds alone.
pub fn parse_ms(text: &str) -> Result<u64, String> {
    const MOST: u64 = 3_600_000;
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor = match unit.trim_start() {
        "" | "ms" => 1,
        "s" => 1000,
        "m" | "min" => 60_000,
        "h" => MOST,
        other => return Err(format!("unknown unit {other:?}: write ms, s, m or h")),
    };
    let time = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    match time {
        Some(ms @ 1..=MOST) => Ok(ms),
        Some(_) => Err("must be from 1 ms to an hour".to_owned()),
        None => Err(format!("{text:?} is not a time such as 200ms, 5s or 2m")),
    }
}

/// Writes `17 B`, `1.5 KiB`, `256.0 MiB`.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Writes `1,234,567`.
pub fn human_count(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Writes a time in the unit that suits it: `12.3 us`, `4.5 ms`, `6.7 s`.
pub fn human_ns(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("1", 1),
            ("4096", 4096),
            ("64K", 65536),
            ("64KiB", 65536),
            ("1 MiB", 1 << 20),
            ("1.5G", 3 << 29),
            ("2T", 2 << 40),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        assert_eq!(parse_bytes_per_s("2G/s"), Ok(2 << 30));
        assert_eq!(parse_bytes_per_s("100M"), Ok(100 << 20));
        assert!(parse_bytes_per_s("2").is_err());
    }

    #[test]
    fn times_are_read() {
        for (text, ms) in
            [("1", 1), ("200", 200), ("200ms", 200), ("1s", 1000), ("2 m", 120_000), ("1h", 3_600_000)]
        {
            assert_eq!(parse_ms(text), Ok(ms), "{text}");
        }
        for text in ["", "0", "-1", "s", "1.5s", "2h", "1d", "99999999999999999999"] {
            assert!(parse_ms(text).is_err(), "{text}");
        }
    }

    #[test]
    fn wrong_sizes_are_refused() {
        for text in
            ["", "0", "-1", "K", "1KB", "1MB", "ten", "1e9", ".5G", "1.2.3G", "99999999999T", "1G/s", "inf"]
        {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_are_written() {
        assert_eq!(human_bytes(17), "17 B");
        assert_eq!(human_bytes(1536), "1.5 KiB");
        assert_eq!(human_bytes(256 << 20), "256.0 MiB");
        assert_eq!(human_bytes((1 << 20) - 1), "1.0 MiB");
        assert_eq!(human_count(7), "7");
        assert_eq!(human_count(1_234_567), "1,234,567");
        assert_eq!(human_count(123_456), "123,456");
        assert_eq!(human_ns(999), "999 ns");
        assert_eq!(human_ns(1_500_000), "1.5 ms");
    }
}
