//! Does tasks and leaves their parts.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroUsize;
use std::path::PathBuf;

use retrievalguard::noise::Stage;
use retrievalguard::storage::atomic;
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::manifest::GalleryDirectory;
use retrievalguard::storage::stored::StoredGallery;
use retrievalguard::{Picture, Smoother};
use retrievalguard_encoder::dataset::BrokenPictures;
use retrievalguard_encoder::engine::{EngineOptions, OnnxEmbedder};
use retrievalguard_encoder::model_config::ModelConfig;
use retrievalguard_encoder::pipeline::{
    PictureOutcome, PipelineError, PlainCertifier, Query, QueryAnswer, QueryCertifier, Relevant,
    check_gallery, input_values, uncertified,
};
use retrievalguard_encoder::run::{EncoderDescription, Method};
use retrievalguard_encoder::work::{Observer, WorkQueue};

use crate::manifest::{
    GALLERY, GALLERY_FILES, MODEL, MODEL_CONFIG, PARTS, checked, gallery_files, picture_name,
};
use crate::part::{Part, RunKey};
use crate::task::{Assignment, Task, TaskKind};
use crate::{RunManifest, RunStore, WorkerError};

/// How a worker works; what it makes does not depend on it.
pub struct WorkerOptions {
    /// How the encoder is run; the engine must be the run's, and is if none is named.
    pub engine: EngineOptions,
    /// Noisy copies per call of the encoder.
    pub batch: NonZeroUsize,
    /// Where encoder and gallery of a run in an object store are kept on this machine; the temporary folder by default.
    pub cache: Option<PathBuf>,
}

/// What a worker did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worked {
    /// Tasks that were this worker's.
    pub assigned: usize,
    /// Of these, tasks whose part was there already.
    pub found: usize,
    /// Tasks of the whole run.
    pub total: usize,
}

/// Encoder and gallery of a run, on this machine.
struct Tools {
    embedder: OnnxEmbedder,
    /// Needed where a task is a whole query.
    gallery: Option<StoredGallery>,
}

impl Tools {
    fn open(store: &RunStore, manifest: &RunManifest, options: &WorkerOptions) -> Result<Self, WorkerError> {
        let whole = manifest.chunk.is_none();
        let folder = match store.directory() {
            // What lies in a directory is used where it is, once it was checked.
            Some(directory) => {
                checked(store, MODEL, &manifest.model)?;
                checked(store, MODEL_CONFIG, &manifest.contract)?;
                if whole {
                    gallery_files(store, manifest).try_for_each(|file| file.map(drop))?;
                }
                directory.to_owned()
            }
            None => fetch(store, manifest, options, whole)?,
        };
        let config = ModelConfig::read(&folder.join(MODEL_CONFIG))?;
        // Without a choice of engine the run's own is taken, the only one that is accepted.
        let wanted = &manifest.run.encoder;
        let own = wanted.engine.split(' ').next().and_then(|word| word.parse().ok());
        let engine = EngineOptions { engine: options.engine.engine.or(own), ..options.engine.clone() };
        let embedder = OnnxEmbedder::open(&folder.join(MODEL), config, &engine)?;
        let embedder = embedder.with_components(wanted.components);
        let found = EncoderDescription::new(&embedder);
        if found.engine != wanted.engine {
            let (run, wanted) = (store.address().to_owned(), wanted.engine.clone());
            return Err(WorkerError::Engine { run, found: found.engine, wanted });
        }
        for (what, found, wanted) in
            [("model", found.model, wanted.model), ("model config", found.contract, wanted.contract)]
        {
            if found != wanted {
                return Err(WorkerError::Other { run: store.address().to_owned(), what, found, wanted });
            }
        }
        if let Method::Lipschitz(bounded) = &manifest.run.method
            && *embedder.lipschitz()? != bounded.lipschitz
        {
            // What a manifest says of the bound is not believed: it is computed from the weights once more.
            let wanted =
                format!("one whose Lipschitz bound is that of its model, {}", embedder.lipschitz()?.constant);
            return Err(WorkerError::Manifest { run: store.address().to_owned(), wanted });
        }
        if found.encoder_check != wanted.encoder_check {
            let wanted = format!("one for an encoder that runs here as {}", embedder.check());
            return Err(WorkerError::Manifest { run: store.address().to_owned(), wanted });
        }
        let gallery = whole.then(|| GalleryDirectory::read(&folder.join(GALLERY))).transpose()?;
        let gallery = gallery.map(StoredGallery::from);
        if let Some(gallery) = &gallery {
            check_gallery(gallery, store.address(), &embedder, manifest.run.sigma())?;
            manifest.check_gallery(store.address(), gallery)?;
        }
        Ok(Self { embedder, gallery })
    }
}

