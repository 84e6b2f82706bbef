//! One encoder, one gallery, and queries about it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use retrievalguard::certificate::Certifier;
use retrievalguard::noise::Stage;
use retrievalguard::planner::Ceiling;
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::manifest::{Provenance, SeedRecord};
use retrievalguard::{Embedder, Excess, Picture, Samples, Seed, Sigma, Smoother};
use retrievalguard_encoder::engine::OnnxEmbedder;
use retrievalguard_encoder::picture::{PictureFormat, PictureLimits, RgbPicture};
use retrievalguard_encoder::pipeline::{PipelineError, input_values, nearest_items, query_side};
use tokio::sync::Semaphore;

use crate::admission::{Admission, AdmissionSlot};
use crate::answer::Answer;
use crate::gallery_writer::{Addition, Fit, GalleryWriter, Reloaded, Snapshot, Turn, Written};
use crate::metrics::{Metrics, Readings};
use crate::problem::Problem;
use crate::query_execution::{Permits, QueryExecution, QueryProgress, QueryRequest};
use crate::scheduler::{PassError, Prepared, Scheduler, Ticket, Work};
use crate::settings::{Basis, Guarantees, Sampling, Settings};
use crate::{OpenError, secret_seed};

/// Answers queries, and adds to the gallery.
pub(crate) struct Service {
    pub(crate) settings: Settings,
    pub(crate) guarantees: Guarantees,
    pub(crate) embedder: Arc<OnnxEmbedder>,
    pub(crate) scheduler: Scheduler,
    pub(crate) gallery: GalleryWriter,
    /// What another gallery must be to be served instead.
    fit: Fit,
    pub(crate) admission: Arc<Admission>,
    pub(crate) permits: Permits,
    pub(crate) metrics: Metrics,
    /// Small pictures that are drawn at once; others wait without a thread.
    pub(crate) drawing: Semaphore,
    /// Passes in double precision, which go past the scheduler.
    double_passes: AtomicU64,
    closing: AtomicBool,
}

impl Service {
    /// Opens the gallery and starts the threads of the encoder.
    pub(crate) fn open(settings: Settings, embedder: Arc<OnnxEmbedder>) -> Result<Self, OpenError> {
        if let Settings { sampling: Some(Sampling { pilot, samples, .. }), limits: allowed, .. } = &settings {
            for count in [pilot.get(), samples.get(), allowed.samples, allowed.job_samples] {
                Samples::check_memory(count, embedder.dimension())?;
            }
        }
        let basis = Basis::of(settings.sampling, &embedder)?;
        let sigma = basis.sampling().map(|sampling| sampling.sigma);
        let name = settings.gallery.display().to_string();
        let gallery = GalleryWriter::open(&settings.gallery, settings.read_only)?;
        let fit = Fit { name, queries: query_side(&embedder, sigma) };
        let fits = gallery.current().stored().check_against(&fit.name, &fit.queries);
        fits.map_err(PipelineError::from)?;
        let scheduler = Scheduler::start(
            Arc::clone(&embedder) as Arc<dyn Embedder + Send + Sync>,
            settings.threads,
            settings.batch,
            excess(&basis),
        )
        .map_err(OpenError::Threads)?;
        let limits = settings.limits;
        Ok(Self {
            guarantees: Guarantees {
                basis,
                input: embedder.model_config().picture_shape(),
                model: embedder.facts().hash.clone(),
                contract: embedder.model_config().hash(),
            },
            admission: Arc::new(Admission::new(limits.queue, limits.per_client, limits.seconds)),
            permits: Permits::new(settings.threads.get()),
            metrics: Metrics::new(sigma.map(Sigma::get)),
            drawing: Semaphore::new(settings.threads.get()),
            double_passes: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            settings,
            embedder,
            scheduler,
            gallery,
            fit,
        })
    }

