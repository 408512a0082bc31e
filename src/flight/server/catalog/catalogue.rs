//! Datasets by name, and the catalogue that a running server serves.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use tokio::time::Instant;

use super::entry::{ClientLimits, Entry};
use crate::error::{Error, Result};
use crate::nearest::distance;
use crate::pipeline::PreparedPlan;
use crate::store::Mounts;

/// Similar names listed in the error for an unknown one.
const NEAR: usize = 5;

/// Most names that an unknown one is compared with, because a comparison takes time in proportion to their letters.
const COMPARED: usize = 500;

/// Datasets that are opened at once by a check.
const OPENED_AT_ONCE: usize = 4;

/// Datasets by name.
#[derive(Debug, Clone, Default)]
pub struct Catalogue {
    entries: BTreeMap<String, Entry>,
    /// Those of the configuration.
    mounts: Option<Arc<Mounts>>,
}

impl Catalogue {
    /// Lets the datasets, those here and those to come, have `mounts`.
    pub fn set_mounts(&mut self, mounts: Arc<Mounts>) {
        self.entries.values_mut().for_each(|entry| entry.set_mounts(Arc::clone(&mounts)));
        self.mounts = Some(mounts);
    }

    /// The mounts of the configuration.
    pub fn mounts(&self) -> Option<&Arc<Mounts>> {
        self.mounts.as_ref()
    }

    /// Adds the dataset `name` at `urls`, with default options.
    ///
    /// # Errors
    /// [`Error::Config`] if the name is taken or invalid, or `urls` is empty.
    pub fn add(&mut self, name: &str, urls: Vec<String>) -> Result<()> {
        self.insert(Entry::new(name, urls, serde_json::Map::new(), ClientLimits::default())?)
    }

    /// Adds a dataset.
    ///
    /// # Errors
    /// [`Error::Config`] if the name is taken.
    pub fn insert(&mut self, mut entry: Entry) -> Result<()> {
        if let Some(mounts) = &self.mounts {
            entry.set_mounts(Arc::clone(mounts));
        }
        let name = entry.name().to_owned();
        if self.entries.contains_key(&name) {
            return Err(Error::config(
                "datasets",
                format!("two datasets are named {name}; write NAME=URL to name them"),
            ));
        }
        self.entries.insert(name, entry);
        Ok(())
    }

    /// Returns the dataset `name`.
    ///
    /// # Errors
    /// [`Error::NotFound`] with the most similar names.
    pub fn get(&self, name: &str) -> Result<&Entry> {
        self.entries.get(name).ok_or_else(|| {
            let shown: String = name.chars().take(128).collect();
            let compared = self.names().take(COMPARED);
            let mut near: Vec<_> = compared.map(|known| (distance(known, &shown), known)).collect();
            near.sort_unstable();
            let names: Vec<_> = near.iter().take(NEAR).map(|(_, known)| *known).collect();
            let more = if self.entries.len() > NEAR { ", ..." } else { "" };
            let has = match names[..] {
                [] => "only datasets that were written to it".to_owned(),
                _ => format!("{}{more}", names.join(", ")),
            };
            Error::NotFound { what: format!("dataset {shown:?}"), hint: format!("this server has {has}") }
        })
    }

    /// Refuses a dataset that is written to the server under a name of the catalogue, whose rows readers of that name would get.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub(crate) fn check_free(&self, name: &str) -> Result<()> {
        if !self.entries.contains_key(name) {
            return Ok(());
        }
        let problem =
            format!("{name} is of the server's catalogue: its files are its owner's; write under another name");
        Err(Error::config("dataset", problem))
    }

    /// Returns the names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Returns the datasets, in order of their names.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// Opens and closes each dataset, so that the operator sees at start any error that the first client would see. Reads footers but
    /// no rows: of filters and windows it tries the columns only.
    ///
    /// # Errors
    /// Those of opening, naming the dataset and the file.
    pub async fn check(&self) -> Result<()> {
        let checks = self.entries.values().map(|entry| async {
            let mut options = entry.options(&serde_json::Value::Null)?;
            (options.rank, options.world_size) = (Some(0), Some(1));
            // Clients say how large batches are: here as small as the plan may have them.
            (options.batch_size, options.global_batch_size) = (Some(u64::from(options.lanes.unwrap_or(1))), None);
            PreparedPlan::check(&options).await.map_err(|error| {
                tracing::error!(dataset = entry.name(), "a dataset cannot be opened");
                named(entry.name(), error)
            })
        });
        futures::stream::iter(checks).buffered(OPENED_AT_ONCE).try_collect().await
    }

    /// Returns true if there are no datasets.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// Returns `error` with the dataset's name where its text says what to correct: several datasets may have the same option.
fn named(dataset: &str, error: Error) -> Error {
    match error {
        Error::NotFound { what, hint } => Error::NotFound { what: format!("dataset {dataset}: {what}"), hint },
        Error::Config { option, problem } => Error::Config { option, problem: format!("dataset {dataset}: {problem}") },
        Error::Mismatch { what, expected, found, hint } => {
            Error::Mismatch { what: format!("dataset {dataset}: {what}"), expected, found, hint }
        }
        other => other,
    }
}

