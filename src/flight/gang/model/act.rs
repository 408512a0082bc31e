//! The actions of a gang under test, and their descriptions in traces.

use std::fmt;

use super::life::{Flight, Life, Link};

/// An action.
#[derive(Debug, Clone, Copy)]
pub(super) enum Act {
    /// The call of a process reaches the server.
    Ask(usize),
    /// A process hears the answer.
    Hear(usize),
    Beat(usize),
    HearBeat(usize),
    /// A stray call reaches the server.
    Late(usize),
    Mend(usize),
    Tick,
    Kill {
        at: usize,
        seen: bool,
    },
    Twin {
        at: usize,
        cut: bool,
    },
    Link(usize, Link),
    Lose(usize),
    Stray(usize),
    LateBeat(usize),
    Crash {
        compacted: bool,
    },
    /// Killed after `written` records of the append for this call.
    Torn {
        at: usize,
        written: usize,
    },
    Power {
        lost: usize,
    },
    Fail(usize),
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ask(at) => write!(f, "the call of process {at} reaches the server"),
            Self::Hear(at) => write!(f, "process {at} hears the answer"),
            Self::Beat(at) => write!(f, "heartbeat of process {at}"),
            Self::HearBeat(at) => write!(f, "process {at} hears the answer to its heartbeat"),
            Self::Late(stray) => write!(f, "stray call {stray} reaches the server"),
            Self::Mend(at) => write!(f, "the link of process {at} is mended"),
            Self::Tick => write!(f, "time goes by"),
            Self::Kill { at, seen } => {
                write!(f, "process {at} is killed, {}", if *seen { "which the server sees" } else { "unseen" })
            }
            Self::Twin { at, cut } => {
                write!(f, "process {at} is replaced and goes on{}", if *cut { ", cut off" } else { "" })
            }
            Self::Link(at, link) => write!(f, "the link of process {at} is {link:?}"),
            Self::Lose(at) => write!(f, "the answer to process {at} is lost"),
            Self::Stray(at) => write!(f, "a copy of the call of process {at} goes astray"),
            Self::LateBeat(at) => write!(f, "heartbeat of process {at}, whose answer takes its time"),
            Self::Crash { compacted: false } => write!(f, "the server is killed and restarts"),
            Self::Crash { compacted: true } => write!(f, "the server compacts its journal, is killed and restarts"),
            Self::Torn { at, written } => {
                write!(
                    f,
                    "the call of process {at} reaches the server, which is killed when {written} records are written"
                )
            }
            Self::Power { lost } => write!(f, "a power cut takes {lost} records away"),
            Self::Fail(at) => write!(f, "process {at} fails"),
        }
    }
}

/// An action with a description that names ranks and calls instead of indices.
pub(super) struct Told {
    pub(super) act: Act,
    pub(super) words: String,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl Told {
    /// In place of numbers of processes, their ranks, lives and calls.
    pub(super) fn new(life: &Life, act: Act) -> Self {
        let who = |at: usize| {
            let process = &life.processes[at];
            let old = if process.is_zombie { "replaced " } else { "" };
            format!("{old}process {} of rank {}", process.life, process.rank)
        };
        let words = match act {
            Act::Ask(at) => format!("{}: {:?} reaches the server", who(at), life.processes[at].call()),
            Act::Hear(at) => match life.processes[at].flight {
                Flight::Answered(answer) => format!("{} hears {answer:?}", who(at)),
                _ => act.to_string(),
            },
            Act::Late(stray) => {
                let (rank, number, call) = life.strays[stray];
                format!("a late copy of {call:?} by process {number} of rank {rank} reaches the server")
            }
            Act::Torn { at, .. } => {
                format!("{act} ({:?})", life.processes[at].call()).replace(&format!("process {at}"), &who(at))
            }
            Act::Beat(at)
            | Act::HearBeat(at)
            | Act::Mend(at)
            | Act::Kill { at, .. }
            | Act::Twin { at, .. }
            | Act::Link(at, _)
            | Act::Lose(at)
            | Act::Stray(at)
            | Act::LateBeat(at)
            | Act::Fail(at) => act.to_string().replace(&format!("process {at}"), &who(at)),
            Act::Tick if life.is_busy() => "time goes by while messages are on their way".into(),
            Act::Tick | Act::Crash { .. } | Act::Power { .. } => act.to_string(),
        };
        Self { act, words }
    }
}
