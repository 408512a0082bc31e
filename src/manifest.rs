//! The content of a dataset as plain numbers: files, row groups, rows, sizes, pinned versions, and one fingerprint.
//!
//! The manifest is made once, when the dataset is opened, and never changes; everything that decides an order is a function
//! of it. It does no I/O and holds no handles.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::store::Stamp;

/// SHA-256 over everything that determines the order of a dataset: relative paths, sizes, footers, row counts, schema
/// and filter; of a table also what its files know its columns by, if not by their names, and the values that its metadata have for files
/// and paths do not.
///
/// It does not cover the root address or modification times, so a faithful copy elsewhere has the same fingerprint.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// A fingerprint from its bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// `given`, if that is the `former` fingerprint of these data, which states and tickets may still have; else this one.
    pub(crate) fn or_former(self, former: Option<Self>, given: Self) -> Self {
        former.filter(|former| *former == given).unwrap_or(self)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Fingerprint {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        let mut bytes = [0; 32];
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return Err(serde::de::Error::custom("a fingerprint has 64 hexadecimal digits"));
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |c: u8| (c as char).to_digit(16);
            *byte = match (digit(pair[0]), digit(pair[1])) {
                (Some(high), Some(low)) => (high * 16 + low) as u8,
                _ => return Err(serde::de::Error::custom("a fingerprint has hexadecimal digits only")),
            };
        }
        Ok(Self(bytes))
    }
}

/// Keys and values of the partitions that a file is in; `None` is null.
type Partitions = Vec<(Arc<str>, Option<Arc<str>>)>;

/// One source file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// Path relative to the dataset root, `/` between parts.
    pub path: Arc<str>,
    /// The version that was read; every later read must see the same.
    pub version: Stamp,
    /// SHA-256 of the footer's bytes.
    pub footer: [u8; 32],
    /// Hive partition values in path order; `None` is `__HIVE_DEFAULT_PARTITION__`.
    pub partitions: Vec<(Arc<str>, Option<Arc<str>>)>,
}

/// One row group, or one unit of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowGroup {
    /// Index into [`Manifest::files`].
    pub file: u32,
    /// Row group number within the file.
    pub ordinal: u32,
    /// Rows stored.
    pub rows: u64,
    /// Rows that the filter selects; `rows` without one.
    pub selected: u64,
    /// Bytes of all columns, uncompressed, as the footer states them.
    pub bytes: u64,
}

/// Files and row groups in file order, and one fingerprint of them all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// Source files, sorted by path.
    pub files: Vec<FileEntry>,
    /// Row groups in file order.
    pub groups: Vec<RowGroup>,
    fingerprint: Fingerprint,
    /// That of a table without what its metadata say, as versions of bowstring had it that are still met.
    former: Option<Fingerprint>,
}

impl Manifest {
    /// A manifest of `files` and `groups`; `schema` and `filter` are texts that stand for them in the fingerprint, `""` for
    /// no filter.
    pub fn new(files: Vec<FileEntry>, groups: Vec<RowGroup>, schema: &str, filter: &str) -> Self {
        let mut digest = Sha256::new();
        part(&mut digest, b"bowstring manifest 1");
        part(&mut digest, schema.as_bytes());
        part(&mut digest, filter.as_bytes());
        for file in &files {
            part(&mut digest, file.path.as_bytes());
            part(&mut digest, &file.version.size.to_le_bytes());
            part(&mut digest, &file.footer);
        }
        for group in &groups {
            let numbers = [u64::from(group.file), u64::from(group.ordinal), group.rows, group.selected];
            part(&mut digest, &numbers.map(u64::to_le_bytes).concat());
        }
        let fingerprint = Fingerprint(digest.finalize().into());
        Self { files, groups, fingerprint, former: None }
    }

    /// The same of a table, whose log or metadata may say what neither paths nor footers do: which columns of its files its names mean,
    /// as a text if these are not the columns of the same names, and the values of partitions. Of a table without such a text, those
    /// count that its paths, read by `of_path`, do not say. One of which nothing counts has the fingerprint of its files.
    #[must_use]
    pub(crate) fn of_table(self, columns: Option<&str>, of_path: fn(&str) -> Partitions) -> Self {
        let mut digest = Sha256::new();
        part(&mut digest, b"bowstring table 1");
        part(&mut digest, &self.fingerprint.0);
        part(&mut digest, columns.unwrap_or_default().as_bytes());
        let mut says_more = columns.is_some();
        for file in &self.files {
            let in_path = match columns {
                None if !file.partitions.is_empty() => of_path(&file.path),
                _ => Partitions::new(),
            };
            let is_told = |(name, value): &&(Arc<str>, Option<Arc<str>>)| {
                // A path may have a key twice: one of both counts.
                in_path.iter().find(|(key, _)| key == name).is_some_and(|(_, told)| told == value)
            };
            let values: Vec<_> = file.partitions.iter().filter(|value| !is_told(value)).collect();
            says_more |= !values.is_empty();
            part(&mut digest, &(values.len() as u64).to_le_bytes());
            for (name, value) in values {
                part(&mut digest, name.as_bytes());
                part(&mut digest, &[u8::from(value.is_some())]);
                part(&mut digest, value.as_deref().unwrap_or_default().as_bytes());
            }
        }
        if !says_more {
            return self;
        }
        let former = Some(self.fingerprint);
        Self { fingerprint: Fingerprint(digest.finalize().into()), former, ..self }
    }

