//! The kernels of `kernels.cu`, shipped as PTX that the driver compiles for its GPU at the first conversion.

#![expect(unsafe_code, reason = "loading and launching kernels; the bounds are stated at each use")]

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::sync::Arc;

use super::driver::{Bound, Context, Handle};
use crate::device::address::Address;
use crate::device::conversion::{Conversion, Lists};
use crate::device::decoding::Decoding;
use crate::device::traits::refused;
use crate::error::Result;
use crate::schema::DType;

/// Made from `kernels.cu` by `scripts/kernels.py`, which `make lint` runs to check it.
const PTX: &str = concat!(include_str!("kernels.ptx"), "\0");

/// Threads of a block; the maximum for which the kernels are compiled.
const BLOCK: u32 = 256;
/// Maximum blocks in x: several for each multiprocessor of the largest GPUs. A thread continues with the element one
/// grid further.
const MOST_BLOCKS: u64 = 1 << 14;
/// Maximum blocks in y, by the hardware.
const MOST_ROWS: u64 = 65_535;

const CHANNELS: [u8; 3] = [1, 3, 4];
const TO: [DType; 3] = [DType::Float16, DType::Bfloat16, DType::Float32];
const NORMALISE: [[&CStr; 3]; 3] = [
    [c"normalise_1_float16", c"normalise_1_bfloat16", c"normalise_1_float32"],
    [c"normalise_3_float16", c"normalise_3_bfloat16", c"normalise_3_float32"],
    [c"normalise_4_float16", c"normalise_4_bfloat16", c"normalise_4_float32"],
];

/// By the bytes of an element: 1, 2, 4, 8.
const PAD: [&CStr; 4] = [c"pad_1", c"pad_2", c"pad_4", c"pad_8"];

/// The kernels, loaded in one context.
#[derive(Debug)]
pub(super) struct Kernels {
    context: Arc<Context>,
    module: Handle,
    /// By number of channels, then by type.
    normalise: [[Handle; 3]; 3],
    cast: Handle,
    /// By the logarithm of the element's bytes.
    pad: [Handle; 4],
    lengths: Handle,
    resample: Handle,
}

/// Parameters of the longest list.
const PARAMETERS: usize = 14;

/// One launch: the kernel, the blocks, and the parameters.
#[derive(Debug)]
struct Launch {
    function: Handle,
    grid: (u32, u32),
    /// As many as the longest list; a kernel that declares fewer ignores the rest.
    parameters: [Parameter; PARAMETERS],
}

#[derive(Debug, Clone, Copy)]
enum Parameter {
    Wide(u64),
    Int(c_int),
    Float(f32),
}

impl Kernels {
    /// Loads them; the driver compiles them now, which takes a fraction of a second, or takes them from its cache.
    pub(super) fn load(context: &Arc<Context>, _: &Bound<'_>) -> Result<Self> {
        let call = &context.driver.call;
        let mut module = 0;
        // SAFETY: the image is text that ends with a zero; the pointer is valid for the one handle that is written.
        let code = unsafe { (call.cuModuleLoadData)(&raw mut module, PTX.as_ptr().cast()) };
        context.check(code, "loading the kernels, which need a GPU of compute capability 7.5 or newer")?;
        // From here on, dropping unloads it.
        let context_of = Arc::clone(context);
        let mut kernels =
            Self { context: context_of, module, normalise: [[0; 3]; 3], cast: 0, pad: [0; 4], lengths: 0, resample: 0 };
        let find = |name: &CStr| -> Result<Handle> {
            let mut function = 0;
            // SAFETY: as above; the name ends with a zero.
            let code = unsafe { (call.cuModuleGetFunction)(&raw mut function, module, name.as_ptr()) };
            context.check(code, &format!("the kernel {}", name.to_string_lossy()))?;
            Ok(function)
        };
        for (names, functions) in NORMALISE.iter().zip(&mut kernels.normalise) {
            for (name, function) in names.iter().zip(functions) {
                *function = find(name)?;
            }
        }
        for (name, function) in PAD.iter().zip(&mut kernels.pad) {
            *function = find(name)?;
        }
        kernels.cast = find(c"cast")?;
        kernels.lengths = find(c"lengths")?;
        kernels.resample = find(c"resample")?;
        Ok(kernels)
    }

    /// Appends `what` to `stream`.
    ///
    /// # Safety
    /// As for [`Device::convert`](crate::device::Device::convert).
    pub(super) unsafe fn launch(
        &self,
        what: &Conversion,
        from: Address,
        to: Address,
        stream: Handle,
        _: &Bound<'_>,
    ) -> Result<()> {
        let Some(launch) = self.prepare(what, from, to)? else { return Ok(()) };
        // SAFETY: `prepare` returns the parameters that the kernel declares; the caller promises the memory.
        unsafe { self.start(launch, stream, "launching a conversion") }
    }

