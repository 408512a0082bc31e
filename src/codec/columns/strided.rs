//! Values of one width, at even distances.

/// The rows of one row group: row `n` starts at `n * stride`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Strided<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) stride: usize,
}
