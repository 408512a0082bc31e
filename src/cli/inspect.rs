//! `bowstring inspect URL`: the content of a dataset, the delivered columns, and advice on speed. Reads footers, and a few row groups
//! of columns that may hold images. Datasets of servers are in `served.rs`.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use clap::Parser;
use serde::Serialize;

use crate::codec::image::{self, Info};
use crate::codec::{ColumnOptions, Columns};
use crate::dataset::Dataset;
use crate::pipeline::{LoaderOptions, machine};
use crate::schema::{Field, Schema, Type};
use crate::{Error, Result};
use arrow::array::{Array, AsArray};
use arrow::datatypes::DataType;

use crate::cli::advice::{ColumnFacts, Facts, advise};
use crate::cli::args::DatasetArgs;
use crate::cli::bar::Bar;
use crate::cli::html::{HtmlArgs, Plot, PlotKind};
use crate::cli::leaf::{Leaf, leaves};
use crate::cli::out::{Out, Outcome};
use crate::cli::table::{Histogram, Table, bytes, count, plain, plural};

/// Files listed one by one.
const FILES_SHOWN: usize = 12;

/// Row groups sampled for images, and rows of each.
const GROUPS_SAMPLED: usize = 3;
const ROWS_SAMPLED: usize = 32;

/// Largest column chunk that is read only for a sample.
const SAMPLE_BYTES: u64 = 256 << 20;

/// Options of `inspect`.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    #[command(flatten)]
    dataset: DatasetArgs,
    /// Give advice for this many ranks
    #[arg(long = "world-size", alias = "ranks", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    ranks: u64,
    /// Do not look at images
    #[arg(long)]
    no_images: bool,
    #[command(flatten)]
    html: HtmlArgs,
}

#[derive(Debug, Serialize)]
struct Report {
    urls: Vec<String>,
    fingerprint: String,
    /// Rows stored, and rows that the filter selects.
    rows: u64,
    selected: u64,
    /// True if rows are missing from `selected` because their table deleted them: nothing else was asked for.
    #[serde(skip)]
    deleted: bool,
    files: Vec<File>,
    row_groups: Vec<Group>,
    stored_bytes: u64,
    uncompressed_bytes: u64,
    columns: Vec<Column>,
    images: Vec<Images>,
    advice: Vec<String>,
}

