//! `retrievalguard certify`: queries and a gallery in, one certificate per query out.

use std::io::Write;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::run_directory::{log_run, own_command};
use super::{certify_embeddings, certify_samples};
use crate::arguments::{
    Certificates, DataArgs, EngineArgs, RetrieverArg, components, in_flags, refuse_noise, tell_skipped,
};
use crate::progress::{Progress, tell};
use anyhow::bail;
use clap::ValueEnum;
use retrievalguard::certificate::{CertificateName, Radius, Retriever, Verdict, decision_cost, round_down};
use retrievalguard::evaluation::Counts;
use retrievalguard::noise::Stage;
use retrievalguard::planner::Ceiling;
use retrievalguard::storage::stored::StoredGallery;
use retrievalguard::{
    Alpha, Embedder, Excess, NormBound, Picture, SampleCount, Seed, Sigma, Smoother, TargetRadius,
};
use retrievalguard_encoder::dataset::Role;
use retrievalguard_encoder::engine::OnnxEmbedder;
use retrievalguard_encoder::graph::bound::{Above, NetworkBound};
use retrievalguard_encoder::pipeline::run_files::{Inputs, RunPlaces, Tables, write_run};
use retrievalguard_encoder::pipeline::{
    CertifyOptions, CertifyReport, CertifyRequest, LeaveOneOut, PipelineError, certify, check_gallery,
    model_config_difference, noise_of, usual_certificates,
};
use retrievalguard_encoder::receipt::{ReceiptKey, ReceiptsTo};
use retrievalguard_encoder::run::{LipschitzBounded, Method, Procedure, Smoothed};
use retrievalguard_encoder::table::{PLAIN_UNKNOWN, ResultTable};
use retrievalguard_worker::{Notes, RunStore, Sharing, share};

/// What stands in for pictures and an encoder.
const MADE_ELSEWHERE: [&str; 2] = ["samples_file", "embeddings_file"];

