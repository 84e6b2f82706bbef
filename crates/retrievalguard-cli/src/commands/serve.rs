//! `retrievalguard serve`: a gallery as a service, with an HTTP interface and a page.

use std::fs;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::ValueEnum;
use retrievalguard::certificate::Retriever;
use retrievalguard::storage::manifest::GalleryDirectory;
use retrievalguard::{Alpha, SampleCount, Sigma};
use retrievalguard_encoder::engine::{OnnxEmbedder, OnnxGradients};
use retrievalguard_encoder::pipeline::{default_pilot, noise_of};
use retrievalguard_encoder::receipt::ReceiptKey;
use retrievalguard_server::{Limits, OpenError, Sampling, Serving, Settings, SharedGradients, Tokens};
#[cfg(unix)]
use retrievalguard_server::{Reloader, Stop};
#[cfg(unix)]
use signal_hook::iterator::Signals;

use super::certify::{no_noise, usual_alpha, usual_samples, with_config_difference};
use crate::arguments::{ModelArgs, RetrieverArg, components, refuse_noise, up_to};
use crate::service_manager;

#[derive(clap::Args, Debug)]
#[command(
    args_override_self = true,
    after_help = "Example: retrievalguard serve --gallery products.gallery --model encoder.onnx, then open the address it prints\n\n\
                  SIGHUP opens the gallery again, SIGTERM ends the service in an orderly way."
)]
pub(crate) struct ServeArgs {
    /// Gallery to search in and to change, as written by `retrievalguard index`
    #[arg(long, value_name = "DIR")]
    gallery: PathBuf,
    /// Standard deviation of the noise, in pixels scaled to [0, 1]; the gallery's own by default. Without either there is no
    /// noise, and the encoder needs a Lipschitz bound
    #[arg(long, allow_negative_numbers = true)]
    sigma: Option<Sigma>,
    /// Probability that an answer's guarantee is wrong, 0.01 by default
    #[arg(long, allow_negative_numbers = true)]
    alpha: Option<Alpha>,
    /// Certifying samples of a query that does not ask for a number, 1000 by default
    #[arg(long)]
    samples: Option<SampleCount>,
    /// Pilot samples, on which the label is chosen: 200, or 20 for pairwise
    #[arg(long)]
    pilot: Option<SampleCount>,
    /// Which retriever answers: pairwise by default, plain for a gallery without noise
    #[arg(long, value_enum)]
    retriever: Option<RetrieverArg>,
    /// Serve the gallery as it is, without taking its lock; jobs need a folder of their own then
    #[arg(long)]
    read_only: bool,
    /// Where jobs are kept; the folder `jobs` in the gallery by default
    #[arg(long, value_name = "DIR")]
    jobs: Option<PathBuf>,
    /// Estimate gradients in the search for perturbations, even if they could be computed
    #[arg(long)]
    black_box: bool,
    /// Sign receipts with this key, as written by `retrievalguard receipt-key`
    #[arg(long, value_name = "FILE")]
    receipt_key: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
    /// Address to listen on; any but a loopback address needs --tokens
    #[arg(long, default_value = "127.0.0.1", help_heading = "Network")]
    host: IpAddr,
    /// Port to listen on; 0 for any that is free
    #[arg(long, default_value = "8765", help_heading = "Network")]
    port: u16,
    /// File with lines `read TOKEN` and `write TOKEN`; without it no token is needed
    #[arg(long, value_name = "FILE", help_heading = "Network")]
    tokens: Option<PathBuf>,
    /// Another name under which the service may be addressed; may be given several times
    #[arg(long, value_name = "NAME", help_heading = "Network")]
    allowed_host: Vec<String>,
    /// Seconds for open requests to finish when the service stops
    #[arg(long, default_value = "30", value_parser = clap::value_parser!(u64).range(..=86_400), help_heading = "Network")]
    grace: u64,
    /// How the log on standard error is written
    #[arg(long, value_enum, default_value = "json", help_heading = "Network")]
    log: LogFormat,
    #[command(flatten)]
    limits: LimitArgs,
}

