//! From Arrow arrays of row groups to the tensors of a batch.
//!
//! ```text
//!   once per row group and root column (CPU)                     once per batch (CPU)
//!   array ─ prepare ─► PreparedColumn ─┐
//!   array ─ prepare ─► PreparedColumn ─┼─ cells ─► RowGroupBlock ─┐
//!   array ─ prepare ─► PreparedColumn ─┘  (packs become           ├─ assemble ─► Batch: rows gathered, images decoded in place
//!                                          row-major)             │
//!   pages ─ packs ─────► PreparedColumn (row-major)    other row groups' blocks ─┘
//!   pages ─ in_pages ──► PreparedColumn (left where they lie)
//! ```
//!
//! Preparation handles everything that depends on values alone: nulls, casts, dictionaries, lengths. A problem of a row
//! is kept with the row; it becomes an error, or not, when a batch takes the row. After preparing, all row groups of a
//! column have one form, whatever their files looked like, and assembling only copies.

mod assemble;
mod block;
mod bytes;
mod decimals;
mod gather;
mod items;
mod layout;
mod leaf;
mod lists;
mod number;
mod offsets;
mod options;
mod output;
mod pack;
mod parts;
mod prepare;
mod row_errors;
mod rows;
mod select;
mod shaped;
mod sizes;
mod stand_in;
mod streams;
mod strided;
mod strings;
mod take_order;
mod tensors;
mod vector;
mod watched;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::SchemaRef;
use rayon::prelude::*;

use self::block::Made;
pub use self::block::{PreparedColumn, RowGroupBlock};
pub(crate) use self::layout::MASK;
use self::layout::ROW_ID;
pub use self::layout::Rows;
use self::leaf::Leaf;
pub(crate) use self::leaf::check_excluded;
pub use self::number::Scalar;
pub use self::options::{BadRows, ColumnOptions, Lengths, Lists, Nulls, Pack, Padded, PerColumn, Truncate};
use self::output::{AsStored, Form, Member, Output};
use self::parts::{Data, Part};
pub use self::row_errors::BadRow;
use self::rows::RowLayout;
use self::select::Names;
pub use self::select::{means as column_is_meant, roots};
pub(crate) use self::take_order::TakeOrder;
pub(crate) use self::vector::length as vector_length;
pub(crate) use self::watched::Watched;
use crate::error::{Error, Place, Result};
use crate::page;
use crate::schema::{DType, Dim, Field, Schema};
use crate::tensor::{Tensor, Value};

/// The columns of a job: those that are read, and the outcome of each. Built once, then shared by all threads.
#[derive(Debug, Clone)]
pub struct Columns {
    fields: Schema,
    paths: Vec<String>,
    /// For each root column read, in schema order: its name, and its members.
    roots: Vec<(Arc<str>, Vec<usize>)>,
    members: Vec<Member>,
    /// For each member, the number of its root among those read.
    root_of: Vec<usize>,
    /// For each member, the number of its output.
    output_of: Vec<usize>,
    /// In batch order.
    outputs: Vec<Output>,
    row_id: bool,
    /// Placement of the small columns side by side, if they are to be so.
    small: Option<Arc<RowLayout>>,
}

