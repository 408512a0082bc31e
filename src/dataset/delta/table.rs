//! One version of a table: its files in order, with what the log says of each.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;

use super::action::{Add, PartitionValues, Vector, Verdict};
use super::path::{locate, name};
use super::snapshot::{Listed, Snapshot};
use super::{protocol, schema, travel};
use crate::dataset::table::{About, Column, Columns, Naming, Pruned, System, parse};
use crate::dataset::{OpenOptions, hive};
use crate::error::{Error, Place, Result};
use crate::store::{Found, LOG, Ratified, Root};

/// See the module.
#[derive(Debug)]
pub(in crate::dataset) struct Table {
    pub(in crate::dataset) about: About,
    /// Its schema, as the log has it.
    pub(in crate::dataset) spark: String,
    pub(super) files: Vec<File>,
    /// Files that the filter prunes.
    pub(in crate::dataset) pruned: Pruned,
    columns: Columns,
    pub(super) root: Root,
}

/// A file of a table.
#[derive(Debug)]
pub(super) struct File {
    pub(super) found: Found,
    partitions: hive::Values,
    pub(super) vector: Option<Vector>,
    /// Row count in the log, if any.
    rows: Option<u64>,
}

impl Table {
    /// The version of the table at `root` that `options` ask for, the latest one by default, with the commits that its catalog keeps, if one does.
    ///
    /// # Errors
    /// [`Error::NotFound`] for a version that does not exist; [`Error::Unsupported`] naming what is not read; [`Error::Corrupt`] for a log
    /// that is damaged; [`Error::Config`] for an invalid time; [`Error::Limit`], [`Error::Timeout`], [`Error::Store`].
    pub(in crate::dataset) fn open(
        root: Root,
        ratified: Option<Ratified>,
        options: OpenOptions,
    ) -> BoxFuture<'static, Result<Self>> {
        let opening = async move {
            let log = Listed::of(root, ratified, &options).await?;
            let version = match (options.version, &options.timestamp) {
                (Some(_), Some(_)) => {
                    return Err(Error::config("timestamp", "version and timestamp both choose a version; give one"));
                }
                (None, Some(timestamp)) => Some(travel::version(&log, timestamp, &options).await?),
                (version, None) => version,
            };
            let snapshot = log.snapshot(version, &options).await?;
            let (url, version) = (log.root().url().into(), snapshot.version);
            let about = About { system: System::Delta, url, version, schema: None };
            let root = log.into_root();
            // A table may have a million files: too much work for a thread that others wait on.
            let made = tokio::task::spawn_blocking(move || Self::new(snapshot, about, root, &options));
            made.await.unwrap_or_else(|error| Err(Error::Closed { why: format!("a table was not read: {error}") }))
        };
        opening.boxed()
    }

    /// The latest version of the table at `root`, as [`open`](Self::open).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(in crate::dataset) async fn latest(
        root: Root,
        ratified: Option<Ratified>,
        options: &OpenOptions,
    ) -> Result<u64> {
        Listed::of(root, ratified, options).await?.latest()
    }

    fn new(snapshot: Snapshot, about: About, root: Root, options: &OpenOptions) -> Result<Self> {
        let Snapshot { judge, files, protocol, metadata, managed, .. } = snapshot;
        let url = &about.url;
        let mapping = protocol::check(&protocol, &metadata, managed, url)?;
        let (mut partitions, mut columns) = (Vec::new(), Vec::new());
        for column in schema::columns(&metadata.schema_string, mapping, url)? {
            let is_partition = metadata.partition_columns.contains(&column.name);
            if is_partition { partitions.push(column) } else { columns.push(column) }
        }
        // In the order of the log, as directories have them.
        let order = |column: &Column| metadata.partition_columns.iter().position(|name| *name == column.name);
        partitions.sort_by_key(order);
        let place = || Place::file(format!("{url}/{}", LOG));
        if partitions.len() != metadata.partition_columns.len() {
            return Err(Error::corrupt(place(), "a partition column is not in the table's schema"));
        }
        if files.len() > options.limits.max_files {
            let (asked, limit) = (files.len() as u64, options.limits.max_files as u64);
            return Err(Error::limit("the number of files", asked, limit, "limits.max_files"));
        }
        let mut checked = Checked(vec![HashSet::new(); partitions.len()]);
        let nullable: Vec<bool> = partitions.iter().map(|column| column.nullable).collect();
        let keys: BTreeSet<String> = partitions.iter().map(|column| column.physical.clone()).collect();
        // The log may lack a value whatever the schema says, and the other way round.
        partitions.iter_mut().for_each(|column| column.nullable = false);
        let names: Vec<Arc<str>> = partitions.iter().map(|column| column.name.as_str().into()).collect();
        let mut judged = Vec::new();
        // Neighbours share them; they are looked at once.
        let mut last: Option<(Arc<PartitionValues>, hive::Values)> = None;
        for add in files {
            let shared = last.take().filter(|(values, _)| Arc::ptr_eq(values, &add.partition_values));
            let (values, partitions) = match shared {
                Some(shared) => shared,
                None => {
                    let values = partitions.iter_mut().zip(&names).enumerate().map(|(at, (column, name))| {
                        // If columns are mapped, the log has their names in files too.
                        let text = match add.partition_values.get(&column.physical) {
                            Some(text) => text.as_deref(),
                            // A writer may leave out what is null, but has no other key for it.
                            None if nullable[at] && add.partition_values.keys().all(|key| keys.contains(key)) => None,
                            None => return Err(unknown(column, &add)),
                        };
                        let text = checked.value((at, column), text.filter(|text| !text.is_empty()), &add.path)?;
                        column.nullable |= text.is_none();
                        Ok((Arc::clone(name), text))
                    });
                    let of_columns = values.collect::<Result<hive::Values>>()?;
                    (Arc::clone(&add.partition_values), of_columns)
                }
            };
            let parsed = || judge.as_ref()?.by_json(add.stats.as_deref()?, &add.partition_values);
            judged.push(match add.verdict.or_else(parsed) {
                Some(Verdict { rows, is_pruned: true }) => Judged::Pruned(name(&root, add.path, options)?, rows),
                verdict => {
                    let mut found = locate(&root, &add.path, options)?;
                    found.size = u64::try_from(add.size).ok().filter(|size| *size > 0);
                    let (vector, rows) =
                        (add.deletion_vector.map(|vector| *vector), verdict.map(|verdict| verdict.rows));
                    let partitions = partitions.clone();
                    Judged::Left(Box::new(File { found, partitions, vector, rows }))
                }
            });
            last = Some((values, partitions));
        }
        judged.sort_by(|a, b| a.name().cmp(b.name()));
        if let Some(twice) = judged.windows(2).find(|pair| pair[0].name() == pair[1].name()) {
            return Err(Error::corrupt(place(), format!("it has file {} twice", twice[0].name())));
        }
        let (left, pruned) = Pruned::out_of(judged, Judged::pruned_rows, |_, _| false);
        let left = left.into_iter().filter_map(Judged::left).collect();
        let required = columns.iter().filter(|column| !column.nullable).map(|column| column.name.clone()).collect();
        let taken = partitions.iter().map(|column| column.name.clone()).collect();
        let naming = Naming { columns, taken, mapping };
        let (told, stored) = (BTreeSet::new(), BTreeSet::new());
        let columns = Columns { naming, partitions, told, stored, required, numbers: None };
        Ok(Self { about, spark: metadata.schema_string, files: left, pruned, columns, root })
    }

    /// Its files, sorted by name.
    pub(in crate::dataset) fn files(&self) -> Vec<Found> {
        self.files.iter().map(|file| file.found.clone()).collect()
    }

    /// Rows of each file, deleted ones included: `numRecords` counts the rows that the file stores. Known where a filter needed statistics.
    pub(in crate::dataset) fn rows(&self) -> Vec<Option<u64>> {
        self.files.iter().map(|file| file.rows).collect()
    }

    /// The values of partition columns in its files.
    pub(in crate::dataset) fn partition_values(&self) -> Vec<hive::Values> {
        self.files.iter().map(|file| file.partitions.clone()).collect()
    }

    /// Its columns.
    pub(in crate::dataset) fn columns(&self) -> &Columns {
        &self.columns
    }
}

