//! One column chunk, read forward.

use arrow::buffer::BooleanBuffer;
use bytemuck::{Pod, cast_slice_mut};
use bytes::Bytes;
use parquet::basic::{Encoding, Type};
use parquet::column::page::{Page, PageReader};
use parquet::schema::types::ColumnDescriptor;

use super::holes::Holes;
use super::hybrid::{Numbers, Piece, Runs};
use super::kept::{Kept, compact};
use super::lists::Lists;
use super::quiet::quiet;
use super::slice::PageSlice;

/// Bytes that a page may have beyond twice those of its values: levels of very few values.
const OTHER: usize = 64;

/// At most one row in this many may be shared by pages if rows are to stay there.
pub(crate) const MOST_SPLIT: u64 = 4;

/// The bits of an output element.
pub(crate) trait Element: Pod + Default + Send {}
impl Element for u8 {}
impl Element for u16 {}
impl Element for u32 {}
impl Element for u64 {}

/// Converts stored elements to output elements, aligned and equally many; false if some do not fit.
pub(crate) type Convert = Box<dyn Fn(&[u8], &mut [u8]) -> bool + Send + Sync>;

/// The source of a column chunk's pages, before any of them is read.
pub(crate) struct Source {
    pages: Box<dyn PageReader>,
    width: usize,
    max_definition: u8,
    max_repetition: u8,
    /// Values skipped at the beginning and at the end.
    beside: [usize; 2],
    /// Which of the others are read; all without it.
    kept: Option<Kept>,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Source").field("width", &self.width).finish_non_exhaustive()
    }
}

impl Source {
    /// The chunk of `column` whose pages `pages` gives from the first on; `None` unless it stores numbers of `width`
    /// bytes, or binary values of exactly that size, flat or in one list.
    pub(crate) fn new(pages: Box<dyn PageReader>, column: &ColumnDescriptor, width: usize) -> Option<Self> {
        let stored = match column.physical_type() {
            Type::INT32 | Type::FLOAT => 4,
            Type::INT64 | Type::DOUBLE => 8,
            Type::FIXED_LEN_BYTE_ARRAY => usize::try_from(column.type_length()).ok()?,
            _ => return None,
        };
        let max_definition = u8::try_from(column.max_def_level()).ok()?;
        let max_repetition = u8::try_from(column.max_rep_level()).ok()?;
        let made = Self { pages, width, max_definition, max_repetition, beside: [0; 2], kept: None };
        (stored == width && max_repetition <= 1).then_some(made)
    }

    /// The same without its first `skip` and last `after` values: reads begin and end between them.
    pub(crate) fn within(self, skip: usize, after: usize) -> Self {
        Self { beside: [skip, after], ..self }
    }

    /// The same with only those of its flat values whose bit is set: reads count them.
    pub(crate) fn keeping(self, bits: BooleanBuffer) -> Self {
        Self { kept: Some(Kept::new(bits)), ..self }
    }

    /// Starts reading. Without `convert`, the stored bits are delivered, and `T` must have their width.
    pub(crate) fn chunk<T: Element>(self, convert: Option<Convert>) -> Option<Chunk<T>> {
        (convert.is_some() || self.width == size_of::<T>()).then(|| self.open(convert))
    }

    fn open<T: Element>(self, convert: Option<Convert>) -> Chunk<T> {
        Chunk {
            source: self,
            convert,
            dictionary: Vec::new(),
            page: Values::Plain(Bytes::new(), 0),
            left: 0,
            before: 0,
            page_bytes: 0,
            offsets: Vec::new(),
            scratch: Vec::new(),
            holes: None,
            dense: Vec::new(),
            block: Vec::new(),
        }
    }

