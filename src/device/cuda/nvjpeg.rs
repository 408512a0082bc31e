//! NVIDIA's nvJPEG: found at run time, never linked, called through a table of its functions.
//!
//! Searched in this order: the file that `PATH` names, and then nothing else; `libnvjpeg.so.13`, `.12` and without a
//! number, by the system's library search; the folders added by [`look_in`], which for Python are those of NVIDIA's
//! wheels.
//!
//! It works in the context of the calling thread. GPUs with engines for JPEG use those.

#![expect(unsafe_code, reason = "calls into nvJPEG; the contracts are stated at each use")]

use std::ffi::{c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};

use serde::Serialize;

use super::driver::Handle;
use crate::device::address::Address;

/// Environment variable with the library's file.
pub(crate) const PATH: &str = "BOWSTRING_NVJPEG";
const NAMES: [&str; 3] = ["libnvjpeg.so.13", "libnvjpeg.so.12", "libnvjpeg.so"];
/// The remedy if there is none.
const ADVICE: &str =
    "install it (`pip install nvidia-nvjpeg-cu12`), set BOWSTRING_NVJPEG to its path, or decode with decoder=\"cpu\"";

/// `NVJPEG_BACKEND_DEFAULT` and `NVJPEG_BACKEND_HARDWARE`.
const BACKENDS: [c_int; 2] = [0, 3];
/// `NVJPEG_OUTPUT_Y`: luminance only. `NVJPEG_OUTPUT_RGBI`: three bytes for each pixel.
const OUTPUTS: [c_int; 2] = [2, 5];

/// Maximum host threads that it may use at once, if it uses any.
const MOST_THREADS: usize = 8;

/// A table of functions, each looked up by its name.
macro_rules! functions {
    ($($name:ident($($argument:ty),*);)*) => {
        #[allow(non_snake_case, reason = "the library's own names")]
        #[derive(Debug)]
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) -> c_int,)*
            /// Missing in older releases.
            nvjpegGetHardwareDecoderInfo: Option<unsafe extern "C" fn(Handle, *mut c_uint, *mut c_uint) -> c_int>,
        }

        impl Functions {
            /// Loads all of them, or returns the name of the first missing one.
            fn load(library: &libloading::Library) -> Result<Self, &'static str> {
                Ok(Self {
                    // SAFETY: the types are those of the library's header (nvjpeg.h of 12.4 and 13.3); handles are pointers there.
                    $($name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }.map_err(|_| stringify!($name))?,)*
                    // SAFETY: as above.
                    nvjpegGetHardwareDecoderInfo: unsafe { library.get(b"nvjpegGetHardwareDecoderInfo\0") }.ok().map(|symbol| *symbol),
                })
            }
        }
    };
}
functions! {
    nvjpegGetProperty(c_int, *mut c_int);
    nvjpegCreateEx(c_int, *mut c_void, *mut c_void, c_uint, *mut Handle);
    nvjpegDestroy(Handle);
    nvjpegJpegStateCreate(Handle, *mut Handle);
    nvjpegJpegStateDestroy(Handle);
    nvjpegJpegStreamCreate(Handle, *mut Handle);
    nvjpegJpegStreamDestroy(Handle);
    nvjpegJpegStreamParseHeader(Handle, *const u8, usize, Handle);
    nvjpegJpegStreamGetFrameDimensions(Handle, *mut c_uint, *mut c_uint);
    nvjpegDecodeBatchedSupported(Handle, Handle, *mut c_int);
    nvjpegDecodeBatchedInitialize(Handle, Handle, c_int, c_int, c_int);
    nvjpegDecodeBatched(Handle, Handle, *const *const u8, *const usize, *const Image, Handle);
}

/// `nvjpegImage_t`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Image {
    channel: [u64; 4],
    pitch: [usize; 4],
}

/// The opened library.
#[derive(Debug)]
pub(super) struct Library {
    call: Functions,
    found: Found,
}

