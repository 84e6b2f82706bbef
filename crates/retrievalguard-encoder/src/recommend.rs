//! Which `σ`, which retriever, and what it will cost: tried on labelled pictures before anything is certified.
//!
//! Every picture is embedded without noise and with a few noisy copies, at every `σ` in question; some of them are queries
//! among all the others. What their copies say is turned into a forecast of certified recall
//! ([`Forecaster`]). The noise has a stage of its own, so that what is certified afterwards has not been looked at.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use retrievalguard::certificate::{
    CertificateError, Certifier, Forecast, Forecaster, Retriever, samples_to_decide,
};
use retrievalguard::evaluation::Share;
use retrievalguard::gallery::{Gallery, Metric, Positives, Relevance};
use retrievalguard::noise::Stage;
use retrievalguard::{
    Alpha, Embedder as _, Excess, SampleCount, Samples, Seed, Sigma, Smoother, TargetRadius,
};
use serde::Serialize;

use crate::dataset::{BrokenPictures, RecordSet};
use crate::engine::OnnxEmbedder;
use crate::pipeline::{EncoderInputs, PictureOutcome};
use crate::recall::{RecallError, refuse_one_label};
use crate::work::{Observer, WorkQueue};

/// Copies that the pilot takes of a query whose label is not known, where tens of samples decide.
const SMALL_PILOT: u32 = 20;
/// Copies that the pilot of `half-space` takes.
const PILOT: u32 = 200;

/// Why nothing can be recommended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecommendError {
    /// The pictures could not be embedded or searched.
    #[error(transparent)]
    Recall(#[from] RecallError),
    /// A query could not be forecast.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// Nothing was asked for.
    #[error("no noise level was given, wanted at least one")]
    NoSigma,
    /// More may be lost than there is.
    #[error("the recall that may be lost is {0}, wanted a number from 0 to 1")]
    RecallLoss(f64),
}

/// What is tried, and what it is judged by.
#[derive(Clone, Debug)]
pub struct RecommendOptions {
    /// Noise levels to try, each once.
    pub sigmas: Vec<Sigma>,
    /// The radius that matters; without one the average certified radius decides.
    pub radius: Option<TargetRadius>,
    /// Recall@1 of the plain encoder that may be lost.
    pub recall_loss: f64,
    /// Pictures that are asked for; the rest is only searched in.
    pub queries: NonZeroUsize,
    /// Noisy copies of each query.
    pub copies: SampleCount,
    /// Noisy copies behind each stored vector.
    pub gallery_copies: SampleCount,
    /// Samples of the certificates that are forecast.
    pub planned: SampleCount,
    /// Failure probability of the certificates that are forecast.
    pub alpha: Alpha,
    /// Seed of the noise.
    pub seed: Seed,
    /// What happens to embeddings above the norm bound.
    pub excess: Excess,
    /// What happens to broken pictures.
    pub broken: BrokenPictures,
    /// Noisy copies per call of the encoder.
    pub batch: NonZeroUsize,
    /// Threads that work.
    pub threads: NonZeroUsize,
}

impl RecommendOptions {
    /// The same with noise levels from the smallest up, none twice; refuses what means nothing.
    pub fn check(mut self) -> Result<Self, RecommendError> {
        if self.sigmas.is_empty() {
            return Err(RecommendError::NoSigma);
        }
        if !(0.0..=1.0).contains(&self.recall_loss) {
            return Err(RecommendError::RecallLoss(self.recall_loss));
        }
        self.sigmas.sort_by(|one, other| one.get().total_cmp(&other.get()));
        self.sigmas.dedup();
        Ok(self)
    }
}

/// A forecast share of the queries, with the 95 % interval that so many queries leave.
///
/// The interval is about which pictures happened to be asked for; how far copies mislead is not in it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EstimatedShare {
    /// The radius.
    pub radius: f64,
    /// Share of the queries that are expected to be certified beyond the radius.
    pub estimate: f64,
    /// Lower end of the interval.
    pub lower: f64,
    /// Upper end of the interval.
    pub upper: f64,
}

