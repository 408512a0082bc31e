//! A GPU, driven through CUDA: found at run time, never linked.
//!
//! | part | content |
//! |---|---|
//! | `driver` | the driver's library, its functions, the primary context and its binding to a thread |
//! | `pinned` | page-locked host memory, near the GPU |
//! | [`nvjpeg`], `decoder` | NVIDIA's decoder of JPEG, if requested; a batch of photos through it |
//! | `kernels` | conversions on the GPU: `kernels.cu` as PTX |
//! | [`visible`] | the visible GPUs, and the one of this process |
//!
//! One [`Cuda`] is one GPU with a stream of its own that no other stream waits for implicitly
//! (`CU_STREAM_NON_BLOCKING`).

#![expect(unsafe_code, reason = "calls into the CUDA driver; the contracts are stated at each use")]

mod decoder;
mod driver;
mod kernels;
pub mod nvjpeg;
mod pinned;
pub mod visible;

use std::ffi::c_uint;
use std::sync::{Arc, Mutex, PoisonError};

use decoder::Decoder;
use driver::{CAPTURE_IMPLICIT, Context, Handle, NOT_READY, QUIET_EVENT};
use kernels::Kernels;
use pinned::Pinned;

use super::address::Address;
use super::conversion::Conversion;
use super::decoding::Decoding;
use super::spec::Gpu;
use super::traits::{Device, Event, Fenced, Kind, Stream, refused};
use crate::error::Result;
use crate::memory::HostAllocator;

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;

/// Opens the GPU that `which` names.
///
/// # Errors
/// [`Error::Device`](crate::Error::Device) if there is no driver, no GPU, or not this one.
pub fn open(which: &Gpu) -> Result<Arc<dyn Device>> {
    let found = visible::find(which)?;
    tracing::debug!("cuda:{}: {}", found.ordinal, found.why);
    Ok(Arc::new(Cuda::new(found.ordinal)?))
}

/// One GPU.
#[derive(Debug)]
pub struct Cuda {
    context: Arc<Context>,
    staging: Arc<Pinned>,
    /// Stream of copies and conversions, in order.
    copies: Handle,
    /// Stream of [`Device::read`], so that it waits for no upload.
    reads: Handle,
    /// Loaded at the first conversion.
    kernels: Mutex<Option<Kernels>>,
    /// Opened when photos are to be decoded.
    decoder: Mutex<Option<Decoder>>,
}

impl Cuda {
    /// Opens GPU `ordinal`, as CUDA counts those that this process sees.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if there is none, or it refuses.
    pub fn new(ordinal: u32) -> Result<Self> {
        let context = Context::retain(driver::driver()?, ordinal)?;
        let node = visible::bus_address(context.driver, context.device).as_deref().and_then(pinned::node_of);
        let staging = Arc::new(Pinned::new(Arc::clone(&context), node));
        // With handles of zero, which dropping skips.
        let (kernels, decoder) = (Mutex::new(None), Mutex::new(None));
        let mut cuda = Self { context, staging, copies: 0, reads: 0, kernels, decoder };
        let (copies, reads) = {
            let _bound = cuda.context.bind()?;
            let copies = cuda.stream();
            let reads = copies.is_ok().then(|| cuda.stream());
            (copies, reads)
        };
        cuda.copies = copies?;
        if let Some(reads) = reads {
            cuda.reads = reads?;
        }
        Ok(cuda)
    }

    /// A new stream; the context is bound.
    fn stream(&self) -> Result<Handle> {
        let mut stream = 0;
        // SAFETY: the pointer is valid for the one handle that is written.
        let code = unsafe { (self.context.driver.call.cuStreamCreate)(&raw mut stream, NON_BLOCKING) };
        self.context.check(code, "a stream")?;
        Ok(stream)
    }

    /// Returns true if `stream` is capturing a graph; the context is bound.
    fn is_capturing(&self, stream: Handle) -> Result<bool> {
        let mut status = 0;
        // SAFETY: the pointer is valid for the one number that is written; a consumer's stream lives as long as its tensors.
        let code = unsafe { (self.context.driver.call.cuStreamIsCapturing)(stream, &raw mut status) };
        // The legacy stream cannot be used while another one captures.
        if code == CAPTURE_IMPLICIT {
            return Ok(true);
        }
        self.context.check(code, "asking whether a stream captures")?;
        Ok(status != 0)
    }

    /// Records `event` on `stream`; the context is bound.
    fn record_on(&self, event: &Event, stream: Handle) -> Result<()> {
        // SAFETY: the event is alive, as it was not given back; a consumer's stream lives as long as its tensors.
        let code = unsafe { (self.context.driver.call.cuEventRecord)(raw(event), stream) };
        self.context.check(code, "recording an event")
    }

    /// Waits for the copies on the stream of reads; the context is bound. Their targets must outlive them, so a wait
    /// that fails is tried once more before giving up.
    fn finish_reads(&self, what: &str) -> Result<()> {
        // SAFETY: the stream is this device's own, and lives.
        let wait = || unsafe { (self.context.driver.call.cuStreamSynchronize)(self.reads) };
        let code = wait();
        if code != 0 {
            wait();
        }
        self.context.check(code, what)
    }