    /// Returns a column of `rows` rows of `each` values, none of them null, left in its pages; only a row that two
    /// pages share is assembled. `None` also if a page is not plain or holds much besides values, if more than one in
    /// [`MOST_SPLIT`] rows is shared, or if a row has another number of values, which the first page mostly shows.
    /// Pages that begin where `lent` says are copied.
    pub(crate) fn paged(self, rows: usize, each: usize, lent: impl Fn(*const u8) -> bool) -> Option<Vec<PageSlice>> {
        self.open::<u8>(None).paged(rows, each, lent)
    }
}

/// A column chunk of numbers of 4 or 8 bytes, from the first value on; without nulls, unless it is
/// [`nullable`](Self::nullable).
///
/// Every `None` means the same: this is not such a chunk, or it is damaged; nothing read from it may be used.
pub(crate) struct Chunk<T> {
    source: Source,
    convert: Option<Convert>,
    dictionary: Vec<T>,
    page: Values,
    /// Values left in the page.
    left: usize,
    /// Values of the previous pages.
    before: usize,
    /// Bytes of the page, including levels and everything else in it.
    page_bytes: usize,
    offsets: Vec<i32>,
    scratch: Vec<u64>,
    /// The positions of nulls, if there may be some.
    holes: Option<Holes>,
    /// Non-null values, before they are moved to their positions.
    dense: Vec<T>,
    /// Values before those that are not wanted are left out.
    block: Vec<T>,
}

/// The values of the page.
enum Values {
    /// The values, and how many bytes of them are taken.
    Plain(Bytes, usize),
    Indices(Box<Numbers>),
}

impl<T> std::fmt::Debug for Chunk<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Chunk")
            .field("width", &self.source.width)
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

impl<T: Element> Chunk<T> {
    /// The same for flat values that may be null: nulls are zero then, and [`holes`](Self::holes) marks them.
    pub(crate) fn nullable(mut self) -> Self {
        let Source { max_definition, max_repetition, .. } = self.source;
        self.holes = ((max_definition, max_repetition) == (1, 0)).then(Holes::default);
        self
    }

    /// The nulls among the values read, if there could be some.
    pub(crate) fn holes(self) -> Option<Holes> {
        let kept = self.source.kept.map(|kept| kept.so_far());
        self.holes.map(|holes| kept.into_iter().fold(holes, Holes::keep))
    }

    /// Adds the next `count` values to `output`.
    pub(crate) fn read(&mut self, count: usize, output: &mut Vec<T>) -> Option<()> {
        let end = output.len().checked_add(count)?;
        let Some(mut kept) = self.source.kept.take() else { return self.every(count, output) };
        while output.len() < end {
            let bits = kept.next(end - output.len())?;
            let mut block = std::mem::take(&mut self.block);
            block.clear();
            self.every(bits.len(), &mut block)?;
            compact(&mut block, &bits, output);
            self.block = block;
        }
        self.source.kept = Some(kept);
        Some(())
    }

    /// Adds the next `count` values, wanted or not.
    fn every(&mut self, mut count: usize, output: &mut Vec<T>) -> Option<()> {
        let skip = std::mem::take(&mut self.source.beside[0]);
        self.pass(skip)?;
        while count > 0 {
            if self.left == 0 {
                self.turn()?.then_some(())?;
                continue;
            }
            let most = count.min(self.left);
            match self.holes.as_mut().and_then(|holes| holes.take(most)) {
                None => self.values_of(most, output)?,
                Some(holes) => {
                    let mut dense = std::mem::take(&mut self.dense);
                    dense.clear();
                    self.values_of(holes.there(), &mut dense)?;
                    holes.spread(&dense, output);
                    self.dense = dense;
                }
            }
            self.left -= most;
            count -= most;
        }
        Some(())
    }

