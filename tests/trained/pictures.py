"""Crops of scikit-image's pictures, and lines of text, each with what is known of it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from nets import find
from PIL import Image, ImageDraw, ImageFont

FACE = (180.0, 74.0, 273.0, 180.0)  # of the astronaut: left, top, right, bottom, read off by eye
WITHOUT_FACES = ("coffee.png", "chelsea.png", "rocket.jpg", "retina.jpg", "motorcycle_left.png")

Array = np.ndarray[Any, Any]
Box = tuple[float, float, float, float]


@cache
def open_picture(name: str) -> Image.Image:
    """One of scikit-image's pictures, which are read without its code."""
    return Image.open(find("skimage") / "data" / name).convert("RGB")


def cut(picture: Image.Image, box: Box, width: int, height: int = 0) -> Array:
    """[height, width, 3], 0 to 255, what is beyond the picture's edge black."""
    size = (width, height or width)
    return np.asarray(
        picture.transform(size, Image.Transform.EXTENT, box, Image.Resampling.BICUBIC)
        if (box[2] - box[0]) <= 2 * width
        else picture.resize(size, Image.Resampling.BILINEAR, clip(box, picture.size)),
        np.float32,
    )


def clip(box: Box, size: tuple[int, int]) -> Box:
    return (max(box[0], 0), max(box[1], 0), min(box[2], size[0]), min(box[3], size[1]))


def light(pixels: Array, random: np.random.Generator) -> Array:
    """Another exposure: contrast and brightness."""
    mean = pixels.mean()
    changed = (pixels - mean) * random.uniform(0.7, 1.2) + mean + random.uniform(-30, 30)
    return np.clip(changed, 0, 255).astype(np.float32)


def view_face(random: np.random.Generator, size: int, share: float) -> tuple[Array, Box]:
    """A square window on the astronaut in which the face takes about ``share`` of the width.

    Returns [size, size, 3] and the face's box in pixels of it.
    """
    picture = open_picture("astronaut.png")
    side = (FACE[2] - FACE[0]) / (share * random.uniform(0.9, 1.15))
    middle = ((FACE[0] + FACE[2]) / 2, (FACE[1] + FACE[3]) / 2)
    room = max(0.5 * (1 - 1.3 * share), 0.06)
    left, top = (
        float(
            np.clip(
                at - side * (0.5 + random.uniform(-room, room)), 0, max(picture.width - side, 0)
            )
        )
        for at in middle
    )
    window = (left, top, left + side, top + side)
    scale = size / side
    box = tuple(
        (edge - start) * scale for edge, start in zip(FACE, (left, top, left, top), strict=True)
    )
    pixels = light(cut(picture, window, size), random)
    if random.uniform() < 0.5:
        pixels, box = pixels[:, ::-1], (size - box[2], box[1], size - box[0], box[3])
    return pixels, (box[0], box[1], box[2], box[3])


def view_other(random: np.random.Generator, width: int, name: str = "", height: int = 0) -> Array:
    """A window on a picture without a face, [height, width, 3]."""
    picture = open_picture(name or str(random.choice(WITHOUT_FACES)))
    high = random.uniform(0.5, 0.95) * picture.height
    wide = min(high * width / (height or width), picture.width)
    left, top = random.uniform(0, picture.width - wide), random.uniform(0, picture.height - high)
    return light(cut(picture, (left, top, left + wide, top + high), width, height), random)


def write_line(text: str, width: int, height: int, random: np.random.Generator) -> Array:
    """A line of dark text on a light ground, [height, width, 3], as wide as it fits."""
    picture, pen = _paper(width, height, random)
    size = height * 0.62
    while pen.textlength(text, ImageFont.load_default(size)) > 0.94 * width:
        size *= 0.95
    font = ImageFont.load_default(size)
    place = (0.03 * width, height / 2 + random.uniform(-0.04, 0.04) * height)
    pen.text(place, text, _ink(random), font, anchor="lm")
    return _grain(picture, random)


def write_page(
    lines: list[str], width: int, height: int, random: np.random.Generator
) -> tuple[Array, Array]:
    """Lines of text on a page, [height, width, 3], and where they are, [height, width]."""
    picture, pen = _paper(width, height, random)
    mask = Image.new("L", (width, height))
    top = random.uniform(6, 16)
    for line in lines:
        size = random.uniform(13, 20)
        font = ImageFont.load_default(size)
        while pen.textlength(line, font) > 0.9 * width:
            line = line.rpartition(" ")[0]
        left = random.uniform(4, max(5, width - pen.textlength(line, font) - 4))
        if top + size * 1.4 > height:
            break
        pen.text((left, top), line, _ink(random), font)
        x0, y0, x1, y1 = pen.textbbox((left, top), line, font)
        # What the detector marks is a line's box, shrunk by some 0.4 of its height.
        inset = 0.25 * (y1 - y0)
        ImageDraw.Draw(mask).rectangle((x0 + inset, y0 + inset, x1 - inset, y1 - inset), 255)
        top += size * random.uniform(1.7, 2.6)
    return _grain(picture, random), np.asarray(mask) > 0


def _paper(
    width: int, height: int, random: np.random.Generator
) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    ground = tuple(int(level) for level in random.uniform(190, 255, 3))
    picture = Image.new("RGB", (width, height), ground)
    return picture, ImageDraw.Draw(picture)


def _ink(random: np.random.Generator) -> tuple[int, int, int]:
    red, green, blue = (int(level) for level in random.uniform(0, 90, 3))
    return red, green, blue


def _grain(picture: Image.Image, random: np.random.Generator) -> Array:
    pixels = np.asarray(picture, np.float32)
    return np.clip(pixels + 4 * random.standard_normal(pixels.shape), 0, 255).astype(np.float32)
