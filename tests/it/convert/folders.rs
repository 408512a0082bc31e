use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BinaryArray, Int32Array, StringArray};
use arrow::datatypes::Int64Type;
use bowstring::Error;
use bowstring::convert::{ConvertOptions, Format};
use bowstring::dataset::filter::Filter;

use super::{batch, kind, names, parquet, rows, run, to};

/// Makes a small image, a different one for each number.
fn png(number: u8) -> Vec<u8> {
    let mut out = std::io::Cursor::new(Vec::new());
    let pixels = image::GrayImage::from_pixel(8, 8, image::Luma([number]));
    pixels.write_to(&mut out, image::ImageFormat::Png).unwrap();
    out.into_inner()
}

/// Makes a non-uniform image, as PNG.
fn drawn(pixels: image::DynamicImage) -> Vec<u8> {
    let mut out = std::io::Cursor::new(Vec::new());
    pixels.write_to(&mut out, image::ImageFormat::Png).unwrap();
    out.into_inner()
}

#[test]
fn scaling_keeps_what_an_image_is() {
    use image::{DynamicImage, GrayImage, ImageBuffer, ImageFormat, Luma, Rgb, RgbImage, Rgba, RgbaImage};
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let jpeg = image::load_from_memory(&png(9)).unwrap().resize_exact(64, 64, image::imageops::FilterType::Nearest);
    let mut photo = std::io::Cursor::new(Vec::new());
    jpeg.to_rgb8().write_to(&mut photo, ImageFormat::Jpeg).unwrap();
    let mask = drawn(GrayImage::from_fn(64, 64, |x, _| Luma([if x < 32 { 7 } else { 19 }])).into());
    let alpha = drawn(RgbaImage::from_pixel(64, 64, Rgba([100, 150, 200, 100])).into());
    let colour = drawn(RgbImage::from_pixel(64, 64, Rgb([1, 2, 3])).into());
    let deep = drawn(DynamicImage::ImageLuma16(ImageBuffer::from_pixel(64, 64, Luma([40_000]))));
    let one = |name: &'static str, cell: &[u8]| -> (&'static str, ArrayRef) {
        (name, Arc::new(BinaryArray::from_iter_values([cell])))
    };
    let columns = vec![one("image", photo.get_ref()), one("mask", &mask), one("alpha", &alpha), one("deep", &deep)];
    parquet(&at("x.parquet"), &batch(columns));
    let with = |images: &[&str], image_quality| ConvertOptions {
        resize: Some(32),
        image_quality,
        images: images.iter().map(|name| (*name).to_owned()).collect(),
        verify: true,
        ..to(Format::Parquet)
    };
    // The same settings must not apply to all columns of images.
    let (error, text) = kind(run(&at("x.parquet"), &at("never"), &with(&[], None)));
    assert!(matches!(error, Error::Config { option: "resize", .. }) && text.contains("mask"), "{text}");
    let (error, text) = kind(run(&at("x.parquet"), &at("never"), &with(&["masc"], None)));
    assert!(matches!(error, Error::Config { option: "images", .. }) && text.contains("mask"), "{text}");
    run(&at("x.parquet"), &at("out"), &with(&["image", "mask", "alpha"], None)).unwrap();
    let found = rows(&at("out"), &ConvertOptions::default()).unwrap();
    let cell = |name: &str| {
        let column = arrow::compute::cast(found.column_by_name(name).unwrap(), &arrow::datatypes::DataType::Binary);
        column.unwrap().as_binary::<i32>().value(0).to_vec()
    };
    assert_eq!(image::guess_format(&cell("image")).unwrap(), ImageFormat::Jpeg);
    assert_eq!(cell("deep"), deep);
    let mask = image::load_from_memory(&cell("mask")).unwrap();
    assert_eq!((mask.width(), mask.color()), (32, image::ColorType::L8));
    assert_eq!((mask.to_luma8().get_pixel(3, 3)[0], mask.to_luma8().get_pixel(30, 3)[0]), (7, 19));
    let alpha = image::load_from_memory(&cell("alpha")).unwrap();
    // Colours are mixed by their alpha, hence rounded.
    let found = alpha.to_rgba8().get_pixel(3, 3).0;
    assert!(found.iter().zip([100, 150, 200, 100]).all(|(found, was)| found.abs_diff(was) < 3), "{found:?}");
    // A property that neither format keeps is an error.
    for (name, quality) in [("deep", None), ("alpha", Some(80))] {
        let (error, text) = kind(run(&at("x.parquet"), &at("never"), &with(&[name], quality)));
        assert!(matches!(error, Error::Unsupported { .. }) && text.contains(name), "{name}: {text}");
    }
    // A name has the extension of its image's format.
    std::fs::create_dir_all(at("folder/a")).unwrap();
    std::fs::write(at("folder/a/m.png"), &colour).unwrap();
    for (quality, name) in [(Some(80), "m.jpg"), (None, "m.png")] {
        let out = at(&format!("out-{name}"));
        let options = ConvertOptions { images: Vec::new(), ..with(&[], quality) };
        run(&at("folder"), &out, &ConvertOptions { to: Some(Format::Images), ..options }).unwrap();
        assert_eq!(names(&out.join("a")), [name]);
    }
    parquet(&at("png.parquet"), &batch(vec![one("png", &colour)]));
    let options = ConvertOptions { to: Some(Format::Webdataset), ..with(&[], Some(80)) };
    run(&at("png.parquet"), &at("tars"), &options).unwrap();
    let tar = std::fs::read(at("tars/shard-000000.tar")).unwrap();
    assert!(tar.windows(8).any(|name| name == b".png.jpg"));
}

