//! Pages whose levels are checked against the schema, each other and the values before arrays are built from them.
//!
//! A level takes a whole number of bits, or bytes where it repeats, so a page can hold a level that the column does not
//! have; there can be fewer levels than values; and an empty list can continue. The Arrow reader turns these into nulls
//! that nobody wrote, or values of other rows. It does the same with indices of values that are announced but missing.

use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Encoding, Type};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::schema::types::ColumnDescriptor;

use super::chunk::prefixed;
use super::hybrid::Runs;
use super::levels::{Lineage, Tally};

/// The pages of one column chunk.
pub(crate) struct Checked<P> {
    pages: P,
    /// Maximum levels, repetition first.
    most: [u8; 2],
    /// Bytes of a value, if all have the same size.
    width: usize,
    lineage: Lineage,
    /// The comparison of all leaves of a column, and the number of this leaf.
    tally: Option<(Arc<Tally>, usize)>,
    /// The definition level of the last value; 0 before the first, which continues nothing.
    last: Option<u8>,
    /// Rows that the pages must have in total, if stated, and rows seen so far.
    rows: Option<(usize, usize)>,
}

impl<P> std::fmt::Debug for Checked<P> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Checked").field("most", &self.most).finish_non_exhaustive()
    }
}

impl<P: PageReader> Checked<P> {
    /// Wraps `pages` of `column`: all of its pages if there is a `tally`.
    pub(crate) fn new(
        pages: P,
        column: &ColumnDescriptor,
        lineage: Lineage,
        tally: Option<(Arc<Tally>, usize)>,
    ) -> Self {
        let most = [column.max_rep_level(), column.max_def_level()];
        let width = match column.physical_type() {
            Type::INT32 | Type::FLOAT => 4,
            Type::INT64 | Type::DOUBLE => 8,
            Type::FIXED_LEN_BYTE_ARRAY => usize::try_from(column.type_length()).unwrap_or_default(),
            _ => 0,
        };
        let last = tally.is_some().then_some(0);
        Self {
            pages,
            most: most.map(|level| u8::try_from(level).unwrap_or(u8::MAX)),
            width,
            lineage,
            tally,
            last,
            rows: None,
        }
    }

    /// The same, for pages that hold `rows` rows according to a page index. A page of version 1 does not state its
    /// rows, and a wrong index moves lists into other rows.
    pub(crate) fn of_rows(self, rows: usize) -> Self {
        // Pages without lists have as many rows as values, which are already counted.
        let rows = (self.most[0] > 0).then_some((rows, 0));
        Self { rows, ..self }
    }

    fn check(&mut self, page: &Page) -> Result<()> {
        let (levels, values, encoding, count) = match page {
            Page::DictionaryPage { .. } => return Ok(()),
            Page::DataPage { buf, num_values, encoding, rep_level_encoding, def_level_encoding, .. } => {
                let mut rest = buf.clone();
                let mut levels = [Bytes::new(), Bytes::new()];
                for ((levels, most), encoding) in
                    levels.iter_mut().zip(self.most).zip([rep_level_encoding, def_level_encoding])
                {
                    if most > 0 {
                        let found = if bit_packed(*encoding) {
                            packed(&mut rest, bits(most), *num_values as usize)
                        } else {
                            prefixed(&mut rest, *encoding)
                        };
                        *levels = found.ok_or_else(|| broken("are cut off"))?;
                    }
                }
                (levels, rest, *encoding, *num_values)
            }
            Page::DataPageV2 {
                buf, num_values, encoding, num_nulls, def_levels_byte_len, rep_levels_byte_len, ..
            } => {
                let (repetitions, definitions) = (*rep_levels_byte_len as usize, *def_levels_byte_len as usize);
                let end = repetitions.checked_add(definitions).filter(|end| *end <= buf.len());
                let end = end.ok_or_else(|| broken("are cut off"))?;
                if self.most == [0, 1] {
                    let there = Runs::new(buf.slice(repetitions..end), 1).ones(*num_values as usize);
                    if there != num_values.checked_sub(*num_nulls).map(|there| there as usize) {
                        return Err(broken(&format!("leave out others than {num_nulls} nulls")));
                    }
                }
                let levels = [buf.slice(..repetitions), buf.slice(repetitions..end)];
                (levels, buf.slice(end..), *encoding, *num_values)
            }
        };
        let count = count as usize;
        for (levels, most) in levels.iter().zip(self.most) {
            if most > 0 && !Runs::new(levels.clone(), bits(most)).none_above(u32::from(most), count) {
                return Err(broken(&format!("are not {count}, or go beyond {most}, the greatest of the schema")));
            }
        }
        let there = self.there(levels, count)?;
        if !self.fits(values, encoding, count, there) {
            return Err(ParquetError::General(format!("the bytes of a page are not those of its {there} values")));
        }
        Ok(())
    }

