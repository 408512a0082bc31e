//! What a server must still know after it was killed: generations, members, acknowledged positions, opened rounds.
//!
//! An append-only file: 8 bytes `BOWGANG1`, then records of `u32 length | u32 crc32 | JSON` (little endian). A record is
//! written before the answer that follows from it, so that killing the process loses nothing that anybody was told; the end
//! of a generation and the beginning of one are also fsynced. A tail that was torn by a crash is cut at the first bad
//! record: its answer was never sent.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::wire::{MemberInfo, Position, Reading, Share, hex_u128};
use crate::error::{Error, Place, Result};
use crate::store::directory::{failed, flush};

const MAGIC: &[u8; 8] = b"BOWGANG1";
/// No record is longer, in bytes: what claims to be is damage.
const LONGEST: usize = 256 << 20;
/// A file below this is not worth compacting, in bytes.
const SMALL: u64 = 1 << 20;

/// A member as the journal keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seat {
    pub(super) rank: u32,
    #[serde(with = "hex_u128")]
    pub(super) attempt: u128,
    pub(super) share: Share,
    pub(super) info: MemberInfo,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "lowercase")]
pub(super) enum Record {
    /// A generation began at position `at` of the plan `reads`.
    Formed {
        gang: String,
        generation: u64,
        at: Option<Position>,
        acknowledged: Option<Position>,
        members: Vec<Seat>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reads: Option<Reading>,
    },
    /// The generation before `generation` is over. What it acknowledged is of the plan `reads`.
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
    /// A round opened; its messages, hex, are kept for ranks that have not got them yet.
    Opened { gang: String, generation: u64, round: u64, messages: Vec<String> },
    /// A rank left cleanly.
    Left { gang: String, generation: u64, rank: u32 },
    /// All ranks left cleanly.
    Ended { gang: String, generation: u64 },
    /// Gangs that were forgotten had no generation above this one.
    Floor { generation: u64 },
}

impl Record {
    /// Whether losing it in a power cut could let two generations be taken for one.
    fn is_vital(&self) -> bool {
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
    /// Size right after the last compaction, in bytes.
    compacted: u64,
}

impl Journal {
    /// Opens or creates the file and returns its records in order. A torn tail is cut off.
    ///
    /// # Errors
    /// [`Error::Store`] if the file cannot be read or written, [`Error::Corrupt`] if it is not a journal at all.
    pub(super) fn open(path: &Path) -> Result<(Self, Vec<Record>)> {
        let failed = |operation: &str, error: std::io::Error| failed(operation, path, error);
        let file = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(|e| failed("open", e))?;
        let length = file.metadata().map_err(|e| failed("stat", e))?.len();
        let mut reader = BufReader::new(&file);
        let mut head = Vec::new();
        reader.by_ref().take(MAGIC.len() as u64).read_to_end(&mut head).map_err(|e| failed("read", e))?;
        let mut records = Vec::new();
        let mut good = 0;
        if head == MAGIC {
            good = MAGIC.len() as u64;
            while let Some((record, size)) = next(&mut reader).map_err(|e| failed("read", e))? {
                records.push(record);
                good += size;
            }
        } else if !MAGIC.starts_with(&head) {
            let place = Place::file(path.display().to_string());
            return Err(Error::corrupt(place, "not a gang journal; name another file, this one is left as it is"));
        }
        drop(reader);
        let mut journal = Self { path: path.to_owned(), file, bytes: good, compacted: good };
        if good < length {
            tracing::warn!(path = %path.display(), cut = length - good, "the tail of the gang journal was torn, and is cut");
            journal.file.set_len(good).map_err(|e| failed("truncate", e))?;
        }
        if good == 0 {
            journal.file.write_all(MAGIC).map_err(|e| failed("write", e))?;
            journal.bytes = MAGIC.len() as u64;
        }
        journal.file.sync_all().map_err(|e| failed("sync", e))?;
        flush(home(path))?;
        Ok((journal, records))
    }