/// The error of a file whose entry in the log has no value of the partition column `column`.
fn unknown(column: &Column, add: &Add) -> Error {
    let keys: Vec<&String> = add.partition_values.keys().collect();
    let what = format!("the table's log has no value of it for the file; partitionValues has {keys:?}");
    Error::corrupt(Place::file(add.path.as_str()).column(column.name.as_str()), what)
}

/// A file, and whether the filter prunes it. Of a pruned one, of which there may be a million, only name and rows are kept.
enum Judged {
    Left(Box<File>),
    Pruned(Box<str>, u64),
}

impl Judged {
    fn name(&self) -> &str {
        match self {
            Self::Left(file) => &file.found.name,
            Self::Pruned(name, _) => name,
        }
    }

    fn pruned_rows(&self) -> Option<u64> {
        match self {
            Self::Left(_) => None,
            Self::Pruned(_, rows) => Some(*rows),
        }
    }

    fn left(self) -> Option<File> {
        match self {
            Self::Left(file) => Some(*file),
            Self::Pruned(..) => None,
        }
    }
}

/// Values of partition columns that were looked at, by column.
#[derive(Debug)]
struct Checked(Vec<HashSet<Arc<str>>>);

impl Checked {
    /// `text`, which is a value of column number `at`, `column`, in the log's entry of the file at `path`.
    fn value(&mut self, (at, column): (usize, &Column), text: Option<&str>, path: &str) -> Result<Option<Arc<str>>> {
        let Some(text) = text else { return Ok(None) };
        let known = &mut self.0[at];
        if let Some(value) = known.get(text) {
            return Ok(Some(Arc::clone(value)));
        }
        let data_type = column.kind.data_type();
        if parse(text, &data_type).is_none() {
            let place = Place::file(path).column(column.name.as_str());
            return Err(Error::corrupt(
                place,
                format!("the table's log has {text:?} for it, which is not a value of type {data_type}"),
            ));
        }
        let value: Arc<str> = text.into();
        known.insert(Arc::clone(&value));
        Ok(Some(value))
    }
}
