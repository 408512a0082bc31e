//! Petastorm's metadata: every version's schema and indexes, hostile pickles, truncation and mutation of real ones.

use std::fs;
use std::time::{Duration, Instant};

use bowstring::dataset::Limits;
use bowstring::dataset::petastorm::{
    FieldCodec, IndexKind, IndexValue, ROW_GROUP_COUNTS_KEY, ROW_GROUP_INDEX_KEY, RowGroupIndex, SparkType,
    UNISCHEMA_KEY, Unischema, UnischemaField, indexes, key_values, row_group_counts,
};
use bowstring::schema::{Codec, DType, Element};
use bowstring::{Error, Place, Result};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use crate::support::HANG;

const ROOT: &str = "fixtures/petastorm";
const LEGACY: [&str; 4] = ["legacy_0.4.0", "legacy_0.4.3", "legacy_0.6.0", "legacy_0.7.6"];
const MODERN: [&str; 2] = ["allcodecs_0.13.1", "wide300_0.13.1"];

fn place() -> Place {
    Place::file("_common_metadata")
}

/// Returns the pairs in the footer of a Parquet file.
fn pairs(path: &str) -> Vec<(String, Vec<u8>)> {
    let file = fs::read(path).unwrap();
    let (rest, magic) = file.split_last_chunk::<4>().unwrap();
    assert_eq!(magic, b"PAR1");
    let (rest, length) = rest.split_last_chunk::<4>().unwrap();
    let start = rest.len() - u32::from_le_bytes(*length) as usize;
    key_values(&rest[start..], &place()).unwrap()
}

fn value(path: &str, key: &str) -> Option<Vec<u8>> {
    pairs(path).into_iter().find(|(name, _)| name == key).map(|(_, value)| value)
}

fn metadata(version: &str, key: &str) -> Option<Vec<u8>> {
    value(&format!("{ROOT}/petastorm_{version}/_common_metadata"), key)
}

fn schema(bytes: &[u8]) -> Result<Unischema> {
    Unischema::from_pickle(bytes, &Limits::default(), &place())
}

fn index(bytes: &[u8]) -> Result<Vec<RowGroupIndex>> {
    indexes(bytes, &Limits::default(), &place())
}

fn expected(name: &str) -> Value {
    serde_json::from_slice(&fs::read(format!("{ROOT}/{name}")).unwrap()).unwrap()
}

/// Returns a field in the form of the expected files.
fn as_expected(field: &UnischemaField) -> Value {
    let (codec, state) = match &field.codec {
        None => (Value::Null, json!({})),
        Some(FieldCodec::Scalar { spark_type }) => {
            (json!("ScalarCodec"), json!({"_spark_type": spark_type.to_string()}))
        }
        Some(FieldCodec::Ndarray) => (json!("NdarrayCodec"), json!({})),
        Some(FieldCodec::CompressedNdarray) => (json!("CompressedNdarrayCodec"), json!({})),
        Some(FieldCodec::CompressedImage { format, quality }) => {
            (json!("CompressedImageCodec"), json!({"_image_codec": format, "_quality": quality}))
        }
    };
    json!({
        "name": field.name, "numpy_dtype": field.numpy_dtype, "shape": field.shape, "codec": codec, "codec_state": state,
        "nullable": field.nullable,
    })
}

#[test]
fn petastorm_schemas_of_every_version() {
    let all = expected("metadata.json");
    for version in LEGACY.into_iter().chain(MODERN) {
        let schema = schema(&metadata(version, UNISCHEMA_KEY).unwrap()).unwrap();
        let facts = &all[format!("petastorm_{version}")]["schema"];
        assert_eq!(json!(schema.name), facts["name"], "{version}");
        let fields: Vec<_> = schema.fields.iter().map(as_expected).collect();
        assert_eq!(json!(fields), facts["fields"], "{version}");
        // As recorded from Petastorm itself, if it was: sorted by name, numbers as text.
        if LEGACY.contains(&version) {
            let mut fields: Vec<_> = fields
                .into_iter()
                .map(|mut field| {
                    if let Some(quality @ Value::Number(_)) = field["codec_state"].get_mut("_quality") {
                        *quality = json!(quality.to_string());
                    }
                    field
                })
                .collect();
            fields.sort_by_key(|field| field["name"].to_string());
            assert_eq!(json!(fields), expected(&format!("petastorm_{version}.expected.json"))["fields"], "{version}");
        }
    }
}

