//! The number of rows of a dataset, counted without reading one: an independent check that a conversion lost none.
//!
//! | format | counted |
//! |---|---|
//! | Parquet, Petastorm | rows in the footers |
//! | Arrow, `datasets` | lengths in the heads of the batches; in a file, as many batches as its footer lists |
//! | TFRecord | frames, by their lengths |
//! | WebDataset | members, where the name before the dot changes |
//! | MDS | samples in the index |
//! | images, NumPy | files |
//! | CSV, TSV | line ends outside of quotes, without the header |
//! | JSON Lines | lines that are not blank |
//!
//! For Parquet, Petastorm and MDS, the tasks' own counts are compared with footers and indexes, so this is the same number again, of
//! other files: the written ones.
//!
//! No value is decoded, and apart from framing and decompression no code is shared with the readers that deliver rows.

use crate::convert::budget::Progress;
use crate::convert::format::Format;
use crate::convert::formats::tar::TarReader;
use crate::convert::formats::{frames, images, numpy, tfrecord};
use crate::convert::limits::Limits;
use crate::convert::read::files::Found;
use crate::convert::read::input::Input;
use crate::convert::read::listing::Listing;
use crate::convert::source::{Opening, Source};
use crate::error::Result;

/// Counts the rows of the dataset at `src`, which `source` reads.
///
/// # Errors
/// Those of finding and opening its files; `Corrupt` for incomplete data; `Closed` if `progress` was asked to stop.
pub(crate) fn rows(src: &str, source: &dyn Source, opening: &Opening, progress: &Progress) -> Result<u64> {
    let format = source.format();
    let limits = &opening.limits;
    if matches!(format, Format::Parquet | Format::Petastorm | Format::Mds) {
        return Ok(source.shards().iter().filter_map(|shard| shard.rows).sum());
    }
    let tree = Listing::open(src, &opening.storage_options, opening.read_bytes)?;
    if matches!(format, Format::Images | Format::Numpy) {
        let arrays = |name: &str| numpy::codec(name).is_some();
        let accept: &dyn Fn(&str) -> bool = if format == Format::Images { &images::is_image } else { &arrays };
        return Ok(tree.list(limits, accept)?.len() as u64);
    }
    let files = match tree.file()? {
        Some(file) => vec![file],
        None => {
            // Pieces of one file are `NAME@PIECE`.
            let name = |id: &str| match format {
                Format::Jsonl => id.rsplit_once('@').map_or(id, |(name, _)| name).to_owned(),
                _ => id.to_owned(),
            };
            let mut names: Vec<String> = source.shards().iter().map(|shard| name(&shard.id)).collect();
            names.dedup();
            tree.find(&names)?
        }
    };
    let count = |found: &Found| match format {
        Format::Arrow | Format::Datasets => frames::count(found, progress),
        Format::Tfrecord => tfrecord::count(found, limits, progress),
        Format::Webdataset => samples(found, limits, progress),
        Format::Csv | Format::Tsv => records(found, format.separator().unwrap_or(b','), progress),
        _ => lines(found, progress),
    };
    files.iter().map(count).sum()
}

/// Counts the samples of a tar file: runs of members with the same name up to the first dot.
fn samples(found: &Found, limits: &Limits, progress: &Progress) -> Result<u64> {
    let mut reader = TarReader::of(found, limits)?;
    let (mut last, mut samples) = (None, 0);
    while let Some(entry) = reader.entry()? {
        progress.go_on()?;
        let (above, name) = entry.name.rsplit_once('/').unwrap_or(("", &entry.name));
        let Some((key, column)) = name.split_once('.') else { continue };
        if key.is_empty() || column.is_empty() {
            continue;
        }
        let key = Some((above.to_owned(), key.to_owned()));
        samples += u64::from(key != last);
        last = key;
    }
    Ok(samples)
}

/// Calls `each` with every byte of a decompressed file, except a byte-order mark.
fn bytes(found: &Found, progress: &Progress, mut each: impl FnMut(u8)) -> Result<()> {
    let mut input = Input::open(found, false)?;
    if input.peek()?.starts_with(&[0xef, 0xbb, 0xbf]) {
        input.skip(3)?;
    }
    loop {
        progress.go_on()?;
        let buffer = input.peek()?;
        if buffer.is_empty() {
            return Ok(());
        }
        let len = buffer.len();
        buffer.iter().copied().for_each(&mut each);
        input.consume(len);
    }
}

/// Counts the lines of a file that are not blank.
fn lines(found: &Found, progress: &Progress) -> Result<u64> {
    let (mut lines, mut blank) = (0, true);
    bytes(found, progress, |byte| match byte {
        b'\n' => {
            lines += u64::from(!blank);
            blank = true;
        }
        byte => blank &= byte.is_ascii_whitespace(),
    })?;
    Ok(lines + u64::from(!blank))
}

/// Counts the records of a CSV file, without the header. A blank line is none.
fn records(found: &Found, separator: u8, progress: &Progress) -> Result<u64> {
    let (mut records, mut quoted, mut at_start) = (0_u64, false, true);
    // Length of the line so far, without a trailing carriage return, and whether there is one.
    let (mut len, mut carriage) = (0_u64, false);
    bytes(found, progress, |byte| {
        if byte == b'\n' && !quoted {
            records += u64::from(len > 0);
            (len, carriage, at_start) = (0, false, true);
            return;
        }
        len += u64::from(carriage);
        carriage = byte == b'\r' && !quoted;
        len += u64::from(!carriage);
        match byte {
            // A quote ends a quoted cell; a second one resumes it.
            b'"' if quoted => (quoted, at_start) = (false, true),
            b'"' if at_start => quoted = true,
            byte => at_start = byte == separator && !quoted || at_start && quoted,
        }
    })?;
    let last = u64::from(len > 0);
    Ok((records + last).saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_and_lines_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.csv");
        let found = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Found::of(&path).unwrap()
        };
        for (text, count) in [
            ("a,b\n1,2\n3,4\n", 2),
            ("a,b\r\n1,2\r\n\r\n3,4", 2),
            ("\n\na,b\n\n1,2\n\n", 1),
            ("a,b\n\"x\ny\",\"a\"\"\nb\"\n3,4\n", 2),
            ("a,b\nx\"y,2\n3,it\"s\n", 2),
            ("a,b\n\"\",\"\"\n", 1),
            ("a\n\n1\n\r\n\r", 1),
            ("a\n\"\"\n", 1),
            ("\u{feff}a,b\n1,2", 1),
            ("a,b\n", 0),
            ("a,b", 0),
        ] {
            assert_eq!(records(&found(text), b',', &Progress::default()).unwrap(), count, "{text:?}");
        }
        for (text, count) in [("{}\n{}\n", 2), ("{}\n \t\r\n{}", 2), ("", 0), ("\n", 0)] {
            assert_eq!(lines(&found(text), &Progress::default()).unwrap(), count, "{text:?}");
        }
        let stopped = Progress::default();
        stopped.stop();
        assert!(matches!(lines(&found("{}\n"), &stopped), Err(crate::Error::Closed { .. })));
    }
}