    /// Adds the next `count` non-null values of the page.
    fn values_of(&mut self, mut count: usize, output: &mut Vec<T>) -> Option<()> {
        while count > 0 {
            count -= match &mut self.page {
                Values::Plain(bytes, taken) => {
                    let next = bytes.get(*taken..*taken + count * self.source.width)?;
                    *taken += next.len();
                    plain(next, self.source.width, self.convert.as_ref(), &mut self.scratch, output)?;
                    count
                }
                Values::Indices(indices) => match indices.next(count)? {
                    Piece::Repeated(index, times) => {
                        let value = *self.dictionary.get(index as usize)?;
                        output.extend(std::iter::repeat_n(value, times));
                        times
                    }
                    Piece::Numbers(indices) => {
                        // Signed, since vector units compare signed numbers best; `values` has refused indices of 32
                        // bits.
                        let end = i32::try_from(self.dictionary.len()).ok()?;
                        if indices.iter().fold(false, |beyond, index| beyond | (*index as i32 >= end)) {
                            return None;
                        }
                        output.extend(indices.iter().map(|index| self.dictionary[*index as usize]));
                        indices.len()
                    }
                },
            };
        }
        Some(())
    }

    /// Skips the next `count` values.
    fn pass(&mut self, mut count: usize) -> Option<()> {
        while count > 0 {
            if self.left == 0 {
                self.turn()?.then_some(())?;
                continue;
            }
            let most = count.min(self.left);
            let mut there = self.holes.as_mut().map_or(most, |holes| holes.pass(most));
            while there > 0 {
                there -= match &mut self.page {
                    Values::Plain(_, taken) => {
                        *taken += there * self.source.width;
                        there
                    }
                    Values::Indices(indices) => match indices.next(there)? {
                        Piece::Repeated(_, times) => times,
                        Piece::Numbers(indices) => indices.len(),
                    },
                };
            }
            self.left -= most;
            count -= most;
        }
        Some(())
    }

    /// Checks that nothing follows except the values skipped at the end.
    pub(crate) fn end(&mut self) -> Option<()> {
        let unwanted = self.source.kept.as_ref().map_or(0, Kept::left);
        let after = std::mem::take(&mut self.source.beside[1]);
        self.pass(unwanted.checked_add(after)?)?;
        (self.left == 0 && !self.turn()?).then_some(())
    }

    /// Reads a whole list column: `rows` lists of `values` values in total, none of them null or empty.
    pub(crate) fn lists(mut self, rows: usize, values: usize) -> Option<Lists<T>> {
        let end = i32::try_from(values).ok()?;
        self.offsets.reserve_exact(rows.checked_add(1)?);
        let mut found = Vec::with_capacity(values);
        self.read(values, &mut found)?;
        self.end()?;
        let mut offsets = self.offsets;
        offsets.push(end);
        (offsets.len() == rows + 1 && offsets[0] == 0).then_some(Lists { offsets, values: found })
    }

    /// See [`Source::paged`].
    fn paged(mut self, rows: usize, each: usize, lent: impl Fn(*const u8) -> bool) -> Option<Vec<PageSlice>> {
        let row = each.checked_mul(self.source.width).filter(|row| *row > 0)?;
        self.offsets.reserve_exact(rows);
        let (mut found, mut first) = (Vec::new(), 0);
        let (mut split, mut splits, mut seen): (Vec<u8>, usize, usize) = (Vec::new(), 0, 0);
        while self.turn()? {
            let Values::Plain(page, _) = &self.page else { return None };
            let starts = |(at, start): (usize, &i32)| (seen + at).checked_mul(each) == Some(*start as usize);
            if !self.offsets[seen..].iter().enumerate().all(starts) {
                return None;
            }
            seen = self.offsets.len();
            let mut page = page.get(..self.left * self.source.width).map(|values| page.slice_ref(values))?;
            // The page stays in memory as a whole, with everything else in it. Levels are at most a tenth of the
            // values.
            if self.page_bytes > page.len().saturating_mul(2).saturating_add(OTHER) {
                return None;
            }
            let mut memory = self.page_bytes;
            if lent(page.as_ptr()) {
                (page, memory) = (Bytes::copy_from_slice(&page), page.len());
            }
            self.left = 0;
            if !split.is_empty() {
                split.extend_from_slice(&page.split_to(page.len().min(row - split.len())));
                if split.len() == row {
                    let bytes = Bytes::from(std::mem::take(&mut split).into_boxed_slice());
                    found.push(PageSlice { first, memory: row, bytes });
                    first += 1;
                }
            }
            let whole = page.split_to(page.len() - page.len() % row);
            if !whole.is_empty() {
                let count = whole.len() / row;
                found.push(PageSlice { first, memory, bytes: whole });
                first += count;
            }
            if split.is_empty() && !page.is_empty() {
                splits += 1;
                if splits.saturating_mul(MOST_SPLIT as usize) > rows {
                    return None;
                }
            }
            split.extend_from_slice(&page);
        }
        let even = if self.source.max_repetition == 0 { each == 1 } else { seen == rows };
        (split.is_empty() && first == rows && even).then_some(found)
    }

