//! The columns that are read: dotted paths become root columns, and for every kind of file the leaves to fetch.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};

use arrow::datatypes::{DataType, Field, FieldRef, Fields};

use super::levels::Levels;
use super::{Dataset, Layout, hidden};
use crate::error::{Error, Place, Result};
use crate::nearest::distance;

/// Columns to read, made by [`Dataset::project`].
#[derive(Debug, Clone)]
pub struct Projection {
    roots: Vec<Root>,
    /// For every layout, where each root comes from.
    pub(super) sources: Vec<Vec<Source>>,
}

/// One root column of a projection: decoded by itself, as one array.
#[derive(Debug, Clone)]
pub struct Root {
    field: FieldRef,
    /// Paths below the root, as lists of names; empty for the whole column.
    paths: Vec<Vec<String>>,
}

/// Source of a root in files of one layout.
#[derive(Debug, Clone)]
pub(super) enum Source {
    /// Leaf columns of the file.
    Leaves(Arc<Leaves>),
    /// The file's directory, or what its table says of it.
    Partition,
    /// The files have no such column: nulls.
    Missing,
}

/// The leaf columns that make a root column, in files of one layout.
#[derive(Debug)]
pub(super) struct Leaves {
    /// Number of the root among those of the file.
    pub(super) field: usize,
    /// Their numbers, ascending.
    pub(super) numbers: Vec<usize>,
    /// The decoder's assembly of them: made for the first row group, and used for all.
    pub(super) levels: OnceLock<Levels>,
}

impl Root {
    /// The column's name.
    pub fn name(&self) -> &str {
        self.field.name()
    }

    /// The column with the selected members only.
    pub fn field(&self) -> &FieldRef {
        &self.field
    }
}

impl Projection {
    /// Root columns in the order in which the paths first name them.
    pub fn roots(&self) -> &[Root] {
        &self.roots
    }

    /// All leaves to fetch from files of `layout`, ascending.
    pub(super) fn leaves(&self, layout: usize) -> Vec<usize> {
        let sources = self.sources.get(layout).map(Vec::as_slice).unwrap_or_default();
        let mut leaves: Vec<usize> = sources
            .iter()
            .flat_map(|source| match source {
                Source::Leaves(leaves) => leaves.numbers.as_slice(),
                _ => &[],
            })
            .copied()
            .collect();
        leaves.sort_unstable();
        leaves
    }
}

impl Dataset {
    /// The projection on `paths`: names of columns, or dotted paths into structs (`a.b`). Of a struct only the named members
    /// are read.
    ///
    /// # Errors
    /// [`Error::NotFound`] for a path that names nothing; [`Error::Mismatch`] for a column of different types in two files, or one that some files
    /// store and others have from their directories; [`Error::Corrupt`] for one that a table requires and a file of it lacks;
    /// [`Error::Unsupported`] if a file lacks it and its value in the table's metadata is of a type that is not read from there.
    pub fn project(&self, paths: &[String]) -> Result<Projection> {
        self.projector().project(paths)
    }

    /// As [`project`](Self::project), on paths of which each name is of a member of the one before.
    pub(super) fn project_members<'p>(&self, paths: impl Iterator<Item = &'p [String]>) -> Result<Projection> {
        let projector = self.projector();
        let found = paths.map(|path| {
            let root = path.split_first();
            let root = root.and_then(|(first, below)| Some((*projector.named.get(first.as_str())?, below.to_vec())));
            root.ok_or_else(|| projector.missing(&path.join(".")))
        });
        projector.projected(found.collect::<Result<_>>()?)
    }

    /// Checks that files have one type for the column.
    ///
    /// # Errors
    /// [`Error::Mismatch`].
    pub(crate) fn check_type(&self, column: &str) -> Result<()> {
        self.inner.clashes.get(column).map_or(Ok(()), |clash| Err(clash.error()))
    }

    /// What makes projections, for many of them.
    pub(super) fn projector(&self) -> Projector<'_> {
        let named = self.schema().fields().iter().map(|field| (field.name().as_str(), field)).collect();
        Projector { dataset: self, named, partitions: self.partition_columns().collect() }
    }
}

