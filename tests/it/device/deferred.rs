//! Photos whose decoding is left to a device: the content of rows, and a loader whose device decodes with the bits of
//! the CPU.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BinaryArray, Int64Array, RecordBatch, StructArray};
use bowstring::codec::image::{Crop, Decoder, Deferred, Held, ImageDecoder, ImageOptions, Layout, Normalize, Size};
use bowstring::codec::{BadRows, Decode, Nulls};
use bowstring::device::{Device, Host, Sim};
use bowstring::pipeline::LoaderOptions;
use bowstring::plan::Tail;
use bowstring::schema::DType;
use bowstring::{AnyBatch, Error, Loader};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

use super::loader::{all_given_back, cpu, epoch, photos};
use crate::support::{Random, fixture, options, soak};

/// The photos of `imagenet40.parquet`.
pub(super) fn real_photos() -> Vec<Vec<u8>> {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;
    let reader = SerializedFileReader::new(File::open(fixture("imagenet40.parquet")).unwrap()).unwrap();
    reader.get_row_iter(None).unwrap().map(|row| row.unwrap().get_bytes(0).unwrap().data().to_vec()).collect()
}

/// The small images of every kind, by name.
pub(super) fn zoo() -> Vec<(String, Vec<u8>)> {
    let paths = fs::read_dir(fixture("images")).unwrap().map(|entry| entry.unwrap().path());
    let image = |path: &Path| !matches!(path.extension().and_then(|e| e.to_str()), Some("json" | "py") | None);
    let named = paths
        .filter(|path| image(path))
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap()));
    let mut zoo: Vec<_> = named.collect();
    zoo.sort();
    zoo
}

