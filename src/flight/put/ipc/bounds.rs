//! Checks of the rows and buffers that a batch's message announces, against the bytes that came with it.

use arrow::datatypes::{
    DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, validate_decimal_precision_and_scale,
};
use arrow::ipc::{Buffer, FieldNode, RecordBatch};

use crate::error::{Error, Result};

/// Rows that a message may have beyond eight for each byte of its body: a column of nulls takes none.
const ROWS: u64 = 64 << 10;

/// Columns that Parquet makes of one of type `kind`.
pub(super) fn leaves(kind: &DataType) -> usize {
    match kind {
        DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _) => {
            leaves(field.data_type())
        }
        DataType::Map(entries, _) => leaves(entries.data_type()),
        DataType::Struct(fields) => fields.iter().map(|field| leaves(field.data_type())).sum(),
        DataType::Dictionary(_, values) => leaves(values),
        _ => 1,
    }
}

/// Refuses columns that cannot be written to Parquet, and sizes that no type has.
pub(super) fn admit(name: &str, kind: &DataType) -> Result<()> {
    let unsupported =
        || Err(Error::unsupported(format!("putting column {name:?} of {kind}"), "put a type that Parquet has"));
    let decimal = match kind {
        DataType::Decimal32(precision, scale) => {
            validate_decimal_precision_and_scale::<Decimal32Type>(*precision, *scale)
        }
        DataType::Decimal64(precision, scale) => {
            validate_decimal_precision_and_scale::<Decimal64Type>(*precision, *scale)
        }
        DataType::Decimal128(precision, scale) => {
            validate_decimal_precision_and_scale::<Decimal128Type>(*precision, *scale)
        }
        DataType::Decimal256(precision, scale) => {
            validate_decimal_precision_and_scale::<Decimal256Type>(*precision, *scale)
        }
        _ => Ok(()),
    };
    decimal.map_err(|error| malformed("a decimal", error))?;
    match kind {
        DataType::Null | DataType::Boolean => Ok(()),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Ok(()),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => Ok(()),
        DataType::FixedSizeBinary(size) if *size >= 1 => Ok(()),
        DataType::FixedSizeList(field, size) if *size >= 1 => admit(field.name(), field.data_type()),
        DataType::List(field) | DataType::LargeList(field) => admit(field.name(), field.data_type()),
        DataType::Struct(fields) if !fields.is_empty() => {
            fields.iter().try_for_each(|field| admit(field.name(), field.data_type()))
        }
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(fields) if fields.len() == 2 && !entries.is_nullable() && !fields[0].is_nullable() => {
                fields.iter().try_for_each(|field| admit(field.name(), field.data_type()))
            }
            _ => Err(malformed("a map of keys and values without null keys", entries.data_type())),
        },
        DataType::Dictionary(keys, values) if keys.is_dictionary_key_type() => match values.as_ref() {
            value if value.is_primitive() => admit(name, value),
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Ok(()),
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView => Ok(()),
            DataType::FixedSizeBinary(size) if *size >= 1 => Ok(()),
            _ => unsupported(),
        },
        kind if kind.is_primitive() => Ok(()),
        _ => unsupported(),
    }
}

/// Checks all rows and buffers of `batch`, whose columns have `types`, against a body of `body` bytes.
///
/// # Errors
/// [`Error::Unsupported`] for a compressed body; [`Error::Mismatch`].
pub(super) fn check<'a>(batch: RecordBatch<'_>, types: impl Iterator<Item = &'a DataType>, body: usize) -> Result<()> {
    if batch.compression().is_some() {
        return Err(Error::unsupported(
            "a compressed batch",
            "put batches without compression of their bodies: memory is counted before it is taken",
        ));
    }
    let nodes = batch.nodes().ok_or_else(|| malformed("columns", "none"))?;
    let buffers = batch.buffers().ok_or_else(|| malformed("buffers", "none"))?;
    let mut walk = Walk {
        nodes: nodes.iter(),
        buffers: buffers.iter(),
        variadic: batch.variadicBufferCounts().into_iter().flatten().collect::<Vec<i64>>().into_iter(),
        body: body as u64,
        most: (body as u64).saturating_mul(8).saturating_add(ROWS),
    };
    let rows = walk.rows(batch.length(), "rows")?;
    for kind in types {
        let found = walk.array(kind)?;
        if found != rows {
            return Err(malformed(&format!("{rows} rows in each column"), found));
        }
    }
    Ok(())
}

struct Walk<N, B> {
    nodes: N,
    buffers: B,
    variadic: std::vec::IntoIter<i64>,
    /// Bytes of the body.
    body: u64,
    /// Most rows of any array.
    most: u64,
}

