//! Exceptions of the user's code as causes of the library's errors.

use std::error::Error as StdError;
use std::fmt;

use bowstring::Error;
use pyo3::prelude::*;

/// Most characters of an exception's text.
const MOST: usize = 2000;

/// An exception. Its text is made at once: making it takes the GIL, for which code that formats errors must not wait.
pub(crate) struct Raised {
    text: String,
    error: PyErr,
}

impl Raised {
    pub(crate) fn new(error: PyErr) -> Self {
        let text = error.to_string().chars().take(MOST).collect();
        Self { text, error }
    }

    /// The exception that `error` came of, if there is one.
    pub(crate) fn in_chain(error: &Error) -> Option<&Self> {
        let first = error.source();
        std::iter::successors(first, |error| (**error).source()).find_map(|error| error.downcast_ref())
    }

    pub(crate) fn error(&self, py: Python<'_>) -> PyErr {
        self.error.clone_ref(py)
    }
}

impl fmt::Debug for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Raised").field(&self.text).finish()
    }
}

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl StdError for Raised {}
