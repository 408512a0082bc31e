//! The audit of a run: joins the certificates of all its loaders and tells which steps of which rank were consumed
//! exactly once.
//!
//! It is arithmetic over spans of positions, and touches no row: a run over 10^9 rows takes as long as one over a
//! thousand. The plan itself promises that the steps of an epoch hold each row once, which
//! [`Plan::census`](super::Plan::census) counts.
//!
//! ```text
//!   position ──►  0      40      60            100        140
//!   loader A, rank 0   ├────────────────┤                        killed; its last certificate is of step 60
//!   loader B, rank 0           ├─────────────────────────────┤   resumed at 40: replaces A from 40 on
//!   loader C, rank 1   ├─────────────────┤        ├──────────┤   never consumed 62 to 100
//! ```

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::apart::{Apart, apart};
use super::certificate::{Certificate, Span};
use super::rollback::{Piece, roll_back};
use super::spec::PlanSpec;
use super::tail::Tail;
use crate::error::{Error, Result};
use crate::manifest::Fingerprint;

/// Epoch and step.
type At = (u64, u64);

/// The fault of a range of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// Consumed by no loader.
    NotConsumed,
    /// Consumed more than once, and not rolled back in between by a resume before it.
    Repeated,
}

/// Steps that were not consumed exactly once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The fault.
    pub fault: Fault,
    /// Epoch and step of the first one.
    pub from: At,
    /// Epoch and step after the last one.
    pub to: At,
    /// The rank whose share is affected; `None` for the whole step.
    pub rank: Option<u32>,
    /// The number of ranks.
    pub world_size: u32,
}

/// The combined result of a run's certificates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Audit {
    /// The data.
    pub fingerprint: Fingerprint,
    /// The resolved plan.
    pub spec: PlanSpec,
    /// Rows of an epoch over all ranks.
    pub rows: u64,
    /// Steps of an epoch of one rank.
    pub steps: u64,
    /// Loaders that have a certificate.
    pub loaders: usize,
    /// Times that loaders continued from a state.
    pub resumes: usize,
    /// Steps of ranks that were consumed, and rolled back by a resume before them.
    pub replaced_steps: u64,
    /// The first position of the epoch that the run began in.
    pub from: At,
    /// Set if all loaders begin there from a state: what came before it has no certificate among these.
    pub continues: bool,
    /// The last position that all ranks reached: everything from `from` to it was consumed exactly once if `exact`.
    pub until: At,
    /// The last position that any rank reached and that was not rolled back.
    pub end: At,
    /// Set if there are steps between `from` and `until`, and every rank consumed each of them exactly once; and if an epoch has no steps,
    /// as that of a filter which selects no row.
    pub exact: bool,
    /// Set if all ranks reached `end`.
    pub complete: bool,
    /// Rows replaced by other rows.
    pub skipped_rows: u64,
    /// Rows with a column set to zero.
    pub zeroed_rows: u64,
    /// The faults, in the order of positions, and what some ranks have not reached yet.
    pub findings: Vec<Finding>,
    /// Findings beyond those listed.
    pub more_findings: u64,
    /// Ranks that resumed where others of their world did not: no fault of the order, but of a model that all ranks train together.
    pub apart: Vec<Apart>,
}

/// Maximum findings that an audit lists, and maximum ranks that it names for one range of steps.
const MAX_FINDINGS: usize = 10_000;

