//! Small tables of Iceberg, written here: data as Parquet with numbers of columns, manifests as Avro without compression.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{Field, Schema};
use parquet::file::reader::{FileReader, SerializedFileReader};
use roaring::RoaringTreemap;
use serde_json::{Value, json};

use super::support::{text, write};

fn long(value: i64) -> Vec<u8> {
    let (mut left, mut bytes) = (((value << 1) ^ (value >> 63)) as u64, Vec::new());
    while left >= 0x80 {
        bytes.push(left as u8 | 0x80);
        left >>= 7;
    }
    bytes.push(left as u8);
    bytes
}

fn string(text: &str) -> Vec<u8> {
    [long(text.len() as i64), text.as_bytes().to_vec()].concat()
}

fn optional(value: Option<Vec<u8>>) -> Vec<u8> {
    value.map_or_else(|| long(0), |value| [long(1), value].concat())
}

/// A file of Avro with these records.
fn avro(schema: &Value, records: &[Vec<u8>]) -> Vec<u8> {
    let header = [long(1), string("avro.schema"), string(&schema.to_string()), long(0)].concat();
    let (mark, block) = ([9; 16], records.concat());
    let mut bytes = [&b"Obj\x01"[..], &header, &mark].concat();
    if !records.is_empty() {
        bytes.extend([&long(records.len() as i64)[..], &long(block.len() as i64), &block, &mark].concat());
    }
    bytes
}

/// A file of a table. The one partition that there may be is an integer.
#[derive(Clone)]
pub(super) struct File {
    pub(super) path: String,
    pub(super) content: i64,
    pub(super) format: &'static str,
    pub(super) status: i64,
    /// Null takes the manifest's.
    pub(super) sequence: Option<i64>,
    pub(super) partition: Option<Option<i64>>,
    pub(super) rows: i64,
    pub(super) ids: Vec<i64>,
    pub(super) referenced: Option<String>,
    pub(super) range: Option<(i64, i64)>,
    pub(super) counted: Vec<Counted>,
}

/// What a manifest says of a column of a file.
#[derive(Clone, Default)]
pub(super) struct Counted {
    pub(super) id: i64,
    pub(super) values: Option<i64>,
    pub(super) nulls: Option<i64>,
    pub(super) nans: Option<i64>,
    pub(super) lower: Option<Vec<u8>>,
    pub(super) upper: Option<Vec<u8>>,
}

/// A map by numbers of columns.
fn map<T>(counted: &[Counted], of: impl Fn(&Counted) -> Option<T>, bytes: impl Fn(T) -> Vec<u8>) -> Vec<u8> {
    let pairs = counted.iter().filter_map(|one| Some([long(one.id), bytes(of(one)?)].concat()));
    let pairs: Vec<Vec<u8>> = pairs.collect();
    let map = (!pairs.is_empty()).then(|| [long(pairs.len() as i64), pairs.concat(), long(0)].concat());
    optional(map)
}

impl File {
    /// A data file with the rows of its footer; with one row where there is no such file.
    pub(super) fn data(path: &Path) -> Self {
        let footer = fs::File::open(path).ok().and_then(|file| SerializedFileReader::new(file).ok());
        Self {
            path: text(path).to_owned(),
            content: 0,
            format: "PARQUET",
            status: 1,
            sequence: None,
            partition: None,
            rows: footer.map_or(1, |reader| reader.metadata().file_metadata().num_rows()),
            ids: Vec::new(),
            referenced: None,
            range: None,
            counted: Vec::new(),
        }
    }

    pub(super) fn at(self, value: Option<i64>) -> Self {
        Self { partition: Some(value), ..self }
    }

    pub(super) fn positions(path: &Path) -> Self {
        Self { content: 1, ..Self::data(path) }
    }

    pub(super) fn equality(path: &Path, ids: &[i64]) -> Self {
        Self { content: 2, ids: ids.to_vec(), ..Self::data(path) }
    }

    fn record(&self) -> Vec<u8> {
        let partition = self.partition.map(|value| optional(value.map(long))).unwrap_or_default();
        let ids = (!self.ids.is_empty()).then(|| {
            let ids: Vec<Vec<u8>> = self.ids.iter().map(|id| long(*id)).collect();
            [long(ids.len() as i64), ids.concat(), long(0)].concat()
        });
        let file = [
            long(self.content),
            string(&self.path),
            string(self.format),
            partition,
            long(self.rows),
            long(0),
            optional(ids),
            optional(self.referenced.as_deref().map(string)),
            optional(self.range.map(|(offset, _)| long(offset))),
            optional(self.range.map(|(_, size)| long(size))),
            map(&self.counted, |one| one.values, long),
            map(&self.counted, |one| one.nulls, long),
            map(&self.counted, |one| one.nans, long),
            map(&self.counted, |one| one.lower.clone(), |bound| [long(bound.len() as i64), bound].concat()),
            map(&self.counted, |one| one.upper.clone(), |bound| [long(bound.len() as i64), bound].concat()),
        ];
        [long(self.status), long(0), optional(self.sequence.map(long)), file.concat()].concat()
    }
}

