//! No file of the library imports one that imports it, directly or through others: such files can only be read, moved and tested together.
//!
//! An import is a `use`, or a path that begins with `crate::`, `super::`, `self::` or the name of a module below. A re-exported name
//! counts as an import of the file that defines it. A module's own file may name those below it (`mod`, `pub use`): that is its face,
//! not an import. Tests may import anything.

use std::collections::{BTreeMap, BTreeSet};

use super::floors::{Sources, code_only, rust_sources};

/// Files that belong together by nature, each group with its reason. A group without a circle must leave the list.
const ONE_THING: &[(&str, &[&str])] = &[
    ("an attempt is noted by the staging that runs it", &["src/flight/put/attempt.rs", "src/flight/put/staging.rs"]),
    ("a buffer gives back to its pool what it took of it", &["src/memory/buffer.rs", "src/memory/pool.rs"]),
];

#[test]
fn files_import_each_other_in_circles_only_if_listed() {
    let found = circles(&rust_sources("src"));
    let allowed: Vec<BTreeSet<&str>> = ONE_THING.iter().map(|(_, files)| files.iter().copied().collect()).collect();
    let mut problems = Vec::new();
    for circle in &found {
        let files: BTreeSet<&str> = circle.iter().map(|(file, _)| file.as_str()).collect();
        if !allowed.iter().any(|group| files.is_subset(group)) {
            let arrow = |(file, others): &(String, Vec<String>)| format!("  {file} imports {}", others.join(", "));
            problems.push(format!("a circle:\n{}", circle.iter().map(arrow).collect::<Vec<_>>().join("\n")));
        }
    }
    let circling: BTreeSet<&str> = found.iter().flatten().map(|(file, _)| file.as_str()).collect();
    for file in allowed.iter().flatten().filter(|file| !circling.contains(*file)) {
        problems.push(format!("{file} is in no circle any more: take it out of the list in tests/it/circles.rs"));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

// ---- the rule as a function of (path, text) --------------------------------------------------------------------------

/// A file, and those of its circle that it imports.
type Member = (String, Vec<String>);

/// Finds the circles among `sources`.
fn circles(sources: &Sources) -> Vec<Vec<Member>> {
    let crates = Crate::read(sources);
    let imports: BTreeMap<&str, BTreeSet<&str>> =
        crates.files.keys().map(|path| (*path, crates.imports(path))).collect();
    let reach = |from: &str| {
        let (mut seen, mut left) = (BTreeSet::new(), vec![from]);
        while let Some(at) = left.pop() {
            for next in imports.get(at).into_iter().flatten().filter(|next| seen.insert(**next)).collect::<Vec<_>>() {
                left.push(next);
            }
        }
        seen
    };
    let reached: BTreeMap<&str, BTreeSet<&str>> = imports.keys().map(|path| (*path, reach(path))).collect();
    let mut done = BTreeSet::new();
    let mut found = Vec::new();
    for (path, below) in &reached {
        if !below.contains(path) || done.contains(path) {
            continue;
        }
        let circle: BTreeSet<&str> = below.iter().copied().filter(|other| reached[other].contains(path)).collect();
        done.extend(circle.iter().copied());
        let own = |file: &&str| imports[file].intersection(&circle).map(|other| (*other).to_owned()).collect();
        found.push(circle.iter().map(|file| ((*file).to_owned(), own(file))).collect());
    }
    found
}

/// A path of modules, from the crate's root.
type Module = Vec<String>;

struct Crate<'a> {
    /// The code of each file without its tests.
    files: BTreeMap<&'a str, String>,
    modules: BTreeMap<Module, &'a str>,
    /// Re-exports of each file: name and original path.
    exports: BTreeMap<&'a str, BTreeMap<String, Vec<String>>>,
}

impl<'a> Crate<'a> {
    fn read(sources: &'a Sources) -> Self {
        let own = sources.iter().filter(|(path, _)| !path.starts_with("src/bin/") && *path != "src/lib.rs");
        let files: BTreeMap<&str, String> =
            own.map(|(path, text)| (path.as_str(), without_tests(&code_only(text)))).collect();
        let modules = files.keys().map(|path| (module(path), *path)).collect();
        let exports = |code: &String| {
            let shown = uses(code).into_iter().filter(|(public, _)| *public);
            shown.filter_map(|(_, path)| Some((path.last()?.clone(), path))).collect()
        };
        let exports = files.iter().map(|(path, code)| (*path, exports(code))).collect();
        Self { files, modules, exports }
    }

    /// Returns the files that `path` imports.
    fn imports(&self, path: &'a str) -> BTreeSet<&'a str> {
        let (own, code) = (module(path), &self.files[path]);
        let face = self.modules.keys().any(|other| other.len() > own.len() && other.starts_with(&own));
        let mut paths: Vec<Vec<String>> =
            uses(code).into_iter().filter(|(public, _)| !(*public && face)).map(|(_, path)| path).collect();
        paths.extend(plain_paths(code));
        let found = paths.iter().filter_map(|path| self.file(&own, path, 0));
        found.filter(|other| *other != path).collect()
    }

    /// Returns the file that defines `path` as named in module `own`.
    fn file(&self, own: &[String], path: &[String], depth: usize) -> Option<&'a str> {
        let (first, rest) = path.split_first()?;
        let (mut at, mut rest) = match first.as_str() {
            "crate" => (Vec::new(), rest),
            "self" => (own.to_vec(), rest),
            "super" => (own.to_vec(), path),
            _ if self.modules.contains_key(&join(own, first)) => (own.to_vec(), path),
            _ => return None,
        };
        while let Some((_, further)) = rest.split_first().filter(|(first, _)| *first == "super") {
            at.pop();
            rest = further;
        }
        while let Some((first, further)) = rest.split_first() {
            let below = join(&at, first);
            if !self.modules.contains_key(&below) {
                break;
            }
            (at, rest) = (below, further);
        }
        let file = self.modules.get(&at)?;
        let again = rest.first().and_then(|name| self.exports.get(file)?.get(name));
        match again {
            Some(path) if depth < 8 => self.file(&at, path, depth + 1).or(Some(file)),
            _ => Some(file),
        }
    }
}

fn join(module: &[String], name: &str) -> Module {
    module.iter().cloned().chain([name.to_owned()]).collect()
}

fn module(path: &str) -> Module {
    let inside = path.trim_start_matches("src/").trim_end_matches(".rs");
    inside.trim_end_matches("/mod").split('/').map(str::to_owned).collect()
}

/// Returns the code before the first module of tests, which is the last item of a file.
fn without_tests(code: &str) -> String {
    code.split("#[cfg(test)]\nmod ").next().unwrap_or_default().to_owned()
}

/// Returns the paths of all `use` declarations; true marks re-exports.
fn uses(code: &str) -> Vec<(bool, Vec<String>)> {
    let mut found = Vec::new();
    for line in statements(code) {
        let Some((public, tree)) = as_use(&line) else { continue };
        found.extend(branches(tree).into_iter().map(|path| (public, path)));
    }
    found
}

/// Returns the path of a line that begins a `use` declaration; true marks a re-export.
fn as_use(line: &str) -> Option<(bool, &str)> {
    let (before, tree) = line.trim_start().split_once("use ")?;
    let before = before.trim_end();
    (before.is_empty() || before == "pub" || before.starts_with("pub(") && before.ends_with(')'))
        .then_some((!before.is_empty(), tree))
}

/// Returns the `use` declarations, each on one line.
fn statements(code: &str) -> Vec<String> {
    let (mut found, mut own, mut within) = (Vec::new(), String::new(), false);
    for line in code.lines() {
        within |= as_use(line).is_some();
        if within {
            own.push_str(line);
            own.push(' ');
            if line.trim_end().ends_with(';') {
                found.push(std::mem::take(&mut own).trim().trim_end_matches(';').to_owned());
                within = false;
            }
        }
    }
    found
}

/// Expands `a::{b, c::D}` to `a::b` and `a::c::D`.
fn branches(tree: &str) -> Vec<Vec<String>> {
    let tree = tree.trim();
    let word = |text: &str| text.split(" as ").next().unwrap_or_default().trim().to_owned();
    let Some((head, body)) = tree.split_once('{') else {
        return vec![tree.split("::").map(word).filter(|word| !word.is_empty()).collect()];
    };
    let head: Vec<String> = head.split("::").map(word).filter(|word| !word.is_empty()).collect();
    let body = body.rsplit_once('}').map_or(body, |(body, _)| body);
    let (mut parts, mut depth, mut start) = (Vec::new(), 0_usize, 0);
    for (at, c) in body.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&body[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&body[start..]);
    let below = parts.into_iter().filter(|part| !part.trim().is_empty()).flat_map(branches);
    below.map(|path| head.iter().cloned().chain(path.into_iter().filter(|word| word != "self")).collect()).collect()
}

/// Returns the paths outside `use`: every run of words joined by `::`.
fn plain_paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut within = false;
    for line in code.lines() {
        within |= as_use(line).is_some();
        if within {
            within = !line.trim_end().ends_with(';');
            continue;
        }
        let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        for text in line.split(|c| !is_path(c)).filter(|text| text.contains("::")) {
            let path: Vec<String> = text.split("::").filter(|word| !word.is_empty()).map(str::to_owned).collect();
            // `Vec::<u8>` and `::std::io` contain nothing of ours.
            if path.len() > 1 && !text.starts_with(':') {
                found.push(path);
            }
        }
    }
    found
}

