//! Changes of names: a file gets another one, or goes.

use std::fs;
use std::io;
use std::path::Path as FsPath;
use std::sync::Arc;

use object_store::ObjectStoreExt;
use object_store::path::Path;

use super::super::directory::{failed, flush_name};
use super::super::place::Place;
use super::origins::{At, Origins, blocking, missing, saves};
use super::upload::before_later;
use super::uploads::Uploads;
use crate::error::{Error, Result};

/// See [`FileSystem::rename`](super::FileSystem::rename).
pub(super) fn rename(origins: &Arc<Origins>, uploads: &Uploads, from: &str, to: &str) -> Result<()> {
    match (origins.at(from)?, origins.at(to)?) {
        (At::Here(from, _), At::Here(to, _)) => rename_here(&from, &to),
        (At::Store(place, from), At::Store(other, to)) if place.is_same(&other) => {
            // An upload that is waited for has deadlines of its own.
            origins.means.run(rename_stored(origins, uploads, &place, &from, &to))
        }
        _ => Err(Error::unsupported(format!("to move {from} to another store"), "read it and save it there")),
    }
}

fn rename_here(from: &FsPath, to: &FsPath) -> Result<()> {
    let one = |path| fs::canonicalize(path).ok();
    let leads_to = fs::symlink_metadata(from).is_ok_and(|found| found.is_symlink()) && from != to;
    if leads_to && one(from).is_some_and(|file| one(to) == Some(file)) {
        let problem = format!("{} is a link that leads to {}, and would take its place", from.display(), to.display());
        return Err(Error::config("urls", problem));
    }
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(from).is_err() => {
            Err(missing(&from.display().to_string()))
        }
        renamed => renamed.map_err(|error| failed("rename", from, error)),
    }?;
    [from, to].into_iter().try_for_each(flush_name)
}

async fn rename_stored(origins: &Arc<Origins>, uploads: &Uploads, place: &Place, from: &Path, to: &Path) -> Result<()> {
    if let Some(none) = [from, to].into_iter().find(|path| path.as_ref().is_empty()) {
        // A request for it would be one for the bucket.
        return Err(Error::config("urls", format!("{} is no address of a file", place.url(none))));
    }
    if from == to {
        return stays(origins, place, from).await;
    }
    if let (Some((all, old)), Some((_, new))) = (saves(place, from), saves(place, to)) {
        let _turn = all.turn_if_any(&old).await?;
        if let Some(save) = all.at(&old)? {
            let (all, save, new) = (all.clone(), save, new.clone());
            if blocking(move || all.rename(&save, &new)).await? {
                // What it was to replace there goes with the name.
                return match place.store.delete(from).await {
                    Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                    Err(error) => Err(place.failed("remove", from, error)),
                };
            }
        }
    }
    if let Some((_, old)) = saves(place, from) {
        // Of what was begun already the end is waited for.
        uploads.flush_if(|save| save.record.target == old, true).await?;
    }
    let url = place.url(from);
    let work = async {
        let turn = match saves(place, to) {
            Some((all, new)) => Some((all.turn_if_any(&new).await?, all, new)),
            None => None,
        };
        if let Some((_, all, new)) = &turn {
            before_later(all, new, place, to).await?;
        }
        match place.store.copy(from, to).await {
            Err(object_store::Error::NotFound { .. }) => return Err(missing(&url)),
            copied => copied.map_err(|error| place.failed("copy", from, error))?,
        }
        if let Some((_, all, new)) = &turn {
            all.end_all(new)?;
        }
        place.store.delete(from).await.map_err(|error| place.failed("remove", from, error))
    };
    origins.means.in_time(&url, work).await
}

/// Checks that there is something at `path`, which gets the name that it has: a copy onto itself would be removed with its source.
async fn stays(origins: &Arc<Origins>, place: &Place, path: &Path) -> Result<()> {
    let is_saved = match saves(place, path) {
        Some((all, target)) => all.at(&target)?.is_some(),
        None => false,
    };
    let url = place.url(path);
    let look = async {
        match place.store.head(path).await {
            Err(object_store::Error::NotFound { .. }) if is_saved => Ok(()),
            Err(object_store::Error::NotFound { .. }) => Err(missing(&url)),
            found => found.map(drop).map_err(|error| place.failed("look up", path, error)),
        }
    };
    origins.means.in_time(&url, look).await
}

/// See [`FileSystem::remove`](super::FileSystem::remove).
pub(super) fn remove(origins: &Arc<Origins>, url: &str) -> Result<()> {
    let (place, path) = match origins.at(url)? {
        At::Here(path, _) => {
            return match fs::remove_file(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Err(missing(&path.display().to_string())),
                removed => removed.map_err(|error| failed("remove", &path, error)),
            };
        }
        At::Store(place, path) => (place, path),
    };
    origins.run(url, async {
        let turn = match saves(&place, &path) {
            Some((all, target)) => Some((all.turn_if_any(&target).await?, all, target)),
            None => None,
        };
        let was_saved = match &turn {
            Some((_, all, target)) => all.end_all(target)?,
            None => false,
        };
        match place.store.head(&path).await {
            Err(object_store::Error::NotFound { .. }) if was_saved => return Ok(()),
            Err(object_store::Error::NotFound { .. }) => return Err(missing(&place.url(&path))),
            found => found.map_err(|error| place.failed("look up", &path, error))?,
        };
        place.store.delete(&path).await.map_err(|error| place.failed("remove", &path, error))
    })
}

/// Removes what is at `path` of this machine, without what links lead to.
pub(super) fn remove_tree(path: &FsPath) -> Result<()> {
    let shown = path.display().to_string();
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(missing(&shown)),
        found => found.map_err(|error| failed("look up", path, error))?,
    };
    let removed = if found.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.map_err(|error| failed("remove", path, error))
}

/// See [`FileSystem::make_directory`](super::FileSystem::make_directory).
pub(super) fn make_directory(origins: &Arc<Origins>, url: &str) -> Result<()> {
    match origins.at(url)? {
        At::Here(path, _) => fs::create_dir_all(&path).map_err(|error| failed("create", &path, error)),
        At::Store(..) => Ok(()),
    }
}
