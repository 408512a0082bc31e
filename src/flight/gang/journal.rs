//! The state that a server must still know after it is killed: generations, members, acknowledged positions, opened rounds.
//!
//! An append-only file: 8 bytes `BOWGANG2`, then records of `u32 length | u32 crc32 | JSON` (little endian). A record is written before the
//! answer that follows from it, so that killing the process loses nothing that any rank was told; the end of a generation and the beginning
//! of one are also fsynced. A tail that was torn by a crash is cut: its answer was never sent.
//!
//! Only such a tail is cut: bytes at the very end that are no record, with no record after them. A whole record that this version does
//! not understand was written by a newer one, and damage before whole records is no crash: cutting either could use a generation
//! twice. Then the server does not start, and the file is left as it is. A file of the version before (`BOWGANG1`, in which
//! generations have no plan) is rewritten when it is opened, since that version would cut records that it does not know.

#[cfg(test)]
mod tests;

use std::fs::{File, OpenOptions};
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::wire::{MemberInfo, Position, Reading, Share, hex_u128};
use crate::error::{Error, Place, Result};
use crate::store::directory::{failed, flush_name};
use crate::store::lock::{Lock, beside};

const MAGIC: &[u8; 8] = b"BOWGANG2";
const OLD_MAGIC: &[u8; 8] = b"BOWGANG1";
/// First bytes of the JSON of every record.
const BEGINNING: &[u8] = br#"{"record":""#;
/// Bytes before a record's JSON.
const HEAD: usize = 8;
/// Longest record, in bytes: a longer length is damage.
const LONGEST: usize = 256 << 20;
/// A file below this is not worth compacting, in bytes.
const SMALL: u64 = 1 << 20;

/// A member as the journal keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MemberRecord {
    pub(super) rank: u32,
    #[serde(with = "hex_u128")]
    pub(super) attempt: u128,
    pub(super) share: Share,
    pub(super) info: MemberInfo,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Record {
    /// A generation began at position `at` of the plan `reads`.
    Formed {
        gang: String,
        generation: u64,
        at: Option<Position>,
        acknowledged: Option<Position>,
        members: Vec<MemberRecord>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reads: Option<Reading>,
    },
    /// The generation before `generation` is over. Its acknowledgements belong to the plan `reads`.
    Raised {
        gang: String,
        generation: u64,
        acknowledged: Option<Position>,
        why: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reads: Option<Reading>,
    },
    /// From here on the generation reads this plan and no other.
    Bound { gang: String, generation: u64, reads: Reading },
    /// A rank acknowledged a position.
    Acked { gang: String, generation: u64, rank: u32, position: Position },
    /// A round opened; its messages, hex, are kept for ranks that do not have them yet.
    Opened { gang: String, generation: u64, round: u64, messages: Vec<String> },
    /// A rank left cleanly.
    Left { gang: String, generation: u64, rank: u32 },
    /// All ranks left cleanly.
    Ended { gang: String, generation: u64 },
    /// Highest generation of forgotten gangs: those of a space, which is empty for gangs in none, or all.
    Floor {
        generation: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        space: Option<String>,
    },
}

impl Record {
    /// Returns true if writing it may take long: it waits for the disk, or holds the messages that ranks gathered.
    pub(super) fn is_long(&self) -> bool {
        self.is_vital() || matches!(self, Self::Opened { .. })
    }

    /// Returns true if losing it in a power cut could let two generations be taken for one.
    pub(super) fn is_vital(&self) -> bool {
        // Two plans in one generation are as bad as two generations in one.
        !matches!(self, Self::Acked { .. } | Self::Opened { .. } | Self::Left { .. })
    }
}

/// The open file.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// Size right after the last compaction, in bytes; 0 before the first one of this process.
    compacted: u64,
    /// The file replaced another one, and a power cut could still bring that one back.
    is_loose: bool,
    /// Two servers on one journal would form one generation twice. It is beside the file, which compaction replaces.
    _lock: Lock,
}

impl Journal {
    /// The right to open the file at `path`, waited for up to `patience`.
    ///
    /// # Errors
    /// [`Error::Closed`] naming the process that has it; [`Error::Store`].
    pub(super) async fn lock(path: &Path, patience: Duration) -> Result<Lock> {
        let work = format!("open the gang journal {}", path.display());
        Lock::take_within(&beside(path), &work, patience).await
    }

