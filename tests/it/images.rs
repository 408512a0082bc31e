//! Images: every format against Pillow's reading; crops, resizing, orientation; damage, bombs, random mutations.

use std::collections::BTreeMap;
use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::time::Instant;

use bowstring::codec::Decode;
use bowstring::codec::image::{
    Crop, Decoder, Format, ImageDecoder, ImageOptions, Layout, Limits, Normalize, Size, Truncated, backend, probe,
};
use bowstring::error::{Error, Kind};
use bowstring::schema::DType;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::support::{HANG, Random};

/// True if the decoder is the one inside Pillow, so that pixels are equal and not only close.
const TURBO: bool = cfg!(feature = "turbo");

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

fn json<T: for<'de> Deserialize<'de>>(name: &str) -> T {
    serde_json::from_slice(&fs::read(fixtures().join(name)).unwrap()).unwrap()
}

/// Returns the JPEG files of `imagenet40.parquet`, in order.
fn photos() -> Vec<Vec<u8>> {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;
    let file = fs::File::open(fixtures().join("imagenet40.parquet")).unwrap();
    let reader = SerializedFileReader::new(file).unwrap();
    reader.get_row_iter(None).unwrap().map(|row| row.unwrap().get_bytes(0).unwrap().data().to_vec()).collect()
}

/// Returns the small images of every kind, by name.
fn zoo() -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(fixtures().join("images")).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let images = files.filter(|path| !matches!(path.extension().and_then(|e| e.to_str()), Some("json" | "py") | None));
    images.map(|path| (name(&path), fs::read(&path).unwrap())).collect()
}

fn base64(text: &str) -> Vec<u8> {
    let value = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let (mut out, mut bits, mut held) = (Vec::new(), 0u32, 0);
    for c in text.bytes().filter(|c| *c != b'=') {
        (bits, held) = (bits << 6 | u32::from(value(c)), held + 6);
        if held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
        }
    }
    out
}

/// As stored: RGB bytes, rows of pixels, nothing resized.
fn stored(size: Size) -> ImageOptions {
    ImageOptions { size: Some(size), resize: false, layout: Layout::Hwc, ..ImageOptions::default() }
}

fn decode(options: &ImageOptions, bytes: &[u8], random: u64) -> Result<Vec<u8>, Error> {
    let decoder = ImageDecoder::new(options)?;
    let mut row = vec![0xA5; decoder.shape().iter().product::<usize>() * decoder.dtype().size()];
    decoder.decode_into(bytes, random, &mut row).map(|()| row)
}

/// Returns the greatest and the mean difference, in levels.
fn difference(a: &[u8], b: &[u8]) -> (u8, f64) {
    assert_eq!(a.len(), b.len());
    let all = a.iter().zip(b).map(|(a, b)| a.abs_diff(*b));
    (all.clone().max().unwrap_or(0), all.map(f64::from).sum::<f64>() / a.len() as f64)
}

/// Makes a PNG of these RGB pixels.
fn png(rgb: &[u8], width: u32, height: u32) -> Vec<u8> {
    let mut out = Cursor::new(Vec::new());
    let pixels = image::RgbImage::from_raw(width, height, rgb.to_vec()).unwrap();
    pixels.write_to(&mut out, image::ImageFormat::Png).unwrap();
    out.into_inner()
}

// ---- correct images ------------------------------------------------------------------------------------------------

#[derive(Deserialize)]
struct Photos {
    rows: Vec<Photo>,
}

#[derive(Deserialize)]
struct Photo {
    path: String,
    size_wh: [u32; 2],
    pil_rgb_sha256: String,
    pil_rgb_mean: [f64; 3],
    pil_rgb_px_mid: [u8; 3],
}