#[derive(clap::Args, Debug)]
#[command(
    args_override_self = true,
    after_help = "Examples:\n  \
        retrievalguard certify queries/ --gallery products.gallery --model encoder.onnx --out run\n  \
        retrievalguard certify --samples-file S.npy --gallery-file G.npy --gallery-labels L.txt --sigma 0.1 --json\n  \
        retrievalguard certify --embeddings-file E.npy --gallery-file G.npy --gallery-labels L.txt --lipschitz 1.0 --json\n\n\
        The same command run again continues an interrupted run and ends with the same bytes."
)]
pub(crate) struct CertifyArgs {
    /// Pictures to certify: a folder of folders, a CSV list, or a data set's folder
    #[arg(required_unless_present_any = MADE_ELSEWHERE)]
    queries: Option<PathBuf>,
    /// Gallery to search in, as written by `retrievalguard index`
    #[arg(long, value_name = "DIR", required_unless_present_any = MADE_ELSEWHERE)]
    gallery: Option<PathBuf>,
    /// Encoder in ONNX
    #[arg(long, value_name = "FILE", required_unless_present_any = MADE_ELSEWHERE)]
    model: Option<PathBuf>,
    /// Model config of the encoder, if it is not beside it as encoder.toml or config.json
    #[arg(long, value_name = "FILE")]
    contract: Option<PathBuf>,
    /// Directory for the table, the journal and the log
    #[arg(long, value_name = "DIR", default_value = "certificates")]
    out: PathBuf,
    /// Standard deviation of the noise, in pixels scaled to [0, 1]; that of the gallery by default
    #[arg(long, allow_negative_numbers = true, required_unless_present_any = ["gallery", "embeddings_file"])]
    pub(super) sigma: Option<Sigma>,
    /// Probability that a certificate is wrong, 0.01 by default
    #[arg(long, allow_negative_numbers = true)]
    alpha: Option<Alpha>,
    /// Share alpha over all queries, so that all certificates hold at once
    #[arg(long)]
    simultaneous: bool,
    /// Certifying samples per query, 1000 by default; the most that are drawn if --target-radius is given
    #[arg(long)]
    samples: Option<SampleCount>,
    /// Pilot samples per query, on which every choice is made: 200, or 20 where they choose little (pairwise, and vote with
    /// --target-radius)
    #[arg(long)]
    pilot: Option<SampleCount>,
    /// Certificates, separated by commas, or all; half-space by default, lipschitz and lipschitz-margin for a gallery without noise
    #[arg(long)]
    certificate: Option<Certificates>,
    /// Certify this retriever: half-space for mean, vote, pairwise, or lipschitz for plain
    #[arg(long, value_enum, conflicts_with = "certificate")]
    retriever: Option<RetrieverArg>,
    /// Decide this radius with as few samples as possible (half-space, vote or pairwise)
    #[arg(long, value_name = "RADIUS", allow_negative_numbers = true)]
    target_radius: Option<TargetRadius>,
    /// Radii for recall@1 to recall@K (half-space, and lipschitz)
    #[arg(long, value_name = "K", default_value = "1")]
    pub(super) top_k: NonZeroUsize,
    /// Plan the bets of half-space again while samples come in: larger radii where the pilot is small, for more computing
    #[arg(long)]
    replan_bets: bool,
    /// How many right items may stand together against a wrong one, under lipschitz: 1 costs a percent or two of the radius
    #[arg(long, value_name = "ITEMS")]
    pub(super) mixtures: Option<NonZeroUsize>,
    /// Seed of the noise, fixed before the queries are seen; 0 by default
    #[arg(long)]
    seed: Option<Seed>,
    /// Keep a query from finding itself: auto if queries and gallery are the same pictures
    #[arg(long, value_enum, default_value = "auto")]
    leave_one_out: LeaveOneOutArg,
    /// Project embeddings above the norm bound instead of refusing them
    #[arg(long)]
    pub(super) project: bool,
    /// Set negative components of embeddings to zero, as in the gallery: another encoder, unless it has none
    #[arg(long)]
    pub(super) non_negative: bool,
    /// Write the run for workers to this directory or address (s3://, gs://, az://) instead of running it
    #[arg(long, value_name = "RUN", help_heading = "Many machines")]
    share: Option<String>,
    /// Samples per task of a shared run; whole queries by default
    #[arg(long, value_name = "SAMPLES", requires = "share", help_heading = "Many machines")]
    chunk: Option<NonZeroU32>,
    /// Keep the embeddings of all noisy copies in this folder, as .npy files that --samples-file reads
    #[arg(long, value_name = "DIR", conflicts_with = "share")]
    keep_samples: Option<PathBuf>,
    /// Leave a receipt of every query in this folder, which `retrievalguard verify` checks; queries that are done already leave none
    #[arg(long, value_name = "DIR", conflicts_with = "share")]
    receipts: Option<PathBuf>,
    /// Sign receipts with this key, as written by `retrievalguard receipt-key`
    #[arg(long, value_name = "FILE", requires = "receipts")]
    receipt_key: Option<PathBuf>,
    /// Also write the table as JSON lines
    #[arg(long)]
    jsonl: bool,
    /// Also write a TSV table per certificate, in the layout of randomised smoothing's usual tools
    #[arg(long)]
    tsv: bool,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) files: certify_samples::SampleFiles,
    #[command(flatten)]
    pub(super) embeddings: certify_embeddings::EmbeddingFile,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LeaveOneOutArg {
    Auto,
    Always,
    Never,
}

impl CertifyArgs {
    /// The certificates that are wanted at this noise level, or without noise.
    fn certificates(&self, sigma: Option<Sigma>) -> Vec<CertificateName> {
        match (&self.certificate, self.retriever) {
            (Some(Certificates::Named(names)), _) => names.clone(),
            (Some(Certificates::All), _) if sigma.is_some() => CertificateName::SMOOTHED.to_vec(),
            (None, Some(retriever)) => vec![Retriever::from(retriever).certificate()],
            (Some(Certificates::All), _) | (None, None) => usual_certificates(sigma),
        }
    }

