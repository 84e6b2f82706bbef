//! Queries and a gallery in, one row of certificates per query out.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::Path;

use retrievalguard::certificate::{CertificateError, CertificateName, Outcome, Verdict};
use retrievalguard::gallery::Neighbour;
use retrievalguard::noise::Stage;
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::manifest::QuerySide;
use retrievalguard::storage::stored::{GalleryRef, StoredGallery};
use retrievalguard::{Embedder, Excess, Samples, Sigma, Smoother};
use serde::{Deserialize, Serialize};

use super::answer::nearest_and_nearest_wrong;
use super::kept_samples::{Drawn, KeptSamples};
use super::{
    Answered, CertifyOptions, EncoderInputs, PictureOutcome, PipelineError, PlainCertifier, Query,
    QueryCertifier, Relevant, ResumableRun, nearest_plain, uncertified,
};
use crate::dataset::{PictureSource, Record, RecordSet};
use crate::engine::OnnxEmbedder;
use crate::receipt::{ReceiptFolder, Secret};
use crate::run::{
    EncoderDescription, GalleryDescription, Method, RUN_FORMAT, RunCommand, RunDescription, Smoothed,
    excluded_digest,
};
use crate::table::{Cell, FilePixels, PlainAnswer, ResultRow, ResultTable, WrongItem};
use crate::work::Observer;

/// Whether a query may find itself in the gallery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaveOneOut {
    /// An item with the query's identity is left out if it is the same picture, byte for byte.
    Auto,
    /// Items with the query's identity are left out.
    Always,
    /// Nothing is left out.
    Never,
}

/// Everything that decides a table of certificates, and how the work is spread.
pub struct CertifyRequest<'a> {
    /// The queries with their true labels.
    pub queries: &'a RecordSet,
    /// What the queries were taken from: all of them, or more.
    pub data_set: &'a RecordSet,
    /// The encoder.
    pub embedder: &'a OnnxEmbedder,
    /// The gallery that is searched.
    pub gallery: &'a StoredGallery,
    /// Name of the gallery in messages.
    pub gallery_name: &'a str,
    /// What the certificates rest on.
    pub method: Method,
    /// What was asked for: the noise, what is left out, and how the work is spread.
    pub options: &'a CertifyOptions,
}

/// What a certify run made.
#[derive(Debug)]
pub struct CertifyReport {
    /// One row per query, in the order of the queries.
    pub table: ResultTable,
    /// Verdicts for Recall@2 to Recall@k of each row.
    pub deeper: Vec<Vec<Verdict>>,
    /// Broken pictures that were left out: identity and reason.
    pub skipped: Vec<(String, String)>,
    /// Queries that an earlier, interrupted run had done already.
    pub resumed: usize,
    /// Queries that were kept from finding themselves.
    pub left_out: usize,
    /// Queries that share an identity with a gallery item which may or may not be the same picture.
    pub namesakes: usize,
    /// Rows of the gallery that each query of the table did not see.
    pub excluded: Vec<Vec<usize>>,
    /// What the run was made with, as the table's metadata has it.
    pub description: RunDescription,
}

/// The result of one query, as journals and parts keep it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueryAnswer {
    retrieved: String,
    retrieved_label: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retrieved_view: Option<String>,
    nearest_wrong: Option<WrongItem>,
    cells: Vec<(CertificateName, Verdict, u32)>,
    deeper: Vec<Verdict>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    plain: Option<PlainAnswer>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file: Option<FilePixels>,
}

impl QueryAnswer {
    /// Certifies a query and names what it retrieves; see [`QueryCertifier::answer`].
    pub fn of<E>(
        certifier: &QueryCertifier<'_>,
        query: &Query<'_>,
        draw: impl FnMut(Stage, Range<u32>) -> Result<Samples, E>,
        refused: impl Fn(CertificateError) -> E,
    ) -> Result<Self, E> {
        let answered = certifier.answer(query, draw, &refused)?;
        Self::named(certifier.gallery(), answered).map_err(refused)
    }

