//! The choice of a snapshot and its schema.

use super::metadata::Metadata;
use crate::dataset::OpenOptions;
use crate::dataset::table::time::{instant, shown};
use crate::error::{Error, Result};

/// See the module.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    /// None for a table that has no snapshot yet.
    pub(super) snapshot: Option<i64>,
    /// True if the columns are those of the snapshot, and not the table's of today. What is current later does not count: a number and a time
    /// mean the same columns then.
    pub(super) own_schema: bool,
}

/// Snapshot that `options` choose of the table at `url`; the current one without anything.
///
/// # Errors
/// [`Error::NotFound`] if it does not exist any more, or never did; [`Error::Config`] for a choice that is invalid, or several.
pub(super) fn choose(metadata: &Metadata, url: &str, options: &OpenOptions) -> Result<Chosen> {
    let current = metadata.current();
    let missing =
        |what: String, hint: String| Error::NotFound { what: format!("{what} of the Iceberg table {url}"), hint };
    let there = |id: i64, what: &dyn Fn() -> String| {
        let hint = || {
            let now =
                current.map_or_else(|| "it has no snapshot yet".to_owned(), |id| format!("the current one is {id}"));
            format!("it was expired, or is of another table; {now}")
        };
        metadata.snapshot(id).map(|found| found.snapshot_id).ok_or_else(|| missing(what(), hint()))
    };
    let chosen = |id: i64, own_schema: bool| Chosen { snapshot: Some(id), own_schema };
    match (options.version, &options.timestamp, &options.reference) {
        (Some(_), Some(_), _) | (_, Some(_), Some(_)) => {
            Err(Error::config("timestamp", "version, timestamp and ref each choose a snapshot; give one"))
        }
        (Some(_), None, Some(_)) => Err(Error::config("ref", "version and ref both choose a snapshot; give one")),
        // Version 0 is a table that has no snapshot yet.
        (Some(0), None, None) if current.is_none() => Ok(Chosen { snapshot: None, own_schema: false }),
        (Some(version), None, None) => {
            let id = i64::try_from(version).unwrap_or(-1);
            Ok(chosen(there(id, &|| format!("snapshot {version}"))?, true))
        }
        (None, Some(timestamp), None) => {
            let until = instant(timestamp)?;
            // The order of the log is the history: a writer's clock may be behind that of the one before.
            let Some(last) = metadata.snapshot_log.iter().rev().find(|logged| logged.timestamp_ms <= until) else {
                let hint = match metadata.snapshot_log.iter().map(|logged| logged.timestamp_ms).min() {
                    Some(first) => format!("the earliest that its metadata tell is of {}", shown(first)),
                    None => "its metadata tell of none".to_owned(),
                };
                return Err(missing(format!("a snapshot at {timestamp}"), hint));
            };
            Ok(chosen(there(last.snapshot_id, &|| format!("snapshot {} of {timestamp}", last.snapshot_id))?, true))
        }
        (None, None, Some(name)) => {
            let Some(found) = metadata.refs.get(name) else {
                // Tables of the first version have no refs, but still a main branch.
                if let (true, Some(id)) = (name == "main", current) {
                    return Ok(chosen(id, false));
                }
                let mut names: Vec<&str> = metadata.refs.keys().map(String::as_str).take(12).collect();
                names.sort_unstable();
                let hint = if names.is_empty() { "it has none".into() } else { format!("it has {}", names.join(", ")) };
                return Err(missing(format!("branch or tag {name:?}"), hint));
            };
            let id = there(found.snapshot_id, &|| format!("snapshot {} of {name:?}", found.snapshot_id))?;
            Ok(chosen(id, found.kind != "branch"))
        }
        (None, None, None) => match current {
            Some(id) => Ok(chosen(there(id, &|| format!("snapshot {id}"))?, false)),
            None => Ok(Chosen { snapshot: None, own_schema: false }),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = r#"{"format-version":2,"location":"x","current-snapshot-id":3,
        "snapshots":[{"snapshot-id":1},{"snapshot-id":2},{"snapshot-id":3}],
        "snapshot-log":[{"timestamp-ms":1000,"snapshot-id":1},{"timestamp-ms":2000,"snapshot-id":9},{"timestamp-ms":3000,"snapshot-id":3}],
        "refs":{"main":{"snapshot-id":3,"type":"branch"},"side":{"snapshot-id":2,"type":"branch"},"old":{"snapshot-id":1,"type":"tag"}}}"#;

    fn of(options: &OpenOptions) -> Result<Chosen> {
        choose(&Metadata::parse(TABLE.as_bytes()).unwrap(), "t", options)
    }

    #[test]
    fn a_number_a_time_or_a_name_chooses() {
        let version = |version| OpenOptions { version: Some(version), ..OpenOptions::default() };
        let at = |timestamp: &str| OpenOptions { timestamp: Some(timestamp.to_owned()), ..OpenOptions::default() };
        let named = |name: &str| OpenOptions { reference: Some(name.to_owned()), ..OpenOptions::default() };
        for (options, snapshot, own_schema) in [
            (OpenOptions::default(), 3, false),
            (version(3), 3, true),
            (version(1), 1, true),
            (at("1970-01-01 00:00:01"), 1, true),
            (at("1970-01-01 00:00:01.999"), 1, true),
            (at("2030-01-01"), 3, true),
            (named("main"), 3, false),
            (named("side"), 2, false),
            (named("old"), 1, true),
        ] {
            assert_eq!(of(&options).unwrap(), Chosen { snapshot: Some(snapshot), own_schema }, "{options:?}");
        }
        for (options, said) in [
            (version(7), "the current one is 3"),
            (at("1970-01-01"), "1970-01-01T00:00:01 UTC"),
            (at("1970-01-01 00:00:02"), "snapshot 9"),
            (named("mian"), "main, old, side"),
            (OpenOptions { version: Some(1), ..at("2030-01-01") }, "give one"),
            (OpenOptions { version: Some(1), ..named("main") }, "give one"),
        ] {
            let error = of(&options).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        let behind = TABLE.replace(r#"{"timestamp-ms":3000,"#, r#"{"timestamp-ms":1500,"#);
        let found = choose(&Metadata::parse(behind.as_bytes()).unwrap(), "t", &at("1970-01-01 00:00:05")).unwrap();
        assert_eq!(found.snapshot, Some(3), "the last of the log, and not the one of the latest time");
        let empty = Metadata::parse(br#"{"format-version":2,"location":"x"}"#).unwrap();
        assert_eq!(choose(&empty, "t", &OpenOptions::default()).unwrap().snapshot, None);
        assert_eq!(choose(&empty, "t", &version(0)).unwrap().snapshot, None);
        assert!(choose(&empty, "t", &version(1)).is_err());
    }
}
