//! Calls to a metastore and its answers, as bytes: pure, so that tests can try any answer.

use std::collections::BTreeMap;
use std::io::Read;

use super::thrift::{Fault, Reader, Writer, kind};
use crate::store::catalog::hive_table::{HiveTable, MOST_PARTITIONS, Partition};

/// Types of messages.
const REPLY: u32 = 2;
const EXCEPTION: u32 = 3;

/// The type of a fault of the server that says that it lacks a method.
const UNKNOWN_METHOD: i32 = 1;

/// Most letters of a message that are shown.
const SHOWN: usize = 300;

/// Most partition columns of a table.
const MOST_KEYS: usize = 1_000;

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Refusal {
    /// There is no such table or database.
    Missing(String),
    /// The server is too old or too new for the call.
    Method(String),
    /// What the server says.
    Told(String),
    Fault(Fault),
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// A call for a table. Hive 4 knows the first kind alone, Hive before 2.3 the second.
pub(super) fn get_table(database: &str, table: &str, by_request: bool) -> Vec<u8> {
    if !by_request {
        return arguments("get_table", database, table, |_| ());
    }
    let mut writer = Writer::call("get_table_req");
    writer.begin(1);
    writer.string(1, database);
    writer.string(2, table);
    writer.end();
    writer.end();
    writer.finish()
}

/// A call for the names of all partitions of a table.
pub(super) fn get_partition_names(database: &str, table: &str) -> Vec<u8> {
    arguments("get_partition_names", database, table, |writer| writer.i16(3, -1))
}

/// A call for the partitions `names` of a table.
pub(super) fn get_partitions(database: &str, table: &str, names: &[String]) -> Vec<u8> {
    arguments("get_partitions_by_names", database, table, |writer| writer.strings(3, names))
}

fn arguments(method: &str, database: &str, table: &str, more: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::call(method);
    writer.string(1, database);
    writer.string(2, table);
    more(&mut writer);
    writer.end();
    writer.finish()
}

/// The table in an answer to [`get_table`].
pub(super) fn table(input: impl Read, most: usize, by_request: bool) -> Result<HiveTable, Refusal> {
    let mut reader = Reader::new(input, most);
    answered(&mut reader, 2, |reader, found| {
        if found != kind::STRUCT {
            return Err(Fault::Odd("a table is no struct"));
        }
        if !by_request {
            return of_table(reader);
        }
        let mut found = None;
        while let Some((id, kind)) = reader.field()? {
            match (id, kind) {
                (1, kind::STRUCT) => found = Some(of_table(reader)?),
                _ => reader.skip(kind)?,
            }
        }
        found.ok_or(Fault::Odd("it answers without a table"))
    })
}

/// The names in an answer to [`get_partition_names`].
pub(super) fn partition_names(input: impl Read, most: usize) -> Result<Vec<String>, Refusal> {
    let mut reader = Reader::new(input, most);
    answered(&mut reader, 1, |reader, found| {
        if found != kind::LIST {
            return Err(Fault::Odd("names of partitions are no list"));
        }
        let mut all = Vec::new();
        reader.list(kind::STRING, |reader| {
            if all.len() == MOST_PARTITIONS {
                return Err(Fault::Odd("it has too many partitions"));
            }
            all.push(reader.string()?);
            Ok(())
        })?;
        Ok(all)
    })
}

/// The partitions in an answer to [`get_partitions`] for so many names. Fewer come where some were dropped since.
pub(super) fn partitions(input: impl Read, most: usize, names: usize) -> Result<Vec<Partition>, Refusal> {
    let mut reader = Reader::new(input, most);
    answered(&mut reader, 2, |reader, found| {
        if found != kind::LIST {
            return Err(Fault::Odd("partitions are no list"));
        }
        let mut all = Vec::new();
        reader.list(kind::STRUCT, |reader| {
            let mut storage = Storage::default();
            while let Some((id, kind)) = reader.field()? {
                match (id, kind) {
                    (6, kind::STRUCT) => storage = Storage::read(reader)?,
                    _ => reader.skip(kind)?,
                }
            }
            if storage.location.is_empty() {
                return Err(Fault::Odd("a partition has no location"));
            }
            if all.len() == names {
                return Err(Fault::Odd("it answers with more partitions than it was asked for"));
            }
            all.push(Partition { location: storage.location, input_format: storage.input_format });
            Ok(())
        })?;
        Ok(all)
    })
}

/// Reads an answer whose value `success` reads; field `missing` of it is the exception for what is not there.
fn answered<R: Read, T>(
    reader: &mut Reader<R>,
    missing: i16,
    success: impl FnOnce(&mut Reader<R>, u8) -> Result<T, Fault>,
) -> Result<T, Refusal> {
    match reader.message()? {
        REPLY => {}
        EXCEPTION => {
            let (mut message, mut what) = (String::new(), 0);
            while let Some((id, kind)) = reader.field()? {
                match (id, kind) {
                    (1, kind::STRING) => message = reader.string()?,
                    (2, kind::I32) => what = reader.i32()?,
                    _ => reader.skip(kind)?,
                }
            }
            let message = shown(&message);
            return Err(if what == UNKNOWN_METHOD { Refusal::Method(message) } else { Refusal::Told(message) });
        }
        _ => return Err(Fault::Odd("it answers with neither a reply nor an exception").into()),
    }
    match reader.field()? {
        Some((0, kind)) => Ok(success(reader, kind)?),
        Some((id, kind::STRUCT)) => {
            let mut message = String::new();
            while let Some((id, kind)) = reader.field()? {
                match (id, kind) {
                    (1, kind::STRING) => message = reader.string()?,
                    _ => reader.skip(kind)?,
                }
            }
            let message = shown(&message);
            Err(if id == missing { Refusal::Missing(message) } else { Refusal::Told(message) })
        }
        _ => Err(Fault::Odd("it answers with nothing").into()),
    }
}

fn shown(message: &str) -> String {
    message.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).take(SHOWN).collect()
}

