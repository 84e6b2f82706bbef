//! The search for a perturbation: projected gradient descent on the margin, in a ball of the l2 norm.
//!
//! The margin of a mean embedding `m` against the nearest wrong item `q` and the nearest right item `c` is
//! `‖m − q‖² − ‖m − c‖²`, which is linear in `m` for a fixed pair. So the gradient averaged over noisy copies is an
//! unbiased estimate of the gradient of that pair's smoothed margin. Fresh noise in every step, remembered by momentum, keeps the
//! perturbation from fitting the noise instead of the encoder.

use super::gradients::{Mode, NoisyCopies};
use super::{Against, AttackError, Attacker, Cost, Perturbation, Pixels};
use crate::gallery::{Gallery, Neighbour, Relevance, RowRelevance};
use crate::noise::{ImageIdentity, NoiseStream, Stage};
use crate::{Picture, Smoother};

/// Share of the past directions in the next.
const MOMENTUM: f64 = 0.9;

/// Length of all steps of a restart together, in radii of the ball.
const PATH: f64 = 2.0;

/// Noise around a picture from which the gradients of the plain encoder are estimated, where they cannot be computed.
const PROBE: f64 = 0.02;

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
    pub(super) cost: Cost,
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
            let mut shift = self.start(restart, largest);
            let mut momentum = vec![0.0; shift.len()];
            for step in 0..steps {
                self.step(&mut shift, &mut momentum, target, (step, steps), largest)?;
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
                Ok(self.smoother.clean(&picture)?.into_iter().map(f64::from).collect())
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

    /// The nearest item of every wrong label, the nearest first, seen from the unchanged picture.
    fn targets(&mut self) -> Result<Vec<usize>, AttackError> {
        let gallery = self.gallery;
        let wanted = self.attacker.effort.restarts.saturating_sub(1) as usize;
        if wanted == 0 {
            return Ok(Vec::new());
        }
        let mean = self.embedding(self.picture.pixels)?;
        let mut labels = Vec::new();
        let mut targets = Vec::new();
        let ranked = gallery.nearest(&mean, gallery.len(), |_| &self.relevance.excluded)?;
        for neighbour in ranked.into_iter().flatten() {
            if self.relevance.of_row(gallery, neighbour.row) == RowRelevance::Negative
                && !labels.contains(&gallery.label(neighbour.row))
            {
                labels.push(gallery.label(neighbour.row));
                targets.push(neighbour.row);
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
        let mut gradient = self.gradient(&centre, target)?;
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

    /// The direction in which the margin falls fastest, as far as the copies of this step tell.
    fn gradient(&mut self, centre: &[f32], target: Option<usize>) -> Result<Vec<f64>, AttackError> {
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
        let mut towards = |embeddings: &[f32]| {
            towards(gallery, relevance, embeddings, target).unwrap_or_else(|error| {
                fault = Some(error);
                vec![0.0; gallery.dimension()]
            })
        };
        let noisy = NoisyCopies { centre, copies: &copies, sigma };
        let gradient = self.attacker.gradients.gradient(&noisy, &mut towards);
        if let Some(fault) = fault {
            return Err(fault);
        }
        gradient
            .map_err(|source| AttackError::Gradients { picture: self.picture.identity.to_owned(), source })
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

/// The unit vector from the nearest right item to the target, or to the nearest wrong item.
fn towards(
    gallery: &Gallery,
    relevance: &Relevance,
    embeddings: &[f32],
    target: Option<usize>,
) -> Result<Vec<f32>, AttackError> {
    let dimension = gallery.dimension();
    let mut mean = vec![0.0; dimension];
    for row in embeddings.chunks_exact(dimension) {
        mean.iter_mut().zip(row).for_each(|(mean, &value)| *mean += f64::from(value));
    }
    let count = (embeddings.len() / dimension).max(1) as f64;
    mean.iter_mut().for_each(|value| *value /= count);
    let nearest = gallery.nearest_positive_and_negative(&mean, |_| relevance)?[0];
    let rows = (nearest.positive, target.or(nearest.negative.map(|neighbour| neighbour.row)));
    let (Some(right), Some(wrong)) = rows else { return Ok(vec![0.0; dimension]) };
    let mut direction: Vec<f64> = gallery
        .vector(wrong)
        .iter()
        .zip(gallery.vector(right.row))
        .map(|(&wrong, &right)| f64::from(wrong) - f64::from(right))
        .collect();
    set_length(&mut direction, 1.0);
    Ok(direction.into_iter().map(|value| value as f32).collect())
}

fn norm(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}

/// Scales a vector to a length; zero stays zero.
fn set_length(values: &mut [f64], length: f64) {
    let norm = norm(values);
    if norm > 0.0 && norm.is_finite() {
        values.iter_mut().for_each(|value| *value *= length / norm);
    }
}
