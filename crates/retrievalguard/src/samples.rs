//! Embeddings of noisy copies of one picture: what sampling returns and what certificates are computed from.
//!
//! A [`Samples`] value is proof that every row is finite and lies in the `F`-ball, so certificates never check
//! again. The stored `f32` rows *are* the encoder's output `h(x + z)` of the theory: a row outside the ball is
//! projected in `f64` and then truncated towards zero component by component, which cannot leave the ball.
//!
//! ```
//! use retrievalguard::{Excess, NormBound, Samples};
//!
//! let samples = Samples::new(vec![1.0, 0.0, 0.6, 0.8], 2, NormBound::UNIT, Excess::Refuse)?;
//! assert_eq!(samples.count(), 2);
//! assert!((samples.mean()[0] - 0.8).abs() < 1e-7);
//! # Ok::<(), retrievalguard::SampleError>(())
//! ```

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::NormBound;

/// Samples are summed in runs of this many, and the runs in order: the grouping is part of the result.
pub(crate) const RUN: usize = 256;

/// What to do with an embedding whose norm exceeds the bound by more than rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Excess {
    /// Answer with an error: the bound that was promised does not hold.
    Refuse,
    /// Project onto the ball: the certified system is then the projected encoder.
    Project,
}

/// What is known of the components of every embedding, besides its norm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Components {
    /// Nothing.
    #[default]
    Any,
    /// None is below zero, because every row was clamped ([`Samples::clamped`]).
    NonNegative,
}

impl Components {
    /// Whether nothing is known of them.
    pub fn is_any(&self) -> bool {
        *self == Self::Any
    }
}

impl fmt::Display for Components {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Components::Any => "unclamped",
            Components::NonNegative => "clamped",
        })
    }
}

/// Why a set of embeddings cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// There is nothing to average.
    #[error("no samples were given, wanted at least one row of {dimension} numbers")]
    Empty {
        /// Length of a row.
        dimension: usize,
    },
    /// Embeddings need at least one component.
    #[error("the embedding dimension is 0, wanted at least 1")]
    ZeroDimension,
    /// The values do not form whole rows.
    #[error("{found} values do not form rows of {dimension} numbers")]
    RaggedRows {
        /// How many values there are.
        found: usize,
        /// Length of a row.
        dimension: usize,
    },
    /// More rows than a sample index can name.
    #[error("{0} samples are more than the 4294967295 that can be counted")]
    TooMany(usize),
    /// More memory than the embeddings of one picture may take.
    #[error(
        "{samples} samples of {dimension} numbers take {bytes} bytes of memory, wanted at most {limit}: {most} samples"
    )]
    Memory {
        /// How many samples were to be drawn.
        samples: u32,
        /// Length of a row.
        dimension: usize,
        /// What they would take.
        bytes: u64,
        /// The most they may take.
        limit: u64,
        /// How many samples that is.
        most: u64,
    },
    /// A component is NaN or infinite.
    #[error("sample {sample} has {value} in component {component}, wanted a finite number")]
    NotFinite {
        /// Row of the sample.
        sample: usize,
        /// Component within the row.
        component: usize,
        /// What was found there.
        value: f32,
    },
    /// A norm exceeds the promised bound by more than rounding.
    #[error("sample {sample} has norm {norm}, wanted at most {bound}")]
    NormExceeded {
        /// Row of the sample.
        sample: usize,
        /// Its Euclidean norm.
        norm: f64,
        /// The promised bound `F`.
        bound: f64,
    },
    /// Two sets of samples that should describe the same encoder differ.
    #[error(
        "samples of dimension {found} and norm bound {found_bound} cannot join those of dimension {wanted} and norm bound {wanted_bound}"
    )]
    Unlike {
        /// Dimension of the samples to be added.
        found: usize,
        /// Their norm bound.
        found_bound: f64,
        /// Dimension of the samples already there.
        wanted: usize,
        /// Their norm bound.
        wanted_bound: f64,
    },
    /// Samples of an encoder and of its clamped version do not belong together.
    #[error("samples with {found} components cannot join those with {wanted} ones")]
    Components {
        /// Components of the samples to be added.
        found: Components,
        /// Components of the samples already there.
        wanted: Components,
    },
}

/// Embeddings `h(x + z_i)` of the noisy copies of one picture, row by row, each within the `F`-ball.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples {
    values: Vec<f32>,
    dimension: usize,
    norm_bound: NormBound,
    components: Components,
}

