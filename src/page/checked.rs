//! Pages whose levels are held against the schema before anybody builds arrays by them.
//!
//! A level takes a whole number of bits, or bytes where it repeats, so that a page can hold one that the column has not; and there can
//! be fewer levels than values. The Arrow reader makes nulls of both that nobody wrote.

use bytes::Bytes;
use parquet::basic::Encoding;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::schema::types::ColumnDescriptor;

use super::chunk::prefixed;
use super::hybrid::Runs;

/// The pages of one column chunk.
pub(crate) struct Checked<P> {
    pages: P,
    /// The greatest levels, repetition first.
    most: [u8; 2],
}

impl<P> std::fmt::Debug for Checked<P> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Checked").field("most", &self.most).finish_non_exhaustive()
    }
}

/// Whether such a column has levels.
pub(crate) fn has_levels(column: &ColumnDescriptor) -> bool {
    column.max_rep_level() > 0 || column.max_def_level() > 0
}

impl<P: PageReader> Checked<P> {
    /// The pages that `pages` give of `column`.
    pub(crate) fn new(pages: P, column: &ColumnDescriptor) -> Self {
        let most = [column.max_rep_level(), column.max_def_level()];
        Self { pages, most: most.map(|level| u8::try_from(level).unwrap_or(u8::MAX)) }
    }

    fn check(&self, page: &Page) -> Result<()> {
        let (levels, count) = match page {
            Page::DictionaryPage { .. } => return Ok(()),
            Page::DataPage { buf, num_values, rep_level_encoding, def_level_encoding, .. } => {
                let mut rest = buf.clone();
                let mut levels = [Bytes::new(), Bytes::new()];
                for ((levels, most), encoding) in
                    levels.iter_mut().zip(self.most).zip([rep_level_encoding, def_level_encoding])
                {
                    if most > 0 {
                        // The deprecated encoding of levels is the decoder's business.
                        if *encoding != Encoding::RLE {
                            return Ok(());
                        }
                        *levels = prefixed(&mut rest, *encoding).ok_or_else(|| broken("are cut off"))?;
                    }
                }
                (levels, *num_values)
            }
            Page::DataPageV2 { buf, num_values, num_nulls, def_levels_byte_len, rep_levels_byte_len, .. } => {
                let (repetitions, definitions) = (*rep_levels_byte_len as usize, *def_levels_byte_len as usize);
                let end = repetitions.checked_add(definitions).filter(|end| *end <= buf.len());
                let end = end.ok_or_else(|| broken("are cut off"))?;
                if self.most == [0, 1] {
                    let there = Runs::new(buf.slice(repetitions..end), 1).ones(*num_values as usize);
                    if there != num_values.checked_sub(*num_nulls).map(|there| there as usize) {
                        return Err(broken(&format!("leave out others than {num_nulls} nulls")));
                    }
                }
                ([buf.slice(..repetitions), buf.slice(repetitions..end)], *num_values)
            }
        };
        for (levels, most) in levels.into_iter().zip(self.most) {
            if most > 0 && !Runs::new(levels, bits(most)).none_above(u32::from(most), count as usize) {
                return Err(broken(&format!("are not {count}, or go beyond {most}, the greatest of the schema")));
            }
        }
        Ok(())
    }
}

fn bits(most: u8) -> u8 {
    (u8::BITS - most.leading_zeros()) as u8
}

fn broken(what: &str) -> ParquetError {
    ParquetError::General(format!("the levels of a page {what}"))
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
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.pages.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.pages.at_record_boundary()
    }
}
