//! The parts of the Hugging Face Hub that reading datasets needs: a server for metadata and one for bytes, with marks and faults.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};

use super::answering::{Answer, Request, answer, ranged};

/// The only dataset; `old/n` was its name.
const REPO: &str = "o/n";

/// The token that the Hub accepts.
pub(crate) const TOKEN: &str = "hf_sEcReT";

/// Files of a commit by path.
type Files = BTreeMap<String, Vec<u8>>;

#[derive(Debug, Default)]
struct State {
    commits: BTreeMap<String, Files>,
    revisions: BTreeMap<String, String>,
    /// `hub` or `data`, method, path without query, range, and the caller.
    requests: Vec<String>,
    /// Answers that replace the next ones, for requests that contain a text.
    faults: Vec<(&'static str, Answer)>,
    /// Number of signatures issued.
    signatures: u64,
    /// Signatures up to this one have expired.
    expired: u64,
    /// Lifetime in seconds that a signature states.
    life: u64,
    /// Entries per page of a listing.
    page: usize,
    /// Error code for callers without access; `None` lets everybody read.
    closed: Option<&'static str>,
    data: Option<SocketAddr>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct HubServer {
    hub: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl HubServer {
    pub(crate) fn start() -> Self {
        let state = Arc::new(Mutex::new(State { page: 1000, life: 3600, ..State::default() }));
        let shared = Arc::clone(&state);
        let data = answer(move |request| shared.lock().unwrap().faulty("data", request, State::bytes));
        state.lock().unwrap().data = Some(data);
        let shared = Arc::clone(&state);
        let hub = answer(move |request| shared.lock().unwrap().faulty("hub", request, State::hub));
        Self { hub, state }
    }

    /// Options of a store for this Hub.
    pub(crate) fn options(&self, token: Option<&str>) -> BTreeMap<String, String> {
        let mut options = BTreeMap::from([("hf_endpoint".to_owned(), format!("http://{}", self.hub))]);
        // Never the token of the user who runs the tests.
        options.insert("hf_token".to_owned(), token.unwrap_or("hf_unknown").to_owned());
        options
    }

    /// Commits the files below `from` and moves the revision `revision` to it; returns the commit.
    pub(crate) fn commit(&self, from: &Path, revision: &str) -> String {
        fn below(root: &Path, at: &Path, files: &mut Files) {
            for entry in std::fs::read_dir(at).unwrap().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    below(root, &path, files);
                } else {
                    let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                    files.insert(name, std::fs::read(&path).unwrap());
                }
            }
        }
        let mut files = Files::new();
        below(from, from, &mut files);
        let mut state = self.state.lock().unwrap();
        let commit = format!("{:040x}", state.commits.len() + 0xabc);
        state.commits.insert(commit.clone(), files);
        state.revisions.insert(revision.to_owned(), commit.clone());
        commit
    }

    /// Forgets `commit`, as after a rewritten history.
    pub(crate) fn forget(&self, commit: &str) {
        self.state.lock().unwrap().commits.remove(commit);
    }

    /// From here on, refuses the signatures issued so far.
    pub(crate) fn expire(&self) {
        let mut state = self.state.lock().unwrap();
        state.expired = state.signatures;
    }

    /// Sets the lifetime that signatures state, in seconds.
    pub(crate) fn sign_for(&self, seconds: u64) {
        self.state.lock().unwrap().life = seconds;
    }

    pub(crate) fn pages_of(&self, entries: usize) {
        self.state.lock().unwrap().page = entries;
    }

    /// Restricts reading to the known token; others get this code.
    pub(crate) fn close(&self, code: &'static str) {
        self.state.lock().unwrap().closed = Some(code);
    }

    /// Gives the next request whose line contains `text` this answer.
    pub(crate) fn fault(&self, text: &'static str, status: &'static str, headers: &str, body: &[u8]) {
        self.state.lock().unwrap().faults.push((text, (status, headers.to_owned(), body.to_vec())));
    }

    /// Returns the requests since the last call.
    pub(crate) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }
}

