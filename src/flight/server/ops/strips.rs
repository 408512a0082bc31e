//! The strips of the plans that are read: each takes time in proportion to the row groups of its plan, once.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError, Weak};

use super::snapshot::{MOST_PLANS, PlanKey, Strip};
use crate::flight::server::catalog::open_dataset::OpenDataset;
use crate::plan::Plan;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Strips(Mutex<HashMap<PlanKey, (Weak<OpenDataset>, Strip)>>);

impl Strips {
    /// Returns the strip of `plan`, one of `offer`.
    pub(crate) fn get(&self, key: PlanKey, offer: &Weak<OpenDataset>, plan: &Plan) -> Strip {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // An address belongs to another dataset only once the one before is gone.
        all.retain(|_, (offer, _)| offer.strong_count() > 0);
        if let Some((_, strip)) = all.get(&key) {
            return strip.clone();
        }
        let strip = Strip::of(&plan.spans());
        if all.len() >= 4 * MOST_PLANS {
            all.clear();
        }
        all.insert(key, (Weak::clone(offer), strip.clone()));
        strip
    }
}
