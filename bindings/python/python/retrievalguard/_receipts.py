"""Receipts of certified answers, checked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Optional

from . import _native
from ._arrays import PathLike, count
from ._encoder import Encoder
from ._pipeline import _encoder


@dataclass(frozen=True)
class Verification:
    """What came of making the answer of a receipt again.

    Attributes
    ----------
    verified : bool
        Whether everything is as the receipt says.
    reason : str or None
        What the receipt says that is not so.
    undecided : int or None
        Copies that depend on the last bits of another engine; None if every bit is the same.
    statements : tuple of str
        What the receipt claims, in words; worth nothing unless it is verified.
    """

    verified: bool
    reason: Optional[str]
    undecided: Optional[int]
    statements: tuple[str, ...]

    def __bool__(self) -> bool:
        return self.verified


def verify_receipt(
    receipt: PathLike,
    encoder: Encoder,
    gallery: PathLike,
    picture: PathLike,
    *,
    commitment: Optional[str] = None,
    challenge: Optional[str] = None,
    public_key: Optional[PathLike] = None,
    allow_rounding: bool = False,
    most_samples: int = 1_000_000,
) -> Verification:
    """Makes the answer of a receipt again from the files that it is about, and accepts nothing else.

    Parameters
    ----------
    receipt : path_like
        The receipt.
    encoder : Encoder
        The encoder; opened with ``engine="double"`` for a receipt without noise.
    gallery : path_like
        Directory of the gallery.
    picture : path_like
        The picture's file.
    commitment, challenge : str, optional
        What was published before the answer, and what was sent with the question; refused if the receipt has another.
    public_key : path_like, optional
        The key that must have signed.
    allow_rounding : bool
        Accept an answer that differs by the last bits of another engine or processor.
    most_samples : int
        The most samples that are drawn for its sake.

    Returns
    -------
    Verification
        True where it is verified; otherwise its `reason` says what was found and what was wanted.
    """
    auditing = {
        "commitment": commitment,
        "challenge": challenge,
        "public_key": None if public_key is None else os.fspath(public_key),
        "allow_rounding": bool(allow_rounding),
        "most_samples": count(most_samples, "most_samples", least=1),
    }
    files = (os.fspath(receipt), os.fspath(gallery), os.fspath(picture))
    reason, undecided, statements = _native.verify_receipt(files, _encoder(encoder), auditing)
    return Verification(reason is None, reason, undecided, tuple(statements))