    /// The answer to a query with the names of what it retrieves.
    pub fn named(gallery: GalleryRef<'_>, answered: Answered) -> Result<Self, CertificateError> {
        let Answered { relevance, outcomes, deeper, mean, .. } = answered;
        let name = |Neighbour { row, .. }| -> Result<_, CertificateError> {
            let label = gallery.label_name(gallery.label(row)).to_owned();
            Ok((gallery.identity(row)?.into_owned(), label, gallery.view(row).map(str::to_owned)))
        };
        let (nearest, wrong) = nearest_and_nearest_wrong(gallery, &mean, &relevance)?;
        let (retrieved, retrieved_label, retrieved_view) = nearest.map(name).transpose()?.unwrap_or_default();
        let wrong = wrong.map(name).transpose()?;
        let nearest_wrong = wrong.map(|(identity, label, view)| WrongItem { identity, label, view });
        let cell = |outcome: Outcome| (outcome.name, outcome.verdict, outcome.samples);
        let cells = outcomes.into_iter().map(cell).collect();
        Ok(Self {
            retrieved,
            retrieved_label,
            retrieved_view,
            nearest_wrong,
            cells,
            deeper,
            plain: None,
            file: None,
        })
    }

    /// The same with what the encoder without noise retrieves in a gallery of clean embeddings, if there is one; `clean`
    /// embeds the query's picture.
    pub fn with_plain<E>(
        self,
        gallery: &StoredGallery,
        excluded: &[usize],
        clean: impl FnOnce() -> Result<Vec<f32>, E>,
        refused: impl Fn(CertificateError) -> E,
    ) -> Result<Self, E> {
        let Some(gallery) = gallery.plain() else { return Ok(self) };
        let found = nearest_plain(gallery, &clean()?, excluded).map_err(&refused)?;
        let plain = match found {
            Some(Neighbour { row, .. }) => PlainAnswer {
                retrieved: gallery.identity(row).map_err(refused)?.into_owned(),
                retrieved_label: gallery.label_name(gallery.label(row)).to_owned(),
            },
            // Whatever there is, the query must not see.
            None => PlainAnswer { retrieved: String::new(), retrieved_label: String::new() },
        };
        Ok(Self { plain: Some(plain), ..self })
    }

    /// Adds how far the encoder's input moves with the pixels of the query's file.
    #[must_use]
    pub fn of_file(self, file: Option<FilePixels>) -> Self {
        Self { file, ..self }
    }

    /// Whether any of its certificates holds.
    fn is_certified(&self) -> bool {
        self.cells.iter().any(|(_, verdict, _)| verdict.radius().is_some())
    }

    /// Certifies a picture without noise and names what it retrieves; see [`PlainCertifier::answer_picture`].
    pub fn without_noise(
        certifier: &PlainCertifier<'_>,
        query: &Query<'_>,
        embedder: &OnnxEmbedder,
        (identity, pixels): (&str, &[f32]),
    ) -> Result<Self, PipelineError> {
        let found = certifier.answer_picture(query, embedder, (identity, pixels))?;
        Self::named(certifier.gallery(), found.answered).map_err(uncertified(identity))
    }

    /// The row of a table, and the verdicts for Recall@2 and deeper.
    pub(super) fn into_row(self, identity: &str, label: &str) -> (ResultRow, Vec<Verdict>) {
        let Self { retrieved, retrieved_label, retrieved_view, nearest_wrong, cells, deeper, plain, file } =
            self;
        let certificates: BTreeMap<CertificateName, Cell> =
            cells.into_iter().map(|(name, verdict, samples)| (name, Cell { verdict, samples })).collect();
        let (identity, label) = (identity.to_owned(), label.to_owned());
        let row = ResultRow {
            identity,
            label,
            retrieved,
            retrieved_label,
            retrieved_view,
            nearest_wrong,
            plain,
            file,
            certificates,
        };
        (row, deeper)
    }
}

