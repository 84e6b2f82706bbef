//! What a certified radius looks like: a picture, the same changed by exactly the radius, and the change enlarged.
//!
//! The report shows it for a few queries of a run, the page of the service for the query that was just answered.

use retrievalguard::Seed;
use retrievalguard::certificate::{Radius, round_down};
use retrievalguard_encoder::model_config::ModelConfig;

use crate::picture::{Part, Thumbnail, ThumbnailError, direction, enlargement, moved};
use crate::report::in_thousands;

/// A finite radius around one picture.
#[derive(Clone, Debug)]
pub struct VisibleRadius {
    /// The radius.
    pub radius: Radius,
    /// Numbers in the encoder's input.
    pub values: usize,
    /// The encoder's input.
    pub original: Thumbnail,
    /// The same after a change of exactly the radius, in a random direction.
    pub changed: Thumbnail,
    /// The change alone, enlarged around grey.
    pub change: Thumbnail,
    /// How many times it is enlarged.
    pub times: u32,
}

impl VisibleRadius {
    /// Shows a radius around the encoder's input `values`: planes in `[0, 1]`, before noise and normalisation.
    pub fn new(
        name: &str,
        values: &[f32],
        config: &ModelConfig,
        radius: f64,
        seed: Seed,
        part: Part,
    ) -> Result<Self, ThumbnailError> {
        let change = direction(name, values.len(), radius, seed);
        let times = enlargement(radius, values.len());
        let enlarged: Vec<f32> = change.iter().map(|value| (0.5 + value * f64::from(times)) as f32).collect();
        let shown = |values: &[f32]| Thumbnail::of_input(name, values, config, part);
        Ok(Self {
            radius: Radius::Finite(radius),
            values: values.len(),
            original: shown(values)?,
            changed: shown(&moved(values, &change))?,
            change: shown(&enlarged)?,
            times,
        })
    }

    /// The radius in words: in l2, as the same energy over all values in grey levels, in l∞, and on a single value.
    pub fn words(&self) -> String {
        let (radius, values) = (self.radius, self.values);
        let one = radius.in_8bit_steps();
        let one =
            if one < 255.0 { format!("{} of 255", round_down(one, 1)) } else { "all of its 255".to_owned() };
        format!(
            "l2 radius {radius}; the same energy spread over all {} values is {} of 255 grey levels on each, and every change of \
             at most that much per value (l∞ {}) is covered; on a single value it is {one}.",
            in_thousands(values as u64),
            round_down(radius.in_grey_levels(values), 2),
            round_down(radius.l_infinity(values).get(), 6),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ModelConfig {
        ModelConfig::from_toml(
            "[input]\nchannels = 3\nheight = 100\nwidth = 100\nmean = [0.5, 0.5, 0.5]\nstd = [0.5, 0.5, 0.5]\n\
             [resize]\nrule = \"shorter-side\"\nsize = 100\ninterpolation = \"bilinear\"\n\
             [crop]\nrule = \"centre\"\n[output]\nnormalise = true\n",
        )
        .unwrap()
    }

    #[test]
    fn a_radius_is_seen_on_the_whole_input_or_on_its_centre() {
        let values = vec![0.5; 30_000];
        for (part, side) in [(Part::Whole, 100), (Part::Centre, 64)] {
            let seen = VisibleRadius::new("q", &values, &config(), 0.25, Seed::new(7), part).unwrap();
            for picture in [&seen.original, &seen.changed, &seen.change] {
                assert_eq!((picture.width, picture.height), (side, side), "{part:?}");
            }
            assert_eq!(seen.times, 100, "0.25 over 30,000 values is 0.0014 on each");
            assert_ne!(seen.change, seen.original);
        }
        let again = || VisibleRadius::new("q", &values, &config(), 0.25, Seed::new(7), Part::Whole).unwrap();
        assert_eq!(again().change, again().change);
        let refused = VisibleRadius::new("q", &values[1..], &config(), 0.25, Seed::new(7), Part::Whole);
        assert!(matches!(refused, Err(ThumbnailError::Values { found: 29_999, .. })));
    }

    #[test]
    fn a_radius_is_told_in_three_norms_and_never_too_large() {
        let values = vec![0.5; 30_000];
        let seen =
            |radius| VisibleRadius::new("q", &values, &config(), radius, Seed::new(7), Part::Centre).unwrap();
        assert_eq!(
            seen(0.25).words(),
            "l2 radius 0.2500; the same energy spread over all 30,000 values is 0.36 of 255 grey levels on each, and every \
             change of at most that much per value (l∞ 0.001443) is covered; on a single value it is 63.7 of 255."
        );
        assert!(seen(2.0).words().ends_with("on a single value it is all of its 255."));
    }
}
