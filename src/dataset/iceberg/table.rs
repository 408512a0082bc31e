//! One snapshot of a table: its files in order, with what its metadata say of each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::datatypes::DataType;
use futures::FutureExt;
use futures::future::BoxFuture;

use super::avro::Value;
use super::bounds;
use super::deletes::{Applied, applied};
use super::manifest::Entry;
use super::metadata::{Fault, Metadata, Spec};
use super::schema::{self, Defined};
use super::snapshot::{self, Entries, fault_of};
use super::{travel, value};
use crate::dataset::filter::Facts;
use crate::dataset::table::{About, Column, Columns, Kind, Mapping, Naming, Numbers, Pruned, Sieve, System, Tested};
use crate::dataset::{OpenOptions, hive};
use crate::error::{Error, Place, Result};
use crate::store::{Found, Root};

/// The property that has the names of columns in files without numbers.
const NAMES: &str = "schema.name-mapping.default";

/// See the module.
#[derive(Debug)]
pub(in crate::dataset) struct Table {
    pub(in crate::dataset) about: About,
    pub(super) root: Root,
    found: Vec<Found>,
    /// Files that the filter prunes.
    pub(in crate::dataset) pruned: Pruned,
    values: Vec<hive::Values>,
    columns: Columns,
    /// Its data files, in the order of `found`.
    pub(super) data: Vec<Entry>,
    pub(super) deletes: Vec<Entry>,
    pub(super) applied: Applied,
    /// Every column that it ever had, by its latest type.
    pub(super) known: Vec<Defined>,
    /// Partitioning of files, by the number of the spec.
    specs: BTreeMap<i32, Spec>,
    numbers: Option<Arc<Numbers>>,
    /// Columns that are or were dates. Some manifests do not say that a value of a partition is a date, and not the time that the column has since.
    dates: BTreeSet<i32>,
}

