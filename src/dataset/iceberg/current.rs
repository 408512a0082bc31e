//! The choice of a table's current file of metadata, by the names in its directory.
//!
//! ```text
//!   v7.metadata.json, and 7 in version-hint.text     tables without a catalog: the hint, or a later one that follows it without a gap
//!   00007-<uuid>.metadata.json                       tables of a catalog, which alone knows for sure: the highest number
//! ```
//!
//! A commit that fails may leave a file of the second kind behind, of the number that the next one takes: then nobody can tell.

/// The file whose text is the number of a version.
pub(super) const HINT: &str = "version-hint.text";

/// Reason why no file is the current one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// There is none at all.
    None,
    /// The hint is not a number.
    Hint,
    /// The hint's file is not there.
    Missing { version: u64 },
    /// Either may be.
    Several { first: String, second: String },
}

/// The number of a file of metadata, and whether a catalog has it.
fn number(name: &str) -> Option<(bool, u64)> {
    let name = name.strip_suffix(".metadata.json.gz").or_else(|| name.strip_suffix(".metadata.json"))?;
    let name = name.strip_suffix(".gz").unwrap_or(name);
    let (text, own) = match (name.strip_prefix('v'), name.split_once('-')) {
        (Some(number), _) => (number, false),
        (None, Some((number, _))) => (number, true),
        (None, None) => return None,
    };
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten().map(|number| (own, number))
}

/// The current one of `names`, with what the hint says, if there is one.
pub(super) fn current<'a>(names: impl Iterator<Item = &'a str>, hint: Option<&str>) -> Result<&'a str, Why> {
    let mut found: Vec<((bool, u64), &str)> = names.filter_map(|name| Some((number(name)?, name))).collect();
    found.sort_unstable();
    let of = |own: bool, version: u64| {
        let mut of = found.iter().filter(move |((kind, number), _)| (*kind, *number) == (own, version));
        (of.next().map(|(_, name)| *name), of.next().map(|(_, name)| *name))
    };
    let (own, version) = match hint.map(str::trim) {
        Some(hint) => {
            let mut version: u64 = hint.parse().map_err(|_| Why::Hint)?;
            if of(false, version).0.is_none() {
                return Err(Why::Missing { version });
            }
            // A table that a catalog took over keeps its hint, which nobody changes any more.
            if let Some((_, own)) = found.iter().rev().find(|((own, _), _)| *own) {
                let hinted = of(false, version).0.unwrap_or_default();
                return Err(Why::Several { first: hinted.to_owned(), second: (*own).to_owned() });
            }
            while let Some(next) = version.checked_add(1).filter(|next| of(false, *next).0.is_some()) {
                version = next;
            }
            (false, version)
        }
        None => {
            let ((own, version), name) = *found.last().ok_or(Why::None)?;
            if let Some((_, other)) = found.iter().find(|((kind, _), _)| *kind != own) {
                return Err(Why::Several { first: (*other).to_owned(), second: name.to_owned() });
            }
            (own, version)
        }
    };
    match of(own, version) {
        (Some(first), Some(second)) => Err(Why::Several { first: first.to_owned(), second: second.to_owned() }),
        (first, _) => first.ok_or(Why::None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_or_the_highest_number_counts() {
        let of = |names: &[&'static str], hint| current(names.iter().copied(), hint);
        let versions = ["v1.metadata.json", "v10.gz.metadata.json", "v9.metadata.json", "v2.metadata.json", "x.avro"];
        assert_eq!(of(&versions, Some("9\n")), Ok("v10.gz.metadata.json"));
        assert_eq!(of(&versions, Some("1")), Ok("v2.metadata.json"));
        assert_eq!(of(&versions, None), Ok("v10.gz.metadata.json"));
        assert_eq!(of(&versions, Some("3")), Err(Why::Missing { version: 3 }));
        assert_eq!(of(&versions, Some("../x")), Err(Why::Hint));
        let catalog = ["00002-b.metadata.json", "00010-a.metadata.json.gz", "00009-c.metadata.json"];
        assert_eq!(of(&catalog, None), Ok("00010-a.metadata.json.gz"));
        assert_eq!(of(&["a.metadata.json", "v.metadata.json", "-x.metadata.json"], None), Err(Why::None));
        let twice = ["00002-b.metadata.json", "00002-a.metadata.json"];
        assert!(matches!(of(&twice, None), Err(Why::Several { .. })));
        let both = ["00002-b.metadata.json", "v1.metadata.json"];
        assert!(matches!(of(&both, None), Err(Why::Several { .. })));
        assert!(matches!(of(&both, Some("1")), Err(Why::Several { .. })));
    }
}
