//! Errors on the wire: each maps to its own gRPC code with the error itself as a detail, and back.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

use crate::error::{Error, Place, bare};
use crate::pipeline::option_table::OPTIONS;

/// Code of a server's refusal that concerns shared memory alone, not the stream: beyond gRPC's own codes.
pub(crate) const NO_SLAB: u32 = 100;

/// Trailer key of the detail.
const KEY: &str = "bowstring-error-bin";

/// Most bytes of a detail, which has to fit in a header list.
const MAX_BYTES: usize = 4 << 10;

/// Limits on concurrent use, which the end of another's use frees: errors about them are retried.
const PASSING: [&str; 5] = ["streams", "max_streams", "calls_per_tenant", "writes_per_tenant", "open_bytes"];

/// An error on the wire.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Detail {
    NotFound {
        what: String,
        hint: String,
    },
    Corrupt {
        file: Option<String>,
        row_group: Option<usize>,
        column: Option<String>,
        row: Option<u64>,
        what: String,
    },
    Nulls {
        what: String,
        hint: String,
        at: Option<At>,
    },
    SourceChanged {
        file: String,
        was: String,
        now: String,
    },
    Mismatch {
        what: String,
        expected: String,
        found: String,
        hint: String,
    },
    Unsupported {
        what: String,
        hint: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at: Option<At>,
    },
    Limit {
        what: String,
        asked: u64,
        limit: u64,
        option: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at: Option<At>,
    },
    Config {
        option: String,
        problem: String,
    },
    Store {
        operation: String,
        url: String,
        why: String,
    },
    Timeout {
        stage: String,
        culprit: String,
        seconds: f64,
    },
    Fenced {
        gang: String,
        generation: u64,
        why: String,
    },
    Remote {
        peer: String,
        what: String,
    },
    Device {
        device: String,
        what: String,
        why: String,
    },
    Closed {
        why: String,
    },
}

/// A place on the wire; the text repeats it in front for peers that know no places.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct At {
    file: Option<String>,
    row_group: Option<usize>,
    column: Option<String>,
    row: Option<u64>,
}

impl At {
    /// Returns the place of an error, and its text with the place.
    fn of(place: Option<&Place>, what: &str) -> (Option<Self>, String) {
        let Some(place) = place else { return (None, what.to_owned()) };
        let text = |part: &Option<Arc<str>>| part.as_ref().map(|part| part.to_string());
        let Place { file, row_group, column, row } = place;
        let at = Self { file: text(file), row_group: *row_group, column: text(column), row: *row };
        (Some(at), format!("{place}: {what}"))
    }

    /// Returns the place, and the text of `what` without it.
    fn back(at: Option<Self>, what: String) -> (Place, String) {
        let Some(Self { file, row_group, column, row }) = at else { return (Place::default(), what) };
        let place = Place { file: file.map(Into::into), row_group, column: column.map(Into::into), row };
        let bare = what.strip_prefix(&format!("{place}: ")).map(str::to_owned);
        (place, bare.unwrap_or(what))
    }
}