impl Samples {
    /// Most bytes of memory that the embeddings of one picture may take: 16 GiB, 8 million samples of 512 numbers.
    pub const MEMORY_LIMIT: u64 = 16 << 30;

    /// Refuses more samples than [`MEMORY_LIMIT`](Self::MEMORY_LIMIT) has room for; asked before anything is drawn.
    pub fn check_memory(samples: u32, dimension: usize) -> Result<(), SampleError> {
        let row = (dimension as u64).saturating_mul(size_of::<f32>() as u64);
        let (bytes, limit) = (row.saturating_mul(samples.into()), Self::MEMORY_LIMIT);
        if bytes > limit {
            return Err(SampleError::Memory { samples, dimension, bytes, limit, most: limit / row });
        }
        Ok(())
    }

    /// Checks every row and projects it onto the ball where `excess` and rounding allow.
    pub fn new(
        mut values: Vec<f32>,
        dimension: usize,
        norm_bound: NormBound,
        excess: Excess,
    ) -> Result<Self, SampleError> {
        if dimension == 0 {
            return Err(SampleError::ZeroDimension);
        }
        if values.is_empty() {
            return Err(SampleError::Empty { dimension });
        }
        if !values.len().is_multiple_of(dimension) {
            return Err(SampleError::RaggedRows { found: values.len(), dimension });
        }
        let count = values.len() / dimension;
        if u32::try_from(count).is_err() {
            return Err(SampleError::TooMany(count));
        }
        for (sample, row) in values.chunks_exact_mut(dimension).enumerate() {
            admit(row, norm_bound, excess).map_err(|fault| fault.at(sample, norm_bound))?;
        }
        Ok(Self::from_admitted(values, dimension, norm_bound))
    }

    /// Rows that [`admit`] has already passed.
    pub(crate) fn from_admitted(values: Vec<f32>, dimension: usize, norm_bound: NormBound) -> Self {
        Self { values, dimension, norm_bound, components: Components::Any }
    }

    /// The samples of an encoder with these components: clamped, if they are not negative.
    #[must_use]
    pub fn with(self, components: Components) -> Self {
        match components {
            Components::Any => self,
            Components::NonNegative => self.clamped(),
        }
    }

    /// The samples of the clamped encoder `max(h, 0)`: negative components become zero.
    ///
    /// Scores of non-negative embeddings cannot fall as low, so half-space certificates reach further (theory, section 12.1).
    /// They are then about the clamped encoder, which for pooled ReLU features is the encoder itself. Clamp the pilot and
    /// the certifying sample, and make the gallery with the same encoder ([`Smoother::clamped`](crate::Smoother::clamped)).
    /// Whether to clamp is decided before the certifying sample is drawn: clamping because its rows turned out to have no
    /// negative component would be a choice made on it. Samples that were stored come back as [`Components::Any`]; clamp
    /// them again.
    ///
    /// ```
    /// use retrievalguard::{Components, Excess, NormBound, Samples};
    ///
    /// let samples = Samples::new(vec![0.5, -0.5], 2, NormBound::UNIT, Excess::Refuse)?.clamped();
    /// assert_eq!(samples.row(0), [0.5, 0.0]);
    /// assert_eq!(samples.components(), Components::NonNegative);
    /// # Ok::<(), retrievalguard::SampleError>(())
    /// ```
    #[must_use]
    pub fn clamped(mut self) -> Self {
        clamp(&mut self.values);
        Self { components: Components::NonNegative, ..self }
    }

    /// Number of samples `n`.
    pub fn count(&self) -> u32 {
        u32::try_from(self.values.len() / self.dimension).expect("checked when the samples were made")
    }

    /// Length `k` of an embedding.
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// Norm bound `F` that every row obeys.
    pub fn norm_bound(&self) -> NormBound {
        self.norm_bound
    }

    /// What is known of the components of every row.
    pub fn components(&self) -> Components {
        self.components
    }

    /// All rows, one after the other.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// One row.
    pub fn row(&self, sample: usize) -> &[f32] {
        &self.values[sample * self.dimension..(sample + 1) * self.dimension]
    }

    /// The samples of a range of indices, as a set of their own; `None` if the range is empty or too long.
    pub fn slice(&self, range: Range<u32>) -> Option<Samples> {
        let values =
            self.values.get(range.start as usize * self.dimension..range.end as usize * self.dimension)?;
        (!values.is_empty()).then(|| Self { values: values.to_vec(), ..*self })
    }

