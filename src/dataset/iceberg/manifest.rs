//! Manifests: the files of a table, each with the order in which it came.
//!
//! Fields go by the numbers that the specification gives them.

use super::avro::{Record, Value};
use super::bounds::{self, ColumnMetrics};

/// Returns true if field `id` of a list of manifests matters.
pub(super) fn of_list(id: i32) -> bool {
    [500, 502, 504, 505, 515, 517, 519].contains(&id)
}

/// As [`of_entry`], with the metrics of columns.
pub(super) fn of_entry_with_metrics(id: i32) -> bool {
    of_entry(id) || bounds::of_columns(id)
}

/// Returns true if field `id` of a manifest matters: none about columns. From 1000 on they are values of partitions.
pub(super) fn of_entry(id: i32) -> bool {
    id >= 1000 || [0, 2, 3, 100, 101, 102, 103, 104, 131, 134, 135, 143, 144, 145].contains(&id)
}

/// A manifest, as their list has it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Manifest {
    pub(super) path: String,
    pub(super) spec: i32,
    /// 0 in the first version of the format, which has no such numbers.
    pub(super) sequence: i64,
    pub(super) deletes: bool,
    /// Files in it that the snapshot has, which the first version of the format need not say.
    pub(super) files: Option<u64>,
}

/// Content of a file of a table.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Content {
    Data,
    Positions,
    /// The bitmap of one data file: where it is, and how many rows it has.
    Vector {
        offset: u64,
        size: u64,
    },
    /// By the values of columns of these numbers, in their order.
    Equality(Vec<i32>),
}

/// A file of a table.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub(super) content: Content,
    pub(super) path: String,
    pub(super) size: u64,
    pub(super) rows: i64,
    pub(super) spec: i32,
    /// The values of its partition, in the order of its spec.
    pub(super) partition: Vec<Value>,
    /// The number of the commit that added its rows, which says what a delete is older than.
    pub(super) sequence: i64,
    /// The one data file that it belongs to, where a delete says so.
    pub(super) referenced: Option<String>,
    /// Metrics of the columns that a filter tests.
    pub(super) columns: Vec<ColumnMetrics>,
}

/// Fault of an entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Broken(&'static str),
    /// Nothing here reads it.
    Refused(String),
}

impl Manifest {
    /// The manifest in `record`.
    pub(super) fn of(record: &Record) -> Result<Self, Fault> {
        let path = record.text(500).ok_or(Fault::Broken("a manifest has no path"))?.to_owned();
        if record.get(519).is_some() {
            return Err(Fault::Refused("an encrypted manifest".to_owned()));
        }
        let spec = record.int(502).map_or(Ok(0), i32::try_from).map_err(|_| Fault::Broken("a spec has no number"))?;
        let deletes = match record.int(517) {
            None | Some(0) => false,
            Some(1) => true,
            Some(_) => return Err(Fault::Broken("a manifest is of neither data nor deletes")),
        };
        let files = record.int(504).zip(record.int(505)).and_then(|(added, before)| added.checked_add(before));
        let files = files.and_then(|files| u64::try_from(files).ok());
        Ok(Self { path, spec, sequence: record.int(515).unwrap_or(0), deletes, files })
    }

    /// Bytes that it takes in memory.
    pub(super) fn bytes(&self) -> u64 {
        (size_of::<Self>() + self.path.len()) as u64
    }
}

