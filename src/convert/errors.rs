//! Errors that formats and conversions have in common.

use std::fmt::Display;

use arrow::datatypes::Field;
use arrow::error::ArrowError;

use crate::convert::format::Format;
use crate::convert::types::type_text;
use crate::error::{Error, Place};

/// Hint for a conversion whose output or counts differ from what it wrote or counted.
pub(crate) const FAULT: &str = "nothing was published; this is a fault of the disk or of bowstring";

/// Reports that two things that must agree at `place` do not.
pub(crate) fn differs(place: Place, what: &str, expected: impl Display, found: impl Display, hint: &str) -> Error {
    Error::corrupt(place, format!("{what}: expected {expected}, found {found}; {hint}"))
}

/// Wraps an error of Arrow about input that it should accept.
pub(crate) fn unexpected(error: ArrowError) -> Error {
    Error::corrupt_by(Place::default(), "a batch cannot be processed", error)
}

/// Reports a type that a format cannot hold.
pub(crate) fn refused(format: Format, field: &Field, hint: &str) -> Error {
    Error::unsupported(
        format!("column {:?} of type {} in {format}", field.name(), type_text(field.data_type())),
        hint.to_owned(),
    )
}

/// Reports a value that a format cannot hold, by its row in the batch given to the writer.
pub(crate) fn refused_value(format: Format, column: &str, row: usize, what: &str, hint: &str) -> Error {
    Error::unsupported(format!("{what} in {format}"), hint.to_owned())
        .at(Place::default().column(column).row(row as u64))
}

/// Changes the row of the batch that an error of a writer names, where it names one, to what `row` says of it.
pub(crate) fn with_row(error: Error, row: impl FnOnce(u64) -> Option<u64>) -> Error {
    let Some(place) = error.place().filter(|place| place.file.is_none()).cloned() else { return error };
    match place.row {
        Some(told) => error.at(Place { row: row(told), ..place }),
        None => error,
    }
}