#[test]
fn photos_decode_to_pillows_pixels() {
    let expected: Photos = json("imagenet40.expected.json");
    let photos = photos();
    assert_eq!(photos.len(), expected.rows.len());
    for (bytes, photo) in photos.iter().zip(&expected.rows) {
        let [width, height] = photo.size_wh;
        let info = probe(bytes).unwrap();
        assert_eq!((info.format, info.width, info.height), (Format::Jpeg, width, height), "{}", photo.path);
        let pixels = decode(&stored(Size { height, width }), bytes, 0).unwrap();
        if TURBO {
            let digest: String = Sha256::digest(&pixels).iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(digest, photo.pil_rgb_sha256, "{}", photo.path);
        }
        let middle = (height as usize / 2 * width as usize + width as usize / 2) * 3;
        assert!(difference(&pixels[middle..middle + 3], &photo.pil_rgb_px_mid).0 <= 9, "{}", photo.path);
        for channel in 0..3 {
            let sum: u64 = pixels[channel..].iter().step_by(3).map(|x| u64::from(*x)).sum();
            let mean = sum as f64 / f64::from(width * height);
            assert!((mean - photo.pil_rgb_mean[channel]).abs() < 0.5, "{}: {mean}", photo.path);
        }
    }
}

#[derive(Deserialize)]
struct Zoo {
    images: BTreeMap<String, Animal>,
}

#[derive(Deserialize)]
struct Animal {
    height: u32,
    width: u32,
    rgb: String,
    /// The permitted difference of a decoder other than Pillow's.
    tolerance: u8,
}

#[test]
fn every_format_is_read_as_pillow_reads_it() {
    let expected: Zoo = json("images/expected.json");
    let zoo = zoo();
    assert!(zoo.keys().eq(expected.images.keys()));
    for (name, bytes) in &zoo {
        let animal = &expected.images[name];
        let (height, width) = (animal.height, animal.width);
        assert_eq!(probe(bytes).unwrap().oriented(), (width, height), "{name}");
        let pixels = decode(&stored(Size { height, width }), bytes, 0).unwrap_or_else(|e| panic!("{name}: {e}"));
        let (most, mean) = difference(&pixels, &base64(&animal.rgb));
        let tolerance = if TURBO && name.ends_with(".jpg") { 0 } else { animal.tolerance };
        assert!(most <= tolerance && mean <= 1.0, "{name}: differs by up to {most}, {mean:.3} on average");

        // The same in planes, as grey, and with alpha.
        let of = |channels, layout| {
            let options = ImageOptions { channels, layout, ..stored(Size { height, width }) };
            decode(&options, bytes, 0).unwrap_or_else(|e| panic!("{name} {channels}: {e}"))
        };
        let planes = of(3, Layout::Chw);
        let area = (width * height) as usize;
        assert!((0..3).all(|c| pixels[c..].iter().step_by(3).eq(&planes[c * area..(c + 1) * area])), "{name}");
        let rgba = of(4, Layout::Hwc);
        assert!(rgba.chunks_exact(4).map(|p| &p[..3]).eq(pixels.chunks_exact(3)), "{name}");
        // The fourth byte of a plain BMP is not alpha.
        let opaque = !["rgba.png", "rgba.webp", "grey_alpha.png", "palette_transparent.png"].contains(&name.as_str());
        assert_eq!(rgba.iter().skip(3).step_by(4).all(|a| *a == 255), opaque, "{name}");
        let luma: Vec<u8> = pixels
            .chunks_exact(3)
            .map(|p| (0.299 * f64::from(p[0]) + 0.587 * f64::from(p[1]) + 0.114 * f64::from(p[2])).round() as u8)
            .collect();
        // JPEG delivers its own luma, from before colours were clipped.
        let (most, mean) = difference(&of(1, Layout::Hwc), &luma);
        assert!(most <= if name.ends_with(".jpg") { 40 } else { 1 } && mean < 1.5, "{name}: grey {most} {mean}");
    }
}

