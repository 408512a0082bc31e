//! The list of a cache's content, shared by all processes: one file that grows by a record for each change.
//!
//! A process that changes something holds the lock of the directory, reads the others' records, and appends its own. Room is taken before
//! bytes are written and given back after they are gone, so a process that is killed leaves too much in the list and never too little. An
//! incomplete record is cut off. After a start of the machine, when the last writes may be lost, and if the file is damaged, the list is
//! made anew from the directory: the blocks are the truth.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

use sha2::{Digest, Sha256};
use twox_hash::XxHash3_64;

use super::super::pinned::is_at;
use super::block::{Block, Form, ObjectKey};
use super::directory::{LEDGER_ASIDE, gone, writable};

const RECORD: usize = 48;
const MAGIC: [u8; 8] = *b"BOWLEDG1";

/// Most bytes of a ledger: beyond that, scanning the directory is faster.
const MOST: u64 = 256 << 20;

/// Records beyond the blocks that there are before the file is written anew.
const STALE_RECORDS: usize = 4096;

/// A change of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// Room was taken for it.
    Awaited,
    /// It is there.
    Arrived,
    /// It is gone.
    Removed,
}

impl Event {
    fn code(self) -> u8 {
        match self {
            Self::Awaited => 1,
            Self::Arrived => 2,
            Self::Removed => 3,
        }
    }

    fn of(code: u8) -> Option<Self> {
        [Self::Awaited, Self::Arrived, Self::Removed].into_iter().find(|event| event.code() == code)
    }
}

/// The others' changes since the last look.
#[derive(Debug)]
pub(super) enum News {
    /// These things, in order.
    Events(Vec<(Event, Block)>),
    /// Unknown; the directory has to be scanned, and the outcome [written](Ledger::rewrite).
    Lost,
}

/// See the module. The caller holds the lock.
#[derive(Debug)]
pub(super) struct Ledger {
    path: PathBuf,
    file: Option<File>,
    /// Bytes of it that were read, whole records.
    read: u64,
    boot: [u8; 16],
}

impl Ledger {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, file: None, read: 0, boot: boot() }
    }

    /// Reads the records since the last call; from the beginning if another process rewrote the file.
    pub(super) fn news(&mut self) -> io::Result<(bool, News)> {
        let mut anew = false;
        if self.file.as_ref().is_none_or(|file| !is_at(file, &self.path)) {
            anew = true;
            let mut file = writable(&self.path)?;
            let mut head = [0; RECORD];
            (self.read, self.file) = (RECORD as u64, None);
            let found = file.read_exact(&mut head);
            let is_ours = found.is_ok() && head == self.head();
            self.file = Some(file);
            if !is_ours {
                return Ok((true, News::Lost));
            }
        }
        let Some(file) = &mut self.file else { return Ok((true, News::Lost)) };
        let length = file.metadata()?.len();
        if length < self.read || length > MOST {
            return Ok((true, News::Lost));
        }
        file.seek(SeekFrom::Start(self.read))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let mut events = Vec::with_capacity(bytes.len() / RECORD);
        for record in bytes.chunks(RECORD) {
            match parse(record) {
                Some(event) => events.push(event),
                // The last one, by a process that was killed. In the middle it is damage.
                None if record.len() < RECORD => break,
                None => return Ok((true, News::Lost)),
            }
        }
        self.read += (events.len() * RECORD) as u64;
        Ok((anew, News::Events(events)))
    }

    /// Appends `events`, after [`news`](Self::news).
    pub(super) fn append(&mut self, events: &[(Event, Block)]) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Err(io::Error::other("the ledger is not open")) };
        if events.is_empty() {
            return Ok(());
        }
        let bytes: Vec<u8> = events.iter().flat_map(|(event, block)| record(*event, block)).collect();
        if file.metadata()?.len() != self.read {
            file.set_len(self.read)?;
        }
        file.seek(SeekFrom::Start(self.read))?;
        file.write_all(&bytes)?;
        self.read += bytes.len() as u64;
        Ok(())
    }

    /// Returns true if most of the file is obsolete, given that there are `blocks` blocks.
    pub(super) fn is_stale(&self, blocks: usize) -> bool {
        self.read as usize / RECORD > 3 * blocks + STALE_RECORDS
    }

    /// Writes the file anew: these blocks, each there or awaited.
    pub(super) fn rewrite(&mut self, blocks: impl Iterator<Item = (Block, bool)>) -> io::Result<()> {
        let mut bytes = self.head().to_vec();
        for (block, is_there) in blocks {
            bytes.extend(record(Event::Awaited, &block));
            if is_there {
                bytes.extend(record(Event::Arrived, &block));
            }
        }
        let aside = self.path.with_file_name(LEDGER_ASIDE);
        gone(fs::remove_file(&aside))?;
        let mut file = writable(&aside)?;
        file.write_all(&bytes)?;
        fs::rename(&aside, &self.path)?;
        (self.file, self.read) = (Some(file), bytes.len() as u64);
        Ok(())
    }

    fn head(&self) -> [u8; RECORD] {
        let mut head = [0; RECORD];
        fill(&mut head, &[&MAGIC, &self.boot]);
        head
    }
}