/// The library that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Found {
    /// Its name or path.
    pub path: String,
    /// E.g. `12.3.1`.
    pub version: String,
}

static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Adds folders in which the library is searched from now on.
pub fn look_in(folders: impl IntoIterator<Item = PathBuf>) {
    let mut known = FOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
    for folder in folders {
        if !known.contains(&folder) {
            known.push(folder);
        }
    }
}

/// The library of this machine.
///
/// # Errors
/// The reason that there is none, with the places searched and the remedy.
pub fn inventory() -> Result<Found, String> {
    library().map(|library| library.found.clone())
}

/// The library, opened once. Searched again if it was not found.
pub(super) fn library() -> Result<&'static Library, String> {
    static FOUND: OnceLock<Library> = OnceLock::new();
    if FOUND.get().is_none() {
        let library = look()?;
        drop(FOUND.set(library));
    }
    FOUND.get().ok_or_else(|| "nvJPEG was lost".to_owned())
}

fn look() -> Result<Library, String> {
    let mut tried = Vec::new();
    for place in places() {
        match open(&place) {
            Ok(library) => return Ok(library),
            Err(why) => tried.push(format!("{} ({why})", place.display())),
        }
    }
    Err(format!("nvJPEG was not found; tried {}; {ADVICE}", tried.join(", ")))
}

/// Names and files to try.
fn places() -> Vec<PathBuf> {
    if let Some(path) = std::env::var_os(PATH).filter(|path| !path.is_empty()) {
        return vec![path.into()];
    }
    let folders = FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    NAMES.into_iter().map(PathBuf::from).chain(folders.iter().flat_map(|folder| files(folder))).collect()
}

/// The libraries in `folder`, the newest first.
fn files(folder: &Path) -> Vec<PathBuf> {
    let ours = |name: &std::ffi::OsStr| {
        name.to_str().is_some_and(|name| name.starts_with("libnvjpeg.") && name.contains(".so"))
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.filter(|entry| ours(&entry.file_name())).map(|entry| entry.path()).collect();
    found.sort_unstable_by(|one, other| other.cmp(one));
    found
}

fn open(place: &Path) -> Result<Library, String> {
    // SAFETY: opening a library runs its initialisers; this is nvJPEG by name, or the user's explicit choice.
    let library = unsafe { libloading::Library::new(place) }.map_err(|_| "not found".to_owned())?;
    let call = Functions::load(&library).map_err(|name| format!("lacks {name}: too old, or not nvJPEG"))?;
    let mut version = [0; 3];
    for (number, part) in (0..).zip(&mut version) {
        // SAFETY: the pointer is valid for the one number that is written.
        let code = unsafe { (call.nvjpegGetProperty)(number, part) };
        if code != 0 {
            return Err(status(code));
        }
    }
    // It stays open until the process ends: its functions are called from then on.
    std::mem::forget(library);
    let version = version.map(|part| part.to_string()).join(".");
    Ok(Library { call, found: Found { path: place.display().to_string(), version } })
}

/// Describes a code of the library.
fn status(code: c_int) -> String {
    let name = match code {
        1 => "not initialised",
        2 => "invalid parameter",
        3 => "bad JPEG",
        4 => "JPEG not supported",
        5 => "it could not allocate memory",
        6 => "execution failed",
        7 => "not for this GPU",
        8 => "internal error",
        9 => "not implemented",
        10 => "incomplete bitstream",
        _ => return format!("nvJPEG status {code}"),
    };
    format!("{name} (nvJPEG status {code})")
}

fn checked(code: c_int, what: &str) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("{what}: {}", status(code))) }
}

/// A handle of the library in one context, which must be bound at every call, and when it is dropped.
#[derive(Debug)]
pub(super) struct Nvjpeg {
    library: &'static Library,
    handle: Handle,
    /// The handle that reads headers.
    header: Handle,
    /// JPEG engines in use; 0 if the GPU's other processors and the host do the work.
    engines: c_uint,
}