    /// Appends the kernel that makes the photos of a table, each in memory of its own, to rows of a batch
    /// at `to`.
    ///
    /// # Safety
    /// Until what was appended is done: `table` is device memory of `photos` entries in the kernel's layout,
    /// the pixels of each are at the address it names, and `to` has [`Decoding::to_bytes`], including every row that is
    /// named.
    pub(super) unsafe fn resample(
        &self,
        what: &Decoding,
        (table, photos): (Address, usize),
        to: Address,
        stream: Handle,
        _: &Bound<'_>,
    ) -> Result<()> {
        use Parameter::{Float, Int, Wide};
        let whole = |number: u32| Int(number.cast_signed());
        let [s0, s1, s2, _] = what.scale.map(Float);
        let [b0, b1, b2, _] = what.bias.map(Float);
        let sizes = [whole(what.height), whole(what.width), Int(what.channels.into())];
        let form = [Int(number(what.to)), Int(what.planes.into())];
        let sides = [Wide(table), Wide(to), Wide(photos as u64)];
        let parameters = filled(&[&sides[..], &sizes, &form, &[s0, s1, s2, b0, b1, b2]].concat());
        let plane = u64::from(what.height) * u64::from(what.width);
        let rows = c_uint::try_from((photos as u64).min(MOST_ROWS)).unwrap_or(1);
        let launch = Launch { function: self.resample, grid: (blocks(plane), rows), parameters };
        // SAFETY: these are the parameters that the kernel declares; the caller promises the memory.
        unsafe { self.start(launch, stream, "launching the kernel for photos") }
    }

    /// Appends a launch to `stream`.
    ///
    /// # Safety
    /// The function is one of this module and the parameters are those that it declares; the memory that they
    /// name stays valid until it is done.
    unsafe fn start(&self, launch: Launch, stream: Handle, what: &str) -> Result<()> {
        let Launch { function, grid, mut parameters } = launch;
        let mut addresses = parameters.each_mut().map(Parameter::address);
        let none = std::ptr::null_mut();
        // SAFETY: the module lives; the driver copies as many parameters as the function declares before it returns. The rest is promised
        // by the caller.
        let code = unsafe {
            (self.context.driver.call.cuLaunchKernel)(
                function,
                grid.0,
                grid.1,
                1,
                BLOCK,
                1,
                1,
                0,
                stream,
                addresses.as_mut_ptr(),
                none,
            )
        };
        self.context.check(code, what)
    }

    /// The launch for `what`; `None` if there is nothing to do.
    fn prepare(&self, what: &Conversion, from: Address, to: Address) -> Result<Option<Launch>> {
        use Parameter::{Float, Int, Wide};
        let unknown = || {
            refused(format!("cuda:{}", self.context.ordinal), "a conversion that no kernel does", format!("{what:?}"))
        };
        if what.from_bytes().is_none() || what.to_bytes().is_none() {
            return Err(unknown());
        }
        if what.to_bytes() == Some(0) {
            return Ok(None);
        }
        Ok(Some(match *what {
            Conversion::Normalise { images, height, width, channels, to: dtype, scale, bias, mask } => {
                let place = |found: Option<usize>| found.ok_or_else(unknown);
                let channels = place(CHANNELS.iter().position(|c| *c == channels))?;
                let dtype = place(TO.iter().position(|t| *t == dtype))?;
                let plane = u64::from(height) * u64::from(width);
                let threads = if plane % 4 == 0 { plane / 4 } else { plane };
                let ([s0, s1, s2, s3], [b0, b1, b2, b3]) = (scale.map(Float), bias.map(Float));
                let (from, to, mask) = (Wide(from), Wide(to), Wide(mask.unwrap_or(0)));
                let parameters = filled(&[from, to, mask, Wide(images), Wide(plane), s0, s1, s2, s3, b0, b1, b2, b3]);
                let rows = c_uint::try_from(images.min(MOST_ROWS)).unwrap_or(1);
                Launch { function: self.normalise[channels][dtype], grid: (blocks(threads), rows), parameters }
            }
            Conversion::Cast { from: old, to: new, elements } => {
                if !Conversion::casts(old, new) {
                    return Err(unknown());
                }
                let given = [Wide(from), Wide(to), Wide(elements), Int(number(old)), Int(number(new))];
                Launch { function: self.cast, grid: (blocks(elements), 1), parameters: filled(&given) }
            }
            Conversion::Pad { lists: Lists { count, items, length }, item, width, fill, left, offsets } => {
                let (row, log2) = (length.saturating_mul(item), width.trailing_zeros());
                let function = self.pad.get(log2 as usize).filter(|_| width.is_power_of_two()).ok_or_else(unknown)?;
                let (grid, lanes_log2) = padding_grid(count, row);
                let (sides, sizes) = ([from, to, offsets].map(Wide), [count, items, length, item, fill].map(Wide));
                let flags = [Int(left.into()), Int(lanes_log2)];
                Launch { function: *function, grid, parameters: filled(&[&sides[..], &sizes, &flags].concat()) }
            }
            Conversion::Lengths(Lists { count, items, length }) => {
                let parameters = filled(&[from, to, count, items, length].map(Wide));
                Launch { function: self.lengths, grid: (blocks(count), 1), parameters }
            }
        }))
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        if let Some(_bound) = self.context.bind_to_free() {
            // SAFETY: loaded once, unloaded once; its owner waits for what was launched before it drops this.
            let code = unsafe { (self.context.driver.call.cuModuleUnload)(self.module) };
            self.context.log(code, "unloading the kernels");
        }
    }
}