/// Joins the certificates of one run. If a loader has several, the last one counts.
///
/// # Errors
/// [`Error::Config`] without certificates, or for one that dropped spans; [`Error::Mismatch`] for certificates of different plans.
pub fn audit(certificates: &[Certificate]) -> Result<Audit> {
    let certificates = latest(certificates);
    let Some(first) = certificates.first() else {
        return Err(Error::config("certificate", "no certificates: give those of all ranks and restarts"));
    };
    for other in &certificates {
        same_plan(first, other)?;
    }
    // Steps of a world of one rank: worlds with a step fewer, under `even`, take the last two in one.
    let of_one = first.spec.steps(first.rows);
    let steps = u128::from(of_one);
    let linear = |(epoch, step): At, own: u64| {
        let step = if step >= own { of_one } else { step };
        u128::from(epoch) * steps + u128::from(step)
    };
    let position = |linear: u128| match steps {
        0 => (0, 0),
        // An epoch is a u64, and so is a step below the number of steps.
        steps => ((linear / steps) as u64, (linear % steps) as u64),
    };
    let mut pieces = Vec::new();
    for (loader, certificate) in certificates.iter().enumerate() {
        let Certificate { rank, world_size: world, opened, written, .. } = **certificate;
        for (number, Span { from, to, resumed }) in certificate.consumed.iter().enumerate() {
            let (from, to, resumed) = (linear(*from, certificate.steps), linear(*to, certificate.steps), *resumed);
            if from < to || resumed {
                pieces.push(Piece { from, to, rank, world, loader, number, resumed, opened, written });
            }
        }
    }
    let all = pieces;
    let (pieces, replaced) = roll_back(&all);
    let mut found = Found::default();
    let start = pieces.iter().map(|piece| piece.from).min().unwrap_or(0);
    let epoch = start - start % steps.max(1);
    found.sweep(&pieces, epoch);
    let end = pieces.iter().map(|piece| piece.to).max().unwrap_or(epoch);
    let until = found.agreed.max(epoch);
    let is_before = |finding: &Raw| finding.from < until;
    // If some rank has no certificate at all, no step was consumed by all ranks, and nothing is exact. Of no steps, none is missing.
    let exact = of_one == 0 || (until > epoch && !found.raw.iter().any(is_before));
    let show = |raw: &Raw| Finding {
        fault: raw.fault,
        from: position(raw.from),
        to: position(raw.to),
        rank: raw.rank,
        world_size: raw.world,
    };
    Ok(Audit {
        fingerprint: first.fingerprint,
        spec: first.spec.clone(),
        rows: first.rows,
        steps: of_one,
        loaders: certificates.len(),
        resumes: certificates.iter().flat_map(|one| &one.consumed).filter(|span| span.resumed).count(),
        replaced_steps: u64::try_from(replaced).unwrap_or(u64::MAX),
        from: position(epoch),
        continues: epoch > 0
            && start == epoch
            && pieces.iter().filter(|piece| piece.from == start).all(|piece| piece.resumed),
        until: position(until),
        end: position(end),
        exact,
        complete: until == end,
        skipped_rows: certificates.iter().map(|one| one.bad_rows.skipped).fold(0, u64::saturating_add),
        zeroed_rows: certificates.iter().map(|one| one.bad_rows.zeroed).fold(0, u64::saturating_add),
        findings: found.raw.iter().take(MAX_FINDINGS).map(show).collect(),
        more_findings: found.unlisted.saturating_add(found.raw.len().saturating_sub(MAX_FINDINGS) as u64),
        apart: apart(&all, &pieces, position),
    })
}

/// The last certificate of each loader.
fn latest(certificates: &[Certificate]) -> Vec<&Certificate> {
    let mut last: BTreeMap<(&str, u32), &Certificate> = BTreeMap::new();
    for certificate in certificates {
        let found = last.entry((&certificate.loader, certificate.rank)).or_insert(certificate);
        // Two of one millisecond: what was consumed only grows, and a move begins another span.
        let last = |one: &Certificate| (one.written, one.consumed.len(), one.consumed.last().map(|span| span.to));
        if last(certificate) >= last(found) {
            *found = certificate;
        }
    }
    last.into_values().collect()
}

fn same_plan(first: &Certificate, other: &Certificate) -> Result<()> {
    let differs = |what: &str, expected: String, found: String| Error::Mismatch {
        what: format!("{what} of the certificate of rank {}, loader {}", other.rank, other.loader),
        expected,
        found,
        hint:
            "audit the certificates of one dataset and plan together; those of validation, for example, by themselves"
                .to_owned(),
    };
    let json = |spec: &PlanSpec| serde_json::to_string(spec).unwrap_or_default();
    if first.fingerprint != other.fingerprint {
        return Err(differs("fingerprint", first.fingerprint.to_string(), other.fingerprint.to_string()));
    }
    if first.spec != other.spec {
        return Err(differs("plan", json(&first.spec), json(&other.spec)));
    }
    let steps = other.spec.steps(other.rows);
    let has_fewer = other.spec.tail == Tail::Even && other.steps + 1 == steps;
    if first.rows != other.rows || (other.steps != steps && !has_fewer) {
        let found = format!("{} rows in {} steps", other.rows, other.steps);
        return Err(differs("size", format!("{} rows in {steps} steps", first.rows), found));
    }
    if other.dropped > 0 {
        let problem =
            format!("that of rank {} dropped {} spans: nothing can be said of them", other.rank, other.dropped);
        return Err(Error::config("certificate", problem));
    }
    Ok(())
}

