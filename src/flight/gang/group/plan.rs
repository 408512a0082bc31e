//! The rule that all ranks of a generation read one plan.

use super::super::journal::Record;
use super::super::wire::{Caller, Position, Reading, Refusal};
use super::Group;
use crate::manifest::Fingerprint;

impl Group {
    /// `caller` begins to read, or acknowledges its reads: it binds the generation, or must read the plan that binds it.
    pub(in super::super) fn read(
        &mut self,
        caller: &Caller,
        reading: &Reading,
        effects: &mut super::Effects,
    ) -> Result<(), Refusal> {
        self.check(caller, false)?;
        match &self.reads {
            Some(bound) if bound.plan != reading.plan => {
                return Err(Refusal::Mismatch {
                    what: format!("plan of rank {} of gang {}, generation {}", caller.rank, self.name, self.generation),
                    expected: match self.base {
                        Some(at) => format!("{bound}, of which {at} is done"),
                        None => format!("{bound}, which the generation reads"),
                    },
                    found: reading.to_string(),
                    hint: "a gang reads one plan: give all ranks the same options over the same files, and read anything else, \
                           such as validation data, without the gang; for changed files start a gang of another name"
                        .into(),
                });
            }
            // The same plan, with no more known about it than before.
            Some(bound) if bound.data.is_some() || reading.data.is_none() => return Ok(()),
            _ => {}
        }
        self.reads = Some(reading.clone());
        effects.records.push(Record::Bound {
            gang: self.name.clone(),
            generation: self.generation,
            reads: reading.clone(),
        });
        Ok(())
    }

    /// Epochs of this plan have this many steps.
    pub(in super::super) fn ends(&mut self, plan: (Fingerprint, u64)) {
        self.ends = Some(plan);
    }

    /// Refuses a position that is no step of the plan that the generation reads: no rank could resume after it.
    pub(super) fn within_epoch(&self, rank: u32, position: Position) -> Result<(), Refusal> {
        let reads = self.reads.as_ref().map(|reads| reads.plan);
        match self.ends {
            Some((plan, steps)) if reads == Some(plan) && position.step >= steps => Err(Refusal::Mismatch {
                what: format!("acknowledgement of rank {rank} of gang {}", self.name),
                expected: format!("a step below {steps}, as many as an epoch of its plan has"),
                found: position.to_string(),
                hint: "steps count from 0 in each epoch: after a batch, acknowledge loader.step - 1 of loader.epoch"
                    .into(),
            }),
            _ => Ok(()),
        }
    }

    /// The plan that the generation reads, if it is settled, and whether the generation resumes in it.
    pub(in super::super) fn reads(&self, caller: &Caller) -> Result<Option<(Reading, bool)>, Refusal> {
        self.check(caller, false)?;
        Ok(self.reads.clone().map(|reads| (reads, self.base.is_some())))
    }
}
