"""Noisy embeddings through the Smoother beside bare onnxruntime and the usual PyTorch loop, in interleaved rounds.

Usage: engines.py PROGRAM FOLDER [ROUNDS], with the program `engines`; the models are written into the folder. ResNet-50 also
runs in 8 bits, quantised by onnxruntime's own tool.

Every contestant stays loaded and waits for its turn; all use the same two cores.
"""

import pathlib
import statistics
import sys
import time

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

from quantise import quantise
from worker import Worker

THREADS = 2
SIGMA = 0.25
# Name: batch size, noisy pictures per round and thread.
NETWORKS = {"small": (256, 4096), "resnet50": (8, 64)}


class Graph:
    """Collects nodes and random weights; batch normalisation counts as folded into the convolutions."""

    def __init__(self, seed):
        self.generator = numpy.random.default_rng(seed)
        self.nodes, self.initializers = [], []

    def weights(self, shape, scale):
        name = f"w{len(self.initializers)}"
        values = self.generator.standard_normal(shape) * scale
        self.initializers.append(numpy_helper.from_array(values.astype(numpy.float32), name))
        return name

    def node(self, operator, *inputs, output=None, **attributes):
        output = output or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def convolution(self, source, inputs, outputs, side, stride=1, gain=2.0):
        kernel = self.weights((outputs, inputs, side, side), numpy.sqrt(gain / (inputs * side * side)))
        bias = self.weights((outputs,), 0.05)
        pads = [side // 2] * 4
        return self.node("Conv", source, kernel, bias, kernel_shape=[side] * 2, strides=[stride] * 2, pads=pads)

    def save(self, path, shape, dimension):
        pictures = helper.make_tensor_value_info("pictures", TensorProto.FLOAT, ["batch", *shape])
        embeddings = helper.make_tensor_value_info("embeddings", TensorProto.FLOAT, ["batch", dimension])
        graph = helper.make_graph(self.nodes, path.stem, [pictures], [embeddings], self.initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model)
        onnx.save(model, path)


def small(path):
    """Four blocks of a 3×3 convolution with 64 channels, ReLU and 2×2 max pooling: 1×28×28 to 64."""
    graph = Graph(1)
    last, channels = "pictures", 1
    for _ in range(4):
        last = graph.node("Relu", graph.convolution(last, channels, 64, 3))
        last = graph.node("MaxPool", last, kernel_shape=[2, 2], strides=[2, 2])
        channels = 64
    graph.node("Flatten", last, output="embeddings", axis=1)
    graph.save(path, (1, 28, 28), 64)


def resnet50(path):
    """ResNet-50 with a head of 128: 3×224×224 to 128."""
    graph = Graph(2)
    last = graph.node("Relu", graph.convolution("pictures", 3, 64, 7, stride=2))
    last = graph.node("MaxPool", last, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for stage, blocks in enumerate([3, 4, 6, 3]):
        width = 64 << stage
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            short = graph.convolution(last, channels, 4 * width, 1, stride, gain=1.0) if block == 0 else last
            inner = graph.node("Relu", graph.convolution(last, channels, width, 1))
            inner = graph.node("Relu", graph.convolution(inner, width, width, 3, stride))
            inner = graph.convolution(inner, width, 4 * width, 1, gain=0.2)
            last = graph.node("Relu", graph.node("Add", inner, short))
            channels = 4 * width
    last = graph.node("Flatten", graph.node("GlobalAveragePool", last), axis=1)
    head = graph.weights((128, channels), numpy.sqrt(1.0 / channels))
    graph.node("Gemm", last, head, graph.weights((128,), 0.05), output="embeddings", transB=1)
    graph.save(path, (3, 224, 224), 128)


def noisy_pictures(count):
    """Grey pictures with noise, as ResNet-50 gets them."""
    generator = numpy.random.default_rng(3)
    mean, std = (numpy.float32(values).reshape(3, 1, 1) for values in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    noisy = 0.5 + SIGMA * generator.standard_normal((count, 1, 3, 224, 224), dtype=numpy.float32)
    return (noisy - mean) / std


MODEL_CONFIG = """[input]
channels = {channels}
height = {side}
width = {side}
mean = {mean}
std = {std}

[resize]
rule = "none"

[crop]
rule = "centre"

[output]
normalise = true
"""


def write_models(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for write, channels, side, mean, std in [
        (small, 1, 28, [0.1307], [0.3081]),
        (resnet50, 3, 224, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ]:
        path = folder / f"{write.__name__}.onnx"
        if not path.exists():
            write(path)
        config = MODEL_CONFIG.format(channels=channels, side=side, mean=mean, std=std)
        path.with_suffix(".toml").write_text(config)
    smaller = folder / "resnet50-int8.onnx"
    if not smaller.exists():
        quantise(path, smaller, "pictures", noisy_pictures(8))
    smaller.with_suffix(".toml").write_text(config)


class Torch:
    """The loop of smoothing research code: repeat the picture, add `randn_like`, call the model without gradients."""

    def __init__(self, folder, batch, samples):
        import torch
        from torch import nn

        torch.set_num_threads(THREADS)
        self.torch, self.batch, self.samples = torch, batch, samples
        self.name = f"PyTorch {torch.__version__.split('+')[0]} eager, {THREADS} threads"
        weights = [numpy_helper.to_array(tensor) for tensor in onnx.load(folder / "small.onnx").graph.initializer]
        layers, channels = [], 1
        for kernel, bias in zip(weights[::2], weights[1::2]):
            convolution, normalisation = nn.Conv2d(channels, 64, 3, padding=1), nn.BatchNorm2d(64)
            convolution.weight.data = torch.from_numpy(kernel.copy())
            convolution.bias.data = torch.from_numpy(bias.copy())
            layers += [convolution, normalisation, nn.ReLU(), nn.MaxPool2d(2)]
            channels = 64
        self.model = nn.Sequential(*layers, nn.Flatten()).eval()
        self.picture = torch.full((1, 28, 28), 0.5)
        self.once(batch)

    def once(self, samples):
        torch = self.torch
        with torch.no_grad():
            for _ in range(samples // self.batch):
                batch = self.picture.repeat((self.batch, 1, 1, 1))
                noise = torch.randn_like(batch) * SIGMA
                embeddings = self.model((batch + noise - 0.1307) / 0.3081)
                torch.nn.functional.normalize(embeddings)

    def round(self):
        start, cpu = time.perf_counter(), time.process_time()
        self.once(self.samples)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        return self.samples / seconds, self.samples / cpu

    def close(self):
        pass


def compare(left, right, clock):
    """Median ratio, round by round: neighbours in time share whatever else the machine does."""
    return statistics.median(one[clock] / other[clock] for one, other in zip(left, right))


def contestants(program, folder, network):
    batch, samples = NETWORKS[network]
    model = folder / f"{network}.onnx"
    workers = {}
    for kind in ["bare", "noisy", "noisy-together", "rten"]:
        # Both threads on one picture: runs of 256 samples are what they share.
        if kind == "noisy-together" and samples < 1024:
            continue
        share = samples if kind != "rten" else max(batch, samples // 4)
        workers[kind] = Worker(program, kind, model, batch, THREADS, share)
    if network == "resnet50":
        workers["int8"] = Worker(program, "noisy", folder / "resnet50-int8.onnx", batch, THREADS, samples)
        workers["int8"].name += ", int8"
    if network == "small":
        try:
            workers["torch"] = Torch(folder, batch, THREADS * samples // 4)
        except ImportError:
            print("torch is not installed: its row is left out")
    return workers


def main():
    program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 7
    write_models(folder)
    met = True
    for network in NETWORKS:
        workers = contestants(program, folder, network)
        speeds = {kind: [] for kind in workers}
        for turn in range(rounds):
            kinds = list(workers)
            for kind in kinds if turn % 2 == 0 else reversed(kinds):
                speeds[kind].append(workers[kind].round())
        print(f"{network}: batch {NETWORKS[network][0]}, {THREADS} threads, {rounds} interleaved rounds")
        for kind, found in speeds.items():
            wall = [speed for speed, _ in found]
            print(
                f"  {workers[kind].name}: {statistics.median(wall):.1f} pictures/s"
                f" (from {min(wall):.1f} to {max(wall):.1f}), {compare(found, speeds['bare'], 0):.3f} of bare,"
                f" {compare(found, speeds['bare'], 1):.3f} by CPU time"
            )
            if kind in ("noisy", "noisy-together"):
                good = compare(found, speeds["bare"], 0) >= 0.95
                met &= good
                print(f"    bar (at least 0.95 of bare): {'met' if good else 'missed'}")
            if kind == "int8":
                times, cpu = (compare(found, speeds["noisy"], clock) for clock in (0, 1))
                print(f"    {times:.2f} times the same network in 32 bits ({cpu:.2f} by CPU time)")
            if kind == "torch":
                times = compare(speeds["noisy"], found, 0)
                met &= times >= 5.0
                print(
                    f"    bar (noisy at least 5 times this): {times:.2f} times"
                    f" ({compare(speeds['noisy'], found, 1):.2f} by CPU time), {'met' if times >= 5 else 'missed'}"
                )
        for worker in workers.values():
            worker.close()
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