/// Converts `error` to a status. Its text is meant for the client: errors never hold secrets.
pub(crate) fn to_status(error: &Error) -> Status {
    let chain = error.chain();
    let (code, detail) = match error {
        Error::NotFound { what, hint } => (Code::NotFound, Detail::NotFound { what: what.clone(), hint: hint.clone() }),
        Error::Corrupt { place, what, source } => {
            let what = source.as_ref().map_or_else(|| what.clone(), |source| format!("{what}: {source}"));
            let Place { file, row_group, column, row } = place.clone();
            let (file, column) = (file.map(|file| file.to_string()), column.map(|column| column.to_string()));
            (Code::DataLoss, Detail::Corrupt { file, row_group, column, row, what })
        }
        Error::Nulls { place, what, hint } => {
            let (at, what) = At::of(place.as_deref(), &shortened(what.clone(), MAX_BYTES / 2));
            (Code::FailedPrecondition, Detail::Nulls { what, hint: hint.clone(), at })
        }
        Error::SourceChanged { file, was, now } => {
            (Code::FailedPrecondition, Detail::SourceChanged { file: file.clone(), was: was.clone(), now: now.clone() })
        }
        Error::Mismatch { what, expected, found, hint } => (
            Code::FailedPrecondition,
            Detail::Mismatch {
                what: what.clone(),
                expected: expected.clone(),
                found: found.clone(),
                hint: hint.clone(),
            },
        ),
        Error::Unsupported { place, what, hint } => {
            let (at, what) = At::of(place.as_deref(), what);
            (Code::Unimplemented, Detail::Unsupported { what, hint: hint.clone(), at })
        }
        Error::Limit { place, what, asked, limit, option, raise } => {
            let (at, what) = At::of(place.as_deref(), what);
            // What one dataset alone needs does not pass: its text names other ways out.
            let code = if PASSING.contains(raise) { Code::ResourceExhausted } else { Code::OutOfRange };
            // Former peers know the text with the other ways out. What was told of another server's option is no such text.
            let option = if bare(raise) == *option { raise } else { option };
            (code, Detail::Limit { what, asked: *asked, limit: *limit, option: (*option).to_owned(), at })
        }
        Error::Config { option, problem } => {
            (Code::InvalidArgument, Detail::Config { option: (*option).to_owned(), problem: problem.clone() })
        }
        Error::Store { operation, url, source } => {
            (Code::Internal, Detail::Store { operation: operation.clone(), url: url.clone(), why: source.to_string() })
        }
        Error::Timeout { stage, culprit, waited } => (
            Code::DeadlineExceeded,
            Detail::Timeout { stage: (*stage).to_owned(), culprit: culprit.clone(), seconds: waited.as_secs_f64() },
        ),
        Error::Fenced { gang, generation, why } => {
            (Code::Aborted, Detail::Fenced { gang: gang.clone(), generation: *generation, why: why.clone() })
        }
        Error::Remote { peer, what, .. } => {
            (Code::Unavailable, Detail::Remote { peer: peer.clone(), what: what.clone() })
        }
        Error::Device { device, what, why } => {
            (Code::Internal, Detail::Device { device: device.clone(), what: what.clone(), why: why.clone() })
        }
        Error::Closed { why } => (Code::Unavailable, Detail::Closed { why: why.clone() }),
        // The kind that former peers know; the code says that no replica takes it either.
        Error::Over { why } => (Code::FailedPrecondition, Detail::Closed { why: why.clone() }),
    };
    let mut metadata = MetadataMap::new();
    // A detail that is too long is omitted: the text says the same.
    if let Ok(json) = serde_json::to_vec(&detail)
        && json.len() <= MAX_BYTES
    {
        metadata.insert_bin(KEY, MetadataValue::from_bytes(&json));
    }
    Status::with_metadata(code, shortened(chain, MAX_BYTES), metadata)
}

/// Shortens a text, because the trailers as a whole are limited too.
fn shortened(mut text: String, most: usize) -> String {
    if text.len() > most {
        let end = (0..=most).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
    }
    text
}

/// Returns true if a retry, here or at another replica, may help.
pub(crate) fn is_transient(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Cancelled | Code::ResourceExhausted)
        || status.code() == Code::Internal && status.metadata().get_bin(KEY).is_none()
}

/// Returns the error that `peer` reported.
pub(crate) fn from_status(peer: &str, status: &Status) -> Error {
    let detail = status.metadata().get_bin(KEY).and_then(|value| value.to_bytes().ok());
    let detail = detail.and_then(|json| serde_json::from_slice::<Detail>(&json).ok());
    let remote = |what: String| Error::Remote { peer: peer.to_owned(), what, source: None };
    match detail {
        Some(Detail::NotFound { what, hint }) => Error::NotFound { what: format!("{what} at {peer}"), hint },
        Some(Detail::Corrupt { file, row_group, column, row, what }) => {
            let place = Place { file: file.map(Into::into), row_group, column: column.map(Into::into), row };
            Error::Corrupt { place, what: format!("{what} (at {peer})"), source: None }
        }
        Some(Detail::Nulls { what, hint, at }) => {
            let (place, what) = At::back(at, what);
            Error::nulls(format!("{what} (at {peer})"), hint).at(place)
        }
        Some(Detail::SourceChanged { file, was, now }) => Error::SourceChanged { file, was, now },
        Some(Detail::Mismatch { what, expected, found, hint }) => {
            Error::Mismatch { what: format!("{what} at {peer}"), expected, found, hint }
        }
        Some(Detail::Unsupported { what, hint, at }) => {
            let (place, what) = At::back(at, what);
            Error::unsupported(format!("{what} at {peer}"), hint).at(place)
        }
        Some(Detail::Limit { what, asked, limit, option, at }) => {
            let (place, what) = At::back(at, what);
            let (option, raise) = limit_of_the_server(&option);
            Error::Limit { place: None, what: format!("{what} at {peer}"), asked, limit, option, raise }.at(place)
        }
        Some(Detail::Config { option, problem }) => {
            Error::Config { option: known(&option), problem: format!("{problem} (at {peer})") }
        }
        Some(Detail::Store { operation, url, why }) => {
            Error::Store { operation: format!("{operation} by {peer}"), url, source: why.into() }
        }
        Some(Detail::Timeout { stage, culprit, seconds }) => Error::Timeout {
            stage: known(&stage),
            culprit: format!("{culprit} (at {peer})"),
            waited: Duration::try_from_secs_f64(seconds).unwrap_or_default(),
        },
        Some(Detail::Fenced { gang, generation, why }) => Error::Fenced { gang, generation, why },
        Some(Detail::Remote { what, .. }) => remote(what),
        Some(Detail::Device { device, what, why }) => {
            Error::Device { device: format!("{device} at {peer}"), what, why }
        }
        Some(Detail::Closed { why }) => remote(why),
        None => remote(format!("{:?}: {}", status.code(), status.message())),
    }
}

