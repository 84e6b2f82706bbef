//! The part of timm's `config.json` that says how pictures are prepared.
//!
//! The rules are those of `timm.data.create_transform` for evaluation: scale by `floor(size / crop_pct)`, then cut out
//! the middle.

use serde::Deserialize;
use serde_json::Value;

use super::{
    ChannelOrder, Crop, Input, Interpolation, Layout, ModelConfig, ModelConfigFault, Output, PassOrder,
    Resampling, Resize,
};

/// timm's `IMAGENET_DEFAULT_MEAN` and `IMAGENET_DEFAULT_STD`.
const MEAN: [f64; 3] = [0.485, 0.456, 0.406];
const STD: [f64; 3] = [0.229, 0.224, 0.225];
/// timm's `DEFAULT_CROP_PCT`.
const CROP: f64 = 0.875;

#[derive(Deserialize)]
struct Configuration {
    input_size: Option<[usize; 3]>,
    mean: Option<Numbers>,
    std: Option<Numbers>,
    interpolation: Option<String>,
    crop_pct: Option<f64>,
    crop_mode: Option<String>,
}

/// timm accepts one number for all channels.
#[derive(Deserialize)]
#[serde(untagged)]
enum Numbers {
    One(f64),
    Each(Vec<f64>),
}

impl Numbers {
    fn each(self, channels: usize) -> Vec<f64> {
        match self {
            Self::One(number) => vec![number; channels],
            Self::Each(numbers) if numbers.len() == 1 => vec![numbers[0]; channels],
            Self::Each(numbers) => numbers,
        }
    }
}

pub(super) fn read(text: &str) -> Result<ModelConfig, ModelConfigFault> {
    let mut file: Value = serde_json::from_str(text)?;
    // Files from before timm 0.8 hold the same keys at the top.
    let fields = match file.get_mut("pretrained_cfg").map(Value::take) {
        Some(fields) => fields,
        None if file.get("input_size").is_some() => file,
        None => return Err(ModelConfigFault::NotTimm { missing: "pretrained_cfg" }),
    };
    let configuration: Configuration = serde_json::from_value(fields)?;
    let Some([channels, height, width]) = configuration.input_size else {
        return Err(ModelConfigFault::NotTimm { missing: "input_size" });
    };
    let interpolation = interpolation(configuration.interpolation.as_deref().unwrap_or("bicubic"))?;
    let part = configuration.crop_pct.unwrap_or(CROP);
    if !(part > 0.0 && part <= 1.0) {
        return unsupported("crop_pct", part, "a number above 0, at most 1");
    }
    let scaled = |side: usize| (side as f64 / part).floor() as usize;
    let resize = match configuration.crop_mode.as_deref().unwrap_or("center") {
        "center" if height == width => {
            let (order, resampling) = (PassOrder::default(), Resampling::default());
            Resize::ShorterSide { size: scaled(height), interpolation, order, resampling }
        }
        "center" => {
            return unsupported(
                "input_size",
                format!("{height} × {width}"),
                "a square for crop_mode `center`",
            );
        }
        "squash" => Resize::Exact {
            height: scaled(height),
            width: scaled(width),
            interpolation,
            order: PassOrder::default(),
            resampling: Resampling::default(),
        },
        other => return unsupported("crop_mode", format!("`{other}`"), "`center` or `squash`"),
    };
    let default = |numbers: [f64; 3]| match channels {
        1 => vec![numbers.iter().sum::<f64>() / 3.0],
        _ => numbers.to_vec(),
    };
    Ok(ModelConfig {
        input: Input {
            name: None,
            channels,
            height,
            width,
            channel_order: ChannelOrder::Rgb,
            layout: Layout::Nchw,
            mean: configuration.mean.map_or_else(|| default(MEAN), |numbers| numbers.each(channels)),
            std: configuration.std.map_or_else(|| default(STD), |numbers| numbers.each(channels)),
        },
        resize,
        crop: Crop::Centre,
        output: Output { name: None, normalise: true, norm_bound: None },
    })
}

fn interpolation(name: &str) -> Result<Interpolation, ModelConfigFault> {
    match name {
        "nearest" => Ok(Interpolation::Nearest),
        "bilinear" => Ok(Interpolation::Bilinear),
        "bicubic" => Ok(Interpolation::Bicubic),
        "lanczos" => Ok(Interpolation::Lanczos),
        other => unsupported(
            "interpolation",
            format!("`{other}`"),
            "`nearest`, `bilinear`, `bicubic` or `lanczos`",
        ),
    }
}

fn unsupported<T>(
    field: &'static str,
    found: impl ToString,
    wanted: &'static str,
) -> Result<T, ModelConfigFault> {
    Err(ModelConfigFault::Value { field, found: found.to_string(), wanted: wanted.to_owned() })
}