    /// As [`lock`](Self::lock), without waiting.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub(super) fn lock_now(path: &Path) -> Result<Lock> {
        Lock::take(&beside(path), &format!("open the gang journal {}", path.display()))
    }

    /// Opens or creates the file and returns its records in order. A torn tail is cut off.
    ///
    /// # Errors
    /// [`Error::Store`] if the file cannot be read or written, [`Error::Corrupt`] if it is not a journal at all or is damaged before its
    /// end, [`Error::Unsupported`] if a newer version wrote it. The file is then as it was.
    pub(super) fn open(path: &Path, lock: Lock) -> Result<(Self, Vec<Record>)> {
        let failed = |operation: &str, error: std::io::Error| failed(operation, path, error);
        let file = private().read(true).append(true).create(true).open(path).map_err(|e| failed("open", e))?;
        let length = file.metadata().map_err(|e| failed("stat", e))?.len();
        let mut reader = BufReader::new(&file);
        let mut head = Vec::new();
        reader.by_ref().take(MAGIC.len() as u64).read_to_end(&mut head).map_err(|e| failed("read", e))?;
        let mut records = Vec::new();
        let mut good = 0;
        let old = head == OLD_MAGIC;
        if head == MAGIC || old {
            good = MAGIC.len() as u64;
            loop {
                match next(&mut reader).map_err(|e| failed("read", e))? {
                    Next::Record(record, size) => {
                        records.push(record);
                        good += size;
                    }
                    Next::Unknown(error) => {
                        let what = format!("the record at byte {good} of the gang journal {}: {error}", path.display());
                        return Err(newer(what));
                    }
                    Next::Torn => break,
                }
            }
            if good < length && whole_record_in(path, good).map_err(|e| failed("read", e))? {
                let place = Place::file(path.display().to_string());
                let what = format!(
                    "the gang journal is damaged at byte {good}, and whole records follow; it is left as it is: restore a copy, or \
                     name another file, with which all gangs begin anew"
                );
                return Err(Error::corrupt(place, what));
            }
        } else {
            known(&head, path)?;
        }
        drop(reader);
        let mut journal = Self { path: path.to_owned(), file, bytes: good, compacted: 0, is_loose: false, _lock: lock };
        if good < length {
            tracing::warn!(path = %path.display(), cut = length - good, "the tail of the gang journal was torn, and is cut");
        }
        if old {
            journal.compact(&records)?;
            return Ok((journal, records));
        }
        if good < length {
            journal.file.set_len(good).map_err(|e| failed("truncate", e))?;
        }
        if good == 0 {
            journal.file.write_all(MAGIC).map_err(|e| failed("write", e))?;
            journal.bytes = MAGIC.len() as u64;
        }
        journal.file.sync_all().map_err(|e| failed("sync", e))?;
        flush_name(path)?;
        Ok((journal, records))
    }

    /// Appends `records`, and fsyncs if one of them is vital.
    ///
    /// # Errors
    /// [`Error::Store`]; the file may then end in a torn record, and nothing may be appended after it.
    pub(super) fn append(&mut self, records: &[Record]) -> Result<()> {
        let bytes = encode(records)?;
        self.file.write_all(&bytes).map_err(|e| failed("write", &self.path, e))?;
        self.bytes += bytes.len() as u64;
        if self.is_loose {
            flush_name(&self.path)?;
            self.is_loose = false;
        }
        if records.iter().any(Record::is_vital) {
            self.file.sync_data().map_err(|e| failed("sync", &self.path, e))?;
        }
        Ok(())
    }

    /// From now on each write fails.
    #[cfg(test)]
    pub(super) fn fail_from_now_on(&mut self) {
        self.file = File::open(&self.path).expect("the journal was just open");
    }

    /// Returns true if most of the file is obsolete, or may be.
    pub(super) fn is_large(&self) -> bool {
        self.bytes > SMALL.max(self.compacted.saturating_mul(4))
    }

    /// Has the file hold `records` alone if it [is large](Self::is_large). If the disk lets no new file be made, the old one goes on, until
    /// it is twice as large.
    pub(super) fn compact_if_large(&mut self, records: impl FnOnce() -> Vec<Record>) {
        if self.is_large()
            && let Err(error) = self.compact(&records())
        {
            tracing::warn!(error = error.chain(), "the gang journal cannot be compacted");
            self.compacted = self.bytes / 2;
        }
    }

    /// Replaces the file by one that holds `records` alone; at every moment the name has a whole file.
    ///
    /// # Errors
    /// [`Error::Store`]; the old file then still holds everything.
    pub(super) fn compact(&mut self, records: &[Record]) -> Result<()> {
        let path = self.path.clone();
        let failed = |operation: &str, error: std::io::Error| failed(operation, &path, error);
        let mut bytes = MAGIC.to_vec();
        bytes.extend(encode(records)?);
        let mut name = path.clone().into_os_string();
        name.push(".new");
        let new = PathBuf::from(name);
        let mut file = private().append(true).create(true).open(&new).map_err(|e| failed("rewrite", e))?;
        file.set_len(0).map_err(|e| failed("rewrite", e))?;
        // Readers that the owner admitted stay admitted.
        let rights = self.file.metadata().map_err(|e| failed("stat", e))?.permissions();
        file.set_permissions(rights).map_err(|e| failed("rewrite", e))?;
        file.write_all(&bytes).map_err(|e| failed("rewrite", e))?;
        file.sync_all().map_err(|e| failed("sync", e))?;
        std::fs::rename(&new, &path).map_err(|e| failed("replace", e))?;
        // The old file has no name any more.
        self.file = file;
        self.bytes = bytes.len() as u64;
        self.compacted = self.bytes;
        self.is_loose = flush_name(&path).is_err();
        Ok(())
    }
}