    /// Where receipts go, if there are to be any.
    fn receipts(&self) -> anyhow::Result<Option<ReceiptsTo>> {
        let Some(folder) = self.receipts.clone() else { return Ok(None) };
        let key = self.receipt_key.as_deref().map(ReceiptKey::read).transpose()?;
        Ok(Some(ReceiptsTo { folder, key }))
    }

    /// Refuses flags about noise where there is none.
    fn refuse_noise(&self, gallery: &Path) -> anyhow::Result<()> {
        let given = [
            ("--alpha", self.alpha.is_some()),
            ("--simultaneous", self.simultaneous),
            ("--samples", self.samples.is_some()),
            ("--pilot", self.pilot.is_some()),
            ("--target-radius", self.target_radius.is_some()),
            ("--replan-bets", self.replan_bets),
            ("--seed", self.seed.is_some()),
            ("--keep-samples", self.keep_samples.is_some()),
            ("--chunk", self.chunk.is_some()),
            ("--project", self.project),
            ("--non-negative", self.non_negative),
        ];
        refuse_noise(&no_noise(gallery), &given)
    }

    /// The flags as everybody's options.
    pub(super) fn options(&self, sigma: Option<Sigma>) -> CertifyOptions {
        CertifyOptions {
            alpha: self.alpha.unwrap_or_else(usual_alpha),
            simultaneous: self.simultaneous,
            pilot: self.pilot,
            samples: self.samples.unwrap_or_else(usual_samples),
            certificates: self.certificates(sigma),
            top_k: self.top_k.get(),
            mixtures: self.mixtures.unwrap_or(NonZeroUsize::MIN),
            target_radius: self.target_radius,
            replan_bets: self.replan_bets,
            seed: self.seed.unwrap_or(Seed::new(0)),
            leave_one_out: match self.leave_one_out {
                LeaveOneOutArg::Auto => LeaveOneOut::Auto,
                LeaveOneOutArg::Always => LeaveOneOut::Always,
                LeaveOneOutArg::Never => LeaveOneOut::Never,
            },
            excess: if self.project { Excess::Project } else { Excess::Refuse },
            broken: self.data.broken(),
            keep_samples: self.keep_samples.clone(),
            receipts: None,
            threads: self.engine.threads(),
            batch: self.engine.batch,
        }
    }
}

