//! Files of Avro, as far as manifests need them: a header with the writer's schema, and blocks of records.
//!
//! ```text
//!   "Obj" 1 · header: schema, codec, what Iceberg says · mark │ count · bytes · records, perhaps compressed · mark │ ...
//! ```
//!
//! A record is read by the numbers of its fields, which Iceberg puts into the schema, and other fields are skipped. A library would
//! lose those numbers, and unpack a block to any size.

use std::collections::BTreeMap;
use std::io::Read;

use super::avro_schema::{Field, Schema};

/// Fault of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Broken(String),
    /// Blocks of this size are beyond the limit.
    Large(u64),
    /// Nothing here unpacks it.
    Codec(String),
}

impl From<&str> for Fault {
    fn from(what: &str) -> Self {
        Self::Broken(what.to_owned())
    }
}

/// A value. Integers of either width are one kind, and so are floats.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Int(i64),
    /// Days since 1970.
    Date(i64),
    Float(f64),
    /// Bytes, of fixed length or not; those of decimals are the fewest that have their value, since types of columns become wider.
    Bytes(Vec<u8>),
    Text(String),
    List(Vec<Value>),
    /// Its fields by their numbers.
    Record(Record),
}

/// The fields of a record that were asked for, by their numbers, in the order of the schema.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Record(pub(super) Vec<(i32, Value)>);

impl Record {
    /// Field number `id`; none if it is null or not there.
    pub(super) fn get(&self, id: i32) -> Option<&Value> {
        let found = self.0.iter().find(|(number, _)| *number == id).map(|(_, value)| value);
        found.filter(|value| **value != Value::Null)
    }

    pub(super) fn int(&self, id: i32) -> Option<i64> {
        match self.get(id)? {
            Value::Int(value) => Some(*value),
            _ => None,
        }
    }

    pub(super) fn text(&self, id: i32) -> Option<&str> {
        match self.get(id)? {
            Value::Text(value) => Some(value),
            _ => None,
        }
    }

    pub(super) fn record(&self, id: i32) -> Option<&Self> {
        match self.get(id)? {
            Value::Record(value) => Some(value),
            _ => None,
        }
    }

    pub(super) fn list(&self, id: i32) -> Option<&[Value]> {
        match self.get(id)? {
            Value::List(values) => Some(values),
            _ => None,
        }
    }
}

const MAGIC: &[u8] = b"Obj\x01";

/// Bytes of the mark between blocks.
const MARK: usize = 16;

/// A file whose header was read.
#[derive(Debug)]
pub(super) struct File<'a> {
    schema: Schema,
    codec: String,
    mark: &'a [u8],
    rest: &'a [u8],
    /// Bytes that its blocks may have together once they are unpacked.
    room: u64,
}

impl<'a> File<'a> {
    /// Reads the header of `bytes`, whose blocks may have `room` bytes together.
    pub(super) fn open(bytes: &'a [u8], room: u64) -> Result<Self, Fault> {
        let mut reader = Reader::new(bytes.strip_prefix(MAGIC).ok_or("it is not a file of Avro")?);
        let mut about = BTreeMap::new();
        loop {
            let count = reader.count()?;
            if count == 0 {
                break;
            }
            for _ in 0..count {
                let key = reader.text()?.to_owned();
                about.insert(key, reader.bytes()?);
            }
        }
        let mark = reader.take(MARK)?;
        let schema = about.get("avro.schema").ok_or("it has no schema")?;
        let schema = Schema::parse(schema).map_err(Fault::Broken)?;
        let codec = about.get("avro.codec").map_or("null".into(), |codec| String::from_utf8_lossy(codec).into_owned());
        Ok(Self { schema, codec, mark, rest: reader.rest, room })
    }

