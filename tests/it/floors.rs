//! The house rules that the compiler does not check: floors, purity, the places of `unsafe`, and calls banned in Python.
//!
//! The tables below are the rules; a new module, or a file with `unsafe`, needs a deliberate line here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Every top-level module of the library and its floor. A module names only modules on floors below its own.
const FLOORS: &[(&str, u8)] = &[
    ("cli", 7),
    ("loader", 6),
    ("flight", 5),
    ("convert", 5),
    ("pipeline", 4),
    ("plan", 3),
    ("dataset", 3),
    ("device", 3),
    ("manifest", 2),
    ("page", 2),
    ("tensor", 2),
    ("codec", 3),
    ("schema", 1),
    ("memory", 1),
    ("store", 1),
    ("trace", 1),
    ("document", 1),
    ("error", 0),
    ("figures", 0),
    ("hex", 0),
    ("histogram", 0),
    ("mutex", 0),
    ("nearest", 0),
    ("per_process", 0),
    ("recent", 0),
];

/// Modules that decide and never act: no runtime, no I/O, no clock.
const PURE: &[&str] = &["document", "error", "figures", "hex", "histogram", "schema", "manifest", "plan", "recent"];

/// Names that a pure module must not contain.
const IMPURE: &[&str] = &["tokio", "object_store", "std::fs", "std::net", "std::thread", "Instant", "SystemTime"];

/// All files that contain `unsafe`.
const UNSAFE: &[&str] = &[
    "python/src/arrow.rs",
    "python/src/buffers.rs",
    "python/src/dlpack.rs",
    "python/src/fork.rs",
    "src/codec/image/simd.rs",
    "src/codec/image/turbo.rs",
    "src/device/cuda/decoder.rs",
    "src/device/cuda/driver.rs",
    "src/device/cuda/kernels.rs",
    "src/device/cuda/mod.rs",
    "src/device/cuda/nvjpeg.rs",
    "src/device/cuda/pinned.rs",
    "src/device/cuda/visible.rs",
    "src/device/host.rs",
    "src/device/lease.rs",
    "src/device/traits.rs",
    "src/device/sim.rs",
    "src/device/sim/staging.rs",
    "src/device/slot.rs",
    "src/device/target.rs",
    "src/device/upload.rs",
    "src/flight/shm/fd.rs",
    "src/memory/buffer.rs",
    "src/memory/caching_allocator.rs",
    "src/memory/fresh.rs",
    "src/memory/mapping.rs",
    "src/memory/pages.rs",
    "src/memory/prefetch.rs",
    "src/memory/shared.rs",
    "src/memory/slab_pool.rs",
    "src/page/compact_avx2.rs",
    "src/page/unpack_avx2.rs",
    "src/store/unforked.rs",
];

/// Calls banned in the Python package: data must not run code.
const PYTHON_NEVER: &[&str] = &[
    "import pickle",
    "from pickle",
    "pickle.load",
    "pickle.Unpickler",
    "cloudpickle",
    "allow_pickle",
    "marshal",
    "eval(",
    "exec(",
    "shell=True",
    "os.system",
    "os.popen",
    "__import__(",
];

#[test]
fn modules_name_only_lower_floors() {
    let sources = rust_sources("src");
    let found = floor_violations(&sources, FLOORS);
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(sources.len() > 10, "only {} source files found", sources.len());
}

#[test]
fn every_module_has_a_floor() {
    let root = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let missing: Vec<_> =
        declared_modules(&code_only(&root)).into_iter().filter(|m| floor(FLOORS, m).is_none()).collect();
    assert!(missing.is_empty(), "modules without a floor in tests/it/floors.rs: {missing:?}");
}

