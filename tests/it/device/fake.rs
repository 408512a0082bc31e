//! The fake CUDA driver of tests/fake_cuda, and the nvJPEG that goes with it: built with the C compiler, loaded by children of the test binary, steered from tests.

#![expect(unsafe_code, reason = "calls into a library that is written for these tests")]

use std::env;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Mutex;

use bowstring::device::Stream;

use crate::child;
use crate::support::compile;

/// A driver for CUDA `version` (13000 is 13.0), as a directory that holds `libcuda.so.1`.
pub(crate) fn build(version: u32) -> PathBuf {
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/device/cuda");
    let include = [format!("-DFAKE_VERSION={version}"), "-I".to_owned(), kernels.to_str().unwrap().to_owned()];
    let library = compile("tests/fake_cuda/cuda.c", "libcuda.so.1", &include, &[kernels.join("kernels.cu")]);
    library.parent().unwrap().to_owned()
}

/// An nvJPEG library that works on the driver's streams.
pub(crate) fn build_nvjpeg() -> PathBuf {
    compile("tests/fake_cuda/nvjpeg.c", "libnvjpeg.so.12", &[], &[])
}

/// An older one, which cannot report its number of engines.
pub(crate) fn build_old_nvjpeg() -> PathBuf {
    compile("tests/fake_cuda/nvjpeg.c", "libnvjpeg.so.12", &["-DFAKE_OLD".to_owned()], &[])
}

/// Runs the role `name` as a child that finds the driver in `library` (`None`: an empty directory), and returns its
/// output.
pub(crate) fn child(name: &str, library: Option<&Path>, variables: &[(&str, &str)]) -> String {
    let empty = tempfile::tempdir().unwrap();
    let mut command = child::command(name);
    let ours = library.unwrap_or(empty.path()).to_owned();
    let rest = env::var_os("LD_LIBRARY_PATH");
    let paths = std::iter::once(ours).chain(rest.iter().flat_map(env::split_paths));
    command.env("LD_LIBRARY_PATH", env::join_paths(paths).unwrap());
    for unset in ["CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "SLURM_LOCALID", "BOWSTRING_RESOURCES", "BOWSTRING_NVJPEG"] {
        command.env_remove(unset);
    }
    command.envs(variables.iter().copied());
    let Output { status, stdout, stderr } = command.output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success() && said.contains("1 passed"), "{name}: {status}\n{said}");
    // A panic inside a call would be caught there and become an error: it must not even happen.
    assert!(!said.contains("panicked"), "{name}\n{said}");
    said
}

/// Calls a function of the fake and expects code 0.
macro_rules! call {
    ($name:ident($($argument:expr => $type:ty),*)) => {{
        let call: unsafe extern "C" fn($($type),*) -> c_int = function(stringify!($name));
        let exempt: unsafe extern "C" fn(c_int) -> c_int = function("fakeExempt");
        // SAFETY: pointers are valid for the reads and writes in the driver's documentation. A consumer's own calls are
        // not the ones that fail.
        let code = unsafe {
            exempt(1);
            let code = call($($argument),*);
            exempt(0);
            code
        };
        assert_eq!(code, 0, "{}", stringify!($name));
    }};
}

/// Resources not given back, and faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub(crate) struct Balance {
    pub(crate) device: i64,
    pub(crate) host: i64,
    pub(crate) events: i64,
    pub(crate) streams: i64,
    pub(crate) modules: i64,
    pub(crate) contexts: i64,
    pub(crate) violations: i64,
    pub(crate) pageable: i64,
}

/// The fake driver, from within a child; and a consumer of tensors, like a framework: with streams of its own.
#[derive(Debug)]
pub(crate) struct Fake {
    streams: Mutex<Vec<usize>>,
}

/// Bytes that a stream will have read once it reaches the read.
#[derive(Debug)]
pub(crate) struct Reading {
    bytes: Vec<u8>,
    stream: usize,
}

impl Drop for Reading {
    fn drop(&mut self) {
        // The stream writes to the bytes until it is done.
        call!(cuStreamSynchronize(self.stream => usize));
    }
}

/// The function `name` of the fake.
fn function<F: Copy>(name: &str) -> F {
    let name = CString::new(name).unwrap();
    // SAFETY: the library is the fake, which the test put first on the path; the types at each use are those of cuda.c.
    unsafe { *cudarc::driver::sys::culib().get::<F>(name.as_bytes_with_nul()).unwrap() }
}