#[test]
fn images_without_classes_are_found_again_by_what_was_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let images: ArrayRef = Arc::new(BinaryArray::from_iter_values((0..3).map(png)));
    parquet(&at("x.parquet"), &batch(vec![("image", images)]));
    run(&at("x.parquet"), &at("flat"), &ConvertOptions { verify: true, ..to(Format::Images) }).unwrap();
    assert_eq!(rows(&at("flat"), &ConvertOptions::default()).unwrap().num_rows(), 3);
    // Without the record nothing says so.
    std::fs::remove_file(at("flat/_SUCCESS")).unwrap();
    let said = rows(&at("flat"), &ConvertOptions::default()).unwrap_err().to_string();
    assert!(said.contains("--from"), "{said}");
}

#[test]
fn no_rows_are_not_written_as_files_that_are_the_rows() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let images: ArrayRef = Arc::new(BinaryArray::from_iter_values(std::iter::empty::<&[u8]>()));
    let lists = arrow::array::ListArray::from_iter_primitive::<Int64Type, _, _>(std::iter::empty::<Option<Vec<_>>>());
    parquet(&at("image.parquet"), &batch(vec![("image", images)]));
    parquet(&at("list.parquet"), &batch(vec![("x", Arc::new(lists))]));
    for (name, format) in [("image.parquet", Format::Images), ("list.parquet", Format::Numpy)] {
        for verify in [false, true] {
            let (error, said) = kind(run(&at(name), &at("never"), &ConvertOptions { verify, ..to(format) }));
            assert!(matches!(error, Error::Unsupported { .. }), "{said}");
            assert!(said.contains("no rows in") && said.contains(name), "{said}");
            assert!(!at("never").exists());
        }
    }
    run(&at("list.parquet"), &at("none"), &to(Format::Arrow)).unwrap();
    assert_eq!(rows(&at("none"), &ConvertOptions::default()).unwrap().num_rows(), 0);
}

/// Makes a dataset of images with these classes and labels.
fn labelled(path: &Path, rows: &[(&str, Option<i32>)]) {
    let images: ArrayRef = Arc::new(BinaryArray::from_iter_values((0..rows.len()).map(|row| png(row as u8))));
    let classes: ArrayRef = Arc::new(StringArray::from_iter_values(rows.iter().map(|(class, _)| *class)));
    let labels: ArrayRef = Arc::new(rows.iter().map(|(_, label)| *label).collect::<Int32Array>());
    parquet(path, &batch(vec![("image", images), ("class", classes), ("label", labels)]));
}

/// Returns class and label of each image, sorted.
fn found(path: &Path) -> Vec<(String, Option<i64>)> {
    let found = rows(path, &ConvertOptions { from: Some(Format::Images), ..ConvertOptions::default() }).unwrap();
    let classes = found.column_by_name("class").unwrap().as_string::<i32>().clone();
    let labels = found.column_by_name("label").unwrap().as_primitive::<Int64Type>().clone();
    let mut all: Vec<_> = classes.iter().flatten().map(str::to_owned).zip(labels.iter()).collect();
    all.sort();
    all
}

