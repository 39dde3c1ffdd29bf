"""The bytes of one change file, in order, as far as they go: plain or out of gzip.

A file that ends in the middle of something may still be being written. Whoever needs more of it
goes back, which waits a moment where waiting can help; what is still missing then is a fault.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import stat
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import BinaryIO, cast

import orjson
import pyarrow as pa

from distributary.decode.base import Mask, Positions
from distributary.decode.change.base import claim, with_values_at
from distributary.errors import ErrorCode, SourceUnavailableError
from distributary.model.names import printable
from distributary.source.files.catalogue import FoundFile
from distributary.store.base import Info, hidden
from distributary.store.bucket import Bucket

# The file systems on which change files lie, as a task sees them: a name to bytes.
#
# A local folder is read through links nowhere but at its root. A bucket is read with Arrow's own
# file systems, which take the settings that `deltalake` takes, by the same names.

_BUFFER_BYTES = 1024 * 1024
_NO_FILE = (errno.ENOTDIR, errno.ELOOP, errno.ENXIO)
"""What there is now is a link, a socket, or in a file's place a folder."""


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """A folder of this machine, or one that is mounted on all of them."""

    root: str
    grows: bool = True
    """Whether a file can be seen before its writer is done."""

    def open(self, path: str, *, anywhere: bool = False) -> BinaryIO:
        """A file's bytes from the beginning, or `anywhere` for reading in any order.

        Raises FileNotFoundError where it is gone, or a link leads out of the root, PermissionError
        where it may not be read, and SourceUnavailableError where the store does not answer.
        """
        whole = os.path.join(self.root, path)
        try:
            folder = os.path.realpath(os.path.dirname(whole))
            if not f"{folder}/".startswith(os.path.realpath(self.root).rstrip("/") + "/"):
                raise FileNotFoundError(f"{path!r} is not below the root any more")
            # not blocking: what was a file in the listing could be a pipe by now
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            handle = os.open(os.path.join(folder, os.path.basename(whole)), flags)
        except PermissionError:
            raise
        except OSError as error:
            if error.errno not in _NO_FILE and not isinstance(error, FileNotFoundError):
                raise self.unavailable(error, path) from error
            raise FileNotFoundError(str(error)) from error
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise FileNotFoundError(f"{path!r} is not a file any more")
        return os.fdopen(handle, "rb", buffering=_BUFFER_BYTES)

    def unavailable(self, error: OSError, path: str = "") -> SourceUnavailableError:
        """What a failure of the file system means."""
        return _unavailable(os.path.join(self.root, path), error.strerror or type(error).__name__)


_PARTS, _WHOLE = 1024 * 1024, 16 * 1024 * 1024
"""Bytes that a request to a bucket brings, where a file is read in parts, and where as a whole."""


@dataclass(frozen=True, slots=True)
class BucketFiles:
    """A bucket, or a folder in it; `gs://`, `s3://` or `abfss://`."""

    address: str
    options: Mapping[str, str] = dataclasses.field(repr=False)
    grows: bool = False

    def open(self, path: str, *, anywhere: bool = False) -> BinaryIO:
        """An object; raises what `LocalFiles.open` does."""
        try:
            return cast(BinaryIO, self._store.open(path, ahead=_PARTS if anywhere else _WHOLE))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self.unavailable(error, path) from error

    def files(self) -> list[FoundFile]:
        """Every object that may be new, by one listing without folders."""
        try:
            return [_found(info) for info in self._store.files(recursive=True)]
        except OSError as error:
            raise self.unavailable(error) from error

    def confirm(self) -> None:
        """A bucket is listed as a whole every time: it has no folders that could be still."""

    def look(self, path: str) -> FoundFile | None:
        """One object as it is now."""
        try:
            info = self._store.look(path)
        except OSError as error:
            raise self.unavailable(error, path) from error
        return None if info is None else _found(info)

    def unavailable(self, error: OSError, path: str = "") -> SourceUnavailableError:
        """What a failure of the store means, without any secret that its words may hold."""
        return _unavailable(f"{self.address}/{path}", hidden(str(error), self.options))

    @property
    def _store(self) -> Bucket:
        return Bucket(self.address, self.options)


def _found(info: Info) -> FoundFile:
    return FoundFile(info.name, info.size, round(info.modified * 1e6) * 1000)


Files = LocalFiles | BucketFiles
"""Where files lie. Sent to tasks, so it holds no open connection."""


