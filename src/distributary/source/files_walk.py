"""Lists a local folder again and again, and looks only where something can have changed.

A folder's own time changes when a file comes or goes. A folder that has been still for a while,
with all that is in it, is taken as it was for as long as its time stays the same: a stat in place
of a listing. Once an hour everything is looked at, for file systems that keep no such times.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator

from distributary.errors import SourceUnavailableError
from distributary.registry.hostile import printable
from distributary.source.files_names import FoundFile

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
