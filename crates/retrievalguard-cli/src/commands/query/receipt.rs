//! The receipt of a query, and the commitment before it.

use std::path::{Path, PathBuf};

use retrievalguard::Seed;
use retrievalguard::storage::content::GalleryContent;
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::stored::StoredGallery;
use retrievalguard_encoder::engine::OnnxEmbedder;
use retrievalguard_encoder::pipeline::Query;
use retrievalguard_encoder::receipt::{Asked, PictureFacts, Premises, Promise, ReceiptKey, Secret};
use retrievalguard_encoder::run::{LipschitzBounded, Procedure};
use retrievalguard_server::random_bytes;

use super::QueryArgs;
use crate::progress::tell;

#[derive(clap::Args, Debug)]
pub(super) struct ReceiptArgs {
    /// Leave a receipt in this file, which `retrievalguard verify` checks; says the commitment before anything is drawn
    #[arg(long, value_name = "FILE")]
    receipt: Option<PathBuf>,
    /// Sign the receipt with this key, as written by `retrievalguard receipt-key`
    #[arg(long, value_name = "FILE", requires = "receipt")]
    receipt_key: Option<PathBuf>,
    /// Text of whoever asks, which enters the commitment
    #[arg(long, value_name = "TEXT", requires = "receipt")]
    challenge: Option<String>,
}

/// Where a receipt goes.
#[derive(Clone, Copy)]
pub(super) struct To<'a> {
    pub(super) path: &'a Path,
    key: Option<&'a Path>,
}

impl To<'_> {
    /// The key that signs.
    pub(super) fn key(self) -> anyhow::Result<Option<ReceiptKey>> {
        Ok(self.key.map(ReceiptKey::read).transpose()?)
    }
}

impl ReceiptArgs {
    pub(super) fn is_wanted(&self) -> bool {
        self.receipt.is_some()
    }

    fn to(&self) -> anyhow::Result<Option<To<'_>>> {
        let to = self.receipt.as_deref().map(|path| To { path, key: self.receipt_key.as_deref() });
        // A key that cannot be read is said before anything is computed.
        to.map(|to| to.key().map(|_| to)).transpose()
    }

    fn asked<'q>(
        &self,
        arguments: &QueryArgs,
        (query, pixels): (&'q Query<'q>, &[f32]),
    ) -> anyhow::Result<Asked<'q>> {
        let identity = arguments.picture.display().to_string();
        let picture = PictureFacts::new(&identity, Digest::of_file(&arguments.picture)?, pixels);
        Ok(Asked { picture, query, challenge: self.challenge.clone() })
    }

    /// What is promised before noise is drawn, if a receipt is wanted.
    pub(super) fn promise<'a>(
        &'a self,
        arguments: &QueryArgs,
        stored: &StoredGallery,
        embedder: &OnnxEmbedder,
        asked: (&Query<'_>, &[f32]),
        (procedure, seed): (&Procedure, Seed),
    ) -> anyhow::Result<Option<(Promise, To<'a>)>> {
        let Some(to) = self.to()? else { return Ok(None) };
        let secret = match arguments.seed {
            Some(seed) => Secret::Given(seed),
            None => Secret::Fresh(seed, random_bytes()?),
        };
        let content = GalleryContent::of(stored.gallery())?;
        let premises = Premises::new(embedder, arguments.model.excess(), content);
        let asked = self.asked(arguments, asked)?;
        let promise = premises.with_noise(asked, stored.gallery(), (procedure, false), secret)?;
        if let Some(commitment) = promise.commitment() {
            tell(format_args!("commitment {commitment}"));
        }
        Ok(Some((promise, to)))
    }

    /// The same without noise.
    pub(super) fn promise_bounded<'a>(
        &'a self,
        arguments: &QueryArgs,
        stored: &StoredGallery,
        embedder: &OnnxEmbedder,
        asked: (&Query<'_>, &[f32]),
        bounded: &LipschitzBounded,
    ) -> anyhow::Result<Option<(Promise, To<'a>)>> {
        let Some(to) = self.to()? else { return Ok(None) };
        let content = GalleryContent::of(stored.gallery())?;
        let premises = Premises::new(embedder, arguments.model.excess(), content);
        let promise = premises.without_noise(self.asked(arguments, asked)?, stored.gallery(), bounded)?;
        Ok(Some((promise, to)))
    }
}
