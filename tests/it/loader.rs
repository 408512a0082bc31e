//! The whole chain on files: errors, memory, bad rows, mixtures, packs. `conformance` tests the promises of every loader.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{
    ArrayRef, BinaryArray, Float32Array, Float64Array, Int8Array, Int16Array, Int32Array, Int64Array, RecordBatch,
    UInt32Array,
};
use bowstring::codec::{BadRows, ColumnOptions, Nulls, Pack, Scalar};
use bowstring::dataset::filter::Filter;
use bowstring::pipeline::LocalSource;
use bowstring::plan::Tail;
use bowstring::schema::DType;
use bowstring::{Error, Loader, LoaderOptions};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

use crate::support::{self, HANG, drain, ids, options};

/// Writes row groups of uneven sizes in three files.
fn dataset() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    support::write(directory.path(), &[vec![100, 700, 1], vec![300, 33], vec![1000, 250, 616]], 3);
    directory
}

#[test]
fn resuming_late_reads_no_more_than_resuming_early() {
    let directory = tempfile::tempdir().unwrap();
    support::write(directory.path(), &vec![vec![1000; 50]; 4], 3);
    let tight = || {
        let mut options = options(directory.path(), 100, 0, 1);
        (options.lanes, options.window_rows, options.prefetch) = (Some(4), Some(2000), 1);
        options
    };
    // Just enough memory for a step, so that little is read ahead.
    let budget = (1..1000)
        .map(|n| n << 16)
        .find(|budget| Loader::open(LoaderOptions { memory_budget: Some(*budget), ..tight() }).is_ok());
    let read_for = |percent: u64| {
        // Reading ahead depends on timing; the minimum of several runs is the need of the first batch.
        let once = || {
            let mut loader = Loader::open(LoaderOptions { memory_budget: budget, ..tight() }).unwrap();
            let mut state = loader.state();
            state.step = loader.steps() * percent / 100;
            loader.load_state(&state).unwrap();
            loader.next().unwrap().unwrap();
            loader.stats().read.bytes
        };
        (0..5).map(|_| once()).min().unwrap()
    };
    // The first windows are smaller.
    let (early, late) = (read_for(30), read_for(99));
    println!("bytes read for the first batch: {early} at 30 %, {late} at 99 %");
    assert!(late * 10 <= early * 11, "{late} bytes at 99 %, {early} at 30 %");
}

#[test]
fn each_row_group_is_read_once_per_rank_when_the_world_divides_the_lanes() {
    let directory = tempfile::tempdir().unwrap();
    support::write(directory.path(), &vec![vec![500; 16]; 4], 1);
    let mut read = 0;
    for rank in 0..4 {
        let mut options = options(directory.path(), 64, rank, 4);
        options.lanes = Some(8);
        let mut loader = Loader::open(options).unwrap();
        drain(&mut loader);
        read += loader.stats().read.items;
    }
    // Lanes begin and end within row groups: at most one more for each cut between ranks.
    println!("{read} reads of 64 row groups by 4 ranks");
    assert!((64..=64 + 8).contains(&read), "{read} reads of 64 row groups");
}

#[test]
fn dropping_and_closing_stop_at_once() {
    let directory = tempfile::tempdir().unwrap();
    support::write(directory.path(), &vec![vec![20_000; 8]; 4], 16);
    let mut loader = Loader::open(options(directory.path(), 512, 0, 1)).unwrap();
    let kept = loader.next().unwrap().unwrap();
    let before = ids(&kept);
    let started = Instant::now();
    loader.close();
    assert!(matches!(loader.next(), Err(Error::Closed { .. })));
    drop(loader);
    assert!(started.elapsed() < HANG, "closing took {:?}", started.elapsed());
    assert_eq!(ids(&kept), before, "a delivered batch outlives its loader");
}

#[test]
fn a_budget_that_can_never_hold_a_step_is_refused_with_the_numbers() {
    let directory = tempfile::tempdir().unwrap();
    support::write(directory.path(), &[vec![20_000; 8]], 16);
    let tight = LoaderOptions { memory_budget: Some(1 << 20), ..options(directory.path(), 512, 0, 1) };
    let error = Loader::open(tight).unwrap_err();
    assert!(matches!(error, Error::Limit { limit: 1_048_576, .. }), "{error}");
    assert!(error.to_string().contains("memory_budget"), "{error}");
}