/// A dataset with `cells` in its column `image`, and options for its batches of 5.
pub(super) fn dataset(folder: &Path, cells: &[Vec<u8>], image: ImageOptions) -> LoaderOptions {
    let images: ArrayRef = Arc::new(BinaryArray::from_iter_values(cells));
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..cells.len() as i64));
    let batch = RecordBatch::try_from_iter([("image", images), ("id", ids)]).unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(17)).build();
    let file = File::create(folder.join("images.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let mut options = options(folder, 5, 0, 1);
    options.columns.images = [("image".to_owned(), image)].into();
    (options.tail, options.shuffle) = (Some(Tail::Pad), false);
    options
}

/// The same, decoded by a device.
pub(super) fn by_device(options: &LoaderOptions) -> LoaderOptions {
    let mut options = options.clone();
    options.columns.images.values_mut().for_each(|image| image.decoder = Decoder::Nvjpeg);
    options
}

/// A photo with its middle corrupted: headers, size and end are unchanged.
pub(super) fn damaged(photo: &[u8]) -> Vec<u8> {
    let mut damaged = photo.to_vec();
    let middle = damaged.len() / 2;
    // A marker that is not allowed there.
    damaged[middle..middle + 4].copy_from_slice(&[0xff, 0xc5, 0xff, 0xc5]);
    damaged
}

#[test]
fn rows_hold_what_gives_the_pixels_of_the_cpu() {
    let mut random = Random(7);
    let photos = real_photos();
    let zoo = zoo();
    let (mut held, mut names) = ([0, 0], Vec::new());
    let rounds = if soak() { 20 } else { 2 };
    for (name, cell) in photos.iter().map(|photo| ("photo", photo)).chain(zoo.iter().map(|(n, c)| (n.as_str(), c))) {
        for _ in 0..rounds {
            let crop = random.pick(&[Crop::None, Crop::Center, Crop::RANDOM_RESIZED]);
            let image = ImageOptions {
                size: Some(Size { height: 20 + random.below(30) as u32, width: 20 + random.below(30) as u32 }),
                crop,
                resize_shorter: (crop == Crop::Center && random.chance(50)).then_some(60),
                flip: 0.5,
                channels: random.pick(&[1, 3]),
                draft: random.chance(50),
                decoder: Decoder::Deferred,
                ..ImageOptions::default()
            };
            let deferred = Deferred::new(&image).unwrap();
            let number = random.next();
            let mut row = vec![0xA5; deferred.row_bytes()];
            deferred.decode_into(cell, number, &mut row).unwrap();
            let mut found = vec![0; deferred.shape().iter().product()];
            deferred.pixels(&row, &mut found).unwrap();
            let reference = ImageDecoder::new(&ImageOptions { layout: Layout::Hwc, ..image.clone() }).unwrap();
            let mut expected = vec![0; found.len()];
            reference.decode_into(cell, number, &mut expected).unwrap();
            assert!(found == expected, "{name}, {image:?}, random {number}");
            match deferred.held(&row).unwrap() {
                Held::Jpeg(stored) => {
                    assert_eq!(stored.bytes, cell);
                    held[0] += 1;
                    names.push(name);
                }
                Held::Pixels(pixels) => {
                    assert_eq!(pixels, expected);
                    held[1] += 1;
                }
                Held::Nothing => panic!("{name}"),
            }
        }
    }
    names.dedup();
    let plain = "exif1 exif2 exif3 exif4 exif5 exif6 exif7 exif8 grey restart rgb420 rgb422 rgb444";
    assert_eq!(names[1..].join(" ").replace(".jpg", ""), plain, "{held:?}");
    assert_eq!(names[0], "photo");
    assert_eq!(held[0], rounds * (40 + 13), "all photos");
}

#[test]
fn rows_that_are_none_and_photos_without_room_are_told_apart() {
    let image =
        ImageOptions { size: Some(8.into()), encoded_room: 0, decoder: Decoder::Deferred, ..ImageOptions::default() };
    let deferred = Deferred::new(&image).unwrap();
    assert_eq!((deferred.row_bytes(), deferred.shape()), (256, vec![8, 8, 3]));
    let photo = &real_photos()[0];
    let mut row = vec![0; 256];
    deferred.decode_into(photo, 0, &mut row).unwrap();
    assert!(matches!(deferred.held(&row).unwrap(), Held::Pixels(pixels) if pixels.len() == 192), "no room");
    assert_eq!(deferred.held(&[0; 256]).unwrap(), Held::Nothing);
    let mut out = [1; 192];
    deferred.pixels(&[0; 256], &mut out).unwrap();
    assert_eq!(out, [0; 192]);
    for change in [(0, 3), (7, 1), (4, 0)] {
        let mut wrong = row.clone();
        wrong[change.0] = change.1;
        let error = deferred.pixels(&wrong, &mut out).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{change:?}: {error}");
    }
    assert!(deferred.held(&row[..192]).is_err());
    assert!(matches!(deferred.decode_into(photo, 0, &mut [0; 255]), Err(Error::Mismatch { .. })));
    // Images that the CPU refuses by the header are refused here.
    let big = ImageOptions { encoded_room: 1 << 20, ..image };
    let deferred = Deferred::new(&big).unwrap();
    let mut row = vec![0; deferred.row_bytes()];
    for name in ["trunc.jpg", "header_only.jpg", "huge_dims.jpg", "notimage.jpg", "empty.jpg"] {
        let cell = fs::read(fixture("corrupt/images").join(name)).unwrap();
        let (now, before) = (deferred.decode_into(&cell, 0, &mut row).unwrap_err(), {
            let reference = ImageDecoder::new(&ImageOptions { layout: Layout::Hwc, ..big.clone() }).unwrap();
            reference.decode_into(&cell, 0, &mut [0; 192]).unwrap_err()
        });
        assert_eq!(now.kind(), before.kind(), "{name}: {now}; {before}");
    }
}

#[test]
fn a_device_that_decodes_delivers_the_bits_of_the_cpu() {
    let mut seed = 0;
    for dtype in [DType::Uint8, DType::Float16, DType::Bfloat16, DType::Float32] {
        for layout in [Layout::Chw, Layout::Hwc] {
            let mut options = LoaderOptions { tail: Some(Tail::Pad), ..photos(dtype) };
            for image in options.columns.images.values_mut() {
                image.layout = layout;
            }
            let expected = epoch(&mut cpu(&options));
            let wanted = by_device(&options);
            let sim = Sim::new(seed);
            seed += 1;
            let mut loader = Loader::open_on(&wanted, Arc::clone(&sim) as _).unwrap();
            assert_eq!(loader.schema(), cpu(&options).schema(), "{dtype} {layout:?}");
            assert!(epoch(&mut loader) == expected, "{dtype} {layout:?}");
            let counters = sim.counters();
            assert_eq!((counters.decoded, counters.conversions), (expected.len() as u64, 0), "{dtype} {layout:?}");
            assert_eq!(loader.device_stats().unwrap().refused, 0);
            drop(loader);
            all_given_back(&sim);
            let mut on_host = Loader::open_on(&wanted, Arc::new(Host::default())).unwrap();
            assert!(epoch(&mut on_host) == expected, "the host as a device: {dtype} {layout:?}");
        }
    }
}

#[test]
fn every_kind_of_image_comes_through_and_positions_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let cells: Vec<_> = zoo().into_iter().map(|(_, cell)| cell).collect();
    let image = ImageOptions {
        size: Some(Size { height: 9, width: 11 }),
        crop: Crop::Center,
        resize_shorter: Some(14),
        flip: 0.5,
        dtype: DType::Float32,
        normalize: Some(Normalize::imagenet()),
        ..ImageOptions::default()
    };
    for (channels, crop, tail) in
        [(3, Crop::Center, Tail::Pad), (1, Crop::Center, Tail::Repeat), (3, Crop::RANDOM_RESIZED, Tail::Pad)]
    {
        let normalize = (channels == 3).then(Normalize::imagenet);
        let resize_shorter = (crop == Crop::Center).then_some(14);
        let image = ImageOptions { channels, crop, resize_shorter, normalize, ..image.clone() };
        let options =
            LoaderOptions { shuffle: true, seed: 3, tail: Some(tail), ..dataset(folder.path(), &cells, image) };
        let mut reference = cpu(&options);
        let whole: Vec<_> = (0..2).map(|_| epoch(&mut reference)).collect();
        let sim = Sim::new(11);
        let mut loader = Loader::open_on(&by_device(&options), Arc::clone(&sim) as _).unwrap();
        for expected in &whole[0][..3] {
            assert!(super::loader::next(&mut loader).as_ref() == Some(expected));
        }
        let state = loader.state();
        assert!(epoch(&mut loader) == whole[0][3..]);
        assert!(epoch(&mut loader) == whole[1]);
        // Resumed on a device, and on the CPU.
        for mut resumed in [Loader::open_on(&by_device(&options), Sim::new(12)).unwrap(), cpu(&options)] {
            resumed.load_state(&state).unwrap();
            assert!(epoch(&mut resumed) == whole[0][3..]);
        }
        drop(loader);
        all_given_back(&sim);
    }
}

