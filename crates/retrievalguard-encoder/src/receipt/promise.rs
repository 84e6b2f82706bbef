//! From what is settled before the first sample, with the commitment to it, to the receipt of the answer.

use retrievalguard::certificate::{CertificateError, Retriever};
use retrievalguard::storage::content::GalleryContent;
use retrievalguard::storage::digest::{Digest, canonical_json};
use retrievalguard::storage::stored::GalleryRef;
use retrievalguard::{Embedder, Excess, Seed};
use serde_json::json;

use super::body::{
    BoundFacts, CertifiedAnswer, EncoderFacts, Fixed, GalleryFacts, NoiseFacts, Opened, PictureFacts,
    Question, Schedule, SeedFrom,
};
use super::counted::{drawn_ranges, of_bound, of_samples};
use super::statement::Circumstances;
use super::{FORMAT, Receipt, ReceiptError, ReceiptKey};
use crate::engine::OnnxEmbedder;
use crate::pipeline::{Answered, Drawn, PlainAnswered, Query, QueryCertifier, Relevant, whole_items};
use crate::run::{LipschitzBounded, Procedure};

const COMMITMENT: &str = "retrievalguard receipt commitment 1\n";
const SALT: &str = "retrievalguard receipt salt 1\n";

/// Encoder and gallery, which are the same for every query of a run.
#[derive(Clone, Debug)]
pub struct Premises {
    encoder: EncoderFacts,
    content: GalleryContent,
    /// Channels, height and width of what the encoder gets.
    input: [usize; 3],
}

/// The seed of an answer.
#[derive(Clone, Copy)]
pub enum Secret {
    /// The caller gave it; it is no secret, and there is nothing to hide.
    Given(Seed),
    /// It is for this answer alone, hidden by 32 random bytes until the answer is there.
    Fresh(Seed, [u8; 32]),
}

impl Secret {
    /// The seed itself.
    pub fn seed(&self) -> Seed {
        match *self {
            Self::Given(seed) | Self::Fresh(seed, _) => seed,
        }
    }
}

/// What is asked, of which picture.
#[derive(Clone, Debug)]
pub struct Asked<'a> {
    /// The picture.
    pub picture: PictureFacts,
    /// The question.
    pub query: &'a Query<'a>,
    /// Text of the asker that enters the commitment.
    pub challenge: Option<String>,
}

impl Premises {
    /// The facts of an encoder and of the gallery that it searches.
    pub fn new(embedder: &OnnxEmbedder, excess: Excess, content: GalleryContent) -> Self {
        let model = embedder.facts().hash.parse().expect("hashes of models are SHA-256");
        let encoder = EncoderFacts {
            model,
            config: embedder.model_config().to_json(),
            dimension: embedder.dimension(),
            components: embedder.components(),
            excess,
            engine: embedder.report().to_string(),
        };
        Self { encoder, content, input: embedder.model_config().picture_shape() }
    }

    pub(super) fn into_encoder(self) -> EncoderFacts {
        self.encoder
    }

    /// What is settled before noise is drawn.
    pub fn with_noise(
        &self,
        asked: Asked<'_>,
        gallery: GalleryRef<'_>,
        (procedure, growing): (&Procedure, bool),
        secret: Secret,
    ) -> Result<Promise, ReceiptError> {
        let schedule = match (growing, procedure.target_radius) {
            (true, _) => Schedule::Growing,
            (false, Some(_)) => Schedule::Target,
            (false, None) => Schedule::Fixed,
        };
        let from = match secret {
            Secret::Given(_) => SeedFrom::Given,
            Secret::Fresh(..) => SeedFrom::Fresh,
        };
        let fixed = Fixed {
            retriever: procedure.retriever(),
            certificates: procedure.certificates.clone(),
            noise: Some(NoiseFacts::new(procedure, schedule, from)),
            ..self.fixed(asked, gallery)?
        };
        let salt = match secret {
            Secret::Fresh(_, salt) => Digest::new(salt),
            // A run that is repeated leaves the same bytes.
            Secret::Given(seed) => tagged(SALT, &json!({"fixed": fixed, "seed": seed})),
        };
        Ok(Promise::new(fixed, Some(Opened { seed: secret.seed(), salt }), self.input))
    }

