//! The layout of a batch: one [`Field`] per delivered column, known before any data is read.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::DataType;

use super::DType;

/// One axis of a delivered column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dim {
    /// The rows of the batch.
    Batch,
    /// A constant length.
    Fixed(usize),
    /// The length of each list: the column comes as `__values` and `__offsets`.
    Ragged,
    /// As [`Ragged`](Self::Ragged), with at most this many: longer lists were cut or refused.
    Cut(usize),
    /// The length in each value, where other axes than the first vary: the column comes as `__values`, one value after
    /// another, with `__offsets`, and `__shape` holds the axes.
    Any,
    /// Columns of a sparse matrix: as [`Ragged`](Self::Ragged), and `__indices` holds the column of each value.
    Sparse,
    /// A constant length, padded or cut: the column comes with `__lengths`.
    Padded(usize),
}

/// The form in which a column's values are delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Type {
    /// A tensor of this element type.
    Tensor(DType),
    /// An Arrow array of this type: text, binary, and lists of them.
    Arrow(DataType),
}

/// One delivered column. It may come as several columns of the batch, see [`names`](Self::names).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// The column's name; parts of a struct are dotted: `a.b`.
    pub name: Arc<str>,
    /// Tensor or Arrow.
    pub ty: Type,
    /// The axes, the batch first.
    pub dims: Vec<Dim>,
    /// The unit of dates, times, timestamps and durations (`days`, `s`, `ms`, `us`, `ns`, `months`), with the time zone if
    /// there is one (`us, UTC`).
    pub unit: Option<Arc<str>>,
    /// Set if a validity mask `name__valid` comes with it.
    pub valid: bool,
    /// Names of the classes that its integers number, if the dataset has them.
    pub classes: Option<Arc<[Arc<str>]>>,
}

impl Field {
    /// A tensor column without unit and mask.
    pub fn tensor(name: impl Into<Arc<str>>, dtype: DType, dims: Vec<Dim>) -> Self {
        Self { name: name.into(), ty: Type::Tensor(dtype), dims, unit: None, valid: false, classes: None }
    }

    /// The element type, if the column is a tensor.
    pub fn dtype(&self) -> Option<DType> {
        match self.ty {
            Type::Tensor(dtype) => Some(dtype),
            Type::Arrow(_) => None,
        }
    }

    /// The same column in windows of `length` rows, time-major: one more axis before the batch.
    pub(crate) fn framed(&self, length: usize) -> Self {
        let mut framed = self.clone();
        framed.dims.insert(0, Dim::Fixed(length));
        framed
    }

    /// Names of the parts without a batch axis: values and offsets of ragged columns.
    pub(crate) fn flat_names(&self) -> Vec<Arc<str>> {
        let flat = |name: &Arc<str>| {
            let part = name.strip_prefix(&*self.name).unwrap_or_default();
            part == "__values" || part == "__indices" || part.starts_with("__offsets")
        };
        let ragged = self.dims.iter().any(|dim| matches!(dim, Dim::Ragged | Dim::Cut(_) | Dim::Any | Dim::Sparse));
        if ragged { self.names().into_iter().filter(flat).collect() } else { Vec::new() }
    }

    /// Names of the column's parts in a batch, in order.
    pub fn names(&self) -> Vec<Arc<str>> {
        let name = &self.name;
        let count = |wanted: fn(&Dim) -> bool| self.dims.iter().filter(|dim| wanted(dim)).count();
        let sparse = count(|d| matches!(d, Dim::Sparse));
        let ragged = count(|d| matches!(d, Dim::Ragged | Dim::Cut(_))) + sparse;
        let padded = count(|d| matches!(d, Dim::Padded(_)));
        if count(|d| matches!(d, Dim::Any)) > 0 {
            let mut names: Vec<Arc<str>> = ["values", "offsets", "shape"].map(|part| part_name(name, part, 0)).into();
            names.extend(self.valid.then(|| part_name(name, "valid", 0)));
            return names;
        }
        let mut names: Vec<Arc<str>> = Vec::new();
        match &self.ty {
            Type::Tensor(_) if ragged > 0 => names.push(format!("{name}__values").into()),
            _ => names.push(Arc::clone(name)),
        }
        let (part, levels) = if padded > 0 { ("lengths", padded) } else { ("offsets", ragged) };
        if matches!(self.ty, Type::Tensor(_)) {
            names.extend((0..levels).map(|level| part_name(name, part, level)));
        }
        if self.valid {
            names.push(format!("{name}__valid").into());
        }
        if sparse > 0 {
            names.push(part_name(name, "indices", 0));
        }
        names
    }
}

/// `name__part`, and `name__part_1`, `name__part_2` for deeper levels of nesting.
pub(crate) fn part_name(name: &str, part: &str, level: usize) -> Arc<str> {
    if level == 0 { format!("{name}__{part}").into() } else { format!("{name}__{part}_{level}").into() }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.ty {
            Type::Tensor(dtype) => write!(f, "{} {dtype} [", self.name)?,
            Type::Arrow(ty) => write!(f, "{} arrow {ty} [", self.name)?,
        }
        for (at, dim) in self.dims.iter().enumerate() {
            let separator = if at == 0 { "" } else { ", " };
            match dim {
                Dim::Batch => write!(f, "{separator}B")?,
                Dim::Fixed(n) => write!(f, "{separator}{n}")?,
                Dim::Ragged => write!(f, "{separator}ragged")?,
                Dim::Cut(n) => write!(f, "{separator}ragged<={n}")?,
                Dim::Any => write!(f, "{separator}any")?,
                Dim::Sparse => write!(f, "{separator}sparse")?,
                Dim::Padded(n) => write!(f, "{separator}<={n}")?,
            }
        }
        f.write_str("]")?;
        if let Some(unit) = &self.unit {
            write!(f, " ({unit})")?;
        }
        if self.valid { f.write_str(" with mask") } else { Ok(()) }
    }
}

/// The columns of a batch, in the order in which it holds them: that of the option `columns`, then `_row_id`. `_mask`, which depends
/// on the plan, is not among them; it comes last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Schema {
    fields: Vec<Field>,
}

impl Schema {
    /// A schema of these fields.
    pub fn new(fields: Vec<Field>) -> Self {
        Self { fields }
    }

    /// The fields in order.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// The field named `name`.
    pub fn get(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| &*field.name == name)
    }
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, field) in self.fields.iter().enumerate() {
            write!(f, "{}{field}", if at == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_dims() {
        let mut field = Field::tensor("x", DType::Int64, vec![Dim::Batch, Dim::Ragged, Dim::Ragged]);
        field.valid = true;
        let names: Vec<String> = field.names().iter().map(ToString::to_string).collect();
        assert_eq!(names, ["x__values", "x__offsets", "x__offsets_1", "x__valid"]);
        let field = Field::tensor("x", DType::Float32, vec![Dim::Batch, Dim::Padded(4), Dim::Fixed(2)]);
        assert_eq!(field.names().iter().map(|n| &**n).collect::<Vec<_>>(), ["x", "x__lengths"]);
        let unit = Field { unit: Some("us, UTC".into()), ..Field::tensor("t", DType::Int64, vec![Dim::Batch]) };
        assert_eq!(Schema::new(vec![field, unit]).to_string(), "x float32 [B, <=4, 2]; t int64 [B] (us, UTC)");
    }
}
