"""Every file that a source ever found, numbered, for as long as its checkpoint lives.

    <folder>/00000000000000000000.jsonl     files 0, 1, 2, ... one a line
    <folder>/00000000000000000003.jsonl     goes on with file 3

A segment is created whole, under a name that only one process can take. Small ones are put together
from time to time: the first of them gets the content of all, then the others go. Each file's line
holds a fingerprint of it and all before it, so that two catalogues that differ can be told apart.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path

from distributary.errors import (
    CheckpointError,
    FencedError,
    LakeUnavailableError,
    SourceUnavailableError,
)
from distributary.model.names import printable
from distributary.store.base import at

# Which names below the root of a files source are change files.
#
# A folder of a minute, `<object>/yyyy/mm/dd/hh/mm/`, is Datastream's own: every file in it
# counts. Elsewhere only a suffix says that a file is meant, because buckets hold other things
# too. Hidden names, empty files, the markers that stand for folders, and files that hold a schema
# never count.

_MINUTE = re.compile(
    r"(?:(.*)/)?([0-9]{4})/([0-9]{2})/([0-9]{2})/([0-9]{2})/([0-9]{2})/[^/]+", re.DOTALL
)
_SCHEMA = re.compile(r".*(\.avsc|[._-]schema(\.jsonl?)?)(\.gz)?", re.DOTALL)
_SUFFIXES = {
    "avro": (".avro",),
    "json": (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz", ".ndjson.gz"),
    "parquet": (".parquet",),
}


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file as a listing shows it."""

    path: str
    """Below the root, with `/` between its parts."""
    size: int
    modified_ns: int
    whole: bool = True
    """Whether it is known to be complete: an object of a bucket, or moved into its place."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The rules of one source."""

    format: str
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    start: datetime | None = None

    def __call__(self, file: FoundFile) -> bool:
        """Whether a file belongs to the source."""
        *folders, name = file.path.split("/")
        if file.size <= 0 or not name or name.startswith((".", "_")):
            return False
        if _SCHEMA.fullmatch(name.lower()):
            # the schema of the files beside it
            return False
        minute = _minute_of(file.path)
        if minute is None:
            listed = name.lower().endswith(_SUFFIXES[self.format])
            hidden = any(folder.startswith((".", "_")) for folder in folders)
            return listed and not hidden and self._names(folders[0] if folders else "")
        *above, table = folders[:-5] or [""]
        # a database whose name begins with an underscore has a folder that does
        if table.startswith(".") or any(folder.startswith((".", "_")) for folder in above):
            return False
        return self._names(table) and (self.start is None or minute >= self.start)

    def _names(self, table: str) -> bool:
        """Whether the lists let a table's folder pass."""
        if self.include and not any(fnmatchcase(table, pattern) for pattern in self.include):
            return False
        return not any(fnmatchcase(table, pattern) for pattern in self.exclude)


def _minute_of(path: str) -> datetime | None:
    """The minute whose folder a file is in; None where it is in no such folder."""
    found = _MINUTE.fullmatch(path)
    if found is None:
        return None
    year, month, day, hour, minute = map(int, found.groups()[1:])
    try:
        return datetime(year, month, day, hour, minute, tzinfo=UTC)
    except ValueError:
        return None


_SEGMENT = re.compile(r"([0-9]{20})\.jsonl")
_FILES_PER_SEGMENT = 10_000
_MANY_SEGMENTS = 500


@dataclass(frozen=True, slots=True)
class CataloguedFile:
    """A file of the catalogue."""

    number: int
    path: str
    size: int
    modified_ns: int
    chain: int
    """32 bits that depend on this file and on every file before it."""