    /// The same data in other row groups, which are parts of the present ones.
    pub(crate) fn in_parts(&self, groups: Vec<RowGroup>) -> Self {
        Self { files: self.files.clone(), groups, fingerprint: self.fingerprint, former: self.former }
    }

    /// A manifest of one imaginary file with row groups of `rows` rows each of `row_bytes` bytes, for plans without data.
    pub fn imaginary(rows: &[u64], row_bytes: u64) -> Self {
        let size = rows.iter().copied().fold(0, u64::saturating_add).saturating_mul(row_bytes);
        let version = Stamp { etag: None, size, modified: None };
        let file = FileEntry { path: "imaginary".into(), version, footer: [0; 32], partitions: Vec::new() };
        let group = |(ordinal, rows): (usize, &u64)| RowGroup {
            file: 0,
            ordinal: ordinal as u32,
            rows: *rows,
            selected: *rows,
            bytes: rows.saturating_mul(row_bytes),
        };
        Self::new(vec![file], rows.iter().enumerate().map(group).collect(), "", "")
    }

    /// The fingerprint that the order depends on.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The fingerprint that a former version of bowstring gave the same data, if it was another one.
    pub(crate) fn former(&self) -> Option<Fingerprint> {
        self.former
    }

    /// Selected rows of all row groups.
    pub fn rows(&self) -> u64 {
        self.groups.iter().map(|group| group.selected).fold(0, u64::saturating_add)
    }

    /// Bytes per selected row, uncompressed, rounded up; 0 without rows.
    pub fn row_bytes(&self) -> u64 {
        // Footers may state anything; a saturated sum is as wrong as they are, but it does not panic.
        let bytes = self.groups.iter().map(|group| group.bytes).fold(0, u64::saturating_add);
        let rows = self.groups.iter().map(|group| group.rows).fold(0, u64::saturating_add);
        if rows == 0 { 0 } else { bytes.div_ceil(rows) }
    }
}

/// Adds `bytes` to `digest`, apart from what comes before and after.
fn part(digest: &mut Sha256, bytes: &[u8]) {
    digest.update((bytes.len() as u64).to_le_bytes());
    digest.update(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprint_covers_rows_and_filter_but_not_time() {
        let manifest = Manifest::imaginary(&[3, 4], 10);
        assert_eq!((manifest.rows(), manifest.row_bytes()), (7, 10));
        let mut touched = manifest.clone();
        touched.files[0].version.modified = Some(1);
        let touched = Manifest::new(touched.files, touched.groups, "", "");
        assert_eq!(manifest.fingerprint(), touched.fingerprint());
        assert_ne!(manifest.fingerprint(), Manifest::imaginary(&[4, 3], 10).fingerprint());
        let filtered = Manifest::new(manifest.files.clone(), manifest.groups.clone(), "", "x > 1");
        assert_ne!(manifest.fingerprint(), filtered.fingerprint());
        let json = serde_json::to_string(&manifest.fingerprint()).unwrap();
        assert_eq!(serde_json::from_str::<Fingerprint>(&json).unwrap(), manifest.fingerprint());
        assert!(serde_json::from_str::<Fingerprint>("\"zz\"").is_err());
    }

    #[test]
    fn a_table_has_a_fingerprint_of_its_columns_and_values_beside_the_former_one() {
        let plain = Manifest::imaginary(&[3, 4], 10);
        let of = |columns: Option<&str>, value: Option<&str>| {
            let mut manifest = plain.clone();
            manifest.files[0].partitions = vec![("p".into(), value.map(Into::into))];
            manifest.of_table(columns, |_| vec![("p".into(), Some("w".into())), ("p".into(), Some("u".into()))])
        };
        let table = of(Some("a"), Some("u"));
        assert_eq!(table.former(), Some(plain.fingerprint()));
        assert_eq!(table.in_parts(Vec::new()).former(), table.former());
        let [a, b, none] = [Some("a"), Some("b"), None];
        let mapped = [of(b, Some("u")), of(a, Some("v")), of(a, Some("")), of(a, None)];
        let named = [of(none, Some("u")), of(none, Some("")), of(none, None)];
        let all: Vec<Manifest> = [plain.clone(), table].into_iter().chain(mapped).chain(named).collect();
        let different: std::collections::HashSet<Fingerprint> = all.iter().map(Manifest::fingerprint).collect();
        assert_eq!(different.len(), all.len());
        assert_eq!((plain.former(), of(a, None).fingerprint()), (None, all[5].fingerprint()));
        let told = of(none, Some("w"));
        assert_eq!((told.former(), told.fingerprint()), (None, plain.fingerprint()), "its path says it");
        assert_eq!(plain.clone().of_table(None, |_| Vec::new()), plain);
    }
}
