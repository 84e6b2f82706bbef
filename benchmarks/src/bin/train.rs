//! One contestant of `benchmarks/train.py`, which starts several and gives them turns.
//!
//! ```text
//! train plain|ours|libtorch-plain|libtorch small|efficientnet-lite0|resnet18 BATCH STEPS
//! train ours|libtorch lipschitz|distillation BATCH STEPS
//! ```
//!
//! A step is forward, backward and Adam. `plain` builds the layers from burn's own operations, `ours` from
//! `retrievalguard_train::kernel`, both on burn's flex backend; `libtorch-plain` and `libtorch` are the same two on
//! libtorch. A line on stdin starts a round of `STEPS` steps; steps per second, steps per second of CPU time and Adam's
//! share of the time come back on stdout.

#![expect(clippy::print_stdout, reason = "the measurements are the program's output")]

use std::cell::Cell;
use std::error::Error;
use std::io::BufRead;
use std::time::Instant;

use burn::module::{Module, Param};
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::module::{adaptive_avg_pool2d, batch_norm_train, conv2d, max_pool2d};
use burn::tensor::ops::{ConvOptions, MaxPoolOptions};
use burn::tensor::{Device, Tensor, TensorData};
use cpu_time::ProcessTime;
use retrievalguard::Seed;
use retrievalguard_train::backend::Backend;
use retrievalguard_train::kernel::{self, Activation, Geometry};
use retrievalguard_train::loss::{CertifiedRadiusLoss, distillation_loss};
use retrievalguard_train::network::{Architecture, HeadKind, NetworkConfig, PictureSize};

type Failure = Box<dyn Error + Send + Sync>;

/// Length of an embedding.
const DIMENSION: usize = 64;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [contestant, network, batch, steps] = arguments.as_slice() else {
        return Err("usage: train CONTESTANT NETWORK BATCH STEPS".into());
    };
    let (arithmetic, backend) = match contestant.as_str() {
        "plain" => (Arithmetic::Plain, Backend::Cpu),
        "ours" => (Arithmetic::Ours, Backend::Cpu),
        "libtorch-plain" => (Arithmetic::Plain, Backend::Libtorch),
        "libtorch" => (Arithmetic::Ours, Backend::Libtorch),
        other => {
            return Err(
                format!("contestant is `{other}`, wanted plain, ours, libtorch-plain or libtorch").into()
            );
        }
    };
    let network = match network.as_str() {
        "small" => Network::Small,
        "efficientnet-lite0" => Network::EfficientNetLite0,
        "resnet18" => Network::ResNet18,
        "lipschitz" => {
            let training = LipschitzTraining::new(batch.parse()?, &backend.device()?.autodiff())?;
            return measure(training, contestant, steps.parse()?);
        }
        "distillation" => {
            let training = Distillation::new(batch.parse()?, &backend.device()?)?;
            return measure(training, contestant, steps.parse()?);
        }
        other => return Err(format!("network is `{other}`").into()),
    };
    let training = Training::new(network, arithmetic, batch.parse()?, &backend.device()?.autodiff());
    measure(training, contestant, steps.parse()?)
}

/// Something that learns step by step.
trait Learns {
    /// One step; its loss and the seconds that the optimiser took.
    fn step(&mut self) -> (f32, f64);
}

/// Takes so many steps for every line of the input, and prints how fast.
fn measure(mut training: impl Learns, contestant: &str, steps: usize) -> Result<(), Failure> {
    training.step();
    println!("burn, {contestant}");
    for line in std::io::stdin().lock().lines() {
        line?;
        let (start, cpu) = (Instant::now(), cpu_seconds());
        let (mut adam, mut last) = (0.0, None);
        for _ in 0..steps {
            let (loss, seconds) = training.step();
            adam += seconds;
            last = Some(loss);
        }
        let loss = last.ok_or("no steps")?;
        let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu);
        let steps = steps as f64;
        println!("{} {} {} {loss}", steps / seconds, steps / cpu, adam / seconds);
    }
    Ok(())
}

