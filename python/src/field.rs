//! The columns of a batch as a document: adapters know every column's type and axes before the first batch.

use arrow::datatypes::DataType;
use bowstring::schema::{Dim, Field, Schema, Type};
use serde_json::{Value, json};

/// Returns one object for each delivered column, in order.
pub(crate) fn documents(schema: &Schema) -> Value {
    schema.fields().iter().map(document).collect()
}

fn document(field: &Field) -> Value {
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
    json!({
        "name": *field.name,
        "dtype": dtype,
        "arrow": arrow.map(ToString::to_string),
        "text": arrow.is_some_and(is_text),
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
