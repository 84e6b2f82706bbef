//! Numbers for Prometheus.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::answer::{Answer, VerdictWord};
use crate::scheduler::Work;

type Labels = Vec<(&'static str, String)>;

/// What the service counts.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<Labels, Counter>,
    seconds: Family<Labels, Histogram, fn() -> Histogram>,
    answers: Family<Labels, Counter>,
    radius: Histogram,
    samples: Counter,
    passes: Counter,
    batches: Counter,
    shared_batches: Counter,
    turned_away: Counter,
    reloads: Family<Labels, Counter>,
    backlog: Gauge,
    inside: Gauge,
    items: Gauge,
    jobs: Gauge,
}

/// What is read off when the numbers are asked for.
pub(crate) struct Readings {
    pub(crate) work: Work,
    pub(crate) backlog: u64,
    pub(crate) inside: usize,
    pub(crate) items: usize,
    pub(crate) jobs: usize,
}

fn seconds() -> Histogram {
    Histogram::new([0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0])
}

impl Metrics {
    /// Radii are counted in shares of the noise level; without one, from hundredths to what copies of whole pictures have.
    pub(crate) fn new(sigma: Option<f64>) -> Self {
        let mut registry = Registry::with_prefix("retrievalguard");
        let requests = Family::<Labels, Counter>::default();
        registry.register("http_requests", "Requests by method, route and status", requests.clone());
        let by_route: Family<Labels, Histogram, fn() -> Histogram> = Family::new_with_constructor(seconds);
        registry.register_with_unit(
            "http_request",
            "Time until the answer begins",
            Unit::Seconds,
            by_route.clone(),
        );
        let answers = Family::<Labels, Counter>::default();
        registry.register("answers", "Answers to queries by verdict", answers.clone());
        let shares = [0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0];
        let radius = Histogram::new(match sigma {
            Some(sigma) => shares.map(|share| share * sigma),
            None => [0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0],
        });
        registry.register("certified_radius", "Certified radii, abstentions left out", radius.clone());
        let samples = Counter::default();
        registry.register("certifying_samples", "Certifying samples of finished answers", samples.clone());
        let [passes, batches, shared_batches] = [(); 3].map(|()| Counter::default());
        registry.register("encoder_passes", "Pictures that the encoder embedded", passes.clone());
        registry.register("encoder_batches", "Calls of the encoder", batches.clone());
        registry.register(
            "encoder_shared_batches",
            "Calls shared by several queries",
            shared_batches.clone(),
        );
        let turned_away = Counter::default();
        registry.register(
            "connections_turned_away",
            "Connections of clients that had too many",
            turned_away.clone(),
        );
        let reloads = Family::<Labels, Counter>::default();
        registry.register("gallery_reloads", "Reloads of the gallery by outcome", reloads.clone());
        let [backlog, inside, items, jobs] = [(); 4].map(|()| Gauge::default());
        registry.register("encoder_backlog", "Passes that wait for the encoder", backlog.clone());
        registry.register("requests_inside", "Requests that are being answered", inside.clone());
        registry.register("gallery_items", "Items of the gallery", items.clone());
        registry.register("jobs_unfinished", "Jobs that are not finished", jobs.clone());
        Self {
            registry,
            requests,
            seconds: by_route,
            answers,
            radius,
            samples,
            passes,
            batches,
            shared_batches,
            turned_away,
            reloads,
            backlog,
            inside,
            items,
            jobs,
        }
    }

    pub(crate) fn request(&self, method: &str, route: &str, status: u16, time: Duration) {
        let route = ("route", route.to_owned());
        let labels = vec![("method", method.to_owned()), route.clone(), ("status", status.to_string())];
        self.requests.get_or_create(&labels).inc();
        self.seconds.get_or_create(&vec![route]).observe(time.as_secs_f64());
    }

    /// A client had too many connections.
    pub(crate) fn turned_away(&self) {
        self.turned_away.inc();
    }

    /// A reload came to an end.
    pub(crate) fn reload(&self, outcome: &str) {
        self.reloads.get_or_create(&vec![("outcome", outcome.to_owned())]).inc();
    }

    pub(crate) fn answer(&self, answer: &Answer) {
        let verdict = match answer.verdict {
            VerdictWord::Certified => "certified",
            VerdictWord::Abstained => "abstained",
        };
        self.answers.get_or_create(&vec![("verdict", verdict.to_owned())]).inc();
        self.samples.inc_by(u64::from(answer.samples.unwrap_or(0)));
        if let Some(radius) = answer.radius {
            self.radius.observe(radius);
        }
    }

    /// The numbers in Prometheus' text form.
    pub(crate) fn text(&self, readings: &Readings) -> Result<String, std::fmt::Error> {
        let set = |counter: &Counter, value| {
            let counter: &AtomicU64 = counter.inner();
            counter.store(value, Ordering::Relaxed);
        };
        set(&self.passes, readings.work.passes);
        set(&self.batches, readings.work.batches);
        set(&self.shared_batches, readings.work.shared_batches);
        let show =
            |gauge: &Gauge<i64, AtomicI64>, value: u64| gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        show(&self.backlog, readings.backlog);
        show(&self.inside, readings.inside as u64);
        show(&self.items, readings.items as u64);
        show(&self.jobs, readings.jobs as u64);
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}
