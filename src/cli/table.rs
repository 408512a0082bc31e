//! Text for people: tables and histograms. It does not depend on the terminal, so that it can be tested and piped.
//! `comfy-table` lets control sequences of a terminal through, and has no histograms.
//!
//! Names come from files of others: [`plain`] removes control characters.

use std::fmt;

pub(crate) use crate::figures::{bytes, count, plain, plural, rate, seconds};

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

fn shortened(text: &str) -> String {
    if text.chars().count() <= CELL {
        return text.to_owned();
    }
    text.chars().take(CELL - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