    /// Shows `take` each record. `wanted` says by their numbers which fields matter, at any depth.
    pub(super) fn each<E: From<Fault>>(
        mut self,
        wanted: &dyn Fn(i32) -> bool,
        take: &mut dyn FnMut(Record) -> Result<(), E>,
    ) -> Result<(), E> {
        let Schema::Record(fields) = &self.schema else { return Err(Fault::from("it has no records").into()) };
        while !self.rest.is_empty() {
            let mut reader = Reader::new(self.rest);
            let count = reader.long()?;
            let block = reader.bytes()?;
            if reader.take(MARK)? != self.mark {
                return Err(Fault::from("a block does not end where it says").into());
            }
            self.rest = reader.rest;
            let block = unpack(&self.codec, block, self.room)?;
            self.room = self.room.saturating_sub(block.len() as u64);
            // A record takes a byte at least, so that a number alone costs nothing.
            let count = usize::try_from(count).ok().filter(|count| *count <= block.len());
            let mut reader = Reader::new(&block);
            for _ in 0..count.ok_or_else(|| Fault::from("a block has more records than bytes"))? {
                reader.kept = KEPT;
                take(reader.record(fields, wanted)?)?;
            }
            if !reader.rest.is_empty() {
                return Err(Fault::from("a block goes on behind its records").into());
            }
        }
        Ok(())
    }
}

/// A block without its compression, of at most `room` bytes.
fn unpack(codec: &str, block: &[u8], room: u64) -> Result<Vec<u8>, Fault> {
    let limited = |reader: &mut dyn Read| {
        let mut bytes = Vec::new();
        let most = room.saturating_add(1);
        reader.take(most).read_to_end(&mut bytes).map_err(|_| Fault::from("a block is damaged"))?;
        if bytes.len() as u64 > room { Err(Fault::Large(bytes.len() as u64)) } else { Ok(bytes) }
    };
    match codec {
        "null" => limited(&mut &*block),
        "deflate" => limited(&mut flate2::read::DeflateDecoder::new(block)),
        "zstandard" => {
            let mut decoder = zstd::Decoder::new(block).map_err(|_| Fault::from("a block is damaged"))?;
            limited(&mut decoder)
        }
        "snappy" => {
            let (block, sum) = block.split_last_chunk::<4>().ok_or("a block is cut off")?;
            let length = snap::raw::decompress_len(block).map_err(|_| Fault::from("a block is damaged"))? as u64;
            if length > room {
                return Err(Fault::Large(length));
            }
            let bytes =
                snap::raw::Decoder::new().decompress_vec(block).map_err(|_| Fault::from("a block is damaged"))?;
            if crc32fast::hash(&bytes) != u32::from_be_bytes(*sum) {
                return Err("a block has another checksum".into());
            }
            Ok(bytes)
        }
        other => Err(Fault::Codec(other.chars().take(32).collect())),
    }
}

/// Values that each byte may stand for, and those that cost no byte at all.
const VALUES: usize = 8;
const FREE: usize = 1024;
/// Values of one record that are kept: each takes more memory than bytes.
const KEPT: usize = 1 << 20;

/// Reads values off the front.
struct Reader<'a> {
    rest: &'a [u8],
    /// Values that may still come: some take no bytes, so that a few numbers could ask for any memory.
    values: usize,
    /// Values that may still be kept of this record.
    kept: usize,
}

impl<'a> Reader<'a> {
    fn new(rest: &'a [u8]) -> Self {
        Self { rest, values: rest.len().saturating_mul(VALUES).saturating_add(FREE), kept: KEPT }
    }

    /// Counts one more value.
    fn spend(&mut self) -> Result<(), Fault> {
        self.values = self.values.checked_sub(1).ok_or("it has more values than its bytes can mean")?;
        Ok(())
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Fault> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or("it is cut off")?;
        self.rest = rest;
        Ok(taken)
    }