/// CPU time of this process so far, all its threads together.
fn cpu_seconds() -> f64 {
    ProcessTime::now().as_duration().as_secs_f64()
}

/// A network, its optimiser and one batch that it sees again and again.
struct Training {
    network: Network,
    arithmetic: Arithmetic,
    weights: Weights,
    optimiser: ModuleOptimizer,
    pictures: Tensor<4>,
    targets: Tensor<2>,
}

impl Training {
    fn new(network: Network, arithmetic: Arithmetic, batch: usize, device: &Device) -> Self {
        let [channels, side] = network.picture();
        let random = Random::default();
        let pictures = random.tensor([batch, channels, side, side], 1.0, device);
        let targets = random.tensor([batch, DIMENSION], 0.1, device);
        // A first pass over one picture finds out which weights there are.
        let weights = Weights { kernels: vec![], scales: vec![], shifts: vec![], head: None };
        let layers = Layers::new(&weights, Arithmetic::Ours, &random, device);
        network.forward(&layers, pictures.clone().narrow(0, 0, 1));
        let weights = layers.into_weights();
        let optimiser = AdamConfig::new().init();
        Self { network, arithmetic, weights, optimiser, pictures, targets }
    }
}

impl Learns for Training {
    /// The loss is the squared distance to the targets.
    fn step(&mut self) -> (f32, f64) {
        let (random, device) = (Random::default(), self.pictures.device());
        let layers = Layers::new(&self.weights, self.arithmetic, &random, &device);
        let embeddings = self.network.forward(&layers, self.pictures.clone());
        let difference = embeddings - self.targets.clone();
        let loss = (difference.clone() * difference).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &self.weights);
        let start = Instant::now();
        self.weights = self.optimiser.step(1e-3, self.weights.clone(), gradients);
        (loss.into_scalar(), start.elapsed().as_secs_f64())
    }
}

/// The Lipschitz encoder of `train --preset lipschitz` by its certified radius, pictures of six to a class.
struct LipschitzTraining {
    network: Option<retrievalguard_train::Network>,
    optimiser: ModuleOptimizer,
    pictures: Tensor<4>,
    labels: Vec<u32>,
}

impl LipschitzTraining {
    fn new(batch: usize, device: &Device) -> Result<Self, Failure> {
        let picture = PictureSize { channels: 3, height: 32, width: 32 };
        let config =
            NetworkConfig { dimension: DIMENSION, ..NetworkConfig::new(Architecture::Lipschitz, picture) };
        let network = Some(retrievalguard_train::Network::new(&config, Seed::new(1), device)?);
        let pictures = Random::default().tensor([batch, 3, 32, 32], 1.0, device);
        let labels = (0..batch as u32).map(|place| place / 6).collect();
        Ok(Self { network, optimiser: AdamConfig::new().init(), pictures, labels })
    }
}

impl Learns for LipschitzTraining {
    fn step(&mut self) -> (f32, f64) {
        let network = self.network.take().expect("a step puts the network back");
        let rows = network.forward(self.pictures.clone());
        let loss = CertifiedRadiusLoss { rho: 1.0, tau: 0.25 }.forward(rows, &self.labels).total;
        let gradients = GradientsParams::from_grads(loss.backward(), &network);
        let start = Instant::now();
        self.network = Some(self.optimiser.step(1e-3, network, gradients));
        (loss.into_scalar(), start.elapsed().as_secs_f64())
    }
}

/// `train --preset distillation` at 112 pixels: the teacher's rows of clean pictures, then a step of the student on noisy ones.
struct Distillation {
    teacher: retrievalguard_train::Network,
    student: Option<retrievalguard_train::Network>,
    optimiser: ModuleOptimizer,
    clean: Tensor<4>,
    noisy: Tensor<4>,
}