    /// Makes `stream` wait for `event`; the context is bound.
    fn wait_on(&self, event: &Event, stream: Handle) -> Result<()> {
        // SAFETY: as in `record_on`; the flags must be 0.
        let code = unsafe { (self.context.driver.call.cuStreamWaitEvent)(stream, raw(event), 0) };
        self.context.check(code, "making a stream wait")
    }
}

/// The driver's handle of an event.
fn raw(event: &Event) -> Handle {
    event.handle() as Handle
}

/// The driver's handle of a stream.
fn stream_of(stream: Stream) -> Handle {
    match stream {
        Stream::LegacyDefault => 1,
        Stream::PerThreadDefault => 2,
        Stream::Handle(handle) => handle as Handle,
    }
}

impl Device for Cuda {
    fn kind(&self) -> Kind {
        Kind::Cuda
    }

    fn ordinal(&self) -> u32 {
        self.context.ordinal
    }

    fn staging(&self) -> Arc<dyn HostAllocator> {
        let staging: Arc<Pinned> = Arc::clone(&self.staging);
        staging
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        let _bound = self.context.bind()?;
        let mut at = 0;
        // SAFETY: the pointer is valid for the one address that is written.
        let code = unsafe { (self.context.driver.call.cuMemAlloc_v2)(&raw mut at, bytes) };
        self.context.check(code, &format!("{bytes} bytes of its memory"))?;
        Ok(at)
    }

    unsafe fn free(&self, at: Address, _: usize) {
        if let Some(_bound) = self.context.bind_to_free() {
            // SAFETY: the caller promises that `at` came from `allocate` and that nothing uses it any more.
            let code = unsafe { (self.context.driver.call.cuMemFree_v2)(at) };
            self.context.log(code, "freeing its memory");
        }
    }

    fn event(&self) -> Result<Event> {
        let _bound = self.context.bind()?;
        let mut event = 0;
        // SAFETY: the pointer is valid for the one handle that is written.
        let code = unsafe { (self.context.driver.call.cuEventCreate)(&raw mut event, QUIET_EVENT) };
        self.context.check(code, "an event")?;
        Ok(Event::new(event as u64))
    }

    fn destroy(&self, event: Event) {
        if let Some(_bound) = self.context.bind_to_free() {
            // SAFETY: `Event` is not `Copy`, so this is the only call; the driver keeps what streams still need of it.
            let code = unsafe { (self.context.driver.call.cuEventDestroy_v2)(raw(&event)) };
            self.context.log(code, "giving back an event");
        }
    }

    unsafe fn copy(&self, to: Address, from: *const u8, bytes: usize) -> Result<()> {
        let _bound = self.context.bind()?;
        // SAFETY: the caller promises that both sides are valid until the copy is done.
        let code = unsafe { (self.context.driver.call.cuMemcpyHtoDAsync_v2)(to, from.cast(), bytes, self.copies) };
        self.context.check(code, "a copy to it")
    }

    unsafe fn convert(&self, what: &Conversion, from: Address, to: Address) -> Result<()> {
        let bound = self.context.bind()?;
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        let kernels = match &mut *kernels {
            Some(kernels) => kernels,
            none => none.insert(Kernels::load(&self.context, &bound)?),
        };
        // SAFETY: the caller promises the same.
        unsafe { kernels.launch(what, from, to, self.copies, &bound) }
    }

    fn open_decoder(&self) -> Result<()> {
        let bound = self.context.bind()?;
        let mut decoder = self.decoder.lock().unwrap_or_else(PoisonError::into_inner);
        if decoder.is_none() {
            *decoder = Some(Decoder::open(&self.context, &self.staging, &bound)?);
        }
        Ok(())
    }

    fn decoder(&self) -> Option<String> {
        self.decoder.lock().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(Decoder::describe)
    }

