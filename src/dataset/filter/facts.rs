//! What is known about the values of a column in some rows, wherever it is said: in a footer, or in the metadata of a table.

use super::bucket::Bucket;
use super::literal::Scalar;

/// What is known about the values in a slice of rows. `None` is unknown.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::dataset) struct Facts {
    pub(super) rows: u64,
    pub(super) nulls: Option<u64>,
    pub(super) nans: Option<u64>,
    /// What holds of the values that are neither null nor NaN.
    pub(super) extent: Option<Extent>,
}

/// A lower and an upper bound, both inclusive, in the terms of the tests; or what else the values have in common.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::dataset) enum Extent {
    Whole(i128, i128),
    Float(f64, f64),
    Bytes(Vec<u8>, Vec<u8>),
    /// All are in this bucket.
    Bucket(Bucket),
}

/// Bounds in the order in which the filter compares.
#[derive(Debug)]
pub(in crate::dataset) enum Bounds {
    /// None, or none that can be compared.
    Unknown,
    Extent(Extent),
    /// At least one of them is NaN.
    Nan,
    /// The lower is above the upper.
    Reversed,
}

impl Bounds {
    /// Those of values from `low` to `high`.
    pub(in crate::dataset) fn between(low: Scalar, high: Scalar) -> Self {
        match (low, high) {
            (Scalar::Whole(low), Scalar::Whole(high)) => Self::of(low <= high, || Extent::Whole(low, high)),
            (Scalar::Float(low), Scalar::Float(high)) if low.is_nan() || high.is_nan() => Self::Nan,
            (Scalar::Float(low), Scalar::Float(high)) => Self::of(low <= high, || Extent::Float(low, high)),
            (Scalar::Bytes(low), Scalar::Bytes(high)) => Self::of(low <= high, || Extent::Bytes(low, high)),
            _ => Self::Unknown,
        }
    }

    fn of(ordered: bool, extent: impl FnOnce() -> Extent) -> Self {
        if ordered { Self::Extent(extent()) } else { Self::Reversed }
    }
}

/// What is said, before it is known whether it agrees with itself.
#[derive(Debug)]
pub(in crate::dataset) struct Said {
    pub(in crate::dataset) rows: u64,
    pub(in crate::dataset) nulls: Option<u64>,
    pub(in crate::dataset) nans: Option<u64>,
    /// Whether there is any bound, comparable or not.
    pub(in crate::dataset) bounded: bool,
    pub(in crate::dataset) extent: Bounds,
}

impl Said {
    /// What is known by it: nothing at all where one part contradicts another, for either may be the wrong one. `required`: no value may
    /// be null.
    pub(in crate::dataset) fn facts(self, required: bool) -> Facts {
        let Self { rows, nulls, nans, bounded, extent } = self;
        let (empty, full) = (nulls.unwrap_or_default(), nans.unwrap_or_default());
        let others = rows.checked_sub(empty).and_then(|left| left.checked_sub(full));
        let contradicts = others.is_none()
            || (empty > 0 && required)
            || (bounded && rows > 0 && empty == rows)
            || match &extent {
                Bounds::Reversed => true,
                // A NaN is a bound only where there is nothing but NaN, or by old writers that count none.
                Bounds::Nan => nans == Some(0),
                Bounds::Extent(_) => rows > 0 && others == Some(0),
                Bounds::Unknown => false,
            };
        if contradicts {
            return Facts::nothing(rows);
        }
        let extent = if let Bounds::Extent(extent) = extent { Some(extent) } else { None };
        Facts { rows, nulls, nans, extent }
    }
}

impl Facts {
    pub(in crate::dataset) fn nothing(rows: u64) -> Self {
        Self { rows, nulls: None, nans: None, extent: None }
    }

    /// That all values of so many rows are null.
    pub(in crate::dataset) fn null(rows: u64) -> Self {
        Self { rows, nulls: Some(rows), nans: Some(0), extent: None }
    }

    /// That no value of so many rows is null, and `extent` holds of all.
    pub(in crate::dataset) fn all(rows: u64, extent: Extent) -> Self {
        Self { rows, nulls: Some(0), nans: Some(0), extent: Some(extent) }
    }

    /// That all values of so many rows are this one.
    pub(in crate::dataset) fn exactly(rows: u64, value: Scalar) -> Self {
        match Bounds::between(value.clone(), value) {
            Bounds::Extent(extent) => Self::all(rows, extent),
            // NaN is the one value that is outside all bounds.
            _ => Self { rows, nulls: Some(0), nans: Some(rows), extent: None },
        }
    }
}
