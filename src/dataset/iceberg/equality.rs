//! Rows that are deleted by their values. They are found when the table is opened, by reading the columns that count.
//!
//! A row is deleted if a delete that is newer than its file has its values. Of the deletes of one set of columns in one partition, only
//! the newest that has these values needs to be known.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray};
use arrow::datatypes::{DataType, Float32Type, Float64Type};
use arrow::error::ArrowError;
use arrow::row::{RowConverter, SortField};
use roaring::RoaringTreemap;

use super::deletes::{Scope, partition};
use super::manifest::Entry;
use super::positions::Rows;
use super::rows::Columns;
use super::schema::Defined;
use super::snapshot::ADVICE;
use super::table::Table;
use crate::dataset::table::{Kind, Part};
use crate::dataset::{Dataset, OpenOptions, Room};
use crate::error::{Error, Result};

/// Bytes that one value takes beside its own.
const EACH: u64 = 64;

/// The newest delete that has them, by values.
type Newest = HashMap<Box<[u8]>, i64>;

/// Bytes that the values of one set of columns may take.
fn most(options: &OpenOptions) -> u64 {
    if options.memory_limit == u64::MAX { options.memory } else { options.memory_limit }
}

/// The values of `columns`, row by row, as bytes. All NaNs are one value, as Java's comparisons have it, whatever their bits.
fn values(converter: &RowConverter, mut columns: Vec<ArrayRef>) -> Result<arrow::row::Rows, ArrowError> {
    for column in &mut columns {
        let same: ArrayRef = match column.data_type() {
            DataType::Float32 => Arc::new(
                column.as_primitive::<Float32Type>().unary::<_, Float32Type>(|x| if x.is_nan() { f32::NAN } else { x }),
            ),
            DataType::Float64 => Arc::new(
                column.as_primitive::<Float64Type>().unary::<_, Float64Type>(|x| if x.is_nan() { f64::NAN } else { x }),
            ),
            _ => continue,
        };
        *column = same;
    }
    converter.convert_columns(&columns)
}

impl Table {
    /// The rows that are deleted by values.
    pub(super) async fn by_values(&self, room: &Room, options: &OpenOptions) -> Result<Rows> {
        let mut sets: BTreeMap<&[i32], Vec<(&Scope, &Vec<usize>)>> = BTreeMap::new();
        for (scope, deletes) in &self.applied.values {
            sets.entry(&scope.ids).or_default().push((scope, deletes));
        }
        let mut rows = Rows::new();
        // One set after the other: what is kept of each is as large as its deletes.
        for (ids, scopes) in sets {
            let keys = self.keys(ids)?;
            let mut newest: BTreeMap<&Scope, Arc<Newest>> = BTreeMap::new();
            let mut kept = 0_u64;
            for (scope, deletes) in scopes {
                let found = self.newest(&keys, deletes, &mut kept, room, options).await?;
                newest.insert(scope, Arc::new(found));
            }
            let of_set = |(number, scopes): (&usize, &Vec<Scope>)| {
                scopes.iter().any(|scope| scope.ids == ids).then_some(*number)
            };
            let numbers: Vec<usize> = self.applied.scopes.iter().filter_map(of_set).collect();
            let found = self.matches(&keys, &numbers, &newest, room, options).await?;
            super::positions::add(&mut rows, found);
        }
        Ok(rows)
    }

    /// The columns of these numbers, as any schema of the table had them.
    fn keys(&self, ids: &[i32]) -> Result<Vec<Defined>> {
        let url = &self.about.url;
        let key = |id: &i32| {
            let known = self.known.iter().find(|defined| defined.column.id == Some(*id));
            let Some(found) = known.filter(|defined| matches!(defined.column.kind, Kind::Leaf(_))) else {
                let what = format!(
                    "{url}: rows deleted by the values of column number {id}, which is nested or in no schema, of Iceberg"
                );
                return Err(Error::unsupported(what, ADVICE));
            };
            let mut key = found.clone();
            // Two columns may have had one name at different times.
            key.column.name = format!("{} ({id})", key.column.name);
            key.column.nullable = true;
            Ok(key)
        };
        ids.iter().map(key).collect()
    }

