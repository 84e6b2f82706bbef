use std::sync::mpsc;

use retrievalguard::{Picture, Smoother};

use super::*;

/// Two components from the sum of the pixels; refuses a first pixel beyond 100, and can be held up.
struct Toy {
    shape: [usize; 1],
    gate: Option<Mutex<mpsc::Receiver<()>>>,
    calls: Mutex<Vec<Vec<f32>>>,
}

impl Toy {
    fn new() -> Self {
        Self { shape: [4], gate: None, calls: Mutex::new(Vec::new()) }
    }

    /// Every call waits for a message.
    fn gated() -> (Self, mpsc::Sender<()>) {
        let (open, gate) = mpsc::channel();
        (Self { gate: Some(Mutex::new(gate)), ..Self::new() }, open)
    }
}

impl Embedder for Toy {
    fn input_shape(&self) -> &[usize] {
        &self.shape
    }

    fn dimension(&self) -> usize {
        2
    }

    fn norm_bound(&self) -> NormBound {
        NormBound::UNIT
    }

    fn embed(&self, pictures: &[f32], embeddings: &mut [f32]) -> Result<(), EmbedderFailure> {
        if let Some(gate) = &self.gate {
            let _ = gate.lock().unwrap().recv();
        }
        self.calls.lock().unwrap().push(pictures.chunks_exact(4).map(|picture| picture[3]).collect());
        for (picture, row) in pictures.chunks_exact(4).zip(embeddings.chunks_exact_mut(2)) {
            assert!(picture[0] <= 200.0, "a picture that is not to be touched");
            if picture[0] > 100.0 {
                return Err("too bright".into());
            }
            let sum: f32 = picture.iter().sum();
            row.copy_from_slice(&[0.9 * sum.sin(), 0.4 * sum.cos()]);
        }
        Ok(())
    }
}

fn count(value: usize) -> NonZeroUsize {
    NonZeroUsize::new(value).unwrap()
}

fn noise() -> (Sigma, Seed) {
    (Sigma::new(0.25).unwrap(), Seed::new(11))
}

fn picture(name: &str, level: f32) -> Arc<Prepared> {
    Arc::new(Prepared { identity: name.to_owned(), pixels: vec![level; 4], file: None })
}

fn scheduler(toy: &Arc<Toy>, threads: usize, batch: usize) -> Scheduler {
    let embedder = Arc::clone(toy) as SharedEmbedder;
    Scheduler::start(embedder, count(threads), count(batch), Excess::Refuse).unwrap()
}

/// Pictures as they are, recognised by their last pixel.
fn given(mark: f32, passes: usize) -> Vec<f32> {
    [0.1, 0.2, 0.3, mark].repeat(passes)
}

#[test]
fn shared_batches_give_every_query_the_bits_that_it_would_get_alone() {
    let toy = Arc::new(Toy::new());
    for (threads, batch) in [(1, 7), (2, 64), (3, 16)] {
        let scheduler = scheduler(&toy, threads, batch);
        thread::scope(|scope| {
            for query in 0..6 {
                let (scheduler, toy) = (&scheduler, &toy);
                scope.spawn(move || {
                    let picture = picture(&format!("query {query}"), 0.1 * query as f32);
                    let ticket = scheduler.ticket();
                    let (sigma, seed) = noise();
                    let alone = Smoother::new(&**toy, sigma, seed);
                    let asked = Picture { identity: &picture.identity, pixels: &picture.pixels };
                    for (stage, range) in
                        [(Stage::Pilot, 0..33), (Stage::Certify, 0..150), (Stage::Certify, 150..300)]
                    {
                        let found = ticket.samples(&picture, noise(), stage, range.clone()).unwrap();
                        assert_eq!(found, alone.samples(&asked, stage, range).unwrap(), "query {query}");
                    }
                    assert_eq!(ticket.served(), 333);
                });
            }
        });
        assert_eq!(scheduler.work().passes, 6 * 333);
        assert_eq!(scheduler.backlog(), 0);
    }
}