/// A dataset with its columns by name: there may be as many paths, so no list of columns is walked for one of them.
pub(super) struct Projector<'a> {
    dataset: &'a Dataset,
    named: HashMap<&'a str, &'a FieldRef>,
    partitions: BTreeSet<&'a str>,
}

impl Projector<'_> {
    /// See [`Dataset::project`].
    ///
    /// # Errors
    /// As there.
    pub(super) fn project(&self, paths: &[String]) -> Result<Projection> {
        let found = paths.iter().map(|path| of_root(&self.named, path).ok_or_else(|| self.missing(path)));
        self.projected(found.collect::<Result<_>>()?)
    }

    fn missing(&self, path: &str) -> Error {
        Error::NotFound { what: format!("column {path:?}"), hint: nearest(self.dataset.schema().fields(), path) }
    }

    /// The projection on members of columns, each with the names below it.
    fn projected(&self, columns: Vec<(&FieldRef, Vec<String>)>) -> Result<Projection> {
        let Self { dataset, partitions, .. } = self;
        let inner = &dataset.inner;
        let mut roots: Vec<Root> = Vec::new();
        let mut numbers: HashMap<&str, usize> = HashMap::new();
        for (field, below) in columns {
            // If something is hidden, whole structs are their visible parts, member by member.
            let paths = if dataset.visible.is_some() { hidden::below(field, &below) } else { vec![below] };
            match numbers.get(field.name().as_str()).and_then(|number| roots.get_mut(*number)) {
                Some(root) if root.paths.is_empty() || paths.iter().any(Vec::is_empty) => root.paths.clear(),
                Some(root) => root.paths.extend(paths),
                None => {
                    let paths = if paths.iter().any(Vec::is_empty) { Vec::new() } else { paths };
                    numbers.insert(field.name(), roots.len());
                    roots.push(Root { field: Arc::clone(field), paths });
                }
            }
        }
        roots.iter().try_for_each(|root| dataset.check_type(root.name()))?;
        if let Some((key, file)) = roots.iter().find_map(|root| inner.apart.get_key_value(root.name())) {
            return Err(Error::Mismatch {
                what: format!("place of column {key:?} in file {file}"),
                expected: format!("a directory {key}=VALUE, as of other files"),
                found: "a stored column".to_owned(),
                hint: "move the file to the directory of its value, leave the column out, or open such files as separate datasets"
                    .to_owned(),
            });
        }
        let untold = roots.iter().find_map(|root| Some((root, inner.untold.get(root.name())?)));
        if let Some((root, file)) = untold {
            let ty = root.field.data_type();
            let what =
                format!("the value of column {:?}, of {ty}, that the table has for a file without it,", root.name());
            let hint = "leave the column out, or rewrite the file with it";
            return Err(Error::unsupported(what, hint).at(Place::file(Arc::clone(file))));
        }
        if let Some((name, file)) = roots.iter().find_map(|root| inner.lacking.get_key_value(root.name())) {
            let what =
                "the table requires the column, and the file lacks it; leave the column out, or rewrite the file";
            return Err(Error::corrupt(Place::file(Arc::clone(file)).column(Arc::clone(name)), what));
        }
        for root in &mut roots {
            let paths: Vec<&[String]> = root.paths.iter().map(Vec::as_slice).collect();
            root.field = restrict(&root.field, &paths);
        }
        let told = &inner.told;
        let sources = |layout: &Layout| {
            let of_root = |root: &Root| match source(layout, root, partitions) {
                Source::Missing if told.contains(root.name()) => Source::Partition,
                source => source,
            };
            roots.iter().map(of_root).collect::<Vec<_>>()
        };
        let sources = inner.layouts.iter().map(sources).collect();
        Ok(Projection { roots, sources })
    }
}