pub(super) fn run(arguments: &CertifyArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    if arguments.files.samples_file.is_some() {
        return certify_samples::run(arguments, out);
    }
    if arguments.embeddings.embeddings_file.is_some() {
        return certify_embeddings::run(arguments, out);
    }
    let (Some(queries), Some(gallery), Some(model)) =
        (&arguments.queries, &arguments.gallery, &arguments.model)
    else {
        bail!("wanted pictures with --gallery and --model, or --samples-file, or --embeddings-file")
    };
    let stored = StoredGallery::open(gallery)?;
    let sigma = noise_of(arguments.sigma, stored.provenance());
    let options = CertifyOptions { receipts: arguments.receipts()?, ..arguments.options(sigma) };
    options.check().map_err(in_flags)?;
    let embedder = match sigma {
        Some(_) if arguments.mixtures.is_some() => {
            bail!("--mixtures is for lipschitz, which needs no noise; wanted none beside a noise level")
        }
        Some(_) => {
            let embedder = arguments.engine.open(model, arguments.contract.as_deref())?;
            embedder.with_components(components(arguments.non_negative))
        }
        None if arguments.mixtures.is_some()
            && !options.certificates.contains(&CertificateName::Lipschitz) =>
        {
            bail!("--mixtures is for lipschitz, wanted it among --certificate")
        }
        None => {
            arguments.refuse_noise(gallery)?;
            arguments.engine.open_double(model, arguments.contract.as_deref(), &no_noise(gallery))?
        }
    };
    let selected = arguments.data.read(queries, Role::Query)?;
    let unknown = stored.provenance().gaps();
    if !unknown.is_empty() {
        tell(format_args!("note: gallery `{}` does not say its {}", gallery.display(), unknown.join(", ")));
    }
    let name = gallery.display().to_string();
    let request = options.request(sigma, &selected, &embedder, (&stored, &name)).map_err(in_flags)?;
    let checked = check_gallery(&stored, request.gallery_name, &embedder, sigma);
    checked.map_err(|error| with_config_difference(error, gallery, &embedder))?;
    let tables =
        Tables { jsonl: arguments.jsonl, tsv: arguments.tsv, recall_at_k: arguments.top_k.get() > 1 };
    let described = (queries.as_path(), arguments.data.format().name(), arguments.data.boxes());
    if let Some(address) = &arguments.share {
        let places = RunPlaces::new(own_command(), described, gallery, model, arguments.contract.as_deref())?;
        return share_run(&request, address, arguments.chunk, (gallery, model), (&places, tables), out);
    }
    print_plan(&request)?;
    let started = Instant::now();
    let progress = Progress::new("certifying");
    let result = certify(&request, &arguments.out.join("certify.journal"), &progress);
    progress.finish();
    let report = result?;
    let places = RunPlaces::new(own_command(), described, gallery, model, arguments.contract.as_deref())?;
    let inputs = Inputs::of(places, request.queries, &report);
    write_run(&arguments.out, &report, &inputs, tables)?;
    log_run(&arguments.out, &request, &report, started)?;
    tell_resumed(&report);
    tell_left_out(&report);
    tell_misretrieved(&report.table);
    if arguments.json {
        let mut lines = Vec::new();
        report.table.json_lines_to(&mut lines)?;
        out.write_all(&lines)?;
        return Ok(());
    }
    print_rows(&report, &arguments.out, out)
}

/// Says which queries saw less of the gallery, and which pictures were left out.
pub(super) fn tell_left_out(report: &CertifyReport) {
    if report.left_out > 0 {
        tell(format_args!(
            "leave-one-out: {} queries were kept from finding themselves in the gallery",
            report.left_out
        ));
    }
    if report.namesakes > 0 {
        tell(format_args!(
            "note: {} queries have the name of a gallery item that may be the same picture; see --leave-one-out",
            report.namesakes
        ));
    }
    tell_skipped(&report.skipped);
}

/// Writes the run where workers find it.
fn share_run(
    request: &CertifyRequest<'_>,
    address: &str,
    chunk: Option<NonZeroU32>,
    (gallery, model): (&Path, &Path),
    (places, tables): (&RunPlaces, Tables),
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let notes = Notes { places: places.clone(), jsonl: tables.jsonl, tsv: tables.tsv };
    let sharing = Sharing { model, gallery, chunk, notes };
    let progress = Progress::new("sharing");
    let tasks = share(&RunStore::open(address)?, request, sharing, &progress);
    progress.finish();
    writeln!(out, "{} tasks for `retrievalguard worker --run {address}`", tasks?)?;
    Ok(())
}

/// Adds to a mismatch in which fields the model configs differ, where the gallery has kept its own.
pub(super) fn with_config_difference(
    error: PipelineError,
    gallery: &Path,
    embedder: &OnnxEmbedder,
) -> anyhow::Error {
    let difference = model_config_difference(gallery, embedder.model_config());
    let error = anyhow::Error::from(error);
    match difference {
        Some(difference) => {
            error.context(format!("gallery `{}` has another model config: {difference}", gallery.display()))
        }
        None => error,
    }
}

/// Points at wrong answers where they are the most; one certificate speaks for all.
pub(super) fn tell_misretrieved(table: &ResultTable) {
    let warning = |&name: &CertificateName| {
        let verdicts = table.rows().iter().map(|row| row.certificates[&name].verdict);
        Counts::of(verdicts).warning().map(|warning| (name, warning))
    };
    if let Some((name, warning)) = table.certificates().iter().find_map(warning) {
        tell(format_args!(
            "warning: {name}: {warning}; `retrievalguard recall` measures what the encoder retrieves, with and without noise"
        ));
    }
}

