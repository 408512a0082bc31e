//! Columns whose values are arrays of shapes of their own: the shapes of a batch's values, from their headers, then the
//! values, one after another.

use arrow::array::Array;
use rayon::prelude::*;

use super::layout::{Layout, RowError, Rows, Shapes, Table};
use super::output::{Form, Output, Shaped};
use crate::error::{Error, Place, Result};
use crate::tensor::BatchBuilder;

/// The shapes of the first `limit` of `picked`; the others, nulls and bad rows have no elements. Faults go to
/// `row_errors`, if given.
pub(super) fn shapes(
    outputs: &[Output],
    tables: &[Table<'_>],
    rows: &Rows<'_>,
    picked: &[(u32, u32)],
    limit: usize,
    mut row_errors: Option<&mut Vec<RowError>>,
) -> Vec<Shapes> {
    let mut all = Vec::with_capacity(outputs.len());
    for (at, output) in outputs.iter().enumerate() {
        let (Form::Shaped(shaped), Table::Bytes(_)) = (&output.form, &tables[at]) else {
            all.push(Shapes::default());
            continue;
        };
        let found: Vec<Result<Vec<usize>>> = picked[..limit]
            .par_iter()
            .map(|pick| match cell(tables, at, *pick) {
                Some(cell) => sized(shaped, cell),
                None => Ok(Vec::new()),
            })
            .collect();
        let mut shapes = Shapes { starts: vec![0], axes: vec![0; picked.len() * shaped.axes] };
        let mut sum = 0_usize;
        for (index, shape) in found.into_iter().enumerate() {
            match shape {
                Ok(shape) => {
                    // A sum beyond memory is refused when the tensor is laid out.
                    sum = sum.saturating_add(shaped.items(&shape));
                    shapes.axes[index * shaped.axes..][..shape.len()].copy_from_slice(&shape);
                }
                Err(error) => {
                    if let Some(row_errors) = &mut row_errors {
                        row_errors.push(RowError::of(output, at, index, rows, error));
                    }
                }
            }
            shapes.starts.push(sum);
        }
        shapes.starts.resize(picked.len() + 1, sum);
        all.push(shapes);
    }
    all
}

/// Decodes the values of the first `limit` of `picked` into their places. Those of bad rows are zero.
pub(super) fn decode(
    outputs: &[Output],
    tables: &[Table<'_>],
    rows: &Rows<'_>,
    (picked, limit): (&[(u32, u32)], usize),
    layout: &Layout,
    builder: &mut BatchBuilder,
    row_errors: &mut Vec<RowError>,
) {
    for (at, output) in outputs.iter().enumerate() {
        let Form::Shaped(shaped) = &output.form else { continue };
        let (first, starts) = (layout.outputs[at].0, &layout.outputs[at].1[0]);
        let width = output.width();
        let mut rest = builder.tensor(first);
        let mut places = Vec::with_capacity(limit);
        for index in 0..limit {
            let (place, later) = rest.split_at_mut((starts[index + 1] - starts[index]) * width);
            places.push((index, place));
            rest = later;
        }
        let decoder = &shaped.decoder;
        let failed = places.into_par_iter().filter_map(|(index, place)| {
            let cell = cell(tables, at, picked[index])?;
            if place.is_empty() {
                // Nothing to decode, or a row whose shape was bad already.
                return None;
            }
            let error = decoder.decode_into(cell, 0, place).err()?;
            place.fill(0);
            Some(RowError::of(output, at, index, rows, error))
        });
        row_errors.extend(failed.collect::<Vec<_>>());
    }
}

/// Returns true if the cell of `pick` can be decoded, as a null can.
pub(super) fn is_good(output: &Output, tables: &[Table<'_>], at: usize, pick: (u32, u32)) -> bool {
    let Form::Shaped(shaped) = &output.form else { return true };
    let Some(cell) = cell(tables, at, pick) else { return true };
    let Ok(shape) = sized(shaped, cell) else { return false };
    let Some(bytes) = shaped.items(&shape).checked_mul(output.width()) else { return false };
    let mut place = Vec::new();
    if place.try_reserve_exact(bytes).is_err() {
        return false;
    }
    place.resize(bytes, 0);
    shaped.decoder.decode_into(cell, 0, &mut place).is_ok()
}

fn cell<'a>(tables: &[Table<'a>], at: usize, pick: (u32, u32)) -> Option<&'a [u8]> {
    let Table::Bytes(cells) = &tables[at] else { return None };
    let (array, row) = (cells[pick.0 as usize], pick.1 as usize);
    (!array.is_null(row)).then(|| array.value(row))
}

fn sized(shaped: &Shaped, cell: &[u8]) -> Result<Vec<usize>> {
    let shape = shaped.decoder.shape_of(cell)?;
    if shape.len() == shaped.axes {
        return Ok(shape);
    }
    let what = format!("an array of {} axes, where the schema declares {}", shape.len(), shaped.axes);
    Err(Error::corrupt(Place::default(), what))
}
