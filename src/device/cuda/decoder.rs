//! Photos decoded by nvJPEG: groups of a batch's photos, one after the other on the copy stream.
//!
//! ```text
//!   lane 0 │ nvJPEG ► whole images (scratch) ─► resample ─► rows of the batch │ event │
//!   lane 1 │                                  nvJPEG ► ...                             │ event │
//! ```
//! Each group in flight uses its lane's resources: nvJPEG's own memory, the whole images, the table that the kernel
//! reads, and the pixels of photos that the CPU decoded because nvJPEG refused. A lane is used again when its event is
//! done. There are two, so that the next group is prepared while one is in flight.

#![expect(unsafe_code, reason = "device memory and nvJPEG's streams; the bounds are stated at each use")]

use std::ptr::NonNull;
use std::sync::Arc;

use super::driver::{Bound, Context, Handle, QUIET_EVENT};
use super::kernels::Kernels;
use super::nvjpeg::{self, Job, Nvjpeg, State};
use super::pinned::Pinned;
use crate::device::address::Address;
use crate::device::decoding::{Decoding, Photo, View, in_row};
use crate::device::traits::{DEVICE_ALIGNMENT, refused};
use crate::error::Result;
use crate::memory::HostAllocator;

/// Photos given to nvJPEG at once: without engines, it leaves fewer than 50 to the host.
const MOST_PHOTOS: usize = 64;
/// Bytes of the whole images of a group, unless a single image has more.
const MOST_SCRATCH: usize = 128 << 20;
/// Bytes of an entry of the kernel's table.
const ENTRY: usize = 56;

const SEALED: u32 = 1;
const TRANSPOSE: u32 = 2;
const FLIP_X: u32 = 4;
const FLIP_Y: u32 = 8;

/// nvJPEG on one GPU. Used by one thread at a time.
#[derive(Debug)]
pub(super) struct Decoder {
    // Declared first, dropped first: their states belong to the handle.
    lanes: [Lane; 2],
    nvjpeg: Option<Nvjpeg>,
    context: Arc<Context>,
    staging: Arc<Pinned>,
    turn: usize,
    /// Set once a refusal was logged.
    told: bool,
}

/// The resources of one group at a time.
#[derive(Debug, Default)]
struct Lane {
    state: Option<State>,
    /// Recorded after the group.
    done: Handle,
    under_way: UnderWay,
    /// Whole images.
    scratch: Memory,
    /// Entries of the kernel's table.
    table: Memory,
    /// Pixels that the CPU decoded.
    pixels: Memory,
}

/// How the completion of a lane's last group is known.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
enum UnderWay {
    #[default]
    Nothing,
    /// By its event.
    Recorded,
    /// By the whole stream: something failed on the way.
    Unknown,
}

/// Memory of the device, and the same amount of host memory, if any.
#[derive(Debug, Default)]
struct Memory {
    at: Address,
    host: Option<NonNull<u8>>,
    capacity: usize,
}

// SAFETY: the host's memory belongs to the lane, which one thread at a time uses.
unsafe impl Send for Memory {}

/// The next photos of a batch.
#[derive(Debug, Default)]
struct Group<'a> {
    /// Number of the row, its photo, and the offset of its whole image in the scratch if nvJPEG decodes it.
    photos: Vec<(usize, Photo<'a>, Option<usize>)>,
    /// Bytes of the whole images.
    scratch: usize,
}

impl Decoder {
    /// Opens nvJPEG in `context`.
    pub(super) fn open(context: &Arc<Context>, staging: &Arc<Pinned>, _: &Bound<'_>) -> Result<Self> {
        let lost = |why: String| refused(format!("cuda:{}", context.ordinal), "decoding photos with nvJPEG", why);
        let library = nvjpeg::library().map_err(lost)?;
        let (nvjpeg, lanes) = (Some(Nvjpeg::create(library).map_err(lost)?), <[Lane; 2]>::default());
        let (context_of, staging) = (Arc::clone(context), Arc::clone(staging));
        // From here on, dropping gives everything back.
        let mut decoder = Self { lanes, nvjpeg, context: context_of, staging, turn: 0, told: false };
        for lane in &mut decoder.lanes {
            // SAFETY: the pointer is valid for the one handle that is written.
            let code = unsafe { (context.driver.call.cuEventCreate)(&raw mut lane.done, QUIET_EVENT) };
            if code != 0 {
                lane.done = 0;
            }
            context.check(code, "an event")?;
        }
        tracing::debug!("cuda:{}: photos are decoded by {}", context.ordinal, decoder.describe().unwrap_or_default());
        Ok(decoder)
    }

