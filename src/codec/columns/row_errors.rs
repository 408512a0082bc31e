//! Bad rows of a step: found in the cells or by decoding them, then an error, zeroed, or replaced.

use std::sync::Arc;

use arrow::array::{Array, BinaryViewArray};
use rayon::prelude::*;

use super::layout::{Layout, RowError, Rows, Table};
use super::options::BadRows;
use super::output::{Form, Output};
use super::shaped;
use crate::codec::Decode;
use crate::error::{Error, Result};
use crate::tensor::BatchBuilder;

/// Rows of its row group that are tried in place of a bad one. More would only be needed if nearly all are bad, and
/// each may cost the decoding of an image.
const SUBSTITUTES: usize = 16;

/// A row that could not be delivered as stored.
#[derive(Debug)]
pub struct BadRow {
    /// Its index in the batch.
    pub index: usize,
    /// The row's number in the dataset.
    pub row_id: u64,
    /// The bad column.
    pub column: Arc<str>,
    /// The fault, with its place.
    pub error: Error,
    /// Number in the dataset of the row delivered in its place; `None` if its bad column is zero instead.
    pub replaced_by: Option<u64>,
}

/// The faults that preparation found in the rows of this batch, in order; only the first row's if that ends the batch.
pub(super) fn known(outputs: &[Output], rows: &Rows<'_>) -> Vec<RowError> {
    let mut row_errors = Vec::new();
    if rows.cells.iter().all(|cell| cell.bad.is_none()) {
        return row_errors;
    }
    for (index, pick) in rows.rows.iter().enumerate() {
        let (cell, row) = (&rows.cells[pick.0 as usize], pick.1 as usize);
        if cell.bad.as_ref().is_none_or(|bad| !bad.contains(row)) {
            continue;
        }
        let present = (0..outputs.len()).filter(|output| !matches!(outputs[*output].form, Form::Absent));
        for output in present {
            if let Some(bad) = cell.parts[output].bad.iter().find(|bad| bad.rows.contains(row)) {
                let (column, error) = (Arc::clone(&bad.column), bad.error(&cell.place, row, (rows.stored_rows)(*pick)));
                row_errors.push(RowError { index, output, column, error });
            }
        }
        if rows.bad_rows == BadRows::Error {
            break;
        }
    }
    row_errors
}

/// Decodes the images, and other values of one shape, of the first `limit` rows into their places. Bad, missing and padding rows
/// are zero.
pub(super) fn decode(
    outputs: &[Output],
    tables: &[Table<'_>],
    rows: &Rows<'_>,
    limit: usize,
    layout: &Layout,
    builder: &mut BatchBuilder,
    row_errors: &mut Vec<RowError>,
) {
    for (at, output) in outputs.iter().enumerate() {
        let (Form::Decoded(decoder), Table::Bytes(cells)) = (&output.form, &tables[at]) else { continue };
        let width = output.width();
        if width == 0 {
            continue;
        }
        let tensor = builder.tensor(layout.outputs[at].0);
        let (real, rest) = tensor.split_at_mut(limit * width);
        rest.fill(0);
        let decoded = real.par_chunks_mut(width).zip(&rows.rows[..limit]).enumerate();
        let failed = decoded.filter_map(|(index, (place, pick))| {
            let error = decode_cell(&**decoder, cells, rows, *pick, place).err()?;
            Some(RowError::of(output, at, index, rows, error))
        });
        row_errors.extend(failed.collect::<Vec<_>>());
    }
}

/// Decodes the cell of one row into its place, which is zero if there is none or it is bad.
fn decode_cell(
    decoder: &dyn Decode,
    cells: &[&BinaryViewArray],
    rows: &Rows<'_>,
    pick: (u32, u32),
    place: &mut [u8],
) -> Result<()> {
    let (array, row) = (cells[pick.0 as usize], pick.1 as usize);
    let decoded =
        if array.is_null(row) { None } else { Some(decoder.decode_into(array.value(row), (rows.random)(pick), place)) };
    if !matches!(decoded, Some(Ok(()))) {
        place.fill(0);
    }
    decoded.unwrap_or(Ok(()))
}

/// The row delivered in place of bad row `index`: the next good one of its row group, wrapping around. So it does not
/// depend on the rest of the batch, and no world size changes it. Only if the next [`SUBSTITUTES`] are bad as well is
/// the next row of the batch used that is not in `is_bad`. Its images are decoded into their places; values of shapes
/// of their own have to be laid out anew.
pub(super) fn substitute(
    outputs: &[Output],
    tables: &[Table<'_>],
    rows: &Rows<'_>,
    index: usize,
    is_bad: &[bool],
    layout: &Layout,
    builder: &mut BatchBuilder,
) -> Option<(u32, u32)> {
    let (number, row) = rows.rows[index];
    // Rows of a row group are counted in 32 bits, as `rows` does.
    let count = u32::try_from(rows.cells[number as usize].rows).unwrap_or(u32::MAX);
    let group = (row + 1..count).chain(0..row).map(|row| (number, row)).take(SUBSTITUTES);
    let batch = (index + 1..is_bad.len()).chain(0..index).filter(|at| !is_bad[*at]).map(|at| rows.rows[at]);
    group.chain(batch).find(|pick| {
        let good = rows.cells[pick.0 as usize].bad.as_ref().is_none_or(|bad| !bad.contains(pick.1 as usize));
        good && outputs.iter().enumerate().all(|(at, output)| {
            let (Form::Decoded(decoder), Table::Bytes(cells)) = (&output.form, &tables[at]) else {
                return shaped::is_good(output, tables, at, *pick);
            };
            let width = output.width();
            let place = &mut builder.tensor(layout.outputs[at].0)[index * width..(index + 1) * width];
            width == 0 || decode_cell(&**decoder, cells, rows, *pick, place).is_ok()
        })
    })
}

/// Resolves row errors: returns the batch's error, or the bad rows to report. `picked` receives the substitutes.
pub(super) fn resolve(
    row_errors: Vec<RowError>,
    rows: &Rows<'_>,
    picked: &mut [(u32, u32)],
    mut substitute: impl FnMut(usize) -> Option<(u32, u32)>,
) -> Result<Vec<BadRow>> {
    let mut bad: Vec<BadRow> = Vec::with_capacity(row_errors.len());
    for fault in row_errors {
        let RowError { index, column, error, .. } = fault;
        let replaced_by = match rows.bad_rows {
            BadRows::Error => return Err(error),
            BadRows::Zero => None,
            // A row is replaced once, regardless of further faults.
            BadRows::Skip if bad.last().is_some_and(|last| last.index == index) => continue,
            BadRows::Skip => match substitute(index) {
                Some(good) => Some(good),
                None => {
                    let pick = rows.rows[index];
                    let group = rows.cells[pick.0 as usize].place.clone();
                    let place = group.column(column).row((rows.stored_rows)(pick));
                    let what = "no row near it or in its batch can stand in for it, all are bad";
                    return Err(match error {
                        Error::Nulls { hint, .. } => Error::nulls(format!("null; {what}"), hint).at(place),
                        error => Error::corrupt_by(place, what, error),
                    });
                }
            },
        };
        if let Some(good) = replaced_by {
            picked[index] = good;
        }
        let row_id = (rows.row_ids)(rows.rows[index]);
        bad.push(BadRow { index, row_id, column, error, replaced_by: replaced_by.map(rows.row_ids) });
    }
    Ok(bad)
}
