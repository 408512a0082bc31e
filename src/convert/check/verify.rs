//! Comparison of two datasets: their rows in any order, and those that differ.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use arrow::array::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use serde::Serialize;

use super::digest::{Digest, Summing};
use super::tokens;
use crate::convert::budget::{Budget, Progress};
use crate::convert::format::Format;
use crate::convert::formats;
use crate::convert::options::ConvertOptions;
use crate::convert::parallel::parallel;
use crate::convert::source::Source;
use crate::convert::types::type_text;
use crate::convert::values::timezone;
use crate::error::{Error, Result};

/// Rows shown of each side.
const SHOWN: usize = 10;

/// Result of comparing one column.
#[derive(Debug, Clone, Serialize)]
pub struct ColumnVerdict {
    /// Its name.
    pub name: String,
    /// Its type on either side; `None` if it is missing there.
    pub types: [Option<String>; 2],
    /// Number of null cells on either side; `None` if they were not counted, as of a column that only one side has.
    pub nulls: [Option<u64>; 2],
    /// True if its cells are the same, in any order.
    pub equal: bool,
}

/// Result of comparing two datasets.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// True if they have the same columns and rows, in any order.
    pub equal: bool,
    /// Their formats.
    pub formats: [Format; 2],
    /// Their rows.
    pub rows: [u64; 2],
    /// The columns of both.
    pub columns: Vec<ColumnVerdict>,
    /// Number of sampled rows that are only in the first.
    pub only_first: u64,
    /// Number of sampled rows that are only in the second.
    pub only_second: u64,
    /// Some rows that are only in the first, as text.
    pub examples_first: Vec<String>,
    /// Some rows that are only in the second, as text.
    pub examples_second: Vec<String>,
    /// Sampling rate of the search for differences: one of this many rows; 1 if memory holds them all.
    pub looked_at: u64,
}

/// Compares the datasets at `a` and `b`, whose formats are `options.from` and `options.to`, or follow from their names.
///
/// Types that hold the same values are equal: see [`Digest`]. If rows differ, they are searched for in a second pass, within the memory
/// budget.
///
/// # Errors
/// Those of opening and reading either dataset; `Closed` if `progress` was asked to stop.
pub fn verify(a: &str, b: &str, options: &ConvertOptions, progress: &Progress) -> Result<Comparison> {
    options.check()?;
    let open = |address: &str, options: &ConvertOptions| {
        let (address, options) = options.mounted(address)?;
        formats::open(&address, &options)
    };
    let first = open(a, options)?;
    let second = open(b, &ConvertOptions { from: options.to, ..options.clone() })?;
    let chosen = |name: &String| options.columns.is_empty() || options.columns.contains(name);
    let names = |source: &dyn Source| -> Vec<String> {
        source.schema().fields().iter().map(|field| field.name().clone()).filter(chosen).collect()
    };
    let (left, right) = (names(&*first), names(&*second));
    let known = |name: &str| [&first, &second].iter().any(|source| source.schema().field_with_name(name).is_ok());
    let typed = options.schema.iter().flat_map(|types| &types.0).map(|(name, _)| name);
    if let Some(missing) = options.columns.iter().chain(typed).find(|name| !known(name)) {
        return Err(Error::NotFound { what: format!("column {missing:?}"), hint: "neither dataset has it".into() });
    }
    let common: Vec<&str> = left.iter().filter(|name| right.contains(name)).map(String::as_str).collect();
    let size = stored(&*first).saturating_add(stored(&*second));
    progress.total.fetch_add(size, Ordering::Relaxed);
    let digests = [
        digest(&*first, common.iter().copied(), options, progress)?,
        digest(&*second, common.iter().copied(), options, progress)?,
    ];
    let mut columns = Vec::new();
    let seen: Vec<&String> = left.iter().chain(right.iter().filter(|name| !left.contains(name))).collect();
    for name in seen {
        let of =
            |source: &dyn Source| source.schema().field_with_name(name).ok().map(|field| type_text(field.data_type()));
        let found = digests.each_ref().map(|digest| digest.columns.iter().find(|column| column.name == *name));
        let equal = matches!(found, [Some(a), Some(b)] if a == b);
        columns.push(ColumnVerdict {
            name: name.clone(),
            types: [of(&*first), of(&*second)],
            nulls: found.map(|column| column.map(|column| column.nulls)),
            equal,
        });
    }
    let mut comparison = Comparison {
        equal: digests[0] == digests[1] && columns.iter().all(|column| column.equal),
        formats: [first.format(), second.format()],
        rows: [digests[0].rows, digests[1].rows],
        columns,
        only_first: 0,
        only_second: 0,
        examples_first: Vec::new(),
        examples_second: Vec::new(),
        looked_at: 1,
    };
    if digests[0] == digests[1] {
        // Values read from text are also compared with the text, by other code.
        tokens::check(&*first, common.iter().copied(), None, options, &digests[1], progress)?;
        tokens::check(&*second, common.iter().copied(), None, options, &digests[0], progress)?;
    } else if !common.is_empty() {
        // One pass finds the rows, another one shows some of them.
        progress.total.fetch_add(size.saturating_mul(2), Ordering::Relaxed);
        differences(&*first, &*second, &common, options, progress, &mut comparison)?;
    }
    Ok(comparison)
}

/// Returns the numbers of these columns, ascending.
fn numbers(source: &dyn Source, names: &[&str]) -> Vec<usize> {
    let fields = source.schema().fields();
    (0..fields.len()).filter(|number| names.contains(&fields[*number].name().as_str())).collect()
}