/// Memory of the library for one batch of photos at a time.
#[derive(Debug)]
pub(super) struct State {
    library: &'static Library,
    handle: Handle,
    /// The photos and channels for which it was prepared.
    prepared: Option<(usize, u8)>,
}

/// A photo to decode.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job<'a> {
    pub(super) jpeg: &'a [u8],
    /// Address of its pixels, one row after the other.
    pub(super) to: Address,
    /// Pixels of a row.
    pub(super) width: u32,
}

impl Nvjpeg {
    /// A handle for the bound context, on the GPU's engines for JPEG if it has any.
    pub(super) fn create(library: &'static Library) -> Result<Self, String> {
        let [usual, hardware] = BACKENDS;
        match Self::with(library, hardware) {
            Ok(on_engines) if on_engines.engines > 0 => Ok(on_engines),
            _ => Self::with(library, usual),
        }
    }

    fn with(library: &'static Library, backend: c_int) -> Result<Self, String> {
        let call = &library.call;
        let mut nvjpeg = Self { library, handle: 0, header: 0, engines: 0 };
        let none = ptr::null_mut();
        // SAFETY: no allocators of our own, no flags; the pointer is valid for the one handle that is written.
        let code = unsafe { (call.nvjpegCreateEx)(backend, none, none, 0, &raw mut nvjpeg.handle) };
        if code != 0 {
            // The written value is not a handle.
            nvjpeg.handle = 0;
        }
        checked(code, "a handle of it, which needs a driver for the library's CUDA or newer")?;
        // SAFETY: the handle lives; the pointer is valid for the one handle that is written.
        let code = unsafe { (call.nvjpegJpegStreamCreate)(nvjpeg.handle, &raw mut nvjpeg.header) };
        if code != 0 {
            nvjpeg.header = 0;
        }
        checked(code, "memory for headers")?;
        if backend == BACKENDS[1] {
            nvjpeg.engines = nvjpeg.count();
        }
        Ok(nvjpeg)
    }

    /// Engines of the GPU, for a handle that would use them.
    fn count(&self) -> c_uint {
        // A release without this function makes no such handle if there are no engines.
        let Some(ask) = self.library.call.nvjpegGetHardwareDecoderInfo else { return 1 };
        let (mut engines, mut cores) = (0, 0);
        // SAFETY: the handle lives; the pointers are valid for the numbers that are written.
        let code = unsafe { ask(self.handle, &raw mut engines, &raw mut cores) };
        if code == 0 { engines } else { 0 }
    }

    /// Describes the decoder, for display.
    pub(super) fn describe(&self) -> String {
        let Found { path, version } = &self.library.found;
        match self.engines {
            0 => format!("nvJPEG {version} ({path}), without engines"),
            engines => format!("nvJPEG {version} ({path}), {engines} engines"),
        }
    }

    /// Returns true if it decodes `jpeg` and finds this size in it, which is then the size it writes.
    pub(super) fn accepts(&self, jpeg: &[u8], size: (u32, u32)) -> bool {
        let call = &self.library.call;
        let (mut width, mut height, mut unsupported) = (0, 0, 0);
        // SAFETY: both handles live; `jpeg` is read for its length and not kept beyond the calls that follow; the pointers are valid for the
        // numbers that are written.
        unsafe {
            (call.nvjpegJpegStreamParseHeader)(self.handle, jpeg.as_ptr(), jpeg.len(), self.header) == 0
                && (call.nvjpegJpegStreamGetFrameDimensions)(self.header, &raw mut width, &raw mut height) == 0
                && (width, height) == size
                // Only engines are selective.
                && (self.engines == 0
                    || (call.nvjpegDecodeBatchedSupported)(self.handle, self.header, &raw mut unsupported) == 0
                        && unsupported == 0)
        }
    }

