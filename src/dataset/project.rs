//! The columns that are read: dotted paths become root columns, and for every kind of file the leaves to fetch.

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
    /// [`Error::NotFound`] for a path that names nothing; [`Error::Mismatch`] for a column that some files store and others have from
    /// their directories; [`Error::Corrupt`] for one that a table requires and a file of it lacks;
    /// [`Error::Unsupported`] if a file lacks it and its value in the table's metadata is of a type that is not read from there.
    pub fn project(&self, paths: &[String]) -> Result<Projection> {
        let schema = self.schema();
        let mut roots: Vec<Root> = Vec::new();
        for path in paths {
            let Some((field, below)) = resolve(schema.fields(), path) else {
                return Err(Error::NotFound { what: format!("column {path:?}"), hint: nearest(schema.fields(), path) });
            };
            // If something is hidden, whole structs are their visible parts, member by member.
            let paths = if self.visible.is_some() { hidden::below(field, &below) } else { vec![below] };
            match roots.iter_mut().find(|root| root.name() == field.name()) {
                Some(root) if root.paths.is_empty() || paths.iter().any(Vec::is_empty) => root.paths.clear(),
                Some(root) => root.paths.extend(paths),
                None => {
                    let paths = if paths.iter().any(Vec::is_empty) { Vec::new() } else { paths };
                    roots.push(Root { field: Arc::clone(field), paths });
                }
            }
        }
        if let Some((key, file)) = roots.iter().find_map(|root| self.inner.apart.get_key_value(root.name())) {
            return Err(Error::Mismatch {
                what: format!("place of column {key:?} in file {file}"),
                expected: format!("a directory {key}=VALUE, as of other files"),
                found: "a stored column".to_owned(),
                hint: "move the file to the directory of its value, leave the column out, or open such files as separate datasets"
                    .to_owned(),
            });
        }
        let untold = roots.iter().find_map(|root| Some((root, self.inner.untold.get(root.name())?)));
        if let Some((root, file)) = untold {
            let ty = root.field.data_type();
            let what =
                format!("the value of column {:?}, of {ty}, that the table has for a file without it,", root.name());
            let hint = "leave the column out, or rewrite the file with it";
            return Err(Error::unsupported(what, hint).at(Place::file(Arc::clone(file))));
        }
        if let Some((name, file)) = roots.iter().find_map(|root| self.inner.lacking.get_key_value(root.name())) {
            let what =
                "the table requires the column, and the file lacks it; leave the column out, or rewrite the file";
            return Err(Error::corrupt(Place::file(Arc::clone(file)).column(Arc::clone(name)), what));
        }
        for root in &mut roots {
            let paths: Vec<&[String]> = root.paths.iter().map(Vec::as_slice).collect();
            root.field = restrict(&root.field, &paths);
        }
        let partitions: Vec<&str> = self.partition_columns().collect();
        let told = &self.inner.told;
        let sources = |layout: &Layout| {
            let of_root = |root: &Root| match source(layout, root, &partitions) {
                Source::Missing if told.contains(root.name()) => Source::Partition,
                source => source,
            };
            roots.iter().map(of_root).collect::<Vec<_>>()
        };
        let sources = self.inner.layouts.iter().map(sources).collect();
        Ok(Projection { roots, sources })
    }
}

/// Source of `root` in files of `layout`.
fn source(layout: &Layout, root: &Root, partitions: &[&str]) -> Source {
    if partitions.contains(&root.name()) {
        return Source::Partition;
    }
    let Some((index, _)) = layout.schema.column_with_name(root.name()) else { return Source::Missing };
    let descriptor = layout.descriptor();
    let own = || layout.leaf_roots.iter().enumerate().filter(|(_, root)| **root == index).map(|(leaf, _)| leaf);
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
    Source::Leaves(Arc::new(Leaves { field: index, numbers: leaves, levels: OnceLock::new() }))
}

/// The root column that `path` begins with, and the names below it. Names may contain dots themselves; the longest wins.
fn resolve<'a>(fields: &'a Fields, path: &str) -> Option<(&'a FieldRef, Vec<String>)> {
    if let Some(field) = fields.iter().find(|field| field.name() == path) {
        return Some((field, Vec::new()));
    }
    let mut candidates: Vec<(&FieldRef, &str)> = fields
        .iter()
        .filter_map(|field| Some((field, path.strip_prefix(field.name().as_str())?.strip_prefix('.')?)))
        .collect();
    candidates.sort_by_key(|(field, _)| std::cmp::Reverse(field.name().len()));
    candidates.into_iter().find_map(|(field, rest)| {
        let DataType::Struct(members) = field.data_type() else { return None };
        let (member, mut below) = resolve(members, rest)?;
        below.insert(0, member.name().clone());
        Some((field, below))
    })
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
    use super::*;

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
