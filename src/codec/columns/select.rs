//! Names, prefixes and globs: the columns that a pattern matches, and the likely intention if it matches none.

use std::collections::BTreeMap;

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

/// Checks that every pattern matches something; `*` may match nothing.
///
/// # Errors
/// [`Error::NotFound`] with the nearest names.
pub(super) fn check<'a>(patterns: impl Iterator<Item = &'a String>, names: &[&str]) -> Result<()> {
    for pattern in patterns {
        if pattern != "*" && !names.iter().any(|name| means(pattern, name)) {
            return Err(not_found(pattern, names));
        }
    }
    Ok(())
}

/// The whole columns of `schema` that `columns` (names or globs; all, if there are none) match, in their order.
///
/// # Errors
/// [`Error::NotFound`] with the nearest names; [`Error::Unsupported`] for a pattern that matches a part of a column.
pub fn roots(schema: &Schema, columns: &[String]) -> Result<Vec<String>> {
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    for pattern in columns {
        let root = pattern.split_once('.').map(|(root, _)| root);
        if root.is_some_and(|root| names.contains(&root)) && !names.contains(&pattern.as_str()) {
            return Err(Error::unsupported(
                format!("{pattern:?}, a part of a column, among stored rows"),
                "name the whole column",
            ));
        }
    }
    check(columns.iter(), &names)?;
    let mut found: Vec<String> = Vec::new();
    let all = ["*".to_owned()];
    for pattern in if columns.is_empty() { all.as_slice() } else { columns } {
        for name in names.iter().filter(|name| means(pattern, name)) {
            if !found.iter().any(|known| known == name) {
                found.push((*name).to_owned());
            }
        }
    }
    Ok(found)
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
    fn the_most_literal_pattern_wins() {
        let map =
            BTreeMap::from([("*".to_owned(), 0), ("a*".to_owned(), 1), ("a.b".to_owned(), 2), ("a".to_owned(), 3)]);
        let of = |name| lookup(&map, name).unwrap();
        assert_eq!([of("z"), of("ax"), of("a.b"), of("a.c")], [(&0, false), (&1, false), (&2, true), (&3, true)]);
    }

    #[test]
    fn the_nearest_names_are_offered() {
        let error = check(["lable".to_owned()].iter(), &["image", "label", "labels", "x"]).unwrap_err();
        assert_eq!(error.to_string(), "column \"lable\" not found; did you mean label or labels?");
        let error = not_found("age", &["user.age", "user.name"]);
        assert_eq!(error.to_string(), "column \"age\" not found; did you mean user.age?");
        assert!(not_found("zzzzzz", &["a", "b"]).to_string().ends_with("the columns are a, b"));
    }
}