/// What is decided about a run before anything is drawn.
#[derive(Clone, Debug)]
pub struct CertifyPlan {
    /// Rows of the gallery that each query must not see.
    pub excluded: Vec<Vec<usize>>,
    /// Queries that share an identity with a gallery item which may or may not be the same picture.
    pub namesakes: usize,
    /// What the run is made with, as the table's metadata will have it.
    pub description: RunDescription,
}

impl CertifyPlan {
    /// Checks gallery and encoder against each other and finds out what each query must not see.
    pub fn new(request: &CertifyRequest<'_>) -> Result<Self, PipelineError> {
        let embedder = request.embedder;
        let mut method = request.method.clone();
        let (sigma, names) = match &mut method {
            Method::Smoothed(Smoothed { procedure, .. }) => {
                for count in [procedure.pilot, procedure.samples] {
                    Samples::check_memory(count.get(), embedder.dimension())?;
                }
                (Some(procedure.sigma), &mut procedure.certificates)
            }
            Method::Lipschitz(bounded) => (None, &mut bounded.certificates),
        };
        names.sort_unstable();
        names.dedup();
        check_gallery(request.gallery, request.gallery_name, embedder, sigma)?;
        let data_set = request.queries.digest();
        let own = OwnRows::find(request, data_set)?;
        let left_out = own.excluded.iter().filter(|rows| !rows.is_empty()).count();
        let description = RunDescription {
            format: RUN_FORMAT,
            command: RunCommand::Certify,
            tool: env!("CARGO_PKG_VERSION").to_owned(),
            encoder: EncoderDescription::new(embedder),
            queries: data_set,
            leave_one_out: left_out,
            excluded_rows: excluded_digest(own.excluded.iter().map(Vec::as_slice)),
            gallery: GalleryDescription::new(request.gallery)?,
            method,
        };
        let OwnRows { excluded, namesakes } = own;
        Ok(Self { excluded, namesakes, description })
    }

    /// The report of a run from the results of all queries, in order.
    pub fn report<'q>(
        self,
        queries: impl Iterator<Item = (&'q str, &'q str)>,
        outcomes: Vec<PictureOutcome<QueryAnswer>>,
        resumed: usize,
    ) -> Result<CertifyReport, PipelineError> {
        let (mut rows, mut deeper, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
        let mut excluded = Vec::new();
        for (((identity, label), outcome), own) in queries.zip(outcomes).zip(self.excluded) {
            match outcome {
                PictureOutcome::Done(answer) => {
                    let (row, further) = answer.into_row(identity, label);
                    rows.push(row);
                    deeper.push(further);
                    excluded.push(own);
                }
                PictureOutcome::Skipped(reason) => skipped.push((identity.to_owned(), reason)),
            }
        }
        if rows.is_empty() {
            return Err(PipelineError::NothingLeft { skipped: skipped.len() });
        }
        let (sigma, names) = (self.description.sigma(), self.description.certificates().to_vec());
        Ok(CertifyReport {
            table: ResultTable::new(sigma, names, rows)?,
            deeper,
            skipped,
            resumed,
            left_out: self.description.leave_one_out,
            namesakes: self.namesakes,
            excluded,
            description: self.description,
        })
    }
}

