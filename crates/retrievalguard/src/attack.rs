//! Attacks that try to break certificates, and judges that do not take the attack's word for it.
//!
//! An [`Attacker`] looks for a small change of one certified picture after which a wrong item comes first: gradient descent
//! in the l2 norm on the smoothed margin, in turn along the boundary at which the answer changes and in the ball of the largest
//! of its [`FACTORS`] times the certified radius; iterates are scaled to the other sizes. What it finds is judged on noise that it never saw, by the
//! certificates' own machinery with the roles exchanged (theory, section 10): *broken* and *held* are both proved, and
//! whatever is neither is *undecided*. The plain encoder, without noise, is attacked alike for contrast.
//!
//! The result is a bracket: certified radius ≤ true radius ≤ smallest proved break. [`AttackSummary`] says of
//! a whole run whether breaks inside the radii are more than the certificates' own failure probability explains.

mod gradients;
mod judge;
mod search;
mod summary;

use serde::{Deserialize, Serialize};

pub use gradients::{BlackBox, InputGradients, Mode, NoisyCopies};
pub use judge::{Judge, Judging};
pub use summary::{AttackFault, AttackSummary, Rates, caution};

use crate::certificate::{CertificateError, Certifier, Retriever};
use crate::gallery::{Gallery, Relevance, SearchError};
use crate::{Embedder, EmbedderFailure, Excess, Picture, Seed, Sigma, Smoother, SmoothingError};

use search::Search;

/// Sizes at which a query is attacked, in multiples of its certified radius; those below 1 must not succeed.
pub const FACTORS: [f64; 5] = [0.5, 0.9, 0.99, 2.0, 5.0];

/// Halvings of the interval that holds the smallest break of the plain encoder; they need no samples.
const PLAIN_HALVINGS: u32 = 12;

/// Shares of a size that are tried until rounding leaves the norm below it; nothing at all is the last resort.
const SHORTENED: [f64; 5] = [1.0 - 1e-6, 1.0 - 1e-5, 1.0 - 1e-3, 0.5, 0.0];

/// Why an attack could not be carried out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttackError {
    /// Noisy copies could not be embedded.
    #[error(transparent)]
    Smoothing(#[from] SmoothingError),
    /// The gallery could not be searched.
    #[error(transparent)]
    Search(#[from] SearchError),
    /// The judge's question has no answer.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The picture could not be embedded in double precision.
    #[error("picture `{picture}` could not be embedded")]
    Embedding {
        /// Identity of the picture.
        picture: String,
        /// What the encoder said.
        source: EmbedderFailure,
    },
    /// Gradients could not be computed.
    #[error("the gradients of the encoder at picture `{picture}` could not be computed")]
    Gradients {
        /// Identity of the picture.
        picture: String,
        /// What the encoder said.
        source: EmbedderFailure,
    },
    /// A retrieval can be broken only if there is a right and a wrong answer.
    #[error(
        "query `{picture}` sees {right} right and {wrong} wrong items, wanted at least one of each to attack it"
    )]
    OneSided {
        /// Identity of the query.
        picture: String,
        /// Right items.
        right: usize,
        /// Wrong items.
        wrong: usize,
    },
    /// A perturbation has a finite size above zero.
    #[error("the radius of query `{picture}`, to attack around, is {found}, wanted a finite number above 0")]
    Radius {
        /// Identity of the query.
        picture: String,
        /// The radius.
        found: f64,
    },
}

/// Whether a perturbed picture must stay a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pixels {
    /// Any values: the certificate covers them, so the attack may use them.
    Free,
    /// Values in `[0, 1]` only.
    Clipped,
}

/// Which retriever is attacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Against {
    /// The one that searches with the mean embedding of noisy copies.
    Smoothed,
    /// The one that searches with the embedding of the picture itself.
    Plain,
}

/// A perturbed picture, as a search has found it; nothing is proved about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Perturbation {
    /// The picture with the perturbation added.
    pub pixels: Vec<f32>,
    /// l2 norm of the perturbation as it is in `pixels`, rounding and clipping included.
    pub norm: f64,
    /// How much nearer the nearest right item is than the nearest wrong one, in squared distances: that of the plain
    /// retriever, or an estimate from few noisy copies for the smoothed one. Above zero, the retrieval holds.
    pub margin: f64,
}

/// How hard an attack tries.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Effort {
    /// Gradient steps of each restart.
    pub steps: u32,
    /// Starts: the first at the picture against whichever wrong item is nearest, the others at random points against the
    /// nearest item of the first, second, … wrong label.
    pub restarts: u32,
    /// Noisy copies that a gradient is averaged over, in pairs `x + z`, `x − z`; an odd number is raised.
    pub noise: u32,
    /// Whether pictures must stay pictures.
    pub pixels: Pixels,
}