#[derive(Debug, Serialize)]
struct File {
    path: String,
    bytes: u64,
    rows: u64,
    row_groups: u64,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Group {
    file: u32,
    rows: u64,
    uncompressed_bytes: u64,
}

/// One column as delivered, and its origin.
#[derive(Debug, Serialize)]
struct Column {
    name: String,
    parquet: String,
    nullable: bool,
    nulls: u64,
    /// The delivered column; absent if there is none.
    outcome: Option<String>,
    problem: Option<String>,
    stored_bytes: u64,
    uncompressed_bytes: u64,
    compression: Vec<String>,
    dictionary: bool,
    #[serde(skip)]
    dictionary_floats: Option<u64>,
    /// True if it is delivered as a tensor.
    #[serde(skip)]
    tensor: bool,
    /// True if it is text or binary, or lists of them.
    #[serde(skip)]
    text: bool,
    /// True if `nulls` may be empty lists.
    #[serde(skip)]
    listed: bool,
}

/// Properties of a sample of a column's images. Sides in pixels, after EXIF orientation.
#[derive(Debug, Serialize)]
struct Images {
    column: String,
    sampled: u64,
    /// Number of those that cannot be read as images.
    unreadable: u64,
    formats: Vec<(String, u64)>,
    width: Spread,
    height: Spread,
    bytes: Spread,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
struct Spread {
    least: u64,
    median: u64,
    most: u64,
}

impl Spread {
    fn of(mut values: Vec<u64>) -> Self {
        values.sort_unstable();
        let at = |index: usize| values.get(index).copied().unwrap_or(0);
        Self { least: at(0), median: at(values.len() / 2), most: at(values.len().saturating_sub(1)) }
    }
}

pub(crate) fn run(args: &Args, out: &mut Out) -> Outcome {
    args.html.check()?;
    let options = args.dataset.options()?;
    #[cfg(feature = "flight")]
    if crate::cli::args::is_served(options.urls.iter().map(String::as_str)) {
        args.html.refuse("a server's datasets")?;
        for (option, given) in [("no_images", args.no_images), ("world_size", args.ranks > 1)] {
            if given {
                return Err(Error::config(option, "is about files, which a server does not show; leave it out").into());
            }
        }
        return crate::cli::served::run(&options, args.dataset.typed(&options), out);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| Error::Closed { why: format!("no threads can be started: {error}") })?;
    let bar = Bar::waiting(out, "reading footers");
    let report = runtime.block_on(examine(args, &options));
    drop(bar);
    // Does not wait for a provider of credentials that never returns.
    runtime.shutdown_background();
    let report = report?;
    out.report(&report)?;
    args.html.write(&format!("Content of {}", report.urls.join(", ")), || report.plots(), &report)
}

/// Most row groups that are drawn one by one.
const GROUPS_DRAWN: usize = 360;

impl Report {
    /// Returns the drawings of its page.
    fn plots(&self) -> Vec<Plot> {
        let column = |column: &Column| {
            let (stored, whole) = (column.stored_bytes, column.uncompressed_bytes);
            let text = format!("{}, {} uncompressed", bytes(stored), bytes(whole));
            (column.name.clone(), stored as f64, text)
        };
        let mut columns: Vec<_> = self.columns.iter().map(column).collect();
        columns.sort_by(|one, other| other.1.total_cmp(&one.1));
        // Neighbours together, the largest of them, if there are too many.
        let each = self.row_groups.len().div_ceil(GROUPS_DRAWN).max(1);
        let largest = |groups: &[Group]| groups.iter().map(|group| group.uncompressed_bytes).max().unwrap_or(0);
        let sizes: Vec<f64> = self.row_groups.chunks(each).map(|groups| largest(groups) as f64).collect();
        let last = format!("row group {}", count(self.row_groups.len().saturating_sub(1) as u64));
        let note = match each {
            1 => "Uncompressed, in the order of the files.".to_owned(),
            _ => format!("Uncompressed, in the order of the files; the largest of each {each}."),
        };
        let file = |file: &File| {
            (file.path.clone(), file.bytes as f64, format!("{}, {}", bytes(file.bytes), plural(file.rows, "row")))
        };
        vec![
            Plot {
                title: "Sizes of row groups",
                note,
                kind: PlotKind::Columns(sizes, ["row group 0".to_owned(), last, bytes(largest(&self.row_groups))]),
            },
            Plot {
                title: "Bytes of columns",
                note: "As stored, the largest first.".to_owned(),
                kind: PlotKind::Bars(columns),
            },
            Plot {
                title: "Files",
                note: "In their order.".to_owned(),
                kind: PlotKind::Bars(self.files.iter().map(file).collect()),
            },
        ]
    }
}

async fn examine(args: &Args, options: &LoaderOptions) -> Result<Report> {
    if !options.weights.is_empty() {
        return Err(Error::config("weights", "inspect looks at one dataset; give the members of a mixture one by one"));
    }
    let dataset = Dataset::open(&options.urls, options.open_options()?).await?;
    let manifest = dataset.manifest();
    let leaves = leaves(&dataset);
    let columns = columns(&dataset, &options.columns, &leaves)?;
    let mut images = Vec::new();
    if !args.no_images {
        for name in binary_columns(&dataset, &columns) {
            images.extend(sample(&dataset, &name).await?);
        }
    }
    let mut files: Vec<File> = manifest
        .files
        .iter()
        .map(|file| File { path: file.path.to_string(), bytes: file.version.size, rows: 0, row_groups: 0 })
        .collect();
    for group in &manifest.groups {
        if let Some(file) = files.get_mut(group.file as usize) {
            file.rows += group.rows;
            file.row_groups += 1;
        }
    }
    let groups = manifest.groups.iter().map(|group| Group {
        file: group.file,
        rows: group.rows,
        uncompressed_bytes: group.bytes,
    });
    let mut report = Report {
        urls: options.urls.clone(),
        fingerprint: manifest.fingerprint().to_string(),
        rows: manifest.groups.iter().map(|group| group.rows).sum(),
        selected: manifest.groups.iter().map(|group| group.selected).sum(),
        deleted: dataset.table_version().is_some() && options.filter.is_none() && options.selector.is_none(),
        files,
        row_groups: groups.collect(),
        stored_bytes: leaves.iter().map(|leaf| leaf.stored_bytes).sum(),
        uncompressed_bytes: leaves.iter().map(|leaf| leaf.uncompressed_bytes).sum(),
        columns,
        images,
        advice: Vec::new(),
    };
    let mut facts = facts(&report, options.memory_budget.unwrap_or_else(machine::default_budget), args.ranks);
    facts.dates = dataset.partition_dates().into_iter().map(str::to_owned).collect();
    report.advice = advise(&facts);
    Ok(report)
}

/// Returns the outcome of each column. Chosen or described columns must work together; otherwise each is tried alone, so that one
/// without an outcome does not hide the others.
fn columns(dataset: &Dataset, options: &ColumnOptions, leaves: &[Leaf]) -> Result<Vec<Column>> {
    let schema = dataset.schema();
    if !is_default(options) {
        let columns = Columns::new(schema, options)?;
        let leaves = &Leaves::new(leaves);
        return Ok(columns.fields().fields().iter().map(|field| column(&field.name, Ok(field), leaves)).collect());
    }
    let leaves = &Leaves::new(leaves);
    let mut found = Vec::new();
    for root in schema.fields() {
        if let Err(error) = dataset.check_type(root.name()) {
            found.push(column(root.name(), Err(error), leaves));
            continue;
        }
        // A schema of one column: each is tried alone, in a time that does not grow with the others.
        let alone = Arc::new(arrow::datatypes::Schema::new(vec![Arc::clone(root)]));
        let one = ColumnOptions { columns: vec![root.name().clone()], ..ColumnOptions::default() };
        match Columns::new(&alone, &one) {
            Ok(columns) => {
                let fields: &Schema = columns.fields();
                found.extend(fields.fields().iter().map(|field| column(&field.name, Ok(field), leaves)));
            }
            Err(error) => found.push(column(root.name(), Err(error), leaves)),
        }
    }
    Ok(found)
}

/// Returns true if no option concerns columns.
fn is_default(options: &ColumnOptions) -> bool {
    serde_json::to_value(options).ok() == serde_json::to_value(ColumnOptions::default()).ok()
}

/// Parquet's columns by every name that they may belong to: their own, and those of their parents.
struct Leaves<'a>(HashMap<&'a str, Vec<&'a Leaf>>);

impl<'a> Leaves<'a> {
    fn new(leaves: &'a [Leaf]) -> Self {
        let mut roots: HashMap<_, Vec<_>> = HashMap::new();
        for leaf in leaves {
            // A root's name may contain dots, so a leaf is listed under every prefix that may be one.
            for (end, _) in leaf.name.match_indices('.').chain([(leaf.name.len(), "")]) {
                roots.entry(leaf.name.get(..end).unwrap_or_default()).or_default().push(leaf);
            }
        }
        Self(roots)
    }