#[test]
fn a_tight_budget_slows_but_never_hangs() {
    let directory = tempfile::tempdir().unwrap();
    support::write(directory.path(), &vec![vec![2_000; 8]; 4], 16);
    let needed = (1_u64..).find_map(|mib| {
        let tight = LoaderOptions { memory_budget: Some(mib << 20), ..options(directory.path(), 512, 0, 1) };
        Loader::open(LoaderOptions { timeout: 20.0, ..tight }).ok()
    });
    let mut loader = needed.unwrap();
    let rows: usize = drain(&mut loader).iter().map(Vec::len).sum();
    let memory = loader.stats().memory;
    println!("budget {} MiB, peak {} KiB", memory.budget >> 20, memory.peak >> 10);
    assert_eq!(rows, 64_000);
    assert!(memory.peak <= memory.budget);
}

#[test]
fn the_stated_memory_need_suffices_for_every_kind_of_column() {
    let fixtures = [
        "imagenet40.parquet",
        "petastorm/petastorm_legacy_0.7.6",
        "petastorm/petastorm_allcodecs_0.13.1",
        "spark43_parquet/flat_snappy",
        "spark43_parquet/flat_nodict",
        "spark43_parquet/many_rowgroups",
    ];
    for fixture in fixtures {
        let open = |memory_budget| {
            let columns = ColumnOptions { nulls: Nulls::Mask.into(), ..ColumnOptions::default() };
            let data = support::fixture(fixture).display().to_string();
            LocalSource::open(LoaderOptions { memory_budget, timeout: 20.0, columns, ..LoaderOptions::new(data, 4) })
        };
        let need = open(None).unwrap().memory_need();
        let mut loader = Loader::of(Box::new(open(Some(need.row_groups + need.batches)).unwrap()));
        let rows: usize = loader.iter().map(|batch| batch.unwrap().rows).sum();
        let memory = loader.stats().memory;
        println!("{fixture}: {rows} rows, budget {}, peak {}", memory.budget, memory.peak);
        assert!(rows > 0 && memory.peak <= memory.budget, "{fixture}: {memory:?}");
    }
}

#[test]
fn batches_in_file_order_stay_where_they_were_decoded() {
    let directory = tempfile::tempdir().unwrap();
    // One batch of 150 lies in two row groups.
    support::write(directory.path(), &[vec![6400, 1001, 5399], vec![6400]], 3);
    let copied = |change: &dyn Fn(&mut LoaderOptions)| {
        let mut options = options(directory.path(), 128, 0, 1);
        (options.shuffle, options.tail) = (false, Some(Tail::Even));
        change(&mut options);
        let mut loader = Loader::open(options).unwrap();
        let mut rows = Vec::new();
        for batch in loader.iter() {
            rows.extend_from_slice(batch.unwrap().tensor("id").unwrap().as_slice::<i64>().unwrap());
        }
        rows.sort_unstable();
        assert!(rows.iter().copied().eq(rows[0]..19_200));
        loader.stats().copied_per_delivered
    };
    let little = copied(&|_| {});
    println!("{little} bytes copied per byte delivered");
    assert!(little > 0.0 && little < 1.5 / 150.0, "{little}");
    let filtered = copied(&|options| options.filter = Some(Filter::Text("id >= 37".to_owned())));
    // Three batches between row groups, and the last one, which begins in the middle of a batch.
    assert!(filtered > little && filtered < 4.5 / 150.0, "{filtered}");
    assert_eq!(copied(&|options| options.tail = Some(Tail::Repeat)), 1.0, "a row may be in two batches");
    assert_eq!(copied(&|options| options.lanes = Some(2)), 1.0, "rows of two row groups");
    assert!(copied(&|options| options.global_batch_size = Some(100)) > 0.5, "most batches begin within a cache line");
    assert_eq!(copied(&|options| options.global_batch_size = Some(8)), 1.0, "a small part of its row group");
    assert!(copied(&|options| options.shuffle = true) >= 1.0);
}

#[test]
fn an_error_reaches_the_consumer_once_with_its_place() {
    let data = dataset();
    let mut loader = Loader::open(options(data.path(), 40, 0, 1)).unwrap();
    let victim = data.path().join("part-001.parquet");
    let bytes = std::fs::read(&victim).unwrap();
    std::fs::write(&victim, &bytes[..bytes.len() - 1]).unwrap();
    let errors: Vec<_> = std::iter::from_fn(|| loader.next().transpose()).filter_map(Result::err).take(3).collect();
    assert!(matches!(&errors[0], Error::SourceChanged { file, .. } if file.contains("part-001")), "{:?}", errors[0]);
    assert!(errors[1..].iter().all(|error| matches!(error, Error::Closed { .. })), "{errors:?}");
}

