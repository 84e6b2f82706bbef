//! `retrievalguard demo`: renders pictures, indexes them, certifies queries and shows the result.

mod show;

use std::fs;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};
use retrievalguard::certificate::CertificateName;
use retrievalguard::gallery::Metric;
use retrievalguard::storage::atomic::{self, WriteError};
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::journal::Differences;
use retrievalguard::storage::lock::{FolderLock, LOCK_FILE};
use retrievalguard::storage::stored::StoredGallery;
use retrievalguard::views::ViewSet;
use retrievalguard::{Alpha, Excess, SampleCount, Seed, Sigma};
use retrievalguard_encoder::dataset::{
    Boxes, BrokenPictures, DatasetOptions, Format, RecordSet, Selected, open,
};
use retrievalguard_encoder::engine::OnnxEmbedder;
use retrievalguard_encoder::model_config::ModelConfig;
use retrievalguard_encoder::pipeline::run_files::{Inputs, RunPlaces, Tables, write_run};
use retrievalguard_encoder::pipeline::{
    CertifyOptions, CertifyReport, CertifyRequest, IndexRequest, LeaveOneOut, certify, index,
    usual_certificates,
};
use retrievalguard_encoder::synthetic::{Part, SyntheticDataset};
use retrievalguard_encoder::views::view_set;
use serde_json::{Value, json};

use super::certify::{print_plan, tell_resumed};
use super::run_directory::{log_run, own_command};
use crate::arguments::EngineArgs;
use crate::progress::Progress;

/// The encoder that ships with the program.
const ENCODER: &[u8] = include_bytes!("../../demo/encoder.onnx");

/// Its model config.
const MODEL_CONFIG: &[u8] = include_bytes!("../../demo/encoder.toml");

/// The recipe that it was trained by.
const RECIPE: &str = include_str!("../../demo/recipe.toml");

/// The encoder with a Lipschitz bound that ships with the program, and its model config.
const BOUNDED: (&[u8], &[u8]) = (
    include_bytes!("../../demo/lipschitz/encoder.onnx"),
    include_bytes!("../../demo/lipschitz/encoder.toml"),
);

/// Views of each item that the encoder with a bound searches, beside the items as they are.
const VIEWS: &str = "shifts";

/// Seed of the synthetic data set whose training part the encoder has seen.
pub(super) const SYNTHETIC_SEED: u64 = 1;

/// Noisy copies that are averaged for an item of the gallery.
const GALLERY_SAMPLES: u32 = 32;

/// What the directory's results were made with.
const DEMO_FILE: &str = "demo.json";

#[derive(clap::Args, Debug)]
#[command(
    args_override_self = true,
    after_help = "Example: retrievalguard demo\n\n\
        The same command run again continues an interrupted demo and ends with the same bytes."
)]
pub(crate) struct DemoArgs {
    /// Directory for everything: pictures, encoder, gallery and certificates
    #[arg(long, value_name = "DIR", default_value = "retrievalguard-demo")]
    out: PathBuf,
    /// How many queries to certify, at most 180
    #[arg(long, default_value = "120")]
    queries: NonZeroUsize,
    /// Standard deviation of the noise, in pixels scaled to [0, 1]
    #[arg(long, default_value = "0.25", allow_negative_numbers = true)]
    sigma: Sigma,
    /// Probability that a certificate is wrong
    #[arg(long, default_value = "0.01", allow_negative_numbers = true)]
    alpha: Alpha,
    /// Certifying samples per query
    #[arg(long, default_value = "1000")]
    samples: SampleCount,
    /// Pilot samples per query, on which every choice is made
    #[arg(long, default_value = "200")]
    pilot: SampleCount,
    /// Train the encoder again on synthetic pictures instead of using the one that ships with the program
    #[arg(long)]
    train: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

/// The paths of everything.
struct DemoPaths {
    pictures: PathBuf,
    encoder: PathBuf,
    gallery: PathBuf,
    certificates: PathBuf,
    /// The same without noise, by another encoder.
    without_noise: PathBuf,
    /// Both kinds of certificates with common axes.
    figure: PathBuf,
}

impl DemoPaths {
    fn in_directory(directory: &Path) -> Self {
        Self {
            pictures: directory.join("pictures"),
            encoder: directory.join("encoder.onnx"),
            gallery: directory.join("gallery"),
            certificates: directory.join("certificates"),
            without_noise: directory.join("without-noise"),
            figure: directory.join("comparison.svg"),
        }
    }

