//! Checks that a destination is separate from the source: publishing replaces the destination, and a source is never modified.

use std::fs;
use std::path::{Path, PathBuf};

use crate::convert::read::listing::local_start;
use crate::convert::source::Source;
use crate::error::{Error, Result};

/// Returns the nearest existing path at or above `dst`, and whether it is `dst` itself.
fn nearest(dst: &Path) -> (PathBuf, bool) {
    let mut place = dst.to_owned();
    let mut exact = true;
    loop {
        match fs::canonicalize(&place) {
            Ok(found) => return (found, exact),
            Err(_) if place.pop() && place != Path::new("") => exact = false,
            Err(_) => return (std::env::current_dir().unwrap_or_default(), false),
        }
    }
}

/// Refuses a destination that is the source, inside it, or above it, before anything is opened.
///
/// # Errors
/// `Config` naming `dst`.
pub(crate) fn apart(src: &str, dst: &Path) -> Result<()> {
    let Some((start, whole)) = local_start(src) else { return Ok(()) };
    let Ok(start) = fs::canonicalize(start) else { return Ok(()) };
    let (place, exact) = nearest(dst);
    // Below the nearest existing directory there can be nothing of the source, unless that directory is inside it. Of a pattern only
    // the files count, which `spared` checks: `out` is not in `*.parquet`.
    let inside = whole && if start.is_dir() { place.starts_with(&start) } else { place == start };
    if inside {
        return Err(refused(dst, "is in the source"));
    }
    if exact && start.starts_with(&place) {
        return Err(refused(dst, "holds the source"));
    }
    Ok(())
}

/// Refuses a destination that contains a file of `source`, whether the source reaches it by a pattern or a link.
///
/// # Errors
/// `Config` naming `dst`.
pub(crate) fn spared(source: &dyn Source, dst: &Path) -> Result<()> {
    // A destination that does not exist yet holds no file of the source.
    let (place, true) = nearest(dst) else { return Ok(()) };
    let is_in = |path: &PathBuf| fs::canonicalize(path).is_ok_and(|path| path.starts_with(&place));
    match source.paths().iter().find(|path| is_in(path)) {
        Some(path) => Err(refused(dst, &format!("holds {} of the source", path.display()))),
        None => Ok(()),
    }
}

fn refused(dst: &Path, why: &str) -> Error {
    let problem = format!("{} {why}, which is never modified; choose a directory apart from it", dst.display());
    Error::config("dst", problem)
}
