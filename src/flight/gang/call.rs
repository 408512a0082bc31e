//! One kind of call to the gang server, repeated while the wire fails, and while the answer is "not yet".

use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::refusal::millis;
use super::transport::{CallError, Wire};
use super::wire::{Polled, read};
use crate::error::{Error, Result};
use crate::figures::ranks;

/// The first and the longest pause before a call is repeated.
const PAUSES: (Duration, Duration) = (Duration::from_millis(25), Duration::from_secs(1));
/// Margin by which a call outlasts its time, so that the server's own answer, which names the missing ranks, arrives first.
const LAST_WORD: Duration = Duration::from_millis(500);

/// Returns true if a call that failed this way is worth repeating: the server, or the way to it, is out of order for now. The waits of the
/// gang itself have stages that begin with `gang`; when they time out, that is an answer.
pub(super) fn is_trouble(failed: &CallError) -> bool {
    match failed {
        CallError::Unreached(_) | CallError::Answered(Error::Remote { .. } | Error::Store { .. }) => true,
        CallError::Answered(Error::Timeout { stage, .. }) => !stage.starts_with("gang"),
        CallError::Answered(_) => false,
    }
}

/// One kind of call, repeated while the wire fails.
pub(super) struct Call<'a> {
    pub(super) wire: &'a dyn Wire,
    pub(super) action: &'static str,
    pub(super) stage: &'static str,
    pub(super) gang: &'a str,
    /// True if a refused caller is not to try again.
    pub(super) is_first: bool,
}

impl Call<'_> {
    /// Calls until there is an answer or the `deadline` has passed. One attempt takes `patience` at most. Returns when the
    /// answered call was sent.
    pub(super) async fn exchange(
        &self,
        deadline: Instant,
        patience: Duration,
        make: &mut (dyn FnMut(Instant) -> Result<Vec<u8>> + Send),
    ) -> Result<(Vec<u8>, Instant)> {
        let begin = Instant::now();
        let mut pause = PAUSES.0;
        let mut trouble = "no answer".to_owned();
        loop {
            let sent = Instant::now();
            let left = deadline.saturating_duration_since(sent);
            if left.is_zero() {
                let culprit = format!("{}, the server of gang {}: {trouble}", self.wire.peer(), self.gang);
                return Err(Error::Timeout { stage: self.stage, culprit, waited: sent - begin });
            }
            let patience = patience.min(left);
            let call = self.wire.call(self.action, make(sent)?, patience);
            match tokio::time::timeout(patience, call).await {
                Ok(Ok(answer)) => return Ok((answer, sent)),
                Ok(Err(CallError::Answered(refused @ Error::Remote { .. }))) if self.is_first => return Err(refused),
                Ok(Err(failed)) if is_trouble(&failed) => trouble = failed.error().chain(),
                Ok(Err(failed)) => return Err(failed.into()),
                Err(_) => trouble = format!("no answer within {patience:?}"),
            }
            tokio::time::sleep(pause.min(deadline.saturating_duration_since(Instant::now()))).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Reads an answer; an error names the server, with its version if that is another one.
    pub(super) fn read<T: DeserializeOwned>(&self, answer: &[u8]) -> Result<T> {
        read(self.action, answer).map_err(|error| match error {
            Error::Config { option, problem } => {
                Error::config(option, format!("the answer of {}: {problem}", self.wire.peer()))
            }
            error => error,
        })
    }

    /// Asks again while the answer is `waiting`, each time held by the server for `hold` at most.
    pub(super) async fn poll<T: DeserializeOwned>(
        &self,
        timeout: Duration,
        hold: Duration,
        mut make: impl FnMut(u64, u64) -> Result<Vec<u8>> + Send,
    ) -> Result<(T, Instant)> {
        let begin = Instant::now();
        // No wait is longer than a year; this keeps sums of times in range.
        let deadline = begin + timeout.min(Duration::from_secs(365 * 24 * 3600));
        let mut waiting_for = String::new();
        loop {
            let mut body = |sent| {
                let left = deadline.saturating_duration_since(sent);
                make(millis(left), millis(hold.min(left)))
            };
            let answer = self.exchange(deadline + LAST_WORD, hold + LAST_WORD.max(hold), &mut body).await;
            let (answer, sent) = match answer {
                Err(Error::Timeout { stage, culprit, .. }) if !waiting_for.is_empty() => {
                    let culprit = format!("{culprit}; before, it waited for {waiting_for}");
                    return Err(Error::Timeout { stage, culprit, waited: begin.elapsed() });
                }
                other => other?,
            };
            match self.read::<Polled<T>>(&answer)? {
                Polled::Done(value) => return Ok((value, sent)),
                Polled::Waiting { missing, missing_count, .. } => {
                    waiting_for = ranks(&missing, usize::try_from(missing_count).unwrap_or(usize::MAX));
                }
            }
        }
    }
}
