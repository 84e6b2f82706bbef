//! What happens to the numbers before and after the network.

use crate::model_config::{ChannelOrder, Layout, ModelConfig};

/// From pixels in `[0, 1]` to the numbers that a model was trained on.
#[derive(Clone, Debug)]
pub(super) struct Preparation {
    /// Number of values of one picture.
    pub(super) pixels: usize,
    /// Axes of one picture in the model's layout.
    pub(super) axes: [usize; 3],
    layout: Layout,
    /// For each of the model's channels: the picture's channel, what is subtracted, what divides.
    channels: Vec<(usize, f32, f32)>,
    /// Whether nothing changes at all.
    pub(super) plain: bool,
}

impl Preparation {
    pub(super) fn new(config: &ModelConfig) -> Self {
        let input = &config.input;
        let axes = match input.layout {
            Layout::Nchw => [input.channels, input.height, input.width],
            Layout::Nhwc => [input.height, input.width, input.channels],
        };
        let channels: Vec<_> = (0..input.channels)
            .map(|channel| {
                let source = match input.channel_order {
                    ChannelOrder::Rgb => channel,
                    ChannelOrder::Bgr => input.channels - 1 - channel,
                };
                (source, input.mean[channel] as f32, input.std[channel] as f32)
            })
            .collect();
        let plain = (input.layout == Layout::Nchw || input.channels == 1)
            && channels.iter().enumerate().all(|(index, &channel)| channel == (index, 0.0, 1.0));
        Self { pixels: axes.iter().product(), axes, layout: input.layout, channels, plain }
    }

    /// `(pixel − mean) / std` in `f32`, as torchvision computes it.
    pub(super) fn apply(&self, pictures: &[f32], prepared: &mut [f32]) {
        let area = self.pixels / self.channels.len();
        for (picture, prepared) in
            pictures.chunks_exact(self.pixels).zip(prepared.chunks_exact_mut(self.pixels))
        {
            for (channel, &(source, mean, std)) in self.channels.iter().enumerate() {
                let plane = &picture[source * area..][..area];
                match self.layout {
                    Layout::Nchw => {
                        for (pixel, value) in plane.iter().zip(&mut prepared[channel * area..][..area]) {
                            *value = (pixel - mean) / std;
                        }
                    }
                    Layout::Nhwc => {
                        let values = prepared.iter_mut().skip(channel).step_by(self.channels.len());
                        for (pixel, value) in plane.iter().zip(values) {
                            *value = (pixel - mean) / std;
                        }
                    }
                }
            }
        }
    }

    /// Adds the gradient with respect to the pixels of one picture, given that with respect to the model's numbers.
    pub(super) fn pull_back(&self, prepared: &[f32], pixels: &mut [f32]) {
        let area = self.pixels / self.channels.len();
        for (channel, &(source, _, std)) in self.channels.iter().enumerate() {
            let plane = &mut pixels[source * area..][..area];
            match self.layout {
                Layout::Nchw => {
                    for (pixel, value) in plane.iter_mut().zip(&prepared[channel * area..][..area]) {
                        *pixel += value / std;
                    }
                }
                Layout::Nhwc => {
                    let values = prepared.iter().skip(channel).step_by(self.channels.len());
                    plane.iter_mut().zip(values).for_each(|(pixel, value)| *pixel += value / std);
                }
            }
        }
    }
}

/// An embedding without direction.
pub(super) struct ZeroNorm;

