//! Changes of names: a file gets another one, or goes.

use std::fs;
use std::io;
use std::path::Path as FsPath;
use std::sync::Arc;

use object_store::ObjectStoreExt;
use object_store::path::Path;

use super::super::cache::{Saves, Target};
use super::super::directory::{failed, flush_name};
use super::super::place::Place;
use super::origins::{At, Origins, blocking, missing, saves};
use super::upload::{after_failure, at, before_later, check_later, end_until, is_replaced};
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
    if let (Some((all, old)), Some((_, new))) = (saves(place, from), saves(place, to))
        && rename_saved(origins, uploads, place, &all, (from, &old), (to, &new)).await?
    {
        return Ok(());
    }
    if let Some((_, old)) = saves(place, from) {
        // Of what was begun already the end is waited for.
        uploads.flush_if(|save| save.record.target == old, true).await?;
    }
    let url = place.url(from);
    let work = async {
        let turn = match saves(place, to) {
            Some((all, new)) => {
                let turn = all.turn_if_any(&new).await?;
                let last = before_later(&all, &new, place, to).await?;
                Some((turn, all, last))
            }
            None => None,
        };
        let copied = place.store.copy(from, to).await;
        if copied.is_err()
            && let Some((_, all, last)) = &turn
        {
            after_failure(all, last.clone()).await;
        }
        match copied {
            Err(object_store::Error::NotFound { .. }) => return Err(missing(&url)),
            copied => copied.map_err(|error| place.failed("copy", from, error))?,
        }
        if let Some((_, all, last)) = &turn {
            end_until(all, last.clone()).await?;
        }
        place.store.delete(from).await.map_err(|error| place.failed("remove", from, error))
    };
    origins.means.in_time(&url, work).await
}

/// Gives what was saved for `from`, and is not in its store yet, the address `to`; false if there is nothing, or it is on its way to the
/// store. The store loses its older version of `from` first: until the save has its new address, readers find it at the old one, also after
/// a failure or a kill, and a second attempt goes on from there.
async fn rename_saved(
    origins: &Origins,
    uploads: &Uploads,
    place: &Place,
    all: &Saves,
    (from, old): (&Path, &Target),
    (to, new): (&Path, &Target),
) -> Result<bool> {
    if at(all, old).await?.is_none() {
        return Ok(false);
    }
    // In one order, whoever moves what: of two that wait for each other both would fail.
    let (first, second) = if old.url < new.url { (old, new) } else { (new, old) };
    let _turns = (all.turn_if_any(first).await?, all.turn_if_any(second).await?);
    let (again, target) = (all.clone(), old.clone());
    blocking(move || again.end_replaced(&target)).await?;
    let Some(save) = at(all, old).await?.filter(|save| save.record.upload.is_none()) else { return Ok(false) };
    let removed = async {
        if is_replaced(place, from, &save).await? {
            let (all, save) = (all.clone(), save.clone());
            return blocking(move || all.end_one(&save)).await.map(|()| false);
        }
        check_later(all, place, from, &save).await?;
        // What is removed there is no sign that something came later.
        let (again, target) = (all.clone(), old.clone());
        blocking(move || again.note_before(&target, None)).await?;
        match place.store.delete(from).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(true),
            Err(error) => Err(place.failed("remove", from, error)),
        }
    };
    if !origins.means.in_time(&place.url(from), removed).await? {
        return Ok(false);
    }
    let found = uploads.found(place, to).await;
    let (all, new) = (all.clone(), new.clone());
    blocking(move || all.rename(&save, &new, found)).await
}

/// Checks that there is something at `path`, which gets the name that it has: a copy onto itself would be removed with its source.
async fn stays(origins: &Arc<Origins>, place: &Place, path: &Path) -> Result<()> {
    let is_saved = match saves(place, path) {
        Some((all, target)) => at(&all, &target).await?.is_some(),
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
        // What is saved from here on is not removed.
        let turn = match saves(&place, &path) {
            Some((all, target)) => {
                let turn = all.turn_if_any(&target).await?;
                let last = at(&all, &target).await?;
                Some((turn, all, last))
            }
            None => None,
        };
        let is_saved = matches!(turn, Some((.., Some(_))));
        match place.store.head(&path).await {
            Err(object_store::Error::NotFound { .. }) if is_saved => {}
            Err(object_store::Error::NotFound { .. }) => return Err(missing(&place.url(&path))),
            found => {
                found.map_err(|error| place.failed("look up", &path, error))?;
                place.store.delete(&path).await.map_err(|error| place.failed("remove", &path, error))?;
            }
        }
        // Last: until the store has lost its older version, that would be found again.
        if let Some((_, all, last)) = &turn {
            end_until(all, last.clone()).await?;
        }
        Ok(())
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