#[test]
fn resizing_is_pillows() {
    #[derive(Deserialize)]
    struct Resized {
        rows: BTreeMap<usize, Row>,
    }
    #[derive(Deserialize)]
    struct Row {
        center_40_32: String,
        whole_32_48: String,
    }
    let photos = photos();
    let expected: Resized = json("images/resized.json");
    assert_eq!(expected.rows.len(), 6);
    for (row, expected) in expected.rows {
        let whole = ImageOptions {
            size: Some(Size { height: 32, width: 48 }),
            layout: Layout::Hwc,
            draft: false,
            ..ImageOptions::default()
        };
        let center =
            ImageOptions { size: Some(32.into()), crop: Crop::Center, resize_shorter: Some(40), ..whole.clone() };
        for (options, expected) in [(whole, expected.whole_32_48), (center, expected.center_40_32)] {
            let expected = base64(&expected);
            let (most, mean) = difference(&decode(&options, &photos[row], 0).unwrap(), &expected);
            let (high, average) = if TURBO { (1, 0.1) } else { (3, 0.3) };
            assert!(most <= high && mean < average, "photo {row}: {most} {mean} {:?}", options.crop);
            // Decoding at an eighth, a quarter or a half and resizing the rest is close, not equal.
            let (_, mean) =
                difference(&decode(&ImageOptions { draft: true, ..options }, &photos[row], 0).unwrap(), &expected);
            assert!(mean < 3.0, "photo {row}: draft {mean}");
        }
    }
}

/// The options of training: RandomResizedCrop(`side`) with flips.
fn training(side: u32) -> ImageOptions {
    ImageOptions {
        size: Some(side.into()),
        crop: Crop::RANDOM_RESIZED,
        flip: 0.5,
        layout: Layout::Hwc,
        draft: false,
        ..ImageOptions::default()
    }
}

#[test]
fn decoding_only_the_crop_changes_no_pixel() {
    // A PNG of the same pixels is always decoded whole; the box is the same, because it depends only on the size and the number.
    let mut random = Random(1);
    for (i, bytes) in photos().iter().enumerate() {
        let info = probe(bytes).unwrap();
        let size = Size { height: info.height, width: info.width };
        let whole = png(&decode(&stored(size), bytes, 0).unwrap(), info.width, info.height);
        for _ in 0..4 {
            let seed = random.next();
            let (crop, reference) =
                (decode(&training(64), bytes, seed).unwrap(), decode(&training(64), &whole, seed).unwrap());
            assert!(crop == reference, "photo {i}, random {seed}: {:?}", difference(&crop, &reference));
            let draft = ImageOptions { draft: true, ..training(64) };
            let (_, mean) = difference(&decode(&draft, bytes, seed).unwrap(), &reference);
            assert!(mean < 4.0, "photo {i}, random {seed}: draft differs by {mean} levels");
        }
        let center =
            ImageOptions { size: Some(40.into()), crop: Crop::Center, resize_shorter: Some(50), ..training(40) };
        let (crop, reference) = (decode(&center, bytes, 5).unwrap(), decode(&center, &whole, 5).unwrap());
        assert!(crop == reference, "photo {i}: centre {:?}", difference(&crop, &reference));
        let inner =
            ImageOptions { crop: Crop::Center, ..stored(Size { height: info.height / 3, width: info.width / 3 }) };
        assert!(decode(&inner, bytes, 0).unwrap() == decode(&inner, &whole, 0).unwrap(), "photo {i}");
    }
}

#[test]
fn every_orientation_is_cropped_where_it_is_seen() {
    let zoo = zoo();
    let expected: Zoo = json("images/expected.json");
    for value in 1..=8 {
        let name = format!("exif{value}.jpg");
        let animal = &expected.images[&name];
        let upright = png(&base64(&animal.rgb), animal.width, animal.height);
        for (crop, shorter) in
            [(Crop::None, None), (Crop::Center, None), (Crop::Center, Some(14)), (Crop::RANDOM_RESIZED, None)]
        {
            for random in 0..20 {
                let size = Size { height: 9, width: 11 };
                let options = ImageOptions { size: Some(size), crop, resize_shorter: shorter, ..training(1) };
                let (turned, reference) =
                    (decode(&options, &zoo[&name], random).unwrap(), decode(&options, &upright, random).unwrap());
                // Rows are resized before columns: after a turn of 90 degrees, rounding differs.
                let (most, _) = difference(&turned, &reference);
                let tolerance = if TURBO { 2 } else { 2 + animal.tolerance };
                assert!(most <= tolerance, "{name} {crop:?} random {random}: {most}");
                let planes = ImageOptions { layout: Layout::Chw, dtype: DType::Float32, ..options };
                let floats = decode(&planes, &zoo[&name], random).unwrap();
                let value = |i: usize| f32::from_le_bytes(floats[4 * i..4 * i + 4].try_into().unwrap());
                let same =
                    (0..99).all(|i| (0..3).all(|c| (value(c * 99 + i) * 255.0).round() as u8 == turned[3 * i + c]));
                assert!(same, "{name} {crop:?} random {random}");
            }
        }
        // As stored, if asked.
        let raw = ImageOptions { orient: false, ..stored(Size { height: 17, width: 24 }) };
        assert_eq!(decode(&raw, &zoo[&name], 0).unwrap(), decode(&raw, &zoo["exif1.jpg"], 0).unwrap(), "{name}");
    }
}

