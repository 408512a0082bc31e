//! The type that another library gives a column, which Parquet stores as a struct or an integer. Metadata of the Arrow
//! field holds it.

use arrow::datatypes::{DataType, Field};

/// The key of the field's metadata that holds a [`Feature`] as text.
pub(crate) const FEATURE_KEY: &str = "bowstring.feature";

/// The key of the metadata of a root field that holds the names of the classes that integers number, as JSON: a list for
/// the column itself, or an object of lists by the dotted name of each integer column in it.
pub(crate) const CLASSES_KEY: &str = "bowstring.classes";

/// The type of a column in another library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// Spark's `VectorUDT`, dense or sparse, and the length of all vectors if known.
    Vector(Option<usize>),
    /// Spark's `MatrixUDT`.
    Matrix,
    /// Spark's `variant`.
    Variant,
    /// Hugging Face's `Image`: the bytes of a file, and its path.
    Image,
}

impl Feature {
    /// The feature as metadata.
    pub fn text(self) -> String {
        match self {
            Self::Vector(None) => "vector".to_owned(),
            Self::Vector(Some(size)) => format!("vector {size}"),
            Self::Matrix => "matrix".to_owned(),
            Self::Variant => "variant".to_owned(),
            Self::Image => "image".to_owned(),
        }
    }

    /// The feature marked on `field`, if the field still has the feature's type.
    pub fn of(field: &Field) -> Option<Self> {
        let text = field.metadata().get(FEATURE_KEY)?;
        let feature = match text.split_once(' ') {
            Some(("vector", size)) => Self::Vector(size.parse().ok()),
            _ => match text.as_str() {
                "vector" => Self::Vector(None),
                "matrix" => Self::Matrix,
                "variant" => Self::Variant,
                "image" => Self::Image,
                _ => return None,
            },
        };
        let whole = match feature {
            Self::Vector(_) => is_vector(field.data_type()),
            Self::Image => holds_image(field.data_type()),
            Self::Matrix | Self::Variant => true,
        };
        whole.then_some(feature)
    }
}

fn member<'a>(ty: &'a DataType, name: &str) -> Option<&'a DataType> {
    let DataType::Struct(fields) = ty else { return None };
    fields.iter().find(|field| field.name() == name).map(|field| field.data_type())
}

fn is_list_of(ty: Option<&DataType>, item: &DataType) -> bool {
    matches!(ty, Some(DataType::List(of) | DataType::LargeList(of)) if of.data_type() == item)
}

fn has_members(ty: &DataType, names: &[&str]) -> bool {
    matches!(ty, DataType::Struct(fields) if fields.len() == names.len())
        && names.iter().all(|name| member(ty, name).is_some())
}

/// Returns true for the struct in which Spark stores vectors.
pub(crate) fn is_vector(ty: &DataType) -> bool {
    has_members(ty, &["type", "size", "indices", "values"])
        && member(ty, "type") == Some(&DataType::Int8)
        && member(ty, "size") == Some(&DataType::Int32)
        && is_list_of(member(ty, "indices"), &DataType::Int32)
        && is_list_of(member(ty, "values"), &DataType::Float64)
}

/// Returns true for the struct in which Spark stores matrices.
pub(crate) fn is_matrix(ty: &DataType) -> bool {
    has_members(ty, &["type", "numRows", "numCols", "colPtrs", "rowIndices", "values", "isTransposed"])
        && is_list_of(member(ty, "values"), &DataType::Float64)
}

/// Returns true for a struct with the bytes of a file in its member `bytes`, as Hugging Face stores images.
pub(crate) fn holds_image(ty: &DataType) -> bool {
    matches!(member(ty, "bytes"), Some(DataType::Binary | DataType::LargeBinary | DataType::BinaryView))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn list(item: DataType) -> DataType {
        DataType::List(Arc::new(Field::new("element", item, false)))
    }

    #[test]
    fn a_mark_counts_where_the_type_is_still_the_features() {
        let members = |size: DataType| {
            let types = [DataType::Int8, size, list(DataType::Int32), list(DataType::Float64)];
            let names = ["type", "size", "indices", "values"];
            let fields: Vec<Field> =
                names.into_iter().zip(types).map(|(name, ty)| Field::new(name, ty, true)).collect();
            DataType::Struct(fields.into())
        };
        let marked = |ty: DataType, feature: Feature| {
            let mark = [(FEATURE_KEY.to_owned(), feature.text())];
            Feature::of(&Field::new("x", ty, true).with_metadata(mark))
        };
        for feature in [Feature::Vector(None), Feature::Vector(Some(7))] {
            assert_eq!(marked(members(DataType::Int32), feature), Some(feature));
            assert_eq!(marked(members(DataType::Int64), feature), None, "no vector of Spark");
        }
        assert_eq!(marked(list(DataType::Int32), Feature::Image), None);
        assert_eq!(marked(DataType::Int32, Feature::Variant), Some(Feature::Variant));
        assert!(!is_vector(&DataType::Int32) && !is_matrix(&members(DataType::Int32)));
    }
}