def _unavailable(where: str, evidence: str) -> SourceUnavailableError:
    return SourceUnavailableError(
        "the store of change files does not answer",
        where=printable(where),
        evidence=printable(evidence.partition("\n")[0]),
        next_step="nothing is half done: it is tried again; check source.bucket or source.path, "
        "the network and the credentials",
    )


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
    left: float = dataclasses.field(default=10.0)

    def wait(self, since: float) -> bool:
        """Wait a little, unless that has been tried long enough."""
        if self.left <= 0 or time.monotonic() - since >= self.seconds:
            return False
        self.left -= _STEP_SECONDS
        time.sleep(_STEP_SECONDS)
        return True


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
        """Wait for the file to grow, where it is young enough, and go back; False if it did not."""
        if not self._files.grows or not self._grew():
            return False
        self._file.seek(position)
        self._ahead = b""
        self.position = position
        return True

    def rest(self, position: int) -> bytes:
        """What a dead letter holds when nothing from here on can be read."""
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


Bytes = PlainBytes | GzipBytes
"""What a format is read from."""


def content_of(plain: PlainBytes, most: int) -> Bytes:
    """The bytes that a format is read from: gzip is known by how it begins."""
    return GzipBytes(plain, most) if plain.peek(len(GZIP)) == GZIP else plain


# What the readers of all formats give: events as they are stored, and whose they are.

BYTES_PER_BATCH = 32 * 1024 * 1024
EVENTS_PER_BATCH = 65_536
"""Events may be short: each is a row of several columns."""

NAMES = ("database", "schema", "table", "collection")
"""What `source_metadata` says about the table, as far as a source has it."""

_ROW_BYTES = 64
_LONG_NAMES = 1024
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
EARLIEST_US = -62_135_596_800_000_000
LATEST_US = 253_402_300_799_999_999
"""The years 1 to 9999: other times are those of no event."""


@dataclass(frozen=True, slots=True)
class Events:
    """Some events of a file, in their order."""

    values: pa.BinaryArray
    claims: pa.BinaryArray
    """The source table's names; null where an event does not tell them."""
    times: pa.Int64Array
    """The source's time in microseconds; null where an event does not tell it."""
    familiar: Mask | None = None
    """Which of them look like those before them; None: that is not known of any."""

    @property
    def size(self) -> int:
        """Bytes that they take from here on, about: an event without content is a row too."""
        return int(self.values.nbytes) + _ROW_BYTES * len(self.values)

    def with_others(self, rows: Positions, others: Events) -> Events:
        """The same events, with what others tell that are the ones at some places."""
        return dataclasses.replace(
            self,
            claims=with_values_at(self.claims, rows, others.claims),
            times=with_values_at(self.times, rows, others.times),
        )


@dataclass(frozen=True, slots=True)
class Fault:
    """A part of a file that cannot be read, or all of it."""

    code: ErrorCode
    reason: str
    data: bytes | None

    @property
    def size(self) -> int:
        """Bytes that it takes from here on."""
        return len(self.data or b"") + _ROW_BYTES


def told_by(event: object) -> tuple[bytes | None, int | None]:
    """The claim and the time of an event that was parsed; neither where it is no event."""
    if not isinstance(event, dict):
        return None, None
    metadata = event.get("source_metadata")
    known = None
    if isinstance(metadata, dict):
        get = metadata.get
        try:
            known = claim_of(get("database"), get("schema"), get("table"), get("collection"))
        except TypeError:
            # a name that is a list or an object is none
            known = claim_of(*(n if isinstance(n, str) else None for n in map(get, NAMES)))
    return known, micros(event.get("source_timestamp"))


def claim_of(*names: str | None) -> bytes | None:
    """The claim of a table: few names stand for many events, and long ones are not kept."""
    long = sum(len(name or "") for name in names) > _LONG_NAMES
    return _claim_of.__wrapped__(*names) if long else _claim_of(*names)


@lru_cache(maxsize=4096)
def _claim_of(*names: str | None) -> bytes | None:
    text = claim(dict(zip(NAMES, names, strict=True)))
    return text.encode() if text else None


def micros(time: object) -> int | None:
    """A time as Datastream writes it: milliseconds, or text, which is UTC if it does not say."""
    if isinstance(time, int) and not isinstance(time, bool):
        return time * 1000 if EARLIEST_US <= time * 1000 <= LATEST_US else None
    if isinstance(time, str):
        try:
            time = datetime.fromisoformat(time.strip())
        except ValueError:
            return None
    if not isinstance(time, datetime):
        return None
    moment = time if time.tzinfo else time.replace(tzinfo=UTC)
    return (moment - _BEGINNING) // timedelta(microseconds=1)


def parsed_events(values: Sequence[bytes], parsed: Iterable[object]) -> Events:
    """Events of which the content is known already."""
    told = [told_by(each) for each in parsed]
    return Events(
        pa.array(values, pa.binary()),
        pa.array([each[0] for each in told], pa.binary()),
        pa.array([each[1] for each in told], pa.int64()),
    )


def parsed_json(text: bytes, most: int) -> object:
    """What a JSON text says; None where it is none, or too long, which only its decoder reports."""
    if len(text) > most:
        return None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    # what Python takes as well, such as NaN: the event's decoder says what is wrong with it
    try:
        return json.loads(text.decode())
    except (ValueError, RecursionError):
        return None
