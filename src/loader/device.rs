//! A source of batches on a device: those of another source, brought there ahead of the consumer.
//!
//! The other source runs ahead: its position is the transfer thread's. The loader on top knows the consumer's.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::decoding;
use super::remote::is_remote;
use crate::codec::{BadRows, Lists};
use crate::device::{AnyBatch, Device, DeviceStats, Feeding, Normalisation, Padding, Recipes, Transfer, refused};
use crate::error::Result;
use crate::pipeline::{
    BatchSource, Cause, ConsumerTime, Ledger, LoaderOptions, PlanInfo, Spent, Stats, Trail, WideInteger, only,
};
use crate::plan::State;
use crate::schema::{DType, Dim, Field, Schema, Type};
use crate::tensor::{Batch, Next};
use crate::trace::Root;

/// Lists padded to fewer items are padded on the host: the bytes saved on the bus are not worth two kernels.
const SHORTEST: usize = 16;

/// The source that runs ahead, shared with the transfer thread.
#[derive(Debug)]
struct Ahead {
    /// Held while waiting for `made`, so that the thread, which always wants it, does not starve the others.
    turn: Mutex<()>,
    made: Mutex<Made>,
    /// Batches that the consumer has not taken yet, in order. Apart from `made`, which is held during waits.
    under_way: Mutex<VecDeque<Arrival>>,
}

#[derive(Debug)]
struct Made {
    source: Box<dyn BatchSource>,
    /// Counts changes of position: batches made before a change are not wanted after it.
    generation: u64,
}

/// A batch that came from the source and is on its way to the consumer.
#[derive(Debug)]
struct Arrival {
    /// Epoch and step.
    at: (u64, u64),
    trail: Option<Trail>,
    /// When it came.
    came: Instant,
}

impl Arrival {
    /// What a wait for the batch from `from` to `to` was for: until it came, what its trail says, and then its transfer.
    fn waits(&self, from: Instant, to: Instant) -> Spent {
        let came = self.came.clamp(from, to.max(from));
        let before =
            self.trail.as_ref().map_or_else(|| only(Cause::Queue, from, came), |trail| trail.waits(from, came));
        let after = only(Cause::Transfer, came, to);
        std::array::from_fn(|cause| before[cause] + after[cause])
    }
}

impl Ahead {
    fn lock(&self) -> MutexGuard<'_, Made> {
        // A source is consistent between calls.
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn under_way(&self) -> MutexGuard<'_, VecDeque<Arrival>> {
        // A list is consistent between calls.
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the batch of `at` off the list, and those before it, which nobody wanted.
    fn taken(&self, at: (u64, u64)) -> Option<Arrival> {
        let mut under_way = self.under_way();
        std::iter::from_fn(|| under_way.pop_front()).find(|came| came.at == at)
    }

