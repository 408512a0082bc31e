//! Panics that are expected and caught: a decoder that gives up on damaged bytes prints nothing on stderr.
//!
//! There is one hook per process, so it is silent only on a thread inside [`quiet`], and passes every other panic to
//! the previous hook.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// Depth of nested calls of [`quiet`] on this thread.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

static HOOK: Once = Once::new();

/// Counts a call of [`quiet`], however it ends.
struct Scope;

impl Scope {
    fn enter() -> Self {
        DEPTH.set(DEPTH.get() + 1);
        Self
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get().saturating_sub(1));
    }
}

/// Runs `work`, and returns its panic instead of printing it. State that `work` leaves behind after a panic must not be
/// used.
pub fn quiet<T>(work: impl FnOnce() -> T) -> Result<T, Box<dyn Any + Send>> {
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            // A thread at its very end has no count any more, and runs no decoder.
            if DEPTH.try_with(Cell::get).unwrap_or_default() == 0 {
                before(panic);
            }
        }));
    });
    let _scope = Scope::enter();
    catch_unwind(AssertUnwindSafe(work))
}

/// The message of a panic.
pub(crate) fn said(panic: &(dyn Any + Send)) -> Option<&str> {
    panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_inside_is_an_answer_and_the_next_one_is_heard_again() {
        let panic = quiet(|| -> () { quiet(|| std::panic::panic_any("inner")).unwrap_or_default() });
        assert!(panic.is_ok() && DEPTH.get() == 0);
        let panic = quiet(|| -> () { std::panic::panic_any(format!("number {}", 7)) }).unwrap_err();
        assert_eq!((said(&*panic), DEPTH.get()), (Some("number 7"), 0));
        assert_eq!(quiet(|| DEPTH.get()).ok(), Some(1));
    }
}