impl Columns {
    /// Applies `options` to data of this schema.
    ///
    /// # Errors
    /// [`Error::NotFound`] for a name or glob that matches no column, with the nearest names; [`Error::Unsupported`]
    /// for a selected column whose type has no outcome; [`Error::Config`] for options that contradict each other or the
    /// types.
    pub fn new(schema: &SchemaRef, options: &ColumnOptions) -> Result<Self> {
        let leaves = leaf::delivered(schema, options)?;
        let names = Names::new(leaves.iter().map(|leaf| leaf.name.as_str()).collect());
        check_names(&names, options)?;
        let excluded = names.marked(&options.exclude);
        let (meant, by_name) = (names.marked(&options.arrow), options.arrow.iter().collect::<BTreeSet<_>>());
        let as_stored = |leaf: usize| {
            if !meant[leaf] {
                AsStored::No
            } else if by_name.contains(&leaves[leaf].name) {
                AsStored::Named
            } else {
                AsStored::Meant
            }
        };
        let packs = packs(&leaves, &names, &excluded, options)?;
        let (mut members, mut outputs) = (Vec::new(), Vec::new());
        for item in items(&names, excluded, &packs, options) {
            match item {
                Item::Pack(at) => {
                    let pack = &options.pack[at];
                    let columns: Vec<&Leaf> = packs[at].iter().map(|leaf| &leaves[*leaf]).collect();
                    let (of, output) = output::pack(&pack.name, pack.dtype, &columns, members.len(), options)?;
                    members.extend(of);
                    outputs.push(output);
                }
                Item::Leaf(at) => {
                    let (member, output) = output::single(&leaves[at], as_stored(at), members.len(), options)?;
                    let indices = output::indices(&member, &output);
                    members.push(member);
                    outputs.push(output);
                    if let Some((member, mut output)) = indices {
                        output.members = vec![members.len()];
                        members.push(member);
                        outputs.push(output);
                    }
                }
            }
        }
        if outputs.is_empty() && !options.row_id {
            return Err(Error::config("columns", "no column is left to deliver"));
        }
        let fields = fields(&outputs, options.row_id);
        check_unique(&fields)?;

        let mut by_root: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (at, member) in members.iter().enumerate() {
            by_root.entry(member.leaf.root).or_default().push(at);
        }
        let wanted: BTreeSet<&str> = members.iter().map(|member| member.leaf.name.as_str()).collect();
        let mut seen = BTreeSet::new();
        let read = leaves.iter().filter(|leaf| wanted.contains(leaf.name.as_str())).map(|leaf| &leaf.read);
        let paths = read.filter(|read| seen.insert(*read)).cloned().collect();
        let roots: Vec<(Arc<str>, Vec<usize>)> =
            by_root.into_iter().map(|(root, of)| (schema.field(root).name().as_str().into(), of)).collect();
        let root_of = inverse(members.len(), roots.iter().map(|(_, of)| of));
        let output_of = inverse(members.len(), outputs.iter().map(|output| &output.members));
        let row_id = options.row_id;
        Ok(Self { fields, paths, roots, members, root_of, output_of, outputs, row_id, small: None })
    }