/// One noise level under one retriever.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// Noise level.
    pub sigma: Sigma,
    /// The retriever.
    pub retriever: Retriever,
    /// Share of the queries that it answers rightly, judged by the copies.
    pub recall: f64,
    /// Forecast of the average certified radius, zero where nothing is certified.
    pub average_radius: f64,
    /// Forecast of certified recall at a few radii.
    pub certified: Vec<EstimatedShare>,
    /// Encoder passes of one decision in the median, the pilot for an unknown label included.
    pub passes: u32,
    /// What the passes decide: a target radius, or none where the whole number of samples is drawn.
    pub target: Option<f64>,
    /// The passes in seconds, at the speed of this run.
    pub seconds: f64,
    /// Forecast curve of certified recall, for a figure.
    #[serde(skip)]
    pub curve: Vec<(f64, f64)>,
}

/// Everything that was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recommendation {
    /// Pictures that were searched in.
    pub pictures: usize,
    /// Their labels.
    pub classes: usize,
    /// Pictures that were asked for.
    pub queries: usize,
    /// Share of the queries that the encoder without noise answers rightly.
    pub plain_recall: f64,
    /// Encoder passes in a second, all threads together.
    pub passes_per_second: f64,
    /// Every noise level under every retriever.
    pub settings: Vec<Setting>,
    /// Position of the recommended one.
    pub recommended: usize,
    /// Why that one.
    pub reason: String,
}

impl Recommendation {
    /// The recommended setting.
    pub fn choice(&self) -> &Setting {
        &self.settings[self.recommended]
    }
}

/// Tries noise levels and retrievers; the pictures that were left out come with the result, with their reasons.
pub fn recommend(
    embedder: &OnnxEmbedder,
    records: &RecordSet,
    options: &RecommendOptions,
    observer: &dyn Observer,
) -> Result<(Recommendation, Vec<(String, String)>), RecommendError> {
    let options = &options.clone().check()?;
    let (embedded, skipped, speed) = embed(embedder, records, options, observer)?;
    let labels: Vec<&str> = embedded.iter().map(|(position, _)| records[*position].label.as_str()).collect();
    refuse_one_label(&labels)?;
    let classes = labels.iter().collect::<HashSet<_>>().len();
    let asked: Vec<usize> = (0..embedded.len()).filter(|&row| !embedded[row].1.copies.is_empty()).collect();
    let gallery = |vector: &dyn Fn(&Embedded) -> &[f32]| {
        let vectors = embedded.iter().flat_map(|(_, embedded)| vector(embedded)).copied().collect();
        let identities = (0..labels.len()).map(|row| row.to_string()).collect();
        let made = Gallery::new(vectors, embedder.dimension(), identities, &labels, Metric::Euclidean);
        made.map_err(RecallError::from)
    };
    let plain = gallery(&|embedded| &embedded.clean)?;
    let plain_recall = plain_recall(&plain, &asked)?;
    let mut settings = Vec::new();
    for (place, &sigma) in options.sigmas.iter().enumerate() {
        let stored = gallery(&|embedded| &embedded.stored[place])?;
        let certifier = Certifier::new(&stored, sigma, options.alpha);
        let forecaster = Forecaster::new(certifier, options.planned);
        for retriever in Retriever::SMOOTHED {
            let mut forecasts = Vec::with_capacity(asked.len());
            for &row in &asked {
                let relevance = Relevance::new(Positives::Label(stored.label(row)), vec![row]);
                let copies = &embedded[row].1.copies[place];
                forecasts.push(forecaster.forecast(retriever, copies, &relevance)?);
            }
            settings.push(setting(options, sigma, retriever, &forecasts, speed));
        }
    }
    let (recommended, reason) = choose(&settings, plain_recall, options);
    let recommendation = Recommendation {
        pictures: labels.len(),
        classes,
        queries: asked.len(),
        plain_recall,
        passes_per_second: speed,
        settings,
        recommended,
        reason,
    };
    Ok((recommendation, skipped))
}

