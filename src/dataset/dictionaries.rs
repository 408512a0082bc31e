//! Dictionaries of column chunks, which all units of a row group need: read, checked and unpacked once for units that follow each other.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use parquet::basic::Encoding;
use parquet::column::page::Page;

/// Bytes of dictionaries that are kept, the latest ones: those of a row group of some hundred columns.
pub(super) const KEPT_BYTES: usize = 16 << 20;

/// The dictionary of a column chunk.
#[derive(Debug)]
pub(super) struct Dictionary {
    /// Its place in the file, with the page's header.
    range: Range<u64>,
    stored: Bytes,
    /// Set once it was checked.
    unpacked: OnceLock<Unpacked>,
}

#[derive(Debug)]
struct Unpacked {
    values: Bytes,
    count: u32,
    encoding: Encoding,
    is_sorted: bool,
}

impl Dictionary {
    /// The dictionary that is stored at `range` of its file, as part of the bytes read together.
    pub(super) fn new(range: Range<u64>, read: &[u8]) -> Arc<Self> {
        // A copy keeps none of the pages that were read with it.
        Arc::new(Self { range, stored: Bytes::copy_from_slice(read), unpacked: OnceLock::new() })
    }

    pub(super) fn range(&self) -> &Range<u64> {
        &self.range
    }

    /// Its bytes in the file.
    pub(super) fn stored(&self) -> &Bytes {
        &self.stored
    }

    /// The page, once it was checked and unpacked.
    pub(super) fn page(&self) -> Option<Page> {
        let Unpacked { values, count, encoding, is_sorted } = self.unpacked.get()?;
        Some(Page::DictionaryPage {
            buf: values.clone(),
            num_values: *count,
            encoding: *encoding,
            is_sorted: *is_sorted,
        })
    }

    /// Keeps the page, which was checked.
    pub(super) fn keep(&self, page: &Page) {
        if let Page::DictionaryPage { buf, num_values, encoding, is_sorted } = page {
            let (values, count, encoding, is_sorted) = (buf.clone(), *num_values, *encoding, *is_sorted);
            // Another unit may have been faster.
            drop(self.unpacked.set(Unpacked { values, count, encoding, is_sorted }));
        }
    }

    fn bytes(&self) -> usize {
        self.stored.len() + self.unpacked.get().map_or(0, |unpacked| unpacked.values.len())
    }
}

/// Number of a row group and of a leaf.
type Key = (u32, usize);

/// The latest dictionaries of a dataset.
#[derive(Debug, Default)]
pub(super) struct Dictionaries(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    found: HashMap<Key, Arc<Dictionary>>,
    /// The oldest first.
    order: VecDeque<Key>,
}

impl Dictionaries {
    pub(super) fn get(&self, key: Key) -> Option<Arc<Dictionary>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).found.get(&key).cloned()
    }

    /// Adds dictionaries, and lets older ones go.
    pub(super) fn add(&self, more: impl IntoIterator<Item = (Key, Arc<Dictionary>)>) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Held { found, order } = &mut *held;
        for (key, dictionary) in more {
            if found.insert(key, dictionary).is_none() {
                order.push_back(key);
            }
        }
        // Counted anew, since dictionaries grow when they are unpacked.
        let mut bytes: usize = found.values().map(|dictionary| dictionary.bytes()).sum();
        while bytes > KEPT_BYTES {
            let Some(gone) = order.pop_front().and_then(|oldest| found.remove(&oldest)) else { return };
            bytes -= gone.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_kept_as_far_as_they_fit() {
        let kept = Dictionaries::default();
        let of = |bytes: usize| Dictionary::new(0..bytes as u64, &vec![0; bytes]);
        kept.add((0..8).map(|leaf| ((0, leaf), of(1 << 20))));
        assert!((0..8).all(|leaf| kept.get((0, leaf)).is_some()));
        kept.add((0..9).map(|leaf| ((1, leaf), of(1 << 20))));
        assert!(kept.get((0, 0)).is_none() && kept.get((0, 1)).is_some() && kept.get((1, 8)).is_some());
        // Unpacked it takes more.
        let (buf, encoding) = (Bytes::from(vec![0; 4 << 20]), Encoding::PLAIN);
        let page = Page::DictionaryPage { buf, num_values: 1 << 20, encoding, is_sorted: false };
        let last = kept.get((1, 8)).unwrap();
        assert!(last.page().is_none());
        last.keep(&page);
        assert_eq!(last.page().unwrap().buffer().len(), 4 << 20);
        kept.add([((2, 0), of(1))]);
        assert!(kept.get((0, 5)).is_none() && kept.get((0, 6)).is_some() && kept.get((2, 0)).is_some());
        kept.add([((3, 0), of(KEPT_BYTES + 1))]);
        assert!(kept.get((3, 0)).is_none() && kept.get((2, 0)).is_none(), "one that is too large is not kept");
    }
}
