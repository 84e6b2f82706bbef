//! Small pictures inside the page.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use retrievalguard::Seed;
use retrievalguard::noise::{ImageIdentity, NoiseStream, Stage};
use retrievalguard_encoder::model_config::ModelConfig;
use retrievalguard_encoder::picture::RgbPicture;
use retrievalguard_encoder::resize::{Interpolation, PassOrder, Preparation, Resampling, Resize};

/// Longest side of a thumbnail in the report.
pub const SIDE: usize = 96;

/// Longest side of a piece of the encoder's input: noise hardly compresses.
const PIECE: usize = 64;

/// Longest side of a picture that is kept as it is, pixel for pixel.
const ENLARGED: usize = 48;

/// Quality of JPEG files, out of 100.
const QUALITY: u8 = 88;

/// Why a picture cannot be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ThumbnailError {
    /// It could not be scaled.
    #[error(transparent)]
    Picture(#[from] retrievalguard_encoder::picture::PictureError),
    /// It does not fit the encoder.
    #[error("`{picture}` has {found} values, wanted {wanted} for the encoder's input")]
    Values {
        /// The picture.
        picture: String,
        /// How many it has.
        found: usize,
        /// How many the model config asks for.
        wanted: usize,
    },
    /// The pixels could not be written.
    #[error("a picture of {width} by {height} pixels could not be encoded: {reason}")]
    Encoding {
        /// Columns.
        width: usize,
        /// Rows.
        height: usize,
        /// What the encoder said.
        reason: String,
    },
}

/// A small picture, encoded for a browser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thumbnail {
    bytes: Vec<u8>,
    coding: Coding,
    pub(crate) width: usize,
    pub(crate) height: usize,
    /// Whether it is a piece of a larger picture.
    pub(crate) piece: bool,
}

impl Thumbnail {
    /// The whole picture, at most `side` pixels high and wide.
    pub fn new(name: &str, picture: &RgbPicture, side: usize) -> Result<Self, ThumbnailError> {
        let (width, height) = (picture.width(), picture.height());
        let longest = width.max(height);
        if longest <= side {
            return Self::encoded(width, height, picture.pixels(), Coding::for_side(longest));
        }
        let scaled = |length: usize| (length * side).div_ceil(longest).clamp(1, side);
        let (width, height) = (scaled(width), scaled(height));
        let preparation = Preparation {
            resize: Resize::Exact { height, width },
            interpolation: Interpolation::Bilinear,
            crop: None,
            order: PassOrder::default(),
            resampling: Resampling::default(),
        };
        let planes = preparation.apply(name, picture)?.values;
        Self::encoded(width, height, &interleaved(&planes, 3, width * height), Coding::Jpeg)
    }

    /// What the encoder sees of a picture after a change in a random direction whose l2 norm is `radius`.
    ///
    /// `values` are planes in `[0, 1]`, as the encoder takes them before noise and normalisation. What leaves `[0, 1]`
    /// is cut off for the eye alone. Of a larger input the centre is shown, because scaling would average the change away.
    pub fn perturbed(
        name: &str,
        values: &[f32],
        config: &ModelConfig,
        radius: f64,
        seed: Seed,
    ) -> Result<Self, ThumbnailError> {
        let change = direction(name, values.len(), radius, seed);
        Self::of_input(name, &moved(values, &change), config, Part::Centre)
    }

    /// The encoder's input, pixel for pixel; what leaves `[0, 1]` is cut off for the eye alone.
    pub fn of_input(
        name: &str,
        values: &[f32],
        config: &ModelConfig,
        part: Part,
    ) -> Result<Self, ThumbnailError> {
        let [channels, height, width] = config.picture_shape();
        if values.len() != channels * height * width {
            return Err(ThumbnailError::Values {
                picture: name.to_owned(),
                found: values.len(),
                wanted: channels * height * width,
            });
        }
        let pixels = interleaved(values, channels, height * width);
        let (rows, columns) = match part {
            Part::Whole => (height, width),
            Part::Centre => (height.min(PIECE), width.min(PIECE)),
        };
        let (top, left) = ((height - rows) / 2, (width - columns) / 2);
        let piece: Vec<u8> = (0..rows)
            .flat_map(|row| {
                let start = ((top + row) * width + left) * 3;
                pixels[start..start + columns * 3].iter().copied()
            })
            .collect();
        let shown = Self::encoded(columns, rows, &piece, Coding::Png)?;
        Ok(Self { piece: (rows, columns) != (height, width), ..shown })
    }

