//! Facts about the values of a column in a range of rows, from a footer or from the metadata of a table.

use super::bucket::Bucket;
use super::literal::Scalar;

/// Facts about the values in a range of rows. `None` is unknown.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::dataset) struct Facts {
    pub(super) rows: u64,
    pub(super) nulls: Option<u64>,
    pub(super) nans: Option<u64>,
    /// Holds for every value that is neither null nor NaN.
    pub(super) extent: Option<Extent>,
}

/// An inclusive lower and upper bound, in the unit of the tests, or the bucket that all values are in.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::dataset) enum Extent {
    Whole(i128, i128),
    Float(f64, f64),
    Bytes(Vec<u8>, Vec<u8>),
    /// All values are in this bucket.
    Bucket(Bucket),
}

/// Bounds in the order in which the filter compares.
#[derive(Debug)]
pub(in crate::dataset) enum Bounds {
    /// No bounds, or none that can be compared.
    Unknown,
    Extent(Extent),
    /// At least one of them is NaN.
    Nan,
    /// The lower is above the upper.
    Reversed,
}

impl Bounds {
    /// Bounds of values from `low` to `high`.
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

/// Statistics as stored, before the check for contradictions.
#[derive(Debug)]
pub(in crate::dataset) struct StoredStatistics {
    pub(in crate::dataset) rows: u64,
    pub(in crate::dataset) nulls: Option<u64>,
    pub(in crate::dataset) nans: Option<u64>,
    /// Some bound is stored, comparable or not.
    pub(in crate::dataset) bounded: bool,
    pub(in crate::dataset) extent: Bounds,
}

impl StoredStatistics {
    /// Facts that hold by these statistics: none where they contradict each other, since either may be wrong. `required`: the column has
    /// no nulls.
    pub(in crate::dataset) fn facts(self, required: bool) -> Facts {
        let Self { rows, nulls, nans, bounded, extent } = self;
        let (empty, full) = (nulls.unwrap_or_default(), nans.unwrap_or_default());
        let others = rows.checked_sub(empty).and_then(|left| left.checked_sub(full));
        let contradicts = others.is_none()
            || (empty > 0 && required)
            || (bounded && rows > 0 && empty == rows)
            || match &extent {
                Bounds::Reversed => true,
                // NaN is a bound where all values are NaN, or from old writers, which do not count NaNs.
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

    /// All values of `rows` rows are null.
    pub(in crate::dataset) fn null(rows: u64) -> Self {
        Self { rows, nulls: Some(rows), nans: Some(0), extent: None }
    }

    /// No value of `rows` rows is null, and `extent` holds for all.
    pub(in crate::dataset) fn all(rows: u64, extent: Extent) -> Self {
        Self { rows, nulls: Some(0), nans: Some(0), extent: Some(extent) }
    }

    /// All values of `rows` rows are `value`.
    pub(in crate::dataset) fn exactly(rows: u64, value: Scalar) -> Self {
        match Bounds::between(value.clone(), value) {
            Bounds::Extent(extent) => Self::all(rows, extent),
            // Only NaN has no bounds.
            _ => Self { rows, nulls: Some(0), nans: Some(rows), extent: None },
        }
    }
}