impl Entry {
    /// The file in `record`, an entry of `manifest`, with what it says of the columns `ids`; none if it was deleted.
    pub(super) fn of(record: &Record, manifest: &Manifest, ids: &[i32]) -> Result<Option<Self>, Fault> {
        let status = record.int(0).ok_or(Fault::Broken("an entry has no status"))?;
        match status {
            0 | 1 => {}
            2 => return Ok(None),
            _ => return Err(Fault::Broken("an entry has an unknown status")),
        }
        let file = record.record(2).ok_or(Fault::Broken("an entry has no file"))?;
        let path = file.text(100).ok_or(Fault::Broken("a file has no path"))?.to_owned();
        // A file that its manifest added has the manifest's number; one that was there before has its own.
        let sequence = match (record.int(3), status, manifest.sequence) {
            (Some(own), ..) => own,
            (None, 1, of_manifest) => of_manifest,
            (None, _, 0) => 0,
            (None, ..) => return Err(Fault::Broken("a file that was there before has no sequence number")),
        };
        if file.get(131).is_some() {
            return Err(Fault::Refused(format!("the encrypted file {path}")));
        }
        let number = |id: i32, what| {
            file.int(id).map(|number| u64::try_from(number).map_err(|_| Fault::Broken(what))).transpose()
        };
        let format = file.text(101).unwrap_or_default().to_ascii_lowercase();
        let is_vector = format == "puffin";
        let content = match file.int(134) {
            None | Some(0) => Content::Data,
            Some(1) if is_vector => Content::Vector {
                offset: number(144, "a vector has a negative offset")?
                    .ok_or(Fault::Broken("a vector has no offset"))?,
                size: number(145, "a vector has a negative size")?.ok_or(Fault::Broken("a vector has no size"))?,
            },
            Some(1) => Content::Positions,
            Some(2) => {
                let ids = file.list(135).unwrap_or_default().iter().map(|id| match id {
                    Value::Int(id) => i32::try_from(*id).ok(),
                    _ => None,
                });
                let ids: Option<Vec<i32>> = ids.collect();
                let ids = ids.filter(|ids| !ids.is_empty());
                Content::Equality(ids.ok_or(Fault::Broken("an equality delete names no columns"))?)
            }
            Some(_) => return Err(Fault::Broken("a file has an unknown content")),
        };
        let referenced = file.text(143).map(str::to_owned);
        if matches!(content, Content::Vector { .. }) && referenced.is_none() {
            return Err(Fault::Broken("a vector names no data file"));
        }
        if (content == Content::Data) == manifest.deletes {
            return Err(Fault::Broken("a file is of another content than its manifest"));
        }
        if format != "parquet" && !matches!(content, Content::Vector { .. }) {
            let shown: String = format.chars().take(32).collect();
            return Err(Fault::Refused(format!("the file {path} of format {shown:?}")));
        }
        let partition = file.record(102).map(|values| values.0.iter().map(|(_, value)| value.clone()).collect());
        let columns = if content == Content::Data { ColumnMetrics::of(file, ids) } else { Vec::new() };
        Ok(Some(Self {
            content,
            path,
            size: number(104, "a file has a negative size")?.unwrap_or(0),
            rows: file.int(103).unwrap_or(-1),
            spec: manifest.spec,
            partition: partition.unwrap_or_default(),
            sequence,
            referenced,
            columns,
        }))
    }

    /// Rows of a data file, deleted ones included; `None` if unknown, for which old writers have -1.
    pub(super) fn stored_rows(&self) -> Option<u64> {
        u64::try_from(self.rows).ok()
    }