#[test]
fn bad_rows_are_counted_and_listed_and_steps_stay_equal() {
    let photos = support::fixture("corrupt/images_some_bad.parquet");
    let base =
        LoaderOptions { urls: vec![photos.to_str().unwrap().to_owned()], shuffle: false, ..LoaderOptions::new("", 16) };
    let with = |bad_rows| {
        let mut options = LoaderOptions { bad_rows, ..base.clone() };
        options.columns.row_id = true;
        options.columns.images = BTreeMap::from([("image".to_owned(), image(32))]);
        Loader::open(options).unwrap()
    };
    let mut strict = with(BadRows::Error);
    let error = strict.iter().find_map(Result::err).unwrap();
    let text = error.to_string();
    assert!(text.contains("images_some_bad.parquet, row group") && text.contains("column image, row"), "{text}");
    let mut tallies = Vec::new();
    for policy in [BadRows::Skip, BadRows::Zero] {
        let mut loader = with(policy);
        let steps = loader.steps();
        assert_eq!(loader.iter().map(Result::unwrap).count() as u64, steps);
        let ledger = loader.ledger();
        assert!(!ledger.entries.is_empty());
        assert_eq!(ledger.entries.len() as u64, ledger.skipped + ledger.zeroed);
        let mut rows: Vec<_> = ledger.entries.iter().map(|entry| entry.row_id).collect();
        rows.sort_unstable();
        tallies.push(rows);
        assert!(ledger.entries.iter().all(|entry| entry.replaced_by.is_some() == (policy == BadRows::Skip)));
        assert!(ledger.entries.iter().all(|entry| entry.error.contains("row group") && entry.column == "image"));
    }
    assert_eq!(tallies[0], tallies[1], "the same rows are bad under both policies");
}

#[test]
fn the_replacement_of_a_bad_row_is_the_same_for_every_world() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bitmaps.parquet");
    // Bitmaps of one pixel, every seventh truncated; row groups of 50 rows.
    let bitmap = |row: u8| {
        let head = b"BM\x3a\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\x18";
        let mut bytes = head.to_vec();
        bytes.resize(54, 0);
        bytes.extend([row, row, row, 0]);
        if row % 7 == 3 { bytes[..40].to_vec() } else { bytes }
    };
    let images: ArrayRef = Arc::new(BinaryArray::from_iter_values((0..200).map(bitmap)));
    let batch = RecordBatch::try_from_iter([("image", images)]).unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(50)).build();
    let mut writer = ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let mut first = None;
    for world in [1, 2, 3, 4] {
        let mut global: Vec<Vec<u8>> = Vec::new();
        let mut skipped = 0;
        for rank in 0..world {
            let mut options = LoaderOptions { bad_rows: BadRows::Skip, ..options(&path, 20, rank, world) };
            options.columns.images = BTreeMap::from([("image".to_owned(), image(1))]);
            let mut loader = Loader::open(options).unwrap();
            for (step, batch) in loader.iter().enumerate() {
                global.resize(global.len().max(step + 1), Vec::new());
                global[step].extend_from_slice(batch.unwrap().tensor("image").unwrap().bytes());
            }
            skipped += loader.ledger().skipped;
        }
        assert_eq!((global.len(), skipped), (10, 29), "world {world}");
        assert!(first.get_or_insert_with(|| global.clone()) == &global, "world {world}");
    }
}

fn image(size: u32) -> bowstring::codec::image::ImageOptions {
    serde_json::from_value(serde_json::json!({ "size": size })).unwrap()
}

#[test]
fn a_mixture_draws_in_proportion() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    support::write(one.path(), &[vec![3000]], 1);
    support::write(two.path(), &[vec![700, 300]], 1);
    let mut options = options(one.path(), 40, 0, 1);
    options.urls.push(two.path().to_str().unwrap().to_owned());
    options.weights = vec![0.75, 0.25];
    options.columns.row_id = true;
    let mut loader = Loader::open(options).unwrap();
    let mut of_two = 0;
    let mut seen = Vec::new();
    for batch in loader.iter() {
        let batch = batch.unwrap();
        let real = ids(&batch).len();
        let row_ids = &batch.tensor("_row_id").unwrap().as_slice::<i64>().unwrap()[..real];
        of_two += row_ids.iter().filter(|id| **id >= 3000).count();
        seen.extend_from_slice(row_ids);
    }
    let total = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), total, "no row twice");
    let share = of_two as f64 / total as f64;
    assert!((share - 0.25).abs() < 0.01, "{share} of the rows came from the second dataset, of {total}");
}

