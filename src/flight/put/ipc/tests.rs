use std::panic::catch_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::{
    BooleanArray, DictionaryArray, FixedSizeListArray, Int64Array, ListArray, NullArray, StringArray, StringViewArray,
    StructArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{Field, Float32Type, Int32Type, Schema, UInt8Type};
use arrow::ipc::writer::StreamWriter;
use arrow::ipc::{
    BodyCompression, BodyCompressionArgs, BodyCompressionMethod, Buffer as Place, CompressionType, FieldNode,
    MessageArgs, RecordBatch as Batch, RecordBatchArgs, root_as_message,
};
use flatbuffers::FlatBufferBuilder;

use super::*;

const LIMIT: usize = 1 << 20;

fn rows() -> RecordBatch {
    let lists = ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1), None]), None, Some(vec![])]);
    let fixed = FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(vec![Some(vec![Some(1.0); 2]); 3], 2);
    let texts = StringArray::from(vec![Some("a"), None, Some("a longer text than twelve bytes")]);
    let inner: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::clone(&inner)),
        ("lists", Arc::new(lists)),
        ("fixed", Arc::new(fixed)),
        ("views", Arc::new(texts.iter().collect::<StringViewArray>())),
        ("texts", Arc::new(texts)),
        ("nothing", Arc::new(NullArray::new(3))),
        ("named", Arc::new(vec!["x", "y", "x"].into_iter().collect::<DictionaryArray<Int32Type>>())),
        ("both", Arc::new(StructArray::from(vec![(Arc::new(Field::new("a", DataType::Int64, false)), inner)]))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true))).unwrap()
}

/// Headers and bodies as a writer sends them.
fn sent(batch: &RecordBatch) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut stream = Vec::new();
    let mut writer = StreamWriter::try_new(&mut stream, batch.schema_ref()).unwrap();
    writer.write(batch).unwrap();
    writer.finish().unwrap();
    drop(writer);
    let (mut rest, mut found) = (stream.as_slice(), Vec::new());
    let mut take = |bytes: usize| {
        let (taken, after) = rest.split_at(bytes);
        rest = after;
        taken.to_vec()
    };
    loop {
        assert_eq!(take(4), [0xff; 4]);
        let length = u32::from_le_bytes(take(4).try_into().unwrap()) as usize;
        if length == 0 {
            return found;
        }
        let header = take(length);
        let body = root_as_message(&header).unwrap().bodyLength() as usize;
        found.push((header, take(body)));
    }
}

/// Pays with nothing.
fn free(_: usize) -> Result<Paid> {
    Ok(Box::new(()))
}

fn read(messages: &[(Vec<u8>, Vec<u8>)]) -> Result<Vec<RecordBatch>> {
    let mut decoder = Decoder::new(&messages[0].0, LIMIT, free)?;
    let mut found = Vec::new();
    for (header, body) in &messages[1..] {
        found.extend(decoder.decode(header, &Buffer::from(body.as_slice()))?);
    }
    Ok(found)
}

#[test]
fn what_writers_send_is_read_as_it_is() {
    let batch = rows();
    assert_eq!(read(&sent(&batch)).unwrap(), [batch]);
}

#[test]
fn columns_are_counted_as_they_are_stored() {
    let schema = |count: usize| {
        let fields = (0..count).map(|at| Arc::new(Field::new(at.to_string(), DataType::Int64, true)));
        let within = DataType::Struct(fields.collect());
        let list = DataType::List(Arc::new(Field::new("item", within, true)));
        let schema = Arc::new(Schema::new(vec![Field::new("x", list, true), Field::new("y", DataType::Int8, true)]));
        sent(&RecordBatch::new_empty(schema)).remove(0).0
    };
    Decoder::new(&schema(MAX_COLUMNS - 1), LIMIT, free).unwrap();
    let error = Decoder::new(&schema(MAX_COLUMNS), LIMIT, free).unwrap_err();
    assert!(matches!(&error, Error::Unsupported { .. }) && error.to_string().contains("10001 columns"), "{error}");
}

/// Gives bytes back when it is dropped.
struct Kept(Arc<AtomicUsize>, usize);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

