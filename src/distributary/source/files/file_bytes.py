"""The bytes of one change file, in order: plain or unpacked from gzip.

A file that ends inside of a structure may still be being written. A reader that needs more of it
calls `back`, which waits a moment where waiting can help; data that is still missing then is a
fault.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import stat
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import BinaryIO, cast

import orjson
import pyarrow as pa

from distributary.decode.base import Mask, Positions
from distributary.decode.change.base import claim, with_values_at
from distributary.decode.change.connect_frames import framed
from distributary.errors import ErrorCode, SourceUnavailableError
from distributary.model.names import printable
from distributary.source.files.file_list import FoundFile
from distributary.store.base import Info, hidden
from distributary.store.bucket import Bucket

# The file systems that hold change files, as a task sees them: a name to bytes.
# A local folder is read without following links, except for its root. A bucket is read through
# `store`, with the same settings as a lake.

_BUFFER_BYTES = 1024 * 1024
_NO_FILE = (errno.ENOTDIR, errno.ELOOP, errno.ENXIO)
"""The errors for a path that is now a link, a socket, or below a file."""


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """A folder of this machine, or one that is mounted on all machines."""

    root: str
    grows: bool = True
    """True if a file can be seen before its writer is done."""

    def open(self, path: str, *, anywhere: bool = False) -> BinaryIO:
        """Open a file from its beginning; with `anywhere`, for reading in any order.

        Raises FileNotFoundError if it is gone or a link leads out of the root, PermissionError if
        it may not be read, and SourceUnavailableError if the store does not answer.
        """
        full = os.path.join(self.root, path)
        try:
            folder = os.path.realpath(os.path.dirname(full))
            if not f"{folder}/".startswith(os.path.realpath(self.root).rstrip("/") + "/"):
                raise FileNotFoundError(f"{path!r} is no longer below the root")
            # O_NONBLOCK, because the listed file could be a pipe by now.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            handle = os.open(os.path.join(folder, os.path.basename(full)), flags)
        except PermissionError:
            raise
        except OSError as error:
            if error.errno not in _NO_FILE and not isinstance(error, FileNotFoundError):
                raise self.unavailable(error, path) from error
            raise FileNotFoundError(str(error)) from error
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise FileNotFoundError(f"{path!r} is no longer a file")
        return os.fdopen(handle, "rb", buffering=_BUFFER_BYTES)

    def unavailable(self, error: OSError, path: str = "") -> SourceUnavailableError:
        """Return the error for a failure of the file system."""
        return _unavailable(os.path.join(self.root, path), error.strerror or type(error).__name__)


_PARTS, _WHOLE = 1024 * 1024, 16 * 1024 * 1024
"""The bytes per request to a bucket, for a file read in parts, and for one read whole."""


@dataclass(frozen=True, slots=True)
class BucketFiles:
    """A bucket, or a folder in it: `gs://`, `s3://` or `abfss://`."""

    address: str
    options: Mapping[str, str] = dataclasses.field(repr=False)
    grows: bool = False

    def open(self, path: str, *, anywhere: bool = False) -> BinaryIO:
        """Open an object; raise the errors of `LocalFiles.open`."""
        try:
            return cast(BinaryIO, self._store.open(path, ahead=_PARTS if anywhere else _WHOLE))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self.unavailable(error, path) from error

    def files(self) -> list[FoundFile]:
        """List every object with one listing, without folders."""
        try:
            return [_found_file(info) for info in self._store.files(recursive=True)]
        except OSError as error:
            raise self.unavailable(error) from error

    def files_in(self, folders: Iterable[str]) -> Iterator[FoundFile]:
        """List the objects in some folders, without those below; a listing for each folder.

        An object has the same time as in a listing of everything; asked for alone, it may not.
        """
        for folder in sorted(folders):
            try:
                infos = self._store.files(folder)
            except OSError as error:
                raise self.unavailable(error, folder) from error
            yield from map(_found_file, infos)

    def confirm(self) -> None:
        """Do nothing: no folder of a bucket is skipped."""

    def look(self, path: str) -> FoundFile | None:
        """Return one object as it is now; None if it is gone."""
        try:
            info = self._store.look(path)
        except OSError as error:
            raise self.unavailable(error, path) from error
        return None if info is None else _found_file(info)

    def unavailable(self, error: OSError, path: str = "") -> SourceUnavailableError:
        """Return the error for a failure of the store, without secrets."""
        return _unavailable(f"{self.address}/{path}", hidden(str(error), self.options))

    @property
    def _store(self) -> Bucket:
        return Bucket(self.address, self.options)


def _found_file(info: Info) -> FoundFile:
    return FoundFile(info.name, info.size, round(info.modified * 1e6) * 1000)


Files = LocalFiles | BucketFiles
"""The file system of a source. Sent to tasks, so it holds no open connection."""


def _unavailable(where: str, evidence: str) -> SourceUnavailableError:
    return SourceUnavailableError(
        "the store of change files does not answer",
        where=printable(where),
        evidence=printable(evidence.partition("\n")[0]),
        next_step="reading is tried again, and no batch is half written; check source.bucket or "
        "source.path, the network and the credentials",
    )


MOST_LETTER_BYTES = 64 * 1024 * 1024
"""The largest number of bytes of an unreadable file that become a dead letter."""
GZIP = b"\x1f\x8b"

_STEP_BYTES = 1024 * 1024
_STEP_SECONDS = 0.1
_YOUNG_SECONDS = 60.0


def is_young(modified: float) -> bool:
    """Return whether a file may still be being written."""
    return time.time() - modified < _YOUNG_SECONDS


class FileFaultError(Exception):
    """An error for a file that cannot be read any further."""

    def __init__(self, code: ErrorCode, reason: str, data: bytes | None) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.data = data
        """The bytes that could not be read; None if there are none."""


@dataclass(slots=True)
class Patience:
    """The time that a task waits for incomplete files: for each one, and for all of them."""

    seconds: float
    left: float = dataclasses.field(default=10.0)

    def wait(self, since: float) -> bool:
        """Wait a little; return False if the time is used up."""
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
        """Read the next bytes; fewer only at the end."""
        data, self._ahead = self._ahead[:count], self._ahead[count:]
        if len(data) < count:
            data += self._stored(count - len(data))
        self.position += len(data)
        return data

    def peek(self, count: int) -> bytes:
        """Return the next bytes without taking them; a stream from a bucket cannot go back."""
        if len(self._ahead) < count:
            self._ahead += self._stored(count - len(self._ahead))
        return self._ahead[:count]

    def back(self, position: int) -> bool:
        """Wait for a young file to grow, and go back to a position.

        Return False if it did not grow.
        """
        if not self._files.grows or not self._grew():
            return False
        self._file.seek(position)
        self._ahead = b""
        self.position = position
        return True

    def rest(self, position: int) -> bytes:
        """Return the bytes from a position on for a dead letter."""
        self._file.close()
        self._file = self._files.open(self._path, anywhere=True)
        self._file.seek(position)
        self._ahead = b""
        return self._stored(MOST_LETTER_BYTES)

    def close(self) -> None:
        """Close the file."""
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
    """The content of a gzip file with one member or several."""

    def __init__(self, inner: PlainBytes, most: int) -> None:
        self._inner = inner
        self._most = most
        self._unzip = zlib.decompressobj(wbits=31)
        self._waiting = b""
        self._ready = bytearray()
        self._ended: FileFaultError | None = None
        self.position = 0

    def read(self, count: int) -> bytes:
        """Read the next bytes; fewer only at the end, or before a fault of the next call."""
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
        """Return False: a file whose gzip is complete does not grow."""
        return False

    def rest(self, position: int) -> bytes:
        """Return the whole file: a part of it could not be unzipped."""
        return self._inner.rest(0)

    def _more(self) -> bool:
        """Unzip another step; return False at the end of the last member."""
        if self._unzip.eof:
            rest = self._unzip.unused_data or self._inner.read(_STEP_BYTES)
            # Zeros after the last member fill up a tape's block.
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
    """Return the reason of a dead letter for a file whose content is too large."""
    return f"the file unpacks to more than {most} bytes: source.max_unpacked_bytes"


Bytes = PlainBytes | GzipBytes
"""The bytes that a format's reader reads from."""