/// A finding in linear positions.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Raw {
    fault: Fault,
    from: u128,
    to: u128,
    rank: Option<u32>,
    world: u32,
}

#[derive(Debug, Default)]
struct Found {
    raw: Vec<Raw>,
    /// End of the last interval that every rank consumed.
    agreed: u128,
    /// Ranks that consumed nothing of a range of steps, beyond those that are named.
    unlisted: u64,
    /// Findings that end at the sweep's position, which the next interval may extend.
    open: BTreeMap<(Fault, Option<u32>, u32), usize>,
}

impl Found {
    /// Sweeps the positions from `start` on, in intervals within which no span begins or ends.
    fn sweep(&mut self, pieces: &[Piece], start: u128) {
        let mut edges: BTreeMap<u128, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
        for (number, piece) in pieces.iter().enumerate() {
            edges.entry(piece.from).or_default().0.push(number);
            edges.entry(piece.to).or_default().1.push(number);
        }
        let mut active: BTreeSet<(u64, usize, usize, usize)> = BTreeSet::new();
        let mut at = start;
        for (edge, (begin, end)) in edges {
            if edge > at {
                // In the order of opening, and within a loader in the order of its spans.
                let here: Vec<&Piece> = active.iter().map(|(.., number)| &pieces[*number]).collect();
                self.interval(at, edge, &here);
                at = edge;
            }
            let key = |number: usize| (pieces[number].opened, pieces[number].loader, pieces[number].number, number);
            end.iter().for_each(|number| _ = active.remove(&key(*number)));
            begin.iter().for_each(|number| _ = active.insert(key(*number)));
        }
    }