impl Table {
    /// The snapshot of the table at `root`, of the metadata in `file` or the current ones, that `options` ask for, by the columns of schema
    /// number `pinned`, if there is one.
    ///
    /// # Errors
    /// [`Error::NotFound`] for a snapshot that does not exist; [`Error::Unsupported`] naming what is not read; [`Error::Corrupt`] for metadata
    /// that are damaged; [`Error::Config`] where several may be the current ones, and for an invalid choice; [`Error::Limit`],
    /// [`Error::Timeout`], [`Error::Store`].
    pub(in crate::dataset) fn open(
        root: Root,
        file: Option<Found>,
        options: OpenOptions,
        pinned: Option<i64>,
    ) -> BoxFuture<'static, Result<Self>> {
        let opening = async move {
            let (metadata, url) = Self::metadata(&root, file, &options).await?;
            let root = root.at(&metadata.location, options.access())?;
            let chosen = travel::choose(&metadata, &root.url(), &options)?;
            let snapshot = chosen.snapshot.and_then(|id| metadata.snapshot(id));
            let own = snapshot.and_then(|snapshot| snapshot.schema_id);
            let schema = pinned.or_else(|| own.filter(|_| chosen.own_schema));
            let read = snapshot.and(schema.or(metadata.current_schema_id));
            let about = About {
                system: System::Iceberg,
                url: root.url().into(),
                version: chosen.snapshot.and_then(|id| u64::try_from(id).ok()).unwrap_or(0),
                schema: read.filter(|read| own != Some(*read)),
            };
            if pinned.is_none() && own.is_some() && about.schema.is_some() {
                tracing::warn!(
                    "the columns of {} changed after its snapshot {}, without a new one: version={} gives the snapshot's own; to go on \
                     with these later, open the metadata {url}",
                    about.url,
                    about.version,
                    about.version
                );
            }
            let defined = metadata.schema(schema).and_then(schema::columns).map_err(|fault| fault_of(fault, &url))?;
            let columns: Vec<Column> = defined.iter().map(|one| one.column.clone()).collect();
            let sieve = Sieve::new(&columns, &options);
            let ids = sieve.iter().flat_map(|sieve| sieve.tested()).filter_map(|(_, tested)| tested.id).collect();
            let entries = match snapshot {
                Some(snapshot) => {
                    let reading = snapshot::entries(&root, snapshot, ids, &options).await;
                    reading.map_err(|error| about.gone(error))?
                }
                None => Entries::default(),
            };
            // A table may have a million files: too much work for a thread that others wait on.
            snapshot::blocking(move || Self::new(&metadata, (defined, sieve), about, root, entries, &url, &options))
                .await
        };
        opening.boxed()
    }

    /// The current snapshot of the table at `root`, or that of the branch or tag of `options`; 0 for a table that has none yet.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(in crate::dataset) async fn latest(root: Root, file: Option<Found>, options: &OpenOptions) -> Result<u64> {
        let (metadata, url) = Self::metadata(&root, file, options).await?;
        let asked = OpenOptions { version: None, timestamp: None, ..options.clone() };
        let chosen = travel::choose(&metadata, &url, &asked)?;
        Ok(chosen.snapshot.and_then(|id| u64::try_from(id).ok()).unwrap_or(0))
    }

    /// The metadata, and their address.
    async fn metadata(root: &Root, file: Option<Found>, options: &OpenOptions) -> Result<(Metadata, String)> {
        let file = match file {
            Some(file) => file,
            None => snapshot::find(root, options).await?,
        };
        Ok((snapshot::read(&file, options).await?, file.url()))
    }

    fn new(
        metadata: &Metadata,
        (defined, sieve): (Vec<Defined>, Option<Sieve>),
        about: About,
        root: Root,
        entries: Entries,
        url: &str,
        options: &OpenOptions,
    ) -> Result<Self> {
        let faulty = |fault: Fault| fault_of(fault, url);
        let (mut known, mut dates) = (defined.clone(), BTreeSet::new());
        for older in metadata.every_schema() {
            // Columns of the past that cannot be read matter only where a delete goes by them.
            let Ok(columns) = schema::columns(older) else { continue };
            let of_dates = columns.iter().filter(|one| one.column.kind == Kind::Leaf(DataType::Date32));
            dates.extend(of_dates.filter_map(|one| one.column.id));
            known.extend(
                columns
                    .into_iter()
                    .filter(|one| known.iter().all(|other| other.column.id != one.column.id))
                    .collect::<Vec<_>>(),
            );
        }
        let mut specs = BTreeMap::new();
        for id in entries.data.iter().chain(&entries.deletes).map(|entry| entry.spec) {
            if let std::collections::btree_map::Entry::Vacant(place) = specs.entry(id) {
                place.insert(metadata.spec(id).map_err(faulty)?);
            }
        }
        let numbers = match metadata.properties.get(NAMES) {
            Some(json) => Some(Arc::new(
                Numbers::parse(json).ok_or_else(|| faulty(Fault::Broken(format!("its {NAMES} is none"))))?,
            )),
            None => None,
        };
        let mut files = Vec::with_capacity(entries.data.len());
        for entry in entries.data {
            let mut found = root.literal(&entry.path, options.access())?;
            found.size = Some(entry.size).filter(|size| *size > 0);
            files.push((found, entry));
        }
        files.sort_by(|a, b| a.0.name.cmp(&b.0.name));
        let place = || Place::file(url);
        if let Some(twice) = files.windows(2).find(|pair| pair[0].0.name == pair[1].0.name) {
            return Err(Error::corrupt(place(), format!("the snapshot has file {} twice", twice[0].0.name)));
        }
        let mut pruned = Pruned::default();
        if let Some(sieve) = &sieve {
            // A file without rows costs a footer, which tells that it has none.
            let rows = |(_, entry): &(Found, Entry)| entry.stored_rows().filter(|rows| *rows > 0);
            let known =
                |entry: &Entry, tested: &Tested, rows| facts(entry, tested, rows, specs.get(&entry.spec), &dates);
            (files, pruned) = Pruned::out_of(files, rows, |(_, entry), rows| {
                sieve.keeps(&mut |_, tested| known(entry, tested, rows))
            });
        }
        let (found, data): (Vec<Found>, Vec<Entry>) = files.into_iter().unzip();
        let unpartitioned = |id: i32| specs.get(&id).is_none_or(Spec::is_unpartitioned);
        let applied = applied(&data, &entries.deletes, &unpartitioned)
            .map_err(|path| Error::corrupt(place(), format!("the snapshot has two deletion vectors of file {path}")))?;
        let mut table = Self {
            about,
            root,
            found,
            pruned,
            values: Vec::new(),
            columns: columns_of(&[], None),
            data,
            deletes: entries.deletes,
            applied,
            known,
            specs,
            numbers,
            dates,
        };
        let every: Vec<&Entry> = table.data.iter().collect();
        (table.columns, table.values) = table.part(&defined, &every)?;
        let required = defined.iter().map(|one| &one.column).filter(|column| !column.nullable);
        table.columns.required = required.map(|column| column.name.clone()).collect();
        Ok(table)
    }

    /// The columns `defined`, and for each of `files` the values of those that it may lack.
    pub(super) fn part(&self, defined: &[Defined], files: &[&Entry]) -> Result<(Columns, Vec<hive::Values>)> {
        let mut columns = columns_of(defined, self.numbers.clone());
        let mut defaults: hive::Values = Vec::new();
        for one in defined {
            let Some(initial) = &one.initial else { continue };
            let name = &one.column.name;
            match value::of_default(initial, &one.column.kind.data_type()) {
                Some(text) => {
                    columns.told.insert(name.clone());
                    defaults.push((name.as_str().into(), Some(text)));
                }
                None => {
                    columns.stored.insert(name.clone());
                }
            }
        }
        let by_id: BTreeMap<i32, &Column> =
            defined.iter().filter_map(|one| Some((one.column.id?, &one.column))).collect();
        // Equal texts are kept once.
        let mut texts: BTreeSet<Arc<str>> = BTreeSet::new();
        let names: BTreeMap<i32, Arc<str>> =
            by_id.iter().map(|(id, column)| (*id, column.name.as_str().into())).collect();
        let mut values = Vec::with_capacity(files.len());
        for file in files {
            let mut of_file = defaults.clone();
            let spec = self.specs.get(&file.spec);
            let fields = spec.map(|spec| spec.fields.as_slice()).unwrap_or_default();
            if fields.len() != file.partition.len() {
                let what = format!(
                    "file {} has {} values of a partition, its spec has {}",
                    file.path,
                    file.partition.len(),
                    fields.len()
                );
                return Err(Error::corrupt(Place::file(Arc::clone(&self.about.url)), what));
            }
            for (field, own) in fields.iter().zip(&file.partition).filter(|(field, _)| field.transform == "identity") {
                let found = field.source_id.and_then(|id| Some((by_id.get(&id)?, names.get(&id)?)));
                let Some((column, name)) = found else { continue };
                let is_date = column.kind == Kind::Leaf(DataType::Date32);
                let was_date = field.source_id.is_some_and(|id| self.dates.contains(&id)) && !is_date;
                let text = match own {
                    Value::Null => None,
                    own => {
                        let text = value::of_partition(own, &column.kind.data_type()).filter(|_| !was_date);
                        let Some(text) = text else {
                            columns.stored.insert(column.name.clone());
                            // The default is not its value.
                            of_file.retain(|(known, _)| known != name);
                            continue;
                        };
                        Some(match texts.get(&text) {
                            Some(known) => Arc::clone(known),
                            None => {
                                texts.insert(Arc::clone(&text));
                                text
                            }
                        })
                    }
                };
                columns.told.insert(column.name.clone());
                match of_file.iter_mut().find(|(known, _)| known == name) {
                    Some((_, known)) => *known = text,
                    None => of_file.push((Arc::clone(name), text)),
                }
            }
            values.push(of_file);
        }
        Ok((columns, values))
    }

    /// Its data files, sorted by name.
    pub(in crate::dataset) fn files(&self) -> Vec<Found> {
        self.found.clone()
    }

    /// Rows of each file, where its manifest states them.
    pub(in crate::dataset) fn rows(&self) -> Vec<Option<u64>> {
        self.data.iter().map(Entry::stored_rows).collect()
    }

    /// The values of columns that its files may lack.
    pub(in crate::dataset) fn values(&self) -> Vec<hive::Values> {
        self.values.clone()
    }

    /// Its columns.
    pub(in crate::dataset) fn columns(&self) -> &Columns {
        &self.columns
    }
}