#[test]
fn a_device_that_fails_now_and_then_costs_no_batch() {
    let folder = tempfile::tempdir().unwrap();
    let cells: Vec<_> = zoo().into_iter().map(|(_, cell)| cell).take(20).collect();
    let image = ImageOptions { size: Some(8.into()), flip: 0.5, ..ImageOptions::default() };
    let options = dataset(folder.path(), &cells, image);
    let expected = epoch(&mut cpu(&options));
    for n in 1..if soak() { 120 } else { 40 } {
        let sim = Sim::new(n);
        let mut loader = Loader::open_on(&by_device(&options), Arc::clone(&sim) as _).unwrap();
        sim.fail_at(n);
        let (mut found, mut errors) = (Vec::new(), 0);
        loop {
            match loader.next_any() {
                Ok(Some(AnyBatch::Device(batch))) => {
                    let tensor = batch.tensor("image").unwrap();
                    // Reading it may be the call that fails.
                    found.push(tensor.to_host().or_else(|_| tensor.to_host()).unwrap());
                }
                Ok(None) => break,
                Err(Error::Device { .. }) => errors += 1,
                other => panic!("{other:?}"),
            }
        }
        assert!(errors <= 1 && found.iter().eq(expected.iter().map(|batch| &batch.2[0].3)), "call {n} failed");
        drop(loader);
        all_given_back(&sim);
    }
}