    /// The encoded picture.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What the bytes are.
    pub fn media_type(&self) -> &'static str {
        match self.coding {
            Coding::Png => "image/png",
            Coding::Jpeg => "image/jpeg",
        }
    }

    /// Address that holds the picture itself, so that it needs no file.
    pub fn uri(&self) -> String {
        format!("data:{};base64,{}", self.media_type(), STANDARD.encode(&self.bytes))
    }

    fn encoded(width: usize, height: usize, pixels: &[u8], coding: Coding) -> Result<Self, ThumbnailError> {
        let failed = |reason: String| ThumbnailError::Encoding { width, height, reason };
        let mut bytes = Vec::new();
        match coding {
            Coding::Png => {
                let sides = (u32::try_from(width), u32::try_from(height));
                let (Ok(across), Ok(down)) = sides else { return Err(failed("too large".to_owned())) };
                let mut encoder = png::Encoder::new(&mut bytes, across, down);
                encoder.set_color(png::ColorType::Rgb);
                encoder.set_depth(png::BitDepth::Eight);
                encoder.set_compression(png::Compression::High);
                let mut writer = encoder.write_header().map_err(|error| failed(error.to_string()))?;
                writer.write_image_data(pixels).map_err(|error| failed(error.to_string()))?;
                writer.finish().map_err(|error| failed(error.to_string()))?;
            }
            Coding::Jpeg => {
                let sides = (u16::try_from(width), u16::try_from(height));
                let (Ok(across), Ok(down)) = sides else { return Err(failed("too large".to_owned())) };
                jpeg_encoder::Encoder::new(&mut bytes, QUALITY)
                    .encode(pixels, across, down, jpeg_encoder::ColorType::Rgb)
                    .map_err(|error| failed(error.to_string()))?;
            }
        }
        Ok(Self { bytes, coding, width, height, piece: false })
    }
}

/// How much of an encoder's input is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// The centre of a larger one, for a page that keeps many: noise hardly compresses.
    Centre,
}

/// How pixels are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coding {
    /// Every pixel as it is.
    Png,
    /// A fifth of the bytes, for pictures that are only to be recognised.
    Jpeg,
}

impl Coding {
    /// Small pictures are shown enlarged, where the blocks of JPEG would be seen.
    fn for_side(longest: usize) -> Self {
        if longest <= ENLARGED { Self::Png } else { Self::Jpeg }
    }
}

/// Values after a change.
pub(crate) fn moved(values: &[f32], change: &[f64]) -> Vec<f32> {
    values.iter().zip(change).map(|(&value, &change)| (f64::from(value) + change) as f32).collect()
}

/// A change in a random direction with exactly this norm, the same for the same seed and name.
pub(crate) fn direction(name: &str, length: usize, radius: f64, seed: Seed) -> Vec<f64> {
    // A name of its own, so that these numbers are no part of any sample or attack.
    let identity = ImageIdentity::new(format!("shown in a report: {name}"));
    let mut noise = vec![0.0_f32; length];
    NoiseStream::new(seed, &identity, Stage::Attack).fill(0, 0, &mut noise);
    let norm = noise.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
    let scale = if norm > 0.0 { radius / norm } else { 0.0 };
    noise.into_iter().map(|value| f64::from(value) * scale).collect()
}

/// How many times a change is enlarged so that it can be seen: 1, 2 or 5 times a power of ten, three deviations within range.
pub(crate) fn enlargement(radius: f64, length: usize) -> u32 {
    let deviation = radius / (length.max(1) as f64).sqrt();
    let most = 0.5 / (3.0 * deviation);
    let rounds = (0..7).flat_map(|power| [1, 2, 5].map(|digit| digit * 10_u32.pow(power)));
    rounds.take_while(|&times| f64::from(times) <= most).last().unwrap_or(1)
}

