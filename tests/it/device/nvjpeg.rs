//! Photos decoded by nvJPEG, over a fake of it on the streams of the fake driver: the real calls, with a decoder of its
//! own that is close to the CPU's. And without the library.
//!
//! Not covered: the pixels of the real library, engines, and speed.

#![expect(unsafe_code, reason = "the device's own contract: photos by address")]

use std::path::PathBuf;
use std::sync::Arc;

use bowstring::codec::image::{Crop, ImageOptions, Layout, Normalize, Size};
use bowstring::device::cuda::{Cuda, nvjpeg};
use bowstring::device::{Decoding, Device, Photo, Photos, View};
use bowstring::pipeline::LoaderOptions;
use bowstring::plan::Tail;
use bowstring::schema::DType;
use bowstring::{AnyBatch, Error, Loader, Result};

use super::deferred::{by_device, damaged, dataset, real_photos, zoo};
use super::fake::{Fake, build, build_nvjpeg, build_old_nvjpeg, child};
use super::held::{Dice, Held, fresh_seed, seed_of_parent, settled, upload};
use super::loader::{cpu, epoch, next};
use crate::support::soak;

/// Tolerance of a photo against the CPU's: the mean difference of its bytes, when the CPU also decodes at full size.
const TOLERANCE: f64 = 1.5;
/// The same when the CPU decodes at an eighth to a half, which is a difference of its own.
const TOLERANCE_OF_DRAFTS: f64 = 4.0;

/// Runs a child with a GPU and nvJPEG.
fn with_nvjpeg(name: &str, variables: &[(&str, &str)]) -> String {
    let library = build_nvjpeg();
    let given = [&[("BOWSTRING_NVJPEG", library.to_str().unwrap())], variables].concat();
    child(name, Some(&build(13_000)), &given)
}

fn on_gpu(options: &LoaderOptions) -> LoaderOptions {
    LoaderOptions { device: "cuda".to_owned(), ..by_device(options) }
}

/// Greatest of the mean differences between the photos of two batches.
fn difference(found: &[u8], expected: &[u8], photos: usize) -> f64 {
    assert_eq!(found.len(), expected.len());
    let size = found.len() / photos;
    let means = found.chunks(size).zip(expected.chunks(size)).map(|(found, expected)| {
        let sum: u64 = found.iter().zip(expected).map(|(a, b)| u64::from(a.abs_diff(*b))).sum();
        sum as f64 / size as f64
    });
    means.fold(0.0, f64::max)
}

// ---- the kernel -----------------------------------------------------------------------------------------------------------

/// Rows of `[number of a view, length, JPEG]`.
#[derive(Debug)]
struct PhotoList(Vec<View>);

impl Photos for PhotoList {
    fn read<'a>(&self, row: &'a [u8]) -> Result<Photo<'a>> {
        let number = |at: usize| u32::from_le_bytes(row[at..at + 4].try_into().unwrap()) as usize;
        Ok(Photo::Jpeg(&row[8..8 + number(4)], self.0[number(0)]))
    }

    fn pixels(&self, _: &[u8], _: &mut [u8]) -> Result<()> {
        panic!("nvJPEG takes all of these")
    }
}

#[test]
fn boxes_of_photos_equal_the_host_reference() {
    let seed = fresh_seed();
    with_nvjpeg("device::nvjpeg::boxes", &[("BOWSTRING_TEST_SEED", &seed)]);
}

