//! WebDataset: consecutive members of a tar file whose names are equal up to the first dot are one sample.
//!
//! The part after the dot, in lower case, names the column; `__key__` is the part before it. Text, numbers and JSON are read as text,
//! integers and text; everything else as bytes.

mod sink;
mod source;

pub(crate) use sink::sink;
pub(crate) use source::open;

const KEY: &str = "__key__";

/// Extensions of integers.
const INTEGERS: [&str; 5] = ["cls", "cls2", "index", "inx", "id"];

/// Extensions of text.
const TEXTS: [&str; 4] = ["txt", "text", "transcript", "json"];

/// Extensions of bytes.
const BYTES: [&str; 28] = [
    "jpg", "jpeg", "png", "ppm", "pgm", "pbm", "pnm", "webp", "gif", "bmp", "tif", "tiff", "npy", "npz", "bin", "pyd",
    "pth", "ten", "tb", "mp", "msg", "mp4", "avi", "mov", "mp3", "wav", "flac", "ogg",
];

/// Returns the extension after the last dot.
fn ending(column: &str) -> &str {
    column.rsplit('.').next().unwrap_or(column)
}