/// Certifies every query; `journal` is where progress is kept and `journal` alone decides what is left to do.
pub fn certify(
    request: &CertifyRequest<'_>,
    journal: &Path,
    observer: &dyn Observer,
) -> Result<CertifyReport, PipelineError> {
    let CertifyRequest { queries, embedder, options, .. } = *request;
    let CertifyOptions { broken, threads, .. } = *options;
    let plan = CertifyPlan::new(request)?;
    let description = &plan.description.to_value();
    let run = ResumableRun { journal, description, pictures: queries.len(), broken }.open()?;
    for outcome in run.done() {
        if let PictureOutcome::Done(answer) = outcome {
            observer.judged(QueryAnswer::is_certified(answer));
        }
    }
    let kept = options.keep_samples.as_deref().map(KeptSamples);
    if let Some(kept) = kept {
        kept.create()?;
    }

    // Queries are spread over the threads; where there are fewer of them, each gets several.
    let workers = NonZeroUsize::new(threads.get().min(run.left())).unwrap_or(NonZeroUsize::MIN);
    let within = NonZeroUsize::new(threads.get() / workers).unwrap_or(NonZeroUsize::MIN);
    let inputs = EncoderInputs { records: queries, config: embedder.model_config(), broken };
    let excess = match &plan.description.method {
        Method::Smoothed(smoothed) => smoothed.excess(),
        Method::Lipschitz(_) => Excess::Refuse,
    };
    let searched = (request.gallery, request.gallery_name);
    let receipts = options.receipts.as_ref();
    let receipts =
        receipts.map(|to| ReceiptFolder::open(to, (embedder, excess), searched, queries)).transpose()?;
    if let Some(receipts) = &receipts {
        run.answered().try_for_each(|position| receipts.holds(position, queries))?;
    }
    let smoothed = match &plan.description.method {
        Method::Smoothed(smoothed) => smoothed,
        Method::Lipschitz(bounded) => {
            let certifier = PlainCertifier::stored(bounded, request.gallery)?;
            let finished = run.finish(workers, observer, |position| {
                inputs.with_decoded(position, |Record { identity, label, .. }, decoded, picture| {
                    let query =
                        Query { relevant: Relevant::Label(label), excluded: &plan.excluded[position] };
                    let pixels = (identity.as_str(), picture.pixels);
                    let found = certifier.answer_picture(&query, embedder, pixels)?;
                    if let Some(receipts) = &receipts {
                        let asked = receipts.asked(queries, position, &query, picture.pixels)?;
                        let gallery = certifier.gallery();
                        let promise = receipts.premises.without_noise(asked, gallery, bounded)?;
                        let receipt = promise.keep_bounded(gallery, &found, receipts.key());
                        receipts.write(position, &receipt)?;
                    }
                    let answer = QueryAnswer::named(certifier.gallery(), found.answered);
                    let answer = answer.map_err(uncertified::<PipelineError>(identity))?;
                    observer.judged(answer.is_certified());
                    Ok::<_, PipelineError>(answer.of_file(inputs.config.file_pixels(decoded)))
                })
            })?;
            let queries = queries.iter().map(|record| (record.identity.as_str(), record.label.as_str()));
            return plan.clone().report(queries, finished.outcomes, finished.resumed);
        }
    };
    let smoother = Smoother::new(embedder, smoothed.procedure.sigma, smoothed.seed)
        .batch(request.options.batch)
        .excess(smoothed.excess())
        .threads(within);
    let certifier = QueryCertifier::stored(&smoothed.procedure, request.gallery);
    let finished = run.finish(workers, observer, |position| {
        inputs.with_decoded(position, |Record { identity, label, .. }, decoded, picture| {
            let query = Query { relevant: Relevant::Label(label), excluded: &plan.excluded[position] };
            let promise = match &receipts {
                Some(receipts) => {
                    let asked = receipts.asked(queries, position, &query, picture.pixels)?;
                    let (how, secret) = ((&smoothed.procedure, false), Secret::Given(smoothed.seed));
                    Some((receipts, receipts.premises.with_noise(asked, certifier.gallery(), how, secret)?))
                }
                None => None,
            };
            let (mut drawn, keep) = (Drawn::default(), kept.is_some() || promise.is_some());
            let draw = |stage, range| -> Result<Samples, PipelineError> {
                let samples = smoother.samples(picture, stage, range)?;
                if keep {
                    drawn.add(stage, &samples)?;
                }
                Ok(samples)
            };
            let answered = certifier.answer(&query, draw, uncertified::<PipelineError>(identity))?;
            if let Some((receipts, promise)) = promise {
                let receipt = promise.keep(&certifier, &answered, &drawn, receipts.key());
                receipts.write(position, &receipt.map_err(uncertified::<PipelineError>(identity))?)?;
            }
            let answer = QueryAnswer::named(certifier.gallery(), answered);
            let answer = answer.map_err(uncertified::<PipelineError>(identity))?;
            let clean = || smoother.clean(picture).map_err(PipelineError::from);
            let answer = answer.with_plain(request.gallery, query.excluded, clean, uncertified(identity))?;
            // Before the journal has the answer: what is done has its samples.
            if let Some(kept) = kept {
                kept.write(position, &drawn)?;
            }
            observer.judged(answer.is_certified());
            Ok(answer.of_file(inputs.config.file_pixels(decoded)))
        })
    })?;
    if let Some(kept) = kept {
        kept.list(queries)?;
    }
    let queries = queries.iter().map(|record| (record.identity.as_str(), record.label.as_str()));
    plan.report(queries, finished.outcomes, finished.resumed)
}

