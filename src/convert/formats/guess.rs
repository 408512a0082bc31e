//! Detection of a path's format from names and first bytes.

use std::cell::RefCell;

use super::images;
use crate::convert::format::{self, Format};
use crate::convert::limits::Limits;
use crate::convert::read::files::{self, Found};
use crate::convert::read::listing::Listing;
use crate::error::{Error, Result};
use crate::store::Names;

/// Directories of a store that are searched for its format.
const LOOKED_INTO: usize = 16;

/// Levels of `key=value` directories in each of them.
const DEEP: usize = 8;

/// Detects the format at `tree` from names and first bytes.
///
/// # Errors
/// `Config` if the format cannot be determined, or there are several; `Unsupported` for Lance; `Store`.
pub(crate) fn format(tree: &Listing) -> Result<Format> {
    let path = tree.shown();
    let unknown = || {
        let problem = format!("what {path} holds cannot be told from its names; give the format with --from");
        Error::config("from", problem)
    };
    let lance = |name: &str| name.ends_with(".lance") || name == "_versions";
    if let Some(file) = tree.file()? {
        if lance(&file.name) {
            return Err(format::lance());
        }
        return Format::of_name(&file.name).or_else(|| of_magic(&file)).ok_or_else(unknown);
    }
    let Names { files: names, mut directories } = tree.names("")?;
    let has = |name: &str| names.iter().any(|found| found == name);
    if lance(path.trim_end_matches('/')) || directories.iter().any(|name| lance(name)) {
        return Err(format::lance());
    }
    if has("index.json") {
        return Ok(Format::Mds);
    }
    if has("dataset_dict.json") || has("state.json") && has("dataset_info.json") {
        return Ok(Format::Datasets);
    }
    if has("_common_metadata") {
        return Ok(Format::Parquet);
    }
    directories.retain(|name| !files::is_hidden(name));
    directories.sort_unstable();
    let examples = examples(tree, &names, &directories)?;
    let mut found = examples.iter();
    match (found.next(), found.next()) {
        (None, _) if directories.iter().any(|name| name.contains('=')) => {
            // Files without an ending, as some engines write Parquet.
            Ok(Format::Parquet)
        }
        (None, _) => Err(unknown()),
        (Some((format, _)), None) => Ok(*format),
        _ => {
            let found: Vec<String> = examples.iter().map(|(format, name)| format!("{format} ({name})")).collect();
            let problem =
                format!("{path} holds more than one format: {}; say with --from which one is meant", found.join(", "));
            Err(Error::config("from", problem))
        }
    }
}

/// Returns the formats of a directory's files, each with the first file by name. Images count only in subdirectories, which are their
/// classes.
fn examples(tree: &Listing, names: &[String], directories: &[String]) -> Result<Vec<(Format, String)>> {
    let found: RefCell<Vec<(Format, String)>> = RefCell::default();
    let see = |name: &str| {
        let own = name.rsplit('/').next().unwrap_or(name);
        let image = || (name.contains('/') && images::is_image(own)).then_some(Format::Images);
        let Some(format) = Format::of_name(own).or_else(|| Format::of_name(name)).or_else(image) else { return };
        let mut found = found.borrow_mut();
        match found.iter_mut().find(|(known, _)| *known == format) {
            Some((_, first)) if first.as_str() <= name => {}
            Some((_, first)) => name.clone_into(first),
            None => found.push((format, name.to_owned())),
        }
    };
    if let Listing::Local(_) = tree {
        // Lists all names; nothing is opened.
        tree.select(&Limits::default(), &|name| {
            see(name);
            false
        })?;
    } else {
        names.iter().filter(|name| !files::is_hidden(name)).for_each(|name| see(name));
        for directory in directories.iter().take(LOOKED_INTO) {
            let mut directory = directory.clone();
            for _ in 0..DEEP {
                let Ok(mut inner) = tree.names(&directory) else { break };
                inner.files.retain(|name| !files::is_hidden(name));
                inner.files.iter().for_each(|name| see(&format!("{directory}/{name}")));
                // Of partitions within partitions, the first one.
                let deeper = inner.directories.iter().filter(|name| name.contains('=')).min();
                let Some(deeper) = deeper.filter(|_| inner.files.is_empty()) else { break };
                directory = format!("{directory}/{deeper}");
            }
        }
    }
    let mut found = found.into_inner();
    found.sort_by(|(_, a), (_, b)| a.cmp(b));
    Ok(found)
}

/// Detects a format from the first bytes of a file.
fn of_magic(file: &Found) -> Option<Format> {
    match file.start().ok()?.as_slice() {
        [b'P', b'A', b'R', b'1', ..] => Some(Format::Parquet),
        [b'A', b'R', b'R', b'O', b'W', b'1', ..] => Some(Format::Arrow),
        [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => Some(Format::Numpy),
        _ => None,
    }
}