#[test]
fn low_floors_have_no_runtime_no_io_no_clock() {
    let found = impurities(&rust_sources("src"));
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn unsafe_lives_in_the_listed_files() {
    let mut sources = rust_sources("src");
    sources.extend(rust_sources("python/src"));
    let found: BTreeSet<&str> = sources
        .iter()
        .filter(|(_, text)| has_word(&code_only(text), "unsafe"))
        .map(|(path, _)| path.as_str())
        .collect();
    let listed: BTreeSet<&str> = UNSAFE.iter().copied().collect();
    assert_eq!(found, listed, "left: files with `unsafe`; right: the list in tests/it/floors.rs");
}

#[test]
fn panics_are_caught_in_one_place() {
    // A second handler would leave "panicked at" on stderr for an error that has a place.
    // The HDFS client panics within a future on bad answers and token files: that panic becomes the error.
    let mut sources = rust_sources("src");
    sources.extend(rust_sources("python/src"));
    sources.retain(|path, _| !path.ends_with("tests.rs"));
    let found: Vec<String> = sources
        .into_iter()
        .filter(|(_, text)| has_word(&code_only(text), "catch_unwind"))
        .map(|(path, _)| path)
        .collect();
    let listed = ["src/page/quiet.rs", "src/store/hdfs/cluster.rs"];
    assert_eq!(found, listed, "left: files that catch panics; others than the right ones call `quiet`");
}

#[test]
fn python_runs_no_data() {
    let sources = sources("python/bowstring", &["py", "pyi"]);
    let found = python_violations(&sources);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

// ---- the rules as functions of (path, text), so that planted violations can be tried on them -----------------------

pub(crate) type Sources = BTreeMap<String, String>;

fn floor(floors: &[(&str, u8)], module: &str) -> Option<u8> {
    floors.iter().find(|(name, _)| *name == module).map(|(_, floor)| *floor)
}

/// Returns the top-level module of a file; `None` for `lib.rs` and the binary, which may name everything.
fn module_of(path: &str) -> Option<&str> {
    let inside = path.strip_prefix("src/")?;
    let first = inside.split('/').next()?;
    let module = first.strip_suffix(".rs").unwrap_or(first);
    (module != "lib" && module != "bin").then_some(module)
}

fn floor_violations(sources: &Sources, floors: &[(&str, u8)]) -> Vec<String> {
    let exported = sources.get("src/lib.rs").map(|text| reexports(&code_only(text))).unwrap_or_default();
    let mut found = Vec::new();
    for (path, text) in sources {
        let Some(own) = module_of(path) else { continue };
        let Some(own_floor) = floor(floors, own) else {
            found.push(format!("{path}: module `{own}` has no floor"));
            continue;
        };
        for name in named(path, &code_only(text), sources) {
            let module = exported.get(&name).map_or(name.as_str(), String::as_str);
            if module == own {
                continue;
            }
            if let Some(floor) = floor(floors, module)
                && floor >= own_floor
            {
                found.push(format!("{path}: `{own}` (floor {own_floor}) names `{module}` (floor {floor})"));
            }
        }
    }
    found
}

fn impurities(sources: &Sources) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in sources {
        if module_of(path).is_some_and(|module| PURE.contains(&module)) {
            // `use std::{fs, io}` is expanded first, so that one search finds both spellings.
            let code = code_only(text);
            let spelled: String =
                code.split_whitespace().collect::<Vec<_>>().join(" ").replace("std::{", "std::{ std::");
            for word in IMPURE {
                if has_word(&spelled, word) {
                    found.push(format!("{path}: a pure module contains `{word}`"));
                }
            }
        }
    }
    found
}

fn python_violations(sources: &Sources) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in sources {
        for (number, line) in text.lines().enumerate() {
            // A module's `.eval()` method (torch) is not the builtin.
            let code = line.split('#').next().unwrap_or_default().replace(".eval(", ".eval_(");
            // Forbidding pickle is allowed.
            let code = code.replace("allow_pickle=False", "");
            for never in PYTHON_NEVER.iter().filter(|never| has_word(&code, never)) {
                found.push(format!("{path}:{}: contains `{never}`", number + 1));
            }
        }
    }
    found
}

// ---- minimal reading of Rust ---------------------------------------------------------------------------------------