    /// Checks that no column is called as the mask of padding is, for batches that have one.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub(crate) fn check_mask(&self) -> Result<()> {
        let mut names = self.fields.fields().iter().flat_map(Field::names);
        if names.any(|name| *name == *MASK) { Err(named_twice(MASK)) } else { Ok(()) }
    }

    /// The outputs that `names` match, by name, prefix or glob.
    ///
    /// # Errors
    /// [`Error::NotFound`] for a name that matches none, with the nearest names.
    pub(crate) fn named(&self, names: &[String]) -> Result<BTreeSet<usize>> {
        let all = Names::new(self.outputs.iter().map(|output| &*output.name).collect());
        all.check(names.iter())?;
        Ok(names.iter().flat_map(|pattern| all.meant(pattern)).collect())
    }

    /// The same columns with batches that hold only these outputs, and row numbers only if `row_id`. Cells serve both.
    pub(crate) fn only(&self, outputs: &[usize], row_id: bool) -> Self {
        let mut only = self.clone();
        let outputs: BTreeSet<usize> = outputs.iter().copied().collect();
        for (_, output) in only.outputs.iter_mut().enumerate().filter(|(at, _)| !outputs.contains(at)) {
            (output.form, output.valid) = (Form::Absent, None);
        }
        only.row_id &= row_id;
        only.fields = fields(&only.outputs, only.row_id);
        only
    }

    /// Sets whether batches take rows at random: then the small columns of a row group are put in the order in which
    /// batches take its rows, or side by side if that is unknown, which costs a pass over it and saves a cache miss per
    /// value.
    #[must_use]
    pub fn shuffled(mut self, yes: bool) -> Self {
        self.small = yes.then(|| RowLayout::of(&self.outputs)).flatten().map(Arc::new);
        self
    }

    /// The dotted paths to read, in schema order; a list is read whole. Empty if only `_row_id` is requested.
    pub fn paths(&self) -> &[String] {
        &self.paths
    }

    /// The columns of a batch, in its order.
    pub fn fields(&self) -> &Schema {
        &self.fields
    }

    /// The dotted names of the integer columns that are read.
    pub(crate) fn integers(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|member| &member.leaf).filter(|leaf| leaf.is_integer()).map(|leaf| leaf.name.as_str())
    }

    /// The columns that each output is made of, in their order.
    pub(crate) fn stored_columns(&self) -> impl Iterator<Item = (&str, Vec<StoredColumn<'_>>)> {
        self.outputs.iter().map(|output| {
            let leaves = output.members.iter().map(|at| &self.members[*at].leaf);
            let stored = |leaf| {
                let Leaf { name, unit, classes, .. }: &Leaf = leaf;
                StoredColumn { column: name, unit: unit.as_deref(), classes: classes.as_deref() }
            };
            (&*output.name, leaves.map(stored).collect())
        })
    }

    /// Prepares everything that depends on values alone, for a whole row group of one root column. `root` counts the
    /// distinct root columns of [`paths`](Self::paths) in schema order; the structs in `array` may lack fields that
    /// were not requested.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the array is not as the schema promised. Rows with wrong values are recorded, and reported
    /// by [`assemble`](Self::assemble).
    pub fn prepare(&self, root: usize, array: ArrayRef, place: &Place) -> Result<PreparedColumn> {
        let (name, members) = self
            .roots
            .get(root)
            .ok_or_else(|| Error::corrupt(place.clone(), format!("a column too many: number {root}")))?;
        let mut parts = Vec::with_capacity(members.len());
        for at in members {
            let member = &self.members[*at];
            let part = prepare::part(member, &array, self.limit(*at))
                .map_err(|what| Error::corrupt(place.clone().column(Arc::clone(&member.name)), what))?;
            parts.push((*at, part));
        }
        Ok(PreparedColumn { name: Arc::clone(name), rows: array.len(), made: Made::Members(parts) })
    }

    /// Puts the small columns among its parts in the order in which batches take their rows.
    pub(crate) fn sort(&self, prepared: &mut PreparedColumn, order: &TakeOrder) {
        let (Some(layout), Made::Members(parts)) = (&self.small, &mut prepared.made) else { return };
        let small = |at: usize| {
            let output = self.output_of[at];
            self.alone(at).is_some_and(Output::is_fixed) && layout.offset(output).is_some()
        };
        parts.iter_mut().filter(|(at, _)| small(*at)).for_each(|(_, part)| part.sort(order));
    }

    /// Packs of `rows` rows straight from pages, which `pages` returns for the number of a root column: the packs for
    /// which this is possible, each with the root columns that need not be decoded and prepared for
    /// [`cells`](Self::cells) any more.
    pub(crate) fn packs(
        &self,
        rows: usize,
        pages: &(dyn Fn(usize) -> Option<page::Source> + Sync),
    ) -> Vec<(PreparedColumn, Vec<usize>)> {
        let packs = self.outputs.par_iter().enumerate().filter(|(_, output)| matches!(output.form, Form::Pack));
        let made = packs.filter_map(|(at, output)| {
            let root = |member: &usize| {
                let root = self.root_of[*member];
                (self.roots[root].1 == [*member]).then_some(root)
            };
            let roots = output.members.iter().map(root).collect::<Option<Vec<usize>>>()?;
            let part = pack::from_pages(output, &self.members, rows, &roots, pages)?;
            Some((PreparedColumn { name: Arc::clone(&output.name), rows, made: Made::Output(at, part) }, roots))
        });
        made.collect()
    }

    /// A root column of wide rows left in its pages, in place of [`prepare`](Self::prepare); `None` unless its rows are
    /// delivered as they are stored. `pages` returns them if rows of that many bytes are wanted, and is called only
    /// then.
    pub(crate) fn in_pages(
        &self,
        root: usize,
        pages: impl FnOnce(&dyn Fn(usize) -> bool) -> Option<page::PagedRows>,
    ) -> Option<PreparedColumn> {
        let (name, at, output) = self.stays(root)?;
        let pages = pages(&|row| output.leaves(row))?;
        let (member, rows) = (&self.members[at], pages.rows());
        let part = Part {
            data: Data::Pages(pages),
            dtype: member.dtype,
            valid: None,
            bad: Vec::new(),
            root: None,
            in_take_order: false,
        };
        Some(PreparedColumn { name: Arc::clone(name), rows, made: Made::Members(vec![(at, part)]) })
    }

    /// Returns true if [`in_pages`](Self::in_pages) may leave rows of this root column among the fetched bytes, where
    /// `found` tells whether they have rows of wanted sizes.
    pub(crate) fn left_in_place(&self, root: usize, found: impl FnOnce(&dyn Fn(usize) -> bool) -> bool) -> bool {
        self.stays(root).is_some_and(|(_, _, output)| found(&|row| output.leaves(row)))
    }

    /// The root column's name, member and output, if it has one of each and its rows are delivered as they are stored.
    fn stays(&self, root: usize) -> Option<(&Arc<str>, usize, &Output)> {
        let (name, of) = self.roots.get(root)?;
        let [at] = of.as_slice() else { return None };
        self.members.get(*at).filter(|member| member.stays())?;
        Some((name, *at, self.alone(*at)?))
    }

    /// The rows of one row group from its root columns, in any order. Packs are made here, on the threads of the
    /// current pool.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the columns differ in length, or one is missing.
    pub fn cells(&self, prepared: Vec<PreparedColumn>, place: Place) -> Result<RowGroupBlock> {
        self.cells_in(None, prepared, place)
    }

    /// As [`cells`](Self::cells), for columns that were [sorted](Self::sort) in `order`.
    pub(crate) fn cells_in(
        &self,
        order: Option<TakeOrder>,
        prepared: Vec<PreparedColumn>,
        place: Place,
    ) -> Result<RowGroupBlock> {
        block::cells(&self.members, &self.outputs, prepared, self.small.as_ref(), order, place)
    }

    /// Returns true if there are columns worth [sorting](Self::sort).
    pub(crate) fn sorts(&self) -> bool {
        self.small.is_some()
    }

    /// Gathers the rows of one step into one slab, decodes its images in place, and reports the bad rows.
    ///
    /// # Errors
    /// Under [`BadRows::Error`] the first bad row of the batch, with its place; under [`BadRows::Skip`] only if no row
    /// is good. [`Error::Limit`] if the batch overflows memory; [`Error::Mismatch`] for rows that the cells do not
    /// have.
    pub fn assemble(
        &self,
        rows: &Rows<'_>,
        reservation: crate::memory::Reservation,
    ) -> Result<(crate::tensor::Batch, Vec<BadRow>)> {
        assemble::assemble(&self.outputs, self.small.as_ref(), self.row_id, rows, reservation)
    }

    /// Bytes to reserve for a batch of `rows` rows: exact for fixed shapes, with room for `_mask`. For ragged and Arrow columns
    /// twice the mean stored size of whole rows, `mean_row_bytes`.
    pub fn batch_bytes(&self, rows: usize, mean_row_bytes: u64) -> usize {
        sizes::batch_bytes(&self.outputs, self.row_id, rows, mean_row_bytes)
    }

    /// Bytes of the memory of every batch of `rows` rows, `masked` or not, if all have the same: with fixed shapes
    /// only.
    pub(crate) fn even_bytes(&self, rows: usize, masked: bool) -> Option<usize> {
        sizes::even_bytes(&self.outputs, self.row_id, rows, masked)
    }

    /// Bytes per row that are made in addition to the arrays given to [`prepare`](Self::prepare): packs, casts, masks,
    /// rows. Casts of lists are not counted.
    pub(crate) fn prepared_row_bytes(&self) -> u64 {
        let moved = self.moved().iter().map(|(width, _)| *width as u64).sum();
        self.members.iter().fold(moved, |sum: u64, member| sum.saturating_add(member.copied_row_bytes()))
    }

    /// Bytes copied for `batch` beyond the one write of the Parquet decoder (or of the image decoder, straight into its place).
    ///
    /// Values are copied once, into the batch, unless they stay where they were decoded; those of packs, and of columns
    /// that were cast or decoded from booleans or decimals, twice: into their form, then into the batch; small ones of
    /// [`shuffled`](Self::shuffled) batches once more. Images count 0, and so do computed values: offsets, lengths, masks, row ids. Arrow columns count
    /// their bytes once. Padding rows count as rows.
    pub fn copied_bytes(&self, batch: &crate::tensor::Batch) -> usize {
        // Every column is looked up, in every batch.
        let values: HashMap<&str, &Value> = batch.columns().iter().map(|(name, value)| (&**name, value)).collect();
        let bytes = |output| sizes::value_bytes(output, &values);
        let moved = self.moved();
        let moved = moved.iter().map(|(_, at)| bytes(&self.outputs[*at]));
        moved.chain(self.outputs.iter().map(|output| self.copies(output, &values) * bytes(output))).sum()
    }

    fn copies(&self, output: &Output, values: &HashMap<&str, &Value>) -> usize {
        let placed = values.get(&*output.name).and_then(|value| value.tensor()).is_some_and(Tensor::is_placed);
        let into_batch = usize::from(!placed);
        match output.form {
            Form::Decoded(_) | Form::Shaped(_) | Form::Absent => 0,
            Form::Pack => 1 + into_batch,
            Form::Bytes(..) | Form::Nested(..) | Form::Arrow(_) => 1,
            _ => into_batch + usize::from(output.members.iter().any(|at| self.members[*at].converts())),
        }
    }

    /// The outputs whose cells are stored side by side: width and number.
    fn moved(&self) -> Vec<(usize, usize)> {
        if self.small.is_some() { rows::chosen(&self.outputs) } else { Vec::new() }
    }

    /// Maximum lengths of the lists of the output that member `at` alone makes.
    fn limit(&self, at: usize) -> Option<&output::Limit> {
        self.outputs[self.output_of[at]].limit()
    }

    /// The output that member `at` alone makes.
    fn alone(&self, at: usize) -> Option<&Output> {
        Some(&self.outputs[self.output_of[at]]).filter(|output| output.members == [at])
    }
}

