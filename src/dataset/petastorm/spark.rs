//! Spark's types, as a ScalarCodec names them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The Spark type of a scalar field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(missing_docs, reason = "each variant is named by its own type")]
pub enum SparkType {
    Boolean,
    Byte,
    Short,
    Integer,
    Long,
    Float,
    Double,
    String,
    Binary,
    Date,
    Timestamp,
    TimestampNtz,
    Decimal { precision: u8, scale: i8 },
}

impl SparkType {
    /// The type that a class of `pyspark.sql.types` stands for. A decimal without a state is Spark's default, (10, 0).
    pub(super) fn of_class(name: &str) -> Option<Self> {
        let found = match name {
            "BooleanType" => Self::Boolean,
            "ByteType" => Self::Byte,
            "ShortType" => Self::Short,
            "IntegerType" => Self::Integer,
            "LongType" => Self::Long,
            "FloatType" => Self::Float,
            "DoubleType" => Self::Double,
            "StringType" => Self::String,
            "BinaryType" => Self::Binary,
            "DateType" => Self::Date,
            "TimestampType" => Self::Timestamp,
            "TimestampNTZType" => Self::TimestampNtz,
            "DecimalType" => Self::Decimal { precision: 10, scale: 0 },
            _ => return None,
        };
        Some(found)
    }

    /// The name of its class in `pyspark.sql.types`.
    pub fn class(self) -> &'static str {
        match self {
            Self::Boolean => "BooleanType",
            Self::Byte => "ByteType",
            Self::Short => "ShortType",
            Self::Integer => "IntegerType",
            Self::Long => "LongType",
            Self::Float => "FloatType",
            Self::Double => "DoubleType",
            Self::String => "StringType",
            Self::Binary => "BinaryType",
            Self::Date => "DateType",
            Self::Timestamp => "TimestampType",
            Self::TimestampNtz => "TimestampNTZType",
            Self::Decimal { .. } => "DecimalType",
        }
    }
}

/// As pyspark prints it: `LongType()`, `DecimalType(10,9)`.
impl fmt::Display for SparkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Decimal { precision, scale } => write!(f, "DecimalType({precision},{scale})"),
            other => write!(f, "{}()", other.class()),
        }
    }
}