fn of_table<R: Read>(reader: &mut Reader<R>) -> Result<HiveTable, Fault> {
    let mut table = HiveTable::default();
    while let Some((id, kind)) = reader.field()? {
        match (id, kind) {
            (7, kind::STRUCT) => {
                let storage = Storage::read(reader)?;
                table.location = storage.location;
                table.input_format = storage.input_format;
                table.serde_parameters = storage.parameters;
            }
            (8, kind::LIST) => reader.list(kind::STRUCT, |reader| {
                let mut name = String::new();
                while let Some((id, kind)) = reader.field()? {
                    match (id, kind) {
                        (1, kind::STRING) => name = reader.string()?,
                        _ => reader.skip(kind)?,
                    }
                }
                if table.partition_keys.len() == MOST_KEYS {
                    return Err(Fault::Odd("it has too many partition columns"));
                }
                table.partition_keys.push(name);
                Ok(())
            })?,
            (9, kind::MAP) => reader.map(|key, value| drop(table.parameters.insert(key, value)))?,
            (12, kind::STRING) => table.table_type = reader.string()?,
            _ => reader.skip(kind)?,
        }
    }
    Ok(table)
}

/// Where rows lie, and in which format.
#[derive(Debug, Default)]
struct Storage {
    location: String,
    input_format: String,
    parameters: BTreeMap<String, String>,
}

