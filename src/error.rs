//! One error type for the whole crate, with one variant for each action of the caller.
//!
//! `Display` gives place and problem in one line; the cause stays the `source()`, outside the text. A `hint` names the
//! remedy. Bindings and the command line map [`Error::kind`] to exception classes and exit codes.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A boxed cause.
pub type Source = Box<dyn StdError + Send + Sync + 'static>;

/// A place in a dataset; every part is optional and counts from zero.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// File, relative to the dataset root, or a URL.
    pub file: Option<Arc<str>>,
    /// Row group within the file.
    pub row_group: Option<usize>,
    /// Column, as a dotted path.
    pub column: Option<Arc<str>>,
    /// Row within the row group, before any filter.
    pub row: Option<u64>,
}

impl Place {
    /// A place in the file `file`.
    pub fn file(file: impl Into<Arc<str>>) -> Self {
        Self { file: Some(file.into()), ..Self::default() }
    }

    /// The same place within row group `row_group`.
    #[must_use]
    pub fn row_group(mut self, row_group: usize) -> Self {
        self.row_group = Some(row_group);
        self
    }

    /// The same place within column `column`.
    #[must_use]
    pub fn column(mut self, column: impl Into<Arc<str>>) -> Self {
        self.column = Some(column.into());
        self
    }

    /// The same place at row `row` of the row group.
    #[must_use]
    pub fn row(mut self, row: u64) -> Self {
        self.row = Some(row);
        self
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        if let Some(file) = &self.file {
            write!(f, "file {file}")?;
            separator = ", ";
        }
        if let Some(row_group) = self.row_group {
            write!(f, "{separator}row group {row_group}")?;
            separator = ", ";
        }
        if let Some(column) = &self.column {
            write!(f, "{separator}column {column}")?;
            separator = ", ";
        }
        if let Some(row) = self.row {
            write!(f, "{separator}row {row}")?;
            separator = ", ";
        }
        if separator.is_empty() { f.write_str("unknown place") } else { Ok(()) }
    }
}

/// An error, named for the caller's next action.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A path, column or dataset does not exist: correct the name.
    #[error("{what} not found{}", advice(.hint))]
    NotFound {
        /// The missing thing, e.g. `file /data/x.parquet` or `column "lable"`.
        what: String,
        /// The remedy, e.g. the nearest existing names. May be empty.
        hint: String,
    },
    /// The bytes are damaged or hostile: replace the file, or set a bad-row policy.
    #[error("{place}: {what}")]
    Corrupt {
        /// The place.
        place: Place,
        /// The problem with the bytes.
        what: String,
        /// The decoder's own error, if it gave one.
        source: Option<Source>,
    },
    /// Nulls where the options allow none: say how to handle them, or leave their rows out. The data is not damaged.
    #[error("{}{what}{}", before(.place), advice(.hint))]
    Nulls {
        /// Place of the first null. Set with [`Error::at`].
        place: Option<Box<Place>>,
        /// The columns with nulls, and how many.
        what: String,
        /// The ways out.
        hint: String,
    },
    /// A source file is not the one the manifest was made from: reopen the dataset.
    #[error(
        "file {file} changed during the run: it was {was}, now it is {now}; reopen the dataset to plan over the new data"
    )]
    SourceChanged {
        /// The file, relative to the dataset root.
        file: String,
        /// The pinned version.
        was: String,
        /// The version found.
        now: String,
    },
    /// Two things that must agree do not: schemas of two files, a state and a plan.
    #[error("{what}: expected {expected}, found {found}{}", advice(.hint))]
    Mismatch {
        /// The comparison, naming both sides.
        what: String,
        /// The expected side.
        expected: String,
        /// The side found.
        found: String,
        /// The remedy. May be empty.
        hint: String,
    },
    /// The data is valid, but this crate cannot read it.
    #[error("{}{what} is not supported{}", before(.place), advice(.hint))]
    Unsupported {
        /// The place, if it is in a file. Set with [`Error::at`].
        place: Option<Box<Place>>,
        /// The unsupported thing.
        what: String,
        /// An alternative. May be empty.
        hint: String,
    },
    /// A limit was reached before anything was allocated: raise the named option if the data is trusted.
    #[error("{}{what} needs {asked}{}, the limit is {limit}; raise {raise} if this is intended", before(.place), unit(.option))]
    Limit {
        /// The place, if it is in a file. Set with [`Error::at`].
        place: Option<Box<Place>>,
        /// The consumer.
        what: String,
        /// Requested amount.
        asked: u64,
        /// Permitted amount.
        limit: u64,
        /// The option that sets the limit.
        option: &'static str,
        /// What to raise in words: the option, and after it in parentheses what else helps.
        raise: &'static str,
    },
    /// An option has an impossible value: correct the option.
    #[error("option {option}: {problem}")]
    Config {
        /// The option's name.
        option: &'static str,
        /// The problem, and a correct value.
        problem: String,
    },
    /// The store failed: check network, credentials, permissions, disk.
    #[error("store: {operation} of {url} failed")]
    Store {
        /// The operation, e.g. `list`, `read bytes 0..8`.
        operation: String,
        /// The object's address, without credentials.
        url: String,
        /// The store's error.
        source: Source,
    },
    /// A wait passed its deadline: the culprit names the peer or stage that did not answer.
    #[error("stage {stage} waited {} s for {culprit}", seconds(.waited))]
    Timeout {
        /// The stage that waited.
        stage: &'static str,
        /// The peer or stage it waited for.
        culprit: String,
        /// The time waited.
        waited: Duration,
    },
    /// A peer refused or failed: check its address, the token, and its log.
    #[error("{peer}: {what}")]
    Remote {
        /// The peer, e.g. `grpc://10.0.0.2:8815`.
        peer: String,
        /// Its message or failure.
        what: String,
        /// The transport's error, if it gave one.
        source: Option<Source>,
    },
    /// This generation of a gang is over: restart from the last acknowledged step and join again.
    #[error("generation {generation} of gang {gang} is over: {why}; restart and join again")]
    Fenced {
        /// The gang.
        gang: String,
        /// The generation that this process belonged to.
        generation: u64,
        /// The reason, naming the rank.
        why: String,
    },
    /// A device is missing, refused or failed: check the driver, its memory, and which devices this process may see.
    #[error("{device}: {what}: {why}")]
    Device {
        /// The device, e.g. `cuda:0`.
        device: String,
        /// The failed operation.
        what: String,
        /// The reason, and the remedy where it is known.
        why: String,
    },
    /// The loader was closed, or the process forked after it started.
    #[error("closed: {why}")]
    Closed {
        /// The reason.
        why: String,
    },
    /// A write is committed, aborted or forgotten, and takes nothing more: begin another one.
    #[error("{why}")]
    Over {
        /// The write, and how it ended.
        why: String,
    },
}