/// Facts of the manifest about `tested` over the `rows` rows of `entry`, which is partitioned by `spec`; `dates` are the columns that once had dates.
fn facts(entry: &Entry, tested: &Tested, rows: u64, spec: Option<&Spec>, dates: &BTreeSet<i32>) -> Vec<Facts> {
    let was_date = tested.kind != DataType::Date32 && tested.id.is_some_and(|id| dates.contains(&id));
    let fields = spec.map(|spec| spec.fields.as_slice()).filter(|fields| fields.len() == entry.partition.len());
    let values = fields.into_iter().flatten().zip(&entry.partition);
    let own = values.filter(|(field, _)| field.source_id.is_some() && field.source_id == tested.id);
    let of_partition =
        own.filter_map(|(field, value)| bounds::of_partition(&field.transform, value, &tested.kind, was_date, rows));
    let of_columns = entry.columns.iter().find_map(|counted| counted.facts(tested, rows));
    of_partition.chain(of_columns).collect()
}

/// The columns `defined` as they are looked for in files.
fn columns_of(defined: &[Defined], numbers: Option<Arc<Numbers>>) -> Columns {
    let columns = defined.iter().map(|one| one.column.clone()).collect();
    let naming = Naming { columns, taken: BTreeSet::new(), mapping: Mapping::Id };
    let (told, stored, required) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    Columns { naming, partitions: Vec::new(), told, stored, required, numbers }
}