    unsafe fn decode(&self, what: &Decoding, rows: *const u8, from: Address, to: Address) -> Result<u64> {
        let bound = self.context.bind()?;
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        let kernels = match &mut *kernels {
            Some(kernels) => kernels,
            none => none.insert(Kernels::load(&self.context, &bound)?),
        };
        let mut decoder = self.decoder.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(decoder), Some(bytes @ 1..), Some(_)) = (&mut *decoder, what.from_bytes(), what.to_bytes()) else {
            return Err(refused(self.name(), "decoding photos", "there is no decoder, or no memory has so much"));
        };
        // SAFETY: the caller promises that many bytes, which nobody writes until the appended work is done.
        let rows = unsafe { std::slice::from_raw_parts(rows, bytes) };
        // SAFETY: the caller promises the same.
        unsafe { decoder.decode(what, rows, (from, to), kernels, self.copies, &bound) }
    }

    fn record(&self, event: &Event) -> Result<()> {
        let _bound = self.context.bind()?;
        self.record_on(event, self.copies)
    }

    fn wait(&self, event: &Event) -> Result<()> {
        let _bound = self.context.bind()?;
        self.wait_on(event, self.copies)
    }

    fn drain(&self) -> Result<()> {
        let _bound = self.context.bind()?;
        // SAFETY: the stream is this device's own, and lives.
        let code = unsafe { (self.context.driver.call.cuStreamSynchronize)(self.copies) };
        self.context.check(code, "waiting for its copies")
    }

    fn make_visible(&self, event: &Event, stream: Stream) -> Result<()> {
        let stream = stream_of(stream);
        let capturing = {
            let _bound = self.context.bind()?;
            let capturing = self.is_capturing(stream)?;
            if !capturing {
                self.wait_on(event, stream)?;
            }
            capturing
        };
        // A foreign event would end the capture, and would mean nothing in the graph: the data is made ready
        // beforehand.
        if capturing { self.synchronize(event) } else { Ok(()) }
    }

    fn fence(&self, event: &Event, stream: Stream) -> Result<Fenced> {
        let stream = stream_of(stream);
        let _bound = self.context.bind()?;
        if self.is_capturing(stream)? {
            return Ok(Fenced::Capturing);
        }
        self.record_on(event, stream)?;
        Ok(Fenced::Recorded)
    }

    fn fence_context(&self, event: &Event) -> Result<Fenced> {
        let driver = self.context.driver;
        let (Some(record), true) = (driver.call.cuCtxRecordEvent, driver.records_contexts()) else {
            let why = format!(
                "the driver is for CUDA {}, and 12.5 is the first that can; use device_fence=\"sync\"",
                driver.version_text()
            );
            return Err(refused(self.name(), "a fence behind all of its streams", why));
        };
        let _bound = self.context.bind()?;
        // Detects captures on streams that wait for the legacy one; of others only their owner knows.
        if self.is_capturing(stream_of(Stream::LegacyDefault))? {
            return Ok(Fenced::Capturing);
        }
        // SAFETY: the context is held, the event alive.
        let code = unsafe { record(self.context.raw, raw(event)) };
        self.context.check(code, "recording an event behind all of its streams")?;
        Ok(Fenced::Recorded)
    }

    fn fences_context(&self) -> bool {
        self.context.driver.records_contexts()
    }

    fn synchronize_all(&self) -> Result<()> {
        let _bound = self.context.bind()?;
        // SAFETY: it takes no arguments; the context is current on this thread.
        let code = unsafe { (self.context.driver.call.cuCtxSynchronize)() };
        self.context.check(code, "waiting for all of its streams")
    }

    fn is_done(&self, event: &Event) -> Result<bool> {
        let _bound = self.context.bind()?;
        // SAFETY: the event is alive, as it was not given back.
        let code = unsafe { (self.context.driver.call.cuEventQuery)(raw(event)) };
        if code == NOT_READY {
            return Ok(false);
        }
        self.context.check(code, "asking for an event")?;
        Ok(true)
    }

    fn synchronize(&self, event: &Event) -> Result<()> {
        let _bound = self.context.bind()?;
        // SAFETY: the event is alive, as it was not given back.
        let code = unsafe { (self.context.driver.call.cuEventSynchronize)(raw(event)) };
        self.context.check(code, "waiting for an event")
    }

    unsafe fn read(&self, from: Address, to: &mut [u8]) -> Result<()> {
        let _bound = self.context.bind()?;
        let call = &self.context.driver.call;
        // SAFETY: the caller promises the source; `to` is exclusive for as long as this waits, which is until the copy is done.
        let code = unsafe { (call.cuMemcpyDtoHAsync_v2)(to.as_mut_ptr().cast(), from, to.len(), self.reads) };
        self.context.check(code, "a copy from it")?;
        self.finish_reads("a copy from it")
    }

    unsafe fn copy_within(&self, on: Option<Stream>, to: Address, from: Address, bytes: usize) -> Result<()> {
        let what = "a copy within its memory";
        let _bound = self.context.bind()?;
        let stream = on.map_or(self.reads, stream_of);
        if on.is_some() && self.is_capturing(stream)? {
            let why = "the stream records a graph, which must not have the copy in it: take the batch before the capture begins";
            return Err(refused(self.name(), what, why));
        }
        // SAFETY: the caller promises both sides until the copy is done; a consumer's stream lives as long as its tensors.
        let code = unsafe { (self.context.driver.call.cuMemcpyDtoDAsync_v2)(to, from, bytes, stream) };
        self.context.check(code, what)?;
        if on.is_none() { self.finish_reads(what) } else { Ok(()) }
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        let Some(bound) = self.context.bind_to_free() else { return };
        for stream in [self.copies, self.reads].into_iter().filter(|stream| *stream != 0) {
            let call = &self.context.driver.call;
            // SAFETY: the stream is this device's own, and nobody else has it.
            self.context.log(unsafe { (call.cuStreamSynchronize)(stream) }, "waiting for its copies");
            // Nothing that it appended is in flight any more.
            drop(self.decoder.lock().unwrap_or_else(PoisonError::into_inner).take());
            // SAFETY: as above; made once, destroyed once.
            self.context.log(unsafe { (call.cuStreamDestroy_v2)(stream) }, "giving back a stream");
        }
        drop(bound);
    }
}
