//! The service behind the addresses: one encoder, one gallery, and everyone who asks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hyper::StatusCode;
use retrievalguard::attack::InputGradients;
use retrievalguard::certificate::{CertificateName, Certifier};
use retrievalguard::noise::Stage;
use retrievalguard::planner::Ceiling;
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::manifest::SeedRecord;
use retrievalguard::{Embedder, Picture, Samples, Seed, Smoother};
use retrievalguard_encoder::engine::OnnxEmbedder;
use retrievalguard_encoder::picture::{PictureFormat, PictureLimits, RgbPicture};
use retrievalguard_encoder::pipeline::{check_gallery, input_values};
use tokio::sync::Semaphore;

use crate::admission::{Admission, AdmissionSlot};
use crate::answer::Answer;
use crate::gallery_writer::{Addition, GalleryWriter, Snapshot, Written};
use crate::jobs::{Job, JobState, Jobs};
use crate::metrics::{Metrics, Readings};
use crate::perturbation::{Perturbation, Store};
use crate::problem::Problem;
use crate::query_execution::{Permits, QueryExecution, QueryProgress, QueryRequest};
use crate::scheduler::{Prepared, Scheduler, Ticket};
use crate::settings::{Guarantees, Settings};
use crate::{OpenError, secret_seed};

/// Longest that a job waits for room on the disk before it is tried again.
const FULL_DISK: Duration = Duration::from_secs(10);

/// Gradients that the search for perturbations may use.
pub type SharedGradients = Arc<dyn InputGradients + Send + Sync>;

/// Everything that requests share.
pub(crate) struct Service {
    pub(crate) settings: Settings,
    pub(crate) guarantees: Guarantees,
    pub(crate) embedder: Arc<OnnxEmbedder>,
    pub(crate) gradients: Option<SharedGradients>,
    pub(crate) scheduler: Scheduler,
    pub(crate) gallery: GalleryWriter,
    pub(crate) admission: Arc<Admission>,
    pub(crate) permits: Permits,
    pub(crate) jobs: Jobs,
    pub(crate) perturbations: Store,
    pub(crate) metrics: Metrics,
    /// Searches at once: they cost much and promise nothing.
    pub(crate) searches: Arc<Semaphore>,
    /// When the running search is over, or the last one was.
    pub(crate) search_end: Mutex<Instant>,
    /// Small pictures that are drawn at once; others wait without a thread.
    pub(crate) drawing: Semaphore,
    pub(crate) closing: AtomicBool,
    background: Mutex<Vec<JoinHandle<()>>>,
}

impl Service {
    /// Opens gallery and jobs, starts the threads, and measures how fast the encoder is.
    pub(crate) fn open(
        settings: Settings,
        embedder: Arc<OnnxEmbedder>,
        gradients: Option<SharedGradients>,
    ) -> Result<Arc<Self>, OpenError> {
        let Settings { pilot, samples, limits: allowed, .. } = &settings;
        for count in [pilot.get(), samples.get(), allowed.samples, allowed.job_samples] {
            Samples::check_memory(count, embedder.dimension())?;
        }
        let name = settings.gallery.display().to_string();
        let gallery = GalleryWriter::open(&settings.gallery, settings.read_only)?;
        check_gallery(&gallery.current().to_directory(), &name, &embedder, settings.sigma)?;
        let folder = settings.jobs.as_deref();
        let jobs = Jobs::open(folder, settings.limits.jobs, settings.pilot)
            .map_err(|source| OpenError::Jobs { path: settings.jobs.clone().unwrap_or_default(), source })?;
        let scheduler = Scheduler::start(
            Arc::clone(&embedder) as Arc<dyn Embedder + Send + Sync>,
            settings.threads,
            settings.batch,
            settings.excess,
        )
        .map_err(OpenError::Threads)?;
        let limits = settings.limits;
        let service = Arc::new(Self {
            guarantees: Guarantees {
                sigma: settings.sigma,
                alpha: settings.alpha,
                pilot: settings.pilot,
                input: embedder.model_config().picture_shape(),
                model: embedder.facts().hash.clone(),
                contract: embedder.model_config().hash(),
            },
            admission: Arc::new(Admission::new(limits.queue, limits.per_client, limits.seconds)),
            permits: Permits::new(settings.threads.get()),
            metrics: Metrics::new(settings.sigma.get()),
            perturbations: Store::default(),
            searches: Arc::new(Semaphore::new(1)),
            search_end: Mutex::new(Instant::now()),
            drawing: Semaphore::new(settings.threads.get()),
            closing: AtomicBool::new(false),
            background: Mutex::default(),
            settings,
            embedder,
            gradients,
            scheduler,
            gallery,
            jobs,
        });
        service.warm_up()?;
        service.start("jobs", Self::run_jobs)?;
        service.start("plain-gallery", Self::prepare_plain)?;
        Ok(service)
    }

