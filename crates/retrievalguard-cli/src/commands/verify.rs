//! `retrievalguard verify`: makes the answer of a receipt again, and accepts nothing else.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use retrievalguard::SampleCount;
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::stored::StoredGallery;
use retrievalguard_encoder::receipt::{
    Evidence, Expected, Receipt, SeedFrom, Verified, read_public_key, verify,
};
use serde_json::json;

use crate::arguments::EngineArgs;
use crate::progress::tell;

#[derive(clap::Args, Debug)]
#[command(
    args_override_self = true,
    after_help = "Example: retrievalguard verify photo.receipt.json --picture photo.jpg --gallery products.gallery \
                  --model encoder.onnx\n\nExit status: 0 verified, 1 refused, 2 bad input."
)]
pub(crate) struct VerifyArgs {
    /// The receipt
    receipt: PathBuf,
    /// The picture that it is about
    #[arg(long, value_name = "FILE")]
    picture: PathBuf,
    /// The gallery that was searched
    #[arg(long, value_name = "DIR")]
    gallery: PathBuf,
    /// The encoder in ONNX
    #[arg(long, value_name = "FILE")]
    model: PathBuf,
    /// Model config of the encoder, if it is not beside it as encoder.toml or config.json
    #[arg(long, value_name = "FILE")]
    contract: Option<PathBuf>,
    /// Commitment that was published before the answer
    #[arg(long, value_name = "SHA256")]
    commitment: Option<Digest>,
    /// Challenge that was sent with the question
    #[arg(long, value_name = "TEXT")]
    challenge: Option<String>,
    /// Public key that must have signed, as written by `retrievalguard receipt-key`
    #[arg(long, value_name = "FILE")]
    public_key: Option<PathBuf>,
    /// Accept an answer that differs by the last bits of another engine or processor
    #[arg(long)]
    allow_rounding: bool,
    /// Refuse to draw more samples than this
    #[arg(long, default_value = "1000000")]
    most_samples: SampleCount,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

pub(super) fn run(arguments: &VerifyArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let receipt = Receipt::read(&arguments.receipt)
        .with_context(|| format!("receipt `{}` cannot be used", arguments.receipt.display()))?;
    let expected = Expected {
        commitment: arguments.commitment,
        challenge: arguments.challenge.clone(),
        key: arguments.public_key.as_deref().map(read_public_key).transpose()?,
        rounding: arguments.allow_rounding,
        most_samples: Some(arguments.most_samples.get()),
    };
    let picture = fs::read(&arguments.picture)
        .with_context(|| format!("picture `{}` cannot be read", arguments.picture.display()))?;
    let gallery = StoredGallery::open(&arguments.gallery)?;
    let (model, contract) = (&arguments.model, arguments.contract.as_deref());
    let embedder = match &receipt.fixed.noise {
        Some(_) => arguments.engine.open(model, contract)?,
        None => arguments.engine.open_double(model, contract, "the receipt is of an answer without noise")?,
    };
    let embedder = embedder.with_components(receipt.fixed.encoder.components);
    let evidence = Evidence {
        embedder: &embedder,
        gallery: &gallery,
        gallery_name: &arguments.gallery.display().to_string(),
        picture: &picture,
        threads: arguments.engine.threads(),
        batch: arguments.engine.batch,
    };
    let Verified { signed_by, undecided } = verify(&receipt, &evidence, &expected)
        .with_context(|| format!("`{}` is not verified", arguments.receipt.display()))?;
    let given = receipt.fixed.noise.as_ref().is_some_and(|noise| noise.seed_from == SeedFrom::Given);
    if given {
        tell(format_args!(
            "note: the seed was given, so it was no secret: this is an evaluation, no answer in deployment"
        ));
    }
    if arguments.json {
        let answers = receipt.answers.iter().map(|answer| {
            json!({
                "certificate": answer.certificate,
                "label": answer.label,
                "verdict": answer.verdict,
                "radius": answer.radius,
                "statement": answer.statement,
            })
        });
        let value = json!({
            "verified": true,
            "answers": answers.collect::<Vec<_>>(),
            "signed_by": signed_by,
            "undecided_copies": undecided,
            "tool": receipt.fixed.tool,
        });
        writeln!(out, "{}", serde_json::to_string_pretty(&value)?)?;
        return Ok(());
    }
    match undecided {
        None => writeln!(out, "verified: every number is the same")?,
        Some(copies) => {
            writeln!(out, "verified up to the last bits of another engine: {copies} copies depend on them")?;
        }
    }
    for answer in &receipt.answers {
        writeln!(out, "{}: {}", answer.certificate, answer.statement)?;
    }
    match signed_by {
        Some(key) if arguments.public_key.is_some() => writeln!(out, "signed by {key}, as wanted")?,
        Some(key) => writeln!(out, "signed by {key}, whoever that is")?,
        None => writeln!(out, "not signed")?,
    }
    Ok(())
}