/// Computes the digest of these columns of a whole source.
pub(crate) fn digest<'a>(
    source: &dyn Source,
    names: impl Iterator<Item = &'a str>,
    options: &ConvertOptions,
    progress: &Progress,
) -> Result<Digest> {
    let names: Vec<&str> = names.collect();
    let columns = numbers(source, &names);
    let budget = Budget::new(options.memory_budget);
    let shards: Vec<usize> = (0..source.shards().len()).collect();
    let sum = Mutex::new(Summing::new(names.iter().copied()));
    parallel(options.threads(), &shards, progress, |shard| {
        let mut own = Summing::new(names.iter().copied());
        read(source, shard, &columns, &budget, progress, |batch| own.add(&batch).map(drop))?;
        sum.lock().unwrap_or_else(PoisonError::into_inner).merge(&own.digest());
        Ok(())
    })?;
    let sum = sum.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(sum.digest())
}

/// Calls `each` with every batch and the hashes of its rows.
fn rows(
    source: &dyn Source,
    names: &[&str],
    budget: &Budget,
    progress: &Progress,
    mut each: impl FnMut(&RecordBatch, &[u64]) -> Result<()>,
) -> Result<()> {
    let columns = numbers(source, names);
    let mut summing = Summing::new(names.iter().copied());
    for shard in 0..source.shards().len() {
        read(source, shard, &columns, budget, progress, |batch| {
            let hashes = summing.add(&batch)?;
            each(&batch, &hashes)
        })?;
    }
    Ok(())
}

/// Calls `each` with every batch of a shard, whose bytes count as read.
fn read(
    source: &dyn Source,
    shard: usize,
    columns: &[usize],
    budget: &Budget,
    progress: &Progress,
    mut each: impl FnMut(RecordBatch) -> Result<()>,
) -> Result<()> {
    let mut batches = source.read(shard, columns, budget)?;
    let mut counted = 0;
    while let Some(batch) = batches.next()? {
        progress.go_on()?;
        each(batch)?;
        let now = batches.consumed().max(counted);
        progress.bytes.fetch_add(now - counted, Ordering::Relaxed);
        counted = now;
    }
    // Some formats do not tell how much of a shard they have read.
    let bytes = source.shards().get(shard).map_or(0, |shard| shard.bytes);
    progress.bytes.fetch_add(bytes.saturating_sub(counted), Ordering::Relaxed);
    Ok(())
}

/// The stored bytes of a source.
pub(crate) fn stored(source: &dyn Source) -> u64 {
    source.shards().iter().map(|shard| shard.bytes).sum()
}

fn differences(
    first: &dyn Source,
    second: &dyn Source,
    names: &[&str],
    options: &ConvertOptions,
    progress: &Progress,
    comparison: &mut Comparison,
) -> Result<()> {
    let budget = Budget::new(options.memory_budget / 2);
    // A hash and its count take some 32 bytes in the map.
    let most = (options.memory_budget / 2 / 32).max(1);
    let every = comparison.rows[0].max(comparison.rows[1]).div_ceil(most).max(1);
    let looked = |hash: u64| hash.is_multiple_of(every);
    let mut counts: HashMap<u64, i64> = HashMap::new();
    for (source, step) in [(first, 1), (second, -1)] {
        rows(source, names, &budget, progress, |_, hashes| {
            for hash in hashes.iter().filter(|hash| looked(**hash)) {
                *counts.entry(*hash).or_default() += step;
            }
            Ok(())
        })?;
    }
    counts.retain(|_, count| *count != 0);
    let sum = |wanted: fn(i64) -> bool| {
        counts.values().filter(|count| wanted(**count)).map(|count| count.unsigned_abs()).sum::<u64>()
    };
    (comparison.only_first, comparison.only_second) = (sum(|count| count > 0), sum(|count| count < 0));
    comparison.looked_at = every;
    for (source, sign) in [(first, 1), (second, -1)] {
        let mut examples = Vec::new();
        rows(source, names, &budget, progress, |batch, hashes| {
            for (row, hash) in hashes.iter().enumerate() {
                if examples.len() >= SHOWN {
                    break;
                }
                let Some(left) = counts.get_mut(hash).filter(|count| count.signum() == sign) else { continue };
                *left -= sign;
                examples.push(text(batch, row)?);
            }
            Ok(())
        })?;
        match sign {
            1 => comparison.examples_first = examples,
            _ => comparison.examples_second = examples,
        }
    }
    Ok(())
}

/// Formats a row as text of limited length.
fn text(batch: &RecordBatch, row: usize) -> Result<String> {
    let options = FormatOptions::default().with_null("null");
    let mut cells = BTreeMap::new();
    for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
        let column = &timezone::shown(column)?;
        // A cell that cannot be shown does not hide its row.
        let formatter = ArrayFormatter::try_new(column, &options).ok();
        let cell = formatter.and_then(|formatter| formatter.value(row).try_to_string().ok());
        let cell = cell.unwrap_or_else(|| "?".to_owned());
        let short: String = cell.chars().take(40).collect();
        let more = if short.len() < cell.len() { "…" } else { "" };
        cells.insert(field.name().as_str(), format!("{short}{more}"));
    }
    Ok(cells.iter().map(|(name, cell)| format!("{name}={cell}")).collect::<Vec<_>>().join(" "))
}
