//! Photos per core: random resized crop to 224, as in the loader, compared with a bare chain of the same libraries.
//!
//! ```text
//! BOWSTRING_PHOTOS=photos.parquet cargo bench --features turbo --bench images
//! ```
//! The photos are column `image` of that file, by default the 40 of `fixtures/`. One thread; the chains take turns, so
//! that other load on the machine affects all of them. Figures are medians over the passes, per second of this thread's
//! CPU time and of wall time.
//!
//! The bare chain calls libjpeg-turbo as fast as possible: a single handle, crop and scale, no check of the header for
//! limits or orientation, no check for truncation, warnings ignored; then fast_image_resize. It ends at u8 pixels.
#![cfg_attr(feature = "turbo", expect(unsafe_code, reason = "the bare chain calls C itself"))]
#![allow(clippy::print_stdout, reason = "a table for people")]

use std::fs::File;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

use bowstring::codec::Decode;
use bowstring::codec::image::{Crop, ImageDecoder, ImageOptions, Layout, Normalize, backend};
use bowstring::schema::DType;
use parquet::file::reader::{FileReader, SerializedFileReader};

const SIDE: u32 = 224;

fn main() {
    // `cargo test` runs this too: one pass over a few photos shows that it works.
    let measure = std::env::args().any(|argument| argument == "--bench");
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/imagenet40.parquet");
    let path = std::env::var_os("BOWSTRING_PHOTOS").map_or(default, PathBuf::from);
    let mut photos = photos(&path);
    if !measure {
        photos.truncate(4);
    }
    let passes = if measure { (3_000 / photos.len()).max(5) } else { 1 };
    let megabytes = photos.iter().map(Vec::len).sum::<usize>() as f64 / 1e6;
    println!("{} photos, {megabytes:.1} MB, {passes} passes, {}", photos.len(), backend());

    let mut chains = chains();
    let mut figures = vec![(Vec::new(), Vec::new()); chains.len()];
    for pass in 0..passes {
        for ((_, chain), (cpu, wall)) in chains.iter_mut().zip(&mut figures) {
            let (start, cpu_start) = (Instant::now(), cpu_seconds());
            for (i, photo) in photos.iter().enumerate() {
                chain(photo, (pass * photos.len() + i) as u64);
            }
            let count = photos.len() as f64;
            wall.push(count / start.elapsed().as_secs_f64());
            cpu.push(cpu_start.zip(cpu_seconds()).map_or(f64::NAN, |(from, to)| count / (to - from)));
        }
    }
    println!("{:<46} {:>12} {:>12}", "", "img/s of CPU", "img/s");
    for ((name, _), (cpu, wall)) in chains.iter().zip(&mut figures) {
        println!("{name:<46} {:>12.0} {:>12.0}", median(cpu), median(wall));
    }
}

fn photos(path: &Path) -> Vec<Vec<u8>> {
    let file = File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let reader = SerializedFileReader::new(file).expect("a Parquet file");
    let rows = reader.get_row_iter(None).expect("rows");
    let image = |row: parquet::record::Row| {
        row.get_column_iter().find_map(|(name, field)| match field {
            parquet::record::Field::Bytes(bytes) if name == "image" => Some(bytes.data().to_vec()),
            _ => None,
        })
    };
    rows.map(|row| image(row.expect("a row")).expect("a column `image` of bytes")).collect()
}

/// Seconds this thread has run, if the system reports it.
fn cpu_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(text.split_whitespace().next()?.parse::<f64>().ok()? / 1e9)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

type Chain = Box<dyn FnMut(&[u8], u64)>;

fn ours(options: &ImageOptions) -> Chain {
    let decoder = ImageDecoder::new(options).expect("good options");
    let mut row = vec![0; decoder.shape().iter().product::<usize>() * decoder.dtype().size()];
    Box::new(move |photo, random| {
        decoder.decode_into(photo, random, &mut row).expect("a good photo");
        black_box(&row);
    })
}

fn chains() -> Vec<(&'static str, Chain)> {
    let pixels = ImageOptions {
        size: Some(SIDE.into()),
        crop: Crop::RANDOM_RESIZED,
        flip: 0.5,
        layout: Layout::Hwc,
        ..ImageOptions::default()
    };
    let planes = ImageOptions { layout: Layout::Chw, ..pixels.clone() };
    let normalised = ImageOptions { dtype: DType::Float16, normalize: Some(Normalize::imagenet()), ..planes.clone() };
    let exact = ImageOptions { draft: false, ..pixels.clone() };
    let eval = ImageOptions { crop: Crop::Center, resize_shorter: Some(256), flip: 0.0, ..normalised.clone() };
    vec![
        #[cfg(feature = "turbo")]
        ("bare libjpeg-turbo + fast_image_resize, u8 HWC", bare::chain()),
        ("random resized crop, flip, u8 HWC", ours(&pixels)),
        ("random resized crop, flip, u8 CHW", ours(&planes)),
        ("random resized crop, flip, f16 CHW normalised", ours(&normalised)),
        ("the same as u8 HWC, never scaled in the decoder", ours(&exact)),
        ("resize 256, centre crop, f16 CHW normalised", ours(&eval)),
    ]
}

