//! The options of an image column, as plain fields, and their check.

use crate::error::{Error, Result};
use crate::schema::DType;

/// The conversion of an image column to a tensor. Every field has a default; all but `size` can be left as they are.
///
/// The steps, in order: EXIF orientation, crop, resize, flip, normalise, layout.
///
/// ```
/// use bowstring::codec::image::{Crop, ImageOptions, Normalize};
///
/// let train: ImageOptions = serde_json::from_str(r#"{"size": 224, "crop": "random_resized", "flip": true}"#).unwrap();
/// assert_eq!(train.crop, Crop::RandomResized { scale: [0.08, 1.0], ratio: [3.0 / 4.0, 4.0 / 3.0] });
/// ```
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ImageOptions {
    /// Size of every output image. `None` is for columns whose images all have one size: see
    /// [`ImageOptions::sized_as`].
    pub size: Option<Size>,
    /// The part of the image that is used.
    pub crop: Crop,
    /// With [`Crop::Center`]: the image is first resized so that its shorter side has this many pixels (torchvision's
    /// `Resize(256)` before `CenterCrop(224)`; done in one step here, with the same result).
    pub resize_shorter: Option<u32>,
    /// `false`: never resize. An image that does not fit `size` is then an error.
    pub resize: bool,
    /// Probability of a horizontal flip; `true` in JSON is 0.5.
    #[serde(deserialize_with = "probability")]
    pub flip: f64,
    /// With a float `dtype`: `(x / 255 - mean) / std` for each channel. `None` leaves `x / 255`.
    pub normalize: Option<Normalize>,
    /// Order of the axes of one image.
    pub layout: Layout,
    /// `uint8`, `float16`, `bfloat16` or `float32`. With a float type the values are scaled to 0..=1 before `normalize`.
    pub dtype: DType,
    /// 1 (grey: ITU-R 601 luma), 3 (RGB; alpha is dropped, as Pillow's `convert("RGB")`) or 4 (RGBA).
    pub channels: u8,
    /// If true, the EXIF orientation is applied. torchvision's default loader does not, OpenCV's does.
    pub orient: bool,
    /// If true, JPEG may be decoded at 1/2, 1/4 or 1/8 as long as the result is not smaller than the output (Pillow's
    /// `draft`). Faster; the pixels then differ slightly from a full decode. Without libjpeg-turbo it has no effect.
    pub draft: bool,
    /// Handling of a JPEG with an incomplete picture.
    pub truncated: Truncated,
    /// Limits on the cost of an image.
    pub limits: Limits,
    /// The decoder of JPEG.
    pub decoder: Decoder,
    /// With [`Decoder::Nvjpeg`]: room for the bytes of one photo, at least that of its decoded pixels. A larger photo
    /// is decoded on the CPU. This many bytes of each photo cross the bus.
    pub encoded_room: u32,
}

impl Default for ImageOptions {
    fn default() -> Self {
        Self {
            size: None,
            crop: Crop::None,
            resize_shorter: None,
            resize: true,
            flip: 0.0,
            normalize: None,
            layout: Layout::Chw,
            dtype: DType::Uint8,
            channels: 3,
            orient: true,
            draft: true,
            truncated: Truncated::Error,
            limits: Limits::default(),
            decoder: Decoder::Cpu,
            encoded_room: 256 << 10,
        }
    }
}

/// Handling of a JPEG that ends early, or whose pixels are damaged. Other formats are refused then, as is a JPEG
/// without a good header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Truncated {
    /// The row is bad.
    #[default]
    Error,
    /// The missing part is filled up as by libjpeg, usually with grey: as Pillow does with `LOAD_TRUNCATED_IMAGES`.
    /// Needs libjpeg-turbo and the CPU.
    Fill,
}