/// A column as it is stored: a cast to floats, or a pack, delivers its numbers without what they mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoredColumn<'a> {
    /// Its dotted name.
    pub(crate) column: &'a str,
    /// The unit of its times.
    pub(crate) unit: Option<&'a str>,
    /// The classes that it numbers.
    pub(crate) classes: Option<&'a [Arc<str>]>,
}

/// A delivered item: a pack or a leaf, by index.
enum Item {
    Pack(usize),
    Leaf(usize),
}

/// The content of batches: the columns in their order, then row numbers.
fn fields(outputs: &[Output], row_id: bool) -> Schema {
    // Indices are part of the preceding field.
    let present = outputs.iter().filter(|output| !matches!(output.form, Form::Absent | Form::Indices));
    let present = present.map(Output::field);
    let row_id = row_id.then(|| Field::tensor(ROW_ID, DType::Int64, vec![Dim::Batch]));
    Schema::new(present.chain(row_id).collect())
}

/// For each of so many members, the number of the group that has it.
fn inverse<'a>(members: usize, groups: impl Iterator<Item = &'a Vec<usize>>) -> Vec<usize> {
    let mut group_of = vec![0; members];
    groups.enumerate().for_each(|(group, of)| of.iter().for_each(|at| group_of[*at] = group));
    group_of
}