    fn pull(&self, wait: Duration) -> (u64, Result<Next<Batch>>) {
        let mut made = self.lock();
        let next = match made.source.next(wait) {
            Ok(Next::Item(AnyBatch::Host(batch))) => {
                let (at, trail) = ((batch.epoch, batch.step), made.source.trail());
                self.under_way().push_back(Arrival { at, trail, came: Instant::now() });
                Ok(Next::Item(batch))
            }
            Ok(Next::Item(AnyBatch::Device(_))) => Err(refused("the host", "a batch", "it is on a device already")),
            Ok(Next::End) => Ok(Next::End),
            Ok(Next::Pending) => Ok(Next::Pending),
            Err(error) => Err(error),
        };
        (made.generation, next)
    }
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct DeviceSource {
    // Declared first, dropped first: its thread uses the other source.
    transfer: Transfer,
    ahead: Arc<Ahead>,
    schema: Schema,
    /// A copy of the other source's, which is often busy.
    info: PlanInfo,
    timeout: Duration,
    /// Of the gang.
    member_of: Option<u64>,
    root: Option<Root>,
    time: ConsumerTime,
}

impl DeviceSource {
    /// Delivers on `device` what `open` opens. `open` may be called a second time, with other options, if the first
    /// source turns out to deliver what the device cannot finish.
    pub(super) fn open(
        options: &LoaderOptions,
        device: Arc<dyn Device>,
        open: impl Fn(&LoaderOptions) -> Result<Box<dyn BatchSource>>,
    ) -> Result<Self> {
        let (options, decoded) = decoding::deferred(options)?;
        if !decoded.is_empty() {
            device.open_decoder()?;
        }
        let (asked, mut photos) = shared_work(&options);
        let mut source = open(&asked)?;
        if !photos.keys().all(|name| is_pixels(source.schema(), name)) {
            source = open(&options)?;
            photos.clear();
        }
        decoding::check(source.schema(), &decoded)?;
        let lists = paddings(source.schema(), &options);
        // Without one, a column of that name is a column of the data.
        let mask = source.info().masked.then(|| crate::codec::MASK.into());
        let recipes = Recipes { photos, decoded, lists, mask };
        let schema = finished(source.schema(), &recipes);
        let (info, timeout) = (source.info().clone(), source.timeout());
        let feeding = Feeding {
            slots: options.device_slots,
            fence: options.device_fence,
            overflow: options.device_overflow,
            recipes,
        };
        let (member_of, root) = (source.generation(), source.root());
        let ahead = Arc::new(Ahead {
            turn: Mutex::default(),
            made: Mutex::new(Made { source, generation: 0 }),
            under_way: Mutex::default(),
        });
        let pull = Arc::clone(&ahead);
        let transfer = Transfer::start(device, feeding, Box::new(move |wait| pull.pull(wait)))?;
        Ok(Self { transfer, ahead, schema, info, timeout, member_of, root, time: ConsumerTime::default() })
    }

    /// Moves the source that runs ahead. On failure, the source continues as before, and its batches stay wanted.
    fn go<T>(&mut self, change: impl FnOnce(&mut dyn BatchSource) -> Result<T>) -> Result<T> {
        let mut made = self.ahead.lock();
        let changed = change(&mut *made.source)?;
        made.generation += 1;
        self.ahead.under_way().clear();
        self.time.leaves();
        self.info.clone_from(made.source.info());
        let generation = made.generation;
        drop(made);
        self.transfer.restart(generation);
        Ok(changed)
    }
}

impl BatchSource for DeviceSource {
    fn next(&mut self, wait: Duration) -> Result<Next<AnyBatch>> {
        self.time.asks(Instant::now());
        let next = self.transfer.next(wait);
        let now = Instant::now();
        match &next {
            Ok(Next::Item(batch)) => {
                let came = self.ahead.taken((batch.epoch, batch.step));
                self.time.takes(now, |from, to| {
                    came.map_or_else(|| only(Cause::Transfer, from, to), |came| came.waits(from, to))
                });
            }
            Ok(Next::Pending) => self.time.gives_up(now),
            Ok(Next::End) | Err(_) => self.time.leaves(),
        }
        Ok(next?.map(AnyBatch::Device))
    }

    fn seek(&mut self, epoch: u64, step: u64) -> Result<()> {
        self.go(|source| source.seek(epoch, step))
    }

    fn resume(&mut self, state: &State) -> Result<u64> {
        self.go(|source| source.resume(state))
    }

    fn info(&self) -> &PlanInfo {
        &self.info
    }

    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn culprit(&self) -> (&'static str, String) {
        match self.transfer.blocked() {
            Some(culprit) => ("device", culprit),
            None => self.ahead.lock().source.culprit(),
        }
    }

    /// The transfer itself reports that it is closed, and gets nothing that its source may no longer make.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn check_maker(&self) -> Result<()> {
        self.ahead.lock().source.check()
    }

    fn wide_integers(&mut self, wait: Duration) -> Result<Next<Vec<WideInteger>>> {
        self.ahead.lock().source.wide_integers(wait)
    }

    /// Batches made ahead count as consumed. The time is that of the consumer, not of the transfer thread.
    fn stats(&self) -> Stats {
        let stats = self.ahead.lock().source.stats();
        stats.taken_by(self.time.spent(Cause::Transfer))
    }

    fn ledger(&self) -> Ledger {
        self.ahead.lock().source.ledger()
    }

    fn generation(&self) -> Option<u64> {
        self.member_of
    }

    fn root(&self) -> Option<Root> {
        self.root
    }