    /// Returns the leaves that make up the column `name`.
    fn below(&self, name: &str) -> &[&'a Leaf] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }
}

fn column(name: &str, outcome: Result<&Field, Error>, leaves: &Leaves<'_>) -> Column {
    let below = leaves.below(name);
    let types: Vec<String> = below.iter().map(|leaf| leaf.type_names()).collect();
    let tensor = outcome.as_ref().is_ok_and(|field| field.dtype().is_some());
    let text = outcome.as_ref().is_ok_and(|field| matches!(&field.ty, Type::Arrow(ty) if is_text(ty)));
    let (outcome, problem) = match outcome {
        // The field's text begins with its name, which has a column of its own in the table.
        Ok(field) => (Some(field.to_string().strip_prefix(name).unwrap_or_default().trim_start().to_owned()), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let floats = below.iter().filter(|leaf| leaf.dictionary).filter_map(|leaf| leaf.plain_float_bytes);
    Column {
        name: name.to_owned(),
        parquet: if types.is_empty() { "none: made from paths or other columns".to_owned() } else { types.join(", ") },
        nullable: below.iter().any(|leaf| leaf.optional),
        nulls: below.iter().map(|leaf| leaf.nulls).sum(),
        outcome,
        problem,
        stored_bytes: below.iter().map(|leaf| leaf.stored_bytes).sum(),
        uncompressed_bytes: below.iter().map(|leaf| leaf.uncompressed_bytes).sum(),
        compression: below
            .iter()
            .flat_map(|leaf| leaf.compressions.clone())
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .collect(),
        dictionary: below.iter().any(|leaf| leaf.dictionary),
        tensor,
        text,
        listed: below.iter().any(|leaf| leaf.listed),
        dictionary_floats: floats.reduce(u64::saturating_add),
    }
}

/// Returns true for text and binary as they are delivered, and for lists of them.
fn is_text(ty: &DataType) -> bool {
    match ty {
        DataType::LargeList(item) => is_text(item.data_type()),
        ty => matches!(ty, DataType::LargeUtf8 | DataType::LargeBinary),
    }
}

/// Returns the delivered columns of plain binary values, which may hold images.
fn binary_columns(dataset: &Dataset, columns: &[Column]) -> Vec<String> {
    let is_binary = |ty: &DataType| matches!(ty, DataType::Binary | DataType::LargeBinary | DataType::BinaryView);
    let roots = dataset.schema().fields().iter().filter(|root| is_binary(root.data_type()));
    let read = |name: &String| dataset.check_type(name).is_ok() && columns.iter().any(|column| column.name == *name);
    roots.map(|root| root.name().clone()).filter(read).collect()
}

/// Samples some rows of the first, the middle and the last row group. `None` if the first value there is no image.
async fn sample(dataset: &Dataset, name: &str) -> Result<Option<Images>> {
    let projection = dataset.project(&[name.to_owned()])?;
    let groups = dataset.manifest().groups.len();
    let mut chosen: Vec<usize> =
        (0..GROUPS_SAMPLED).map(|at| at * groups.saturating_sub(1) / (GROUPS_SAMPLED - 1)).collect();
    chosen.dedup();
    let (mut infos, mut sizes, mut unreadable): (Vec<Info>, _, _) = (Vec::new(), Vec::new(), 0);
    for group in chosen.into_iter().filter(|group| *group < groups) {
        let cost = dataset.cost(group, &projection);
        if cost.fetched.max(cost.decoded) > SAMPLE_BYTES {
            continue;
        }
        let fetched = dataset.fetch(group, &projection).await?;
        let array = dataset.decode(&fetched, &projection, 0)?;
        let step = array.len().div_ceil(ROWS_SAMPLED).max(1);
        for row in (0..array.len()).step_by(step) {
            let Some(cell) = cell(&*array, row) else { continue };
            match image::probe(cell) {
                Ok(info) => {
                    infos.push(info);
                    sizes.push(cell.len() as u64);
                }
                Err(_) if infos.is_empty() => return Ok(None),
                Err(_) => unreadable += 1,
            }
        }
    }
    if infos.is_empty() {
        return Ok(None);
    }
    let mut formats = std::collections::BTreeMap::new();
    for info in &infos {
        *formats.entry(info.format.name().to_owned()).or_insert(0) += 1;
    }
    let sides =
        |side: fn((u32, u32)) -> u32| Spread::of(infos.iter().map(|info| u64::from(side(info.oriented()))).collect());
    Ok(Some(Images {
        column: name.to_owned(),
        sampled: infos.len() as u64 + unreadable,
        unreadable,
        formats: formats.into_iter().collect(),
        width: sides(|(width, _)| width),
        height: sides(|(_, height)| height),
        bytes: Spread::of(sizes),
    }))
}

/// Returns the bytes at `row`, unless they are null or the array is not binary.
fn cell(array: &dyn Array, row: usize) -> Option<&[u8]> {
    if array.is_null(row) {
        return None;
    }
    match array.data_type() {
        DataType::Binary => Some(array.as_binary::<i32>().value(row)),
        DataType::LargeBinary => Some(array.as_binary::<i64>().value(row)),
        DataType::BinaryView => Some(array.as_binary_view().value(row)),
        _ => None,
    }
}

fn facts(report: &Report, budget: u64, ranks: u64) -> Facts {
    let groups = Spread::of(report.row_groups.iter().map(|group| group.uncompressed_bytes).collect());
    let columns = report.columns.iter().map(|column| {
        let images = report.images.iter().find(|images| images.column == column.name);
        ColumnFacts {
            name: column.name.clone(),
            stored_bytes: column.stored_bytes,
            uncompressed_bytes: column.uncompressed_bytes,
            compression: column.compression.first().cloned(),
            dictionary_floats: column.dictionary_floats,
            nulls: column.nulls,
            listed: column.listed,
            text: column.text,
            images: images.map(|images| (images.format(), images.width.median.max(images.height.median))),
            decoded: column.tensor,
            problem: column.problem.clone(),
        }
    });
    Facts {
        rows: report.rows,
        row_groups: report.row_groups.len() as u64,
        largest_group: groups.most,
        median_group: groups.median,
        budget,
        ranks,
        columns: columns.collect(),
        dates: Vec::new(),
    }
}

impl Images {
    /// Returns the most frequent format.
    fn format(&self) -> String {
        self.formats.iter().max_by_key(|(_, times)| *times).map(|(name, _)| name.clone()).unwrap_or_default()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (files, groups) =
            (plural(self.files.len() as u64, "file"), plural(self.row_groups.len() as u64, "row group"));
        write!(f, "{} in {groups} of {files}; ", plural(self.rows, "row"))?;
        writeln!(
            f,
            "{} stored, {} uncompressed; fingerprint {:.12}",
            bytes(self.stored_bytes),
            bytes(self.uncompressed_bytes),
            self.fingerprint
        )?;
        match self.rows.saturating_sub(self.selected) {
            0 => {}
            rows if self.deleted => writeln!(
                f,
                "Of these, {} deleted.",
                if rows == 1 { "1 is".to_owned() } else { format!("{} are", count(rows)) }
            )?,
            _ => writeln!(f, "The filter selects {}.", plural(self.selected, "row"))?,
        }

        writeln!(f, "\nColumns")?;
        let mut table = Table::new(&["name", "Parquet", "in the batch", ">stored", ">of all", "stored as"]);
        for column in &self.columns {
            let optional = if column.nullable { ", optional" } else { "" };
            let mut how = column.compression.clone();
            if column.dictionary {
                how.push("dictionary".to_owned());
            }
            table.row([
                column.name.clone(),
                format!("{}{optional}", column.parquet),
                column.outcome.clone().unwrap_or_else(|| "nothing; see advice".to_owned()),
                bytes(column.stored_bytes),
                format!("{:.0} %", column.stored_bytes as f64 * 100.0 / self.stored_bytes.max(1) as f64),
                if how.is_empty() { "plain".to_owned() } else { how.join(", ") },
            ]);
        }
        write!(f, "{table}")?;

        writeln!(f, "\nFiles")?;
        let mut table = Table::new(&["path", ">bytes", ">rows", ">row groups"]);
        for file in self.files.iter().take(FILES_SHOWN) {
            table.row([file.path.clone(), bytes(file.bytes), count(file.rows), count(file.row_groups)]);
        }
        write!(f, "{table}")?;
        if self.files.len() > FILES_SHOWN {
            writeln!(f, "  ... and {} more; --json lists all", count((self.files.len() - FILES_SHOWN) as u64))?;
        }

        if !self.row_groups.is_empty() {
            writeln!(f, "\nRow groups by uncompressed size")?;
            write!(f, "{}", Histogram::new(self.row_groups.iter().map(|group| group.uncompressed_bytes), bytes))?;
            writeln!(f, "\nRow groups by rows")?;
            write!(f, "{}", Histogram::new(self.row_groups.iter().map(|group| group.rows), count))?;
        }

        if !self.images.is_empty() {
            writeln!(f, "\nImages, sampled: least, median, most")?;
            let mut table = Table::new(&["column", ">sampled", "formats", ">width", ">height", ">bytes"]);
            let pixels = |spread: Spread| format!("{}, {}, {}", spread.least, spread.median, spread.most);
            for images in &self.images {
                let Spread { least, median, most } = images.bytes;
                let mut formats: Vec<_> =
                    images.formats.iter().map(|(name, times)| format!("{name} {times}")).collect();
                if images.unreadable > 0 {
                    formats.push(format!("unreadable {}", images.unreadable));
                }
                table.row([
                    images.column.clone(),
                    count(images.sampled),
                    formats.join(", "),
                    pixels(images.width),
                    pixels(images.height),
                    format!("{}, {}, {}", bytes(least), bytes(median), bytes(most)),
                ]);
            }
            write!(f, "{table}")?;
        }

        writeln!(f, "\nAdvice")?;
        for advice in &self.advice {
            writeln!(f, "  - {}", plain(advice))?;
        }
        if self.advice.is_empty() {
            writeln!(f, "  none: this is in good shape")?;
        }
        Ok(())
    }
}