/// Source of `root` in files of `layout`.
fn source(layout: &Layout, root: &Root, partitions: &BTreeSet<&str>) -> Source {
    if partitions.contains(root.name()) {
        return Source::Partition;
    }
    let Some((index, own)) = layout.roots.get(root.name()) else { return Source::Missing };
    let own = || own.clone();
    let descriptor = layout.descriptor();
    let below =
        |leaf: usize| descriptor.columns().get(leaf).and_then(|leaf| leaf.path().parts().get(1..)).unwrap_or_default();
    let mut leaves: Vec<usize> = if root.paths.is_empty() { own().collect() } else { Vec::new() };
    for path in &root.paths {
        let before = leaves.len();
        leaves.extend(own().filter(|leaf| below(*leaf).starts_with(path)));
        if leaves.len() == before {
            // The file does not have this member. One of its neighbours tells where the structs around it are null.
            let common = |leaf: &usize| below(*leaf).iter().zip(path).take_while(|(a, b)| a == b).count();
            leaves.extend(own().max_by_key(|leaf| (common(leaf), std::cmp::Reverse(*leaf))));
        }
    }
    leaves.sort_unstable();
    leaves.dedup();
    if leaves.is_empty() {
        return Source::Missing;
    }
    Source::Leaves(Arc::new(Leaves { field: *index, numbers: leaves, levels: OnceLock::new() }))
}

/// As [`resolve`], with the root columns by name.
fn of_root<'a>(roots: &HashMap<&'a str, &'a FieldRef>, path: &str) -> Option<(&'a FieldRef, Vec<String>)> {
    if let Some(field) = roots.get(path).copied() {
        return Some((field, Vec::new()));
    }
    path.rmatch_indices('.').find_map(|(dot, _)| {
        let field = *roots.get(path.get(..dot)?)?;
        Some((field, below(field, path.get(dot + 1..)?)?))
    })
}

/// The names that `path` means among the members of `field`.
fn below(field: &FieldRef, path: &str) -> Option<Vec<String>> {
    let DataType::Struct(members) = field.data_type() else { return None };
    let (member, mut below) = resolve(members, path)?;
    below.insert(0, member.name().clone());
    Some(below)
}

/// The field that `path` begins with, and the names below it. Names may contain dots themselves; the longest wins.
fn resolve<'a>(fields: &'a Fields, path: &str) -> Option<(&'a FieldRef, Vec<String>)> {
    if let Some(field) = fields.iter().find(|field| field.name() == path) {
        return Some((field, Vec::new()));
    }
    let mut candidates: Vec<(&FieldRef, &str)> = fields
        .iter()
        .filter_map(|field| Some((field, path.strip_prefix(field.name().as_str())?.strip_prefix('.')?)))
        .collect();
    candidates.sort_by_key(|(field, _)| std::cmp::Reverse(field.name().len()));
    candidates.into_iter().find_map(|(field, rest)| Some((field, below(field, rest)?)))
}

/// `field` with only the members that `paths` name; all of them if there are no paths.
fn restrict(field: &FieldRef, paths: &[&[String]]) -> FieldRef {
    let DataType::Struct(members) = field.data_type() else { return Arc::clone(field) };
    if paths.is_empty() || paths.iter().any(|path| path.is_empty()) {
        return Arc::clone(field);
    }
    let keep = |member: &FieldRef| {
        let below: Vec<&[String]> = paths
            .iter()
            .filter_map(|path| path.split_first())
            .filter(|(first, _)| *first == member.name())
            .map(|(_, rest)| rest)
            .collect();
        (!below.is_empty()).then(|| restrict(member, &below))
    };
    let members: Fields = members.iter().filter_map(keep).collect();
    Arc::new(Field::clone(field).with_data_type(DataType::Struct(members)))
}

