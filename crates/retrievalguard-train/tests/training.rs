//! Whole runs on synthetic pictures: they learn, stop, go on, and never overwrite each other.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use retrievalguard::storage::lock::{FolderLock, LockError};
use retrievalguard_encoder::dataset::{PictureSource, Record, Role};
use retrievalguard_encoder::engine::{Engine, EngineOptions};
use retrievalguard_train::backend::Backend;
use retrievalguard_train::checkpoint::Checkpoint;
use retrievalguard_train::recipe::{Preset, Recipe};
use retrievalguard_train::trainer::{
    EvaluationReport, Measured, RunFolder, Start, StepReport, TrainError, TrainObserver, TrainReport,
    TrainRequest, train,
};

const SIDE: usize = 16;

/// Classes are stripes of different direction and width; pictures of a class are shifted and brightened.
fn records(classes: std::ops::Range<usize>, pictures: usize) -> Vec<Record> {
    let draw = |class: usize, picture: usize| -> Vec<u8> {
        let (down, across) = (1 + class % 3, 1 + class / 3);
        let pixel = |place: usize| {
            let (row, column) = (place / SIDE, place % SIDE);
            let wave = (row * down + column * across * 2 + picture * 3) % 12;
            (wave * 15 + 20 + 5 * (picture % 7)) as u8
        };
        (0..SIDE * SIDE).map(pixel).collect()
    };
    let record = |class: usize, picture: usize| Record {
        identity: format!("{class}/{picture}"),
        source: PictureSource::Grey { width: SIDE, height: SIDE, pixels: draw(class, picture) },
        crop: None,
        label: format!("class {class}"),
        category: None,
        split: None,
        role: Role::Unassigned,
    };
    classes.flat_map(|class| (0..pictures).map(move |picture| record(class, picture))).collect()
}

fn recipe(changes: &[&str]) -> Recipe {
    let mut set: Vec<String> = [
        "network.architecture=small",
        "network.channels=1",
        "network.height=16",
        "network.width=16",
        "network.dimension=8",
        "network.filters=8",
        "network.batch_norm=batch",
        "pictures.resize=16",
        "pictures.crop_area=[0.7, 1.0]",
        "pictures.flip=false",
        "batch.classes=4",
        "batch.pictures=3",
        "optimiser.learning_rate=0.003",
        "optimiser.head_factor=1.0",
        "schedule.epochs=3",
        "schedule.milestones=[2]",
        "evaluation.every=2",
        "evaluation.held_out=0.25",
        "evaluation.samples=4",
        "noise.sigma=0.1",
    ]
    .map(str::to_owned)
    .to_vec();
    set.extend(changes.iter().map(|&change| change.to_owned()));
    Recipe::assemble(Preset::Small, None, &set).unwrap()
}

/// Remembers everything; asks to stop after a number of steps.
#[derive(Default)]
struct Watcher {
    stop_after: Option<u64>,
    steps: Mutex<Vec<StepReport>>,
    evaluations: Mutex<Vec<EvaluationReport>>,
}

impl TrainObserver for Watcher {
    fn stepped(&self, report: &StepReport) {
        self.steps.lock().unwrap().push(*report);
    }

    fn evaluated(&self, report: &EvaluationReport) {
        self.evaluations.lock().unwrap().push(*report);
    }

    fn note(&self, _words: &str) {}

    fn stop(&self) -> bool {
        let steps = self.steps.lock().unwrap();
        self.stop_after.is_some_and(|limit| steps.last().is_some_and(|last| last.step >= limit))
    }
}

fn run(
    recipe: &Recipe,
    records: &[Record],
    folder: &Path,
    start: Start,
    watcher: &Watcher,
) -> Result<TrainReport, TrainError> {
    run_on(Backend::Cpu, None, recipe, records, folder, start, watcher)
}

fn run_on(
    backend: Backend,
    teacher: Option<&Path>,
    recipe: &Recipe,
    records: &[Record],
    folder: &Path,
    start: Start,
    watcher: &Watcher,
) -> Result<TrainReport, TrainError> {
    let engine = EngineOptions { engine: Some(Engine::Rten), ..EngineOptions::default() };
    let request = TrainRequest {
        recipe,
        records,
        held_out: None,
        weights: None,
        teacher,
        backend,
        engine: &engine,
        threads: NonZeroUsize::MIN,
        batch: NonZeroUsize::MIN,
        cache: 1 << 20,
    };
    train(&request, &RunFolder::new(folder), start, watcher)
}

