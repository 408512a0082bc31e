//! The columns of a batch as a document: adapters know every column's type and axes before the first batch.

use arrow::datatypes::DataType;
use bowstring::pipeline::ColumnKinds;
use bowstring::schema::{Dim, Field, Schema, Type};
use serde_json::{Value, json};

/// Returns one object for each delivered column, in order. `kinds` are what the options made of them.
pub(crate) fn documents(schema: &Schema, kinds: &ColumnKinds) -> Value {
    schema.fields().iter().map(|field| document(field, kinds)).collect()
}

fn document(field: &Field, kinds: &ColumnKinds) -> Value {
    let (dtype, arrow) = match &field.ty {
        Type::Tensor(dtype) => (Some(dtype.name()), None),
        Type::Arrow(ty) => (None, Some(ty)),
    };
    let dim = |dim: &Dim| match dim {
        Dim::Batch => json!("batch"),
        Dim::Fixed(n) => json!(n),
        Dim::Ragged | Dim::Cut(_) => json!("ragged"),
        Dim::Sparse => json!("sparse"),
        Dim::Any => json!("any"),
        Dim::Padded(n) => json!({ "padded": n }),
    };
    let dims: Vec<Value> = field.dims.iter().map(dim).collect();
    let text = arrow.is_some_and(is_text);
    json!({
        "name": *field.name,
        "dtype": dtype,
        "arrow": arrow.map(ToString::to_string),
        "text": text,
        "packed": kinds.packs.contains(&field.name),
        "stays_arrow": arrow.is_some() && (!text || kinds.arrow.contains(&field.name)),
        "dims": dims,
        "unit": field.unit.as_deref(),
        "valid": field.valid,
        "classes": field.classes.as_ref().map(|names| names.iter().map(|name| name.to_string()).collect::<Vec<_>>()),
        "names": field.names().iter().map(|name| name.to_string()).collect::<Vec<_>>(),
    })
}

/// Returns true for text or binary, within any number of lists.
fn is_text(ty: &DataType) -> bool {
    match ty {
        DataType::LargeUtf8 | DataType::LargeBinary => true,
        DataType::LargeList(item) => is_text(item.data_type()),
        _ => false,
    }
}