impl Distillation {
    /// `device` is without gradients.
    fn new(batch: usize, device: &Device) -> Result<Self, Failure> {
        let picture = PictureSize { channels: 3, height: 112, width: 112 };
        let config = NetworkConfig {
            dimension: 1280,
            head: HeadKind::None,
            ..NetworkConfig::new(Architecture::EfficientnetLite0, picture)
        };
        let network =
            |seed, device: &Device| retrievalguard_train::Network::new(&config, Seed::new(seed), device);
        let learning = device.clone().autodiff();
        let shape = [batch, 3, 112, 112];
        let clean = Random::default().tensor(shape, 1.0, device);
        let noise = Random(Cell::new(2)).tensor(shape, 0.5, &learning);
        let noisy = Random::default().tensor(shape, 1.0, &learning) + noise;
        let (teacher, student) = (network(1, device)?, Some(network(2, &learning)?));
        Ok(Self { teacher, student, optimiser: AdamConfig::new().init(), clean, noisy })
    }
}

impl Learns for Distillation {
    fn step(&mut self) -> (f32, f64) {
        let wanted = self.teacher.forward(self.clean.clone());
        let student = self.student.take().expect("a step puts the student back");
        let loss = distillation_loss(student.forward(self.noisy.clone()), wanted.autodiff());
        let gradients = GradientsParams::from_grads(loss.backward(), &student);
        let start = Instant::now();
        self.student = Some(self.optimiser.step(1e-3, student, gradients));
        (loss.into_scalar(), start.elapsed().as_secs_f64())
    }
}

/// Everything that is learned, in the order in which the layers ask for it.
#[derive(Module, Debug)]
struct Weights {
    kernels: Vec<Param<Tensor<4>>>,
    scales: Vec<Param<Tensor<1>>>,
    shifts: Vec<Param<Tensor<1>>>,
    head: Option<Param<Tensor<2>>>,
}

/// Whose operations make up the layers.
#[derive(Clone, Copy)]
enum Arithmetic {
    Plain,
    Ours,
}

/// Repeatable values.
struct Random(Cell<u64>);

impl Default for Random {
    fn default() -> Self {
        Self(Cell::new(1))
    }
}

impl Random {
    fn tensor<const D: usize>(&self, shape: [usize; D], scale: f32, device: &Device) -> Tensor<D> {
        let next = || {
            let state =
                self.0.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            self.0.set(state);
            ((state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0) * scale
        };
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| next()).collect();
        Tensor::from_data(TensorData::new(values, shape), device)
    }
}

/// Hands out the weights layer by layer; makes them up if there are none yet.
struct Layers<'a> {
    weights: &'a Weights,
    arithmetic: Arithmetic,
    random: &'a Random,
    device: &'a Device,
    made: Cell<Weights>,
    convolutions: Cell<usize>,
    normalisations: Cell<usize>,
}

impl<'a> Layers<'a> {
    fn new(weights: &'a Weights, arithmetic: Arithmetic, random: &'a Random, device: &'a Device) -> Self {
        let made = Weights { kernels: vec![], scales: vec![], shifts: vec![], head: None };
        let (made, zero) = (Cell::new(made), || Cell::new(0));
        Self { weights, arithmetic, random, device, made, convolutions: zero(), normalisations: zero() }
    }

    fn into_weights(self) -> Weights {
        self.made.into_inner()
    }

    fn make<T>(&self, made: impl FnOnce(&mut Weights) -> T) -> T {
        let mut weights =
            self.made.replace(Weights { kernels: vec![], scales: vec![], shifts: vec![], head: None });
        let value = made(&mut weights);
        self.made.set(weights);
        value
    }

