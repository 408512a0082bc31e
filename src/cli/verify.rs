//! `bowstring verify A B`: compares the rows of two datasets, in any order, and shows those of only one.

use std::fmt;
use std::sync::Arc;

use clap::Parser;
use serde::Serialize;

use crate::Result;
use crate::convert::{Comparison, ConvertOptions, Format, Progress, verify};

use crate::cli::convert::{ReadArgs, watched};
use crate::cli::out::{Failure, Out, Outcome};
use crate::cli::table::{Table, count, plain};

/// Exit code for datasets that differ: that of data.
const DIFFERENT: u8 = 3;

/// Options of `verify`.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// A dataset of any format
    #[arg(value_name = "A")]
    a: String,
    /// Another one
    #[arg(value_name = "B")]
    b: String,
    /// Format of A, if its names do not give it
    #[arg(long, value_name = "FORMAT", value_parser = crate::cli::convert::format)]
    from: Option<Format>,
    /// Format of B, if its names do not give it
    #[arg(long, value_name = "FORMAT", value_parser = crate::cli::convert::format)]
    to: Option<Format>,
    /// Columns to compare, separated by commas; all by default
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    columns: Vec<String>,
    /// Types by column, for formats that have none
    #[arg(long, value_name = "TYPES")]
    schema: Option<String>,
    #[command(flatten)]
    read: ReadArgs,
}

impl Args {
    fn options(&self) -> Result<ConvertOptions> {
        let read = self.read.options(self.schema.as_deref())?;
        Ok(ConvertOptions { from: self.from, to: self.to, columns: self.columns.clone(), ..read })
    }
}

pub(crate) fn run(args: &Args, out: &mut Out) -> Outcome {
    let progress = Arc::new(Progress::default());
    let bar = watched(&progress, "comparing", out);
    let compared = verify(&args.a, &args.b, &args.options()?, &progress);
    drop(bar);
    let comparison = compared?;
    let equal = comparison.equal;
    out.report(&Found(comparison))?;
    if equal { Ok(()) } else { Err(Failure::Told(DIFFERENT)) }
}

#[derive(Serialize)]
#[serde(transparent)]
struct Found(Comparison);

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = &self.0;
        let [a, b] = found.rows;
        let verdict = if found.equal { "The same rows" } else { "Different" };
        writeln!(
            f,
            "{verdict}: {} rows of {} and {} rows of {}",
            count(a),
            found.formats[0],
            count(b),
            found.formats[1]
        )?;
        let mut table = Table::new(&["column", "in A", "in B", ">nulls in A", ">nulls in B", "values"]);
        for column in &found.columns {
            let [a, b] = column.types.each_ref().map(|kind| kind.clone().unwrap_or_else(|| "missing".to_owned()));
            let [null_a, null_b] = column.nulls.map(|nulls| nulls.map_or_else(|| "-".to_owned(), count));
            let values = if column.equal { "same" } else { "DIFFERENT" };
            table.row([column.name.clone(), a, b, null_a, null_b, values.to_owned()]);
        }
        write!(f, "{table}")?;
        for (side, only, examples) in
            [("A", found.only_first, &found.examples_first), ("B", found.only_second, &found.examples_second)]
        {
            if only > 0 {
                let share =
                    if found.looked_at > 1 { format!(" of one row in {}", found.looked_at) } else { String::new() };
                writeln!(f, "Only in {side}: {} rows{share}", count(only))?;
                for example in examples {
                    writeln!(f, "  {}", plain(example))?;
                }
            }
        }
        Ok(())
    }
}