fn check_names(names: &Names<'_>, options: &ColumnOptions) -> Result<()> {
    let is_pack = |name: &String| options.pack.iter().any(|pack| pack.name == *name);
    names.check(options.columns.iter().filter(|name| !is_pack(name)))?;
    names.check(options.exclude.iter())?;
    names.check(options.nulls.0.keys())?;
    names.check(options.lists.0.keys())?;
    names.check(options.images.keys())?;
    names.check(options.cast.keys())?;
    names.check(options.arrow.iter())?;
    names.check(options.pack.iter().flat_map(|pack| &pack.columns))
}

/// The leaves of each pack.
fn packs(leaves: &[Leaf], names: &Names<'_>, excluded: &[bool], options: &ColumnOptions) -> Result<Vec<Vec<usize>>> {
    let mut taken: Vec<Option<usize>> = vec![None; leaves.len()];
    let mut packs = Vec::with_capacity(options.pack.len());
    for (number, pack) in options.pack.iter().enumerate() {
        let mut members = Vec::new();
        let meant = pack.columns.iter().flat_map(|pattern| names.meant(pattern));
        for at in meant.filter(|at| !excluded[*at]) {
            match taken[at].replace(number) {
                None => members.push(at),
                Some(same) if same == number => {}
                Some(other) => {
                    let (column, other) = (&leaves[at].name, &options.pack[other].name);
                    let problem = format!("column {column} is in pack {other} and in pack {}", pack.name);
                    return Err(Error::config("pack", problem));
                }
            }
        }
        if members.is_empty() {
            return Err(Error::config("pack", format!("pack {} has no columns", pack.name)));
        }
        packs.push(members);
    }
    Ok(packs)
}

