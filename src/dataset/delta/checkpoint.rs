//! Reading a checkpoint: Parquet files whose rows are actions; a few of their columns matter.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, MapArray, StructArray};
use arrow::datatypes::{DataType, Int32Type, Int64Type};

use super::action::{Actions, Add, Format, Metadata, PartitionValues, Protocol, Sidecar, Vector};
use super::judge::Judge;
use crate::dataset::Dataset;
use crate::error::{Error, Place, Result};

/// Columns to read. Statistics are most of a checkpoint, and only a filter uses them.
const OF_FILES: [&str; 5] = ["add.path", "add.partitionValues", "add.size", "add.deletionVector", "sidecar.path"];
const STATISTICS: &str = "add.stats";
const PARSED: &str = "add.stats_parsed";
const OF_TABLE: [&str; 6] = [
    "protocol.minReaderVersion",
    "protocol.readerFeatures",
    "metaData.schemaString",
    "metaData.partitionColumns",
    "metaData.configuration",
    "metaData.format",
];

/// Parts of a checkpoint to read.
#[derive(Debug, Clone, Copy)]
pub(super) enum Asked<'a> {
    /// Protocol and metadata.
    Table,
    /// Also the files, with statistics of the columns that a filter tests.
    Files(Option<&'a Arc<Judge>>),
}

/// Reads the actions in `checkpoint`, which is open.
pub(super) async fn read(checkpoint: Dataset, asked: Asked<'_>) -> Result<Actions> {
    let known = |path: &str| checkpoint.project(&[path.to_owned()]).is_ok();
    let mut paths: Vec<String> = Vec::from(OF_TABLE.map(str::to_owned));
    let mut judge = None;
    if let Asked::Files(filtered) = asked {
        paths.extend(OF_FILES.map(str::to_owned));
        if let Some(filtered) = filtered {
            paths.push(STATISTICS.to_owned());
            paths.push(format!("{PARSED}.numRecords"));
            for tested in filtered.tested() {
                let name = tested.physical.join(".");
                paths.extend(["minValues", "maxValues", "nullCount"].map(|part| format!("{PARSED}.{part}.{name}")));
            }
            judge = Some(Arc::clone(filtered));
        }
    }
    paths.retain(|path| known(path.as_str()));
    let projection = Arc::new(checkpoint.project(&paths)?);
    let mut actions = Actions::default();
    for group in 0..checkpoint.manifest().groups.len() {
        let fetched = checkpoint.fetch(group, &projection).await?;
        let (dataset, columns, judge) = (checkpoint.clone(), Arc::clone(&projection), judge.clone());
        let work = tokio::task::spawn_blocking(move || {
            let mut found = Actions::default();
            for (at, root) in columns.roots().iter().enumerate() {
                let array = dataset.decode(&fetched, &columns, at)?;
                let place = || dataset.place(group).column(root.name());
                take(&mut found, root.name(), &array, judge.as_deref())
                    .map_err(|what| Error::corrupt(place(), what))?;
            }
            Ok(found)
        });
        let closed = |error| Err(Error::Closed { why: format!("a checkpoint was not read: {error}") });
        let found: Actions = work.await.unwrap_or_else(closed)?;
        actions.adds.extend(found.adds);
        actions.sidecars.extend(found.sidecars);
        actions.protocol = actions.protocol.or(found.protocol);
        actions.metadata = actions.metadata.or(found.metadata);
    }
    Ok(actions)
}

/// The place of a file of the log in messages.
pub(super) fn place(name: &str) -> Place {
    Place::file(format!("{}/{name}", crate::store::LOG))
}

