//! Memory, measured from outside: resident bytes of a separate process.

use std::time::Duration;

use bowstring::Loader;
use bowstring::pipeline::machine;

use crate::{child, support};

/// Resident bytes now.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() * 1024
}

fn run(name: &str, variables: &[(&str, String)]) -> String {
    let output = child::start(name, variables).wait_with_output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    print!("{text}");
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn a_slow_consumer_of_a_dataset_of_many_budgets_stays_within_the_budget() {
    let (budget, budgets): (usize, usize) = if support::soak() { (512 << 20, 20) } else { (256 << 20, 4) };
    let directory = tempfile::tempdir().unwrap();
    // 32 floats and an id are 136 bytes per row; row groups of about 2 MiB.
    let (row, group) = (136, 16_384);
    // One budget of data is written, and read under several names.
    let groups = budget.div_ceil(row * group);
    support::write(directory.path(), &[vec![group; groups]], 32);
    let file = std::fs::read_dir(directory.path()).unwrap().next().unwrap().unwrap().path();
    for link in 1..budgets {
        std::fs::hard_link(&file, directory.path().join(format!("link-{link}.parquet"))).unwrap();
    }
    let variables = [
        ("MEMORY_DATA", directory.path().to_str().unwrap().to_owned()),
        ("MEMORY_BUDGET", budget.to_string()),
        ("MEMORY_GROUPS", (budgets * groups).to_string()),
    ];
    run("memory::slow_consumer", &variables);
}

pub(crate) fn slow_consumer() {
    let data = support::variable("MEMORY_DATA").unwrap();
    let number = |name| support::variable(name).unwrap().parse::<u64>().unwrap();
    let budget = number("MEMORY_BUDGET");
    let mut options = support::options(data.as_ref(), 4096, 0, 1);
    (options.memory_budget, options.lanes, options.window_rows) = (Some(budget), Some(4), Some(16_384));
    let mut loader = Loader::open(options).unwrap();
    let before = resident();
    let mut rows = 0;
    for (number, batch) in loader.iter().enumerate() {
        rows += support::ids(&batch.unwrap()).len() as u64;
        // The loader needs about 1 ms for 4096 rows: a consumer 100 times slower, until every stage ahead of it is full.
        if number < 40 {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    let peak = machine::peak_resident().unwrap();
    let stats = loader.stats();
    println!(
        "budget {} MiB, peak resident {} MiB ({} MiB before the first read), reserved at most {} MiB, {rows} rows",
        budget >> 20,
        peak >> 20,
        before >> 20,
        stats.memory.peak >> 20
    );
    assert_eq!(rows, loader.rows());
    assert_eq!(rows, number("MEMORY_GROUPS") * 16_384);
    assert!(peak <= budget + budget * 15 / 100, "peak resident {peak} for a budget of {budget}");
}

#[test]
fn fifty_epochs_do_not_grow() {
    let directory = tempfile::tempdir().unwrap();
    support::write(directory.path(), &vec![vec![5_000; 4]; 4], 8);
    run("memory::many_epochs", &[("MEMORY_DATA", directory.path().to_str().unwrap().to_owned())]);
}

pub(crate) fn many_epochs() {
    let data = support::variable("MEMORY_DATA").unwrap();
    let mut options = support::options(data.as_ref(), 1000, 0, 1);
    options.memory_budget = Some(64 << 20);
    let mut loader = Loader::open(options).unwrap();
    let mut after_ten = 0;
    for epoch in 0..50 {
        assert_eq!(loader.epoch(), epoch);
        let rows: usize = loader.iter().map(|batch| support::ids(&batch.unwrap()).len()).sum();
        assert_eq!(rows, 80_000);
        if epoch == 9 {
            after_ten = resident();
        }
    }
    let growth = resident().saturating_sub(after_ten);
    println!("{} MiB after 10 epochs, {} KiB more after 50", after_ten >> 20, growth >> 10);
    assert!(growth < 8 << 20, "grew by {growth} bytes");
}
