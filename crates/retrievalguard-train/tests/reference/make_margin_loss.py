"""Reference values of the margin loss and of distance-weighted sampling, made by pytorch-metric-learning.

    pip install torch pytorch-metric-learning
    python make_margin_loss.py > margin_loss.json

Made once with torch 2.15.0 and pytorch-metric-learning 2.9.0, in 64-bit floats. Embeddings are whole numbers, scaled to
length 1 and rounded to 32 bits: both sides begin with the same bits.

- `losses`: `MarginLoss(margin=0.2, nu=0)` of given triplets with its gradients. Embeddings are not normalised again
  (`LpDistance(normalize_embeddings=False)`), so that the gradient is the one of the embeddings as given.
  `active_pairs` uses the default `DivisorReducer`, `triplets` a `MeanReducer`.
- `probabilities`: what `DistanceWeightedMiner` hands to its sampling, one row per anchor, caught at
  `get_random_triplet_indices`; a row without an admissible negative is null.
"""

import json
import sys

import numpy as np
import torch
from pytorch_metric_learning import distances, losses, miners, reducers
from pytorch_metric_learning.utils import loss_and_miner_utils

LABELS = [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
SEED = 20170623


def embeddings(directions):
    """Rows of length 1, exactly representable in 32 bits."""
    rows = np.array(directions, dtype=np.float64)
    rows /= np.sqrt((rows**2).sum(axis=1, keepdims=True))
    return torch.from_numpy(rows.astype(np.float32).astype(np.float64))


def directions(generator, dimension, spread):
    """Whole numbers: a centre per class and `spread` around it."""
    centres = generator.integers(-60, 61, (max(LABELS) + 1, dimension))
    around = generator.integers(-spread, spread + 1, (len(LABELS), dimension))
    rows = centres[LABELS] + around
    rows[np.abs(rows).sum(axis=1) == 0] = 1
    return rows


def loss(rows, triplets, beta, reducer):
    """Value and gradients of the margin loss."""
    rows = rows.clone().requires_grad_(True)
    criterion = losses.MarginLoss(
        margin=0.2, nu=0, beta=beta, learn_beta=True, reducer=reducer,
        distance=distances.LpDistance(normalize_embeddings=False),
    ).double()
    # The constructor rounds beta to 32 bits.
    criterion.beta.data = torch.tensor([beta], dtype=torch.float64)
    value = criterion(rows, torch.tensor(LABELS), tuple(torch.tensor(triplets).T))
    value.backward()
    return {
        "value": value.item(),
        "beta_gradient": criterion.beta.grad.item(),
        "gradient": [round(number, 8) for number in rows.grad.flatten().tolist()],
    }


def probabilities(rows):
    """The matrix that the miner samples negatives from."""
    caught = {}
    sample = loss_and_miner_utils.get_random_triplet_indices

    def catch(labels, ref_labels=None, t_per_anchor=None, weights=None):
        caught["weights"] = weights
        return sample(labels, ref_labels=ref_labels, t_per_anchor=t_per_anchor, weights=weights)

    loss_and_miner_utils.get_random_triplet_indices = catch
    try:
        miners.DistanceWeightedMiner(cutoff=0.5, nonzero_loss_cutoff=1.4)(rows, torch.tensor(LABELS))
    finally:
        loss_and_miner_utils.get_random_triplet_indices = sample
    matrix = caught["weights"].tolist()
    return [None if any(np.isnan(row)) else [float(f"{value:.12g}") for value in row] for row in matrix]


def main():
    generator = np.random.default_rng(SEED)
    cases = []
    for dimension, spread in [(2, 40), (3, 40), (4, 30), (16, 60), (128, 60)]:
        whole = directions(generator, dimension, spread)
        rows = embeddings(whole)
        case = {"dimension": dimension, "directions": whole.flatten().tolist()}
        case["probabilities"] = probabilities(rows)
        if dimension in (3, 16):
            triplets = []
            for anchor, label in enumerate(LABELS):
                others = [at for at, other in enumerate(LABELS) if other != label]
                for positive in [at for at, other in enumerate(LABELS) if other == label and at != anchor]:
                    triplets.append([anchor, positive, int(generator.choice(others))])
            case["triplets"] = triplets
            case["losses"] = [
                {
                    "beta": beta,
                    "triplets": loss(rows, triplets, beta, reducers.MeanReducer()),
                    "active_pairs": loss(rows, triplets, beta, None),
                }
                for beta in (1.2, 0.6)
            ]
        cases.append(case)
    json.dump({"labels": LABELS, "cases": cases}, sys.stdout, separators=(",", ":"))
    sys.stdout.write("\n")


main()