/// A picture through the encoder.
struct Embedded {
    clean: Vec<f32>,
    /// The vector that a gallery would hold, per noise level.
    stored: Vec<Vec<f32>>,
    /// Copies of a query, per noise level; none of what is only searched in.
    copies: Vec<Samples>,
    /// Time in the encoder.
    spent: Duration,
}

type EmbeddedPictures = (Vec<(usize, Embedded)>, Vec<(String, String)>, f64);

fn embed(
    embedder: &OnnxEmbedder,
    records: &RecordSet,
    options: &RecommendOptions,
    observer: &dyn Observer,
) -> Result<EmbeddedPictures, RecallError> {
    let inputs = EncoderInputs { records, config: embedder.model_config(), broken: options.broken };
    let queries = spread(records.len(), options.queries.get());
    let (few, copies) = (options.gallery_copies.get(), options.copies.get());
    let queue = WorkQueue { pieces: records.len(), before: 0, threads: options.threads, observer };
    let outcomes = queue.collect(|position| {
        inputs.with(position, |_, picture| {
            let started = Instant::now();
            let of = |sigma: Sigma| {
                Smoother::new(embedder, sigma, options.seed).excess(options.excess).batch(options.batch)
            };
            let clean = of(options.sigmas[0]).clean(picture)?;
            let (mut stored, mut drawn) = (Vec::new(), Vec::new());
            for &sigma in &options.sigmas {
                let mean = of(sigma).mean(picture, Stage::Choose, 0..few)?.mean;
                stored.push(mean.iter().map(|&value| value as f32).collect());
                if queries.contains(&position) {
                    // Further noise than that behind the stored vector.
                    drawn.push(of(sigma).samples(picture, Stage::Choose, few..few + copies)?);
                }
            }
            Ok::<_, RecallError>(Embedded { clean, stored, copies: drawn, spent: started.elapsed() })
        })
    })?;
    let (mut embedded, mut skipped) = (Vec::new(), Vec::new());
    let (mut passes, mut spent) = (0_u64, Duration::ZERO);
    for (position, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            PictureOutcome::Done(done) => {
                let noisy = done.stored.len() as u64 * u64::from(few);
                passes += 1 + noisy + done.copies.len() as u64 * u64::from(copies);
                spent += done.spent;
                embedded.push((position, done));
            }
            PictureOutcome::Skipped(reason) => skipped.push((records[position].identity.clone(), reason)),
        }
    }
    let threads = options.threads.get().min(records.len().max(1));
    let speed = passes as f64 * threads as f64 / spent.as_secs_f64().max(1e-9);
    Ok((embedded, skipped, speed))
}

/// So many positions out of all, as far from each other as possible.
fn spread(all: usize, wanted: usize) -> HashSet<usize> {
    let wanted = wanted.min(all);
    (0..wanted).map(|number| number * all / wanted.max(1)).collect()
}

/// Share of the queries whose nearest other picture has their label.
fn plain_recall(gallery: &Gallery, asked: &[usize]) -> Result<f64, RecallError> {
    let own: Vec<[usize; 1]> = asked.iter().map(|&row| [row]).collect();
    let vectors: Vec<f32> = asked.iter().flat_map(|&row| gallery.vector(row)).copied().collect();
    let answers = gallery.nearest(&vectors, 1, |query| &own[query])?;
    let right = answers.iter().zip(asked).filter(|(answer, row)| {
        answer.first().is_some_and(|nearest| gallery.label(nearest.row) == gallery.label(**row))
    });
    Ok(right.count() as f64 / asked.len().max(1) as f64)
}

