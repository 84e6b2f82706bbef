//! The half-space in which a positive is nearer than a negative (theory, section 2.1).

use super::domain::{Domain, ScoreRange};

/// A positive row and its weight in a mixture; the weights of a mixture are multiples of `1/WEIGHT_UNIT`.
pub(crate) type Share = (usize, u32);

/// Weights are whole multiples of `1/4096`, so that they sum to one exactly and products with `f32` are exact.
pub(crate) const WEIGHT_UNIT: u32 = 4096;

/// `{ g : ⟨g, direction⟩ > offset }`, a set in which some positive is nearer than one negative.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HalfSpace {
    /// Unit vector `u`.
    pub(crate) direction: Vec<f64>,
    /// Threshold `s`, raised by the rounding of everything that led to it.
    pub(crate) offset: f64,
    /// Every score `⟨h, u⟩` of an embedding lies in it.
    pub(crate) scores: ScoreRange,
}

/// What a half-space means for embeddings in their domain.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Separation {
    /// The whole domain lies inside: this negative never wins.
    Always,
    /// No point of the domain can be shown to lie inside: this negative cannot be beaten.
    Never,
    /// It depends on the query.
    Open(HalfSpace),
}

/// The half-space of a mixture of positives against one negative.
///
/// ```text
/// v̄ = Σ λ_a v_a       u = (v̄ − v_b)/‖v̄ − v_b‖
/// s = ⟨v̄ + v_b, u⟩/2 + Σ λ_a ‖v_a − v̄‖² / (2‖v̄ − v_b‖)
/// ⟨g, u⟩ > s   ⇒   Σ λ_a (‖g − v_b‖² − ‖g − v_a‖²) > 0   ⇒   some positive is nearer to g than b
/// ```
///
/// This `s` equals `(Σ λ_a ‖v_a‖² − ‖v_b‖²)/(2‖v̄ − v_b‖)` without its cancellation.
pub(crate) fn separate(positives: &[(&[f32], u32)], negative: &[f32], domain: &Domain) -> Separation {
    let dimension = negative.len();
    let weight = |share: u32| f64::from(share) / f64::from(WEIGHT_UNIT);
    let mut centre = vec![0.0; dimension];
    let mut largest = norm(negative.iter().map(|&value| f64::from(value)));
    for &(vector, share) in positives {
        for (total, &value) in centre.iter_mut().zip(vector) {
            *total += weight(share) * f64::from(value);
        }
        largest = largest.max(norm(vector.iter().map(|&value| f64::from(value))));
    }
    let mut direction: Vec<f64> =
        centre.iter().zip(negative).map(|(&centre, &negative)| centre - f64::from(negative)).collect();
    let gap = norm(direction.iter().copied());
    // Below this the direction is made of rounding.
    if gap <= 1e-9 * largest || gap <= f64::from(f32::MIN_POSITIVE) {
        return Separation::Never;
    }
    direction.iter_mut().for_each(|value| *value /= gap);

    let midpoint: f64 = centre
        .iter()
        .zip(negative)
        .zip(&direction)
        .map(|((&centre, &negative), &direction)| (centre + f64::from(negative)) * direction)
        .sum();
    let spread: f64 = if positives.len() > 1 {
        positives
            .iter()
            .map(|&(vector, share)| {
                let squared: f64 = vector
                    .iter()
                    .zip(&centre)
                    .map(|(&value, &centre)| (f64::from(value) - centre).powi(2))
                    .sum();
                weight(share) * squared
            })
            .sum()
    } else {
        0.0
    };
    let offset = midpoint / 2.0 + spread / (2.0 * gap);

    // A single difference of f32 numbers is rounded once; a mixture is a sum whose error is absolute.
    let mixture_error = if positives.len() > 1 { 2.0 * positives.len() as f64 * largest / gap } else { 0.0 };
    let direction_error = f64::EPSILON * (8.0 + mixture_error);
    let rounding = direction_error * (domain.range + 2.0 * largest)
        + f64::EPSILON * (dimension as f64 + 16.0) * (2.0 * largest + spread / gap);
    let offset = offset + rounding;

    let scores = domain.scores(&direction);
    if offset < scores.lower {
        Separation::Always
    } else if offset >= scores.upper {
        Separation::Never
    } else {
        Separation::Open(HalfSpace { direction, offset, scores })
    }
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(separation: Separation) -> HalfSpace {
        match separation {
            Separation::Open(half_space) => half_space,
            Separation::Always | Separation::Never => panic!("{separation:?}"),
        }
    }

    #[test]
    fn one_positive_gives_the_perpendicular_bisector() {
        let half = open(separate(&[(&[1.0, 0.0], WEIGHT_UNIT)], &[0.0, 1.0], &Domain::ball(1.0)));
        let side = std::f64::consts::FRAC_1_SQRT_2;
        assert!((half.direction[0] - side).abs() < 1e-15 && (half.direction[1] + side).abs() < 1e-15);
        assert!(half.offset >= 0.0 && half.offset < 1e-13, "{}", half.offset);
    }

    #[test]
    fn a_mixture_has_the_offset_of_the_theory() {
        let (first, second, negative) = ([0.8_f32, -0.05], [-0.8_f32, -0.05], [0.0_f32, 0.9]);
        let half = open(separate(&[(&first, 2048), (&second, 2048)], &negative, &Domain::ball(1.0)));
        let square = |vector: [f32; 2]| vector.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>();
        let gap = f64::from(0.9_f32) + f64::from(0.05_f32);
        let expected = (square(first) / 2.0 + square(second) / 2.0 - square(negative)) / (2.0 * gap);
        assert!((half.offset - expected).abs() < 1e-12 && half.offset >= expected, "{}", half.offset);
    }

    #[test]
    fn duplicates_and_far_away_items_are_told_apart_from_open_questions() {
        let positive: (&[f32], u32) = (&[0.5, 0.5], WEIGHT_UNIT);
        assert_eq!(separate(&[positive], &[0.5, 0.5], &Domain::ball(1.0)), Separation::Never);
        // A negative ten times farther out than the ball reaches can never be nearest.
        assert_eq!(separate(&[positive], &[10.0, 10.0], &Domain::ball(1.0)), Separation::Always);
        // A positive far outside the ball never wins against a negative inside it.
        assert_eq!(
            separate(&[(&[10.0, 0.0], WEIGHT_UNIT)], &[0.5, 0.0], &Domain::ball(1.0)),
            Separation::Never
        );
    }

    #[test]
    fn the_half_space_implies_that_a_positive_is_nearer() {
        let mut state = 9_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        let mut inside = 0;
        for trial in 0..2_000 {
            let vectors: Vec<Vec<f32>> = (0..3).map(|_| (0..5).map(|_| next()).collect()).collect();
            let share = (trial * 37) % WEIGHT_UNIT;
            let mixture = [(vectors[0].as_slice(), share), (vectors[1].as_slice(), WEIGHT_UNIT - share)];
            let Separation::Open(half) = separate(&mixture, &vectors[2], &Domain::ball(2.5)) else {
                continue;
            };
            let point: Vec<f64> = (0..5).map(|_| f64::from(next())).collect();
            let score: f64 = point.iter().zip(&half.direction).map(|(left, right)| left * right).sum();
            if score > half.offset {
                inside += 1;
                let distance = |vector: &[f32]| super::super::squared_distance(&point, vector);
                let nearest = distance(&vectors[0]).min(distance(&vectors[1]));
                assert!(nearest < distance(&vectors[2]), "trial {trial}");
            }
        }
        assert!(inside > 300, "{inside}");
    }
}