    fn convolution(
        &self,
        input: Tensor<4>,
        outputs: usize,
        side: usize,
        stride: usize,
        groups: usize,
    ) -> Tensor<4> {
        let index = self.convolutions.replace(self.convolutions.get() + 1);
        let inputs = input.dims()[1] / groups;
        let weight = self.weights.kernels.get(index).map(Param::val).unwrap_or_else(|| {
            let scale = (6.0 / (inputs * side * side) as f32).sqrt();
            let weight =
                Param::from_tensor(self.random.tensor([outputs, inputs, side, side], scale, self.device));
            let value = weight.val();
            self.make(|made| made.kernels.push(weight));
            value
        });
        let (stride, padding) = ([stride; 2], [(side / 2, side / 2); 2]);
        match self.arithmetic {
            Arithmetic::Ours => kernel::convolution(input, weight, Geometry { stride, padding, groups }),
            Arithmetic::Plain => {
                conv2d(input, weight, None, ConvOptions::new_with_padding(stride, padding, [1, 1], groups))
            }
        }
    }

    fn affine(&self, channels: usize) -> (Tensor<1>, Tensor<1>) {
        let index = self.normalisations.replace(self.normalisations.get() + 1);
        match (self.weights.scales.get(index), self.weights.shifts.get(index)) {
            (Some(scale), Some(shift)) => (scale.val(), shift.val()),
            _ => {
                let scale = Param::from_tensor(Tensor::ones([channels], self.device));
                let shift = Param::from_tensor(Tensor::zeros([channels], self.device));
                let values = (scale.val(), shift.val());
                self.make(|made| {
                    made.scales.push(scale);
                    made.shifts.push(shift);
                });
                values
            }
        }
    }

    /// Batch normalisation with frozen statistics: mean 0, variance 1.
    fn frozen(&self, input: Tensor<4>, activation: Activation) -> Tensor<4> {
        let channels = input.dims()[1];
        let (gamma, beta) = self.affine(channels);
        let (mean, variance) =
            (Tensor::<1>::zeros([channels], self.device), Tensor::<1>::ones([channels], self.device));
        let scale = gamma / (variance + 1e-3).sqrt();
        let shift = beta - mean * scale.clone();
        match self.arithmetic {
            Arithmetic::Ours => kernel::scale_shift(input, scale, shift, activation),
            Arithmetic::Plain => {
                let shape = [1, channels, 1, 1];
                activation.apply(input * scale.reshape(shape) + shift.reshape(shape))
            }
        }
    }

    /// Batch normalisation with the statistics of the batch.
    fn normalise(&self, input: Tensor<4>, activation: Activation) -> Tensor<4> {
        let (scale, shift) = self.affine(input.dims()[1]);
        match self.arithmetic {
            Arithmetic::Ours => kernel::normalise(input, scale, shift, 1e-5, activation).output,
            Arithmetic::Plain => activation.apply(batch_norm_train(input, scale, shift, 1e-5).output),
        }
    }

    fn add(&self, left: Tensor<4>, right: Tensor<4>, activation: Activation) -> Tensor<4> {
        match self.arithmetic {
            Arithmetic::Ours => kernel::add(left, right, activation),
            Arithmetic::Plain => activation.apply(left + right),
        }
    }

    fn max_pool(&self, input: Tensor<4>, window: usize, stride: usize, padding: usize) -> Tensor<4> {
        match self.arithmetic {
            Arithmetic::Ours => kernel::max_pool(input, window, stride, padding),
            Arithmetic::Plain => {
                let options = MaxPoolOptions {
                    stride: [stride; 2],
                    padding: [(padding, padding); 2],
                    ..MaxPoolOptions::new([window; 2])
                };
                max_pool2d(input, options)
            }
        }
    }

