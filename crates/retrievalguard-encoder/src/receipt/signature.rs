//! Ed25519 signatures of receipts, and the two files of a key.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use ed25519_dalek::{Signer, SigningKey, VerifyingKey};
use retrievalguard::storage::atomic::WriteError;
use retrievalguard::storage::digest::Digest;
use serde::{Deserialize, Serialize};

use super::ReceiptError;

const DOMAIN: &str = "retrievalguard receipt signature 1\n";

/// Who vouches for a receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signature {
    /// The public key.
    pub key: Digest,
    /// The signature, as 128 hexadecimal digits.
    pub value: String,
}

impl Signature {
    /// Whether it is the key's signature of a receipt with this digest.
    pub(super) fn is_of(&self, digest: Digest) -> bool {
        let Ok(key) = VerifyingKey::from_bytes(self.key.bytes()) else { return false };
        let (first, second) = match self.value.split_at_checked(64) {
            Some((first, second)) => (first.parse::<Digest>(), second.parse::<Digest>()),
            None => return false,
        };
        let (Ok(first), Ok(second)) = (first, second) else { return false };
        let mut bytes = [0; 64];
        bytes[..32].copy_from_slice(first.bytes());
        bytes[32..].copy_from_slice(second.bytes());
        let signature = ed25519_dalek::Signature::from_bytes(&bytes);
        key.verify_strict(message(digest).as_bytes(), &signature).is_ok()
    }
}

fn message(digest: Digest) -> String {
    format!("{DOMAIN}{digest}")
}

/// The secret key that receipts are signed with.
#[derive(Clone)]
pub struct ReceiptKey(SigningKey);

impl std::fmt::Debug for ReceiptKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "ReceiptKey(public {})", self.public())
    }
}

impl ReceiptKey {
    /// A key from 32 random bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(SigningKey::from_bytes(&bytes))
    }

    /// Reads the file of a secret key.
    pub fn read(path: &Path) -> Result<Self, ReceiptError> {
        let bytes: Digest = read_hexadecimal(path, "the 64 hexadecimal digits of a secret key")?;
        Ok(Self::from_bytes(*bytes.bytes()))
    }

    /// The public key.
    pub fn public(&self) -> Digest {
        Digest::new(self.0.verifying_key().to_bytes())
    }

    /// Writes the secret key, readable by its owner alone, and the public one beside it; replaces nothing.
    pub fn write(&self, path: &Path) -> Result<PathBuf, WriteError> {
        let mut name = path.as_os_str().to_owned();
        name.push(".pub");
        let public = PathBuf::from(name);
        let secret = Digest::new(self.0.to_bytes());
        for (path, text, private) in [(path, secret, true), (&public, self.public(), false)] {
            let mut options = fs::OpenOptions::new();
            options.write(true).create_new(true);
            #[cfg(unix)]
            if private {
                use std::os::unix::fs::OpenOptionsExt;
                options.mode(0o600);
            }
            #[cfg(not(unix))]
            let _ = private;
            let mut file = options.open(path).map_err(|error| WriteError::new(path, error))?;
            writeln!(file, "{text}")
                .and_then(|()| file.sync_all())
                .map_err(|error| WriteError::new(path, error))?;
        }
        Ok(public)
    }

    pub(super) fn sign(&self, digest: Digest) -> Signature {
        let value = self.0.sign(message(digest).as_bytes()).to_bytes();
        Signature { key: self.public(), value: value.iter().map(|byte| format!("{byte:02x}")).collect() }
    }
}

/// Reads the file of a public key.
pub fn read_public_key(path: &Path) -> Result<Digest, ReceiptError> {
    read_hexadecimal(path, "the 64 hexadecimal digits of a public key")
}

fn read_hexadecimal(path: &Path, wanted: &'static str) -> Result<Digest, ReceiptError> {
    let read = |source| ReceiptError::Read { path: path.to_owned(), source };
    let text = fs::read_to_string(path).map_err(read)?;
    text.trim_end().parse().map_err(|_| ReceiptError::Key { path: path.to_owned(), wanted })
}