    /// Moves to the next page with values; false at the end.
    fn turn(&mut self) -> Option<bool> {
        loop {
            // The reader is abandoned if it panics.
            let page = quiet(|| self.source.pages.get_next_page()).ok()?.ok()?;
            match page {
                None => return Some(false),
                Some(Page::DictionaryPage { buf, num_values, encoding, .. }) => {
                    if !matches!(encoding, Encoding::PLAIN | Encoding::PLAIN_DICTIONARY) {
                        return None;
                    }
                    let bytes = buf.get(..self.source.width.checked_mul(num_values as usize)?)?;
                    self.dictionary = Vec::with_capacity(num_values as usize);
                    plain(bytes, self.source.width, self.convert.as_ref(), &mut self.scratch, &mut self.dictionary)?;
                }
                Some(Page::DataPage {
                    mut buf, num_values, encoding, def_level_encoding, rep_level_encoding, ..
                }) => {
                    self.page_bytes = buf.len();
                    let count = num_values as usize;
                    if self.source.max_repetition > 0 {
                        let levels = prefixed(&mut buf, rep_level_encoding)?;
                        self.repetitions(levels, count)?;
                    }
                    let there = if self.source.max_definition > 0 {
                        let levels = prefixed(&mut buf, def_level_encoding)?;
                        self.definitions(levels, count)?
                    } else {
                        count
                    };
                    self.values(buf, encoding, count, there)?;
                }
                Some(Page::DataPageV2 {
                    mut buf,
                    num_values,
                    encoding,
                    num_nulls,
                    def_levels_byte_len,
                    rep_levels_byte_len,
                    ..
                }) => {
                    self.page_bytes = buf.len();
                    let count = num_values as usize;
                    let lengths = [rep_levels_byte_len as usize, def_levels_byte_len as usize];
                    if lengths[0].checked_add(lengths[1])? > buf.len() {
                        return None;
                    }
                    let [repetitions, definitions] = lengths.map(|length| buf.split_to(length));
                    if self.source.max_repetition > 0 {
                        self.repetitions(repetitions, count)?;
                    }
                    let there =
                        if self.source.max_definition > 0 { self.definitions(definitions, count)? } else { count };
                    if there.checked_add(num_nulls as usize) != Some(count) {
                        return None;
                    }
                    self.values(buf, encoding, count, there)?;
                }
            }
            if self.left > 0 {
                return Some(true);
            }
        }
    }

    /// Records where lists start.
    fn repetitions(&mut self, levels: Bytes, count: usize) -> Option<()> {
        let (before, offsets) = (self.before, &mut self.offsets);
        // `lists` accepts no more than fit, so the cast loses nothing.
        i32::try_from(before.checked_add(count)?).ok()?;
        Runs::new(levels, 1).zeros(count, |at| offsets.push((before + at) as i32))
    }

    /// Counts the non-null values: all of them, unless some may be null.
    fn definitions(&mut self, levels: Bytes, count: usize) -> Option<usize> {
        let width = (u8::BITS - self.source.max_definition.leading_zeros()) as u8;
        let levels = Runs::new(levels, width);
        match &mut self.holes {
            Some(holes) => holes.turn(levels, count),
            None => levels.all(u32::from(self.source.max_definition), count).then_some(count),
        }
    }

