//! The CUDA driver: found at run time, called through a table of its functions, and bound to a thread for the length of one call.
//!
//! Nothing is linked. `cudarc` finds and opens the library; every function that is used is looked up once, when the
//! driver is first requested, so that a missing library, a missing function and an error code from a newer driver are
//! all plain errors. Nothing here panics.
//!
//! The context is the device's primary one, which PyTorch, JAX, TensorFlow and CuPy use as well. The thread's own
//! context is restored after each call: `torch.cuda.current_device()` depends on it.

#![expect(unsafe_code, reason = "calls into the CUDA driver; the contracts are stated at each use")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys;

use crate::device::traits::refused;
use crate::error::{Error, Result};

/// A handle of the driver (`CUcontext`, `CUstream`, `CUevent`, `CUmodule`, `CUfunction`): a pointer that is never
/// dereferenced here.
pub(super) type Handle = usize;

/// CUDA 12.0: the oldest driver that loads the kernels' PTX (version 8.0).
const OLDEST: c_int = 12_000;
/// CUDA 12.5 has `cuCtxRecordEvent`.
const RECORDS_CONTEXTS: c_int = 12_050;

/// `CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING`: a waiting thread sleeps, and no times are recorded.
pub(super) const QUIET_EVENT: c_uint = 3;

/// Codes with a meaning here.
pub(super) const NOT_READY: c_int = 600;
pub(super) const CAPTURE_IMPLICIT: c_int = 906;
const DEINITIALIZED: c_int = 4;
const OUT_OF_MEMORY: c_int = 2;

const CAPTURE_MODE_RELAXED: c_int = 2;

/// A table of functions, each looked up by its name.
macro_rules! functions {
    ($($name:ident($($argument:ty),*);)*) => {
        #[allow(non_snake_case, reason = "the driver's own names")]
        #[derive(Debug)]
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> c_int,)*
            /// Missing before CUDA 12.5.
            pub(super) cuCtxRecordEvent: Option<unsafe extern "C" fn(Handle, Handle) -> c_int>,
        }

        impl Functions {
            /// Loads all of them, or returns the name of the first missing one. The library must be present according
            /// to `is_culib_present`.
            fn load() -> Result<Self, &'static str> {
                // SAFETY: the library was opened a moment ago, so opening it again runs no new initialisers.
                let library = unsafe { sys::culib() };
                Ok(Self {
                    // SAFETY: the types are those of the driver's header; handles are pointers there, as wide as `usize`.
                    $($name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }.map_err(|_| stringify!($name))?,)*
                    // SAFETY: as above.
                    cuCtxRecordEvent: unsafe { library.get(b"cuCtxRecordEvent\0") }.ok().map(|symbol| *symbol),
                })
            }
        }
    };
}
functions! {
    cuInit(c_uint);
    cuDriverGetVersion(*mut c_int);
    cuGetErrorName(c_int, *mut *const c_char);
    cuGetErrorString(c_int, *mut *const c_char);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut c_int, c_int);
    cuDeviceGetName(*mut c_char, c_int, c_int);
    cuDeviceGetUuid_v2(*mut u8, c_int);
    cuDeviceTotalMem_v2(*mut usize, c_int);
    cuDeviceGetAttribute(*mut c_int, c_int, c_int);
    cuDeviceGetPCIBusId(*mut c_char, c_int, c_int);
    cuDevicePrimaryCtxRetain(*mut Handle, c_int);
    cuDevicePrimaryCtxRelease_v2(c_int);
    cuCtxPushCurrent_v2(Handle);
    cuCtxPopCurrent_v2(*mut Handle);
    cuCtxSynchronize();
    cuThreadExchangeStreamCaptureMode(*mut c_int);
    cuMemAlloc_v2(*mut u64, usize);
    cuMemFree_v2(u64);
    cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    cuMemFreeHost(*mut c_void);
    cuMemcpyHtoDAsync_v2(u64, *const c_void, usize, Handle);
    cuMemcpyDtoHAsync_v2(*mut c_void, u64, usize, Handle);
    cuMemcpyDtoDAsync_v2(u64, u64, usize, Handle);
    cuStreamCreate(*mut Handle, c_uint);
    cuStreamDestroy_v2(Handle);
    cuStreamSynchronize(Handle);
    cuStreamIsCapturing(Handle, *mut c_int);
    cuStreamWaitEvent(Handle, Handle, c_uint);
    cuEventCreate(*mut Handle, c_uint);
    cuEventRecord(Handle, Handle);
    cuEventQuery(Handle);
    cuEventSynchronize(Handle);
    cuEventDestroy_v2(Handle);
    cuModuleLoadData(*mut Handle, *const c_void);
    cuModuleUnload(Handle);
    cuModuleGetFunction(*mut Handle, Handle, *const c_char);
    cuLaunchKernel(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
    );
}

