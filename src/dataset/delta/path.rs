//! Paths as a log has them: percent-encoded, below the table, or absolute.

use crate::dataset::OpenOptions;
use crate::error::{Error, Place, Result};
use crate::store::{Found, LOG, Root};

/// File at `path`, as a log has it.
pub(super) fn locate(root: &Root, path: &str, options: &OpenOptions) -> Result<Found> {
    if is_absolute(path) {
        return root.elsewhere(path, options.access());
    }
    decoded(path).and_then(|name| root.file(&name)).ok_or_else(|| wrong(root, path))
}

/// The name that [`locate`] gives the file at `path`, which is not read: it need not be one that can be.
pub(super) fn name(root: &Root, path: String, options: &OpenOptions) -> Result<Box<str>> {
    if is_absolute(&path) {
        return Ok(Box::from(&*locate(root, &path, options)?.name));
    }
    if path.contains('%') { decoded(&path).map(Into::into).ok_or_else(|| wrong(root, &path)) } else { Ok(path.into()) }
}

fn is_absolute(path: &str) -> bool {
    let scheme = path.split_once(':').is_some_and(|(scheme, _)| {
        let mut letters = scheme.chars();
        letters.next().is_some_and(|first| first.is_ascii_alphabetic())
            && letters.all(|letter| letter.is_ascii_alphanumeric() || "+-.".contains(letter))
    });
    scheme || path.starts_with('/')
}

fn wrong(root: &Root, path: &str) -> Error {
    let place = Place::file(format!("{}/{}", root.url(), LOG));
    Error::corrupt(place, format!("{path:?} is not the name of a file in the table"))
}

/// Undoes `%41`.
pub(super) fn decoded(path: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (pair, after) = after.split_first_chunk::<2>()?;
        let digit = |byte: u8| (byte as char).to_digit(16);
        bytes.push(u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()?);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_decoded_once() {
        assert_eq!(decoded("a=1%252F2/x%20y").as_deref(), Some("a=1%2F2/x y"));
        assert_eq!((decoded("%zz"), decoded("%4"), decoded("%ff")), (None, None, None));
    }
}