    /// Adds the rows of `more` behind those already here.
    pub fn append(&mut self, more: &Samples) -> Result<(), SampleError> {
        if more.dimension != self.dimension || more.norm_bound != self.norm_bound {
            return Err(SampleError::Unlike {
                found: more.dimension,
                found_bound: more.norm_bound.get(),
                wanted: self.dimension,
                wanted_bound: self.norm_bound.get(),
            });
        }
        if more.components != self.components {
            return Err(SampleError::Components { found: more.components, wanted: self.components });
        }
        let total = (self.values.len() + more.values.len()) / self.dimension;
        if u32::try_from(total).is_err() {
            return Err(SampleError::TooMany(total));
        }
        self.values.extend_from_slice(&more.values);
        Ok(())
    }

    /// Mean `ĝ` of the samples, summed in `f64` in a fixed order.
    ///
    /// Paper: Algorithm 1, `ĝ(x) = (1/n) Σ h(x + z_i)`.
    pub fn mean(&self) -> Vec<f64> {
        let mut total = vec![0.0; self.dimension];
        for run in self.values.chunks(RUN * self.dimension) {
            add_into(&mut total, &run_sum(run, self.dimension));
        }
        let count = f64::from(self.count());
        total.iter_mut().for_each(|value| *value /= count);
        total
    }
}

/// Sum of some rows, in order.
pub(crate) fn run_sum(rows: &[f32], dimension: usize) -> Vec<f64> {
    let mut sum = vec![0.0; dimension];
    for row in rows.chunks_exact(dimension) {
        for (total, &value) in sum.iter_mut().zip(row) {
            *total += f64::from(value);
        }
    }
    sum
}

/// `total += part`, component by component.
pub(crate) fn add_into(total: &mut [f64], part: &[f64]) {
    for (total, part) in total.iter_mut().zip(part) {
        *total += part;
    }
}

/// What is wrong with one embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RowFault {
    NotFinite { component: usize, value: f32 },
    NormExceeded { norm: f64 },
}

impl RowFault {
    fn at(self, sample: usize, bound: NormBound) -> SampleError {
        match self {
            RowFault::NotFinite { component, value } => SampleError::NotFinite { sample, component, value },
            RowFault::NormExceeded { norm } => SampleError::NormExceeded { sample, norm, bound: bound.get() },
        }
    }
}

/// Brings one embedding into the `F`-ball or says why it cannot be there.
///
/// The squared norm is a sum of `k` squares of `f32` numbers, each exact in `f64`, so it is off by at most
/// `k·2⁻⁵³` relatively; certificates allow for that in `certificate::domain::Domain`.
pub(crate) fn admit(row: &mut [f32], norm_bound: NormBound, excess: Excess) -> Result<(), RowFault> {
    let mut squared = 0.0;
    for (component, &value) in row.iter().enumerate() {
        if !value.is_finite() {
            return Err(RowFault::NotFinite { component, value });
        }
        squared += f64::from(value) * f64::from(value);
    }
    let bound = norm_bound.get();
    if squared <= bound * bound {
        return Ok(());
    }
    let norm = squared.sqrt();
    // An encoder that normalises in f32 ends within a few units of the last place per component of the sum.
    let rounding = (row.len() + 8) as f64 * f64::from(f32::EPSILON);
    if excess == Excess::Refuse && norm > bound * (1.0 + rounding) {
        return Err(RowFault::NormExceeded { norm });
    }
    let scale = bound / norm;
    for value in row.iter_mut() {
        *value = truncate(f64::from(*value) * scale);
    }
    Ok(())
}

/// Sets negative components to zero, which cannot lengthen a row.
pub(crate) fn clamp(values: &mut [f32]) {
    values.iter_mut().for_each(|value| *value = value.max(0.0));
}