/// The decoder of a column's JPEGs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decoder {
    /// The CPU: the pixels of libjpeg, damage is an error.
    #[default]
    Cpu,
    /// NVIDIA's nvJPEG, on the GPU that batches are delivered on. Close to the CPU's pixels, not equal, and damage may
    /// go unnoticed. Unsupported images (PNG, progressive JPEG, CMYK, and those that it refuses) are decoded on the
    /// CPU.
    Nvjpeg,
    /// A device, later: rows hold the stored bytes and the requested part. Set by a loader when the user requests a
    /// device.
    #[serde(skip)]
    #[doc(hidden)]
    Deferred,
}

/// Maximum of [`ImageOptions::encoded_room`].
const MOST_ROOM: u32 = 64 << 20;

/// Height and width in pixels. In JSON one number (a square) or `[height, width]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(from = "SizeForm", into = "[u32; 2]")]
pub struct Size {
    /// Rows of pixels.
    pub height: u32,
    /// Pixels of a row.
    pub width: u32,
}

impl From<u32> for Size {
    fn from(side: u32) -> Self {
        Self { height: side, width: side }
    }
}

impl From<Size> for [u32; 2] {
    fn from(size: Size) -> Self {
        [size.height, size.width]
    }
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum SizeForm {
    Square(u32),
    Sides([u32; 2]),
}

impl From<SizeForm> for Size {
    fn from(form: SizeForm) -> Self {
        match form {
            SizeForm::Square(side) => side.into(),
            SizeForm::Sides([height, width]) => Self { height, width },
        }
    }
}

/// The part of the image that is used. In JSON `"none"`, `"center"`, `"random_resized"` or `{"random_resized":
/// {"scale": [0.08, 1], "ratio": [0.75, 1.3333]}}`.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case", from = "CropForm")]
pub enum Crop {
    /// All of it, stretched to `size`.
    #[default]
    None,
    /// The middle. With `resize_shorter`, a box of `size` after that resize; otherwise the largest box with the aspect
    /// of `size`; with `resize: false`, a box of `size` pixels.
    Center,
    /// torchvision's `RandomResizedCrop`: a random box, resized to `size`.
    RandomResized {
        /// Minimum and maximum part of the area, in 0..=1.
        scale: [f64; 2],
        /// Minimum and maximum width / height.
        ratio: [f64; 2],
    },
}

/// torchvision's `scale` of `RandomResizedCrop`.
const SCALE: [f64; 2] = [0.08, 1.0];
/// torchvision's `ratio` of `RandomResizedCrop`.
const RATIO: [f64; 2] = [3.0 / 4.0, 4.0 / 3.0];

impl Crop {
    /// `RandomResized` with torchvision's defaults.
    pub const RANDOM_RESIZED: Self = Self::RandomResized { scale: SCALE, ratio: RATIO };
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum CropForm {
    Name(CropName),
    Given(CropGiven),
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum CropName {
    None,
    Center,
    RandomResized,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct CropGiven {
    random_resized: Box<CropRanges>,
}

#[derive(serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct CropRanges {
    scale: [f64; 2],
    ratio: [f64; 2],
}

impl Default for CropRanges {
    fn default() -> Self {
        Self { scale: SCALE, ratio: RATIO }
    }
}

impl From<CropForm> for Crop {
    fn from(form: CropForm) -> Self {
        match form {
            CropForm::Name(CropName::None) => Self::None,
            CropForm::Name(CropName::Center) => Self::Center,
            CropForm::Name(CropName::RandomResized) => Self::RANDOM_RESIZED,
            CropForm::Given(given) => {
                Self::RandomResized { scale: given.random_resized.scale, ratio: given.random_resized.ratio }
            }
        }
    }
}

/// Mean and standard deviation for each channel (or one value for all), on the scale 0..=1.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normalize {
    /// Subtracted.
    pub mean: Vec<f32>,
    /// Divided by afterwards; greater than 0.
    pub std: Vec<f32>,
}

impl Normalize {
    /// The usual values for networks trained on ImageNet.
    pub fn imagenet() -> Self {
        Self { mean: vec![0.485, 0.456, 0.406], std: vec![0.229, 0.224, 0.225] }
    }
}

/// Order of the axes of one image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// `[channels, height, width]`, PyTorch's.
    #[default]
    Chw,
    /// `[height, width, channels]`, as images are stored; the cheapest.
    Hwc,
}

/// Limits on the cost of one image; checked from its header, before anything is allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Width times height, in pixels.
    pub max_pixels: u64,
    /// Width or height, in pixels.
    pub max_side: u32,
    /// Memory for decoding, in bytes; progressive JPEG needs the most (about 9 per pixel).
    pub max_bytes: u64,
    /// Scans of a progressive JPEG; usually about 10, and each is a pass over the whole image.
    pub max_scans: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_pixels: 128 << 20, max_side: 65_500, max_bytes: 512 << 20, max_scans: 100 }
    }
}