#[test]
fn petastorm_fields_as_they_are_stored() {
    let schema = schema(&metadata("allcodecs_0.13.1", UNISCHEMA_KEY).unwrap()).unwrap();
    let stored = |name: &str| schema.fields.iter().find(|field| field.name == name).unwrap().stored().unwrap();
    let facts = |name: &str| stored(name).map(|stored| (stored.codec, stored.element, stored.shape.len()));
    assert_eq!(facts("id"), None);
    assert_eq!(facts("s_nocodec_str"), None);
    assert_eq!(
        facts("nd_f16"),
        Some((Codec::Npy, Element::Number(DType::Float16), stored("nd_f16").unwrap().shape.len()))
    );
    assert!(matches!(facts("nd_str"), Some((Codec::Npy, Element::Text, _))));
    assert!(matches!(facts("nd_bytes"), Some((Codec::Npy, Element::Bytes, _))));
    assert!(matches!(facts("nd_dt"), Some((Codec::Npy, Element::Time, _))));
    assert!(matches!(facts("nd_bool"), Some((Codec::Npy, Element::Number(DType::Bool), _))));
    assert!(matches!(facts("cnd_f64"), Some((Codec::Npz, Element::Number(DType::Float64), _))));
    assert!(matches!(facts("img_png16"), Some((Codec::Png, Element::Number(DType::Uint16), _))));
    assert!(matches!(facts("img_jpeg_rgb"), Some((Codec::Jpeg, Element::Number(DType::Uint8), 3))));
    let mut field = UnischemaField {
        name: "x".to_owned(),
        numpy_dtype: "object_".to_owned(),
        shape: vec![None],
        codec: Some(FieldCodec::Ndarray),
        nullable: false,
    };
    assert!(matches!(field.stored(), Err(Error::Unsupported { .. })));
    field.numpy_dtype = "float32".to_owned();
    field.codec = Some(FieldCodec::CompressedImage { format: ".png".to_owned(), quality: None });
    assert!(matches!(field.stored(), Err(Error::Unsupported { .. })), "images of float32");
    field.numpy_dtype = "bfloat16".to_owned();
    field.codec = Some(FieldCodec::CompressedNdarray);
    assert!(matches!(field.stored(), Err(Error::Unsupported { .. })), "NumPy has no bfloat16");
}

#[test]
fn petastorm_indexes_and_counts_of_every_version() {
    let all = expected("metadata.json");
    for version in LEGACY.into_iter().chain(MODERN) {
        let counts = row_group_counts(&metadata(version, ROW_GROUP_COUNTS_KEY).unwrap(), &place()).unwrap();
        assert!(!counts.is_empty());
        for file in counts.keys() {
            assert!(fs::exists(format!("{ROOT}/petastorm_{version}/{file}")).unwrap(), "{version}/{file}");
        }
        let facts = &all[format!("petastorm_{version}")]["indexes"];
        let Some(bytes) = metadata(version, ROW_GROUP_INDEX_KEY) else {
            assert!(facts.is_null() && version == "wide300_0.13.1");
            continue;
        };
        let found = index(&bytes).unwrap();
        assert_eq!(found.len(), facts.as_object().unwrap().len(), "{version}");
        for index in &found {
            let facts = &facts[&index.name];
            let (kind, data) = match &index.kind {
                IndexKind::SingleField { values } => {
                    let value = |value: &IndexValue| match value {
                        IndexValue::Int(value) => json!(value),
                        IndexValue::Text(value) => json!(value),
                        other => panic!("{version}: {other:?}"),
                    };
                    let values = values.iter().map(|(key, groups)| json!([value(key), groups])).collect();
                    ("SingleFieldIndexer", Value::Array(values))
                }
                IndexKind::FieldNotNull { row_groups } => ("FieldNotNullIndexer", json!(row_groups)),
            };
            let found = json!({"indexer": kind, "column": index.columns[0], "data": data});
            assert_eq!(&found, facts, "{version}, {}", index.name);
        }
        let json = serde_json::to_string(&found).unwrap();
        assert_eq!(serde_json::from_str::<Vec<RowGroupIndex>>(&json).unwrap(), found);
    }
}

#[test]
fn petastorm_schemas_are_written_as_ascii_that_reads_back() {
    for version in LEGACY.into_iter().chain(MODERN) {
        let schema = self::schema(&metadata(version, UNISCHEMA_KEY).unwrap()).unwrap();
        let pickle = schema.to_pickle().unwrap();
        assert!(pickle.is_ascii());
        assert_eq!(self::schema(&pickle).unwrap(), schema, "{version}");
        let json = serde_json::to_string(&schema).unwrap();
        assert_eq!(serde_json::from_str::<Unischema>(&json).unwrap(), schema);
        if let Some(directory) = std::env::var_os("BOWSTRING_WRITTEN") {
            // For inspection with Python: BOWSTRING_WRITTEN=/tmp/written.
            fs::create_dir_all(&directory).unwrap();
            fs::write(std::path::Path::new(&directory).join(version), pickle).unwrap();
        }
    }
}