#[derive(clap::Args, Debug)]
struct LimitArgs {
    /// Megabytes of a request's body
    #[arg(long, default_value = "8", value_parser = up_to::<1_024>, help_heading = "Limits")]
    max_body: NonZeroUsize,
    /// Megapixels of a picture
    #[arg(long, default_value = "40", value_parser = up_to::<1_000>, help_heading = "Limits")]
    max_megapixels: NonZeroUsize,
    /// Certifying samples of a query, 10000 by default
    #[arg(long, help_heading = "Limits")]
    max_samples: Option<SampleCount>,
    /// Certifying samples of each picture of a job, 100000 by default
    #[arg(long, help_heading = "Limits")]
    max_job_samples: Option<SampleCount>,
    /// Seconds until a query is given up
    #[arg(long, default_value = "30", value_parser = up_to::<86_400>, help_heading = "Limits")]
    max_seconds: NonZeroUsize,
    /// Requests answered at the same time; more are refused
    #[arg(long, default_value = "64", value_parser = up_to::<65_536>, help_heading = "Limits")]
    queue: NonZeroUsize,
    /// Of these, requests of one client; half of them by default
    #[arg(long, value_parser = up_to::<65_536>, help_heading = "Limits")]
    per_client: Option<NonZeroUsize>,
    /// Open connections
    #[arg(long, default_value = "1024", value_parser = up_to::<65_536>, help_heading = "Limits")]
    connections: NonZeroUsize,
    /// Of these, connections from one address; a quarter of them, but at least 8, by default. Behind a proxy everyone has its address: give as
    /// many as --connections
    #[arg(long, value_parser = up_to::<65_536>, help_heading = "Limits")]
    connections_per_client: Option<NonZeroUsize>,
    /// Seconds that a search for a perturbation may take
    #[arg(long, default_value = "20", value_parser = up_to::<86_400>, help_heading = "Limits")]
    max_search_seconds: NonZeroUsize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// One JSON object per line
    Json,
    /// For reading
    Text,
    /// None
    Off,
}

pub(super) fn run(arguments: &ServeArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    // From here on a hangup ends nothing: it waits until there is a gallery to reload.
    #[cfg(unix)]
    let hangups = Signals::new([signal_hook::consts::SIGHUP])?;
    let (gallery, model) = (&arguments.gallery, &arguments.model);
    let sigma = noise_of(arguments.sigma, &GalleryDirectory::read_manifest(gallery)?.provenance);
    let usual = Limits::default();
    let sampling = sampling(arguments, sigma, &usual)?;
    let tokens = match &arguments.tokens {
        Some(path) => read_tokens(path)?,
        None => Tokens::default(),
    };
    start_log(arguments.log);
    let note = |note: &str| tracing::warn!(note, "note");
    let embedder = match sampling {
        Some(_) => {
            let embedder = model.engine.open_telling(&model.model, model.contract.as_deref(), note)?;
            embedder.with_components(components(model.non_negative))
        }
        None => {
            let why = no_noise(gallery);
            let embedder = model.open_double_telling(&why, note)?;
            embedder.lipschitz().with_context(|| format!("{why}; wanted such a bound, or --sigma"))?;
            embedder
        }
    };
    let embedder = Arc::new(embedder);
    let gradients = gradients(arguments, model, &embedder);
    let limits = &arguments.limits;
    let settings = Settings {
        gallery: gallery.clone(),
        read_only: arguments.read_only,
        jobs: arguments.jobs.clone().or_else(|| (!arguments.read_only).then(|| usual_jobs(gallery))),
        sampling,
        threads: model.engine.threads(),
        batch: model.engine.batch,
        limits: Limits {
            body_bytes: limits.max_body.get() << 20,
            pixels: limits.max_megapixels.get() as u64 * 1_000_000,
            samples: limits.max_samples.map_or(usual.samples, SampleCount::get),
            job_samples: limits.max_job_samples.map_or(usual.job_samples, SampleCount::get),
            seconds: limits.max_seconds.get() as u64,
            queue: limits.queue.get(),
            per_client: limits.per_client.map_or(limits.queue.get().div_ceil(2), NonZeroUsize::get),
            connections: limits.connections.get(),
            connections_per_client: limits
                .connections_per_client
                .map_or_else(|| usual_share(limits.connections.get()), NonZeroUsize::get),
            search_seconds: limits.max_search_seconds.get() as u64,
            ..usual
        },
        receipt_key: arguments.receipt_key.as_deref().map(ReceiptKey::read).transpose()?,
        tokens,
        hosts: arguments.allowed_host.clone(),
        grace: Duration::from_secs(arguments.grace),
    };
    let address = SocketAddr::new(arguments.host, arguments.port);
    let opened = Serving::open(address, settings, Arc::clone(&embedder), gradients);
    let serving = opened.map_err(|error| match error {
        OpenError::Mismatch(error) => with_config_difference(error, gallery, &embedder),
        other => other.into(),
    })?;
    #[cfg(unix)]
    hear_signals(serving.stop(), serving.reloader(), hangups)?;
    // Programs that start the service read where it is; nothing else goes to standard output.
    writeln!(out, "http://{}", serving.address()?)?;
    out.flush()?;
    service_manager::ready(&format!("serving {} at http://{}", gallery.display(), serving.address()?));
    serving.run().context("the service ended")
}

