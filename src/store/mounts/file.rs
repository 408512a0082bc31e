//! The TOML that has the mounts: a file of their own, or the configuration of a server. An error has its line and key, and no value.

use std::collections::BTreeMap;
use std::sync::Arc;

use toml::de::{DeTable, DeValue};

use super::mount::Mount;
use super::table::Mounts;
use crate::error::{Error, Result};
use crate::nearest::nearest;

/// The table of mounts.
const MOUNTS: &str = "mounts";

/// Tables of a server's configuration, which may be in the same file.
const OTHERS: [&str; 2] = ["datasets", "server"];

/// The keys of one mount.
const KEYS: [&str; 2] = ["storage_options", "url"];

impl Mounts {
    /// Reads the tables `[mounts.NAME]` of `text`; `origin` is its file's name for errors.
    ///
    /// ```
    /// use bowstring::store::Mounts;
    ///
    /// # fn main() -> bowstring::Result<()> {
    /// let mounts = Mounts::from_toml(
    ///     r#"
    ///     [mounts."datasets/photos"]
    ///     url = "s3://bucket/photos"
    ///     storage_options = { aws_profile = "research" }
    ///
    ///     [mounts.checkpoints]
    ///     url = "/nvme/checkpoints"
    ///     "#,
    ///     "mounts.toml",
    /// )?;
    /// assert_eq!(mounts.iter().map(|mount| mount.url()).collect::<Vec<_>>(), ["bow://checkpoints", "bow://datasets/photos"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`] naming `origin`, the line and the key.
    pub fn from_toml(text: &str, origin: &str) -> Result<Self> {
        let source = Source { text, origin: origin.into() };
        let document = DeTable::parse(text).map_err(|error| {
            source.wrong(error.span().map(|span| span.start), format!("this is no TOML: {}", error.message()))
        })?;
        let mut mounts = None;
        for (key, value) in document.get_ref() {
            let (name, at) = (key.get_ref().as_ref(), Some(key.span().start));
            match (name, value.get_ref().as_table()) {
                (MOUNTS, Some(table)) => mounts = Some(source.mounts(table)?),
                (MOUNTS, None) => {
                    return Err(source.wrong(at, "mounts must be tables: [mounts.NAME] with url and storage_options"));
                }
                (name, _) if OTHERS.contains(&name) => {}
                _ => {
                    let known = OTHERS.iter().copied().chain([MOUNTS]);
                    return Err(source.unknown(at, name, known, MOUNTS));
                }
            }
        }
        mounts.ok_or_else(|| source.wrong(None, "it has no [mounts.NAME]"))
    }
}

struct Source<'a> {
    text: &'a str,
    origin: Arc<str>,
}

impl Source<'_> {
    fn wrong(&self, at: Option<usize>, problem: impl Into<String>) -> Error {
        let line = at.and_then(|at| self.text.get(..at)).map(|before| before.matches('\n').count() + 1);
        let line = line.map_or_else(String::new, |line| format!(", line {line}"));
        Error::config(MOUNTS, format!("{}{line}: {}", self.origin, problem.into()))
    }

    /// The error for the key `name`, at whose place there are `known` ones, as a sentence names them.
    fn unknown<'k>(&self, at: Option<usize>, name: &str, known: impl Iterator<Item = &'k str>, there: &str) -> Error {
        // It may be a value that lost its key, and a secret.
        let shown: String = name.chars().take(64).collect();
        let meant = nearest(name, known).map_or_else(String::new, |meant| format!("; did you mean `{meant}`?"));
        let meant = if meant.is_empty() { format!("; there are {there}") } else { meant };
        self.wrong(at, format!("unknown key `{shown}`{meant}"))
    }

    fn mounts(&self, table: &DeTable<'_>) -> Result<Mounts> {
        let mut mounts = Vec::with_capacity(table.len());
        for (key, value) in table {
            let (name, at) = (key.get_ref().as_ref(), key.span().start);
            let problem =
                || self.wrong(Some(at), format!("mounts.{name} must be a table with url and storage_options"));
            mounts.push(self.mount(name, value.get_ref().as_table().ok_or_else(problem)?, at)?);
        }
        Mounts::new(mounts, &self.origin).map_err(|error| self.wrong(None, inner(error)))
    }

    fn mount(&self, name: &str, table: &DeTable<'_>, at: usize) -> Result<Mount> {
        let (mut address, mut options) = (None, BTreeMap::new());
        let mut places = BTreeMap::from([(MOUNTS, at)]);
        for (key, value) in table {
            let at = key.span().start;
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("url", DeValue::String(text)) => {
                    address = Some(text.to_string());
                    places.insert("url", at);
                }
                ("url", _) => return Err(self.wrong(Some(at), format!("mounts.{name}.url must be a text"))),
                ("storage_options", DeValue::Table(pairs)) => {
                    places.insert("storage_options", at);
                    for (key, value) in pairs {
                        // The values are secrets.
                        let DeValue::String(text) = value.get_ref() else {
                            let problem = format!("mounts.{name}.storage_options.{} must be a text", key.get_ref());
                            return Err(self.wrong(Some(key.span().start), problem));
                        };
                        options.insert(key.get_ref().to_string(), text.to_string());
                    }
                }
                ("storage_options", _) => {
                    return Err(self.wrong(Some(at), format!("mounts.{name}.storage_options must be a table of texts")));
                }
                (below, DeValue::Table(_)) if nearest(below, KEYS).is_none() => {
                    let problem = format!("a name with a slash is quoted: write [mounts.\"{name}/{below}\"]");
                    return Err(self.wrong(Some(at), problem));
                }
                (other, _) => {
                    let known = KEYS.iter().copied();
                    return Err(self.unknown(Some(at), other, known, "url and storage_options"));
                }
            }
        }
        let address = address.ok_or_else(|| self.wrong(Some(at), format!("mounts.{name} needs url")))?;
        Mount::new(name, &address, options, &self.origin).map_err(|error| {
            let option = if let Error::Config { option, .. } = &error { *option } else { MOUNTS };
            let key = if option == MOUNTS { String::new() } else { format!("mounts.{name}.{option}: ") };
            self.wrong(places.get(option).copied().or(Some(at)), format!("{key}{}", inner(error)))
        })
    }
}