/// Whether the retrieval held under one perturbation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PointOutcome {
    /// Proved: a right item is still the nearest.
    Held,
    /// Proved: a wrong item is nearer than every right one.
    Broken,
    /// Neither could be proved with the samples allowed.
    Undecided,
}

/// One perturbed picture, judged.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Size asked for, in multiples of the certified radius.
    pub factor: f64,
    /// The perturbation's l2 norm as it was applied, rounding and clipping included.
    pub norm: f64,
    /// Whether the retrieval held.
    pub outcome: PointOutcome,
}

/// What an attack has cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// Pictures embedded.
    pub encoder_calls: u64,
    /// Pictures embedded and differentiated.
    pub gradient_passes: u64,
}

impl Cost {
    /// Adds another cost.
    pub fn add(&mut self, other: Cost) {
        self.encoder_calls += other.encoder_calls;
        self.gradient_passes += other.gradient_passes;
    }
}

/// What attacking one certified query has shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attacked {
    /// The certified radius.
    pub radius: f64,
    /// The smoothed retriever at each of the [`FACTORS`]; nothing where there is no noise.
    pub smoothed: Vec<Point>,
    /// Norm of the smallest perturbation that is proved to break it, refinements included.
    pub smallest_break: Option<f64>,
    /// Whether the plain encoder retrieves the unchanged picture rightly; otherwise it is not attacked.
    pub plain_right: bool,
    /// The plain encoder at each of the [`FACTORS`]; seen, not inferred, so never undecided.
    pub plain: Vec<Point>,
    /// Norm of the smallest perturbation found that breaks it.
    pub plain_smallest_break: Option<f64>,
    /// What it has cost, judging included.
    pub cost: Cost,
}

impl Attacked {
    /// What was found against the retriever that was certified: the plain one where there is no noise.
    pub fn certified(&self) -> (&[Point], Option<f64>) {
        if self.smoothed.is_empty() && self.smallest_break.is_none() {
            (&self.plain, self.plain_smallest_break)
        } else {
            (&self.smoothed, self.smallest_break)
        }
    }

    /// Whether a perturbation shorter than the certified radius is proved, or seen, to break the retrieval.
    pub fn broken_inside(&self) -> bool {
        let (points, smallest) = self.certified();
        let broken = points.iter().filter(|point| point.outcome == PointOutcome::Broken);
        broken.map(|point| point.norm).chain(smallest).any(|norm| norm < self.radius)
    }

    /// Whether the plain encoder was broken at any size.
    pub fn plain_broken(&self) -> bool {
        self.plain.iter().any(|point| point.outcome == PointOutcome::Broken)
    }
}

/// Everything that an attack needs but the query.
#[derive(Clone, Copy)]
pub struct Attacker<'a> {
    embedder: &'a dyn Embedder,
    gradients: &'a dyn InputGradients,
    gallery: &'a Gallery,
    plain_gallery: &'a Gallery,
    sigma: Sigma,
    seed: Seed,
    excess: Excess,
    effort: Effort,
    /// None where nothing has to be judged.
    judging: Option<Judging>,
    retriever: Retriever,
    over: Option<&'a (dyn Fn() -> bool + Sync)>,
}

impl<'a> Attacker<'a> {
    /// Attacks queries of `embedder` against `gallery`; gradients may come from another form of the same encoder.
    pub fn new(
        (embedder, gradients): (&'a dyn Embedder, &'a dyn InputGradients),
        gallery: &'a Gallery,
        sigma: Sigma,
        seed: Seed,
        effort: Effort,
        judging: Judging,
    ) -> Self {
        let plain_gallery = gallery;
        let excess = Excess::Refuse;
        let (retriever, over) = (Retriever::Mean, None);
        Self {
            embedder,
            gradients,
            gallery,
            plain_gallery,
            sigma,
            seed,
            excess,
            effort,
            judging: Some(judging),
            retriever,
            over,
        }
    }

    /// Attacks queries of an encoder that answers without noise: what its embeddings do is seen, so nothing is judged.
    pub fn without_noise(
        (embedder, gradients): (&'a dyn Embedder, &'a dyn InputGradients),
        gallery: &'a Gallery,
        seed: Seed,
        effort: Effort,
    ) -> Self {
        Self {
            embedder,
            gradients,
            gallery,
            plain_gallery: gallery,
            // That of probes, where gradients have to be estimated.
            sigma: Sigma::new(search::PROBE).expect("the noise of probes is a noise level"),
            seed,
            excess: Excess::Refuse,
            effort,
            judging: None,
            retriever: Retriever::Plain,
            over: None,
        }
    }

