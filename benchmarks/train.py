"""Steps per second of training: burn as it comes, burn with our layers, libtorch under burn, and PyTorch, interleaved.

Usage: train.py PROGRAM [ROUNDS] [NETWORK ...], with the program `train`.

Every contestant stays loaded and waits for its turn; all use as many threads as THREADS says (2), the same networks and
the same loss. CONTESTANTS names those beside PyTorch ("plain ours"); `libtorch-plain` and `libtorch` need LIBTORCH, the
folder of PyTorch's library.
"""

import os
import statistics
import sys
import time

from worker import Worker

THREADS = int(os.environ.get("THREADS", "2"))
DIMENSION = 64
# Name: batch size, steps per round.
NETWORKS = {
    "small": (128, 8),
    "efficientnet-lite0": (16, 3),
    "resnet18": (4, 3),
    "lipschitz": (96, 3),
    "distillation": (16, 3),
}
# They are made of the training crate's own networks, which have no plain form.
OWN = {"lipschitz", "distillation"}
CONTESTANTS = os.environ.get("CONTESTANTS", "plain ours").split()
# Share of PyTorch's steps per second that a contestant is to reach, and that of `ours` in steps of its own networks.
BARS = {"ours": 0.5, "libtorch": 0.9}
OWN_BAR = 0.8


def environment():
    """Of a worker. Its libtorch stays away from PyTorch, which brings another."""
    found = {"RAYON_NUM_THREADS": str(THREADS), "OMP_NUM_THREADS": str(THREADS)}
    if "LIBTORCH" in os.environ:
        found["LD_LIBRARY_PATH"] = f"{os.environ['LIBTORCH']}/lib"
    return found


