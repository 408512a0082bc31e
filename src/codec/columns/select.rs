//! Names, prefixes and globs: the columns that a pattern matches, and the likely intention if it matches none.

use std::collections::{BTreeMap, BTreeSet};

use arrow::datatypes::Schema;

use crate::error::{Error, Result};
use crate::nearest::distance;

/// Returns true if `pattern` is a glob.
pub(super) fn is_glob(pattern: &str) -> bool {
    pattern.contains(['*', '?'])
}

/// Returns true if `pattern` matches the column `name`: as the name itself, a dotted prefix of it, or a glob.
pub fn means(pattern: &str, name: &str) -> bool {
    let below = || name.strip_prefix(pattern).is_some_and(|rest| rest.starts_with('.'));
    pattern == name || below() || is_glob(pattern) && glob(pattern, name)
}

/// `*` is any run of characters, `?` any one. Linear in practice: only the last star is ever tried again.
fn glob(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == '?' || *c == name[n] => (p, n) = (p + 1, n + 1),
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    (p, n) = (at + 1, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// Names of columns as patterns find them: as many may be given by name, so a name is looked up, and only globs walk all of them.
pub(super) struct Names<'a> {
    names: Vec<&'a str>,
    /// Their numbers, by name; what lies below a column is a run of them.
    sorted: Vec<usize>,
}

impl<'a> Names<'a> {
    pub(super) fn new(names: Vec<&'a str>) -> Self {
        let mut sorted: Vec<usize> = (0..names.len()).collect();
        // Equal names stay in their order.
        sorted.sort_by_key(|at| names[*at]);
        Self { names, sorted }
    }

    /// The numbers of the columns that `pattern` [means], ascending.
    pub(super) fn meant(&self, pattern: &str) -> Vec<usize> {
        if is_glob(pattern) {
            return (0..self.names.len()).filter(|at| means(pattern, self.names[*at])).collect();
        }
        let below = format!("{pattern}.");
        let exact = self.run(pattern, |name| name == pattern);
        let mut meant: Vec<usize> = exact.chain(self.run(&below, |name| name.starts_with(&below))).collect();
        meant.sort_unstable();
        meant
    }

    /// The numbers of the names from `first` on, by name, as long as they are `wanted`.
    fn run(&self, first: &str, wanted: impl Fn(&str) -> bool) -> impl Iterator<Item = usize> {
        let start = self.sorted.partition_point(|at| self.names[*at] < first);
        self.sorted[start..].iter().copied().take_while(move |at| wanted(self.names[*at]))
    }

    /// For each column, whether any of `patterns` means it.
    pub(super) fn marked(&self, patterns: &[String]) -> Vec<bool> {
        let mut marked = vec![false; self.names.len()];
        patterns.iter().flat_map(|pattern| self.meant(pattern)).for_each(|at| marked[at] = true);
        marked
    }

    /// Checks that every pattern matches something; `*` may match nothing.
    ///
    /// # Errors
    /// [`Error::NotFound`] with the nearest names.
    pub(super) fn check<'p>(&self, mut patterns: impl Iterator<Item = &'p String>) -> Result<()> {
        match patterns.find(|pattern| *pattern != "*" && self.meant(pattern).is_empty()) {
            Some(pattern) => Err(not_found(pattern, &self.names)),
            None => Ok(()),
        }
    }
}

/// The entry for `name`: the exact one, otherwise the one whose pattern has the most literal characters (a prefix
/// before a glob). The flag is true if the entry names the column rather than matching it by a glob.
pub(super) fn lookup<'a, T>(map: &'a BTreeMap<String, T>, name: &str) -> Option<(&'a T, bool)> {
    if let Some(exact) = map.get(name) {
        return Some((exact, true));
    }
    let literal = |pattern: &str| pattern.chars().filter(|c| !matches!(c, '*' | '?')).count();
    let matching = map.iter().filter(|(pattern, _)| means(pattern, name));
    matching
        .max_by_key(|(pattern, _)| (literal(pattern), !is_glob(pattern)))
        .map(|(pattern, value)| (value, !is_glob(pattern)))
}

/// The whole columns of `schema` that `columns` (names or globs; all, if there are none) match, in their order.
///
/// # Errors
/// [`Error::NotFound`] with the nearest names; [`Error::Unsupported`] for a pattern that matches a part of a column.
pub fn roots(schema: &Schema, columns: &[String]) -> Result<Vec<String>> {
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    let known: BTreeSet<&str> = names.iter().copied().collect();
    for pattern in columns {
        let root = pattern.split_once('.').map(|(root, _)| root);
        if root.is_some_and(|root| known.contains(root)) && !known.contains(pattern.as_str()) {
            return Err(Error::unsupported(
                format!("{pattern:?}, a part of a column, among stored rows"),
                "name the whole column",
            ));
        }
    }
    let names = Names::new(names);
    names.check(columns.iter())?;
    let all = ["*".to_owned()];
    let patterns = if columns.is_empty() { all.as_slice() } else { columns };
    let meant = patterns.iter().flat_map(|pattern| names.meant(pattern)).map(|at| schema.field(at).name());
    let mut found = BTreeSet::new();
    Ok(meant.filter(|name| found.insert(*name)).cloned().collect())
}

