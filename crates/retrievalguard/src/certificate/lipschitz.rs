//! `lipschitz` and `lipschitz-margin`: one embedding, no noise, no `α` (theory, section 14).
//!
//! An encoder with `‖h(x) − h(y)‖ ≤ L‖x − y‖` cannot carry a picture across the bisector of a right and a wrong item
//! faster than `L` allows. What follows is arithmetic without chance: it holds always. The constant is someone's proof,
//! not ours; [`ConstantOrigin`] says whose.
//!
//! ```
//! use retrievalguard::certificate::{LipschitzBound, LipschitzCertifier, LipschitzName, Verdict};
//! use retrievalguard::gallery::{Gallery, Metric, Positives, Relevance};
//! use retrievalguard::LipschitzConstant;
//!
//! let names = |word: &str| vec![format!("{word} 0"), format!("{word} 1")];
//! let gallery = Gallery::new(vec![1.0, 0.0, -1.0, 0.0], 2, names("item"), &names("label"), Metric::Euclidean)?;
//! let bound = LipschitzBound::stated(LipschitzConstant::new(1.0)?);
//! let relevance = Relevance::new(Positives::Item(0), vec![]);
//! let certifier = LipschitzCertifier::new(&gallery, bound);
//! let outcome = certifier.certify(LipschitzName::Lipschitz, &[0.5, 3.0], &relevance)?;
//!
//! // The bisector is the second axis, and 0.5 away; the margin of the distances says 0.16.
//! let Verdict::Certified { radius } = outcome.verdict() else { panic!("{}", outcome.explain) };
//! assert!(radius.get() <= 0.5 && radius.get() > 0.5 - 1e-12);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bisector;
#[cfg(test)]
mod tests;

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use self::bisector::{Facing, norm, slop};
use super::{CertificateError, Explanation, Radius, Similarity, Verdict};
use crate::gallery::{Gallery, Nearby, Neighbour, Positives, Relevance};
use crate::storage::stored::GalleryRef;
use crate::{ForwardError, LipschitzConstant};

/// Queries whose scores are kept at a time.
const TOGETHER: usize = 16;

/// From this many wrong items that their distance alone does not clear, a second pass over the gallery is cheaper.
const WIDE: usize = 2_000;

/// Names of the certificates that need no noise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LipschitzName {
    /// Distances to the bisectors of right and wrong items.
    Lipschitz,
    /// Half the margin of the distances: the remark that ends the paper's section 3.1.
    LipschitzMargin,
}

impl LipschitzName {
    /// Both, in the order in which tables show them.
    pub const ALL: [LipschitzName; 2] = [LipschitzName::Lipschitz, LipschitzName::LipschitzMargin];

    /// The name as users write it.
    pub fn as_str(self) -> &'static str {
        match self {
            LipschitzName::Lipschitz => "lipschitz",
            LipschitzName::LipschitzMargin => "lipschitz-margin",
        }
    }
}

impl fmt::Display for LipschitzName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

impl FromStr for LipschitzName {
    type Err = CertificateError;

    fn from_str(text: &str) -> Result<Self, CertificateError> {
        LipschitzName::ALL
            .into_iter()
            .find(|name| name.as_str() == text)
            .ok_or_else(|| CertificateError::UnknownLipschitzName(text.to_owned()))
    }
}

/// Who says that the constant is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConstantOrigin {
    /// It was computed from the encoder's weights.
    Verified,
    /// The caller says so.
    Stated,
}

impl fmt::Display for ConstantOrigin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            ConstantOrigin::Verified => "verified from the encoder's weights",
            ConstantOrigin::Stated => "the caller's word",
        })
    }
}

/// What is known about an encoder: how fast it moves, and how far what it computes is from the function that does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LipschitzBound {
    /// `L`.
    pub constant: LipschitzConstant,
    /// `e`, at every picture inside the certified ball and at its centre.
    pub forward_error: ForwardError,
    /// Whose proof it is.
    pub origin: ConstantOrigin,
}