#[test]
fn labels_come_back_as_the_numbers_that_were_given() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let options = ConvertOptions { verify: true, ..to(Format::Images) };
    labelled(&at("x.parquet"), &[("dog", Some(7)), ("cat", Some(3)), ("dog", Some(7)), ("emu", None)]);
    assert!(run(&at("x.parquet"), &at("folder"), &options).unwrap().verified);
    let expected = [("cat", Some(3)), ("dog", Some(7)), ("dog", Some(7)), ("emu", None)];
    assert_eq!(found(&at("folder")), expected.map(|(class, label)| (class.to_owned(), label)));
    assert_eq!(names(&at("folder")), ["_SUCCESS", "_files", "_labels.json", "cat", "dog", "emu"]);
    // Also from folder to folder, if a filter removes a class.
    let filter = Some(Filter::Text("class != 'cat'".into()));
    run(&at("folder"), &at("less"), &ConvertOptions { filter, ..options.clone() }).unwrap();
    let expected = [("dog", Some(7)), ("dog", Some(7)), ("emu", None)];
    assert_eq!(found(&at("less")), expected.map(|(class, label)| (class.to_owned(), label)));
    // Labels that equal the class numbers need no file.
    labelled(&at("y.parquet"), &[("b", Some(1)), ("a", Some(0))]);
    run(&at("y.parquet"), &at("plain"), &options).unwrap();
    assert_eq!(names(&at("plain")), ["_SUCCESS", "_files", "a", "b"]);
    assert_eq!(found(&at("plain")), [("a".to_owned(), Some(0)), ("b".to_owned(), Some(1))]);
    // The order of "10" and "9" is not that of the numbers, and somebody may copy the directories alone.
    let numbers: ArrayRef = Arc::new(Int32Array::from_iter_values(0..12));
    let images: ArrayRef = Arc::new(BinaryArray::from_iter_values((0..12).map(png)));
    parquet(&at("numbers.parquet"), &batch(vec![("image", images), ("label", numbers)]));
    run(&at("numbers.parquet"), &at("numbers"), &options).unwrap();
    assert!(at("numbers/_labels.json").is_file());
    let pairs = |path: &Path| {
        let found = rows(path, &ConvertOptions { from: Some(Format::Images), ..ConvertOptions::default() }).unwrap();
        let images = found.column_by_name("image").unwrap().as_binary::<i32>().clone();
        let labels = found.column_by_name("label").unwrap().as_primitive::<Int64Type>().clone();
        let mut all: Vec<_> =
            labels.values().iter().copied().zip(images.iter().flatten().map(<[u8]>::to_vec)).collect();
        all.sort();
        all
    };
    let expected: Vec<_> = (0..12).map(|number| (i64::from(number), png(number))).collect();
    assert_eq!(pairs(&at("numbers")), expected);
    std::fs::remove_file(at("numbers/_SUCCESS")).unwrap();
    assert_eq!(pairs(&at("numbers")), expected);
    // A class with two labels has no folder.
    labelled(&at("z.parquet"), &[("b", Some(1)), ("b", Some(2))]);
    let (error, text) = kind(run(&at("z.parquet"), &at("never"), &options));
    assert!(matches!(error, Error::Unsupported { .. }) && text.contains("labels 1 and 2"), "{text}");
    assert!(!at("never").exists());
    // A class without a label is damage.
    std::fs::create_dir(at("folder").join("fox")).unwrap();
    std::fs::write(at("folder").join("fox/1.png"), png(9)).unwrap();
    let (error, text) = kind(run(&at("folder"), &at("never"), &to(Format::Parquet)));
    assert!(matches!(error, Error::Corrupt { .. }) && text.contains("_labels.json") && text.contains("fox"), "{text}");
}