#[test]
fn dictionaries_are_paid_for_as_long_as_they_are_held() {
    let named = |value: &str| {
        let column: DictionaryArray<Int32Type> = std::iter::repeat_n(value, 3).collect();
        sent(&RecordBatch::try_from_iter([("named", Arc::new(column) as ArrayRef)]).unwrap())
    };
    let (first, second) = (named(&"x".repeat(1000)), named(&"y".repeat(3000)));
    let [schema, dictionary, batch] = first.as_slice() else { panic!("{} messages", first.len()) };
    let kept = Arc::new(AtomicUsize::new(0));
    let all = Arc::clone(&kept);
    let keep = move |bytes: usize| {
        if all.load(Ordering::Relaxed) + bytes > 2048 {
            return Err(Error::limit("dictionaries", bytes as u64, 2048, "memory_budget"));
        }
        all.fetch_add(bytes, Ordering::Relaxed);
        Ok(Box::new(Kept(Arc::clone(&all), bytes)) as Paid)
    };
    let mut decoder = Decoder::new(&schema.0, LIMIT, keep).unwrap();
    let mut decode = |(header, body): &(Vec<u8>, Vec<u8>)| decoder.decode(header, &Buffer::from(body.as_slice()));
    // Its own message is long gone when the batch comes; the same again takes the place of the first.
    for _ in 0..3 {
        assert!(decode(dictionary).unwrap().is_none());
        assert_eq!(kept.load(Ordering::Relaxed), dictionary.1.len());
        assert_eq!(decode(batch).unwrap().unwrap().num_rows(), 3);
    }
    let error = decode(&second[1]).unwrap_err();
    assert!(matches!(error, Error::Limit { option: "memory_budget", .. }), "{error}");
    drop(decoder);
    assert_eq!(kept.load(Ordering::Relaxed), 0);
}

/// A batch of one column with this announced shape.
fn claimed(rows: i64, nulls: i64, buffers: &[Place], compressed: bool) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let nodes = builder.create_vector(&[FieldNode::new(rows, nulls)]);
    let buffers = builder.create_vector(buffers);
    let args = BodyCompressionArgs { codec: CompressionType::LZ4_FRAME, method: BodyCompressionMethod::BUFFER };
    let compression = compressed.then(|| BodyCompression::create(&mut builder, &args));
    let args = RecordBatchArgs {
        length: rows,
        nodes: Some(nodes),
        buffers: Some(buffers),
        compression,
        variadicBufferCounts: None,
    };
    let header = Batch::create(&mut builder, &args).as_union_value();
    let args = MessageArgs {
        version: MetadataVersion::V5,
        header_type: MessageHeader::RecordBatch,
        header: Some(header),
        bodyLength: 16,
        custom_metadata: None,
    };
    let message = Message::create(&mut builder, &args);
    builder.finish(message, None);
    builder.finished_data().to_vec()
}

#[test]
fn what_a_message_claims_is_held_against_its_body() {
    let schema = Schema::new(vec![Field::new("id", DataType::Int64, true)]);
    let ids = RecordBatch::try_new(Arc::new(schema), vec![Arc::new(Int64Array::from(vec![1]))]).unwrap();
    let schema = sent(&ids).remove(0).0;
    let try_it = |rows, nulls, buffers: [(i64, i64); 2], compressed| {
        let buffers = buffers.map(|(at, length)| Place::new(at, length));
        let mut decoder = Decoder::new(&schema, LIMIT, free).unwrap();
        // A size that lz4 would announce: nearly the maximum.
        let body = [(i64::MAX - 64).to_le_bytes(), [0; 8]].concat();
        decoder.decode(&claimed(rows, nulls, &buffers, compressed), &Buffer::from(body.as_slice()))
    };
    assert_eq!(try_it(1, 0, [(0, 0), (0, 8)], false).unwrap().unwrap().num_rows(), 1);
    let error = try_it(1, 0, [(0, 0), (0, 16)], true).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }) && error.to_string().contains("compress"), "{error}");
    for (rows, nulls, buffers) in [
        (3, 0, [(0, 0), (0, 16)]),
        (1, 0, [(0, 0), (0, 17)]),
        (1, 0, [(0, 0), (i64::MAX, 8)]),
        (1, 0, [(0, 0), (-8, 8)]),
        (1, 0, [(0, 0), (8, -8)]),
        (1, 1, [(0, 0), (0, 8)]),
        (1, 2, [(0, 8), (0, 8)]),
        (1, -1, [(0, 8), (0, 8)]),
        (-1, 0, [(0, 0), (0, 8)]),
        (i64::MAX, 0, [(0, 0), (0, 16)]),
        (1 << 40, 0, [(0, 0), (0, 16)]),
    ] {
        let error = try_it(rows, nulls, buffers, false).unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{rows} {nulls} {buffers:?}: {error}");
    }
}

