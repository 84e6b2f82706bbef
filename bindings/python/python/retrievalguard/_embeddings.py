"""Certificates without noise, from one embedding per query."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Union

import numpy as np
from numpy.typing import ArrayLike

from . import _native
from ._arrays import as_array, count
from ._certificates import Certificate
from ._certify import LIPSCHITZ, Exclude, _excluded, _row
from ._errors import InputError
from ._gallery import Gallery, Label, label_text


def certify_embeddings(
    embeddings: ArrayLike,
    gallery: Gallery,
    label: Union[None, Label, Sequence[Union[None, Label]]] = None,
    *,
    lipschitz: float,
    forward_error: float = 0.0,
    certificate: str = "lipschitz",
    item: Optional[int] = None,
    exclude: Exclude = None,
    top_k: int = 1,
    mixtures: int = 1,
) -> Union[Certificate, list[Certificate]]:
    """Certifies embeddings of an encoder that moves no faster than a constant: no noise, no samples, no ``alpha``.

    What is certified holds always, if the constant is one: it is your word. ``retrievalguard check-model --lipschitz`` computes
    a constant from a model's weights, and `certify_pictures` uses it by itself.

    Parameters
    ----------
    embeddings : array_like
        One embedding ``(k,)``, or one per query ``(queries, k)``.
    gallery : Gallery
        Stored vectors with labels.
    label : str or int, or a sequence of them, optional
        What would be right; the label that is retrieved by default.
    lipschitz : float
        The constant, in the l2 norms of pixels and embeddings.
    forward_error : float
        Largest l2 error with which the encoder computes an embedding; twice of it is taken off.
    certificate : {"lipschitz", "lipschitz-margin"}
        Distances to bisectors, or half the margin of the distances.
    item : int, optional
        Certify that this row of the gallery stays first, instead of a label.
    exclude : str, int or iterable of them, optional
        Identities or rows of the gallery that the queries must not see.
    top_k : int
        Also radii for Recall@2 to Recall@k.
    mixtures : int
        How many right items may stand together against a wrong one.

    Returns
    -------
    Certificate or list of Certificate
        One for each embedding; ``sigma`` and ``alpha`` are None.

    Examples
    --------
    >>> import retrievalguard as rg
    >>> gallery = rg.Gallery([[1.0, 0.0], [-1.0, 0.0]], ["left", "right"])
    >>> certificate = rg.certify_embeddings([0.5, 3.0], gallery, "left", lipschitz=1.0)
    >>> round(certificate.radius, 6), certificate.alpha
    (0.5, None)
    """
    if not isinstance(gallery, Gallery):
        raise InputError(f"gallery is {type(gallery).__name__}, wanted a Gallery")
    if certificate not in LIPSCHITZ:
        raise InputError(f"certificate is {certificate!r}, wanted one of {', '.join(LIPSCHITZ)}")
    rows = np.ascontiguousarray(as_array(embeddings, "embeddings"), dtype=np.float64)
    single = rows.ndim == 1
    if single:
        rows = rows[None]
    if rows.ndim != 2 or len(rows) == 0:
        raise InputError(f"embeddings have shape {rows.shape}, wanted (k,) or (queries, k)")
    labels: list[Any] = list(label) if isinstance(label, (list, tuple, np.ndarray)) else [label] * len(rows)
    if len(labels) != len(rows):
        raise InputError(f"{len(labels)} labels were given for {len(rows)} embeddings, wanted one for each")
    if item is not None and label is not None:
        raise InputError("both a label and an item were given, wanted one of them")
    settings: dict[str, Any] = {
        "certificates": [certificate],
        "lipschitz": float(lipschitz),
        "forward_error": float(forward_error),
        "top_k": count(top_k, "top_k"),
        "mixtures": count(mixtures, "mixtures"),
    }
    queries = [
        {
            "name": None if single else f"query {place}",
            "embedding": np.ascontiguousarray(row),
            "label": None if wanted is None else label_text(wanted),
            "item": None if item is None else count(item, "item", most=2**63 - 1),
            "excluded": _excluded(exclude, gallery),
        }
        for place, (row, wanted) in enumerate(zip(rows, labels))
    ]
    answers = _native.certify_embeddings(queries, gallery._stored, settings)
    none = {"sigma": None, "alpha": None}
    found = [_row(answer, gallery, none, None)[certificate] for answer in answers]
    return found[0] if single else found