impl Limits {
    /// Checks the size an image claims to have; `bytes_per_pixel` is the cost of decoding it.
    pub(super) fn check(&self, width: u32, height: u32, bytes_per_pixel: u64) -> Result<()> {
        let refuse = |what: &str, asked, limit, option| {
            Err(Error::limit(format!("{what} of an image of {width} x {height} pixels"), asked, limit, option))
        };
        let pixels = u64::from(width) * u64::from(height);
        let bytes = pixels.saturating_mul(bytes_per_pixel);
        if width.max(height) > self.max_side {
            return refuse("the longer side", width.max(height).into(), self.max_side.into(), "limits.max_side");
        }
        if pixels > self.max_pixels {
            return refuse("the area", pixels, self.max_pixels, "limits.max_pixels");
        }
        if bytes > self.max_bytes {
            return refuse("decoding", bytes, self.max_bytes, "limits.max_bytes");
        }
        Ok(())
    }
}

impl ImageOptions {
    /// These options, with `size` from `info` and no resize if `size` is not given: for a column whose images all have
    /// the size of its first one. An image with another size is then an error that names both.
    #[must_use]
    pub fn sized_as(&self, info: &super::Info) -> Self {
        let mut options = self.clone();
        if options.size.is_none() {
            let (width, height) = if self.orient { info.oriented() } else { (info.width, info.height) };
            options.size = Some(Size { height, width });
            options.resize = matches!(options.crop, Crop::RandomResized { .. });
        }
        options
    }

    /// The output size, after a check of every option.
    pub(super) fn check(&self) -> Result<Size> {
        if self.decoder == Decoder::Nvjpeg {
            let problem =
                "nvjpeg decodes on the GPU that a loader delivers to: give device=\"cuda\", or decoder=\"cpu\"";
            return Err(Error::config("decoder", problem));
        }
        let Some(size) = self.size else {
            return Err(Error::config(
                "size",
                "images need one size in a batch: give a number or [height, width], or leave it out only where all images have one size",
            ));
        };
        if size.height == 0 || size.width == 0 || size.height.max(size.width) > self.limits.max_side {
            let problem = format!("{} x {} pixels; give 1 to {} each", size.height, size.width, self.limits.max_side);
            return Err(Error::config("size", problem));
        }
        self.limits.check(size.width, size.height, u64::from(self.channels) * self.dtype.size() as u64)?;
        self.check_geometry(size)?;
        self.check_values()?;
        Ok(size)
    }

