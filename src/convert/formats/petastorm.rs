//! The Petastorm parts of a Parquet dataset: a Unischema derived from the columns, lists stored as NumPy arrays, and the
//! `_common_metadata` with both.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryBuilder, RecordBatch};
use arrow::datatypes::{DataType, Field, Metadata, Schema, SchemaRef, TimeUnit};
use parquet::arrow::ArrowWriter;
use parquet::file::metadata::KeyValue;

use crate::convert::errors::{refused, refused_value, unexpected};
use crate::convert::format::Format;
use crate::convert::types::{dtype, is_binary, is_text, item};
use crate::convert::values::cells::{as_type_of, npy_cell};
use crate::dataset::petastorm::{
    FieldCodec, ROW_GROUP_COUNTS_KEY, SparkType, UNISCHEMA_KEY, Unischema, UnischemaField, row_group_counts_to_json,
};
use crate::error::{Error, Place, Result};
use crate::schema::{Codec, DType, Element, Stored};
use crate::store::directory::failed;

/// The columns of a dataset in Petastorm's types.
#[derive(Debug, Clone)]
pub(crate) struct Described {
    /// The written schema: lists are cells of bytes.
    pub(crate) schema: SchemaRef,
    unischema: Unischema,
}

impl Described {
    /// Refuses a column that a Unischema cannot describe.
    pub(crate) fn new(schema: &Schema) -> Result<Self> {
        let mut fields = Vec::with_capacity(schema.fields().len());
        let mut known = Vec::with_capacity(schema.fields().len());
        for field in schema.fields() {
            let (field, described) = describe(field)?;
            fields.push(field);
            known.push(described);
        }
        let schema = Arc::new(Schema::new(fields));
        Ok(Self { schema, unischema: Unischema { name: "Converted".to_owned(), fields: known } })
    }

    /// Returns `batch` with its lists encoded as cells.
    pub(crate) fn encode(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let mut columns = Vec::with_capacity(batch.num_columns());
        for (field, column) in self.schema.fields().iter().zip(batch.columns()) {
            columns.push(match item(column.data_type()) {
                Some(item) => arrays(field.name(), column, item)?,
                None => as_type_of(field.name(), column, field.data_type())?,
            });
        }
        RecordBatch::try_new(Arc::clone(&self.schema), columns).map_err(unexpected)
    }

    /// Writes `_common_metadata`, with the row groups of each file.
    pub(crate) fn write(&self, directory: &Path, counts: &BTreeMap<String, usize>) -> Result<()> {
        let path = directory.join("_common_metadata");
        crate::store::directory::remove(&path)?;
        let file = File::create_new(&path).map_err(|error| failed("create", &path, error))?;
        let wrong = |error: parquet::errors::ParquetError| failed("write", &path, std::io::Error::other(error));
        let mut writer = ArrowWriter::try_new(file, Arc::clone(&self.schema), None).map_err(wrong)?;
        // The pickle is ASCII, because metadata of footers are text.
        let pickle = String::from_utf8(self.unischema.to_pickle()?).map_err(|error| {
            Error::corrupt_by(Place::file("_common_metadata"), "the schema's pickle is not text", error)
        })?;
        writer.append_key_value_metadata(KeyValue::new(UNISCHEMA_KEY.to_owned(), pickle));
        let counts = row_group_counts_to_json(counts);
        writer.append_key_value_metadata(KeyValue::new(ROW_GROUP_COUNTS_KEY.to_owned(), counts));
        writer.finish().map_err(wrong)?;
        writer.inner().sync_all().map_err(|error| failed("flush", &path, error))
    }
}

/// Encodes lists as NumPy arrays, one per row.
fn arrays(name: &str, column: &ArrayRef, item: &DataType) -> Result<ArrayRef> {
    let Some(dtype) = dtype(item) else {
        return Err(refused_value(Format::Petastorm, name, 0, "a list of something else than numbers", ""));
    };
    let large = DataType::LargeList(Arc::new(Field::new("item", item.clone(), true)));
    let lists = as_type_of(name, column, &large)?;
    let lists = lists.as_list::<i64>();
    let mut cells = BinaryBuilder::new();
    for at in 0..lists.len() {
        if lists.is_null(at) {
            cells.append_null();
            continue;
        }
        let values = lists.value(at);
        if values.null_count() > 0 {
            return Err(refused_value(Format::Petastorm, name, at, "a null in a list", ""));
        }
        cells.append_value(npy_cell(dtype, &[values.len()], &values)?);
    }
    Ok(Arc::new(cells.finish()))
}

