"""Stores of files: one interface for a local folder and for a bucket.

A file exists whole or not at all, for every reader and after a power failure. Files that decide
something are created exclusively (`create`), or replaced only if they are unchanged since they were
read (`swap`). Failures of a file system or a bucket are raised as OSError, without secrets.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote

from distributary.errors import LakeUnavailableError, OutsideLakeError, clean

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

REQUESTS: Counter[str] = Counter()
"""The requests of this process to buckets, by kind: requests cost money."""


@dataclass(frozen=True, slots=True)
class Info:
    """A file's size, time and version at one moment."""

    name: str
    """The name relative to the store."""
    size: int
    modified: float
    """The time of the last change in seconds since 1970, by the store's clock."""
    version: str
    """A text that changes whenever the content does."""


class Store(ABC):
    """A folder, or a part of a bucket. Names are relative to its address, with `/` as separator."""

    address: str
    """The absolute address."""
    asks_for_free: bool
    """True if looking at a file costs almost nothing; in a bucket it is a request."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Store) and other.address == self.address

    def __hash__(self) -> int:
        return hash(self.address)

    @abstractmethod
    def create(self, name: str, data: bytes, *, durable: bool = True) -> str | None:
        """Create a file and return its version; None if the name is taken.

        In a bucket, where an answer may be lost, an existing file with the same bytes counts as
        created.
        """

    @abstractmethod
    def write(self, name: str, data: bytes, *, durable: bool = True) -> str:
        """Create or replace a file and return its version."""

    @abstractmethod
    def swap(self, name: str, data: bytes, *, unchanged: str) -> str | None:
        """Replace a file if its version is `unchanged`; return the new version, or None."""

    def listed_by(self, library: Callable[[], T], folder: str = "") -> T:
        """Return what a library answers that lists a folder, or what is below, by itself.

        Raises OSError for a listing that has no end.
        """
        return library()

    @abstractmethod
    def fetch(self, name: str) -> tuple[bytes, str]:
        """Read a file whole; return its content and version. Raises FileNotFoundError."""

    @abstractmethod
    def read_range(self, name: str, start: int, length: int) -> bytes:
        """Read a part of a file; the result is shorter where the file ends."""

    @abstractmethod
    def look(self, name: str) -> Info | None:
        """Return size, time and version of a file; None if it does not exist."""

    @abstractmethod
    def files(
        self, folder: str = "", *, recursive: bool = False, after: str = "", drafts: bool = False
    ) -> list[Info]:
        """List the files of a folder; if `recursive`, also below it. Drafts are left out.

        Drafts are included if `drafts` is set. With `after`, only files directly in the folder
        whose names sort after it are listed: for a long log, only its end is listed and paid for.
        """

    @abstractmethod
    def folders(self, folder: str = "") -> list[str]:
        """List the names of the folders in a folder."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""

    @abstractmethod
    def remove_folder(self, folder: str = "") -> None:
        """Remove a folder with all its content, if it exists."""

    @abstractmethod
    def copy(self, name: str, *, to: Store, named: str = "") -> None:
        """Copy a file to another store, under the same name or as `named`.

        A copy that is cut short never gets the name. Raises FileNotFoundError.
        """

    @abstractmethod
    def open(
        self, name: str, *, ahead: int = 1024 * 1024, size: int | None = None
    ) -> pa.NativeFile:
        """Open a file for reading in parts; from a bucket, `ahead` bytes are read at a time.

        With a known `size`, the request for the size of an object is saved.
        """

    def read(self, name: str) -> bytes:
        """Read a file whole. Raises FileNotFoundError."""
        return self.fetch(name)[0]

    def remove_files(self, names: Sequence[str]) -> None:
        """Remove the files that exist; in a bucket, one request removes many."""
        for name in names:
            self.remove(name)

    def size(self, name: str) -> int | None:
        """Return the size of a file; None if it does not exist."""
        info = self.look(name)
        return None if info is None else info.size

    def sizes(self, folder: str = "") -> Callable[[str], int | None]:
        """Return a function from names below a folder to sizes; a bucket is listed once for all."""
        if self.asks_for_free:
            return self.size
        return {file.name: file.size for file in self.files(folder, recursive=True)}.get

    def exists(self, folder: str = "") -> bool:
        """Return whether the store, or a folder in it, exists."""
        return bool(self.files(folder) or self.folders(folder))

    def below(self, folder: str) -> Store:
        """Return the store of a folder in this one."""
        return at(f"{self.address}/{folder}")

    def remove_table(self) -> None:
        """Remove a table's folder; its log first, beginning with the newest commit.

        A concurrent reader sees the table at earlier versions, and then no table.
        """
        for file in sorted((f.name for f in self.files("_delta_log")), reverse=True):
            self.remove(file)
        self.remove_folder()


def at(address: str | Path) -> Store:
    """Return the store at an address, with the credentials given to `introduce`."""
    address = str(address)
    folder = local_folder(address)
    if folder is not None:
        from distributary.store.disk import Disk

        return Disk(folder)
    # Most commands use no bucket, and start faster without the library for it.
    from distributary.store.bucket import Bucket

    return Bucket(address)


# Credentials. Tables are named by their addresses everywhere; credentials beside each address would
# put secrets into manifests, events and errors. So a process registers them once, by address.

_OPTIONS: dict[str, dict[str, str]] = {}
_SHORT = 3


def introduce(address: str, options: Mapping[str, str]) -> None:
    """Register the settings with which all addresses below this one are reached."""
    if is_remote(address):
        _OPTIONS[address.rstrip("/")] = dict(options)


