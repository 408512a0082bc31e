//! Numbers and names as people read them: counts, bytes, seconds, rates, and text that cannot steer a terminal.

/// Replaces each control character of a text by `?`.
pub(crate) fn plain(text: &str) -> String {
    // In addition to control characters, marks that reverse the direction of the following text.
    let steers = |c: char| {
        c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if steers(c) { '?' } else { c }).collect()
}

/// Formats `1234567` as `1,234,567`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Names the first of `count` ranks: `rank 3`, or `ranks 1, 2, 3 and 40 more`.
pub(crate) fn ranks(some: &[u32], count: usize) -> String {
    let shown: Vec<String> = some.iter().take(16).map(u32::to_string).collect();
    let noun = if count == 1 { "rank" } else { "ranks" };
    let more = count.saturating_sub(shown.len());
    if more == 0 {
        format!("{noun} {}", shown.join(", "))
    } else {
        format!("{noun} {} and {more} more", shown.join(", "))
    }
}

/// Formats bytes in the binary unit that leaves one to four digits: `1.5 MiB`.
pub(crate) fn bytes(number: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if number < 1024 {
        return format!("{number} B");
    }
    // A value that rounds to 1024 belongs to the next unit.
    let (mut scaled, mut unit) = (number as f64 / 1024.0, 0);
    while scaled >= 1023.95 && unit + 1 < UNITS.len() {
        (scaled, unit) = (scaled / 1024.0, unit + 1);
    }
    let name = UNITS[unit];
    let text = if scaled < 9.95 { format!("{scaled:.1}") } else { format!("{scaled:.0}") };
    format!("{} {name}", text.strip_suffix(".0").unwrap_or(&text))
}

/// Formats a rate per second, with about three digits.
pub(crate) fn rate(amount: u64, seconds: f64) -> String {
    if seconds <= 0.0 {
        return "-".to_owned();
    }
    let rate = amount as f64 / seconds;
    if rate < 10.0 { format!("{rate:.1}") } else { count(rate.round() as u64) }
}

/// Formats seconds with a unit: `0.8 ms`, `12.3 s`.
pub(crate) fn seconds(seconds: f64) -> String {
    if seconds < 0.9995 { format!("{:.1} ms", seconds * 1e3) } else { format!("{seconds:.2} s") }
}

/// Formats a number with its noun: `1 file`, `2 files`.
pub(crate) fn plural(number: u64, one: &str) -> String {
    format!("{} {one}{}", count(number), if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_right() {
        let cases = [0, 999, 1023, 1024, 1536, 1_048_575, 1_048_576, 10_485_760, u64::MAX].map(bytes);
        assert_eq!(cases, ["0 B", "999 B", "1023 B", "1 KiB", "1.5 KiB", "1 MiB", "1 MiB", "10 MiB", "16 EiB"]);
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!((rate(7, 2.0), rate(100_000, 2.0), rate(1, 0.0)), ("3.5".into(), "50,000".into(), "-".into()));
        assert_eq!((seconds(0.0123), seconds(1.5)), ("12.3 ms".into(), "1.50 s".into()));
        assert_eq!((plural(1, "file"), plural(2, "file")), ("1 file".into(), "2 files".into()));
    }
}