    /// Runs a few passes, so that the first query finds the encoder awake and the queue knows its speed.
    pub(crate) fn warm_up(&self) -> Result<(), OpenError> {
        let grey = vec![0.5; self.embedder.input_len()];
        let Some(sampling) = self.guarantees.basis.sampling() else {
            // An answer is one pass: one for each thread tells the speed.
            let pictures = grey.repeat(self.settings.threads.get());
            let drawn = self.scheduler.ticket().plain(pictures);
            return drawn.map(|_| ()).map_err(OpenError::Encoder);
        };
        let picture = Arc::new(Prepared { identity: "warm-up".to_owned(), pixels: grey, file: None });
        let passes = 4 * u32::try_from(self.settings.batch.get()).unwrap_or(64).min(64);
        let drawn = self.scheduler.ticket().samples(
            &picture,
            (sampling.sigma, Seed::new(0)),
            Stage::Trial,
            0..passes,
        );
        drawn.map(|_| ()).map_err(OpenError::Encoder)
    }

    /// Admits nobody any more.
    pub(crate) fn begin_closing(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.admission.close();
    }

    /// Ends the threads of the encoder and of the gallery; whoever waits is told.
    pub(crate) fn close(&self) {
        self.scheduler.close();
        self.gallery.close();
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// A picture as the encoder takes it, and the SHA-256 of what was sent.
    pub(crate) fn prepare(&self, name: &str, bytes: &[u8]) -> Result<(Arc<Prepared>, String), Problem> {
        let _permit = self.permits.take();
        let limits = PictureLimits { pixels: self.settings.limits.pixels, ..PictureLimits::default() };
        let picture = RgbPicture::from_bytes(name, bytes, &limits)?;
        let config = self.embedder.model_config();
        let prepared = config.preparation().apply(name, &picture)?;
        let pixels = input_values(config, name, prepared)?;
        let prepared = Prepared { identity: name.to_owned(), pixels, file: config.file_pixels(&picture) };
        self.check(&prepared)?;
        Ok((Arc::new(prepared), Digest::of_bytes(bytes).to_string()))
    }

    /// Refuses pixels that the smoother would refuse, or that are no numbers.
    pub(crate) fn check(&self, prepared: &Prepared) -> Result<(), Problem> {
        let Some(sampling) = self.guarantees.basis.sampling() else {
            let wrong = prepared.pixels.iter().any(|pixel| !pixel.is_finite());
            let refused = || Problem::unprocessable("the picture has pixels that are no finite numbers");
            return if wrong { Err(refused()) } else { Ok(()) };
        };
        let picture = Picture { identity: &prepared.identity, pixels: &prepared.pixels };
        let smoother = Smoother::new(&*self.embedder, sampling.sigma, Seed::new(0));
        smoother.check_picture(&picture).map_err(|error| Problem::unprocessable(error.to_string()))
    }

    /// Answers one question; `report` makes its radius grow.
    pub(crate) fn answer(
        &self,
        request: &QueryRequest,
        ticket: &Ticket,
        slot: Option<&AdmissionSlot>,
        report: Option<&mut dyn FnMut(QueryProgress)>,
    ) -> Result<Answer, Problem> {
        self.answer_from(&self.gallery.current(), request, ticket, slot, report)
    }

    /// Answers one question about this state of the gallery.
    pub(crate) fn answer_from(
        &self,
        snapshot: &Snapshot,
        request: &QueryRequest,
        ticket: &Ticket,
        slot: Option<&AdmissionSlot>,
        report: Option<&mut dyn FnMut(QueryProgress)>,
    ) -> Result<Answer, Problem> {
        let execution = QueryExecution {
            snapshot,
            guarantees: &self.guarantees,
            ticket,
            permits: &self.permits,
            slot,
            embedder: &self.embedder,
            key: self.settings.receipt_key.as_ref(),
        };
        let answer = match (&self.guarantees.basis, request.draws, report) {
            (Basis::Samples(sampling), Some(draws), Some(report)) => {
                execution.growing((sampling, draws), request, report)?
            }
            (Basis::Samples(sampling), Some(draws), None) => execution.once((sampling, draws), request)?,
            (Basis::Bound(bounded), None, _) => {
                let started = Instant::now();
                let embedding = self.embed_double(&request.picture, ticket)?;
                if let Some(slot) = slot {
                    slot.spend(1);
                }
                execution.bounded(bounded, request, embedding, started)?
            }
            // A job may have been accepted when the gallery was another.
            (Basis::Bound(_), Some(_), _) => {
                return Err(Problem::conflict(
                    "samples were asked for, and the gallery has no noise level now",
                ));
            }
            (Basis::Samples(_), None, _) => {
                return Err(Problem::conflict(
                    "no samples were asked for, and the gallery has a noise level now",
                ));
            }
        };
        self.metrics.answer(&answer);
        Ok(answer)
    }

    /// The embedding of a picture in double precision. It does not go through the queue: it is one pass.
    pub(crate) fn embed_double(&self, picture: &Prepared, ticket: &Ticket) -> Result<Vec<f64>, Problem> {
        let asked = Instant::now();
        let _permit = self.permits.take();
        ticket.charge_waiting(asked.elapsed());
        if ticket.is_cancelled() {
            return Err(PassError::Cancelled.into());
        }
        let embedding = self.embedder.embed_double(&picture.pixels);
        ticket.charge(1);
        self.double_passes.fetch_add(1, Ordering::Relaxed);
        embedding.map_err(|error| PassError::Encoder(error.to_string()).into())
    }

    /// Embeddings of pictures in double precision, rounded as a gallery keeps them and laid end to end.
    fn embed_rounded(&self, pictures: &[Arc<Prepared>], ticket: &Ticket) -> Result<Vec<f32>, Problem> {
        let mut vectors = Vec::new();
        for picture in pictures {
            vectors.extend(self.embed_double(picture, ticket)?.iter().map(|&value| value as f32));
        }
        Ok(vectors)
    }

    /// The views that an item of the gallery has, of one picture; the picture itself where an item is one vector.
    fn views(&self, provenance: &Provenance, picture: &Arc<Prepared>) -> Result<Vec<Arc<Prepared>>, Problem> {
        let Some(set) = &provenance.views else { return Ok(vec![Arc::clone(picture)]) };
        let views = set.for_shape(self.embedder.input_shape());
        let views = views.map_err(|error| Problem::unprocessable(error.to_string()))?;
        let view = |pixels| Arc::new(Prepared { identity: picture.identity.clone(), pixels, file: None });
        Ok(views.of(&picture.pixels).map(view).collect())
    }

    /// Embeds a picture as the gallery's own were embedded, every view of it, and adds it.
    pub(crate) fn add(
        &self,
        (identity, label): (String, String),
        bytes: &[u8],
        ticket: &Ticket,
    ) -> Result<Written, Problem> {
        let (prepared, _) = self.prepare(&identity, bytes)?;
        let item = (identity.as_str(), label.as_str());
        match self.add_prepared(item, (&prepared, bytes), ticket) {
            // A reload came between; the gallery that it brought says how it wants the picture.
            Err(problem) if problem == Problem::embedded_otherwise() => {
                self.add_prepared(item, (&prepared, bytes), ticket)
            }
            added => added,
        }
    }

    fn add_prepared(
        &self,
        (identity, label): (&str, &str),
        (prepared, bytes): (&Arc<Prepared>, &[u8]),
        ticket: &Ticket,
    ) -> Result<Written, Problem> {
        let snapshot = self.gallery.current();
        if !snapshot.gallery().rows_of(identity).is_empty() {
            return Err(Problem::conflict(format!("the gallery has an item `{identity}` already")));
        }
        let provenance = snapshot.provenance();
        let views = self.views(provenance, prepared)?;
        let (vector, plain) = match (&self.guarantees.basis, provenance.samples) {
            (Basis::Bound(_), _) => (self.embed_rounded(&views, ticket)?, None),
            (Basis::Samples(_), Some(0)) => (embed_clean(&views, ticket)?, None),
            (Basis::Samples(sampling), Some(count)) => {
                let seed = match provenance.seed {
                    Some(SeedRecord::Fixed(seed)) => seed,
                    Some(SeedRecord::Secret) | None => secret_seed().map_err(Problem::internal)?,
                };
                let noise = (sampling.sigma, seed);
                let mut vector = Vec::new();
                for view in &views {
                    let samples = ticket.samples(view, noise, Stage::Gallery, 0..count)?;
                    vector.extend(samples.mean().iter().map(|&value| value as f32));
                }
                let plain = snapshot.gallery().plain().map(|_| embed_clean(&views, ticket)).transpose()?;
                (vector, plain)
            }
            (Basis::Samples(_), None) => {
                return Err(Problem::conflict(
                    "the gallery does not say how its vectors were made, so nothing can be added to it",
                ));
            }
        };
        let format = PictureFormat::of(bytes).map_or("bin", |format| match format {
            PictureFormat::Jpeg => "jpg",
            PictureFormat::Png => "png",
            PictureFormat::WebP => "webp",
        });
        let (identity, label, picture) = (identity.to_owned(), label.to_owned(), bytes.to_vec());
        let recipe = Arc::clone(snapshot.recipe());
        self.gallery.add(Addition { identity, label, vector, plain, recipe, picture, format })
    }

    /// Serves what is in the gallery's directory by now; if it does not fit, the gallery stays as it is.
    pub(crate) fn reload(&self, turn: Turn) -> Result<Reloaded, Problem> {
        let started = Instant::now();
        let reloaded = self.gallery.reload(&self.fit, turn);
        let seconds = started.elapsed().as_secs_f64();
        match &reloaded {
            Ok(Reloaded { before, after, read_only }) => {
                let (gallery, items) = (after.version(), after.gallery().item_count());
                let outcome = if before == gallery { "unchanged" } else { "taken" };
                self.metrics.reload(outcome);
                tracing::info!(outcome, before, gallery, items, read_only, seconds, "reload");
            }
            Err(problem) => {
                self.metrics.reload("refused");
                tracing::error!(outcome = "refused", cause = problem.message, seconds, "reload");
            }
        }
        reloaded
    }

    /// The label that the retriever gives in this state of the gallery: the smoothed one by a pilot alone, the plain one by
    /// one pass.
    pub(crate) fn guess(
        &self,
        snapshot: &Snapshot,
        picture: &Arc<Prepared>,
        ticket: &Ticket,
    ) -> Result<String, Problem> {
        let empty = || Problem::conflict("the gallery is empty");
        let Some(sampling) = self.guarantees.basis.sampling() else {
            let embedding = self.embed_double(picture, ticket)?;
            let gallery = snapshot.gallery();
            let nearest = nearest_items(gallery.into(), &embedding, 1, &[])?;
            let nearest = nearest.first().ok_or_else(empty)?;
            return Ok(gallery.label_name(gallery.label(nearest.row)).to_owned());
        };
        let seed = secret_seed().map_err(Problem::internal)?;
        let noise = (sampling.sigma, seed);
        let pilot = ticket.samples(picture, noise, Stage::Pilot, 0..sampling.pilot.get())?;
        let gallery = snapshot.gallery();
        let certifier = Certifier::new(gallery, sampling.sigma, sampling.alpha);
        let found = certifier.candidate(sampling.retriever, &pilot, &[])?;
        let label = found.ok_or_else(empty)?;
        Ok(gallery.label_name(label).to_owned())
    }

    /// The largest radius that any query could get with so many samples.
    pub(crate) fn largest_radius(&self, snapshot: &Snapshot) -> Option<f64> {
        let sampling = self.guarantees.basis.sampling()?;
        let ceiling = Ceiling::new(
            sampling.sigma,
            sampling.alpha,
            self.embedder.norm_bound(),
            snapshot.gallery().dimension(),
        );
        ceiling.largest_radius(sampling.retriever.certificate(), sampling.samples)
    }

    /// What the metrics show, with the number of unfinished jobs.
    pub(crate) fn readings(&self, jobs: usize) -> Readings {
        let Work { passes, batches, shared_batches } = self.scheduler.work();
        let double = self.double_passes.load(Ordering::Relaxed);
        Readings {
            work: Work { passes: passes + double, batches: batches + double, shared_batches },
            backlog: self.scheduler.backlog(),
            inside: self.admission.count(),
            items: self.gallery.current().gallery().item_count(),
            jobs,
        }
    }

    /// How long a query may take.
    pub(crate) fn time_limit(&self) -> Duration {
        Duration::from_secs(self.settings.limits.seconds)
    }
}

/// What happens to embeddings above the norm bound.
///
/// Without noise only searches come through the queue. They may leave the pictures for which the bound was given, and what
/// they find is looked at in double precision, where the bound is not used.
fn excess(basis: &Basis) -> Excess {
    basis.sampling().map_or(Excess::Project, |sampling| sampling.excess)
}

/// Embeddings of pictures without noise, laid end to end.
fn embed_clean(pictures: &[Arc<Prepared>], ticket: &Ticket) -> Result<Vec<f32>, Problem> {
    let mut clean = Vec::new();
    for picture in pictures {
        clean.extend_from_slice(ticket.plain(picture.pixels.clone())?.row(0));
    }
    Ok(clean)
}