fn failed(status: &'static str, code: &str) -> Option<Answer> {
    Some((status, format!("x-error-code: {code}\r\n"), Vec::new()))
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// True for Parquet, which is kept in another place; everything else is in the repository.
fn is_large(path: &str) -> bool {
    path.ends_with(".parquet")
}

impl State {
    fn faulty(
        &mut self,
        name: &str,
        request: &Request,
        usual: fn(&mut Self, &Request) -> Option<Answer>,
    ) -> Option<Answer> {
        let path = request.path.split('?').next().unwrap_or_default();
        let range = request.header("range").unwrap_or("all");
        let who = request.header("authorization").unwrap_or("nobody");
        let line = format!("{name} {} {path} {range} {who}", request.method);
        let fault = self.faults.iter().position(|(text, _)| line.contains(text));
        self.requests.push(line);
        match fault {
            Some(at) => Some(self.faults.remove(at).1),
            None => usual(self, request),
        }
    }

    fn hub(&mut self, request: &Request) -> Option<Answer> {
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        let path = path.replace("%20", " ");
        if path.contains("old/n") {
            let query = if query.is_empty() { String::new() } else { format!("?{query}") };
            let location = path.replace("old/n", REPO).replace(' ', "%20");
            return Some(("307 Temporary Redirect", format!("location: {location}{query}\r\n"), Vec::new()));
        }
        let known = request.header("authorization") == Some(&format!("Bearer {TOKEN}"));
        if !path.contains(&format!("datasets/{REPO}/")) {
            return failed(if known { "404 Not Found" } else { "401 Unauthorized" }, "RepoNotFound");
        }
        if let Some(code) = self.closed.filter(|_| !known) {
            return failed(if code == "GatedRepo" { "403 Forbidden" } else { "401 Unauthorized" }, code);
        }
        if let Some(revision) = path.strip_prefix(&format!("/api/datasets/{REPO}/revision/")) {
            let revision = revision.replace("%2F", "/");
            return match self.revisions.get(&revision) {
                Some(commit) => Some(("200 OK", String::new(), format!("{{\"sha\": \"{commit}\"}}").into_bytes())),
                None => failed("404 Not Found", "RevisionNotFound"),
            };
        }
        if let Some(rest) = path.strip_prefix(&format!("/api/datasets/{REPO}/tree/")) {
            let (commit, directory) = rest.split_once('/').unwrap_or((rest, ""));
            return self.tree(commit, directory, query);
        }
        let rest = path.strip_prefix(&format!("/datasets/{REPO}/resolve/"))?;
        let (commit, path) = rest.split_once('/')?;
        let Some(files) = self.commits.get(commit) else { return failed("404 Not Found", "RevisionNotFound") };
        let Some(bytes) = files.get(path) else { return failed("404 Not Found", "EntryNotFound") };
        let oid = hash(bytes);
        if !is_large(path) {
            let etag = format!("etag: W/\"{}\"\r\n", &oid[..40]);
            return Some(("200 OK", etag, bytes.clone()));
        }
        self.signatures += 1;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let (data, end, signature) = (self.data.unwrap(), now + self.life, self.signatures);
        let location = format!("http://{data}/{oid}?Expires={end}&Signature={signature}");
        let size = bytes.len();
        let head = format!("location: {location}\r\nx-linked-etag: \"{oid}\"\r\nx-linked-size: {size}\r\n");
        Some(("302 Found", head, Vec::new()))
    }

    fn tree(&self, commit: &str, directory: &str, query: &str) -> Option<Answer> {
        let Some(files) = self.commits.get(commit) else { return failed("404 Not Found", "RevisionNotFound") };
        let start = if directory.is_empty() { String::new() } else { format!("{directory}/") };
        let mut entries: BTreeMap<String, String> = BTreeMap::new();
        for (path, bytes) in files {
            let Some(rest) = path.strip_prefix(&start) else { continue };
            for (at, _) in rest.match_indices('/') {
                let path = format!("{start}{}", &rest[..at]);
                let entry = format!("{{\"type\": \"directory\", \"path\": \"{path}\", \"oid\": \"d\", \"size\": 0}}");
                entries.insert(path, entry);
            }
            let (oid, size) = (hash(bytes), bytes.len());
            let git = &oid[..40];
            let lfs = if is_large(path) {
                format!(", \"lfs\": {{\"oid\": \"{oid}\", \"size\": {size}}}")
            } else {
                String::new()
            };
            let entry =
                format!("{{\"type\": \"file\", \"path\": \"{path}\", \"oid\": \"{git}\", \"size\": {size}{lfs}}}");
            entries.insert(path.clone(), entry);
        }
        if entries.is_empty() {
            return failed("404 Not Found", "EntryNotFound");
        }
        if !query.contains("recursive=true") {
            entries.retain(|path, _| !path[start.len()..].contains('/'));
        }
        let from = query.split('&').find_map(|pair| pair.strip_prefix("cursor=")?.parse().ok()).unwrap_or(0);
        let page: Vec<&str> = entries.values().skip(from).take(self.page).map(String::as_str).collect();
        let next = from + page.len();
        let link = match next < entries.len() {
            true => format!(
                "link: </api/datasets/{REPO}/tree/{commit}/{directory}?recursive=true&cursor={next}>; rel=\"next\"\r\n"
            ),
            false => String::new(),
        };
        Some(("200 OK", link, format!("[{}]", page.join(",")).into_bytes()))
    }

    fn bytes(&mut self, request: &Request) -> Option<Answer> {
        let (path, query) = request.path.split_once('?')?;
        let value = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.parse::<u64>().ok());
        if value("Signature=")? <= self.expired {
            return Some(("403 Forbidden", String::new(), b"Signature expired".to_vec()));
        }
        let oid = path.trim_start_matches('/');
        let files = self.commits.values().flat_map(BTreeMap::values);
        match files.into_iter().find(|bytes| hash(bytes) == oid) {
            Some(bytes) => Some(ranged(bytes.clone(), request.header("range"), "etag: \"cdn\"\r\n".to_owned())),
            None => Some(("404 Not Found", String::new(), Vec::new())),
        }
    }
}