pub(crate) fn boxes() {
    let mut dice = Dice(seed_of_parent());
    let fake = Fake::consumer();
    fake.reset(1, 0);
    let cuda = Cuda::new(0).unwrap();
    cuda.open_decoder().unwrap();
    let photos = real_photos();
    for round in 0..if soak() { 200 } else { 25 } {
        let photo = &photos[dice.below(40) as usize];
        let info = bowstring::codec::image::probe(photo).unwrap();
        let channels = [1, 3][dice.below(2) as usize];
        let turned = |dice: &mut Dice| dice.below(2) == 1;
        let as_it_is = View {
            width: info.width,
            height: info.height,
            rect: [0.0, 0.0, info.width.into(), info.height.into()],
            sealed: false,
            transpose: false,
            flip_x: false,
            flip_y: false,
        };
        let part = |dice: &mut Dice, of: u32| {
            let (start, length) = (dice.below(of.into()) as f64, 1.0 + dice.below(u64::from(of)) as f64);
            // Between pixels as well.
            let start = start + dice.below(4) as f64 / 4.0;
            (start.min(f64::from(of) - 1.0), length.min(f64::from(of) - start.min(f64::from(of) - 1.0)))
        };
        let views: Vec<View> = (0..3)
            .map(|_| {
                let ((x, width), (y, height)) = (part(&mut dice, info.width), part(&mut dice, info.height));
                let [sealed, transpose, flip_x, flip_y] = std::array::from_fn(|_| turned(&mut dice));
                View { rect: [x, y, width, height], sealed, transpose, flip_x, flip_y, ..as_it_is }
            })
            .collect();
        let whole = decode(&cuda, photo, &[as_it_is], channels, (info.height, info.width));
        let size = (1 + dice.below(60) as u32, 1 + dice.below(60) as u32);
        let found = decode(&cuda, photo, &views, channels, size);
        for (view, found) in views.iter().zip(found.chunks_exact(found.len() / 3)) {
            let mut expected = vec![0; found.len()];
            view.resample(&whole, channels.into(), size, &mut expected);
            assert!(found == expected, "round {round}: {view:?} to {size:?}, {channels} channels");
        }
    }
    drop(cuda);
    settled(&fake);
    fake.finish();
}

/// `photo` through the device, once for each view, as bytes `[view, height, width, channels]`.
fn decode(cuda: &Cuda, photo: &[u8], views: &[View], channels: u8, (height, width): (u32, u32)) -> Vec<u8> {
    let row_bytes = (photo.len() + 8).next_multiple_of(64);
    let mut rows = vec![0; views.len() * row_bytes];
    for (number, row) in (0_u32..).zip(rows.chunks_exact_mut(row_bytes)) {
        row[..4].copy_from_slice(&number.to_le_bytes());
        row[4..8].copy_from_slice(&(photo.len() as u32).to_le_bytes());
        row[8..8 + photo.len()].copy_from_slice(photo);
    }
    let what = Decoding {
        photos: Arc::new(PhotoList(views.to_vec())),
        rows: views.len(),
        row_bytes,
        height,
        width,
        channels,
        planes: false,
        to: DType::Uint8,
        scale: [0.0; 4],
        bias: [0.0; 4],
    };
    let mut held = Held::new(cuda);
    let from = upload(&mut held, &rows).unwrap();
    let len = what.to_bytes().unwrap();
    let to = held.memory(len + 4).unwrap();
    // SAFETY: all three sides have the required sizes, and live until the copies are drained.
    assert_eq!(unsafe { cuda.decode(&what, rows.as_ptr(), from, to).unwrap() }, 0);
    cuda.drain().unwrap();
    let mut found = vec![0; len + 4];
    // SAFETY: `to` has as many bytes.
    unsafe { cuda.read(to, &mut found).unwrap() }
    assert_eq!(found.split_off(len), [0xDD; 4], "nothing is written behind the end");
    found
}

// ---- the loader -----------------------------------------------------------------------------------------------------------

#[test]
fn the_loader_delivers_what_nvjpeg_decodes() {
    // Without engines everything takes another path through the library.
    for engines in ["7", "0"] {
        let said = with_nvjpeg("device::nvjpeg::loader", &[("FAKE_NVJPEG_ENGINES", engines)]);
        said.lines().filter(|line| line.contains("differ")).for_each(|line| println!("{engines} engines: {line}"));
    }
}

