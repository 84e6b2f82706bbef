//! How often another search, such as an approximate index, answers as exact search over the same vectors does.
//!
//! Certificates are about exact search. What is counted here says nothing about other queries, and nothing about perturbed ones.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use retrievalguard::certificate::CertificateError;
use retrievalguard::evaluation::Share;
use retrievalguard::gallery::{Positives, Relevance};
use retrievalguard::noise::Stage;
use retrievalguard::storage::stored::GalleryRef;
use retrievalguard::{Seed, Sigma, Smoother};
use serde::Serialize;

use crate::dataset::{BrokenPictures, RecordSet};
use crate::engine::OnnxEmbedder;
use crate::pipeline::{EncoderInputs, PictureOutcome};
use crate::recall::{RecallError, Smoothing};
use crate::work::{Observer, WorkQueue};

/// Why the answers of another search cannot be compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgreementError {
    /// The file of answers cannot be read.
    #[error("answers `{}` cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: csv::Error,
    },
    /// It is not a table of queries and answers.
    #[error("answers `{}` begin with the columns {found}, wanted identity,answer", path.display())]
    Columns {
        /// The file.
        path: PathBuf,
        /// Its first line.
        found: String,
    },
    /// A query is there twice.
    #[error("answers `{}` have two for query `{query}`, wanted one", path.display())]
    Twice {
        /// The file.
        path: PathBuf,
        /// The query.
        query: String,
    },
    /// A query is not there.
    #[error("answers `{}` have none for query `{query}`, wanted a line for each, with an empty answer where there is none", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The query.
        query: String,
    },
    /// The answer is none of the gallery's items.
    #[error("query `{query}` was answered with `{answer}`, which the gallery does not have")]
    Unknown {
        /// The query.
        query: String,
        /// The answer.
        answer: String,
    },
    /// The gallery could not be searched.
    #[error(transparent)]
    Search(#[from] CertificateError),
}

/// How often another search answers as exact search does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Agreement {
    /// How many queries were asked.
    pub queries: u32,
    /// Queries whose answer is as near as the nearest item: that item, or one just as far away.
    pub same_item: Share,
    /// Queries whose answer has the label of the nearest item.
    pub same_label: Share,
    /// Queries that the other search did not answer.
    pub unanswered: u32,
}

impl Agreement {
    /// Compares rows that were answered with exact search for queries that lie one after the other.
    pub fn of(
        gallery: GalleryRef<'_>,
        queries: &[f32],
        answers: &[Option<usize>],
    ) -> Result<Self, CertificateError> {
        let relevance: Vec<Relevance> = answers
            .iter()
            .map(|answer| Relevance::new(answer.map_or(Positives::Absent, Positives::Item), Vec::new()))
            .collect();
        let exact = gallery.nearest(queries, 1, |_| &[])?;
        let pairs = gallery.nearest_positive_and_negative(queries, |query| &relevance[query])?;
        let (mut same_item, mut same_label, mut unanswered) = (0, 0, 0);
        for ((answer, exact), pair) in answers.iter().zip(exact).zip(pairs) {
            let (Some(answer), Some(exact)) = (answer, exact.first()) else {
                unanswered += 1;
                continue;
            };
            let as_near = pair.positive.is_some_and(|own| {
                pair.negative.is_none_or(|other| own.squared_distance <= other.squared_distance)
            });
            same_item += u32::from(as_near);
            same_label += u32::from(gallery.label(*answer) == gallery.label(exact.row));
        }
        let queries = u32::try_from(answers.len()).unwrap_or(u32::MAX);
        let share = |count| Share::new(count, queries);
        Ok(Self { queries, same_item: share(same_item), same_label: share(same_label), unanswered })
    }
}

/// Embeddings of pictures, one after the other, with their positions; those that cannot be read are named with the reason.
pub struct Embedded {
    /// The embeddings.
    pub values: Vec<f32>,
    /// Which pictures they are of.
    pub positions: Vec<usize>,
    /// Identity and reason of those that are not there.
    pub skipped: Vec<(String, String)>,
}

/// Embeds pictures: clean, or as means over noisy copies that no certificate uses.
pub fn embed_queries(
    embedder: &OnnxEmbedder,
    records: &RecordSet,
    smoothing: Option<Smoothing>,
    broken: BrokenPictures,
    threads: NonZeroUsize,
    observer: &dyn Observer,
) -> Result<Embedded, RecallError> {
    let inputs = EncoderInputs { records, config: embedder.model_config(), broken };
    // Clean embeddings have no noise, whatever its level.
    let sigma =
        smoothing.map_or_else(|| Sigma::new(1.0).expect("one is above zero"), |smoothing| smoothing.sigma);
    let smoother = Smoother::new(embedder, sigma, smoothing.map_or(Seed::new(0), |smoothing| smoothing.seed));
    let smoother = match smoothing {
        Some(smoothing) => smoother.excess(smoothing.excess).batch(smoothing.batch),
        None => smoother,
    };
    let queue = WorkQueue { pieces: records.len(), before: 0, threads, observer };
    let outcomes = queue.collect(|position| {
        inputs.with(position, |_, picture| {
            let Some(Smoothing { samples, .. }) = smoothing else {
                return Ok::<_, RecallError>(smoother.clean(picture)?);
            };
            let smoothed = smoother.mean(picture, Stage::Measure, 0..samples)?;
            Ok(smoothed.mean.iter().map(|&value| value as f32).collect())
        })
    })?;
    let mut found = Embedded { values: Vec::new(), positions: Vec::new(), skipped: Vec::new() };
    for (position, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            PictureOutcome::Done(row) => {
                found.values.extend(row);
                found.positions.push(position);
            }
            PictureOutcome::Skipped(reason) => {
                found.skipped.push((records[position].identity.clone(), reason));
            }
        }
    }
    Ok(found)
}

