//! A server of objects that understands ranges, conditions and S3's listing.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use object_store::path::Path as Key;
use url::form_urlencoded;

use super::answering::{Answer, Request, STALLS, answer, ranged};

/// The marks of an object's version that the server sends.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Marks {
    pub(crate) etag: Option<&'static str>,
    /// Seconds after a fixed midnight.
    pub(crate) modified: Option<u8>,
}

/// Marks of an object whose version is known.
pub(crate) const PINNED: Marks = Marks { etag: Some("\"a\""), modified: None };

#[derive(Debug, Default)]
struct State {
    objects: Mutex<HashMap<String, (Vec<u8>, Marks)>>,
    /// One line per request: method, path and range.
    requests: Mutex<Vec<String>>,
    ignore_conditions: AtomicBool,
    /// The only key whose signatures are accepted, if restricted, and the answer to others.
    key: Mutex<Option<(String, Answer)>>,
    /// The key and region of each request.
    signers: Mutex<Vec<String>>,
    /// Part of the prefixes below which nothing may be listed.
    unlisted: Mutex<Option<String>>,
    /// Requests for ranges that begin before this are never answered.
    hangs_below: AtomicU64,
    stalls: Mutex<Stalls>,
    /// Milliseconds before each answer to a request for a range.
    delay: AtomicU64,
    /// Requests for ranges that are refused before others are answered.
    busy: AtomicU64,
}

/// Requests for ranges that are never answered, while the next one for the same range is.
#[derive(Debug, Default)]
struct Stalls {
    /// All but one of so many are answered; 0: all.
    every: u64,
    seen: u64,
    /// Path and range of those that nobody asked for again.
    waiting: HashSet<String>,
    count: u64,
}

/// The place where an answer stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stall {
    Head,
    Body,
}

impl Stalls {
    fn of(&mut self, request: String) -> Option<Stall> {
        if self.every == 0 || self.waiting.remove(&request) {
            return None;
        }
        self.seen += 1;
        if !self.seen.is_multiple_of(self.every) {
            return None;
        }
        self.waiting.insert(request);
        self.count += 1;
        Some(if self.count.is_multiple_of(2) { Stall::Body } else { Stall::Head })
    }
}

/// The server; its thread ends with the process.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    state: Arc<State>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        let address = answer(move |request| serve(request, &shared));
        Self { address, state }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    /// Options of a store for this server as an S3 endpoint.
    pub(crate) fn storage_options(&self) -> BTreeMap<String, String> {
        let endpoint = self.url("");
        let options = [
            ("aws_endpoint", endpoint.trim_end_matches('/')),
            ("aws_allow_http", "true"),
            ("aws_access_key_id", "id"),
            ("aws_secret_access_key", "secret"),
            ("aws_region", "eu-west-1"),
            // Requests are counted.
            ("hedge", "false"),
        ];
        options.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
    }

    /// Uploads the file at `from`, or all files below it, to `path`. Names are written as in requests.
    pub(crate) fn upload(&self, from: &Path, path: &str) {
        if !from.is_dir() {
            return self.put(path, fs::read(from).unwrap(), PINNED);
        }
        for entry in fs::read_dir(from).unwrap().flatten() {
            let name = entry.file_name().to_str().unwrap().replace('%', "%25").replace('=', "%3D");
            self.upload(&entry.path(), &format!("{path}/{name}"));
        }
    }

    pub(crate) fn put(&self, path: &str, bytes: Vec<u8>, marks: Marks) {
        self.state.objects.lock().unwrap().insert(format!("/{path}"), (bytes, marks));
    }

    pub(crate) fn remove(&self, path: &str) {
        self.state.objects.lock().unwrap().remove(&format!("/{path}"));
    }

    pub(crate) fn ignore_conditions(&self) {
        self.state.ignore_conditions.store(true, Ordering::SeqCst);
    }

    /// From here on, never answers requests for ranges that begin before `offset`.
    pub(crate) fn hang_below(&self, offset: u64) {
        self.state.hangs_below.store(offset, Ordering::SeqCst);
    }

    /// From here on, never answers one of `every` requests for ranges, or only half of it, in turns; the next one for the same bytes it does.
    pub(crate) fn stall(&self, every: u64) {
        *self.state.stalls.lock().unwrap() = Stalls { every, ..Stalls::default() };
    }

    /// Number of requests that were never answered since then, and of those for whose bytes nobody asked again.
    pub(crate) fn stalled(&self) -> (u64, usize) {
        let stalls = self.state.stalls.lock().unwrap();
        (stalls.count, stalls.waiting.len())
    }

    /// From here on, answers each request for a range so much later.
    pub(crate) fn delay(&self, delay: Duration) {
        self.state.delay.store(u64::try_from(delay.as_millis()).unwrap(), Ordering::SeqCst);
    }

    /// Refuses the next request for a range as S3 does where there are too many.
    pub(crate) fn refuse_one(&self) {
        self.state.busy.fetch_add(1, Ordering::SeqCst);
    }

    /// From here on, answers only requests signed by `key`; refuses the others with `refusal`: a status and an S3 code.
    pub(crate) fn let_in(&self, key: &str, status: &'static str, code: &str) {
        let body = format!("<Error><Code>{code}</Code></Error>").into_bytes();
        *self.state.key.lock().unwrap() = Some((key.to_owned(), (status, String::new(), body)));
    }

    /// From here on, refuses to list what is below a prefix that has `part` in it.
    pub(crate) fn refuse_lists(&self, part: &str) {
        *self.state.unlisted.lock().unwrap() = Some(part.to_owned());
    }

    /// Returns the signers of the requests since the last call: `key region`, or `nobody`.
    pub(crate) fn signers(&self) -> Vec<String> {
        std::mem::take(&mut self.state.signers.lock().unwrap())
    }

    /// Returns the requests since the last call.
    pub(crate) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.requests.lock().unwrap())
    }
}

