//! Distances from bisectors in `f64`, never above the exact ones (theory, section 14.4).

/// Twice what `dimension` terms can lose to rounding, as a share: `2(k+16)U` with `U = 2⁻⁵³`.
pub(super) fn slop(dimension: usize) -> f64 {
    (dimension as f64 + 16.0) * f64::EPSILON
}

/// `‖v‖`.
pub(super) fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

/// Most sweeps over the weights of a mixture; poor weights cost radius, never validity.
const SWEEPS: usize = 2_000;

/// An embedding that faces one wrong item, and what right items say against it.
pub(super) struct Facing<'q> {
    embedding: &'q [f64],
    negative: &'q [f32],
    /// `‖h − v_b‖`, which no point where the wrong item comes first can be farther away than.
    distance: f64,
    bisectors: Vec<Bisector>,
}

/// The bisector between a right item and the wrong one.
struct Bisector {
    row: usize,
    /// Lower bound on `M_ab`, less what the search of the moved embedding can lose.
    distance: f64,
    /// `‖v_a − v_b‖`, above zero.
    gap: f64,
}

impl<'q> Facing<'q> {
    pub(super) fn new(embedding: &'q [f64], negative: &'q [f32]) -> Self {
        let differences = embedding.iter().zip(negative).map(|(&left, &right)| left - f64::from(right));
        Self { embedding, negative, distance: norm(differences), bisectors: Vec::new() }
    }

    /// How far the embedding may move before the wrong item can be at least as near as this right one; zero if they are
    /// the same vector.
    ///
    /// ```text
    /// t = h − (v_a + v_b)/2,   w = v_a − v_b,   M_ab = ⟨t, w⟩/‖w‖
    /// ```
    ///
    /// without the cancellation of a difference of squares. The computed quotient is off by less than
    /// `2(k+16)U (‖t‖ + ‖m‖)`, `m` the midpoint; where the moved embedding is searched, two rounded sums of squares are
    /// told apart if it is at least `(k+2)U ((‖t‖ + d_b)²/‖w‖ + ‖w‖/4)` from the bisector.
    pub(super) fn against(&mut self, row: usize, positive: &[f32]) -> f64 {
        const LANES: usize = 8;
        let (mut products, mut squares) = ([0.0_f64; LANES], [0.0_f64; LANES]);
        let (mut gaps, mut midpoints) = ([0.0_f64; LANES], [0.0_f64; LANES]);
        let mut add = |lane: usize, value: f64, right: f32, wrong: f32| {
            let (right, wrong) = (f64::from(right), f64::from(wrong));
            let (midpoint, gap) = ((right + wrong) / 2.0, right - wrong);
            let offset = value - midpoint;
            products[lane] += offset * gap;
            squares[lane] += offset * offset;
            gaps[lane] += gap * gap;
            midpoints[lane] += midpoint * midpoint;
        };
        let (values, values_rest) = self.embedding.as_chunks::<LANES>();
        let (rights, rights_rest) = positive.as_chunks::<LANES>();
        let (wrongs, wrongs_rest) = self.negative.as_chunks::<LANES>();
        for ((value, right), wrong) in values.iter().zip(rights).zip(wrongs) {
            for lane in 0..LANES {
                add(lane, value[lane], right[lane], wrong[lane]);
            }
        }
        for (lane, ((&value, &right), &wrong)) in
            values_rest.iter().zip(rights_rest).zip(wrongs_rest).enumerate()
        {
            add(lane, value, right, wrong);
        }
        let total = |lanes: [f64; LANES]| lanes.into_iter().sum::<f64>();
        let gap = total(gaps).sqrt();
        if gap == 0.0 {
            return 0.0;
        }
        let offset = total(squares).sqrt();
        let reach = offset + self.distance;
        let lost = offset + total(midpoints).sqrt() + reach * reach / gap + gap;
        let distance = total(products) / gap - slop(self.embedding.len()) * lost - 1e-250;
        if !distance.is_finite() {
            // Numbers this large say nothing.
            return f64::NEG_INFINITY;
        }
        self.bisectors.push(Bisector { row, distance, gap });
        distance
    }

