//! The members of a tar file that belong to samples, sample by sample.

use super::tar::TarReader;
use crate::convert::limits::Limits;
use crate::convert::read::files::Found;
use crate::convert::read::input::Input;
use crate::error::Result;

/// Splits a member's name into key and column; `None` if it belongs to no sample.
fn split(name: &str) -> Option<(&str, &str)> {
    let base = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = base + name.get(base..)?.find('.')?;
    // Names that begin with a dot, or have no extension, belong to no sample.
    (dot > base).then(|| (&name[..dot], &name[dot + 1..])).filter(|(_, column)| !column.is_empty())
}

/// A member before its bytes are read.
struct Head {
    key: String,
    column: String,
    /// Offset of its header.
    at: u64,
}

/// Reads the members of one file that are parts of samples.
pub(crate) struct Members {
    reader: TarReader,
    limits: Limits,
    next: Option<Head>,
    /// The current sample: its key, offset, columns, and bytes.
    pub(crate) key: String,
    pub(crate) at: u64,
    columns: Vec<String>,
    bytes: u64,
}

impl Members {
    pub(crate) fn open(found: &Found, limits: &Limits) -> Result<Self> {
        let (reader, limits) = (TarReader::of(found, limits)?, limits.clone());
        Ok(Self { reader, limits, next: None, key: String::new(), at: 0, columns: Vec::new(), bytes: 0 })
    }

    pub(crate) fn input(&self) -> &Input {
        self.reader.input()
    }

    fn head(&mut self) -> Result<Option<Head>> {
        if let Some(next) = self.next.take() {
            return Ok(Some(next));
        }
        while let Some(entry) = self.reader.entry()? {
            let Some((key, column)) = split(&entry.name) else { continue };
            return Ok(Some(Head { key: key.to_owned(), column: column.to_owned(), at: entry.offset }));
        }
        Ok(None)
    }

    /// Advances to the next sample; false at the end.
    pub(crate) fn sample(&mut self) -> Result<bool> {
        self.columns.clear();
        self.bytes = 0;
        let Some(head) = self.head()? else { return Ok(false) };
        (self.key, self.at) = (head.key.clone(), head.at);
        self.next = Some(head);
        Ok(true)
    }

    /// Returns the column of the sample's next member; `None` after its last. Unread bytes are skipped.
    pub(crate) fn member(&mut self) -> Result<Option<String>> {
        let Some(head) = self.head()? else { return Ok(None) };
        if head.key != self.key {
            self.next = Some(head);
            return Ok(None);
        }
        let Head { key, column, at } = head;
        let name = self.reader.input().name();
        if self.columns.contains(&column) {
            let what = format!("the sample {key:?} has two members {column:?}");
            return Err(self.reader.input().corrupt(at, what));
        }
        self.columns.push(column.clone());
        self.limits.columns(name, || format!("byte {at}: the sample {key:?}"), self.columns.len())?;
        Ok(Some(column))
    }

    /// Appends the bytes of the member to `out`.
    pub(crate) fn read(&mut self, out: &mut Vec<u8>) -> Result<()> {
        let before = out.len();
        self.reader.read(out)?;
        self.bytes += (out.len() - before) as u64;
        let (key, at, name) = (&self.key, self.at, self.reader.input().name());
        self.limits.record(name, || format!("byte {at}: the sample {key:?}"), self.bytes)
    }
}