    /// Runs a few passes, so that the first query finds the encoder awake and the queue knows its speed.
    fn warm_up(&self) -> Result<(), OpenError> {
        let grey = vec![0.5; self.embedder.input_len()];
        let picture = Arc::new(Prepared { identity: "warm-up".to_owned(), pixels: grey });
        let passes = 4 * u32::try_from(self.settings.batch.get()).unwrap_or(64).min(64);
        let drawn = self.scheduler.ticket().samples(
            &picture,
            (self.settings.sigma, Seed::new(0)),
            Stage::Trial,
            0..passes,
        );
        drawn.map(|_| ()).map_err(OpenError::Encoder)
    }

    fn start(self: &Arc<Self>, name: &str, run: fn(&Self)) -> Result<(), OpenError> {
        let service = Arc::clone(self);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || run(&service));
        let thread = thread.map_err(OpenError::Threads)?;
        self.background.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(())
    }

    /// Lets nobody in any more and stops jobs where they are.
    pub(crate) fn begin_closing(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.admission.close();
        self.jobs.close();
    }

    /// Ends what is left, after everyone had the time to finish.
    pub(crate) fn close(&self) {
        self.begin_closing();
        self.scheduler.close();
        self.gallery.close();
        for thread in std::mem::take(&mut *self.background.lock().unwrap_or_else(PoisonError::into_inner)) {
            if thread.join().is_err() {
                tracing::error!("a background thread panicked");
            }
        }
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
        let prepared = Prepared { identity: name.to_owned(), pixels };
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
    fn answer_from(
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

    /// Embeds a picture as the gallery's own were embedded, and adds it.
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
        let clean = ticket.plain(prepared.pixels.clone())?.row(0).to_vec();
        let provenance = snapshot.provenance();
        let vector = match provenance.samples {
            Some(0) => clean.clone(),
            Some(count) => {
                let seed = match provenance.seed {
                    Some(SeedRecord::Fixed(seed)) => seed,
                    Some(SeedRecord::Secret) | None => secret_seed().map_err(Problem::internal)?,
                };
                let noise = (self.settings.sigma, seed);
                let samples = ticket.samples(&prepared, noise, Stage::Gallery, 0..count)?;
                samples.mean().iter().map(|&value| value as f32).collect()
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
        self.gallery.add(Addition { identity, label, vector, clean, picture: bytes.to_vec(), format })
    }

    /// The label that the smoothed retriever gives, by a pilot alone.
    pub(crate) fn guess(&self, picture: &Arc<Prepared>, ticket: &Ticket) -> Result<String, Problem> {
        let seed = secret_seed().map_err(Problem::internal)?;
        let noise = (self.settings.sigma, seed);
        let pilot = ticket.samples(picture, noise, Stage::Pilot, 0..self.settings.pilot.get())?;
        let snapshot = self.gallery.current();
        let gallery = snapshot.gallery();
        let certifier = Certifier::new(gallery, self.settings.sigma, self.settings.alpha);
        let found = certifier.retrieve(&pilot, &[])?;
        let row = found.ok_or_else(|| Problem::conflict("the gallery is empty"))?.row;
        Ok(gallery.label_name(gallery.label(row)).to_owned())
    }

    /// A perturbation in a random direction.
    pub(crate) fn random_direction(
        &self,
        picture: Arc<Prepared>,
        hash: String,
        label: String,
    ) -> Result<Perturbation, Problem> {
        let seed = secret_seed().map_err(Problem::internal)?;
        Perturbation::random(picture, hash, label, seed)
            .ok_or_else(|| Problem::unprocessable("the picture has no pixels to change"))
    }

    /// The largest radius that any query could get with so many samples.
    pub(crate) fn largest_radius(&self, snapshot: &Snapshot) -> Option<f64> {
        let ceiling = Ceiling::new(
            self.settings.sigma,
            self.settings.alpha,
            self.embedder.norm_bound(),
            snapshot.gallery().dimension(),
        );
        ceiling.largest_radius(CertificateName::HalfSpace, self.settings.samples)
    }

    pub(crate) fn readings(&self) -> Readings {
        Readings {
            work: self.scheduler.work(),
            backlog: self.scheduler.backlog(),
            inside: self.admission.count(),
            items: self.gallery.current().gallery().len(),
            jobs: self.jobs.unfinished(),
        }
    }

    /// One job after the other, until the service ends.
    fn run_jobs(&self) {
        while let Some(job) = self.jobs.next() {
            let ticket = Arc::new(self.scheduler.background_ticket());
            if !job.begin(&ticket) {
                continue;
            }
            tracing::info!(job = %job.id, pictures = job.request.pictures, "job begins");
            let result = self.run_job(&job, &ticket);
            if self.jobs.is_closed() {
                return;
            }
            if let Err(problem) = result
                && !job.state().is_over()
            {
                let full = problem.status == StatusCode::INSUFFICIENT_STORAGE;
                // The answer that could not be kept is there; it is tried again to write it down.
                if full || job.over(JobState::Failed, Some(problem.message)).is_err() {
                    tracing::error!(job = %job.id, "a job could not be kept and waits for room on the disk");
                    job.put_back();
                    self.jobs.pause(FULL_DISK);
                    continue;
                }
            }
            tracing::info!(job = %job.id, state = ?job.state(), "job ends");
        }
    }

    fn run_job(&self, job: &Job, ticket: &Ticket) -> Result<(), Problem> {
        job.keep()?;
        while let Some(index) = job.open_picture() {
            let bytes = job.picture(index)?;
            let (prepared, picture_hash) = self.prepare(&format!("{}-{index}", job.id), &bytes)?;
            let snapshot = self.gallery.current();
            let identity = self.noise_identity(job, index, &snapshot);
            let picture = Arc::new(Prepared { identity, pixels: prepared.pixels.clone() });
            let request = QueryRequest {
                picture,
                picture_hash,
                samples: job.request.samples,
                target: job.request.target,
                top_k: job.request.top_k,
                seed: job.request.seed,
                request_id: job.request.request_id.clone(),
            };
            let mut report = |progress: QueryProgress| match progress {
                QueryProgress::First(_) => {}
                QueryProgress::Step(step) => job.reached(index, step.radius),
            };
            let answer = self.answer_from(&snapshot, &request, ticket, None, Some(&mut report))?;
            job.answered(index, answer)?;
        }
        Ok(())
    }

    /// Under which name the noise of a job's picture is drawn from the job's seed.
    ///
    /// A job that goes on after a restart repeats a picture whose radii may have been shown already. Against the same system
    /// it repeats its noise, and so its answer. Against another gallery, or another guarantee, that noise would no longer be
    /// independent of what it is to prove: the name is another, and the noise with it.
    fn noise_identity(&self, job: &Job, index: usize, snapshot: &Snapshot) -> String {
        let Guarantees { sigma, alpha, pilot, model, contract, .. } = &self.guarantees;
        let (gallery, engine) = (snapshot.version(), self.embedder.report());
        format!("{}-{index} {gallery} {model} {contract} {engine} {sigma} {alpha} {pilot}", job.id)
    }

    /// Embeds the gallery's pictures without noise, for the plain retriever.
    fn prepare_plain(&self) {
        let started = Instant::now();
        let ticket = self.scheduler.background_ticket();
        let embed = |name: &str, bytes: &[u8]| {
            if self.is_closing() {
                return None;
            }
            let (picture, _) = self.prepare(name, bytes).ok()?;
            Some(ticket.plain(picture.pixels.clone()).ok()?.row(0).to_vec())
        };
        let found = self.gallery.prepare_plain(embed);
        let seconds = started.elapsed().as_secs_f64();
        match found {
            Some(items) => tracing::info!(items, seconds, "the plain retriever has its own gallery"),
            None => tracing::info!("the plain retriever searches in the stored vectors"),
        }
    }

    /// How long a query may take.
    pub(crate) fn time_limit(&self) -> Duration {
        Duration::from_secs(self.settings.limits.seconds)
    }
}
