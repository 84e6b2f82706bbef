"""Photographs, and who is what: items of the gallery, strangers, and pictures on which choices are made."""

from dataclasses import dataclass
from pathlib import Path

import numpy
from PIL import Image, ImageOps

ENDINGS = {".jpg", ".jpeg", ".png", ".webp"}


@dataclass(frozen=True)
class Sets:
    """Disjoint sets of photographs; choices are made on the last two, and edits, rates and attacks measured on the others."""

    items: list[Path]
    strangers: list[Path]
    tuning_items: list[Path]
    tuning_strangers: list[Path]


def photographs(folder, same_photographs=None):
    """All pictures below a folder in the order of their names, without second copies of one photograph.

    `same_photographs` has two names per line: the second file shows the photograph of the first.
    """
    files = sorted(file for file in Path(folder).rglob("*") if file.suffix.lower() in ENDINGS)
    left_out = set()
    if same_photographs:
        lines = Path(same_photographs).read_text(encoding="utf-8").splitlines()
        pairs = [line.split() for line in lines if line and not line.startswith("#")]
        names = {file.name for file in files}
        for pair in pairs:
            if len(pair) != 2 or not names.issuperset(pair):
                raise SystemExit(f"`{same_photographs}` names {pair}, wanted two files of `{folder}`")
        left_out = {second for _, second in pairs}
    return [file for file in files if file.name not in left_out]


def divide(files, items, seed):
    """`items` pictures for each set but the last, which gets what is left, up to four times as many."""
    if len(files) <= 3 * items:
        raise SystemExit(f"found {len(files)} pictures, wanted more than {3 * items} for --items {items}")
    order = numpy.random.default_rng(seed).permutation(len(files))
    ends = [0, items, 2 * items, 3 * items, 7 * items]
    return Sets(*([files[place] for place in order[start:end]] for start, end in zip(ends, ends[1:])))


def opened(path):
    """The decoded picture: 8-bit RGB, upright."""
    with Image.open(path) as picture:
        return ImageOps.exif_transpose(picture).convert("RGB")
