//! Exhaustive exploration of a small system: every state that any sequence of actions reaches, breadth first, so that the trace to the
//! first broken promise is a shortest one.
//!
//! A system is code that decides, with its surroundings as actions: messages, lost answers, kills. Two states with one key are taken for
//! the same. Actions are steps of the system itself, or faults. For a system of finitely many states the exploration also checks that
//! everything ends: without further faults no state may come back, and where no step is left, all waits must be over. That holds for every
//! order of steps, not for a fair one alone.

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

/// A system to be explored.
pub(crate) trait System {
    /// All there is at one moment.
    type State;
    /// A possible step or fault; it can be printed.
    type Action: fmt::Display;

    /// The states to begin with.
    fn starts(&self) -> Vec<Self::State>;

    /// The actions that are possible in `state`; true marks a fault.
    fn actions(&self, state: &Self::State) -> Vec<(Self::Action, bool)>;

    /// The state after `action`.
    ///
    /// # Errors
    /// The promise that it breaks.
    fn act(&self, state: &Self::State, action: &Self::Action) -> Result<Self::State, String>;

    /// Checks that no promise is broken in `state`.
    ///
    /// # Errors
    /// The promise that is broken.
    fn check(&self, state: &Self::State) -> Result<(), String>;

    /// Hashes everything that distinguishes `state` from others.
    fn identify(&self, state: &Self::State, to: &mut DefaultHasher);

    /// Returns true if nobody waits any more.
    fn is_over(&self, state: &Self::State) -> bool;
}

/// The extent of an exploration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Explored {
    pub(crate) states: usize,
    pub(crate) transitions: usize,
    /// Actions to the farthest state.
    pub(crate) depth: usize,
    /// The most steps without faults until everything is over, from any state.
    pub(crate) longest_end: usize,
    pub(crate) time: Duration,
}

impl fmt::Display for Explored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, transitions, depth, longest_end, time } = self;
        write!(
            f,
            "{states} states, {transitions} transitions, depth {depth}, over within {longest_end} steps, {time:.1?}"
        )
    }
}

/// A broken promise, and a shortest way there.
#[derive(Debug, Clone)]
pub(crate) struct Broken {
    pub(crate) promise: String,
    pub(crate) trace: Vec<String>,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, action) in self.trace.iter().enumerate() {
            writeln!(f, "{:>4}. {action}", number + 1)?;
        }
        write!(f, "      {}", self.promise)
    }
}

/// The origin of a state: the state before, and the number of its action there.
type Origin = Option<(u32, u16)>;

struct Exploration<'a, S: System> {
    system: &'a S,
    seen: HashMap<u64, u32>,
    origins: Vec<Origin>,
    /// States that are reached without a fault, by state.
    steps: Vec<Vec<u32>>,
    over: Vec<bool>,
}

/// Explores `system`, which is expected to have no more than `most` states.
///
/// # Errors
/// The promise that is broken first.
pub(crate) fn explore<S: System>(system: &S, most: usize) -> Result<Explored, Box<Broken>> {
    let begin = Instant::now();
    let mut it = Exploration { system, seen: HashMap::new(), origins: Vec::new(), steps: Vec::new(), over: Vec::new() };
    let mut layer = Vec::new();
    for (number, state) in system.starts().into_iter().enumerate() {
        system.check(&state).map_err(|promise| Box::new(Broken { promise, trace: Vec::new() }))?;
        assert!(number == 0 || it.origins.len() == number, "two starts are one");
        layer.push((it.note(&state, None).0, state));
    }
    let (mut transitions, mut depth) = (0, 0);
    while !layer.is_empty() {
        let mut next = Vec::new();
        for (at, state) in layer {
            for (number, (action, is_fault)) in system.actions(&state).iter().enumerate() {
                transitions += 1;
                let origin = Some((at, u16::try_from(number).expect("few actions")));
                let broken = |promise| it.broken(promise, at, Some(action));
                let after = system.act(&state, action).map_err(broken)?;
                let (reached, is_new) = it.note(&after, origin);
                if !is_fault && reached != at {
                    it.steps[at as usize].push(reached);
                }
                if is_new {
                    system.check(&after).map_err(|promise| it.broken(promise, reached, None))?;
                    next.push((reached, after));
                }
            }
        }
        assert!(it.origins.len() <= most, "more than {most} states: the system is larger than its test expects");
        depth += usize::from(!next.is_empty());
        layer = next;
    }
    let longest_end = it.everything_ends()?;
    Ok(Explored { states: it.origins.len(), transitions, depth, longest_end, time: begin.elapsed() })
}