/// The delivered items, in order. Packs that `columns` does not name come first; those that are `done` are left out.
fn items(names: &Names<'_>, mut done: Vec<bool>, packs: &[Vec<usize>], options: &ColumnOptions) -> Vec<Item> {
    packs.iter().flatten().for_each(|at| done[*at] = true);
    let everything = ["*".to_owned()];
    let patterns = if options.columns.is_empty() { &everything[..] } else { &options.columns };
    let named = |pack: &options::Pack| options.columns.contains(&pack.name);
    let mut items: Vec<Item> =
        options.pack.iter().enumerate().filter(|(_, pack)| !named(pack)).map(|(at, _)| Item::Pack(at)).collect();
    for pattern in patterns {
        if let Some(at) = options.pack.iter().position(|pack| pack.name == *pattern) {
            items.push(Item::Pack(at));
            continue;
        }
        let meant = names.meant(pattern).into_iter();
        items.extend(meant.filter(|at| !std::mem::replace(&mut done[*at], true)).map(Item::Leaf));
    }
    items
}

/// Checks that no two columns of the batch have the same name.
fn check_unique(fields: &Schema) -> Result<()> {
    let mut seen: BTreeSet<Arc<str>> = BTreeSet::new();
    for name in fields.fields().iter().flat_map(Field::names) {
        if !seen.insert(Arc::clone(&name)) {
            return Err(named_twice(&name));
        }
    }
    Ok(())
}

