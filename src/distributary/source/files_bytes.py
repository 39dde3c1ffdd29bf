"""The bytes of one change file, in order, as far as they go: plain or out of gzip.

A file that ends in the middle of something may still be being written. Whoever needs more of it
goes back, which waits a moment where waiting can help; what is still missing then is a fault.
"""

from __future__ import annotations

import os
import time
import zlib
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

from distributary.errors import ErrorCode
from distributary.source.files_store import Files

MOST_LETTER_BYTES = 64 * 1024 * 1024
"""Of a file that cannot be read, so much at most becomes a dead letter."""
GZIP = b"\x1f\x8b"

_STEP_BYTES = 1024 * 1024
_STEP_SECONDS = 0.1
_YOUNG_SECONDS = 60.0


def is_young(modified: float) -> bool:
    """Whether a file may still be being written."""
    return time.time() - modified < _YOUNG_SECONDS


class FileFaultError(Exception):
    """The file cannot be read any further."""

    def __init__(self, code: ErrorCode, reason: str, data: bytes | None) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.data = data
        """What could not be read; None where there is nothing."""


@dataclass(slots=True)
class Patience:
    """How long a task waits for files that may become whole: for one, and for all of them."""

    seconds: float
    left: float = field(default=10.0)

    def wait(self, since: float) -> bool:
        """Wait a little, unless that has been tried long enough."""
        if self.left <= 0 or time.monotonic() - since >= self.seconds:
            return False
        self.left -= _STEP_SECONDS
        time.sleep(_STEP_SECONDS)
        return True


class Bytes(Protocol):
    """What a format is read from."""

    position: int

    def read(self, count: int) -> bytes:
        """The next bytes; fewer only at the end."""
        ...

    def back(self, position: int) -> bool:
        """Wait for more bytes and go back to where they are needed; False if none came."""
        ...

    def rest(self, position: int) -> bytes:
        """What a dead letter holds when nothing from here on can be read."""
        ...


class PlainBytes:
    """A file as it is stored."""

    def __init__(self, files: Files, path: str, patience: Patience) -> None:
        self._files = files
        self._path = path
        self._patience = patience
        self._file: BinaryIO = files.open(path)
        self._ahead = b""
        self.position = 0

    def read(self, count: int) -> bytes:
        """The next bytes; fewer only at the end."""
        data, self._ahead = self._ahead[:count], self._ahead[count:]
        if len(data) < count:
            data += self._stored(count - len(data))
        self.position += len(data)
        return data

    def peek(self, count: int) -> bytes:
        """The next bytes, which stay the next ones; a stream from a bucket cannot go back."""
        if len(self._ahead) < count:
            self._ahead += self._stored(count - len(self._ahead))
        return self._ahead[:count]

    def back(self, position: int) -> bool:
        """Wait for the file to grow, where it is young enough for that."""
        if not self._files.grows or not self._grew():
            return False
        self._file.seek(position)
        self._ahead = b""
        self.position = position
        return True

    def rest(self, position: int) -> bytes:
        """The bytes from here on."""
        self._file.close()
        self._file = self._files.open(self._path, anywhere=True)
        self._file.seek(position)
        self._ahead = b""
        return self._stored(MOST_LETTER_BYTES)

    def close(self) -> None:
        """Let the file go."""
        self._file.close()

    def _stored(self, count: int) -> bytes:
        try:
            return self._file.read(count)
        except OSError as error:
            raise self._files.unavailable(error, self._path) from error

    def _grew(self) -> bool:
        handle, began = self._file.fileno(), time.monotonic()
        while True:
            status = os.fstat(handle)
            if status.st_size > self.position:
                return True
            if not is_young(status.st_mtime) or not self._patience.wait(began):
                return False


class GzipBytes:
    """What a file holds that is compressed with gzip, in one member or several."""

    def __init__(self, inner: PlainBytes, most: int) -> None:
        self._inner = inner
        self._most = most
        self._unzip = zlib.decompressobj(wbits=31)
        self._waiting = b""
        self._ready = bytearray()
        self._ended: FileFaultError | None = None
        self.position = 0

    def read(self, count: int) -> bytes:
        """The next bytes; fewer only at the end, or before a fault that the next call raises."""
        try:
            while len(self._ready) < count and self._ended is None and self._more():
                pass
        except FileFaultError as error:
            self._ended = error
        if self._ended is not None and not self._ready:
            raise self._ended
        data = bytes(self._ready[:count])
        del self._ready[:count]
        self.position += len(data)
        return data

    def back(self, position: int) -> bool:
        """A file whose gzip is complete does not grow."""
        return False

    def rest(self, position: int) -> bytes:
        """The whole file: a part of it could not be unzipped."""
        return self._inner.rest(0)

    def _more(self) -> bool:
        """Unzip another step; False at the end of the last member."""
        if self._unzip.eof:
            rest = self._unzip.unused_data or self._inner.read(_STEP_BYTES)
            # zeros behind the last member fill up a tape's block
            if not rest.strip(b"\0"):
                return False
            self._unzip, self._waiting = zlib.decompressobj(wbits=31), rest
        data = self._waiting or self._inner.read(_STEP_BYTES)
        if not data:
            if self._inner.back(self._inner.position):
                return True
            raise self._fault(ErrorCode.FILE_TRUNCATED, "the file ends inside of its gzip")
        try:
            self._ready += self._unzip.decompress(data, _STEP_BYTES)
        except zlib.error as error:
            raise self._fault(ErrorCode.FILE_CORRUPT, f"gzip: {error}") from error
        if self.position + len(self._ready) > self._most:
            raise self._fault(ErrorCode.FILE_TOO_LARGE, too_large(self._most))
        self._waiting = self._unzip.unconsumed_tail
        return True

    def _fault(self, code: ErrorCode, reason: str) -> FileFaultError:
        return FileFaultError(code, reason, self._inner.rest(0))


def too_large(most: int) -> str:
    """What a dead letter says of a file whose content has no end."""
    return f"the file unpacks to more than {most} bytes: source.max_unpacked_bytes"


def content_of(plain: PlainBytes, most: int) -> Bytes:
    """The bytes that a format is read from: gzip is known by how it begins."""
    return GzipBytes(plain, most) if plain.peek(len(GZIP)) == GZIP else plain
