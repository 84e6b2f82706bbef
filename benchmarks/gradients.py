"""Gradients of exported networks beside those of PyTorch: how far they differ, and what both cost.

Usage: gradients.py [--pixels 224] [--threads 1], with retrievalguard, torch, torchvision, timm, onnx and onnxscript installed.

Networks are those of torchvision and timm with random weights and lifelike statistics in their batch normalisations, exported by
both of PyTorch's exporters. The gradient is that of the product of the embedding with a random direction. Networks with kinks
(ReLU) can differ more than rounding: a number that rounds to the other side of a kink takes its whole slope along. The last
column has PyTorch's own difference between single and double precision beside it.
"""

import argparse
import logging
import pathlib
import tempfile
import time
import warnings

import numpy
import timm
import torch
import torchvision

import retrievalguard as rg

CONFIG = """[input]
channels = 3
height = {pixels}
width = {pixels}
mean = [0.485, 0.456, 0.406]
std = [0.229, 0.224, 0.225]
[resize]
rule = "shorter-side"
size = {pixels}
interpolation = "bilinear"
[crop]
rule = "centre"
[output]
normalise = false
norm_bound = 1e6
"""
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


def features(network, head):
    """The network up to its pooled features."""
    setattr(network, head, torch.nn.Identity())
    return network


NETWORKS = {
    "ResNet-18": lambda: features(torchvision.models.resnet18(), "fc"),
    "MobileNetV2": lambda: features(torchvision.models.mobilenet_v2(), "classifier"),
    "MobileNetV3": lambda: features(torchvision.models.mobilenet_v3_small(), "classifier"),
    "EfficientNet-B0": lambda: features(torchvision.models.efficientnet_b0(), "classifier"),
    "RegNetY-400MF": lambda: features(torchvision.models.regnet_y_400mf(), "fc"),
    "ViT-B/16": lambda: features(torchvision.models.vit_b_16(), "heads"),
    "timm ViT-Ti/16": lambda: timm.create_model("vit_tiny_patch16_224", num_classes=0),
    "timm EfficientNet-Lite0": lambda: timm.create_model("tf_efficientnet_lite0", num_classes=0),
    "timm ConvNeXt-A": lambda: timm.create_model("convnext_atto", num_classes=0),
}


def lifelike(network):
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.normal_(0, 0.1)
    return network.eval()


def export(network, exporter, path, pixels):
    picture = torch.rand(2, 3, pixels, pixels)
    names = {"input_names": ["pictures"], "output_names": ["embeddings"]}
    if exporter == "dynamo":
        shapes = ({0: torch.export.Dim("batch")},)
        torch.onnx.export(network, (picture,), path, dynamo=True, dynamic_shapes=shapes, verbose=False, **names)
    else:
        axes = {"pictures": {0: "batch"}, "embeddings": {0: "batch"}}
        torch.onnx.export(network, (picture,), path, dynamo=False, dynamic_axes=axes, opset_version=17, **names)


def torch_gradient(network, pixels, direction):
    pixels = pixels.clone().requires_grad_(True)
    kind = pixels.dtype
    prepared = (pixels - MEAN.to(kind)[:, None, None]) / STD.to(kind)[:, None, None]
    row = network(prepared[None])[0]
    (gradient,) = torch.autograd.grad(row @ direction.to(kind), pixels)
    return row.detach().numpy(), gradient.numpy()


def difference(found, wanted):
    return numpy.linalg.norm((found - wanted).astype("f8")) / numpy.linalg.norm(wanted.astype("f8"))


def seconds(work, times=4):
    """Processor seconds, the least of some rounds: other work on the machine counts little."""
    work()
    taken = []
    for _ in range(times):
        started = time.process_time()
        work()
        taken.append(time.process_time() - started)
    return min(taken)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pixels", type=int, default=224)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS))
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(arguments.threads)
    print("| network | exporter | embedding | gradient | PyTorch f32 to f64 | CPU seconds | PyTorch |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in arguments.networks:
        torch.manual_seed(0)
        network = lifelike(NETWORKS[name]())
        picture = torch.rand(3, arguments.pixels, arguments.pixels)
        with torch.no_grad():
            dimension = network(picture[None]).shape[1]
        direction = torch.randn(dimension)
        row, wanted = torch_gradient(network, picture, direction)
        theirs = seconds(lambda: torch_gradient(network, picture, direction))
        exact = torch_gradient(network.double(), picture.double(), direction)[1]
        network.float()
        for exporter in ("script", "dynamo"):
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / "encoder.onnx"
                export(network, exporter, str(path), arguments.pixels)
                (path.parent / "encoder.toml").write_text(CONFIG.format(pixels=arguments.pixels))
                encoder = rg.Encoder(path, threads=arguments.threads)
                embedding, gradient = encoder.gradient(picture.numpy(), direction.numpy())
                ours = seconds(lambda: encoder.gradient(picture.numpy(), direction.numpy()))
            values, slopes = difference(embedding, row), difference(gradient, wanted)
            rounding = difference(wanted, exact)
            print(
                f"| {name} | {exporter} | {values:.1e} | {slopes:.1e} | {rounding:.1e} | {ours:.3f} | {theirs:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
