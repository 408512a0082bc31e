//! Images whose size nobody says: that of the column's first one, found when the dataset is opened.

use arrow::array::{Array, ArrayRef, BinaryArray, BinaryViewArray, LargeBinaryArray};
use arrow::datatypes::{DataType, FieldRef};

use crate::codec::ColumnOptions;
use crate::codec::image::{Info, probe};
use crate::dataset::Dataset;
use crate::error::{Error, Place, Result};

/// Row groups that are looked into for a cell that is not missing.
const LOOKED_INTO: usize = 8;

/// `options` with the size of the first image of the column for each column of images that has none. All others must have it too, as
/// [`ImageOptions::sized_as`](crate::codec::ImageOptions::sized_as) says. Reads the column in one row group.
///
/// # Errors
/// [`Error::Config`] for a column without an image, [`Error::Limit`] where reading it takes more than the `budget`, and what reading it
/// gives.
pub(super) async fn sized(dataset: &Dataset, mut options: ColumnOptions, budget: u64) -> Result<ColumnOptions> {
    // Of other types there is an error that says so, whatever the size.
    let binary = |field: &&FieldRef| {
        matches!(field.data_type(), DataType::Binary | DataType::LargeBinary | DataType::BinaryView)
    };
    let fields = dataset.schema().fields().iter().filter(binary);
    let names: Vec<String> = fields.map(|field| field.name().clone()).collect();
    for name in names {
        let Some(image) = options.image_without_size(&name).cloned() else { continue };
        let info = first(dataset, &name, budget).await?;
        options.images.insert(name, image.sized_as(&info));
    }
    Ok(options)
}

/// What the header of the first image of `column` says.
async fn first(dataset: &Dataset, column: &str, budget: u64) -> Result<Info> {
    let projection = dataset.project(&[column.to_owned()])?;
    let groups = dataset.manifest().groups.iter().enumerate().filter(|(_, group)| group.selected > 0);
    for (group, _) in groups.take(LOOKED_INTO) {
        // Nothing else is read yet, so that all of the budget is there.
        let asked = dataset.cost(group, &projection).total();
        if asked > budget {
            let what =
                "one row group of the column, of which the first image is looked at; give its size, or".to_owned();
            return Err(Error::limit(what, asked, budget, "memory_budget").at(dataset.place(group).column(column)));
        }
        let fetched = dataset.fetch(group, &projection).await?;
        let (dataset, projection, place) = (dataset.clone(), projection.clone(), dataset.place(group).column(column));
        let looked = tokio::task::spawn_blocking(move || {
            let array = dataset.decode(&fetched, &projection, 0)?;
            let found = (0..array.len()).find_map(|row| Some((row, cell(&array, row)?)));
            let probed = found.map(|(row, cell)| probe(cell).map_err(|error| damaged(place, row, error)));
            probed.transpose()
        });
        let looked = looked.await.map_err(|error| Error::Closed { why: format!("looking at an image: {error}") })?;
        if let Some(info) = looked? {
            return Ok(info);
        }
    }
    let problem = format!("column {column}: no image in its first row groups says what size they have; give size");
    Err(Error::config("size", problem))
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