/// Writes columns of several types, some rows null if `nulls`, in row groups of uneven sizes.
fn mixed(path: &std::path::Path, nulls: bool) {
    let rows = 5000_i64;
    let hole = |row: i64, every: i64| nulls && row > 3000 && row % every == 0;
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("a", Arc::new(Int32Array::from_iter((0..rows).map(|row| Some((row % 7) as i32))))),
        ("b", Arc::new(Int64Array::from_iter((0..rows).map(|row| (!hole(row, 17)).then_some(row * 3))))),
        ("c", Arc::new(Float32Array::from_iter((0..rows).map(|row| Some(row as f32 / 4.0))))),
        ("d", Arc::new(Float64Array::from_iter((0..rows).map(|row| (!hole(row, 29)).then_some(row as f64 * 0.5))))),
        ("e", Arc::new(UInt32Array::from_iter((0..rows).map(|row| Some((row * row % 1000) as u32))))),
        ("f", Arc::new(Int16Array::from_iter((0..rows).map(|row| Some((row % 300) as i16))))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let properties = WriterProperties::builder().set_data_page_row_count_limit(333).set_write_batch_size(100).build();
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), Some(properties)).unwrap();
    let mut start = 0;
    for length in [1, 700, 1999, 2300] {
        writer.write(&batch.slice(start, length)).unwrap();
        writer.flush().unwrap();
        start += length;
    }
    writer.close().unwrap();
}

/// Shuffled windows of one row group up to many, with lanes that cut row groups, ranks that cut lanes, and steps that take a few
/// rows of each row group or hundreds: how columns are copied hangs on all of these.
#[test]
fn shuffled_rows_have_their_own_values_whatever_the_windows() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data.parquet");
    let rows = 40_000_i64;
    let is_null = |row: i64| row % 19 == 3;
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("a", Arc::new(Int64Array::from_iter((0..rows).map(|row| Some(row * 3))))),
        ("b", Arc::new(Float32Array::from_iter((0..rows).map(|row| (!is_null(row)).then_some(row as f32 / 4.0))))),
        ("c", Arc::new(Int16Array::from_iter((0..rows).map(|row| Some((row % 30_011) as i16))))),
        ("d", Arc::new(Float64Array::from_iter((0..rows).map(|row| (!is_null(row)).then_some(row as f64 * 0.5))))),
        ("e", Arc::new(Int8Array::from_iter((0..rows).map(|row| Some((row % 101) as i8))))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut writer = ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), None).unwrap();
    let (mut start, mut lengths) = (0, [1000, 1700, 400, 5000, 64].into_iter().cycle());
    while start < batch.num_rows() {
        let length = lengths.next().unwrap().min(batch.num_rows() - start);
        writer.write(&batch.slice(start, length)).unwrap();
        writer.flush().unwrap();
        start += length;
    }
    writer.close().unwrap();
    let mut cases = 0;
    for nulls in [Nulls::Mask, Nulls::Fill(Scalar::Int(7))] {
        for (lanes, window, batch) in
            [(1, 1, 64), (2, 3000, 512), (4, 9000, 1000), (2, 20_000, 2000), (8, 5000, 8), (3, 40_000, 300)]
        {
            for world in [1, 3] {
                let mut seen = vec![false; rows as usize];
                for rank in 0..world {
                    let mut options = options(&path, batch * u64::from(world), rank, world);
                    (options.lanes, options.window_rows) = (Some(lanes), Some(window));
                    options.columns.nulls = nulls.clone().into();
                    options.columns.row_id = true;
                    for batch in Loader::open(options).unwrap().iter() {
                        let batch = batch.unwrap();
                        let case = format!("{nulls:?}, {lanes} lanes, windows of {window}, step {}", batch.step);
                        let values = |name| batch.tensor(name).unwrap();
                        let real = values("_mask").bytes().iter().filter(|real| **real == 1).count();
                        let ids = &values("_row_id").as_slice::<i64>().unwrap()[..real];
                        let (a, c) = (values("a").as_slice::<i64>().unwrap(), values("c").as_slice::<i16>().unwrap());
                        let (b, d) = (values("b").as_slice::<f32>().unwrap(), values("d").as_slice::<f64>().unwrap());
                        let e = values("e").as_slice::<i8>().unwrap();
                        for (at, row) in ids.iter().enumerate() {
                            assert!(!std::mem::replace(&mut seen[*row as usize], true), "{case}: row {row} again");
                            let found = (a[at], c[at], e[at]);
                            assert_eq!(found, (row * 3, (row % 30_011) as i16, (row % 101) as i8), "{case}: row {row}");
                            let instead = if nulls == Nulls::Mask { 0.0 } else { 7.0 };
                            let number = |value: f64| if is_null(*row) { instead } else { value };
                            let expected = (number(*row as f64 / 4.0), number(*row as f64 * 0.5));
                            assert_eq!((f64::from(b[at]), d[at]), expected, "{case}: row {row}");
                            cases += 1;
                        }
                    }
                }
                assert!(seen.iter().all(|seen| *seen), "{lanes} lanes, windows of {window}: a row is missing");
            }
        }
    }
    assert_eq!(cases, 2 * 6 * 2 * rows);
}

