//! `retrievalguard attack`: tries to break the certificates of a run, and says how near it came.

mod plain;
mod report;

use std::fs;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use retrievalguard::attack::{BlackBox, Effort, InputGradients, Judging, Mode, Pixels};
use retrievalguard::certificate::{CertificateName, Radius};
use retrievalguard::storage::atomic::WriteError;
use retrievalguard::{Alpha, SampleCount, Seed};
use retrievalguard_encoder::dataset::RecordSet;
use retrievalguard_encoder::engine::{GradientsError, OnnxEmbedder, OnnxGradients};
use retrievalguard_encoder::pipeline::{AttackRequest, AttackTarget, attack, begun_judge_seed};
use retrievalguard_server::secret_seed;

use super::run_directory::{ATTACK_FILE, RunDirectory, certificate_of};
use crate::arguments::EngineArgs;
use crate::progress::{Progress, tell};

pub(crate) use report::AttackFailed;

/// Noisy copies per step where gradients are computed, and where they are estimated.
const NOISE: [u32; 2] = [32, 128];

/// Beyond these an attack would neither end nor fit into memory.
const MOST_STEPS: u32 = 1_000_000;
const MOST_COPIES: u32 = 65_536;
const MOST_SAMPLES: u32 = 10_000_000;
const MOST_REFINEMENTS: u32 = 64;

#[derive(clap::Args, Debug)]
#[command(
    args_override_self = true,
    after_help = "Example: retrievalguard attack retrievalguard-demo/certificates --queries 20\n\n\
        Exit status 1: certificates are broken inside their radii more often than chance allows, or the attack cannot\n\
        break even the plain encoder. The same command run again continues an interrupted attack."
)]
pub(crate) struct AttackArgs {
    /// The run to attack, as written by `retrievalguard certify` or `retrievalguard demo`
    run: PathBuf,
    /// The certificate to attack; half-space or, if the run has none, its first by default
    #[arg(long)]
    certificate: Option<CertificateName>,
    /// How many certified queries to attack, spread over the run; all by default
    #[arg(long)]
    queries: Option<NonZeroUsize>,
    /// Directory for attack.json and the journal; that of the run by default
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Estimate gradients from the encoder's outputs alone, which works for any encoder
    #[arg(long, help_heading = "Attack")]
    black_box: bool,
    /// Compute gradients, or refuse; without either flag they are estimated where they cannot be computed
    #[arg(long, help_heading = "Attack", conflicts_with = "black_box")]
    white_box: bool,
    /// Gradient steps of each restart
    #[arg(long, default_value = "40", help_heading = "Attack")]
    steps: u32,
    /// Starts: the first at the picture, the others at random points against one wrong label each
    #[arg(long, default_value = "3", help_heading = "Attack")]
    restarts: u32,
    /// Noisy copies per step; 32 if gradients are computed, 128 if they are estimated, by default
    #[arg(long, help_heading = "Attack")]
    noise: Option<u32>,
    /// Keep perturbed pixels in [0, 1]; certificates cover all values, so attacks may use them by default
    #[arg(long, help_heading = "Attack")]
    clip: bool,
    /// Seed of the attack's noise
    #[arg(long, default_value = "0", help_heading = "Attack")]
    seed: Seed,
    /// Most samples to judge a perturbed picture with
    #[arg(long, default_value = "2000", help_heading = "Judge")]
    judge_samples: SampleCount,
    /// Samples that decide what to prove about a perturbed picture
    #[arg(long, default_value = "200", help_heading = "Judge")]
    judge_pilot: SampleCount,
    /// Probability that anything proved about one query's attack is wrong
    #[arg(long, default_value = "0.001", help_heading = "Judge", allow_negative_numbers = true)]
    judge_alpha: Alpha,
    /// Seed of the judge's noise, to repeat a run; drawn from the operating system by default, and shown afterwards
    #[arg(long, help_heading = "Judge")]
    judge_seed: Option<Seed>,
    /// Further sizes to judge, to narrow down where a query breaks
    #[arg(long, default_value = "3", help_heading = "Judge")]
    refinements: u32,
    #[command(flatten)]
    engine: EngineArgs,
}