fn fill(record: &mut [u8; RECORD], parts: &[&[u8]]) {
    let bytes = parts.iter().flat_map(|part| part.iter());
    record.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    let sum = XxHash3_64::oneshot(&record[..RECORD - 8]);
    record[RECORD - 8..].copy_from_slice(&sum.to_le_bytes());
}

fn record(event: Event, block: &Block) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    let code = [event.code(), u8::from(block.is_whole()), 0, 0, 0, 0, 0, 0];
    fill(&mut record, &[&code, &block.object.0, &block.start.to_le_bytes(), &block.end.to_le_bytes()]);
    record
}

fn parse(record: &[u8]) -> Option<(Event, Block)> {
    let number = |at: usize| Some(u64::from_le_bytes(record.get(at..at + 8)?.try_into().ok()?));
    if number(40)? != XxHash3_64::oneshot(record.get(..40)?) {
        return None;
    }
    let object = ObjectKey(record.get(8..24)?.try_into().ok()?);
    let form = match record.get(1)? {
        0 => Form::Range,
        1 => Form::Whole,
        _ => return None,
    };
    let block = Block { object, start: number(24)?, end: number(32)?, form };
    block.is_possible().then_some((Event::of(*record.first()?)?, block))
}

/// An identifier that changes with each start of the machine; constant if the system has none.
pub(super) fn boot() -> [u8; 16] {
    let id = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let mut boot = [0; 16];
    boot.iter_mut().zip(Sha256::digest(id)).for_each(|(to, from)| *to = from);
    boot
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(at: u64) -> Block {
        Block { object: ObjectKey([3; 16]), start: at, end: at + 10, form: Form::Range }
    }

    fn events(ledger: &mut Ledger) -> Vec<(Event, Block)> {
        match ledger.news().unwrap() {
            (_, News::Events(events)) => events,
            (_, News::Lost) => panic!("lost"),
        }
    }

    #[test]
    fn everybody_learns_what_others_did() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("ledger");
        let [mut one, mut two] = [Ledger::new(path.clone()), Ledger::new(path.clone())];
        assert!(matches!(one.news().unwrap(), (true, News::Lost)), "there is nothing yet");
        one.rewrite([(block(0), true)].into_iter()).unwrap();
        assert_eq!(events(&mut two), [(Event::Awaited, block(0)), (Event::Arrived, block(0))]);
        let whole = Block::whole(ObjectKey([3; 16]), 9);
        two.append(&[(Event::Removed, block(0)), (Event::Awaited, block(5)), (Event::Awaited, whole)]).unwrap();
        let changes = [(Event::Removed, block(0)), (Event::Awaited, block(5)), (Event::Awaited, whole)];
        assert_eq!(events(&mut one), changes);
        assert_eq!((events(&mut one), events(&mut two)), (vec![], vec![]));
        // The incomplete record of a killed process is no event, and is overwritten.
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(&record(Event::Arrived, &block(5))[..20]).unwrap();
        assert_eq!(events(&mut two), []);
        two.append(&[(Event::Removed, block(5))]).unwrap();
        assert_eq!(events(&mut one), [(Event::Removed, block(5))]);
        one.rewrite([(block(7), false)].into_iter()).unwrap();
        assert!(two.news().unwrap().0, "from the beginning");
    }

    #[test]
    fn damage_and_another_start_of_the_machine_are_seen() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("ledger");
        let mut ledger = Ledger::new(path.clone());
        ledger.news().unwrap();
        ledger.rewrite((0..20).map(|at| (block(at), true))).unwrap();
        let whole = fs::read(&path).unwrap();
        for at in (0..whole.len()).step_by(13) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            fs::write(&path, bytes).unwrap();
            assert!(matches!(Ledger::new(path.clone()).news().unwrap(), (true, News::Lost)), "byte {at}");
        }
        fs::write(&path, &whole).unwrap();
        let mut later = Ledger { boot: [1; 16], ..Ledger::new(path.clone()) };
        assert!(matches!(later.news().unwrap(), (true, News::Lost)));
        later.rewrite([(block(1), true)].into_iter()).unwrap();
        assert_eq!(events(&mut Ledger { boot: [1; 16], ..Ledger::new(path) }).len(), 2);
    }
}