    fn check_geometry(&self, size: Size) -> Result<()> {
        match self.crop {
            Crop::RandomResized { .. } if !self.resize => {
                return Err(Error::config("resize", "a random resized crop resizes; set resize to true"));
            }
            Crop::RandomResized { scale, ratio } => {
                let ordered = |[low, high]: [f64; 2], most: f64| 0.0 < low && low <= high && high <= most;
                if !ordered(scale, 1.0) {
                    let problem = format!("scale {scale:?}; give 0 < least <= greatest <= 1, e.g. [0.08, 1]");
                    return Err(Error::config("crop", problem));
                }
                if !ordered(ratio, 1000.0) || ratio[0] < 0.001 {
                    let problem =
                        format!("ratio {ratio:?}; give 0.001 <= least <= greatest <= 1000, e.g. [0.75, 1.3333]");
                    return Err(Error::config("crop", problem));
                }
            }
            Crop::None | Crop::Center => {}
        }
        if let Some(shorter) = self.resize_shorter {
            if self.crop != Crop::Center {
                return Err(Error::config("resize_shorter", "it goes before a centre crop; set crop to center"));
            }
            if !self.resize {
                return Err(Error::config("resize_shorter", "it resizes; set resize to true"));
            }
            if shorter < size.height.max(size.width) || shorter > self.limits.max_side {
                let problem = format!(
                    "{shorter} pixels; give at least the longer side of size, {}, and at most {}",
                    size.height.max(size.width),
                    self.limits.max_side
                );
                return Err(Error::config("resize_shorter", problem));
            }
        }
        Ok(())
    }

    fn check_values(&self) -> Result<()> {
        if self.decoder == Decoder::Deferred && !matches!(self.channels, 1 | 3) {
            let problem = format!("nvjpeg gives 1 or 3 channels, not {}; give cpu", self.channels);
            return Err(Error::config("decoder", problem));
        }
        if self.truncated == Truncated::Fill && self.decoder != Decoder::Cpu {
            return Err(Error::config("truncated", "nvjpeg fills nothing up; give error, or decoder=\"cpu\""));
        }
        if self.truncated == Truncated::Fill && !cfg!(feature = "turbo") {
            let problem = "the pure-Rust decoder fills nothing up; give error, or build with the feature turbo";
            return Err(Error::config("truncated", problem));
        }
        if self.encoded_room > MOST_ROOM {
            let problem = format!("{} bytes; give at most {MOST_ROOM}", self.encoded_room);
            return Err(Error::config("encoded_room", problem));
        }
        if !(0.0..=1.0).contains(&self.flip) {
            return Err(Error::config("flip", format!("probability {}; give 0 to 1", self.flip)));
        }
        if !matches!(self.channels, 1 | 3 | 4) {
            let problem = format!("{}; give 1 (grey), 3 (RGB) or 4 (RGBA)", self.channels);
            return Err(Error::config("channels", problem));
        }
        let float = matches!(self.dtype, DType::Float16 | DType::Bfloat16 | DType::Float32);
        if !float && self.dtype != DType::Uint8 {
            let problem = format!("images cannot be {}; give uint8, float16, bfloat16 or float32", self.dtype);
            return Err(Error::config("dtype", problem));
        }
        if let Some(Normalize { mean, std }) = &self.normalize {
            if !float {
                return Err(Error::config("normalize", "the result is not an integer; set dtype to a float type"));
            }
            let fits = |values: &[f32]| values.len() == 1 || values.len() == usize::from(self.channels);
            if !fits(mean) || !fits(std) {
                let problem = format!(
                    "{} means and {} standard deviations for {} channels; give 1 or {} of each",
                    mean.len(),
                    std.len(),
                    self.channels,
                    self.channels
                );
                return Err(Error::config("normalize", problem));
            }
            if !mean.iter().all(|m| m.is_finite()) || !std.iter().all(|s| s.is_finite() && *s > 1e-12) {
                return Err(Error::config("normalize", "mean must be finite, and std finite and greater than 0"));
            }
        }
        Ok(())
    }
}

