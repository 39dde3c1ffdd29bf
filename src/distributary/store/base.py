"""Bytes at rest: one interface for a folder of this machine and for a bucket.

A file is there whole or not at all, whoever looks and whenever the power goes out. What decides
something is created exclusively (`create`), or replaced only if it is still what was read (`swap`).
What a file system or a store says against it is an OSError, without any secret.
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
from typing import TYPE_CHECKING
from urllib.parse import unquote

from distributary.errors import LakeUnavailableError, OutsideLakeError, clean

if TYPE_CHECKING:
    import pyarrow as pa

REQUESTS: Counter[str] = Counter()
"""What this process has asked of buckets, by kind: it costs money."""


@dataclass(frozen=True, slots=True)
class Info:
    """A file as it was when somebody looked."""

    name: str
    """Relative to the store that was asked."""
    size: int
    modified: float
    """Seconds since 1970, by the clock of whoever stores it."""
    version: str
    """Changes whenever the content does."""


class Store(ABC):
    """A folder, or a part of a bucket. Names are relative to its address, with `/` between."""

    address: str
    """Absolute."""
    asks_for_free: bool
    """Whether a look at a file costs next to nothing; in a bucket it is a request."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Store) and other.address == self.address

    def __hash__(self) -> int:
        return hash(self.address)

    @abstractmethod
    def create(self, name: str, data: bytes, *, durable: bool = True) -> str | None:
        """Create a file unless the name is taken; its version, or None when it was taken.

        In a bucket, where an answer may be lost, a file with these very bytes counts as created.
        """

    @abstractmethod
    def write(self, name: str, data: bytes, *, durable: bool = True) -> str:
        """Put a file in place of another, or of none; its version."""

    @abstractmethod
    def swap(self, name: str, data: bytes, *, unchanged: str) -> str | None:
        """Put a file in place of this very version of it; None where it is another by now."""

    @abstractmethod
    def fetch(self, name: str) -> tuple[bytes, str]:
        """All of a file, and which version of it that is. Raises FileNotFoundError."""

    @abstractmethod
    def read_range(self, name: str, start: int, length: int) -> bytes:
        """A part of a file, shorter where the file ends."""

    @abstractmethod
    def look(self, name: str) -> Info | None:
        """A file as it is now, or None if there is no such file."""

    @abstractmethod
    def files(
        self, folder: str = "", *, recursive: bool = False, after: str = "", drafts: bool = False
    ) -> list[Info]:
        """The files in it, or in a folder of it, or also below; drafts are none unless asked for.

        With `after` those of the folder itself whose own names sort behind it: of a long log the
        end is listed and paid for.
        """

    @abstractmethod
    def folders(self, folder: str = "") -> list[str]:
        """The names of the folders in it, or in a folder of it."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

    @abstractmethod
    def remove_folder(self, folder: str = "") -> None:
        """Remove it, or a folder in it, with all that is inside, if it is there."""

    @abstractmethod
    def copy(self, name: str, *, to: Store, named: str = "") -> None:
        """Copy a file to the same name elsewhere, or to another one.

        A copy that is cut short never gets the name. Raises FileNotFoundError.
        """

    @abstractmethod
    def open(
        self, name: str, *, ahead: int = 1024 * 1024, size: int | None = None
    ) -> pa.NativeFile:
        """A file to be read in parts; from a bucket so many bytes at a time.

        Whoever knows the size of an object spares the request that asks for it.
        """

    def read(self, name: str) -> bytes:
        """All of a file. Raises FileNotFoundError."""
        return self.fetch(name)[0]

    def remove_files(self, names: Sequence[str]) -> None:
        """Remove files, those that are there; in a bucket with one request for many."""
        for name in names:
            self.remove(name)

    def size(self, name: str) -> int | None:
        """The size of a file, or None if there is no such file."""
        found = self.look(name)
        return None if found is None else found.size

    def sizes(self, folder: str = "") -> Callable[[str], int | None]:
        """The size of any file below a folder, or None; a bucket is asked once for all of them."""
        if self.asks_for_free:
            return self.size
        return {file.name: file.size for file in self.files(folder, recursive=True)}.get

    def exists(self, folder: str = "") -> bool:
        """Whether it, or a folder in it, is there."""
        return bool(self.files(folder) or self.folders(folder))

    def below(self, folder: str) -> Store:
        """A folder in it."""
        return at(f"{self.address}/{folder}")

    def remove_table(self) -> None:
        """Remove a table's folder, its log first and the newest of it first.

        Whoever reads meanwhile finds the table as it was before, and then none.
        """
        for file in sorted((f.name for f in self.files("_delta_log")), reverse=True):
            self.remove(file)
        self.remove_folder()


def at(address: str | Path) -> Store:
    """The store at an address; what it takes to log in was said by `introduce`."""
    address = str(address)
    folder = local_folder(address)
    if folder is not None:
        from distributary.store.disk import Disk

        return Disk(folder)
    # most commands meet no bucket, and start without what it takes to speak to one
    from distributary.store.bucket import Bucket

    return Bucket(address)


# How to log in. Tables are named by their addresses everywhere; to carry credentials beside each of
# them would put secrets into manifests, events and errors. So a process is told once.

_OPTIONS: dict[str, dict[str, str]] = {}
_SHORT = 3


def introduce(address: str, options: Mapping[str, str]) -> None:
    """From now on, whatever lies below an address is reached with these settings."""
    if is_remote(address):
        _OPTIONS[address.rstrip("/")] = dict(options)


def without_secrets(text: str, address: str) -> str:
    """Words of a store without anything that it was told in confidence."""
    return hidden(text, options_of(address))


def hidden(text: str, options: Mapping[str, str]) -> str:
    """Words without the values of these settings."""
    for value in options.values():
        text = text.replace(value, "***") if len(value) > _SHORT else text
    return text


def options_of(address: str) -> dict[str, str]:
    """The settings with which an address is reached; holds secrets."""
    known = [place for place in _OPTIONS if f"{address}/".startswith(f"{place}/")]
    return _OPTIONS[max(known, key=len)] if known else {}


def local_folder(path: str) -> str | None:
    """The folder on this machine that an address means, or None if it is elsewhere."""
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/", path)
    if scheme is None:
        return path.rstrip("/") or "/"
    if scheme.group(1).lower() != "file":
        return None
    return unquote(re.sub(r"^file:/+", "/", path, flags=re.IGNORECASE)).rstrip("/")


def absolute(address: str) -> str:
    """An address that means the same in every working directory."""
    local = local_path(address)
    return address if local is None else str(local)


def local_path(address: str) -> Path | None:
    """An address as an absolute path of this machine; None when it has another scheme."""
    folder = local_folder(address) if address else ""
    return None if folder is None else Path(folder).absolute()


def is_remote(address: str) -> bool:
    """Whether it is on an object store, not on a file system of this machine."""
    return local_folder(address) is None


def same_place(one: str | None, other: str) -> bool:
    """Whether two addresses are of one folder, however they are spelled."""
    return one is not None and _spelled(one) == _spelled(other)


def _spelled(address: str) -> str:
    # s3a and s3n are names of Hadoop's for s3
    return local_folder(address) or re.sub(r"^s3[an]://", "s3://", address.rstrip("/"))


def leads_outside(folder: str, path: str) -> bool:
    """Whether words or links take a path out of a folder; never true of an object store."""
    root, found = local_folder(folder), local_folder(path)
    if root is None or found is None:
        return False
    home = os.path.realpath(root)
    return os.path.commonpath([home, os.path.realpath(found)]) != home


def stay_inside(folder: str, *paths: str) -> None:
    """OutsideLakeError for a path of a lake, or of one of its tables, that leads out of it."""
    for path in paths:
        if leads_outside(folder, path):
            raise OutsideLakeError(
                "a path or a link in the lake leads out of it",
                where=path,
                evidence=f"it is {os.path.realpath(local_folder(path) or path)}",
                next_step="find out who made it; where another disk is to hold a part of the lake, "
                "mount it there",
            )


_OWN = re.compile(r"/(?:_distributary|_checkpoints)(?=/|$)")
"""The folders in which a lake keeps what it knows of itself: only we write there."""


def refuse_links(path: str) -> None:
    """OutsideLakeError for a path below such a folder on which a link stands.

    What is outside may be another lake, whose ledger would be read, written and removed for this
    one's. Links above, as to the lake itself, are their owner's.
    """
    own = _OWN.search(path)
    end = -1 if own is None else own.end()
    while end != -1:
        if os.path.islink(path[:end]):
            raise OutsideLakeError(
                "a link in the lake's own folders leads out of it",
                where=path[:end],
                evidence=f"it is {os.path.realpath(path[:end])}",
                next_step="find out who made it; where another disk is to hold a part of the lake, "
                "mount it there",
            )
        after = path.find("/", end + 1)
        end = -1 if end == len(path) else len(path) if after == -1 else after


@contextmanager
def reaching(path: str) -> Iterator[None]:
    """Errors of file systems and stores become errors of the lake."""
    try:
        yield
    except OSError as error:
        raise LakeUnavailableError(
            "cannot read or write a folder of the lake",
            where=path,
            evidence=clean(str(error)) or type(error).__name__,
            next_step="check that the lake can be reached and written to, and has room",
        ) from error


def packed(data: bytes) -> bytes:
    """The same in fewer bytes."""
    # settings are read with this module, and quickly
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue().to_pybytes())


def unpacked(data: bytes) -> bytes:
    """The inverse of `packed`."""
    import pyarrow as pa

    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        return bytes(stream.read())


# Files on their way to an object store: many at once, because each of them mostly waits.

_THREADS = 16
_MOST_WAITING = 64
"""Files held in memory until they are there."""


class TransferError(OSError):
    """A file that a bucket did not take or give to a task; the words begin with its address."""


class Uploads:
    """Those of one task; nobody may be told of a file before `finish`."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[Future[None]] = deque()

    def put(self, address: str, content: pa.Buffer) -> None:
        """Begin to write a whole file. Raises what an earlier one has failed with."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="upload")
        self._waiting.append(self._pool.submit(_put, address, content))
        while len(self._waiting) > _MOST_WAITING:
            self._waiting.popleft().result()

    def finish(self) -> None:
        """Wait until all of them are there."""
        while self._waiting:
            self._waiting.popleft().result()

    def forget(self) -> None:
        """What a task that failed has left is not the next one's; none is on its way after this."""
        wait([one for one in self._waiting if not one.cancel()])
        self._waiting.clear()


def _put(address: str, content: pa.Buffer) -> None:
    folder, _, name = address.rpartition("/")
    try:
        at(folder).write(name, content.to_pybytes(), durable=False)
    except OSError as error:
        raise TransferError(f"{address}: {error}") from None
