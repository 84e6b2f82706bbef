//! The search for a perturbation: gradient descent on the margin, inside a ball of the l2 norm or along the boundary at which
//! the answer changes.
//!
//! The margin of a mean embedding `m` against the nearest wrong item `q` and the nearest right item `c` is
//! `‖m − q‖² − ‖m − c‖²`, which is linear in `m` for a fixed pair. So the gradient averaged over noisy copies is an
//! unbiased estimate of the gradient of that pair's smoothed margin. Fresh noise in every step, remembered by momentum, keeps the
//! perturbation from fitting the noise instead of the encoder.
//!
//! Where gradients are computed, every other restart, the first among them, looks for the *shortest* break: its perturbation
//! shrinks by a few per cent after a step at which the answer was wrong and grows after one at which it was right, while the
//! direction follows the gradient (the decoupling of Rony et al., CVPR 2019). It begins at the size at which the margin, if it were
//! linear, would vanish. The other restarts descend inside the ball of the largest size.

use super::gradients::{Mode, NoisyCopies};
use super::{Against, AttackError, Attacker, Cost, Perturbation, Pixels};
use crate::gallery::{Gallery, Neighbour, Relevance, RowRelevance};
use crate::noise::{ImageIdentity, NoiseStream, Stage};
use crate::{Picture, Smoother};

/// Share of the past directions in the next.
const MOMENTUM: f64 = 0.9;

/// Length of all steps of a restart together, in radii of the ball.
const PATH: f64 = 2.0;

/// Change of the perturbation's size after each step of a search along the boundary, at the beginning and at the end.
const RESIZED: [f64; 2] = [0.3, 0.02];

/// Length of each of its steps as a share of that size, at the beginning and at the end.
const STRIDE: [f64; 2] = [1.0, 0.05];

/// The same against the smoothed retriever: this power of the number of the step. The gradients of noisy copies agree in little, so
/// the direction is an average over all steps, in which late ones weigh a little more.
const SMOOTHED_STRIDE: f64 = -0.75;

/// Noise around a picture from which the gradients of the plain encoder are estimated, where they cannot be computed.
pub(super) const PROBE: f64 = 0.02;

/// Parts of a restart after which its iterate is tried at every size: early iterates point best for small sizes.
const TRIED_AT: [f64; 4] = [0.125, 0.25, 0.5, 1.0];

/// Samples of the attack's stage: copies for gradients from 0 on, random starts, and the copies that candidates are compared on.
const STARTS: u32 = 1 << 30;
const COMPARED: u32 = 1 << 31;

/// The attack on one query.
pub(super) struct Search<'a> {
    attacker: &'a Attacker<'a>,
    gallery: &'a Gallery,
    pub(super) smoother: Smoother<'a>,
    against: Against,
    picture: &'a Picture<'a>,
    relevance: &'a Relevance,
    radius: f64,
    stream: NoiseStream,
    next_sample: u32,
    /// The shortest perturbation at which a step along the boundary saw a wrong answer.
    shortest: Option<(Vec<f64>, f64)>,
    pub(super) cost: Cost,
}