    /// Bytes that it takes in memory.
    pub(super) fn bytes(&self) -> u64 {
        let value = |value: &Value| {
            let inside = match value {
                Value::Bytes(bytes) => bytes.len(),
                Value::Text(text) => text.len(),
                _ => 0,
            };
            size_of::<Value>() + inside
        };
        let partition: usize = self.partition.iter().map(value).sum();
        let referenced = self.referenced.as_ref().map_or(0, String::len);
        let ids = if let Content::Equality(ids) = &self.content { size_of_val(ids.as_slice()) } else { 0 };
        let columns: usize = self.columns.iter().map(ColumnMetrics::bytes).sum();
        (size_of::<Self>() + self.path.len() + partition + referenced + ids + columns) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(fields: &[(i32, Value)]) -> Record {
        Record(fields.to_vec())
    }

    fn entry(
        status: i64,
        sequence: Option<i64>,
        file: &[(i32, Value)],
        manifest: &Manifest,
    ) -> Result<Option<Entry>, Fault> {
        let path = (100, Value::Text("s3://b/x".to_owned()));
        let file = [&[path][..], file].concat();
        let sequence = sequence.map_or(Value::Null, Value::Int);
        // Its file sequence number, 4, says when the file itself was added, and does not count.
        let fields = [
            (0, Value::Int(status)),
            (1, Value::Null),
            (3, sequence),
            (4, Value::Int(99)),
            (2, Value::Record(record(&file))),
        ];
        Entry::of(&record(&fields), manifest, &[])
    }

    fn manifest(sequence: i64, deletes: bool) -> Manifest {
        Manifest { path: "m".to_owned(), spec: 3, sequence, deletes, files: None }
    }

    fn parquet(more: &[(i32, Value)]) -> Vec<(i32, Value)> {
        [&[(101, Value::Text("PARQUET".to_owned()))][..], more].concat()
    }

    #[test]
    fn sequence_numbers_are_inherited_by_what_was_added_and_deleted_entries_are_skipped() {
        let data = manifest(7, false);
        let of = |status, own, manifest: &Manifest| {
            entry(status, own, &parquet(&[]), manifest).map(|found| found.map(|one| one.sequence))
        };
        assert_eq!(of(1, None, &data), Ok(Some(7)));
        assert_eq!(of(1, Some(5), &data), Ok(Some(5)));
        assert_eq!(of(0, Some(5), &data), Ok(Some(5)));
        assert_eq!(of(2, Some(5), &data), Ok(None));
        assert_eq!(of(0, None, &manifest(0, false)), Ok(Some(0)), "the first version of the format");
        assert!(of(0, None, &data).is_err() && of(3, None, &data).is_err());
    }

    #[test]
    fn contents_are_told_apart_and_what_is_not_read_is_named() {
        let deletes = manifest(1, true);
        let of = |file: &[(i32, Value)]| entry(1, None, file, &deletes).map(|found| found.unwrap().content);
        assert_eq!(of(&parquet(&[(134, Value::Int(1))])), Ok(Content::Positions));
        let ids = Value::List(vec![Value::Int(3), Value::Int(1)]);
        assert_eq!(of(&parquet(&[(134, Value::Int(2)), (135, ids)])), Ok(Content::Equality(vec![3, 1])));
        let text = |text: &str| Value::Text(text.to_owned());
        let vector = [
            (134, Value::Int(1)),
            (101, text("PUFFIN")),
            (143, text("s3://b/data")),
            (144, Value::Int(4)),
            (145, Value::Int(9)),
        ];
        assert_eq!(of(&vector), Ok(Content::Vector { offset: 4, size: 9 }));
        for wrong in [
            &parquet(&[(134, Value::Int(0))]),
            &parquet(&[(134, Value::Int(2))]),
            &parquet(&[(134, Value::Int(7))]),
            &vector[..4].to_vec(),
            &[&vector[..2], &vector[3..]].concat(),
        ] {
            assert!(matches!(of(wrong), Err(Fault::Broken(_))), "{wrong:?}");
        }
        for (file, named) in [
            (vec![(101, Value::Text("ORC".to_owned()))], "orc"),
            (vec![(101, Value::Text("AVRO".to_owned()))], "avro"),
            (parquet(&[(131, Value::Bytes(vec![1]))]), "encrypted"),
        ] {
            let error = entry(1, None, &file, &manifest(1, false)).unwrap_err();
            assert!(
                matches!(&error, Fault::Refused(what) if what.contains(named) && what.contains("s3://b/x")),
                "{error:?}"
            );
        }
    }

    #[test]
    fn a_list_of_manifests_of_the_first_version_has_less() {
        let found = Manifest::of(&record(&[(500, Value::Text("m".to_owned())), (502, Value::Int(2))])).unwrap();
        let expected = Manifest { path: "m".to_owned(), spec: 2, sequence: 0, deletes: false, files: None };
        assert_eq!(found, expected);
        assert!(Manifest::of(&record(&[])).is_err());
        let sealed = record(&[(500, Value::Text("m".to_owned())), (519, Value::Bytes(vec![1]))]);
        assert!(matches!(Manifest::of(&sealed), Err(Fault::Refused(_))));
    }
}