pub(crate) fn loader() {
    let fake = Fake::consumer();
    fake.reset(5, 20);
    let folder = tempfile::tempdir().unwrap();
    let photos = real_photos();
    let training = ImageOptions {
        size: Some(64.into()),
        crop: Crop::RANDOM_RESIZED,
        flip: 0.5,
        draft: false,
        ..ImageOptions::default()
    };
    let middle = ImageOptions {
        size: Some(Size { height: 40, width: 56 }),
        crop: Crop::Center,
        resize_shorter: Some(72),
        layout: Layout::Hwc,
        ..training.clone()
    };
    let whole = ImageOptions { crop: Crop::None, channels: 1, ..training.clone() };
    let draft = ImageOptions { draft: true, ..training.clone() };
    let cases = [("training", training.clone()), ("middle", middle), ("grey", whole), ("draft", draft)];
    for (name, image) in cases {
        let most = if image.draft { TOLERANCE_OF_DRAFTS } else { TOLERANCE };
        let options = LoaderOptions { global_batch_size: Some(40), ..dataset(folder.path(), &photos, image) };
        let mut loader = Loader::open(on_gpu(&options)).unwrap();
        let (found, expected) = (epoch(&mut loader), epoch(&mut cpu(&options)));
        assert_eq!(found.len(), expected.len());
        let mut worst: f64 = 0.0;
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found.2[1], expected.2[1], "ids");
            assert_eq!((&found.2[0].1, &found.2[0].2), (&expected.2[0].1, &expected.2[0].2));
            worst = worst.max(difference(&found.2[0].3, &expected.2[0].3, 40));
        }
        println!("{name}: photos differ by {worst:.3} of 255 on average at most");
        assert!(worst <= most && worst > 0.01, "{name}: {worst}");
        assert_eq!(loader.device_stats().unwrap().refused, 0);
        drop(loader);
        settled(&fake);
    }
    // Everything is allocated once: by the slots, and by both lanes.
    let options = LoaderOptions { device_slots: 2, ..dataset(folder.path(), &photos[..20], training.clone()) };
    let mut loader = Loader::open(on_gpu(&options)).unwrap();
    (0..3).for_each(|_| assert_eq!(epoch(&mut loader).len(), 4));
    let before = fake.allocations();
    (0..2).for_each(|_| assert_eq!(epoch(&mut loader).len(), 4));
    assert_eq!(fake.allocations(), before);
    drop(loader);
    settled(&fake);
    // Floats are the normalised bytes, and padding rows zeros; every layout.
    for (dtype, layout) in [
        (DType::Bfloat16, Layout::Chw),
        (DType::Float32, Layout::Hwc),
        (DType::Float16, Layout::Chw),
        (DType::Uint8, Layout::Chw),
    ] {
        let bytes = ImageOptions { layout: Layout::Hwc, ..training.clone() };
        let normalize = (dtype != DType::Uint8).then(Normalize::imagenet);
        let floats = ImageOptions { dtype, layout, normalize, ..training.clone() };
        let options = |image: &ImageOptions| LoaderOptions {
            global_batch_size: Some(9),
            tail: Some(Tail::Pad),
            ..dataset(folder.path(), &photos[..13], image.clone())
        };
        let found = epoch(&mut Loader::open(on_gpu(&options(&floats))).unwrap());
        let pixels = epoch(&mut Loader::open(on_gpu(&options(&bytes))).unwrap());
        let reference = cpu_values(&pixels[1].2[0].3, dtype, layout);
        assert!(found[1].2[0].3 == reference, "{dtype} {layout:?}");
        assert!(found[1].2[0].3[4 * reference.len() / 9..].iter().all(|byte| *byte == 0), "padding");
    }
    settled(&fake);
    fake.finish();
}

/// The device's expected result for bytes `[9, 64, 64, 3]`, the last five of which are padding, by the CPU's own
/// normalisation of an image of these bytes.
fn cpu_values(pixels: &[u8], dtype: DType, layout: Layout) -> Vec<u8> {
    use bowstring::codec::{Decode, ImageDecoder};
    let image = ImageOptions {
        size: Some(64.into()),
        dtype,
        layout,
        normalize: (dtype != DType::Uint8).then(Normalize::imagenet),
        ..ImageOptions::default()
    };
    let decoder = ImageDecoder::new(&image).unwrap();
    let (size, mut out) = (64 * 64 * 3, Vec::new());
    for (number, pixels) in pixels.chunks_exact(size).enumerate() {
        let mut row = vec![0; size * dtype.size()];
        if number < 4 {
            let mut png = std::io::Cursor::new(Vec::new());
            let buffer = image::RgbImage::from_raw(64, 64, pixels.to_vec()).unwrap();
            buffer.write_to(&mut png, image::ImageFormat::Png).unwrap();
            decoder.decode_into(png.get_ref(), 0, &mut row).unwrap();
        }
        out.extend(row);
    }
    out
}

#[test]
fn lanes_are_used_again_only_when_they_are_done() {
    with_nvjpeg("device::nvjpeg::lanes", &[("BOWSTRING_TEST_SEED", &fresh_seed())]);
}

