//! What the destination of a conversion may be called: a directory of files, which people take for one file or a stream.

use std::fs;
use std::path::Path;

use crate::error::{Error, Result};

/// Endings of compressed files, and what they are without.
const PACKED: [(&str, &str); 5] = [(".gz", ""), (".zst", ""), (".bz2", ""), (".xz", ""), (".tgz", ".tar")];
/// Endings of formats whose files may be compressed as a whole.
const PLAIN: [&str; 6] = [".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".tar"];

/// Refuses a source or a destination that a conversion cannot have, before anything is opened.
///
/// # Errors
/// [`Error::Config`] saying what to write instead.
pub(crate) fn check(src: &str, dst: &Path) -> Result<()> {
    if src == "-" {
        let problem =
            "standard input is not read, since formats look at their files more than once; write it to a file first";
        return Err(Error::config("src", problem));
    }
    let wrong = |problem: String| Err(Error::config("dst", problem));
    let shown = dst.display();
    if dst == Path::new("-") {
        return wrong(
            "the destination is a directory of files, which standard output cannot take; name a directory".to_owned(),
        );
    }
    if fs::metadata(dst).is_ok_and(|found| !found.is_dir()) {
        return wrong(format!(
            "{shown} is a file, and the destination is a directory of files; name another, or remove it"
        ));
    }
    let name = dst.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let plain = PACKED.iter().find_map(|(ending, plain)| Some(format!("{}{plain}", name.strip_suffix(ending)?)));
    if let Some(plain) = plain.filter(|plain| PLAIN.iter().any(|format| plain.ends_with(format))) {
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
            ("-", "out", "standard input is not read"),
            ("x.csv", "-", "standard output cannot take"),
            ("x.csv", "a/out.csv.gz", "name it out.csv"),
            ("x.csv", "OUT.JSONL.ZST", "name it out.jsonl"),
            ("x.csv", "out.jsonl.xz", "name it out.jsonl"),
            ("x", "out.tar.gz", "name it out.tar"),
            ("x", "out.tgz", "name it out.tar"),
        ] {
            assert!(error(src, Path::new(dst)).contains(what), "{src} {dst}: {}", error(src, Path::new(dst)));
        }
        assert!(error("x", &file).contains("there.csv is a file"));
        for dst in ["out.csv", "out.tar", "shards.gz", "./-", "out"] {
            assert_eq!(error("./-", Path::new(dst)), "");
        }
        assert_eq!(error("x", directory.path()), "");
    }
}