#[cfg(test)]
mod planted {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let sources: Sources = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        circles(&sources).into_iter().map(|circle| circle.into_iter().map(|(file, _)| file).collect()).collect()
    }

    #[test]
    fn circles_are_found_in_every_spelling() {
        for back in [
            "use super::a::A;",
            "use crate::room::a::A;",
            "use crate::{room::{a::{self, A}}, error};",
            "use super::{\n    a,\n    c,\n};",
            "pub(crate) use super::a::A;",
            "fn f() { super::a::g() }",
            "fn f() -> crate::room::a::A { todo() }",
            "use crate::room::A;",
            "use super::c::A;",
        ] {
            let files = [
                ("src/room/mod.rs", "mod a; mod b; mod c;\npub use a::A;"),
                ("src/room/a.rs", "use super::b::B;\npub struct A;"),
                ("src/room/b.rs", back),
                ("src/room/c.rs", "pub use super::a::A;"),
            ];
            let circles = found(&files);
            let both = circles.iter().any(|circle| {
                ["src/room/a.rs", "src/room/b.rs"].iter().all(|file| circle.iter().any(|other| other == file))
            });
            assert!(both, "{back}: {circles:?}");
        }
    }

    #[test]
    fn an_indirect_circle_is_found() {
        let files = [
            ("src/room/mod.rs", "mod a; mod b; mod c;"),
            ("src/room/a.rs", "use super::b::B;"),
            ("src/room/b.rs", "use super::c::C;"),
            ("src/room/c.rs", "use crate::hall::D;"),
            ("src/hall.rs", "use crate::room::a::A;"),
        ];
        assert_eq!(found(&files), [["src/hall.rs", "src/room/a.rs", "src/room/b.rs", "src/room/c.rs"]]);
    }

    #[test]
    fn faces_tests_comments_and_strings_are_not_imports() {
        let files = [
            ("src/room/mod.rs", "mod a; mod b;\npub use self::a::A;\npub struct Base;"),
            ("src/room/a.rs", "use super::Base;\nuse super::b::B;\n"),
            (
                "src/room/b.rs",
                "// use super::a::A;\nconst A: &str = \"super::a::A\";\n#[cfg(test)]\nmod tests {\n    use super::super::a::A;\n}\n",
            ),
        ];
        assert!(found(&files).is_empty(), "{:?}", found(&files));
    }
}
