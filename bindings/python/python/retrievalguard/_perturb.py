"""The search for a small change of a picture after which a wrong item comes first."""

from __future__ import annotations

import sys
from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray

from . import _native
from ._arrays import Seed, as_array, count, float32, matrix, seed_digits
from ._certify import Exclude, _excluded
from ._encoder import Encoder
from ._errors import InputError
from ._gallery import Gallery, label_text
from ._smooth import Function, _adapted, _rows

Gradient = Callable[[NDArray[np.float32], NDArray[np.float32]], Any]


class Perturbation(NamedTuple):
    """A changed picture, as a search has found it; nothing is proved about it."""

    picture: NDArray[np.float32]
    """The picture with the change added."""
    norm: float
    """l2 norm of the change."""
    margin: float
    """How much nearer the nearest right item is than the nearest wrong one, in squared distances; an estimate from few noisy
    copies if there is noise."""
    gradients: str
    """``"computed"`` or ``"estimated"``; estimated ones make a weak search, so that it found nothing shows little."""

    @property
    def broken(self) -> bool:
        """Whether a wrong item was seen to come first."""
        return self.margin <= 0


def perturb(
    encoder: Union[Encoder, Function],
    picture: Any,
    gallery: Gallery,
    label: Any,
    *,
    size: float,
    sigma: Optional[float] = None,
    gradient: Optional[Gradient] = None,
    exclude: Exclude = None,
    identity: str = "picture",
    steps: int = 40,
    restarts: int = 3,
    noise: int = 32,
    clip: bool = False,
    seed: Seed = 0,
    norm_bound: float = 1.0,
) -> Perturbation:
    """Looks for a small change of a picture after which a wrong item comes first.

    Parameters
    ----------
    encoder : Encoder, torch module or callable
        Gradients of an `Encoder` are computed from its ONNX graph, those of a torch module by its own autograd. Any other
        function, from ``(b, *picture.shape)`` to ``(b, d)``, has those that `gradient` gives; without it they are estimated
        from its outputs, which is far weaker.
    picture : array_like, path_like or bytes
        The picture; for an `Encoder`, whatever its `prepare` takes.
    gallery : Gallery
        Items to search in.
    label : object
        The right label.
    size : float
        Largest l2 norm of the change.
    sigma : float, optional
        Noise of the retriever that searches with the mean over noisy copies; without it, the plain one is attacked.
    gradient : callable, optional
        Takes pictures ``(b, *picture.shape)`` and a direction ``(d,)``, and returns the gradient of the product of each
        embedding with the direction, ``(b, *picture.shape)``.
    exclude : str, int or list, optional
        Items that the query does not see, by identity or row.
    identity : str
        Name of the picture, on which the search's noise depends.
    steps, restarts, noise : int
        Steps of each restart, restarts, and noisy copies that a gradient is averaged over.
    clip : bool
        Whether changed pixels stay in [0, 1].
    seed : int or bytes
        Root of the search's noise.
    norm_bound : float
        Norm bound that a function promises.

    Returns
    -------
    Perturbation
        The shortest change up to `size` that was seen to break the retrieval, or the one of that size that came nearest.

    Examples
    --------
    >>> import numpy as np
    >>> import retrievalguard as rg
    >>> def encode(batch):
    ...     flat = batch.reshape(len(batch), -1)
    ...     return flat / np.linalg.norm(flat, axis=1, keepdims=True)
    >>> def gradient(batch, direction):
    ...     flat = batch.reshape(len(batch), -1)
    ...     norms = np.linalg.norm(flat, axis=1, keepdims=True)
    ...     rows = flat / norms
    ...     return (direction - rows * (rows @ direction)[:, None]) / norms
    >>> rng = np.random.default_rng(7)
    >>> pictures = {label: rng.uniform(size=(3, 8, 8)).astype("f4") for label in ("cat", "dog")}
    >>> gallery = rg.Gallery([encode(p[None])[0] for p in pictures.values()], list(pictures))
    >>> found = rg.perturb(encode, pictures["cat"], gallery, "cat", size=9.0, gradient=gradient)
    >>> found.broken, found.gradients
    (True, 'computed')
    """
    searching: dict[str, Any] = {
        "identity": str(identity),
        "label": label_text(label),
        "excluded": _excluded(exclude, gallery),
        "size": float(size),
        "sigma": None if sigma is None else float(sigma),
        "steps": count(steps, "steps", least=1),
        "restarts": count(restarts, "restarts", least=1),
        "noise": count(noise, "noise", least=1, most=65536),
        "clip": bool(clip),
        "seed": seed_digits(seed),
        "norm_bound": float(norm_bound),
    }
    if isinstance(encoder, Encoder):
        if gradient is not None:
            raise InputError("an Encoder computes its own gradients, wanted no `gradient` beside it")
        pixels = encoder._pixels(picture, str(identity))
        searching.update(shape=list(encoder.shape), dimension=encoder.dimension)
        found = _native.perturb(encoder._encoder, None, None, pixels.ravel(), gallery._stored, searching)
    else:
        pixels = float32(picture, "pixels")
        call = _adapted(encoder)
        searching.update(shape=list(pixels.shape), dimension=_rows(call(pixels[None]), 1).shape[1])
        own = gradient if gradient is not None else _autograd(encoder)

        def embed(batch: NDArray[np.float32]) -> NDArray[np.float32]:
            return _rows(call(batch), len(batch))

        def slopes(batch: NDArray[np.float32], direction: NDArray[np.float32]) -> NDArray[np.float32]:
            rows = as_array(own(batch, direction), "the gradient")  # type: ignore[misc]
            if rows.size != batch.size:
                raise InputError(f"the gradient has the shape {rows.shape} for pictures {batch.shape}")
            return matrix(rows.reshape(len(batch), -1), "the gradient")

        found = _native.perturb(
            None, embed, None if own is None else slopes, pixels.ravel(), gallery._stored, searching
        )
    changed, norm, margin, gradients = found
    return Perturbation(changed.reshape(pixels.shape), norm, margin, gradients)


def _autograd(module: Any) -> Optional[Gradient]:
    """The gradient of a torch module by its own autograd; none for anything else."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(module, torch.nn.Module):
        return None
    parameter = next(iter(module.parameters()), None)

    def gradient(batch: NDArray[np.float32], direction: NDArray[np.float32]) -> Any:
        with torch.enable_grad():
            tensor = torch.from_numpy(batch)
            towards = torch.from_numpy(direction)
            if parameter is not None:
                tensor = tensor.to(device=parameter.device, dtype=parameter.dtype)
                towards = towards.to(device=parameter.device, dtype=parameter.dtype)
            tensor = tensor.detach().requires_grad_(True)
            # Rows do not see each other, so the gradient of their sum is that of each.
            (slopes,) = torch.autograd.grad((module(tensor) * towards).sum(), tensor)
            return slopes.float().cpu().numpy()

    return gradient


__all__ = ["Perturbation", "perturb"]