/// Adds what is in column `name`.
fn take(actions: &mut Actions, name: &str, array: &ArrayRef, judge: Option<&Judge>) -> Result<(), String> {
    let rows = Rows::of(array).ok_or_else(|| format!("{name} is not a struct"))?;
    if name == "add" {
        return files(&mut actions.adds, &rows, judge);
    }
    for row in (0..rows.0.len()).filter(|row| rows.0.is_valid(*row)) {
        match name {
            "protocol" => {
                let Some(version) = rows.long("minReaderVersion", row)? else { continue };
                let reader_features = rows.list("readerFeatures", row)?;
                actions.protocol = Some(Protocol { min_reader_version: version, reader_features });
            }
            "metaData" => {
                let Some(schema_string) = rows.text("schemaString", row)? else { continue };
                let partition_columns = rows.list("partitionColumns", row)?.unwrap_or_default();
                let configuration = owned(rows.entries("configuration", row)?);
                let format = rows.member("format").and_then(Rows::of);
                let provider = format.map(|format| format.text("provider", row)).transpose()?.flatten();
                let format = provider.map_or_else(Format::default, |provider| Format { provider });
                actions.metadata = Some(Metadata { schema_string, partition_columns, configuration, format });
            }
            "sidecar" => {
                if let Some(path) = rows.text("path", row)? {
                    actions.sidecars.push(Sidecar { path });
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Adds the files in `rows`, of which there may be a million.
fn files(adds: &mut Vec<Add>, rows: &Rows<'_>, judge: Option<&Judge>) -> Result<(), String> {
    let vectors = rows.member("deletionVector");
    let mut last: Arc<PartitionValues> = Arc::default();
    for row in (0..rows.0.len()).filter(|row| rows.0.is_valid(*row)) {
        let Some(path) = rows.text("path", row)? else { continue };
        let entries = rows.entries("partitionValues", row)?;
        let is_last = last.len() == entries.len()
            && entries.iter().all(|(name, value)| last.get(*name).is_some_and(|last| last.as_deref() == *value));
        if !is_last {
            last = Arc::new(owned(entries));
        }
        let partition_values = Arc::clone(&last);
        let size = rows.long("size", row)?.unwrap_or_default();
        let deletion_vector = match vectors {
            Some(vectors) if vectors.is_valid(row) => {
                vector(&Rows::of(vectors).ok_or("deletionVector is not a struct")?, row)?.map(Box::new)
            }
            _ => None,
        };
        // Most writers keep JSON; columns are optional beside it.
        let json = if judge.is_some() { rows.borrowed("stats", row)? } else { None };
        let verdict = judge.and_then(|judge| match json {
            Some(json) => judge.by_json(json, &partition_values),
            None => judge.by_column(rows.valid("stats_parsed", row)?, row, &partition_values),
        });
        adds.push(Add { path, partition_values, size, deletion_vector, stats: None, verdict });
    }
    Ok(())
}

fn vector(rows: &Rows<'_>, row: usize) -> Result<Option<Vector>, String> {
    let Some(storage_type) = rows.text("storageType", row)? else { return Ok(None) };
    let missing = |name: &str| format!("a deletion vector has no {name}");
    Ok(Some(Vector {
        storage_type,
        path_or_inline_dv: rows.text("pathOrInlineDv", row)?.ok_or_else(|| missing("pathOrInlineDv"))?,
        offset: rows.long("offset", row)?,
        size_in_bytes: rows.long("sizeInBytes", row)?.ok_or_else(|| missing("sizeInBytes"))?,
        cardinality: rows.long("cardinality", row)?.ok_or_else(|| missing("cardinality"))?,
    }))
}

/// A column of structs.
struct Rows<'a>(&'a StructArray);

impl<'a> Rows<'a> {
    fn of(array: &'a ArrayRef) -> Option<Self> {
        array.as_struct_opt().map(Self)
    }

    fn member(&self, name: &str) -> Option<&'a ArrayRef> {
        self.0.column_by_name(name)
    }

    fn valid(&self, name: &str, row: usize) -> Option<&'a ArrayRef> {
        self.member(name).filter(|member| member.is_valid(row))
    }

    fn text(&self, name: &str, row: usize) -> Result<Option<String>, String> {
        Ok(self.borrowed(name, row)?.map(str::to_owned))
    }

    fn borrowed(&self, name: &str, row: usize) -> Result<Option<&'a str>, String> {
        let Some(member) = self.valid(name, row) else { return Ok(None) };
        text(member, row).map(Some).ok_or_else(|| format!("{name} is not text"))
    }

    fn long(&self, name: &str, row: usize) -> Result<Option<i64>, String> {
        let Some(member) = self.valid(name, row) else { return Ok(None) };
        match member.data_type() {
            DataType::Int32 => Ok(Some(member.as_primitive::<Int32Type>().value(row).into())),
            DataType::Int64 => Ok(Some(member.as_primitive::<Int64Type>().value(row))),
            _ => Err(format!("{name} is not a number")),
        }
    }

    fn list(&self, name: &str, row: usize) -> Result<Option<Vec<String>>, String> {
        let Some(member) = self.valid(name, row) else { return Ok(None) };
        let wrong = || format!("{name} is not a list of texts");
        let items = member.as_list_opt::<i32>().ok_or_else(wrong)?.value(row);
        let item = |at| text(&items, at).map(str::to_owned).ok_or_else(wrong);
        (0..items.len()).map(item).collect::<Result<_, _>>().map(Some)
    }

    /// The entries of a map of texts; none where it is null.
    fn entries(&self, name: &str, row: usize) -> Result<Vec<(&'a str, Option<&'a str>)>, String> {
        let Some(member) = self.valid(name, row) else { return Ok(Vec::new()) };
        let wrong = || format!("{name} is not a map of texts");
        let maps = member.as_any().downcast_ref::<MapArray>().ok_or_else(wrong)?;
        let (keys, values) = (maps.keys(), maps.values());
        let entry = |at: usize| {
            let value = if values.is_null(at) { None } else { Some(text(values, at).ok_or_else(wrong)?) };
            Ok((text(keys, at).ok_or_else(wrong)?, value))
        };
        // Not by an array of the row's own, which takes longer than most of them have entries.
        let offsets = maps.value_offsets();
        (offsets[row] as usize..offsets[row + 1] as usize).map(entry).collect()
    }
}

fn owned(entries: Vec<(&str, Option<&str>)>) -> BTreeMap<String, Option<String>> {
    entries.into_iter().map(|(key, value)| (key.to_owned(), value.map(str::to_owned))).collect()
}

fn text(array: &ArrayRef, row: usize) -> Option<&str> {
    match array.data_type() {
        DataType::Utf8View if array.is_valid(row) => Some(array.as_string_view().value(row)),
        // Old writers say of text nothing but that it is bytes.
        DataType::BinaryView if array.is_valid(row) => std::str::from_utf8(array.as_binary_view().value(row)).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{MapBuilder, StringViewArray, StringViewBuilder};
    use arrow::buffer::NullBuffer;
    use arrow::datatypes::Field;

    use super::*;

    #[test]
    fn files_have_their_own_partition_values_and_neighbours_share_them() {
        let rows = [
            Some(vec![("p", Some("a")), ("q", None)]),
            Some(vec![("p", Some("a")), ("q", None)]),
            Some(vec![("p", Some("a")), ("q", Some(""))]),
            Some(vec![("p", Some("a"))]),
            Some(vec![("q", Some("a"))]),
            Some(vec![]),
            None,
            Some(vec![("q", None), ("p", Some("a"))]),
        ];
        let mut maps = MapBuilder::new(None, StringViewBuilder::new(), StringViewBuilder::new());
        for row in &rows {
            for (name, value) in row.iter().flatten() {
                maps.keys().append_value(name);
                maps.values().append_option(*value);
            }
            maps.append(row.is_some()).unwrap();
        }
        let (paths, maps) = (StringViewArray::from_iter_values(["x"; 8]), maps.finish());
        let field = |name: &str, array: &dyn Array| Field::new(name, array.data_type().clone(), true);
        let fields = vec![field("path", &paths), field("partitionValues", &maps)];
        let all = StructArray::new(fields.into(), vec![Arc::new(paths), Arc::new(maps)], None);
        let mut adds = Vec::new();
        files(&mut adds, &Rows(&all), None).unwrap();
        assert_eq!(adds.len(), rows.len());
        for (add, row) in adds.iter().zip(&rows) {
            assert_eq!(*add.partition_values, owned(row.clone().unwrap_or_default()), "{row:?}");
        }
        let shared: Vec<bool> =
            adds.windows(2).map(|pair| Arc::ptr_eq(&pair[0].partition_values, &pair[1].partition_values)).collect();
        assert_eq!(shared, [true, false, false, false, false, true, false]);
        // A row that is no file.
        let (fields, columns, _) = all.into_parts();
        let all = StructArray::new(fields, columns, Some(NullBuffer::from_iter((0..8).map(|row| row > 0))));
        let mut adds = Vec::new();
        files(&mut adds, &Rows(&all), None).unwrap();
        assert_eq!(adds.len(), 7);
    }
}