def without_secrets(text: str, address: str) -> str:
    """Replace the secrets of an address in a text by asterisks."""
    return hidden(text, options_of(address))


def hidden(text: str, options: Mapping[str, str]) -> str:
    """Replace the values of these settings in a text by asterisks."""
    for value in options.values():
        text = text.replace(value, "***") if len(value) > _SHORT else text
    return text


def options_of(address: str) -> dict[str, str]:
    """Return the settings with which an address is reached; they hold secrets."""
    matches = [place for place in _OPTIONS if f"{address}/".startswith(f"{place}/")]
    return _OPTIONS[max(matches, key=len)] if matches else {}


def local_folder(path: str) -> str | None:
    """Return the local folder that an address means; None if it is remote."""
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/", path)
    if scheme is None:
        return path.rstrip("/") or "/"
    if scheme.group(1).lower() != "file":
        return None
    return unquote(re.sub(r"^file:/+", "/", path, flags=re.IGNORECASE)).rstrip("/")


def absolute(address: str) -> str:
    """Return the address in a form that does not depend on the working directory."""
    local = local_path(address)
    return address if local is None else str(local)


def local_path(address: str) -> Path | None:
    """Return an address as an absolute local path; None if it is remote."""
    folder = local_folder(address) if address else ""
    return None if folder is None else Path(folder).absolute()


def is_remote(address: str) -> bool:
    """Return whether an address is in an object store and not on a local file system."""
    return local_folder(address) is None


def same_place(one: str | None, other: str) -> bool:
    """Return whether two addresses mean the same folder, however they are spelled."""
    return one is not None and _spelled(one) == _spelled(other)


def _spelled(address: str) -> str:
    # s3a and s3n are Hadoop's names for s3.
    return local_folder(address) or re.sub(r"^s3[an]://", "s3://", address.rstrip("/"))


def leads_outside(folder: str, path: str) -> bool:
    """Return whether `..` or links take a path out of a folder; False for an object store."""
    root, place = local_folder(folder), local_folder(path)
    if root is None or place is None:
        return False
    home = os.path.realpath(root)
    return os.path.commonpath([home, os.path.realpath(place)]) != home


def stay_inside(folder: str, *paths: str) -> None:
    """Raise OutsideLakeError for a path that leads out of the lake or of a table."""
    for path in paths:
        if leads_outside(folder, path):
            raise OutsideLakeError(
                "a path or a link in the lake leads out of the lake",
                where=path,
                evidence=f"the path is {os.path.realpath(local_folder(path) or path)}",
                next_step="find the program that created it; if a part of the lake is on another "
                "disk, mount the disk there",
            )


_LAKE_FOLDERS = re.compile(r"/(?:_distributary|_checkpoints)(?=/|$)")
"""The folders in which a lake keeps its own records: only we write there."""


def refuse_links(path: str) -> None:
    """Raise OutsideLakeError for a link in the lake's own folders.

    The target may be another lake, whose ledger would be read, written and removed in place of this
    lake's ledger. Links above these folders, such as one to the lake itself, are allowed.
    """
    match = _LAKE_FOLDERS.search(path)
    end = -1 if match is None else match.end()
    while end != -1:
        if os.path.islink(path[:end]):
            raise OutsideLakeError(
                "a link in the lake's own folders leads out of the lake",
                where=path[:end],
                evidence=f"the link leads to {os.path.realpath(path[:end])}",
                next_step="find the program that created it; if a part of the lake is on another "
                "disk, mount the disk there",
            )
        after = path.find("/", end + 1)
        end = -1 if end == len(path) else len(path) if after == -1 else after


@contextmanager
def reaching(path: str) -> Iterator[None]:
    """Turn OSError of file systems and stores into LakeUnavailableError."""
    try:
        yield
    except OSError as error:
        raise LakeUnavailableError(
            "cannot read or write a folder of the lake",
            where=path,
            evidence=clean(str(error)) or type(error).__name__,
            next_step="check that the lake can be reached, allows writing and has free space",
        ) from error


def packed(data: bytes) -> bytes:
    """Compress bytes."""
    # This module must load quickly, so pyarrow is imported here.
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue().to_pybytes())


def unpacked(data: bytes) -> bytes:
    """Decompress bytes; the inverse of `packed`."""
    import pyarrow as pa

    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        return bytes(stream.read())


# Uploads to an object store run in parallel, because each of them mostly waits.

_THREADS = 16
_MOST_WAITING = 64
"""The number of files that are held in memory until they are uploaded."""


class TransferError(OSError):
    """An error for a file that a bucket did not accept or return.

    The text begins with the address.
    """


class Uploads:
    """The uploads of one task; the task must not report a file before `finish`."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[Future[None]] = deque()

    def put(self, address: str, content: pa.Buffer) -> None:
        """Start the upload of a whole file. Raises the error of an earlier upload that failed."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="upload")
        self._waiting.append(self._pool.submit(_put, address, content))
        while len(self._waiting) > _MOST_WAITING:
            self._waiting.popleft().result()

    def finish(self) -> None:
        """Wait until all files are uploaded."""
        while self._waiting:
            self._waiting.popleft().result()

    def forget(self) -> None:
        """Cancel or await all uploads, so that a failed task leaves none to the next task."""
        wait([one for one in self._waiting if not one.cancel()])
        self._waiting.clear()


def _put(address: str, content: pa.Buffer) -> None:
    folder, _, name = address.rpartition("/")
    try:
        at(folder).write(name, content.to_pybytes(), durable=False)
    except OSError as error:
        raise TransferError(f"{address}: {error}") from None