impl LipschitzBound {
    /// The caller's word for an encoder that computes exactly.
    pub fn stated(constant: LipschitzConstant) -> Self {
        Self { constant, forward_error: ForwardError::NONE, origin: ConstantOrigin::Stated }
    }

    /// A certified radius for embeddings that may move by less than `reach`, rounded down.
    ///
    /// ```text
    /// r = (reach − 2e)/L
    /// ```
    ///
    /// `‖ĥ(x+δ) − ĥ(x)‖ ≤ L‖δ‖ + 2e`, which stays below `reach` for `‖δ‖ < r`.
    fn radius(&self, reach: f64) -> f64 {
        let error = 2.0 * self.forward_error.get();
        let left = (reach - error) - 4.0 * f64::EPSILON * (reach.abs() + error);
        left / self.constant.get() * (1.0 - 4.0 * f64::EPSILON)
    }
}

/// How many right items may stand together against one wrong item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mixtures {
    /// One: the distance to the nearer side of the best bisector.
    #[default]
    One,
    /// At most this many: the exact distance to where the wrong item comes before all of them.
    UpTo(NonZeroUsize),
}

/// On which side of a threshold a distance must stay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distance {
    /// `‖h − v‖` stays below the threshold: still the same picture.
    Below(f64),
    /// `‖h − v‖` stays above the threshold: still a stranger.
    Above(f64),
}

/// A question about one item, without search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// About `⟨h, v⟩`.
    Similarity(Similarity),
    /// About `‖h − v‖`.
    Distance(Distance),
}

/// Verdicts that hold always, and every number that led to the first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LipschitzOutcome {
    /// Which certificate this is.
    pub name: LipschitzName,
    /// Verdict for Recall@1, Recall@2, …; all of them hold at once.
    pub verdicts: Vec<Verdict>,
    /// The chain of numbers behind the verdict for Recall@1.
    pub explain: Explanation,
}

impl LipschitzOutcome {
    /// The verdict for Recall@1.
    pub fn verdict(&self) -> Verdict {
        self.verdicts.first().copied().unwrap_or(Verdict::Abstained)
    }
}

/// A gallery and a bound on the encoder: everything but the query.
#[derive(Clone, Copy, Debug)]
pub struct LipschitzCertifier<'a> {
    gallery: GalleryRef<'a>,
    bound: LipschitzBound,
    mixtures: Mixtures,
    top_k: NonZeroUsize,
}

impl<'a> LipschitzCertifier<'a> {
    /// A certifier for embeddings by an encoder with this bound.
    ///
    /// The gallery is in memory, or in [shards](crate::storage::shards) on disk.
    pub fn new(gallery: impl Into<GalleryRef<'a>>, bound: LipschitzBound) -> Self {
        Self { gallery: gallery.into(), bound, mixtures: Mixtures::One, top_k: NonZeroUsize::MIN }
    }

    /// How many right items may stand together; one by default, which costs a percent or two of the radius.
    #[must_use]
    pub fn mixtures(self, mixtures: Mixtures) -> Self {
        Self { mixtures, ..self }
    }

    /// Radii for Recall@1 to Recall@k.
    #[must_use]
    pub fn top_k(self, top_k: NonZeroUsize) -> Self {
        Self { top_k, ..self }
    }

    /// How many wrong items are asked about.
    pub(crate) fn depth(&self) -> usize {
        self.top_k.get()
    }

    /// The same question of a piece with so many wrong items.
    pub(crate) fn no_deeper_than(&self, negatives: usize) -> Self {
        Self { top_k: NonZeroUsize::new(negatives).map_or(self.top_k, |most| self.top_k.min(most)), ..*self }
    }