/// The scale of its eight bits is that of the whole batch: run in shared batches, a loud stranger would coarsen everyone.
#[test]
fn strangers_in_a_batch_do_not_reach_a_query_even_through_an_encoder_that_couples() {
    use retrievalguard_encoder::check::Passes;
    use retrievalguard_encoder::engine::{Engine, EngineOptions, OnnxEmbedder};
    use retrievalguard_encoder::model_config::ModelConfig;

    let model = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../retrievalguard-encoder/tests/models/dynamic_quantised.onnx");
    let options = EngineOptions { engine: Some(Engine::Rten), ..EngineOptions::default() };
    let encoder = OnnxEmbedder::open(&model, ModelConfig::for_model(&model).unwrap(), &options).unwrap();
    assert_eq!(encoder.check().passes, Passes::OneByOne);
    let encoder = Arc::new(encoder);
    let pixels = encoder.input_len();
    let query = |level: f32| {
        let pixels = (0..pixels).map(|pixel| level * (pixel % 7) as f32).collect();
        Arc::new(Prepared { identity: format!("level {level}"), pixels, file: None })
    };
    let scheduler =
        Scheduler::start(Arc::clone(&encoder) as SharedEmbedder, count(1), count(16), Excess::Refuse)
            .unwrap();
    thread::scope(|scope| {
        // A quiet picture between two that are hundreds of times louder.
        for level in [0.1, 40.0, 80.0] {
            let (scheduler, encoder) = (&scheduler, &encoder);
            let picture = query(level);
            scope.spawn(move || {
                let (sigma, seed) = noise();
                let asked = Picture { identity: &picture.identity, pixels: &picture.pixels };
                let ticket = scheduler.ticket();
                for start in (0..200).step_by(5) {
                    let found = ticket.samples(&picture, noise(), Stage::Certify, start..start + 5).unwrap();
                    let alone = Smoother::new(&**encoder, sigma, seed).batch(count(1));
                    let alone = alone.samples(&asked, Stage::Certify, start..start + 5).unwrap();
                    assert_eq!(found, alone, "level {level}");
                }
            });
        }
    });
    assert!(scheduler.work().shared_batches > 0, "nobody shared a batch");
}

#[test]
fn what_one_query_leaves_of_a_batch_is_filled_by_the_next() {
    let (toy, open) = Toy::gated();
    let toy = Arc::new(toy);
    let scheduler = scheduler(&toy, 1, 8);
    thread::scope(|scope| {
        // The first call holds the only thread up while the others arrive.
        let first = scheduler.ticket();
        let account = Arc::clone(&first.account);
        scope.spawn(move || first.plain(given(0.0, 8)).unwrap());
        while account.served.load(Ordering::Relaxed) < 8 {
            thread::yield_now();
        }
        for mark in [1.0, 2.0, 3.0] {
            let ticket = scheduler.ticket();
            let before = scheduler.backlog();
            scope.spawn(move || ticket.plain(given(mark, 3)).unwrap());
            while scheduler.backlog() == before {
                thread::yield_now();
            }
        }
        (0..3).for_each(|_| open.send(()).unwrap());
    });
    let calls = toy.calls.lock().unwrap();
    assert_eq!(calls[1], [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0]);
    assert_eq!(calls[2], [3.0]);
    assert_eq!(scheduler.work().shared_batches, 1);
}

#[test]
fn a_cheap_query_overtakes_an_expensive_one_which_still_gets_its_share() {
    let (toy, open) = Toy::gated();
    let toy = Arc::new(toy);
    let scheduler = scheduler(&toy, 1, 64);
    let expensive = 6_400;
    thread::scope(|scope| {
        let ticket = scheduler.ticket();
        scope.spawn(move || ticket.plain(given(1.0, expensive)).unwrap());
        // It has had more than the first level holds before the cheap one comes.
        (0..40).for_each(|_| open.send(()).unwrap());
        while scheduler.work().batches < 40 {
            thread::yield_now();
        }
        let cheap = scheduler.ticket();
        let before = scheduler.backlog();
        scope.spawn(move || cheap.plain(given(2.0, 640)).unwrap());
        while scheduler.backlog() <= before {
            thread::yield_now();
        }
        (0..200).for_each(|_| open.send(()).unwrap());
    });
    let calls = toy.calls.lock().unwrap();
    let last_cheap = calls.iter().rposition(|call| call.contains(&2.0)).unwrap();
    let cheap_calls = calls.iter().filter(|call| call.contains(&2.0)).count();
    // Ten batches of its own, and every fourth turn is the older one's.
    assert!(cheap_calls <= 11, "{cheap_calls}");
    assert!(last_cheap <= 40 + 16, "the cheap query ended with call {last_cheap}");
    let between = &calls[41..last_cheap];
    let share = between.iter().filter(|call| call.contains(&1.0)).count();
    assert!(share >= 2, "{share} of {} calls for the expensive one", between.len());
}

