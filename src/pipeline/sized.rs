//! Sizes that are not given, of images and of vectors: those of the column's first value, found when the dataset is
//! opened.

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, BinaryViewArray, LargeBinaryArray};
use arrow::datatypes::{DataType, FieldRef, SchemaRef};

use crate::codec::columns::Lists;
use crate::codec::image::{Info, probe};
use crate::codec::{ColumnOptions, vector_length};
use crate::dataset::{Dataset, held};
use crate::error::{Error, Place, Result};
use crate::schema::{Feature, holds_image};

/// Row groups searched for a cell that is not missing.
const LOOKED_INTO: usize = 8;

/// Returns `options` with the size of the column's first image for each column of images without a size, and the length
/// of the first vector for each column of vectors without one. All others must have it too, as
/// [`ImageOptions::sized_as`](crate::codec::ImageOptions::sized_as) says. Reads the column in one row group. `schema`
/// is the dataset's, with its marks.
///
/// # Errors
/// [`Error::Config`] for a column without an image or a vector, [`Error::Limit`] if reading it takes more than the
/// `budget`, and any error of reading it.
pub(super) async fn sized(
    dataset: &Dataset,
    schema: &SchemaRef,
    mut options: ColumnOptions,
    budget: u64,
) -> Result<ColumnOptions> {
    for field in schema.fields() {
        let name = field.name();
        if let Some(path) = image_path(field)
            && let Some(image) = options.image_without_size(name).cloned()
        {
            let problem = "no image in its first row groups says what size they have; give size";
            let info =
                first(dataset, name, &path, "size", problem, budget, |array, place| info(bytes_in(array)?, place))
                    .await?;
            options.images.insert(name.clone(), image.sized_as(&info));
        }
        if Feature::of(field) == Some(Feature::Vector(None)) && options.vector_without_size(name) {
            let problem = "no vector in its first row groups says how long they are; give it: {\"vector\": n}";
            let length =
                first(dataset, name, name, "lists", problem, budget, |array, _| vector_length(array).map(Ok)).await?;
            options.lists.0.insert(name.clone(), Lists::Vector(length));
        }
    }
    Ok(options)
}

/// The path to read of a column of images. Other types have an error that says so, whatever the size.
fn image_path(field: &FieldRef) -> Option<String> {
    match field.data_type() {
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => Some(field.name().clone()),
        ty if holds_image(ty) => Some(format!("{}.bytes", field.name())),
        _ => None,
    }
}

/// The first value that `look` finds in a row group of `column`; `path` is read of it.
async fn first<T: Send + 'static>(
    dataset: &Dataset,
    column: &str,
    path: &str,
    option: &'static str,
    problem: &str,
    budget: u64,
    look: impl Fn(&ArrayRef, &Place) -> Option<Result<T>> + Copy + Send + 'static,
) -> Result<T> {
    let projection = dataset.project(&[path.to_owned()])?;
    let groups = dataset.manifest().groups.iter().enumerate().filter(|(_, group)| group.selected > 0);
    for (group, _) in groups.take(LOOKED_INTO) {
        // Nothing else is read yet, so the whole budget is available.
        let asked = dataset.cost(group, &projection).total();
        if asked > budget {
            let what = format!("one row group of the column, whose first cell says what it holds; give {option}, or");
            return Err(Error::limit(what, asked, budget, "memory_budget").at(dataset.place(group).column(column)));
        }
        let fetched = dataset.fetch(group, &projection).await?;
        let (dataset, projection, place) = (dataset.clone(), projection.clone(), dataset.place(group).column(column));
        let looked = held::spawn(move || {
            let array = dataset.decode(&fetched, &projection, 0)?;
            look(&array, &place).transpose()
        });
        let looked = looked.await.map_err(|error| Error::Closed { why: format!("looking at a column: {error}") })?;
        if let Some(found) = looked? {
            return Ok(found);
        }
    }
    Err(Error::config(option, format!("column {column}: {problem}")))
}

/// The column of files within a column of images.
fn bytes_in(array: &ArrayRef) -> Option<&ArrayRef> {
    match array.as_struct_opt() {
        Some(of) => of.column_by_name("bytes"),
        None => Some(array),
    }
}

/// The header information of the first image.
fn info(array: &ArrayRef, place: &Place) -> Option<Result<Info>> {
    let (row, cell) = (0..array.len()).find_map(|row| Some((row, cell(array, row)?)))?;
    Some(probe(cell).map_err(|error| damaged(place.clone(), row, error)))
}

fn damaged(place: Place, row: usize, error: Error) -> Error {
    let what = "the first image of the column, which is to say their size, has no good header";
    Error::corrupt_by(place.row(row as u64), what, error)
}

fn cell(array: &ArrayRef, row: usize) -> Option<&[u8]> {
    if array.is_null(row) {
        return None;
    }
    let any = array.as_any();
    let view = any.downcast_ref::<BinaryViewArray>().map(|array| array.value(row));
    view.or_else(|| any.downcast_ref::<BinaryArray>().map(|array| array.value(row)))
        .or_else(|| any.downcast_ref::<LargeBinaryArray>().map(|array| array.value(row)))
}
