//! Two ranks read their shares from one server; together they cover the dataset, each row once.

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::collections::BTreeSet;

use bowstring::flight::server::config::ServerOptions;
use bowstring::flight::server::{Catalogue, Config, serve};
use bowstring::{Loader, LoaderOptions};
use tokio::sync::oneshot;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut catalogue = Catalogue::default();
    catalogue.add("photos", vec!["fixtures/imagenet40.parquet".to_owned()])?;
    let config = Config::new(catalogue, &ServerOptions { drain_grace: Some(1.0), ..ServerOptions::default() })?;

    // The server has its own threads. A rank would usually be another process, on this host or elsewhere.
    let runtime = tokio::runtime::Runtime::new()?;
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))?;
    let url = format!("grpc://{}/photos", listener.local_addr()?);
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = runtime.spawn(serve(listener, config, async {
        let _ = stopped.await;
    }));

    let ranks: Vec<_> = (0..2)
        .map(|rank| {
            let mut options = LoaderOptions::new(&url, 8);
            (options.rank, options.world_size) = (Some(rank), Some(2));
            options.columns.columns = vec!["label".to_owned()];
            options.columns.row_id = true;
            std::thread::spawn(move || rows(options))
        })
        .collect();
    let mut union = BTreeSet::new();
    for (rank, rows) in ranks.into_iter().enumerate() {
        let rows = rows.join().map_err(|_| "a rank panicked")??;
        println!("rank {rank}: {} rows", rows.len());
        for row in rows {
            assert!(union.insert(row), "row {row} came twice");
        }
    }
    assert_eq!(union.len(), 40, "the union is the dataset");
    println!("together: all 40 rows, each once");

    drop(stop);
    runtime.block_on(serving)??;
    Ok(())
}

/// Returns the rows of one epoch.
fn rows(options: LoaderOptions) -> bowstring::Result<Vec<i64>> {
    let mut loader = Loader::open(options)?;
    let mut rows = Vec::new();
    for batch in &mut loader {
        let batch = batch?;
        rows.extend(batch.tensor("_row_id").and_then(|ids| ids.as_slice::<i64>()).unwrap_or_default());
    }
    Ok(rows)
}