/// A probability, or true for a flip at all.
fn probability<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Form {
        Whether(bool),
        Probability(f64),
    }
    Ok(match serde::Deserialize::deserialize(deserializer)? {
        Form::Whether(true) => 0.5,
        Form::Whether(false) => 0.0,
        Form::Probability(probability) => probability,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_survive_json() {
        for crop in [Crop::None, Crop::Center, Crop::RandomResized { scale: [0.2, 0.9], ratio: [0.5, 2.0] }] {
            let options = ImageOptions {
                size: Some(Size { height: 3, width: 4 }),
                crop,
                flip: 0.25,
                normalize: Some(Normalize::imagenet()),
                layout: Layout::Hwc,
                dtype: DType::Bfloat16,
                ..ImageOptions::default()
            };
            let json = serde_json::to_string(&options).unwrap();
            assert_eq!(serde_json::from_str::<ImageOptions>(&json).unwrap(), options, "{json}");
        }
    }

    #[test]
    fn json_has_short_forms_and_no_unknown_names() {
        let parse = serde_json::from_str::<ImageOptions>;
        assert_eq!(parse("{}").unwrap(), ImageOptions::default());
        assert_eq!(parse(r#"{"size": 8}"#).unwrap().size, Some(Size { height: 8, width: 8 }));
        assert_eq!(parse(r#"{"size": [8, 9]}"#).unwrap().size, Some(Size { height: 8, width: 9 }));
        assert_eq!(parse(r#"{"flip": true}"#).unwrap().flip, 0.5);
        assert_eq!(parse(r#"{"decoder": "nvjpeg"}"#).unwrap().decoder, Decoder::Nvjpeg);
        assert_eq!(parse(r#"{"crop": {"random_resized": {}}}"#).unwrap().crop, Crop::RANDOM_RESIZED);
        for wrong in [
            r#"{"sise": 8}"#,
            r#"{"crop": "top"}"#,
            r#"{"crop": {"random_resized": {"scal": 1}}}"#,
            r#"{"flip": "no"}"#,
            r#"{"decoder": "gpu"}"#,
            r#"{"decoder": "deferred"}"#,
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn impossible_options_are_named() {
        let good = ImageOptions { size: Some(224.into()), ..ImageOptions::default() };
        good.check().unwrap();
        let refused = |change: &dyn Fn(&mut ImageOptions)| {
            let mut options = good.clone();
            change(&mut options);
            match options.check().unwrap_err() {
                Error::Config { option, .. } | Error::Limit { option, .. } => option,
                other => panic!("{other}"),
            }
        };
        assert_eq!(refused(&|o| o.size = None), "size");
        assert_eq!(refused(&|o| o.size = Some(0.into())), "size");
        assert_eq!(refused(&|o| o.size = Some(60_000.into())), "limits.max_pixels");
        assert_eq!(refused(&|o| o.flip = 1.5), "flip");
        assert_eq!(refused(&|o| o.flip = f64::NAN), "flip");
        assert_eq!(refused(&|o| o.channels = 2), "channels");
        assert_eq!(refused(&|o| o.decoder = Decoder::Nvjpeg), "decoder");
        assert_eq!(refused(&|o| (o.decoder, o.channels) = (Decoder::Deferred, 4)), "decoder");
        assert_eq!(refused(&|o| o.encoded_room = u32::MAX), "encoded_room");
        assert_eq!(refused(&|o| o.dtype = DType::Int8), "dtype");
        assert_eq!(refused(&|o| o.normalize = Some(Normalize::imagenet())), "normalize");
        assert_eq!(refused(&|o| o.resize_shorter = Some(256)), "resize_shorter");
        assert_eq!(refused(&|o| (o.crop, o.resize_shorter) = (Crop::Center, Some(223))), "resize_shorter");
        assert_eq!(refused(&|o| (o.crop, o.resize) = (Crop::RANDOM_RESIZED, false)), "resize");
        assert_eq!(refused(&|o| o.crop = Crop::RandomResized { scale: [0.5, 0.1], ratio: RATIO }), "crop");
        assert_eq!(refused(&|o| o.crop = Crop::RandomResized { scale: SCALE, ratio: [0.0, 1.0] }), "crop");
        let zero = Normalize { mean: vec![0.5], std: vec![0.0] };
        assert_eq!(refused(&|o| (o.dtype, o.normalize) = (DType::Float32, Some(zero.clone()))), "normalize");
        let two = Normalize { mean: vec![0.5; 2], std: vec![1.0] };
        assert_eq!(refused(&|o| (o.dtype, o.normalize) = (DType::Float32, Some(two.clone()))), "normalize");
    }
}