/// The catalogue that a server has at the moment. Clones share it. It can be replaced while the server runs: streams that have begun
/// continue with the data they were given.
#[derive(Debug, Clone)]
pub struct Current(Arc<RwLock<Standing>>);

/// A catalogue, and the time of its installation if it replaced another one.
#[derive(Debug)]
struct Standing {
    catalogue: Arc<Catalogue>,
    since: Option<Instant>,
}

impl Current {
    /// Begins with `catalogue`.
    pub fn new(catalogue: Catalogue) -> Self {
        Self(Arc::new(RwLock::new(Standing { catalogue: Arc::new(catalogue), since: None })))
    }

    /// Returns the current catalogue.
    pub fn get(&self) -> Arc<Catalogue> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner).catalogue)
    }

    /// Replaces the current catalogue.
    pub(crate) fn replace(&self, catalogue: Catalogue) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) =
            Standing { catalogue: Arc::new(catalogue), since: Some(Instant::now()) };
    }

    /// Returns how long knowledge of files stays valid: for `refresh`, and not beyond the replacement of the catalogue.
    pub(crate) fn patience(&self, refresh: Duration) -> Patience {
        Patience { refresh, since: self.0.read().unwrap_or_else(PoisonError::into_inner).since }
    }
}

/// How long knowledge of files stays valid.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    refresh: Duration,
    /// The time of the last reload: files that were seen before it are looked at again.
    since: Option<Instant>,
}

impl Patience {
    /// Returns the same with at most `refresh`.
    pub(crate) fn at_most(self, refresh: Duration) -> Self {
        Self { refresh: self.refresh.min(refresh), ..self }
    }

    /// Returns the same with at least `refresh`.
    pub(crate) fn at_least(self, refresh: Duration) -> Self {
        Self { refresh: self.refresh.max(refresh), ..self }
    }

    /// Returns true if a reload came after files were seen at `looked`.
    pub(crate) fn is_outdated(self, looked: Instant) -> bool {
        self.since.is_some_and(|since| looked < since)
    }

    /// Returns true if files that were seen at `looked` count as unchanged without another look.
    pub(crate) fn lasts(self, looked: Instant) -> bool {
        !self.is_outdated(looked) && looked.elapsed() < self.refresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn another_catalogue_takes_the_place_and_files_are_looked_at_anew() {
        let of = |name: &str| {
            let mut catalogue = Catalogue::default();
            catalogue.add(name, vec!["x".into()]).unwrap();
            catalogue
        };
        let (current, minute) = (Current::new(of("old")), Duration::from_secs(60));
        let (other, held) = (current.clone(), current.get());
        let seen = Instant::now();
        let (lasts, outdated) =
            (|seen| current.patience(minute).lasts(seen), |seen| current.patience(minute).is_outdated(seen));
        tokio::time::advance(Duration::from_secs(7)).await;
        assert!(lasts(seen) && !outdated(seen));
        current.replace(of("new"));
        assert!(other.get().get("new").is_ok() && other.get().get("old").is_err());
        assert!(held.get("old").is_ok(), "who has it keeps it");
        assert!(!lasts(seen) && outdated(seen));
        let again = Instant::now();
        tokio::time::advance(Duration::from_secs(7)).await;
        assert!(lasts(again) && !outdated(again));
        assert!(!current.patience(minute).at_most(Duration::from_secs(7)).lasts(again));
        tokio::time::advance(2 * minute).await;
        assert!(!lasts(again) && !outdated(again), "it is old, but of this catalogue");
    }

    #[test]
    fn a_name_that_is_not_found_costs_little_among_many() {
        let mut catalogue = Catalogue::default();
        for number in 0..20_000 {
            catalogue.add(&format!("{number:0>100}"), vec!["x".into()]).unwrap();
        }
        let begun = std::time::Instant::now();
        let error = catalogue.get(&"z".repeat(10_000)).unwrap_err().to_string();
        assert!(error.contains(", ..."), "{error}");
        // To compare all of them letter by letter takes minutes, and this a tenth of a second on an idle machine.
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    }

    #[test]
    fn names_are_found_or_the_nearest_told() {
        let mut catalogue = Catalogue::default();
        for name in ["photos", "photos-2026", "clicks", "texts"] {
            catalogue.add(name, vec![format!("/data/{name}")]).unwrap();
        }
        assert_eq!(catalogue.get("clicks").unwrap().name(), "clicks");
        let error = catalogue.get("photo").unwrap_err().to_string();
        assert_eq!(error, "dataset \"photo\" not found; this server has photos, texts, clicks, photos-2026");
        let error = Catalogue::default().get("photo").unwrap_err().to_string();
        assert_eq!(error, "dataset \"photo\" not found; this server has only datasets that were written to it");
        assert!(catalogue.add("clicks", vec!["x".into()]).is_err());
        for name in ["", ".", "a/b", "a b", "ä"] {
            assert!(catalogue.add(name, vec!["x".into()]).is_err(), "{name:?}");
        }
        assert!(catalogue.add("none", Vec::new()).is_err());
        assert!(!format!("{catalogue:?}").contains("/data"));
    }
}