/// The folder of jobs in a gallery; it stays where it is when a link to the gallery is changed.
fn usual_jobs(gallery: &Path) -> PathBuf {
    gallery.canonicalize().unwrap_or_else(|_| gallery.to_owned()).join("jobs")
}

/// How noisy copies are drawn; nothing without a noise level, and then nothing may be said about them.
fn sampling(arguments: &ServeArgs, sigma: Option<Sigma>, usual: &Limits) -> anyhow::Result<Option<Sampling>> {
    let ServeArgs { gallery, alpha, samples, pilot, retriever, limits, .. } = arguments;
    let Some(sigma) = sigma else {
        let why = no_noise(gallery);
        let given = [
            ("--alpha", alpha.is_some()),
            ("--samples", samples.is_some()),
            ("--pilot", pilot.is_some()),
            ("--max-samples", limits.max_samples.is_some()),
            ("--max-job-samples", limits.max_job_samples.is_some()),
        ];
        refuse_noise(&why, &given)?;
        if let Some(retriever) = retriever.filter(|&retriever| retriever != RetrieverArg::Plain) {
            let retriever = Retriever::from(retriever);
            bail!("the {retriever} retriever answers from noisy copies, and {why}; wanted plain, or --sigma");
        }
        return Ok(None);
    };
    let retriever = Retriever::from(retriever.unwrap_or(RetrieverArg::Pairwise));
    if retriever == Retriever::Plain {
        bail!("the plain retriever has no noise, found sigma {sigma}; wanted mean, vote or pairwise");
    }
    let samples = samples.unwrap_or_else(usual_samples);
    let most = limits.max_samples.map_or(usual.samples, SampleCount::get);
    Ok(Some(Sampling {
        sigma,
        alpha: alpha.unwrap_or_else(usual_alpha),
        pilot: pilot.unwrap_or_else(|| default_pilot(&[retriever.certificate()], None)),
        retriever,
        samples: samples.min(SampleCount::new(u64::from(most))?),
        excess: arguments.model.excess(),
    }))
}

/// Connections of one address: a quarter of them, and enough for a browser, which opens six.
fn usual_share(connections: usize) -> usize {
    connections.div_ceil(4).max(8).min(connections)
}

fn read_tokens(path: &Path) -> anyhow::Result<Tokens> {
    let text =
        fs::read_to_string(path).with_context(|| format!("tokens `{}` cannot be read", path.display()))?;
    let tokens =
        Tokens::parse(&text).with_context(|| format!("tokens `{}` cannot be used", path.display()))?;
    if tokens.is_empty() {
        bail!("tokens `{}` has none, wanted lines `read TOKEN` or `write TOKEN`", path.display());
    }
    Ok(tokens)
}

fn start_log(format: LogFormat) {
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_target(false);
    // On a full disk the log is lost, and the complaint about it would be a panic in the middle of an answer.
    let log = log.log_internal_errors(false);
    match format {
        LogFormat::Json => log.json().flatten_event(true).init(),
        LogFormat::Text => log.with_ansi(false).init(),
        LogFormat::Off => {}
    }
}

/// The first signal ends the service in an orderly way, the second at once; hangups reload the gallery.
#[cfg(unix)]
fn hear_signals(stop: Stop, reloader: Reloader, mut hangups: Signals) -> anyhow::Result<()> {
    use signal_hook::consts::{SIGINT, SIGTERM};

    // A thread of its own: a long reload must not keep the service from ending.
    std::thread::Builder::new().name("reload".to_owned()).spawn(move || {
        for _ in hangups.forever() {
            service_manager::reloading();
            // The log has the rest.
            let status = match reloader.reload() {
                Ok(true) => "another gallery was taken".to_owned(),
                Ok(false) => "the gallery is what it was".to_owned(),
                Err(error) => error.to_string(),
            };
            service_manager::ready(&status);
        }
    })?;
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let mut signals = signals.forever();
        if signals.next().is_some() {
            service_manager::stopping();
            stop.stop();
        }
        if let Some(signal) = signals.next() {
            std::process::exit(128 + signal);
        }
    })?;
    Ok(())
}

/// The gradients of an encoder, if they are wanted and can be computed.
fn gradients(arguments: &ServeArgs, model: &ModelArgs, embedder: &OnnxEmbedder) -> Option<SharedGradients> {
    if arguments.black_box {
        return None;
    }
    match OnnxGradients::open(&model.model, embedder, model.engine.threads()) {
        Ok(gradients) => Some(Arc::new(gradients)),
        Err(error) => {
            tracing::warn!("{}", super::attack::without_gradients(&error));
            None
        }
    }
}
