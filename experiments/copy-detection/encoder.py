"""The encoder of block means as `retrievalguard copy-encoder` writes it, and the program's certificates.

The program's preparation of pictures is Pillow's to the byte, so Pillow does it here. Embeddings are sums in `f64`, checked against the ONNX
file under onnxruntime. A program that indexes the pictures and certifies them itself takes the place of `prepared`, `embedded` and `certified`.
"""

import json
import math
import subprocess
import tomllib
from pathlib import Path

import numpy
import onnxruntime
from PIL import Image

CHANNELS = 3


class Encoder:
    """Block means of `grid × grid` blocks of pictures of `size × size` pixels."""

    def __init__(self, tool, folder, size, grid):
        self.tool, self.folder, self.size, self.grid = tool, Path(folder), size, grid
        self._run("copy-encoder", "--out", str(folder), "--size", str(size), "--grid", str(grid))
        model = str(self.folder / "encoder.onnx")
        self.bound = json.loads(self._run("check-model", "--lipschitz", "--model", model, "--json"))
        self.constant = self.bound["constant"]
        self.session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        self.resampling = self._resampling(tomllib.loads((self.folder / "encoder.toml").read_text(encoding="utf-8")))
        # The file's weight, which is not above 1/block.
        block = size // grid
        nearest = numpy.float32(1.0 / block)
        self.weight = float(numpy.nextafter(nearest, numpy.float32(0))) if float(nearest) > 1.0 / block else float(nearest)

    def _run(self, *arguments):
        done = subprocess.run([self.tool, *arguments], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{self.tool} {' '.join(arguments)}\n{done.stderr}")
        return done.stdout

    def _resampling(self, config):
        """In which numbers pictures are resized; anything else that is not as expected ends the experiment."""
        resize = dict(config["resize"])
        resampling = resize.pop("resampling", "8-bit")
        wanted = {"rule": "exact", "height": self.size, "width": self.size, "interpolation": "bilinear"}
        plain = config["input"]["mean"] == [0.0] * CHANNELS and config["input"]["std"] == [1.0] * CHANNELS
        if resize != wanted or resampling not in ("8-bit", "float") or not plain:
            raise SystemExit(f"`{self.folder / 'encoder.toml'}` prepares pictures in a way that this experiment does not know")
        return resampling

    def prepared(self, picture):
        """What the encoder gets, and where certificates speak: (height, width, channels) in [0, 1], `f32`."""
        side = (self.size, self.size)
        if self.resampling == "8-bit":
            values = numpy.asarray(picture.resize(side, Image.Resampling.BILINEAR), dtype=numpy.float32)
        else:
            bands = [band.convert("F").resize(side, Image.Resampling.BILINEAR) for band in picture.split()]
            values = numpy.stack([numpy.asarray(band) for band in bands], axis=-1)
        return values / numpy.float32(255)

    def embedded(self, prepared):
        """Embeddings (n, dimension) in `f64` of prepared pictures (n, height, width, channels)."""
        count, block = len(prepared), self.size // self.grid
        blocks = prepared.astype(numpy.float64).reshape(count, self.grid, block, self.grid, block, CHANNELS)
        return (self.weight * blocks.sum(axis=(2, 4))).transpose(0, 3, 1, 2).reshape(count, -1)

    def picture_of(self, directions):
        """Transpose of the encoder: pictures (n, height, width, channels) that move embeddings in given directions."""
        blocks = directions.reshape(len(directions), CHANNELS, self.grid, self.grid).transpose(0, 2, 3, 1)
        block = self.size // self.grid
        return self.weight * blocks.repeat(block, axis=1).repeat(block, axis=2)

    def check(self, prepared):
        """Compares with the ONNX file, within what `f32` may be off, and returns the largest distance."""
        (found,) = self.session.run(None, {"pictures": numpy.ascontiguousarray(prepared.transpose(0, 3, 1, 2))})
        distance = numpy.linalg.norm(found - self.embedded(prepared), axis=1).max()
        allowed = self.error("single_error")
        if distance > allowed:
            raise SystemExit(f"embeddings differ from the ONNX file's by {distance}, wanted at most {allowed}")
        return float(distance)

    def error(self, precision="double_error"):
        """Forward error of every picture up to twice the norm of a white one."""
        norm = 2 * math.sqrt(CHANNELS) * self.size
        return self.bound[precision]["slope"] * norm + self.bound[precision]["offset"]

    def certified(self, gallery, queries, labels):
        """The program's answers: for each query the retrieved row, and the radii of both certificates (NaN: none).

        Every row of the gallery is an item of its own, with its number for a label.
        """
        files = {name: self.folder / f"{name}.npy" for name in ("gallery", "queries")}
        numpy.save(files["gallery"], gallery)
        numpy.save(files["queries"], queries)
        names = {"gallery": range(len(gallery)), "queries": labels}
        for name, rows in names.items():
            (self.folder / f"{name}.txt").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
        answers = self._run(
            "certify", "--json", "--lipschitz", repr(self.constant), "--forward-error", repr(self.error()),
            "--embeddings-file", str(files["queries"]), "--labels-file", str(self.folder / "queries.txt"),
            "--gallery-file", str(files["gallery"]), "--gallery-labels", str(self.folder / "gallery.txt"),
        )  # fmt: skip
        answers = [json.loads(line) for line in answers.splitlines()] if len(queries) > 1 else [json.loads(answers)]

        def radii(name):
            found = [answer["certificates"][name]["radius"] for answer in answers]
            return numpy.array([numpy.nan if radius is None else radius for radius in found])

        return numpy.array([answer["retrieved"] for answer in answers]), radii("lipschitz"), radii("lipschitz-margin")


def distances(queries, gallery):
    """All l2 distances, (queries, items), from differences where the short formula would cancel."""
    squares = (queries**2).sum(1)[:, None] + (gallery**2).sum(1) - 2 * queries @ gallery.T
    found = numpy.sqrt(numpy.maximum(squares, 0))
    for row, column in zip(*numpy.nonzero(found < 1)):
        found[row, column] = numpy.linalg.norm(queries[row] - gallery[column])
    return found