/// Copies encoder and gallery to this machine, unless they are here.
fn fetch(
    store: &RunStore,
    manifest: &RunManifest,
    options: &WorkerOptions,
    whole: bool,
) -> Result<PathBuf, WorkerError> {
    let root = options.cache.clone().unwrap_or_else(std::env::temp_dir);
    let folder = root.join(format!("retrievalguard-run-{:.16}", manifest.run.digest()));
    let mut files = vec![(MODEL.to_owned(), manifest.model), (MODEL_CONFIG.to_owned(), manifest.contract)];
    if whole {
        let names = GALLERY_FILES.iter().map(|name| format!("{GALLERY}/{name}"));
        files.extend(names.zip(manifest.gallery.iter().copied()));
    }
    for (name, record) in files {
        let path = folder.join(&name);
        if Digest::of_file(&path).ok() == Some(record.sha256) {
            continue;
        }
        let parent = path.parent().unwrap_or(&folder);
        let failed = |source| WorkerError::File { path: parent.display().to_string(), source };
        fs::create_dir_all(parent).map_err(failed)?;
        atomic::write(&path, &checked(store, &name, &record)?)?;
    }
    Ok(folder)
}

/// What is left to do of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// Numbers of the tasks without a part, in order.
    pub numbers: Vec<usize>,
    /// Tasks that were asked about.
    pub assigned: usize,
    /// Tasks of the whole run.
    pub total: usize,
}

/// Which tasks of an assignment have no part yet.
pub fn unfinished(store: &RunStore, assignment: &Assignment) -> Result<Unfinished, WorkerError> {
    let manifest = RunManifest::read(store)?;
    let total = Task::count(&manifest);
    let numbers = assignment.numbers(total, Task::per_query(&manifest));
    let assigned = numbers.len();
    let there: BTreeSet<String> = store.list(PARTS)?;
    let missing = |number: &usize| !there.contains(&Task::new(&manifest, *number).part_name(&manifest));
    Ok(Unfinished { numbers: numbers.filter(missing).collect(), assigned, total })
}

/// Does every task of an assignment whose part is not there yet, each of the threads one at a time.
pub fn work(
    store: RunStore,
    assignment: &Assignment,
    threads: NonZeroUsize,
    options: &WorkerOptions,
    observer: &dyn Observer,
) -> Result<Worked, WorkerError> {
    let Unfinished { mut numbers, assigned, total } = unfinished(&store, assignment)?;
    if *assignment == Assignment::All && !numbers.is_empty() {
        // Workers without a share begin anywhere, so that several of them do not do the same side by side.
        let anywhere = RandomState::new().hash_one(0) % numbers.len() as u64;
        numbers.rotate_left(anywhere as usize);
    }
    let found = assigned - numbers.len();
    let worked = Worked { assigned, found, total };
    if numbers.is_empty() {
        observer.advanced(found, assigned);
        return Ok(worked);
    }
    let worker = Worker::open(store, options)?;
    observer.advanced(found, assigned);
    let queue = WorkQueue { pieces: numbers.len(), before: found, threads, observer };
    queue.run(|piece| worker.carry_out(numbers[piece]))?;
    Ok(worked)
}

/// A run with its encoder and gallery opened; does tasks as they are asked for, from any number of threads.
pub struct Worker {
    store: RunStore,
    manifest: RunManifest,
    key: RunKey,
    tools: Tools,
    batch: NonZeroUsize,
}

