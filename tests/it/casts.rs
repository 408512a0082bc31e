//! Only `src/schema/cast.rs` converts values to other types, and no module that values pass wraps around.
//!
//! Arrow's own casts truncate and round silently, and by default turn values that do not fit into nulls. The tables below list the
//! files that may still call them, or wrap, with the reasons; a new file needs a deliberate line here.

use super::floors::{code_only, has_word, rust_sources};

/// The files that call Arrow's casts.
const CASTS: &[(&str, &str)] = &[
    ("src/schema/cast.rs", "the one module"),
    ("src/convert/formats/csv.rs", "text to views; other values are shown, not cast"),
    ("src/convert/formats/images.rs", "names of classes and files to text; layout of bytes"),
    ("src/convert/values/sample.rs", "a look at some values; none is delivered"),
    (
        "src/convert/values/unheld.rs",
        "layout of lists and dictionaries, floats to wider ones, keys to text: to look at; none is delivered",
    ),
    ("src/dataset/filter/evaluate.rs", "layout of lists"),
    ("src/dataset/filter/split.rs", "what rows are drawn by; no value is delivered"),
    ("src/dataset/ngram.rs", "times to integers of the same width, floats to wider ones"),
    ("src/dataset/table/sieve.rs", "signed integers and floats to wider ones, to compare bounds; none is delivered"),
];

/// The files in which integers wrap around, in the modules that values pass.
const WRAPS: &[(&str, &str)] = &[
    ("src/codec/image/crop.rs", "a generator of random numbers"),
    ("src/convert/check/digest.rs", "sums of hashes"),
    ("src/convert/job/shuffle.rs", "a generator of random numbers"),
    ("src/convert/formats/tfrecord.rs", "the masked checksum of the format"),
    ("src/dataset/filter/bucket.rs", "the hash of Iceberg's buckets"),
    ("src/dataset/filter/members.rs", "slots of a table of hashes"),
    ("src/dataset/ngram.rs", "the difference of ascending numbers without a sign"),
    ("src/dataset/packed.rs", "differences of numbers, which the same sums take back"),
    ("src/dataset/times.rs", "nanoseconds that wrapped on the way, which the whole seconds beside them put right"),
    ("src/dataset/unit_values.rs", "random numbers of a test"),
    ("src/pipeline/cursor.rs", "the number of an epoch"),
    ("src/pipeline/local.rs", "the number of an epoch"),
    ("src/pipeline/window.rs", "a hash of names"),
];

/// The modules that values pass.
const VALUES: &[&str] =
    &["src/schema", "src/page", "src/tensor.rs", "src/codec", "src/dataset", "src/pipeline", "src/convert"];

/// Returns the code of a file without its tests.
fn code(text: &str) -> String {
    let code = code_only(text);
    let tests = code.find("#[cfg(test)]\nmod ").or_else(|| code.find("#[cfg(all(test"));
    code[..tests.unwrap_or(code.len())].to_owned()
}

/// Returns true if the code imports or calls one of Arrow's casts.
fn casts(code: &str) -> bool {
    let mut rest = code;
    while let Some(at) = rest.find("compute::") {
        rest = &rest[at + "compute::".len()..];
        let end = if rest.starts_with('{') { rest.find('}') } else { rest.find([';', '(', ' ', ',', ')']) };
        if has_word(&rest[..end.unwrap_or(rest.len())], "cast") {
            return true;
        }
    }
    ["cast_with_options", "CastOptions"].iter().any(|word| has_word(code, word))
}

fn unlisted(listed: &[(&str, &str)], wrong: impl Fn(&str) -> bool, under: &[&str]) -> Vec<String> {
    let sources = rust_sources("src");
    assert!(sources.len() > 10, "only {} source files found", sources.len());
    let inside = |path: &str| under.iter().any(|under| path.starts_with(under));
    let found = sources.iter().filter(|(path, text)| inside(path) && wrong(&code(text)));
    found.map(|(path, _)| path.clone()).filter(|path| listed.iter().all(|(own, _)| own != path)).collect()
}

#[test]
fn values_are_cast_in_one_module() {
    let found = unlisted(CASTS, casts, &["src"]);
    assert!(found.is_empty(), "these call Arrow's casts; call crate::schema::cast: {found:?}");
}

#[test]
fn values_do_not_wrap() {
    let wraps = |code: &str| {
        ["wrapping_add", "wrapping_sub", "wrapping_mul", "wrapping_neg", "wrapping_shl"]
            .iter()
            .any(|word| has_word(code, word))
    };
    let found = unlisted(WRAPS, wraps, VALUES);
    assert!(found.is_empty(), "integers wrap around here; check them, or say why in tests/it/casts.rs: {found:?}");
}

#[test]
fn planted_casts_are_found() {
    for planted in [
        "use arrow::compute::cast;",
        "use arrow::compute::{cast, take};",
        "use arrow::compute::{\n    concat,\n    cast,\n};",
        "let x = arrow::compute::cast(a, b);",
        "use arrow::compute::kernels::cast;",
        "let o = CastOptions { safe: true, ..d };",
    ] {
        assert!(casts(planted), "{planted}");
    }
    assert!(!casts("use arrow::compute::take;\nlet x = pointer.cast();"));
    assert!(!casts(&code("fn a() {}\n#[cfg(test)]\nmod tests {\n    use arrow::compute::cast;\n}\n")));
}