/// Blanks out comments and the contents of string and character literals.
pub(crate) fn code_only(text: &str) -> String {
    let bytes: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    let starts = |at: usize, what: &str| bytes[at..].iter().take(what.len()).copied().eq(what.chars());
    while at < bytes.len() {
        if starts(at, "//") {
            while at < bytes.len() && bytes[at] != '\n' {
                at += 1;
            }
        } else if starts(at, "/*") {
            let mut depth = 0;
            while at < bytes.len() {
                if starts(at, "/*") {
                    (depth, at) = (depth + 1, at + 2);
                } else if starts(at, "*/") {
                    (depth, at) = (depth - 1, at + 2);
                    if depth == 0 {
                        break;
                    }
                } else {
                    at += 1;
                }
            }
        } else if bytes[at] == 'r' && !out.ends_with(is_word) && raw_hashes(&bytes[at + 1..]).is_some() {
            let hashes = raw_hashes(&bytes[at + 1..]).unwrap();
            let end = format!("\"{}", "#".repeat(hashes));
            at += hashes + 2;
            while at < bytes.len() && !starts(at, &end) {
                at += 1;
            }
            at += end.len();
            out.push_str("\"\"");
        } else if bytes[at] == '"' {
            at += 1;
            while at < bytes.len() && bytes[at] != '"' {
                at += if bytes[at] == '\\' { 2 } else { 1 };
            }
            at += 1;
            out.push_str("\"\"");
        } else if bytes[at] == '\'' && bytes.get(at + 1) == Some(&'\\') {
            at += 3;
            while at < bytes.len() && bytes[at] != '\'' {
                at += 1;
            }
            at += 1;
        } else if bytes[at] == '\'' && bytes.get(at + 2) == Some(&'\'') {
            at += 3;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    out
}

/// Returns the number of hashes if a raw string's `#..#"` starts here.
fn raw_hashes(rest: &[char]) -> Option<usize> {
    let hashes = rest.iter().take_while(|c| **c == '#').count();
    (rest.get(hashes) == Some(&'"')).then_some(hashes)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns true if `code` contains `what`, not as a part of a longer word.
pub(crate) fn has_word(code: &str, what: &str) -> bool {
    code.match_indices(what).any(|(at, _)| {
        let before = code[..at].chars().next_back().is_some_and(is_word);
        let after = code[at + what.len()..].chars().next().is_some_and(is_word) && what.ends_with(is_word);
        !before && !after
    })
}

/// Returns the first names after `crate::`, `bowstring::` and `super::`: `crate::{a::B, c}` gives `a` and `c`. A sibling file of `path`
/// with the name of a top-level module does not count as that module.
fn named(path: &str, code: &str, sources: &Sources) -> BTreeSet<String> {
    let after = |start: &str| {
        let found = code.match_indices(start).filter(|(at, _)| !code[..*at].chars().next_back().is_some_and(is_word));
        found.flat_map(|(at, _)| heads(&code[at + start.len()..])).collect::<BTreeSet<String>>()
    };
    let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
    let beside = |name: &String| {
        let exists = |file: String| sources.contains_key(&file);
        parent != "src" && (exists(format!("{parent}/{name}.rs")) || exists(format!("{parent}/{name}/mod.rs")))
    };
    let mut names: BTreeSet<String> = after("super::").into_iter().filter(|name| !beside(name)).collect();
    names.extend(after("crate::"));
    names.extend(after("bowstring::"));
    names
}

/// Returns the first path segments at the start of `rest`, of each member in a brace group.
fn heads(rest: &str) -> Vec<String> {
    let rest = rest.trim_start();
    let word = |text: &str| text.trim_start().chars().take_while(|c| is_word(*c)).collect::<String>();
    let Some(group) = rest.strip_prefix('{') else { return vec![word(rest)] };
    let (mut depth, mut start, mut found) = (0usize, 0, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                found.push(word(&group[start..at]));
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    found
}

/// Returns the root exports of `lib.rs` with their modules: `pub use error::{Error, Result};`.
fn reexports(code: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for (at, start) in code.match_indices("pub use ") {
        let statement = code[at + start.len()..].split(';').next().unwrap_or_default();
        let path = statement.trim().trim_start_matches("crate::");
        let module: String = path.chars().take_while(|c| is_word(*c)).collect();
        for name in path[module.len()..].split(|c| !is_word(c)).filter(|name| !name.is_empty()) {
            found.insert(name.to_owned(), module.clone());
        }
    }
    found
}

fn declared_modules(code: &str) -> Vec<String> {
    let lines = code.lines().map(str::trim);
    let names = lines.filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';'));
    names.map(str::to_owned).collect()
}

// ---- files ---------------------------------------------------------------------------------------------------------

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn rust_sources(under: &str) -> Sources {
    sources(under, &["rs"])
}

pub(crate) fn sources(under: &str, extensions: &[&str]) -> Sources {
    fn walk(directory: &Path, extensions: &[&str], found: &mut Sources) {
        for entry in fs::read_dir(directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display())) {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, extensions, found);
            } else if path.extension().is_some_and(|e| extensions.iter().any(|wanted| e == *wanted)) {
                let name = path.strip_prefix(root()).unwrap().to_string_lossy().replace('\\', "/");
                found.insert(name, fs::read_to_string(&path).unwrap());
            }
        }
    }
    let mut found = Sources::new();
    walk(&root().join(under), extensions, &mut found);
    found
}

