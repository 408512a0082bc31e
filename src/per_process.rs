//! State that a process has once, and that a forked child begins anew.
//!
//! In a forked child the thread that forked is the only one. A lock that another thread held stays locked there for ever, and what it
//! guards may be half changed. So a child gets a state of its own, and leaves that of its parent alone.

use std::process;
use std::sync::OnceLock;

/// See the module. It is made as its default, where it is first used.
#[derive(Debug)]
pub(crate) struct PerProcess<T>(OnceLock<Box<Life<T>>>);

/// The state of one process, and of its forked child, if that is this one.
#[derive(Debug)]
struct Life<T> {
    process: u32,
    state: T,
    child: PerProcess<T>,
}

impl<T: Default> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// The state of this process.
    pub(crate) fn get(&self) -> &T {
        self.of(process::id())
    }

    fn of(&self, process: u32) -> &T {
        let mut lives = self;
        loop {
            let new = || Box::new(Life { process, state: T::default(), child: Self::new() });
            let mut life = lives.0.get_or_init(new);
            // Only the last one lives: its number may have been an ancestor's.
            while let Some(child) = life.child.0.get() {
                life = child;
            }
            if life.process == process {
                return &life.state;
            }
            lives = &life.child;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn a_child_begins_anew_whatever_its_parent_holds() {
        static STATE: PerProcess<Mutex<Vec<u32>>> = PerProcess::new();
        let held = STATE.of(100).lock().unwrap();
        STATE.of(200).lock().unwrap().push(2);
        assert_eq!(*STATE.of(200).lock().unwrap(), [2]);
        drop(held);
        // A grandchild with the number of its grandparent.
        STATE.of(100).lock().unwrap().push(3);
        assert_eq!(*STATE.of(100).lock().unwrap(), [3]);
    }

    #[test]
    fn threads_of_a_process_share_one_state() {
        static STATE: PerProcess<AtomicU32> = PerProcess::new();
        STATE.of(1).store(7, Ordering::Relaxed);
        let add = || STATE.of(2).fetch_add(1, Ordering::Relaxed);
        thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(add))));
        assert_eq!(STATE.of(2).load(Ordering::Relaxed), 8);
        assert_eq!(STATE.get().load(Ordering::Relaxed), 0);
    }
}