#[test]
fn one_number_decides_everything() {
    let bytes = &photos()[1];
    let options = training(32);
    let first: Vec<_> = (0..32).map(|random| decode(&options, bytes, random).unwrap()).collect();
    let again = std::thread::scope(|scope| {
        let run = || (0..32).rev().map(|random| decode(&options, bytes, random).unwrap()).collect::<Vec<_>>();
        let threads = [scope.spawn(run), scope.spawn(run)];
        threads.map(|thread| thread.join().unwrap())
    });
    for mut rows in again {
        rows.reverse();
        assert!(rows == first);
    }
    let different: std::collections::BTreeSet<_> = first.iter().collect();
    assert_eq!(different.len(), first.len());

    // A flip is a flip of the same box.
    let never = ImageOptions { flip: 0.0, ..options.clone() };
    let always = ImageOptions { flip: 1.0, ..options };
    let (mut plain, flipped) = (decode(&never, bytes, 3).unwrap(), decode(&always, bytes, 3).unwrap());
    plain.chunks_exact_mut(32 * 3).for_each(|line| {
        line.reverse();
        line.chunks_exact_mut(3).for_each(<[u8]>::reverse);
    });
    assert!(plain == flipped);
}

#[test]
fn training_rows_are_normalised_planes() {
    let bytes = &photos()[2];
    let pixels = decode(&training(48), bytes, 9).unwrap();
    let normalize = Normalize::imagenet();
    for (dtype, precision) in [(DType::Float32, 1e-6), (DType::Float16, 2e-3), (DType::Bfloat16, 2e-2)] {
        let options = ImageOptions { dtype, layout: Layout::Chw, normalize: Some(normalize.clone()), ..training(48) };
        let decoder = ImageDecoder::new(&options).unwrap();
        assert_eq!((decoder.shape(), decoder.dtype()), (vec![3, 48, 48], dtype));
        let row = decode(&options, bytes, 9).unwrap();
        for (i, value) in row.chunks_exact(dtype.size()).enumerate() {
            let value = match dtype {
                DType::Float32 => f32::from_le_bytes(value.try_into().unwrap()),
                DType::Float16 => half::f16::from_le_bytes(value.try_into().unwrap()).to_f32(),
                _ => half::bf16::from_le_bytes(value.try_into().unwrap()).to_f32(),
            };
            let (channel, at) = (i / (48 * 48), i % (48 * 48));
            let expected =
                (f32::from(pixels[at * 3 + channel]) / 255.0 - normalize.mean[channel]) / normalize.std[channel];
            assert!((value - expected).abs() < precision, "{dtype} {i}: {value} {expected}");
        }
    }
}

#[test]
fn images_of_one_size_need_no_size() {
    let zoo = zoo();
    let first = probe(&zoo["exif6.jpg"]).unwrap();
    let options = ImageOptions::default().sized_as(&first);
    assert_eq!(options.size, Some(Size { height: 24, width: 17 }));
    decode(&options, &zoo["exif8.jpg"], 0).unwrap();
    let error = decode(&options, &zoo["rgb.png"], 0).unwrap_err();
    assert!(
        matches!(&error, Error::Mismatch { expected, found, .. } if expected == "17 x 24 pixels" && found == "24 x 17"),
        "{error}"
    );
    let given = ImageOptions { size: Some(8.into()), ..ImageOptions::default() };
    assert_eq!(given.sized_as(&first), given);
    let mut short = [0; 5];
    let decoder = ImageDecoder::new(&given).unwrap();
    assert!(matches!(decoder.decode_into(&zoo["rgb.png"], 0, &mut short), Err(Error::Mismatch { .. })));
    assert!(backend().contains(if TURBO { "libjpeg-turbo" } else { "zune-jpeg" }));
}