impl Fake {
    /// Makes GPU 0's primary context current on this thread, as frameworks do.
    pub(crate) fn consumer() -> Self {
        let mut context = 0_usize;
        call!(cuInit(0 => c_uint));
        call!(cuDevicePrimaryCtxRetain(&raw mut context => *mut usize, 0 => c_int));
        call!(cuCtxPushCurrent_v2(context => usize));
        Self { streams: Mutex::default() }
    }

    /// Ends the consumer: its streams, its hold on the context.
    pub(crate) fn finish(self) {
        for stream in self.streams.into_inner().unwrap() {
            call!(cuStreamDestroy_v2(stream => usize));
        }
        let mut popped = 0_usize;
        call!(cuCtxPopCurrent_v2(&raw mut popped => *mut usize));
        call!(cuDevicePrimaryCtxRelease_v2(0 => c_int));
    }

    pub(crate) fn reset(&self, seed: u64, most: u32) {
        call!(fakeReset(seed => u64, most => c_uint));
    }

    /// Makes call number `nth` from now on of `function` (`*`: of any) fail with `code`.
    pub(crate) fn fail(&self, function_name: &str, nth: i64, code: c_int) {
        let name = CString::new(function_name).unwrap();
        call!(fakeFail(name.as_ptr() => *const c_char, nth => i64, code => c_int));
    }

    pub(crate) fn balance(&self) -> Balance {
        let mut balance = Balance::default();
        call!(fakeBalance(&raw mut balance => *mut Balance));
        balance
    }

    /// Total allocations of device and of page-locked memory.
    pub(crate) fn allocations(&self) -> [i64; 2] {
        let mut totals = [0; 2];
        call!(fakeTotals(totals.as_mut_ptr() => *mut i64));
        totals
    }

    pub(crate) fn calls(&self) -> i64 {
        let call: unsafe extern "C" fn() -> c_int = function("fakeCalls");
        // SAFETY: it takes no arguments.
        unsafe { call() }.into()
    }

    pub(crate) fn current_context(&self) -> usize {
        let mut context = 0_usize;
        call!(cuCtxGetCurrent(&raw mut context => *mut usize));
        context
    }

    pub(crate) fn stream(&self) -> Stream {
        let mut stream = 0_usize;
        call!(cuStreamCreate(&raw mut stream => *mut usize, 1 => c_uint));
        self.streams.lock().unwrap().push(stream);
        Stream::Handle(stream as u64)
    }

    /// Sets whether `stream` stands still.
    pub(crate) fn hold(&self, stream: Stream, on: bool) {
        call!(fakeHold(handle(stream) => usize, c_int::from(on) => c_int));
    }

    /// Appends a read of device memory to `stream`.
    pub(crate) fn read_on(&self, stream: Stream, at: u64, len: usize) -> Reading {
        let mut bytes = vec![0; len];
        let to = bytes.as_mut_ptr().cast::<c_void>();
        call!(cuMemcpyDtoHAsync_v2(to => *mut c_void, at => u64, len => usize, handle(stream) => usize));
        Reading { bytes, stream: handle(stream) }
    }

    /// Waits for a read.
    pub(crate) fn collect(&self, mut reading: Reading) -> Vec<u8> {
        call!(cuStreamSynchronize(reading.stream => usize));
        std::mem::take(&mut reading.bytes)
    }

    /// Gives a stream back, which still completes its queued work.
    pub(crate) fn destroy(&self, stream: Stream) {
        let handle = handle(stream);
        self.streams.lock().unwrap().retain(|other| *other != handle);
        call!(cuStreamDestroy_v2(handle => usize));
    }

    /// Begins to capture a graph in the global mode.
    pub(crate) fn begin_capture(&self, stream: Stream) {
        call!(cuStreamBeginCapture_v2(handle(stream) => usize, 0 => c_int));
    }

    /// Ends it; the capture must be whole.
    pub(crate) fn end_capture(&self, stream: Stream) {
        let mut graph = 0_usize;
        call!(cuStreamEndCapture(handle(stream) => usize, &raw mut graph => *mut usize));
    }
}

fn handle(stream: Stream) -> usize {
    match stream {
        Stream::LegacyDefault => 1,
        Stream::PerThreadDefault => 2,
        Stream::Handle(handle) => handle as usize,
    }
}
