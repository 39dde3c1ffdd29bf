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
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributary import durable
from distributary.errors import CheckpointError, FencedError, LakeUnavailableError
from distributary.source.files_names import FoundFile

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

    def __init__(self, folder: Path) -> None:
        self._folder = folder
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
        return _digest(file.path, file.size, file.modified_ns) in self._known

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
            found += [self._parsed(start + i, line) for i, line in enumerate(lines)]
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
                self._joined([self._path(first) for first in group])
        ends = [*(group[0] for group in groups[1:]), len(self)]
        self._firsts = [group[0] for group in groups]
        self._counts = [end - first for first, end in zip(self._firsts, ends, strict=True)]
        self._segment = (-1, [])

    @staticmethod
    def _joined(paths: Sequence[Path]) -> None:
        if len(paths) > 1:
            durable.replace(paths[0], b"".join(path.read_bytes() for path in paths))
            for path in paths[1:]:
                path.unlink(missing_ok=True)

    def _append(self, files: Sequence[FoundFile]) -> None:
        first, chain, lines, digests = len(self), self._chain, [], []
        for file in files:
            digest = _digest(file.path, file.size, file.modified_ns)
            chain = _linked(chain, digest)
            digests.append(digest)
            content = {"path": file.path, "size": file.size, "mtime": file.modified_ns}
            lines.append(json.dumps({**content, "chain": chain}, separators=(",", ":")))
        data = ("\n".join(lines) + "\n").encode()
        with self._writing():
            self._folder.mkdir(parents=True, exist_ok=True)
            created = durable.create(self._path(first), data)
        if created is None:
            raise FencedError(
                "another process has added files to the catalogue meanwhile",
                where=str(self._path(first)),
                next_step="nothing is lost: let the other process go on",
            )
        self._firsts.append(first)
        self._counts.append(len(files))
        self._known.update(digests)
        self._chain = chain

    def _load(self) -> None:
        names = (path.name for path in self._folder.iterdir()) if self._folder.exists() else ()
        firsts = sorted(int(name[1]) for name in map(_SEGMENT.fullmatch, names) if name)
        for first in firsts:
            # one that begins earlier was put together with others, and not removed any more
            if first < len(self):
                continue
            lines = self._path(first).read_bytes().splitlines()
            if first > len(self) or not lines:
                raise self._damaged(self._path(first), f"file {len(self)} is missing")
            for number, line in enumerate(lines, first):
                file = self._parsed(number, line)
                digest = _digest(file.path, file.size, file.modified_ns)
                self._chain = _linked(self._chain, digest)
                if self._chain != file.chain:
                    raise self._damaged(self._path(first), f"file {number} is another one")
                self._known.add(digest)
            self._firsts.append(first)
            self._counts.append(len(lines))

    def _parsed(self, number: int, line: bytes) -> CataloguedFile:
        try:
            content: dict[str, Any] = json.loads(line)
            path, size, modified = content["path"], content["size"], content["mtime"]
            return CataloguedFile(number, path, size, modified, content["chain"])
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(self._folder, f"file {number}: {type(error).__name__}") from error

    def _lines(self, first: int) -> list[bytes]:
        """The lines of a segment; the last one read is kept, for batches that share it."""
        if self._segment[0] != first:
            self._segment = (first, self._path(first).read_bytes().splitlines())
        return self._segment[1]

    def _path(self, first: int) -> Path:
        return self._folder / f"{first:020d}.jsonl"

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LakeUnavailableError(
                "cannot write the catalogue of files",
                where=str(self._folder),
                evidence=error.strerror or type(error).__name__,
                next_step="check that the folder is writable and that the disk has room",
            ) from error

    @staticmethod
    def _damaged(where: Path, evidence: str) -> CheckpointError:
        return CheckpointError(
            "the catalogue of files that were found is damaged",
            where=str(where),
            evidence=evidence,
            next_step="restore the whole checkpoint from a copy, or begin anew with `reset`",
        )


def _digest(path: str, size: int, modified_ns: int) -> bytes:
    text = f"{size}\0{modified_ns}\0{path}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).digest()


def _linked(chain: int, digest: bytes) -> int:
    link = hashlib.blake2b(chain.to_bytes(4, "big") + digest, digest_size=4).digest()
    return int.from_bytes(link, "big")
