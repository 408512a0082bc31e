//! A Unischema as a pickle, in the form that Petastorm itself wrote under protocol 0.

use std::fmt::Write;

use super::SparkType;
use super::unischema::{FieldCodec, Unischema, UnischemaField};
use crate::error::{Error, Result};

/// Attributes that Unischema has by itself: a field of the same name would hide them.
const TAKEN: [&str; 12] = [
    "_fields",
    "_get_namedtuple",
    "_name",
    "as_pyarrow_schema",
    "as_spark_schema",
    "create_schema_view",
    "fields",
    "from_arrow_schema",
    "make_namedtuple",
    "make_namedtuple_tf",
    "resolve_schema_view",
    "get_field",
];

impl Unischema {
    /// The pickle that [`from_pickle`](Self::from_pickle) and Petastorm under Python 3 read.
    ///
    /// It is protocol 0, which is ASCII: Parquet's metadata are strings, so not everyone can write bytes that are not UTF-8
    /// there, or read them.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if an element type has no name in NumPy or Python.
    pub fn to_pickle(&self) -> Result<Vec<u8>> {
        unischema(self)
    }
}

/// The pickle of `schema`; ASCII.
fn unischema(schema: &Unischema) -> Result<Vec<u8>> {
    let mut pickle = String::new();
    plain(&mut pickle, "petastorm.unischema", "Unischema");
    pickle.push_str("(d");
    text(&mut pickle, "_name");
    text(&mut pickle, &schema.name);
    pickle.push('s');
    text(&mut pickle, "_fields");
    pickle.push_str("ccollections\nOrderedDict\n(tR");
    for (number, one) in schema.fields.iter().enumerate() {
        text(&mut pickle, &one.name);
        field(&mut pickle, one)?;
        // The field is an attribute too, by the same entry of the memo.
        let _ = writeln!(pickle, "p{number}");
        pickle.push('s');
    }
    pickle.push('s');
    for (number, one) in schema.fields.iter().enumerate() {
        if TAKEN.contains(&one.name.as_str()) || one.name.starts_with("__") {
            continue;
        }
        text(&mut pickle, &one.name);
        let _ = writeln!(pickle, "g{number}");
        pickle.push('s');
    }
    pickle.push_str("b.");
    Ok(pickle.into_bytes())
}

/// An object of a class without anything in it.
fn plain(pickle: &mut String, module: &str, class: &str) {
    let _ = write!(pickle, "ccopy_reg\n_reconstructor\n(c{module}\n{class}\nc__builtin__\nobject\nNtR");
}

fn text(pickle: &mut String, text: &str) {
    pickle.push('V');
    for char in text.chars() {
        let code = u32::from(char);
        let _ = match char {
            ' '..='~' if char != '\\' => {
                pickle.push(char);
                Ok(())
            }
            _ if code <= 0xffff => write!(pickle, "\\u{code:04x}"),
            _ => write!(pickle, "\\U{code:08x}"),
        };
    }
    pickle.push('\n');
}

fn field(pickle: &mut String, field: &UnischemaField) -> Result<()> {
    let module = match field.numpy_dtype.as_str() {
        "Decimal" => "decimal",
        // Python 3's own name: under protocol 0 it is the same as `__builtin__`, and Petastorm allows both.
        "str" | "bytes" | "int" | "float" | "bool" => "builtins",
        "bool_" | "int8" | "uint8" | "int16" | "uint16" | "int32" | "uint32" | "int64" | "uint64" | "float16"
        | "float32" | "float64" | "complex64" | "complex128" | "datetime64" | "timedelta64" | "str_" | "bytes_"
        | "object_" => "numpy",
        other => {
            let what = format!("field {:?}: the element type {other:?} in a Unischema", field.name);
            return Err(Error::unsupported(what, "name a scalar class of NumPy, e.g. \"float32\""));
        }
    };
    pickle.push_str("ccopy_reg\n_reconstructor\n(cpetastorm.unischema\nUnischemaField\nc__builtin__\ntuple\n(");
    text(pickle, &field.name);
    let _ = write!(pickle, "c{module}\n{}\n(", field.numpy_dtype);
    for axis in &field.shape {
        let _ = match axis {
            Some(axis) => writeln!(pickle, "L{axis}L"),
            None => write!(pickle, "N"),
        };
    }
    pickle.push('t');
    match &field.codec {
        None => pickle.push('N'),
        Some(FieldCodec::Scalar { spark_type }) => {
            plain(pickle, "petastorm.codecs", "ScalarCodec");
            pickle.push_str("(d");
            text(pickle, "_spark_type");
            plain(pickle, "pyspark.sql.types", spark_type.class());
            if let SparkType::Decimal { precision, scale } = spark_type {
                let _ = write!(pickle, "(dVprecision\nI{precision}\nsVscale\nI{scale}\nsVhasPrecisionInfo\nI01\nsb");
            }
            pickle.push_str("sb");
        }
        Some(FieldCodec::Ndarray) => plain(pickle, "petastorm.codecs", "NdarrayCodec"),
        Some(FieldCodec::CompressedNdarray) => plain(pickle, "petastorm.codecs", "CompressedNdarrayCodec"),
        Some(FieldCodec::CompressedImage { format, quality }) => {
            plain(pickle, "petastorm.codecs", "CompressedImageCodec");
            pickle.push_str("(d");
            text(pickle, "_image_codec");
            text(pickle, format);
            pickle.push_str("sV_quality\n");
            let _ = match quality {
                Some(quality) => writeln!(pickle, "L{quality}L"),
                None => write!(pickle, "N"),
            };
            pickle.push_str("sb");
        }
    }
    pickle.push_str(if field.nullable { "I01\ntt" } else { "I00\ntt" });
    pickle.push('R');
    Ok(())
}
