"""Files that must stay as they are while a run reads them again and again."""

from __future__ import annotations

import hashlib
from pathlib import Path

from allyouneed.errors import UserError


class WatchedFile:
    """A file as it was when it was first looked at."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp = self._look()
        self._digest = ""

    def digest(self) -> str:
        """A hash of the contents, computed once. An error if the file has changed since it was first looked at."""
        if not self._digest:
            digest = self._hash()
            if self._look() != self._stamp:
                raise UserError(f"{self.path} changed while it was being read: wait until it is complete, then start")
            self._digest = digest
        return self._digest

    def check(self) -> None:
        """An error if the contents have changed; a file that was only touched or copied back is the same file."""
        stamp = self._look()
        if stamp == self._stamp:
            return
        if self._hash() != self._digest or self._look() != stamp:
            raise UserError(
                f"{self.path} has changed since this run first read it: start again, and do not write to the file "
                "until the run has ended"
            )
        self._stamp = stamp

    def _look(self) -> tuple[int, ...]:
        try:
            found = self.path.stat()
        except OSError as error:
            raise _unreadable(self.path, error) from None
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def _hash(self) -> str:
        try:
            with self.path.open("rb") as file:
                return hashlib.file_digest(file, "blake2b").hexdigest()
        except OSError as error:
            raise _unreadable(self.path, error) from None


def _unreadable(path: Path, error: OSError) -> UserError:
    if isinstance(error, FileNotFoundError):
        return UserError(f"{path} is not there any more: put it back and start again")
    return UserError(f"{path} cannot be read: {error.strerror or error}")
