"""Writes the names and shapes of every tensor of the backbones, as their PyTorch implementations have them.

Usage, with torch, torchvision 0.29 and efficientnet_lite_pytorch 0.1.0 installed:

    python3 tests/reference/make_names.py

writes `resnet-18.txt`, `resnet-50.txt` and `efficientnet-lite0.txt` to `-lite2.txt` beside this script: one tensor per line, the
name and then the sides. Counters of batches and the classifier are left out.
"""

import pathlib

import torchvision
from efficientnet_lite_pytorch import EfficientNet

NETWORKS = {
    "resnet-18": torchvision.models.resnet18(),
    "resnet-50": torchvision.models.resnet50(),
    **{name: EfficientNet.from_name(name) for name in ("efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2")},
}

for name, network in NETWORKS.items():
    lines = [
        " ".join([tensor, *map(str, values.shape)])
        for tensor, values in network.state_dict().items()
        if not tensor.endswith(".num_batches_tracked") and not tensor.startswith(("fc.", "_fc."))
    ]
    pathlib.Path(__file__).with_name(f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