#[test]
fn a_value_that_every_row_points_to_is_counted_as_often() {
    let long = "x".repeat(10_000);
    let values: DictionaryArray<Int32Type> = std::iter::repeat_n(long.as_str(), 1000).collect();
    let views: StringViewArray = std::iter::repeat_n(Some("short"), 10).collect();
    let columns: Vec<(&str, ArrayRef)> = vec![("values", Arc::new(values)), ("views", Arc::new(views))];
    for (column, allowed) in [(0, false), (1, true)] {
        let batch = RecordBatch::try_from_iter([columns[column].clone()]).unwrap();
        match read(&sent(&batch)) {
            Ok(found) => assert!(allowed && found == [batch]),
            Err(error) => assert!(!allowed && matches!(error, Error::Limit { asked: 10_000_000, .. }), "{error}"),
        }
    }
}

#[test]
fn values_that_take_no_bytes_are_counted_for_the_writer() {
    // One row, and a body of a few bytes: a list of structs of nulls.
    let of_nulls = |members: usize, values: usize| {
        let member = |at: usize| Arc::new(Field::new(format!("n{at}"), DataType::Null, true));
        let nulls: ArrayRef = Arc::new(NullArray::new(values));
        let members = StructArray::from((0..members).map(|at| (member(at), Arc::clone(&nulls))).collect::<Vec<_>>());
        let field = Arc::new(Field::new("item", members.data_type().clone(), true));
        ListArray::new(field, OffsetBuffer::from_lengths([values]), Arc::new(members), None)
    };
    let bytes = ListArray::from_iter_primitive::<UInt8Type, _, _>([Some(vec![Some(7); LIMIT / 2])]);
    let columns: [(ArrayRef, bool); 4] = [
        (Arc::new(of_nulls(500, 64 << 10)), false),
        (Arc::new(of_nulls(5, 64 << 10)), true),
        (Arc::new(bytes), true),
        (Arc::new(BooleanArray::from(vec![true; 4 * LIMIT])), true),
    ];
    for (column, allowed) in columns {
        let batch = RecordBatch::try_from_iter([("x", column)]).unwrap();
        match read(&sent(&batch)) {
            Ok(found) => assert!(allowed && found == [batch]),
            Err(error) => assert!(!allowed && matches!(error, Error::Limit { option: "message_bytes", .. }), "{error}"),
        }
    }
    let nulls: Vec<(String, ArrayRef)> =
        (0..500).map(|at| (format!("n{at}"), Arc::new(NullArray::new(64 << 10)) as ArrayRef)).collect();
    let error = read(&sent(&RecordBatch::try_from_iter(nulls).unwrap())).unwrap_err();
    assert!(matches!(error, Error::Limit { option: "message_bytes", .. }), "{error}");
}

#[test]
fn damaged_messages_are_refused_without_a_panic() {
    let honest = sent(&rows());
    let seed = std::env::var("BOWSTRING_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1_u64);
    eprintln!("repeat with: BOWSTRING_SEED={seed} cargo test --lib put::ipc");
    let mut state = seed;
    let mut below = |end: usize| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 33) as usize % end.max(1)
    };
    let (mut taken, mut refused, mut panics) = (0, 0, 0);
    for _ in 0..if std::env::var_os("BOWSTRING_SOAK").is_some() { 200_000 } else { 20_000 } {
        let mut messages = honest.clone();
        let at = below(messages.len());
        for _ in 0..1 + below(3) {
            let (header, body) = &mut messages[at];
            let bytes = if below(4) == 0 { body } else { header };
            if bytes.is_empty() {
                continue;
            }
            let place = below(bytes.len());
            match below(5) {
                0 => bytes[place] ^= 1 << below(8),
                1 => bytes[place] = [0, 1, 0x7f, 0x80, 0xff][below(5)],
                2 => bytes.truncate(place),
                3 => bytes[place..].iter_mut().take(8).for_each(|byte| *byte = 0xff),
                _ => bytes[place] = below(256) as u8,
            }
        }
        match catch_unwind(|| read(&messages)) {
            Ok(Ok(_)) => taken += 1,
            Ok(Err(Error::Mismatch { .. } | Error::Unsupported { .. } | Error::Limit { .. })) => refused += 1,
            Ok(Err(other)) => panic!("{other}"),
            // Every panic is reported, not only the first.
            Err(_) => panics += 1,
        }
    }
    eprintln!("{refused} refused, {taken} taken, {panics} panics");
    assert_eq!(panics, 0);
    assert!(refused > 1000);
}