/// Returns the pack of one epoch as bytes, and the file's rows in their order.
fn packed(path: &std::path::Path, columns: &[&str], dtype: DType, nulls: Nulls) -> (Vec<u8>, Vec<i64>) {
    let mut options = options(path, 97, 0, 1);
    options.tail = Some(Tail::Drop);
    options.columns.row_id = true;
    let columns: Vec<String> = columns.iter().map(|name| (*name).to_owned()).collect();
    options.columns.exclude = "abcdef".chars().map(String::from).filter(|name| !columns.contains(name)).collect();
    options.columns.nulls.0.extend(columns.iter().map(|name| (name.clone(), nulls.clone())));
    options.columns.pack = vec![Pack { name: "x".to_owned(), columns, dtype }];
    let (mut bytes, mut rows) = (Vec::new(), Vec::new());
    for batch in Loader::open(options).unwrap().iter() {
        let batch = batch.unwrap();
        bytes.extend_from_slice(batch.tensor("x").unwrap().bytes());
        rows.extend_from_slice(batch.tensor("_row_id").unwrap().as_slice::<i64>().unwrap());
    }
    (bytes, rows)
}

#[test]
fn packs_are_the_same_from_pages_and_from_columns() {
    let directory = tempfile::tempdir().unwrap();
    for nulls in [false, true] {
        let path = directory.path().join(format!("mixed-{nulls}.parquet"));
        mixed(&path, nulls);
        let fill = Nulls::Fill(Scalar::Int(9));
        // f is stored wider than its type, so a pack with it is made from columns.
        for (columns, dtype) in [
            (&["a", "b", "c", "d", "e"][..], DType::Float32),
            (&["e", "d", "c", "b", "a", "f"], DType::Float64),
            (&["a", "b", "e"], DType::Int64),
            (&["a"], DType::Uint8),
            (&["a", "b", "c", "d", "e"], DType::Float16),
        ] {
            let (found, rows) = packed(&path, columns, dtype, fill.clone());
            let value = |column: &str, row: i64| match column {
                "a" => (row % 7) as f64,
                "b" if nulls && row > 3000 && row % 17 == 0 => 9.0,
                "b" => (row * 3) as f64,
                "c" => row as f64 / 4.0,
                "d" if nulls && row > 3000 && row % 29 == 0 => 9.0,
                "d" => row as f64 * 0.5,
                "e" => (row * row % 1000) as f64,
                _ => (row % 300) as f64,
            };
            let mut expected = Vec::new();
            for (row, column) in rows.iter().flat_map(|row| columns.iter().map(move |column| (*row, *column))) {
                let value = value(column, row);
                match dtype {
                    DType::Float32 => expected.extend((value as f32).to_le_bytes()),
                    DType::Float64 => expected.extend(value.to_le_bytes()),
                    DType::Int64 => expected.extend((value as i64).to_le_bytes()),
                    DType::Uint8 => expected.push(value as u8),
                    _ => expected.extend(half::f16::from_f64(value).to_le_bytes()),
                }
            }
            assert_eq!(rows.len(), 5000 / 97 * 97);
            assert!(found == expected, "{columns:?} as {dtype}, nulls {nulls}");
            // A mask is made from columns only, and has no effect without nulls.
            if !nulls {
                assert!(packed(&path, columns, dtype, Nulls::Mask) == (found, rows), "{columns:?} as {dtype}, masked");
            }
        }
    }
}