/// What the copies of one step tell.
struct Slope {
    /// Direction in which the margin falls, with the slope of the score `⟨w, h⟩` as its length.
    gradient: Vec<f64>,
    /// The margin at the mean of the copies.
    margin: f64,
    /// Distance between the two items of the margin.
    separation: f64,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        attacker: &'a Attacker<'a>,
        smoother: Smoother<'a>,
        against: Against,
        picture: &'a Picture<'a>,
        relevance: &'a Relevance,
        radius: f64,
    ) -> Result<Self, AttackError> {
        let gallery = match against {
            Against::Smoothed => attacker.gallery,
            Against::Plain => attacker.plain_gallery,
        };
        gallery.check_relevance(0, relevance)?;
        let count =
            |wanted| (0..gallery.len()).filter(|&row| relevance.of_row(gallery, row) == wanted).count();
        let (right, wrong) = (count(RowRelevance::Positive), count(RowRelevance::Negative));
        if right == 0 || wrong == 0 {
            let picture = picture.identity.to_owned();
            return Err(AttackError::OneSided { picture, right, wrong });
        }
        let stream = NoiseStream::new(attacker.seed, &ImageIdentity::new(picture.identity), Stage::Attack);
        let cost = Cost::default();
        Ok(Self {
            attacker,
            gallery,
            smoother,
            against,
            picture,
            relevance,
            radius,
            stream,
            next_sample: 0,
            shortest: None,
            cost,
        })
    }

    /// The best perturbation found for each size.
    pub(super) fn run(&mut self, factors: &[f64]) -> Result<Vec<Perturbation>, AttackError> {
        let steps = self.attacker.effort.steps.max(1);
        let largest = factors.iter().copied().fold(0.0, f64::max) * self.radius;
        let targets = self.targets()?;
        let mut best: Vec<Option<Perturbation>> = vec![None; factors.len()];
        let over = self.attacker.over;
        let is_over = || over.is_some_and(|over| over());
        'restarts: for restart in 0..self.attacker.effort.restarts.max(1) {
            let target = restart.checked_sub(1).and_then(|place| targets.get(place as usize)).copied();
            let computed = self.attacker.gradients.mode() == Mode::WhiteBox;
            let mut shift = self.start(restart, largest);
            let mut descent = if computed && restart % 2 == 0 {
                Descent::Boundary { size: None }
            } else {
                Descent::Ball { momentum: vec![0.0; shift.len()] }
            };
            for step in 0..steps {
                match &mut descent {
                    Descent::Ball { momentum } => {
                        self.step(&mut shift, momentum, target, (step, steps), largest)?;
                    }
                    Descent::Boundary { size } => {
                        self.resize(&mut shift, size, target, (step, steps), largest)?;
                    }
                }
                let done = f64::from(step + 1);
                let over = is_over();
                if over || TRIED_AT.iter().any(|part| (part * f64::from(steps)).ceil() == done) {
                    for (&factor, best) in factors.iter().zip(&mut best) {
                        let found = self.at_norm(&shift, factor * self.radius)?;
                        if best.as_ref().is_none_or(|best| found.margin < best.margin) {
                            *best = Some(found);
                        }
                    }
                }
                if over {
                    break 'restarts;
                }
            }
        }
        Ok(best.into_iter().flatten().collect())
    }

    /// The shortest perturbation at which a search along the boundary saw a wrong answer, and at which there still is one
    /// when it is looked at again: by the encoder itself, or on the copies that candidates are compared on.
    pub(super) fn shortest_break(&mut self) -> Result<Option<Perturbation>, AttackError> {
        let Some((shift, length)) = self.shortest.take() else { return Ok(None) };
        // What a few copies, or rounding, saw broken may hold by a little.
        for longer in [1.0, 1.02, 1.1, 1.3] {
            let found = self.at_norm(&shift, longer * length)?;
            if found.margin <= 0.0 {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// A perturbation shrunk or stretched to another norm.
    pub(super) fn scaled(&mut self, found: &Perturbation, norm: f64) -> Result<Perturbation, AttackError> {
        let shift: Vec<f64> = found
            .pixels
            .iter()
            .zip(self.picture.pixels)
            .map(|(&there, &here)| f64::from(there) - f64::from(here))
            .collect();
        self.at_norm(&shift, norm)
    }

    /// How much nearer the nearest right item is than the nearest wrong one, in squared distances.
    pub(super) fn margin(&mut self, pixels: &[f32]) -> Result<f64, AttackError> {
        let mean = self.embedding(pixels)?;
        let nearest = self.gallery.nearest_positive_and_negative(&mean, |_| self.relevance)?[0];
        let distance =
            |found: Option<Neighbour>| found.map_or(f64::INFINITY, |neighbour| neighbour.squared_distance);
        Ok(distance(nearest.negative) - distance(nearest.positive))
    }

    /// What the system makes of a picture: the mean over the copies for comparisons, or the embedding itself.
    fn embedding(&mut self, pixels: &[f32]) -> Result<Vec<f64>, AttackError> {
        let picture = Picture { identity: self.picture.identity, pixels };
        match self.against {
            Against::Smoothed => {
                let copies = self.copies();
                self.cost.encoder_calls += u64::from(copies);
                Ok(self.smoother.mean(&picture, Stage::Attack, COMPARED..COMPARED + copies)?.mean)
            }
            Against::Plain => {
                self.cost.encoder_calls += 1;
                match self.attacker.embedder.embed_double(pixels) {
                    Some(embedding) => embedding.map_err(|source| AttackError::Embedding {
                        picture: self.picture.identity.to_owned(),
                        source,
                    }),
                    None => Ok(self.smoother.clean(&picture)?.into_iter().map(f64::from).collect()),
                }
            }
        }
    }

    fn copies(&self) -> u32 {
        self.attacker.effort.noise.max(1).next_multiple_of(2)
    }

    /// Where a restart begins: the first at the picture, the others at a random point nearby.
    fn start(&self, restart: u32, largest: f64) -> Vec<f64> {
        let count = self.picture.pixels.len();
        if restart == 0 {
            return vec![0.0; count];
        }
        let mut noise = vec![0.0; count];
        self.stream.fill(STARTS + restart, 0, &mut noise);
        let mut shift: Vec<f64> = noise.into_iter().map(f64::from).collect();
        set_length(&mut shift, largest / 10.0);
        shift
    }

    /// An item of every wrong label, in the order in which the unchanged picture's embedding would reach their bisectors with
    /// the nearest right item.
    fn targets(&mut self) -> Result<Vec<usize>, AttackError> {
        let gallery = self.gallery;
        let wanted = self.attacker.effort.restarts.saturating_sub(1) as usize;
        if wanted == 0 {
            return Ok(Vec::new());
        }
        let mean = self.embedding(self.picture.pixels)?;
        let ranked = gallery.nearest(&mean, gallery.len(), |_| &self.relevance.excluded)?;
        let ranked: Vec<Neighbour> = ranked.into_iter().flatten().collect();
        let is = |neighbour: &&Neighbour, wanted| self.relevance.of_row(gallery, neighbour.row) == wanted;
        let Some(right) = ranked.iter().find(|row| is(row, RowRelevance::Positive)) else {
            return Ok(Vec::new());
        };
        let mut wrong: Vec<(f64, usize)> = ranked
            .iter()
            .filter(|row| is(row, RowRelevance::Negative))
            .map(|wrong| {
                let pairs = gallery.vector(right.row).iter().zip(gallery.vector(wrong.row));
                let apart =
                    pairs.map(|(&one, &other)| (f64::from(one) - f64::from(other)).powi(2)).sum::<f64>();
                (
                    (wrong.squared_distance - right.squared_distance) / apart.sqrt().max(f64::MIN_POSITIVE),
                    wrong.row,
                )
            })
            .collect();
        wrong.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        let mut labels = Vec::new();
        let mut targets = Vec::new();
        for (_, row) in wrong {
            if !labels.contains(&gallery.label(row)) {
                labels.push(gallery.label(row));
                targets.push(row);
            }
            if targets.len() == wanted {
                break;
            }
        }
        Ok(targets)
    }

    fn step(
        &mut self,
        shift: &mut [f64],
        momentum: &mut [f64],
        target: Option<usize>,
        (step, steps): (u32, u32),
        largest: f64,
    ) -> Result<(), AttackError> {
        let centre = self.moved(shift);
        let Slope { mut gradient, .. } = self.gradient(&centre, target)?;
        set_length(&mut gradient, 1.0);
        for (momentum, gradient) in momentum.iter_mut().zip(&gradient) {
            *momentum = MOMENTUM * *momentum + gradient;
        }
        let length = norm(momentum);
        if length > 0.0 {
            // From the largest step down to none along half a cosine, whose mean is one half.
            let progress = (f64::from(step) + 0.5) / f64::from(steps);
            let size = PATH * largest / f64::from(steps) * (1.0 + (std::f64::consts::PI * progress).cos());
            for (shift, momentum) in shift.iter_mut().zip(momentum.iter()) {
                *shift += size / length * momentum;
            }
        }
        if norm(shift) > largest {
            set_length(shift, largest);
        }
        Ok(())
    }

    /// One step along the boundary: towards a smaller margin, at a size that depends on whether the answer was right.
    fn resize(
        &mut self,
        shift: &mut [f64],
        size: &mut Option<f64>,
        target: Option<usize>,
        (step, steps): (u32, u32),
        largest: f64,
    ) -> Result<(), AttackError> {
        let centre = self.moved(shift);
        let Slope { mut gradient, margin, separation } = self.gradient(&centre, target)?;
        let progress = (f64::from(step) + 0.5) / f64::from(steps);
        let falling = (1.0 + (std::f64::consts::PI * progress).cos()) / 2.0;
        let between = |[first, last]: [f64; 2]| last + (first - last) * falling;
        let here = norm(shift);
        let next = match *size {
            // Where the margin would vanish if it were linear; the slope of the margin is 2‖q − c‖ times that of the score.
            None => {
                let guess = here + margin.max(0.0) / (2.0 * separation * norm(&gradient));
                if guess.is_finite() && guess > 0.0 { guess } else { largest }
            }
            Some(size) if margin > 0.0 => size * (1.0 + between(RESIZED)),
            Some(size) => size * (1.0 - between(RESIZED)),
        };
        if margin <= 0.0 && here > 0.0 && self.shortest.as_ref().is_none_or(|&(_, length)| here < length) {
            self.shortest = Some((shift.to_vec(), here));
        }
        let next = next.min(largest);
        *size = Some(next);
        let stride = match self.against {
            Against::Plain => between(STRIDE),
            Against::Smoothed => f64::from(step + 1).powf(SMOOTHED_STRIDE),
        };
        set_length(&mut gradient, stride * next);
        shift.iter_mut().zip(&gradient).for_each(|(shift, gradient)| *shift += gradient);
        set_length(shift, next);
        Ok(())
    }

    /// The direction in which the margin falls fastest, as far as the copies of this step tell.
    fn gradient(&mut self, centre: &[f32], target: Option<usize>) -> Result<Slope, AttackError> {
        let mode = self.attacker.gradients.mode();
        let sigma = match (self.against, mode) {
            (Against::Smoothed, Mode::WhiteBox | Mode::BlackBox) => self.attacker.sigma.get(),
            (Against::Plain, Mode::BlackBox) => PROBE,
            (Against::Plain, Mode::WhiteBox) => 0.0,
        };
        let copies = if sigma > 0.0 { self.cloud(centre, sigma) } else { centre.to_vec() };
        let count = (copies.len() / centre.len()) as u64;
        match mode {
            Mode::WhiteBox => self.cost.gradient_passes += count,
            Mode::BlackBox => self.cost.encoder_calls += count,
        }
        let (gallery, relevance) = (self.gallery, self.relevance);
        let mut fault = None;
        let (mut margin, mut separation) = (0.0, 0.0);
        let mut towards = |embeddings: &[f32]| match towards(gallery, relevance, embeddings, target) {
            Ok(aim) => {
                (margin, separation) = (aim.margin, aim.separation);
                aim.direction
            }
            Err(error) => {
                fault = Some(error);
                vec![0.0; gallery.dimension()]
            }
        };
        let noisy = NoisyCopies { centre, copies: &copies, sigma };
        let gradient = self.attacker.gradients.gradient(&noisy, &mut towards);
        if let Some(fault) = fault {
            return Err(fault);
        }
        let gradient = gradient
            .map_err(|source| AttackError::Gradients { picture: self.picture.identity.to_owned(), source })?;
        Ok(Slope { gradient, margin, separation })
    }

    /// Fresh copies in pairs `x + σz`, `x − σz`.
    fn cloud(&mut self, centre: &[f32], sigma: f64) -> Vec<f32> {
        let pairs = self.copies() / 2;
        let mut noise = vec![0.0; centre.len()];
        let mut copies = Vec::with_capacity(2 * pairs as usize * centre.len());
        for _ in 0..pairs {
            self.stream.fill(self.next_sample, 0, &mut noise);
            self.next_sample = (self.next_sample + 1) % STARTS;
            for sign in [sigma as f32, -(sigma as f32)] {
                copies.extend(centre.iter().zip(&noise).map(|(pixel, noise)| pixel + sign * noise));
            }
        }
        copies
    }

    fn at_norm(&mut self, shift: &[f64], length: f64) -> Result<Perturbation, AttackError> {
        let mut shift = shift.to_vec();
        set_length(&mut shift, length);
        let pixels = self.moved(&shift);
        let here = self.picture.pixels;
        let differences: Vec<f64> =
            pixels.iter().zip(here).map(|(&there, &here)| f64::from(there) - f64::from(here)).collect();
        let margin = self.margin(&pixels)?;
        Ok(Perturbation { norm: norm(&differences), pixels, margin })
    }

    /// The picture with a perturbation added, as the encoder gets it.
    fn moved(&self, shift: &[f64]) -> Vec<f32> {
        let sum = self.picture.pixels.iter().zip(shift).map(|(&pixel, shift)| f64::from(pixel) + shift);
        match self.attacker.effort.pixels {
            Pixels::Free => sum.map(|value| value as f32).collect(),
            Pixels::Clipped => sum.map(|value| value.clamp(0.0, 1.0) as f32).collect(),
        }
    }
}

/// How a restart moves.
enum Descent {
    /// With momentum, inside the ball of the largest size.
    Ball { momentum: Vec<f64> },
    /// Along the boundary at which the answer changes: the perturbation's size, once there is one.
    Boundary { size: Option<f64> },
}

/// Where a step wants the embedding to go.
struct Aim {
    /// The unit vector from the nearest right item to the target, or to the nearest wrong item.
    direction: Vec<f32>,
    /// Distance between the two.
    separation: f64,
    /// How much nearer the nearest right item is than the nearest wrong one, in squared distances.
    margin: f64,
}

fn towards(
    gallery: &Gallery,
    relevance: &Relevance,
    embeddings: &[f32],
    target: Option<usize>,
) -> Result<Aim, AttackError> {
    let dimension = gallery.dimension();
    let mut mean = vec![0.0; dimension];
    for row in embeddings.chunks_exact(dimension) {
        mean.iter_mut().zip(row).for_each(|(mean, &value)| *mean += f64::from(value));
    }
    let count = (embeddings.len() / dimension).max(1) as f64;
    mean.iter_mut().for_each(|value| *value /= count);
    let nearest = gallery.nearest_positive_and_negative(&mean, |_| relevance)?[0];
    let rows = (nearest.positive, target.or(nearest.negative.map(|neighbour| neighbour.row)));
    let distance =
        |found: Option<Neighbour>| found.map_or(f64::INFINITY, |neighbour| neighbour.squared_distance);
    let margin = distance(nearest.negative) - distance(nearest.positive);
    let (Some(right), Some(wrong)) = rows else {
        return Ok(Aim { direction: vec![0.0; dimension], separation: 0.0, margin });
    };
    let mut direction: Vec<f64> = gallery
        .vector(wrong)
        .iter()
        .zip(gallery.vector(right.row))
        .map(|(&wrong, &right)| f64::from(wrong) - f64::from(right))
        .collect();
    let separation = norm(&direction);
    set_length(&mut direction, 1.0);
    Ok(Aim { direction: direction.into_iter().map(|value| value as f32).collect(), separation, margin })
}

fn norm(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}

/// Scales a vector to a length; zero stays zero, and what is not finite is no direction.
fn set_length(values: &mut [f64], length: f64) {
    let norm = norm(values);
    if !norm.is_finite() {
        values.fill(0.0);
    } else if norm > 0.0 {
        values.iter_mut().for_each(|value| *value *= length / norm);
    }
}