    /// Judges another retriever than the mean. The search goes on to be steered by the mean, which every retriever follows
    /// more or less; what counts is what the judge proves.
    #[must_use]
    pub fn retriever(self, retriever: Retriever) -> Self {
        Self { retriever, ..self }
    }

    /// Gives searches an end: once `over` says so, no further step is taken and the best of those before counts. One step is
    /// always taken.
    #[must_use]
    pub fn until(self, over: &'a (dyn Fn() -> bool + Sync)) -> Self {
        Self { over: Some(over), ..self }
    }

    /// Sets what happens to embeddings above the norm bound.
    #[must_use]
    pub fn excess(self, excess: Excess) -> Self {
        Self { excess, ..self }
    }

    /// Gives the plain encoder a gallery of its own, with the same items in the same rows; otherwise it searches in the stored
    /// means, to which it may be a stranger.
    ///
    /// # Panics
    ///
    /// If the items are not the same.
    #[must_use]
    pub fn plain_gallery(self, gallery: &'a Gallery) -> Self {
        let rows = 0..self.gallery.len();
        let same = gallery.len() == self.gallery.len()
            && rows.into_iter().all(|row| {
                let name =
                    |gallery: &'a Gallery| (gallery.identity(row), gallery.label_name(gallery.label(row)));
                name(gallery) == name(self.gallery)
            });
        assert!(same, "the plain encoder's gallery has other items than the one that is attacked");
        Self { plain_gallery: gallery, ..self }
    }

    /// Attacks one query whose retrieval was certified up to `radius`.
    pub fn query(
        &self,
        picture: &Picture<'_>,
        relevance: &Relevance,
        radius: f64,
    ) -> Result<Attacked, AttackError> {
        if !(radius.is_finite() && radius > 0.0) {
            return Err(AttackError::Radius { picture: picture.identity.to_owned(), found: radius });
        }
        let mut cost = Cost::default();
        let (smoothed, smallest_break) = match self.judging {
            Some(judging) => self.attack_smoothed(picture, relevance, radius, judging, &mut cost)?,
            None => (Vec::new(), None),
        };
        let mut plain = self.search(Against::Plain, picture, relevance, radius)?;
        let plain_right = plain.margin(picture.pixels)? > 0.0;
        let (points, plain_smallest_break) =
            if plain_right { plain_points(&mut plain)? } else { (Vec::new(), None) };
        cost.add(plain.cost);
        Ok(Attacked {
            radius,
            smoothed,
            smallest_break,
            plain_right,
            plain: points,
            plain_smallest_break,
            cost,
        })
    }

    /// The shortest perturbation up to `size` that was seen to break the retrieval, or the one of norm `size` with the smallest
    /// margin if none was; none is longer, however pixels are rounded.
    ///
    /// It is the search of [`Attacker::query`] for a single size, without judging. A failure of the encoder ends it, so an
    /// [`Embedder`] can also cancel it.
    pub fn perturb(
        &self,
        against: Against,
        picture: &Picture<'_>,
        relevance: &Relevance,
        size: f64,
    ) -> Result<Perturbation, AttackError> {
        if !(size.is_finite() && size > 0.0) {
            return Err(AttackError::Radius { picture: picture.identity.to_owned(), found: size });
        }
        let mut search = self.search(against, picture, relevance, size)?;
        search.smoother.check_picture(picture)?;
        let mut found = search.run(&[1.0])?.swap_remove(0);
        if let Some(shortest) = search.shortest_break()?
            && shortest.norm < size
        {
            return Ok(shortest);
        }
        for shorter in SHORTENED {
            if found.norm <= size {
                break;
            }
            found = search.scaled(&found, size * shorter)?;
        }
        Ok(found)
    }

    /// The shortest perturbation in the direction of `perturbation`, and not longer, at which the plain retriever is seen
    /// broken; `None` if it is not broken there either. A picture that is retrieved wrongly as it is has a break of norm 0.
    ///
    /// By halving, so it is the shortest if the retrieval, once broken, stays so up to the whole perturbation.
    pub fn smallest_break(
        &self,
        picture: &Picture<'_>,
        relevance: &Relevance,
        perturbation: &Perturbation,
    ) -> Result<Option<Perturbation>, AttackError> {
        let mut search = self.search(Against::Plain, picture, relevance, perturbation.norm)?;
        let margin = search.margin(picture.pixels)?;
        if margin <= 0.0 {
            return Ok(Some(Perturbation { pixels: picture.pixels.to_vec(), norm: 0.0, margin }));
        }
        let margin = search.margin(&perturbation.pixels)?;
        if margin > 0.0 {
            return Ok(None);
        }
        halve(&mut search, 0.0, Perturbation { margin, ..perturbation.clone() }).map(Some)
    }

