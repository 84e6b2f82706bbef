//! Values of pytorch-metric-learning, made by `tests/reference/make_margin_loss.py`.

use serde::Deserialize;

#[derive(Deserialize)]
pub(super) struct Reference {
    pub(super) labels: Vec<u32>,
    pub(super) cases: Vec<Case>,
}

#[derive(Deserialize)]
pub(super) struct Case {
    pub(super) dimension: usize,
    directions: Vec<f64>,
    pub(super) probabilities: Vec<Option<Vec<f64>>>,
    #[serde(default)]
    pub(super) triplets: Vec<[usize; 3]>,
    #[serde(default)]
    pub(super) losses: Vec<Losses>,
}

#[derive(Deserialize)]
pub(super) struct Losses {
    pub(super) beta: f64,
    pub(super) triplets: Loss,
    pub(super) active_pairs: Loss,
}

#[derive(Deserialize)]
pub(super) struct Loss {
    pub(super) value: f64,
    pub(super) beta_gradient: f64,
    pub(super) gradient: Vec<f64>,
}

impl Reference {
    pub(super) fn read() -> Self {
        serde_json::from_str(include_str!("../../tests/reference/margin_loss.json")).unwrap()
    }
}

impl Case {
    /// The whole numbers scaled to length 1, with the bits that the script has.
    pub(super) fn embeddings(&self) -> Vec<f32> {
        let scaled = |row: &[f64]| {
            let norm = row.iter().map(|value| value * value).sum::<f64>().sqrt();
            row.iter().map(|value| (value / norm) as f32).collect::<Vec<f32>>()
        };
        self.directions.chunks_exact(self.dimension).flat_map(scaled).collect()
    }
}
