//! Times that choose a version, as they are given and as they are shown.

use super::value;
use crate::error::{Error, Result};

/// Milliseconds from 1970 to `timestamp`.
///
/// # Errors
/// [`Error::Config`] for an invalid time.
pub(in crate::dataset) fn instant(timestamp: &str) -> Result<i64> {
    let wrong = || {
        let problem = format!(
            "{timestamp:?} is not a time; write it as 2026-01-31, 2026-01-31 12:30:00 (UTC) or 2026-01-31T12:30:00+01:00"
        );
        Error::config("timestamp", problem)
    };
    value::instant(timestamp).map(|micros| micros.div_euclid(1000)).ok_or_else(wrong)
}

/// A time for people, in UTC.
pub(in crate::dataset) fn shown(millis: i64) -> String {
    let times = arrow::array::TimestampMillisecondArray::from(vec![millis]);
    arrow::util::display::array_value_to_string(&times, 0)
        .map_or_else(|_| millis.to_string(), |text| format!("{text} UTC"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_utc_or_their_zone() {
        assert_eq!(instant("1970-01-02").unwrap(), 86_400_000);
        assert_eq!(instant("1970-01-01 00:00:01.5").unwrap(), 1500);
        assert_eq!(instant("1970-01-01T01:00:00+01:00").unwrap(), 0);
        assert!(instant("yesterday").unwrap_err().to_string().contains("timestamp"));
        assert_eq!(shown(1500), "1970-01-01T00:00:01.500 UTC");
    }
}
