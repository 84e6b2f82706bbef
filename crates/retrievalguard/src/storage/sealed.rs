//! JSON that shows whether it was changed: an object that holds the SHA-256 of everything else in it.
//!
//! The digest is that of the [canonical text](super::digest::canonical_json) of the other fields, so spaces, line breaks
//! and the order of fields may change and nothing else. It is no signature: whoever rewrites a file on purpose can seal it
//! again.
//!
//! ```
//! use retrievalguard::storage::sealed::{SealError, seal, unseal};
//! use serde_json::json;
//!
//! let value = json!({"radius": 0.25, "samples": 1000});
//! let text = seal(&value)?;
//! assert_eq!(unseal(text.as_bytes())?, value);
//! let changed = text.replace("0.25", "0.75");
//! assert!(matches!(unseal(changed.as_bytes()), Err(SealError::Changed { .. })));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use serde::Serialize;
use serde_json::Value;

use super::digest::Digest;

/// The field that holds the digest of the others.
pub const SEAL: &str = "sha256";

/// Why a sealed text cannot be verified.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// It is not JSON.
    #[error("it is not JSON")]
    Json(#[source] serde_json::Error),
    /// It says nothing about itself.
    #[error("it has no `{SEAL}`, wanted the digest of its other fields")]
    Unsealed,
    /// It is not what was written.
    #[error("its fields have sha256 {found:.16}…, it was sealed with {wanted:.16}…")]
    Changed {
        /// Digest of the other fields.
        found: Digest,
        /// The digest that it holds.
        wanted: Digest,
    },
}

#[derive(Serialize)]
struct Sealed<'a, T> {
    #[serde(flatten)]
    content: &'a T,
    sha256: Digest,
}

impl<'a, T: Serialize> Sealed<'a, T> {
    fn new(content: &'a T) -> Result<Self, serde_json::Error> {
        Ok(Self { content, sha256: Digest::of_json(&serde_json::to_value(content)?) })
    }
}

/// The text of an object with its seal, to be read by people as well.
pub fn seal(content: &impl Serialize) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string_pretty(&Sealed::new(content)?)? + "\n")
}

/// The same on one line.
pub fn seal_line(content: &impl Serialize) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string(&Sealed::new(content)?)? + "\n")
}

/// The fields of a sealed object without the seal, if they are those that were sealed.
pub fn unseal(text: &[u8]) -> Result<Value, SealError> {
    let mut value: Value = serde_json::from_slice(text).map_err(SealError::Json)?;
    let wanted = value.as_object_mut().and_then(|fields| fields.remove(SEAL));
    let wanted = wanted.as_ref().and_then(Value::as_str).and_then(|digest| digest.parse().ok());
    let wanted: Digest = wanted.ok_or(SealError::Unsealed)?;
    let found = Digest::of_json(&value);
    if found == wanted { Ok(value) } else { Err(SealError::Changed { found, wanted }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_changed_letter_is_noticed_and_a_changed_space_is_none() {
        let value = json!({"a": [1, 0.1, "x y"], "b": {"c": null, "d": true}});
        let text = seal(&value).unwrap();
        for place in 0..text.len() {
            for bit in 0..8 {
                let mut bytes = text.clone().into_bytes();
                bytes[place] ^= 1 << bit;
                if let Ok(found) = unseal(&bytes) {
                    assert_eq!(found, value, "byte {place}, bit {bit}");
                }
            }
        }
        let spread = text.replace(' ', "\n  ").replace("x\n  y", "x y");
        assert_eq!(unseal(spread.as_bytes()).unwrap(), value);
        assert!(matches!(unseal(b"{\"a\": 1}"), Err(SealError::Unsealed)));
        assert!(matches!(unseal(b"[]"), Err(SealError::Unsealed)));
        assert!(matches!(unseal(b"{"), Err(SealError::Json(_))));
    }
}