fn serve(request: &Request, state: &State) -> Option<Answer> {
    let (method, path, range) = (&request.method, request.path.as_str(), request.header("range"));
    state.requests.lock().unwrap().push(format!("{method} {path} {}", range.unwrap_or("all")));
    let signer =
        request.header("authorization").and_then(|header| header.split_once("Credential=")).map(|(_, rest)| rest);
    let mut scope = signer.unwrap_or("nobody").split('/');
    let (key, region) = (scope.next().unwrap_or_default(), scope.nth(1).unwrap_or_default());
    state.signers.lock().unwrap().push(format!("{key} {region}").trim_end().to_owned());
    if let Some((_, refusal)) = state.key.lock().unwrap().as_ref().filter(|(known, _)| known != key) {
        return Some(refusal.clone());
    }
    let start = range.and_then(|range| range.strip_prefix("bytes=")?.split('-').next()?.parse::<u64>().ok());
    if start.is_some_and(|start| start < state.hangs_below.load(Ordering::SeqCst)) {
        return None;
    }
    let mut stall = None;
    if let Some(range) = range.filter(|_| method == "GET") {
        let busy = state.busy.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if busy.is_ok() {
            let body = b"<Error><Code>SlowDown</Code></Error>".to_vec();
            return Some(("503 Slow Down", String::new(), body));
        }
        std::thread::sleep(Duration::from_millis(state.delay.load(Ordering::SeqCst)));
        stall = state.stalls.lock().unwrap().of(format!("{path} {range}"));
        if stall == Some(Stall::Head) {
            return None;
        }
    }
    let (status, mut extra, body) = match path.split_once('?').filter(|(_, query)| query.contains("list-type=2")) {
        Some((_, query)) if state.unlisted.lock().unwrap().as_ref().is_some_and(|part| query.contains(part)) => {
            ("403 Forbidden", String::new(), b"<Error><Code>AccessDenied</Code></Error>".to_vec())
        }
        Some((bucket, query)) => ("200 OK", String::new(), list(state, bucket, query)),
        None => {
            let object = state.objects.lock().unwrap().get(path).cloned();
            object_answer(object, range, request.header("if-match"), state)
        }
    };
    if stall == Some(Stall::Body) {
        extra.push_str(STALLS);
    }
    Some((status, extra, body))
}

/// Lists the objects of `bucket` as S3 does: all below a prefix, or those up to the next delimiter.
fn list(state: &State, bucket: &str, query: &str) -> Vec<u8> {
    let found = form_urlencoded::parse(query.as_bytes()).find(|(key, _)| key == "prefix");
    let prefix = found.map_or_else(String::new, |(_, prefix)| prefix.into_owned());
    let delimited = query.contains("delimiter=");
    let objects = state.objects.lock().unwrap();
    let (mut contents, mut below) = (String::new(), std::collections::BTreeSet::new());
    for (path, (bytes, marks)) in objects.iter() {
        let Some(key) = path.strip_prefix(bucket).and_then(|key| Key::from_url_path(key).ok()) else { continue };
        // Some tools mark a directory by an object whose name ends so.
        let key = format!("{key}{}", if path.ends_with('/') { "/" } else { "" });
        let Some(rest) = key.strip_prefix(prefix.as_str()) else { continue };
        if let Some((directory, _)) = rest.split_once('/').filter(|_| delimited) {
            below.insert(format!("<CommonPrefixes><Prefix>{prefix}{directory}/</Prefix></CommonPrefixes>"));
            continue;
        }
        let (etag, size) = (marks.etag.unwrap_or_default().replace('"', "&quot;"), bytes.len());
        contents.push_str(&format!(
            "<Contents><Key>{key}</Key><LastModified>2026-11-21T00:00:00.000Z</LastModified>\
             <ETag>{etag}</ETag><Size>{size}</Size></Contents>"
        ));
    }
    let below: String = below.into_iter().collect();
    format!("<ListBucketResult><IsTruncated>false</IsTruncated>{contents}{below}</ListBucketResult>").into_bytes()
}

fn object_answer(
    object: Option<(Vec<u8>, Marks)>,
    range: Option<&str>,
    condition: Option<&str>,
    state: &State,
) -> Answer {
    let Some((bytes, marks)) = object else { return ("404 Not Found", String::new(), Vec::new()) };
    let strong = marks.etag.filter(|etag| !etag.starts_with("W/"));
    if condition.is_some_and(|wanted| Some(wanted) != strong) && !state.ignore_conditions.load(Ordering::SeqCst) {
        return ("412 Precondition Failed", String::new(), Vec::new());
    }
    let mut extra = String::new();
    if let Some(etag) = marks.etag {
        extra.push_str(&format!("etag: {etag}\r\n"));
    }
    if let Some(seconds) = marks.modified {
        extra.push_str(&format!("last-modified: Sat, 21 Nov 2026 00:00:{seconds:02} GMT\r\n"));
    }
    ranged(bytes, range, extra)
}