// ---- planted violations are found ----------------------------------------------------------------------------------

#[cfg(test)]
mod planted {
    use super::*;

    fn one(path: &str, text: &str) -> Sources {
        let lib = ("src/lib.rs".to_owned(), "pub use error::{Error, Result}; pub use pipeline::Loader;".to_owned());
        Sources::from([lib, (path.to_owned(), text.to_owned())])
    }

    #[test]
    fn upward_paths_are_found_in_every_spelling() {
        for text in [
            "use crate::pipeline::Loader;",
            "use crate::{error::Error, pipeline::{Loader, Stats}};",
            "use crate::{\n    dataset,\n    error,\n};",
            "fn f() { crate::dataset::open() }",
            "use crate::Loader;",
            "use super::pipeline;",
            "use bowstring::plan::Plan;",
        ] {
            let found = floor_violations(&one("src/tensor.rs", text), FLOORS);
            assert_eq!(found.len(), 1, "{text}: {found:?}");
        }
    }

    #[test]
    fn modules_of_one_floor_do_not_name_each_other() {
        assert_eq!(floor_violations(&one("src/dataset/read.rs", "use crate::plan::Plan;"), FLOORS).len(), 1);
    }

    #[test]
    fn downward_paths_comments_and_strings_are_not_violations() {
        for text in [
            "use crate::{Error, memory::Pool, schema};",
            "use crate::tensor::Tensor; use super::*;",
            "/// See [`crate::pipeline::Loader`].\nfn f() {}",
            "/* crate::pipeline /* nested */ crate::plan */",
            r##"const A: &str = "crate::pipeline"; const B: &str = r#"a " crate::pipeline"#; const C: char = '"';"##,
        ] {
            let found = floor_violations(&one("src/tensor.rs", text), FLOORS);
            assert!(found.is_empty(), "{text}: {found:?}");
        }
    }

    #[test]
    fn a_module_without_a_floor_is_found() {
        assert_eq!(floor_violations(&one("src/helpers.rs", ""), FLOORS).len(), 1);
        assert_eq!(declared_modules("pub mod plan;\nmod helpers;\npub mod inline { }"), ["plan", "helpers"]);
    }

    #[test]
    fn impurities_are_found() {
        for text in [
            "use tokio::sync::Mutex;",
            "use std::time::Instant;",
            "use std::{fs, path::Path};",
            "fn f() { std::fs::read(p) }",
            "let t = SystemTime::now();",
            "use object_store::path::Path;",
        ] {
            assert_eq!(impurities(&one("src/plan/mod.rs", text)).len(), 1, "{text}");
            assert!(impurities(&one("src/dataset/mod.rs", text)).is_empty(), "{text}");
        }
        assert!(impurities(&one("src/plan/mod.rs", "// tokio\nlet tokio_free = 1; use std::{fmt, cmp};")).is_empty());
    }

    #[test]
    fn unsafe_is_a_word_not_a_part_of_one() {
        assert!(has_word(&code_only("unsafe { f() }"), "unsafe"));
        assert!(!has_word(&code_only("#![expect(unsafe_code)] // unsafe\nlet s = \"unsafe\";"), "unsafe"));
    }

    #[test]
    fn python_that_runs_data_is_found() {
        for text in ["import pickle", "x = eval(s)", "run(cmd, shell=True)", "numpy.load(f, allow_pickle=True)"] {
            assert_eq!(python_violations(&one("python/bowstring/x.py", text)).len(), 1, "{text}");
        }
        assert!(python_violations(&one("python/bowstring/x.py", "model.eval()  # no pickle\nretrieval(x)")).is_empty());
    }
}
