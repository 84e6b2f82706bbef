"""What happens to pictures on their way: edits by Pillow, each from a decoded picture to a decoded picture."""

import io

import numpy
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps


def saved(kind, quality):
    """Saved in a lossy format and read again."""

    def edit(picture, random):
        file = io.BytesIO()
        picture.save(file, kind, quality=quality)
        return Image.open(file).convert("RGB")

    return edit


def noise(deviation):
    """Independent Gaussian noise on every value, of this standard deviation in grey levels."""

    def edit(picture, random):
        values = numpy.asarray(picture, dtype=numpy.float64)
        noisy = values + deviation * random.standard_normal(values.shape)
        return Image.fromarray(numpy.clip(numpy.rint(noisy), 0, 255).astype(numpy.uint8))

    return edit


def half(picture, random):
    """Half the width and height."""
    size = (max(1, picture.width // 2), max(1, picture.height // 2))
    return picture.resize(size, Image.Resampling.BICUBIC)


def half_and_back(picture, random):
    """Half the width and height, and enlarged to what they were."""
    return half(picture, random).resize(picture.size, Image.Resampling.BICUBIC)


def caption(picture, random):
    """A black bar with white letters over the lowest tenth."""
    captioned = picture.copy()
    draw = ImageDraw.Draw(captioned)
    top = picture.height - max(1, picture.height // 10)
    draw.rectangle((0, top, picture.width, picture.height), fill="black")
    draw.text((picture.width // 2, (top + picture.height) // 2), "LOOK AT THIS", fill="white", anchor="mm")
    return captioned


def crop(share):
    """This share of each side cut away, in equal parts from both ends."""

    def edit(picture, random):
        across, down = picture.width * share / 2, picture.height * share / 2
        box = (round(across), round(down), round(picture.width - across), round(picture.height - down))
        return picture.crop(box)

    return edit


def rotation(degrees):
    """Turned about its middle; the corners are black."""
    return lambda picture, random: picture.rotate(degrees, Image.Resampling.BICUBIC)


def enhanced(enhancer, factor):
    """One of Pillow's enhancers."""
    return lambda picture, random: enhancer(picture).enhance(factor)


EDITS = {
    "JPEG 90": saved("JPEG", 90),
    "JPEG 50": saved("JPEG", 50),
    "JPEG 20": saved("JPEG", 20),
    "JPEG 10": saved("JPEG", 10),
    "WebP 50": saved("WEBP", 50),
    "WebP 10": saved("WEBP", 10),
    "blur, radius 1": lambda picture, random: picture.filter(ImageFilter.GaussianBlur(1)),
    "blur, radius 2": lambda picture, random: picture.filter(ImageFilter.GaussianBlur(2)),
    "sharpened": lambda picture, random: picture.filter(ImageFilter.UnsharpMask(2, 100)),
    "noise, 5 of 255": noise(5),
    "noise, 20 of 255": noise(20),
    "half size and back": half_and_back,
    "half size": half,
    "brightness +10 %": enhanced(ImageEnhance.Brightness, 1.1),
    "brightness -10 %": enhanced(ImageEnhance.Brightness, 0.9),
    "contrast +20 %": enhanced(ImageEnhance.Contrast, 1.2),
    "contrast -20 %": enhanced(ImageEnhance.Contrast, 0.8),
    "black and white": lambda picture, random: ImageOps.grayscale(picture).convert("RGB"),
    "caption bar": caption,
    "crop 2 %": crop(0.02),
    "crop 10 %": crop(0.1),
    "rotation 1°": rotation(1),
    "rotation 5°": rotation(5),
    "mirrored": lambda picture, random: ImageOps.mirror(picture),
}


def edited(name, picture, seed):
    """The picture after an edit; what is random is a function of the seed."""
    return EDITS[name](picture, numpy.random.default_rng(seed))
