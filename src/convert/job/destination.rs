//! Valid names of a conversion's destination: a directory of files, which users may mistake for one file or a stream.

use std::fs;
use std::path::Path;

use crate::convert::format::Format;
use crate::error::{Error, Result};

/// Extensions of compressed files, and the extensions without the compression.
const PACKED: [(&str, &str); 12] = [
    (".gz", ""),
    (".gzip", ""),
    (".bgz", ""),
    (".zst", ""),
    (".zstd", ""),
    (".bz2", ""),
    (".xz", ""),
    (".lz4", ""),
    (".br", ""),
    (".zz", ""),
    (".snappy", ""),
    (".tgz", ".tar"),
];

/// Refuses an invalid source or destination before anything is opened.
///
/// # Errors
/// [`Error::Config`] saying what to use instead.
pub(crate) fn check(src: &str, dst: &Path) -> Result<()> {
    if src == "-" {
        let problem = "standard input is read by the command line alone; name a file";
        return Err(Error::config("src", problem));
    }
    // A pipe can be read only once, and its length is 0.
    if fs::metadata(src).is_ok_and(|found| !found.is_dir() && !found.is_file()) {
        let problem = format!(
            "{src} is neither a file nor a directory; give a file, or - on the command line for standard input"
        );
        return Err(Error::config("src", problem));
    }
    let wrong = |problem: String| Err(Error::config("dst", problem));
    let shown = dst.display();
    if dst == Path::new("-") {
        return wrong("standard output is written by the command line alone; name a directory".to_owned());
    }
    if fs::metadata(dst).is_ok_and(|found| !found.is_dir()) {
        return wrong(format!(
            "{shown} is a file, and the destination is a directory of files; name another, or remove it"
        ));
    }
    let name = dst.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let plain = PACKED.iter().find_map(|(ending, plain)| Some(format!("{}{plain}", name.strip_suffix(ending)?)));
    if let Some(plain) = plain.filter(|plain| Format::of_destination(Path::new(plain)).is_some()) {
        return wrong(format!(
            "{shown} is the name of one compressed file, and the destination is a directory of files; name it {plain}, and ask for \
             compressed files by `compression`"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_that_is_no_directory_is_refused_with_what_to_write() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("there.csv");
        fs::write(&file, "x").unwrap();
        let error = |src: &str, dst: &Path| check(src, dst).err().map(|error| error.to_string()).unwrap_or_default();
        for (src, dst, what) in [
            ("-", "out", "the command line alone; name a file"),
            ("x.csv", "-", "the command line alone; name a directory"),
            ("x.csv", "a/out.csv.gz", "name it out.csv"),
            ("x.csv", "OUT.JSONL.ZST", "name it out.jsonl"),
            ("x.csv", "out.jsonl.xz", "name it out.jsonl"),
            ("x", "out.tar.gz", "name it out.tar"),
            ("x", "out.tgz", "name it out.tar"),
            ("x", "out.tfrecord.gz", "name it out.tfrecord"),
            ("x", "out.parquet.zstd", "name it out.parquet"),
        ] {
            assert!(error(src, Path::new(dst)).contains(what), "{src} {dst}: {}", error(src, Path::new(dst)));
        }
        assert!(error("/dev/null", Path::new("out")).contains("neither a file nor a directory"));
        assert!(error("x", &file).contains("there.csv is a file"));
        for dst in ["out.csv", "out.tar", "shards.gz", "./-", "out"] {
            assert_eq!(error("./-", Path::new(dst)), "");
        }
        assert_eq!(error("x", directory.path()), "");
    }
}