impl<S: System> Exploration<'_, S> {
    /// The number of `state`, and whether it is new.
    fn note(&mut self, state: &S::State, origin: Origin) -> (u32, bool) {
        let mut key = DefaultHasher::new();
        self.system.identify(state, &mut key);
        let next = u32::try_from(self.origins.len()).expect("states fit into memory");
        let number = *self.seen.entry(key.finish()).or_insert(next);
        if number == next {
            self.origins.push(origin);
            self.steps.push(Vec::new());
            self.over.push(self.system.is_over(state));
        }
        (number, number == next)
    }

    /// The promise that was broken at state `at`, or by `action` there.
    fn broken(&self, promise: String, at: u32, action: Option<&S::Action>) -> Box<Broken> {
        let mut trace = self.trace(at);
        trace.extend(action.map(ToString::to_string));
        Box::new(Broken { promise, trace })
    }

    /// The actions that lead to state `at`, done again.
    fn trace(&self, at: u32) -> Vec<String> {
        let (mut way, mut from) = (Vec::new(), at);
        while let Some((before, number)) = self.origins[from as usize] {
            way.push(number);
            from = before;
        }
        let mut state = self.system.starts().swap_remove(from as usize);
        let mut trace = Vec::new();
        for number in way.into_iter().rev() {
            let action = self.system.actions(&state).swap_remove(usize::from(number)).0;
            state = self.system.act(&state, &action).expect("it went well before");
            trace.push(action.to_string());
        }
        trace
    }

    /// Checks that from every state, in any order of steps, all waits end without further faults. Returns the most steps that takes.
    fn everything_ends(&self) -> Result<usize, Box<Broken>> {
        const UNKNOWN: u32 = u32::MAX;
        const UNDER_WAY: u32 = u32::MAX - 1;
        let mut left = vec![UNKNOWN; self.origins.len()];
        for start in 0..u32::try_from(left.len()).expect("states were counted") {
            let mut stack = vec![start];
            while let Some(&at) = stack.last() {
                let index = at as usize;
                if left[index] == UNKNOWN {
                    left[index] = UNDER_WAY;
                    for next in &self.steps[index] {
                        match left[*next as usize] {
                            UNKNOWN => stack.push(*next),
                            UNDER_WAY => {
                                let promise =
                                    "this goes on for ever without a further fault: the same comes back".into();
                                return Err(self.broken(promise, at, None));
                            }
                            _ => {}
                        }
                    }
                    continue;
                }
                stack.pop();
                if left[index] == UNDER_WAY {
                    let steps = &self.steps[index];
                    if steps.is_empty() && !self.over[index] {
                        let promise = "somebody waits for ever: there is nothing left to happen".into();
                        return Err(self.broken(promise, at, None));
                    }
                    left[index] = steps.iter().map(|next| left[*next as usize] + 1).max().unwrap_or(0);
                }
            }
        }
        Ok(left.into_iter().max().unwrap_or(0) as usize)
    }
}

