//! The closed list of Python names that a pickled schema or index may mention. Each stands for data; none is ever called.

use super::spark::SparkType;

/// A name that was found on the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Global {
    /// `copyreg._reconstructor`: an object of a class, as protocols 0 and 1 write it.
    Reconstructor,
    /// `pyspark.serializers._restore`: a namedtuple, as pyspark before 3.3 wrote it.
    Restore,
    /// `_codecs.encode`: bytes, as Python 3 writes them for protocols below 3.
    Encode,
    Object,
    Tuple,
    OrderedDict,
    DefaultDict,
    Set,
    FrozenSet,
    Unischema,
    UnischemaField,
    ScalarCodec,
    NdarrayCodec,
    CompressedNdarrayCodec,
    CompressedImageCodec,
    SingleFieldIndexer,
    FieldNotNullIndexer,
    /// A class of `pyspark.sql.types`.
    Spark(SparkType),
    /// `numpy.dtype`.
    Dtype,
    /// `numpy.core.multiarray.scalar`.
    NumpyScalar,
    /// A class that stands for an element type, by its modern name.
    Type(&'static str),
}

impl Global {
    /// The global `module.name`, if it is on the list.
    pub(super) fn find(module: &str, name: &str) -> Option<Self> {
        let module = module
            .strip_prefix("av.experimental.deepdrive.dataset_toolkit.")
            .or_else(|| module.strip_prefix("av.ml.dataset_toolkit."))
            .map_or(Module::Named(module), Module::Petastorm);
        let found = match (module, name) {
            (Module::Petastorm(part), name) => return Self::petastorm(part, name),
            (Module::Named("copy_reg" | "copyreg"), "_reconstructor") => Self::Reconstructor,
            (Module::Named("pyspark.serializers"), "_restore") => Self::Restore,
            (Module::Named("_codecs"), "encode") => Self::Encode,
            (Module::Named("collections"), "OrderedDict") => Self::OrderedDict,
            (Module::Named("collections"), "defaultdict") => Self::DefaultDict,
            (Module::Named("decimal" | "_decimal" | "_pydecimal"), "Decimal") => Self::Type("Decimal"),
            (Module::Named("__builtin__" | "builtins"), name) => return Self::builtin(name),
            (Module::Named("numpy"), "dtype") => Self::Dtype,
            (Module::Named("numpy.core.multiarray" | "numpy._core.multiarray"), "scalar") => Self::NumpyScalar,
            (Module::Named("numpy"), name) => Self::Type(numpy_type(name)?),
            (Module::Named("pyspark.sql.types"), name) => Self::Spark(SparkType::of_class(name)?),
            (Module::Named(module), name) => return Self::petastorm(module.strip_prefix("petastorm.")?, name),
        };
        Some(found)
    }

    fn builtin(name: &str) -> Option<Self> {
        let found = match name {
            "object" => Self::Object,
            "tuple" => Self::Tuple,
            "set" => Self::Set,
            "frozenset" => Self::FrozenSet,
            "str" | "unicode" => Self::Type("str"),
            "bytes" => Self::Type("bytes"),
            "int" | "long" => Self::Type("int"),
            "float" => Self::Type("float"),
            "bool" => Self::Type("bool"),
            _ => return None,
        };
        Some(found)
    }

    fn petastorm(module: &str, name: &str) -> Option<Self> {
        let found = match (module, name) {
            ("unischema", "Unischema") => Self::Unischema,
            ("unischema", "UnischemaField") => Self::UnischemaField,
            ("codecs", "ScalarCodec") => Self::ScalarCodec,
            ("codecs", "NdarrayCodec") => Self::NdarrayCodec,
            ("codecs", "CompressedNdarrayCodec") => Self::CompressedNdarrayCodec,
            ("codecs", "CompressedImageCodec") => Self::CompressedImageCodec,
            ("etl.rowgroup_indexers", "SingleFieldIndexer") => Self::SingleFieldIndexer,
            ("etl.rowgroup_indexers", "FieldNotNullIndexer") => Self::FieldNotNullIndexer,
            _ => return None,
        };
        Some(found)
    }