    /// Judges `from..to`, which all of `pieces` cover.
    fn interval(&mut self, from: u128, to: u128, pieces: &[&Piece]) {
        let mut faults: Vec<(Fault, Option<u32>, u32)> = Vec::new();
        match pieces.last() {
            None => faults.push((Fault::NotConsumed, None, 0)),
            Some(last) if pieces.iter().any(|piece| piece.world != last.world) => {
                faults.push((Fault::Repeated, None, last.world));
            }
            Some(Piece { world, .. }) => {
                let mut times: BTreeMap<u32, u32> = BTreeMap::new();
                pieces.iter().for_each(|piece| *times.entry(piece.rank).or_default() += 1);
                let repeated = times.iter().filter(|(_, times)| **times > 1);
                faults.extend(repeated.map(|(rank, _)| (Fault::Repeated, Some(*rank), *world)));
                if times.len() < *world as usize {
                    let missing = (0..*world).filter(|rank| !times.contains_key(rank)).take(MAX_FINDINGS);
                    faults.extend(missing.map(|rank| (Fault::NotConsumed, Some(rank), *world)));
                    self.unlisted += (*world as usize - times.len()).saturating_sub(MAX_FINDINGS) as u64;
                } else {
                    self.agreed = to;
                }
            }
        }
        let mut open = BTreeMap::new();
        for (fault, rank, world) in faults {
            let known = self.open.get(&(fault, rank, world)).copied();
            let number = known.unwrap_or_else(|| {
                self.raw.push(Raw { fault, from, to, rank, world });
                self.raw.len() - 1
            });
            self.raw[number].to = to;
            open.insert((fault, rank, world), number);
        }
        self.open = open;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::certificate::BadRows;

    /// A certificate with 10 steps per epoch.
    fn certificate(
        loader: &str,
        (rank, world_size): (u32, u32),
        (opened, written): (u64, u64),
        spans: &[(At, At, bool)],
    ) -> Certificate {
        Certificate {
            version: Certificate::VERSION,
            loader: loader.to_owned(),
            opened,
            written,
            fingerprint: Fingerprint::from_bytes([7; 32]),
            spec: PlanSpec::new(1, 8),
            rows: 80,
            steps: 10,
            rank,
            world_size,
            generation: None,
            consumed: spans
                .iter()
                .map(|(from, to, resumed)| Span { from: *from, to: *to, resumed: *resumed })
                .collect(),
            dropped: 0,
            bad_rows: BadRows { skipped: 1, zeroed: 0 },
            signature: None,
        }
    }

    fn finding(fault: Fault, from: At, to: At, rank: Option<u32>, world_size: u32) -> Finding {
        Finding { fault, from, to, rank, world_size }
    }

    #[test]
    fn a_run_without_interruption_is_exact() {
        let run: Vec<_> =
            (0..4).map(|rank| certificate(&rank.to_string(), (rank, 4), (1, 9), &[((0, 0), (3, 0), false)])).collect();
        let audit = audit(&run).unwrap();
        assert!(audit.exact && audit.complete && audit.findings.is_empty(), "{audit:?}");
        assert_eq!((audit.from, audit.until, audit.end, audit.skipped_rows), ((0, 0), (3, 0), (3, 0), 4));
    }

    #[test]
    fn a_resume_replaces_what_came_after_its_state_and_nothing_else() {
        // Killed at 7 and 8 of epoch 1, resumed at 5 with one more rank.
        let mut run = vec![
            certificate("a", (0, 2), (1, 50), &[((0, 0), (1, 7), false)]),
            certificate("b", (1, 2), (2, 51), &[((0, 0), (1, 8), false)]),
        ];
        for rank in 0..3 {
            run.push(certificate(&format!("c{rank}"), (rank, 3), (60, 70), &[((1, 5), (2, 0), true)]));
        }
        let exact = audit(&run).unwrap();
        assert!(exact.exact && exact.findings.is_empty(), "{exact:?}");
        assert_eq!((exact.replaced_steps, exact.resumes, exact.until), (5, 3, (2, 0)));
        // Without its state a restart repeats steps already trained on.
        for late in &mut run[2..] {
            late.consumed[0].resumed = false;
        }
        let repeated = audit(&run).unwrap();
        assert!(!repeated.exact);
        assert_eq!(repeated.findings, [finding(Fault::Repeated, (1, 5), (1, 8), None, 3)]);
        // Resumed while the others continued: both were trained on.
        for late in &mut run[2..] {
            (late.consumed[0].resumed, late.opened) = (true, 50);
        }
        assert_eq!(audit(&run).unwrap().findings, [finding(Fault::Repeated, (1, 5), (1, 8), None, 3)]);
    }

    #[test]
    fn every_gap_and_repetition_is_named() {
        let run = [
            certificate("a", (0, 2), (1, 9), &[((0, 0), (0, 6), false), ((1, 0), (2, 0), false)]),
            certificate("b", (1, 2), (1, 9), &[((0, 0), (0, 4), false), ((1, 0), (2, 3), false)]),
            certificate("c", (1, 2), (1, 9), &[((1, 2), (1, 5), false)]),
        ];
        let audit = audit(&run).unwrap();
        assert_eq!(
            audit.findings,
            [
                finding(Fault::NotConsumed, (0, 4), (0, 6), Some(1), 2),
                finding(Fault::NotConsumed, (0, 6), (1, 0), None, 0),
                finding(Fault::Repeated, (1, 2), (1, 5), Some(1), 2),
                finding(Fault::NotConsumed, (2, 0), (2, 3), Some(0), 2),
            ]
        );
        assert_eq!((audit.exact, audit.until, audit.end), (false, (2, 0), (2, 3)));
    }

    #[test]
    fn a_run_whose_first_epochs_have_no_certificates_says_so() {
        let from = |resumed| {
            let run: Vec<_> = [("a", 0), ("b", 1)]
                .map(|(name, rank)| certificate(name, (rank, 2), (1, 9), &[((1, 0), (2, 0), resumed)]))
                .into();
            audit(&run).unwrap()
        };
        assert!(from(true).exact && from(true).continues && !from(false).continues);
        let whole = certificate("a", (0, 1), (1, 9), &[((0, 0), (1, 0), true), ((1, 0), (2, 0), true)]);
        assert!(!audit(&[whole]).unwrap().continues, "nothing comes before the first step");
    }

    #[test]
    fn a_run_without_the_certificates_of_a_rank_is_not_exact() {
        let audit = audit(&[certificate("a", (0, 2), (1, 9), &[((0, 0), (2, 0), false)])]).unwrap();
        assert!(!audit.exact && !audit.complete, "{audit:?}");
        assert_eq!(audit.findings, [finding(Fault::NotConsumed, (0, 0), (2, 0), Some(1), 2)]);
        let nothing = super::audit(&[certificate("a", (0, 1), (1, 9), &[])]).unwrap();
        assert!(!nothing.exact, "nothing was consumed");
        // Where nothing is selected, there is nothing to consume.
        let none = Certificate { rows: 0, steps: 0, ..certificate("a", (0, 2), (0, 1), &[]) };
        let none = super::audit(&[none]).unwrap();
        assert!(none.exact && none.complete && none.findings.is_empty(), "{none:?}");
    }

    #[test]
    fn of_a_million_ranks_without_certificates_some_are_named_and_all_counted() {
        let audit = audit(&[certificate("a", (0, 1 << 20), (1, 9), &[((0, 0), (2, 0), false)])]).unwrap();
        assert_eq!(audit.findings.len() as u64 + audit.more_findings, (1 << 20) - 1);
        assert_eq!(audit.findings.len(), MAX_FINDINGS);
    }

    #[test]
    fn what_some_ranks_have_not_reached_yet_is_no_fault_of_what_all_have() {
        let run = [
            certificate("a", (0, 2), (1, 9), &[((4, 0), (4, 6), false)]),
            certificate("b", (1, 2), (1, 9), &[((4, 0), (4, 4), false)]),
        ];
        let audit = audit(&run).unwrap();
        assert!(audit.exact && !audit.complete);
        assert_eq!((audit.from, audit.until, audit.end), ((4, 0), (4, 4), (4, 6)));
        assert_eq!(audit.findings, [finding(Fault::NotConsumed, (4, 4), (4, 6), Some(1), 2)]);
    }

    #[test]
    fn worlds_with_a_step_fewer_took_the_last_two_in_one() {
        // 74 rows in steps of 8: the last two steps have five each, too few for six ranks.
        let even = |loader: &str, (rank, world), times, steps, span| Certificate {
            spec: PlanSpec { tail: Tail::Even, ..PlanSpec::new(1, 8) },
            rows: 74,
            steps,
            ..certificate(loader, (rank, world), times, &[span])
        };
        let mut run = vec![even("a", (0, 1), (1, 9), 10, ((0, 0), (0, 4), false))];
        run.extend((0..6).map(|rank| even(&rank.to_string(), (rank, 6), (10, 19), 9, ((0, 4), (0, 9), true))));
        run.push(even("b", (0, 1), (20, 29), 10, ((1, 0), (2, 0), true)));
        let audit = audit(&run).unwrap();
        assert!(audit.exact && audit.findings.is_empty(), "{audit:?}");
        assert_eq!((audit.steps, audit.until), (10, (2, 0)));
    }

    #[test]
    fn processes_that_all_take_themselves_for_the_only_rank_are_found() {
        let run = ["a", "b"].map(|loader| certificate(loader, (0, 1), (1, 9), &[((0, 0), (1, 0), false)]));
        let audit = audit(&run).unwrap();
        assert_eq!(audit.findings, [finding(Fault::Repeated, (0, 0), (1, 0), Some(0), 1)]);
        assert!(!audit.exact);
    }

    #[test]
    fn the_last_certificate_of_a_loader_counts_and_plans_are_not_mixed() {
        let early = certificate("a", (0, 1), (1, 5), &[((0, 0), (0, 4), false)]);
        let late = certificate("a", (0, 1), (1, 9), &[((0, 0), (1, 0), false)]);
        let same = Certificate { written: late.written, ..early.clone() };
        assert!(audit(&[late.clone(), same]).unwrap().exact, "of one millisecond");
        let joined = audit(&[late.clone(), early.clone()]).unwrap();
        assert!(joined.exact && joined.findings.is_empty() && joined.loaders == 1, "{joined:?}");
        assert!(audit(&[]).is_err());
        let other = Certificate { loader: "b".to_owned(), spec: PlanSpec::new(2, 8), ..late.clone() };
        assert!(matches!(audit(&[early.clone(), other]), Err(Error::Mismatch { .. })));
        let dropped = Certificate { dropped: 1, ..late };
        assert!(matches!(audit(&[dropped]), Err(Error::Config { .. })));
    }
}