/// A whole run, and one that was stopped twice: their folders, which hold the same bytes.
fn whole_and_parts(
    folder: &Path,
    recipe: &Recipe,
    records: &[Record],
    teacher: Option<&Path>,
) -> (PathBuf, PathBuf) {
    let (whole, parts) = (folder.join("whole"), folder.join("parts"));
    let run = |place: &Path, start: Start, watcher: &Watcher| {
        run_on(Backend::Cpu, teacher, recipe, records, place, start, watcher)
    };
    run(&whole, Start::Fresh, &Watcher::default()).unwrap();
    let mut start = Start::Fresh;
    // In the middle of an epoch, and again just before the end of another.
    for stop in [2, 7] {
        let watcher = Watcher { stop_after: Some(stop), ..Watcher::default() };
        let error = run(&parts, start, &watcher).unwrap_err();
        assert!(matches!(error, TrainError::Stopped { position } if position.step == stop), "{error}");
        start = Start::Resume;
    }
    run(&parts, start, &Watcher::default()).unwrap();
    for file in [
        "checkpoint.safetensors",
        "network.safetensors",
        "encoder.onnx",
        "encoder.toml",
        "recipe.toml",
        "inputs.json",
    ] {
        let [whole, parts] = [&whole, &parts].map(|run| fs::read(run.join(file)).unwrap());
        assert_eq!(whole, parts, "{file}");
    }
    (whole, parts)
}

#[test]
fn a_run_that_was_stopped_and_resumed_ends_with_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let (recipe, records) = (recipe(&[]), records(0..12, 6));
    let (whole, parts) = whole_and_parts(folder.path(), &recipe, &records, None);
    let [whole, parts] = [&whole, &parts].map(|run| {
        let text = fs::read_to_string(run.join("log.jsonl")).unwrap();
        let lines = text.lines().map(|line| {
            let mut value: serde_json::Value = serde_json::from_str(line).unwrap();
            for clock in ["pictures_per_second", "time"] {
                value.as_object_mut().unwrap().remove(clock);
            }
            value.to_string()
        });
        lines.collect::<Vec<_>>()
    });
    assert_eq!(whole, parts, "the log has every line once");
    let untrained = whole.iter().filter(|line| line.contains("untrained")).count();
    assert_eq!(
        untrained, 3,
        "each evaluation has the untrained backbone beside it, those after a restart, too"
    );
}

/// Changes that make the encoder of [`recipe`] a Lipschitz one.
const LIPSCHITZ: [&str; 9] = [
    "network.architecture=lipschitz",
    "network.stages=[{ block = 2, channels = 8, inner = 8, layers = 1 }, { block = 2, channels = 16, inner = 8, layers = 1 }]",
    "network.batch_norm=frozen",
    "loss.kind=certified-radius",
    "optimiser.learning_rate=0.005",
    "optimiser.clip=1.0",
    "schedule.curve=cosine",
    "schedule.milestones=[]",
    "noise.sigma=0",
];

#[test]
fn a_lipschitz_run_that_was_stopped_and_resumed_ends_with_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let records = records(0..12, 6);
    for loss in ["certified-radius", "margin"] {
        let kind = format!("loss.kind={loss}");
        let recipe = recipe(&[&LIPSCHITZ[..], &[&kind]].concat());
        whole_and_parts(&folder.path().join(loss), &recipe, &records, None);
    }
}

#[test]
fn a_lipschitz_encoder_learns_to_be_certified_further() {
    let folder = tempfile::tempdir().unwrap();
    let changes = ["schedule.epochs=20", "schedule.milestones=[]", "evaluation.every=20"];
    let recipe = recipe(&[&LIPSCHITZ[..], &changes].concat());
    let watcher = Watcher::default();
    run(&recipe, &records(0..12, 10), &folder.path().join("run"), Start::Fresh, &watcher).unwrap();
    let evaluations = watcher.evaluations.into_inner().unwrap();
    let certified: Vec<_> = evaluations
        .iter()
        .map(|report| match report.measured {
            Measured::Certified(found) => found,
            Measured::Smoothed(recall) => panic!("noise in {recall:?}"),
        })
        .collect();
    let [before, after] = certified.as_slice() else { panic!("two evaluations, not {certified:?}") };
    assert!(after.constant <= 1.0 + 1e-6, "{}", after.constant);
    assert!(after.average_radius > before.average_radius, "{before:?} then {after:?}");
    assert_eq!((after.pictures, after.classes), (30, 3));
    let steps = watcher.steps.into_inner().unwrap();
    assert!(steps.iter().all(|step| step.beta.is_none() && step.distillation.is_none()));
    assert!(steps.last().unwrap().learning_rate < 1e-4, "a cosine ends near zero");
}