fn describe(field: &Field) -> Result<(Field, UnischemaField)> {
    let name = field.name().clone();
    let nullable = field.is_nullable();
    let scalar = |numpy: &str, spark_type: SparkType, data_type: &DataType| {
        let codec = Some(FieldCodec::Scalar { spark_type });
        let described =
            UnischemaField { name: name.clone(), numpy_dtype: numpy.to_owned(), shape: Vec::new(), codec, nullable };
        Ok((Field::new(&name, data_type.clone(), nullable), described))
    };
    let stored = Stored::of(field.metadata()).transpose();
    let stored = stored.map_err(|why| Error::config("schema", format!("column {name:?}: {why}")))?;
    if let Some(stored) = stored {
        let codec = match stored.codec {
            Codec::Npy => FieldCodec::Ndarray,
            Codec::Npz => FieldCodec::CompressedNdarray,
            Codec::Png => FieldCodec::CompressedImage { format: ".png".into(), quality: None },
            Codec::Jpeg => FieldCodec::CompressedImage { format: ".jpeg".into(), quality: Some(80) },
        };
        let numpy = match &stored.element {
            Element::Number(DType::Bool) => "bool_",
            Element::Number(dtype) => dtype.name(),
            Element::Time => "datetime64",
            Element::Timedelta => "timedelta64",
            Element::Text => "str_",
            Element::Bytes => "bytes_",
        };
        let described = UnischemaField {
            name: name.clone(),
            numpy_dtype: numpy.to_owned(),
            shape: stored.shape.clone(),
            codec: Some(codec),
            nullable,
        };
        let (key, value) = stored.metadata();
        let field = Field::new(&name, DataType::Binary, nullable)
            .with_metadata(std::iter::once((key, value)).collect::<Metadata>());
        return Ok((field, described));
    }
    match field.data_type() {
        DataType::Boolean => scalar("bool_", SparkType::Boolean, &DataType::Boolean),
        DataType::Int8 => scalar("int8", SparkType::Byte, &DataType::Int8),
        DataType::UInt8 => scalar("uint8", SparkType::Short, &DataType::Int16),
        DataType::Int16 => scalar("int16", SparkType::Short, &DataType::Int16),
        DataType::UInt16 => scalar("uint16", SparkType::Integer, &DataType::Int32),
        DataType::Int32 => scalar("int32", SparkType::Integer, &DataType::Int32),
        DataType::UInt32 => scalar("uint32", SparkType::Long, &DataType::Int64),
        DataType::Int64 => scalar("int64", SparkType::Long, &DataType::Int64),
        DataType::Float16 => scalar("float16", SparkType::Float, &DataType::Float32),
        DataType::Float32 => scalar("float32", SparkType::Float, &DataType::Float32),
        DataType::Float64 => scalar("float64", SparkType::Double, &DataType::Float64),
        kind if is_text(kind) => scalar("str_", SparkType::String, &DataType::Utf8),
        DataType::FixedSizeBinary(_) => scalar("bytes_", SparkType::Binary, &DataType::Binary),
        kind if is_binary(kind) => scalar("bytes_", SparkType::Binary, &DataType::Binary),
        DataType::Timestamp(_, zone) => {
            scalar("datetime64", SparkType::Timestamp, &DataType::Timestamp(TimeUnit::Microsecond, zone.clone()))
        }
        DataType::Date32 => scalar("datetime64", SparkType::Date, &DataType::Date32),
        DataType::Decimal128(precision, scale) => {
            let spark = SparkType::Decimal { precision: *precision, scale: *scale };
            scalar("Decimal", spark, field.data_type())
        }
        kind if kind.is_decimal() => {
            let hint = "a Unischema has decimals of at most 38 digits, as Spark; give another type with --schema";
            Err(refused(Format::Petastorm, field, hint))
        }
        kind => {
            let Some(dtype) = item(kind).and_then(dtype) else {
                return Err(refused(Format::Petastorm, field, "a Unischema has scalars and arrays of numbers"));
            };
            let length = match kind {
                DataType::FixedSizeList(_, length) => usize::try_from(*length).ok(),
                _ => None,
            };
            let numpy = if dtype == DType::Bool { "bool_" } else { dtype.name() };
            let stored = Stored { codec: Codec::Npy, element: Element::Number(dtype), shape: vec![length] };
            let (key, value) = stored.metadata();
            let described = UnischemaField {
                name: name.clone(),
                numpy_dtype: numpy.to_owned(),
                shape: vec![length],
                codec: Some(FieldCodec::Ndarray),
                nullable,
            };
            Ok((
                Field::new(&name, DataType::Binary, nullable)
                    .with_metadata(std::iter::once((key, value)).collect::<Metadata>()),
                described,
            ))
        }
    }
}