    /// The gallery that is searched.
    pub fn gallery(&self) -> GalleryRef<'a> {
        self.gallery
    }

    /// What is known about the encoder.
    pub fn bound(&self) -> LipschitzBound {
        self.bound
    }

    /// The stored item nearest to an embedding.
    pub fn retrieve(
        &self,
        embedding: &[f64],
        excluded: &[usize],
    ) -> Result<Option<Neighbour>, CertificateError> {
        self.check_dimension(embedding)?;
        Ok(self.gallery.nearest(embedding, 1, |_| excluded)?.into_iter().flatten().next())
    }

    /// Computes one certificate of one embedding.
    pub fn certify(
        &self,
        name: LipschitzName,
        embedding: &[f64],
        relevance: &Relevance,
    ) -> Result<LipschitzOutcome, CertificateError> {
        self.check_dimension(embedding)?;
        let mut outcome = None;
        self.certify_each(
            &[name],
            embedding,
            |_| relevance,
            |_, outcomes| {
                outcome = outcomes.into_iter().next();
            },
        )?;
        outcome.ok_or(CertificateError::NoNegatives)
    }

    /// Computes certificates of many embeddings, laid end to end; the gallery is read once for a batch of them.
    ///
    /// `relevance` is asked with the position of a query, and `visit` is shown its outcomes in the order of `names`.
    pub fn certify_each<'relevance>(
        &self,
        names: &[LipschitzName],
        embeddings: &[f64],
        relevance: impl Fn(usize) -> &'relevance Relevance,
        mut visit: impl FnMut(usize, Vec<LipschitzOutcome>),
    ) -> Result<(), CertificateError> {
        self.gallery.extent().check_with_relevance(embeddings, &relevance)?;
        let dimension = self.gallery.dimension();
        let gallery = match self.gallery {
            GalleryRef::Memory(gallery) => gallery,
            GalleryRef::Shards(gallery) => {
                for (place, embedding) in embeddings.chunks_exact(dimension).enumerate() {
                    let findings = self.find_in_shards(gallery, embedding, relevance(place))?;
                    let answer = |&name: &LipschitzName| findings.answer(self, name, dimension);
                    visit(place, names.iter().map(answer).collect());
                }
                return Ok(());
            }
        };
        for (group, first) in embeddings.chunks(TOGETHER * dimension).zip((0..).step_by(TOGETHER)) {
            let nearby = Nearby::new(gallery, group, |place| relevance(first + place).excluded.as_slice());
            let questions = group
                .chunks_exact(dimension)
                .enumerate()
                .map(|(place, embedding)| {
                    Question::new((self, gallery), &nearby, place, embedding, relevance(first + place))
                })
                .collect::<Result<Vec<_>, _>>()?;
            let wide = names.contains(&LipschitzName::Lipschitz) && questions.iter().any(Question::is_wide);
            let anchors: Vec<f64> = questions.iter().flat_map(Question::anchor).collect();
            let anchors = wide.then(|| Nearby::new(gallery, &anchors, |_| &[]));
            for (place, question) in questions.into_iter().enumerate() {
                let findings = question.find(anchors.as_ref());
                let answer = |&name: &LipschitzName| findings.answer(self, name, dimension);
                visit(first + place, names.iter().map(answer).collect());
            }
        }
        Ok(())
    }

    /// What is known of one embedding before a piece of a gallery, of which fewer wrong items may be asked for than there are.
    pub(crate) fn find_in_memory(
        &self,
        gallery: &Gallery,
        embedding: &[f64],
        relevance: &Relevance,
    ) -> Result<Findings, CertificateError> {
        let nearby = Nearby::new(gallery, embedding, |_| relevance.excluded.as_slice());
        let question = Question::new((self, gallery), &nearby, 0, embedding, relevance)?;
        let anchor: Vec<f64> = question.anchor().collect();
        let anchors = question.is_wide().then(|| Nearby::new(gallery, &anchor, |_| &[]));
        Ok(question.find(anchors.as_ref()))
    }

    /// Radius inside which a similarity or a distance to one row stays on its side of a threshold.
    ///
    /// [`Verdict::Misretrieved`] means that it is on the other side already. Several statements that hold always hold
    /// together, so "the same item stays first, and within this distance" has the smaller of the two radii.
    ///
    /// ```
    /// use retrievalguard::certificate::{Distance, LipschitzBound, LipschitzCertifier, Threshold};
    /// use retrievalguard::gallery::{Gallery, Metric};
    /// use retrievalguard::LipschitzConstant;
    ///
    /// let gallery = Gallery::new(vec![3.0, 4.0], 2, vec!["a".into()], &["a"], Metric::Euclidean)?;
    /// let certifier = LipschitzCertifier::new(&gallery, LipschitzBound::stated(LipschitzConstant::new(2.0)?));
    /// let outcome = certifier.threshold(&[0.0, 0.0], 0, Threshold::Distance(Distance::Below(6.0)))?;
    /// let radius = outcome.verdict().radius().ok_or("no radius")?.get();
    /// assert!(radius <= 0.5 && radius > 0.5 - 1e-12);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn threshold(
        &self,
        embedding: &[f64],
        row: usize,
        threshold: Threshold,
    ) -> Result<LipschitzOutcome, CertificateError> {
        self.check_dimension(embedding)?;
        let relevance = Relevance::new(Positives::Item(row), vec![]);
        self.gallery.extent().check_with_relevance(embedding, |_| &relevance)?;
        let vector = &self.gallery.vector(row)?[..];
        let allowance = slop(vector.len());
        let (quantity, found, limit, holds, reach) = match threshold {
            Threshold::Similarity(side) => {
                let (sign, limit) = match side {
                    Similarity::Above(limit) => (1.0, limit),
                    Similarity::Below(limit) => (-1.0, limit),
                };
                if !limit.is_finite() {
                    return Err(CertificateError::SimilarityThreshold(limit));
                }
                let length = norm(vector.iter().map(|&value| f64::from(value)));
                if length == 0.0 {
                    return Err(CertificateError::ZeroVector);
                }
                let found: f64 =
                    embedding.iter().zip(vector).map(|(&left, &right)| left * f64::from(right)).sum();
                let reach = sign * (found - limit) / length
                    - 4.0 * allowance * (norm(embedding.iter().copied()) + limit.abs() / length);
                ("similarity", found, limit, sign * found > sign * limit, reach)
            }
            Threshold::Distance(side) => {
                let (sign, limit) = match side {
                    Distance::Above(limit) => (1.0, limit),
                    Distance::Below(limit) => (-1.0, limit),
                };
                if !(limit.is_finite() && limit >= 0.0) {
                    return Err(CertificateError::DistanceThreshold(limit));
                }
                let found = super::squared_distance(embedding, vector).sqrt();
                let reach = sign * (found - limit) - 4.0 * allowance * (found + limit);
                ("distance", found, limit, sign * found > sign * limit, reach)
            }
        };
        let mut explain = self.explain_bound();
        explain.add(quantity, found, "theory 14.3").add("threshold", limit, "theory 14.3").add(
            "distance from it",
            reach,
            "theory 14.3",
        );
        let verdict = self.verdict(holds, reach);
        explain.conclude(verdict, "theory 14.1");
        Ok(LipschitzOutcome { name: LipschitzName::Lipschitz, verdicts: vec![verdict], explain })
    }

    fn check_dimension(&self, embedding: &[f64]) -> Result<(), CertificateError> {
        let (found, wanted) = (embedding.len(), self.gallery.dimension());
        if found == wanted { Ok(()) } else { Err(CertificateError::DimensionMismatch { found, wanted }) }
    }

    fn verdict(&self, retrieved: bool, reach: f64) -> Verdict {
        let radius = self.bound.radius(reach);
        Verdict::from_radius(retrieved, radius.is_finite().then_some(Radius::Finite(radius)))
    }

    fn explain_bound(&self) -> Explanation {
        let mut explain = Explanation::default();
        explain
            .add("Lipschitz constant L", self.bound.constant.get(), "theory 14.1")
            .add("L is", self.bound.origin.to_string().as_str(), "theory 14.1")
            .add("forward error e", self.bound.forward_error.get(), "theory 14.1");
        explain
    }
}