/// The `f32` nearest to `value` that is not farther from zero.
fn truncate(value: f64) -> f32 {
    let rounded = value as f32;
    if f64::from(rounded).abs() > value.abs() { f32::from_bits(rounded.to_bits() - 1) } else { rounded }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit() -> NormBound {
        NormBound::UNIT
    }

    #[test]
    fn more_samples_than_memory_are_refused_by_their_number() {
        Samples::check_memory(8 << 20, 512).unwrap();
        let error = Samples::check_memory(u32::MAX, 64).unwrap_err();
        assert_eq!(
            error.to_string(),
            "4294967295 samples of 64 numbers take 1099511627520 bytes of memory, wanted at most 17179869184: \
             67108864 samples"
        );
        assert!(Samples::check_memory(1, usize::MAX).is_err());
    }

    #[test]
    fn refuses_what_is_not_a_finite_matrix_and_names_the_place() {
        let table: Vec<(Vec<f32>, usize, SampleError)> = vec![
            (vec![], 2, SampleError::Empty { dimension: 2 }),
            (vec![1.0], 0, SampleError::ZeroDimension),
            (vec![0.1, 0.2, 0.3], 2, SampleError::RaggedRows { found: 3, dimension: 2 }),
            (
                vec![0.0, 0.0, 0.0, f32::INFINITY],
                2,
                SampleError::NotFinite { sample: 1, component: 1, value: f32::INFINITY },
            ),
            (vec![3.0, 4.0], 2, SampleError::NormExceeded { sample: 0, norm: 5.0, bound: 1.0 }),
        ];
        for (values, dimension, error) in table {
            let found = Samples::new(values.clone(), dimension, unit(), Excess::Refuse);
            assert_eq!(found, Err(error), "{values:?}");
        }
        let nan = Samples::new(vec![0.0, f32::NAN], 2, unit(), Excess::Project).unwrap_err();
        assert!(matches!(nan, SampleError::NotFinite { sample: 0, component: 1, value } if value.is_nan()));
    }

    #[test]
    fn rounding_above_the_bound_is_projected_without_leave() {
        let side = std::f32::consts::FRAC_1_SQRT_2;
        let above = f32::from_bits(side.to_bits() + 1);
        let samples = Samples::new(vec![above, above], 2, unit(), Excess::Refuse).unwrap();
        let squared: f64 = samples.row(0).iter().map(|&value| f64::from(value).powi(2)).sum();
        assert!(squared <= 1.0, "{squared}");
        assert!(squared > 1.0 - 1e-6, "{squared}");
    }

    #[test]
    fn projection_ends_inside_the_ball_for_every_direction() {
        let mut state = 1_u32;
        for trial in 0..2_000 {
            let mut row: Vec<f32> = (0..17)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 8) as f32 / 1e6 - 8.0
                })
                .collect();
            admit(&mut row, unit(), Excess::Project).unwrap();
            let squared: f64 = row.iter().map(|&value| f64::from(value).powi(2)).sum();
            assert!(squared <= 1.0, "trial {trial}: {squared}");
        }
    }

    #[test]
    fn slices_and_appends_keep_rows_in_order() {
        let samples = Samples::new(vec![0.1, 0.2, 0.3, 0.4], 1, unit(), Excess::Refuse).unwrap();
        let mut front = samples.slice(0..2).unwrap();
        front.append(&samples.slice(2..4).unwrap()).unwrap();
        assert_eq!(front, samples);
        assert_eq!(samples.slice(2..2), None);
        assert_eq!(samples.slice(3..5), None);
        let other = Samples::new(vec![0.1, 0.2], 2, unit(), Excess::Refuse).unwrap();
        assert!(matches!(front.append(&other), Err(SampleError::Unlike { found: 2, wanted: 1, .. })));
    }

    #[test]
    fn clamped_rows_stay_clamped_and_do_not_join_others() {
        let samples = Samples::new(vec![0.6, -0.7, -0.0, 0.3], 2, unit(), Excess::Refuse).unwrap();
        let mut clamped = samples.clone().clamped();
        assert_eq!(clamped.values(), [0.6, 0.0, 0.0, 0.3]);
        let front = clamped.slice(0..1).unwrap();
        assert_eq!(front.components(), Components::NonNegative);
        let error = clamped.append(&samples).unwrap_err();
        assert_eq!(
            error.to_string(),
            "samples with unclamped components cannot join those with clamped ones"
        );
        clamped.append(&front).unwrap();
        assert_eq!(clamped.count(), 3);
    }

    #[test]
    fn rows_without_negative_components_promise_nothing_unless_clamped() {
        let samples = Samples::new(vec![0.6, 0.8], 2, unit(), Excess::Refuse).unwrap();
        assert_eq!(samples.components(), Components::Any);
        assert_eq!(samples.clone().clamped().values(), samples.values());
    }
}