/// The driver of this machine, initialised.
#[derive(Debug)]
pub(super) struct Driver {
    pub(super) call: Functions,
    /// E.g. 12040 for CUDA 12.4.
    pub(super) version: c_int,
    /// The process that initialised it: a forked child must not use it.
    process: u32,
}

/// Finds the driver, once.
pub(super) fn driver() -> Result<&'static Driver> {
    static FOUND: OnceLock<Result<Driver, String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        // `cudarc` panics if the library vanishes between two checks; that too is only an error.
        let looked = crate::page::quiet(look);
        looked.unwrap_or_else(|_| Err("the CUDA driver's library (libcuda.so.1) cannot be opened".to_owned()))
    });
    match found {
        Ok(driver) => driver.check_process().map(|()| driver),
        Err(why) => Err(refused("cuda", "no usable GPU", why.as_str())),
    }
}

fn look() -> Result<Driver, String> {
    // SAFETY: opening a library runs its initialisers; this is the driver's own, found as every CUDA program finds it.
    if !unsafe { sys::is_culib_present() } {
        return Err(
            "there is no NVIDIA driver here: libcuda.so.1 was not found (in a container, start it with its GPUs, \
                    e.g. `--gpus all`)"
                .to_owned(),
        );
    }
    let call = Functions::load().map_err(|name| {
        format!("the driver's library lacks {name}: it is too old, or no driver (a stub on LD_LIBRARY_PATH?)")
    })?;
    let mut driver = Driver { call, version: 0, process: std::process::id() };
    // SAFETY: the flags must be 0.
    let code = unsafe { (driver.call.cuInit)(0) };
    if code != 0 {
        let advice = match code {
            34 => "; a stub library stands before the driver's on LD_LIBRARY_PATH",
            100 => "; CUDA_VISIBLE_DEVICES may hide them, or the container was started without them",
            3 => "; the driver was used before this process forked: start workers with `spawn`",
            803 | 804 => "; the library and the kernel's driver are of different versions",
            _ => "",
        };
        return Err(format!("cuInit: {}{advice}", driver.text(code)));
    }
    // SAFETY: the pointer is valid for the one number that is written.
    let code = unsafe { (driver.call.cuDriverGetVersion)(&raw mut driver.version) };
    if code != 0 {
        return Err(format!("cuDriverGetVersion: {}", driver.text(code)));
    }
    if driver.version < OLDEST {
        return Err(format!("the driver is for CUDA {}; 12.0 or newer is needed", driver.version_text()));
    }
    Ok(driver)
}

impl Driver {
    /// E.g. `12.4`.
    pub(super) fn version_text(&self) -> String {
        format!("{}.{}", self.version / 1000, self.version % 1000 / 10)
    }

    /// Returns true if an event can be recorded after all work of a context.
    pub(super) fn records_contexts(&self) -> bool {
        self.version >= RECORDS_CONTEXTS && self.call.cuCtxRecordEvent.is_some()
    }

    /// Returns true if this process is the one that initialised the driver.
    pub(super) fn is_own_process(&self) -> bool {
        self.process == std::process::id()
    }

    fn check_process(&self) -> Result<()> {
        if self.is_own_process() {
            return Ok(());
        }
        let why = "this process was forked after CUDA was initialised, which no driver survives; start workers with `spawn`, \
                   and make the loader in the worker";
        Err(refused("cuda", "no usable GPU", why))
    }

    /// Describes `code`, e.g. `CUDA_ERROR_OUT_OF_MEMORY (out of memory)`.
    pub(super) fn text(&self, code: c_int) -> String {
        let ask = |function: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int| {
            let mut text = ptr::null();
            // SAFETY: the pointer is valid for the one address that is written: of a static string, or null.
            let known = unsafe { function(code, &raw mut text) } == 0 && !text.is_null();
            // SAFETY: not null, and a string of the driver that lives as long as its library, which is never closed.
            known.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        match (ask(self.call.cuGetErrorName), ask(self.call.cuGetErrorString)) {
            (Some(name), Some(text)) => format!("{name} ({text})"),
            (Some(name), None) => name,
            _ => format!("CUDA error {code}"),
        }
    }

    /// `Ok` for code 0; otherwise an error that `what` failed on `device`.
    pub(super) fn check(&self, code: c_int, device: &str, what: &str) -> Result<()> {
        if code == 0 { Ok(()) } else { Err(self.error(code, device, what)) }
    }

    /// The error that `what` failed on `device` with `code`.
    pub(super) fn error(&self, code: c_int, device: &str, what: &str) -> Error {
        let advice = match code {
            OUT_OF_MEMORY => "; others use the device's memory too: lower batch_size or device_slots",
            _ => "",
        };
        refused(device, what, format!("{}{advice}", self.text(code)))
    }
}

/// A retained primary context of a device.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) driver: &'static Driver,
    pub(super) ordinal: u32,
    /// The driver's number of the device.
    pub(super) device: c_int,
    pub(super) raw: Handle,
}