class Catalogue:
    """Grows at its end only. Used by one thread."""

    def __init__(self, folder: str | Path) -> None:
        self._store = at(folder)
        self._known: set[bytes] = set()
        self._firsts: list[int] = []
        self._counts: list[int] = []
        self._chain = 0
        self._segment: tuple[int, list[bytes]] = (-1, [])
        self._load()

    def __len__(self) -> int:
        return self._firsts[-1] + self._counts[-1] if self._firsts else 0

    def knows(self, file: FoundFile) -> bool:
        """Whether this file is in, as it is: one that has grown since is another one."""
        return _digest(file) in self._known

    def append(self, files: Sequence[FoundFile]) -> None:
        """Number files; they are on the disk when this returns."""
        for start in range(0, len(files), _FILES_PER_SEGMENT):
            self._append(files[start : start + _FILES_PER_SEGMENT])

    def files(self, start: int, end: int) -> list[CataloguedFile]:
        """The files with these numbers, the last one left out; fewer where there are fewer."""
        end = min(end, len(self))
        found: list[CataloguedFile] = []
        at = bisect_right(self._firsts, start) - 1
        while start < end:
            first = self._firsts[at]
            lines = self._lines(first)[start - first : end - first]
            found += [self._parsed(first, start + i, line) for i, line in enumerate(lines)]
            start, at = start + len(lines), at + 1
        return found

    def chain(self, end: int) -> int:
        """The fingerprint of the files before a number."""
        if end == 0:
            return 0
        return self._chain if end == len(self) else self.files(end - 1, end)[0].chain

    def put_together(self) -> None:
        """Make few large segments of many small ones."""
        if len(self._firsts) < _MANY_SEGMENTS:
            return
        groups: list[list[int]] = []
        room = 0
        for first, count in zip(self._firsts, self._counts, strict=True):
            room -= count
            if room < 0:
                groups.append([])
                room = _FILES_PER_SEGMENT - count
            groups[-1].append(first)
        with self._writing():
            for group in groups:
                whole, *others = names = [_name(number) for number in group]
                if others:
                    self._store.write(whole, b"".join(map(self._store.read, names)))
                for name in others:
                    self._store.remove(name)
        ends = [*(group[0] for group in groups[1:]), len(self)]
        self._firsts = [group[0] for group in groups]
        self._counts = [end - first for first, end in zip(self._firsts, ends, strict=True)]
        self._segment = (-1, [])

    def _append(self, files: Sequence[FoundFile]) -> None:
        first, chain, lines, digests = len(self), self._chain, [], []
        for file in files:
            digest = _digest(file)
            chain = _linked(chain, digest)
            digests.append(digest)
            told = {"path": file.path, "size": file.size, "mtime": file.modified_ns, "chain": chain}
            lines.append(json.dumps(told, separators=(",", ":")))
        data = ("\n".join(lines) + "\n").encode()
        with self._writing():
            created = self._store.create(_name(first), data)
        if created is None:
            raise FencedError(
                "another process has added files to the catalogue meanwhile",
                where=f"{self._store.address}/{_name(first)}",
                next_step="nothing is lost: let the other process go on",
            )
        self._firsts.append(first)
        self._counts.append(len(files))
        self._known.update(digests)
        self._chain = chain

    def _load(self) -> None:
        names = map(_SEGMENT.fullmatch, (file.name for file in self._store.files()))
        firsts = sorted(int(name[1]) for name in names if name)
        for first in firsts:
            # one that begins earlier was put together with others, and not removed any more
            if first < len(self):
                continue
            lines = self._store.read(_name(first)).splitlines()
            if first > len(self) or not lines:
                raise self._damaged(_name(first), f"file {len(self)} is missing")
            for number, line in enumerate(lines, first):
                file = self._parsed(first, number, line)
                digest = _digest(file)
                self._chain = _linked(self._chain, digest)
                if self._chain != file.chain:
                    raise self._damaged(_name(first), f"file {number} is another one")
                self._known.add(digest)
            self._firsts.append(first)
            self._counts.append(len(lines))

    def _parsed(self, first: int, number: int, line: bytes) -> CataloguedFile:
        try:
            told = json.loads(line)
            return CataloguedFile(number, *(told[k] for k in ("path", "size", "mtime", "chain")))
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(_name(first), f"file {number}: {type(error).__name__}") from error

    def _lines(self, first: int) -> list[bytes]:
        """The lines of a segment; the last one read is kept, for batches that share it."""
        if self._segment[0] != first:
            self._segment = (first, self._store.read(_name(first)).splitlines())
        return self._segment[1]

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LakeUnavailableError(
                "cannot write the catalogue of files",
                where=self._store.address,
                evidence=error.strerror or type(error).__name__,
                next_step="check that the folder is writable and that the disk has room",
            ) from error

    def _damaged(self, name: str, evidence: str) -> CheckpointError:
        return CheckpointError(
            "the catalogue of files that were found is damaged",
            where=f"{self._store.address}/{name}",
            evidence=evidence,
            next_step="restore the whole checkpoint from a copy, or start over with `reset`",
        )