/// Checks the gallery called `name` against queries of this encoder: same noise, model, model config, dimension and norm bound.
pub fn check_gallery(
    gallery: &StoredGallery,
    name: &str,
    embedder: &OnnxEmbedder,
    sigma: Option<Sigma>,
) -> Result<(), PipelineError> {
    Ok(gallery.check_against(name, &query_side(embedder, sigma))?)
}

/// What a gallery is held against when it is searched by queries of this encoder.
pub fn query_side(embedder: &OnnxEmbedder, sigma: Option<Sigma>) -> QuerySide {
    QuerySide {
        sigma,
        dimension: embedder.dimension(),
        norm_bound: embedder.norm_bound(),
        components: embedder.components(),
        model: embedder.facts().hash.parse().ok(),
        contract: embedder.model_config().hash().parse().ok(),
    }
}

/// Rows of the gallery that are the queries themselves.
struct OwnRows {
    /// Rows that each query must not see.
    excluded: Vec<Vec<usize>>,
    /// Queries with an item of their name that could not be told to be the same picture or another.
    namesakes: usize,
}

impl OwnRows {
    /// Same identity and, under [`LeaveOneOut::Auto`], the same bytes: by the data set's digest, or file by file.
    fn find(request: &CertifyRequest<'_>, queries: Digest) -> Result<Self, PipelineError> {
        let stored = request.gallery;
        let mut own = Self { excluded: vec![Vec::new(); request.queries.len()], namesakes: 0 };
        if request.options.leave_one_out == LeaveOneOut::Never {
            return Ok(own);
        }
        let made_of = stored.provenance().data_set;
        let mut all_same = None;
        for (position, excluded) in own.excluded.iter_mut().enumerate() {
            let query = &request.queries[position];
            let rows = stored.gallery().rows_of(&query.identity);
            let rows = rows.map_err(uncertified::<PipelineError>(&query.identity))?;
            if rows.is_empty() {
                continue;
            }
            // The data set is digested only if an item has the name of a query.
            let all_same = *all_same.get_or_insert_with(|| {
                request.options.leave_one_out == LeaveOneOut::Always
                    || made_of == Some(queries)
                    || made_of.is_some() && made_of == Some(request.data_set.digest())
            });
            if all_same {
                *excluded = rows;
                continue;
            }
            let digest = match &query.source {
                PictureSource::File(_) => request.queries.picture_digest(position),
                PictureSource::Grey { .. } => None,
            };
            let mut others = Vec::with_capacity(rows.len());
            // Views of an item are of one picture, which is read once.
            for views in
                rows.chunk_by(|&left, &right| stored.gallery().item(left) == stored.gallery().item(right))
            {
                let other = stored.picture_path(views[0])?.and_then(|path| Digest::of_file(&path).ok());
                others.extend(vec![other; views.len()]);
            }
            own.namesakes += usize::from(digest.is_none() || others.contains(&None));
            let same = rows.iter().zip(others).filter(|(_, other)| digest.is_some() && *other == digest);
            *excluded = same.map(|(&row, _)| row).collect();
        }
        Ok(own)
    }
}
