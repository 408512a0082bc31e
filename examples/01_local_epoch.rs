//! Reads one epoch of the shipped photos, and prints the batches and the time spent in each stage.
//!
//! `cargo run --example 01_local_epoch`

#![allow(clippy::print_stdout, reason = "an example talks")]

use bowstring::tensor::Value;
use bowstring::{Loader, LoaderOptions};

fn main() -> bowstring::Result<()> {
    let photos = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/imagenet40.parquet");
    let mut options = LoaderOptions::new(photos, 16);
    options.columns.columns = vec!["label".to_owned(), "path".to_owned()];
    options.seed = 1;

    let mut loader = Loader::open(options)?;
    println!("{} rows in {} steps", loader.rows(), loader.steps());

    let mut labels: Vec<i64> = Vec::new();
    for batch in &mut loader {
        let batch = batch?;
        println!("step {}", batch.step);
        for (name, value) in batch.columns() {
            match value {
                // One slab per batch holds all tensors; each is aligned and may be kept for any time.
                Value::Tensor(tensor) => println!("  {name}: {} {:?}", tensor.dtype(), tensor.shape()),
                // Strings have no tensor form and stay Arrow.
                Value::Arrow(array) => println!("  {name}: {}", array.data_type()),
            }
        }
        // 40 rows make two steps of 16 and one of 8.
        labels.extend(batch.tensor("label").and_then(|label| label.as_slice::<i64>()).unwrap_or_default());
    }
    println!("{} labels seen, each row once", labels.len());
    assert_eq!(labels.len(), 40);

    // What limits the loader, and where the time of a step goes.
    println!("{}", loader.report());
    Ok(())
}
