//! Everything behind the addresses: the service, its searches and its jobs, opened and closed together.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use axum::extract::FromRef;
use retrievalguard_encoder::engine::OnnxEmbedder;

use crate::OpenError;
use crate::jobs::{JobRunner, Jobs};
use crate::search::{Searches, SharedGradients};
use crate::service::Service;
use crate::settings::Settings;

/// What requests share; a handler takes the part it needs.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) service: Arc<Service>,
    pub(crate) searches: Arc<Searches>,
    pub(crate) jobs: Arc<Jobs>,
    background: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

impl App {
    /// Opens gallery and jobs, measures how fast the encoder is, and starts the threads.
    pub(crate) fn open(
        settings: Settings,
        embedder: Arc<OnnxEmbedder>,
        gradients: Option<SharedGradients>,
    ) -> Result<Self, OpenError> {
        let service = Arc::new(Service::open(settings, embedder)?);
        let settings = &service.settings;
        let pilot = settings.sampling.map(|sampling| sampling.pilot);
        let jobs = Jobs::open(settings.jobs.as_deref(), settings.limits.jobs, pilot)
            .map_err(|source| OpenError::Jobs { path: settings.jobs.clone().unwrap_or_default(), source })?;
        service.warm_up()?;
        let app = Self {
            searches: Arc::new(Searches::new(Arc::clone(&service), gradients)),
            jobs: Arc::new(jobs),
            service,
            background: Arc::default(),
        };
        let runner = JobRunner { service: Arc::clone(&app.service), jobs: Arc::clone(&app.jobs) };
        app.start("jobs", move || runner.run())?;
        Ok(app)
    }

    fn start(&self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), OpenError> {
        let thread = Builder::new().name(name.to_owned()).spawn(run).map_err(OpenError::Threads)?;
        self.background.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(())
    }

    /// Admits nobody any more and stops jobs where they are.
    pub(crate) fn begin_closing(&self) {
        self.service.begin_closing();
        self.jobs.close();
    }

    /// Ends what is left, after requests had time to finish.
    pub(crate) fn close(&self) {
        self.begin_closing();
        self.service.close();
        for thread in std::mem::take(&mut *self.background.lock().unwrap_or_else(PoisonError::into_inner)) {
            if thread.join().is_err() {
                tracing::error!("a background thread panicked");
            }
        }
    }
}

impl FromRef<App> for Arc<Service> {
    fn from_ref(app: &App) -> Self {
        Self::clone(&app.service)
    }
}

impl FromRef<App> for Arc<Searches> {
    fn from_ref(app: &App) -> Self {
        Self::clone(&app.searches)
    }
}

impl FromRef<App> for Arc<Jobs> {
    fn from_ref(app: &App) -> Self {
        Self::clone(&app.jobs)
    }
}