    /// Starts a page of `count` values, `there` of them non-null.
    fn values(&mut self, mut bytes: Bytes, encoding: Encoding, count: usize, there: usize) -> Option<()> {
        self.page = match encoding {
            Encoding::PLAIN if bytes.len() >= there.checked_mul(self.source.width)? => Values::Plain(bytes, 0),
            Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY if there > 0 => {
                let width = bytes.first().copied().filter(|width| *width <= 31)?;
                let bytes = bytes.split_off(1);
                Runs::new(bytes.clone(), width).none_above(u32::MAX, there).then_some(())?;
                let runs = Runs::new(bytes, width);
                Values::Indices(Box::new(Numbers::new(runs)))
            }
            Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY if count > 0 => Values::Plain(Bytes::new(), 0),
            _ => return None,
        };
        self.before += count;
        self.left = count;
        Some(())
    }
}

/// Splits the levels off the start of a page of version 1.
pub(super) fn prefixed(page: &mut Bytes, encoding: Encoding) -> Option<Bytes> {
    let length = u32::from_le_bytes(*page.first_chunk::<4>()?) as usize;
    if encoding != Encoding::RLE || page.len() - 4 < length {
        return None;
    }
    drop(page.split_to(4));
    Some(page.split_to(length))
}

/// Adds consecutive values of `width` bytes.
fn plain<T: Element>(
    bytes: &[u8],
    width: usize,
    convert: Option<&Convert>,
    scratch: &mut Vec<u64>,
    output: &mut Vec<T>,
) -> Option<()> {
    let Some(convert) = convert else {
        if let Ok(values) = bytemuck::try_cast_slice(bytes) {
            output.extend_from_slice(values);
            return Some(());
        }
        output.extend(bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned::<T>));
        return Some(());
    };
    let count = bytes.len() / width;
    let start = output.len();
    output.resize(start + count, T::default());
    let wanted = cast_slice_mut(&mut output[start..]);
    if bytes.as_ptr().align_offset(8) == 0 {
        return convert(bytes, wanted).then_some(());
    }
    // Levels before the values may leave them unaligned.
    scratch.resize(bytes.len().div_ceil(8), 0);
    let aligned = &mut cast_slice_mut(scratch)[..bytes.len()];
    aligned.copy_from_slice(bytes);
    convert(aligned, wanted).then_some(())
}

#[cfg(test)]
mod tests {
    use parquet::column::page::PageMetadata;
    use parquet::schema::parser::parse_message_type;
    use parquet::schema::types::SchemaDescriptor;

    use super::*;

    /// Pages of version 2: their levels are not packed, and need not end where rows do.
    struct Made(Vec<Page>);

    impl Iterator for Made {
        type Item = parquet::errors::Result<Page>;

        fn next(&mut self) -> Option<Self::Item> {
            self.get_next_page().transpose()
        }
    }

    impl PageReader for Made {
        fn get_next_page(&mut self) -> parquet::errors::Result<Option<Page>> {
            Ok((!self.0.is_empty()).then(|| self.0.remove(0)))
        }

        fn peek_next_page(&mut self) -> parquet::errors::Result<Option<PageMetadata>> {
            Ok(None)
        }

        fn skip_next_page(&mut self) -> parquet::errors::Result<()> {
            Ok(())
        }
    }

    /// The values `0..` in lists of three, in pages of these many values.
    fn lists(pages: &[usize], each: usize, encoding: Encoding) -> Source {
        followed(pages, each, encoding, 0)
    }