/// A manifest: its spec, its sequence number, its files.
pub(super) struct Manifest(pub(super) i64, pub(super) i64, pub(super) Vec<File>);

fn entries(partition: Option<Value>) -> Value {
    let field = |name: &str, id: i32, ty: Value| json!({"name": name, "field-id": id, "type": ty});
    let maybe = |ty: Value| json!(["null", ty]);
    let map = |name: &str, id: i32, key: i32, value: i32, ty: &str| {
        let pair = json!({"type": "record", "name": format!("k{key}_v{value}"), "fields": [
            field("key", key, "int".into()),
            field("value", value, ty.into()),
        ]});
        field(name, id, maybe(json!({"type": "array", "logicalType": "map", "items": pair})))
    };
    let partition: Vec<Value> = partition.map(|ty| field("p", 1000, maybe(ty))).into_iter().collect();
    let file = json!({"type": "record", "name": "r2", "fields": [
        field("content", 134, "int".into()),
        field("file_path", 100, "string".into()),
        field("file_format", 101, "string".into()),
        field("partition", 102, json!({"type": "record", "name": "r102", "fields": partition})),
        field("record_count", 103, "long".into()),
        field("file_size_in_bytes", 104, "long".into()),
        field("equality_ids", 135, maybe(json!({"type": "array", "items": "int", "element-id": 136}))),
        field("referenced_data_file", 143, maybe("string".into())),
        field("content_offset", 144, maybe("long".into())),
        field("content_size_in_bytes", 145, maybe("long".into())),
        map("value_counts", 109, 119, 120, "long"),
        map("null_value_counts", 110, 121, 122, "long"),
        map("nan_value_counts", 137, 138, 139, "long"),
        map("lower_bounds", 125, 126, 127, "bytes"),
        map("upper_bounds", 128, 129, 130, "bytes"),
    ]});
    json!({"type": "record", "name": "manifest_entry", "fields": [
        field("status", 0, "int".into()),
        field("snapshot_id", 1, maybe("long".into())),
        field("sequence_number", 3, maybe("long".into())),
        field("data_file", 2, file),
    ]})
}

/// A table in a directory.
pub(super) struct Table {
    pub(super) path: PathBuf,
    pub(super) metadata: Value,
    /// The type of partitions in manifests.
    pub(super) partition: Value,
    made: usize,
}

impl Table {
    /// One of these columns, each a number, a name and a type; spec 0 has no partitions, spec 1 those of column 1, spec 2 too.
    pub(super) fn new(path: &Path, columns: &[(i64, &str, &str)]) -> Self {
        fs::create_dir_all(path.join("metadata")).unwrap();
        let path = fs::canonicalize(path).unwrap();
        let spec = |id: i64| json!({"spec-id": id, "fields": [{"name": "p", "transform": "identity", "source-id": 1, "field-id": 1000}]});
        let metadata = json!({
            "format-version": 2, "location": text(&path), "current-schema-id": 0, "schemas": [schema(0, columns)],
            "partition-specs": [{"spec-id": 0, "fields": []}, spec(1), spec(2)], "properties": {},
            "current-snapshot-id": -1, "snapshots": [], "snapshot-log": [], "refs": {},
        });
        Self { path, metadata, partition: "int".into(), made: 0 }
    }

    /// A number for a file.
    fn next(&mut self) -> usize {
        self.made += 1;
        self.made
    }

