//! Puts parts together, in the order of the queries.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::path::Path;

use retrievalguard::noise::Stage;
use retrievalguard::storage::atomic::WriteError;
use retrievalguard::storage::lock::FolderLock;
use retrievalguard::storage::manifest::{GalleryDirectory, QuerySide};
use retrievalguard::storage::stored::StoredGallery;
use retrievalguard::{NormBound, Samples};
use retrievalguard_encoder::dataset::{BrokenPictures, digest_of_pictures};
use retrievalguard_encoder::pipeline::run_files::{Inputs, StoredRun, Tables, write_run};
use retrievalguard_encoder::pipeline::{
    CertifyPlan, CertifyReport, PictureOutcome, PipelineError, Query, QueryAnswer, QueryCertifier, Relevant,
    uncertified,
};
use retrievalguard_encoder::work::{Observer, WorkQueue};

use crate::manifest::{GALLERY, PARTS, gallery_files};
use crate::part::{Part, RunKey};
use crate::store::temporary_folder;
use crate::task::{Task, TaskKind};
use crate::{Notes, RunManifest, RunStore, SharedQuery, WorkerError};

/// A merged run.
pub struct Merged {
    /// What a run on one machine would have reported.
    pub report: CertifyReport,
    /// The manifest of the run.
    pub manifest: RunManifest,
}

impl Merged {
    /// Writes what a run on one machine leaves in its directory, but for its journal and its log.
    ///
    /// What another run has left there is not overwritten.
    pub fn write(&self, folder: &Path) -> Result<(), WorkerError> {
        let Self { report, manifest } = self;
        std::fs::create_dir_all(folder).map_err(|error| WriteError::new(folder, error))?;
        let _lock = FolderLock::take(folder)?;
        if StoredRun::occupant(folder).is_some_and(|found| found != report.description.digest()) {
            return Err(WorkerError::Occupied { path: folder.display().to_string() });
        }
        let skipped: HashSet<&str> = report.skipped.iter().map(|(identity, _)| identity.as_str()).collect();
        let queries = manifest.queries.iter().filter(|query| !skipped.contains(query.identity.as_str()));
        let pictures = digest_of_pictures(queries.map(SharedQuery::described));
        let Notes { places, jsonl, tsv } = manifest.notes.clone();
        let inputs = Inputs::new(places, pictures, report);
        let tables = Tables { jsonl, tsv, recall_at_k: manifest.run.top_k() > 1 };
        Ok(write_run(folder, report, &inputs, tables)?)
    }
}

/// Reads all parts of a run; certifies from them where they are samples.
pub fn merge(
    store: &RunStore,
    threads: NonZeroUsize,
    observer: &dyn Observer,
) -> Result<Merged, WorkerError> {
    let manifest = RunManifest::read(store)?;
    let key = manifest.key();
    let there = store.list(PARTS)?;
    let missing: Vec<Task> =
        Task::all(&manifest).filter(|task| !there.contains(&task.part_name(&manifest))).collect();
    if let Some(first) = missing.first() {
        return Err(WorkerError::Missing {
            run: store.address().to_owned(),
            missing: missing.len(),
            total: Task::count(&manifest),
            first: first.in_words(&manifest),
        });
    }
    let gallery = manifest.chunk.map(|_| gallery(store, &manifest)).transpose()?;
    if let Some(gallery) = &gallery {
        let side = QuerySide {
            sigma: manifest.run.sigma(),
            dimension: gallery.gallery().dimension(),
            norm_bound: gallery.provenance().norm_bound,
            components: manifest.run.encoder.components,
            model: Some(manifest.run.encoder.model),
            contract: Some(manifest.run.encoder.contract),
        };
        gallery.check_against(store.address(), &side).map_err(PipelineError::from)?;
        manifest.check_gallery(store.address(), gallery)?;
    }
    let merging = Merging { store, manifest: &manifest, key, gallery: gallery.as_ref() };
    let total = manifest.queries.len();
    observer.advanced(0, total);
    let queue = WorkQueue { pieces: total, before: 0, threads, observer };
    let outcomes = queue.collect(|query| merging.query(query))?;
    let plan = CertifyPlan {
        excluded: manifest.queries.iter().map(|query| query.excluded.clone()).collect(),
        namesakes: manifest.namesakes,
        description: manifest.run.clone(),
    };
    let queries = manifest.queries.iter().map(|query| (query.identity.as_str(), query.label.as_str()));
    let report = plan.report(queries, outcomes, 0)?;
    Ok(Merged { report, manifest })
}

/// The gallery that the run's queries are certified against.
fn gallery(store: &RunStore, manifest: &RunManifest) -> Result<StoredGallery, WorkerError> {
    if let Some(directory) = store.directory() {
        gallery_files(store, manifest).try_for_each(|file| file.map(drop))?;
        return Ok(GalleryDirectory::read(&directory.join(GALLERY))?.into());
    }
    let temporary = temporary_folder()?;
    for file in gallery_files(store, manifest) {
        let (name, bytes) = file?;
        let path = temporary.path().join(name);
        std::fs::write(&path, bytes)
            .map_err(|source| WorkerError::File { path: path.display().to_string(), source })?;
    }
    Ok(GalleryDirectory::read(temporary.path())?.into())
}