def content_of(plain: PlainBytes, most: int) -> Bytes:
    """Return the content of a file, unzipped if it begins like gzip."""
    return GzipBytes(plain, most) if plain.peek(len(GZIP)) == GZIP else plain


# The output of all formats' readers: events as they are stored, and the tables they name.

BYTES_PER_BATCH = 32 * 1024 * 1024
EVENTS_PER_BATCH = 65_536
"""The largest number of events of a batch; events may be short, and each is a row of several
columns."""

NAMES = ("database", "schema", "table", "collection")
"""The fields of `source_metadata` that name the table, as far as a source has them."""

_ROW_BYTES = 64
_LONG_NAMES = 1024
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
EARLIEST_US = -62_135_596_800_000_000
LATEST_US = 253_402_300_799_999_999
"""The years 1 to 9999: other times are no times of events."""


@dataclass(frozen=True, slots=True)
class FileEvents:
    """Some events of a file, in order."""

    values: pa.BinaryArray
    claims: pa.BinaryArray
    """The source tables' names; null if an event does not name them."""
    times: pa.Int64Array
    """The sources' times in microseconds; null if an event has none."""
    familiar: Mask | None = None
    """A mask of the events that match a known shape; None if shapes are unknown."""

    @property
    def size(self) -> int:
        """Return the approximate bytes of the events; an event without content is a row too."""
        return int(self.values.nbytes) + _ROW_BYTES * len(self.values)

    def with_others(self, rows: Positions, others: FileEvents) -> FileEvents:
        """Return the events with the claims and times of `others` at some rows."""
        return dataclasses.replace(
            self,
            claims=with_values_at(self.claims, rows, others.claims),
            times=with_values_at(self.times, rows, others.times),
        )