    fn part(&self, part: Part) -> PathBuf {
        self.pictures.join(part.name())
    }
}

pub(super) fn run(arguments: &DemoArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    #[cfg(not(feature = "train"))]
    if arguments.train {
        return Err(super::not_built::NotBuilt("`demo --train`").into());
    }
    let directory = &arguments.out;
    let paths = DemoPaths::in_directory(directory);
    let (classes, pictures) = (Part::Queries.classes(), Part::Queries.pictures());
    let most = (classes.end - classes.start) * (pictures.end - pictures.start);
    if arguments.queries.get() as u64 > most {
        bail!("--queries is {}, wanted at most {most}, the synthetic pictures there are", arguments.queries);
    }
    refuse_foreign(directory)?;
    fs::create_dir_all(directory).map_err(|error| WriteError::new(directory, error))?;
    let _lock = FolderLock::take(directory)?;
    claim(directory, &description(arguments))?;
    provide_encoder(arguments, &paths)?;
    let embedder = arguments.engine.open(&paths.encoder, None)?;
    for part in [Part::Gallery, Part::Queries] {
        render(&paths, part, arguments.engine.threads())?;
    }

    let gallery = stored_gallery(arguments, &paths, &paths.gallery, Some(arguments.sigma), &embedder, None)?;
    let all = read(&paths, Part::Queries)?;
    let selected = Selected { chosen: all.spread(arguments.queries.get()), all };
    let options = options(arguments, CertificateName::SMOOTHED.to_vec());
    let name = paths.gallery.display().to_string();
    let request = options.request(Some(arguments.sigma), &selected, &embedder, (&gallery, &name))?;
    print_plan(&request)?;
    let smoothed =
        certified(&request, "certifying", (&paths, &paths.gallery, &paths.encoder), &paths.certificates)?;
    tell_resumed(&smoothed);
    let [bounded, views] = without_noise(arguments, &paths, &selected)?;
    show::show(arguments, &paths, &show::Runs { smoothed, bounded, views }, request.queries, out)
}

/// Certifies the same queries by an encoder with a Lipschitz bound: one pass each, no noise and no chance. Once against the
/// items as they are, once against several views of each.
fn without_noise(
    arguments: &DemoArgs,
    paths: &DemoPaths,
    selected: &Selected,
) -> anyhow::Result<[CertifyReport; 2]> {
    let folder = &paths.without_noise;
    fs::create_dir_all(folder).map_err(|error| WriteError::new(folder, error))?;
    let model = folder.join("encoder.onnx");
    write_encoder(&model, BOUNDED.0, BOUNDED.1)?;
    let embedder = OnnxEmbedder::open(&model, ModelConfig::for_model(&model)?, &arguments.engine.double())?;
    let run = |views: Option<&ViewSet>, names: Vec<CertificateName>| {
        let named = |name: &str| match views {
            Some(set) => folder.join(format!("{name}-{}", set.name())),
            None => folder.join(name),
        };
        let gallery = named("gallery");
        let stored = stored_gallery(arguments, paths, &gallery, None, &embedder, views)?;
        let (options, name) = (options(arguments, names), gallery.display().to_string());
        let request = options.request(None, selected, &embedder, (&stored, &name))?;
        certified(&request, "certifying without noise", (paths, &gallery, &model), &named("certificates"))
    };
    let views = view_set(VIEWS)?;
    Ok([run(None, usual_certificates(None))?, run(Some(&views), vec![CertificateName::Lipschitz])?])
}

/// Certifies, or goes on with it, and leaves the run in a folder.
fn certified(
    request: &CertifyRequest<'_>,
    word: &'static str,
    (paths, gallery, model): (&DemoPaths, &Path, &Path),
    folder: &Path,
) -> anyhow::Result<CertifyReport> {
    let started = Instant::now();
    let progress = Progress::new(word);
    let result = certify(request, &folder.join("certify.journal"), &progress);
    progress.finish();
    let report = result?;
    let described = (&*paths.part(Part::Queries), Format::ImageFolder.name(), Boxes::Usual);
    let places = RunPlaces::new(own_command(), described, gallery, model, None)?;
    let inputs = Inputs::of(places, request.queries, &report);
    write_run(folder, &report, &inputs, Tables { jsonl: true, ..Tables::default() })?;
    log_run(folder, request, &report, started)?;
    Ok(report)
}

/// How the demo certifies.
fn options(arguments: &DemoArgs, certificates: Vec<CertificateName>) -> CertifyOptions {
    CertifyOptions {
        alpha: arguments.alpha,
        simultaneous: false,
        pilot: Some(arguments.pilot),
        samples: arguments.samples,
        certificates,
        top_k: 1,
        mixtures: NonZeroUsize::MIN,
        target_radius: None,
        replan_bets: false,
        seed: Seed::new(0),
        leave_one_out: LeaveOneOut::Auto,
        excess: Excess::Refuse,
        broken: BrokenPictures::Fatal,
        keep_samples: None,
        receipts: None,
        threads: arguments.engine.threads(),
        batch: arguments.engine.batch,
    }
}

/// Only a directory that is new, empty or a demo's own is written to.
fn refuse_foreign(directory: &Path) -> anyhow::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.with_context(|| format!("`{}` is not a usable directory", directory.display()))?,
    };
    let mut others = entries.filter(|entry| entry.as_ref().is_ok_and(|entry| entry.file_name() != LOCK_FILE));
    if others.next().is_some() && !directory.join(DEMO_FILE).is_file() {
        bail!(
            "`{}` holds other files, wanted a new or empty directory, or one of an earlier demo",
            directory.display()
        );
    }
    Ok(())
}

