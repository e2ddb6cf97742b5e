"""Picture files -> squares of bytes. Run as a program, it decodes for another process: see `decode_all`."""

from __future__ import annotations

import io
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

VERSION = 1  # raise it whenever the same file gives other bytes than before
MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
WIDEST, MOST_PIXELS = 1 << 14, 1 << 26  # of a picture that is decoded: more is a mistake or an attack
FEW = 200  # pictures that are decoded faster here than a second process starts
TOGETHER = 32  # pictures that a process gets at a time
HEADER = struct.Struct("<?I")  # whether it is a picture, and how many bytes follow


class BadPictureError(Exception):
    """Why a file is no picture; without its name."""


def decode(source: str | Path | bytes, side: int, channels: int) -> bytes:
    """side · side · channels bytes of a file, or of its content: turned as its EXIF says, scaled, and cut to the square
    in the middle. Of several frames, the first."""
    return decode_frames(source, side, channels, 1)[0]


def decode_frames(source: str | Path | bytes, side: int, channels: int, most: int) -> list[bytes]:
    """`decode` of the frames of a file; of more than `most`, so many at equal distances."""
    from PIL import Image

    if isinstance(source, str | Path):
        source = _content(Path(source))
    if not source:
        raise BadPictureError("it is empty")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of large pictures and odd files; what is wrong is told below
        try:
            with Image.open(io.BytesIO(source)) as picture:
                check_size(*picture.size)
                frames = min(most, getattr(picture, "n_frames", 1)) if most > 1 else 1
                found = []
                for number in range(frames):
                    if number:
                        picture.seek(number * getattr(picture, "n_frames", 1) // frames)
                    found.append(square(picture, side, channels))
                return found
        except BadPictureError:
            raise
        except Image.DecompressionBombError:
            raise BadPictureError(f"it has too many pixels; at most {MOST_PIXELS:,} are decoded") from None
        except Image.UnidentifiedImageError:
            raise BadPictureError("it is no picture, or of a kind that Pillow does not read") from None
        except Exception as error:  # decoders of many formats raise whatever they like for a damaged file
            told = " ".join(str(error).split())[:200] or type(error).__name__
            raise BadPictureError(f"it is damaged: {told}") from None


def check_size(width: int, height: int) -> None:
    """Before anything is decoded."""
    if width > WIDEST or height > WIDEST or width * height > MOST_PIXELS:
        raise BadPictureError(
            f"it has {width:,} x {height:,} pixels; at most {WIDEST:,} on a side and {MOST_PIXELS:,} in all are decoded"
        )


def square(picture: Image.Image, side: int, channels: int) -> bytes:
    """The bytes of a picture as `decode` gives them."""
    from PIL import Image, ImageOps

    turned = plain(ImageOps.exif_transpose(picture), channels)
    if turned.size != (side, side):
        turned = ImageOps.fit(turned, (side, side), Image.Resampling.BICUBIC)
    return turned.tobytes()


def plain(picture: Image.Image, channels: int) -> Image.Image:
    """In one of MODES. Where a picture is transparent and the mode is not, white shines through."""
    from PIL import Image

    if picture.mode in ("I", "F") or picture.mode.startswith("I;16"):
        picture = Image.fromarray(as_bytes(np.asarray(picture)))
    if picture.mode == "P" or "transparency" in picture.info:
        picture = picture.convert("RGBA")
    if picture.mode in ("LA", "La", "PA", "RGBa", "RGBA") and channels in (1, 3):
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return (
        picture.convert("RGB").convert(MODES[channels]) if picture.mode == "CMYK" else picture.convert(MODES[channels])
    )


def as_bytes(values: np.ndarray) -> np.ndarray:
    """Numbers of any type as bytes: floats up to 1 are parts of 255, whole numbers above 255 have 16 bits."""
    if values.dtype == np.uint8:
        return values
    if values.dtype == bool:
        return values.astype(np.uint8) * 255
    most = float(values.max(initial=0))
    if not np.isfinite(most) or float(values.min(initial=0)) < 0:
        raise BadPictureError("it has values that are negative or not finite")
    if np.issubdtype(values.dtype, np.floating):
        scale = 255.0 if most <= 1 else 1.0
    else:
        scale = 1.0 if most <= 255 else 255 / 65535
    return np.clip(np.rint(values * scale), 0, 255).astype(np.uint8)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadPictureError(f"it cannot be read: {error.strerror or error}") from None


def decode_all(paths: Sequence[str], side: int, channels: int, workers: int) -> Iterator[bytes | BadPictureError]:
    """`decode` of each file, in order, whatever the number of processes."""
    if workers < 2 or len(paths) < FEW:
        yield from (_tried(path, side, channels) for path in paths)
        return
    chunks = (paths[i : i + TOGETHER] for i in range(0, len(paths), TOGETHER))
    helpers, own = [_Helper(side, channels) for _ in range(workers)], threading.local()
    free = iter(helpers)
    try:
        with ThreadPoolExecutor(workers, initializer=lambda: setattr(own, "helper", next(free))) as pool:
            waiting = [
                pool.submit(lambda chunk: own.helper.decode(chunk), chunk) for chunk in islice(chunks, 4 * workers)
            ]
            while waiting:
                yield from waiting.pop(0).result()
                if (chunk := next(chunks, None)) is not None:
                    waiting.append(pool.submit(lambda chunk: own.helper.decode(chunk), chunk))
    finally:
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
        command = [sys.executable, "-m", "allyouneed.data.decoding", str(side), str(channels)]
        here = str(Path(__file__).parents[2])
        paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
        )

    def decode(self, paths: Sequence[str]) -> list[bytes | BadPictureError]:
        asked, told = self._pipes()
        asked.write(json.dumps(list(paths)).encode() + b"\n")
        asked.flush()
        found: list[bytes | BadPictureError] = []
        for _ in paths:
            good, size = HEADER.unpack(_exactly(told, HEADER.size))
            data = _exactly(told, size)
            found.append(data if good else BadPictureError(data.decode()))
        return found

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        return self.process.stdin, self.process.stdout

    def close(self) -> None:
        self.process.kill()
        for pipe in self._pipes():
            pipe.close()
        self.process.wait()


def _exactly(pipe: IO[bytes], size: int) -> bytes:
    data = pipe.read(size)
    if len(data) < size:
        raise RuntimeError("a process that decodes pictures has ended: is there enough memory?")
    return data


def _serve(side: int, channels: int, asked: IO[bytes], told: IO[bytes]) -> None:
    """One line of paths after the other, until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asked ends this process
    for line in asked:
        for path in json.loads(line):
            found: Any = _tried(path, side, channels)
            data = str(found).encode() if isinstance(found, BadPictureError) else found
            told.write(HEADER.pack(not isinstance(found, BadPictureError), len(data)) + data)
        told.flush()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]), sys.stdin.buffer, sys.stdout.buffer)