@dataclass(frozen=True, slots=True)
class Fault:
    """A part of a file, or a whole file, that cannot be read."""

    code: ErrorCode
    reason: str
    data: bytes | None

    @property
    def size(self) -> int:
        """Return the approximate bytes of the fault."""
        return len(self.data or b"") + _ROW_BYTES


def claim_and_time(event: object) -> tuple[bytes | None, int | None]:
    """Return the claim and the time of a parsed event; None for each that it lacks."""
    if not isinstance(event, dict):
        return None, None
    metadata = event.get("source_metadata")
    table = None
    if isinstance(metadata, dict):
        get = metadata.get
        try:
            table = claim_of(get("database"), get("schema"), get("table"), get("collection"))
        except TypeError:
            # Names that are lists or objects are ignored.
            table = claim_of(*(n if isinstance(n, str) else None for n in map(get, NAMES)))
    return table, micros(event.get("source_timestamp"))


def claim_of(*names: str | None) -> bytes | None:
    """Return the claim of a table; claims are cached, except for long names."""
    long = sum(len(name or "") for name in names) > _LONG_NAMES
    return _claim_of.__wrapped__(*names) if long else _claim_of(*names)


@lru_cache(maxsize=4096)
def _claim_of(*names: str | None) -> bytes | None:
    text = claim(dict(zip(NAMES, names, strict=True)))
    return text.encode() if text else None


def micros(time: object) -> int | None:
    """Parse a time of Datastream as microseconds: milliseconds, or text, in UTC by default."""
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


def parsed_events(values: Sequence[bytes], parsed: Iterable[object]) -> FileEvents:
    """Build events whose content has been parsed."""
    named = [claim_and_time(event) for event in parsed]
    return FileEvents(
        pa.array(values, pa.binary()),
        pa.array([table for table, _ in named], pa.binary()),
        pa.array([moment for _, moment in named], pa.int64()),
    )


def parsed_json(text: bytes, most: int) -> object:
    """Parse a JSON text; None if it is invalid or too long, which its decoder reports."""
    if len(text) > most:
        return None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    # Python also parses NaN and the like: the event's decoder reports what is wrong.
    try:
        return json.loads(text.decode())
    except (ValueError, RecursionError):
        return None


def typed_events(values: Sequence[bytes], types: bytes) -> FileEvents:
    """Build events of JSON rows that carry the types of their columns."""
    return nameless_events(pa.array([framed(types, value) for value in values], pa.binary()))


def nameless_events(values: pa.BinaryArray) -> FileEvents:
    """Build events that name no table and no time."""
    return FileEvents(values, pa.nulls(len(values), pa.binary()), pa.nulls(len(values), pa.int64()))
