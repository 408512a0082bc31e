//! The list of a published dataset's files, `_files` beside `_SUCCESS`, and the check that the files still match it.
//!
//! A line of `_files` has a file's name, its size and its SHA-256. `_SUCCESS` has the SHA-256 of the list itself, so that it stays
//! small even for a million files.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::convert::budget::Progress;
use crate::convert::options::Packing;
use crate::convert::parallel::parallel;
use crate::convert::rolling::Output;
use crate::error::Result;
use crate::hex;
use crate::store::directory::{FILES, failed, names, remove};

/// A line of the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Line {
    name: String,
    bytes: u64,
    sha256: String,
}

/// Writes the list of the files of `data`, and flushes it. Returns its summary for `_SUCCESS`.
pub(crate) fn list(data: &Path, threads: usize, progress: &Progress) -> Result<Value> {
    let path = data.join(FILES);
    remove(&path)?;
    let names = names(data, false)?;
    let lines = Mutex::new(vec![None; names.len()]);
    let all: Vec<usize> = (0..names.len()).collect();
    parallel(threads, &all, progress, |number| {
        let Some(name) = names.get(number) else { return Ok(()) };
        let (bytes, sha256) = digest(&data.join(name))?;
        if let Some(line) = lines.lock().unwrap_or_else(PoisonError::into_inner).get_mut(number) {
            *line = Some(Line { name: name.clone(), bytes, sha256 });
        }
        Ok(())
    })?;
    let mut output = Output::create(&path, Packing::None)?;
    let (mut files, mut bytes) = (0_u64, 0_u64);
    for line in lines.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten() {
        let mut text = serde_json::to_vec(&line).map_err(|error| failed("write", &path, error))?;
        text.push(b'\n');
        output.put(&text)?;
        (files, bytes) = (files + 1, bytes + line.bytes);
    }
    output.close_on_disk()?;
    let (_, sha256) = digest(&path)?;
    Ok(json!({ "files": files, "bytes": bytes, "sha256": sha256 }))
}

/// Returns the first difference between `directory` and the list of its `_SUCCESS`; `None` if there is none.
pub(crate) fn difference(directory: &Path, success: &Value, threads: usize) -> Result<Option<String>> {
    let Some(expected) = success.pointer("/contents/sha256").and_then(Value::as_str) else {
        return Ok(Some("it has no list of its files, since an earlier version wrote it".to_owned()));
    };
    let path = directory.join(FILES);
    let file = match digest(&path).and_then(|found| Ok((found, open(&path)?))) {
        Ok(((_, found), file)) if found == expected => file,
        _ => return Ok(Some(format!("its list {FILES} is missing or changed"))),
    };
    let mut lines: Vec<Line> = Vec::new();
    for text in BufReader::new(file).lines() {
        let line = text.and_then(|text| serde_json::from_str(&text).map_err(io::Error::from));
        lines.push(line.map_err(|error| failed("read", &path, error))?);
    }
    let names = names(directory, false)?;
    let listed = |name: &String| lines.binary_search_by(|line| line.name.cmp(name)).is_ok();
    if let Some(more) = names.iter().find(|name| !listed(name)) {
        return Ok(Some(format!("{more} was added")));
    }
    let wrong = Mutex::new(None);
    let all: Vec<usize> = (0..lines.len()).collect();
    parallel(threads, &all, &Progress::default(), |number| {
        let Some(line) = lines.get(number) else { return Ok(()) };
        let path = directory.join(&line.name);
        let what = match fs::metadata(&path) {
            Err(_) => Some("is missing"),
            Ok(found) if !found.is_file() || found.len() != line.bytes => Some("has another size"),
            Ok(_) if digest(&path)?.1 != line.sha256 => Some("has other content"),
            Ok(_) => None,
        };
        if let Some(what) = what {
            let mut wrong = wrong.lock().unwrap_or_else(PoisonError::into_inner);
            wrong.get_or_insert_with(|| format!("{} {what}", line.name));
        }
        Ok(())
    })?;
    Ok(wrong.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|error| failed("open", path, error))
}

/// Returns the size of a file, and its digest.
fn digest(path: &Path) -> Result<(u64, String)> {
    let mut file = open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 256 << 10];
    let mut bytes = 0;
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => {
                hash.update(buffer.get(..read).unwrap_or_default());
                bytes += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed("read", path, error)),
        }
    }
    Ok((bytes, hex::of(hash.finalize())))
}