/// Scales a row to length 1; a row that is not finite stays as it is, so that whoever checks it sees why.
pub(super) fn l2_normalise(row: &mut [f32]) -> Result<(), ZeroNorm> {
    let norm = row.iter().map(|&value| f64::from(value) * f64::from(value)).sum::<f64>().sqrt();
    if norm == 0.0 {
        return Err(ZeroNorm);
    }
    if norm.is_finite() {
        for value in row {
            *value = (f64::from(*value) / norm) as f32;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(layout: Layout, channel_order: ChannelOrder) -> ModelConfig {
        let text = r#"
            [input]
            channels = 3
            height = 1
            width = 2
            mean = [0.5, 0.25, 0.0]
            std = [0.5, 0.25, 2.0]
            [resize]
            rule = "none"
            [crop]
            rule = "none"
            [output]
            normalise = true
        "#;
        let mut config = ModelConfig::from_toml(text).unwrap();
        config.input.layout = layout;
        config.input.channel_order = channel_order;
        config
    }

    #[test]
    fn mean_and_std_belong_to_the_models_channels_in_every_order_and_layout() {
        // Red 0.5 and 1, green 0.25 and 0.5, blue 0 and 4.
        let picture = [0.5, 1.0, 0.25, 0.5, 0.0, 4.0];
        let cases = [
            (Layout::Nchw, ChannelOrder::Rgb, [0.0, 1.0, 0.0, 1.0, 0.0, 2.0], [3, 1, 2]),
            (Layout::Nchw, ChannelOrder::Bgr, [-1.0, 7.0, 0.0, 1.0, 0.25, 0.5], [3, 1, 2]),
            (Layout::Nhwc, ChannelOrder::Rgb, [0.0, 0.0, 0.0, 1.0, 1.0, 2.0], [1, 2, 3]),
            (Layout::Nhwc, ChannelOrder::Bgr, [-1.0, 0.0, 0.25, 7.0, 1.0, 0.5], [1, 2, 3]),
        ];
        for (layout, order, wanted, axes) in cases {
            let preparation = Preparation::new(&config(layout, order));
            let mut prepared = [0.0; 12];
            preparation.apply(&[picture, picture].concat(), &mut prepared);
            assert_eq!(prepared[..6], wanted, "{layout:?} {order:?}");
            assert_eq!(prepared[6..], wanted, "{layout:?} {order:?}");
            assert_eq!(preparation.axes, axes);
            // The transpose of the linear part: ⟨u, A x⟩ = ⟨Aᵀ u, x⟩.
            let towards = [0.3, -1.0, 0.7, 2.0, -0.4, 0.9];
            let (mut none, mut pulled) = ([0.0; 6], [0.0; 6]);
            preparation.apply(&[0.0; 6], &mut none);
            preparation.pull_back(&towards, &mut pulled);
            let there: f32 =
                towards.iter().zip(prepared).zip(none).map(|((u, x), none)| u * (x - none)).sum();
            let back: f32 = pulled.iter().zip(picture).map(|(u, x)| u * x).sum();
            assert!((there - back).abs() < 1e-5, "{layout:?} {order:?}: {there} and {back}");
            assert!(!preparation.plain);
        }
    }

    #[test]
    fn a_config_that_changes_nothing_is_plain() {
        let mut plain = config(Layout::Nchw, ChannelOrder::Rgb);
        plain.input.mean = vec![0.0; 3];
        plain.input.std = vec![1.0; 3];
        assert!(Preparation::new(&plain).plain);
        plain.input.channel_order = ChannelOrder::Bgr;
        assert!(!Preparation::new(&plain).plain);
        plain.input.channel_order = ChannelOrder::Rgb;
        plain.input.layout = Layout::Nhwc;
        assert!(!Preparation::new(&plain).plain);
    }

    #[test]
    fn normalising_leaves_faults_visible() {
        let mut row = [3.0, 4.0];
        assert!(l2_normalise(&mut row).is_ok());
        assert_eq!(row, [0.6, 0.8]);
        assert!(l2_normalise(&mut [0.0, 0.0]).is_err());
        let mut row = [f32::NAN, 1.0];
        assert!(l2_normalise(&mut row).is_ok());
        assert!(row[0].is_nan());
        let mut row = [f32::MAX, f32::MAX];
        assert!(l2_normalise(&mut row).is_ok());
        assert!((row[0] - std::f32::consts::FRAC_1_SQRT_2).abs() < 1e-7);
    }
}
