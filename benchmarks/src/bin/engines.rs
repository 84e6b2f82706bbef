//! One contestant of `benchmarks/engines.py`, which starts several and gives them turns.
//!
//! ```text
//! engines bare|noisy|noisy-together|rten MODEL BATCH THREADS SAMPLES
//! ```
//!
//! `bare` is `session.run` of onnxruntime on batches that lie ready, one session per thread. `noisy` draws noise, embeds
//! and checks through `Smoother::samples`, each thread with a picture of its own; `noisy-together` puts all threads on
//! one picture; `rten` is `noisy` with the built-in engine. A line on stdin starts a round of `SAMPLES` pictures per
//! thread; pictures per second and per second of CPU time come back on stdout.

#![expect(clippy::print_stdout, reason = "the measurements are the program's output")]

use std::error::Error;
use std::io::BufRead;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use cpu_time::ProcessTime;
use ort::session::Session;
use ort::session::builder::GraphOptimizationLevel;
use ort::value::TensorRef;
use retrievalguard::noise::{ImageIdentity, NoiseStream, Stage};
use retrievalguard::{Embedder, Picture, Seed, Sigma, Smoother};
use retrievalguard_encoder::engine::{Engine, EngineOptions, OnnxEmbedder};
use retrievalguard_encoder::model_config::ModelConfig;

const SIGMA: f64 = 0.25;

type Failure = Box<dyn Error + Send + Sync>;

/// What a round is made of.
struct Sizes {
    batch: NonZeroUsize,
    threads: NonZeroUsize,
    samples: u32,
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, model, batch, threads, samples] = arguments.as_slice() else {
        return Err("usage: engines bare|noisy|noisy-together|rten MODEL BATCH THREADS SAMPLES".into());
    };
    let sizes = Sizes { batch: batch.parse()?, threads: threads.parse()?, samples: samples.parse()? };
    let model = Path::new(model);
    match kind.as_str() {
        "bare" => bare(model, &sizes),
        "noisy" => noisy(model, &sizes, Engine::Onnxruntime, Sharing::PictureEach),
        "noisy-together" => noisy(model, &sizes, Engine::Onnxruntime, Sharing::OnePicture),
        "rten" => noisy(model, &sizes, Engine::Rten, Sharing::PictureEach),
        other => Err(format!("contestant is `{other}`, wanted bare, noisy, noisy-together or rten").into()),
    }
}

/// Announces the name, then runs a round for every line on stdin.
fn serve(
    name: &str,
    sizes: &Sizes,
    mut round: impl FnMut(u32) -> Result<(), Failure>,
) -> Result<(), Failure> {
    round(u32::MAX)?;
    println!("{name}");
    let pictures = sizes.samples as usize * sizes.threads.get();
    for (turn, line) in std::io::stdin().lock().lines().enumerate() {
        line?;
        let (start, cpu) = (Instant::now(), cpu_seconds());
        round(u32::try_from(turn)?)?;
        let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
        println!("{} {}", pictures as f64 / seconds, pictures as f64 / cpu);
    }
    Ok(())
}

/// CPU time of this process so far, all its threads together.
fn cpu_seconds() -> f64 {
    ProcessTime::now().as_duration().as_secs_f64()
}

fn bare(model: &Path, sizes: &Sizes) -> Result<(), Failure> {
    let config = ModelConfig::for_model(model)?;
    let library = std::env::var("ORT_DYLIB_PATH")?;
    let environment = ort::init_from(library)?.with_telemetry(false).build()?;
    let open = || -> Result<Mutex<Session>, Failure> {
        let builder = Session::builder(&environment)?;
        let builder = builder.with_intra_threads(1).map_err(|error| error.to_string())?;
        let builder = builder.with_parallel_execution(false).map_err(|error| error.to_string())?;
        let mut builder = builder
            .with_optimization_level(GraphOptimizationLevel::All)
            .map_err(|error| error.to_string())?;
        Ok(Mutex::new(builder.commit_from_file(model)?))
    };
    let sessions = (0..sizes.threads.get()).map(|_| open()).collect::<Result<Vec<_>, _>>()?;
    let [channels, height, width] = config.picture_shape();
    let shape = [sizes.batch.get(), channels, height, width];
    let prepared = prepared(&config, sizes.batch.get())?;
    let runs = sizes.samples as usize / sizes.batch.get();
    serve("onnxruntime, bare session.run", sizes, |_| {
        thread::scope(|scope| {
            let work = |session: &Mutex<Session>| -> Result<(), Failure> {
                let mut session = session.lock().map_err(|_| "another thread failed")?;
                for _ in 0..runs {
                    let input = TensorRef::from_array_view((shape, prepared.as_slice()))?;
                    let outputs = session.run(ort::inputs![input])?;
                    std::hint::black_box(outputs[0].try_extract_tensor::<f32>()?);
                }
                Ok(())
            };
            let workers: Vec<_> = sessions.iter().map(|session| scope.spawn(move || work(session))).collect();
            workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a thread panicked")?)
        })
    })
}

/// Noisy grey pictures with mean and standard deviation applied.
fn prepared(config: &ModelConfig, batch: usize) -> Result<Vec<f32>, Failure> {
    let pixels: usize = config.picture_shape().iter().product();
    let stream = NoiseStream::new(Seed::new(1), &ImageIdentity::new("bare"), Stage::Certify);
    let (picture, mut pictures) = (vec![0.5; pixels], vec![0.0; batch * pixels]);
    for (sample, noisy) in (0..).zip(pictures.chunks_exact_mut(pixels)) {
        stream.add(sample, Sigma::new(SIGMA)?, &picture, noisy);
    }
    let (mean, std) = (config.input.mean[0] as f32, config.input.std[0] as f32);
    pictures.iter_mut().for_each(|value| *value = (*value - mean) / std);
    Ok(pictures)
}

/// How threads divide the work.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sharing {
    PictureEach,
    OnePicture,
}

fn noisy(model: &Path, sizes: &Sizes, engine: Engine, sharing: Sharing) -> Result<(), Failure> {
    let options =
        EngineOptions { engine: Some(engine), sessions: Some(sizes.threads), ..EngineOptions::default() };
    let encoder = OnnxEmbedder::open(model, ModelConfig::for_model(model)?, &options)?;
    let picture = vec![0.5; encoder.input_len()];
    let smoother = Smoother::new(&encoder, Sigma::new(SIGMA)?, Seed::new(1)).batch(sizes.batch);
    let threads = u32::try_from(sizes.threads.get())?;
    let smooth = |smoother: &Smoother<'_>, identity: &str, samples: u32| -> Result<(), Failure> {
        let picture = Picture { identity, pixels: &picture };
        std::hint::black_box(smoother.samples(&picture, Stage::Certify, 0..samples)?);
        Ok(())
    };
    let how = match sharing {
        Sharing::PictureEach => "a picture per thread",
        Sharing::OnePicture => "one picture on all threads",
    };
    let name = format!("{} {}, Smoother::samples, {how}", encoder.report().engine, encoder.report().version);
    serve(&name, sizes, |turn| match sharing {
        Sharing::OnePicture => {
            smooth(&smoother.threads(sizes.threads), &format!("{turn}"), threads * sizes.samples)
        }
        Sharing::PictureEach => thread::scope(|scope| {
            let (smooth, smoother) = (&smooth, &smoother);
            let workers: Vec<_> = (0..threads)
                .map(|thread| {
                    scope.spawn(move || smooth(smoother, &format!("{turn} {thread}"), sizes.samples))
                })
                .collect();
            workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a thread panicked")?)
        }),
    })
}
