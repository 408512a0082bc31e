//! The size of a batch in bytes, as far as it is known before its rows are.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::Array;

use super::assemble::{most, own_specs, specs};
use super::output::{Form, Output};
use crate::schema::part_name;
use crate::tensor::{BatchBuilder, Value};

pub(super) fn batch_bytes(outputs: &[Output], row_id: bool, rows: usize, mean_row_bytes: u64) -> usize {
    let fixed = slab_bytes(outputs, row_id, rows, true);
    let factor = outputs.iter().map(expansion).max().unwrap_or(0);
    let mean = usize::try_from(mean_row_bytes).unwrap_or(usize::MAX);
    fixed.saturating_add(mean.saturating_mul(factor).saturating_mul(rows))
}

/// Bytes of the memory of every batch of `rows` rows, if all have the same and all of it is in one slab.
pub(super) fn even_bytes(outputs: &[Output], row_id: bool, rows: usize, masked: bool) -> Option<usize> {
    let even = outputs.iter().all(|output| expansion(output) == 0);
    even.then(|| slab_bytes(outputs, row_id, rows, masked))
}

/// Bytes of a slab, except for what depends on the rows.
fn slab_bytes(outputs: &[Output], row_id: bool, rows: usize, masked: bool) -> usize {
    let mut all = Vec::new();
    outputs.iter().for_each(|output| specs(output, rows, most(output, rows).as_slice(), &mut all));
    own_specs(rows, row_id, masked, &mut all);
    BatchBuilder::slab_bytes(&all).unwrap_or(usize::MAX)
}

/// Ratio of an output's size to the stored size of its rows, if it depends on them; otherwise 0.
fn expansion(output: &Output) -> usize {
    match &output.form {
        Form::Shaped(shaped) => shaped.expansion,
        // The struct of a vector of one number takes less than the indices do.
        Form::Ragged(_, None) | Form::Sparse | Form::Indices => 2,
        // These lie outside the slab, but their bytes live as long as the batch does.
        _ if output.is_arrow() => 2,
        _ => 0,
    }
}

/// Bytes of an output's values in a batch, whose values are given by name.
pub(super) fn value_bytes(output: &Output, values: &HashMap<&str, &Value>) -> usize {
    let name = match output.form {
        Form::Ragged(..) | Form::Shaped(_) | Form::Sparse => part_name(&output.name, "values", 0),
        Form::Indices => part_name(&output.name, "indices", 0),
        _ => Arc::clone(&output.name),
    };
    match values.get(&*name) {
        Some(Value::Tensor(tensor)) => tensor.bytes().len(),
        Some(Value::Arrow(array)) => array.to_data().get_slice_memory_size().unwrap_or(0),
        None => 0,
    }
}