impl<'m, N: Iterator<Item = &'m FieldNode>, B: Iterator<Item = &'m Buffer>> Walk<N, B> {
    fn rows(&self, announced: i64, what: &str) -> Result<u64> {
        let rows = u64::try_from(announced).ok().filter(|rows| *rows <= self.most);
        rows.ok_or_else(|| malformed(&format!("0 to {} {what} in a body of {} bytes", self.most, self.body), announced))
    }

    /// The rows of the next array, and its nulls.
    fn node(&mut self) -> Result<(u64, u64)> {
        let node = self.nodes.next().ok_or_else(|| malformed("a length of each column", "fewer"))?;
        let rows = self.rows(node.length(), "values")?;
        let nulls = self.rows(node.null_count(), "nulls")?;
        if nulls > rows {
            return Err(malformed(&format!("at most {rows} nulls"), nulls));
        }
        Ok((rows, nulls))
    }

    /// The next buffer, which holds at least `rows` whole values of `width` bytes: Arrow asserts that.
    fn values(&mut self, rows: u64, width: u64) -> Result<()> {
        let length = self.buffer(rows.saturating_mul(width))?;
        if length % width.max(1) != 0 {
            return Err(malformed(&format!("a buffer of whole values of {width} bytes"), length));
        }
        Ok(())
    }

    /// The next buffer, which lies in the body and has at least `least` bytes: its length.
    fn buffer(&mut self, least: u64) -> Result<u64> {
        let buffer = self.buffers.next().ok_or_else(|| malformed("all buffers of each column", "fewer"))?;
        let range = (u64::try_from(buffer.offset()).ok(), u64::try_from(buffer.length()).ok());
        let inside =
            matches!(range, (Some(at), Some(length)) if at.checked_add(length).is_some_and(|end| end <= self.body));
        if !inside {
            let found = format!("{} bytes at {}", buffer.length(), buffer.offset());
            return Err(malformed(&format!("buffers within a body of {} bytes", self.body), found));
        }
        if buffer.length().unsigned_abs() < least {
            return Err(malformed(&format!("a buffer of at least {least} bytes"), buffer.length()));
        }
        Ok(buffer.length().unsigned_abs())
    }

    fn validity(&mut self, rows: u64, nulls: u64) -> Result<()> {
        self.buffer(if nulls > 0 { rows.div_ceil(8) } else { 0 }).map(drop)
    }

    /// Offsets of `width` bytes; without rows there may be none.
    fn offsets(&mut self, rows: u64, width: u64) -> Result<()> {
        self.values(if rows == 0 { 0 } else { rows + 1 }, width)
    }

    /// Takes all parts of an array; returns its rows.
    fn array(&mut self, kind: &DataType) -> Result<u64> {
        let (rows, nulls) = self.node()?;
        if *kind == DataType::Null {
            return Ok(rows);
        }
        self.validity(rows, nulls)?;
        match kind {
            DataType::Boolean => {
                self.buffer(rows.div_ceil(8))?;
            }
            DataType::Utf8 | DataType::Binary => {
                self.offsets(rows, 4)?;
                self.buffer(0)?;
            }
            DataType::LargeUtf8 | DataType::LargeBinary => {
                self.offsets(rows, 8)?;
                self.buffer(0)?;
            }
            DataType::Utf8View | DataType::BinaryView => {
                self.values(rows, 16)?;
                let count = self.variadic.next().and_then(|count| u64::try_from(count).ok());
                let count = count.ok_or_else(|| malformed("a count of buffers of each view", "none"))?;
                // It ends where the buffers do.
                (0..count).try_for_each(|_| self.buffer(0).map(drop))?;
            }
            DataType::FixedSizeBinary(size) => {
                self.buffer(rows.saturating_mul(size.unsigned_abs().into()))?;
            }
            DataType::List(field) | DataType::Map(field, _) => {
                self.offsets(rows, 4)?;
                self.array(field.data_type())?;
            }
            DataType::LargeList(field) => {
                self.offsets(rows, 8)?;
                self.array(field.data_type())?;
            }
            DataType::FixedSizeList(field, size) => {
                let values = self.array(field.data_type())?;
                let expected = rows.saturating_mul(size.unsigned_abs().into());
                if values != expected {
                    return Err(malformed(&format!("{expected} values of lists of {size}"), values));
                }
            }
            DataType::Struct(fields) => {
                for field in fields {
                    let found = self.array(field.data_type())?;
                    if found != rows {
                        return Err(malformed(&format!("{rows} values of each member"), found));
                    }
                }
            }
            DataType::Dictionary(keys, _) => {
                self.values(rows, keys.primitive_width().unwrap_or(8) as u64)?;
            }
            kind => {
                let width = kind.primitive_width().ok_or_else(|| malformed("a known type", kind))?;
                self.values(rows, width as u64)?;
            }
        }
        Ok(rows)
    }
}

/// An error with the expected form of a message and the form found.
pub(super) fn malformed(expected: &str, found: impl std::fmt::Display) -> Error {
    Error::Mismatch {
        what: "an Arrow message that is put".to_owned(),
        expected: expected.to_owned(),
        found: found.to_string(),
        hint: "the writer does not speak Arrow IPC".to_owned(),
    }
}
