"""Picture files -> squares of bytes. Run as a program, it decodes for another process: see `decode_all`."""

from __future__ import annotations

import io
import json
import os
import signal
import stat
import struct
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeGuard

import numpy as np

from allyouneed.errors import UserError, shortened

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
    "TGA": (".tga",),  # the last: it begins with nothing by which it could be told
}
ENDINGS = tuple(ending for endings in FORMATS.values() for ending in endings)
SEVERAL = "MPO"  # what Pillow calls a JPEG with further pictures behind the first
MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
WIDEST, MOST_PIXELS = 1 << 14, 1 << 26  # of a picture that is decoded: more is a mistake or an attack
MOST_BYTES = 1 << 28  # of a file
FEW = 200  # pictures that are decoded faster here than a second process starts
TOGETHER = 32  # pictures that a process gets at a time, or that are computed at once
HEADER = struct.Struct("<BI")  # GOOD, BAD or PASSING, and how many bytes follow
GOOD, BAD, PASSING = range(3)
MOVING = ("GIF", "WEBP", "PNG", "AVIF")  # formats whose frames are a clip; further ones of a photo are previews


class BadPictureError(Exception):
    """Why a file is no picture; without its name. `passing`: the next try may succeed, so it is never left out."""

    def __init__(self, told: str, passing: bool = False) -> None:
        super().__init__(told)
        self.passing = passing


def decode(source: str | Path | bytes, side: int, channels: int) -> bytes:
    """side · side · channels bytes of a file, or of its content: turned as its EXIF says, scaled, and cut to the square
    in the middle. Of several frames, the first."""
    return decode_frames(source, side, channels, 1)[0]


def decode_frames(source: str | Path | bytes, side: int, channels: int, most: int) -> list[bytes]:
    """`decode` of the frames of a file; at most so many, at equal distances."""
    if isinstance(source, str | Path):
        source = _content(Path(source))
    if not source:
        raise BadPictureError("it is empty")
    with damage_told(), open_picture(io.BytesIO(source)) as picture:
        check(picture)
        frames = getattr(picture, "n_frames", 1) if most > 1 and picture.format in MOVING else 1
        found = []
        for number in range(0, frames, -(-frames // most)):
            if number:
                picture.seek(number)
                check(picture)  # a frame may be larger than the first
            found.append(square(picture, side, channels))
        return found


def open_picture(source: str | IO[bytes]) -> Image.Image:
    """A file of one of FORMATS, whatever it is called; its pixels are not read yet."""
    from PIL import Image

    Image.init()
    return Image.open(source, formats=[name for name in FORMATS if name in Image.OPEN])  # as this Pillow was built


@contextmanager
def damage_told() -> Iterator[None]:
    """Whatever Pillow finds wrong with a file is a BadPictureError."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of large pictures and odd files; what is wrong is told below
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
        except Exception as error:  # decoders of many formats raise whatever they like for a damaged file
            told = " ".join(str(error).split())[:200] or type(error).__name__
            raise BadPictureError(f"it is damaged: {told}") from None


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


def square(picture: Image.Image, side: int, channels: int) -> bytes:
    """The bytes of a picture as `decode` gives them."""
    from PIL import Image, ImageOps

    upright = plain(ImageOps.exif_transpose(picture), channels)
    if upright.size != (side, side):
        upright = ImageOps.fit(upright, (side, side), Image.Resampling.BICUBIC)
    return upright.tobytes()


def plain(picture: Image.Image, channels: int) -> Image.Image:
    """In one of MODES. Where a picture is transparent and the mode is not, white shines through."""
    from PIL import Image

    if picture.mode == "I" or picture.mode.startswith("I;16"):  # 16 bits, whatever the largest value is
        picture = Image.fromarray(as_bytes(np.asarray(picture).clip(0, 65535).astype(np.uint16)))
    elif picture.mode == "F":
        picture = Image.fromarray(as_bytes(np.asarray(picture)))
    if picture.mode == "P" or "transparency" in picture.info:
        picture = picture.convert("RGBA")
    if picture.mode in ("LA", "La", "PA", "RGBa", "RGBA") and channels in (1, 3):
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return (picture.convert("RGB") if picture.mode == "CMYK" else picture).convert(MODES[channels])


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


def decode_all(paths: Sequence[str], side: int, channels: int, workers: int) -> Iterator[bytes | BadPictureError]:
    """`decode` of each file, in order, whatever the number of processes."""
    if workers < 2 or len(paths) < FEW:
        yield from (_tried(path, side, channels) for path in paths)
        return
    chunks = (paths[i : i + TOGETHER] for i in range(0, len(paths), TOGETHER))
    helpers: list[_Helper] = []
    own = threading.local()

    def ask(chunk: Sequence[str]) -> list[bytes | BadPictureError]:
        return own.helper.decode(chunk)

    pool = None
    try:
        helpers += [_Helper(side, channels) for _ in range(workers)]
        free = iter(helpers)
        pool = ThreadPoolExecutor(workers, initializer=lambda: setattr(own, "helper", next(free)))
        waiting = [pool.submit(ask, chunk) for chunk in islice(chunks, 4 * workers)]
        while waiting:
            yield from waiting.pop(0).result()
            waiting += [pool.submit(ask, chunk) for chunk in islice(chunks, 1)]
    finally:
        for helper in helpers:  # first: a thread that waits for one of them ends with it
            helper.process.kill()
        if pool is not None:
            pool.shutdown(cancel_futures=True)
        for helper in helpers:
            helper.close()


def _tried(path: str, side: int, channels: int) -> bytes | BadPictureError:
    try:
        return decode(path, side, channels)
    except BadPictureError as error:
        return error


class _Helper:
    """A process that decodes. It is this file as a program, not a copy of the caller: so a script that trains needs no
    `if __name__ == "__main__"`."""

    def __init__(self, side: int, channels: int) -> None:
        command = [sys.executable, "-P", "-m", "allyouneed.data.formats.decoding", str(side), str(channels)]
        here = str(Path(__file__).parents[2])
        paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
        )

    def decode(self, paths: Sequence[str]) -> list[bytes | BadPictureError]:
        asked, told = self._pipes()
        try:
            asked.write(json.dumps(list(paths)).encode() + b"\n")
            asked.flush()
        except OSError:  # its end of the pipe is gone
            raise _ended() from None
        found: list[bytes | BadPictureError] = []
        for _ in paths:
            kind, size = HEADER.unpack(_exactly(told, HEADER.size))
            data = _exactly(told, size)
            found.append(data if kind == GOOD else BadPictureError(data.decode(), kind == PASSING))
        return found

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        return self.process.stdin, self.process.stdout

    def close(self) -> None:
        for pipe in self._pipes():
            with suppress(OSError):
                pipe.close()
        self.process.wait()


def _exactly(pipe: IO[bytes], size: int) -> bytes:
    data = pipe.read(size)
    if len(data) < size:
        raise _ended()
    return data


def _ended() -> UserError:
    return UserError("a process that decodes pictures has ended: is there enough memory? try data.workers=1")


def _serve(side: int, channels: int, asked: IO[bytes], told: IO[bytes]) -> None:
    """One line of paths after the other, until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asked ends this process
    for line in asked:
        for path in json.loads(line):
            found = _tried(path, side, channels)
            kind = (PASSING if found.passing else BAD) if isinstance(found, BadPictureError) else GOOD
            data = str(found).encode(errors="backslashreplace") if isinstance(found, BadPictureError) else found
            told.write(HEADER.pack(kind, len(data)) + data)
        told.flush()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]), sys.stdin.buffer, sys.stdout.buffer)