    /// An integer of either width: seven bits a byte, the lowest first, the sign in the last bit.
    fn long(&mut self) -> Result<i64, Fault> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.take(1)?.first().ok_or("it is cut off")?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok((value >> 1) as i64 ^ -((value & 1) as i64));
            }
        }
        Err("a number is too long".into())
    }

    fn length(&mut self) -> Result<usize, Fault> {
        let length = self.long()?;
        usize::try_from(length).map_err(|_| "a length is negative".into())
    }

    fn bytes(&mut self) -> Result<&'a [u8], Fault> {
        let length = self.length()?;
        self.take(length)
    }

    fn text(&mut self) -> Result<&'a str, Fault> {
        std::str::from_utf8(self.bytes()?).map_err(|_| "a text is not in UTF-8".into())
    }

    /// Number of items that follow, each of at least a byte; after a negative number comes the number of their bytes.
    fn count(&mut self) -> Result<usize, Fault> {
        let count = self.long()?;
        if count < 0 {
            self.long()?;
        }
        let count = usize::try_from(count.unsigned_abs()).ok().filter(|count| *count <= self.rest.len());
        count.ok_or_else(|| "it has more items than bytes".into())
    }

    fn record(&mut self, fields: &[Field], wanted: &dyn Fn(i32) -> bool) -> Result<Record, Fault> {
        let mut record = Record::default();
        for (at, field) in fields.iter().enumerate() {
            if field.id.is_none_or(wanted) {
                // Those without a number may be told apart by their places alone.
                let id = field.id.unwrap_or_else(|| -1 - i32::try_from(at).unwrap_or(i32::MAX - 1));
                record.0.push((id, self.value(&field.schema, wanted)?));
            } else {
                self.skip(&field.schema)?;
            }
        }
        Ok(record)
    }

    fn branch<'s>(&mut self, branches: &'s [Schema]) -> Result<&'s Schema, Fault> {
        let at = self.length()?;
        branches.get(at).ok_or_else(|| "a value is of no type of its union".into())
    }

    fn value(&mut self, schema: &Schema, wanted: &dyn Fn(i32) -> bool) -> Result<Value, Fault> {
        self.spend()?;
        self.kept = self.kept.checked_sub(1).ok_or("a record has too many values")?;
        Ok(match schema {
            Schema::Null => Value::Null,
            Schema::Bool => Value::Bool(self.take(1)? == [1]),
            Schema::Long => Value::Int(self.long()?),
            Schema::Date => Value::Date(self.long()?),
            Schema::Float => Value::Float(f32::from_le_bytes(self.array()?).into()),
            Schema::Double => Value::Float(f64::from_le_bytes(self.array()?)),
            Schema::Bytes => Value::Bytes(self.bytes()?.to_vec()),
            Schema::Text => Value::Text(self.text()?.to_owned()),
            Schema::Fixed(length) => Value::Bytes(self.take(*length)?.to_vec()),
            Schema::Decimal(Some(length)) => Value::Bytes(shortest(self.take(*length)?).to_vec()),
            Schema::Decimal(None) => Value::Bytes(shortest(self.bytes()?).to_vec()),
            Schema::Union(branches) => {
                let branch = self.branch(branches)?;
                self.value(branch, wanted)?
            }
            Schema::Record(fields) => Value::Record(self.record(fields, wanted)?),
            Schema::List(item) => {
                let mut items = Vec::new();
                self.items(&mut |reader| {
                    items.push(reader.value(item, wanted)?);
                    Ok(())
                })?;
                Value::List(items)
            }
            Schema::Map(_) => {
                self.skip(schema)?;
                Value::Null
            }
        })
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        self.take(N)?.try_into().map_err(|_| "it is cut off".into())
    }

    fn items(&mut self, take: &mut dyn FnMut(&mut Self) -> Result<(), Fault>) -> Result<(), Fault> {
        loop {
            let count = self.count()?;
            if count == 0 {
                return Ok(());
            }
            for _ in 0..count {
                take(self)?;
            }
        }
    }

    fn skip(&mut self, schema: &Schema) -> Result<(), Fault> {
        self.spend()?;
        match schema {
            Schema::Null => {}
            Schema::Bool => {
                self.take(1)?;
            }
            Schema::Long | Schema::Date => {
                self.long()?;
            }
            Schema::Float => {
                self.take(4)?;
            }
            Schema::Double => {
                self.take(8)?;
            }
            Schema::Bytes | Schema::Text | Schema::Decimal(None) => {
                self.bytes()?;
            }
            Schema::Fixed(length) | Schema::Decimal(Some(length)) => {
                self.take(*length)?;
            }
            Schema::Union(branches) => {
                let branch = self.branch(branches)?;
                self.skip(branch)?;
            }
            Schema::Record(fields) => {
                for field in fields {
                    self.skip(&field.schema)?;
                }
            }
            Schema::List(item) => self.items(&mut |reader| reader.skip(item))?,
            Schema::Map(item) => self.items(&mut |reader| {
                reader.bytes()?;
                reader.skip(item)
            })?,
        }
        Ok(())
    }
}