/// One embedding before the gallery: the distances that every certificate needs.
struct Question<'q> {
    certifier: &'q LipschitzCertifier<'q>,
    gallery: &'q Gallery,
    nearby: &'q Nearby<'q>,
    place: usize,
    embedding: &'q [f64],
    relevance: &'q Relevance,
    /// All right items, the nearest first.
    positives: Vec<Neighbour>,
    /// The `top_k` nearest wrong items.
    negatives: Vec<Neighbour>,
    /// How far the embedding may move before each of those can come first, ascending.
    first: Vec<Reach>,
    /// `‖h‖`.
    length: f64,
}

/// How far an embedding may move before a wrong item can come first, and which right item stands against it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    pub(crate) distance: f64,
    pub(crate) negative: usize,
    pub(crate) positive: usize,
    pub(crate) together: usize,
}

/// What is known of one embedding before the gallery, or before a piece of it.
#[derive(Clone, Debug)]
pub(crate) struct Findings {
    /// The nearest right item.
    pub(crate) nearest: Option<Neighbour>,
    /// The `top_k` nearest wrong items.
    pub(crate) negatives: Vec<Neighbour>,
    /// How far the embedding may move before the first, second, … wrong item can come before every right one.
    pub(crate) reaches: Vec<Reach>,
    /// Wrong items that their distance alone does not clear.
    pub(crate) looked_at: usize,
}

