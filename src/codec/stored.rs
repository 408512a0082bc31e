//! Cells that are arrays or images: one decoder for all encodings, with the shape of each value known before it is decoded.

use crate::codec::image::StoredImage;
use crate::codec::npy::{NpyDecoder, Unit};
use crate::codec::{Decode, DecodeShaped};
use crate::error::{Error, Result};
use crate::schema::{Codec, DType, Element, Stored};

/// The unit of all times, whatever the unit of each cell.
const TIMES: &str = "ns";

/// Decodes the cells of a column that [`Stored`] describes, straight into a batch.
#[derive(Debug)]
pub struct StoredDecoder {
    dtype: DType,
    unit: Option<&'static str>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Array(NpyDecoder),
    Image(StoredImage),
}

impl StoredDecoder {
    /// The decoder for `stored`, whose elements are numbers or times.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for elements without a tensor form.
    pub fn new(stored: &Stored) -> Result<Self> {
        let (dtype, unit) = match stored.element {
            Element::Number(dtype) => (dtype, None),
            Element::Time | Element::Timedelta => (DType::Int64, Some(TIMES)),
            Element::Text | Element::Bytes => {
                let what = "arrays of strings as a tensor".to_owned();
                return Err(Error::unsupported(what, "they are delivered as Arrow lists"));
            }
        };
        let kind = match stored.codec {
            Codec::Npy | Codec::Npz => {
                let decoder = NpyDecoder::new(stored)?;
                Kind::Array(match Unit::named(TIMES).filter(|_| unit.is_some()) {
                    Some(unit) => decoder.with_unit(unit),
                    None => decoder,
                })
            }
            Codec::Png | Codec::Jpeg => Kind::Image(StoredImage::new(stored)?),
        };
        Ok(Self { dtype, unit, kind })
    }

    /// Element type of the tensors.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The unit of times: `ns`, for all cells.
    pub fn unit(&self) -> Option<&'static str> {
        self.unit
    }

    /// Likely ratio of a value's size to its stored size, for reserving memory.
    pub(crate) fn expansion(&self) -> usize {
        match self.kind {
            Kind::Array(_) => 2,
            Kind::Image(_) => 12,
        }
    }
}

impl DecodeShaped for StoredDecoder {
    fn shape_of(&self, cell: &[u8]) -> Result<Vec<usize>> {
        match &self.kind {
            Kind::Array(decoder) => decoder.shape(cell),
            Kind::Image(decoder) => decoder.shape(cell),
        }
    }
}

impl Decode for StoredDecoder {
    fn decode_into(&self, cell: &[u8], _random: u64, row: &mut [u8]) -> Result<()> {
        match &self.kind {
            Kind::Array(decoder) => decoder.decode_into(cell, row),
            Kind::Image(decoder) => decoder.decode_into(cell, row),
        }
    }
}
