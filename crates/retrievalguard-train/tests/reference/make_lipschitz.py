"""Writes what PyTorch computes for a tiny Lipschitz encoder and for a distillation: values and gradients.

Usage, with torch installed:

    python3 tests/reference/make_lipschitz.py

writes `lipschitz.json` and `distillation.json` beside this script. Made once with torch 2.15.0, in 64-bit floats; all
weights, pictures and noise are multiples of 1/64, so that both sides begin with the same bits.

- `lipschitz.json`: space-to-depth, zeros for channels, residual layers `x - 2 K^T T^-1 relu(Kx + b)` with
  `T_i = sum_j |K K^T|_ij q_j/q_i`, a projection, an orthonormal head by Cholesky; the certified-radius loss of the rows
  and its gradients with respect to every tensor; the same loss and gradient of rows alone.
- `distillation.json`: a four-block encoder with running statistics, the rows of clean pictures as teacher and of noisy ones
  as student; the mean squared distance and its gradients.
"""

import json
import pathlib

import numpy
import torch
from torch.nn import functional

FOLDER = pathlib.Path(__file__).parent
generator = numpy.random.default_rng(20231)
torch.set_default_dtype(torch.float64)


def numbers(*shape, spread=48):
    return torch.from_numpy(generator.integers(-spread, spread + 1, shape) / 64.0)


def listed(tensor):
    return [float(f"{value:.9g}") for value in tensor.detach().flatten().tolist()]


def exact(tensor):
    """Multiples of 1/64 as whole numbers."""
    return [round(64 * value) for value in tensor.detach().flatten().tolist()]


def residual(x, weight, bias, balance):
    reach = weight.shape[-1] - 1
    correlations = functional.conv2d(weight, weight, padding=reach).abs().sum((2, 3))
    q = balance.exp()
    sums = (correlations * q[None, :] / q[:, None]).sum(1)
    inner = torch.relu(functional.conv2d(x, weight, bias, padding=1)) * (2 / sums)[None, :, None, None]
    return x - functional.conv_transpose2d(inner, weight, padding=1)


def space_to_depth(x, block):
    pictures, channels, height, width = x.shape
    x = x.reshape(pictures, channels, height // block, block, width // block, block)
    return x.permute(0, 3, 5, 1, 2, 4).reshape(pictures, -1, height // block, width // block)


def orthonormal(matrix):
    factor = torch.linalg.cholesky(matrix @ matrix.T)
    return torch.linalg.solve_triangular(factor, matrix, upper=False)


def radius_loss(rows, labels, rho, tau):
    losses = []
    for query, label in enumerate(labels):
        positives = [at for at, other in enumerate(labels) if other == label and at != query]
        negatives = [at for at, other in enumerate(labels) if other != label]
        if not positives or not negatives:
            continue
        h = rows[query]
        short = []
        for b in negatives:
            reach = [
                ((h - rows[b]).square().sum() - (h - rows[a]).square().sum()) / (2 * (rows[a] - rows[b]).norm())
                for a in positives
            ]
            short.append((rho - tau * torch.logsumexp(torch.stack(reach) / tau, 0)) / tau)
        losses.append(tau * functional.softplus(torch.logsumexp(torch.stack(short), 0)))
    return torch.stack(losses).mean()


def lipschitz():
    labels = [0, 0, 0, 1, 1, 1, 2, 3, 3]
    tensors = {
        "stages.0.layers.0.weight": numbers(5, 6, 3, 3),
        "stages.0.layers.0.bias": numbers(5),
        "stages.0.layers.0.balance": numbers(5),
        "stages.1.layers.0.weight": numbers(3, 24, 3, 3),
        "stages.1.layers.0.bias": numbers(3),
        "stages.1.layers.0.balance": numbers(3),
        "stages.2.projection.weight": numbers(10, 24),
        "head.weight": numbers(4, 40),
    }
    pictures = numbers(len(labels), 1, 8, 8, spread=64).abs()
    for tensor in tensors.values():
        tensor.requires_grad_(True)
    x = space_to_depth(pictures, 2)
    x = torch.cat([x, torch.zeros(len(labels), 2, 4, 4)], 1)
    x = residual(x, *[tensors[f"stages.0.layers.0.{part}"] for part in ("weight", "bias", "balance")])
    x = space_to_depth(x, 2)
    x = residual(x, *[tensors[f"stages.1.layers.0.{part}"] for part in ("weight", "bias", "balance")])
    x = torch.einsum("oc,nchw->nohw", orthonormal(tensors["stages.2.projection.weight"]), x)
    rows = x.flatten(1) @ orthonormal(tensors["head.weight"]).T
    loss = radius_loss(rows, labels, 1.0, 0.25)
    loss.backward()
    alone = (3 * numbers(len(labels), 4)).requires_grad_(True)
    alone_loss = radius_loss(alone, labels, 0.75, 0.5)
    alone_loss.backward()
    return {
        "labels": labels,
        "pictures": exact(pictures),
        "tensors": {name: exact(tensor) for name, tensor in tensors.items()},
        "rows": listed(rows),
        "loss": loss.item(),
        "gradients": {name: listed(tensor.grad) for name, tensor in tensors.items()},
        "alone": {
            "rho": 0.75,
            "tau": 0.5,
            "rows": exact(alone),
            "loss": alone_loss.item(),
            "gradient": listed(alone.grad),
        },
    }


def distillation():
    width, dimension, pictures = 3, 4, 5
    tensors = {}
    channels = 1
    for block in range(4):
        tensors[f"blocks.{block}.convolution.weight"] = numbers(width, channels, 3, 3)
        tensors[f"blocks.{block}.norm.weight"] = 1 + numbers(width, spread=16)
        tensors[f"blocks.{block}.norm.bias"] = numbers(width, spread=16)
        tensors[f"blocks.{block}.norm.running_mean"] = numbers(width, spread=16)
        tensors[f"blocks.{block}.norm.running_var"] = 1 + numbers(width, spread=16)
        channels = width
    tensors["head.weight"] = numbers(dimension, width)
    tensors["head.bias"] = numbers(dimension, spread=16)

    def rows(x, tensors):
        x = (x - 0.5) / 0.5
        for block in range(4):
            name = f"blocks.{block}"
            x = functional.conv2d(x, tensors[f"{name}.convolution.weight"], padding=1)
            parts = [tensors[f"{name}.norm.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
            x = functional.max_pool2d(torch.relu(functional.batch_norm(x, *parts, eps=1e-5)), 2)
        return functional.normalize(functional.linear(x.flatten(1), tensors["head.weight"], tensors["head.bias"]))

    clean = numbers(pictures, 1, 16, 16, spread=64).abs()
    noise = numbers(pictures, 1, 16, 16, spread=16)
    teacher = rows(clean, tensors)
    learnt = {name: tensor.clone().requires_grad_("running" not in name) for name, tensor in tensors.items()}
    loss = (rows(clean + noise, learnt) - teacher).square().sum(1).mean()
    loss.backward()
    return {
        "clean": exact(clean),
        "noise": exact(noise),
        "tensors": {name: exact(tensor) for name, tensor in tensors.items()},
        "teacher": listed(teacher),
        "loss": loss.item(),
        "gradients": {name: listed(tensor.grad) for name, tensor in learnt.items() if tensor.grad is not None},
    }


for name, content in [("lipschitz", lipschitz()), ("distillation", distillation())]:
    text = json.dumps(content, separators=(",", ":"))
    (FOLDER / f"{name}.json").write_text(text + "\n")
