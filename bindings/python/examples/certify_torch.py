"""A torch encoder, certified in 20 lines. Without torch the same lines run with a NumPy function.

    python examples/certify_torch.py [--numpy]
"""

import sys

import numpy as np
import retrievalguard as rg

rng = np.random.default_rng(0)
weights = rng.normal(size=(3 * 16 * 16, 32)).astype(np.float32) / 16


def numpy_encoder():
    def encode(batch):
        features = np.tanh((batch.reshape(len(batch), -1) - 0.5) @ weights)
        return features / np.linalg.norm(features, axis=1, keepdims=True)

    return encode


def torch_encoder():
    import torch

    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(len(weights), weights.shape[1], bias=False)
            self.linear.weight.data = torch.from_numpy(weights.T.copy())

        def forward(self, batch):
            return torch.nn.functional.normalize(torch.tanh(self.linear(batch.flatten(1) - 0.5)), dim=1)

    return Encoder().eval()


try:
    encoder = numpy_encoder() if "--numpy" in sys.argv else torch_encoder()
except ImportError:
    print("torch is not installed, so a NumPy function is certified")
    encoder = numpy_encoder()

# Ten products; a gallery picture of each, and queries that are other pictures of the first three.
products = rng.uniform(size=(10, 3, 16, 16)).astype(np.float32)
labels = [f"product {number}" for number in range(len(products))]
queries = np.clip(products[:3] + rng.normal(scale=0.1, size=(3, 3, 16, 16)), 0, 1)

# The 20 lines: smooth the gallery, smooth each query twice, certify.
sigma, seed = 0.25, 7


def samples(picture, count, stage, identity):
    return rg.smooth(
        encoder, picture, sigma=sigma, samples=count, seed=seed, stage=stage, identity=identity, progress=False
    )


vectors = [
    samples(picture, 64, "gallery", label).mean(axis=0) for picture, label in zip(products, labels)
]
gallery = rg.Gallery(vectors, labels)
certificates = rg.certify(
    [samples(picture, 1000, "certify", f"query {at}") for at, picture in enumerate(queries)],
    gallery,
    labels[:3],
    pilot=[samples(picture, 200, "pilot", f"query {at}") for at, picture in enumerate(queries)],
    sigma=sigma,
    alpha=0.01,
)
for certificate in certificates:
    print(certificate)
print(certificates)
print(f"recall {certificates.recall():.3f}, certified at 0.1: {certificates.certified_recall(0.1):.3f}")
assert certificates.recall() == 1.0 and certificates.certified_recall(0.1) == 1.0