/// Limits that only the server's owner sets, as clients are told of them: the option of the same name in a client's own process would
/// change nothing.
const OF_THE_SERVER: [(&str, &str); 19] = [
    ("memory_budget", "the server's memory_budget (memory of spark.serve)"),
    ("memory_budget (or lower batch_size)", "the server's memory_budget (memory of spark.serve; or lower batch_size)"),
    (
        "memory_budget (or lower lanes or window_rows)",
        "the server's memory_budget (memory of spark.serve; or lower lanes or window_rows)",
    ),
    (
        "memory_budget (or lower lanes, window_rows, batch_size or prefetch)",
        "the server's memory_budget (memory of spark.serve; or lower lanes, window_rows or batch_size)",
    ),
    ("max_batch_size", "limits.max_batch_size of the dataset in the server's catalogue"),
    ("max_global_batch", "limits.max_global_batch of the dataset in the server's catalogue"),
    ("limits.max_bytes", "limits.max_bytes of the dataset in the server's catalogue"),
    ("limits.max_columns", "limits.max_columns of the dataset in the server's catalogue"),
    ("limits.max_depth", "limits.max_depth of the dataset in the server's catalogue"),
    ("limits.max_files", "limits.max_files of the dataset in the server's catalogue"),
    ("limits.max_footer_bytes", "limits.max_footer_bytes of the dataset in the server's catalogue"),
    ("limits.max_index_bytes", "limits.max_index_bytes of the dataset in the server's catalogue"),
    ("limits.max_page_bytes", "limits.max_page_bytes of the dataset in the server's catalogue"),
    ("limits.max_pickle_bytes", "limits.max_pickle_bytes of the dataset in the server's catalogue"),
    ("limits.max_pixels", "limits.max_pixels of the dataset in the server's catalogue"),
    ("limits.max_ratio", "limits.max_ratio of the dataset in the server's catalogue"),
    ("limits.max_row_group_bytes", "limits.max_row_group_bytes of the dataset in the server's catalogue"),
    ("limits.max_row_groups", "limits.max_row_groups of the dataset in the server's catalogue"),
    ("limits.max_side", "limits.max_side of the dataset in the server's catalogue"),
];

/// The option of a server's limit, which it names as `raise`, and what its client is told to raise.
fn limit_of_the_server(raise: &str) -> (&'static str, &'static str) {
    let told = OF_THE_SERVER.iter().find(|(name, _)| *name == raise).copied();
    let (name, told) = told.unwrap_or_else(|| (known(raise), known(raise)));
    (bare(name), told)
}

/// Encodes a status as one text, for transports without trailers: its detail, or its message.
pub(super) fn to_text(status: &Status) -> String {
    let detail = status.metadata().get_bin(KEY).and_then(|value| value.to_bytes().ok());
    let detail = detail.and_then(|json| String::from_utf8(json.to_vec()).ok());
    detail.unwrap_or_else(|| status.message().to_owned())
}

/// Decodes the status that [`to_text`] encoded.
pub(super) fn from_text(code: u32, text: &str) -> Status {
    let code = Code::from(i32::try_from(code).unwrap_or(0));
    if serde_json::from_str::<Detail>(text).is_err() {
        return Status::new(code, text);
    }
    let mut metadata = MetadataMap::new();
    metadata.insert_bin(KEY, MetadataValue::from_bytes(text.as_bytes()));
    Status::with_metadata(code, "", metadata)
}