    /// The same with `other` more bytes in each page.
    fn followed(pages: &[usize], each: usize, encoding: Encoding, other: usize) -> Source {
        let schema =
            parse_message_type("message m { required group l (LIST) { repeated group list { required int32 e; } } }");
        let descriptor = SchemaDescriptor::new(std::sync::Arc::new(schema.unwrap()));
        let mut value = 0_u32;
        let page = |count: &usize| {
            let numbers = value..value + *count as u32;
            value = numbers.end;
            // Runs of one level each: their length shifted, then the level.
            let repetitions = numbers.clone().flat_map(|at| [2, u8::from(!(at as usize).is_multiple_of(each))]);
            let definitions = numbers.clone().flat_map(|_| [2, 1]);
            let levels: Vec<u8> = repetitions.chain(definitions).collect();
            let values = numbers.flat_map(u32::to_le_bytes).chain(std::iter::repeat_n(0, other));
            let bytes: Vec<u8> = levels.iter().copied().chain(values).collect();
            Page::DataPageV2 {
                buf: bytes.into(),
                num_values: *count as u32,
                encoding,
                num_nulls: 0,
                num_rows: 0,
                def_levels_byte_len: *count as u32 * 2,
                rep_levels_byte_len: *count as u32 * 2,
                is_compressed: false,
                statistics: None,
            }
        };
        let pages = pages.iter().map(page).collect();
        Source::new(Box::new(Made(pages)), &descriptor.column(0), 4).unwrap()
    }

    #[test]
    fn rows_stay_in_their_pages_and_split_ones_are_put_together() {
        for pages in [&[12][..], &[3, 9], &[4, 8], &[3, 1, 1, 1, 6], &[3, 1, 0, 2, 6], &[11, 1], &[5, 0, 7]] {
            let found =
                lists(pages, 3, Encoding::PLAIN).paged(4, 3, |_| false).unwrap_or_else(|| panic!("pages of {pages:?}"));
            let mut next = 0;
            let mut values: Vec<u32> = Vec::new();
            for slice in &found {
                assert_eq!((slice.first, slice.bytes.len() % 12), (next, 0), "pages of {pages:?}");
                next += slice.bytes.len() / 12;
                values.extend(slice.bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned::<u32>));
            }
            assert_eq!(values, (0..12).collect::<Vec<_>>(), "pages of {pages:?}");
        }
    }

    #[test]
    fn what_stays_with_rows_is_known_and_little() {
        // Twelve values and as many levels of each kind.
        let page = 12 * 4 + 2 * 24;
        let memory = |source: Source, lent| Some(source.paged(4, 3, |_| lent)?.iter().map(|of| of.memory).sum());
        assert_eq!(memory(lists(&[12], 3, Encoding::PLAIN), false), Some(page));
        assert_eq!(memory(lists(&[12], 3, Encoding::PLAIN), true), Some(12 * 4_usize), "a copy");
        assert_eq!(memory(followed(&[12], 3, Encoding::PLAIN, OTHER), false), Some(page + OTHER));
        assert_eq!(memory(followed(&[12], 3, Encoding::PLAIN, OTHER + 1), false), None, "a page full of other things");
    }

    #[test]
    fn other_lists_and_other_pages_are_not_left() {
        assert!(lists(&[12], 3, Encoding::PLAIN).paged(3, 4, |_| false).is_none(), "lists of three, not of four");
        assert!(lists(&[12], 3, Encoding::PLAIN).paged(5, 3, |_| false).is_none(), "a row is missing");
        assert!(
            lists(&[2; 6], 3, Encoding::PLAIN).paged(4, 3, |_| false).is_none(),
            "every second row is put together"
        );
        assert!(lists(&[13], 3, Encoding::PLAIN).paged(4, 3, |_| false).is_none(), "a value too many");
        assert!(lists(&[12], 3, Encoding::PLAIN).paged(4, 0, |_| false).is_none(), "rows without values");
        assert!(lists(&[12], 3, Encoding::RLE_DICTIONARY).paged(4, 3, |_| false).is_none(), "indices are no values");
        assert!(lists(&[2, 4, 6], 2, Encoding::PLAIN).paged(4, 3, |_| false).is_none(), "uneven lists");
    }
}