/// Planes in `[0, 1]` as bytes, pixel by pixel in colour.
fn interleaved(planes: &[f32], channels: usize, plane: usize) -> Vec<u8> {
    let byte = |value: f32| (value.clamp(0.0, 1.0) * 255.0).round() as u8;
    (0..plane)
        .flat_map(|pixel| {
            [0, 1, 2].map(|channel| byte(planes[if channels == 3 { channel * plane + pixel } else { pixel }]))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(channels: usize, side: usize) -> ModelConfig {
        let numbers = vec!["0.5"; channels].join(", ");
        ModelConfig::from_toml(&format!(
            "[input]\nchannels = {channels}\nheight = {side}\nwidth = {side}\nmean = [{numbers}]\nstd = [{numbers}]\n\
             [resize]\nrule = \"shorter-side\"\nsize = {side}\ninterpolation = \"bilinear\"\n\
             [crop]\nrule = \"centre\"\n[output]\nnormalise = true\n"
        ))
        .unwrap()
    }

    #[test]
    fn a_shown_change_has_exactly_the_certified_norm() {
        for (length, radius) in [(3 * 32 * 32, 0.31), (12, 1e-6), (100_000, 42.0)] {
            let change = direction("query", length, radius, Seed::new(7));
            let norm = change.iter().map(|value| value * value).sum::<f64>().sqrt();
            assert!((norm - radius).abs() <= 1e-12 * radius, "{norm} {radius}");
        }
        assert_ne!(direction("a", 8, 1.0, Seed::new(7)), direction("b", 8, 1.0, Seed::new(7)));
        assert_eq!(direction("a", 8, 1.0, Seed::new(7)), direction("a", 8, 1.0, Seed::new(7)));
    }

    #[test]
    fn a_change_of_no_size_shows_the_picture_itself() {
        let values: Vec<f32> = (0..3 * 16).map(|place| place as f32 / 48.0).collect();
        let shown = Thumbnail::perturbed("q", &values, &config(3, 4), 0.0, Seed::new(0)).unwrap();
        let plain = Thumbnail::encoded(4, 4, &interleaved(&values, 3, 16), Coding::Png).unwrap();
        assert_eq!(shown, plain);
        let grey = Thumbnail::perturbed("q", &values[..16], &config(1, 4), 0.0, Seed::new(0)).unwrap();
        assert_eq!((grey.width, grey.height, grey.piece), (4, 4, false));
    }

    #[test]
    fn a_change_is_enlarged_by_a_round_number_until_it_fills_the_range() {
        for (radius, length, times) in [(0.25, 3 * 32 * 32, 20), (0.25, 3 * 224 * 224, 200), (50.0, 3_072, 1)]
        {
            assert_eq!(enlargement(radius, length), times, "{radius} {length}");
        }
        assert!(enlargement(0.0, 12) > 0);
    }

    #[test]
    fn of_a_large_input_the_centre_is_shown() {
        let values = vec![0.5; 3 * 100 * 100];
        let shown = Thumbnail::perturbed("q", &values, &config(3, 100), 1.0, Seed::new(0)).unwrap();
        assert_eq!((shown.width, shown.height, shown.piece), (64, 64, true));
        let whole = Thumbnail::of_input("q", &values, &config(3, 100), Part::Whole).unwrap();
        assert_eq!((whole.width, whole.height, whole.piece), (100, 100, false));
        let refused = Thumbnail::perturbed("q", &values[1..], &config(3, 100), 1.0, Seed::new(0));
        assert!(matches!(refused, Err(ThumbnailError::Values { found: 29_999, wanted: 30_000, .. })));
    }

    #[test]
    fn a_thumbnail_keeps_the_proportions_and_is_never_enlarged() {
        for (width, height, expected) in
            [(640, 480, (96, 72)), (10, 2_000, (1, 96)), (96, 96, (96, 96)), (30, 20, (30, 20))]
        {
            let picture = RgbPicture::new("p", width, height, vec![128; 3 * width * height]).unwrap();
            let shown = Thumbnail::new("p", &picture, SIDE).unwrap();
            assert_eq!((shown.width, shown.height), expected, "{width} by {height}");
            assert!(shown.uri().starts_with("data:image/"));
        }
    }
}
