"""Images -> squares of bytes."""

from __future__ import annotations

import io
import stat
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeGuard

import numpy as np

from allyouneed.errors import shortened

if TYPE_CHECKING:
    from PIL import Image

VERSION = 2  # raise it whenever the same file gives other bytes than before
# What is read, by Pillow's name, and how such files are called. All of them are decoded inside this process: others,
# such as EPS, start a program that runs what the file says.
FORMATS: dict[str, tuple[str, ...]] = {
    "PNG": (".png",),
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "GIF": (".gif",),
    "BMP": (".bmp",),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
    "ICO": (".ico",),
    "AVIF": (".avif",),
    "JPEG2000": (".jp2",),
    "TGA": (".tga",),  # the last: nothing at its beginning identifies it
}
ENDINGS = tuple(ending for endings in FORMATS.values() for ending in endings)
SEVERAL = "MPO"  # what Pillow calls a JPEG with further images behind the first
MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
WIDEST, MOST_PIXELS = 1 << 14, 1 << 26  # of an image that is decoded: more is a mistake or an attack
MOST_BYTES = 1 << 28  # of a file
TOGETHER = 32  # images that are computed at once, and that each thread decodes before the next are read
MOVING = ("GIF", "WEBP", "PNG", "AVIF")  # formats whose frames are a clip; further ones of a photo are previews


class BadImageError(Exception):
    """Why a file is no image; without its name. `passing`: the next try may succeed, so it is never left out."""

    def __init__(self, reason: str, passing: bool = False) -> None:
        super().__init__(reason)
        self.passing = passing


def decode(source: Any, side: int, channels: int) -> bytes:
    """side · side · channels bytes of a file, of its content, of a PIL image or of an array: turned as its EXIF
    says, scaled, and cut to the square in the middle. Of several frames, the first."""
    return decode_frames(source, side, channels, 1)[0]


def decode_frames(source: Any, side: int, channels: int, most: int) -> list[bytes]:
    """`decode` of the frames of a file, which are at most `most`, at equal distances."""
    with quiet():
        return _frames(source, side, channels, most)