    /// Describes the decoder, for display.
    pub(super) fn describe(&self) -> Option<String> {
        self.nvjpeg.as_ref().map(Nvjpeg::describe)
    }

    /// Appends the decoding of `rows`, which lie on the device at `from`, to `stream`.
    ///
    /// # Safety
    /// As for [`Device::decode`](crate::device::Device::decode).
    pub(super) unsafe fn decode(
        &mut self,
        what: &Decoding,
        rows: &[u8],
        (from, to): (Address, Address),
        kernels: &Kernels,
        stream: Handle,
        bound: &Bound<'_>,
    ) -> Result<u64> {
        let (mut next, mut on_host) = (0, 0);
        while next < what.rows {
            let group = self.group(what, rows, next)?;
            next += group.photos.len();
            self.turn = (self.turn + 1) % self.lanes.len();
            // SAFETY: the caller promises the same for all rows.
            on_host += unsafe { self.append(what, rows, group, (from, to), kernels, stream, bound)? };
        }
        Ok(on_host)
    }

    /// The photos from row `first` on that fit into one group.
    fn group<'a>(&self, what: &Decoding, rows: &'a [u8], first: usize) -> Result<Group<'a>> {
        let (mut group, mut jobs) = (Group::default(), 0);
        for (number, row) in rows.chunks_exact(what.row_bytes).enumerate().skip(first) {
            let photo = what.photos.read(row).map_err(|error| in_row(error, number))?;
            let mut place = None;
            if let Photo::Jpeg(jpeg, View { width, height, .. }) = photo
                && let Some(nvjpeg) = &self.nvjpeg
                && nvjpeg.accepts(jpeg, (width, height))
            {
                let bytes = width as usize * height as usize * usize::from(what.channels);
                let end = group.scratch + bytes.next_multiple_of(DEVICE_ALIGNMENT);
                if jobs == MOST_PHOTOS || (jobs > 0 && end > MOST_SCRATCH) {
                    break;
                }
                place = Some(group.scratch);
                (group.scratch, jobs) = (end, jobs + 1);
            }
            group.photos.push((number, photo, place));
        }
        Ok(group)
    }

    /// Appends one group in the next lane; returns the number of photos that nvJPEG refused.
    ///
    /// # Safety
    /// As for [`decode`](Self::decode).
    #[expect(clippy::too_many_arguments, reason = "one caller; what a group needs is all of it")]
    unsafe fn append(
        &mut self,
        what: &Decoding,
        rows: &[u8],
        mut group: Group<'_>,
        (from, to): (Address, Address),
        kernels: &Kernels,
        stream: Handle,
        bound: &Bound<'_>,
    ) -> Result<u64> {
        let Self { lanes, nvjpeg, context, staging, turn, told } = self;
        let (lane, Some(nvjpeg)) = (&mut lanes[*turn], nvjpeg) else { return Ok(0) };
        lane.wait(context, stream)?;
        lane.scratch.grow(context, None, group.scratch)?;
        lane.table.grow(context, Some(staging), group.photos.len() * ENTRY)?;
        let mut refusal = "nvJPEG does not take it".to_owned();
        let jobs: Vec<Job<'_>> = group.photos.iter().filter_map(|photo| job(photo, lane.scratch.at)).collect();
        if !jobs.is_empty() {
            lane.under_way = UnderWay::Unknown;
            let state = match &mut lane.state {
                Some(state) => Ok(state),
                none => nvjpeg.state().map(|state| none.insert(state)),
            };
            // SAFETY: the lane was waited for, so nothing is in flight with its state; the JPEGs are rows, which the
            // caller keeps; each photo was accepted with the size that its part of the scratch has room for, and no
            // other part overlaps it.
            let decoded = state.and_then(|state| unsafe { nvjpeg.decode(state, &jobs, what.channels, stream) });
            if let Err(why) = decoded {
                refusal = why;
                // The state of the library's memory is unknown now. Everything that it appended must be over first.
                lane.wait(context, stream)?;
                lane.state = None;
                group.photos.iter_mut().for_each(|(.., place)| *place = None);
            }
        }
        let on_host = group.photos.iter().filter(|photo| is_refused(photo)).count();
        if on_host > 0 && !std::mem::replace(told, true) {
            tracing::warn!("cuda:{}: {refusal}: {on_host} of a batch's photos are decoded on the CPU", context.ordinal);
        }
        // SAFETY: the rows of the caller, and memory of this lane, which was waited for before anything was appended.
        unsafe { lane.place(what, rows, &group, from, staging, context, stream)? }
        let table = (lane.table.at, group.photos.len());
        // SAFETY: the table is in the lane; the images are in its scratch and pixels, or in the rows at `from`; `to` is as the caller promises.
        unsafe { kernels.resample(what, table, to, stream, bound)? }
        // SAFETY: the event is the lane's, the stream the device's; both live.
        let code = unsafe { (context.driver.call.cuEventRecord)(lane.done, stream) };
        context.check(code, "recording an event")?;
        lane.under_way = UnderWay::Recorded;
        Ok(on_host as u64)
    }
}

