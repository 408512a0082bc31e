//! The audit log: each call, its caller and how much was sent, as one line of JSON per call and per finished stream.
//!
//! A thread writes the lines from a bounded queue, so callers never wait. Lines that the queue or the disk cannot take are counted, and
//! the next line written reports how many were lost.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arrow_flight::{Action, FlightDescriptor};
use prost::Message as _;
use rustix::fs::{Access, access};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tonic::{Code, Status};

use super::auth::Tenant;
use crate::error::{Error, Result};
use crate::flight::ticket::Ticket;
use crate::store::directory::above;

/// Lines that may wait to be written.
const QUEUE: usize = 4096;
/// Longest text of a caller that is logged, in characters.
const SHOWN: usize = 128;
/// Least time between two warnings about a disk that takes nothing.
const COMPLAIN: Duration = Duration::from_secs(60);

/// The record of one call or one stream.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct AuditRecord {
    /// Seconds since 1970.
    time: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tenant: Option<String>,
    /// Address of the caller; `local` for a process on this host that uses shared memory.
    pub(crate) peer: String,
    /// The call, or the action.
    pub(crate) call: String,
    /// The dataset or gang that the call names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) what: Option<String>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) read: Option<Read>,
    /// Earlier refusals of this peer that were delayed and have no line of their own.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) held: u64,
    /// `ok`, or the code of the refusal.
    result: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

/// The data that a stream reads.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Read {
    /// Fingerprint of the data.
    data: String,
    /// Fingerprint of the plan, which covers the data too; not known of stored rows and tickets of older versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<String>,
    rank: Option<u32>,
    world_size: u32,
    epoch: u64,
    /// First step of the stream, and the step after the last one sent.
    steps: [u64; 2],
    /// Rows sent.
    rows: u64,
}

impl Read {
    pub(crate) fn of(ticket: &Ticket) -> Self {
        let asked = &ticket.asked;
        Self {
            data: ticket.fingerprint.to_string(),
            plan: ticket.plan.map(|plan| plan.to_string()),
            rank: asked.rank,
            world_size: asked.world_size,
            epoch: asked.epoch,
            steps: [asked.step; 2],
            rows: 0,
        }
    }