#[test]
fn a_cancelled_query_leaves_the_queue_at_once() {
    let (toy, open) = Toy::gated();
    let toy = Arc::new(toy);
    let scheduler = scheduler(&toy, 1, 8);
    let ticket = Arc::new(scheduler.ticket());
    let own = Arc::clone(&ticket);
    let waiting = thread::spawn(move || own.plain(given(1.0, 10_000)));
    while scheduler.backlog() == 0 {
        thread::yield_now();
    }
    ticket.cancel();
    assert!(matches!(waiting.join().unwrap(), Err(PassError::Cancelled)));
    assert_eq!(scheduler.backlog(), 0);
    assert!(matches!(ticket.plain(given(1.0, 1)), Err(PassError::Cancelled)));
    // Whoever comes next is served after the batch that was being run.
    (0..2).for_each(|_| open.send(()).unwrap());
    assert!(scheduler.ticket().plain(given(2.0, 1)).is_ok());
    assert!(toy.calls.lock().unwrap().len() <= 2);
}

#[test]
fn nobody_fails_for_the_picture_of_another() {
    for (level, word) in [(150.0, "too bright"), (250.0, "panicked")] {
        let (toy, open) = Toy::gated();
        let toy = Arc::new(toy);
        let scheduler = scheduler(&toy, 1, 64);
        thread::scope(|scope| {
            // The first call holds the only thread up until both wait, so that they meet in one batch.
            let first = scheduler.ticket();
            let account = Arc::clone(&first.account);
            scope.spawn(move || first.plain(given(0.0, 1)).unwrap());
            while account.served.load(Ordering::Relaxed) < 1 {
                thread::yield_now();
            }
            let bad = scheduler.ticket();
            let bad = scope.spawn(move || bad.samples(&picture("bad", level), noise(), Stage::Pilot, 0..20));
            let good = scheduler.ticket();
            let good = scope.spawn(move || good.samples(&picture("good", 0.5), noise(), Stage::Pilot, 0..20));
            while scheduler.backlog() < 40 {
                thread::yield_now();
            }
            drop(open);
            let error = bad.join().unwrap().unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
            assert_eq!(good.join().unwrap().unwrap().count(), 20);
        });
        assert_eq!(scheduler.work().shared_batches, 1);
        assert!(scheduler.ticket().plain(given(1.0, 3)).is_ok(), "the thread lives on");
    }
}

#[test]
fn a_closed_queue_fails_everyone_who_waits() {
    let (toy, open) = Toy::gated();
    let toy = Arc::new(toy);
    let scheduler = scheduler(&toy, 1, 8);
    let ticket = scheduler.ticket();
    let late = scheduler.ticket();
    let waiting = thread::spawn(move || ticket.plain(given(1.0, 1_000)));
    while scheduler.backlog() == 0 {
        thread::yield_now();
    }
    thread::scope(|scope| {
        scope.spawn(|| scheduler.close());
        // Told while a batch is still being run; only then may that batch end, and the threads with it.
        assert!(matches!(waiting.join().unwrap(), Err(PassError::Closed)));
        drop(open);
    });
    assert!(matches!(late.plain(given(1.0, 1)), Err(PassError::Closed)));
}

#[test]
fn a_queued_encoder_is_the_encoder() {
    let toy = Arc::new(Toy::new());
    let scheduler = scheduler(&toy, 2, 4);
    let ticket = scheduler.ticket();
    let queued = ticket.embedder();
    let pictures: Vec<f32> = (0..4 * 9).map(|place| place as f32 / 36.0).collect();
    let (mut through, mut direct) = (vec![0.0; 18], vec![0.0; 18]);
    queued.embed(&pictures, &mut through).unwrap();
    toy.embed(&pictures, &mut direct).unwrap();
    assert_eq!(through, direct);
    ticket.cancel();
    let error = queued.embed(&pictures, &mut through).unwrap_err();
    assert!(error.to_string().contains("cancelled"), "{error}");
}