/// Radii at which certified recall is shown: the one that matters, or halves and multiples of every noise level.
fn radii(options: &RecommendOptions) -> Vec<f64> {
    let mut radii: Vec<f64> = match options.radius {
        Some(radius) => [0.5, 1.0, 1.5].iter().map(|factor| factor * radius.get()).collect(),
        None => options.sigmas.iter().flat_map(|sigma| [0.5 * sigma.get(), sigma.get()]).collect(),
    };
    radii.sort_by(f64::total_cmp);
    radii.dedup_by(|one, other| (*one - *other).abs() < 1e-9);
    radii
}

fn setting(
    options: &RecommendOptions,
    sigma: Sigma,
    retriever: Retriever,
    forecasts: &[Forecast],
    speed: f64,
) -> Setting {
    let count = forecasts.len() as f64;
    let mean = |value: &dyn Fn(&Forecast) -> f64| forecasts.iter().map(value).sum::<f64>() / count;
    let share = |radius: f64| {
        let estimate = mean(&|forecast| forecast.certified_at(radius));
        let Share { lower, upper, .. } =
            Share::new((estimate * count).round() as u32, forecasts.len() as u32);
        EstimatedShare { radius, estimate, lower: lower.min(estimate), upper: upper.max(estimate) }
    };
    let target = options.radius.or_else(|| TargetRadius::new(sigma.get()).ok());
    let (passes, target) = match (retriever, target) {
        (Retriever::Vote | Retriever::Pairwise, Some(target)) => {
            let takes = |forecast: &Forecast| {
                let rate = forecast.rate.unwrap_or(0.0);
                samples_to_decide(rate, target, sigma, options.alpha, options.planned)
            };
            let mut takes: Vec<u32> = forecasts.iter().map(takes).collect();
            takes.sort_unstable();
            (takes[takes.len() / 2] + SMALL_PILOT, Some(target.get()))
        }
        _ => (options.planned.get() + PILOT, None),
    };
    // Beyond 3 σ a thousand samples prove nothing.
    let step = |number: u32| f64::from(number) * sigma.get() * 4.0 / 100.0;
    Setting {
        sigma,
        retriever,
        recall: mean(&|forecast| f64::from(u8::from(forecast.right))),
        average_radius: mean(&Forecast::average_radius),
        certified: radii(options).into_iter().map(share).collect(),
        passes,
        target,
        seconds: f64::from(passes) / speed,
        curve: (0..=100).map(|number| (step(number), share(step(number)).estimate)).collect(),
    }
}

