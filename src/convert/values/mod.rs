//! Individual values: the interpretation of a token or a cell, and its representation in a column.

pub(crate) mod cells;
pub(crate) mod clock;
pub(crate) mod json;
pub(crate) mod objects;
pub(crate) mod sample;
pub(crate) mod scalar;
pub(crate) mod texts;
pub(crate) mod timezone;
pub(crate) mod unheld;