#[test]
fn damage_that_only_the_decoder_sees_is_told_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let mut cells = real_photos();
    cells.truncate(12);
    cells[8] = damaged(&cells[8]);
    let image = ImageOptions { size: Some(16.into()), ..ImageOptions::default() };
    let options = dataset(folder.path(), &cells, image);
    let before = epoch_until_error(&mut cpu(&options));
    assert!(matches!(before, (1, Error::Corrupt { .. })), "{before:?}");
    for device in [Sim::new(3) as Arc<dyn Device>, Arc::new(Host::default())] {
        let mut loader = Loader::open_on(&by_device(&options), device).unwrap();
        let (batches, error) = epoch_until_error(&mut loader);
        assert_eq!(batches, 1);
        let text = error.to_string();
        assert!(matches!(error, Error::Corrupt { .. }), "{text}");
        assert!(text.starts_with("column image: JPEG: ") && text.ends_with("in row 3 of the batch"), "{text}");
        // The same batch comes next again, with the same fault.
        assert_eq!(loader.next_any().unwrap_err().to_string(), text);
        assert_eq!(loader.step(), 1);
    }
}

fn epoch_until_error(loader: &mut Loader) -> (usize, Error) {
    let mut batches = 0;
    loop {
        match loader.next_any() {
            Ok(Some(_)) => batches += 1,
            Ok(None) => panic!("no error"),
            Err(error) => return (batches, error),
        }
    }
}

type Change<'a> = &'a dyn Fn(&mut LoaderOptions);

#[test]
fn what_no_device_can_decode_is_refused_when_it_is_asked_for() {
    let asked = by_device(&photos(DType::Float32));
    let refused = |change: Change<'_>| {
        let mut options = asked.clone();
        change(&mut options);
        match Loader::open_on(&options, Sim::new(0)).unwrap_err() {
            Error::Config { option, problem } => format!("{option}: {problem}"),
            other => panic!("{other}"),
        }
    };
    let pattern = |options: &mut LoaderOptions| {
        let image = options.columns.images.remove("image").unwrap();
        options.columns.images.insert("ima*".to_owned(), image);
    };
    let cases: [(Change<'_>, &str); 7] = [
        (&pattern, "decoder: column ima*: a pattern"),
        (&|options| options.bad_rows = BadRows::Skip, "decoder: column image: bad_rows"),
        (&|options| options.bad_rows = BadRows::Zero, "decoder: column image: bad_rows"),
        (&|options| options.columns.nulls = Nulls::Mask.into(), "decoder: column image: nulls"),
        (&|options| image(options).channels = 4, "decoder: nvjpeg gives 1 or 3 channels"),
        (&|options| image(options).size = None, "size: "),
        (&|options| image(options).encoded_room = 1 << 30, "encoded_room: "),
    ];
    for (change, expected) in cases {
        let said = refused(change);
        assert!(said.starts_with(expected), "{expected}\n{said}");
    }
    if cfg!(feature = "flight") {
        let said = refused(&|options| options.urls = vec!["grpc://127.0.0.1:1/x".to_owned()]);
        assert!(said.contains("a server decodes what it sends"), "{said}");
    }
    // A name that stands for a column below it.
    let folder = tempfile::tempdir().unwrap();
    let inner: ArrayRef = Arc::new(BinaryArray::from_iter_values(real_photos()));
    let field = Arc::new(arrow::datatypes::Field::new("front", inner.data_type().clone(), false));
    let outer: ArrayRef = Arc::new(StructArray::from(vec![(field, inner)]));
    let batch = RecordBatch::try_from_iter([("image", outer)]).unwrap();
    let file = File::create(folder.path().join("a.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let said = refused(&|options| {
        options.urls = vec![folder.path().to_str().unwrap().to_owned()];
        options.columns.columns.clear();
    });
    assert!(said.starts_with("decoder: column image: it stands for those below it"), "{said}");
    // Without a device.
    for device in ["cpu", "pinned"] {
        let error = Loader::open(LoaderOptions { device: device.to_owned(), ..asked.clone() }).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Config { option: "decoder", .. }) && text.contains(device), "{text}");
    }
    let error = bowstring::pipeline::LocalSource::open(asked.clone()).unwrap_err();
    assert!(matches!(error, Error::Config { option: "decoder", .. }), "{error}");
}

fn image(options: &mut LoaderOptions) -> &mut ImageOptions {
    options.columns.images.get_mut("image").unwrap()
}
