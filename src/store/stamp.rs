//! Stamps, which tell versions of an object apart.

use std::fmt;
use std::fs::Metadata;
use std::time::UNIX_EPOCH;

use object_store::ObjectMeta;

/// One version of an object. Fields that the store cannot tell are `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    /// The store's entity tag; for local files it is made of inode, modification time and size.
    pub etag: Option<String>,
    /// Length in bytes.
    pub size: u64,
    /// Last modification, nanoseconds since 1970-01-01 UTC.
    pub modified: Option<i64>,
}

impl Stamp {
    pub(super) fn of(meta: &ObjectMeta) -> Self {
        // object_store reports 1970 where a server gives no time.
        let modified = meta.last_modified.timestamp_nanos_opt().filter(|&nanos| nanos != 0);
        Self { etag: meta.e_tag.clone(), size: meta.size, modified }
    }

    /// That of an open file of this machine, which has no tag.
    pub(super) fn of_file(found: &Metadata) -> Self {
        let since = found.modified().ok().and_then(|modified| modified.duration_since(UNIX_EPOCH).ok());
        let modified = since.and_then(|since| i64::try_from(since.as_nanos()).ok());
        Self { etag: None, size: found.len(), modified }
    }

    /// Returns true if a replaced object of the same length has another one.
    pub(crate) fn tells_versions(&self) -> bool {
        self.etag.is_some() || self.modified.is_some()
    }

    /// The tag to ask for with `If-Match`. Weak tags never match there (RFC 9110), so they are compared afterwards instead.
    pub(super) fn condition(&self) -> Option<String> {
        self.etag.clone().filter(|etag| !is_weak(etag))
    }

    /// Returns true if `found` may be the same version, by the size and then the strongest thing that both sides know. A weak tag says that an
    /// object means the same, and not that it has the same bytes: the time has to agree as well, to the second, since a listing may tell
    /// more of it than an answer. A tag is the same without the quotes, which some listings leave out.
    pub fn same(&self, found: &Self) -> bool {
        let second = |stamp: &Self| stamp.modified.map(|nanos| nanos.div_euclid(1_000_000_000));
        let at_once = || second(self).zip(second(found)).is_none_or(|(pinned, found)| pinned == found);
        self.size == found.size
            && match (&self.etag, &found.etag) {
                (Some(pinned), Some(found)) => bare(pinned) == bare(found) && (!is_weak(pinned) || at_once()),
                _ => match (self.modified, found.modified) {
                    (Some(pinned), Some(found)) => pinned == found,
                    _ => true,
                },
            }
    }
}

/// A tag without its quotes.
fn bare(etag: &str) -> &str {
    etag.trim_matches('"')
}

/// Returns true for the tag of what means the same, whatever its bytes are (RFC 9110).
pub(super) fn is_weak(etag: &str) -> bool {
    etag.starts_with("W/")
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.size)?;
        if let Some(etag) = &self.etag {
            write!(f, ", etag {etag}")?;
        }
        if let Some(modified) = self.modified {
            write!(f, ", modified {}.{:09}", modified.div_euclid(1_000_000_000), modified.rem_euclid(1_000_000_000))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strongest_common_mark_decides() {
        let stamp = |etag: Option<&str>, size, modified| Stamp { etag: etag.map(str::to_owned), size, modified };
        let pinned = stamp(Some("\"a\""), 9, Some(1));
        assert!(pinned.same(&stamp(Some("\"a\""), 9, Some(2))), "a touched object with the same tag is the same");
        assert!(!pinned.same(&stamp(Some("\"b\""), 9, Some(1))));
        assert!(!pinned.same(&stamp(Some("\"a\""), 8, Some(1))));
        assert!(!pinned.same(&stamp(None, 9, Some(2))));
        assert!(pinned.same(&stamp(None, 9, None)));
        let bare = stamp(Some("a"), 9, Some(2));
        assert!(pinned.same(&bare) && bare.same(&pinned), "a listing may leave out the quotes");
        assert!(!stamp(Some("W/\"a\""), 9, None).same(&bare) && !stamp(Some("b"), 9, None).same(&pinned));
        assert_eq!(stamp(Some("W/\"a\""), 9, None).condition(), None);
        let (second, weak) = (1_000_000_000, |modified| stamp(Some("W/\"a\""), 9, modified));
        assert!(weak(Some(second)).same(&weak(Some(second + 7))) && weak(Some(second)).same(&weak(None)));
        assert!(!weak(Some(second)).same(&weak(Some(2 * second))), "a weak tag does not promise the same bytes");
    }
}