// ---- damaged, hostile ----------------------------------------------------------------------------------------------

/// 32 x 32 pixels for every input.
fn small() -> ImageOptions {
    ImageOptions { size: Some(32.into()), layout: Layout::Hwc, ..ImageOptions::default() }
}

#[test]
fn damaged_images_are_typed_errors() {
    let directory = fixtures().join("corrupt/images");
    let of = |name: &str| decode(&small(), &fs::read(directory.join(name)).unwrap(), 0);
    of("ok.jpg").unwrap();
    of("png_named.jpg").unwrap();
    for (name, says) in [
        ("trunc.jpg", "truncated"),
        ("trunc_last2.jpg", "truncated"),
        ("header_only.jpg", "JPEG header"),
        ("empty.jpg", "0 bytes"),
        ("notimage.jpg", "not an image"),
        ("trunc.png", "PNG"),
        ("badcrc.png", "PNG"),
        ("huge_dims.png", ""),
        ("huge_dims.jpg", "65500 x 65500"),
    ] {
        let error = of(name).unwrap_err();
        assert_eq!(error.kind(), Kind::Data, "{name}: {error}");
        assert!(error.chain().contains(says), "{name}: {}", error.chain());
    }
    // A bit flipped in the entropy-coded data cannot always be detected; Pillow reads this file.
    if let Err(error) = of("flip.jpg") {
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    }
}

#[test]
fn a_truncated_image_is_never_filled_up() {
    for (name, bytes) in zoo() {
        // A GIF's first frame is whole before the file is, and so is an animation's.
        if name.starts_with("animated") {
            continue;
        }
        // Every decoder may ignore missing last bytes of PNG (checksum of the end chunk), BMP and WebP (padding).
        let needed = if name.ends_with(".jpg") { bytes.len() - 1 } else { bytes.len() - 16 };
        for len in 0..=needed {
            if let Ok(row) = decode(&small(), &bytes[..len], 0) {
                let whole = decode(&small(), &bytes, 0).unwrap();
                assert!(row == whole && !name.ends_with(".jpg"), "{name}: {len} of {} bytes are decoded", bytes.len());
            }
        }
    }
    for (i, bytes) in photos().iter().enumerate().take(8) {
        for part in 1..20 {
            let cut = &bytes[..bytes.len() * part / 20];
            // Also if the crop lies above the damage.
            let error = decode(&training(32), cut, part as u64).unwrap_err();
            assert!(matches!(error, Error::Corrupt { .. }), "photo {i}: {error}");
        }
    }
}

#[test]
fn only_stray_bytes_in_a_header_are_tolerated() {
    let zoo = zoo();
    let good = &zoo["rgb444.jpg"];
    let first = 2 + 2 + usize::from(u16::from_be_bytes([good[4], good[5]]));
    let with = |at: usize, extra: &[u8], cut: usize| [&good[..at], extra, &good[at..good.len() - cut]].concat();
    let expected = decode(&small(), good, 0).unwrap();
    assert!(decode(&small(), &with(first, &[1, 2, 3, 4, 5], 0), 0).unwrap() == expected);
    assert!(decode(&small(), &with(good.len(), b"and a trailer", 0), 0).unwrap() == expected);
    decode(&small(), &with(first, &[1, 2, 3, 4, 5], 2), 0).unwrap_err();
    decode(&small(), &with(first, &[1, 2, 3, 4, 5], 60), 0).unwrap_err();
}

#[test]
fn a_decoder_remembers_nothing_of_the_previous_image() {
    // libjpeg keeps tables for streams without their own: a file that lost its tables must not borrow those of the last one.
    let zoo = zoo();
    let good = &zoo["rgb444.jpg"];
    let mut bare = good[..2].to_vec();
    let mut at = 2;
    while at < good.len() {
        let len = if good[at + 1] == 0xda {
            good.len() - at
        } else {
            2 + usize::from(u16::from_be_bytes([good[at + 2], good[at + 3]]))
        };
        if good[at + 1] != 0xdb {
            bare.extend(&good[at..at + len]);
        }
        at += len;
    }
    assert!(bare.len() < good.len());
    let before = decode(&small(), &bare, 0).unwrap_err();
    decode(&small(), good, 0).unwrap();
    let after = decode(&small(), &bare, 0).unwrap_err();
    assert_eq!(before.to_string(), after.to_string());
}