pub(crate) fn lanes() {
    let fake = Fake::consumer();
    let folder = tempfile::tempdir().unwrap();
    // Small, so that the host is far ahead of a slow stream; several groups per batch.
    let small: Vec<_> =
        zoo().into_iter().filter(|(name, _)| name.starts_with("exif") && name.ends_with("jpg")).collect();
    let cells: Vec<_> = small.iter().map(|(_, cell)| cell.clone()).cycle().take(8 * 35).collect();
    let image =
        ImageOptions { size: Some(16.into()), flip: 0.5, crop: Crop::RANDOM_RESIZED, ..ImageOptions::default() };
    let options = LoaderOptions { global_batch_size: Some(140), ..dataset(folder.path(), &cells, image) };
    fake.reset(0, 0);
    let expected = epoch(&mut Loader::open(on_gpu(&options)).unwrap());
    assert_eq!(expected.len(), 2);
    for round in 0..if soak() { 20 } else { 3 } {
        settled(&fake);
        fake.reset(seed_of_parent() + round, 4000);
        let mut loader = Loader::open(on_gpu(&options)).unwrap();
        assert!(epoch(&mut loader) == expected, "round {round}");
        drop(loader);
    }
    settled(&fake);
    fake.finish();
}

// ---- what nvJPEG does not do ----------------------------------------------------------------------------------------------

#[test]
fn other_images_and_refused_photos_come_from_the_cpu() {
    let said = with_nvjpeg("device::nvjpeg::mixed", &[]);
    said.lines().filter(|line| line.contains("differ")).for_each(|line| println!("{line}"));
}

pub(crate) fn mixed() {
    let fake = Fake::consumer();
    fake.reset(9, 20);
    let folder = tempfile::tempdir().unwrap();
    let zoo = zoo();
    let cells: Vec<_> = zoo.iter().map(|(_, cell)| cell.clone()).collect();
    // All of these are displayed at 24 x 17, in full: nothing is resized.
    let image = ImageOptions { size: Some(Size { height: 17, width: 24 }), draft: false, ..ImageOptions::default() };
    let options = dataset(folder.path(), &cells, image);
    let (found, expected) = (epoch(&mut Loader::open(on_gpu(&options)).unwrap()), epoch(&mut cpu(&options)));
    let all = |batches: &[super::loader::Held]| -> Vec<u8> {
        batches.iter().flat_map(|batch| batch.2[0].3.clone()).collect()
    };
    let (found, expected) = (all(&found), all(&expected));
    let by_nvjpeg = ["exif", "grey.jpg", "restart", "rgb420", "rgb422", "rgb444"];
    let size = 17 * 24 * 3;
    let photos = zoo.iter().zip(found.chunks(size).zip(expected.chunks(size)));
    for ((name, _), (found, expected)) in photos {
        if name.ends_with(".jpg") && by_nvjpeg.iter().any(|start| name.starts_with(start)) {
            let differs = difference(found, expected, 1);
            println!("{name} differs by {differs:.3}");
            // At full size, colours that are repeated instead of interpolated differ more.
            assert!(differs <= 8.0 && (differs > 0.0 || name == "grey.jpg"), "{name}: {differs}");
        } else {
            assert!(found == expected, "{name}");
        }
    }
    settled(&fake);

    // Photos that nvJPEG refuses and the CPU decodes: counted, with the CPU's bits.
    let photos = real_photos();
    let image = ImageOptions { size: Some(24.into()), crop: Crop::RANDOM_RESIZED, ..ImageOptions::default() };
    let options = dataset(folder.path(), &photos[..10], image);
    let expected = epoch(&mut cpu(&options));
    let mut loader = Loader::open(on_gpu(&options)).unwrap();
    fake.fail("nvjpegDecodeBatched", 1, 4);
    assert!(next(&mut loader).as_ref() == Some(&expected[0]), "all five by the CPU");
    assert!(next(&mut loader).as_ref() != Some(&expected[1]), "by nvJPEG again");
    assert_eq!(loader.device_stats().unwrap().refused, 5);
    drop(loader);
    settled(&fake);

    // Damage that both detect.
    let mut cells = photos[..10].to_vec();
    cells[7] = damaged(&cells[7]);
    let mut loader =
        Loader::open(on_gpu(&dataset(folder.path(), &cells, options.columns.images["image"].clone()))).unwrap();
    assert!(next(&mut loader).is_some());
    let error = loader.next_any().unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Corrupt { .. }), "{text}");
    assert!(text.starts_with("column image: JPEG: ") && text.ends_with("in row 2 of the batch"), "{text}");
    assert_eq!(loader.next_any().unwrap_err().to_string(), text);
    drop(loader);
    settled(&fake);
    fake.finish();
}