impl Context {
    /// Retains the primary context of device `ordinal`.
    pub(super) fn retain(driver: &'static Driver, ordinal: u32) -> Result<Arc<Self>> {
        let name = format!("cuda:{ordinal}");
        let (mut device, mut raw) = (0, 0);
        let number =
            c_int::try_from(ordinal).map_err(|_| refused(name.as_str(), "no such GPU", "the number is too large"))?;
        // SAFETY: the pointer is valid for the one number that is written.
        driver.check(unsafe { (driver.call.cuDeviceGet)(&raw mut device, number) }, &name, "finding it")?;
        // SAFETY: as above; `device` is the driver's.
        let code = unsafe { (driver.call.cuDevicePrimaryCtxRetain)(&raw mut raw, device) };
        driver.check(code, &name, "its primary context")?;
        Ok(Arc::new(Self { driver, ordinal, device, raw }))
    }

    /// Makes the context current on this thread, and makes its calls harmless to captures of CUDA graphs, until the
    /// result is dropped.
    pub(super) fn bind(&self) -> Result<Bound<'_>> {
        self.driver.check_process()?;
        let call = &self.driver.call;
        // SAFETY: `raw` is held until this is dropped.
        self.check(unsafe { (call.cuCtxPushCurrent_v2)(self.raw) }, "binding its context")?;
        // From here on, dropping pops the context again.
        let mut bound = Bound { context: self, mode: None };
        // While anybody captures in the global mode (torch's default), calls such as cuEventQuery from any thread end
        // the capture, unless the calling thread declares itself unrelated to it.
        let mut mode = CAPTURE_MODE_RELAXED;
        // SAFETY: the pointer is valid for the one number that is read and written.
        let code = unsafe { (call.cuThreadExchangeStreamCaptureMode)(&raw mut mode) };
        self.check(code, "binding its context")?;
        bound.mode = Some(mode);
        Ok(bound)
    }

    /// `Ok` for code 0; otherwise an error that `what` failed.
    pub(super) fn check(&self, code: c_int, what: &str) -> Result<()> {
        if code == 0 { Ok(()) } else { Err(self.driver.error(code, &format!("cuda:{}", self.ordinal), what)) }
    }

    /// For resources being given back: a failure is only logged. A driver that is already shutting down is not a
    /// failure.
    pub(super) fn log(&self, code: c_int, what: &str) {
        if code == DEINITIALIZED {
            tracing::debug!("cuda:{}: {what}: the driver is shutting down", self.ordinal);
        } else if code != 0 {
            tracing::warn!("cuda:{}: {what}: {}", self.ordinal, self.driver.text(code));
        }
    }

    /// Binds the context to give something back; `None`, and a leak, in a forked child and if the context is gone.
    pub(super) fn bind_to_free(&self) -> Option<Bound<'_>> {
        if !self.driver.is_own_process() {
            return None;
        }
        // Tried twice, since anything that is not freed now is lost.
        match self.bind().or_else(|_| self.bind()) {
            Ok(bound) => Some(bound),
            Err(error) => {
                tracing::warn!("something of the GPU is lost: {}", error.chain());
                None
            }
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.driver.is_own_process() {
            // SAFETY: retained once in `retain`, released once here; nothing that was made in it is used any more.
            let code = unsafe { (self.driver.call.cuDevicePrimaryCtxRelease_v2)(self.device) };
            self.log(code, "giving back its context");
        }
    }
}

/// The context is current on this thread while this lives; then the previous one is again. Not `Send`: it is this
/// thread's state.
#[derive(Debug)]
pub(super) struct Bound<'a> {
    context: &'a Context,
    /// The thread's mode before, once it has been changed.
    mode: Option<c_int>,
}

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        let call = &self.context.driver.call;
        if let Some(mut mode) = self.mode {
            // SAFETY: the pointer is valid for the one number that is read and written.
            let code = unsafe { (call.cuThreadExchangeStreamCaptureMode)(&raw mut mode) };
            self.context.log(code, "restoring the thread's capture mode");
        }
        let mut popped = 0;
        // SAFETY: as above; `bind` pushed one context, and everything between leaves the stack as it was.
        let code = unsafe { (call.cuCtxPopCurrent_v2)(&raw mut popped) };
        self.context.log(code, "restoring the thread's context");
    }
}