def _frames(source: Any, side: int, channels: int, most: int) -> list[bytes]:
    with pillow_errors():
        if isinstance(source, np.ndarray):
            if source.shape == (side, side, channels) and source.dtype == np.uint8:
                return [source.tobytes()]
            source = to_image(source)
        if is_image(source):
            check(source)
            return [_square(source, side, channels)]
        content = source if isinstance(source, bytes) else _content(Path(source))
        if not content:
            raise BadImageError("it is empty")
        with open_image(io.BytesIO(content)) as image:
            check(image)
            frames = getattr(image, "n_frames", 1) if most > 1 and image.format in MOVING else 1
            squares = []
            for number in range(0, frames, -(-frames // most)):
                if number:
                    image.seek(number)
                    check(image)  # a frame may be larger than the first
                squares.append(_square(image, side, channels))
            return squares


def open_image(source: str | IO[bytes]) -> Image.Image:
    """A file of one of FORMATS, under any name; its pixels are not read yet."""
    from PIL import Image

    Image.init()
    return Image.open(source, formats=[name for name in FORMATS if name in Image.OPEN])  # as this Pillow was built


@contextmanager
def pillow_errors() -> Iterator[None]:
    """Whatever Pillow finds wrong with a file becomes a BadImageError."""
    from PIL import Image

    try:
        yield
    except BadImageError:
        raise
    except MemoryError:
        raise BadImageError("there is not enough memory to decode it", passing=True) from None
    except Image.DecompressionBombError:
        raise BadImageError(f"it has too many pixels; at most {MOST_PIXELS:,} are decoded") from None
    except Image.UnidentifiedImageError:
        raise BadImageError(
            f"it is no image, or of a kind that is not read here; these are: {', '.join(FORMATS)}"
        ) from None
    except Exception as error:  # for a damaged file, decoders raise errors of any class
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise BadImageError(f"it is damaged: {reason}") from None


def quiet() -> AbstractContextManager[Any]:
    """Without the warnings of Pillow of large images and odd files: what is wrong is an error. Not for two threads at
    once, which would put back each other's settings."""
    return warnings.catch_warnings(action="ignore")


def is_image(given: Any) -> TypeGuard[Image.Image]:
    """Whether it is a PIL image."""
    from PIL import Image

    return isinstance(given, Image.Image)


def check(image: Image.Image) -> None:
    """The kind and the size of an image, before anything of it is decoded. One that was made in memory has no kind."""
    if image.format not in (None, *FORMATS, SEVERAL):
        raise BadImageError(
            f"it is of the kind {image.format}, which is not read here: give a copy of it, image.copy()"
        )
    width, height = image.size
    if width > WIDEST or height > WIDEST or width * height > MOST_PIXELS:
        raise BadImageError(
            f"it has {width:,} x {height:,} pixels; at most {WIDEST:,} on a side and {MOST_PIXELS:,} in all are decoded"
        )


def _square(image: Image.Image, side: int, channels: int) -> bytes:
    from PIL import Image, ImageOps

    upright = plain(ImageOps.exif_transpose(image), channels)
    if upright.size != (side, side):
        upright = ImageOps.fit(upright, (side, side), Image.Resampling.BICUBIC)
    return upright.tobytes()


def plain(image: Image.Image, channels: int) -> Image.Image:
    """In one of MODES. Where an image is transparent and the mode is not, white shines through."""
    from PIL import Image

    if image.mode == "I" or image.mode.startswith("I;16"):  # 16 bits, even if all values are small
        image = Image.fromarray(as_bytes(np.asarray(image).clip(0, 65535).astype(np.uint16)))
    elif image.mode == "F":
        image = Image.fromarray(as_bytes(np.asarray(image)))
    if image.mode == "P" or "transparency" in image.info:
        image = image.convert("RGBA")
    if image.mode in ("LA", "La", "PA", "RGBa", "RGBA") and channels in (1, 3):
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return (image.convert("RGB") if image.mode == "CMYK" else image).convert(MODES[channels])


def to_image(pixels: np.ndarray) -> Image.Image:
    """An array (H, W) or (H, W, C) as a PIL image."""
    from PIL import Image

    check_form(pixels.shape, pixels.dtype)
    pixels = as_bytes(np.asarray(pixels))
    return Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)


def as_bytes(values: np.ndarray) -> np.ndarray:
    """Numbers of any type as bytes. Floats are parts of 1, or go up to 255; whole numbers have 16 bits if their type
    has, or if there is one above 255."""
    if values.dtype == np.uint8:
        return values
    if values.dtype == bool:
        return values.astype(np.uint8) * 255
    most = float(values.max(initial=0))
    if not np.isfinite(most) or float(values.min(initial=0)) < 0:
        raise BadImageError("it has values that are negative or not finite")
    if np.issubdtype(values.dtype, np.floating):
        if 1 < most <= 2 or most > 256:
            raise BadImageError(f"its values go up to {most:g}: give parts of 1, or numbers from 0 to 255")
        scale = 255.0 if most <= 1 else 1.0
    else:
        deep = values.dtype.kind == "u" and values.dtype.itemsize == 2  # in either order of its bytes
        scale = 1.0 if most <= 255 and not deep else 255 / 65535
    found = np.empty(values.shape, np.uint8)
    for at in range(0, len(values), TOGETHER):  # not all at once: in between, a value may take more room
        found[at : at + TOGETHER] = np.clip(np.rint(values[at : at + TOGETHER] * scale), 0, 255)
    return found


def check_form(shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Whether an array of this shape and type is an image."""
    if len(shape) not in (2, 3) or not all(shape) or (len(shape) == 3 and shape[2] > max(MODES)):
        raise BadImageError(
            f"the shape {shortened(shape)} is not that of an image: (height, width), or (height, width, channels) "
            "with 1 to 4 channels"
        )
    if dtype.kind not in "buif":
        raise BadImageError(f"values of the type {shortened(dtype)} are no pixels: give numbers")


def _content(path: Path) -> bytes:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise BadImageError("it is no file")
        if found.st_size > MOST_BYTES:
            raise BadImageError(f"it has {found.st_size:,} bytes; at most {MOST_BYTES:,} are read")
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in its name
        raise BadImageError(f"it cannot be read: {getattr(error, 'strerror', '') or error}", passing=True) from None


def decode_all(sources: Sequence[Any], side: int, channels: int, workers: int) -> Iterator[bytes | BadImageError]:
    """`decode` of each, in order, in several threads: Pillow decodes without the lock of Python."""

    def decoded(source: Any) -> bytes | BadImageError:
        try:
            return _frames(source, side, channels, 1)[0]
        except BadImageError as error:
            return error

    with ThreadPoolExecutor(workers) as pool:
        for start in range(0, len(sources), size := TOGETHER * workers):
            with quiet():
                found = list(pool.map(decoded, sources[start : start + size]))
            yield from found
