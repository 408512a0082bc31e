//! A run on two ranks is killed in the middle of an epoch and resumes on one rank: no row is lost or repeated.
//!
//! `cargo run --example 02_resume`

#![allow(clippy::print_stdout, reason = "an example talks")]

use bowstring::plan::State;
use bowstring::tensor::Batch;
use bowstring::{Loader, LoaderOptions};

/// Rows per step of all ranks together. This number decides the order; the number of ranks does not.
const GLOBAL_BATCH: u64 = 8;

fn open(rank: u32, world_size: u32) -> bowstring::Result<Loader> {
    let photos = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/imagenet40.parquet");
    let mut options = LoaderOptions { urls: vec![photos.to_owned()], ..LoaderOptions::default() };
    options.global_batch_size = Some(GLOBAL_BATCH);
    options.columns.columns = vec!["label".to_owned()];
    (options.rank, options.world_size) = (Some(rank), Some(world_size));
    Loader::open(options)
}

fn labels(batch: &Batch) -> Vec<i64> {
    batch.tensor("label").and_then(|label| label.as_slice()).unwrap_or_default().to_vec()
}

fn main() -> bowstring::Result<()> {
    // The steps of an undisturbed epoch, each with its rows sorted: another number of ranks splits a step differently.
    let mut expected = Vec::new();
    for batch in open(0, 1)?.iter() {
        let mut step = labels(&batch?);
        step.sort_unstable();
        expected.push(step);
    }

    // Two ranks take two steps each. The states of both are the same; either will do.
    let mut seen = vec![Vec::new(); expected.len()];
    let mut state = String::new();
    for rank in 0..2 {
        let mut loader = open(rank, 2)?;
        for _ in 0..2 {
            if let Some(batch) = loader.next()? {
                seen[batch.step as usize].extend(labels(&batch));
            }
        }
        state = loader.state().to_json();
    }
    println!("killed after two steps of 2 ranks; what is left of them: {state}");

    // One rank resumes.
    let mut loader = open(0, 1)?;
    loader.load_state(&State::from_json(&state)?)?;
    println!("one rank goes on at step {} of {}", loader.step(), loader.steps());
    for batch in &mut loader {
        let batch = batch?;
        seen[batch.step as usize].extend(labels(&batch));
    }

    seen.iter_mut().for_each(|step| step.sort_unstable());
    assert_eq!(seen, expected);
    println!("every step has the rows it would have had: {} rows, each once", seen.iter().map(Vec::len).sum::<usize>());
    Ok(())
}
