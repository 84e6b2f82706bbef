import numpy as np
import pytest
import retrievalguard as rg
from conftest import drawn

SHAPE = (3, 16, 16)


def items(encoder):
    pictures = [encoder.prepare(drawn(kind, 0)) for kind in range(4)]
    return pictures, rg.Gallery(encoder.embed(pictures), [f"kind {kind}" for kind in range(4)])


def test_gradients_are_slopes_of_the_embedding(encoder):
    picture = encoder.prepare(drawn(1, 3))
    direction = np.linspace(-1, 1, encoder.dimension, dtype=np.float32)
    embedding, gradient = encoder.gradient(picture, direction)
    assert np.allclose(embedding, encoder.embed(picture), atol=1e-5) and gradient.shape == SHAPE
    along = gradient / np.linalg.norm(gradient)
    ahead, behind = encoder.embed(picture + 1e-2 * along), encoder.embed(picture - 1e-2 * along)
    assert (ahead - behind) @ direction / 2e-2 == pytest.approx(np.linalg.norm(gradient), rel=0.02)
    with pytest.raises(rg.RetrievalGuardError, match="wanted 8"):
        encoder.gradient(picture, [1.0, 2.0])


def test_an_encoder_is_broken_by_its_own_gradients(encoder):
    pictures, gallery = items(encoder)
    found = rg.perturb(encoder, pictures[0], gallery, "kind 0", size=5.0)
    assert found.broken and found.gradients == "computed" and found.norm <= 5.0
    assert found.picture.shape == SHAPE
    assert np.linalg.norm((found.picture - pictures[0]).astype("f8")) == pytest.approx(found.norm, rel=1e-6)
    rows, _ = gallery.nearest(encoder.embed(found.picture))
    assert gallery.labels[int(np.ravel(rows)[0])] != "kind 0"
    # Nothing that is shorter than what was found breaks it in the same direction.
    half = pictures[0] + (found.picture - pictures[0]) / 2
    rows, _ = gallery.nearest(encoder.embed(half))
    assert gallery.labels[int(np.ravel(rows)[0])] == "kind 0"
    smoothed = rg.perturb(encoder, pictures[0], gallery, "kind 0", size=5.0, sigma=0.1, steps=10, noise=8)
    assert smoothed.norm <= 5.0 * (1 + 1e-6)


def test_functions_bring_their_gradient_or_do_without(encoder):
    pictures, gallery = items(encoder)

    def gradient(batch, direction):
        return np.stack([encoder.gradient(picture, direction)[1] for picture in batch])

    own = rg.perturb(encoder, pictures[1], gallery, "kind 1", size=5.0, steps=10, restarts=1)
    same = rg.perturb(encoder.embed, pictures[1], gallery, "kind 1", size=5.0, steps=10, restarts=1, gradient=gradient)
    assert same.gradients == "computed" and same.norm == pytest.approx(own.norm, rel=1e-3)
    estimated = rg.perturb(encoder.embed, pictures[1], gallery, "kind 1", size=5.0, steps=5, restarts=1, noise=16)
    assert estimated.gradients == "estimated"
    with pytest.raises(rg.InputError, match="computes its own"):
        rg.perturb(encoder, pictures[1], gallery, "kind 1", size=1.0, gradient=gradient)
    with pytest.raises(rg.InputError, match="shape"):
        rg.perturb(encoder.embed, pictures[1], gallery, "kind 1", size=1.0, gradient=lambda batch, direction: direction)
    with pytest.raises(rg.InputError, match="no label"):
        rg.perturb(encoder, pictures[1], gallery, "nobody", size=1.0)


def test_torch_modules_are_attacked_by_their_autograd():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    module.eval()
    pictures = np.random.default_rng(0).random((3, 3, 4, 4), dtype=np.float32)
    with torch.no_grad():
        rows = module(torch.from_numpy(pictures)).numpy()
    scale = 0.5 / np.abs(rows).max()
    gallery = rg.Gallery(rows * scale, ["a", "b", "c"])
    module[-1].weight.data *= scale
    module[-1].bias.data *= scale
    found = rg.perturb(module, pictures[0], gallery, "a", size=20.0, norm_bound=100.0)
    assert found.broken and found.gradients == "computed"
    module.train()
    with pytest.raises(rg.InputError, match="eval"):
        rg.perturb(module, pictures[0], gallery, "a", size=1.0)
