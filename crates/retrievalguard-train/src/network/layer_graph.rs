//! A network's layers as a list: written once, then run on tensors, given weights by name, or exported.

use crate::kernel::{Activation, Geometry};

/// What flows from layer to layer: which one, and its size without the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    /// 0 for the pictures, `i + 1` for what step `i` gives.
    pub(crate) index: usize,
    pub(crate) channels: usize,
    pub(crate) height: usize,
    pub(crate) width: usize,
}

/// A convolution without bias, its batch normalisation and its activation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct UnitSpec {
    /// Name of the convolution in a state dictionary.
    pub(crate) convolution: String,
    /// Name of the batch normalisation in a state dictionary.
    pub(crate) norm: String,
    /// Outputs, inputs per group, rows and columns.
    pub(crate) shape: [usize; 4],
    pub(crate) geometry: Geometry,
    /// Added to the variance.
    pub(crate) epsilon: f64,
    pub(crate) activation: Activation,
}

/// A residual layer `x − Kᵀ D relu(Kx + b)` with a square kernel and as many zeros around as keep the size.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ResidualSpec {
    /// Name in a state dictionary.
    pub(crate) name: String,
    /// Rows of `K`: channels between the two convolutions.
    pub(crate) inner: usize,
    pub(crate) channels: usize,
    /// Side of the kernel, an odd number.
    pub(crate) kernel: usize,
}

impl ResidualSpec {
    /// How both convolutions walk.
    pub(crate) fn geometry(&self) -> Geometry {
        let zeros = self.kernel / 2;
        Geometry { stride: [1; 2], padding: [(zeros, zeros); 2], groups: 1 }
    }
}

/// Orthonormal combinations of the channels, the same at every position.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProjectionSpec {
    /// Name in a state dictionary.
    pub(crate) name: String,
    /// Channels after it.
    pub(crate) outputs: usize,
    /// Channels before it, at least as many.
    pub(crate) inputs: usize,
}

/// One step; values are numbered as in [`Value`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Unit number `unit`.
    Unit { input: usize, unit: usize },
    /// The largest value of each window.
    MaxPool { input: usize, window: usize, stride: usize, padding: usize },
    /// The end of a residual block.
    Add { left: usize, right: usize, activation: Activation },
    /// Blocks of `block × block` positions become channels, as in ONNX's `SpaceToDepth`.
    SpaceToDepth { input: usize, block: usize },
    /// Zeros for channels behind those that are there.
    PadChannels { input: usize, channels: usize },
    /// Residual layer number `residual`.
    Residual { input: usize, residual: usize },
    /// Projection number `projection`.
    Projection { input: usize, projection: usize },
}

impl Step {
    /// The values that it reads.
    pub(crate) fn inputs(self) -> [usize; 2] {
        match self {
            Self::Unit { input, .. }
            | Self::MaxPool { input, .. }
            | Self::SpaceToDepth { input, .. }
            | Self::PadChannels { input, .. }
            | Self::Residual { input, .. }
            | Self::Projection { input, .. } => [input; 2],
            Self::Add { left, right, .. } => [left, right],
        }
    }
}

/// How the last value becomes one row of features per picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pooling {
    /// The mean of every channel.
    Average,
    /// All numbers, one after another.
    Flatten,
}

/// The backbone from the pictures to the features.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LayerGraph {
    pub(crate) units: Vec<UnitSpec>,
    pub(crate) residuals: Vec<ResidualSpec>,
    pub(crate) projections: Vec<ProjectionSpec>,
    pub(crate) steps: Vec<Step>,
    pub(crate) pooling: Pooling,
    values: Vec<Value>,
    /// Added to the variances of the units that follow.
    epsilon: f64,
}

/// How a unit differs from a 1 × 1 convolution with stride 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnitOptions {
    pub(crate) channels: usize,
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    pub(crate) padding: Padding,
    pub(crate) groups: usize,
    pub(crate) activation: Activation,
}

impl UnitOptions {
    pub(crate) fn new(channels: usize, kernel: usize) -> Self {
        let (padding, activation) = (Padding::Half, Activation::Relu);
        Self { channels, kernel, stride: 1, padding, groups: 1, activation }
    }
}

/// Zeros around a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Padding {
    /// Half a kernel on every side: PyTorch's habit.
    Half,
    /// As few as give `⌈side / stride⌉`, an odd one behind: TensorFlow's `SAME`.
    Same,
}

impl Padding {
    /// Zeros before and after a side, and its length after the convolution.
    fn along(self, side: usize, kernel: usize, stride: usize) -> ((usize, usize), usize) {
        match self {
            Self::Half => {
                let zeros = kernel / 2;
                ((zeros, zeros), (side + 2 * zeros - kernel) / stride + 1)
            }
            Self::Same => {
                let after = side.div_ceil(stride);
                let zeros = ((after - 1) * stride + kernel).saturating_sub(side);
                ((zeros / 2, zeros - zeros / 2), after)
            }
        }
    }
}

