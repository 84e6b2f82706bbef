"""What the tests share: the repository's ONNX models, drawn pictures, and values that Rust computed."""

import json
import pathlib
import struct
import zlib

import numpy as np
import pytest
import retrievalguard as rg

HERE = pathlib.Path(__file__).parent
MODELS = HERE.parents[2] / "crates" / "retrievalguard-encoder" / "tests" / "models"


def png(pixels):
    """The bytes of a PNG file of uint8 pixels (height, width, 3)."""
    height, width, _ = pixels.shape

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = b"".join(b"\0" + row.tobytes() for row in np.ascontiguousarray(pixels))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def drawn(label, number):
    """A picture of stripes, one direction and colour for each label."""
    rng = np.random.default_rng([label, number])
    across, down = np.meshgrid(np.arange(20), np.arange(24))
    angle = label * np.pi / 4
    wave = np.sin((across * np.cos(angle) + down * np.sin(angle)) / 2 + rng.uniform())
    colour = np.array([label % 2, label // 2 % 2, 1 - label % 2])
    picture = 128 + 80 * wave[:, :, None] * (2 * colour - 1) + rng.normal(scale=6, size=(24, 20, 3))
    return np.clip(picture, 0, 255).astype(np.uint8)


def draw_folder(folder, labels, pictures, first=0):
    for label in range(labels):
        place = folder / f"label {label}"
        place.mkdir(parents=True)
        for number in range(first, first + pictures):
            (place / f"{number}.png").write_bytes(png(drawn(label, number)))
    return folder


@pytest.fixture(scope="session")
def reference():
    return json.loads((HERE / "reference" / "reference.json").read_text())


@pytest.fixture(scope="session")
def model():
    return MODELS / "convolutional.onnx"


@pytest.fixture(scope="session")
def encoder(model):
    return rg.Encoder(model, engine="rten", threads=2)


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("pictures")
    return draw_folder(root / "gallery", 4, 3), draw_folder(root / "queries", 4, 3, first=10)


@pytest.fixture(scope="session")
def gallery(encoder, folders, tmp_path_factory):
    place = tmp_path_factory.mktemp("galleries") / "g"
    made = rg.index(folders[0], encoder, 0.1, place, progress=False)
    assert len(made) == 12 and made.sigma == 0.1 and made.samples == 32
    return place


def bits(values):
    """float32 values as the hexadecimal digits of the reference file."""
    return [f"{value:08x}" for value in np.asarray(values, dtype=np.float32).ravel().view(np.uint32)]


def bits64(value):
    return None if value is None else f"{np.float64(value).view(np.uint64):016x}"