    /// Records that the batch of `step` was sent.
    pub(crate) fn sent(&mut self, step: u64, rows: u64) {
        self.steps[1] = step.saturating_add(1);
        self.rows = self.rows.saturating_add(rows);
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Shortens a text of a caller to the length that is logged.
fn cut(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

impl AuditRecord {
    pub(crate) fn of(call: &str, peer: Option<IpAddr>, tenant: Option<&Tenant>) -> Self {
        let peer = peer.map_or_else(|| "local".to_owned(), |peer| peer.to_string());
        Self { peer, call: cut(call), tenant: tenant.map(|tenant| tenant.name().to_owned()), ..Self::default() }
    }

    /// Adds the names in `body`: the message of a call without its frame.
    pub(crate) fn about(mut self, body: &[u8]) -> Self {
        let named = |json: &[u8]| serde_json::from_slice::<Named>(json).ok().and_then(Named::name);
        match self.call.as_str() {
            "DoAction" => {
                if let Ok(action) = Action::decode(body) {
                    self.call = cut(&action.r#type);
                    self.what = named(&action.body);
                }
            }
            "GetFlightInfo" | "GetSchema" => {
                if let Ok(descriptor) = FlightDescriptor::decode(body) {
                    self.what = descriptor.path.first().map(|name| cut(name)).or_else(|| named(&descriptor.cmd));
                }
            }
            _ => {}
        }
        self
    }

    /// Ends the record with `status`.
    pub(crate) fn ended(mut self, status: Option<&Status>) -> Self {
        self.time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let failed = status.filter(|status| status.code() != Code::Ok);
        self.result = failed.map_or_else(|| "ok".to_owned(), |status| format!("{:?}", status.code()));
        self.why = failed.map(|status| cut(status.message()));
        self
    }
}

/// Names in the JSON body of a call.
#[derive(Deserialize)]
struct Named {
    dataset: Option<String>,
    gang: Option<String>,
    caller: Option<Box<Named>>,
}

impl Named {
    fn name(self) -> Option<String> {
        let own = self.dataset.or(self.gang).map(|name| cut(&name));
        own.or_else(|| self.caller.and_then(|caller| caller.name()))
    }
}

/// An open stream and its line, which is written when the stream ends for any reason.
#[derive(Debug)]
pub(crate) struct Stream {
    audit: Audit,
    line: Option<AuditRecord>,
}

impl Stream {
    pub(crate) fn new(audit: &Audit, line: AuditRecord) -> Self {
        Self { audit: audit.clone(), line: Some(line) }
    }

    pub(crate) fn reads(&mut self, ticket: &Ticket) {
        if let Some(line) = &mut self.line {
            line.tenant.get_or_insert_with(|| ticket.tenant.clone());
            line.what = Some(cut(&ticket.asked.dataset));
            line.read = Some(Read::of(ticket));
        }
    }

    pub(crate) fn sent(&mut self, step: u64, rows: u64) {
        if let Some(read) = self.line.as_mut().and_then(|line| line.read.as_mut()) {
            read.sent(step, rows);
        }
    }

    pub(crate) fn end(&mut self, status: Option<&Status>) {
        if let Some(line) = self.line.take() {
            self.audit.add(&line.ended(status));
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.end(Some(&Status::cancelled("the client left")));
    }
}

/// State shared by the writers and the thread.
#[derive(Debug, Default)]
struct Shared {
    lost: AtomicU64,
    reopen: AtomicBool,
}

/// The log. Clones share it; without a file it discards every line.
#[derive(Clone, Default)]
pub struct Audit(Option<(SyncSender<Queued>, Arc<Shared>)>);

/// A message to the thread.
enum Queued {
    AuditRecord(Vec<u8>),
    /// A request to report when everything before it is written.
    Flush(SyncSender<()>),
}

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Audit").field("on", &self.0.is_some()).finish()
    }
}

impl Audit {
    /// Opens a log that appends to the file at `path`, creating it readable by its owner alone.
    ///
    /// # Errors
    /// [`Error::Config`] naming the file.
    pub fn open(path: &Path) -> Result<Self> {
        let file = append(path).map_err(|error| unwritable(path, &error))?;
        let (sender, lines) = sync_channel(QUEUE);
        let shared = Arc::new(Shared::default());
        let mut writer =
            Writer { path: path.to_owned(), file, shared: Arc::clone(&shared), torn: false, complained: None };
        let started = std::thread::Builder::new().name("bowstring-audit".to_owned()).spawn(move || writer.run(&lines));
        started.map_err(|error| Error::Closed { why: format!("no thread for the audit log: {error}") })?;
        Ok(Self(Some((sender, shared))))
    }

    /// Checks that [`open`](Self::open) finds a file to append to or may make it, without making it.
    ///
    /// # Errors
    /// As those of [`open`](Self::open).
    pub fn check(path: &Path) -> Result<()> {
        let may = match fs::metadata(path) {
            Ok(found) if found.is_dir() => Err(Errno::ISDIR),
            Ok(_) => access(path, Access::WRITE_OK),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                access(above(path), Access::WRITE_OK | Access::EXEC_OK)
            }
            Err(error) => return Err(unwritable(path, &error)),
        };
        may.map_err(|error| unwritable(path, &error.into()))
    }

    /// True if lines are kept.
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Adds a line without waiting.
    pub(crate) fn add(&self, line: &AuditRecord) {
        let Some((sender, shared)) = &self.0 else { return };
        let mut text = serde_json::to_vec(line).unwrap_or_default();
        text.push(b'\n');
        if sender.try_send(Queued::AuditRecord(text)).is_err() {
            shared.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits up to `wait` until the lines so far are written.
    pub(crate) fn flush(&self, wait: Duration) {
        let Some((sender, _)) = &self.0 else { return };
        let (written, told) = sync_channel(1);
        let start = Instant::now();
        // A full queue is being written.
        let mut entry = Queued::Flush(written);
        while let Err(TrySendError::Full(back)) = sender.try_send(entry) {
            if start.elapsed() >= wait {
                return;
            }
            entry = back;
            std::thread::sleep(Duration::from_millis(1));
        }
        // If the thread has ended, nothing arrives and nothing is left to wait for.
        let _ = told.recv_timeout(wait.saturating_sub(start.elapsed()));
    }

    /// Reopens the path before the next line, because the former file was moved away.
    pub(crate) fn reopen(&self) {
        if let Some((_, shared)) = &self.0 {
            shared.reopen.store(true, Ordering::Release);
        }
    }
}

fn unwritable(path: &Path, error: &io::Error) -> Error {
    Error::config("audit_log", format!("file {} cannot be written: {error}", path.display()))
}

fn append(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// State of the thread.
struct Writer {
    path: PathBuf,
    file: File,
    shared: Arc<Shared>,
    /// True if the last line may be incomplete.
    torn: bool,
    complained: Option<Instant>,
}

impl Writer {
    fn run(&mut self, lines: &Receiver<Queued>) {
        loop {
            // Wakes now and then, so that a file that was moved away is closed even without calls.
            let line = match lines.recv_timeout(Duration::from_secs(1)) {
                Ok(Queued::AuditRecord(line)) => Some(line),
                Ok(Queued::Flush(waiting)) => {
                    // A caller whose wait timed out is gone.
                    let _ = waiting.send(());
                    None
                }
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if self.shared.reopen.swap(false, Ordering::AcqRel) {
                match append(&self.path) {
                    Ok(file) => (self.file, self.torn) = (file, false),
                    Err(error) => self.complain(&error),
                }
            }
            if let Some(line) = line
                && let Err(error) = self.write(&line)
            {
                self.shared.lost.fetch_add(1, Ordering::Relaxed);
                self.torn = true;
                self.complain(&error);
            }
        }
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let lost = self.shared.lost.load(Ordering::Relaxed);
        let mut text = Vec::new();
        if self.torn {
            text.push(b'\n');
        }
        if lost > 0 {
            text.extend_from_slice(format!("{{\"lost\":{lost}}}\n").as_bytes());
        }
        text.extend_from_slice(line);
        self.file.write_all(&text)?;
        self.shared.lost.fetch_sub(lost, Ordering::Relaxed);
        self.torn = false;
        Ok(())
    }

    fn complain(&mut self, error: &io::Error) {
        if self.complained.is_none_or(|at| at.elapsed() >= COMPLAIN) {
            self.complained = Some(Instant::now());
            tracing::warn!(%error, file = %self.path.display(), "the audit log cannot be written; lines are lost");
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn lines(path: &Path, count: usize) -> Vec<serde_json::Value> {
        let start = Instant::now();
        loop {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            if text.lines().count() >= count {
                return text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            }
            assert!(start.elapsed() < Duration::from_secs(20), "{text}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn lines_are_whole_and_the_file_may_be_moved_away() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit");
        let audit = Audit::open(&path).unwrap();
        let ticket = Ticket::sample();
        let mut stream = Stream::new(&audit, AuditRecord::of("DoGet", "10.0.0.7".parse().ok(), None));
        stream.reads(&ticket);
        stream.sent(4, 10);
        stream.sent(5, 3);
        drop(stream);
        let text = "x".repeat(10_000);
        audit.add(&AuditRecord::of(&text, None, None).ended(Some(&Status::unauthenticated(text.clone()))));
        let found = lines(&path, 2);
        let of = |line: &serde_json::Value, key: &str| line[key].to_string();
        assert_eq!(of(&found[0], "steps"), format!("[{},6]", ticket.asked.step));
        assert_eq!((of(&found[0], "rows"), of(&found[0], "result")), ("13".into(), "\"Cancelled\"".into()));
        assert_eq!((of(&found[0], "tenant"), of(&found[0], "peer")), ("\"a\"".into(), "\"10.0.0.7\"".into()));
        assert_eq!(of(&found[0], "data"), format!("\"{}\"", ticket.fingerprint));
        assert_eq!(of(&found[0], "plan"), format!("\"{}\"", ticket.plan.unwrap()));
        assert!(of(&found[1], "why").len() < 200 && of(&found[1], "peer") == "\"local\"");
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        let moved = directory.path().join("audit.1");
        std::fs::rename(&path, &moved).unwrap();
        audit.reopen();
        audit.add(&AuditRecord::of("new", None, None).ended(None));
        audit.flush(Duration::from_secs(20));
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 1, "what was flushed is there");
        assert_eq!((lines(&path, 1)[0]["result"].as_str(), lines(&moved, 2).len()), (Some("ok"), 2));
    }

    #[test]
    fn a_place_is_checked_as_it_is_opened_and_nothing_is_made() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for path in [at("missing/audit"), directory.path().to_owned()] {
            let told = Audit::check(&path).unwrap_err().to_string();
            assert_eq!(told, Audit::open(&path).unwrap_err().to_string());
        }
        Audit::check(&at("audit")).unwrap();
        assert!(!at("audit").exists());
        std::fs::write(at("audit"), "before\n").unwrap();
        Audit::check(&at("audit")).unwrap();
        assert_eq!(std::fs::read_to_string(at("audit")).unwrap(), "before\n");
        assert!(Audit::check(&at("audit/x")).is_err(), "a file is no directory");
    }

    #[test]
    fn a_disk_that_takes_nothing_costs_lines_and_no_time_or_memory() {
        let Ok(audit) = Audit::open(Path::new("/dev/full")) else { return };
        let start = Instant::now();
        for _ in 0..100_000 {
            audit.add(&AuditRecord::of("DoGet", None, None).ended(None));
        }
        assert!(start.elapsed() < Duration::from_secs(20));
        let lost = || audit.0.as_ref().map_or(0, |(_, shared)| shared.lost.load(Ordering::Relaxed));
        while lost() < 100_000 {
            assert!(start.elapsed() < Duration::from_secs(40), "{} lost", lost());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