    /// The columns `keys` of `files`.
    async fn open_keys<'a>(
        &self,
        keys: &[Defined],
        files: &[&Entry],
        room: &'a Room,
        options: &'a OpenOptions,
    ) -> Result<Columns<'a>> {
        let (columns, values) = self.part(keys, files)?;
        let mut found = Vec::with_capacity(files.len());
        for file in files {
            let mut at = self.root.literal(&file.path, options.access())?;
            at.size = Some(file.size).filter(|size| *size > 0);
            found.push(at);
        }
        let part = Part { about: self.about.clone(), columns, values };
        let dataset = Dataset::of_part(found, part, options.beside()).await.map_err(|error| self.about.gone(error))?;
        let names: Vec<String> = keys.iter().map(|key| key.column.name.clone()).collect();
        Columns::new(dataset, &names, room, options)
    }

    fn converter(&self, keys: &[Defined]) -> Result<RowConverter> {
        let fields = keys.iter().map(|key| SortField::new(key.column.kind.data_type())).collect();
        RowConverter::new(fields).map_err(|error| {
            Error::unsupported(format!("{}: rows deleted by values of Iceberg ({error})", self.about.url), ADVICE)
        })
    }

    /// The values in files of deletes, each with the newest that has it.
    async fn newest(
        &self,
        keys: &[Defined],
        deletes: &[usize],
        kept: &mut u64,
        room: &Room,
        options: &OpenOptions,
    ) -> Result<Newest> {
        let files: Vec<&Entry> = deletes.iter().filter_map(|number| self.deletes.get(*number)).collect();
        let columns = self.open_keys(keys, &files, room, options).await?;
        let converter = Arc::new(self.converter(keys)?);
        let (mut newest, most) = (Newest::new(), most(options));
        for group in 0..columns.groups() {
            let place = columns.dataset.place(group);
            let file = columns.dataset.manifest().groups.get(group).and_then(|group| files.get(group.file as usize));
            let sequence = file.map_or(0, |file| file.sequence);
            let (converter, url, mut total) = (Arc::clone(&converter), Arc::clone(&self.about.url), *kept);
            let adding = columns.read(group, move |read| {
                let rows = values(&converter, read);
                for row in &rows.map_err(|error| Error::corrupt_by(place, "its values", error))? {
                    let bytes: &[u8] = row.as_ref();
                    match newest.get_mut(bytes) {
                        Some(known) => *known = sequence.max(*known),
                        None => {
                            total = total.saturating_add(bytes.len() as u64 + EACH);
                            if total > most {
                                let what = format!("the values that delete rows of {url}");
                                return Err(Error::limit(what, total, most, "memory_budget"));
                            }
                            newest.insert(bytes.into(), sequence);
                        }
                    }
                }
                Ok((newest, total))
            });
            (newest, *kept) = adding.await?;
        }
        Ok(newest)
    }

    /// The rows of data files of these numbers whose values a newer delete has.
    async fn matches(
        &self,
        keys: &[Defined],
        numbers: &[usize],
        newest: &BTreeMap<&Scope, Arc<Newest>>,
        room: &Room,
        options: &OpenOptions,
    ) -> Result<Rows> {
        let files: Vec<&Entry> = numbers.iter().filter_map(|number| self.data.get(*number)).collect();
        let columns = self.open_keys(keys, &files, room, options).await?;
        let converter = Arc::new(self.converter(keys)?);
        let mut rows = Rows::new();
        let mut before: Option<(usize, u64)> = None;
        for group in 0..columns.groups() {
            let Some(found) = columns.dataset.manifest().groups.get(group) else { continue };
            let (file, first) = (found.file as usize, columns.dataset.row_id(group, 0));
            // Rows are counted over the file.
            let start = match before {
                Some((same, start)) if same == file => start,
                _ => first,
            };
            before = Some((file, start));
            let (Some(entry), Some(number)) = (files.get(file), numbers.get(file)) else { continue };
            let own = partition(entry);
            let scopes: Vec<Arc<Newest>> = newest
                .iter()
                .filter(|(scope, _)| scope.partition.as_ref().is_none_or(|partition| *partition == own))
                .map(|(_, newest)| Arc::clone(newest))
                .collect();
            let (place, converter, sequence) = (columns.dataset.place(group), Arc::clone(&converter), entry.sequence);
            let deleted = columns.read(group, move |read| {
                let values = values(&converter, read).map_err(|error| Error::corrupt_by(place, "its values", error))?;
                let is_deleted =
                    |row: &[u8]| scopes.iter().any(|newest| newest.get(row).is_some_and(|newest| *newest > sequence));
                let deleted = values.iter().zip(first - start..).filter(|(row, _)| is_deleted(row.as_ref()));
                Ok(deleted.map(|(_, at)| at).collect::<RoaringTreemap>())
            });
            *rows.entry(*number).or_default() |= deleted.await?;
        }
        Ok(rows)
    }
}