def torch_network(name):
    from torch import nn

    class Normalise(nn.Module):
        """Mean over the positions, a linear map, length one."""

        def __init__(self, channels):
            super().__init__()
            self.head = nn.Linear(channels, DIMENSION, bias=False)

        def forward(self, x):
            return nn.functional.normalize(self.head(x.mean((2, 3))))

    class Features(nn.Module):
        """Mean over the positions, length one."""

        def forward(self, x):
            return nn.functional.normalize(x.mean((2, 3)))

    def convolution(inputs, outputs, side, stride=1, groups=1):
        return nn.Conv2d(inputs, outputs, side, stride, side // 2, groups=groups, bias=False)

    if name == "small":
        layers, channels = [], 1
        for _ in range(4):
            layers += [convolution(channels, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)]
            channels = 64
        return nn.Sequential(*layers, Normalise(64)), (1, 28, 28)

    if name in ("efficientnet-lite0", "distillation"):

        class Block(nn.Module):
            def __init__(self, inputs, outputs, expansion, side, stride):
                super().__init__()
                inner, layers = inputs * expansion, []
                if expansion > 1:
                    layers += [convolution(inputs, inner, 1), nn.BatchNorm2d(inner), nn.ReLU6()]
                layers += [convolution(inner, inner, side, stride, inner), nn.BatchNorm2d(inner), nn.ReLU6()]
                layers += [convolution(inner, outputs, 1), nn.BatchNorm2d(outputs)]
                self.layers, self.short = nn.Sequential(*layers), stride == 1 and inputs == outputs

            def forward(self, x):
                return x + self.layers(x) if self.short else self.layers(x)

        layers, channels = [convolution(3, 32, 3, 2), nn.BatchNorm2d(32), nn.ReLU6()], 32
        for expansion, outputs, blocks, stride, side in [
            (1, 16, 1, 1, 3),
            (6, 24, 2, 2, 3),
            (6, 40, 2, 2, 5),
            (6, 80, 3, 2, 3),
            (6, 112, 3, 1, 5),
            (6, 192, 4, 2, 5),
            (6, 320, 1, 1, 3),
        ]:
            for block in range(blocks):
                layers.append(Block(channels, outputs, expansion, side, stride if block == 0 else 1))
                channels = outputs
        layers += [convolution(channels, 1280, 1), nn.BatchNorm2d(1280), nn.ReLU6()]
        layers.append(Features() if name == "distillation" else Normalise(1280))
        # Evaluation mode freezes the statistics; scale and shift are still learned.
        return nn.Sequential(*layers).eval(), (3, 112, 112)

    if name == "lipschitz":
        return torch_lipschitz(), (3, 32, 32)

    class Basic(nn.Module):
        def __init__(self, inputs, outputs, stride):
            super().__init__()
            self.first = nn.Sequential(convolution(inputs, outputs, 3, stride), nn.BatchNorm2d(outputs), nn.ReLU())
            self.second = nn.Sequential(convolution(outputs, outputs, 3), nn.BatchNorm2d(outputs))
            self.short = nn.Identity()
            if stride > 1:
                self.short = nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

        def forward(self, x):
            return nn.functional.relu(self.second(self.first(x)) + self.short(x))

    layers = [convolution(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for outputs, stride in [(64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)]:
        layers.append(Basic(channels, outputs, stride))
        channels = outputs
    return nn.Sequential(*layers, Normalise(512)), (3, 224, 224)


def torch_lipschitz():
    """The encoder of `train --preset lipschitz`: residual layers that never stretch, orthonormal rows by Cholesky."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Residual(nn.Module):
        def __init__(self, channels, inner):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(inner, channels, 3, 3) * (2 / (9 * inner)) ** 0.5)
            self.bias, self.balance = nn.Parameter(torch.zeros(inner)), nn.Parameter(torch.zeros(inner))

        def forward(self, x):
            correlations = functional.conv2d(self.weight, self.weight, padding=2).abs().sum((2, 3))
            q = self.balance.exp()
            scale = 2 / ((correlations @ q) / q).clamp_min(1e-8)
            inner = functional.relu(functional.conv2d(x, self.weight, self.bias, padding=1))
            return x - functional.conv_transpose2d(inner * scale[None, :, None, None], self.weight, padding=1)

    class Rows(nn.Module):
        def __init__(self, inputs, outputs):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(outputs, inputs) / inputs**0.5)

        def forward(self, x):
            factor = torch.linalg.cholesky(self.weight @ self.weight.T)
            rows = torch.linalg.solve_triangular(factor, self.weight, upper=False)
            return functional.conv2d(x, rows[:, :, None, None]) if x.dim() == 4 else x @ rows.T

    class Pad(nn.Module):
        def forward(self, x):
            return functional.pad(x, (0, 0, 0, 0, 0, 48 - x.shape[1]))

    return nn.Sequential(
        nn.PixelUnshuffle(2), Pad(), *[Residual(48, 48) for _ in range(3)],
        nn.PixelUnshuffle(2), *[Residual(192, 40) for _ in range(3)],
        nn.PixelUnshuffle(2), Rows(768, 120), nn.Flatten(), Rows(16 * 120, DIMENSION),
    )


def radius_loss(torch, rows, rho=1.0, tau=0.25):
    """The certified radius made smooth, pictures of six to a class."""
    labels = torch.arange(len(rows)) // 6
    same = labels[:, None] == labels[None, :]
    squared = ((rows * rows).sum(1)[:, None] + (rows * rows).sum(1)[None, :] - 2 * rows @ rows.T).clamp_min(0)
    reach = (squared[:, None, :] - squared[:, :, None]) / (2 * squared.clamp_min(1e-12).sqrt()[None])
    positive = same & ~torch.eye(len(rows), dtype=torch.bool)
    best = torch.logsumexp((reach / tau).masked_fill(~positive[:, :, None], -1e9), 1)
    short = torch.logsumexp((rho / tau - best).masked_fill(same, -1e9), 1)
    return tau * torch.nn.functional.softplus(short).mean()


class Torch:
    def __init__(self, network, batch, steps):
        import torch

        torch.set_num_threads(THREADS)
        torch.manual_seed(1)
        self.steps, self.torch, self.network = steps, torch, network
        self.name = f"PyTorch {torch.__version__.split('+')[0]}"
        self.model, shape = torch_network(network)
        self.pictures, self.targets = torch.rand((batch, *shape)) * 2 - 1, torch.rand((batch, DIMENSION)) * 0.2 - 0.1
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        if network == "distillation":
            self.teacher = torch_network(network)[0]
            self.noisy = self.pictures + torch.randn_like(self.pictures) * 0.25
        self.step()

    def step(self):
        if self.network == "distillation":
            with self.torch.no_grad():
                wanted = self.teacher(self.pictures)
            loss = ((self.model(self.noisy) - wanted) ** 2).sum(1).mean()
        elif self.network == "lipschitz":
            loss = radius_loss(self.torch, self.model(self.pictures))
        else:
            loss = ((self.model(self.pictures) - self.targets) ** 2).mean()
        self.optimiser.zero_grad()
        loss.backward()
        start = time.perf_counter()
        self.optimiser.step()
        return time.perf_counter() - start

    def round(self):
        start, cpu = time.perf_counter(), time.process_time()
        adam = sum(self.step() for _ in range(self.steps))
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        return self.steps / seconds, self.steps / cpu, adam / seconds

    def close(self):
        pass


def compare(left, right, clock):
    """Median ratio, round by round: neighbours in time share whatever else the machine does."""
    return statistics.median(one[clock] / other[clock] for one, other in zip(left, right))


def main():
    program = sys.argv[1]
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 7
    met = True
    for network in sys.argv[3:] or NETWORKS:
        batch, steps = NETWORKS[network]
        workers = {
            kind: Worker(program, kind, network, batch, steps, **environment())
            for kind in CONTESTANTS
            if network not in OWN or "plain" not in kind
        }
        workers["torch"] = Torch(network, batch, steps)
        speeds = {kind: [] for kind in workers}
        for turn in range(rounds):
            kinds = list(workers)
            for kind in kinds if turn % 2 == 0 else reversed(kinds):
                speeds[kind].append(workers[kind].round())
        print(f"{network}: batch {batch}, {THREADS} threads, {rounds} interleaved rounds of {steps} steps")
        for kind, found in speeds.items():
            wall = [speed[0] for speed in found]
            adam = statistics.median(speed[2] for speed in found)
            print(
                f"  {workers[kind].name}: {statistics.median(wall):.2f} steps/s"
                f" (from {min(wall):.2f} to {max(wall):.2f}), {compare(found, speeds['torch'], 0):.2f} of PyTorch,"
                f" {compare(found, speeds['torch'], 1):.2f} by CPU time; Adam {100 * adam:.0f} %"
            )
            if kind in BARS:
                bar = OWN_BAR if kind == "ours" and network in OWN else BARS[kind]
                good = compare(found, speeds["torch"], 0) >= bar
                met &= good
                print(f"    bar (at least {bar} of PyTorch): {'met' if good else 'missed'}", flush=True)
        for worker in workers.values():
            worker.close()
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
