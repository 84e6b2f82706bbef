//! `retrievalguard check-model`: can this encoder be certified, and how fast is it?

use std::cell::RefCell;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, bail};
use retrievalguard::Embedder;
use retrievalguard::storage::npy;
use retrievalguard_encoder::check::{CheckOptions, check_model};
use retrievalguard_encoder::dataset::Role;
use retrievalguard_encoder::graph::Model;
use retrievalguard_encoder::graph::bound::{Above, BoundReading, LayerBound};
use retrievalguard_encoder::model_config::ModelConfig;
use retrievalguard_encoder::pipeline::{EncoderInputs, PictureOutcome, PipelineError};

use crate::arguments::{DataArgs, ModelArgs, tell_skipped};
use crate::progress::tell;

#[derive(clap::Args, Debug)]
#[command(
    args_override_self = true,
    after_help = "Examples:\n  \
        retrievalguard check-model pictures --model encoder.onnx --limit 16\n  \
        retrievalguard check-model --lipschitz --model encoder.onnx"
)]
pub(crate) struct CheckModelArgs {
    /// Pictures to run it on: a folder or a list
    #[arg(required_unless_present = "lipschitz")]
    pictures: Option<PathBuf>,
    /// Bound its Lipschitz constant from its weights, layer by layer; runs nothing
    #[arg(long, conflicts_with_all = ["pictures", "reference", "tolerance", "split", "format", "limit", "every", "boxes"])]
    lipschitz: bool,
    /// Embeddings of these pictures made elsewhere, as .npy, to compare with
    #[arg(long, value_name = "FILE")]
    reference: Option<PathBuf>,
    /// Largest difference from the reference that passes
    #[arg(long, default_value = "0.001")]
    tolerance: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    data: DataArgs,
}

pub(super) fn run(arguments: &CheckModelArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    if arguments.lipschitz {
        return bound(arguments, out);
    }
    let Some(pictures) = &arguments.pictures else { bail!("wanted pictures, or --lipschitz") };
    // Which engine was found matters only once the model has passed: what is wrong with it is said first.
    let notices = RefCell::new(Vec::new());
    let embedder = arguments.model.engine.open_telling(
        &arguments.model.model,
        arguments.model.contract.as_deref(),
        |notice| notices.borrow_mut().push(notice.to_owned()),
    )?;
    let mut records = arguments.data.read(pictures, Role::Query)?.chosen;
    // More pictures say no more, unless there is something to compare each with.
    if arguments.reference.is_none() {
        records = records.subset(0..records.len().min(64));
    }
    let broken = arguments.data.broken();
    let inputs = EncoderInputs { records: &records, config: embedder.model_config(), broken };
    let (mut values, mut skipped) = (Vec::new(), Vec::new());
    for (position, record) in records.iter().enumerate() {
        match inputs.with(position, |_, picture| Ok::<_, PipelineError>(picture.pixels.to_vec()))? {
            PictureOutcome::Done(pixels) => values.extend(pixels),
            PictureOutcome::Skipped(reason) => skipped.push((record.identity.clone(), reason)),
        }
    }
    tell_skipped(&skipped);
    if values.is_empty() {
        return Err(PipelineError::NothingLeft { skipped: skipped.len() }.into());
    }
    let reference = match &arguments.reference {
        Some(path) => Some(npy::read_matrix(path).with_context(|| "cannot read the reference")?),
        None => None,
    };
    if let Some(matrix) = &reference {
        let wanted = values.len() / embedder.input_len();
        if (matrix.rows, matrix.columns) != (wanted, embedder.dimension()) {
            bail!(
                "the reference is {} × {}, wanted {wanted} × {}: one row per picture",
                matrix.rows,
                matrix.columns,
                embedder.dimension()
            );
        }
    }
    let options = CheckOptions {
        batch: arguments.model.engine.batch,
        threads: arguments.model.engine.threads(),
        reference: reference.as_ref().map(|matrix| matrix.values.as_slice()),
        reference_tolerance: arguments.tolerance,
        ..CheckOptions::default()
    };
    let report = check_model(&embedder, &values, &options);
    let report = match embedder.check().reason() {
        Some(reason) => report.with_context(|| format!("the encoder must run picture by picture: {reason}")),
        None => report.map_err(anyhow::Error::from),
    }?;
    if arguments.json {
        let mut value = serde_json::to_value(&report)?;
        value["encoder_check"] = serde_json::to_value(embedder.check())?;
        writeln!(out, "{value:#}")?;
    } else {
        writeln!(out, "batch         {}", embedder.check())?;
        writeln!(out, "{report}")?;
    }
    let failures = report.failures();
    if !failures.is_empty() {
        bail!("the encoder cannot be certified as it is: {}", failures.join("; "));
    }
    for notice in notices.into_inner() {
        tell(format_args!("note: {notice}"));
    }
    Ok(())
}

/// How fast the encoder can move, or the first operator for which nobody knows.
fn bound(arguments: &CheckModelArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let path = &arguments.model.model;
    let config = match &arguments.model.contract {
        Some(contract) => ModelConfig::read(contract)?,
        None => ModelConfig::for_model(path)?,
    };
    let model = Model::read(path)?;
    let reading = BoundReading::of(&model, &config)?;
    if arguments.json {
        writeln!(out, "{:#}", serde_json::to_value(&reading)?)?;
    }
    let bound = match &reading {
        BoundReading::Bounded(bound) => bound,
        BoundReading::Unknown { .. } => bail!("{reading}"),
    };
    if arguments.json {
        return Ok(());
    }
    for layer in &bound.layers {
        let LayerBound { node, operator, factor, so_far } = layer;
        writeln!(out, "{node:<28} {operator:<18} {:<14.9} {:.9}", Above(*factor), Above(*so_far))?;
    }
    writeln!(out, "Lipschitz constant   at most {:.9}", Above(bound.constant))?;
    // A picture of this size that is white everywhere; radii come on top of it.
    let norm = (config.picture_shape().iter().product::<usize>() as f64).sqrt();
    for (engine, error) in [("f64", bound.double_error), ("f32", bound.single_error)] {
        let error = error.at(norm)?;
        writeln!(
            out,
            "forward error in {engine}  at most {:.3e} for pictures of norm {norm:.1}",
            error.get() * 1.001
        )?;
    }
    Ok(())
}