/// Changes that make a run one without labels.
const DISTILLATION: [&str; 3] = ["loss.weight=0", "distillation.weight=1", "network.batch_norm=frozen"];

#[test]
fn a_distillation_that_was_stopped_and_resumed_ends_with_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let pictures = records(0..12, 6);
    // Taught by its own beginning.
    let (first, _) = whole_and_parts(&folder.path().join("initial"), &recipe(&DISTILLATION), &pictures, None);
    // Taught by a file and by labels at once.
    let both = recipe(&[&DISTILLATION[..], &["loss.weight=0.5"]].concat());
    let teacher = first.join("encoder.onnx");
    let (whole, _) = whole_and_parts(&folder.path().join("both"), &both, &pictures, Some(&teacher));
    let log = fs::read_to_string(whole.join("log.jsonl")).unwrap();
    assert!(
        log.lines().any(|line| line.contains("\"distillation\":") && line.contains("\"beta\":")),
        "{log}"
    );
    // A Lipschitz student with fewer dimensions than its teacher.
    let lipschitz = ["network.dimension=5", "distillation.weight=1", "distillation.scale=2", "loss.weight=0"];
    let recipe = recipe(&[&LIPSCHITZ[..], &lipschitz].concat());
    whole_and_parts(&folder.path().join("lipschitz"), &recipe, &pictures, Some(&teacher));
}

#[test]
fn a_student_comes_nearer_to_its_teacher_without_labels() {
    let folder = tempfile::tempdir().unwrap();
    let changes = ["schedule.epochs=12", "evaluation.every=0", "noise.sigma=0.3"];
    let recipe = recipe(&[&DISTILLATION[..], &changes].concat());
    // All of one label: none of them is looked at.
    let mut pictures = records(0..12, 6);
    pictures.iter_mut().for_each(|record| record.label = "unknown".to_owned());
    let watcher = Watcher::default();
    run(&recipe, &pictures, &folder.path().join("run"), Start::Fresh, &watcher).unwrap();
    let steps = watcher.steps.into_inner().unwrap();
    let mean = |steps: &[StepReport]| steps.iter().map(|step| step.loss).sum::<f64>() / steps.len() as f64;
    let quarter = steps.len() / 4;
    let (first, last) = (mean(&steps[..quarter]), mean(&steps[3 * quarter..]));
    assert!(last < 0.8 * first, "loss: {first} at first, {last} at last");
    assert!(steps.iter().all(|step| step.distillation == Some(step.loss) && step.beta.is_none()));
}

#[test]
fn teachers_that_do_not_fit_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let pictures = records(0..12, 6);
    let short = ["schedule.epochs=1", "evaluation.every=0"];
    let first = folder.path().join("first");
    run(&recipe(&short), &pictures, &first, Start::Fresh, &Watcher::default()).unwrap();
    let teacher = first.join("encoder.onnx");
    let refused = |changes: &[&str], name: &str| {
        let recipe = recipe(&[&short[..], changes].concat());
        let place = folder.path().join(name);
        let watcher = Watcher::default();
        run_on(Backend::Cpu, Some(&teacher), &recipe, &pictures, &place, Start::Fresh, &watcher).unwrap_err()
    };
    let error = refused(&[], "none");
    assert!(matches!(error, TrainError::NoDistillation), "{error}");
    let error = refused(&["distillation.weight=1", "network.dimension=9"], "dimension");
    assert!(matches!(error, TrainError::TeacherDimension { found: 8, wanted: 9 }), "{error}");
    let error = refused(&["distillation.weight=1", "network.height=32", "pictures.resize=32"], "picture");
    assert!(matches!(error, TrainError::TeacherPicture { .. }), "{error}");
}