/// Says how much of the run an earlier one had done.
pub(super) fn tell_resumed(report: &CertifyReport) {
    if report.resumed > 0 {
        tell(format_args!("{} queries were done before and were not certified again", report.resumed));
    }
}

/// Why there is no noise.
pub(super) fn no_noise(gallery: &Path) -> String {
    format!("gallery `{}` has no noise level, which --sigma would give", gallery.display())
}

/// Probability that a certificate is wrong, unless the user says another.
pub(super) fn usual_alpha() -> Alpha {
    Alpha::new(0.01).expect("a probability")
}

/// Certifying samples per query, unless the user says how many.
pub(super) fn usual_samples() -> SampleCount {
    SampleCount::new(1_000).expect("a number above zero")
}

/// What a run without noise rests on, and what it takes.
fn print_bound(request: &CertifyRequest<'_>, bounded: &LipschitzBounded) -> anyhow::Result<()> {
    tell(format_args!(
        "plan: {} queries against {} items, one pass each in double precision, no noise: what is certified holds always",
        request.queries.len(),
        request.gallery.gallery().item_count()
    ));
    let NetworkBound { constant, layers, .. } = &bounded.lipschitz;
    tell(format_args!(
        "plan: embeddings move at most {:.9} times as fast as pictures, by {} operators of the graph",
        Above(*constant),
        layers.len()
    ));
    let pixels = vec![0.5; request.embedder.input_len()];
    let start = Instant::now();
    request.embedder.embed_double(&pixels)?;
    let seconds = start.elapsed().as_secs_f64() * request.queries.len() as f64;
    let threads = request.options.threads.get().min(request.queries.len()) as f64;
    tell(format_args!(
        "plan: {} encoder calls, about {}",
        request.queries.len(),
        duration(seconds / threads)
    ));
    Ok(())
}

/// Largest radius attainable, encoder calls and time, before anything is drawn.
pub(super) fn print_plan(request: &CertifyRequest<'_>) -> anyhow::Result<()> {
    let smoothed = match &request.method {
        Method::Smoothed(smoothed) => smoothed,
        Method::Lipschitz(bounded) => return print_bound(request, bounded),
    };
    let (embedder, procedure) = (request.embedder, &smoothed.procedure);
    let queries = request.queries.len() as u64;
    let mut ceiling =
        Ceiling::new(procedure.sigma, procedure.alpha, embedder.norm_bound(), embedder.dimension());
    let provenance = request.gallery.provenance();
    if let Some(samples) = provenance.samples.and_then(|count| SampleCount::new(u64::from(count)).ok()) {
        ceiling = ceiling.gallery_samples(samples);
    }
    let pilot = if procedure.draws_pilot() { procedure.pilot.get() } else { 0 };
    tell(format_args!(
        "plan: {queries} queries against {} items, {}{pilot} + {} noisy copies each, sigma {}, alpha {}",
        request.gallery.gallery().item_count(),
        if procedure.target_radius.is_some() { "at most " } else { "" },
        procedure.samples,
        procedure.sigma,
        procedure.alpha
    ));
    for &name in &procedure.certificates {
        let reach = ceiling.largest_radius(name, procedure.samples);
        let text = reach.map_or("nothing: every query will abstain".to_owned(), |radius| {
            format!("{} ({} sigma)", round_down(radius, 4), round_down(radius / procedure.sigma.get(), 2))
        });
        tell(format_args!("plan: {name} can reach {text}"));
        if let (Some(target), Some(reach)) = (procedure.target_radius, reach)
            && target.get() > reach
        {
            tell(format_args!(
                "plan: the target radius {target} is out of reach with {} samples",
                procedure.samples
            ));
        }
    }
    print_decision_cost(procedure);
    // One more without noise, where there is something to compare it with.
    let plain = u64::from(request.gallery.plain().is_some());
    let calls = queries * (plain + u64::from(pilot) + u64::from(procedure.samples.get()));
    let rate = speed(request, smoothed)?;
    tell(format_args!("plan: at most {calls} encoder calls, about {}", duration(calls as f64 / rate)));
    Ok(())
}

