//! The server as it is now, for the page, for `bowstring top` and for the action `snapshot`: gathers the facts of a [`Snapshot`].
//!
//! Operators see all of it. A tenant sees its own streams and gangs.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::core::{Core, PRIVATE};
use crate::flight::gang::Overview;
use crate::flight::server::access::auth::Tenant;
use crate::flight::server::access::space::Space;
use crate::flight::server::ops::snapshot::{MOST_GANGS, MemoryView, PlanKey, Snapshot, StreamFacts};
use crate::flight::server::stream::live::LiveStream;
use crate::pipeline::CAUSES;
use crate::store;

impl Core {
    /// Returns the most bytes that a snapshot takes as JSON now.
    pub(crate) fn snapshot_bytes(&self) -> usize {
        Snapshot::most_bytes(self.live.all().len(), self.config.catalogue.get().names())
    }

    /// The server as it is now, as far as `tenant` may see it; all of it for operators, who are no tenant. May take long for the first
    /// time with a plan of very many row groups.
    pub(crate) fn snapshot(&self, tenant: Option<&Tenant>) -> Snapshot {
        let space = tenant.map_or(Space::Whole, |tenant| self.config.spaces.of(tenant));
        let is_whole = space == Space::Whole;
        let live = self.live.all();
        let of = |stream: &&Arc<LiveStream>| is_whole || tenant == Some(&stream.about.tenant);
        let live: Vec<&Arc<LiveStream>> = live.iter().filter(of).collect();
        let hides = self.config.has_tenants() && tenant.is_none();
        let streams = live.iter().map(|stream| facts(stream, hides)).collect();
        let plans: HashMap<PlanKey, &Arc<LiveStream>> = live.iter().map(|stream| (key(stream), *stream)).collect();
        let strip = |key: PlanKey| {
            let stream = plans.get(&key);
            stream.map(|stream| self.strips.get(key, &stream.about.offer, &stream.about.plan)).unwrap_or_default()
        };
        let catalogue: Vec<String> = self.config.catalogue.get().names().map(str::to_owned).collect();
        let mut snapshot = Snapshot::new(self.config.admin.phase()).with_streams(streams, catalogue, strip);
        snapshot.time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |now| now.as_secs_f64());
        snapshot.uptime_seconds = self.born.elapsed().as_secs_f64();
        let of = match &space {
            Space::Whole => None,
            Space::Common => Some(None),
            Space::Own(own) => Some(Some(&**own)),
        };
        let named = |(mut gang, space): (Overview, Option<String>)| {
            match space {
                // Tenants give these names, and their reasons.
                Some(_) if hides => (gang.gang, gang.why) = (PRIVATE.to_owned(), String::new()),
                Some(space) if is_whole => gang.gang = format!("{space}/{}", gang.gang),
                _ => {}
            }
            gang.why = gang.why.chars().take(240).collect();
            gang
        };
        snapshot.gangs = self.gangs.overview(of, MOST_GANGS).into_iter().map(named).collect();
        if is_whole {
            let (used, budget) = self.memory();
            let written = self.staging.as_ref().map_or(0, |staging| staging.memory_used());
            snapshot.memory = Some(MemoryView { used, budget, written });
            (snapshot.row_groups_decoded, snapshot.rows_decoded) = self.decoded();
            snapshot.cache = Some(store::cache::totals());
            snapshot.origins = store::origins();
            snapshot.errors = self.config.admin.metrics().recent_errors().all();
        }
        snapshot
    }
}

impl Core {
    /// What the time of all ranks went to since the start, in seconds by cause, and the most steps by which one is behind the first one
    /// that reads the same plan with it.
    pub(crate) fn ranks(&self) -> ([f64; CAUSES], u64) {
        let mut reach: HashMap<(PlanKey, u64), (u64, u64)> = HashMap::new();
        for stream in self.live.all() {
            let step = stream.seen().step;
            let (least, most) = reach.entry((key(&stream), job(&stream))).or_insert((step, step));
            (*least, *most) = (step.min(*least), step.max(*most));
        }
        let lag = reach.values().map(|(least, most)| most - least).max().unwrap_or(0);
        (self.live.spent(), lag)
    }
}

/// The job of a stream: equal for ranks that read a plan together.
fn job(stream: &LiveStream) -> u64 {
    let mut job = DefaultHasher::new();
    (&stream.about.tenant, &stream.about.gang).hash(&mut job);
    job.finish()
}

fn key(stream: &LiveStream) -> PlanKey {
    let about = &stream.about;
    (about.offer.as_ptr() as usize, about.plan.epoch(), about.share.world)
}

fn facts(stream: &LiveStream, hides: bool) -> StreamFacts {
    let (about, seen) = (&stream.about, stream.seen());
    let gang = about.gang.clone().map(|(name, generation)| (if hides { PRIVATE.to_owned() } else { name }, generation));
    StreamFacts {
        plan: key(stream),
        job: job(stream),
        dataset: about.dataset.clone(),
        steps: about.plan.steps(),
        rows_of_epoch: about.plan.rows(),
        lanes: about.plan.lanes(),
        rank: about.share.rank,
        step: seen.step,
        gang,
        local: about.local,
        doing: seen.doing,
        spent: seen.spent,
        rows_per_second: seen.rows_per_second,
        bytes_per_second: seen.bytes_per_second,
        rows: seen.rows,
    }
}