/// Returns the option in front of what else helps.
pub(crate) fn bare(raise: &'static str) -> &'static str {
    raise.split_once(" (").map_or(raise, |(option, _)| option)
}

/// Returns the unit of an option's limit, if the option's name implies one.
fn unit(option: &str) -> &'static str {
    if option.ends_with("_bytes") { " bytes" } else { "" }
}

fn before(place: &Option<Box<Place>>) -> String {
    place.as_ref().map_or_else(String::new, |place| format!("{place}: "))
}

/// Formats seconds for people, with one decimal where it matters.
fn seconds(waited: &Duration) -> String {
    let seconds = waited.as_secs_f64();
    if seconds >= 9.95 {
        return format!("{seconds:.0}");
    }
    let tenths = format!("{seconds:.1}");
    tenths.strip_suffix(".0").unwrap_or(&tenths).to_owned()
}

fn advice(hint: &str) -> String {
    if hint.is_empty() { String::new() } else { format!("; {hint}") }
}

/// A coarse class of error: one exit code, one exception class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// A wrong argument or option, or a name that does not exist.
    Usage,
    /// Damaged or unsupported data, data over a limit, or nulls that the options do not allow.
    Data,
    /// The store refused or failed.
    Store,
    /// A source changed during the run.
    Changed,
    /// A deadline passed.
    Timeout,
    /// The loader was closed, or a write is over.
    Closed,
    /// A peer refused or failed.
    Remote,
    /// The gang was restarted without this process.
    Fenced,
    /// A device is missing, refused or failed.
    Device,
}

impl Kind {
    /// The exit code of the command line: 2 usage, 3 data, 4 store, 5 source changed, 6 timeout, 7 a peer, 8 fenced, 9 a
    /// device, 1 closed.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Closed => 1,
            Self::Usage => 2,
            Self::Data => 3,
            Self::Store => 4,
            Self::Changed => 5,
            Self::Timeout => 6,
            Self::Remote => 7,
            Self::Fenced => 8,
            Self::Device => 9,
        }
    }
}

impl Error {
    /// The class of this error.
    pub fn kind(&self) -> Kind {
        match self {
            Self::NotFound { .. } | Self::Config { .. } | Self::Mismatch { .. } => Kind::Usage,
            Self::Corrupt { .. } | Self::Nulls { .. } | Self::Unsupported { .. } | Self::Limit { .. } => Kind::Data,
            Self::SourceChanged { .. } => Kind::Changed,
            Self::Store { .. } => Kind::Store,
            Self::Timeout { .. } => Kind::Timeout,
            Self::Closed { .. } | Self::Over { .. } => Kind::Closed,
            Self::Remote { .. } => Kind::Remote,
            Self::Fenced { .. } => Kind::Fenced,
            Self::Device { .. } => Kind::Device,
        }
    }