fn named_twice(name: &str) -> Error {
    let problem = format!("two columns of the batch would be called {name}; exclude or pack one of them");
    Error::config("columns", problem)
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int8Array, Int32Array, ListArray, StructArray, new_null_array};
    use arrow::buffer::{NullBuffer, OffsetBuffer};
    use arrow::datatypes::{DataType, Schema};

    use super::*;
    use crate::schema::{FEATURE_KEY, Feature};

    #[test]
    fn a_null_is_found_without_a_copy_of_the_values() {
        let fields = [("type", DataType::Int8), ("size", DataType::Int32)];
        let mut fields: Vec<_> =
            fields.into_iter().map(|(name, ty)| arrow::datatypes::Field::new(name, ty, true)).collect();
        let list = |name: &str, ty| {
            let item = Arc::new(arrow::datatypes::Field::new("element", ty, true));
            arrow::datatypes::Field::new(name, DataType::List(item), true)
        };
        fields.extend([list("indices", DataType::Int32), list("values", DataType::Float64)]);
        let rows = 1000;
        let vectors = DataType::Struct(fields.clone().into());
        let nulls = NullBuffer::from_iter((0..rows).map(|row| row != 700));
        let kinds: ArrayRef = Arc::new(Int8Array::from(vec![0; rows]));
        let sizes: ArrayRef = Arc::new(Int32Array::from(vec![i32::MAX; rows]));
        let lists = fields[2..].iter().map(|field| {
            let DataType::List(item) = field.data_type() else { unreachable!("they are lists") };
            let (none, items) = (OffsetBuffer::<i32>::new_zeroed(rows), new_null_array(item.data_type(), 0));
            Arc::new(ListArray::new(Arc::clone(item), none, items, None)) as ArrayRef
        });
        let columns = [kinds, sizes].into_iter().chain(lists).collect();
        let array: ArrayRef = Arc::new(StructArray::new(fields.into(), columns, Some(nulls)));

        // As a matrix these would be 16 TiB.
        let longest = Lists::Vector(i32::MAX as usize);
        let options =
            ColumnOptions { lists: PerColumn(BTreeMap::from([("v".to_owned(), longest)])), ..ColumnOptions::default() };
        let marks = HashMap::from([(FEATURE_KEY.to_owned(), Feature::Vector(None).text())]);
        let schema = |ty: &DataType, marks: HashMap<String, String>| {
            Arc::new(Schema::new(vec![arrow::datatypes::Field::new("v", ty.clone(), true).with_metadata(marks)]))
        };
        let first_null = |ty: &DataType, marks, options: &ColumnOptions, array: &ArrayRef| {
            let columns = Columns::new(&schema(ty, marks), options).unwrap();
            let strict = columns.strict();
            assert_eq!(strict.len(), 1);
            columns.null_in(&strict[0], array)
        };
        assert_eq!(first_null(&vectors, marks, &options, &array), Some(700));
        let plain = ColumnOptions::default();
        let numbers: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), Some(2), None, None]));
        assert_eq!(first_null(&DataType::Int32, HashMap::new(), &plain, &numbers), Some(2));
        assert_eq!(first_null(&DataType::Int32, HashMap::new(), &plain, &numbers.slice(0, 2)), None);
    }

    #[test]
    fn a_column_may_be_called_as_the_mask_where_there_is_none() {
        let columns = |name: &str| {
            let field = arrow::datatypes::Field::new(name, DataType::Boolean, false);
            Columns::new(&Arc::new(Schema::new(vec![field])), &ColumnOptions::default()).unwrap()
        };
        assert!(columns("mask").check_mask().is_ok());
        let error = columns(MASK).check_mask().unwrap_err().to_string();
        assert!(error.contains("two columns of the batch would be called _mask"), "{error}");
    }

    /// The widths in bytes, among `widths`, of rows that are left in their pages.
    fn left(ty: DataType, options: &ColumnOptions, widths: &[usize]) -> Vec<usize> {
        let field = arrow::datatypes::Field::new("v", ty, true);
        let columns = Columns::new(&Arc::new(Schema::new(vec![field])), options).unwrap();
        let mut found = Vec::new();
        let prepared = columns.in_pages(0, |wanted| {
            found.extend(widths.iter().copied().filter(|width| wanted(*width)));
            None
        });
        assert!(prepared.is_none());
        found
    }

    #[test]
    fn wide_rows_that_are_delivered_as_they_are_stored_stay_in_their_pages() {
        let item = |ty: DataType| Arc::new(arrow::datatypes::Field::new("item", ty, true));
        let list = || DataType::List(item(DataType::Float32));
        let ragged = ColumnOptions::default();
        assert_eq!(left(list(), &ragged, &[4, 252, 256, 400, 4000]), [256, 400, 4000]);
        assert_eq!(left(DataType::LargeList(item(DataType::Float64)), &ragged, &[256, 260]), [256]);
        assert_eq!(left(DataType::FixedSizeList(item(DataType::Float32), 100), &ragged, &[256, 400, 800]), [400]);
        assert_eq!(left(DataType::FixedSizeBinary(300), &ragged, &[256, 300]), [300]);

        let padded = |truncate| {
            let padded = Padded { length: Lengths::One(100), fill: Scalar::Int(0), truncate, left: false };
            let lists = BTreeMap::from([("v".to_owned(), Lists::Padded(padded))]);
            ColumnOptions { lists: PerColumn(lists), ..ColumnOptions::default() }
        };
        // A list that is too long is a bad row, which only `prepare` detects.
        assert_eq!(left(list(), &padded(Truncate::Error), &[256, 400, 404]), [256, 400]);
        assert_eq!(left(list(), &padded(Truncate::Right), &[256, 400, 404]), [256, 400, 404]);

        let nulls = |nulls| ColumnOptions {
            nulls: PerColumn(BTreeMap::from([("v".to_owned(), nulls)])),
            ..ColumnOptions::default()
        };
        assert!(left(list(), &nulls(Nulls::Mask), &[400]).is_empty(), "a mask is made from columns");
        assert_eq!(left(list(), &nulls(Nulls::Fill(Scalar::Int(1))), &[400]), [400]);
        let cast = BTreeMap::from([("v".to_owned(), DType::Float16)]);
        assert!(left(list(), &ColumnOptions { cast, ..ragged.clone() }, &[400]).is_empty(), "a cast");
        assert!(left(DataType::List(item(list())), &ragged, &[400]).is_empty(), "lists of lists");
    }
}
