//! Layouts: what files with the same schema share, and one schema over all of them.
//!
//! Two files have one layout if their Parquet schemas are the same bytes and the Arrow schemas beside them, if there are any, have
//! the same fields. Other entries that a writer leaves there, such as the length of pandas' index, make no layout of their own.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use arrow::datatypes::{Field, Fields, Schema, SchemaRef, TimeUnit};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::file::metadata::ParquetMetaData;
use parquet::schema::types::{SchemaDescPtr, SchemaDescriptor};

use super::features::Described;
use super::footer::Footer;
use super::guard::guard;
use super::head::Head;
use super::packed::{Packed, Part};
use super::{DataFile, Inner, Limits, features, hive, table, times, unify};
use crate::error::{Error, Place, Result};
use crate::manifest::Manifest;
use crate::schema::extension;

/// State that files with the same schema share.
#[derive(Debug)]
pub(super) struct Layout {
    /// The columns as they are read.
    pub(super) schema: SchemaRef,
    /// By the name of each root column: its number, and the numbers of its leaves.
    pub(super) roots: HashMap<String, (usize, Range<usize>)>,
    /// The schemas of the first file of this layout; its Parquet schema is that of all of them.
    pub(super) head: Arc<Head>,
    /// The schema as a footer without row groups, by the names of the table that the file is of, if it is of one.
    pub(super) metadata: Arc<ParquetMetaData>,
}

impl Layout {
    /// The Parquet schema.
    pub(super) fn descriptor(&self) -> &SchemaDescriptor {
        self.metadata.file_metadata().schema_descr()
    }

    /// The same, shared.
    pub(super) fn descriptor_ptr(&self) -> SchemaDescPtr {
        self.metadata.file_metadata().schema_descr_ptr()
    }

    /// The layout of files with this head, and Hugging Face's description of the columns.
    fn new(head: &Arc<Head>, name: &Arc<str>, table: Option<&table::Columns>) -> Result<(Self, Option<String>)> {
        let place = Place::file(Arc::clone(name));
        let metadata = match table {
            Some(table) => table.named(&head.metadata, &place)?,
            None => Arc::clone(&head.metadata),
        };
        let default = guard(&place, "the schema is damaged", || {
            ArrowReaderMetadata::try_new(Arc::clone(&metadata), ArrowReaderOptions::new())
        })?;
        let mut seen = BTreeSet::new();
        for field in default.schema().fields() {
            if !seen.insert(field.name().as_str()) {
                let hint = "rename one of them".to_owned();
                return Err(Error::unsupported(format!("two columns named {:?}", field.name()), hint).at(place));
            }
        }
        let descriptor = metadata.file_metadata().schema_descr();
        let as_read = |field: &Arc<Field>| field.as_ref().clone().with_data_type(unify::as_read(field.data_type()));
        let mut fields: Fields = default.schema().fields().iter().map(as_read).collect();
        if head.arrow.is_none() || table.is_some() {
            fields = times::with_unit(&fields, descriptor, TimeUnit::Microsecond);
        }
        let schema = Arc::new(Schema::new(fields));
        // The decoder's agreement is checked once, not for every row group.
        let options = ArrowReaderOptions::new().with_schema(Arc::clone(&schema));
        guard(&place, "the schema is damaged", || ArrowReaderMetadata::try_new(Arc::clone(&metadata), options))?;
        let leaf_roots: Vec<usize> =
            (0..descriptor.num_columns()).map(|leaf| descriptor.get_column_root_idx(leaf)).collect();
        // Leaves come in the order of their roots.
        let leaves = |root| leaf_roots.partition_point(|of| *of < root)..leaf_roots.partition_point(|of| *of <= root);
        let roots = schema.fields().iter().enumerate();
        let roots = roots.map(|(root, field)| (field.name().clone(), (root, leaves(root)))).collect();
        let hugging_face = default.schema().metadata().get(features::HUGGING_FACE).cloned();
        Ok((Self { schema, roots, head: Arc::clone(head), metadata }, hugging_face))
    }
}

