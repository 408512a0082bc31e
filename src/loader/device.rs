//! The loader whose batches are on a device: what another loader makes, brought there ahead of the consumer.
//!
//! The other loader runs ahead: it is where the transfer thread is. Where the consumer is, the position that counts, is remembered
//! with each batch.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Origin, decoding};
use crate::codec::{BadRows, Lists};
use crate::device::{
    Device, DeviceBatch, DeviceStats, Feeding, Normalisation, Padding, Pulled, Recipes, Source, Taken, Transfer,
};
use crate::error::{Error, Result};
use crate::pipeline::{Again, At, LoaderOptions, Next, Returned};
use crate::plan::{Share, State};
use crate::schema::{DType, Dim, Field, Schema, Type};

/// Lists padded to fewer items are padded on the host: the bytes that the bus is spared are not worth two kernels.
const SHORTEST: usize = 16;

/// A position, with what the plan says there.
#[derive(Debug, Clone)]
pub(super) struct Position {
    pub(super) state: State,
    pub(super) steps: u64,
    pub(super) rows: u64,
}

impl Position {
    fn of(origin: &Origin) -> Self {
        Self { state: origin.state(), steps: origin.steps(), rows: origin.rows() }
    }
}

/// The loader that runs ahead, shared with the transfer thread.
#[derive(Debug)]
struct Ahead {
    /// Held while waiting for `made`, so that the thread, which always wants it, does not overtake the others for ever.
    turn: Mutex<()>,
    made: Mutex<Made>,
}

#[derive(Debug)]
struct Made {
    origin: Origin,
    /// Counts the changes of position: what was made before one is not wanted after it.
    generation: u64,
}

impl Ahead {
    fn lock(&self) -> MutexGuard<'_, Made> {
        // A loader is consistent between calls.
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Pull(Arc<Ahead>);

impl Source<Position> for Pull {
    fn pull(&mut self, wait: Duration) -> (u64, Result<Pulled<Position>>) {
        let mut made = self.0.lock();
        let pulled = made.origin.next_within(wait).map(|next| match next {
            Next::Batch(batch) => Pulled::Batch(batch, Position::of(&made.origin)),
            Next::End => Pulled::End(Position::of(&made.origin)),
            Next::Pending => Pulled::Pending,
        });
        (made.generation, pulled)
    }
}

/// What [`OnDevice::next_within`] found.
#[derive(Debug)]
pub(super) enum NextOnDevice {
    Batch(DeviceBatch),
    End,
    Pending,
}

/// See the module.
#[derive(Debug)]
pub(super) struct OnDevice {
    // Declared first, dropped first: its thread uses the loader.
    transfer: Transfer<Position>,
    ahead: Arc<Ahead>,
    schema: Schema,
    share: Share,
    timeout: Duration,
    /// After the last batch that came from the device.
    now: Position,
    returned: Returned<DeviceBatch>,
}

impl OnDevice {
    /// What `open` opens, delivered on `device`. `open` may be called a second time, with other options, if the first loader turns
    /// out to deliver what the device cannot finish.
    pub(super) fn open(
        options: &LoaderOptions,
        device: Arc<dyn Device>,
        open: impl Fn(&LoaderOptions) -> Result<Origin>,
    ) -> Result<Self> {
        let (options, decoded) = decoding::deferred(options)?;
        if !decoded.is_empty() {
            device.open_decoder()?;
        }
        let (asked, mut photos) = shared_work(&options);
        let mut origin = open(&asked)?;
        if !photos.keys().all(|name| is_pixels(origin.schema(), name)) {
            origin = open(&options)?;
            photos.clear();
        }
        decoding::check(origin.schema(), &decoded)?;
        let lists = paddings(origin.schema(), &options);
        let recipes = Recipes { photos, decoded, lists, mask: Some(crate::codec::MASK.into()) };
        let schema = finished(origin.schema(), &recipes);
        let (share, timeout, now) = (origin.share(), origin.timeout(), Position::of(&origin));
        let feeding = Feeding {
            slots: options.device_slots,
            fence: options.device_fence,
            overflow: options.device_overflow,
            recipes,
        };
        let ahead = Arc::new(Ahead { turn: Mutex::default(), made: Mutex::new(Made { origin, generation: 0 }) });
        let transfer = Transfer::start(device, feeding, Pull(Arc::clone(&ahead)))?;
        let mut opened = Self { transfer, ahead, schema, share, timeout, now, returned: Returned::default() };
        opened.returned.restart(opened.next_new());
        Ok(opened)
    }

    pub(super) fn device(&self) -> &Arc<dyn Device> {
        self.transfer.device()
    }

    pub(super) fn device_stats(&self) -> DeviceStats {
        self.transfer.stats()
    }

    pub(super) fn schema(&self) -> &Schema {
        &self.schema
    }