    /// Mean over the positions, a linear map, length one.
    fn embedding(&self, input: Tensor<4>) -> Tensor<2> {
        let [pictures, channels, height, width] = input.dims();
        let pooled = if height * width > 1 { adaptive_avg_pool2d(input, [1, 1]) } else { input };
        let head = self.weights.head.as_ref().map(Param::val).unwrap_or_else(|| {
            let scale = (3.0 / channels as f32).sqrt();
            let head = Param::from_tensor(self.random.tensor([channels, DIMENSION], scale, self.device));
            let value = head.val();
            self.make(|made| made.head = Some(head));
            value
        });
        let embedding = pooled.reshape([pictures, channels]).matmul(head);
        let length = (embedding.clone() * embedding.clone()).sum_dim(1).sqrt();
        embedding / (length + 1e-12)
    }
}

#[derive(Clone, Copy)]
enum Network {
    Small,
    EfficientNetLite0,
    ResNet18,
}

impl Network {
    /// Channels and side.
    fn picture(self) -> [usize; 2] {
        match self {
            Self::Small => [1, 28],
            Self::EfficientNetLite0 => [3, 112],
            Self::ResNet18 => [3, 224],
        }
    }

    fn forward(self, layers: &Layers<'_>, pictures: Tensor<4>) -> Tensor<2> {
        match self {
            Self::Small => small(layers, pictures),
            Self::EfficientNetLite0 => efficientnet_lite0(layers, pictures),
            Self::ResNet18 => resnet18(layers, pictures),
        }
    }
}

/// Four times: 3 × 3 convolution with 64 channels, batch normalisation, ReLU, 2 × 2 max pooling.
fn small(layers: &Layers<'_>, pictures: Tensor<4>) -> Tensor<2> {
    let last = (0..4).fold(pictures, |input, _| {
        let input = layers.normalise(layers.convolution(input, 64, 3, 1, 1), Activation::Relu);
        layers.max_pool(input, 2, 2, 0)
    });
    layers.embedding(last)
}

/// EfficientNet-Lite0 with frozen batch normalisation.
fn efficientnet_lite0(layers: &Layers<'_>, pictures: Tensor<4>) -> Tensor<2> {
    let mut last = layers.frozen(layers.convolution(pictures, 32, 3, 2, 1), Activation::Relu6);
    // Expansion, channels, blocks, stride, side of the kernel.
    for (expansion, channels, blocks, stride, side) in [
        (1, 16, 1, 1, 3),
        (6, 24, 2, 2, 3),
        (6, 40, 2, 2, 5),
        (6, 80, 3, 2, 3),
        (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    ] {
        for block in 0..blocks {
            let stride = if block == 0 { stride } else { 1 };
            let inputs = last.dims()[1];
            let inner = inputs * expansion;
            let mut x = last.clone();
            if expansion > 1 {
                x = layers.frozen(layers.convolution(x, inner, 1, 1, 1), Activation::Relu6);
            }
            x = layers.frozen(layers.convolution(x, inner, side, stride, inner), Activation::Relu6);
            x = layers.frozen(layers.convolution(x, channels, 1, 1, 1), Activation::Identity);
            last =
                if stride == 1 && inputs == channels { layers.add(x, last, Activation::Identity) } else { x };
        }
    }
    last = layers.frozen(layers.convolution(last, 1280, 1, 1, 1), Activation::Relu6);
    layers.embedding(last)
}

/// ResNet-18 with the statistics of the batch.
fn resnet18(layers: &Layers<'_>, pictures: Tensor<4>) -> Tensor<2> {
    let stem = layers.normalise(layers.convolution(pictures, 64, 7, 2, 1), Activation::Relu);
    let mut last = layers.max_pool(stem, 3, 2, 1);
    for (channels, stride) in [(64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)] {
        let x = layers.normalise(layers.convolution(last.clone(), channels, 3, stride, 1), Activation::Relu);
        let x = layers.normalise(layers.convolution(x, channels, 3, 1, 1), Activation::Identity);
        let short = if stride == 1 {
            last
        } else {
            layers.normalise(layers.convolution(last, channels, 1, stride, 1), Activation::Identity)
        };
        last = layers.add(x, short, Activation::Relu);
    }
    layers.embedding(last)
}
