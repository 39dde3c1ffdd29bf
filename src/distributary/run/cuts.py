"""Where the stream of a pipeline that several jobs share was divided anew.

<lake>/_distributary/pipelines/<name>/shards/000000.json       {"shards": 2}
                                             000000.at.json    {"version": 17}
                                             000001.json       {"shards": 3}
                                             000001.at.json    {"version": 40}

From version 17 of the bronze table on, two jobs share the types; from version 40 on, three. Both
files of a cut are created exclusively and never changed. First the number is announced, then the
newest version is looked up and the cut is placed behind it. A reader does it the other way round:
it looks how far bronze goes, then for cuts. If it finds no announcement, the cut will be placed
behind everything that it has seen; if it finds one without a place, it waits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from distributary.errors import CheckpointError
from distributary.observe import layout
from distributary.run.writing import create_exclusively

if TYPE_CHECKING:
    from distributary.source.base import Position

_NAME = re.compile(r"[0-9]{6}\.json")


@dataclass(frozen=True, slots=True)
class Epoch:
    """A stretch of the bronze table during which the number of shards is the same."""

    shards: int
    first: int
    """The version of the bronze table with which it begins."""
    last: int | None = None
    """The version with which the next one begins; None while it goes on."""

    def takes(self, part: int | str) -> bool:
        """Whether a job has anything to do here."""
        return part == "unified" or (isinstance(part, int) and part < self.shards)

    def is_before(self, position: Position | None) -> bool:
        """Whether a job that has come as far as `position` is past all of it."""
        return position is not None and self.last is not None and place(position) >= (self.last, 0)

    def begin(self, position: Position | None) -> Position:
        """Where a job starts reading that has come as far as `position`.

        Rows are each job's own count: one that begins here begins with none.
        """
        if position is None:
            return {"version": self.first, "index": 0, "rows": 0}
        if place(position) >= (self.first, 0):
            return position
        return {**position, "version": self.first, "index": 0}

    def end(self, until: Position | None = None) -> Position:
        """The end of the epoch, or `until` where that comes first."""
        if self.last is not None and (until is None or place(until) > (self.last, 0)):
            return {"version": self.last, "index": 0, "rows": -1}
        if until is None:
            raise AssertionError("an epoch that goes on has no end")
        return until


@dataclass(frozen=True, slots=True)
class Division:
    """How the stream is divided, as far as that is known."""

    epochs: tuple[Epoch, ...] = ()
    announced: int | None = None
    """The number of shards of a cut that has no place yet."""

    @property
    def shards(self) -> int:
        """The number of shards from now on; 0 where there are none."""
        return self.announced or (self.epochs[-1].shards if self.epochs else 0)

    @property
    def most(self) -> int:
        """The largest number of shards there ever were."""
        return max((epoch.shards for epoch in self.epochs), default=0)


@dataclass(frozen=True, slots=True)
class Cuts:
    """The folder of cuts of one pipeline."""

    folder: Path

    @classmethod
    def of(cls, lake: str, pipeline: str) -> Cuts:
        """The cuts of a pipeline in a lake."""
        return cls(Path(layout.pipeline(lake, pipeline)) / "shards")

    def read(self) -> Division:
        """All stretches so far, the oldest first."""
        numbers = [_number(path, "shards") for path in self._announcements()]
        places = [_number(path, "version") for path in self._places(len(numbers))]
        ends = [*places[1:], None]
        epochs = tuple(map(Epoch, numbers, places, ends))
        return Division(epochs, numbers[-1] if len(places) < len(numbers) else None)

    def divide(self, shards: int, newest: Callable[[], int]) -> Division:
        """Spread the types over this many jobs, from behind the `newest` version on.

        Doing it again changes nothing, and completes what a crash left half done.
        """
        found = self.read()
        if found.announced is not None:
            self._place(len(found.epochs), newest)
            found = self.read()
        if found.shards != shards:
            number = len(found.epochs)
            create_exclusively(self._path(number), json.dumps({"shards": shards}))
            self._place(number, newest)
        return self.read()

    def _place(self, number: int, newest: Callable[[], int]) -> None:
        create_exclusively(self._place_path(number), json.dumps({"version": newest() + 1}))

    def _announcements(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return sorted(p for p in self.folder.iterdir() if _NAME.fullmatch(p.name))

    def _places(self, count: int) -> list[Path]:
        """A cut is announced when all before it have their places."""
        paths = [self._place_path(number) for number in range(count)]
        return paths if not paths or paths[-1].exists() else paths[:-1]

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.json"

    def _place_path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.at.json"


def place(position: Position) -> tuple[int, int]:
    """What positions are compared by."""
    return int(position["version"]), int(position["index"])


def _number(path: Path, key: str) -> int:
    try:
        return int(json.loads(path.read_text())[key])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            "a cut of the stream cannot be read",
            where=str(path),
            evidence=f"{type(error).__name__}: {error}",
            next_step="restore the file from a copy: without it nobody knows whose records "
            "are whose",
        ) from error