#[test]
fn training_separates_classes_it_has_not_seen() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = recipe(&[
        "schedule.epochs=40",
        "schedule.milestones=[30]",
        "evaluation.every=40",
        "loss.average=triplets",
    ]);
    let watcher = Watcher::default();
    let report =
        run(&recipe, &records(0..12, 10), &folder.path().join("run"), Start::Fresh, &watcher).unwrap();
    let steps = watcher.steps.into_inner().unwrap();
    assert_eq!(steps.len() as u64, report.steps);
    let mean = |steps: &[StepReport]| steps.iter().map(|step| step.loss).sum::<f64>() / steps.len() as f64;
    let quarter = steps.len() / 4;
    let (first, last) = (mean(&steps[..quarter]), mean(&steps[3 * quarter..]));
    assert!(last < 0.7 * first, "loss: {first} at first, {last} at last");
    let evaluations = watcher.evaluations.into_inner().unwrap();
    let [before, after] = evaluations.as_slice() else { panic!("two evaluations, not {evaluations:?}") };
    let recall = |measured: Measured| match measured {
        Measured::Smoothed(recall) => recall,
        Measured::Certified(found) => panic!("no noise in {found:?}"),
    };
    let (first, last) = (recall(before.measured), recall(after.measured));
    assert!(last.smoothed >= first.smoothed, "{before:?} then {after:?}");
    assert!(last.smoothed > 0.6, "{after:?}");
    assert_eq!((last.pictures, last.classes), (30, 3));
    assert_eq!((before.untrained, recall(before.untrained.unwrap()).classes), (after.untrained, 3));
    assert_ne!(before.untrained, Some(before.measured), "features are not what a fresh head makes of them");
}

#[cfg(feature = "tch")]
#[test]
fn libtorch_learns_what_the_processor_learns() {
    let folder = tempfile::tempdir().unwrap();
    let (recipe, records) = (recipe(&[]), records(0..12, 6));
    let losses = |backend: Backend| -> Vec<f64> {
        let watcher = Watcher::default();
        let place = folder.path().join(backend.name());
        run_on(backend, None, &recipe, &records, &place, Start::Fresh, &watcher).unwrap();
        let steps = watcher.steps.lock().unwrap();
        steps.iter().map(|step| step.loss).collect()
    };
    let (cpu, libtorch) = (losses(Backend::Cpu), losses(Backend::Libtorch));
    assert_eq!(cpu.len(), libtorch.len());
    // Rounding differs, and every step builds on the one before.
    for (step, (cpu, libtorch)) in cpu.iter().zip(&libtorch).enumerate().take(4) {
        assert!((cpu - libtorch).abs() < 1e-3, "step {step}: {libtorch} instead of {cpu}");
    }
}

#[test]
fn a_loss_that_is_no_number_stops_the_run_and_keeps_the_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = recipe(&["optimiser.learning_rate=1e30", "network.batch_norm=frozen"]);
    let error =
        run(&recipe, &records(0..12, 6), folder.path(), Start::Fresh, &Watcher::default()).unwrap_err();
    let diverged = matches!(error, TrainError::LossNotFinite { .. } | TrainError::Sampling { .. });
    assert!(diverged, "{error}");
    let checkpoint = Checkpoint::read(&RunFolder::new(folder.path()).checkpoint()).unwrap();
    assert!(checkpoint.network.values().flat_map(|(_, values)| values).all(|value| value.is_finite()));
}

#[test]
fn weights_that_are_no_numbers_never_replace_a_good_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    // One batch makes an epoch, so that a checkpoint follows every step.
    let recipe = recipe(&[
        "optimiser.learning_rate=1e30",
        "network.batch_norm=frozen",
        "evaluation.every=0",
        "schedule.epochs=9",
    ]);
    let error =
        run(&recipe, &records(0..4, 3), folder.path(), Start::Fresh, &Watcher::default()).unwrap_err();
    let diverged = matches!(
        error,
        TrainError::LossNotFinite { .. } | TrainError::Sampling { .. } | TrainError::WeightsNotFinite { .. }
    );
    assert!(diverged, "{error}");
    let checkpoint = Checkpoint::read(&RunFolder::new(folder.path()).checkpoint()).unwrap();
    assert!(checkpoint.network.values().flat_map(|(_, values)| values).all(|value| value.is_finite()));
}