/// The fewest bytes of the same number in two's complement.
fn shortest(bytes: &[u8]) -> &[u8] {
    let is_spare = |pair: &&[u8]| match pair {
        [0, next] => *next < 0x80,
        [0xff, next] => *next >= 0x80,
        _ => false,
    };
    let spare = bytes.windows(2).take_while(is_spare).count();
    bytes.get(spare..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long(value: i64) -> Vec<u8> {
        let (mut left, mut bytes) = (((value << 1) ^ (value >> 63)) as u64, Vec::new());
        while left >= 0x80 {
            bytes.push(left as u8 | 0x80);
            left >>= 7;
        }
        bytes.push(left as u8);
        bytes
    }

    fn text(text: &str) -> Vec<u8> {
        [long(text.len() as i64), text.as_bytes().to_vec()].concat()
    }

    fn file(schema: &str, codec: &str, count: i64, block: &[u8]) -> Vec<u8> {
        let header = [long(2), text("avro.schema"), text(schema), text("avro.codec"), text(codec), long(0)].concat();
        let length = long(block.len() as i64);
        [MAGIC, &header, &[7; MARK], &long(count), &length, block, &[7; MARK]].concat()
    }

    const SCHEMA: &str = r#"{"type":"record","name":"r","fields":[
        {"name":"a","type":["null","long"],"field-id":1},
        {"name":"m","type":{"type":"map","values":"bytes"},"field-id":2},
        {"name":"b","type":{"type":"array","items":"int","element-id":9},"field-id":3},
        {"name":"c","type":"string","field-id":4}]}"#;

    fn read(bytes: &[u8], room: u64) -> Result<Vec<Record>, Fault> {
        let mut found = Vec::new();
        File::open(bytes, room)?.each(&|id| id != 2, &mut |record| {
            found.push(record);
            Ok::<_, Fault>(())
        })?;
        Ok(found)
    }

    fn block() -> Vec<u8> {
        let one = [long(1), long(-70_000), long(1), text("k"), text("v"), long(0), long(-2), long(2), long(5), long(6)];
        [one.concat(), long(0), text("é"), long(0), long(0), long(0), text("")].concat()
    }

    #[test]
    fn records_are_read_by_numbers_whatever_the_codec() {
        let raw = block();
        let mut deflated = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
        std::io::Write::write_all(&mut deflated, &raw).unwrap();
        let snappy = snap::raw::Encoder::new().compress_vec(&raw).unwrap();
        let snappy = [&snappy[..], &crc32fast::hash(&raw).to_be_bytes()].concat();
        let blocks = [
            ("null", raw.clone()),
            ("deflate", deflated.finish().unwrap()),
            ("zstandard", zstd::encode_all(&*raw, 1).unwrap()),
            ("snappy", snappy),
        ];
        for (codec, block) in blocks {
            let found = read(&file(SCHEMA, codec, 2, &block), 1000).unwrap();
            assert_eq!(
                (found[0].int(1), found[0].text(4), found[1].int(1)),
                (Some(-70_000), Some("é"), None),
                "{codec}"
            );
            assert_eq!(found[0].list(3).unwrap(), [Value::Int(5), Value::Int(6)]);
            assert_eq!(
                read(&file(SCHEMA, codec, 2, &block), 20),
                Err(Fault::Large(if codec == "snappy" { raw.len() as u64 } else { 21 }))
            );
        }
    }

    #[test]
    fn decimals_have_the_fewest_bytes_of_their_value() {
        for (bytes, shown) in [
            (&[0, 0, 0x7d][..], &[0x7d][..]),
            (&[0, 0x80], &[0, 0x80]),
            (&[0xff, 0xff, 0x83], &[0x83]),
            (&[0xff, 0x7f], &[0xff, 0x7f]),
            (&[0, 0], &[0]),
            (&[0xff], &[0xff]),
            (&[], &[]),
        ] {
            assert_eq!(shortest(bytes), shown, "{bytes:?}");
        }
        let schema = r#"{"type":"record","name":"r","fields":[
            {"name":"a","type":{"type":"fixed","name":"f","size":3,"logicalType":"decimal"},"field-id":1},
            {"name":"b","type":{"type":"fixed","name":"g","size":3},"field-id":3}]}"#;
        let found = read(&file(schema, "null", 1, &[0, 0, 5, 0, 0, 5]), 100).unwrap();
        assert_eq!(found[0].0, [(1, Value::Bytes(vec![5])), (3, Value::Bytes(vec![0, 0, 5]))]);
    }

    #[test]
    fn values_without_bytes_cost_no_memory() {
        // Each list has as many nulls as the block has bytes.
        let schema = |items: &str| {
            format!(r#"{{"type":"record","name":"r","fields":[{{"name":"a","type":{items},"field-id":1}}]}}"#)
        };
        let nulls = r#"{"type":"array","items":{"type":"array","items":"null"}}"#;
        let lists: Vec<u8> = [long(4000), [long(16_000), long(0)].concat().repeat(4000), long(0)].concat();
        let block = [lists, vec![0; 20_000]].concat();
        assert!(
            matches!(read(&file(&schema(nulls), "null", 1, &block), 1 << 20), Err(Fault::Broken(what)) if what.contains("values"))
        );
        let fields = (0..5000).map(|at| format!(r#"{{"name":"f{at}","type":"null","field-id":{}}}"#, 1000 + at));
        let empty = format!(r#"{{"type":"record","name":"e","fields":[{}]}}"#, fields.collect::<Vec<_>>().join(","));
        let found = read(&file(&schema(&empty), "null", 100, &[0; 100]), 1 << 20);
        assert!(matches!(found, Err(Fault::Broken(what)) if what.contains("values")));
    }

    #[test]
    fn what_is_damaged_is_told_and_costs_nothing() {
        let good = file(SCHEMA, "null", 2, &block());
        for cut in 0..good.len() {
            let found = read(&good[..cut], 1000);
            // A file may end between blocks.
            assert!(found.is_err() || found.unwrap().is_empty(), "{cut}");
        }
        for (count, block) in [
            (i64::MAX, block()),
            (-1, block()),
            (1, block()),
            (3, block()),
            (1, [long(9), long(0)].concat()),
            (1, [long(0), long(0), long(i64::MAX), long(0), text("")].concat()),
            (1, [long(0), long(0), long(i64::MIN), long(0), text("")].concat()),
            (1, [long(0), long(0), long(0), long(i64::MAX)].concat()),
            (1, vec![0xff; 30]),
        ] {
            assert!(matches!(read(&file(SCHEMA, "null", count, &block), 1000), Err(Fault::Broken(_))), "{count}");
        }
        assert!(matches!(read(&file(SCHEMA, "lzo", 2, &block()), 1000), Err(Fault::Codec(_))));
        for codec in ["deflate", "zstandard", "snappy"] {
            assert!(read(&file(SCHEMA, codec, 2, &block()), 1000).is_err(), "{codec}");
        }
        assert!(read(&file("\"long\"", "null", 0, &[]), 10).is_err() && read(b"PAR1", 10).is_err());
    }
}
