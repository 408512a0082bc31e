//! The identity of a gang's state in tests: equal states behave alike from here on. Times count from now, and texts do not count.

use std::hash::{DefaultHasher, Hash as _};
use std::time::Duration;

use super::Group;

impl Group {
    pub(in super::super) fn identify(&self, now: Duration, to: &mut DefaultHasher) {
        let left = |time: Duration| time.saturating_sub(now).as_millis();
        (self.phase as u8, self.generation, self.why.is_empty(), self.world, self.gone).hash(to);
        self.contested.map(|calls| calls == self.calls).hash(to);
        (self.base, self.acknowledged, self.reads.as_ref().map(|reads| *reads.plan.as_bytes())).hash(to);
        for (rank, member) in &self.members {
            (rank, member.record.attempt, left(member.until), member.left, member.acked).hash(to);
        }
        for (rank, joiner) in &self.joiners {
            let (attempt, token) = (joiner.request.attempt, &joiner.request.token);
            (rank, attempt, token, left(joiner.deadline), left(joiner.until), joiner.holders).hash(to);
        }
        for (rank, ended) in self.retired.iter().filter(|(_, ended)| !ended.is_empty()) {
            (rank, ended.iter().map(|it| (it.attempt, it.left)).collect::<Vec<_>>()).hash(to);
        }
        self.rounds.identify(to);
        // Left out, as these decide nothing: counts of the above, start times of joins, the time of the last call. `quiet_until` must not
        // be late.
        assert!(self.due().is_none_or(|due| self.quiet_until <= due), "something is due that nobody looks for");
    }
}