#[test]
fn bombs_are_refused_from_their_header() {
    let side = 60_000_u32;
    let mut bombs: Vec<(&str, Vec<u8>)> = Vec::new();
    let zoo = zoo();
    let patched = |name: &str, at: usize, value: &[u8]| {
        let mut bytes = zoo[name].clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        bytes
    };
    let both = |side: [u8; 2]| [side, side].concat();
    let frame = zoo["rgb444.jpg"].windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    bombs.push(("jpeg", patched("rgb444.jpg", frame + 5, &both((side as u16).to_be_bytes()))));
    let frame = zoo["progressive.jpg"].windows(2).position(|pair| pair == [0xff, 0xc2]).unwrap();
    bombs.push(("progressive", patched("progressive.jpg", frame + 5, &both((side as u16).to_be_bytes()))));
    bombs.push(("gif", patched("animated.gif", 6, &both((side as u16).to_le_bytes()))));
    bombs.push(("bmp", patched("rgb.bmp", 18, &[side.to_le_bytes(), side.to_le_bytes()].concat())));
    bombs.push((
        "bmp, negative",
        patched("rgb.bmp", 18, &[side.to_le_bytes(), (side as i32).wrapping_neg().to_le_bytes()].concat()),
    ));
    bombs.push(("png", patched("rgb.png", 16, &[side.to_be_bytes(), side.to_be_bytes()].concat())));
    bombs.push(("webp", {
        let mut bytes = b"RIFF\x40\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0".to_vec();
        bytes.extend([side.to_le_bytes(), side.to_le_bytes()].iter().flat_map(|side| &side[..3]));
        bytes
    }));
    for (name, bytes) in &bombs {
        let start = Instant::now();
        let error = decode(&small(), bytes, 0).unwrap_err();
        assert!(matches!(error, Error::Limit { option: "limits.max_pixels", .. }), "{name}: {error}");
        assert!(start.elapsed() < HANG, "{name}");
    }
    // Each limit has its own option.
    let limited = |limits: Limits, name: &str| {
        decode(&ImageOptions { limits, size: Some(4.into()), ..small() }, &zoo[name], 0).unwrap_err()
    };
    let limits = Limits::default();
    let error = limited(Limits { max_side: 20, ..limits }, "rgb.png");
    assert!(matches!(error, Error::Limit { option: "limits.max_side", asked: 24, limit: 20, .. }), "{error}");
    let error = limited(Limits { max_pixels: 400, ..limits }, "rgb444.jpg");
    assert!(matches!(error, Error::Limit { option: "limits.max_pixels", asked: 408, .. }), "{error}");
    let error = limited(Limits { max_bytes: 408 * 8, ..limits }, "progressive.jpg");
    assert!(matches!(error, Error::Limit { option: "limits.max_bytes", .. }), "{error}");
}

#[test]
fn scans_without_end_are_refused() {
    let bytes = &zoo()["progressive.jpg"];
    let last = bytes.windows(2).rposition(|pair| pair == [0xff, 0xda]).unwrap();
    let end = bytes.len() - 2;
    let mut bomb = bytes[..end].to_vec();
    for _ in 0..2_000 {
        bomb.extend(&bytes[last..end]);
    }
    bomb.extend(&bytes[end..]);
    let start = Instant::now();
    let error = decode(&small(), &bomb, 0).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    assert!(start.elapsed() < HANG);
}