    /// The same for right items together, the best `most` of those that were asked, and how many took part.
    ///
    /// ```text
    /// max over λ ≥ 0 of ⟨λ, m⟩ / ‖Σ λ_a u_a‖,    m_a = M_ab,    u_a = (v_a − v_b)/‖v_a − v_b‖
    /// ```
    ///
    /// Any `λ` gives a valid distance, so the solver proves nothing; its result is evaluated with allowances.
    pub(super) fn together<'v>(&mut self, most: usize, vector: impl Fn(usize) -> &'v [f32]) -> (f64, usize) {
        self.bisectors
            .sort_by(|left, right| right.distance.total_cmp(&left.distance).then(left.row.cmp(&right.row)));
        self.bisectors.truncate(most);
        let directions: Vec<Vec<f64>> = self
            .bisectors
            .iter()
            .map(|bisector| {
                let unit =
                    |(&right, &wrong): (&f32, &f32)| (f64::from(right) - f64::from(wrong)) / bisector.gap;
                vector(bisector.row).iter().zip(self.negative).map(unit).collect()
            })
            .collect();
        let distances: Vec<f64> = self.bisectors.iter().map(|bisector| bisector.distance).collect();
        let weights = weights(&directions, &distances);
        let taking_part = weights.iter().filter(|&&weight| weight > 0.0).count();
        (distance_of(&weights, &directions, &distances), taking_part)
    }
}

/// Weights that about maximise `⟨λ, m⟩ − ‖Σ λ_a u_a‖²/2` over `λ ≥ 0`, one coordinate after the other.
fn weights(directions: &[Vec<f64>], distances: &[f64]) -> Vec<f64> {
    let count = directions.len();
    let dot = |left: &[f64], right: &[f64]| left.iter().zip(right).map(|(a, b)| a * b).sum::<f64>();
    let gram: Vec<Vec<f64>> =
        directions.iter().map(|left| directions.iter().map(|right| dot(left, right)).collect()).collect();
    let mut weights = vec![0.0; count];
    for _ in 0..SWEEPS {
        let mut moved = 0.0_f64;
        for own in 0..count {
            if gram[own][own] <= 0.0 {
                continue;
            }
            let slope = distances[own] - dot(&gram[own], &weights);
            let weight = f64::max(weights[own] + slope / gram[own][own], 0.0);
            moved = moved.max((weight - weights[own]).abs());
            weights[own] = weight;
        }
        if moved <= 1e-13 * weights.iter().sum::<f64>() {
            break;
        }
    }
    weights
}

/// `⟨λ, m⟩/‖Σ λ_a u_a‖`, rounded down; minus infinity if the weights say nothing.
fn distance_of(weights: &[f64], directions: &[Vec<f64>], distances: &[f64]) -> f64 {
    let total: f64 = weights.iter().sum();
    let dimension = directions.first().map_or(0, Vec::len);
    let allowance = slop(dimension + weights.len());
    let above: f64 = weights.iter().zip(distances).map(|(weight, distance)| weight * distance).sum();
    let sizes: f64 = weights.iter().zip(distances).map(|(weight, distance)| weight * distance.abs()).sum();
    let above = above - allowance * sizes;
    let mut sum = vec![0.0; dimension];
    for (weight, direction) in weights.iter().zip(directions) {
        for (sum, value) in sum.iter_mut().zip(direction) {
            *sum += weight * value;
        }
    }
    let below = norm(sum.into_iter()) * (1.0 + allowance) + allowance * total;
    let distance = above / below * (1.0 - 4.0 * f64::EPSILON);
    if above > 0.0 && distance.is_finite() { distance } else { f64::NEG_INFINITY }
}
