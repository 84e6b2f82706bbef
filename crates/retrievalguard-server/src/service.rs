//! One encoder, one gallery, and queries about it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use retrievalguard::certificate::Certifier;
use retrievalguard::noise::Stage;
use retrievalguard::planner::Ceiling;
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::manifest::{Provenance, SeedRecord};
use retrievalguard::{Embedder, Picture, Samples, Seed, Smoother};
use retrievalguard_encoder::engine::OnnxEmbedder;
use retrievalguard_encoder::picture::{PictureFormat, PictureLimits, RgbPicture};
use retrievalguard_encoder::pipeline::{check_gallery, input_values};
use tokio::sync::Semaphore;

use crate::admission::{Admission, AdmissionSlot};
use crate::answer::Answer;
use crate::gallery_writer::{Addition, GalleryWriter, Snapshot, Written};
use crate::metrics::{Metrics, Readings};
use crate::problem::Problem;
use crate::query_execution::{Permits, QueryExecution, QueryProgress, QueryRequest};
use crate::scheduler::{Prepared, Scheduler, Ticket};
use crate::settings::{Guarantees, Settings};
use crate::{OpenError, secret_seed};

/// Answers queries, and adds to the gallery.
pub(crate) struct Service {
    pub(crate) settings: Settings,
    pub(crate) guarantees: Guarantees,
    pub(crate) embedder: Arc<OnnxEmbedder>,
    pub(crate) scheduler: Scheduler,
    pub(crate) gallery: GalleryWriter,
    pub(crate) admission: Arc<Admission>,
    pub(crate) permits: Permits,
    pub(crate) metrics: Metrics,
    /// Small pictures that are drawn at once; others wait without a thread.
    pub(crate) drawing: Semaphore,
    closing: AtomicBool,
}

impl Service {
    /// Opens the gallery and starts the threads of the encoder.
    pub(crate) fn open(settings: Settings, embedder: Arc<OnnxEmbedder>) -> Result<Self, OpenError> {
        let Settings { pilot, samples, limits: allowed, .. } = &settings;
        for count in [pilot.get(), samples.get(), allowed.samples, allowed.job_samples] {
            Samples::check_memory(count, embedder.dimension())?;
        }
        let name = settings.gallery.display().to_string();
        let gallery = GalleryWriter::open(&settings.gallery, settings.read_only)?;
        check_gallery(&gallery.current().to_directory().into(), &name, &embedder, Some(settings.sigma))?;
        let scheduler = Scheduler::start(
            Arc::clone(&embedder) as Arc<dyn Embedder + Send + Sync>,
            settings.threads,
            settings.batch,
            settings.excess,
        )
        .map_err(OpenError::Threads)?;
        let limits = settings.limits;
        Ok(Self {
            guarantees: Guarantees {
                sigma: settings.sigma,
                alpha: settings.alpha,
                retriever: settings.retriever,
                pilot: settings.pilot,
                input: embedder.model_config().picture_shape(),
                model: embedder.facts().hash.clone(),
                contract: embedder.model_config().hash(),
            },
            admission: Arc::new(Admission::new(limits.queue, limits.per_client, limits.seconds)),
            permits: Permits::new(settings.threads.get()),
            metrics: Metrics::new(settings.sigma.get()),
            drawing: Semaphore::new(settings.threads.get()),
            closing: AtomicBool::new(false),
            settings,
            embedder,
            scheduler,
            gallery,
        })
    }

    /// Runs a few passes, so that the first query finds the encoder awake and the queue knows its speed.
    pub(crate) fn warm_up(&self) -> Result<(), OpenError> {
        let grey = vec![0.5; self.embedder.input_len()];
        let picture = Arc::new(Prepared { identity: "warm-up".to_owned(), pixels: grey, file: None });
        let passes = 4 * u32::try_from(self.settings.batch.get()).unwrap_or(64).min(64);
        let drawn = self.scheduler.ticket().samples(
            &picture,
            (self.settings.sigma, Seed::new(0)),
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

    /// Refuses pixels that the smoother would refuse.
    pub(crate) fn check(&self, prepared: &Prepared) -> Result<(), Problem> {
        let picture = Picture { identity: &prepared.identity, pixels: &prepared.pixels };
        let smoother = Smoother::new(&*self.embedder, self.settings.sigma, Seed::new(0));
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
        let execution =
            QueryExecution { snapshot, guarantees: &self.guarantees, ticket, permits: &self.permits, slot };
        let answer = match report {
            Some(report) => execution.growing(request, report)?,
            None => execution.once(request)?,
        };
        self.metrics.answer(&answer);
        Ok(answer)
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
        let snapshot = self.gallery.current();
        if !snapshot.gallery().rows_of(&identity).is_empty() {
            return Err(Problem::conflict(format!("the gallery has an item `{identity}` already")));
        }
        let provenance = snapshot.provenance();
        let views = self.views(provenance, &prepared)?;
        let (vector, plain) = match provenance.samples {
            Some(0) => (embed_clean(&views, ticket)?, None),
            Some(count) => {
                let seed = match provenance.seed {
                    Some(SeedRecord::Fixed(seed)) => seed,
                    Some(SeedRecord::Secret) | None => secret_seed().map_err(Problem::internal)?,
                };
                let noise = (self.settings.sigma, seed);
                let mut vector = Vec::new();
                for view in &views {
                    let samples = ticket.samples(view, noise, Stage::Gallery, 0..count)?;
                    vector.extend(samples.mean().iter().map(|&value| value as f32));
                }
                let plain = snapshot.gallery().plain().map(|_| embed_clean(&views, ticket)).transpose()?;
                (vector, plain)
            }
            None => {
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
        self.gallery.add(Addition { identity, label, vector, plain, picture: bytes.to_vec(), format })
    }

    /// The label that the smoothed retriever gives, by a pilot alone.
    pub(crate) fn guess(&self, picture: &Arc<Prepared>, ticket: &Ticket) -> Result<String, Problem> {
        let seed = secret_seed().map_err(Problem::internal)?;
        let noise = (self.settings.sigma, seed);
        let pilot = ticket.samples(picture, noise, Stage::Pilot, 0..self.settings.pilot.get())?;
        let snapshot = self.gallery.current();
        let gallery = snapshot.gallery();
        let certifier = Certifier::new(gallery, self.settings.sigma, self.settings.alpha);
        let found = certifier.candidate(self.settings.retriever, &pilot, &[])?;
        let label = found.ok_or_else(|| Problem::conflict("the gallery is empty"))?;
        Ok(gallery.label_name(label).to_owned())
    }

    /// The largest radius that any query could get with so many samples.
    pub(crate) fn largest_radius(&self, snapshot: &Snapshot) -> Option<f64> {
        let ceiling = Ceiling::new(
            self.settings.sigma,
            self.settings.alpha,
            self.embedder.norm_bound(),
            snapshot.gallery().dimension(),
        );
        ceiling.largest_radius(self.settings.retriever.certificate(), self.settings.samples)
    }

    /// What the metrics show, with the number of unfinished jobs.
    pub(crate) fn readings(&self, jobs: usize) -> Readings {
        Readings {
            work: self.scheduler.work(),
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

/// Embeddings of pictures without noise, laid end to end.
fn embed_clean(pictures: &[Arc<Prepared>], ticket: &Ticket) -> Result<Vec<f32>, Problem> {
    let mut clean = Vec::new();
    for picture in pictures {
        clean.extend_from_slice(ticket.plain(picture.pixels.clone())?.row(0));
    }
    Ok(clean)
}
