"""The plain retriever under attack: the search of retrievalguard beside projected gradient descent in PyTorch.

Usage: attack.py PICTURES MODEL [--queries 50] [--sizes 0.05 0.1 0.2 0.4] [--steps 40], with retrievalguard, torch and onnx installed.

PICTURES is a folder with a folder of pictures per label, MODEL an ONNX encoder of convolutions with its encoder.toml beside it, for
instance EfficientNet-Lite0 (scripts/export_efficientnet_lite0.py). Every picture is an item; queries are spread over them and do not
see themselves. At every size both attacks have the same number of gradients, the same loss (the margin of the nearest right and
the nearest wrong item) and two threads; what they find is looked at by the same engine.
"""

import argparse
import pathlib
import time

import numpy
import onnx
import onnx.numpy_helper
import torch

import retrievalguard as rg


class Graph(torch.nn.Module):
    """The few operators of a convolutional encoder, in PyTorch; normalises its rows."""

    def __init__(self, path, mean, std):
        super().__init__()
        graph = onnx.load(path).graph
        self.nodes, self.input, self.output = list(graph.node), graph.input[0].name, graph.output[0].name
        self.constants = {}
        for tensor in graph.initializer:
            self.constants[tensor.name] = torch.from_numpy(onnx.numpy_helper.to_array(tensor).copy())
        self.mean, self.std = (torch.tensor(values)[:, None, None] for values in (mean, std))

    def forward(self, pixels):
        values = {**self.constants, self.input: (pixels - self.mean) / self.std}
        for node in self.nodes:
            inputs = [values[name] for name in node.input if name]
            settings = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
            values[node.output[0]] = self.apply_node(node.op_type, inputs, settings)
        return torch.nn.functional.normalize(values[self.output], dim=1)

    @staticmethod
    def apply_node(operator, inputs, settings):
        functional = torch.nn.functional
        if operator == "Conv":
            top, left, bottom, right = settings.get("pads", [0, 0, 0, 0])
            padded = functional.pad(inputs[0], (left, right, top, bottom))
            return functional.conv2d(padded, *inputs[1:], stride=settings.get("strides", 1), groups=settings.get("group", 1))
        if operator == "Clip":
            return inputs[0].clamp(float(inputs[1]), float(inputs[2]))
        if operator == "Relu":
            return inputs[0].relu()
        if operator == "Add":
            return inputs[0] + inputs[1]
        if operator == "GlobalAveragePool":
            return inputs[0].mean((2, 3), keepdim=True)
        if operator == "Flatten":
            return inputs[0].flatten(1)
        raise SystemExit(f"no rule for {operator}")


def margin(rows, items, right, own):
    distances = ((items - rows) ** 2).sum(1)
    distances = torch.where(own, torch.inf, distances)
    return torch.where(right, torch.inf, distances).min() - torch.where(right, distances, torch.inf).min()


def descend(network, picture, items, right, own, size, steps):
    """40-step PGD as it is usually written: unit gradients, steps of 2.5 · size / steps, projection."""
    shift = torch.zeros_like(picture)
    best, found = torch.inf, shift
    for _ in range(steps):
        shift.requires_grad_(True)
        value = margin(network((picture + shift)[None]), items, right, own)
        (gradient,) = torch.autograd.grad(value, shift)
        with torch.no_grad():
            if value < best:
                best, found = value, shift.detach()
            shift = shift - 2.5 * size / steps * gradient / gradient.norm().clamp_min(1e-20)
            shift = shift * min(1.0, size / float(shift.norm()))
    with torch.no_grad():
        value = margin(network((picture + shift)[None]), items, right, own)
        return (picture + (shift if value < best else found)).numpy()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("pictures", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--sizes", type=float, nargs="+", default=[0.05, 0.1, 0.2, 0.4])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    encoder = rg.Encoder(arguments.model, threads=arguments.threads)
    paths = sorted(path for path in arguments.pictures.glob("*/*") if path.suffix in (".jpg", ".png"))
    labels = [path.parent.name for path in paths]
    rows = encoder.embed([encoder.prepare(path) for path in paths])
    gallery = rg.Gallery(rows, labels, [str(path) for path in paths])
    mean, std = 127 / 255, 128 / 255
    network = Graph(str(arguments.model), [mean] * 3, [std] * 3).eval()
    items, names = torch.from_numpy(rows), numpy.array(labels)
    chosen = [place * len(paths) // arguments.queries for place in range(arguments.queries)]
    apart = numpy.abs(network(torch.from_numpy(encoder.prepare(paths[0]))[None]).detach().numpy() - rows[0]).max()
    print(f"{len(paths)} items; PyTorch's embedding differs from the engine's by {apart:.1e} at most")

    def holds(picture, query):
        found, _ = gallery.nearest(encoder.embed(picture), k=2)
        nearest = next(int(row) for row in numpy.ravel(found) if int(row) != query)
        return labels[nearest] == labels[query]

    right = [query for query in chosen if holds(encoder.prepare(paths[query]), query)]
    print(f"{len(right)} of {len(chosen)} queries are retrieved rightly; both attack those")
    print(f"| l2 size | retrievalguard, {arguments.steps} gradients | seconds | PyTorch PGD, {arguments.steps} steps | seconds |")
    print("| --- | --- | --- | --- | --- |")
    for size in arguments.sizes:
        broken, taken = [0, 0], [0.0, 0.0]
        for query in right:
            picture = encoder.prepare(paths[query])
            started = time.perf_counter()
            found = rg.perturb(
                encoder, picture, gallery, labels[query], size=size, exclude=query, steps=arguments.steps, restarts=1
            )
            taken[0] += time.perf_counter() - started
            positives, own = torch.from_numpy(names == labels[query]), torch.zeros(len(paths), dtype=torch.bool)
            own[query] = True
            started = time.perf_counter()
            theirs = descend(network, torch.from_numpy(picture), items, positives, own, size, arguments.steps)
            taken[1] += time.perf_counter() - started
            for place, changed in enumerate((found.picture, theirs)):
                norm = numpy.linalg.norm((changed - picture).astype("f8"))
                assert norm <= size * (1 + 1e-5), (norm, size)
                broken[place] += not holds(changed, query)
        shares, each = [count / len(right) for count in broken], [total / len(right) for total in taken]
        print(f"| {size} | {shares[0]:.2f} | {each[0]:.2f} | {shares[1]:.2f} | {each[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