def _name(first: int) -> str:
    return f"{first:020d}.jsonl"


def _digest(file: FoundFile | CataloguedFile) -> bytes:
    text = f"{file.size}\0{file.modified_ns}\0{file.path}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).digest()


def _linked(chain: int, digest: bytes) -> int:
    link = hashlib.blake2b(chain.to_bytes(4, "big") + digest, digest_size=4).digest()
    return int.from_bytes(link, "big")


# Lists a local folder again and again, and looks only where something can have changed.
#
# A folder's own time changes when a file comes or goes. A folder that has been still for a while,
# with all that is in it, is taken as it was for as long as its time stays the same: a stat in
# place of a listing. Once an hour everything is looked at, for file systems that keep no such
# times.

_STILL_NS = 10 * 60 * 10**9
_FULL_LOOK_NS = 3600 * 10**9

_Still = dict[str, tuple[int, tuple[str, ...]]]
"""Folders by path: their time, and the folders in them."""


class Walk:
    """The files below a root, without following any link that lies there."""

    def __init__(
        self, root: str, *, settle_ns: int = 0, clock: Callable[[], int] = time.time_ns
    ) -> None:
        self._root = root
        self._still_ns = max(_STILL_NS, 2 * settle_ns)
        self._clock = clock
        self._still: _Still = {}
        self._looked: _Still = {}
        self._full_look = 0

    def files(self) -> Iterator[FoundFile]:
        """Every file, except those of folders that are as they were when last confirmed."""
        now = self._clock()
        if now - self._full_look > _FULL_LOOK_NS:
            self._still.clear()
            self._full_look = now
        self._looked = {}
        waiting = [""]
        while waiting:
            folder = waiting.pop()
            try:
                # before its listing: what comes in between makes the time another one
                changed = os.stat(self._at(folder), follow_symlinks=not folder).st_mtime_ns
                known = self._still.get(folder)
                if known is not None and known[0] == changed:
                    waiting += known[1]
                    continue
                files, inner = self._listed(folder)
            except (FileNotFoundError, NotADirectoryError) as error:
                if not folder:
                    raise self._unavailable(error) from error
                continue
            except OSError as error:
                raise self._unavailable(error) from error
            newest = max([changed, *(file.modified_ns for file in files)])
            if newest < now - self._still_ns:
                self._looked[folder] = (changed, inner)
            else:
                self._still.pop(folder, None)
            waiting += inner
            yield from files

    def confirm(self) -> None:
        """Everything that the last listing gave is kept: still folders need not give it again."""
        self._still |= self._looked
        self._looked = {}

    def look(self, path: str) -> FoundFile | None:
        """One file as it is now."""
        try:
            status = os.lstat(self._at(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found(path, status) if stat.S_ISREG(status.st_mode) else None

    def _listed(self, folder: str) -> tuple[list[FoundFile], tuple[str, ...]]:
        files: list[FoundFile] = []
        inner: list[str] = []
        with os.scandir(self._at(folder)) as entries:
            for entry in entries:
                path = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir(follow_symlinks=False):
                    inner.append(path)
                elif entry.is_file(follow_symlinks=False):
                    try:
                        files.append(found(path, entry.stat(follow_symlinks=False)))
                    except FileNotFoundError:
                        continue
        return files, tuple(inner)

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _unavailable(self, error: OSError) -> SourceUnavailableError:
        return SourceUnavailableError(
            "the folder of change files cannot be listed",
            where=printable(str(error.filename or self._root)),
            evidence=f"{type(error).__name__}: {error.strerror}",
            next_step="create it, correct source.path, or let this user read it",
        )


def found(path: str, status: os.stat_result) -> FoundFile:
    """A file by its status."""
    # writing sets both times alike: where the second is later, the last thing done was no writing,
    # but a move into place
    moved = status.st_ctime_ns > status.st_mtime_ns
    return FoundFile(path, status.st_size, status.st_mtime_ns, whole=moved)