#[test]
fn mutations_never_panic() {
    let rounds = if std::env::var_os("BOWSTRING_SOAK").is_some() { 1_000 } else { 100 };
    let seed = std::env::var("BOWSTRING_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_121);
    eprintln!("repeat with BOWSTRING_SEED={seed} cargo test --test it images::mutations");
    let mut random = Random(seed);
    let mut originals = zoo();
    originals.insert("photo".to_owned(), photos().swap_remove(3));
    let several = [
        small(),
        training(24),
        ImageOptions { channels: 1, dtype: DType::Float16, layout: Layout::Chw, ..training(17) },
    ];
    let (mut fine, mut errors) = (0, 0);
    for (name, original) in &originals {
        for round in 0..rounds {
            let mut bytes = original.clone();
            for _ in 0..=random.index(4) {
                let at = random.index(bytes.len());
                match random.index(6) {
                    0 => bytes[at] ^= 1 << random.index(8),
                    1 => bytes[at] = random.next() as u8,
                    2 => bytes.truncate(at.max(1)),
                    3 => bytes[at..].iter_mut().take(4).for_each(|byte| *byte = 0xff),
                    4 => {
                        let from = random.index(bytes.len());
                        let piece = bytes[from..].iter().take(random.index(40)).copied().collect::<Vec<_>>();
                        bytes.splice(at..at, piece);
                    }
                    // Headers contain the interesting numbers.
                    _ => {
                        let near = at % 64.min(bytes.len());
                        bytes[near] = random.next() as u8;
                    }
                }
            }
            match decode(&several[round % several.len()], &bytes, random.next()) {
                Ok(_) => fine += 1,
                Err(error) => {
                    assert_eq!(error.kind(), Kind::Data, "{name}, round {round}: {error}");
                    assert!(!error.to_string().contains("panicked"), "{name}, round {round}: {error}");
                    errors += 1;
                }
            }
        }
    }
    eprintln!("{fine} decoded, {errors} refused");
    assert!(fine > 0 && errors > fine / 10);
}

#[test]
fn missing_parts_of_a_jpeg_are_filled_on_request() {
    let photos = photos();
    let bytes = &photos[0];
    let info = bowstring::codec::image::probe(bytes).unwrap();
    let options = stored(Size { height: info.height, width: info.width });
    let filled = ImageOptions { truncated: Truncated::Fill, orient: false, ..options.clone() };
    let options = ImageOptions { orient: false, ..options };
    if !TURBO {
        let error = ImageDecoder::new(&filled).unwrap_err();
        assert!(matches!(&error, Error::Config { option: "truncated", .. }), "{error}");
        return;
    }
    let whole = decode(&options, bytes, 0).unwrap();
    assert!(decode(&filled, bytes, 0).unwrap() == whole, "a whole photo is what it is");
    let row = info.width as usize * 3;
    for part in [30, 50, 80, 99] {
        let cut = &bytes[..bytes.len() * part / 100];
        assert!(matches!(decode(&options, cut, 0), Err(Error::Corrupt { .. })), "{part} %");
        let picture = decode(&filled, cut, 0).unwrap();
        // The same picture down to some row, and below it one filled by libjpeg, regardless of the buffer's previous content.
        let same = picture.chunks(row).zip(whole.chunks(row)).take_while(|(one, other)| one == other).count();
        assert!(
            same * 100 + 3000 > info.height as usize * part && same < info.height as usize,
            "{part} %: {same} rows"
        );
        assert!(decode(&filled, cut, 0).unwrap() == picture);
        let crop = ImageOptions { size: Some(32.into()), crop: Crop::Center, resize: true, ..filled.clone() };
        decode(&crop, cut, 0).unwrap();
    }
    // Damage inside the file, with the end in its place.
    let mut damaged = bytes.clone();
    let middle = bytes.len() / 2;
    damaged[middle..middle + 64].fill(0x55);
    damaged[middle + 10..middle + 12].copy_from_slice(&[0xff, 0xd4]);
    assert!(decode(&options, &damaged, 0).is_err());
    decode(&filled, &damaged, 0).unwrap();
    // A file without any picture, or in another format, stays an error.
    assert!(decode(&filled, &bytes[..100], 0).is_err());
    let png = &zoo()["rgb.png"];
    assert!(decode(&filled, &png[..png.len() / 2], 0).is_err());
    // A device does not fill missing parts.
    let device = ImageOptions { decoder: Decoder::Deferred, ..filled };
    assert!(matches!(ImageDecoder::new(&device), Err(Error::Config { option: "truncated", .. })));
}
