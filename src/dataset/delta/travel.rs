//! The version that a table had at a time: the last one that was committed until then.
//!
//! A commit says itself when it was made, if the table asks for that; otherwise its file tells when it was written. Files of two commits may
//! be dated against their order, since clocks differ: a commit then counts as made a millisecond after the one before it, as everywhere.

use super::snapshot::Listed;
use crate::dataset::OpenOptions;
use crate::dataset::table::time::{instant, shown};
use crate::error::{Error, Result};

/// The last version until `timestamp`.
pub(super) async fn version(log: &Listed, timestamp: &str, options: &OpenOptions) -> Result<u64> {
    let until = instant(timestamp)?;
    let commits = log.log.commits();
    let metadata = log.metadata(options).await?;
    let property = |name: &str| metadata.as_ref().and_then(|metadata| metadata.property(name));
    let number = |name: &str| property(name).and_then(|text| text.parse::<i64>().ok());
    let said = property("delta.enableInCommitTimestamps") == Some("true");
    let since = number("delta.inCommitTimestampEnablementVersion").and_then(|since| u64::try_from(since).ok());
    let first = if said { commits.partition_point(|(version, _)| Some(*version) < since) } else { commits.len() };
    let (dated, telling) = commits.split_at(first);
    // Times that commits tell ascend, so that a few are read.
    let (mut low, mut high) = (0, telling.len());
    while low < high {
        let middle = low + (high - low) / 2;
        let Some((version, at)) = telling.get(middle) else { break };
        let told = log.commit(*at, options).await?.timestamp;
        let told = told.ok_or_else(|| {
            Error::corrupt(
                super::checkpoint::place(&format!("{version:020}.json")),
                "the commit does not tell its time",
            )
        })?;
        if told <= until { low = middle + 1 } else { high = middle }
    }
    if let Some((version, _)) = low.checked_sub(1).and_then(|at| telling.get(at)) {
        return Ok(*version);
    }
    let times: Vec<(u64, i64)> = dated.iter().map(|(version, at)| (*version, log.modified(*at))).collect();
    last(&times, until).ok_or_else(|| Error::NotFound {
        what: format!("a version of the Delta table {} at {timestamp}", log.root().url()),
        hint: match times.first() {
            Some((version, time)) => {
                format!("the earliest that its log tells is version {version}, of {}", shown(*time))
            }
            None => "its log tells of later ones only".to_owned(),
        },
    })
}

/// The last of these versions that was made until `until`.
fn last(times: &[(u64, i64)], until: i64) -> Option<u64> {
    let mut before = i64::MIN;
    let mut found = None;
    for (version, time) in times {
        before = (*time).max(before.saturating_add(1));
        if before > until {
            break;
        }
        found = Some(*version);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_version_until_a_time_counts() {
        let times = [(3, 100), (4, 200), (5, 150), (6, 300)];
        for (until, version) in
            [(99, None), (100, Some(3)), (199, Some(3)), (200, Some(4)), (201, Some(5)), (299, Some(5)), (900, Some(6))]
        {
            assert_eq!(last(&times, until), version, "{until}");
        }
        assert_eq!(last(&[], 7), None);
    }
}