// ---- calls that fail ------------------------------------------------------------------------------------------------------

const CALLS: [&str; 11] = [
    "nvjpegCreateEx",
    "nvjpegDestroy",
    "nvjpegGetHardwareDecoderInfo",
    "nvjpegJpegStateCreate",
    "nvjpegJpegStateDestroy",
    "nvjpegJpegStreamCreate",
    "nvjpegJpegStreamDestroy",
    "nvjpegJpegStreamParseHeader",
    "nvjpegJpegStreamGetFrameDimensions",
    "nvjpegDecodeBatchedInitialize",
    "nvjpegDecodeBatched",
];

#[test]
fn a_call_that_fails_is_an_error_or_left_to_the_cpu_and_nothing_is_lost() {
    for engines in ["7", "0"] {
        with_nvjpeg("device::nvjpeg::failing", &[("FAKE_NVJPEG_ENGINES", engines)]);
    }
}

pub(crate) fn failing() {
    let fake = Fake::consumer();
    fake.reset(2, 0);
    let folder = tempfile::tempdir().unwrap();
    let photos = real_photos();
    let image = ImageOptions { size: Some(12.into()), draft: false, ..ImageOptions::default() };
    let options = LoaderOptions { threads: Some(1), ..dataset(folder.path(), &photos[..13], image) };
    let expected = epoch(&mut cpu(&options));
    // The whole path: opening, three batches, closing. Errors are of the device, and the same batch comes next again.
    let run = |what: &str, nth: i64| {
        fake.fail(what, nth, 2);
        let opened = Loader::open(on_gpu(&options));
        let mut errors = 0;
        let refused = match opened {
            Err(error) => {
                assert!(matches!(error, Error::Device { .. }), "{what} {nth}: {error}");
                None
            }
            Ok(mut loader) => {
                let mut found = Vec::new();
                let whole = loop {
                    match loader.next_any() {
                        Ok(Some(AnyBatch::Device(batch))) => {
                            let tensor = batch.tensor("image").unwrap();
                            // Reading it may be the call that fails.
                            let again = |_| {
                                errors += 1;
                                tensor.to_host()
                            };
                            found.push(tensor.to_host().or_else(again).unwrap());
                        }
                        Ok(Some(AnyBatch::Host(_))) => panic!("on the host"),
                        Ok(None) => break true,
                        Err(Error::Device { .. }) if errors < 3 => errors += 1,
                        // The host had no memory for a batch, which ends a loader.
                        Err(Error::Closed { .. }) if errors > 0 && what == "cuMemHostAlloc" => break false,
                        Err(error) => panic!("{what} {nth}: {error}"),
                    }
                };
                assert!(!whole || found.len() == expected.len(), "{what} {nth}");
                for (found, expected) in found.iter().zip(&expected) {
                    let differs = difference(found, &expected.2[0].3, 5);
                    assert!(differs <= TOLERANCE, "{what} {nth}: {differs}");
                }
                Some(loader.device_stats().unwrap().refused)
            }
        };
        fake.fail("", 1, 0);
        settled(&fake);
        (errors, refused)
    };
    // Outside the soak each call fails at one or some of these places, another one for the next call.
    for (place, what) in CALLS.into_iter().enumerate() {
        for nth in (1..4).filter(|nth| soak() || *nth == 1 + place as i64 % 3) {
            let (errors, refused) = run(what, nth);
            assert_eq!(errors, 0, "{what} {nth}: nvJPEG is not needed");
            let matters = matches!(
                what,
                "nvjpegJpegStreamParseHeader" | "nvjpegJpegStreamGetFrameDimensions" | "nvjpegDecodeBatched"
            );
            assert!(!matters || refused > Some(0), "{what} {nth}: {refused:?}");
        }
    }
    // Calls of the driver fail as well.
    for (place, what) in [
        "cuMemAlloc_v2",
        "cuMemHostAlloc",
        "cuLaunchKernel",
        "cuMemcpyHtoDAsync_v2",
        "cuEventRecord",
        "cuEventSynchronize",
        "cuModuleLoadData",
        "cuEventCreate",
        "cuStreamSynchronize",
    ]
    .into_iter()
    .enumerate()
    {
        for nth in (1..if soak() { 12 } else { 6 }).filter(|nth| soak() || (nth + place as i64) % 2 == 0) {
            run(what, nth);
        }
    }
    fake.finish();
}