impl Findings {
    /// Takes up what another piece of the gallery has, of which the `top_k` smallest are kept.
    pub(crate) fn merge(mut self, other: Self, top_k: usize) -> Self {
        self.nearest = self.nearest.or(other.nearest);
        self.negatives.extend(other.negatives);
        self.negatives.sort_by(|one, other| {
            one.squared_distance.total_cmp(&other.squared_distance).then(one.row.cmp(&other.row))
        });
        self.negatives.truncate(top_k);
        for reach in other.reaches {
            insert(&mut self.reaches, reach, top_k);
        }
        self.looked_at += other.looked_at;
        self
    }

    /// What a certificate says of it.
    fn answer(
        &self,
        certifier: &LipschitzCertifier<'_>,
        name: LipschitzName,
        dimension: usize,
    ) -> LipschitzOutcome {
        let mut explain = certifier.explain_bound();
        let Some(nearest) = &self.nearest else {
            let verdicts = vec![Verdict::Misretrieved; self.negatives.len()];
            return LipschitzOutcome { name, verdicts, explain };
        };
        explain
            .add("nearest right item", nearest.row, "theory 14.2")
            .add("its distance", nearest.squared_distance.sqrt(), "theory 14.2")
            .add("nearest wrong item", self.negatives[0].row, "theory 14.2")
            .add("its distance, wrong", self.negatives[0].squared_distance.sqrt(), "theory 14.2");
        let reaches = match name {
            LipschitzName::Lipschitz => self.bisectors(&mut explain),
            LipschitzName::LipschitzMargin => self.half_margins(nearest, dimension, &mut explain),
        };
        let verdicts: Vec<Verdict> = reaches
            .iter()
            .zip(&self.negatives)
            .map(|(&reach, negative)| {
                certifier.verdict(nearest.squared_distance < negative.squared_distance, reach)
            })
            .collect();
        explain.conclude(verdicts[0], "theory 14.1");
        LipschitzOutcome { name, verdicts, explain }
    }

    /// How far the embedding may move before the k-th nearest wrong item can come before the nearest right one.
    ///
    /// ```text
    /// (d_b − d_a)/2
    /// ```
    ///
    /// Paper: Section 3.1, last lines, where it is divided by `L`. The allowance covers the rounding of both
    /// distances, here and where the moved embedding is searched.
    fn half_margins(&self, nearest: &Neighbour, dimension: usize, explain: &mut Explanation) -> Vec<f64> {
        let allowance = slop(dimension);
        let near = nearest.squared_distance.sqrt();
        let halves: Vec<f64> = self
            .negatives
            .iter()
            .map(|negative| {
                let far = negative.squared_distance.sqrt();
                (far - near) / 2.0 - 2.0 * allowance * (far + near)
            })
            .collect();
        explain.add("half of the margin", halves[0], "Section 3.1");
        halves
    }

