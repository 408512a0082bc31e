//! The same file at several addresses, keys unknown to every store, images that state their own size.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, RecordBatch};
use bowstring::codec::ImageOptions;
use bowstring::{Error, tensor};
use bowstring::{Loader, LoaderOptions};
use parquet::arrow::ArrowWriter;

use crate::support::{self, drain, options};

fn at(directory: &Path, urls: &[&str]) -> LoaderOptions {
    let urls = urls.iter().map(|url| directory.join(url).to_str().unwrap().to_owned()).collect();
    let mut options = LoaderOptions { urls, shuffle: false, ..options(directory, 7, 0, 1) };
    options.columns.row_id = true;
    options
}

#[test]
fn a_file_that_is_named_twice_is_read_twice_and_any_other_overlap_is_an_error() {
    let data = tempfile::tempdir().unwrap();
    support::write(data.path(), &[vec![10], vec![5, 6]], 1);
    let mut names: Vec<String> =
        std::fs::read_dir(data.path()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let (first, second) = (names[0].as_str(), names[1].as_str());
    let ids = |urls: &[&str]| drain(&mut Loader::open(at(data.path(), urls)).unwrap()).concat();
    let (one, other) = (ids(&[first]), ids(&[second]));
    assert_eq!(ids(&[first, second, first]), [one.clone(), one.clone(), other].concat());

    // Each occurrence has its own row numbers, and the fingerprint differs from that of the single file.
    let mut twice = Loader::open(at(data.path(), &[first, first])).unwrap();
    assert_ne!(twice.state().fingerprint, Loader::open(at(data.path(), &[first])).unwrap().state().fingerprint);
    let mut rows: Vec<i64> = Vec::new();
    while let Some(batch) = twice.next().unwrap() {
        let (numbers, mask) = (batch.tensor("_row_id").unwrap(), batch.tensor("_mask").unwrap());
        let real = numbers.as_slice::<i64>().unwrap().iter().zip(mask.bytes()).filter(|(_, real)| **real == 1);
        rows.extend(real.map(|(number, _)| number));
    }
    assert_eq!(rows, (0..20).collect::<Vec<i64>>());
    let state = twice.state();
    Loader::open(at(data.path(), &[first, first])).unwrap().load_state(&state).unwrap();

    for urls in [[".", first], [first, "."], [".", "."], ["*.parquet", "*"]] {
        let error = Loader::open(at(data.path(), &urls)).unwrap_err();
        assert!(matches!(&error, Error::Config { option: "urls", .. }), "{urls:?}: {error}");
        let text = error.to_string();
        assert!(text.contains("twice") && (text.contains(first) || text.contains(second)), "{text}");
    }
}

#[test]
fn keys_that_no_store_knows_are_refused_for_local_files_too() {
    let data = tempfile::tempdir().unwrap();
    support::write(data.path(), &[vec![10]], 1);
    let mut options = at(data.path(), &["."]);
    options.storage_options.insert("aws_regoin".to_owned(), "hidden".to_owned());
    let error = Loader::open(options.clone()).unwrap_err();
    assert!(matches!(&error, Error::Config { option: "storage_options", .. }), "{error}");
    assert!(error.to_string().contains("aws_region\"") && !error.to_string().contains("hidden"), "{error}");
    options.storage_options.clear();
    // A key of a store that the address does not need is allowed.
    options.storage_options.insert("AWS_REGION".to_owned(), "eu-west-1".to_owned());
    Loader::open(options).unwrap();
}

/// Makes a 24-bit BMP of one colour.
fn bmp(width: u32, height: u32) -> Vec<u8> {
    let stride = (width * 3).next_multiple_of(4);
    let mut bytes = b"BM".to_vec();
    for number in [54 + stride * height, 0, 54, 40, width, height] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend([1, 0, 24, 0]);
    bytes.extend([0; 24]);
    bytes.resize((54 + stride * height) as usize, 99);
    bytes
}

fn write(path: &Path, cells: &[Option<Vec<u8>>]) {
    let array: ArrayRef = Arc::new(BinaryArray::from_iter(cells.iter().map(|cell| cell.as_deref())));
    let rows = RecordBatch::try_from_iter_with_nullable([("image", array, true)]).unwrap();
    let mut writer = ArrowWriter::try_new(std::fs::File::create(path).unwrap(), rows.schema(), None).unwrap();
    writer.write(&rows).unwrap();
    writer.close().unwrap();
}

fn images(path: &Path) -> LoaderOptions {
    let mut options = LoaderOptions::new(path.to_str().unwrap(), 4);
    (options.shuffle, options.rank, options.world_size) = (false, Some(0), Some(1));
    options.columns.nulls = bowstring::codec::Nulls::Mask.into();
    options.columns.images.insert("image".to_owned(), ImageOptions::default());
    options
}

#[test]
fn images_without_a_size_have_that_of_the_first_one() {
    let data = tempfile::tempdir().unwrap();
    let path = data.path().join("a.parquet");
    write(&path, &[None, Some(bmp(6, 4)), Some(bmp(6, 4))]);
    let mut loader = Loader::open(images(&path)).unwrap();
    let batch = loader.next().unwrap().unwrap();
    let image: &tensor::Tensor = batch.tensor("image").unwrap();
    assert_eq!(image.shape(), [3, 3, 4, 6]);

    // Another size is an error that names both, and the place.
    write(&path, &[Some(bmp(6, 4)), Some(bmp(5, 4))]);
    let error = Loader::open(images(&path)).unwrap().next().unwrap_err().chain();
    assert!(error.contains("row 1") && error.contains('5') && error.contains('6'), "{error}");

    for cells in [vec![None, None], vec![]] {
        write(&path, &cells);
        let error = Loader::open(images(&path)).unwrap_err();
        assert!(matches!(&error, Error::Config { option: "size", .. }), "{error}");
    }
    write(&path, &[Some(b"no image".to_vec())]);
    let error = Loader::open(images(&path)).unwrap_err().chain();
    assert!(error.contains("row 0") && error.contains("image"), "{error}");
}
