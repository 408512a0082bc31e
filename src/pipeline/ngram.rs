//! Windows of rows as samples: the columns of each offset, gathered time-major.
//!
//! A step picks windows. For the columns delivered at offsets `o1..ot`, all rows at `o1` come first, then all at `o2`:
//! a batch of `t * B` rows, which is delivered as `[t, B, ...]`.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::codec::{BadRow, BadRows, Columns, Rows};
use crate::dataset::Ngram;
use crate::error::{Error, Result};
use crate::memory::Reservation;
use crate::schema::{Field, Schema};
use crate::tensor::Batch;

/// The columns delivered at the same offsets.
#[derive(Debug)]
struct Group {
    columns: Columns,
    /// From the first row of the window, ascending.
    offsets: Vec<u32>,
    /// Tensors without a batch axis.
    flat: Vec<Arc<str>>,
}

/// Makes batches from the rows of windows.
#[derive(Debug)]
pub(super) struct Frames {
    groups: Vec<Group>,
    /// Columns that each window has once: its number, and the mask of real windows.
    once: Columns,
    fields: Schema,
}

impl Frames {
    /// Selects the columns that `ngram` delivers at each offset from those that `columns` makes.
    ///
    /// # Errors
    /// [`Error::NotFound`] for a name that matches no column of `columns`; [`Error::Config`] if bad rows are to be
    /// replaced, as a window with another row in it is not a window.
    pub(super) fn new(ngram: &Ngram, columns: &Columns, bad_rows: BadRows) -> Result<Self> {
        if bad_rows == BadRows::Skip {
            return Err(Error::config("bad_rows", "a window cannot have a row replaced; use error or zero with ngram"));
        }
        ngram.length()?;
        let first = ngram.fields.keys().next().copied().unwrap_or(0);
        let mut offsets: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for (offset, names) in &ngram.fields {
            for output in columns.named(names)? {
                // The length of a window is at most 2^20.
                offsets.entry(output).or_default().push(offset.abs_diff(first) as u32);
            }
        }
        let mut by_offsets: BTreeMap<Vec<u32>, Vec<usize>> = BTreeMap::new();
        for (output, offsets) in offsets {
            by_offsets.entry(offsets).or_default().push(output);
        }
        let mut fields = Vec::new();
        let mut groups = Vec::new();
        for (offsets, outputs) in by_offsets {
            let columns = columns.only(&outputs, false);
            fields.extend(columns.fields().fields().iter().map(|field| field.framed(offsets.len())));
            let flat = columns.fields().fields().iter().flat_map(Field::flat_names).collect();
            groups.push(Group { columns, offsets, flat });
        }
        let once = columns.only(&[], true);
        fields.extend(once.fields().fields().iter().cloned());
        Ok(Self { groups, once, fields: Schema::new(fields) })
    }

    pub(super) fn fields(&self) -> &Schema {
        &self.fields
    }

    /// Bytes to reserve for a batch of `rows` windows, as [`Columns::batch_bytes`].
    pub(super) fn batch_bytes(&self, rows: usize, mean_row_bytes: u64) -> usize {
        let groups = self
            .groups
            .iter()
            .map(|group| group.columns.batch_bytes(rows.saturating_mul(group.offsets.len()), mean_row_bytes));
        groups.fold(self.once.batch_bytes(rows, 0), usize::saturating_add)
    }

    /// As [`Columns::copied_bytes`].
    pub(super) fn copied_bytes(&self, batch: &Batch) -> usize {
        self.groups.iter().map(|group| group.columns.copied_bytes(batch)).sum()
    }

    /// The windows that begin at `rows.rows`. A padding window repeats the first one; the mask marks it.
    pub(super) fn assemble(&self, rows: &Rows<'_>, mut reservation: Reservation) -> Result<(Batch, Vec<BadRow>)> {
        let spare = reservation.split(0);
        let (mut batch, mut bad) = self.once.assemble(rows, spare)?;
        let own = batch.columns().len();
        for group in &self.groups {
            let first = rows.rows.first();
            let windows =
                rows.rows.iter().chain(first.into_iter().cycle()).take(if first.is_some() { rows.size } else { 0 });
            let at = |offset: &u32| {
                let offset = *offset;
                windows.clone().map(move |(cell, row)| (*cell, row.saturating_add(offset)))
            };
            let picks: Vec<(u32, u32)> = group.offsets.iter().flat_map(at).collect();
            let size = rows.size * group.offsets.len();
            let rows = Rows { rows: &picks, size, masked: false, ..*rows };
            let (part, found) = group.columns.assemble(&rows, reservation.split(reservation.bytes()))?;
            bad.extend(found);
            batch.add_frames(part, group.offsets.len(), &group.flat);
        }
        batch.move_behind(own);
        Ok((batch, bad))
    }
}

/// Makes the batch of a step: from rows, or from windows of them.
#[derive(Debug, Clone)]
pub(super) enum Maker {
    Rows(Arc<Columns>),
    Frames(Arc<Frames>),
}

impl Maker {
    pub(super) fn fields(&self) -> &Schema {
        match self {
            Self::Rows(columns) => columns.fields(),
            Self::Frames(frames) => frames.fields(),
        }
    }

    pub(super) fn batch_bytes(&self, rows: usize, mean_row_bytes: u64) -> usize {
        match self {
            Self::Rows(columns) => columns.batch_bytes(rows, mean_row_bytes),
            Self::Frames(frames) => frames.batch_bytes(rows, mean_row_bytes),
        }
    }

    /// As [`Columns::even_bytes`]. Windows lie in several slabs.
    pub(super) fn even_bytes(&self, rows: usize, masked: bool) -> Option<usize> {
        match self {
            Self::Rows(columns) => columns.even_bytes(rows, masked),
            Self::Frames(_) => None,
        }
    }

    pub(super) fn copied_bytes(&self, batch: &Batch) -> usize {
        match self {
            Self::Rows(columns) => columns.copied_bytes(batch),
            Self::Frames(frames) => frames.copied_bytes(batch),
        }
    }

    pub(super) fn assemble(&self, rows: &Rows<'_>, reservation: Reservation) -> Result<(Batch, Vec<BadRow>)> {
        match self {
            Self::Rows(columns) => columns.assemble(rows, reservation),
            Self::Frames(frames) => frames.assemble(rows, reservation),
        }
    }
}