/// Reads the answers of another search, a CSV table `identity,answer`, as rows of the gallery for these queries in turn.
pub fn read_answers(
    path: &Path,
    gallery: GalleryRef<'_>,
    queries: &[&str],
) -> Result<Vec<Option<usize>>, AgreementError> {
    let unreadable = |source| AgreementError::Read { path: path.to_owned(), source };
    let mut reader = csv::Reader::from_path(path).map_err(unreadable)?;
    let header = reader.headers().map_err(unreadable)?;
    if header.iter().map(|name| name.trim_start_matches('\u{feff}').trim()).ne(["identity", "answer"]) {
        let found = header.iter().collect::<Vec<_>>().join(",");
        return Err(AgreementError::Columns { path: path.to_owned(), found });
    }
    let mut answers: HashMap<String, String> = HashMap::new();
    for line in reader.into_deserialize() {
        let (query, answer): (String, String) = line.map_err(unreadable)?;
        if answers.insert(query.clone(), answer).is_some() {
            return Err(AgreementError::Twice { path: path.to_owned(), query });
        }
    }
    let row = |&query: &&str| -> Result<Option<usize>, AgreementError> {
        let Some(answer) = answers.get(query) else {
            return Err(AgreementError::Missing { path: path.to_owned(), query: query.to_owned() });
        };
        if answer.is_empty() {
            return Ok(None);
        }
        let unknown = || AgreementError::Unknown { query: query.to_owned(), answer: answer.clone() };
        gallery.rows_of(answer)?.first().copied().ok_or_else(unknown).map(Some)
    };
    queries.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use retrievalguard::gallery::{Gallery, Metric};
    use tempfile::tempdir;

    use super::*;

    fn gallery() -> Gallery {
        let names = ["cat-1", "cat-2", "dog-1"].map(str::to_owned).to_vec();
        let vectors = vec![0.0, 0.0, 1.0, 0.0, 0.0, 3.0];
        Gallery::new(vectors, 2, names, &["cat", "cat", "dog"], Metric::Euclidean).unwrap()
    }

    #[test]
    fn answers_are_compared_with_the_nearest_item_and_its_label() {
        let gallery = gallery();
        let queries = [0.1, 0.0, 0.9, 0.1, 0.0, 2.0, 0.0, 4.0, 5.0, 5.0];
        let answers = [Some(0), Some(0), Some(2), Some(1), None];
        let found = Agreement::of((&gallery).into(), &queries, &answers).unwrap();
        assert_eq!((found.queries, found.unanswered), (5, 1));
        assert_eq!((found.same_item.count, found.same_label.count), (2, 3));
        assert!(found.same_item.lower < 0.4 && 0.4 < found.same_item.upper);
    }

    #[test]
    fn an_item_just_as_far_away_and_another_view_are_the_same() {
        let names = ["a", "b", "c"].map(str::to_owned).to_vec();
        let twins = Gallery::new(vec![1.0, 1.0, 5.0], 1, names, &["x", "y", "y"], Metric::Euclidean).unwrap();
        let found = Agreement::of((&twins).into(), &[0.9], &[Some(1)]).unwrap();
        assert_eq!((found.same_item.count, found.same_label.count), (1, 0));
        let names = ["a", "a", "b", "b"].map(str::to_owned).to_vec();
        let labels = ["x", "x", "y", "y"];
        let views = Gallery::new(vec![1.0, 2.0, 7.0, 8.0], 1, names, &labels, Metric::Euclidean).unwrap();
        let views = views.with_views(vec!["as is".to_owned(), "mirrored".to_owned()]).unwrap();
        for (row, same) in [(0, 1), (1, 1), (2, 0), (3, 0)] {
            let found = Agreement::of((&views).into(), &[1.1], &[Some(row)]).unwrap();
            assert_eq!(found.same_item.count, same, "row {row}");
        }
    }

    #[test]
    fn answers_in_files_are_found_or_what_is_wrong_is_named() {
        let (gallery, folder) = (gallery(), tempdir().unwrap());
        let path = folder.path().join("answers.csv");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read_answers(&path, (&gallery).into(), &["one", "two"])
        };
        assert_eq!(read("identity,answer\ntwo,\none,dog-1\nthree,cat-9\n").unwrap(), [Some(2), None]);
        for (text, words) in [
            ("query,found\none,cat-1\n", "begin with the columns query,found, wanted identity,answer"),
            ("identity,answer\none,cat-1\n", "have none for query `two`"),
            ("identity,answer\none,cat-1\none,cat-2\n", "have two for query `one`"),
            (
                "identity,answer\none,cow\ntwo,\n",
                "query `one` was answered with `cow`, which the gallery does not have",
            ),
            ("identity,answer\none,cat-1,7\n", "cannot be read"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let missing = read_answers(&folder.path().join("nowhere"), (&gallery).into(), &[]);
        assert!(matches!(missing, Err(AgreementError::Read { .. })));
    }
}
