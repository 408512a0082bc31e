//! Expiry of signed addresses, and the waits that the Hub asks for.

use std::time::{Duration, SystemTime};

use url::Url;

use crate::store::web::told;

/// Time before its end at which an address is renewed: a request may take a while.
const EARLY: Duration = Duration::from_secs(60);

/// Returns true if an address that is good until `end` should be asked for again at `now`.
pub(super) fn is_over(end: Option<SystemTime>, now: SystemTime) -> bool {
    end.is_some_and(|end| end.checked_sub(EARLY).is_none_or(|end| end <= now))
}

/// Expiry of the signature of `url`, if it is given: `Expires` of CloudFront, or `X-Amz-Date` and `X-Amz-Expires` of S3.
pub(super) fn expires(url: &Url) -> Option<SystemTime> {
    let value = |name: &str| url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned());
    let seconds = match value("Expires") {
        Some(seconds) => seconds.parse().ok()?,
        None => {
            let start = of_date(&value("X-Amz-Date")?)?;
            start.checked_add(value("X-Amz-Expires")?.parse().ok()?)?
        }
    };
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

/// Seconds since 1970 of `20261125T160000Z`.
fn of_date(text: &str) -> Option<u64> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<u64>().ok();
    let (year, month, day) = (number(0..4)?, number(4..6)?, number(6..8)?);
    let (hour, minute, second) = (number(9..11)?, number(11..13)?, number(13..15)?);
    let form = text.len() == 16 && text.get(8..9) == Some("T") && text.ends_with('Z');
    if !form || year < 1970 || !(1..=12).contains(&month) || day == 0 {
        return None;
    }
    // Years begin in March, so that the day that may be missing is the last one.
    let (years, months) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = years * 365 + years / 4 - years / 100 + years / 400 + (153 * months + 2) / 5 + day - 1;
    Some((days - 719_468) * 86_400 + hour * 3_600 + minute * 60 + second)
}

/// Time to wait, by `Retry-After`, or by the Hub's statement of its limit: `"resolvers";r=0;t=55`. At least a second.
pub(super) fn wait(retry_after: Option<&str>, rate_limit: Option<&str>) -> Option<Duration> {
    let of_limit = |text: &str| text.split(';').find_map(|part| part.trim().strip_prefix("t=")?.parse().ok());
    let limited = || rate_limit.and_then(of_limit).map(|seconds: u64| Duration::from_secs(seconds.max(1)));
    told(retry_after).or_else(limited)
}

/// The address of the next page in a `Link` header.
pub(super) fn next(link: &str) -> Option<&str> {
    link.split(',').find_map(|part| {
        let (address, relation) = part.trim().strip_prefix('<')?.split_once('>')?;
        relation.split(';').any(|word| matches!(word.trim(), "rel=\"next\"" | "rel=next")).then_some(address)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Option<SystemTime> {
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
    }

    #[test]
    fn signatures_say_when_they_end() {
        for (query, end) in [
            ("Expires=1764086400&Signature=x", at(1_764_086_400)),
            ("X-Amz-Date=20251125T160000Z&X-Amz-Expires=3600", at(1_764_090_000)),
            ("X-Amz-Date=20240229T000000Z&X-Amz-Expires=0", at(1_709_164_800)),
            ("X-Amz-Date=19700101T000001Z&X-Amz-Expires=0", at(1)),
            ("X-Amz-Date=00000000T000000Z&X-Amz-Expires=1", None),
            ("X-Amz-Date=20251325T160000Z&X-Amz-Expires=1", None),
            ("X-Amz-Date=20251125T160000Z", None),
            ("Expires=soon", None),
            ("", None),
        ] {
            assert_eq!(expires(&Url::parse(&format!("https://h/x?{query}")).unwrap()), end, "{query}");
        }
        let now = at(1_000).unwrap();
        assert!(is_over(at(1_060), now) && is_over(at(10), now) && !is_over(at(1_061), now) && !is_over(None, now));
    }

    #[test]
    fn waits_and_pages_are_read() {
        assert_eq!(wait(Some("7"), Some("\"api\";r=0;t=55")), Some(Duration::from_secs(7)));
        assert_eq!(wait(None, Some("\"resolvers\";r=0;t=55")), Some(Duration::from_secs(55)));
        assert_eq!(wait(Some("0"), None), Some(Duration::from_secs(1)));
        assert_eq!(wait(Some("Wed, 21 Oct 2026 07:28:00 GMT"), None), None);
        assert_eq!(next("<https://h/a?cursor=x>; rel=\"next\""), Some("https://h/a?cursor=x"));
        assert_eq!(next("<https://h/p>; rel=\"prev\", <https://h/n>; rel=\"next\""), Some("https://h/n"));
        assert_eq!(next("<https://h/p>; rel=\"prev\""), None);
    }
}