#[cfg(feature = "turbo")]
mod bare {
    use std::ffi::c_int;

    use fast_image_resize::images::{CroppedImage, Image, ImageRef};
    use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
    use turbojpeg_sys as tj;

    use super::{Chain, SIDE, black_box};

    pub(super) fn chain() -> Chain {
        // SAFETY: no preconditions; the handle is never freed, which is fine for a process about to end.
        let handle = unsafe { tj::tj3Init(tj::TJINIT_TJINIT_DECOMPRESS as c_int) };
        let (mut decoded, mut out) = (Vec::new(), vec![0; (SIDE * SIDE * 3) as usize]);
        let mut resizer = Resizer::new();
        Box::new(move |jpeg, random| {
            let get = |parameter: tj::TJPARAM| {
                // SAFETY: the handle is live.
                unsafe { tj::tj3Get(handle, parameter as c_int) }
            };
            // SAFETY: the handle is live, the bytes are only read.
            unsafe { tj::tj3DecompressHeader(handle, jpeg.as_ptr(), jpeg.len() as tj::size_t) };
            let (width, height) = (get(tj::TJPARAM_TJPARAM_JPEGWIDTH), get(tj::TJPARAM_TJPARAM_JPEGHEIGHT));
            let block = match get(tj::TJPARAM_TJPARAM_SUBSAMP) {
                tj::TJSAMP_TJSAMP_444 | tj::TJSAMP_TJSAMP_GRAY | tj::TJSAMP_TJSAMP_440 => 8,
                _ => 16,
            };
            let [x, y, w, h] = draw(f64::from(width), f64::from(height), random);
            let side = SIDE as c_int;
            let scale = [8, 4, 2].into_iter().find(|scale| w / scale >= side && h / scale >= side).unwrap_or(1);
            let up = |size: c_int| (size + scale - 1) / scale;
            let left = (x / scale - 1).max(0) / (block / scale) * (block / scale);
            let top = (y / scale - 1).max(0);
            let (right, bottom) = ((up(x + w) + 1).min(up(width)), (up(y + h) + 1).min(up(height)));
            let (part_w, part_h) = (right - left, bottom - top);
            let len = (part_w * part_h * 3) as usize;
            if decoded.len() < len {
                decoded.resize(len, 0);
            }
            // SAFETY: the handle has read the header; the region lies in the scaled image, and `decoded` holds its rows.
            unsafe {
                tj::tj3SetScalingFactor(handle, tj::tjscalingfactor { num: 1, denom: scale });
                let code = tj::tj3SetCroppingRegion(handle, tj::tjregion { x: left, y: top, w: part_w, h: part_h });
                assert_eq!(code, 0);
                let (from, to) = (jpeg.as_ptr(), decoded.as_mut_ptr());
                tj::tj3Decompress8(handle, from, jpeg.len() as tj::size_t, to, 0, tj::TJPF_TJPF_RGB);
            }
            let source = ImageRef::new(part_w as u32, part_h as u32, &decoded, PixelType::U8x3).expect("a buffer");
            let (x, y) =
                (f64::from(x) / f64::from(scale) - f64::from(left), f64::from(y) / f64::from(scale) - f64::from(top));
            let (w, h) = (f64::from(w) / f64::from(scale), f64::from(h) / f64::from(scale));
            let [view_x, view_y] = [x.floor(), y.floor()];
            let (view_w, view_h) = ((x + w).ceil() - view_x, (y + h).ceil() - view_y);
            let view = CroppedImage::new(&source, view_x as u32, view_y as u32, view_w as u32, view_h as u32);
            let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear)).crop(
                x - view_x,
                y - view_y,
                w,
                h,
            );
            let mut target = Image::from_slice_u8(SIDE, SIDE, &mut out, PixelType::U8x3).expect("a buffer");
            resizer.resize(&view.expect("a view"), &mut target, &options).expect("a resize");
            black_box(&out);
        })
    }

    /// torchvision's random resized crop: x, y, width, height.
    fn draw(width: f64, height: f64, random: u64) -> [c_int; 4] {
        let mut state = random.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1_e995;
        let mut unit = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
        };
        for _ in 0..10 {
            let area = width * height * (0.08 + 0.92 * unit());
            let aspect = (3.0_f64 / 4.0) * (16.0_f64 / 9.0).powf(unit());
            let (w, h) = ((area * aspect).sqrt().round(), (area / aspect).sqrt().round());
            if w <= width && h <= height {
                let (y, x) = ((height - h + 1.0) * unit(), (width - w + 1.0) * unit());
                return [x, y, w, h].map(|side| side as c_int);
            }
        }
        [0.0, 0.0, width, height].map(|side| side as c_int)
    }
}
