"""Photos of every odd kind: turned, transparent, deep, tiny, long, animated, damaged."""

import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SHEET = Path(__file__).parent.parent / "docs/cifar10_test_images.png"
# EXIF fields that Pillow cannot write back (two), and one whose value is beyond the file.
FIELDS = {
    "rational": struct.pack("<HHIIiI", 0x11A, 10, 1, 38, -1, 0),
    "byte": struct.pack("<HHII", 0x11A, 1, 1, 72),
    "beyond": struct.pack("<HHII", 0x10F, 2, 100, 99_999),
}


def exif(orientation: int, field: bytes) -> bytes:
    entry = struct.pack("<HHII", 0x112, 3, 1, orientation)
    return b"Exif\0\0II*\0" + struct.pack("<IH", 8, 2) + entry + field[:12] + bytes(4) + field[12:]


def picture(number: int) -> Image.Image:
    """One of a few photos, with its own colors and sides."""
    rng = np.random.default_rng(number)
    left = 32 * int(rng.integers(12))
    photo = Image.open(SHEET).convert("RGB").crop((left, 0, left + 32, 32))
    pixels = 255 * (np.asarray(photo) / 255) ** rng.uniform(0.5, 2, 3)
    sides = rng.integers(20, 120, 2).tolist()
    return Image.fromarray(pixels.astype(np.uint8)).resize(sides, Image.Resampling.BICUBIC)


def deep(photo: Image.Image, white: int, dtype: type = np.uint16) -> Image.Image:
    """In gray, with values up to about `white`."""
    return Image.fromarray((np.asarray(photo.convert("L")) * (white / 255)).astype(dtype))


def faded(photo: Image.Image, mode: str = "RGBA") -> Image.Image:
    """With an alpha channel, from transparent to opaque."""
    photo = photo.convert(mode)
    photo.putalpha(Image.linear_gradient("L").resize(photo.size))
    return photo


def save(photo: Image.Image, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    photo.save(buffer, form, **options)
    return buffer.getvalue()


def animate(photo: Image.Image, form: str, **options: Any) -> bytes:
    others = [photo.rotate(turn) for turn in (90, 180)]
    return save(photo, form, save_all=True, append_images=others, **options)


# The content of a file by the end of its name, made of a photo and its number.
KINDS: dict[str, Callable[[Image.Image, int], bytes]] = {
    "turned.jpg": lambda photo, n: save(photo, "JPEG", exif=exif(n % 8 + 1, bytes(12))),
    "turned.tif": lambda photo, n: save(photo, "TIFF", tiffinfo={0x112: n % 8 + 1}),
    "odd_exif.png": lambda photo, n: save(
        photo, "PNG", exif=exif(n % 8 + 1, [*FIELDS.values()][n % 3])
    ),
    "no_exif.png": lambda photo, n: save(photo, "PNG", exif=b"no EXIF"),
    "progressive.jpg": lambda photo, n: save(photo, "JPEG", progressive=True, quality=60),
    "cmyk.jpg": lambda photo, n: save(photo.convert("CMYK"), "JPEG"),
    "cmyk.tif": lambda photo, n: save(photo.convert("CMYK"), "TIFF", compression="tiff_lzw"),
    "lab.tif": lambda photo, n: save(Image.new("LAB", photo.size), "TIFF"),
    "gray.jpg": lambda photo, n: save(photo.convert("L"), "JPEG"),
    "gray_alpha.png": lambda photo, n: save(faded(photo, "L"), "PNG"),
    "bits.png": lambda photo, n: save(photo.convert("1"), "PNG"),
    "16_bits.png": lambda photo, n: save(deep(photo, 65_535), "PNG"),
    "12_bits.png": lambda photo, n: save(deep(photo, 4_095), "PNG"),
    "16_bits.tif": lambda photo, n: save(deep(photo, 65_535), "TIFF", tiffinfo={0x112: n % 8 + 1}),
    "32_bits.tif": lambda photo, n: save(deep(photo, 1_000, np.int32), "TIFF"),
    "too_deep.tif": lambda photo, n: save(deep(photo, 10**6, np.int32), "TIFF"),
    "floats.tif": lambda photo, n: save(deep(photo, 1, np.float32), "TIFF"),
    "palette.png": lambda photo, n: save(photo.convert("P"), "PNG", transparency=n % 256),
    "palette_alpha.png": lambda photo, n: save(
        photo.quantize(256), "PNG", transparency=bytes(range(256))
    ),
    "key.png": lambda photo, n: save(photo, "PNG", transparency=photo.getpixel((0, 0))),
    "alpha.png": lambda photo, n: save(faded(photo), "PNG"),
    "alpha.webp": lambda photo, n: save(faded(photo), "WEBP"),
    "alpha.tif": lambda photo, n: save(faded(photo), "TIFF"),
    "pages.tif": lambda photo, n: animate(photo, "TIFF"),
    "a.gif": lambda photo, n: save(photo, "GIF"),
    "key.gif": lambda photo, n: save(photo.convert("P"), "GIF", transparency=n % 256),
    "animated.gif": lambda photo, n: animate(photo, "GIF"),
    "animated.png": lambda photo, n: animate(photo, "PNG"),
    "animated.webp": lambda photo, n: animate(photo, "WEBP"),
    "a.bmp": lambda photo, n: save(photo, "BMP"),
    "a.ppm": lambda photo, n: save(photo, "PPM"),
    "a.jp2": lambda photo, n: save(photo, "JPEG2000"),
    "a.avif": lambda photo, n: save(photo, "AVIF"),
    "pixel.png": lambda photo, n: save(photo.resize((1, 1)), "PNG"),
    "wide.png": lambda photo, n: save(photo.resize((700, 3)), "PNG"),
    "tall.jpg": lambda photo, n: save(photo.resize((2, 500)), "JPEG"),
    "large.jpg": lambda photo, n: save(photo.resize((1_500, 1_001)), "JPEG"),
    "cut.jpg": lambda photo, n: save(photo, "JPEG")[: 300 + n],
    "cut.png": lambda photo, n: save(photo, "PNG")[:-30],
    "text.jpg": lambda photo, n: b"no image",
    "empty.png": lambda photo, n: b"",
}


def write_odd_photos(folder: Path, count: int) -> None:
    """Write this many photos, of all KINDS in turn."""
    folder.mkdir()
    for number in range(count):
        name = [*KINDS][number % len(KINDS)]
        content = KINDS[name](picture(number), number)
        (folder / f"{number:03}_{name}").write_bytes(content)