impl Worker {
    /// Reads the run's manifest and opens its encoder and gallery.
    pub fn open(store: RunStore, options: &WorkerOptions) -> Result<Self, WorkerError> {
        let manifest = RunManifest::read(&store)?;
        let key = manifest.key();
        let tools = Tools::open(&store, &manifest, options)?;
        Ok(Self { store, manifest, key, tools, batch: options.batch })
    }

    /// Does a task and writes its part, unless that is there.
    pub fn carry_out(&self, number: usize) -> Result<(), WorkerError> {
        let total = Task::count(&self.manifest);
        if number >= total {
            return Err(WorkerError::Number { run: self.store.address().to_owned(), number, total });
        }
        let task = Task::new(&self.manifest, number);
        let name = format!("{PARTS}/{}", task.part_name(&self.manifest));
        // Somebody else may have done it since the tasks were counted.
        if self.store.has(&name)? {
            return Ok(());
        }
        let part = self.part(&task)?;
        self.store.put(&name, part.encode(self.key, task.number))
    }

    fn part(&self, task: &Task) -> Result<Part, WorkerError> {
        let (manifest, embedder) = (&self.manifest, &self.tools.embedder);
        let query = &manifest.queries[task.query];
        let bytes = checked(&self.store, &picture_name(task.query), &query.picture)?;
        let config = embedder.model_config();
        let prepared = query.decode(&bytes).and_then(|picture| {
            let prepared = config.preparation().apply(&query.identity, &picture)?;
            Ok((config.file_pixels(&picture), prepared))
        });
        let (file, prepared) = match (prepared, manifest.broken()) {
            (Ok(prepared), _) => prepared,
            (Err(error), BrokenPictures::Skip) => {
                return Ok(Part::Outcome(Box::new(PictureOutcome::Skipped(error.to_string()))));
            }
            (Err(error), BrokenPictures::Fatal) => return Err(error.into()),
        };
        let pixels = input_values(config, &query.identity, prepared)?;
        let picture = Picture { identity: &query.identity, pixels: &pixels };
        let asked = Query { relevant: Relevant::Label(&query.label), excluded: &query.excluded };
        let smoothed = match (&manifest.run.method, &self.tools.gallery) {
            (Method::Smoothed(smoothed), _) => smoothed,
            (Method::Lipschitz(bounded), Some(gallery)) => {
                let certifier = PlainCertifier::stored(bounded, gallery)?;
                let answer =
                    QueryAnswer::without_noise(&certifier, &asked, embedder, (&query.identity, &pixels))?;
                return Ok(Part::Outcome(Box::new(PictureOutcome::Done(answer.of_file(file)))));
            }
            (Method::Lipschitz(_), None) => unreachable!("tasks without noise are whole queries"),
        };
        let smoother = Smoother::new(embedder, smoothed.procedure.sigma, smoothed.seed)
            .excess(smoothed.excess())
            .batch(self.batch);
        let draw = |stage, range| smoother.samples(&picture, stage, range).map_err(PipelineError::from);
        match (&task.kind, &self.tools.gallery) {
            (TaskKind::Samples { stage, range }, _) => {
                let samples = draw(*stage, range.clone())?;
                let mut values = samples.values().to_vec();
                // The task of the pilot embeds the clean picture as well, behind its samples.
                if *stage == Stage::Pilot {
                    values.extend(smoother.clean(&picture).map_err(PipelineError::from)?);
                }
                Ok(Part::Samples { dimension: samples.dimension(), values, file })
            }
            (TaskKind::Answer, Some(gallery)) => {
                let certifier = QueryCertifier::stored(&smoothed.procedure, gallery);
                let answer = QueryAnswer::of(&certifier, &asked, draw, uncertified(&query.identity))?;
                let clean = || smoother.clean(&picture).map_err(PipelineError::from);
                let answer =
                    answer.with_plain(gallery, &query.excluded, clean, uncertified(&query.identity))?;
                Ok(Part::Outcome(Box::new(PictureOutcome::Done(answer.of_file(file)))))
            }
            (TaskKind::Answer, None) => {
                unreachable!("the gallery is opened where tasks are whole queries")
            }
        }
    }
}
