//! Datasets in and out of the formats that people have.
