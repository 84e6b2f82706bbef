"""Writes the small ONNX models that the tests run, with what numpy computes for one of them.

Usage: make_models.py [FOLDER], with numpy, onnx and onnxruntime installed; the models are kept beside this script.
"""

import pathlib
import struct
import sys
import tempfile

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

CHANNELS, SIDE, DIMENSION = 3, 16, 8
OPSET = [helper.make_opsetid("", 17)]


def weights(generator, name, shape):
    fan_in = int(numpy.prod(shape[1:]))
    values = generator.standard_normal(shape) * numpy.sqrt(2.0 / fan_in)
    return numpy_helper.from_array(values.astype(numpy.float32), name)


def constant(name, values, dtype=numpy.float32):
    return numpy_helper.from_array(numpy.array(values, dtype=dtype), name)


def model(name, nodes, initializers, *, batch="batch", element=TensorProto.FLOAT, output=("batch", DIMENSION)):
    pictures = helper.make_tensor_value_info("pictures", element, [batch, CHANNELS, SIDE, SIDE])
    embeddings = helper.make_tensor_value_info("embeddings", TensorProto.FLOAT, list(output))
    graph = helper.make_graph(nodes, name, [pictures], [embeddings], initializers)
    result = helper.make_model(graph, opset_imports=OPSET, producer_name="retrievalguard tests", ir_version=8)
    onnx.checker.check_model(result)
    return result