/// Refuses a file that cannot be a journal, without making or changing it; the predecessor of this server may have it open.
///
/// # Errors
/// As [`Journal::open`].
pub(crate) fn check(path: &Path) -> Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match std::fs::metadata(path) {
        Ok(about) if about.is_file() => {}
        Ok(about) if about.is_dir() => {
            return Err(failed("open", path, std::io::Error::from(std::io::ErrorKind::IsADirectory)));
        }
        // A device is opened once, where it is needed.
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let writable = rustix::fs::access(directory, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK);
            return writable.map_err(|error| failed("create", path, std::io::Error::from(error)));
        }
        Err(error) => return Err(failed("open", path, error)),
    }
    let mut head = Vec::new();
    let file = File::open(path).map_err(|error| failed("open", path, error))?;
    file.take(MAGIC.len() as u64).read_to_end(&mut head).map_err(|error| failed("read", path, error))?;
    known(&head, path)
}

/// Refuses a file whose first bytes, `head`, are those of no journal, or of a newer one.
fn known(head: &[u8], path: &Path) -> Result<()> {
    let form = head.strip_prefix(&MAGIC[..7]).and_then(<[u8]>::first);
    if let Some(form) = form.filter(|form| **form > MAGIC[7]) {
        return Err(newer(format!("form {} of the gang journal {}", form.escape_ascii(), path.display())));
    }
    if !MAGIC.starts_with(head) && head != OLD_MAGIC {
        let place = Place::file(path.display().to_string());
        return Err(Error::corrupt(place, "not a gang journal; name another file, this one is left as it is"));
    }
    Ok(())
}

/// The error about a file, or a part of it, that only a newer version knows.
fn newer(what: String) -> Error {
    let (own, form) = (crate::flight::version::OWN, MAGIC[7].escape_ascii());
    Error::unsupported(
        format!("{what}; bowstring {own} reads forms 1 to {form}"),
        "a newer version wrote it: start that one, or name another file, with which all gangs begin anew",
    )
}

/// Options for creating a journal: only its owner may read it, since it holds the secrets that make a caller a member.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

fn encode(records: &[Record]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for record in records {
        let body = super::wire::write(record)?;
        let length = u32::try_from(body.len()).ok().filter(|length| *length as usize <= LONGEST);
        let Some(length) = length else {
            let (asked, limit) = (body.len() as u64, LONGEST as u64);
            return Err(Error::limit("a record of the gang journal", asked, limit, "max_gathered"));
        };
        bytes.extend(length.to_le_bytes());
        bytes.extend(crc32fast::hash(&body).to_le_bytes());
        bytes.extend(body);
    }
    Ok(bytes)
}

/// The next part of a journal.
enum Next {
    /// A record, and its size in the file, in bytes.
    Record(Record, u64),
    /// A whole record that this version does not understand.
    Unknown(serde_json::Error),
    /// Nothing, or nothing whole.
    Torn,
}

fn next(reader: &mut impl Read) -> std::io::Result<Next> {
    let mut head = Vec::new();
    reader.by_ref().take(HEAD as u64).read_to_end(&mut head)?;
    let Some((length, crc)) = sizes(&head) else { return Ok(Next::Torn) };
    let mut body = Vec::new();
    reader.by_ref().take(length as u64).read_to_end(&mut body)?;
    if body.len() != length || crc32fast::hash(&body) != crc {
        return Ok(Next::Torn);
    }
    Ok(match serde_json::from_slice(&body) {
        Ok(record) => Next::Record(record, (HEAD + length) as u64),
        Err(error) => Next::Unknown(error),
    })
}

/// Length and checksum in the head of a record; `None` if it is not one. No record is empty, as a tail of zeros would claim.
fn sizes(head: &[u8]) -> Option<(usize, u32)> {
    let (length, rest) = head.split_first_chunk::<4>()?;
    let (length, crc) = (u32::from_le_bytes(*length) as usize, u32::from_le_bytes(*rest.first_chunk()?));
    (1..=LONGEST).contains(&length).then_some((length, crc))
}

/// Returns true if there is a whole record anywhere after byte `from`, where there is none.
fn whole_record_in(path: &Path, from: u64) -> std::io::Result<bool> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(from))?;
    let mut rest = Vec::new();
    file.read_to_end(&mut rest)?;
    let begins = |at: &usize| rest[*at..].starts_with(BEGINNING);
    Ok((HEAD..rest.len()).filter(begins).any(|at| {
        let body = sizes(&rest[at - HEAD..at]).and_then(|(length, crc)| Some((rest.get(at..at + length)?, crc)));
        body.is_some_and(|(body, crc)| crc32fast::hash(body) == crc)
    }))
}
