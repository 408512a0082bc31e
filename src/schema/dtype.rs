//! The element types a tensor can have.

use std::fmt;

use arrow::datatypes::DataType;

/// Type of one element of a tensor. Names are NumPy's; all are little-endian in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "each variant is named by its own type")]
pub enum DType {
    Bool,
    Uint8,
    Int8,
    Uint16,
    Int16,
    Uint32,
    Int32,
    Uint64,
    Int64,
    Float16,
    Bfloat16,
    Float32,
    Float64,
}

impl DType {
    /// Every element type, in declaration order.
    pub const ALL: [Self; 13] = [
        Self::Bool,
        Self::Uint8,
        Self::Int8,
        Self::Uint16,
        Self::Int16,
        Self::Uint32,
        Self::Int32,
        Self::Uint64,
        Self::Int64,
        Self::Float16,
        Self::Bfloat16,
        Self::Float32,
        Self::Float64,
    ];

    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::Bool | Self::Uint8 | Self::Int8 => 1,
            Self::Uint16 | Self::Int16 | Self::Float16 | Self::Bfloat16 => 2,
            Self::Uint32 | Self::Int32 | Self::Float32 => 4,
            Self::Uint64 | Self::Int64 | Self::Float64 => 8,
        }
    }

    /// NumPy's name, e.g. `float32`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Uint8 => "uint8",
            Self::Int8 => "int8",
            Self::Uint16 => "uint16",
            Self::Int16 => "int16",
            Self::Uint32 => "uint32",
            Self::Int32 => "int32",
            Self::Uint64 => "uint64",
            Self::Int64 => "int64",
            Self::Float16 => "float16",
            Self::Bfloat16 => "bfloat16",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
        }
    }

    /// Arrow's type with the same bytes. Arrow's booleans are bits, and it has no bfloat16.
    pub fn arrow(self) -> Option<DataType> {
        Some(match self {
            Self::Bool | Self::Bfloat16 => return None,
            Self::Uint8 => DataType::UInt8,
            Self::Int8 => DataType::Int8,
            Self::Uint16 => DataType::UInt16,
            Self::Int16 => DataType::Int16,
            Self::Uint32 => DataType::UInt32,
            Self::Int32 => DataType::Int32,
            Self::Uint64 => DataType::UInt64,
            Self::Int64 => DataType::Int64,
            Self::Float16 => DataType::Float16,
            Self::Float32 => DataType::Float32,
            Self::Float64 => DataType::Float64,
        })
    }

    /// The type named `name`, by NumPy's name or the short forms `u8 i64 f16 bf16 f32 ...`.
    pub fn parse(name: &str) -> Option<Self> {
        let short = match name {
            "u8" => Self::Uint8,
            "i8" => Self::Int8,
            "u16" => Self::Uint16,
            "i16" => Self::Int16,
            "u32" => Self::Uint32,
            "i32" => Self::Int32,
            "u64" => Self::Uint64,
            "i64" => Self::Int64,
            "f16" | "half" => Self::Float16,
            "bf16" => Self::Bfloat16,
            "f32" | "float" => Self::Float32,
            "f64" | "double" => Self::Float64,
            _ => return Self::ALL.into_iter().find(|dtype| dtype.name() == name),
        };
        Some(short)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
