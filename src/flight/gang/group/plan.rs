//! The rule that all ranks of a generation read one plan.

use super::super::journal::Record;
use super::super::wire::{Caller, Reading, Refusal};
use super::Group;

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

    /// The plan that the generation reads, if it is settled, and whether the generation resumes in it.
    pub(in super::super) fn reads(&self, caller: &Caller) -> Result<Option<(Reading, bool)>, Refusal> {
        self.check(caller, false)?;
        Ok(self.reads.clone().map(|reads| (reads, self.base.is_some())))
    }
}