    /// Appends `records`, and fsyncs if one of them is vital.
    ///
    /// # Errors
    /// [`Error::Store`]; the file may then end in a torn record, and nothing may be appended after it.
    pub(super) fn append(&mut self, records: &[Record]) -> Result<()> {
        let bytes = encode(records)?;
        self.file.write_all(&bytes).map_err(|e| failed("append to", &self.path, e))?;
        self.bytes += bytes.len() as u64;
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

    /// Whether most of the file is history that nobody needs.
    pub(super) fn is_large(&self) -> bool {
        self.bytes > SMALL.max(self.compacted.saturating_mul(4))
    }

    /// Replaces the file by one that holds `records` alone; at every moment one of both is whole under the name.
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
        let mut file = File::create(&new).map_err(|e| failed("rewrite", e))?;
        file.write_all(&bytes).map_err(|e| failed("rewrite", e))?;
        file.sync_all().map_err(|e| failed("sync", e))?;
        std::fs::rename(&new, &path).map_err(|e| failed("replace", e))?;
        flush(home(&path))?;
        self.file = OpenOptions::new().append(true).open(&path).map_err(|e| failed("open", e))?;
        self.bytes = bytes.len() as u64;
        self.compacted = self.bytes;
        Ok(())
    }
}

/// The directory whose names say where the journal is: a new name is durable only once it is on the disk.
fn home(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn encode(records: &[Record]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for record in records {
        let body = super::wire::write(record)?;
        let length = u32::try_from(body.len()).ok().filter(|length| *length as usize <= LONGEST);
        let Some(length) = length else {
            let (asked, limit) = (body.len() as u64, LONGEST as u64);
            return Err(Error::Limit {
                what: "a record of the gang journal".into(),
                asked,
                limit,
                option: "max_gathered",
            });
        };
        bytes.extend(length.to_le_bytes());
        bytes.extend(crc32fast::hash(&body).to_le_bytes());
        bytes.extend(body);
    }
    Ok(bytes)
}

/// The next record and its size in the file, in bytes; `None` where the good part ends.
fn next(reader: &mut impl Read) -> std::io::Result<Option<(Record, u64)>> {
    let mut head = [0; 8];
    let mut have = Vec::new();
    reader.by_ref().take(8).read_to_end(&mut have)?;
    if have.len() < 8 {
        return Ok(None);
    }
    head.copy_from_slice(&have);
    let [a, b, c, d, e, f, g, h] = head;
    let (length, crc) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
    if length as usize > LONGEST {
        return Ok(None);
    }
    let mut body = Vec::new();
    reader.by_ref().take(u64::from(length)).read_to_end(&mut body)?;
    if body.len() != length as usize || crc32fast::hash(&body) != crc {
        return Ok(None);
    }
    Ok(serde_json::from_slice(&body).ok().map(|record| (record, 8 + u64::from(length))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<Record> {
        let seat = |rank| Seat {
            rank,
            attempt: u128::MAX - u128::from(rank),
            share: Share { rank, of: 2 },
            info: MemberInfo { address: "10.0.0.1:1".into(), ..MemberInfo::default() },
        };
        let at = Position { epoch: 1, step: 7 };
        vec![
            Record::Formed {
                gang: "a".into(),
                generation: 1,
                at: None,
                acknowledged: None,
                members: vec![seat(0), seat(1)],
                reads: None,
            },
            Record::Acked { gang: "a".into(), generation: 1, rank: 1, position: at },
            Record::Opened { gang: "a".into(), generation: 1, round: 3, messages: vec!["00ff".into(), String::new()] },
            Record::Raised {
                gang: "a".into(),
                generation: 2,
                acknowledged: Some(at),
                why: "rank 1 lost".into(),
                reads: None,
            },
        ]
    }

    #[test]
    fn a_tail_torn_at_any_byte_keeps_all_whole_records_and_goes_on() {
        let home = tempfile::tempdir().unwrap();
        let whole = home.path().join("whole");
        let (mut journal, before) = Journal::open(&whole).unwrap();
        assert!(before.is_empty());
        let mut ends = vec![MAGIC.len()];
        for record in records() {
            journal.append(std::slice::from_ref(&record)).unwrap();
            ends.push(journal.bytes as usize);
        }
        let bytes = std::fs::read(&whole).unwrap();
        assert_eq!(ends.last(), Some(&bytes.len()));
        let torn = home.path().join("torn");
        for length in 0..=bytes.len() {
            std::fs::write(&torn, &bytes[..length]).unwrap();
            let whole_ones = ends.iter().filter(|end| **end <= length).count().saturating_sub(1);
            let (mut journal, found) = Journal::open(&torn).unwrap();
            assert_eq!(found, records()[..whole_ones], "cut at {length}");
            let next = Record::Floor { generation: 9 };
            journal.append(std::slice::from_ref(&next)).unwrap();
            drop(journal);
            let found = Journal::open(&torn).unwrap().1;
            assert_eq!(found.last(), Some(&next), "cut at {length}");
            assert_eq!(found.len(), whole_ones + 1, "cut at {length}");
        }
    }

    #[test]
    fn a_flipped_bit_ends_the_good_part_and_another_file_is_left_alone() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("j");
        Journal::open(&path).unwrap().0.append(&records()).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        for at in 8..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            std::fs::write(&path, &damaged).unwrap();
            let found = Journal::open(&path).unwrap().1;
            assert!(found.len() < 4 && found == records()[..found.len()], "bit at byte {at}");
        }
        std::fs::write(&path, b"precious things").unwrap();
        assert!(matches!(Journal::open(&path), Err(Error::Corrupt { .. })));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious things");
    }

    #[test]
    fn compaction_keeps_what_it_is_given_and_appends_after_it() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("j");
        let (mut journal, _) = Journal::open(&path).unwrap();
        while !journal.is_large() {
            journal.append(&records()).unwrap();
        }
        journal.compact(&records()[3..]).unwrap();
        assert!(!journal.is_large());
        journal.append(&records()[..1]).unwrap();
        let found = Journal::open(&path).unwrap().1;
        assert_eq!(found, [records()[3].clone(), records()[0].clone()]);
    }
}