#[test]
fn what_is_wrong_with_an_image_names_it() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let smaller = ConvertOptions { resize: Some(4), ..to(Format::Parquet) };
    // The header is intact, the pixels are not.
    let (good, mut broken) = (png(1), png(2));
    broken.truncate(45);
    std::fs::create_dir_all(at("folder/a")).unwrap();
    std::fs::write(at("folder/a/1.png"), &good).unwrap();
    std::fs::write(at("folder/a/2.png"), &broken).unwrap();
    let (error, text) = kind(run(&at("folder"), &at("never"), &smaller));
    let Error::Corrupt { place, .. } = &error else { panic!("{text}") };
    assert_eq!((place.file.as_deref(), place.column.as_deref()), (Some("a/2.png"), Some("image")), "{text}");
    // In a file of many rows, the row is counted before the filter.
    let images = (0..10).map(|row| if row == 7 { broken.clone() } else { png(row) });
    let images: ArrayRef = Arc::new(BinaryArray::from_iter_values(images));
    let ids: ArrayRef = Arc::new(Int32Array::from_iter_values(0..10));
    parquet(&at("x.parquet"), &batch(vec![("id", ids), ("image", images)]));
    let filter = Some(Filter::Text("id >= 5".into()));
    let (error, text) = kind(run(&at("x.parquet"), &at("never"), &ConvertOptions { filter, ..smaller.clone() }));
    let Error::Corrupt { place, .. } = &error else { panic!("{text}") };
    assert!(place.file.as_deref().is_some_and(|file| file.contains("x.parquet")), "{text}");
    assert_eq!((place.column.as_deref(), place.row), (Some("image"), Some(7)), "{text}");
    // One that declares too much.
    let mut huge = png(3);
    huge[16..20].copy_from_slice(&60_000_u32.to_be_bytes());
    huge[20..24].copy_from_slice(&60_000_u32.to_be_bytes());
    let crc = crc32fast::hash(&huge[12..29]);
    huge[29..33].copy_from_slice(&crc.to_be_bytes());
    std::fs::write(at("folder/a/2.png"), &huge).unwrap();
    let (error, text) = kind(run(&at("folder"), &at("never"), &smaller));
    assert!(matches!(error, Error::Limit { .. }) && text.contains("a/2.png") && text.contains("image"), "{text}");
    // One that is no image among images.
    std::fs::write(at("folder/a/2.png"), b"none").unwrap();
    let (error, text) = kind(run(&at("folder"), &at("never"), &smaller));
    let Error::Corrupt { place, .. } = &error else { panic!("{text}") };
    assert_eq!(place.file.as_deref(), Some("a/2.png"), "{text}");
    let images: ArrayRef = Arc::new(BinaryArray::from_iter_values([good.as_slice(), b"none".as_slice()]));
    parquet(&at("y.parquet"), &batch(vec![("picture", images)]));
    for options in [smaller, to(Format::Images)] {
        let (error, text) = kind(run(&at("y.parquet"), &at("never"), &options));
        let Error::Corrupt { place, .. } = &error else { panic!("{text}") };
        assert_eq!((place.column.as_deref(), place.row), (Some("picture"), Some(1)), "{text}");
        assert!(text.contains("among images") && text.contains("y.parquet"), "{text}");
    }
}

#[test]
fn an_archive_of_numpy_that_claims_too_much_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let src = directory.path().join("src");
    std::fs::create_dir(&src).unwrap();
    // One stored member whose header declares 2^40 numbers.
    let header = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': ({},), }}\n", 1_u64 << 40);
    let mut array = b"\x93NUMPY\x01\x00".to_vec();
    array.extend_from_slice(&u16::try_from(header.len()).unwrap().to_le_bytes());
    array.extend_from_slice(header.as_bytes());
    let (crc, len) = (crc32fast::hash(&array).to_le_bytes(), u32::try_from(array.len()).unwrap().to_le_bytes());
    let shared = [&[20, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &crc, &len, &len, &[5, 0, 0, 0]].concat();
    let mut zip = [b"PK\x03\x04", &shared[..], b"x.npy", &array].concat();
    let at = u32::try_from(zip.len()).unwrap();
    let central = [b"PK\x01\x02\x14\x00", &shared[..], &[0; 14], b"x.npy"].concat();
    zip.extend_from_slice(&central);
    zip.extend_from_slice(b"PK\x05\x06\x00\x00\x00\x00\x01\x00\x01\x00");
    zip.extend_from_slice(&u32::try_from(central.len()).unwrap().to_le_bytes());
    zip.extend_from_slice(&at.to_le_bytes());
    zip.extend_from_slice(&[0, 0]);
    std::fs::write(src.join("big.npz"), &zip).unwrap();
    let (error, text) = kind(run(&src, &directory.path().join("never"), &to(Format::Parquet)));
    assert!(matches!(error, Error::Limit { .. } | Error::Corrupt { .. }), "{text}");
    assert!(text.contains("big.npz"), "{text}");
}