/// Adds `value` to the key of a state.
pub(crate) fn tell(to: &mut DefaultHasher, value: &impl Hash) {
    value.hash(to);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two clerks that each take a number from a board, add one, and write it back.
    struct Clerks {
        locked: bool,
        polite: bool,
    }

    #[derive(Debug, Clone, Hash, Default)]
    struct Office {
        board: u8,
        read: [Option<u8>; 2],
        done: [bool; 2],
        polite: bool,
    }

    enum Act {
        Read(usize),
        Write(usize),
        Bow,
        Faint(usize),
    }

    impl fmt::Display for Act {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self {
                Self::Read(clerk) => write!(f, "clerk {clerk} reads"),
                Self::Write(clerk) => write!(f, "clerk {clerk} writes"),
                Self::Bow => write!(f, "they bow"),
                Self::Faint(clerk) => write!(f, "clerk {clerk} forgets"),
            }
        }
    }

    impl System for Clerks {
        type State = Office;
        type Action = Act;

        fn starts(&self) -> Vec<Office> {
            vec![Office::default()]
        }

        fn actions(&self, state: &Office) -> Vec<(Act, bool)> {
            let mut all = Vec::new();
            for clerk in 0..2 {
                match state.read[clerk] {
                    _ if state.done[clerk] => {}
                    None if self.locked && state.read[1 - clerk].is_some() && !state.done[1 - clerk] => {}
                    None => all.push((Act::Read(clerk), false)),
                    Some(_) => all.extend([(Act::Write(clerk), false), (Act::Faint(clerk), true)]),
                }
            }
            if self.polite {
                all.push((Act::Bow, false));
            }
            all
        }

        fn act(&self, state: &Office, action: &Act) -> Result<Office, String> {
            let mut after = state.clone();
            match *action {
                Act::Read(clerk) => after.read[clerk] = Some(after.board),
                Act::Write(clerk) => {
                    after.board = after.read[clerk].expect("it was read") + 1;
                    after.done[clerk] = true;
                }
                Act::Bow => after.polite = !after.polite,
                Act::Faint(clerk) => after.read[clerk] = None,
            }
            Ok(after)
        }

        fn check(&self, state: &Office) -> Result<(), String> {
            let done = state.done.iter().filter(|done| **done).count();
            (usize::from(state.board) == done)
                .then_some(())
                .ok_or_else(|| format!("{done} are done, {} is written", state.board))
        }

        fn identify(&self, state: &Office, to: &mut DefaultHasher) {
            tell(to, state);
        }

        fn is_over(&self, state: &Office) -> bool {
            state.done == [true; 2]
        }
    }

    #[test]
    fn a_race_is_found_by_a_shortest_trace_and_what_is_right_is_explored_whole() {
        let broken = explore(&Clerks { locked: false, polite: false }, 100).unwrap_err();
        assert_eq!(broken.promise, "2 are done, 1 is written");
        assert_eq!(broken.trace, ["clerk 0 reads", "clerk 1 reads", "clerk 0 writes", "clerk 1 writes"]);
        let explored = explore(&Clerks { locked: true, polite: false }, 100).unwrap();
        assert_eq!((explored.states, explored.depth, explored.longest_end), (9, 4, 4), "{explored}");
    }

    #[test]
    fn what_goes_on_for_ever_and_what_is_stuck_is_found() {
        let broken = explore(&Clerks { locked: true, polite: true }, 100).unwrap_err();
        assert!(broken.promise.contains("goes on for ever"), "{broken}");
        struct Stuck;
        impl System for Stuck {
            type State = u8;
            type Action = &'static str;
            fn starts(&self) -> Vec<u8> {
                vec![0]
            }
            fn actions(&self, state: &u8) -> Vec<(&'static str, bool)> {
                if *state == 0 { vec![("goes on", false), ("a fault", true)] } else { Vec::new() }
            }
            fn act(&self, _: &u8, action: &&'static str) -> Result<u8, String> {
                Ok(if *action == "a fault" { 2 } else { 1 })
            }
            fn check(&self, _: &u8) -> Result<(), String> {
                Ok(())
            }
            fn identify(&self, state: &u8, to: &mut DefaultHasher) {
                tell(to, state);
            }
            fn is_over(&self, state: &u8) -> bool {
                *state == 1
            }
        }
        let broken = explore(&Stuck, 10).unwrap_err();
        assert!(broken.promise.contains("waits for ever") && broken.trace == ["a fault"], "{broken}");
    }
}