fn any_schema() -> impl Strategy<Value = Unischema> {
    let dtype = proptest::sample::select(vec![
        "bool_",
        "int8",
        "uint8",
        "int64",
        "uint64",
        "float16",
        "float32",
        "datetime64",
        "str_",
        "bytes_",
        "Decimal",
        "str",
        "int",
    ]);
    let spark = prop_oneof![
        Just(SparkType::Long),
        Just(SparkType::String),
        Just(SparkType::Binary),
        Just(SparkType::TimestampNtz),
        (1_u8..=38, -3_i8..=38).prop_map(|(precision, scale)| SparkType::Decimal { precision, scale }),
    ];
    let codec = proptest::option::of(prop_oneof![
        spark.prop_map(|spark_type| FieldCodec::Scalar { spark_type }),
        Just(FieldCodec::Ndarray),
        Just(FieldCodec::CompressedNdarray),
        proptest::option::of(any::<i64>())
            .prop_map(|quality| FieldCodec::CompressedImage { format: ".jpeg".to_owned(), quality }),
    ]);
    let shape = proptest::collection::vec(proptest::option::of(0_usize..1 << 40), 0..5);
    let field = (dtype, shape, codec, any::<bool>());
    let names = proptest::collection::hash_set(any::<String>(), 0..8);
    (any::<String>(), names, proptest::collection::vec(field, 8)).prop_map(|(name, names, fields)| {
        let fields = names.into_iter().zip(fields).map(|(name, (dtype, shape, codec, nullable))| UnischemaField {
            name,
            numpy_dtype: dtype.to_owned(),
            shape,
            codec,
            nullable,
        });
        Unischema { name, fields: fields.collect() }
    })
}

proptest! {
    #![proptest_config(Config { cases: soak(60), failure_persistence: None, ..Config::default() })]
    #[test]
    fn petastorm_any_schema_is_written_and_read(schema in any_schema()) {
        let pickle = schema.to_pickle().unwrap();
        prop_assert!(pickle.is_ascii());
        prop_assert_eq!(self::schema(&pickle).unwrap(), schema);
    }
}

fn soak(cases: u32) -> u32 {
    if std::env::var_os("BOWSTRING_SOAK").is_some() { cases * 20 } else { cases }
}

/// Runs both readers, within a time limit; returns the typed error of each.
fn refused(name: &str, bytes: &[u8]) -> [Error; 2] {
    let timed = |read: &dyn Fn() -> Result<()>| {
        let start = Instant::now();
        let error = read().unwrap_err();
        assert!(start.elapsed() < HANG, "{name}: {:?}", start.elapsed());
        error
    };
    let errors = [timed(&|| schema(bytes).map(drop)), timed(&|| index(bytes).map(drop))];
    for error in &errors {
        assert!(
            matches!(error, Error::Corrupt { .. } | Error::Unsupported { .. } | Error::Limit { .. }),
            "{name}: {error:?}"
        );
        assert!(error.to_string().contains("_common_metadata"), "{name}: {error}");
        assert!(error.to_string().len() < 600, "{name}: a message of {} bytes", error.to_string().len());
    }
    errors
}

