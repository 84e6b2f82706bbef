"""Reference values for resampling in floating point, and for the norms of resampling matrices.

Run from the crate's directory, after `make_pictures.py`:

    python3 tests/reference/make_resampling.py

Needs Python 3.10 or later, Pillow 13 or later and numpy. Writes two tables beside this file.

`resampling-float.tsv`: picture, preparation, and what Pillow makes of it in images of mode `F`, whose passes compute in
`double` and round to `float` only: values of the red plane, the green, the blue, cut to [0, 255] and divided by 255.

`resampling-norms.tsv`: filter, pixels before, pixels after, first and number of the positions that are kept, and the largest
singular value of that matrix by numpy. The matrix is Pillow's: column `j` is what it makes of a line of zeros with a
one at `j`.
"""

from pathlib import Path

import numpy
from make_pictures import FILTERS, FOLDER, centre_crop, resize
from PIL import Image

HERE = Path(__file__).resolve().parent
PICTURES = [
    ("edges-97x61-420.decoded.png", "exact 7x9", "bilinear", "none"),
    ("edges-97x61-420.decoded.png", "exact 8x11", "lanczos", "none"),
    ("edges-97x61-420.decoded.png", "shorter 12", "bicubic", "10x8"),
    ("edges-59x83-422.decoded.png", "shorter 13", "lanczos", "9x9"),
    ("edges-59x83-422.decoded.png", "exact 90x70", "bicubic", "9x8"),
    ("noise-33x47-420.decoded.png", "exact 12x6", "bilinear", "none"),
    ("noise-33x47-420.decoded.png", "exact 50x20", "lanczos", "7x10"),
    ("noise-2x3-420.decoded.png", "exact 8x9", "bicubic", "none"),
    ("noise-2x3-420.decoded.png", "exact 9x7", "bilinear", "none"),
    ("edges-23x211-420.decoded.png", "exact 9x9", "bicubic", "none"),
    ("edges-23x211-420.decoded.png", "keep", "bilinear", "8x9"),
    ("noise-16x16-420.decoded.png", "exact 16x5", "lanczos", "none"),
]
# Pixels before and after, and how many of the middle are kept.
LENGTHS = [
    (500, 224, 224),
    (375, 256, 224),
    (640, 224, 224),
    (333, 224, 224),
    (224, 112, 112),
    (231, 230, 224),
    (100, 224, 224),
    (97, 256, 224),
    (32, 224, 224),
    (900, 32, 32),
    (1200, 16, 16),
    (7, 3, 3),
    (3, 7, 7),
    (2, 9, 5),
    (50, 1, 1),
    (1, 50, 50),
]


def as_floats(picture, rule, interpolation, crop):
    planes = []
    for plane in picture.split():
        prepared = centre_crop(resize(plane.convert("F"), rule, interpolation), crop)
        planes.append(numpy.clip(numpy.asarray(prepared, dtype=numpy.float64), 0, 255) / 255)
    return numpy.stack(planes)


def matrix(before, after, start, kept, interpolation):
    lines = Image.fromarray(numpy.eye(before, dtype=numpy.float32))
    return numpy.asarray(lines.resize((after, before), FILTERS[interpolation]), dtype=numpy.float64).T[start : start + kept]


def main():
    rows = ["# Written by make_resampling.py; see there for the method.", "# picture\tpreparation\tvalues"]
    for name, rule, interpolation, crop in PICTURES:
        values = as_floats(Image.open(FOLDER / name), rule, interpolation, crop)
        numbers = " ".join(f"{value:.8f}" for value in values.ravel())
        rows.append(f"{name}\t{rule}, {interpolation}, {crop}\t{numbers}")
    (HERE / "resampling-float.tsv").write_text("\n".join(rows) + "\n", encoding="ascii")
    rows = ["# Written by make_resampling.py; see there for the method.", "# filter\tbefore\tafter\tstart\tkept\tnorm"]
    for interpolation in FILTERS:
        for before, after, kept in LENGTHS:
            start = round((after - kept) / 2)
            norm = numpy.linalg.norm(matrix(before, after, start, kept, interpolation), 2)
            rows.append(f"{interpolation}\t{before}\t{after}\t{start}\t{kept}\t{norm:.9f}")
    (HERE / "resampling-norms.tsv").write_text("\n".join(rows) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