    /// A wait ended by the option `timeout`, with its value.
    pub(crate) fn late(stage: &'static str, culprit: impl fmt::Display, waited: Duration, timeout: Duration) -> Self {
        Self::Timeout { stage, culprit: format!("{culprit} (timeout={})", timeout.as_secs_f64()), waited }
    }

    /// Damaged bytes at `place`.
    pub fn corrupt(place: Place, what: impl Into<String>) -> Self {
        Self::Corrupt { place, what: what.into(), source: None }
    }

    /// Damaged bytes at `place`, with the decoder's error as the source.
    pub fn corrupt_by(place: Place, what: impl Into<String>, source: impl Into<Source>) -> Self {
        Self::Corrupt { place, what: what.into(), source: Some(source.into()) }
    }

    /// Nulls that the options do not allow, without a place: see [`at`](Self::at).
    pub fn nulls(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Nulls { place: None, what: what.into(), hint: hint.into() }
    }

    /// Valid data that this crate cannot read, without a place: see [`at`](Self::at).
    pub fn unsupported(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Unsupported { place: None, what: what.into(), hint: hint.into() }
    }

    /// `what` needs `asked` where the option in `raise` allows `limit`, without a place: see [`at`](Self::at). Other ways out may follow
    /// the option's name, as in `memory_budget (or lower batch_size)`.
    pub fn limit(what: impl Into<String>, asked: u64, limit: u64, raise: &'static str) -> Self {
        Self::Limit { place: None, what: what.into(), asked, limit, option: bare(raise), raise }
    }

    /// The same error about data at `at`, a place that the code that raised it need not know. Errors that are not about
    /// data are unchanged, and an empty place changes nothing.
    #[must_use]
    pub fn at(mut self, at: Place) -> Self {
        if at != Place::default() {
            match &mut self {
                Self::Corrupt { place, .. } => *place = at,
                Self::Nulls { place, .. } | Self::Unsupported { place, .. } | Self::Limit { place, .. } => {
                    *place = Some(Box::new(at));
                }
                _ => {}
            }
        }
        self
    }

    /// Place in a dataset, if known.
    pub fn place(&self) -> Option<&Place> {
        match self {
            Self::Corrupt { place, .. } => Some(place),
            Self::Nulls { place, .. } | Self::Unsupported { place, .. } | Self::Limit { place, .. } => place.as_deref(),
            _ => None,
        }
    }

    /// An impossible option value.
    pub fn config(option: &'static str, problem: impl Into<String>) -> Self {
        Self::Config { option, problem: problem.into() }
    }

    /// A copy of the error for another waiter for the same thing: its cause is that of `error`.
    pub(crate) fn again(error: &Arc<Self>) -> Self {
        let cause = |source: Option<&Source>| -> Option<Source> {
            source.map(|_| Box::new(SharedCause(Arc::clone(error))) as Source)
        };
        match &**error {
            Self::NotFound { what, hint } => Self::NotFound { what: what.clone(), hint: hint.clone() },
            Self::Corrupt { place, what, source } => {
                Self::Corrupt { place: place.clone(), what: what.clone(), source: cause(source.as_ref()) }
            }
            Self::SourceChanged { file, was, now } => {
                Self::SourceChanged { file: file.clone(), was: was.clone(), now: now.clone() }
            }
            Self::Mismatch { what, expected, found, hint } => Self::Mismatch {
                what: what.clone(),
                expected: expected.clone(),
                found: found.clone(),
                hint: hint.clone(),
            },
            Self::Nulls { place, what, hint } => {
                Self::Nulls { place: place.clone(), what: what.clone(), hint: hint.clone() }
            }
            Self::Unsupported { place, what, hint } => {
                Self::Unsupported { place: place.clone(), what: what.clone(), hint: hint.clone() }
            }
            Self::Limit { place, what, asked, limit, option, raise } => {
                Self::Limit { place: place.clone(), what: what.clone(), asked: *asked, limit: *limit, option, raise }
            }
            Self::Config { option, problem } => Self::Config { option, problem: problem.clone() },
            Self::Store { operation, url, .. } => Self::Store {
                operation: operation.clone(),
                url: url.clone(),
                source: Box::new(SharedCause(Arc::clone(error))),
            },
            Self::Timeout { stage, culprit, waited } => {
                Self::Timeout { stage, culprit: culprit.clone(), waited: *waited }
            }
            Self::Remote { peer, what, source } => {
                Self::Remote { peer: peer.clone(), what: what.clone(), source: cause(source.as_ref()) }
            }
            Self::Fenced { gang, generation, why } => {
                Self::Fenced { gang: gang.clone(), generation: *generation, why: why.clone() }
            }
            Self::Device { device, what, why } => {
                Self::Device { device: device.clone(), what: what.clone(), why: why.clone() }
            }
            Self::Closed { why } => Self::Closed { why: why.clone() },
            Self::Over { why } => Self::Over { why: why.clone() },
        }
    }