/// Looks up a peer's name of an option, limit or stage among the known ones, because such names are static.
fn known(name: &str) -> &'static str {
    const NAMES: &[&str] = &[
        "action_bytes",
        "all_gather",
        "allow_options",
        "barrier",
        "batch",
        "calls_per_tenant",
        "commit",
        "dataset",
        "descriptor",
        "gang",
        "gang all_gather",
        "gang barrier",
        "gang call",
        "gang join",
        "gang_ranks_per_tenant",
        "gangs_per_tenant",
        "held_per_tenant",
        "in_flight_bytes",
        "join",
        "max_gangs",
        "max_gathered",
        "max_message",
        "max_streams",
        "max_writes",
        "memory",
        "message_bytes",
        "metadata_bytes",
        "open_bytes",
        "open_bytes (or ask for fewer files)",
        "options",
        "peer",
        "read",
        "share",
        "state",
        "streams",
        "ticket",
        "ticket_bytes",
        "token",
        "writes_per_tenant",
        "written_bytes",
    ];
    let options = OPTIONS.iter().map(|entry| entry.name);
    let limits = OF_THE_SERVER.iter().map(|(limit, _)| *limit);
    let mut names = NAMES.iter().copied().chain(options).chain(limits);
    names.find(|known| *known == name).unwrap_or("an option of the server")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_come_back_as_they_were() {
        let place = Place::file("a.parquet").row_group(1).column("x").row(7);
        let errors = [
            Error::corrupt(place, "bad JPEG"),
            Error::config("batch_size", "too small"),
            Error::Fenced { gang: "g".into(), generation: 3, why: "rank 2 was lost".into() },
            Error::NotFound { what: "dataset x".into(), hint: "there is y".into() },
            Error::Closed { why: "draining".into() },
            Error::Over { why: "write \"w\" is committed".into() },
        ];
        for error in errors {
            let status = to_status(&error);
            let back = from_status("grpc://h", &status);
            assert!(
                back.chain().contains(error.to_string().split(" not found").next().unwrap_or_default())
                    || matches!(back, Error::Remote { .. }),
                "{back}"
            );
            assert_eq!(is_transient(&status), matches!(error, Error::Closed { .. }));
        }
        let place = Place::file("a: b.parquet").row_group(1).column("x").row(7);
        let limit = Error::limit("its page", 2, 1, "memory_budget").at(place.clone());
        let detail = to_text(&to_status(&limit));
        assert!(detail.contains("file a: b.parquet, row group 1, column x, row 7: its page"), "older peers: {detail}");
        let odd = Error::unsupported("a map", "").at(place.clone());
        let nulls =
            Error::nulls("nulls in 900 columns: ".to_owned() + &"a, ".repeat(3000), "fill them").at(place.clone());
        for error in [limit, odd, nulls] {
            let back = from_status("grpc://h", &to_status(&error));
            assert_eq!(back.place(), Some(&place));
            assert_eq!(back.to_string().matches("row group 1").count(), 1, "{back}");
        }
        // Errors about limits on concurrent use are retried; those that can never fit are not.
        for (option, passes) in
            [("streams", true), ("max_streams", true), ("calls_per_tenant", true), ("batch_size", false)]
        {
            let status = to_status(&Error::limit("another stream", 3, 2, option));
            assert_eq!(is_transient(&status), passes, "{option}");
            let back = from_status("grpc://h", &status);
            assert!(matches!(back, Error::Limit { option: found, .. } if found == option), "{back}");
        }
        // A client may raise its own memory for ever: the server's is meant.
        for option in ["memory_budget", "memory_budget (or lower batch_size)"] {
            let back = from_status("grpc://h", &to_status(&Error::limit("a row", 2, 1, option)));
            assert!(matches!(back, Error::Limit { option: "memory_budget", .. }), "{back}");
            for part in ["raise the server's memory_budget", "memory of spark.serve"] {
                assert!(back.to_string().contains(part), "{back}");
            }
            assert_eq!(back.to_string().contains("lower batch_size"), option.contains("lower"), "{back}");
        }
        // It goes on to the client of a client.
        let further = from_status(
            "grpc://i",
            &to_status(&from_status("grpc://h", &to_status(&Error::limit("a row", 2, 1, "memory_budget")))),
        );
        assert!(matches!(further, Error::Limit { option: "memory_budget", .. }), "{further}");
        let (option, raise) = limit_of_the_server("open_bytes (or ask for fewer files)");
        assert_eq!((option, raise), ("open_bytes", "open_bytes (or ask for fewer files)"));
        assert!(!is_transient(&to_status(&Error::limit("a dataset", 2, 1, raise))), "it never fits");
        let most = from_status("grpc://h", &to_status(&Error::limit("a batch", 2, 1, "max_batch_size")));
        assert!(matches!(most, Error::Limit { option: "max_batch_size", .. }), "{most}");
        assert!(
            most.to_string().contains("raise limits.max_batch_size of the dataset in the server's catalogue"),
            "{most}"
        );
        for entry in OPTIONS {
            let back = from_status("grpc://h", &to_status(&Error::config(entry.name, "no")));
            assert!(matches!(back, Error::Config { option, .. } if option == entry.name), "{back}");
        }
        let ratio = from_status("grpc://h", &to_status(&Error::limit("a page", 2, 1, "limits.max_ratio")));
        assert!(
            ratio.to_string().contains("raise limits.max_ratio of the dataset in the server's catalogue"),
            "{ratio}"
        );
        let plain = from_status("grpc://h", &Status::unavailable("gone"));
        assert_eq!(plain.to_string(), "grpc://h: Unavailable: gone");
    }
}