#[test]
fn petastorm_malicious_fixtures_are_refused() {
    let facts: Value = serde_json::from_slice(&fs::read("fixtures/malicious/expected.json").unwrap()).unwrap();
    let marker = facts["marker_file_that_must_not_appear"].as_str().unwrap();
    let cases = facts["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 26);
    for case in cases {
        let name = case.as_str().unwrap();
        let bytes = fs::read(format!("fixtures/malicious/{name}.pkl")).unwrap();
        let [error, _] = refused(name, &bytes);
        let stored = value(&format!("fixtures/malicious/{name}/_common_metadata"), UNISCHEMA_KEY).unwrap();
        assert_eq!(stored, bytes, "{name}");
        let global = match name {
            "os_system_p0" | "os_system_stackglobal_p4" | "obj_opcode" | "reduce_via_build_setstate" => "os.system",
            "posix_system_p2" => "posix.system",
            "builtins_eval_allowed_module" => "builtins.eval",
            "builtins_getattr_chain" => "builtins.exec",
            "numpy_dotted_os" => "numpy.f2py.os.system",
            "inst_opcode" => "INST",
            _ => continue,
        };
        assert!(error.to_string().contains(global), "{name}: {error}");
    }
    let poisoned = "fixtures/malicious/os_system_p0/_common_metadata.index_poisoned";
    let [_, error] = refused("poisoned index", &value(poisoned, ROW_GROUP_INDEX_KEY).unwrap());
    assert!(error.to_string().contains("system"), "{error}");
    assert!(!fs::exists(marker).unwrap(), "something ran");
}

fn joined(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

/// A dict of one index over column `c`, with the data built by `data`.
fn indexer(class: &str, data: &[u8]) -> Vec<u8> {
    let head = format!(
        "}}S'i'\nccopy_reg\n_reconstructor\n(cpetastorm.etl.rowgroup_indexers\n{class}\nc__builtin__\nobject\nNtR}}(S'_index_name'\n\
         S'i'\nS'_column_name'\nS'c'\nS'_index_data'\n"
    );
    joined(&[head.as_bytes(), data, b"ubs."])
}

/// A schema of one field, with the values after the name `x` built by `values`.
fn one_field(values: &[u8]) -> Vec<u8> {
    let head = "ccopy_reg\n_reconstructor\n(cpetastorm.unischema\nUnischema\nc__builtin__\nobject\nNtR}(S'_name'\nS'n'\nS'_fields'\n\
                ccollections\nOrderedDict\n)R(S'x'\ncpetastorm.unischema\nUnischemaField\n(S'x'\n";
    joined(&[head.as_bytes(), values, b"t\x81uub."])
}

fn hostile() -> Vec<(String, Vec<u8>)> {
    let mut cases: Vec<(String, Vec<u8>)> = Vec::new();
    let mut add = |name: &str, bytes: Vec<u8>| cases.push((name.to_owned(), bytes));
    // Names: functions of modules that Petastorm's own unpickler allows, chains, other spellings.
    for (module, name) in [
        ("__builtin__", "eval"),
        ("__builtin__", "execfile"),
        ("__builtin__", "getattr"),
        ("__builtin__", "__import__"),
        ("builtins", "compile"),
        ("builtins", "open"),
        ("builtins", "breakpoint"),
        ("builtins", "type"),
        ("builtins", "dict.get"),
        ("copyreg", "__newobj__"),
        ("copyreg", "_extension_registry"),
        ("collections", "namedtuple"),
        ("collections", "_sys.modules"),
        ("numpy", "load"),
        ("numpy", "fromfile"),
        ("numpy", "testing.rundocs"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy.core.multiarray", "fromfile"),
        ("numpy.ctypeslib", "load_library"),
        ("pyspark", "java_gateway.Popen"),
        ("pyspark.serializers", "CloudPickleSerializer"),
        ("pyspark.sql.types", "_parse_datatype_json_string"),
        ("petastorm.unischema", "decimal.sys"),
        ("petastorm.codecs", "cv2.imread"),
        ("petastorm.etl.rowgroup_indexers", "np.load"),
        ("decimal", "_sys"),
        ("subprocess", "Popen"),
        ("_pickle", "loads"),
        ("", ""),
        ("os\0", "system"),
        ("numpy\u{200b}", "uint8"),
    ] {
        let called = |head: Vec<u8>| joined(&[&head, b"(S'x'\ntR."]);
        add(&format!("{module}.{name} p0"), called(format!("c{module}\n{name}\n").into_bytes()));
        let text = |text: &str| joined(&[b"\x8c", &[text.len() as u8], text.as_bytes()]);
        add(&format!("{module}.{name} p4"), called(joined(&[b"\x80\x04", &text(module), &text(name), b"\x93"])));
        // Within an otherwise valid schema.
        let values = format!("cnumpy\nuint8\n()(c{module}\n{name}\nS'x'\ntRI00\n");
        add(&format!("{module}.{name} as a codec"), one_field(values.as_bytes()));
    }
    // Instructions that make objects, with allowed names.
    let field = &b"cpetastorm.unischema\nUnischemaField\n"[..];
    let spark = &b"cpyspark.sql.types\nLongType\n"[..];
    add("INST of an allowed class", b"(ipetastorm.codecs\nNdarrayCodec\n.".to_vec());
    add("OBJ of an allowed class", b"(cpetastorm.codecs\nNdarrayCodec\no.".to_vec());
    add("NEWOBJ_EX", b"\x80\x04cpetastorm.codecs\nNdarrayCodec\n)}\x92.".to_vec());
    add("REDUCE of a class", joined(&[spark, b")R."]));
    add("REDUCE of a text", b"S'os.system'\n)R.".to_vec());
    add("REDUCE with a list", b"ccollections\nOrderedDict\n]R.".to_vec());
    add("REDUCE of an object", b"cpetastorm.codecs\nNdarrayCodec\n)\x81)R.".to_vec());
    add("NEWOBJ of a function", b"ccopy_reg\n_reconstructor\n)\x81.".to_vec());
    add("NEWOBJ with arguments", joined(&[spark, b"K\x01\x85\x81."]));
    add("NEWOBJ of an element type", b"cnumpy\nuint8\n)\x81.".to_vec());
    add("a field of two values", joined(&[field, b"(S'x'\nNt\x81."]));
    add("a field as a plain object", joined(&[b"ccopy_reg\n_reconstructor\n(", field, b"c__builtin__\nobject\nNtR."]));
    add(
        "a tuple as a schema",
        b"ccopy_reg\n_reconstructor\n(cpetastorm.unischema\nUnischema\nc__builtin__\ntuple\n(ttR.".to_vec(),
    );
    add("_restore of another namedtuple", b"cpyspark.serializers\n_restore\n(S'os'\n(S'system'\nt(S'x'\nttR.".to_vec());
    add("_restore with a list", b"cpyspark.serializers\n_restore\n(S'UnischemaField'\n](S'x'\nttR.".to_vec());
    add("_reconstructor of set", b"ccopy_reg\n_reconstructor\n(c__builtin__\nset\nc__builtin__\nobject\nNtR.".to_vec());
    add("defaultdict of a function", b"ccollections\ndefaultdict\n(ccopy_reg\n_reconstructor\ntR.".to_vec());
    add("encode to another encoding", b"c_codecs\nencode\n(Va\nVzlib\ntR.".to_vec());
    add("BUILD on a dict", b"}}b.".to_vec());
    add("BUILD on a class", b"cpetastorm.unischema\nUnischema\n}(S'__class__'\nS'x'\nub.".to_vec());
    add("BUILD on a name", b"cnumpy\nuint8\n}b.".to_vec());
    add("BUILD with a tuple", b"cpetastorm.codecs\nNdarrayCodec\n)\x81N}\x86b.".to_vec());
    add("BUILD twice", b"cpetastorm.codecs\nNdarrayCodec\n)\x81}b}b.".to_vec());
    add(
        "BUILD with __setstate__",
        b"cpetastorm.unischema\nUnischema\n)\x81}S'__setstate__'\ncos\nsystem\nsbS'x'\nb.".to_vec(),
    );
    add("SETITEM on an object", b"cpetastorm.unischema\nUnischema\n)\x81S'a'\nS'b'\ns.".to_vec());
    add("APPEND on a dict", b"}S'a'\na.".to_vec());
    add("APPENDS on a set", b"\x80\x04\x8f(K\x01e.".to_vec());
    add("ADDITEMS on a list", b"\x80\x04](K\x01\x90.".to_vec());
    add("STACK_GLOBAL of a tuple", b"\x80\x04(S'os'\nS'system'\nt\x8c\x01x\x93.".to_vec());
    add("STACK_GLOBAL of a computed name", b"\x80\x04c_codecs\nencode\n(Vos\nVlatin1\ntRVsystem\n\x93.".to_vec());
    add("STACK_GLOBAL by the memo", b"\x80\x04\x8c\x02os\x940\x8c\x06system\x940h\0h\x01\x93.".to_vec());
    add("STACK_GLOBAL of a number", b"\x80\x04K\x01K\x02\x93.".to_vec());
    for (name, opcode) in [("PERSID", b'P'), ("BINPERSID", b'Q')] {
        add(name, vec![b'N', opcode, b'x', b'\n', b'.']);
    }
    for opcode in [0x82_u8, 0x83, 0x84, 0x92, 0x96, 0x97, 0x98, 0x00, 0xff] {
        add(
            &format!("instruction 0x{opcode:02x}"),
            joined(&[b"\x80\x05NN", &[opcode], &[1, 0, 0, 0, 0, 0, 0, 0], b"."]),
        );
    }
    // Numbers and lengths.
    add("LONG4 of -1 bytes", b"\x80\x02\x8b\xff\xff\xff\xff.".to_vec());
    add("LONG4 of 2^31 - 1 bytes", b"\x80\x02\x8b\xff\xff\xff\x7f.".to_vec());
    add("LONG4 of a megabyte", joined(&[b"\x80\x02\x8b\0\0\x10\0", &vec![7; 1 << 20], b"."]));
    add("LONG1 of 255 bytes", joined(&[b"\x80\x02\x8a\xff", &[7; 255], b"."]));
    add("a LONG of a million digits", joined(&[b"L", &vec![b'9'; 1_000_000], b"L\n."]));
    add("a FLOAT of a million digits", joined(&[b"F", &vec![b'9'; 1_000_000], b"\n."]));
    add("BINUNICODE8 of 2^64 - 1", joined(&[b"\x80\x04\x8d", &[0xff; 8], b"."]));
    add("BINBYTES8 of 2^63", joined(&[b"\x80\x04\x8e", &(1_u64 << 63).to_le_bytes(), b"."]));
    add("BINSTRING of -1", b"\x80\x02T\xff\xff\xff\xff.".to_vec());
    add("GET of -1", b"g-1\n.".to_vec());
    add("PUT of 10^30", joined(&[b"Np1", &[b'0'; 30], b"\n."]));
    add("LONG_BINPUT of 10^9, a million times", joined(&[b"N", &b"r\0\xca\x9a\x3b".repeat(1_000_000), b"."]));
    add("a memo of a million", joined(&[b"\x80\x04N", &vec![0x94; 1_000_000], b"."]));
    // False frames.
    add(
        "a frame within a frame",
        joined(&[b"\x80\x04\x95", &20_u64.to_le_bytes(), b"\x95", &1_u64.to_le_bytes(), &[b'N'; 30]]),
    );
    add("a frame that cuts an instruction", joined(&[b"\x80\x04\x95", &3_u64.to_le_bytes(), b"\x8c\x05abcde."]));
    add("a frame of 2^64 - 1", joined(&[b"\x80\x04\x95", &[0xff; 8], b"N."]));
    add("frames without end", joined(&[b"\x80\x04", &joined(&[b"\x95", &0_u64.to_le_bytes()]).repeat(100_000), b"N."]));
    // Depth, 100,000 levels of each.
    let deep = 100_000;
    add("deep tuples", joined(&[b")", &vec![0x85; deep], b"."]));
    add("deep lists", joined(&[&vec![b']'; deep], &vec![b'a'; deep - 1], b"."]));
    add("deep lists by marks", joined(&[&vec![b'('; deep], &vec![b'l'; deep], b"."]));
    add("deep dicts", joined(&[&b"}K\0".repeat(deep), b"N", &vec![b's'; deep], b"."]));
    add(
        "deep OrderedDicts",
        joined(&[b"]", &b"q\0ccollections\nOrderedDict\nh\0K\0\x86\x85\x85R".repeat(deep / 10), b"."]),
    );
    add("deep sets", joined(&[b"N", &b"q\0c__builtin__\nset\nh\0\x85\x85R".repeat(deep / 10), b"."]));
    add("deep dtypes", joined(&[b"S'i8'\n", &b"q\0cnumpy\ndtype\nS'i8'\n\x85Rh\0\x85b".repeat(deep / 10), b"."]));
    add(
        "deep states",
        joined(&[b"N", &b"q\0cpetastorm.codecs\nNdarrayCodec\n)\x81}S'a'\nh\0sb".repeat(deep / 10), b"."]),
    );
    // Bombs.
    add("doubling tuples", joined(&[b")q\0", &b"h\0h\0\x86q\0".repeat(60), b"."]));
    add("doubling tuples, 10,000 times", joined(&[b")q\0", &b"h\0h\0\x86q\0".repeat(10_000), b"."]));
    let mut wide = b"(".to_vec();
    wide.extend(b"K\x01".repeat(100_000));
    add(
        "a list made a set 100,000 times",
        joined(&[&wide, b"lq\0", &b"c__builtin__\nset\nh\0\x85R0".repeat(100_000), b"."]),
    );
    let pairs = joined(&[b"(", &b"NN\x86".repeat(100_000), b"lq\0"]);
    add(
        "pairs made a dict 100,000 times",
        joined(&[&pairs, &b"ccollections\nOrderedDict\nh\0\x85R0".repeat(100_000), b"."]),
    );
    let long = joined(&[b"V", &vec![b'a'; 1 << 20], b"\nq\0"]);
    add("a text encoded 10,000 times", joined(&[&long, &b"c_codecs\nencode\nh\0Vlatin1\n\x86R0".repeat(10_000), b"."]));
    add("a list that holds itself", b"]q\0h\0a.".to_vec());
    add("a list that holds itself a million times", joined(&[b"]q\0(", &b"h\0".repeat(1_000_000), b"e."]));
    add("a dict that holds itself", b"}q\0h\0h\0s.".to_vec());
    add("a state that holds its object", b"cpetastorm.unischema\nUnischema\n)\x81q\0}S'_fields'\nh\0sb.".to_vec());
    add("DUP, five million times", joined(&[b"N", &vec![b'2'; 5_000_000], b"."]));
    add("DUP below a mark", b"N(2.".to_vec());
    add("POP below a mark", b"N(00.".to_vec());
    add("POP of nothing", b"0.".to_vec());
    add("POP_MARK without a mark", b"N1.".to_vec());
    add("TUPLE3 of one", b"N\x87.".to_vec());
    add("TUPLE1 below a mark", b"N(\x85.".to_vec());
    add("SETITEMS of three", b"}(NNNu.".to_vec());
    add("DICT of one", b"(Nd.".to_vec());
    add("nothing but STOP", b".".to_vec());
    add("marks without end", vec![b'('; 1_000_000]);
    // Well-formed pickles that are not schemas.
    let fields = |pairs: &[u8]| {
        let head = "ccopy_reg\n_reconstructor\n(cpetastorm.unischema\nUnischema\nc__builtin__\nobject\nNtR}(S'_name'\nS'n'\n\
                    S'_fields'\nccollections\nOrderedDict\n)R(";
        joined(&[head.as_bytes(), pairs, b"uub."])
    };
    let ok = &b"(S'x'\ncnumpy\nuint8\n)NI00\nt\x81"[..];
    add("the same field twice", fields(&joined(&[b"S'x'\n", field, ok, b"S'x'\n", field, ok])));
    add("a field under another name", fields(&joined(&[b"S'y'\n", field, ok])));
    add("a field that is a tuple", fields(b"S'x'\n(S'x'\nt"));
    let shared = joined(&[b"S'x'\n", field, ok, b"q\0"]);
    add("200,000 fields", fields(&joined(&[&shared, &b"NN".repeat(200_000)])));
    let million: Vec<u8> = (0..1_000_000).flat_map(|n| format!("I{n}\nN").into_bytes()).collect();
    add("a million fields", fields(&million));
    for (name, values) in [
        ("a shape of NaN", &b"cnumpy\nuint8\nFnan\n\x85NI00\n"[..]),
        ("a shape of -1", b"cnumpy\nuint8\nI-1\n\x85NI00\n"),
        ("a shape of text", b"cnumpy\nuint8\nS'3'\n\x85NI00\n"),
        ("a shape that is a number", b"cnumpy\nuint8\nK\x03NI00\n"),
        ("a dtype that is a text", b"S'uint8'\n)NI00\n"),
        ("a dtype that is a codec", b"cpetastorm.codecs\nNdarrayCodec\n)NI00\n"),
        ("a dtype that there is not", b"cnumpy\ndtype\nS'q9'\n\x85R)NI00\n"),
        ("a dtype with a size of a million digits", &joined(&[b"cnumpy\ndtype\nS'i", &vec![b'9'; 1_000_000], b"'\n\x85R)NI00\n"])),
        ("a codec that is a name", b"cnumpy\nuint8\n)cpetastorm.codecs\nNdarrayCodec\nI00\n"),
        ("a scalar codec without a type", b"cnumpy\nuint8\n)cpetastorm.codecs\nScalarCodec\n)\x81I00\n"),
        ("an image codec without a format", b"cnumpy\nuint8\n)cpetastorm.codecs\nCompressedImageCodec\n)\x81I00\n"),
        ("nullable that is a text", b"cnumpy\nuint8\n)NS'yes'\n"),
        ("a decimal of 10^9 digits",
         b"cdecimal\nDecimal\n)cpetastorm.codecs\nScalarCodec\n)\x81}S'_spark_type'\ncpyspark.sql.types\nDecimalType\n)\x81}(S'precision'\n\
           I1000000000\nS'scale'\nI0\nubsbI00\n"),
    ] {
        add(name, one_field(values));
    }
    add("65 axes", one_field(&joined(&[b"cnumpy\nuint8\n(", &b"K\x01".repeat(65), b"tNI00\n"])));
    // Indexes.
    let scalar = |spec: &str, order: &str, data: &[u8]| {
        let head = format!(
            "ccollections\ndefaultdict\n)R(cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'{spec}'\nI0\nI1\ntR(I3\nS'{order}'\n\
             NNNI-1\nI-1\nI0\ntb"
        );
        indexer("SingleFieldIndexer", &joined(&[head.as_bytes(), data, b"tR]K\0au"]))
    };
    add("a scalar of objects", scalar("O8", "|", b"S'12345678'\n"));
    add("a scalar of objects that is None", scalar("O", "|", b"N"));
    add("a scalar of 4 GB", scalar("U1000000000", "<", b"S'abcd'\n"));
    add("a scalar of 2^64 characters", scalar("U18446744073709551615", "<", b"S'abcd'\n"));
    add("a scalar cut off", scalar("i8", "<", b"S'1234567'\n"));
    add("a scalar of 3 bytes", scalar("i3", "<", b"S'123'\n"));
    add("a scalar beyond Unicode", scalar("U1", "<", b"S'\\xff\\xff\\xff\\xff'\n"));
    add("a scalar of a void", scalar("V4", "|", b"S'1234'\n"));
    add("row groups of None", indexer("FieldNotNullIndexer", b"N"));
    add("row groups of -1", indexer("FieldNotNullIndexer", b"]I-1\na"));
    add("row groups of 2^40", indexer("FieldNotNullIndexer", b"]I1099511627776\na"));
    add("row groups of text", indexer("FieldNotNullIndexer", b"]S'1'\na"));
    add("an index of a codec", indexer("SingleFieldIndexer", b"}(cpetastorm.codecs\nNdarrayCodec\n]u"));
    let many = joined(&[b"}(I0\n(", &b"K\x01".repeat(100_000), b"lq\0", &b"Nh\0".repeat(10_000), b"u"]);
    add("one list of row groups for 10,000 values", indexer("SingleFieldIndexer", &many));
    cases
}

#[test]
fn petastorm_hostile_pickles_are_refused() {
    let cases = hostile();
    assert!(cases.len() >= 60, "{}", cases.len());
    let mut slowest = (Duration::ZERO, String::new());
    for (name, bytes) in &cases {
        let start = Instant::now();
        refused(name, bytes);
        slowest = slowest.max((start.elapsed(), name.clone()));
    }
    println!("{} hostile pickles, slowest {slowest:?}", cases.len());
}

#[test]
fn petastorm_frames_of_hostile_cases_are_sound() {
    // The building blocks of the cases above are read when nothing is wrong with them.
    let schema = schema(&one_field(b"cnumpy\nuint8\n(K\x03Nt)cpetastorm.codecs\nNdarrayCodec\n)\x81I01\n"));
    assert!(schema.is_err(), "six values");
    let schema =
        self::schema(&one_field(b"cnumpy\nuint8\n(K\x03Ntcpetastorm.codecs\nNdarrayCodec\n)\x81I01\n")).unwrap();
    assert_eq!(schema.fields[0].shape, [Some(3), None]);
    assert!(schema.fields[0].nullable && schema.fields[0].codec == Some(FieldCodec::Ndarray));
    let dtype = self::schema(&one_field(b"cnumpy\ndtype\nS'<u2'\n\x85R)NN")).unwrap();
    assert_eq!(dtype.fields[0].numpy_dtype, "uint16");
    let found = index(&indexer("FieldNotNullIndexer", b"](K\x05K\x02K\x05e")).unwrap();
    assert_eq!(found[0].kind, IndexKind::FieldNotNull { row_groups: vec![2, 5] });
    for (spec, order, data, value) in [
        ("i2", ">", "\\xff\\xfe", IndexValue::Int(-2)),
        ("u8", "<", "\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff", IndexValue::Uint(u64::MAX)),
        ("f4", "<", "\\x00\\x00\\x80\\x7f", IndexValue::Float(f64::INFINITY)),
        ("b1", "|", "\\x01", IndexValue::Bool(true)),
        ("S4", "|", "ab\\x00\\x00", IndexValue::Bytes(b"ab".to_vec())),
        ("U2", ">", "\\x00\\x01\\xf6\\x00\\x00\\x00\\x00\\x00", IndexValue::Text("\u{1f600}".to_owned())),
    ] {
        let data = format!(
            "ccollections\ndefaultdict\n)R(cnumpy._core.multiarray\nscalar\n(cnumpy\ndtype\n(S'{spec}'\nI0\nI1\ntR(I3\nS'{order}'\n\
             NNNI-1\nI-1\nI0\ntbS'{data}'\ntR]K\x07au"
        );
        let found = index(&indexer("SingleFieldIndexer", data.as_bytes())).unwrap();
        assert_eq!(found[0].kind, IndexKind::SingleField { values: vec![(value, vec![7])] }, "{spec}");
        let json = serde_json::to_string(&found).unwrap();
        assert_eq!(serde_json::from_str::<Vec<RowGroupIndex>>(&json).unwrap(), found);
    }
}

#[test]
fn petastorm_former_package_names_are_read() {
    let bytes = metadata("legacy_0.4.0", UNISCHEMA_KEY).unwrap();
    let text = String::from_utf8(bytes.clone()).unwrap();
    for former in ["av.experimental.deepdrive.dataset_toolkit", "av.ml.dataset_toolkit"] {
        let moved = text.replace("cpetastorm.", &format!("c{former}."));
        assert_ne!(moved, text);
        assert_eq!(schema(moved.as_bytes()).unwrap(), schema(&bytes).unwrap());
    }
}

#[test]
fn petastorm_limits_are_options() {
    let bytes = metadata("legacy_0.7.6", UNISCHEMA_KEY).unwrap();
    let small = Limits { max_pickle_bytes: 2000, ..Limits::default() };
    let error = Unischema::from_pickle(&bytes, &small, &place()).unwrap_err();
    assert!(matches!(error, Error::Limit { option: "limits.max_pickle_bytes", limit: 2000, .. }), "{error}");
    let built = Limits { max_pickle_bytes: bytes.len() as u64, ..Limits::default() };
    assert!(
        matches!(Unischema::from_pickle(&bytes, &built, &place()), Err(Error::Limit { .. })),
        "what it builds counts"
    );
    let few = Limits { max_columns: 16, ..Limits::default() };
    let error = Unischema::from_pickle(&bytes, &few, &place()).unwrap_err();
    assert!(matches!(error, Error::Limit { option: "limits.max_columns", asked: 17, .. }), "{error}");
}

/// Returns every real pickle.
fn real() -> Vec<Vec<u8>> {
    let versions = LEGACY.into_iter().chain(["allcodecs_0.13.1"]);
    versions
        .flat_map(|version| [UNISCHEMA_KEY, ROW_GROUP_INDEX_KEY].map(|key| metadata(version, key).unwrap()))
        .collect()
}

#[test]
fn petastorm_pickles_cut_off_anywhere_are_errors() {
    for bytes in real() {
        // Every place near the end in the soak, otherwise a prime stride that meets every kind of instruction.
        let stride = if std::env::var_os("BOWSTRING_SOAK").is_some() { 1 } else { 7 };
        for end in (0..bytes.len()).rev().step_by(stride) {
            refused("cut off", &bytes[..end]);
        }
    }
}

#[test]
fn petastorm_mutated_pickles_never_panic() {
    let real = real();
    let mut runner = TestRunner::new(Config { cases: soak(1500), failure_persistence: None, ..Config::default() });
    let input = (0..real.len(), any::<prop::sample::Index>(), any::<u8>(), any::<prop::sample::Index>(), any::<u8>());
    let checked = runner.run(&input, |(pickle, at, byte, second, other)| {
        let mut bytes = real[pickle].clone();
        bytes[at.index(real[pickle].len())] = byte;
        if other > 127 {
            bytes[second.index(real[pickle].len())] = other;
        }
        let start = Instant::now();
        if let Ok(schema) = schema(&bytes) {
            let _ = schema.fields.iter().map(UnischemaField::stored).collect::<Vec<_>>();
            prop_assert_eq!(self::schema(&schema.to_pickle().unwrap()).unwrap(), schema);
        }
        if let Ok(found) = index(&bytes) {
            let json = serde_json::to_string(&found).unwrap();
            prop_assert_eq!(serde_json::from_str::<Vec<RowGroupIndex>>(&json).unwrap().len(), found.len());
        }
        prop_assert!(start.elapsed() < HANG);
        Ok(())
    });
    if let Err(error) = checked {
        panic!("{error}\nrepro: the values above");
    }
}