impl Parameter {
    /// Address of the value, for the driver to copy.
    fn address(&mut self) -> *mut c_void {
        match self {
            Self::Wide(value) => (&raw mut *value).cast(),
            Self::Int(value) => (&raw mut *value).cast(),
            Self::Float(value) => (&raw mut *value).cast(),
        }
    }
}

/// `given`, followed by zeros.
fn filled(given: &[Parameter]) -> [Parameter; PARAMETERS] {
    std::array::from_fn(|at| given.get(at).copied().unwrap_or(Parameter::Wide(0)))
}

/// Blocks in x and y for `lists` lists of `row` elements once padded, and the logarithm of the threads for one list: as
/// many as it has elements, at most a block. Long lists are shared by the blocks in y.
fn padding_grid(lists: u64, row: u64) -> ((u32, u32), c_int) {
    let lanes = row.clamp(1, BLOCK.into()).next_power_of_two();
    let x = blocks(lists.saturating_mul(lanes));
    let y = row.div_ceil(lanes).clamp(1, (MOST_BLOCKS / u64::from(x)).clamp(1, MOST_ROWS));
    ((x, u32::try_from(y).unwrap_or(1)), c_int::try_from(lanes.ilog2()).unwrap_or(0))
}

/// Blocks for `threads` threads, 1 to [`MOST_BLOCKS`].
fn blocks(threads: u64) -> u32 {
    u32::try_from(threads.div_ceil(BLOCK.into()).clamp(1, MOST_BLOCKS)).unwrap_or(1)
}

/// The number of a type in `kernels.cu`: its index in [`DType::ALL`].
fn number(dtype: DType) -> c_int {
    DType::ALL.iter().position(|other| *other == dtype).and_then(|at| c_int::try_from(at).ok()).unwrap_or(-1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ptx_was_made_from_the_source_beside_it() {
        use sha2::{Digest, Sha256};
        let hash = crate::hex::of(Sha256::digest(include_bytes!("kernels.cu")));
        let first = PTX.lines().next().unwrap();
        assert_eq!(first, format!("// kernels.cu sha256 {hash}"), "run python scripts/kernels.py");
        assert!(PTX.contains(".version 8.0\n.target sm_75\n"));
        for name in NORMALISE.iter().flatten().chain(&PAD).chain(&[c"cast", c"lengths", c"resample"]) {
            assert!(PTX.contains(&format!(".visible .entry {}(", name.to_str().unwrap())), "{name:?}");
        }
    }

    #[test]
    fn types_have_the_numbers_of_the_source() {
        let source = include_str!("kernels.cu");
        let list = source.split("enum {").nth(1).unwrap().split('}').next().unwrap();
        let names: Vec<_> = list.split(',').map(|name| name.trim().to_lowercase()).filter(|n| !n.is_empty()).collect();
        assert_eq!(names, DType::ALL.map(|dtype| dtype.name().to_owned()));
        assert_eq!((number(DType::Bool), number(DType::Float64)), (0, 12));
        assert_eq!((blocks(0), blocks(257), blocks(u64::MAX)), (1, 2, 16384));
        assert_eq!(padding_grid(100, 17), ((13, 1), 5));
        assert_eq!(padding_grid(3, 1000), ((3, 4), 8));
        assert_eq!(padding_grid(u64::MAX, u64::MAX), ((16384, 1), 8));
        assert_eq!(padding_grid(0, 0), ((1, 1), 0));
    }
}
