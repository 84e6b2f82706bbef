"""Reference pictures for the modules `picture` and `resize`.

Run from the crate's directory:

    python3 tests/reference/make_pictures.py

Needs Python 3.10 or later, Pillow 13 or later (with libjpeg-turbo and WebP) and numpy. Draws its own pictures with a fixed
seed, writes them to `pictures/`, and beside each what Pillow makes of it:

    <name>.<ending>            the picture
    <name>.decoded.png         ImageOps.exif_transpose(Image.open(file)).convert("RGB")
    <name>.<n>.png             the same after the n-th preparation, as torchvision does it to Pillow images

`pictures/list.tsv` names them all: picture, preparation, reference. torchvision itself is not needed: `resize` and
`centre_crop` below repeat the arithmetic of `torchvision.transforms.functional` (0.29), whose work on Pillow images is
`Image.resize`, `ImageOps.expand` and `Image.crop`. If torchvision can be imported, they are compared with it.

Pillow up to 12 always resampled across first; 13 resamples down first where that is cheaper. Preparations that end in
`across first` repeat the older order by resizing one side at a time.
"""

import io
import shutil
import struct
import warnings
import zlib
from pathlib import Path

import numpy
from PIL import Image, ImageDraw, ImageOps

FOLDER = Path(__file__).resolve().parent / "pictures"
FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
SUBSAMPLINGS = {"444": "4:4:4", "422": "4:2:2", "420": "4:2:0"}
# Width, height, content, subsampling, quality, further options of the writer.
JPEGS = [
    ("gradient", 97, 61, "420", 90, {}),
    ("gradient", 61, 97, "422", 75, {}),
    ("gradient", 63, 45, "444", 95, {}),
    ("edges", 97, 61, "420", 75, {}),
    ("edges", 59, 83, "422", 90, {}),
    ("edges", 71, 53, "444", 60, {}),
    ("edges", 131, 47, "420", 85, {"progressive": True}),
    ("edges", 45, 67, "422", 80, {"progressive": True}),
    ("noise", 33, 47, "420", 95, {}),
    ("noise", 31, 29, "422", 95, {}),
    ("noise", 37, 23, "444", 95, {}),
    ("noise", 49, 35, "420", 30, {"progressive": True}),
    ("noise", 35, 33, "444", 50, {"progressive": True}),
    ("stripes", 51, 39, "420", 80, {}),
    ("stripes", 39, 51, "422", 95, {"restart_marker_blocks": 1}),
    ("stripes", 43, 43, "420", 98, {"restart_marker_rows": 1, "progressive": True}),
    ("edges", 1, 53, "420", 90, {}),
    ("edges", 53, 1, "422", 90, {}),
    ("noise", 1, 1, "420", 90, {}),
    ("noise", 2, 3, "420", 95, {}),
    ("noise", 3, 2, "422", 95, {}),
    ("noise", 16, 16, "420", 90, {}),
    ("noise", 17, 15, "420", 90, {"optimize": True}),
    ("noise", 1, 40, "422", 95, {"progressive": True}),
    ("gradient", 257, 19, "420", 85, {}),
    ("edges", 23, 211, "420", 85, {"optimize": True}),
    ("gradient", 65, 33, "420", 1, {}),
]
# Rule and size, filter, crop; three of them serve each picture in turn.
PREPARATIONS = [
    ("shorter 40", "bilinear", "32x32"),
    ("shorter 32", "bicubic", "32x32"),
    ("exact 29x37", "lanczos", "none"),
    ("shorter 24", "nearest", "24x24"),
    ("exact 40x24", "bilinear", "31x33"),
    ("shorter 37", "lanczos", "32x30"),
    ("exact 33x27", "bicubic", "none"),
    ("keep", "bilinear", "33x30"),
    ("shorter 21", "bilinear", "none"),
]
OLDER_ORDER = [("exact 29x37", "lanczos", "none"), ("exact 31x30", "bicubic", "24x25")]
LARGEST_REFERENCE = 2_000


