//! The address of a source, as one that leads nowhere else. Files elsewhere may have the same names, sizes and times: archives that are
//! made to be reproducible have the same time for all files.

use std::fs;
use std::path::Path;

use crate::convert::read::listing::local_start;
use crate::store::glob;

/// Returns the address of `src` without credentials; of a local one the path without links.
pub(crate) fn address(src: &str) -> String {
    let Some((start, whole)) = local_start(src) else { return crate::store::display(src) };
    let path = fs::canonicalize(&start).or_else(|_| std::path::absolute(&start)).unwrap_or(start);
    let path = if whole { path } else { path.join(glob::split(src).1) };
    path.to_string_lossy().into_owned()
}

/// Returns true if `recorded` is the address of another source than that at `own`. Former versions recorded paths as they were given:
/// a relative one tells nothing.
pub(crate) fn is_other(recorded: &str, own: &str) -> bool {
    let known = recorded.contains("://") || Path::new(recorded).is_absolute();
    known && address(recorded) != own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_source_has_one_address() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name).to_string_lossy().into_owned();
        fs::create_dir(at("v1")).unwrap();
        fs::create_dir(at("v2")).unwrap();
        let v1 = address(&at("v1"));
        for same in [at("v1/"), at("v2/../v1"), format!("file://{}", at("v1")), v1.clone()] {
            assert_eq!(address(&same), v1, "{same}");
            assert!(!is_other(&same, &v1), "{same}");
        }
        assert!(is_other(&at("v2"), &v1) && is_other(&at("gone"), &v1) && is_other("s3://bucket/v1", &v1));
        assert!(!is_other("v2", &v1), "given relative to an unknown directory");
        assert!(is_other(&at("v1/*.csv"), &v1) && !is_other(&at("v1/*.csv"), &address(&at("v2/../v1/*.csv"))));
        assert_eq!(address("s3://key:secret@bucket/a"), crate::store::display("s3://key:secret@bucket/a"));
    }
}
