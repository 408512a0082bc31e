//! Values one by one: what a token of text or a cell says, and how it is held in a column.

pub(crate) mod cells;
pub(crate) mod clock;
pub(crate) mod json;
pub(crate) mod objects;
pub(crate) mod sample;
pub(crate) mod scalar;
pub(crate) mod timezone;
pub(crate) mod unheld;
