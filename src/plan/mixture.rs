//! Several datasets as one: the end of their epoch, and their fingerprint.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::interleave::Interleave;
use super::layout::Layout;
use super::spec::Stop;
use crate::error::{Error, Result};
use crate::manifest::{Fingerprint, Manifest};

/// Number of positions in the epoch of a mixture.
pub(super) fn mixed_rows(sources: &[Layout], interleave: &Interleave, stop: Stop) -> Result<u64> {
    let mut ends = Vec::with_capacity(sources.len());
    for (index, source) in sources.iter().enumerate() {
        let Some(last) = source.rows().checked_sub(1) else {
            let problem =
                format!("dataset {index} of the mixture has no rows to deliver; leave it out or widen the filter");
            return Err(Error::config("urls", problem));
        };
        ends.push(interleave.position(index, last).map(|position| position + 1));
    }
    match stop {
        // A source that never ends first may exceed all limits.
        Stop::FirstExhausted => ends
            .into_iter()
            .filter_map(Result::ok)
            .min()
            .map_or_else(|| Err(Error::config("weights", "every dataset of the mixture has more than 2^62 rows")), Ok),
        Stop::AllExhausted => ends.into_iter().try_fold(0, |rows, end| Ok(rows.max(end?))),
    }
}

/// The fingerprint of the data, and the one that a former version gave them, if it was another.
pub(super) fn fingerprints(manifests: &[Arc<Manifest>]) -> (Fingerprint, Option<Fingerprint>) {
    let present = mixed(manifests.iter().map(|manifest| manifest.fingerprint()));
    let former = mixed(manifests.iter().map(|manifest| manifest.former().unwrap_or(manifest.fingerprint())));
    (present, Some(former).filter(|former| *former != present))
}

/// The single one of `fingerprints`, or one of all of them.
fn mixed(mut fingerprints: impl ExactSizeIterator<Item = Fingerprint>) -> Fingerprint {
    if fingerprints.len() == 1
        && let Some(only) = fingerprints.next()
    {
        return only;
    }
    let mut digest = Sha256::new();
    digest.update(b"bowstring mixture 1");
    fingerprints.for_each(|fingerprint| digest.update(fingerprint.as_bytes()));
    Fingerprint::from_bytes(digest.finalize().into())
}