    /// The distances from the bisectors that decide.
    fn bisectors(&self, explain: &mut Explanation) -> Vec<f64> {
        explain.add("wrong items looked at", self.looked_at, "theory 14.2");
        if let Some(first) = self.reaches.first() {
            explain.add("deciding wrong item", first.negative, "theory 14.2").add(
                "right item against it",
                first.positive,
                "theory 14.2",
            );
            if first.together > 1 {
                explain.add("right items together", first.together, "theory 14.2, mixtures");
            }
            explain.add("distance from the bisector", first.distance, "theory 14.1");
        }
        self.reaches.iter().map(|reach| reach.distance).collect()
    }
}

impl<'q> Question<'q> {
    fn new(
        (certifier, gallery): (&'q LipschitzCertifier<'q>, &'q Gallery),
        nearby: &'q Nearby<'q>,
        place: usize,
        embedding: &'q [f64],
        relevance: &'q Relevance,
    ) -> Result<Self, CertificateError> {
        let mut question = Self {
            certifier,
            gallery,
            nearby,
            place,
            embedding,
            relevance,
            positives: Vec::new(),
            negatives: Vec::new(),
            first: Vec::new(),
            length: norm(embedding.iter().copied()),
        };
        let top_k = certifier.top_k.get();
        question.positives = nearby.nearest(place, usize::MAX, |row| question.is_positive(row));
        question.negatives = nearby.nearest(place, top_k, |row| !question.is_positive(row));
        match question.negatives.len() {
            0 => Err(CertificateError::NoNegatives),
            negatives if negatives < top_k => Err(CertificateError::TopKTooLarge { top_k, negatives }),
            _ => {
                if !question.positives.is_empty() {
                    for negative in &question.negatives {
                        let reach = question.reach(negative, f64::INFINITY);
                        insert(&mut question.first, reach, top_k);
                    }
                }
                Ok(question)
            }
        }
    }

    /// Whether many wrong items are left that their distance alone does not clear.
    fn is_wide(&self) -> bool {
        match (self.positives.first(), self.first.last()) {
            (Some(nearest), Some(last)) if last.distance > 0.0 => {
                let limit = self.clear_beyond(nearest, last.distance);
                self.nearby.count_within(self.place, limit) > WIDE
            }
            _ => false,
        }
    }

    /// The nearest right item, or the first of all where there is none.
    fn anchor(&self) -> impl Iterator<Item = f64> {
        let row = self.positives.first().map_or(0, |nearest| nearest.row);
        self.gallery.vector(row).iter().map(|&value| f64::from(value))
    }

    fn is_positive(&self, row: usize) -> bool {
        match self.relevance.positives {
            Positives::Label(label) => self.gallery.label(row) == label,
            Positives::Item(item) => self.gallery.item(row) == self.gallery.item(item),
            Positives::Absent => false,
        }
    }

    /// Looks at every wrong item that could decide; `anchors` has the distances of all rows from the nearest right item.
    fn find(self, anchors: Option<&Nearby<'_>>) -> Findings {
        let nearest = self.positives.first().copied();
        let (reaches, looked_at) = match &nearest {
            Some(nearest) => self.reaches(nearest, anchors),
            None => (Vec::new(), 0),
        };
        Findings { nearest, negatives: self.negatives, reaches, looked_at }
    }

    /// How far the embedding may move before the first, second, … wrong item can come before every right one.
    ///
    /// Beside them, how many wrong items were looked at.
    fn reaches(&self, nearest: &Neighbour, anchors: Option<&Nearby<'_>>) -> (Vec<Reach>, usize) {
        let top_k = self.negatives.len();
        let mut smallest = self.first.clone();
        let mut looked_at = top_k;
        let last = |smallest: &[Reach]| smallest.last().map_or(f64::INFINITY, |reach| reach.distance);
        // Nothing below zero is ever certified, so the rest matters only above it.
        if last(&smallest) > 0.0 {
            let mut reach = last(&smallest);
            let mut limit = self.clear_beyond(nearest, reach);
            let first: Vec<usize> = self.negatives.iter().map(|negative| negative.row).collect();
            let is_new = |row: usize| !self.is_positive(row) && !first.contains(&row);
            let open = match anchors {
                Some(anchors) => {
                    let from = (anchors, nearest.squared_distance);
                    self.nearby.before_bisectors(self.place, limit, from, self.widened(reach, limit), is_new)
                }
                None => self.nearby.within(self.place, limit, is_new),
            };
            for negative in open {
                // Behind it all others are cleared, too: they come in the order of their distance.
                if negative.squared_distance > limit {
                    break;
                }
                looked_at += 1;
                let found = self.reach(&negative, reach);
                insert(&mut smallest, found, top_k);
                if last(&smallest) < reach {
                    reach = last(&smallest);
                    limit = self.clear_beyond(nearest, reach);
                }
            }
        }
        (smallest, looked_at)
    }

    /// A squared distance beyond which a wrong item is beaten inside `reach` whatever its direction.
    ///
    /// `M_ab ≥ (d_b − d_a)/2`, less the rounding of the search, grows with `d_b` (theory, section 14.2).
    fn clear_beyond(&self, nearest: &Neighbour, reach: f64) -> f64 {
        let allowance = slop(self.embedding.len());
        let near = nearest.squared_distance.sqrt() * (1.0 + allowance);
        let cleared = |far: f64| {
            let ahead = far - near;
            ahead / 2.0 - 2.0 * allowance * (self.length + 4.0 * far + 4.0 * far * far / ahead)
        };
        let mut far = near + 2.0 * reach;
        for _ in 0..8 {
            if cleared(far) >= reach {
                return far * far * (1.0 + 4.0 * allowance);
            }
            far += 3.0 * (reach - cleared(far)).max(allowance * far);
        }
        f64::INFINITY
    }

    /// A reach with everything that rounding takes from a bisector of rows up to `limit` away whose squared distances differ by
    /// a thousandth of it (theory, section 14.4).
    fn widened(&self, reach: f64, limit: f64) -> f64 {
        // Such rows are at least 1/2000 of the way apart: (D_b − D_a)/(d_a + d_b).
        let far = limit.sqrt();
        reach + 4.0 * slop(self.embedding.len()) * (self.length + 5.0 * far + 4.0 * 2_000.0 * far)
    }

    /// How far the embedding may move before one wrong item can come before every right one; at least `enough` is not told
    /// apart from more.
    ///
    /// ```text
    /// max_a M_ab,    M_ab = (‖h − v_b‖² − ‖h − v_a‖²) / (2‖v_a − v_b‖)
    /// ```
    fn reach(&self, negative: &Neighbour, enough: f64) -> Reach {
        let gallery = self.gallery;
        let mut facing = Facing::new(self.embedding, gallery.vector(negative.row));
        let mut best = Reach {
            distance: f64::NEG_INFINITY,
            negative: negative.row,
            positive: self.positives[0].row,
            together: 1,
        };
        for positive in &self.positives {
            let distance = facing.against(positive.row, gallery.vector(positive.row));
            if distance > best.distance {
                (best.distance, best.positive) = (distance, positive.row);
            }
            if distance >= enough {
                return best;
            }
        }
        if let Mixtures::UpTo(most) = self.certifier.mixtures {
            let (distance, together) = facing.together(most.get(), |row| gallery.vector(row));
            if distance > best.distance {
                (best.distance, best.together) = (distance, together);
            }
        }
        best
    }
}

/// Keeps the `count` smallest, ascending.
fn insert(smallest: &mut Vec<Reach>, reach: Reach, count: usize) {
    let place = smallest.partition_point(|other| other.distance <= reach.distance);
    smallest.insert(place, reach);
    smallest.truncate(count);
}