impl LayerGraph {
    /// Nothing but pictures of `[channels, height, width]`.
    pub(crate) fn new([channels, height, width]: [usize; 3], epsilon: f64, pooling: Pooling) -> Self {
        let pictures = Value { index: 0, channels, height, width };
        Self {
            units: Vec::new(),
            residuals: Vec::new(),
            projections: Vec::new(),
            steps: Vec::new(),
            pooling,
            values: vec![pictures],
            epsilon,
        }
    }

    /// The pictures.
    pub(crate) fn pictures(&self) -> Value {
        self.values[0]
    }

    /// The last value.
    pub(crate) fn last(&self) -> Value {
        self.values[self.steps.len()]
    }

    /// A value by its number.
    pub(crate) fn value(&self, index: usize) -> Value {
        self.values[index]
    }

    /// Number of features after the pooling.
    pub(crate) fn features(&self) -> usize {
        let Value { channels, height, width, .. } = self.last();
        match self.pooling {
            Pooling::Average => channels,
            Pooling::Flatten => channels * height * width,
        }
    }

    /// For every value, the last step that reads it.
    pub(crate) fn last_uses(&self) -> Vec<usize> {
        let mut uses = vec![self.steps.len(); self.values.len()];
        for (step, index) in
            self.steps.iter().enumerate().flat_map(|(at, step)| step.inputs().map(|i| (at, i)))
        {
            uses[index] = step;
        }
        uses
    }

    /// Appends a convolution with its batch normalisation and activation.
    pub(crate) fn unit(
        &mut self,
        input: Value,
        convolution: String,
        norm: String,
        options: UnitOptions,
    ) -> Value {
        let UnitOptions { channels, kernel, stride, padding, groups, activation } = options;
        let (rows, height) = padding.along(input.height, kernel, stride);
        let (columns, width) = padding.along(input.width, kernel, stride);
        let unit = self.units.len();
        self.units.push(UnitSpec {
            convolution,
            norm,
            shape: [channels, input.channels / groups, kernel, kernel],
            geometry: Geometry { stride: [stride; 2], padding: [rows, columns], groups },
            epsilon: self.epsilon,
            activation,
        });
        self.push(Step::Unit { input: input.index, unit }, channels, height, width)
    }

    /// Appends a pooling.
    pub(crate) fn max_pool(&mut self, input: Value, window: usize, stride: usize, padding: usize) -> Value {
        let after = |side: usize| (side + 2 * padding - window) / stride + 1;
        let step = Step::MaxPool { input: input.index, window, stride, padding };
        self.push(step, input.channels, after(input.height), after(input.width))
    }

    /// Appends the sum of two values of one size.
    pub(crate) fn add(&mut self, left: Value, right: Value, activation: Activation) -> Value {
        let Value { channels, height, width, .. } = left;
        let step = Step::Add { left: left.index, right: right.index, activation };
        self.push(step, channels, height, width)
    }

    /// Appends a rearrangement of blocks into channels; they must fill the plane.
    pub(crate) fn space_to_depth(&mut self, input: Value, block: usize) -> Value {
        let Value { index, channels, height, width } = input;
        let step = Step::SpaceToDepth { input: index, block };
        self.push(step, channels * block * block, height / block, width / block)
    }

    /// Appends channels of zeros.
    pub(crate) fn pad_channels(&mut self, input: Value, channels: usize) -> Value {
        let step = Step::PadChannels { input: input.index, channels };
        self.push(step, channels, input.height, input.width)
    }

    /// Appends a residual layer.
    pub(crate) fn residual(&mut self, input: Value, name: String, inner: usize, kernel: usize) -> Value {
        let Value { index, channels, height, width } = input;
        let residual = self.residuals.len();
        self.residuals.push(ResidualSpec { name, inner, channels, kernel });
        self.push(Step::Residual { input: index, residual }, channels, height, width)
    }

    /// Appends orthonormal combinations of the channels.
    pub(crate) fn projection(&mut self, input: Value, name: String, outputs: usize) -> Value {
        let projection = self.projections.len();
        self.projections.push(ProjectionSpec { name, outputs, inputs: input.channels });
        let step = Step::Projection { input: input.index, projection };
        self.push(step, outputs, input.height, input.width)
    }

    fn push(&mut self, step: Step, channels: usize, height: usize, width: usize) -> Value {
        self.steps.push(step);
        let value = Value { index: self.steps.len(), channels, height, width };
        self.values.push(value);
        value
    }
}
