//! A span that is over: all that is exported of it.

use std::time::{Instant, SystemTime};

/// The role of a span in its trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Internal,
    /// It asked another process, and waited.
    Client,
    /// Another process asked it.
    Server,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Number(u64),
    Seconds(f64),
    Text(String),
}

/// See the module documentation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Span {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) trace: [u8; 16],
    pub(crate) id: [u8; 8],
    pub(crate) parent: Option<[u8; 8]>,
    /// True if the parent is a span of another process.
    pub(crate) is_remote: bool,
    /// A span of another trace that this one belongs to.
    pub(crate) link: Option<([u8; 16], [u8; 8])>,
    pub(crate) start: SystemTime,
    pub(crate) end: SystemTime,
    pub(crate) attributes: Vec<(&'static str, Value)>,
    pub(crate) error: Option<String>,
}

/// Tells the time of the day at moments of the near past.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    now: Instant,
    today: SystemTime,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { now: Instant::now(), today: SystemTime::now() }
    }

    pub(crate) fn at(&self, moment: Instant) -> SystemTime {
        match self.now.checked_duration_since(moment) {
            Some(ago) => self.today - ago,
            None => self.today,
        }
    }
}
