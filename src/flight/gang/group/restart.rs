//! The records that a gang writes, and its reconstruction from them.

use std::sync::Arc;
use std::time::Duration;

use super::super::collectives::Collectives;
use super::super::journal::Record;
use super::super::wire::{Refusal, from_hex, to_hex};
use super::{Group, Phase};

impl Group {
    /// Applies a record. Members of a running generation get a lease until `until`.
    pub(in super::super) fn replay(&mut self, record: &Record, until: Duration) {
        match record {
            Record::Formed { generation, at, acknowledged, members, reads, .. } => {
                self.install(members.clone(), *generation, (*at, reads.clone()), until);
                self.acknowledged = *acknowledged;
            }
            Record::Raised { generation, acknowledged, why, reads, .. } => {
                let end = Refusal::Fenced { gang: self.name.clone(), generation: self.generation, why: why.clone() };
                let end = Arc::new(end);
                for (rank, member) in self.take_members() {
                    self.retire(rank, member.record.attempt, (Arc::clone(&end), None));
                }
                self.phase = Phase::Forming;
                self.generation = *generation;
                self.acknowledged = *acknowledged;
                self.rounds = Collectives::default();
                self.reads.clone_from(reads);
                self.why.clone_from(why);
            }
            Record::Ended { generation, .. } => {
                self.phase = Phase::Ended;
                self.rounds = Collectives::default();
                self.generation = *generation;
                // All have left, including those for which a compacted journal has no record.
                self.members.values_mut().for_each(|member| member.left = true);
                self.left = self.members.len();
            }
            // The rest belongs to a generation that runs; a record of another one cannot be there.
            Record::Acked { generation, rank, position, .. } if *generation == self.generation => {
                self.stand(*rank, *position);
            }
            Record::Bound { generation, reads, .. } if *generation == self.generation => {
                self.reads = Some(reads.clone());
            }
            Record::Left { generation, rank, .. } if *generation == self.generation => {
                if self.depart(*rank) {
                    self.gone.get_or_insert(*rank);
                }
                // The server may have been killed before it wrote that all have left.
                if self.left == self.members.len() {
                    self.phase = Phase::Ended;
                    self.rounds = Collectives::default();
                }
            }
            Record::Opened { generation, round, messages, .. } if *generation == self.generation => {
                let messages = messages.iter().map(|it| from_hex(it).unwrap_or_default()).collect();
                self.rounds.restore(*round, messages);
            }
            Record::Acked { .. }
            | Record::Bound { .. }
            | Record::Left { .. }
            | Record::Opened { .. }
            | Record::Floor { .. } => {}
        }
    }

    /// The fewest records that make this gang again.
    pub(in super::super) fn snapshot(&self) -> Vec<Record> {
        let (gang, generation, acknowledged) = (self.name.clone(), self.generation, self.acknowledged);
        let formed = Record::Formed {
            gang: gang.clone(),
            generation,
            at: self.base,
            acknowledged,
            members: self.members.values().map(|it| it.record.clone()).collect(),
            reads: self.reads.clone(),
        };
        match self.phase {
            Phase::Forming if self.why.is_empty() => Vec::new(),
            Phase::Forming => {
                let (why, reads) = (self.why.clone(), self.reads.clone());
                vec![Record::Raised { gang, generation, acknowledged, why, reads }]
            }
            Phase::Ended => vec![formed, Record::Ended { gang, generation }],
            Phase::Running => {
                let mut records = vec![formed];
                for (rank, member) in &self.members {
                    let (gang, rank) = (gang.clone(), *rank);
                    if let Some(position) = member.acked {
                        records.push(Record::Acked { gang: gang.clone(), generation, rank, position });
                    }
                    if member.left {
                        records.push(Record::Left { gang, generation, rank });
                    }
                }
                let (round, messages) = self.rounds.last();
                if round > 0 {
                    let messages = messages.iter().map(|message| to_hex(message)).collect();
                    records.push(Record::Opened { gang, generation, round, messages });
                }
                records
            }
        }
    }
}
