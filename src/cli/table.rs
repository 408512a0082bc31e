//! Text for people: tables, histograms, numbers. It does not depend on the terminal, so that it can be tested and piped.
//! `comfy-table` lets control sequences of a terminal through, and has no histograms.
//!
//! Names come from files of others: [`plain`] removes control characters.

use std::fmt;

/// Longest cell; a longer one ends in `…`.
const CELL: usize = 60;

/// Most lines of a histogram.
const BINS: usize = 12;

/// Longest bar of a histogram.
const BAR: usize = 40;

/// The alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// Rows under a header, indented by two spaces.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Makes a table; header names that start with `>` have right-aligned columns.
    pub(crate) fn new(header: &[&'static str]) -> Self {
        let columns = header.iter().map(|name| match name.strip_prefix('>') {
            Some(name) => (name, Align::Right),
            None => (*name, Align::Left),
        });
        Self { columns: columns.collect(), rows: Vec::new() }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.columns.len(), "a cell per column");
        self.rows.push(cells.iter().map(|cell| shortened(&plain(cell))).collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header: Vec<String> = self.columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        let lines = || std::iter::once(&header).chain(&self.rows);
        let width = |at: usize| lines().filter_map(|line| line.get(at)).map(|cell| cell.chars().count()).max();
        let widths: Vec<usize> = (0..self.columns.len()).map(|at| width(at).unwrap_or(0)).collect();
        for line in lines() {
            let mut text = String::from(" ");
            for ((cell, width), (_, align)) in line.iter().zip(&widths).zip(&self.columns) {
                text.push_str(&match align {
                    Align::Left => format!(" {cell:<width$} "),
                    Align::Right => format!(" {cell:>width$} "),
                });
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

/// Frequencies of sizes, in bins that double.
#[derive(Debug)]
pub(crate) struct Histogram {
    /// Lower end and count of each bin, from the first that is not empty to the last.
    bins: Vec<(u64, u64)>,
    /// Ratio of consecutive lower ends: 2, or more if there would be too many lines.
    factor: u64,
    format: fn(u64) -> String,
}

impl Histogram {
    pub(crate) fn new(values: impl IntoIterator<Item = u64>, format: fn(u64) -> String) -> Self {
        let mut by_bit = [0u64; 65];
        for value in values {
            // Bin `b` holds 2^(b-1) .. 2^b; bin 0 holds the zeros.
            by_bit[(u64::BITS - value.leading_zeros()) as usize] += 1;
        }
        let first = by_bit.iter().position(|count| *count > 0).unwrap_or(0);
        let last = by_bit.iter().rposition(|count| *count > 0).unwrap_or(0);
        let step = (last - first + 1).div_ceil(BINS);
        let bins = (first..=last).step_by(step).map(|bit| {
            let low = if bit == 0 { 0 } else { 1u64 << (bit - 1) };
            (low, by_bit.iter().skip(bit).take(step).sum())
        });
        Self { bins: bins.collect(), factor: 1u64.checked_shl(step as u32).unwrap_or(u64::MAX), format }
    }
}

impl fmt::Display for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = self.bins.iter().map(|(_, count)| *count).max().unwrap_or(0).max(1);
        let lines: Vec<_> = self
            .bins
            .iter()
            .map(|(low, count)| {
                let high = if *low == 0 { 1 } else { low.saturating_mul(self.factor) };
                // A bin that is not empty shows at least one mark.
                let bar = (u128::from(*count) * BAR as u128).div_ceil(u128::from(most)) as usize;
                ((self.format)(*low), (self.format)(high), bar, *count)
            })
            .collect();
        let width = |part: fn(&(String, String, usize, u64)) -> &str| {
            lines.iter().map(|line| part(line).chars().count()).max().unwrap_or(0)
        };
        let (left, right) = (width(|line| &line.0), width(|line| &line.1));
        for (low, high, bar, times) in &lines {
            let line = format!("  {low:>left$} ..< {high:>right$}  {:<BAR$}  {}", "#".repeat(*bar), count(*times));
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Replaces each control character of a text by `?`.
pub(crate) fn plain(text: &str) -> String {
    // In addition to control characters, marks that reverse the direction of the following text.
    let steers = |c: char| {
        c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if steers(c) { '?' } else { c }).collect()
}

fn shortened(text: &str) -> String {
    if text.chars().count() <= CELL {
        return text.to_owned();
    }
    text.chars().take(CELL - 1).chain(['…']).collect()
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

    #[test]
    fn a_table_lines_up_and_cannot_steer_the_terminal() {
        let mut table = Table::new(&["name", ">rows"]);
        table.row(["a\u{1b}[31m\nb".to_owned(), "5".to_owned()]);
        table.row(["é".to_owned(), "1,000".to_owned()]);
        table.row(["x".repeat(99), String::new()]);
        let text = table.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[1].starts_with("  a?[31m?b ") && lines[1].ends_with("      5"), "{text}");
        assert_eq!(lines[1].chars().count(), lines[2].chars().count());
        assert_eq!(lines[3].chars().count(), 2 + CELL);
    }

    #[test]
    fn a_histogram_counts_every_value_once() {
        for values in
            [vec![], vec![0], vec![0, 1, 2, 3, 4], vec![u64::MAX, 0, 1 << 40], vec![1 << 20; 9], (0..5000).collect()]
        {
            let histogram = Histogram::new(values.iter().copied(), bytes);
            assert_eq!(histogram.bins.iter().map(|(_, count)| count).sum::<u64>(), values.len() as u64);
            assert!(histogram.bins.len() <= BINS, "{histogram}");
        }
        let text = Histogram::new([1 << 20, 1 << 20, 1 << 20, 5 << 20], bytes).to_string();
        let bar = |marks: usize| format!("{:<BAR$}", "#".repeat(marks));
        let expected = [
            format!("  1 MiB ..< 2 MiB  {}  3", bar(40)),
            format!("  2 MiB ..< 4 MiB  {}  0", bar(0)),
            format!("  4 MiB ..< 8 MiB  {}  1", bar(14)),
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }
}