    fn attack_smoothed(
        &self,
        picture: &Picture<'_>,
        relevance: &Relevance,
        radius: f64,
        judging: Judging,
        cost: &mut Cost,
    ) -> Result<(Vec<Point>, Option<f64>), AttackError> {
        let mut search = self.search(Against::Smoothed, picture, relevance, radius)?;
        let found = search.run(&FACTORS)?;
        let certifier = Certifier::new(self.gallery, self.sigma, judging.alpha);
        let smoother = search.smoother;
        let mut judge =
            Judge::new(certifier, smoother, picture.identity, relevance, judging, FACTORS.len() as u32)
                .retriever(self.retriever);
        let mut points = Vec::with_capacity(FACTORS.len());
        for (&factor, found) in FACTORS.iter().zip(&found) {
            let outcome = judge.judge(&found.pixels)?;
            points.push(Point { factor, norm: found.norm, outcome });
        }
        let mut smallest = None;
        if let Some(first) = points.iter().position(|point| point.outcome == PointOutcome::Broken) {
            let mut high = found[first].clone();
            // Without a size that was not broken, the interval begins at half of the smallest.
            let mut low = match first.checked_sub(1) {
                Some(below) => found[below].clone(),
                None => search.scaled(&high, high.norm / 2.0)?,
            };
            for _ in 0..judging.refinements {
                let norm = (low.norm * high.norm).sqrt();
                let one = search.scaled(&high, norm)?;
                let other = search.scaled(&low, norm)?;
                let middle = if other.margin < one.margin { other } else { one };
                match judge.judge(&middle.pixels)? {
                    PointOutcome::Broken => high = middle,
                    PointOutcome::Held | PointOutcome::Undecided => low = middle,
                }
            }
            // Clipping may leave a larger factor with a smaller norm.
            let broken = points.iter().filter(|point| point.outcome == PointOutcome::Broken);
            smallest = Some(broken.map(|point| point.norm).fold(high.norm, f64::min));
        }
        cost.add(search.cost);
        cost.add(judge.cost());
        Ok((points, smallest))
    }

    fn search<'s>(
        &'s self,
        against: Against,
        picture: &'s Picture<'s>,
        relevance: &'s Relevance,
        radius: f64,
    ) -> Result<Search<'s>, AttackError> {
        let smoother = Smoother::new(self.embedder, self.sigma, self.seed).excess(self.excess);
        Search::new(self, smoother, against, picture, relevance, radius)
    }
}

/// The plain encoder at every size, and the smallest break along the perturbations found.
fn plain_points(search: &mut Search<'_>) -> Result<(Vec<Point>, Option<f64>), AttackError> {
    let mut found = search.run(&FACTORS)?;
    if let Some(shortest) = search.shortest_break()? {
        // A break that is shorter than a size is one at that size, too.
        let longer = found.iter_mut().filter(|found| found.norm > shortest.norm);
        longer.for_each(|found| found.clone_from(&shortest));
    }
    let outcome =
        |found: &Perturbation| if found.margin > 0.0 { PointOutcome::Held } else { PointOutcome::Broken };
    let points: Vec<Point> = FACTORS
        .iter()
        .zip(&found)
        .map(|(&factor, found)| Point { factor, norm: found.norm, outcome: outcome(found) })
        .collect();
    let Some(first) = found.iter().position(|found| found.margin <= 0.0) else { return Ok((points, None)) };
    let low = first.checked_sub(1).map_or(0.0, |below| found[below].norm);
    let high = halve(search, low, found[first].clone())?;
    Ok((points, Some(high.norm)))
}

/// The shortest break of the plain retriever between a norm that does not break it and a perturbation that does.
fn halve(search: &mut Search<'_>, mut low: f64, mut high: Perturbation) -> Result<Perturbation, AttackError> {
    for _ in 0..PLAIN_HALVINGS {
        let middle = search.scaled(&high, f64::midpoint(low, high.norm))?;
        if middle.margin > 0.0 {
            low = middle.norm;
        } else {
            high = middle;
        }
    }
    Ok(high)
}

#[cfg(test)]
mod tests;
