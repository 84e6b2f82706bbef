//! What a task leaves: a line that says what it is, and its content.

use std::num::NonZeroU32;

use retrievalguard::storage::digest::Digest;
use retrievalguard::{Excess, NormBound, Samples};
use retrievalguard_encoder::pipeline::{PictureOutcome, QueryAnswer};
use retrievalguard_encoder::table::FilePixels;
use serde::{Deserialize, Serialize};

/// What a part belongs to: the run, as its table will describe it, and how it was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunKey {
    /// Digest of the run's description.
    pub(crate) run: Digest,
    /// Samples of one task.
    pub(crate) chunk: Option<NonZeroU32>,
}

/// The first line of a part.
#[derive(Serialize, Deserialize)]
struct Header {
    /// Digest of the run's description.
    run: Digest,
    /// Samples of one task, if a task is not a whole query.
    chunk: Option<NonZeroU32>,
    /// Number of the task.
    task: usize,
    kind: Kind,
    /// Length of an embedding, for samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dimension: Option<usize>,
    /// How far the encoder's input moves with the pixels of the file, for samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file: Option<FilePixels>,
    /// Digest of everything before it and of what follows.
    sha256: Digest,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Outcome,
    Samples,
}

/// What is wrong with any of these shows.
fn digest(
    key: RunKey,
    task: usize,
    kind: Kind,
    (dimension, file): (Option<usize>, Option<FilePixels>),
    content: &[u8],
) -> Digest {
    let chunk = key.chunk.map_or(0, NonZeroU32::get);
    let kind = match kind {
        Kind::Outcome => "outcome",
        Kind::Samples => "samples",
    };
    let file = file.map_or(String::new(), |FilePixels { scale, rounding }| format!(" {scale} {rounding}"));
    let head = format!("{} {chunk} {task} {kind} {}{file}\n", key.run, dimension.unwrap_or(0));
    Digest::of_bytes(&[head.as_bytes(), content].concat())
}

/// The content of a part.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    /// What came of a query; of any task of a query, that its picture is broken.
    Outcome(Box<PictureOutcome<QueryAnswer>>),
    /// Embeddings, row by row, of a picture that moves so with the pixels of its file.
    Samples { dimension: usize, values: Vec<f32>, file: Option<FilePixels> },
}

impl Part {
    pub(crate) fn encode(&self, key: RunKey, task: usize) -> Vec<u8> {
        let (kind, about, content) = match self {
            Self::Outcome(outcome) => (
                Kind::Outcome,
                (None, None),
                serde_json::to_vec(outcome).expect("an outcome is strings and numbers"),
            ),
            Self::Samples { dimension, values, file } => (
                Kind::Samples,
                (Some(*dimension), *file),
                values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            ),
        };
        let sha256 = digest(key, task, kind, about, &content);
        let RunKey { run, chunk } = key;
        let (dimension, file) = about;
        let header = Header { run, chunk, task, kind, dimension, file, sha256 };
        let mut bytes = serde_json::to_vec(&header).expect("a header is strings and numbers");
        bytes.push(b'\n');
        bytes.extend(content);
        bytes
    }

    /// Takes nothing that another run, another task or a fault may have left.
    pub(crate) fn decode(bytes: &[u8], key: RunKey, task: usize) -> Result<Self, String> {
        let end = bytes.iter().position(|&byte| byte == b'\n').ok_or("it has no first line")?;
        let header: Header = serde_json::from_slice(&bytes[..end])
            .map_err(|error| format!("its first line is not a header: {error}"))?;
        let content = &bytes[end + 1..];
        if header.run != key.run {
            return Err(format!("it belongs to run {:.16}…, wanted {:.16}…", header.run, key.run));
        }
        if header.chunk != key.chunk {
            let shown = |chunk: Option<NonZeroU32>| chunk.map_or("no".to_owned(), |chunk| chunk.to_string());
            let (found, wanted) = (shown(header.chunk), shown(key.chunk));
            return Err(format!("its run has {found} samples per task, wanted {wanted}"));
        }
        if header.task != task {
            return Err(format!("it belongs to task {}, wanted {task}", header.task));
        }
        if header.sha256 != digest(key, task, header.kind, (header.dimension, header.file), content) {
            return Err("its content was changed or cut off".to_owned());
        }
        match (header.kind, header.dimension) {
            (Kind::Outcome, _) => {
                let outcome = serde_json::from_slice(content)
                    .map_err(|error| format!("its outcome cannot be read: {error}"))?;
                Ok(Self::Outcome(outcome))
            }
            (Kind::Samples, Some(dimension))
                if dimension > 0 && content.len().is_multiple_of(4 * dimension) =>
            {
                let value =
                    |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().expect("pieces have four bytes"));
                let values = content.chunks_exact(4).map(value).collect();
                Ok(Self::Samples { dimension, values, file: header.file })
            }
            (Kind::Samples, _) => Err("its samples do not form rows".to_owned()),
        }
    }

    /// Embeddings as the certificates take them.
    ///
    /// They were admitted when they were drawn, so that nothing is changed here.
    pub(crate) fn into_samples(self, bound: NormBound, rows: usize) -> Result<Samples, String> {
        match self {
            Self::Outcome(_) => Err("it holds an outcome, wanted samples".to_owned()),
            Self::Samples { dimension, values, .. } => {
                let found = values.len() / dimension;
                if found != rows {
                    return Err(format!("it has {found} samples, wanted {rows}"));
                }
                Samples::new(values, dimension, bound, Excess::Refuse).map_err(|error| error.to_string())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_comes_back_as_it_was_and_for_its_task_alone() {
        let run = RunKey { run: Digest::of_bytes(b"run"), chunk: NonZeroU32::new(9) };
        let other = RunKey { run: Digest::of_bytes(b"another"), ..run };
        let cut = RunKey { chunk: NonZeroU32::new(8), ..run };
        let parts = [
            Part::Samples {
                dimension: 3,
                values: vec![0.1, -0.2, 0.3, f32::MIN_POSITIVE, 0.0, 0.5],
                file: Some(FilePixels { scale: 0.5, rounding: 1e-5 }),
            },
            Part::Outcome(Box::new(PictureOutcome::Skipped("broken\nin two lines".to_owned()))),
        ];
        for part in parts {
            let bytes = part.encode(run, 7);
            assert_eq!(Part::decode(&bytes, run, 7).as_ref(), Ok(&part));
            assert!(Part::decode(&bytes, other, 7).unwrap_err().contains("belongs to run"));
            assert!(Part::decode(&bytes, cut, 7).unwrap_err().contains("9 samples per task, wanted 8"));
            assert!(Part::decode(&bytes, run, 8).unwrap_err().contains("task 7"));
            for length in 0..bytes.len() {
                assert!(Part::decode(&bytes[..length], run, 7).is_err(), "{length} of {}", bytes.len());
            }
            for byte in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[byte] ^= 1;
                let decoded = Part::decode(&changed, run, 7);
                assert!(decoded.is_err() || decoded == Ok(part.clone()), "byte {byte}");
            }
        }
    }

    #[test]
    fn samples_are_counted_and_checked() {
        let part = || Part::Samples { dimension: 2, values: vec![0.6, 0.8, 1.0, 0.0], file: None };
        assert_eq!(part().into_samples(NormBound::UNIT, 2).unwrap().count(), 2);
        assert!(part().into_samples(NormBound::UNIT, 3).unwrap_err().contains("wanted 3"));
        let long = Part::Samples { dimension: 1, values: vec![2.0], file: None };
        assert!(long.into_samples(NormBound::UNIT, 1).unwrap_err().contains("norm"));
    }
}