    /// What is settled before a picture is certified without noise.
    pub fn without_noise(
        &self,
        asked: Asked<'_>,
        gallery: GalleryRef<'_>,
        bounded: &LipschitzBounded,
    ) -> Result<Promise, ReceiptError> {
        let bound = BoundFacts {
            mixtures: bounded.mixtures.get(),
            top_k: bounded.top_k.get(),
            constant: bounded.lipschitz.constant.into(),
        };
        let fixed = Fixed {
            certificates: bounded.certificates.clone(),
            bound: Some(bound),
            ..self.fixed(asked, gallery)?
        };
        Ok(Promise::new(fixed, None, self.input))
    }

    fn fixed(&self, asked: Asked<'_>, gallery: GalleryRef<'_>) -> Result<Fixed, ReceiptError> {
        let Asked { picture, query, challenge } = asked;
        let label = match query.relevant {
            Relevant::Label(label) => Some(label.to_owned()),
            Relevant::Retrieved(_) => None,
            Relevant::Item(_) => return Err(ReceiptError::Item),
        };
        Ok(Fixed {
            tool: concat!("retrievalguard ", env!("CARGO_PKG_VERSION")).to_owned(),
            picture,
            encoder: self.encoder.clone(),
            gallery: GalleryFacts::new(&self.content, whole_items(gallery, query.excluded)),
            question: Question { label },
            retriever: Retriever::Plain,
            certificates: Vec::new(),
            noise: None,
            bound: None,
            challenge,
        })
    }
}

/// Digest of a purpose and of the canonical text of a value.
pub(super) fn tagged(purpose: &str, value: &serde_json::Value) -> Digest {
    Digest::of_bytes(format!("{purpose}{}", canonical_json(value)).as_bytes())
}

/// What is settled, and the commitment to it; to be kept once the answer is there.
#[derive(Clone, Debug)]
pub struct Promise {
    fixed: Fixed,
    opened: Option<Opened>,
    commitment: Option<Digest>,
    input: [usize; 3],
}

impl Promise {
    pub(super) fn new(fixed: Fixed, opened: Option<Opened>, input: [usize; 3]) -> Self {
        let commitment =
            opened.as_ref().map(|opened| tagged(COMMITMENT, &json!({"fixed": fixed, "opened": opened})));
        Self { fixed, opened, commitment, input }
    }

    /// What may be published before the first sample is drawn; none where nothing is drawn.
    pub fn commitment(&self) -> Option<Digest> {
        self.commitment
    }

    /// The receipt of an answer from these samples.
    pub fn keep(
        self,
        certifier: &QueryCertifier<'_>,
        answered: &Answered,
        drawn: &Drawn,
        key: Option<&ReceiptKey>,
    ) -> Result<Receipt, CertificateError> {
        let alpha = self.fixed.noise.as_ref().map(|noise| noise.alpha.to_string());
        let under = self.circumstances(alpha.as_deref());
        let answers = of_samples(certifier, answered, drawn, under)?;
        Ok(self.seal(drawn, answers, key))
    }

    /// The receipt of an answer without noise.
    pub fn keep_bounded(
        self,
        gallery: GalleryRef<'_>,
        answered: &PlainAnswered,
        key: Option<&ReceiptKey>,
    ) -> Receipt {
        let answers = of_bound(gallery, answered, self.circumstances(None));
        self.seal(&Drawn::default(), answers, key)
    }

    fn circumstances<'s>(&'s self, alpha: Option<&'s str>) -> Circumstances<'s> {
        let Fixed { retriever, gallery, .. } = &self.fixed;
        Circumstances { retriever: *retriever, input: self.input, alpha, hidden: &gallery.excluded }
    }

    fn seal(self, drawn: &Drawn, answers: Vec<CertifiedAnswer>, key: Option<&ReceiptKey>) -> Receipt {
        let Self { fixed, opened, commitment, .. } = self;
        let drawn = drawn_ranges(drawn);
        let digest = Digest::of_bytes(&[]);
        Receipt { receipt: FORMAT, fixed, commitment, opened, drawn, answers, digest, signature: None }
            .sealed(key)
    }
}
