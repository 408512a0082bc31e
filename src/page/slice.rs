//! Wide rows, left in the pages that held them: a batch is then the first place they are copied to.

use bytes::Bytes;

/// Rows as they lie in a page, one after another.
#[derive(Debug, Clone)]
pub(crate) struct PageSlice {
    /// Number of the first of them in the row group.
    pub(crate) first: usize,
    /// Bytes of memory that they keep alive.
    pub(crate) memory: usize,
    pub(crate) bytes: Bytes,
}

/// All rows of a column, in order.
#[derive(Debug, Clone)]
pub(crate) struct PagedRows {
    /// Rows skipped.
    skip: usize,
    rows: usize,
    /// Bytes of a row.
    width: usize,
    of: Vec<PageSlice>,
    /// Set if some are parts of the fetched bytes, which then stay in memory.
    in_place: bool,
    /// Bytes that stay in memory besides those.
    copied: usize,
    /// For each `1 << shift` rows, the slice that holds the first of them; then the last slice.
    index: Vec<u32>,
    shift: u32,
}

impl PagedRows {
    /// Rows of `width` bytes, all of them in `of`: each slice has some, and begins where the previous one ends.
    /// `fetched` returns true for the address of a fetched byte. `None` if there are no rows.
    pub(crate) fn new(
        rows: usize,
        width: usize,
        of: Vec<PageSlice>,
        fetched: impl Fn(*const u8) -> bool,
    ) -> Option<Self> {
        let last = u32::try_from(of.len().checked_sub(1)?).ok()?;
        // About as many entries as slices, or twice as many.
        let shift = (rows / of.len()).max(1).ilog2();
        let mut index = Vec::with_capacity((rows >> shift) + 2);
        for (at, pair) in of.windows(2).enumerate() {
            while index.len() << shift < pair[1].first {
                index.push(at as u32);
            }
        }
        while index.len() << shift < rows {
            index.push(last);
        }
        index.push(last);
        let (mut in_place, mut copied) = (false, 0);
        for slice in &of {
            match fetched(slice.bytes.as_ptr()) {
                true => in_place = true,
                false => copied += slice.memory,
            }
        }
        Some(Self { skip: 0, rows, width, of, in_place, copied, index, shift })
    }

    /// `rows` of them from number `skip` on; all stay in memory. `None` if there are not enough.
    pub(crate) fn within(self, skip: usize, rows: usize) -> Option<Self> {
        (skip.checked_add(rows)? <= self.rows).then_some(Self { skip: self.skip + skip, rows, ..self })
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of a row.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Returns true if some are parts of the fetched bytes, which then stay in memory.
    pub(crate) fn in_place(&self) -> bool {
        self.in_place
    }

    /// Bytes that stay in memory besides the fetched ones: unpacked pages, assembled rows.
    pub(crate) fn copied(&self) -> usize {
        self.copied
    }

    /// The bytes of row `row`, and of those that follow it in its page.
    #[inline]
    pub(crate) fn from(&self, row: usize) -> &[u8] {
        let row = self.skip + row;
        let bucket = row >> self.shift;
        let (from, to) = (self.index[bucket] as usize, self.index[bucket + 1] as usize);
        let slice = &self.of[from + self.of[from + 1..=to].partition_point(|next| next.first <= row)];
        &slice.bytes[(row - slice.first) * self.width..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of two bytes that hold their number, in slices of these lengths.
    fn paged(counts: &[usize]) -> PagedRows {
        let (mut first, mut of) = (0, Vec::new());
        for count in counts {
            let bytes: Vec<u8> = (first..first + count).flat_map(|row| (row as u16).to_le_bytes()).collect();
            of.push(PageSlice { first, memory: 3 * count, bytes: bytes.into() });
            first += count;
        }
        PagedRows::new(first, 2, of, |_| false).unwrap()
    }

    #[test]
    fn a_row_is_found_in_its_stretch_however_uneven_they_are() {
        let ones = [1; 300];
        let mixed = [&[1000][..], &ones, &[1, 5000, 1, 1, 77]].concat();
        for counts in
            [&[1][..], &[7], &[1, 1], &[64, 64, 64, 64], &[5, 1, 5, 1, 5, 1, 2], &[1, 999], &[999, 1], &ones, &mixed]
        {
            let found = paged(counts);
            if found.rows() > 3 {
                let cut = found.clone().within(2, found.rows() - 3).unwrap();
                assert!((0..cut.rows()).all(|row| cut.from(row) == found.from(row + 2)));
                assert!(found.clone().within(2, found.rows() - 1).is_none());
            }
            let mut row = 0;
            for count in counts {
                for left in (1..=*count).rev() {
                    let bytes = found.from(row);
                    assert_eq!(
                        (&bytes[..2], bytes.len()),
                        (&(row as u16).to_le_bytes()[..], left * 2),
                        "row {row} of {counts:?}"
                    );
                    row += 1;
                }
            }
            assert_eq!((found.rows(), found.copied(), found.in_place()), (row, row * 3, false));
        }
        assert!(PagedRows::new(0, 2, Vec::new(), |_| false).is_none());
    }
}
