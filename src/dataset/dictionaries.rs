//! Dictionaries of column chunks, which all units of a row group need: read, checked and unpacked once for units that follow each other.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use parquet::basic::Encoding;
use parquet::column::page::Page;

use super::pages::header;

/// Bytes of dictionaries that are kept, the latest ones: those of a row group of some hundred columns.
pub(super) const KEPT_BYTES: usize = 16 << 20;

/// Bytes that an entry takes beside those of its dictionary.
const ENTRY: usize = 256;

/// A dictionary that takes more than this part of all is not shared.
const LARGEST_PART: usize = 4;

/// The dictionary of a column chunk.
#[derive(Debug)]
pub(super) struct Dictionary {
    /// Its place in the file, with the page's header.
    range: Range<u64>,
    stored: Bytes,
    /// Its bytes unpacked, by its header.
    size: usize,
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
    /// The dictionary that is stored at `range` of its file, as part of the bytes read together; `None` if it is too large to be
    /// shared, or begins with no header.
    pub(super) fn new(range: Range<u64>, read: &[u8]) -> Option<Arc<Self>> {
        let size = usize::try_from(header(read).ok()?.uncompressed).ok()?;
        // A copy keeps none of the pages that were read with it.
        let made = || Self { range, stored: Bytes::copy_from_slice(read), size, unpacked: OnceLock::new() };
        (read.len().saturating_add(size) <= KEPT_BYTES / LARGEST_PART).then(|| Arc::new(made()))
    }

    pub(super) fn range(&self) -> &Range<u64> {
        &self.range
    }

    /// Its bytes in the file.
    pub(super) fn stored(&self) -> &Bytes {
        &self.stored
    }

    /// Bytes of its values, once they were checked and unpacked.
    pub(super) fn checked(&self) -> Option<u64> {
        self.unpacked.get().map(|unpacked| unpacked.values.len() as u64)
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
        if let Page::DictionaryPage { buf, num_values, encoding, is_sorted } = page
            && buf.len() <= self.size
        {
            let (values, count, encoding, is_sorted) = (buf.clone(), *num_values, *encoding, *is_sorted);
            // Another unit may have been faster.
            drop(self.unpacked.set(Unpacked { values, count, encoding, is_sorted }));
        }
    }

    /// Bytes that it takes at most.
    fn bytes(&self) -> usize {
        self.stored.len() + self.size + ENTRY
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
    bytes: usize,
}

impl Dictionaries {
    pub(super) fn get(&self, key: Key) -> Option<Arc<Dictionary>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).found.get(&key).cloned()
    }

    /// Adds dictionaries, and lets older ones go.
    pub(super) fn add(&self, more: impl IntoIterator<Item = (Key, Arc<Dictionary>)>) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Held { found, order, bytes } = &mut *held;
        for (key, dictionary) in more {
            *bytes += dictionary.bytes();
            match found.insert(key, dictionary) {
                Some(before) => *bytes -= before.bytes(),
                None => order.push_back(key),
            }
        }
        while *bytes > KEPT_BYTES {
            let Some(gone) = order.pop_front().and_then(|oldest| found.remove(&oldest)) else { return };
            *bytes -= gone.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A dictionary of `size` bytes unpacked, which has next to none as it is stored.
    fn of(size: usize) -> Option<Arc<Dictionary>> {
        // A page header: kind 2, the size unpacked, the size stored, and what it is of a dictionary: no values, plain.
        let mut bytes = vec![0x15, 4, 0x15];
        let mut left = size as u64 * 2;
        while left >= 0x80 {
            bytes.push(left as u8 | 0x80);
            left >>= 7;
        }
        bytes.extend([left as u8, 0x15, 0, 0x4c, 0x15, 0, 0x15, 0, 0, 0]);
        Dictionary::new(0..bytes.len() as u64, &bytes)
    }

    #[test]
    fn the_latest_are_kept_as_far_as_they_fit_unpacked() {
        let kept = Dictionaries::default();
        let mib = |leaf| ((leaf as u32 / 10, leaf), of(1 << 20).unwrap());
        kept.add((0..15).map(mib));
        assert!((0..15).all(|leaf| kept.get((leaf as u32 / 10, leaf)).is_some()));
        // Again the same, then one more than there is room for.
        kept.add([mib(14)]);
        assert!(kept.get((0, 0)).is_some());
        kept.add([mib(15)]);
        assert!(kept.get((0, 0)).is_none() && kept.get((0, 1)).is_some() && kept.get((1, 15)).is_some());
    }

    #[test]
    fn pages_are_kept_once_they_are_checked_unless_they_are_larger_than_stated() {
        let page = |bytes| {
            let (buf, encoding) = (Bytes::from(vec![0; bytes]), Encoding::PLAIN);
            Page::DictionaryPage { buf, num_values: 1, encoding, is_sorted: false }
        };
        let dictionary = of(100).unwrap();
        dictionary.keep(&page(101));
        assert!(dictionary.page().is_none() && dictionary.checked().is_none());
        dictionary.keep(&page(100));
        assert_eq!((dictionary.page().unwrap().buffer().len(), dictionary.checked()), (100, Some(100)));
        assert!(of(KEPT_BYTES / LARGEST_PART).is_none(), "too large to be shared");
        assert!(Dictionary::new(0..3, &[0xff; 3]).is_none(), "no header");
    }
}