def convolutional(generator, last="embeddings"):
    """Four layers: two convolutions with ReLU and pooling, one more convolution, one matrix."""
    nodes = [
        helper.make_node("Conv", ["pictures", "w1", "b1"], ["c1"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("MaxPool", ["r1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p1", "w2", "b2"], ["c2"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("MaxPool", ["r2"], ["p2"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p2", "w3", "b3"], ["c3"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c3"], ["r3"]),
        helper.make_node("GlobalAveragePool", ["r3"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"], axis=1),
        helper.make_node("Gemm", ["flat", "w4", "b4"], [last], transB=1),
    ]
    initializers = [
        weights(generator, "w1", (8, CHANNELS, 3, 3)),
        constant("b1", numpy.linspace(-0.1, 0.1, 8)),
        weights(generator, "w2", (12, 8, 3, 3)),
        constant("b2", numpy.linspace(-0.1, 0.1, 12)),
        weights(generator, "w3", (16, 12, 3, 3)),
        constant("b3", numpy.linspace(-0.1, 0.1, 16)),
        weights(generator, "w4", (DIMENSION, 16)),
        constant("b4", numpy.linspace(-0.1, 0.1, DIMENSION)),
    ]
    return nodes, initializers


class Calibration(CalibrationDataReader):
    """Pictures on which the quantised model's ranges are measured."""

    def __init__(self, generator):
        shape = (16, CHANNELS, SIDE, SIDE)
        self.batches = iter([{"pictures": generator.random(shape, dtype=numpy.float32)} for _ in range(4)])

    def get_next(self):
        return next(self.batches, None)


def quantised(folder, source, generator):
    """Static QDQ: uint8 activations, int8 weights in 7 bits, which no processor's 16-bit sums can overflow."""
    target = folder / "int8.onnx"
    quantize_static(
        str(source),
        str(target),
        Calibration(generator),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        reduce_range=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    result = onnx.load(target)
    result.producer_name, result.producer_version = "retrievalguard tests", ""
    onnx.save(result, target)


def reference(folder, generator):
    """Pictures and what plain numpy makes of them in float64: little-endian float32, pictures first."""
    graph = onnx.load(folder / "convolutional.onnx").graph
    values = {tensor.name: numpy_helper.to_array(tensor).astype(numpy.float64) for tensor in graph.initializer}
    pictures = generator.random((3, CHANNELS, SIDE, SIDE), dtype=numpy.float32)

    def convolve(x, w, b, stride=1):
        padded = numpy.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = numpy.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        return numpy.einsum("nchwij,ocij->nohw", windows[:, :, ::stride, ::stride], w) + b[:, None, None]

    def pool(x):
        n, c, h, w = x.shape
        return x.reshape(n, c, h // 2, 2, w // 2, 2).max(axis=(3, 5))

    x = pool(numpy.maximum(convolve(pictures.astype(numpy.float64), values["w1"], values["b1"]), 0))
    x = pool(numpy.maximum(convolve(x, values["w2"], values["b2"]), 0))
    x = numpy.maximum(convolve(x, values["w3"], values["b3"], stride=2), 0).mean(axis=(2, 3))
    embeddings = (x @ values["w4"].T + values["b4"]).astype(numpy.float32)
    numbers = [*pictures.ravel(), *embeddings.ravel()]
    (folder / "convolutional.f32").write_bytes(struct.pack(f"<{len(numbers)}f", *numbers))


def dynamically_quantised(generator):
    """The scale of the pictures' eight bits is that of the whole batch: a loud companion coarsens every picture."""
    body, initializers = convolutional(generator)
    body[0].input[0] = "steps"
    quantise = [
        helper.make_node("DynamicQuantizeLinear", ["pictures"], ["levels", "scale", "zero"]),
        helper.make_node("DequantizeLinear", ["levels", "scale", "zero"], ["steps"]),
    ]
    return quantise + body, initializers


def shared_factor():
    """sign(p0 - 1/2) sign(p1 - 1/2) with the second sign taken from the first picture of the batch.

    Every embedding has the distribution that it would have alone, where the retrieval turns at p0 = 1/2 or p1 = 1/2 and the
    true radius of a picture is its distance to the nearer of the two; but the samples of a batch are not independent.
    """
    part = lambda name, numbers: constant(name, numbers, numpy.int64)
    nodes = [
        helper.make_node("Flatten", ["pictures"], ["pixels"], axis=1),
        helper.make_node("Slice", ["pixels", "zero", "one", "one"], ["own"]),
        helper.make_node("Slice", ["pixels", "one", "two", "one"], ["seconds"]),
        helper.make_node("Slice", ["seconds", "zero", "one", "zero"], ["first"]),
        helper.make_node("Sub", ["own", "half"], ["own_side"]),
        helper.make_node("Sub", ["first", "half"], ["first_side"]),
        helper.make_node("Sign", ["own_side"], ["own_sign"]),
        helper.make_node("Sign", ["first_side"], ["factor"]),
        helper.make_node("Mul", ["own_sign", "factor"], ["embeddings"]),
    ]
    return nodes, [part("zero", [0]), part("one", [1]), part("two", [2]), constant("half", [0.5])]


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
    folder.mkdir(parents=True, exist_ok=True)
    generator = numpy.random.default_rng(20240)

    nodes, initializers = convolutional(generator)
    onnx.save(model("convolutional", nodes, initializers), folder / "convolutional.onnx")
    quantised(folder, folder / "convolutional.onnx", generator)
    reference(folder, generator)

    # Always three pictures at once.
    onnx.save(model("fixed", nodes, initializers, batch=3, output=(3, DIMENSION)), folder / "fixed_batch.onnx")

    # Subtracts the mean over the batch: every output depends on its companions.
    body, initializers = convolutional(generator, last="own")
    cheat = [
        helper.make_node("ReduceMean", ["own"], ["mean"], axes=[0], keepdims=1),
        helper.make_node("Sub", ["own", "mean"], ["embeddings"]),
    ]
    onnx.save(model("batch_mean", body + cheat, initializers), folder / "batch_mean.onnx")

    # Input in half precision.
    cast = [helper.make_node("Cast", ["pictures"], ["full"], to=TensorProto.FLOAT)]
    body, initializers = convolutional(generator)
    body[0].input[0] = "full"
    half = model("float16", cast + body, initializers, element=TensorProto.FLOAT16)
    onnx.save(half, folder / "float16.onnx")

    # A map of features instead of one vector.
    body, initializers = convolutional(generator)
    body = body[:7]
    body[-1].output[0] = "embeddings"
    kept = {name for node in body for name in node.input}
    initializers = [tensor for tensor in initializers if tensor.name in kept]
    onnx.save(model("rank", body, initializers, output=("batch", 16, 2, 2)), folder / "wrong_rank.onnx")

    # Always zero: cannot be normalised.
    body, initializers = convolutional(generator, last="own")
    zero = [helper.make_node("Mul", ["own", "nothing"], ["embeddings"])]
    onnx.save(model("zero", body + zero, [*initializers, constant("nothing", [0.0])]), folder / "zero.onnx")

    # Pictures of a batch that act on each other, in two ways.
    nodes, initializers = dynamically_quantised(generator)
    onnx.save(model("dynamic", nodes, initializers), folder / "dynamic_quantised.onnx")
    nodes, initializers = shared_factor()
    onnx.save(model("shared", nodes, initializers, output=("batch", 1)), folder / "shared_factor.onnx")

    # Other numbers every time.
    body, initializers = convolutional(generator, last="own")
    lots = [
        helper.make_node("RandomNormalLike", ["own"], ["lots"], scale=0.1),
        helper.make_node("Add", ["own", "lots"], ["embeddings"]),
    ]
    onnx.save(model("random", body + lots, initializers), folder / "random.onnx")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        tempfile.tempdir = scratch
        main()