    /// Makes what these manifests have snapshot `id`, which becomes the current one so many seconds after 1970.
    pub(super) fn snapshot(&mut self, id: i64, seconds: i64, manifests: &[Manifest]) {
        let field = |name: &str, id: i32, ty: &str| json!({"name": name, "field-id": id, "type": ty});
        let list = json!({"type": "record", "name": "manifest_file", "fields": [
            field("manifest_path", 500, "string"),
            field("partition_spec_id", 502, "int"),
            field("content", 517, "int"),
            field("sequence_number", 515, "long"),
            field("added_files_count", 504, "int"),
            field("existing_files_count", 505, "int"),
        ]});
        let mut records = Vec::new();
        for Manifest(spec, sequence, files) in manifests {
            let number = self.next();
            let path = self.path.join(format!("metadata/m{number}.avro"));
            let files_of: Vec<Vec<u8>> = files.iter().map(File::record).collect();
            let bytes = avro(&entries((*spec > 0).then(|| self.partition.clone())), &files_of);
            fs::write(&path, bytes).unwrap();
            let count = |status| long(files.iter().filter(|file| file.status == status).count() as i64);
            let deletes = i64::from(files.iter().any(|file| file.content > 0));
            let sequence = long(*sequence);
            records.push([string(text(&path)), long(*spec), long(deletes), sequence, count(1), count(0)].concat());
        }
        let path = self.path.join(format!("metadata/snap-{id}.avro"));
        fs::write(&path, avro(&list, &records)).unwrap();
        let schema = self.metadata["current-schema-id"].clone();
        let snapshot = json!({"snapshot-id": id, "schema-id": schema, "manifest-list": text(&path)});
        self.metadata["snapshots"].as_array_mut().unwrap().push(snapshot);
        let logged = json!({"timestamp-ms": seconds * 1000, "snapshot-id": id});
        self.metadata["snapshot-log"].as_array_mut().unwrap().push(logged);
        self.metadata["current-snapshot-id"] = id.into();
    }

    /// Makes these the columns of the table.
    pub(super) fn alter(&mut self, columns: &[(i64, &str, &str)]) {
        let id = self.metadata["schemas"].as_array().unwrap().len() as i64;
        self.metadata["schemas"].as_array_mut().unwrap().push(schema(id, columns));
        self.metadata["current-schema-id"] = id.into();
    }

    /// Writes the metadata as version `version`.
    pub(super) fn commit(&self, version: u64) -> PathBuf {
        let path = self.path.join(format!("metadata/v{version}.metadata.json"));
        fs::write(&path, self.metadata.to_string()).unwrap();
        path
    }

    /// Writes a file of these columns, by their numbers, as data.
    pub(super) fn file(&self, name: &str, columns: &[(i64, &str, ArrayRef)]) -> PathBuf {
        let path = self.path.join("data").join(name);
        write(&path, &numbered(columns), Default::default());
        path
    }

    /// Writes a file of positions.
    pub(super) fn positions(&self, name: &str, rows: &[(&Path, i64)]) -> PathBuf {
        let of: ArrayRef = Arc::new(StringArray::from_iter_values(rows.iter().map(|(path, _)| text(path))));
        let at: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.iter().map(|(_, at)| *at)));
        self.file(name, &[(2_147_483_546, "file_path", of), (2_147_483_545, "pos", at)])
    }

    /// Writes bitmaps of these rows of files into one file, and tells where each is.
    pub(super) fn vectors(&self, name: &str, vectors: &[(&Path, &[u64])]) -> Vec<File> {
        let path = self.path.join("data").join(name);
        let (mut bytes, mut files) = (b"PFA1".to_vec(), Vec::new());
        for (of, rows) in vectors {
            let bitmap = RoaringTreemap::from_iter(rows.iter().copied());
            let mut body = vec![0xd1, 0xd3, 0x39, 0x64];
            bitmap.serialize_into(&mut body).unwrap();
            let offset = bytes.len() as i64;
            bytes.extend((body.len() as u32).to_be_bytes());
            bytes.extend(&body);
            bytes.extend(crc32fast::hash(&body).to_be_bytes());
            files.push(File {
                format: "PUFFIN",
                rows: rows.len() as i64,
                referenced: Some(text(of).to_owned()),
                range: Some((offset, bytes.len() as i64 - offset)),
                ..File::positions(&path)
            });
        }
        fs::write(&path, bytes).unwrap();
        files
    }
}

fn schema(id: i64, columns: &[(i64, &str, &str)]) -> Value {
    let field = |(id, name, ty): &(i64, &str, &str)| json!({"id": id, "name": name, "required": false, "type": ty});
    json!({"type": "struct", "schema-id": id, "fields": columns.iter().map(field).collect::<Vec<_>>()})
}

/// A batch whose columns have numbers; 0 is none.
pub(super) fn numbered(columns: &[(i64, &str, ArrayRef)]) -> RecordBatch {
    let field = |(id, name, column): &(i64, &str, ArrayRef)| {
        let number = HashMap::from([("PARQUET:field_id".to_owned(), id.to_string())]);
        let number = if *id == 0 { HashMap::new() } else { number };
        Field::new(*name, column.data_type().clone(), true).with_metadata(number)
    };
    let schema = Schema::new(columns.iter().map(field).collect::<Vec<_>>());
    RecordBatch::try_new(Arc::new(schema), columns.iter().map(|(.., column)| Arc::clone(column)).collect()).unwrap()
}

/// A column of 32 bits.
pub(super) fn ints(values: &[Option<i32>]) -> ArrayRef {
    Arc::new(Int32Array::from(values.to_vec()))
}

/// A column of text.
pub(super) fn words(values: &[Option<&str>]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}