/// Puts the encoder and its model config where the directory wants them: trained here, or those that ship with the program.
fn provide_encoder(arguments: &DemoArgs, paths: &DemoPaths) -> anyhow::Result<()> {
    #[cfg(feature = "train")]
    if arguments.train {
        let folder = train_encoder(arguments, paths)?;
        let part = |name: &str| {
            let path = folder.join(name);
            fs::read(&path).with_context(|| format!("`{}` cannot be read", path.display()))
        };
        return write_encoder(&paths.encoder, &part("encoder.onnx")?, &part("encoder.toml")?);
    }
    #[cfg(not(feature = "train"))]
    let _ = arguments;
    write_encoder(&paths.encoder, ENCODER, MODEL_CONFIG)
}

fn write_encoder(model: &Path, encoder: &[u8], config: &[u8]) -> anyhow::Result<()> {
    for (path, bytes) in [(model.to_owned(), encoder), (model.with_extension("toml"), config)] {
        if fs::read(&path).ok().as_deref() != Some(bytes) {
            atomic::write(&path, bytes)?;
        }
    }
    Ok(())
}

/// Trains on the other classes, or goes on with it; the folder of the run.
#[cfg(feature = "train")]
fn train_encoder(arguments: &DemoArgs, paths: &DemoPaths) -> anyhow::Result<PathBuf> {
    use retrievalguard_train::recipe::Recipe;
    use retrievalguard_train::trainer::Start;

    render(paths, Part::Train, arguments.engine.threads())?;
    let records: Vec<_> = read(paths, Part::Train)?.iter().cloned().collect();
    let folder = arguments.out.join("training");
    let start = if folder.join("recipe.toml").exists() { Start::Resume } else { Start::Fresh };
    let recipe = Recipe::from_toml("the demo's recipe", RECIPE)?;
    super::train::train_on(&recipe, &records, &folder, start, &arguments.engine)?;
    Ok(folder)
}

/// Where the encoder comes from, for the directory's description.
fn encoder_digest(arguments: &DemoArgs) -> Value {
    if arguments.train {
        return json!({ "trained_by": Digest::of_bytes(RECIPE.as_bytes()) });
    }
    json!({ "model": Digest::of_bytes(ENCODER), "contract": Digest::of_bytes(MODEL_CONFIG) })
}

/// What decides the results of a demo, but for the engine, which the journals know.
fn description(arguments: &DemoArgs) -> Value {
    json!({
        "tool": env!("CARGO_PKG_VERSION"),
        "catalogue_seed": SYNTHETIC_SEED,
        "queries": arguments.queries,
        "sigma": arguments.sigma,
        "alpha": arguments.alpha,
        "samples": arguments.samples,
        "pilot": arguments.pilot,
        "gallery_samples": GALLERY_SAMPLES,
        "encoder": encoder_digest(arguments),
        "without_noise": { "model": Digest::of_bytes(BOUNDED.0), "contract": Digest::of_bytes(BOUNDED.1) },
    })
}

/// Marks the directory as this demo's, or refuses one that was made with other parameters.
fn claim(directory: &Path, description: &Value) -> anyhow::Result<()> {
    let path = directory.join(DEMO_FILE);
    if let Ok(text) = fs::read(&path) {
        let found: Value =
            serde_json::from_slice(&text).with_context(|| format!("`{}` is not JSON", path.display()))?;
        let differences = Differences::between(&found, description);
        if !differences.0.is_empty() {
            bail!(
                "`{}` holds another demo, wanted this one or another --out: {differences}",
                directory.display()
            );
        }
        return Ok(());
    }
    let mut text = serde_json::to_string_pretty(description)?;
    text.push('\n');
    Ok(atomic::write(&path, text.as_bytes())?)
}

fn render(paths: &DemoPaths, part: Part, threads: NonZeroUsize) -> anyhow::Result<()> {
    let progress = Progress::new("drawing");
    let written = SyntheticDataset::new(SYNTHETIC_SEED).write(&paths.pictures, part, threads, &progress);
    progress.finish();
    written?;
    Ok(())
}

fn read(paths: &DemoPaths, part: Part) -> anyhow::Result<RecordSet> {
    Ok(open(&paths.part(part), Format::ImageFolder, DatasetOptions::default())?.records.into())
}

/// The gallery as it is stored, made first if it is not there.
fn stored_gallery(
    arguments: &DemoArgs,
    paths: &DemoPaths,
    directory: &Path,
    sigma: Option<Sigma>,
    embedder: &OnnxEmbedder,
    views: Option<&ViewSet>,
) -> anyhow::Result<StoredGallery> {
    if let Ok(stored) = StoredGallery::open(directory) {
        return Ok(stored);
    }
    let records = read(paths, Part::Gallery)?;
    let request = IndexRequest {
        records: &records,
        embedder,
        sigma,
        samples: GALLERY_SAMPLES,
        seed: Seed::new(0),
        metric: Metric::Euclidean,
        views,
        excess: Excess::Refuse,
        broken: BrokenPictures::Fatal,
        threads: arguments.engine.threads(),
        shards: None,
        batch: arguments.engine.batch,
    };
    let progress = Progress::new("indexing");
    let result = index(&request, directory, &progress);
    progress.finish();
    result?;
    Ok(StoredGallery::open(directory)?)
}