pub(super) fn run(arguments: &AttackArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    for (flag, number, most) in [
        ("--steps", arguments.steps, MOST_STEPS),
        ("--restarts", arguments.restarts, MOST_STEPS),
        ("--noise", arguments.noise.unwrap_or(1), MOST_COPIES),
        ("--judge-samples", arguments.judge_samples.get(), MOST_SAMPLES),
        ("--judge-pilot", arguments.judge_pilot.get(), MOST_SAMPLES),
    ] {
        if !(1..=most).contains(&number) {
            bail!("{flag} is {number}, wanted a number from 1 to {most}");
        }
    }
    if arguments.refinements > MOST_REFINEMENTS {
        bail!("--refinements is {}, wanted at most {MOST_REFINEMENTS}", arguments.refinements);
    }
    let run = RunDirectory::open(&arguments.run)?;
    let smoothed = run.description.smoothed()?;
    let name = certificate_of(&run, arguments.certificate)?;
    refuse_other_systems(name)?;
    let (queries, targets) = targets(&run, name, arguments.queries)?;
    let stored = run.gallery()?;
    let stored = stored.in_memory()?;
    let embedder = run.encoder(&arguments.engine)?;
    run.tell_engine(&embedder);
    let black_box = BlackBox::new(&embedder);
    let white_box = white_box(arguments, &run.inputs.places.model, &embedder, targets.len())?;
    let gradients: &dyn InputGradients = white_box.as_ref().map_or(&black_box, |gradients| gradients);
    let [white, black] = NOISE;
    let usual = match gradients.mode() {
        Mode::WhiteBox => white,
        Mode::BlackBox => black,
    };
    let folder = arguments.out.as_deref().unwrap_or(&arguments.run);
    fs::create_dir_all(folder).map_err(|error| WriteError::new(folder, error))?;
    let plain_gallery =
        plain::gallery(&run, stored, &embedder, &arguments.engine, &folder.join("plain-gallery"))?;
    let journal = folder.join("attack.journal");
    // An attack that was fitted to the judge's noise of an earlier run would be judged by what it knows.
    let judge_seed = match arguments.judge_seed {
        Some(seed) => seed,
        None => begun_judge_seed(&journal)?.map_or_else(secret_seed, Ok)?,
    };
    let request = AttackRequest {
        queries: &queries,
        targets: &targets,
        certificate: name,
        embedder: &embedder,
        gradients,
        gallery: stored,
        plain_gallery: plain_gallery.as_ref(),
        sigma: smoothed.procedure.sigma,
        seed: arguments.seed,
        effort: Effort {
            steps: arguments.steps,
            restarts: arguments.restarts,
            // Copies come in pairs.
            noise: arguments.noise.unwrap_or(usual).next_multiple_of(2),
            pixels: if arguments.clip { Pixels::Clipped } else { Pixels::Free },
        },
        judging: Judging {
            alpha: arguments.judge_alpha,
            pilot: arguments.judge_pilot,
            samples: arguments.judge_samples,
            refinements: arguments.refinements,
            seed: judge_seed,
        },
        excess: smoothed.excess(),
        threads: arguments.engine.threads(),
    };
    let progress = Progress::new("attacking");
    let result = attack(&request, &journal, &progress);
    progress.finish();
    let found = result?;
    if found.resumed > 0 {
        tell(format_args!("{} queries were done before and were not attacked again", found.resumed));
    }
    let (alpha, asked) = (smoothed.procedure.alpha, run.table.rows().len());
    report::write(&request, (alpha, run.table_digest), &found.results, folder)?;
    report::show(&request, (alpha, asked), &found.results, &folder.join(ATTACK_FILE), out)
}

/// Only certificates about the retriever that is attacked can be broken by it.
fn refuse_other_systems(name: CertificateName) -> anyhow::Result<()> {
    match name {
        CertificateName::PaperRepaired => bail!(
            "paper-repaired speaks of exactly smoothed items, and the attack is on the stored ones; wanted another --certificate"
        ),
        CertificateName::Paper
        | CertificateName::PaperLinear
        | CertificateName::PaperFrozen
        | CertificateName::HalfSpaceMean
        | CertificateName::HalfSpace
        | CertificateName::Vote
        | CertificateName::Pairwise
        | CertificateName::Lipschitz
        | CertificateName::LipschitzMargin => Ok(()),
    }
}

/// The certified queries, or so many of them spread over the run.
fn targets(
    run: &RunDirectory,
    name: CertificateName,
    queries: Option<NonZeroUsize>,
) -> anyhow::Result<(RecordSet, Vec<AttackTarget>)> {
    let (mut positions, mut targets) = (Vec::new(), Vec::new());
    let mut unbounded = 0;
    let records = run.records()?;
    run.check_pictures(&records)?;
    for (position, row) in run.table.rows().iter().enumerate() {
        match row.certificates[&name].verdict.radius() {
            Some(Radius::Finite(radius)) => {
                let excluded = run.excluded(&row.identity).to_vec();
                positions.push(position);
                targets.push(AttackTarget { radius, excluded });
            }
            Some(Radius::Unbounded) => unbounded += 1,
            None => {}
        }
    }
    if unbounded > 0 {
        tell(format_args!("note: {unbounded} queries are certified at every size and are not attacked"));
    }
    if targets.is_empty() {
        bail!("no query of the run has a finite radius under {name}, wanted at least one to attack");
    }
    let count = queries.map_or(targets.len(), |queries| queries.get().min(targets.len()));
    let chosen = (0..count).map(|place| place * targets.len() / count);
    let queries = records.subset(chosen.clone().map(|place| positions[place]));
    Ok((queries, chosen.map(|place| targets[place].clone()).collect()))
}

/// The gradients of an encoder, if they are wanted and can be computed.
fn white_box(
    arguments: &AttackArgs,
    model: &Path,
    embedder: &OnnxEmbedder,
    queries: usize,
) -> anyhow::Result<Option<OnnxGradients>> {
    if arguments.black_box {
        return Ok(None);
    }
    // Queries are shared among threads; with few of them, threads help within each.
    let threads = arguments.engine.threads();
    let inside =
        NonZeroUsize::new(threads.get() / queries.clamp(1, threads.get())).unwrap_or(NonZeroUsize::MIN);
    match OnnxGradients::open(model, embedder, inside) {
        Ok(gradients) => Ok(Some(gradients)),
        Err(error) if arguments.white_box => {
            Err(error).context("--white-box wants gradients; --black-box attacks without them")
        }
        Err(error) => {
            tell(format_args!("warning: {}", without_gradients(&error)));
            Ok(None)
        }
    }
}

/// What it means that gradients cannot be computed.
pub(super) fn without_gradients(error: &GradientsError) -> String {
    format!(
        "{error}; so gradients are estimated from the encoder's outputs alone, which is far weaker: on photographs such an \
         attack may find nothing where one with gradients breaks nearly every plain retrieval"
    )
}
