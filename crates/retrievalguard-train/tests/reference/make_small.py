"""Writes a tiny four-block encoder in PyTorch's formats, with what PyTorch computes from it.

Usage, with torch installed:

    python3 tests/reference/make_small.py

writes beside this script

- `small.pth`: a state dictionary in the zip format,
- `small-legacy.pth`: the same in the format before PyTorch 1.6,
- `small-wrapped.pth`: the same as a checkpoint of a parallel training, in double precision,
- `small.json`: embeddings with the running statistics and the gradient of a loss, then embeddings with the statistics
  of the batch and the running statistics after it.
"""

import collections
import json
import pathlib

import torch

CHANNELS, SIDE, WIDTH, DIMENSION, PICTURES = 1, 16, 2, 3, 4
FOLDER = pathlib.Path(__file__).parent


class Block(torch.nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.convolution = torch.nn.Conv2d(channels, WIDTH, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(WIDTH)

    def forward(self, values):
        return torch.nn.functional.max_pool2d(torch.relu(self.norm(self.convolution(values))), 2)


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.Sequential(Block(CHANNELS), Block(WIDTH), Block(WIDTH), Block(WIDTH))
        self.head = torch.nn.Linear(WIDTH * (SIDE // 16) ** 2, DIMENSION)

    def forward(self, pictures):
        return torch.nn.functional.normalize(self.head(self.blocks(pictures).flatten(1)), eps=1e-12)


torch.manual_seed(20)
encoder = Encoder()
with torch.no_grad():
    for block in encoder.blocks:
        block.norm.weight.uniform_(0.5, 1.5)
        block.norm.bias.uniform_(0.0, 0.5)
        block.norm.running_mean.normal_(0.0, 0.2)
        block.norm.running_var.uniform_(0.1, 0.5)

state = collections.OrderedDict(encoder.state_dict())
torch.save(state, FOLDER / "small.pth")
torch.save(state, FOLDER / "small-legacy.pth", _use_new_zipfile_serialization=False)
double = {f"module.{name}": values.double() if values.is_floating_point() else values for name, values in state.items()}
torch.save({"epoch": 3, "state_dict": double, "optimizer": {"step": torch.ones(2)}}, FOLDER / "small-wrapped.pth")

pixels = [number * 37 % 101 / 100 for number in range(PICTURES * CHANNELS * SIDE * SIDE)]
pictures = torch.tensor(pixels).reshape(PICTURES, CHANNELS, SIDE, SIDE)
factors = torch.arange(PICTURES * DIMENSION).reshape(PICTURES, DIMENSION) % 5 - 2.0


def gradients(embeddings):
    encoder.zero_grad()
    (embeddings * factors).sum().backward()
    return {name: parameter.grad.flatten().tolist() for name, parameter in encoder.named_parameters()}


encoder.eval()
frozen = encoder(pictures)
expected = {"frozen": {"embeddings": frozen.flatten().tolist(), "gradients": gradients(frozen)}}
encoder.train()
batch = encoder(pictures)
expected["batch"] = {"embeddings": batch.flatten().tolist(), "gradients": gradients(batch)}
expected["running"] = {
    name: values.flatten().tolist() for name, values in encoder.state_dict().items() if "running" in name
}
(FOLDER / "small.json").write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")
