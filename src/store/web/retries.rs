//! When a request that failed is sent again: a decision, without a clock or chance of its own.

use std::time::Duration;

/// How often a request is sent again, and how long the waits are.
#[derive(Debug, Clone, Copy)]
pub(in crate::store) struct Retries {
    /// Most times that it is sent again.
    pub(in crate::store) most: u32,
    /// The first wait, which doubles from time to time.
    pub(in crate::store) first: Duration,
    /// The longest one.
    pub(in crate::store) longest: Duration,
}

impl Retries {
    /// Wait before a request that failed `failures` times is sent again, none if it is not. `told` is the wait that the server asks for.
    /// Without it, `chance` from 0 to 1 chooses the wait, so that those who failed together do not come back together.
    pub(super) fn wait(&self, failures: u32, told: Option<Duration>, chance: f64) -> Option<Duration> {
        if failures == 0 || failures > self.most {
            return None;
        }
        let doubled = self.first.saturating_mul(1 << (failures - 1).min(20)).min(self.longest);
        Some(told.map_or_else(|| doubled.mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0), |told| told.min(self.longest)))
    }
}

/// The wait that `Retry-After` asks for, at least a second. A date there is not understood.
pub(in crate::store) fn told(retry_after: Option<&str>) -> Option<Duration> {
    let seconds: u64 = retry_after?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_between_bounds_and_end() {
        let retries = Retries { most: 5, first: Duration::from_millis(200), longest: Duration::from_secs(1) };
        let millis = |failures, chance| retries.wait(failures, None, chance).map(|wait| wait.as_millis());
        let longest: Vec<_> = (1..=6).map(|failures| millis(failures, 1.0)).collect();
        assert_eq!(longest, [Some(200), Some(400), Some(800), Some(1000), Some(1000), None]);
        let shortest: Vec<_> = (1..=6).map(|failures| millis(failures, 0.0)).collect();
        assert_eq!(shortest, [Some(100), Some(200), Some(400), Some(500), Some(500), None]);
        assert_eq!(retries.wait(1, told(Some("7")), 0.3), Some(Duration::from_secs(1)));
        assert_eq!(retries.wait(9, told(Some("7")), 0.3), None);
        let often = Retries { most: u32::MAX, ..retries };
        assert_eq!(often.wait(u32::MAX, None, 9.0), Some(Duration::from_secs(1)));
    }

    #[test]
    fn servers_ask_for_seconds() {
        assert_eq!(told(Some(" 7 ")), Some(Duration::from_secs(7)));
        assert_eq!(told(Some("0")), Some(Duration::from_secs(1)));
        assert_eq!((told(Some("Wed, 21 Oct 2026 07:28:00 GMT")), told(None)), (None, None));
    }
}