#[test]
fn a_start_that_was_cut_short_is_begun_again_and_other_files_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = recipe(&["schedule.epochs=1", "evaluation.every=0"]);
    let pictures = records(0..12, 6);
    run(&recipe, &pictures, folder.path(), Start::Fresh, &Watcher::default()).unwrap();
    let encoder = fs::read(folder.path().join("encoder.onnx")).unwrap();
    let other = tempfile::tempdir().unwrap();
    for file in ["checkpoint.safetensors", "inputs.json"] {
        fs::copy(folder.path().join(file), other.path().join(file)).unwrap();
    }
    run(&recipe, &pictures, other.path(), Start::Fresh, &Watcher::default()).unwrap();
    assert_eq!(fs::read(other.path().join("encoder.onnx")).unwrap(), encoder);

    let mine = tempfile::tempdir().unwrap();
    fs::write(mine.path().join("encoder.onnx"), "mine").unwrap();
    let error = run(&recipe, &pictures, mine.path(), Start::Fresh, &Watcher::default()).unwrap_err();
    assert!(matches!(error, TrainError::Occupied { .. }), "{error}");
    assert_eq!(fs::read(mine.path().join("encoder.onnx")).unwrap(), b"mine");
}

#[test]
fn a_folder_holds_one_run() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = recipe(&["schedule.epochs=1", "evaluation.every=0"]);
    let pictures = records(0..12, 6);
    let error = run(&recipe, &pictures, folder.path(), Start::Resume, &Watcher::default()).unwrap_err();
    assert!(matches!(error, TrainError::NothingToResume { .. }), "{error}");
    run(&recipe, &pictures, folder.path(), Start::Fresh, &Watcher::default()).unwrap();
    let error = run(&recipe, &pictures, folder.path(), Start::Fresh, &Watcher::default()).unwrap_err();
    assert!(matches!(error, TrainError::Occupied { .. }), "{error}");
    let error =
        run(&recipe, &records(0..12, 5), folder.path(), Start::Resume, &Watcher::default()).unwrap_err();
    assert!(error.to_string().starts_with("the training pictures"), "{error}");
}

#[test]
fn equal_runs_leave_equal_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let (recipe, records) = (recipe(&["schedule.epochs=2", "evaluation.every=0"]), records(0..12, 6));
    let [first, second] = ["first", "second"].map(|name| {
        let place = folder.path().join(name);
        run(&recipe, &records, &place, Start::Fresh, &Watcher::default()).unwrap();
        fs::read(RunFolder::new(&place).checkpoint()).unwrap()
    });
    assert!(first == second, "the checkpoints differ");
}

#[test]
fn a_folder_in_use_is_refused_by_name_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = recipe(&["schedule.epochs=1", "evaluation.every=0"]);
    let pictures = records(0..12, 6);
    let started = folder.path().join("run");
    let stop = Watcher { stop_after: Some(1), ..Watcher::default() };
    run(&recipe, &pictures, &started, Start::Fresh, &stop).unwrap_err();
    let checkpoint = fs::read(RunFolder::new(&started).checkpoint()).unwrap();
    let new = folder.path().join("new");
    fs::create_dir(&new).unwrap();
    for (place, start) in [(&started, Start::Resume), (&new, Start::Fresh)] {
        let lock = FolderLock::take(place).unwrap();
        let error = run(&recipe, &pictures, place, start, &Watcher::default()).unwrap_err();
        assert!(matches!(error, TrainError::Lock(LockError::InUse { .. })), "{error}");
        let (shown, holder) = (place.display(), std::process::id());
        assert!(
            error.to_string().starts_with(&format!("`{shown}` is in use by process {holder}")),
            "{error}"
        );
        drop(lock);
    }
    assert!(fs::read_dir(&new).unwrap().next().is_none());
    assert!(fs::read(RunFolder::new(&started).checkpoint()).unwrap() == checkpoint);
    run(&recipe, &pictures, &started, Start::Resume, &Watcher::default()).unwrap();
    assert!(!started.join(".lock").exists());
}

#[test]
fn a_run_leaves_an_encoder_that_index_and_certify_can_use() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = recipe(&["schedule.epochs=1", "evaluation.every=0"]);
    run(&recipe, &records(0..12, 6), folder.path(), Start::Fresh, &Watcher::default()).unwrap();
    let files: BTreeSet<String> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    for file in [
        "checkpoint.safetensors",
        "encoder.onnx",
        "encoder.toml",
        "inputs.json",
        "log.jsonl",
        "network.safetensors",
        "recipe.toml",
        "tensorboard",
    ] {
        assert!(files.contains(file), "{file} is not among {files:?}");
    }
    let written =
        Recipe::from_toml("recipe", &fs::read_to_string(folder.path().join("recipe.toml")).unwrap());
    assert_eq!(written.unwrap(), recipe);
}
