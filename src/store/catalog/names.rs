//! Names of tables in catalogs: parts that are joined by dots, as each scheme has them.
//!
//! A part may be percent-encoded; `%2E` is a dot within one. No part is empty, and none has a slash.

use std::ops::RangeInclusive;

use object_store::path::Path;

use crate::error::{Error, Result};
use crate::store::display::display;

/// The form of the names of one kind of catalog.
#[derive(Debug)]
pub(super) struct Form {
    /// The kind of catalog, for messages.
    catalog: &'static str,
    /// The form as users write it.
    shown: &'static str,
    /// Fewest and most parts.
    parts: RangeInclusive<usize>,
    /// The text that is between parts in requests, and so in none of them.
    separator: Option<&'static str>,
}

pub(super) const UNITY: Form =
    Form { catalog: "Unity Catalog", shown: "uc://catalog.schema.table", parts: 3..=3, separator: Some(".") };
pub(super) const GLUE: Form = Form { catalog: "Glue", shown: "glue://database.table", parts: 2..=2, separator: None };
pub(super) const HIVE: Form =
    Form { catalog: "a Hive metastore", shown: "hms://host:9083/database.table", parts: 2..=2, separator: None };
pub(super) const ICEBERG: Form = Form {
    catalog: "an Iceberg catalog",
    shown: "iceberg://namespace.table",
    parts: 2..=usize::MAX,
    separator: Some(LEVELS),
};

/// Separator of the levels of a namespace in Iceberg's interface.
pub(super) const LEVELS: &str = "\u{1f}";

impl Form {
    /// Checks the parts that `dotted` has, which stands in `name`: as many as this form has at least.
    fn split(&self, name: &str, dotted: &str) -> Result<Vec<String>> {
        let decoded = |part: &str| Path::from_url_path(part).ok().map(|part| part.to_string());
        let is_good = |part: &String| {
            !part.is_empty() && !part.contains('/') && !self.separator.is_some_and(|at| part.contains(at))
        };
        let parts = dotted.split('.').map(|part| decoded(part).filter(is_good)).collect::<Option<Vec<_>>>();
        parts.filter(|parts| self.parts.contains(&parts.len())).ok_or_else(|| self.wrong(name))
    }

    /// The parts of `name`, of which there are `N`.
    ///
    /// # Errors
    /// [`Error::Config`] with the form.
    pub(super) fn parts<const N: usize>(&self, name: &str) -> Result<[String; N]> {
        self.parts_of(name, after_scheme(name))
    }

    /// The `N` parts of `dotted`, which stands in `name`.
    ///
    /// # Errors
    /// As [`parts`](Self::parts).
    pub(super) fn parts_of<const N: usize>(&self, name: &str, dotted: &str) -> Result<[String; N]> {
        self.split(name, dotted)?.try_into().map_err(|_| self.wrong(name))
    }

    /// The levels of the namespace of `name`, and the table's own name.
    ///
    /// # Errors
    /// As [`parts`](Self::parts).
    pub(super) fn levels(&self, name: &str) -> Result<(Vec<String>, String)> {
        let mut levels = self.split(name, after_scheme(name))?;
        let table = levels.pop().ok_or_else(|| self.wrong(name))?;
        Ok((levels, table))
    }

    /// The error for `name`, which is of another form.
    pub(super) fn wrong(&self, name: &str) -> Error {
        let Self { catalog, shown, .. } = self;
        Error::config("urls", format!("{} names no table of {catalog}: write {shown}", display(name)))
    }
}

fn after_scheme(name: &str) -> &str {
    name.split_once("://").map_or("", |(_, rest)| rest).trim_end_matches('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of `name` in `form`, of which the tables of catalogs ask.
    fn found(form: &Form, name: &str) -> Option<String> {
        let parts = form.levels(name);
        if let Err(error) = &parts {
            assert!(error.to_string().contains(form.shown) && error.to_string().contains(form.catalog), "{error}");
        }
        parts.ok().map(|(levels, table)| [levels, vec![table]].concat().join("|"))
    }

    #[test]
    fn names_have_the_parts_of_their_scheme() {
        for (form, name, parts) in [
            (&UNITY, "uc://main.default.t", "main|default|t"),
            (&UNITY, "uc://A.b%20c.d-e/", "A|b c|d-e"),
            (&GLUE, "glue://db.t", "db|t"),
            (&GLUE, "glue://my-db.a%2Eb/", "my-db|a.b"),
            (&ICEBERG, "iceberg://db.t", "db|t"),
            (&ICEBERG, "iceberg://A.b%2Ec.T/", "A|b.c|T"),
        ] {
            assert_eq!(found(form, name).as_deref(), Some(parts), "{name}");
        }
        for (form, names) in [
            (&UNITY, &["uc://a.b", "uc://a.b.c.d", "uc://a..c", "uc://", "uc://a.b/x.c", "uc://a.b%2Ex.c"][..]),
            (&GLUE, &["glue://t", "glue://a.b.c", "glue://.t", "glue://a.b/c"][..]),
            (
                &ICEBERG,
                &["iceberg://t", "iceberg://", "iceberg://db.", "iceberg://.t", "iceberg://a/b.t", "iceberg://a%1Fb.t"]
                    [..],
            ),
        ] {
            for name in names {
                assert_eq!(found(form, name), None, "{name}");
            }
        }
    }
}