// ---- without the library --------------------------------------------------------------------------------------------------

#[test]
fn without_nvjpeg_it_is_said_where_it_was_looked_for() {
    let driver = build(13_000);
    let said = child("device::nvjpeg::missing", Some(&driver), &[("BOWSTRING_NVJPEG", "/nowhere/libnvjpeg.so")]);
    for text in [
        "cuda:0: decoding photos with nvJPEG",
        "tried /nowhere/libnvjpeg.so (not found)",
        "pip install nvidia-nvjpeg-cu12",
    ] {
        assert!(said.contains(text), "{text}\n{said}");
    }
    let wrong = driver.join("libcuda.so.1");
    let said = child("device::nvjpeg::missing", Some(&driver), &[("BOWSTRING_NVJPEG", wrong.to_str().unwrap())]);
    assert!(said.contains("lacks nvjpegGetProperty"), "{said}");
    // An older release, on a GPU with engines and on one without.
    let old = build_old_nvjpeg();
    for (engines, expected) in [("7", "1 engines"), ("0", "without engines")] {
        let variables = [("BOWSTRING_NVJPEG", old.to_str().unwrap()), ("FAKE_NVJPEG_ENGINES", engines)];
        let said = child("device::nvjpeg::described", Some(&driver), &variables);
        assert!(said.contains(&format!("nvJPEG 12.3.1 ({}), {expected}", old.display())), "{said}");
    }
    // On the CPU for lack of a GPU, and so decoded there.
    child("device::nvjpeg::no_gpu", None, &[]);
    // In an explicitly named folder, as for Python's wheels.
    let library = build_nvjpeg();
    child(
        "device::nvjpeg::in_a_folder",
        Some(&driver),
        &[("FAKE_FOLDER", library.parent().unwrap().to_str().unwrap())],
    );
}

fn small(folder: &std::path::Path) -> LoaderOptions {
    let image = ImageOptions { size: Some(12.into()), ..ImageOptions::default() };
    dataset(folder, &real_photos()[..6], image)
}

pub(crate) fn missing() {
    let fake = Fake::consumer();
    let folder = tempfile::tempdir().unwrap();
    for device in ["cuda", "auto"] {
        let options = LoaderOptions { device: device.to_owned(), ..by_device(&small(folder.path())) };
        let error = Loader::open(options).unwrap_err();
        assert!(matches!(error, Error::Device { .. }), "{error}");
        println!("{error}");
    }
    assert!(nvjpeg::inventory().is_err());
    settled(&fake);
    fake.finish();
}

pub(crate) fn described() {
    let fake = Fake::consumer();
    let folder = tempfile::tempdir().unwrap();
    let mut loader = Loader::open(on_gpu(&small(folder.path()))).unwrap();
    assert_eq!(epoch(&mut loader).len(), 2);
    println!("{}", loader.device().unwrap().decoder().unwrap());
    drop(loader);
    settled(&fake);
    fake.finish();
}

pub(crate) fn no_gpu() {
    if bowstring::device::cuda::visible::inventory().problem.is_none() {
        println!("this machine has a GPU: not tried");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = small(folder.path());
    let auto = LoaderOptions { device: "auto".to_owned(), ..by_device(&options) };
    assert!(epoch(&mut Loader::open(auto).unwrap()) == epoch(&mut cpu(&options)));
}

pub(crate) fn in_a_folder() {
    let fake = Fake::consumer();
    let folder = PathBuf::from(std::env::var_os("FAKE_FOLDER").unwrap());
    // A system may have the real library, which is then found by name.
    if nvjpeg::inventory().is_err() {
        nvjpeg::look_in([folder.clone()]);
        let found = nvjpeg::inventory().unwrap();
        assert_eq!(
            (found.path, found.version.as_str()),
            (folder.join("libnvjpeg.so.12").display().to_string(), "12.3.1")
        );
        let data = tempfile::tempdir().unwrap();
        let mut loader = Loader::open(on_gpu(&small(data.path()))).unwrap();
        assert_eq!(epoch(&mut loader).len(), 2);
        drop(loader);
    }
    settled(&fake);
    fake.finish();
}