    /// New memory for a batch.
    pub(super) fn state(&self) -> Result<State, String> {
        let mut state = State { library: self.library, handle: 0, prepared: None };
        // SAFETY: the handle lives; the pointer is valid for the one handle that is written.
        let code = unsafe { (self.library.call.nvjpegJpegStateCreate)(self.handle, &raw mut state.handle) };
        if code != 0 {
            state.handle = 0;
        }
        checked(code, "memory for decoding").map(|()| state)
    }

    /// Appends the decoding of `jobs`, whose pixels have `channels` bytes (1: luminance, 3: RGB), to `stream`.
    ///
    /// # Safety
    /// No work appended with this `state` is in flight. Until the work appended now is done, the JPEGs are
    /// unchanged, and `to` of each is memory of the device for all pixels of a photo that was
    /// [accepted](Self::accepts).
    pub(super) unsafe fn decode(
        &self,
        state: &mut State,
        jobs: &[Job<'_>],
        channels: u8,
        stream: Handle,
    ) -> Result<(), String> {
        let call = &self.library.call;
        if state.prepared != Some((jobs.len(), channels)) {
            state.prepared = None;
            let [grey, colour] = OUTPUTS;
            let output = if channels == 1 { grey } else { colour };
            let count = c_int::try_from(jobs.len()).map_err(|_| "too many photos at once".to_owned())?;
            let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get().min(MOST_THREADS));
            // SAFETY: both handles live, and nothing is in flight with the state.
            let code = unsafe {
                (call.nvjpegDecodeBatchedInitialize)(self.handle, state.handle, count, threads as c_int, output)
            };
            checked(code, "preparing to decode")?;
            state.prepared = Some((jobs.len(), channels));
        }
        let data: Vec<*const u8> = jobs.iter().map(|job| job.jpeg.as_ptr()).collect();
        let lengths: Vec<usize> = jobs.iter().map(|job| job.jpeg.len()).collect();
        let pitch = |job: &Job<'_>| job.width as usize * usize::from(channels);
        let images: Vec<Image> =
            jobs.iter().map(|job| Image { channel: [job.to, 0, 0, 0], pitch: [pitch(job), 0, 0, 0] }).collect();
        // SAFETY: the state was prepared for as many photos as each list has; the caller promises what they point to.
        let code = unsafe {
            (call.nvjpegDecodeBatched)(
                self.handle,
                state.handle,
                data.as_ptr(),
                lengths.as_ptr(),
                images.as_ptr(),
                stream,
            )
        };
        checked(code, "decoding")
    }
}

impl Drop for Nvjpeg {
    fn drop(&mut self) {
        let call = &self.library.call;
        if self.header != 0 {
            // SAFETY: made once, destroyed once; nothing uses it between calls.
            log(unsafe { (call.nvjpegJpegStreamDestroy)(self.header) });
        }
        if self.handle != 0 {
            // SAFETY: as above; its states are gone by now.
            log(unsafe { (call.nvjpegDestroy)(self.handle) });
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if self.handle != 0 {
            // SAFETY: made once, destroyed once; its owner waited for what was appended with it.
            log(unsafe { (self.library.call.nvjpegJpegStateDestroy)(self.handle) });
        }
    }
}

/// For resources being given back: a failure is only logged.
fn log(code: c_int) {
    if code != 0 {
        tracing::warn!("giving something of nvJPEG back: {}", status(code));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_library_of_a_folder_comes_first() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["libnvjpeg.so.12", "libnvjpeg.36e11081.so.13", "libnvjpeg.so.13", "libnvjpeg.a", "libcublas.so.13"]
        {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let names: Vec<_> = files(folder.path()).iter().map(|path| path.file_name().unwrap().to_owned()).collect();
        assert_eq!(names, ["libnvjpeg.so.13", "libnvjpeg.so.12", "libnvjpeg.36e11081.so.13"]);
        assert!(files(Path::new("no such folder")).is_empty());
        assert_eq!(size_of::<Image>(), 64);
    }
}
