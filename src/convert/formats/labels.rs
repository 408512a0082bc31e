//! Labels of an image folder's classes that differ from the class numbers: `_labels.json` beside the classes.

use std::collections::BTreeMap;
use std::path::Path;

use crate::convert::limits::Limits;
use crate::convert::read::listing::Listing;
use crate::error::{Error, Place, Result};
use crate::store::directory::failed;

/// Name of the file; hidden, so that it is not taken for data.
const NAME: &str = "_labels.json";

/// The label of each class, in the order of the classes' names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Labels {
    by_class: BTreeMap<String, Option<i64>>,
    text: String,
}

/// Reads the labels of the folder at `tree`, if it has any.
///
/// # Errors
/// `Corrupt` if the file is not the output of [`Labels::write`], `Store`, `Limit`.
pub(crate) fn read(tree: &Listing, limits: &Limits) -> Result<Option<Labels>> {
    let text = match tree.small(NAME, limits.max_index_bytes) {
        Ok(text) => text,
        Err(Error::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let by_class = serde_json::from_slice(&text)
        .map_err(|error| Error::corrupt_by(Place::file(NAME), "it is not an object of labels by class", error))?;
    Ok(Some(Labels { by_class, text: String::from_utf8_lossy(&text).into_owned() }))
}

impl Labels {
    /// Returns the file's text, which determines the rows as the images do.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn has(&self, class: &str) -> bool {
        self.by_class.contains_key(class)
    }

    /// Returns true if a class has a null label.
    pub(crate) fn has_null(&self) -> bool {
        self.by_class.values().any(Option::is_none)
    }

    /// Returns the label of a class.
    pub(crate) fn of(&self, class: &str) -> Option<i64> {
        self.by_class.get(class).copied().flatten()
    }

    /// Returns the error for a class without one.
    pub(crate) fn lacks(&self, class: &str) -> Error {
        let what = format!("the class {class:?} is not among the {} that have a label there", self.by_class.len());
        Error::corrupt(Place::file(NAME), what)
    }

    /// Adds the label of a class.
    ///
    /// # Errors
    /// The class's existing label, if it differs.
    pub(crate) fn add(&mut self, class: &str, label: Option<i64>) -> Result<(), Option<i64>> {
        match self.by_class.get(class) {
            Some(known) if *known == label => Ok(()),
            Some(known) => Err(*known),
            None => {
                self.by_class.insert(class.to_owned(), label);
                Ok(())
            }
        }
    }

    /// Writes the labels into `directory`, unless they equal the class numbers.
    ///
    /// # Errors
    /// `Store`.
    pub(crate) fn write(&self, directory: &Path) -> Result<()> {
        if self.by_class.values().zip(0..).all(|(label, place)| *label == Some(place)) {
            return Ok(());
        }
        let path = directory.join(NAME);
        let broken = |error: std::io::Error| failed("write", &path, error);
        let text = serde_json::to_vec_pretty(&self.by_class).map_err(|error| broken(error.into()))?;
        let file = std::fs::File::create(&path).map_err(broken)?;
        std::io::Write::write_all(&mut &file, &text).and_then(|()| file.sync_all()).map_err(broken)
    }
}