struct Merging<'a> {
    store: &'a RunStore,
    manifest: &'a RunManifest,
    key: RunKey,
    gallery: Option<&'a StoredGallery>,
}

impl Merging<'_> {
    fn query(&self, index: usize) -> Result<PictureOutcome<QueryAnswer>, WorkerError> {
        let per_query = Task::per_query(self.manifest);
        let numbers = index * per_query..(index + 1) * per_query;
        let tasks: Vec<Task> = numbers.map(|number| Task::new(self.manifest, number)).collect();
        let Some(gallery) = self.gallery else {
            return match self.part(&tasks[0])? {
                Part::Outcome(outcome) => self.admitted(&tasks[0], *outcome),
                Part::Samples { .. } => Err(self.unusable(&tasks[0], "it holds samples, wanted an outcome")),
            };
        };
        // A broken picture is the same for every task of its query, and so is what is known of a file.
        let file = match self.part(&tasks[0])? {
            Part::Samples { file, .. } => file,
            Part::Outcome(outcome) => {
                return match *outcome {
                    PictureOutcome::Skipped(_) => self.admitted(&tasks[0], *outcome),
                    PictureOutcome::Done(_) => {
                        Err(self.unusable(&tasks[0], "it holds an answer, wanted samples"))
                    }
                };
            }
        };
        let query = &self.manifest.queries[index];
        let asked = Query { relevant: Relevant::Label(&query.label), excluded: &query.excluded };
        let certifier = QueryCertifier::stored(self.manifest.procedure()?, gallery);
        let bound = gallery.provenance().norm_bound;
        // Those of a clamped encoder were clamped when they were drawn, which changes nothing but says so.
        let components = self.manifest.run.encoder.components;
        let mut clean = None;
        let draw = |stage, _| -> Result<Samples, WorkerError> {
            let samples = self.samples(&tasks, stage, bound)?;
            let Some(pilot) = samples.count().checked_sub(1).filter(|_| stage == Stage::Pilot) else {
                return Ok(samples.with(components));
            };
            // The last row of the pilot's part is the clean picture.
            clean = Some(samples.row(pilot as usize).to_vec());
            let pilot = samples.slice(0..pilot);
            Ok(pilot.ok_or_else(|| self.unusable(&tasks[0], "it holds no pilot"))?.with(components))
        };
        let answer = QueryAnswer::of(&certifier, &asked, draw, uncertified(&query.identity))?;
        let clean = || clean.ok_or_else(|| self.unusable(&tasks[0], "it holds no pilot"));
        let answer = answer.with_plain(gallery, &query.excluded, clean, uncertified(&query.identity))?;
        Ok(PictureOutcome::Done(answer.of_file(file)))
    }

    /// An outcome that a worker of this run can have left: whether pictures are skipped is not part of what a part says
    /// about its run.
    fn admitted(
        &self,
        task: &Task,
        outcome: PictureOutcome<QueryAnswer>,
    ) -> Result<PictureOutcome<QueryAnswer>, WorkerError> {
        match (&outcome, self.manifest.broken()) {
            (PictureOutcome::Skipped(reason), BrokenPictures::Fatal) => {
                let reason = format!("it leaves its query out, which the run does not allow: {reason}");
                Err(self.unusable(task, &reason))
            }
            (PictureOutcome::Skipped(_), BrokenPictures::Skip) | (PictureOutcome::Done(_), _) => Ok(outcome),
        }
    }

    /// All samples of a stage, in order.
    fn samples(&self, tasks: &[Task], wanted: Stage, bound: NormBound) -> Result<Samples, WorkerError> {
        let mut all: Option<Samples> = None;
        for task in tasks {
            let TaskKind::Samples { stage, range } = &task.kind else { continue };
            if *stage != wanted {
                continue;
            }
            let wrong = |reason: String| self.unusable(task, &reason);
            // Behind the pilot is the clean picture.
            let rows = range.len() + usize::from(wanted == Stage::Pilot);
            let more = self.part(task)?.into_samples(bound, rows).map_err(wrong)?;
            match &mut all {
                Some(all) => all.append(&more).map_err(|error| wrong(error.to_string()))?,
                None => all = Some(more),
            }
        }
        all.ok_or_else(|| self.unusable(&tasks[0], "its query has no samples of this stage"))
    }

    fn part(&self, task: &Task) -> Result<Part, WorkerError> {
        let name = format!("{PARTS}/{}", task.part_name(self.manifest));
        let bytes = self.store.get(&name)?;
        let bytes = bytes.ok_or_else(|| self.unusable(task, "it is not there any more"))?;
        Part::decode(&bytes, self.key, task.number).map_err(|reason| self.unusable(task, &reason))
    }

    fn unusable(&self, task: &Task, reason: &str) -> WorkerError {
        WorkerError::Part {
            run: self.store.address().to_owned(),
            name: format!("{PARTS}/{}", task.part_name(self.manifest)),
            reason: reason.to_owned(),
        }
    }
}