/// What a decision at the target radius takes, where that depends on nothing but how many copies agree.
fn print_decision_cost(procedure: &Procedure) {
    let Procedure { sigma, alpha, samples, ref certificates, target_radius, .. } = *procedure;
    let (Some(target), Some(&name)) = (target_radius, certificates.first()) else { return };
    if Retriever::of(name) == Retriever::Mean {
        return;
    }
    let Some(cost) = decision_cost(target, sigma, alpha, samples) else { return };
    let typical = cost.typical.map_or_else(|| format!("more than {samples}"), |typical| typical.to_string());
    tell(format_args!(
        "plan: a query takes {} samples if all of them agree, {typical} if 97 of 100 do, and is given up after {} if half of them \
         do; at most {samples}{}",
        cost.clear,
        cost.hopeless,
        if procedure.draws_pilot() {
            format!(", and {} of the pilot", procedure.pilot)
        } else {
            String::new()
        }
    ));
}

/// Noisy embeddings per second, measured on a grey picture.
fn speed(request: &CertifyRequest<'_>, smoothed: &Smoothed) -> anyhow::Result<f64> {
    let pixels = vec![0.5; request.embedder.input_len()];
    let picture = Picture { identity: "speed", pixels: &pixels };
    let smoother = Smoother::new(request.embedder, smoothed.procedure.sigma, smoothed.seed)
        .excess(Excess::Project)
        .batch(request.options.batch)
        .threads(request.options.threads);
    let mut count = 2 * u32::try_from(request.options.threads.get())?;
    loop {
        let start = Instant::now();
        smoother.mean(&picture, Stage::Trial, 0..count)?;
        let seconds = start.elapsed().as_secs_f64();
        if seconds > 0.05 || count > 1 << 14 {
            return Ok(f64::from(count) / seconds.max(1e-9));
        }
        count *= 4;
    }
}

fn duration(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 100.0 => format!("{seconds:.0} s"),
        seconds if seconds < 6_000.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.1} h", seconds / 3_600.0),
    }
}

/// One line per certificate, and where the table is.
pub(super) fn print_rows(report: &CertifyReport, folder: &Path, out: &mut dyn Write) -> anyhow::Result<()> {
    let table = &report.table;
    for &name in table.certificates() {
        let verdicts = || table.rows().iter().map(|row| row.certificates[&name].verdict);
        let finite: f64 =
            verdicts().filter_map(Verdict::radius).map(Radius::get).filter(|radius| radius.is_finite()).sum();
        let samples: u64 = table.rows().iter().map(|row| u64::from(row.certificates[&name].samples)).sum();
        let cost = match name.lipschitz() {
            Some(_) => format!("{} passes, holds always", table.rows().len()),
            None => format!("{samples} samples"),
        };
        writeln!(
            out,
            "{name:<16} {}, mean radius over all queries {}, {cost}",
            Counts::of(verdicts()),
            // The sum of no numbers is a negative zero.
            round_down(finite.max(0.0) / table.rows().len() as f64, 4),
        )?;
    }
    if table.sigma().is_some() {
        match table.plain_recall() {
            Some(recall) => writeln!(
                out,
                "{:<16} {} of {} right without noise (recall@1 {:.4}), nothing proved",
                "plain",
                recall.count,
                table.rows().len(),
                recall.share
            )?,
            None => writeln!(out, "{:<16} {PLAIN_UNKNOWN}", "plain")?,
        }
    }
    writeln!(out, "{}", folder.join("certificates.parquet").display())?;
    Ok(())
}

/// The norm bound if `--norm-bound` is not given.
pub(super) const USUAL_NORM_BOUND: NormBound = NormBound::UNIT;