    /// Returns true if an empty object of this class may be made, to be filled with attributes.
    pub(super) fn is_plain(self) -> bool {
        matches!(
            self,
            Self::Unischema
                | Self::ScalarCodec
                | Self::NdarrayCodec
                | Self::CompressedNdarrayCodec
                | Self::CompressedImageCodec
                | Self::SingleFieldIndexer
                | Self::FieldNotNullIndexer
                | Self::Spark(_)
        )
    }

    /// Name in messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Reconstructor => "copyreg._reconstructor",
            Self::Restore => "pyspark.serializers._restore",
            Self::Encode => "_codecs.encode",
            Self::Object => "object",
            Self::Tuple => "tuple",
            Self::OrderedDict => "OrderedDict",
            Self::DefaultDict => "defaultdict",
            Self::Set => "set",
            Self::FrozenSet => "frozenset",
            Self::Unischema => "Unischema",
            Self::UnischemaField => "UnischemaField",
            Self::ScalarCodec => "ScalarCodec",
            Self::NdarrayCodec => "NdarrayCodec",
            Self::CompressedNdarrayCodec => "CompressedNdarrayCodec",
            Self::CompressedImageCodec => "CompressedImageCodec",
            Self::SingleFieldIndexer => "SingleFieldIndexer",
            Self::FieldNotNullIndexer => "FieldNotNullIndexer",
            Self::Spark(spark) => spark.class(),
            Self::Dtype => "numpy.dtype",
            Self::NumpyScalar => "numpy.core.multiarray.scalar",
            Self::Type(name) => name,
        }
    }
}

enum Module<'a> {
    /// A module of petastorm under one of its former names, from that name on.
    Petastorm(&'a str),
    Named(&'a str),
}

/// The modern name of a scalar class of NumPy.
fn numpy_type(name: &str) -> Option<&'static str> {
    let modern = match name {
        "bool_" | "bool8" | "bool" => "bool_",
        "int8" | "byte" => "int8",
        "uint8" | "ubyte" => "uint8",
        "int16" | "short" => "int16",
        "uint16" | "ushort" => "uint16",
        "int32" | "intc" => "int32",
        "uint32" | "uintc" => "uint32",
        "int64" | "longlong" | "int_" => "int64",
        "uint64" | "ulonglong" | "uint" => "uint64",
        "float16" | "half" => "float16",
        "float32" | "single" => "float32",
        "float64" | "double" | "float_" => "float64",
        "complex64" => "complex64",
        "complex128" => "complex128",
        "datetime64" => "datetime64",
        "timedelta64" => "timedelta64",
        "str_" | "unicode_" | "str0" => "str_",
        "bytes_" | "string_" | "bytes0" => "bytes_",
        "object_" | "object0" => "object_",
        _ => return None,
    };
    Some(modern)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_pairs_only() {
        assert_eq!(Global::find("numpy", "unicode_"), Some(Global::Type("str_")));
        assert_eq!(Global::find("petastorm.codecs", "NdarrayCodec"), Some(Global::NdarrayCodec));
        for former in ["av.experimental.deepdrive.dataset_toolkit", "av.ml.dataset_toolkit"] {
            assert_eq!(Global::find(&format!("{former}.unischema"), "Unischema"), Some(Global::Unischema));
            assert_eq!(Global::find(&format!("{former}.numpy"), "uint8"), None);
        }
        for (module, name) in [
            ("builtins", "eval"),
            ("builtins", "getattr"),
            ("os", "system"),
            ("numpy", "f2py.os.system"),
            ("numpy", "load"),
            ("numpy", "uint8.__class__"),
            ("petastorm", "codecs.NdarrayCodec"),
            ("codecs", "NdarrayCodec"),
            ("petastorm.petastorm.codecs", "NdarrayCodec"),
            ("pyspark.sql.types", "_parse_datatype_string"),
            ("collections", "namedtuple"),
            ("", ""),
        ] {
            assert_eq!(Global::find(module, name), None, "{module}.{name}");
        }
    }
}
