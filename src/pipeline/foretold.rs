//! Checks of values when a dataset is opened, so that errors come then rather than hours later: nulls where they are
//! errors, and integers that a 32-bit consumer cannot hold.
//!
//! Footers tell where to look, and reading decides: the column is read in a row group that they name. So wrong
//! statistics refuse nothing, and neither do rows that a filter leaves out.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::ArrayRef;
use futures::stream::{StreamExt, TryStreamExt};

use super::job::Source;
use crate::codec::{Columns, Watched};
use crate::dataset::{Dataset, OpenOptions, Projection, Room, Told, held, within};
use crate::error::{Error, Place, Result};

/// Columns examined together.
const AT_ONCE: usize = 8;

/// Columns that an error lists; more are counted.
const LISTED: usize = 40;

/// The remedies for nulls.
const WAYS_OUT: &str = "say what becomes of them with nulls, for all columns or one by one: \"mask\" (<column>__valid tells them), a \
                        number to fill in, or {\"fill\": value}; or exclude the columns, select other rows with a filter, or set bad_rows";

/// An integer that does not fit in 32 bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WideInteger {
    /// The column.
    pub column: Arc<str>,
    /// The first value found.
    pub value: i128,
    /// Its place.
    pub place: Place,
}

/// Checks that the rows of `sources` have no nulls in columns where these are errors, as far as footers tell. Reads at
/// most `most` bytes of a row group: nulls beyond that are found when they are read.
///
/// # Errors
/// [`Error::Nulls`], once for all such columns; [`Error::Limit`] for a read within `most` that exceeds the memory of
/// `options`; [`Error::Timeout`].
pub(super) async fn nulls(sources: &[Source], options: &OpenOptions, most: u64) -> Result<()> {
    let mut seen = Vec::new();
    for source in sources {
        let find = |dataset: &Dataset, paths: &[String], _: &[Watched]| dataset.told_nulls(paths);
        let is_there = |columns: &Columns, column: &Watched, array: &ArrayRef| {
            columns.null_in(column, array).map(|row| ((), Some(row)))
        };
        let found = look(source, source.columns.strict(), (options, most), find, is_there).await?;
        seen.extend(found.into_iter().map(|seen| (source, seen)));
    }
    let Some((_, (first, _, (), place))) = seen.first() else { return Ok(()) };
    let chosen = options.filter.is_some();
    let count = |told: &Told| {
        let groups = if told.groups == 1 { "1 row group".to_owned() } else { format!("{} row groups", told.groups) };
        let values = if told.values == 1 { "1 null".to_owned() } else { format!("{} nulls", told.values) };
        // How many of them pass the filter is unknown.
        format!("{}{values} in {groups}", if chosen { "some of " } else { "" })
    };
    let listed = seen.iter().take(LISTED).map(|(source, (column, told, ..))| {
        let of = if sources.len() > 1 { format!(" of {}", source.dataset.urls().join(", ")) } else { String::new() };
        format!("{}{of} ({})", column.name, count(told))
    });
    let mut listed = listed.collect::<Vec<_>>().join(", ");
    if seen.len() > LISTED {
        listed += &format!(", and {} more", seen.len() - LISTED);
    }
    let names: BTreeSet<&str> = seen.iter().map(|(_, (column, ..))| &*column.name).collect();
    let columns = if names.len() == 1 { "a column".to_owned() } else { format!("{} columns", names.len()) };
    let what = format!("nulls in {columns}, where nulls is \"error\": {listed}");
    Err(Error::nulls(what, WAYS_OUT).at(place.clone().column(Arc::clone(&first.name))))
}

/// Integers of `sources`, delivered as they are stored, that do not fit in 32 bits: the first one of each column, as
/// far as footers tell and reads within the memory of `options` show.
///
/// # Errors
/// [`Error::Timeout`].
pub(super) async fn wide_integers(sources: &[Source], options: &OpenOptions) -> Result<Vec<WideInteger>> {
    let mut found = Vec::new();
    for source in sources {
        let find = |dataset: &Dataset, paths: &[String], columns: &[Watched]| {
            let signed: Vec<bool> = columns.iter().map(|column| column.signed).collect();
            dataset.told_wide(paths, &signed)
        };
        let limits = (options, options.memory_limit);
        let seen = look(source, source.columns.long(), limits, find, Columns::wide_in).await?;
        found.extend(seen.into_iter().map(|(column, _, value, place)| {
            let place = place.column(Arc::clone(&column.name));
            WideInteger { column: column.name, value, place }
        }));
    }
    Ok(found)
}

/// Findings for a column: the footers' summary, and the first value with its place.
type Seen<T> = (Watched, Told, T, Place);

/// The columns for which footers report something, by `find`, that `is_there` confirms. Ends within the time-out.
async fn look<T: Send + 'static>(
    source: &Source,
    columns: Vec<Watched>,
    (options, most): (&OpenOptions, u64),
    find: impl FnOnce(&Dataset, &[String], &[Watched]) -> Result<Vec<Told>> + Send + 'static,
    is_there: impl Fn(&Columns, &Watched, &ArrayRef) -> Option<(T, Option<usize>)> + Copy + Send + 'static,
) -> Result<Vec<Seen<T>>> {
    if columns.is_empty() {
        return Ok(Vec::new());
    }
    let dataset = source.dataset.clone();
    let told = held::spawn(move || {
        let paths: Vec<String> = columns.iter().map(|column| column.told.clone()).collect();
        let told = find(&dataset, &paths, &columns)?;
        Ok(columns.into_iter().zip(told).filter(|(_, told)| told.groups > 0).collect::<Vec<_>>())
    });
    let told =
        told.await.unwrap_or_else(|error| Err(Error::Closed { why: format!("footers were not seen: {error}") }))?;
    let Some(((first, _), others)) = told.split_first() else { return Ok(Vec::new()) };
    let culprit = match others.len() {
        0 => format!("a look at column {}", first.name),
        others => format!("a look at column {} and {others} more", first.name),
    };
    let room = Room::new(options);
    let looks = told.into_iter().map(|(column, told)| {
        let room = &room;
        async move {
            let (dataset, columns) = (&source.dataset, &source.columns);
            let projection = Arc::new(dataset.project(std::slice::from_ref(&column.path))?);
            for group in &told.named {
                if dataset.cost(*group, &projection).total() > most {
                    continue;
                }
                let _permit = room.take(dataset, &projection, *group).await?;
                // Other errors there are reported when the column is read.
                let Ok(array) = read(dataset, *group, &projection).await else { continue };
                if let Some((found, row)) = is_there(columns, &column, &array) {
                    let place = dataset.place(*group);
                    let place = match row {
                        Some(row) => place.row(dataset.stored_row(*group, row as u64)),
                        None => place,
                    };
                    return Ok(Some((column, told, found, place)));
                }
            }
            Ok::<_, Error>(None)
        }
    });
    let looks = futures::stream::iter(looks).buffered(AT_ONCE).try_collect();
    let seen: Vec<Option<Seen<T>>> = within(options.timeout, culprit, looks).await?;
    Ok(seen.into_iter().flatten().collect())
}

/// The one root column of `projection` in row group `group`.
async fn read(dataset: &Dataset, group: usize, projection: &Arc<Projection>) -> Result<ArrayRef> {
    let fetched = dataset.fetch(group, projection).await?;
    let (dataset, projection) = (dataset.clone(), Arc::clone(projection));
    let decoded = held::spawn(move || dataset.decode(&fetched, &projection, 0));
    decoded.await.unwrap_or_else(|error| Err(Error::Closed { why: format!("a column was not seen: {error}") }))
}
