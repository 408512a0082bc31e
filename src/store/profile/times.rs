//! Times as AWS's tools write them.

use std::time::{Duration, SystemTime};

/// `2026-11-25T16:00:00Z`, with `UTC` or an offset instead of the `Z`.
pub(super) fn parse(text: &str) -> Option<SystemTime> {
    let text = text.trim();
    let text = text.strip_suffix("UTC").unwrap_or(text);
    let (date, clock) = text.split_once('T')?;
    let (clock, offset) = match clock.find(['+', '-', 'Z']) {
        Some(at) => clock.split_at(at),
        None => (clock, "Z"),
    };
    let time = humantime::parse_rfc3339(&format!("{date}T{clock}Z")).ok()?;
    if offset == "Z" {
        return Some(time);
    }
    let (hours, minutes) = offset.get(1..)?.split_once(':')?;
    let (hours, minutes) = (hours.parse::<u64>().ok()?, minutes.parse::<u64>().ok()?);
    let away = Duration::from_secs(hours.checked_mul(3600)?.checked_add(minutes.checked_mul(60)?)?);
    if offset.starts_with('+') { time.checked_sub(away) } else { time.checked_add(away) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_taken_off() {
        let noon = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(1_764_072_000));
        for text in [
            "2025-11-25T12:00:00Z",
            "2025-11-25T12:00:00UTC",
            "2025-11-25T12:00:00+00:00",
            "2025-11-25T14:30:00+02:30",
            "2025-11-25T04:00:00-08:00",
            "2025-11-25T12:00:00.000Z",
        ] {
            assert_eq!(parse(text), noon, "{text}");
        }
        for text in ["", "2025-11-25", "2025-11-25T12:00:00+x", "soon", "2025-11-25T12:00:00+99999999999999999999:00"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