    pub(super) fn share(&self) -> Share {
        self.share
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The position: everything before it reached the consumer.
    pub(super) fn now(&self) -> Position {
        let (epoch, step) = self.returned.position(self.next_new());
        Position { state: State { epoch, step, ..self.now.state.clone() }, ..self.now }
    }

    fn next_new(&self) -> At {
        (self.now.state.epoch, self.now.state.step)
    }

    pub(super) fn next_within(&mut self, wait: Duration) -> Result<NextOnDevice> {
        match self.returned.take(self.next_new()) {
            Some(Again::Item(batch)) => return Ok(NextOnDevice::Batch(batch)),
            Some(Again::End) => return Ok(NextOnDevice::End),
            None => {}
        }
        match self.transfer.next(wait)? {
            Taken::Batch(batch, after) => {
                self.now = after;
                Ok(NextOnDevice::Batch(batch))
            }
            Taken::End(after) => {
                self.now = after;
                Ok(NextOnDevice::End)
            }
            Taken::Pending => Ok(NextOnDevice::Pending),
        }
    }

    pub(super) fn put_back(&mut self, batch: DeviceBatch) {
        let next = self.next_new();
        self.returned.put((batch.epoch, batch.step), batch, next);
    }

    pub(super) fn timed_out(&self, waited: Duration) -> Error {
        match self.transfer.blocked() {
            Some(culprit) => Error::Timeout { stage: "device", culprit, waited },
            None => self.ahead.lock().origin.timed_out(waited),
        }
    }

    pub(super) fn set_epoch(&mut self, epoch: u64) -> Result<()> {
        if epoch == self.now().state.epoch { Ok(()) } else { self.go(|origin| origin.set_epoch(epoch)) }
    }

    pub(super) fn load_state(&mut self, state: &State) -> Result<()> {
        self.go(|origin| origin.load_state(state))
    }

    /// Moves the loader that runs ahead. If that fails, it goes back to where the consumer is.
    fn go(&mut self, change: impl FnOnce(&mut Origin) -> Result<()>) -> Result<()> {
        let mut made = self.ahead.lock();
        let changed = change(&mut made.origin);
        if changed.is_err() {
            // It was there before, so it gets there again; if not, the next batch says so.
            drop(made.origin.load_state(&self.now().state));
        }
        made.generation += 1;
        let (generation, now) = (made.generation, Position::of(&made.origin));
        drop(made);
        self.now = now;
        self.returned.restart(self.next_new());
        self.transfer.restart(generation);
        changed
    }

    pub(super) fn with<T>(&self, work: impl FnOnce(&Origin) -> T) -> T {
        work(&self.ahead.lock().origin)
    }

    pub(super) fn close(&mut self) {
        self.returned.close();
        self.transfer.close();
        self.ahead.lock().origin.close();
    }
}

/// The options with which the host leaves to the device what it does better: photos cross the bus as u8, a quarter of the bytes, and
/// are normalised there; padded lists cross it without their padding. And what is left to do with photos, by column: of lists the
/// schema tells which are cut.
fn shared_work(options: &LoaderOptions) -> (LoaderOptions, BTreeMap<Arc<str>, Normalisation>) {
    let (mut asked, mut photos) = (options.clone(), BTreeMap::new());
    // Windows have axes of their own.
    if options.ngram.is_some() {
        return (asked, photos);
    }
    // What a server sends lies in page-locked memory of the size of each message: with lists that are cut, none would fit the next one.
    if !Origin::is_remote(options) {
        asked.columns.lists.0.values_mut().for_each(cut);
    }
    // Zeros stand for bad rows after normalising, which the device could not tell from black.
    if options.bad_rows == BadRows::Zero {
        return (asked, photos);
    }
    for (name, image) in &mut asked.columns.images {
        // A pattern may mean columns that are no photos.
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

/// Whether the column `name`, and nothing below it, comes as u8 `[B, height, width, channels]`.
fn is_pixels(schema: &Schema, name: &str) -> bool {
    let below = |field: &Field| field.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
    let fits = |field: &Field| {
        let dims = matches!(&*field.dims, [Dim::Batch, Dim::Fixed(_), Dim::Fixed(_), Dim::Fixed(1 | 3 | 4)]);
        dims && field.dtype() == Some(DType::Uint8) && !field.valid
    };
    schema.get(name).is_some_and(fits) && !schema.fields().iter().any(below)
}

/// Leaves the padding of plain lists to the device, where it spares the bus enough.
fn cut(lists: &mut Lists) {
    if let Lists::Padded(padded) = lists
        && padded.plain_length().is_some_and(|length| length >= SHORTEST)
    {
        *lists = Lists::Cut(padded.clone());
    }
}

/// How the device pads the lists that the host cut, though `options` ask for padded ones.
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

/// The schema once the device is done.
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
