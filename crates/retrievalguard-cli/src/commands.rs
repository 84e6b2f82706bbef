//! One file per subcommand; each holds its arguments and one `run`.

pub(crate) mod attack;
mod certify;
mod certify_embeddings;
mod certify_samples;
mod check_model;
mod compare;
mod completions;
mod copy_encoder;
mod demo;
mod doctor;
mod draw;
mod evaluate;
mod experiment;
mod explain;
mod export;
mod import;
mod index;
mod man;
mod merge;
#[cfg(any(test, not(feature = "train")))]
mod not_built;
mod openapi;
mod query;
mod recall;
mod receipt_key;
mod recommend;
mod repair;
mod report;
mod run_directory;
mod serve;
#[cfg(feature = "train")]
mod train;
mod upgrade;
mod verify;
mod worker;

use std::io::Write;
use std::path::Path;

use clap::Subcommand;
use retrievalguard::storage::atomic;
use retrievalguard_report::chart::Figure;

/// Pixels of a PNG per unit of a figure.
const PNG_SCALE: f32 = 2.0;

/// Flags that decide where and how fast something is made, and not what comes of it.
const PLACES: [&str; 5] = ["--out", "--cache", "--threads", "--batch", "--onnxruntime"];

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Render pictures, index them and certify queries: a whole run that needs no files
    Demo(demo::DemoArgs),
    /// Render synthetic pictures with labels, for trying things out
    Draw(draw::DrawArgs),
    /// Embed labelled pictures and store them as a gallery
    Index(index::IndexArgs),
    /// Certify queries against a gallery, or certify embeddings made elsewhere
    Certify(Box<certify::CertifyArgs>),
    /// Do tasks of a run that `certify --share` wrote
    Worker(worker::WorkerArgs),
    /// Merge the parts of a shared run, with the bytes of a run on one machine
    Merge(merge::MergeArgs),
    /// Retrieve for one picture, with a guarantee or an abstention
    Query(query::QueryArgs),
    /// Make the answer of a receipt again from the files that it is about, and accept nothing else
    Verify(verify::VerifyArgs),
    /// Make a key that signs receipts
    ReceiptKey(receipt_key::ReceiptKeyArgs),
    /// Serve a gallery over HTTP, with a page: answers carry guarantees
    Serve(Box<serve::ServeArgs>),
    /// Print the OpenAPI document of the service
    Openapi(openapi::OpenapiArgs),
    /// Measure how well an encoder retrieves, clean and smoothed
    Recall(recall::RecallArgs),
    /// Try noise levels and retrievers: what certifying would give and cost, and which to choose
    Recommend(Box<recommend::RecommendArgs>),
    /// Summarise certificates: certified recall, average radius, rejected ratio
    Evaluate(evaluate::EvaluateArgs),
    /// Draw certificates of several runs with common axes, with noise and without
    Compare(compare::CompareArgs),
    /// Print the chain of numbers behind one certificate, each with the statement it uses
    Explain(explain::ExplainArgs),
    /// Run a sweep and draw its figure
    Experiment(experiment::ExperimentArgs),
    /// Write a page about a run: figures, pictures, the statement that is certified
    Report(report::ReportArgs),
    /// Try to break the certificates of a run, and the plain encoder for contrast
    Attack(Box<attack::AttackArgs>),
    /// Import a gallery made elsewhere
    Import(import::ImportArgs),
    /// Write a gallery for other programs
    Export(export::ExportArgs),
    /// Check whether a gallery has lost writes, and continue with those that are left
    Repair(repair::RepairArgs),
    /// Convert a gallery or a run of an earlier version to the current format
    Upgrade(upgrade::UpgradeArgs),
    /// Check that an encoder can be certified: shape, norm, determinism, independence, speed
    CheckModel(check_model::CheckModelArgs),
    /// Write an encoder that finds copies and near-duplicates, without training
    CopyEncoder(copy_encoder::CopyEncoderArgs),
    /// Train an encoder by metric learning, with noise on the pictures or without
    #[cfg(feature = "train")]
    Train(Box<train::TrainArgs>),
    /// Train an encoder; not part of this build, says how to get it
    #[cfg(not(feature = "train"))]
    Train(not_built::AnyArgs),
    /// Say which engine will run and what would make it faster
    Doctor(doctor::DoctorArgs),
    /// Print a completion script for a shell
    Completions(completions::CompletionsArgs),
    /// Write the manual: a page for every command
    Man(man::ManArgs),
}