def draw(content, width, height, generator):
    if content == "gradient":
        across, down = numpy.meshgrid(numpy.linspace(0, 1, width), numpy.linspace(0, 1, height))
        planes = [across, down, (1 - across) * (1 - down)]
        return Image.fromarray(numpy.round(255 * numpy.stack(planes, axis=2)).astype(numpy.uint8))
    if content == "noise":
        return Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=numpy.uint8))
    picture = Image.new("RGB", (width, height), (250, 240, 20))
    pen = ImageDraw.Draw(picture)
    if content == "stripes":
        for column in range(0, width, 3):
            colour = tuple(int(value) for value in generator.choice([0, 255], 3))
            pen.line([(column, 0), (width - column, height)], fill=colour)
        return picture
    for _ in range(2 + width * height // 150):
        left, top = int(generator.integers(0, width)), int(generator.integers(0, height))
        colour = tuple(int(value) for value in generator.integers(0, 256, 3))
        pen.rectangle([left, top, left + int(generator.integers(0, 9)), top + int(generator.integers(0, 3))], fill=colour)
    pen.text((2, 2), "Rg8", fill=(200, 0, 30))
    return picture


def resize(picture, rule, interpolation):
    width, height = picture.size
    kind, _, size = rule.partition(" ")
    if kind == "keep":
        return picture
    if kind == "exact":
        new_height, new_width = map(int, size.split("x"))
    else:
        short, long = min(width, height), max(width, height)
        new_short, new_long = int(size), int(int(size) * long / short)
        new_width, new_height = (new_short, new_long) if width <= height else (new_long, new_short)
    return picture.resize((new_width, new_height), FILTERS[interpolation])


def centre_crop(picture, crop):
    if crop == "none":
        return picture
    crop_height, crop_width = map(int, crop.split("x"))
    width, height = picture.size
    if crop_width > width or crop_height > height:
        border = (
            (crop_width - width) // 2 if crop_width > width else 0,
            (crop_height - height) // 2 if crop_height > height else 0,
            (crop_width - width + 1) // 2 if crop_width > width else 0,
            (crop_height - height + 1) // 2 if crop_height > height else 0,
        )
        picture = ImageOps.expand(picture, border=border, fill=0)
        width, height = picture.size
        if (crop_width, crop_height) == (width, height):
            return picture
    top = int(round((height - crop_height) / 2.0))
    left = int(round((width - crop_width) / 2.0))
    return picture.crop((left, top, left + crop_width, top + crop_height))


def compare_with_torchvision(picture, rule, interpolation, crop, prepared):
    try:
        from torchvision.transforms import functional
    except ImportError:
        return
    kind, _, size = rule.partition(" ")
    if kind == "shorter":
        picture = functional.resize(picture, int(size), functional.InterpolationMode[interpolation.upper()])
    elif kind == "exact":
        picture = functional.resize(
            picture, list(map(int, size.split("x"))), functional.InterpolationMode[interpolation.upper()]
        )
    if crop != "none":
        picture = functional.center_crop(picture, list(map(int, crop.split("x"))))
    assert picture.tobytes() == prepared.tobytes(), (rule, interpolation, crop)


class Collection:
    def __init__(self):
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir()
        self.rows = []

    def add(self, name, ending, content, preparations=()):
        (FOLDER / f"{name}.{ending}").write_bytes(content)
        decoded = ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB")
        self.keep(f"{name}.{ending}", "decoded", decoded, f"{name}.decoded.png")
        number = 0
        for rule, interpolation, crop in preparations:
            prepared = centre_crop(resize(decoded, rule, interpolation), crop)
            if prepared.width * prepared.height > LARGEST_REFERENCE:
                continue
            compare_with_torchvision(decoded, rule, interpolation, crop, prepared)
            number += 1
            words = f"{rule}, {interpolation}, {crop}"
            self.keep(f"{name}.{ending}", words, prepared, f"{name}.{number}.png")

    def add_older_order(self, name, ending):
        decoded = ImageOps.exif_transpose(Image.open(FOLDER / f"{name}.{ending}")).convert("RGB")
        for number, (rule, interpolation, crop) in enumerate(OLDER_ORDER, 1):
            width = rule.rpartition("x")[2]
            across = resize(decoded, f"exact {decoded.height}x{width}", interpolation)
            prepared = centre_crop(resize(across, rule, interpolation), crop)
            words = f"{rule}, {interpolation}, {crop}, across first"
            self.keep(f"{name}.{ending}", words, prepared, f"{name}.older-{number}.png")

    def keep(self, picture, preparation, reference, file):
        Image.fromarray(numpy.asarray(reference)).save(FOLDER / file, optimize=True)
        self.rows.append("\t".join([picture, preparation, file]))

    def close(self):
        text = "# Written by make_pictures.py; see there for the method.\n# picture\tpreparation\treference\n"
        (FOLDER / "list.tsv").write_text(text + "".join(row + "\n" for row in self.rows), encoding="ascii")


def encoded(picture, form, **options):
    buffer = io.BytesIO()
    picture.save(buffer, form, **options)
    return buffer.getvalue()


def refactored(content, width, height, factors):
    frame = content.index(b"\xff\xc0") + 5
    size = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return content[:frame] + size + content[frame + 4 : frame + 6] + bytes([factors]) + content[frame + 7 :]


def raw_png(width, height, depth, colour, generator, extra=b""):
    """A PNG of random samples in a form that Pillow reads but does not write."""

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    channels = {0: 1, 2: 3, 4: 2, 6: 4}[colour]
    row = (width * channels * depth + 7) // 8
    samples = b"".join(b"\0" + generator.integers(0, 256, row, dtype=numpy.uint8).tobytes() for _ in range(height))
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + (chunk(b"tRNS", extra) if extra else b"")
    return b"\x89PNG\r\n\x1a\n" + chunks + chunk(b"IDAT", zlib.compress(samples)) + chunk(b"IEND", b"")


def jpegs(collection, generator):
    for number, (content, width, height, subsampling, quality, options) in enumerate(JPEGS):
        picture = draw(content, width, height, generator)
        name = f"{content}-{width}x{height}-{subsampling}" + ("-progressive" if options.get("progressive") else "")
        written = encoded(picture, "JPEG", quality=quality, subsampling=SUBSAMPLINGS[subsampling], **options)
        chosen = [PREPARATIONS[(number * 2 + step * 3) % len(PREPARATIONS)] for step in range(3)]
        collection.add(name, "jpg", written, chosen)
        if content == "edges" and height > width > 20:
            collection.add_older_order(name, "jpg")
    for width, height, progressive in [(57, 41, False), (41, 57, True), (1, 9, False)]:
        picture = draw("edges", width, height, generator).convert("L")
        name = f"grey-{width}x{height}" + ("-progressive" if progressive else "")
        written = encoded(picture, "JPEG", quality=85, progressive=progressive)
        collection.add(name, "jpg", written, PREPARATIONS[:2] + PREPARATIONS[4:5])
    picture = draw("edges", 45, 31, generator)
    collection.add("rgb-45x31", "jpg", encoded(picture, "JPEG", quality=90, keep_rgb=True))
    collection.add("cmyk-45x31", "jpg", encoded(picture.convert("CMYK"), "JPEG", quality=90))
    # A luminance quantiser of ones and a coarse chroma quantiser, so that the tables are told apart.
    tables = [[1] * 64, [40] * 64]
    collection.add("tables-45x31", "jpg", encoded(picture, "JPEG", qtables=tables, subsampling="4:2:0"))
    # The same coded blocks under other sampling factors: scrambled, but valid.
    square = encoded(draw("edges", 32, 32, generator), "JPEG", quality=90, subsampling="4:2:0")
    for width, height, factors in [(64, 16, 0x41), (63, 15, 0x41), (16, 64, 0x14), (13, 63, 0x14)]:
        collection.add(f"factors-{width}x{height}", "jpg", refactored(square, width, height, factors))
    square = encoded(draw("edges", 32, 32, generator), "JPEG", quality=90, subsampling="4:2:2")
    for width, height in [(32, 32), (31, 27)]:
        collection.add(f"factors-{width}x{height}", "jpg", refactored(square, width, height, 0x12))
    picture = draw("edges", 27, 14, generator)
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        collection.add(
            f"turned-{orientation}", "jpg", encoded(picture, "JPEG", quality=90, exif=exif.tobytes()), PREPARATIONS[:1]
        )


def others(collection, generator):
    picture = draw("edges", 45, 31, generator)
    veil = Image.fromarray(generator.integers(0, 256, (31, 45), dtype=numpy.uint8))
    clear = picture.copy()
    clear.putalpha(veil)
    grey_clear = picture.convert("LA")
    grey_clear.putalpha(veil)
    palette = picture.quantize(13)
    png = {
        "colour": picture,
        "colour-alpha": clear,
        "grey": picture.convert("L"),
        "grey-alpha": grey_clear,
        "palette": palette,
        "bilevel": picture.convert("1"),
        "grey-16": Image.fromarray(generator.integers(0, 65536, (19, 23), dtype=numpy.uint16)),
    }
    for name, drawn in png.items():
        collection.add(f"png-{name}", "png", encoded(drawn, "PNG"), PREPARATIONS[:1])
    for depth, colour in [(2, 0), (4, 0), (16, 2), (16, 4), (16, 6)]:
        collection.add(f"png-raw-{depth}-{colour}", "png", raw_png(19, 11, depth, colour, generator))
    collection.add("png-raw-clear-grey", "png", raw_png(19, 11, 8, 0, generator, extra=b"\0\7"))
    collection.add("png-raw-clear-grey-16", "png", raw_png(9, 11, 16, 0, generator, extra=b"\0\7"))
    collection.add("png-palette-clear", "png", encoded(palette, "PNG", transparency=bytes([0, 100, 255])))
    exif = Image.Exif()
    exif[0x0112] = 6
    collection.add("png-turned", "png", encoded(picture, "PNG", exif=exif.tobytes()))
    collection.add("webp-lossless", "webp", encoded(picture, "WEBP", lossless=True), PREPARATIONS[:1])
    collection.add("webp-lossless-alpha", "webp", encoded(clear, "WEBP", lossless=True, exact=True))
    collection.add("webp-turned", "webp", encoded(picture, "WEBP", lossless=True, exif=exif.tobytes()))
    collection.add("webp-lossy", "webp", encoded(picture, "WEBP", quality=80), PREPARATIONS[:1])
    collection.add("webp-lossy-noise", "webp", encoded(draw("noise", 37, 29, generator), "WEBP", quality=90))
    collection.add("webp-lossy-alpha", "webp", encoded(clear, "WEBP", quality=60))


def main():
    warnings.filterwarnings("ignore", message="Palette images with Transparency")
    generator = numpy.random.default_rng(20240711)
    collection = Collection()
    jpegs(collection, generator)
    others(collection, generator)
    collection.close()


if __name__ == "__main__":
    main()