/// The job for nvJPEG for a photo, if it decodes it.
fn job<'a>((_, photo, place): &(usize, Photo<'a>, Option<usize>), scratch: Address) -> Option<Job<'a>> {
    match (photo, place) {
        (Photo::Jpeg(jpeg, view), Some(place)) => {
            Some(Job { jpeg, to: scratch + *place as Address, width: view.width })
        }
        _ => None,
    }
}

/// Returns true if the CPU decodes this JPEG.
fn is_refused((_, photo, place): &(usize, Photo<'_>, Option<usize>)) -> bool {
    matches!((photo, place), (Photo::Jpeg(..), None))
}

impl Lane {
    /// Waits until the lane's last group is done.
    fn wait(&mut self, context: &Context, stream: Handle) -> Result<()> {
        let code = match self.under_way {
            UnderWay::Nothing => return Ok(()),
            // SAFETY: the event lives.
            UnderWay::Recorded => unsafe { (context.driver.call.cuEventSynchronize)(self.done) },
            // SAFETY: the stream lives.
            UnderWay::Unknown => unsafe { (context.driver.call.cuStreamSynchronize)(stream) },
        };
        context.check(code, "waiting for photos that are decoded")?;
        self.under_way = UnderWay::Nothing;
        Ok(())
    }

    /// Decodes the photos that nvJPEG refused, and appends the copies of these and of the table.
    ///
    /// # Safety
    /// Nothing in flight uses the table and the pixels of this lane; `from` is the address of `rows` on the
    /// device.
    #[expect(clippy::too_many_arguments, reason = "one caller; what a group needs is all of it")]
    unsafe fn place(
        &mut self,
        what: &Decoding,
        rows: &[u8],
        group: &Group<'_>,
        from: Address,
        staging: &Pinned,
        context: &Context,
        stream: Handle,
    ) -> Result<()> {
        let size = what.pixel_bytes();
        let refused: Vec<usize> = group.photos.iter().filter(|photo| is_refused(photo)).map(|photo| photo.0).collect();
        if !refused.is_empty() {
            self.pixels.grow(context, Some(staging), refused.len() * size)?;
            let out = self.pixels.host(refused.len() * size);
            for (number, out) in refused.iter().zip(out.chunks_exact_mut(size)) {
                let row = &rows[number * what.row_bytes..][..what.row_bytes];
                what.photos.pixels(row, out).map_err(|error| in_row(error, *number))?;
            }
            self.under_way = UnderWay::Unknown;
            self.pixels.upload(refused.len() * size, context, stream)?;
        }
        let (pixels, scratch) = (self.pixels.at, self.scratch.at);
        let mut of_cpu = (pixels..).step_by(size.max(1));
        let whole = View {
            width: what.width,
            height: what.height,
            rect: [0.0, 0.0, what.width.into(), what.height.into()],
            sealed: false,
            transpose: false,
            flip_x: false,
            flip_y: false,
        };
        let entries = group.photos.iter().zip(self.table.host(group.photos.len() * ENTRY).chunks_exact_mut(ENTRY));
        for ((number, photo, place), out) in entries {
            let (at, view) = match (photo, place) {
                (Photo::Nothing, _) => (0, whole),
                (Photo::Pixels(pixels), _) if pixels.len() == size => {
                    // The pixels are part of the row.
                    let row = from + (number * what.row_bytes) as Address;
                    let offset = pixels.as_ptr().addr() - rows[number * what.row_bytes..].as_ptr().addr();
                    (row + offset as Address, whole)
                }
                (Photo::Pixels(_), _) => (0, whole),
                (Photo::Jpeg(_, view), Some(place)) => (scratch + *place as Address, *view),
                (Photo::Jpeg(..), None) => (of_cpu.next().unwrap_or_default(), whole),
            };
            out.copy_from_slice(&entry(at, *number as u32, &view));
        }
        self.under_way = UnderWay::Unknown;
        self.table.upload(group.photos.len() * ENTRY, context, stream)
    }
}

/// An entry of the kernel's table: `Photo` in kernels.cu.
fn entry(at: Address, row: u32, view: &View) -> [u8; ENTRY] {
    let flags = [(view.sealed, SEALED), (view.transpose, TRANSPOSE), (view.flip_x, FLIP_X), (view.flip_y, FLIP_Y)];
    let flags: u32 = flags.into_iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum();
    let mut out = [0; ENTRY];
    out[..8].copy_from_slice(&at.to_le_bytes());
    for (out, number) in out[8..24].as_chunks_mut::<4>().0.iter_mut().zip([view.width, view.height, row, flags]) {
        *out = number.to_le_bytes();
    }
    for (out, number) in out[24..].as_chunks_mut::<8>().0.iter_mut().zip(view.rect) {
        *out = number.to_le_bytes();
    }
    out
}

impl Memory {
    /// Ensures capacity for `bytes`, on the host as well if `staging` is given; nothing uses the old memory.
    fn grow(&mut self, context: &Context, staging: Option<&Pinned>, bytes: usize) -> Result<()> {
        if bytes <= self.capacity {
            return Ok(());
        }
        self.give_back(context, staging);
        // Batches differ slightly in size.
        let capacity = bytes.next_multiple_of(1 << 16) + bytes / 8;
        // SAFETY: the pointer is valid for the one address that is written.
        let code = unsafe { (context.driver.call.cuMemAlloc_v2)(&raw mut self.at, capacity) };
        context.check(code, &format!("{capacity} bytes of its memory"))?;
        self.capacity = capacity;
        if let Some(staging) = staging {
            match staging.allocate(capacity) {
                Ok(host) => self.host = Some(host),
                Err(error) => {
                    self.give_back(context, None);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// The first `bytes` of the host's memory.
    fn host(&mut self, bytes: usize) -> &mut [u8] {
        match self.host {
            // SAFETY: that much was allocated, initially filled with zeros; nothing else refers to it while the lane is
            // not in flight.
            Some(host) => unsafe { std::slice::from_raw_parts_mut(host.as_ptr(), bytes.min(self.capacity)) },
            None => &mut [],
        }
    }

    /// Appends a copy of the first `bytes` to the device.
    fn upload(&mut self, bytes: usize, context: &Context, stream: Handle) -> Result<()> {
        let from = self.host(bytes).as_ptr();
        // SAFETY: both sides have that many bytes, and are not written before the lane has been waited for.
        let code = unsafe { (context.driver.call.cuMemcpyHtoDAsync_v2)(self.at, from.cast(), bytes, stream) };
        context.check(code, "a copy to it")
    }

    fn give_back(&mut self, context: &Context, staging: Option<&Pinned>) {
        if let (Some(host), Some(staging)) = (self.host.take(), staging) {
            // SAFETY: allocated once with this length; nothing uses it.
            unsafe { staging.free(host, self.capacity) }
        }
        if self.capacity > 0 {
            // SAFETY: as above.
            let code = unsafe { (context.driver.call.cuMemFree_v2)(self.at) };
            context.log(code, "freeing its memory");
            self.capacity = 0;
        }
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        let Some(_bound) = self.context.bind_to_free() else {
            // A forked child, or a lost context: nvJPEG's memory is not there either.
            self.lanes.iter_mut().for_each(|lane| std::mem::forget(lane.state.take()));
            std::mem::forget(self.nvjpeg.take());
            return;
        };
        for lane in &mut self.lanes {
            lane.state = None;
            for memory in [&mut lane.scratch, &mut lane.table, &mut lane.pixels] {
                memory.give_back(&self.context, Some(&self.staging));
            }
            if lane.done != 0 {
                // SAFETY: made once, destroyed once.
                let code = unsafe { (self.context.driver.call.cuEventDestroy_v2)(lane.done) };
                self.context.log(code, "giving back an event");
            }
        }
        self.nvjpeg = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_as_the_kernel_has_them() {
        let source = include_str!("kernels.cu");
        let photo = source.split("} Photo;").next().unwrap().rsplit("typedef struct {").next().unwrap();
        let fields: String = photo.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(fields, "u64 pixels; u32 width, height, row, flags; double x, y, box_width, box_height;");
        assert!(source.contains("enum { SEALED = 1, TRANSPOSE = 2, FLIP_X = 4, FLIP_Y = 8 };"));
        let view = View {
            width: 2,
            height: 3,
            rect: [1.0, 2.0, 3.0, 4.0],
            sealed: true,
            transpose: false,
            flip_x: true,
            flip_y: false,
        };
        let entry = entry(1, 7, &view);
        assert_eq!(entry[..24], [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 7, 0, 0, 0, 5, 0, 0, 0]);
        assert_eq!(entry[48..], 4.0_f64.to_le_bytes());
    }
}