impl Command {
    /// As it is called on the command line.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Demo(_) => "demo",
            Self::Draw(_) => "draw",
            Self::Index(_) => "index",
            Self::Certify(_) => "certify",
            Self::Worker(_) => "worker",
            Self::Merge(_) => "merge",
            Self::Query(_) => "query",
            Self::Serve(_) => "serve",
            Self::Openapi(_) => "openapi",
            Self::Recall(_) => "recall",
            Self::Recommend(_) => "recommend",
            Self::Evaluate(_) => "evaluate",
            Self::Explain(_) => "explain",
            Self::Experiment(_) => "experiment",
            Self::Report(_) => "report",
            Self::Compare(_) => "compare",
            Self::Verify(_) => "verify",
            Self::ReceiptKey(_) => "receipt-key",
            Self::Attack(_) => "attack",
            Self::Import(_) => "import",
            Self::Export(_) => "export",
            Self::Repair(_) => "repair",
            Self::Upgrade(_) => "upgrade",
            Self::CheckModel(_) => "check-model",
            Self::CopyEncoder(_) => "copy-encoder",
            Self::Train(_) => "train",
            Self::Doctor(_) => "doctor",
            Self::Completions(_) => "completions",
            Self::Man(_) => "man",
        }
    }
}

/// Runs a command; data goes to `out`, words for people to standard error.
pub(crate) fn run(command: &Command, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        Command::Demo(arguments) => demo::run(arguments, out),
        Command::Draw(arguments) => draw::run(arguments, out),
        Command::Index(arguments) => index::run(arguments, out),
        Command::Certify(arguments) => certify::run(arguments, out),
        Command::Worker(arguments) => worker::run(arguments, out),
        Command::Merge(arguments) => merge::run(arguments, out),
        Command::Query(arguments) => query::run(arguments, out),
        Command::Verify(arguments) => verify::run(arguments, out),
        Command::ReceiptKey(arguments) => receipt_key::run(arguments, out),
        Command::Serve(arguments) => serve::run(arguments, out),
        Command::Openapi(arguments) => openapi::run(arguments, out),
        Command::Recall(arguments) => recall::run(arguments, out),
        Command::Recommend(arguments) => recommend::run(arguments, out),
        Command::Evaluate(arguments) => evaluate::run(arguments, out),
        Command::Compare(arguments) => compare::run(arguments, out),
        Command::Explain(arguments) => explain::run(arguments, out),
        Command::Experiment(arguments) => experiment::run(arguments, out),
        Command::Report(arguments) => report::run(arguments, out),
        Command::Attack(arguments) => attack::run(arguments, out),
        Command::Import(arguments) => import::run(arguments, out),
        Command::Export(arguments) => export::run(arguments, out),
        Command::Repair(arguments) => repair::run(arguments, out),
        Command::Upgrade(arguments) => upgrade::run(arguments, out),
        Command::CheckModel(arguments) => check_model::run(arguments, out),
        Command::CopyEncoder(arguments) => copy_encoder::run(arguments, out),
        #[cfg(feature = "train")]
        Command::Train(arguments) => train::run(arguments, out),
        #[cfg(not(feature = "train"))]
        Command::Train(_) => Err(not_built::NotBuilt("`retrievalguard train`").into()),
        Command::Doctor(arguments) => doctor::run(arguments, out),
        Command::Completions(arguments) => completions::run(arguments, out),
        Command::Man(arguments) => man::run(arguments, out),
    }
}

/// A path as a shell takes it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./".contains(letter);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// Writes a figure as SVG and as PNG under one name, whatever its ending.
fn write_figure(figure: &Figure, path: &Path) -> anyhow::Result<()> {
    atomic::write(&path.with_extension("svg"), figure.svg().as_bytes())?;
    atomic::write(&path.with_extension("png"), &figure.png(PNG_SCALE)?)?;
    Ok(())
}

/// The command as it was given, without places and speed, and the program's version: the small line below a figure.
fn command_note() -> String {
    let mut command = "retrievalguard".to_owned();
    let mut words = std::env::args_os().skip(1);
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        if PLACES.contains(&text.as_ref()) {
            words.next();
        } else if !PLACES.iter().any(|flag| text.starts_with(&format!("{flag}="))) {
            command.push(' ');
            command.push_str(&quoted(Path::new(&word)));
        }
    }
    format!("{command} · version {}", env!("CARGO_PKG_VERSION"))
}
