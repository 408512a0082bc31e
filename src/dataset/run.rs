//! The pages of a unit, as the readers of whole chunks want them: the dictionary, then the unit's pages; and, for Arrow's reader, the
//! rest of the chunk as pages that can only be skipped.

use std::ops::Range;

use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::Length;
use parquet::schema::types::ColumnDescPtr;

use super::Chunk;
use super::chunks::Chunks;
use super::dictionaries::Dictionary;
use super::offsets::Run;
use super::unpack::{self, Pages};

/// The pages of `run` of `chunk` of `column` among `bytes`, which were walked over before. A `shared` dictionary comes from there.
pub(super) fn pages(
    bytes: &Chunks,
    chunk: &Chunk,
    column: &ColumnDescPtr,
    run: &Run,
    shared: Option<&Dictionary>,
) -> Result<Joined> {
    let rows = usize::try_from(run.rows.end - run.rows.start)?;
    // A chunk that is nothing but these pages.
    let part = |bytes: &Chunks, range: &Range<u64>| {
        let (start, stored) = (range.start, range.end - range.start);
        let part = Chunk { start, data: start, stored, dictionary: false, ..*chunk };
        unpack::pages(bytes, &part, column, rows)
    };
    let dictionary = match (shared, &run.dictionary) {
        (Some(shared), _) => match shared.page() {
            Some(page) => Some(page),
            None => {
                let range = shared.range();
                let alone = Chunks::new(vec![(range.start, shared.stored().clone())], bytes.len());
                let page = part(&alone, range)?.get_next_page()?;
                page.iter().for_each(|page| shared.keep(page));
                page
            }
        },
        (None, Some(range)) => part(bytes, range)?.get_next_page()?,
        (None, None) => None,
    };
    Ok(Joined { dictionary, pages: part(bytes, &run.pages)? })
}

/// A dictionary, if there is one, and the pages of a run.
pub(super) struct Joined {
    /// Read before anybody looks at it: Parquet's reader takes one without values, which is a header alone, for the end once it was looked at.
    dictionary: Option<Page>,
    pages: Pages,
}

impl Iterator for Joined {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Joined {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        match self.dictionary.take() {
            Some(page) => Ok(Some(page)),
            None => self.pages.get_next_page(),
        }
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        match self.dictionary {
            Some(_) => Ok(Some(PageMetadata { num_rows: None, num_levels: None, is_dict: true })),
            None => self.pages.peek_next_page(),
        }
    }

    fn skip_next_page(&mut self) -> Result<()> {
        match self.dictionary.take() {
            Some(_) => Ok(()),
            None => self.pages.skip_next_page(),
        }
    }
}

/// Pages between rows that were not read.
pub(super) struct Framed<P> {
    pages: P,
    /// Rows before the pages, until they are skipped, and after them.
    before: usize,
    after: usize,
}

impl<P: PageReader> Framed<P> {
    /// `pages` of `run`, in a row group of `total` rows.
    pub(super) fn new(pages: P, run: &Run, total: usize) -> Result<Self> {
        let (before, end) = (usize::try_from(run.rows.start)?, usize::try_from(run.rows.end)?);
        Ok(Self { pages, before, after: total.saturating_sub(end) })
    }
}

fn unread(rows: usize) -> Option<PageMetadata> {
    (rows > 0).then_some(PageMetadata { num_rows: Some(rows), num_levels: None, is_dict: false })
}

impl<P: PageReader> Iterator for Framed<P> {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl<P: PageReader> PageReader for Framed<P> {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        match self.before {
            0 => self.pages.get_next_page(),
            rows => Err(ParquetError::General(format!("{rows} rows are asked for that were not read"))),
        }
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        match unread(self.before) {
            Some(rows) => Ok(Some(rows)),
            None => Ok(self.pages.peek_next_page()?.or_else(|| unread(self.after))),
        }
    }

    fn skip_next_page(&mut self) -> Result<()> {
        if self.before > 0 {
            self.before = 0;
        } else if self.pages.peek_next_page()?.is_some() {
            return self.pages.skip_next_page();
        } else {
            self.after = 0;
        }
        Ok(())
    }
}