    /// Counts the values that are not null, and checks that their levels agree.
    fn there(&mut self, [repetitions, definitions]: [Bytes; 2], count: usize) -> Result<usize> {
        let [most, defined] = self.most;
        let cut = || broken("are cut off");
        if !self.lineage.matters() {
            return match defined {
                0 => Ok(count),
                1 => Runs::new(definitions, 1).ones(count).ok_or_else(cut),
                _ => {
                    let levels = Runs::new(definitions, bits(defined)).bytes(count).ok_or_else(cut)?;
                    Ok(levels.iter().filter(|level| **level == defined).count())
                }
            };
        }
        let levels = |bytes: Bytes, most: u8| match most {
            0 => Some(vec![0; count]),
            most => Runs::new(bytes, bits(most)).bytes(count),
        };
        let repetitions = levels(repetitions, most).ok_or_else(cut)?;
        let definitions = levels(definitions, defined).ok_or_else(cut)?;
        if !self.lineage.holds(self.last, &repetitions, &definitions) {
            return Err(broken("go on with a list that is empty or null"));
        }
        self.last = definitions.last().copied().or(self.last);
        if let Some((_, rows)) = &mut self.rows {
            if *rows == 0 && repetitions.first().is_some_and(|level| *level > 0) {
                return Err(broken("begin within a row"));
            }
            *rows += repetitions.iter().filter(|level| **level == 0).count();
        }
        if let Some((tally, at)) = &self.tally {
            tally.note(*at, &self.lineage, Some([&repetitions, &definitions]));
        }
        Ok(definitions.iter().filter(|level| **level == defined).count())
    }

    /// Returns true if `values` can be those of `there` values among `count`, as far as their number of bytes tells.
    fn fits(&self, values: Bytes, encoding: Encoding, count: usize, there: usize) -> bool {
        match encoding {
            Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY if there > 0 => {
                let Some(width) = values.first().copied().filter(|width| *width <= 32) else { return false };
                Runs::new(values.slice(1..), width).none_above(u32::MAX, there)
            }
            // The position of a value's bytes depends on the number of values.
            Encoding::BYTE_STREAM_SPLIT if self.width > 0 => {
                let stored = values.len() / self.width;
                values.len().is_multiple_of(self.width) && (there..=count).contains(&stored)
            }
            _ => true,
        }
    }

    /// Notes a page that is skipped unchecked.
    fn pass(&mut self) {
        self.last = None;
        self.rows = None;
        if let Some((tally, at)) = &self.tally {
            tally.note(*at, &self.lineage, None);
        }
    }
}

/// Returns true if levels are in the deprecated encoding.
#[allow(deprecated, reason = "old files have it")]
fn bit_packed(encoding: Encoding) -> bool {
    encoding == Encoding::BIT_PACKED
}

/// Splits levels of `width` bits, without a length or runs, off the page, and converts them to one run of the current
/// encoding, in which the first is in the low bits.
fn packed(page: &mut Bytes, width: u8, count: usize) -> Option<Bytes> {
    let length = count.checked_mul(usize::from(width))?.div_ceil(8);
    let old = (length <= page.len()).then(|| page.split_to(length))?;
    let groups = count.div_ceil(8);
    let mut run = Vec::with_capacity(length + 10);
    let mut header = (groups as u64) << 1 | 1;
    while header > 0x7f {
        run.push(header as u8 | 0x80);
        header >>= 7;
    }
    run.push(header as u8);
    let begin = run.len();
    run.resize(begin + groups.checked_mul(usize::from(width))?, 0);
    let (width, values) = (usize::from(width), run.get_mut(begin..)?);
    let mut put = |at: usize| values.get_mut(at / 8).map(|byte| *byte |= 1 << (at % 8));
    for number in 0..count {
        for bit in 0..width {
            let at = number * width + bit;
            if old.get(at / 8)? >> (7 - at % 8) & 1 == 1 {
                put(number * width + width - 1 - bit)?;
            }
        }
    }
    Some(run.into())
}

fn bits(most: u8) -> u8 {
    (u8::BITS - most.leading_zeros()) as u8
}

fn broken(what: &str) -> ParquetError {
    ParquetError::General(format!("the levels of a page {what}"))
}

impl<P: PageReader> Checked<P> {
    /// Checks the rows so far against those announced. Every page has a row.
    fn count(&mut self) -> Result<()> {
        let Some((announced, rows)) = self.rows else { return Ok(()) };
        let ends = self.pages.peek_next_page()?.is_none();
        let fits = if ends { rows == announced } else { rows < announced };
        if fits {
            return Ok(());
        }
        let more = if ends { "" } else { " and more" };
        Err(ParquetError::General(format!("they have {rows} rows{more}, the page index states {announced}")))
    }
}

impl<P: PageReader> Iterator for Checked<P> {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl<P: PageReader> PageReader for Checked<P> {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.pages.get_next_page()?;
        if let Some(page) = &page {
            self.check(page)?;
            if page.is_data_page() {
                self.count()?;
            }
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.pass();
        self.pages.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.pages.at_record_boundary()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_of_the_old_encoding_are_those_of_the_new() {
        // 0 to 7, in three bits each, the first in the high ones.
        let mut page = Bytes::from_static(&[0b0000_0101, 0b0011_1001, 0b0111_0111, 9]);
        let run = packed(&mut page, 3, 8).unwrap();
        assert_eq!(Runs::new(run, 3).bytes(8).unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(page.as_ref(), [9]);
        let run = packed(&mut Bytes::from_static(&[0b1010_0000]), 1, 3).unwrap();
        assert_eq!(Runs::new(run, 1).bytes(3).unwrap(), [1, 0, 1]);
        assert!(packed(&mut Bytes::from_static(&[0]), 1, 9).is_none());
        let many = packed(&mut Bytes::from(vec![0xff; 1000]), 1, 8000).unwrap();
        assert_eq!(Runs::new(many, 1).ones(8000), Some(8000));
    }
}
