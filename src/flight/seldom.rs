//! Warnings that peers can cause as often as they like: said once a minute, with their number.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Least time between two warnings.
const PAUSE: Duration = Duration::from_secs(60);

/// How often something has happened, and when that was last said.
#[derive(Debug, Default)]
pub(crate) struct Seldom(Mutex<(Option<Instant>, u64)>);

impl Seldom {
    /// Counts one more. Returns the number since the last warning if it is time for another.
    pub(crate) fn count(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (said, times) = &mut *state;
        *times += 1;
        if said.is_some_and(|said| now.saturating_duration_since(said) < PAUSE) {
            return None;
        }
        *said = Some(now);
        Some(std::mem::take(times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_said_at_once_and_others_once_a_minute_with_their_number() {
        let (seldom, start) = (Seldom::default(), Instant::now());
        assert_eq!(seldom.count(start), Some(1));
        for tenth in 1..600 {
            assert_eq!(seldom.count(start + Duration::from_millis(100 * tenth)), None);
        }
        assert_eq!(seldom.count(start + PAUSE), Some(600));
        assert_eq!(seldom.count(start + 3 * PAUSE), Some(1));
    }
}