/// A hint with the names nearest to `path`.
fn nearest(fields: &Fields, path: &str) -> String {
    let mut names: Vec<(usize, &str)> = fields
        .iter()
        .map(|field| (distance(&field.name().to_lowercase(), &path.to_lowercase()), field.name().as_str()))
        .collect();
    names.sort_unstable();
    let near: Vec<&str> =
        names.iter().take_while(|(far, name)| *far <= 1 + name.len() / 3).take(3).map(|(_, name)| *name).collect();
    if near.is_empty() {
        let all: Vec<&str> = fields.iter().take(12).map(|field| field.name().as_str()).collect();
        let more = if fields.len() > all.len() { ", ..." } else { "" };
        format!("the columns are {}{more}", all.join(", "))
    } else {
        format!("did you mean {}?", near.join(" or "))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use arrow::array::{ArrayRef, Int64Array, RecordBatch, StructArray};
    use parquet::arrow::ArrowWriter;

    use super::*;
    use crate::dataset::OpenOptions;

    /// A dataset of a file for each of these lists of columns.
    fn dataset(files: &[Vec<(String, ArrayRef)>]) -> Dataset {
        let folder = tempfile::tempdir().unwrap();
        for (number, columns) in files.iter().enumerate() {
            let batch =
                RecordBatch::try_from_iter(columns.iter().map(|(name, column)| (name, Arc::clone(column)))).unwrap();
            let file = std::fs::File::create(folder.path().join(format!("{number}.parquet"))).unwrap();
            let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
            writer.write(&batch).unwrap();
            writer.close().unwrap();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let url = folder.path().display().to_string();
        runtime.block_on(Dataset::open(&[url], OpenOptions::default())).unwrap()
    }

    fn numbers() -> ArrayRef {
        Arc::new(Int64Array::from(vec![1, 2]))
    }

    #[test]
    fn columns_are_found_by_name_in_any_order() {
        let members = ["x", "y"].map(|name| (Arc::new(Field::new(name, DataType::Int64, true)), numbers()));
        let pair: ArrayRef = Arc::new(StructArray::from(members.to_vec()));
        let all = [("a", pair), ("b", numbers()), ("c", numbers())].map(|(name, column)| (name.to_owned(), column));
        let [a, b, c] = all.clone();
        let dataset = dataset(&[all.to_vec(), vec![c.clone(), a], vec![b, c]]);
        let projection = dataset.project(&["c", "a.y", "c"].map(str::to_owned)).unwrap();
        assert!(projection.roots().iter().map(Root::name).eq(["c", "a"]));
        let leaves: Vec<Vec<usize>> = (0..3).map(|layout| projection.leaves(layout)).collect();
        assert_eq!(leaves, [vec![1, 3], vec![0, 2], vec![1]]);
        assert!(matches!(projection.sources[2][1], Source::Missing));
        assert!(dataset.project(&["a.z".to_owned()]).is_err() && dataset.project(&["b.x".to_owned()]).is_err());
    }

    #[test]
    fn many_columns_are_not_compared_with_each_other() {
        let columns = (0..10_000).map(|at| (format!("feature_{at:05}"), numbers())).collect();
        let dataset = dataset(&[columns]);
        let names: Vec<String> = dataset.schema().fields().iter().map(|field| field.name().clone()).collect();
        // Hundreds of millions of comparisons take seconds; one fast attempt is enough on a busy machine.
        let attempts = (0..5).map(|_| {
            let started = Instant::now();
            let schema = dataset.marked_schema();
            let projection = dataset.project(&names).unwrap();
            assert_eq!((schema.fields().len(), projection.leaves(0).len()), (names.len(), names.len()));
            started.elapsed()
        });
        let fastest = attempts.min().unwrap();
        assert!(fastest < Duration::from_secs(1), "{fastest:?}");
    }

    fn fields() -> Fields {
        let inner = Field::new("i", DataType::Struct(vec![Field::new("x", DataType::Int8, true)].into()), true);
        let plain = Field::new("b", DataType::Int8, true);
        let outer = Field::new("a", DataType::Struct(vec![plain, inner].into()), true);
        vec![outer, Field::new("a.b", DataType::Utf8View, true), Field::new("label", DataType::Int64, true)].into()
    }

    #[test]
    fn paths_name_roots_and_members() {
        let fields = fields();
        let find = |path: &str| resolve(&fields, path).map(|(field, below)| (field.name().clone(), below.join("/")));
        assert_eq!(find("a.b"), Some(("a.b".to_owned(), String::new())), "a name with a dot wins");
        assert_eq!(find("a.i.x"), Some(("a".to_owned(), "i/x".to_owned())));
        assert_eq!(find("a.i.y"), None);
        let only = restrict(&fields[0], &[&["i".to_owned()]]);
        assert_eq!(only.data_type().to_string().matches("\"b\"").count(), 0, "{}", only.data_type());
    }

    #[test]
    fn a_wrong_name_gets_the_nearest() {
        assert_eq!(nearest(&fields(), "lable"), "did you mean label?");
        assert!(nearest(&fields(), "zzzzzz").starts_with("the columns are a, a.b, label"));
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
