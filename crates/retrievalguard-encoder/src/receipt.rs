//! What one certified answer leaves behind for a stranger to check: a small JSON file. `docs/receipts.md` is its
//! specification, for whoever writes a verifier.
//!
//! [`Premises`] and a question make a [`Promise`], whose commitment may be published before the first sample is drawn; with
//! the answer it becomes a [`Receipt`]. [`verify`] makes the answer again from the same files and accepts nothing else.

mod body;
mod counted;
mod folder;
mod promise;
mod rounding;
mod signature;
mod statement;
mod verify;

use std::io;
use std::path::{Path, PathBuf};

use retrievalguard::storage::atomic::{self, WriteError};
use retrievalguard::storage::digest::Digest;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use body::{
    BoundCounts, BoundFacts, CertifiedAnswer, Counted, DrawnRange, EncoderFacts, Fixed, GalleryFacts,
    NoiseFacts, Opened, PictureFacts, PlannedShare, Question, Real, RealError, RivalCount, Schedule,
    SeedFrom, StepFacts, TestFacts, VerdictName, VoteCounts,
};
pub(crate) use folder::ReceiptFolder;
pub use folder::ReceiptsTo;
pub use promise::{Asked, Premises, Promise, Secret};
pub use signature::{ReceiptKey, Signature, read_public_key};
pub use statement::{Circumstances, statement};
pub use verify::{Evidence, Expected, Refusal, Verified, VerifyError, verify};

/// Version of the format.
pub const FORMAT: u32 = 1;

/// Largest file that is read.
const MOST_BYTES: u64 = 16 << 20;

const DIGEST: &str = "retrievalguard receipt 1\n";

/// Why a receipt, or a key, cannot be made or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiptError {
    /// A file cannot be read.
    #[error("`{path}` cannot be read")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is too large to be a receipt.
    #[error("the receipt has more than {MOST_BYTES} bytes, wanted at most as many")]
    Large,
    /// It is no receipt of this format.
    #[error("it is no receipt of format {FORMAT}")]
    Json(#[from] serde_json::Error),
    /// It is of another format.
    #[error("the receipt has format {0}, wanted {FORMAT}")]
    Format(u32),
    /// It says something in another way than receipts do.
    #[error("the receipt is not written as receipts are: {0}")]
    Spelling(String),
    /// A query was answered before receipts were asked for.
    #[error(
        "`{identity}` was answered before and left no receipt at `{path}`, wanted the run's earlier receipts there, or a new run"
    )]
    Answered {
        /// The query.
        identity: String,
        /// Where its receipt would be.
        path: PathBuf,
    },
    /// A key file holds something else.
    #[error("key `{path}` cannot be used, wanted {wanted}")]
    Key {
        /// The file.
        path: PathBuf,
        /// What was wanted.
        wanted: &'static str,
    },
    /// Only labels have receipts.
    #[error("a receipt is about a label, found a question about one item")]
    Item,
    /// The picture is not the whole of a file.
    #[error(
        "picture `{0}` is not the whole of a file, wanted pictures in files and no boxes: a receipt names a file that can be \
         prepared again"
    )]
    NoFile(String),
}

/// A receipt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    /// Version of the format, [`FORMAT`].
    pub receipt: u32,
    /// What was settled before the first sample.
    pub fixed: Fixed,
    /// The commitment to it, to the seed and to the salt.
    pub commitment: Option<Digest>,
    /// Seed and salt.
    pub opened: Option<Opened>,
    /// Which samples were drawn.
    pub drawn: Vec<DrawnRange>,
    /// What the certificates say.
    pub answers: Vec<CertifiedAnswer>,
    /// Digest of everything above.
    pub digest: Digest,
    /// Who vouches for it.
    pub signature: Option<Signature>,
}

impl Receipt {
    /// Reads the text of a receipt; whether it is true is not asked.
    ///
    /// What means the same in other words is refused, so that every verifier sees the same receipt.
    pub fn parse(text: &[u8]) -> Result<Self, ReceiptError> {
        if text.len() as u64 > MOST_BYTES {
            return Err(ReceiptError::Large);
        }
        #[derive(Deserialize)]
        struct Version {
            receipt: u32,
        }
        let Version { receipt: format } = serde_json::from_slice(text)?;
        if format != FORMAT {
            return Err(ReceiptError::Format(format));
        }
        // Typed first: a key that is there twice is an error of these types, and silence elsewhere.
        let receipt: Self = serde_json::from_slice(text)?;
        let found: Value = serde_json::from_slice(text)?;
        let differences = verify::differences(&found, &receipt.to_value());
        if differences.is_empty() { Ok(receipt) } else { Err(ReceiptError::Spelling(differences)) }
    }

    /// Reads the file of a receipt.
    pub fn read(path: &Path) -> Result<Self, ReceiptError> {
        use io::Read;

        let mut text = Vec::new();
        let read =
            std::fs::File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut text));
        read.map_err(|source| ReceiptError::Read { path: path.to_owned(), source })?;
        Self::parse(&text)
    }

    /// The receipt as JSON.
    pub fn to_value(&self) -> Value {
        serde_json::to_value(self).expect("a receipt is texts and whole numbers")
    }

    /// The text of its file.
    pub fn to_text(&self) -> String {
        format!("{:#}\n", self.to_value())
    }

    /// Writes its file.
    pub fn write(&self, path: &Path) -> Result<(), WriteError> {
        atomic::write(path, self.to_text().as_bytes())
    }

    /// The digest that it should have.
    pub fn own_digest(&self) -> Digest {
        let mut value = self.to_value();
        if let Some(fields) = value.as_object_mut() {
            fields.remove("digest");
            fields.remove("signature");
        }
        promise::tagged(DIGEST, &value)
    }

    /// The same with the digest of what it says, and a signature if there is a key.
    #[must_use]
    pub fn sealed(mut self, key: Option<&ReceiptKey>) -> Self {
        self.digest = self.own_digest();
        self.signature = key.map(|key| key.sign(self.digest));
        self
    }

    /// Name of the receipt of a query of a run, by its place.
    pub fn file_name(position: usize) -> String {
        format!("{position:06}.receipt.json")
    }
}