impl Storage {
    fn read<R: Read>(reader: &mut Reader<R>) -> Result<Self, Fault> {
        let mut storage = Self::default();
        while let Some((id, kind)) = reader.field()? {
            match (id, kind) {
                (2, kind::STRING) => storage.location = reader.string()?,
                (3, kind::STRING) => storage.input_format = reader.string()?,
                (7, kind::STRUCT) => {
                    while let Some((id, kind)) = reader.field()? {
                        match (id, kind) {
                            (3, kind::MAP) => {
                                reader.map(|key, value| drop(storage.parameters.insert(key, value)))?;
                            }
                            _ => reader.skip(kind)?,
                        }
                    }
                }
                _ => reader.skip(kind)?,
            }
        }
        Ok(storage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of an answer, written by hand.
    #[derive(Default)]
    struct Bytes(Vec<u8>);

    impl Bytes {
        fn reply(kind: u32) -> Self {
            let mut bytes = Self((0x8001_0000 | kind).to_be_bytes().to_vec());
            bytes.text("m").number(1);
            bytes
        }

        fn number(&mut self, number: i32) -> &mut Self {
            self.0.extend(number.to_be_bytes());
            self
        }

        fn text(&mut self, text: &str) -> &mut Self {
            self.number(text.len() as i32).0.extend(text.as_bytes());
            self
        }

        fn field(&mut self, kind: u8, id: i16) -> &mut Self {
            self.0.push(kind);
            self.0.extend(id.to_be_bytes());
            self
        }

        fn raw(&mut self, bytes: &[u8]) -> &mut Self {
            self.0.extend(bytes);
            self
        }
    }

    fn said(bytes: &Bytes) -> String {
        format!("{:?}", table(bytes.0.as_slice(), 64 << 10, true).unwrap_err())
    }

    #[test]
    fn a_call_is_what_the_protocol_says() {
        let expected = [
            &[0x80, 1, 0, 1, 0, 0, 0, 13][..],
            b"get_table_req",
            &[0, 0, 0, 1, 12, 0, 1, 11, 0, 1, 0, 0, 0, 1],
            b"d",
            &[11, 0, 2, 0, 0, 0, 1],
            b"t",
            &[0, 0],
        ];
        assert_eq!(get_table("d", "t", true), expected.concat());
        assert!(get_partition_names("d", "t").ends_with(&[6, 0, 3, 0xff, 0xff, 0]));
        let names = ["a=1".to_owned(), "a=2".to_owned()];
        let expected = [&[15, 0, 3, 11, 0, 0, 0, 2, 0, 0, 0, 3][..], b"a=1", &[0, 0, 0, 3], b"a=2", &[0]];
        assert!(get_partitions("d", "t", &names).ends_with(&expected.concat()));
    }

    #[test]
    fn what_is_not_known_is_passed_over() {
        let mut bytes = Bytes::reply(REPLY);
        bytes.field(kind::STRUCT, 0).field(kind::STRUCT, 1);
        // Of kinds that Hive has not yet: a map of lists, a set, numbers.
        bytes
            .field(kind::MAP, 90)
            .raw(&[kind::STRING, kind::LIST])
            .number(1)
            .text("k")
            .raw(&[kind::I64])
            .number(2)
            .raw(&[0; 16]);
        bytes.field(kind::SET, 91).raw(&[kind::BOOL]).number(3).raw(&[1; 3]);
        bytes.field(kind::DOUBLE, 92).raw(&[0; 8]).field(kind::BYTE, 93).raw(&[0]);
        bytes.field(kind::STRING, 12).text("EXTERNAL_TABLE").raw(&[0, 0, 0]);
        assert_eq!(table(bytes.0.as_slice(), 1 << 20, true).unwrap().table_type, "EXTERNAL_TABLE");
    }

    #[test]
    fn hostile_answers_end_in_time_and_take_no_memory() {
        let begin = || {
            let mut bytes = Bytes::reply(REPLY);
            bytes.field(kind::STRUCT, 0).field(kind::STRUCT, 1);
            bytes
        };
        let mut long = begin();
        long.field(kind::STRING, 12).number(i32::MAX);
        assert!(said(&long).contains("too many bytes"));
        let mut negative = begin();
        negative.field(kind::STRING, 12).number(-1);
        assert!(said(&negative).contains("negative"));
        let mut many = begin();
        many.field(kind::LIST, 99).raw(&[kind::STRUCT]).number(i32::MAX).raw(&vec![0; 128 << 10]);
        assert!(said(&many).contains("too many bytes"));
        let mut deep = begin();
        deep.raw(&[kind::STRUCT, 0, 99].repeat(10_000));
        assert!(said(&deep).contains("deeply"));
        let mut cut = begin();
        cut.field(kind::STRING, 12).number(4).raw(b"ab");
        assert!(said(&cut).contains("UnexpectedEof"));
        let mut odd = begin();
        odd.field(77, 1);
        assert!(said(&odd).contains("unknown type"));
        let mut empty = Bytes::reply(REPLY);
        empty.raw(&[0]);
        assert!(said(&empty).contains("with nothing"));
        let mut told = Bytes::reply(REPLY);
        told.field(kind::STRUCT, 1).field(kind::STRING, 1).text(&"no\n".repeat(1_000)).raw(&[0, 0]);
        assert!(
            matches!(table(told.0.as_slice(), 1 << 20, true), Err(Refusal::Told(text)) if text.len() == SHOWN && !text.contains('\n'))
        );
        assert!(matches!(partition_names(told.0.as_slice(), 1 << 20), Err(Refusal::Missing(_))));
        assert!(matches!(partitions(told.0.as_slice(), 1 << 20, 1), Err(Refusal::Told(_))));
        let mut many = Bytes::reply(REPLY);
        many.field(kind::LIST, 0).raw(&[kind::STRING]).number(i32::MAX).raw(&vec![0; 128 << 10]);
        assert!(matches!(partition_names(many.0.as_slice(), 64 << 10), Err(Refusal::Fault(Fault::Odd(_)))));
        let mut more = Bytes::reply(REPLY);
        more.field(kind::LIST, 0).raw(&[kind::STRUCT]).number(2);
        for _ in 0..2 {
            more.field(kind::STRUCT, 6).field(kind::STRING, 2).text("s3://b").raw(&[0, 0]);
        }
        more.raw(&[0]);
        assert_eq!(partitions(more.0.as_slice(), 1 << 20, 2).unwrap().len(), 2);
        let refused = format!("{:?}", partitions(more.0.as_slice(), 1 << 20, 1).unwrap_err());
        assert!(refused.contains("more partitions than it was asked for"), "{refused}");
    }
}