/// Layouts met so far.
#[derive(Default)]
struct Layouts {
    layouts: Vec<Layout>,
    /// By the head, which is one for the same bytes of both schemas: that of most files was met before.
    by_head: HashMap<*const Head, usize>,
    /// By their meaning.
    by_fields: HashMap<([u8; 32], Fields), usize>,
    described: Described,
}

impl Layouts {
    /// The number of the footer's layout, and whether it is new.
    fn intern(&mut self, footer: &Footer, table: Option<&table::Columns>) -> Result<(usize, bool)> {
        let head = Arc::as_ptr(&footer.head);
        if let Some(number) = self.by_head.get(&head) {
            return Ok((*number, false));
        }
        let (layout, hugging_face) = Layout::new(&footer.head, footer.object.name(), table)?;
        if let Some(hugging_face) = hugging_face {
            self.described.add(&hugging_face, footer.object.name());
        }
        let next = self.layouts.len();
        let number = *self.by_fields.entry((footer.head.digest, layout.schema.fields().clone())).or_insert(next);
        self.by_head.insert(head, number);
        if number == next {
            self.layouts.push(layout);
        }
        Ok((number, number == next))
    }
}

/// The types of a column in two files that no type has the values of both.
#[derive(Debug)]
pub(super) struct Clash {
    column: Arc<str>,
    files: [Arc<str>; 2],
    types: [String; 2],
}

impl Clash {
    pub(super) fn error(&self) -> Error {
        let Self { column, files: [known, new], types: [expected, found] } = self;
        Error::Mismatch {
            what: format!("type of column {column:?} in file {known} and file {new}"),
            expected: expected.clone(),
            found: found.clone(),
            hint: "leave the column out, rewrite one of the files, or open them as separate datasets".to_owned(),
        }
    }
}

/// The columns of all layouts together, each with the file in which it was first met.
#[derive(Default)]
struct Columns {
    columns: Vec<(Field, Arc<str>)>,
    /// Numbers of columns by name, and how many layouts have each.
    by_name: BTreeMap<String, (usize, usize)>,
    /// Columns that are an error where they are read.
    clashes: BTreeMap<Arc<str>, Clash>,
}

impl Columns {
    /// Adds the columns of a layout, first met in file `name`. Values of directories, with the names `keys`, win over columns of
    /// the same name, as everywhere else.
    fn merge(&mut self, layout: &Layout, name: &Arc<str>, keys: &BTreeSet<Arc<str>>) {
        for field in layout.schema.fields().iter().filter(|field| !keys.contains(field.name().as_str())) {
            let new = unify::plain(field);
            let next = self.columns.len();
            let (number, count) = self.by_name.entry(new.name().clone()).or_insert((next, 0));
            *count += 1;
            let Some((known, origin)) = self.columns.get_mut(*number) else {
                self.columns.push((new, Arc::clone(name)));
                continue;
            };
            match unify::field(known, &new) {
                Some(both) => *known = both,
                None => {
                    let column: Arc<str> = new.name().as_str().into();
                    self.clashes.entry(Arc::clone(&column)).or_insert_with(|| Clash {
                        column,
                        files: [Arc::clone(origin), Arc::clone(name)],
                        types: [extension::type_text(known), extension::type_text(&new)],
                    });
                }
            }
        }
    }

    /// A column that any of so many layouts lacks is null there.
    fn finish(self, layouts: usize) -> (Vec<Field>, BTreeMap<Arc<str>, Clash>) {
        let Self { columns, by_name, clashes } = self;
        let fields = columns.into_iter().map(|(field, _)| {
            let everywhere = by_name.get(field.name()).is_some_and(|(_, count)| *count == layouts);
            let nullable = field.is_nullable() || !everywhere;
            field.with_nullable(nullable)
        });
        (fields.collect(), clashes)
    }
}

/// Checks that files of `layout`, first met in file `name`, have values of the table's columns.
fn fits(layout: &Layout, table: &table::Columns, name: &Arc<str>) -> Result<()> {
    for field in table.fields() {
        let Some((root, _)) = layout.roots.get(field.name()) else { continue };
        let found = layout.schema.field(*root);
        if !table::widens(found.data_type(), field.data_type()) {
            return Err(Error::Mismatch {
                what: format!("type of column {:?} of the table and in file {name}", field.name()),
                expected: field.data_type().to_string(),
                found: found.data_type().to_string(),
                hint: "the table's log and its file contradict each other; leave the column out, or rewrite the file"
                    .to_owned(),
            });
        }
    }
    Ok(())
}

