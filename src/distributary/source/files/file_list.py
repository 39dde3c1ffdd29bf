"""The numbered list of all files that a source has found, kept with its checkpoint.

    <folder>/00000000000000000000.jsonl     files 0, 1, 2, ... one per line
    <folder>/00000000000000000003.jsonl     continues with file 3

A segment is created whole, under a name that only one process can take. Small ones are merged
from time to time: the first gets the content of all, then the others are removed. A file's line
holds a fingerprint of it and of all files before it, so that two lists which differ are noticed.
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
from functools import cached_property
from pathlib import Path

from distributary.config.sources.file_pattern import PathPattern
from distributary.errors import (
    CheckpointError,
    FencedError,
    LakeUnavailableError,
    SourceUnavailableError,
)
from distributary.model.names import printable
from distributary.store.base import at

# The choice of change files below the root of a source.
# A folder of a minute, `<object>/yyyy/mm/dd/hh/mm/`, is Datastream's own: every file in it counts.
# Elsewhere a file counts by its suffix, because buckets hold other things too. Hidden names, empty
# files, markers of folders, and files that hold a schema never count.

_MINUTE = re.compile(
    r"(?:(.*)/)?([0-9]{4})/([0-9]{2})/([0-9]{2})/([0-9]{2})/([0-9]{2})/[^/]+", re.DOTALL
)
_SCHEMA = re.compile(r".*(\.avsc|[._-]schema(\.jsonl?)?)(\.gz)?", re.DOTALL)
_SUFFIXES = {
    "avro": (".avro",),
    "json": (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz", ".ndjson.gz"),
    "parquet": (".parquet",),
    "csv": (".csv", ".csv.gz"),
}


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file as a listing shows it."""

    path: str
    """The path below the root, with `/` as separator."""
    size: int
    modified_ns: int
    whole: bool = True
    """True if the file is known to be complete: an object of a bucket, or moved into its place."""


@dataclass(frozen=True)
class FileTypes:
    """The types of plain files, by their paths: named by a pattern, or by the first folder."""

    root: str
    pattern: str | None = None

    @cached_property
    def _pattern(self) -> PathPattern | None:
        return None if self.pattern is None else PathPattern(self.pattern)

    def fits(self, path: str, suffixes: tuple[str, ...]) -> bool:
        """Return whether a path is that of a file to read."""
        if self._pattern is not None:
            return self._pattern.matches(path)
        hidden = any(part.startswith((".", "_")) for part in path.split("/"))
        return not hidden and path.lower().endswith(suffixes)

    def of(self, path: str) -> str:
        """Return the type of a file's records."""
        if self._pattern is not None and self._pattern.names_type:
            return self._pattern.type_of(path) or path
        folder, inside, _ = path.partition("/")
        by_folder = folder if inside and self._pattern is None else ""
        return by_folder or self.root.rstrip("/").rpartition("/")[2] or "files"


@dataclass(frozen=True, slots=True)
class FileFilter:
    """The rules by which one source chooses files."""

    format: str
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    start: datetime | None = None
    types: FileTypes | None = None
    """The types of plain files; None for change files."""

    def __call__(self, file: FoundFile) -> bool:
        """Return whether a file belongs to the source."""
        *folders, name = file.path.split("/")
        if file.size <= 0 or not name:
            return False
        if self.types is not None:
            return self._holds_records(file, self.types)
        if name.startswith((".", "_")):
            return False
        if _SCHEMA.fullmatch(name.lower()):
            # The file is the schema of the files beside it.
            return False
        minute = _minute_of(file.path)
        if minute is None:
            listed = name.lower().endswith(_SUFFIXES[self.format])
            hidden = any(folder.startswith((".", "_")) for folder in folders)
            return listed and not hidden and self._names(folders[0] if folders else "")
        *above, table = folders[:-5] or [""]
        # A database whose name begins with an underscore has such a folder.
        if table.startswith(".") or any(folder.startswith((".", "_")) for folder in above):
            return False
        return self._names(table) and (self.start is None or minute >= self.start)

    def _holds_records(self, file: FoundFile, types: FileTypes) -> bool:
        """Return whether a plain file is read."""
        if not types.fits(file.path, _SUFFIXES[self.format]):
            return False
        late = self.start is None or file.modified_ns >= self.start.timestamp() * 1e9
        return late and self._names(types.of(file.path))

    def _names(self, table: str) -> bool:
        """Return whether the lists of names include a table's folder."""
        if self.include and not any(fnmatchcase(table, pattern) for pattern in self.include):
            return False
        return not any(fnmatchcase(table, pattern) for pattern in self.exclude)


def _minute_of(path: str) -> datetime | None:
    """Return the minute whose folder a file is in; None if it is in no such folder."""
    match = _MINUTE.fullmatch(path)
    if match is None:
        return None
    year, month, day, hour, minute = map(int, match.groups()[1:])
    try:
        return datetime(year, month, day, hour, minute, tzinfo=UTC)
    except ValueError:
        return None