/// The text of an error without the option's name, which line and key replace.
fn inner(error: Error) -> String {
    match error {
        Error::Config { problem, .. } => problem,
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_file_is_told_by_line_and_key_and_without_values() {
        for (text, line, words) in [
            ("[mount.x]\nurl = \"/s3cr3t\"", "line 1", "did you mean `mounts`?"),
            ("[server]\nlisten = \"s3cr3t\"", "toml: ", "no [mounts.NAME]"),
            ("[mounts.x]\nulr = \"s3cr3t\"", "line 2", "did you mean `url`?"),
            (
                "[mounts.x]\nurl = \"/x\"\nstorage_option = { a = \"s3cr3t\" }",
                "line 3",
                "did you mean `storage_options`?",
            ),
            ("[mounts.x]\nurl = \"/x\"\nkeys = \"s3cr3t\"", "line 3", "there are url and storage_options"),
            ("[mounts.x.y]\nurl = \"/s3cr3t\"", "line 1", "write [mounts.\"x/y\"]"),
            ("[mounts.x]\nurl = 5", "line 2", "must be a text"),
            ("mounts = \"s3cr3t\"", "line 1", "must be tables"),
            ("[mounts]\nx = \"s3cr3t\"", "line 2", "must be a table"),
            ("[mounts.x]\nstorage_options = {}", "line 1", "needs url"),
            ("[mounts.x]\nurl = \"/x\"\nstorage_options = { key = [\"s3cr3t\"] }", "line 3", "must be a text"),
            ("[mounts.x]\nurl = \"/x\"\nstorage_options = \"s3cr3t\"", "line 3", "a table of texts"),
            ("[mounts.x]\nurl = \"/x\"\nstorage_options = { nonsense = \"s3cr3t\" }", "line 3", "storage_options"),
            ("[mounts.x]\n\nurl = \"data/x\"", "line 3", "absolute"),
            ("[mounts.\"a b\"]\nurl = \"/x\"", "line 1", "cannot name a mount"),
            ("[mounts.x]\nurl = \"/x\"\n[mounts.\"x/y\"]\nurl = \"/y\"", "toml: ", "inside the mount x"),
            ("[mounts.x]\nurl = \"s3cr3t", "line 2", "no TOML"),
        ] {
            let error = Mounts::from_toml(text, "m.toml").unwrap_err();
            let told = error.to_string();
            assert!(matches!(error, Error::Config { option: "mounts", .. }), "{told}");
            assert!(told.contains(line) && told.contains(words) && !told.contains("s3cr3t"), "{text}\n{told}");
        }
    }

    #[test]
    fn the_file_may_be_a_servers() {
        let text = "[server]\nlisten = \"x\"\n[datasets.a]\nurl = \"bow://m/x\"\n[mounts.m]\nurl = \"/data\"\n";
        assert_eq!(Mounts::from_toml(text, "serve.toml").unwrap().iter().map(Mount::name).collect::<Vec<_>>(), ["m"]);
        assert!(Mounts::from_toml("[mounts]", "m.toml").unwrap().is_empty());
    }
}
