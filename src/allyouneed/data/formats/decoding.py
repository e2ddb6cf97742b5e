"""Pictures -> squares of bytes."""

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
SEVERAL = "MPO"  # what Pillow calls a JPEG with further pictures behind the first
MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
WIDEST, MOST_PIXELS = 1 << 14, 1 << 26  # of a picture that is decoded: more is a mistake or an attack
MOST_BYTES = 1 << 28  # of a file
TOGETHER = 32  # pictures that are computed at once, and that each thread decodes before the next are read
MOVING = ("GIF", "WEBP", "PNG", "AVIF")  # formats whose frames are a clip; further ones of a photo are previews


class BadPictureError(Exception):
    """Why a file is no picture; without its name. `passing`: the next try may succeed, so it is never left out."""

    def __init__(self, reason: str, passing: bool = False) -> None:
        super().__init__(reason)
        self.passing = passing


def decode(source: Any, side: int, channels: int) -> bytes:
    """side · side · channels bytes of a file, of its content, of an image of Pillow or of an array: turned as its EXIF
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
            raise BadPictureError("it is empty")
        with open_picture(io.BytesIO(content)) as picture:
            check(picture)
            frames = getattr(picture, "n_frames", 1) if most > 1 and picture.format in MOVING else 1
            squares = []
            for number in range(0, frames, -(-frames // most)):
                if number:
                    picture.seek(number)
                    check(picture)  # a frame may be larger than the first
                squares.append(_square(picture, side, channels))
            return squares


def open_picture(source: str | IO[bytes]) -> Image.Image:
    """A file of one of FORMATS, under any name; its pixels are not read yet."""
    from PIL import Image

    Image.init()
    return Image.open(source, formats=[name for name in FORMATS if name in Image.OPEN])  # as this Pillow was built


@contextmanager
def pillow_errors() -> Iterator[None]:
    """Whatever Pillow finds wrong with a file becomes a BadPictureError."""
    from PIL import Image

    try:
        yield
    except BadPictureError:
        raise
    except MemoryError:
        raise BadPictureError("there is not enough memory to decode it", passing=True) from None
    except Image.DecompressionBombError:
        raise BadPictureError(f"it has too many pixels; at most {MOST_PIXELS:,} are decoded") from None
    except Image.UnidentifiedImageError:
        raise BadPictureError(
            f"it is no picture, or of a kind that is not read here; these are: {', '.join(FORMATS)}"
        ) from None
    except Exception as error:  # for a damaged file, decoders raise errors of any class
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise BadPictureError(f"it is damaged: {reason}") from None


def quiet() -> AbstractContextManager[Any]:
    """Without the warnings of Pillow of large pictures and odd files: what is wrong is an error. Not for two threads at
    once, which would put back each other's settings."""
    return warnings.catch_warnings(action="ignore")


def is_image(given: Any) -> TypeGuard[Image.Image]:
    """Whether it is an image of Pillow."""
    from PIL import Image

    return isinstance(given, Image.Image)


def check(picture: Image.Image) -> None:
    """The kind and the size of a picture, before anything of it is decoded. One that was made in memory has no kind."""
    if picture.format not in (None, *FORMATS, SEVERAL):
        raise BadPictureError(
            f"it is of the kind {picture.format}, which is not read here: give a copy of it, picture.copy()"
        )
    width, height = picture.size
    if width > WIDEST or height > WIDEST or width * height > MOST_PIXELS:
        raise BadPictureError(
            f"it has {width:,} x {height:,} pixels; at most {WIDEST:,} on a side and {MOST_PIXELS:,} in all are decoded"
        )


def _square(picture: Image.Image, side: int, channels: int) -> bytes:
    from PIL import Image, ImageOps

    upright = plain(ImageOps.exif_transpose(picture), channels)
    if upright.size != (side, side):
        upright = ImageOps.fit(upright, (side, side), Image.Resampling.BICUBIC)
    return upright.tobytes()


def plain(picture: Image.Image, channels: int) -> Image.Image:
    """In one of MODES. Where a picture is transparent and the mode is not, white shines through."""
    from PIL import Image

    if picture.mode == "I" or picture.mode.startswith("I;16"):  # 16 bits, even if all values are small
        picture = Image.fromarray(as_bytes(np.asarray(picture).clip(0, 65535).astype(np.uint16)))
    elif picture.mode == "F":
        picture = Image.fromarray(as_bytes(np.asarray(picture)))
    if picture.mode == "P" or "transparency" in picture.info:
        picture = picture.convert("RGBA")
    if picture.mode in ("LA", "La", "PA", "RGBa", "RGBA") and channels in (1, 3):
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return (picture.convert("RGB") if picture.mode == "CMYK" else picture).convert(MODES[channels])


def to_image(pixels: np.ndarray) -> Image.Image:
    """An array (H, W) or (H, W, C) as a picture of Pillow."""
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
        raise BadPictureError("it has values that are negative or not finite")
    if np.issubdtype(values.dtype, np.floating):
        if 1 < most <= 2 or most > 256:
            raise BadPictureError(f"its values go up to {most:g}: give parts of 1, or numbers from 0 to 255")
        scale = 255.0 if most <= 1 else 1.0
    else:
        deep = values.dtype.kind == "u" and values.dtype.itemsize == 2  # in either order of its bytes
        scale = 1.0 if most <= 255 and not deep else 255 / 65535
    found = np.empty(values.shape, np.uint8)
    for at in range(0, len(values), TOGETHER):  # not all at once: in between, a value may take more room
        found[at : at + TOGETHER] = np.clip(np.rint(values[at : at + TOGETHER] * scale), 0, 255)
    return found


def check_form(shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Whether an array of this shape and type is a picture."""
    if len(shape) not in (2, 3) or not all(shape) or (len(shape) == 3 and shape[2] > max(MODES)):
        raise BadPictureError(
            f"the shape {shortened(shape)} is not that of a picture: (height, width), or (height, width, channels) "
            "with 1 to 4 channels"
        )
    if dtype.kind not in "buif":
        raise BadPictureError(f"values of the type {shortened(dtype)} are no pixels: give numbers")


def _content(path: Path) -> bytes:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise BadPictureError("it is no file")
        if found.st_size > MOST_BYTES:
            raise BadPictureError(f"it has {found.st_size:,} bytes; at most {MOST_BYTES:,} are read")
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in its name
        raise BadPictureError(f"it cannot be read: {getattr(error, 'strerror', '') or error}", passing=True) from None


def decode_all(sources: Sequence[Any], side: int, channels: int, workers: int) -> Iterator[bytes | BadPictureError]:
    """`decode` of each, in order, in several threads: Pillow decodes without the lock of Python."""

    def decoded(source: Any) -> bytes | BadPictureError:
        try:
            return _frames(source, side, channels, 1)[0]
        except BadPictureError as error:
            return error

    with ThreadPoolExecutor(workers) as pool:
        for start in range(0, len(sources), size := TOGETHER * workers):
            with quiet():
                found = list(pool.map(decoded, sources[start : start + size]))
            yield from found