    fn device(&self) -> Option<&Arc<dyn Device>> {
        Some(self.transfer.device())
    }

    fn device_stats(&self) -> Option<DeviceStats> {
        Some(self.transfer.stats())
    }

    fn close(&mut self) {
        self.transfer.close();
        self.ahead.lock().source.close();
    }
}

/// Returns the options with which the host leaves to the device what it does better, and the work left on photos, by
/// column. Photos cross the bus as u8, a quarter of the bytes, and are normalised on the device; padded lists cross it
/// without their padding. The schema tells which lists are cut.
fn shared_work(options: &LoaderOptions) -> (LoaderOptions, BTreeMap<Arc<str>, Normalisation>) {
    let (mut asked, mut photos) = (options.clone(), BTreeMap::new());
    // Windows have additional axes.
    if options.ngram.is_some() {
        return (asked, photos);
    }
    // A server's messages lie in page-locked memory of each message's size: with cut lists, no buffer would fit the
    // next message.
    if !is_remote(options) {
        asked.columns.lists.0.values_mut().for_each(cut);
    }
    // Bad rows are zeros after normalisation, which the device could not tell from black.
    if options.bad_rows == BadRows::Zero {
        return (asked, photos);
    }
    for (name, image) in &mut asked.columns.images {
        // A pattern may match columns that are not photos.
        if name.contains(['*', '?']) || !options.columns.nulls_are_errors(name) {
            continue;
        }
        if let Some((pixels, scale, bias)) = image.undone() {
            let to = image.dtype;
            *image = pixels;
            photos.insert(name.as_str().into(), Normalisation { to, scale, bias });
        }
    }
    (asked, photos)
}

/// Returns true if the column `name`, and nothing below it, comes as u8 `[B, height, width, channels]`.
fn is_pixels(schema: &Schema, name: &str) -> bool {
    let below = |field: &Field| field.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
    let fits = |field: &Field| {
        let dims = matches!(&*field.dims, [Dim::Batch, Dim::Fixed(_), Dim::Fixed(_), Dim::Fixed(1 | 3 | 4)]);
        dims && field.dtype() == Some(DType::Uint8) && !field.valid
    };
    schema.get(name).is_some_and(fits) && !schema.fields().iter().any(below)
}

/// Leaves the padding of plain lists to the device, where it saves enough of the bus.
fn cut(lists: &mut Lists) {
    if let Lists::Padded(padded) = lists
        && padded.plain_length().is_some_and(|length| length >= SHORTEST)
    {
        *lists = Lists::Cut(padded.clone());
    }
}

/// The device's padding for the lists that the host cuts, where `options` ask for padded ones.
fn paddings(schema: &Schema, options: &LoaderOptions) -> BTreeMap<Arc<str>, Padding> {
    let padding = |field: &Field| {
        let (Some(Dim::Cut(length)), Some(dtype)) = (field.dims.get(1), field.dtype()) else { return None };
        let (padded, element) = options.columns.padding(&field.name, dtype)?;
        let mut fill = [0; 8];
        fill[..element.len()].copy_from_slice(&element);
        let padding = Padding { length: *length, fill: u64::from_le_bytes(fill), left: padded.left };
        Some((Arc::clone(&field.name), padding))
    };
    schema.fields().iter().filter_map(padding).collect()
}

/// The schema of the batches that leave the device.
fn finished(schema: &Schema, recipes: &Recipes) -> Schema {
    let field = |field: &Field| {
        let mut field = field.clone();
        if let (Some(padding), Some(axis)) = (recipes.lists.get(&field.name), field.dims.get_mut(1)) {
            *axis = Dim::Padded(padding.length);
        }
        if let Some(recipe) = recipes.photos.get(&field.name) {
            field.ty = Type::Tensor(recipe.to);
            // Channels first.
            if let Some(axes) = field.dims.get_mut(1..4) {
                axes.rotate_right(1);
            }
        }
        if let Some(recipe) = recipes.decoded.get(&field.name) {
            field.ty = Type::Tensor(recipe.values.to);
            field.dims = std::iter::once(Dim::Batch).chain(recipe.axes().map(Dim::Fixed)).collect();
        }
        field
    };
    Schema::new(schema.fields().iter().map(field).collect())
}