/// The error that nothing is called `pattern`, with the nearest names.
pub(super) fn not_found(pattern: &str, names: &[&str]) -> Error {
    let what = if is_glob(pattern) { format!("column matching {pattern:?}") } else { format!("column {pattern:?}") };
    let near = nearest(pattern, names);
    let hint = if near.is_empty() {
        let (shown, more) = names.split_at(names.len().min(8));
        format!("the columns are {}{}", shown.join(", "), if more.is_empty() { "" } else { ", ..." })
    } else {
        format!("did you mean {}?", near.join(" or "))
    };
    Error::NotFound { what, hint }
}

/// Up to three names within half of the name's length in edits, nearest first.
fn nearest<'a>(wanted: &str, names: &[&'a str]) -> Vec<&'a str> {
    let wanted = wanted.replace(['*', '?'], "").to_lowercase();
    let letters = wanted.chars().count();
    let limit = letters.div_ceil(2).clamp(1, 8);
    let edits = |name: &str| distance(&wanted, &name.to_lowercase());
    let mut near: Vec<(usize, &str)> = names
        .iter()
        // A hostile schema may have names of any length; the intended name has about the length of the written one.
        .filter(|name| name.len() <= 4 * (letters + limit))
        .map(|name| {
            let last = name.rsplit('.').next().unwrap_or(name);
            (edits(name).min(edits(last) + usize::from(last.len() != name.len())), *name)
        })
        .filter(|(far, _)| *far <= limit)
        .collect();
    near.sort();
    near.into_iter().take(3).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use arrow::datatypes::DataType;

    use super::*;

    #[test]
    fn patterns_mean_names_prefixes_and_globs() {
        for (pattern, name, expected) in [
            ("a", "a", true),
            ("a", "a.b", true),
            ("a", "ab", false),
            ("a.*", "a.b.c", true),
            ("*b", "a.b", true),
            ("i?", "i1", true),
            ("i?", "i12", false),
            ("*a*b*", "xaxxbxb", true),
            ("*a*b", "xaxxbxc", false),
            ("*", "", true),
        ] {
            assert_eq!(means(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn names_are_found_as_a_walk_over_all_of_them_finds_them() {
        let names = ["b", "a.b", "a", "a!", "a.", "a.b.c", "ab", "a", "a/", "", ".x", "a.b", "z*"];
        let found = Names::new(names.to_vec());
        for pattern in ["a", "a.b", "a.", "b", "", ".", "x", "a*", "*", "?", "a.b.c", "z*", "ab.c"] {
            let walked: Vec<usize> = (0..names.len()).filter(|at| means(pattern, names[*at])).collect();
            assert_eq!(found.meant(pattern), walked, "{pattern:?}");
        }
        let marked = found.marked(&["b".to_owned(), "a.*".to_owned()]);
        let walked = names.map(|name| means("b", name) || means("a.*", name));
        assert_eq!(marked, walked);
    }

    #[test]
    fn many_columns_given_by_name_are_not_compared_with_each_other() {
        // Hundreds of millions of comparisons, if they were.
        let fields: Vec<_> = (0..30_000)
            .map(|at| arrow::datatypes::Field::new(format!("feature_{at:05}"), DataType::Int8, true))
            .collect();
        let schema = Schema::new(fields);
        let names: Vec<String> = schema.fields().iter().rev().map(|field| field.name().clone()).collect();
        let started = Instant::now();
        assert_eq!(roots(&schema, &names).unwrap(), names);
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    }

    #[test]
    fn the_most_literal_pattern_wins() {
        let map =
            BTreeMap::from([("*".to_owned(), 0), ("a*".to_owned(), 1), ("a.b".to_owned(), 2), ("a".to_owned(), 3)]);
        let of = |name| lookup(&map, name).unwrap();
        assert_eq!([of("z"), of("ax"), of("a.b"), of("a.c")], [(&0, false), (&1, false), (&2, true), (&3, true)]);
    }

    #[test]
    fn the_nearest_names_are_offered() {
        let names = Names::new(vec!["image", "label", "labels", "x"]);
        let error = names.check(["lable".to_owned()].iter()).unwrap_err();
        assert_eq!(error.to_string(), "column \"lable\" not found; did you mean label or labels?");
        let error = not_found("age", &["user.age", "user.name"]);
        assert_eq!(error.to_string(), "column \"age\" not found; did you mean user.age?");
        assert!(not_found("zzzzzz", &["a", "b"]).to_string().ends_with("the columns are a, b"));
    }
}