/// The columns that are stored in a file of this `layout`, whose directories are `partitions`, and come from the directories of other files.
fn stored_or_told<'k>(
    layout: &Layout,
    partitions: &hive::Values,
    keys: &'k BTreeSet<Arc<str>>,
) -> impl Iterator<Item = &'k Arc<str>> {
    let own = |key: &str| partitions.iter().any(|(own, _)| **own == *key);
    keys.iter().filter(move |key| !own(key) && layout.roots.contains_key(&***key))
}

/// The columns of a table, null where any of `layouts` lacks them.
fn of_table(table: &table::Columns, layouts: &[Layout]) -> Vec<Field> {
    let lacks = |name: &str| layouts.iter().any(|layout| !layout.roots.contains_key(name));
    let field = |field: Field| {
        let nullable = field.is_nullable() || lacks(field.name());
        field.with_nullable(nullable)
    };
    table.fields().map(field).collect()
}

/// Gathers files of the same schema into layouts, and the layouts' schemas into one: that of `table`, if they are of one. `partitions` are those of
/// each file, and whether they may be dates.
pub(super) fn gather(
    footers: Vec<Footer>,
    (partitions, dates): (Vec<hive::Values>, bool),
    table: Option<&table::Columns>,
) -> Result<Inner> {
    let (mut layouts, mut columns) = (Layouts::default(), Columns::default());
    let mut files: Vec<DataFile> = Vec::with_capacity(footers.len());
    let mut parts: Vec<Part> = Vec::with_capacity(footers.len());
    let mut first = 0;
    let spark = footers.first().and_then(|footer| footer.spark.clone());
    let mut apart: BTreeMap<Arc<str>, Arc<str>> = BTreeMap::new();
    let mut lacking: BTreeMap<Arc<str>, Arc<str>> = BTreeMap::new();
    let mut untold: BTreeMap<Arc<str>, Arc<str>> = BTreeMap::new();
    // Columns that files of each layout lack and need a value for, and whether the table has one that cannot be read.
    let mut lacked: Vec<Vec<(Arc<str>, bool)>> = Vec::new();
    let keys: BTreeSet<Arc<str>> = partitions.iter().flatten().map(|(key, _)| Arc::clone(key)).collect();
    for (footer, partitions) in footers.into_iter().zip(partitions) {
        let (number, is_new) = layouts.intern(&footer, table)?;
        if let Some(layout) = layouts.layouts.get(number).filter(|_| is_new) {
            match table {
                Some(table) => {
                    fits(layout, table, footer.object.name())?;
                    let lacks = table.required.union(&table.stored);
                    let lacks = lacks.filter(|name| !layout.roots.contains_key(*name));
                    lacked.push(lacks.map(|name| (name.as_str().into(), table.stored.contains(name))).collect());
                }
                None => columns.merge(layout, footer.object.name(), &keys),
            }
        }
        if let Some(layout) = layouts.layouts.get(number).filter(|_| table.is_none() && partitions.len() < keys.len()) {
            for key in stored_or_told(layout, &partitions, &keys) {
                apart.entry(Arc::clone(key)).or_insert_with(|| Arc::clone(footer.object.name()));
            }
        }
        for (name, is_stored) in lacked.get(number).into_iter().flatten() {
            if !partitions.iter().any(|(told, _)| told == name) {
                let files = if *is_stored { &mut untold } else { &mut lacking };
                files.entry(Arc::clone(name)).or_insert_with(|| Arc::clone(footer.object.name()));
            }
        }
        let Footer { object, groups, sealed, wide, .. } = footer;
        let groups_of = groups.numbers.len();
        files.push(DataFile { object, first, groups: groups_of, layout: number, partitions, sealed, wide });
        first += groups_of;
        parts.push(groups);
    }
    let packed = Packed::joined(&parts);
    let Layouts { layouts, described, .. } = layouts;
    let values = files.iter().map(|file| &file.partitions);
    let partition_fields = match table {
        Some(table) => table.partition_fields(),
        None => hive::fields(values, dates),
    };
    let partitions = partition_fields.len();
    let told = table.map(|table| table.told.clone()).unwrap_or_default();
    let (columns, clashes) = match table {
        Some(table) => (of_table(table, &layouts), BTreeMap::new()),
        None => columns.finish(layouts.len()),
    };
    let fields: Vec<Field> = columns.into_iter().chain(partition_fields).collect();
    Ok(Inner {
        files,
        packed,
        layouts,
        schema: Arc::new(Schema::new(fields)),
        petastorm: None,
        base: None,
        place: None,
        cache: None,
        urls: Vec::new(),
        cells: None,
        spark,
        described,
        clashes,
        apart,
        lacking,
        untold,
        is_reordered: false,
        decode: false,
        beside: None,
        table: None,
        partitions,
        told,
        manifest: Arc::new(Manifest::new(Vec::new(), Vec::new(), "", "")),
        pruned: 0,
        first_rows: Vec::new(),
        selections: Vec::new(),
        begins: OnceLock::new(),
        windows: None,
        limits: Limits::default(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use arrow::datatypes::DataType;
    use parquet::arrow::ArrowWriter;

    use crate::dataset::{Dataset, OpenOptions};

    use super::*;

    /// Layouts of files of one column, whose schemas have such metadata and whose column is so wide.
    fn layouts(files: impl Iterator<Item = (String, bool)>) -> usize {
        let folder = tempfile::tempdir().unwrap();
        for (number, (about, wide)) in files.enumerate() {
            let kind = if wide { DataType::Int64 } else { DataType::Int32 };
            let about = HashMap::from([("pandas".to_owned(), about)]);
            let schema = Schema::new(vec![Field::new("a", kind.clone(), true)]).with_metadata(about);
            let column = arrow::compute::cast(&(Arc::new(Int64Array::from(vec![1])) as ArrayRef), &kind).unwrap();
            let batch = RecordBatch::try_new(Arc::new(schema), vec![column]).unwrap();
            let file = std::fs::File::create(folder.path().join(format!("{number:03}.parquet"))).unwrap();
            let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
            writer.write(&batch).unwrap();
            writer.close().unwrap();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let url = folder.path().display().to_string();
        runtime.block_on(Dataset::open(&[url], OpenOptions::default())).unwrap().inner.layouts.len()
    }

    #[test]
    fn what_does_not_matter_makes_no_layout() {
        assert_eq!(layouts((0..40).map(|stop| (format!("{{\"stop\": {stop}}}"), true))), 1);
        assert_eq!(layouts((0..40).map(|stop| (format!("{{\"stop\": {stop}}}"), stop % 2 == 0))), 2);
    }

    #[test]
    fn a_column_is_stored_or_a_directory_in_all_files() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, names: [&str; 2]| {
            let column = || Arc::new(Int64Array::from(vec![7, 8])) as ArrayRef;
            let batch = RecordBatch::try_from_iter(names.map(|name| (name, column()))).unwrap();
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let mut writer = ArrowWriter::try_new(std::fs::File::create(path).unwrap(), batch.schema(), None).unwrap();
            writer.write(&batch).unwrap();
            writer.close().unwrap();
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let open = || {
            let url = folder.path().display().to_string();
            runtime.block_on(Dataset::open(&[url], OpenOptions::default()))
        };
        write("day=1/a.parquet", ["id", "day"]);
        write("b.parquet", ["id", "x"]);
        let day = ["day".to_owned()];
        assert!(open().unwrap().project(&day).is_ok(), "the value of the directory wins where there is one");
        write("c.parquet", ["id", "day"]);
        let dataset = open().unwrap();
        assert!(dataset.project(&["id".to_owned()]).is_ok());
        let error = dataset.project(&day).unwrap_err().to_string();
        assert!(error.contains("place of column \"day\" in file c.parquet"), "{error}");
    }
}
