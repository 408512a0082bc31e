//! Writes that appear at once or not at all.