    /// The text of this error and of all its causes, separated by `: `. Causes that those before them quote are left out.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            let more = error.to_string();
            if !text.contains(&more) {
                text.push_str(": ");
                text.push_str(&more);
            }
            cause = error.source();
        }
        text
    }
}

/// The cause of an error reported to several waiters.
#[derive(Debug)]
struct SharedCause(Arc<Error>);

impl fmt::Display for SharedCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.source().map_or(Ok(()), |source| fmt::Display::fmt(source, f))
    }
}

impl StdError for SharedCause {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source().and_then(StdError::source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_and_chain_name_everything_once() {
        let place = Place::file("a.parquet").row_group(3).column("image").row(17);
        let error = Error::corrupt_by(place, "bad JPEG", std::io::Error::other("marker missing"));
        assert_eq!(error.to_string(), "file a.parquet, row group 3, column image, row 17: bad JPEG");
        assert_eq!(error.chain(), format!("{error}: marker missing"));
        assert_eq!(error.kind().exit_code(), 3);
        assert_eq!(Place::default().to_string(), "unknown place");
        let error = Arc::new(error);
        let again = Error::again(&error);
        assert_eq!((again.chain(), again.kind()), (error.chain(), error.kind()));
    }

    /// An error whose text has that of its cause, as those of stores.
    #[derive(Debug)]
    struct Quoting(std::io::Error);

    impl fmt::Display for Quoting {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "no answer: {}", self.0)
        }
    }

    impl StdError for Quoting {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn a_cause_that_is_quoted_is_not_repeated() {
        let source = Box::new(Quoting(std::io::Error::other("connection refused")));
        let error = Error::Store { operation: "read".to_owned(), url: "s3://a/b".to_owned(), source };
        assert_eq!(error.chain(), format!("{error}: no answer: connection refused"));
    }

    #[test]
    fn waits_are_told_as_they_were_set() {
        for (millis, told) in [(4_999, "5"), (5_020, "5"), (500, "0.5"), (12_400, "12"), (600_004, "600")] {
            let waited = Duration::from_millis(millis);
            let error = Error::Timeout { stage: "receive", culprit: "x".to_owned(), waited };
            assert_eq!(error.to_string(), format!("stage receive waited {told} s for x"));
            let error = Error::late("receive", "x", waited, Duration::from_secs_f64(0.1));
            assert_eq!(error.to_string(), format!("stage receive waited {told} s for x (timeout=0.1)"));
        }
    }

    #[test]
    fn errors_about_data_take_their_place_later() {
        let place = Place::file("a.parquet").row_group(3);
        let limit = Error::limit("the page", 5, 4, "limits.max_page_bytes");
        assert_eq!((limit.place(), limit.to_string().starts_with("the page needs 5")), (None, true));
        let budget = Error::limit("a step", 5, 4, "memory_budget (or lower batch_size)");
        assert!(matches!(budget, Error::Limit { option: "memory_budget", .. }), "{budget:?}");
        assert!(
            budget.to_string().ends_with("raise memory_budget (or lower batch_size) if this is intended"),
            "{budget}"
        );
        let limit = limit.at(place.clone());
        assert_eq!(limit.place(), Some(&place));
        assert!(limit.to_string().starts_with("file a.parquet, row group 3: the page needs 5 bytes, the limit is 4"));
        let odd = Error::unsupported("a column", "leave it out").at(place.clone());
        assert_eq!(odd.to_string(), "file a.parquet, row group 3: a column is not supported; leave it out");
        assert_eq!(odd.at(Place::default()).place(), Some(&place));
        assert_eq!(Error::corrupt(Place::default(), "bad").at(place.clone()).place(), Some(&place));
        let nulls = Error::nulls("2 nulls", "fill them").at(place.clone());
        assert_eq!((nulls.place(), nulls.kind()), (Some(&place), Kind::Data));
        assert_eq!(nulls.to_string(), "file a.parquet, row group 3: 2 nulls; fill them");
        assert_eq!(Error::again(&Arc::new(nulls)).place(), Some(&place));
        assert_eq!(Error::config("seed", "no").at(place).place(), None);
    }
}