_SEGMENT = re.compile(r"([0-9]{20})\.jsonl")
_FILES_PER_SEGMENT = 10_000
_MANY_SEGMENTS = 500


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file with its number in the list."""

    number: int
    path: str
    size: int
    modified_ns: int
    chain: int
    """32 bits that depend on this file and on every file before it."""


class FileList:
    """The list of found files, which only grows. Used by one thread."""

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
        """Return whether the list has this file unchanged.

        A file that has grown is a new one.
        """
        return _digest(file) in self._known

    def append(self, files: Sequence[FoundFile]) -> None:
        """Number files and store them durably."""
        for start in range(0, len(files), _FILES_PER_SEGMENT):
            self._append(files[start : start + _FILES_PER_SEGMENT])

    def files(self, start: int, end: int) -> list[ListedFile]:
        """Return the files with the numbers from `start` to before `end`, as far as they exist."""
        end = min(end, len(self))
        files: list[ListedFile] = []
        at = bisect_right(self._firsts, start) - 1
        while start < end:
            first = self._firsts[at]
            lines = self._lines(first)[start - first : end - first]
            files += [self._parsed(first, start + i, line) for i, line in enumerate(lines)]
            start, at = start + len(lines), at + 1
        return files

    def chain(self, end: int) -> int:
        """Return the fingerprint of the files before a number."""
        if end == 0:
            return 0
        return self._chain if end == len(self) else self.files(end - 1, end)[0].chain

    def put_together(self) -> None:
        """Merge many small segments into few large ones."""
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
            entry = {
                "path": file.path,
                "size": file.size,
                "mtime": file.modified_ns,
                "chain": chain,
            }
            lines.append(json.dumps(entry, separators=(",", ":")))
        data = ("\n".join(lines) + "\n").encode()
        with self._writing():
            created = self._store.create(_name(first), data)
        if created is None:
            raise FencedError(
                "another process has added files to the list",
                where=f"{self._store.address}/{_name(first)}",
                next_step="let the other process continue: nothing is lost",
            )
        self._firsts.append(first)
        self._counts.append(len(files))
        self._known.update(digests)
        self._chain = chain

    def _load(self) -> None:
        names = map(_SEGMENT.fullmatch, (file.name for file in self._store.files()))
        firsts = sorted(int(name[1]) for name in names if name)
        for first in firsts:
            # A segment that begins earlier was merged into another one, and not removed yet.
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
                    raise self._damaged(
                        _name(first), f"file {number} does not match its fingerprint"
                    )
                self._known.add(digest)
            self._firsts.append(first)
            self._counts.append(len(lines))

    def _parsed(self, first: int, number: int, line: bytes) -> ListedFile:
        try:
            entry = json.loads(line)
            return ListedFile(number, *(entry[k] for k in ("path", "size", "mtime", "chain")))
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(_name(first), f"file {number}: {type(error).__name__}") from error

    def _lines(self, first: int) -> list[bytes]:
        """Return the lines of a segment; the last one is cached, for batches that share it."""
        if self._segment[0] != first:
            self._segment = (first, self._store.read(_name(first)).splitlines())
        return self._segment[1]

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LakeUnavailableError(
                "cannot write the list of files",
                where=self._store.address,
                evidence=error.strerror or type(error).__name__,
                next_step="check that the folder is writable and that the disk has free space",
            ) from error

    def _damaged(self, name: str, evidence: str) -> CheckpointError:
        return CheckpointError(
            "the list of files is damaged",
            where=f"{self._store.address}/{name}",
            evidence=evidence,
            next_step="restore the whole checkpoint from a backup, or start again with `reset`",
        )


def _name(first: int) -> str:
    return f"{first:020d}.jsonl"


def _digest(file: FoundFile | ListedFile) -> bytes:
    text = f"{file.size}\0{file.modified_ns}\0{file.path}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).digest()


def _linked(chain: int, digest: bytes) -> int:
    link = hashlib.blake2b(chain.to_bytes(4, "big") + digest, digest_size=4).digest()
    return int.from_bytes(link, "big")


# Repeated listing of a local folder, which skips folders that cannot have changed.
# A folder's modification time changes when a file is added or removed. A folder that has been quiet
# for a while, with all its files, is skipped as long as its time stays the same: one stat call
# instead of a listing. Once an hour everything is listed, for file systems without such times.

_STILL_NS = 10 * 60 * 10**9
_FULL_LOOK_NS = 3600 * 10**9

_Still = dict[str, tuple[int, tuple[str, ...]]]
"""Quiet folders by path: their modification times, and the folders in them."""


class Walk:
    """The files below a root, without following links in it."""

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
        """Yield every file, except files in folders that are unchanged since `confirm`."""
        now = self._clock()
        if now - self._full_look > _FULL_LOOK_NS:
            self._still.clear()
            self._full_look = now
        self._looked = {}
        waiting = [""]
        while waiting:
            folder = waiting.pop()
            try:
                # Read before the listing: a file that is added in between changes the time.
                changed = os.stat(self._at(folder), follow_symlinks=not folder).st_mtime_ns
                quiet = self._still.get(folder)
                if quiet is not None and quiet[0] == changed:
                    waiting += quiet[1]
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
        """Mark the last listing as processed, so that quiet folders are skipped from now on."""
        self._still |= self._looked
        self._looked = {}

    def look(self, path: str) -> FoundFile | None:
        """Return one file as it is now; None if it is gone."""
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
            next_step="create the folder, correct source.path, or give this user read permission",
        )


def found(path: str, status: os.stat_result) -> FoundFile:
    """Return a found file with its status."""
    # Writing sets both times alike: if the second is later, the last change was a move into place.
    moved = status.st_ctime_ns > status.st_mtime_ns
    return FoundFile(path, status.st_size, status.st_mtime_ns, whole=moved)