/// The best setting among those that retrieve nearly as well as the plain encoder, and why it is the best.
fn choose(settings: &[Setting], plain_recall: f64, options: &RecommendOptions) -> (usize, String) {
    let wanted = plain_recall - options.recall_loss;
    let value = |setting: &Setting| match options.radius {
        Some(radius) => {
            let at = setting.certified.iter().find(|share| (share.radius - radius.get()).abs() < 1e-9);
            at.map_or(0.0, |share| share.estimate)
        }
        None => setting.average_radius,
    };
    let retrieves = |setting: &Setting| setting.recall >= wanted;
    let some = settings.iter().any(retrieves);
    let mut best: Option<usize> = None;
    for place in (0..settings.len()).filter(|&place| !some || retrieves(&settings[place])) {
        let better = |best: usize| {
            let (own, other) = (value(&settings[place]), value(&settings[best]));
            own > other || (own == other && settings[place].passes < settings[best].passes)
        };
        if best.is_none_or(better) {
            best = Some(place);
        }
    }
    let best = best.unwrap_or(0);
    let criterion = match options.radius {
        Some(radius) => format!("the largest estimate of certified recall at {radius}"),
        None => "the largest estimate of the average certified radius".to_owned(),
    };
    let reason = if some {
        format!(
            "{criterion} among the settings whose Recall@1 is at most {} below the plain encoder's {plain_recall:.3}",
            options.recall_loss
        )
    } else {
        format!(
            "{criterion}; no setting keeps Recall@1 within {} of the plain encoder's {plain_recall:.3}, so consider a smaller \
             sigma or an encoder trained with noise",
            options.recall_loss
        )
    };
    (best, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(radius: Option<f64>) -> RecommendOptions {
        let count = |count| SampleCount::new(count).unwrap();
        RecommendOptions {
            sigmas: vec![Sigma::new(0.1).unwrap(), Sigma::new(0.25).unwrap()],
            radius: radius.map(|radius| TargetRadius::new(radius).unwrap()),
            recall_loss: 0.05,
            queries: NonZeroUsize::MIN,
            copies: count(10),
            gallery_copies: count(2),
            planned: count(1_000),
            alpha: Alpha::new(0.01).unwrap(),
            seed: Seed::new(0),
            excess: Excess::Refuse,
            broken: BrokenPictures::Fatal,
            batch: NonZeroUsize::MIN,
            threads: NonZeroUsize::MIN,
        }
    }

    fn tried(sigma: f64, recall: f64, average_radius: f64, at: f64) -> Setting {
        let certified = vec![EstimatedShare { radius: 0.2, estimate: at, lower: 0.0, upper: 1.0 }];
        Setting {
            sigma: Sigma::new(sigma).unwrap(),
            retriever: Retriever::Pairwise,
            recall,
            average_radius,
            certified,
            passes: 58,
            target: Some(0.2),
            seconds: 1.0,
            curve: vec![],
        }
    }

    #[test]
    fn the_largest_radius_wins_among_those_that_still_retrieve() {
        let settings =
            [tried(0.1, 0.90, 0.15, 0.3), tried(0.25, 0.88, 0.30, 0.2), tried(0.5, 0.60, 0.50, 0.5)];
        let (best, reason) = choose(&settings, 0.92, &options(None));
        assert_eq!(best, 1);
        assert!(reason.contains("average certified radius") && reason.contains("0.920"), "{reason}");
        // For a radius that matters another one is best.
        assert_eq!(choose(&settings, 0.92, &options(Some(0.2))).0, 0);
        // Where none retrieves well enough, that is said.
        let (best, reason) = choose(&settings, 0.99, &options(None));
        assert_eq!(best, 2);
        assert!(reason.contains("no setting keeps"), "{reason}");
    }

    #[test]
    fn noise_levels_are_tried_once_and_in_order() {
        let levels = |levels: &[f64]| levels.iter().map(|&level| Sigma::new(level).unwrap()).collect();
        let found = RecommendOptions { sigmas: levels(&[0.5, 0.1, 0.5]), ..options(None) }.check().unwrap();
        assert_eq!(found.sigmas, [Sigma::new(0.1).unwrap(), Sigma::new(0.5).unwrap()]);
        let none = RecommendOptions { sigmas: vec![], ..options(None) }.check();
        assert!(matches!(none, Err(RecommendError::NoSigma)), "{none:?}");
        for loss in [-0.1, 1.5, f64::NAN] {
            let refused = RecommendOptions { recall_loss: loss, ..options(None) }.check();
            assert!(matches!(refused, Err(RecommendError::RecallLoss(_))), "{loss}");
        }
    }

    #[test]
    fn queries_are_spread_over_all_pictures() {
        let mut found: Vec<usize> = spread(10, 4).into_iter().collect();
        found.sort_unstable();
        assert_eq!(found, [0, 2, 5, 7]);
        assert_eq!(spread(3, 9).len(), 3);
        assert!(spread(0, 9).is_empty());
    }

    #[test]
    fn radii_are_those_that_matter_or_follow_the_noise() {
        assert_eq!(radii(&options(Some(0.2))).len(), 3);
        let found = radii(&options(None));
        assert_eq!(found, [0.05, 0.1, 0.125, 0.25]);
    }
}
