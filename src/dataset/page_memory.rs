//! Memory for unpacked pages, which a thread uses again.
//!
//! Most pages are taken apart as soon as they are unpacked, by the thread that did it. In memory that was just used they are still in
//! the cache of that core when their values are copied out, and nothing is allocated, zeroed or mapped anew. A page that stays, because
//! rows are views of it, keeps its memory: an eighth more than its size at most.

use std::cell::RefCell;

use bytes::Bytes;

/// Pages of fewer bytes cost an allocator nothing.
const LEAST: usize = 16 << 10;

/// Larger ones are not kept: no usual writer makes them.
const MOST: usize = 2 << 20;

/// Bytes that a thread keeps, beside the memory budget: the pages of a column have few sizes, those of a table many.
const KEPT: usize = 4 << 20;

thread_local! {
    static SPARE: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// The memory of one page.
#[derive(Debug)]
pub(super) struct PageMemory {
    bytes: Box<[u8]>,
    size: usize,
}

/// Bytes that a page of `size` gets: the next eighth of a power of two.
fn room(size: usize) -> usize {
    match size {
        LEAST..=MOST => size.next_multiple_of(1 << (size.ilog2() - 3)),
        _ => size,
    }
}

impl PageMemory {
    /// For a page of `size` bytes. Its content has no meaning.
    pub(super) fn new(size: usize) -> Self {
        let room = room(size);
        let spare = SPARE.with_borrow_mut(|spare| {
            let at = spare.iter().rposition(|bytes| bytes.len() == room)?;
            Some(spare.remove(at))
        });
        Self { bytes: spare.unwrap_or_else(|| vec![0; room].into()), size }
    }
}

impl AsRef<[u8]> for PageMemory {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.size]
    }
}

impl AsMut<[u8]> for PageMemory {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.size]
    }
}

impl From<PageMemory> for Bytes {
    fn from(memory: PageMemory) -> Self {
        Self::from_owner(memory)
    }
}

impl Drop for PageMemory {
    fn drop(&mut self) {
        if !(LEAST..=MOST).contains(&self.bytes.len()) {
            return;
        }
        let bytes = std::mem::take(&mut self.bytes);
        // A thread that is ending keeps nothing any more.
        let _ended = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            spare.push(bytes);
            let mut kept: usize = spare.iter().map(|bytes| bytes.len()).sum();
            while kept > KEPT {
                kept -= spare.remove(0).len();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> Vec<usize> {
        SPARE.with_borrow(|spare| spare.iter().map(|bytes| bytes.len()).collect())
    }

    #[test]
    fn a_page_has_its_size_in_memory_that_is_little_larger() {
        for size in [0, 1, LEAST - 1, LEAST, LEAST + 1, 80_017, (1 << 20) + 1, MOST - 1, MOST, MOST + 1, 3 * MOST] {
            let mut memory = PageMemory::new(size);
            assert_eq!((memory.as_ref().len(), memory.as_mut().len()), (size, size));
            assert!(memory.bytes.len() <= size + size / 8, "{} for {size}", memory.bytes.len());
        }
    }

    #[test]
    fn a_thread_uses_the_memory_of_pages_again_and_keeps_a_few() {
        std::thread::spawn(|| {
            let first: Bytes = PageMemory::new(80_000).into();
            let (at, view) = (first.as_ptr(), first.slice(10..20));
            drop(first);
            assert!(kept().is_empty(), "a view of it is left");
            drop(view);
            assert_eq!(kept(), [room(80_000)]);
            let again = PageMemory::new(79_000);
            assert_eq!((again.as_ref().as_ptr(), again.as_ref().len()), (at, 79_000));
            assert!(kept().is_empty());
            drop((again, PageMemory::new(LEAST - 1), PageMemory::new(MOST + 1)));
            assert_eq!(kept(), [room(80_000)], "neither small nor very large ones");
            drop([1_000_000, 2_000_000, 30_000].map(PageMemory::new));
            assert_eq!(kept(), [80_000, 1_000_000, 2_000_000, 30_000].map(room));
            drop(PageMemory::new(1_500_000));
            assert_eq!(kept(), [2_000_000, 30_000, 1_500_000].map(room), "the oldest went");
        })
        .join()
        .unwrap();
    }
}
