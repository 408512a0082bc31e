//! Spark's types, as a ScalarCodec names them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The Spark type of a scalar field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
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

impl From<SparkType> for String {
    fn from(spark_type: SparkType) -> Self {
        spark_type.to_string()
    }
}

impl TryFrom<String> for SparkType {
    type Error = String;

    /// From the text that pyspark prints, with or without parentheses.
    fn try_from(text: String) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a scalar type of Spark");
        let (class, arguments) = match text.split_once('(') {
            Some((class, rest)) => (class, rest.strip_suffix(')').ok_or_else(wrong)?),
            None => (text.as_str(), ""),
        };
        let of_class = Self::of_class(class).ok_or_else(wrong)?;
        match (of_class, arguments.trim()) {
            (found, "") => Ok(found),
            (Self::Decimal { .. }, arguments) => {
                let (precision, scale) = arguments.split_once(',').ok_or_else(wrong)?;
                let precision = precision.trim().parse().map_err(|_| wrong())?;
                Ok(Self::Decimal { precision, scale: scale.trim().parse().map_err(|_| wrong())? })
            }
            _ => Err(wrong()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_type_are_one() {
        for spark_type in [SparkType::Long, SparkType::TimestampNtz, SparkType::Decimal { precision: 10, scale: -2 }] {
            let json = serde_json::to_string(&spark_type).unwrap();
            assert_eq!(serde_json::from_str::<SparkType>(&json).unwrap(), spark_type, "{json}");
        }
        assert_eq!(SparkType::try_from("LongType".to_owned()), Ok(SparkType::Long));
        for wrong in ["Long", "LongType(", "LongType(1)", "DecimalType(1)", "DecimalType(x,1)", ""] {
            assert!(SparkType::try_from(wrong.to_owned()).is_err(), "{wrong}");
        }
    }
}
