"""A cut: one moment of a lake, given by the version of each of its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from distributary.model import layout
from distributary.model.manifest import LANES, app_id

_OURS = app_id("", "", "").partition("/")[0] + "/"


def is_batch(app: str) -> bool:
    """Return whether an application of a mark is a lane of a pipeline."""
    return app.startswith(_OURS) and app.count("/") >= 3 and app.rpartition("/")[2] in LANES


@dataclass(frozen=True, slots=True)
class CutBatch:
    """The newest batch of a pipeline's stream that is part of a cut."""

    pipeline: str
    life: str
    batch: int
    settled_at: datetime


@dataclass(frozen=True, slots=True)
class CutPoint:
    """A moment of a lake, by the batches that are part of it."""

    at: datetime | None
    """The moment; None for now, which includes what other programs have committed since."""
    batches: tuple[CutBatch, ...]
    """The newest batch of each pipeline, by the pipeline's name."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """The newest batch of each application; a later batch is not part of the cut."""
    unlimited: frozenset[str] = frozenset()
    """The applications of earlier lives, whose batches are all older."""
    pipelines: frozenset[str] = frozenset()
    """The pipelines of the lake; marks of any other program say nothing about a cut."""

    pinned: Cut | None = None
    """The cut as it was pinned, if it was."""

    def holds(self, app: str, batch: int) -> bool:
        """Return whether a mark in a table's log belongs to the cut."""
        if app in self.unlimited or not is_batch(app):
            return True
        pipeline = app.removeprefix(_OURS).rsplit("/", 2)[0]
        return pipeline not in self.pipelines or batch <= self.limits.get(app, -1)

    def limit(self, pipeline: str, life: str, lane: str) -> int | None:
        """Return the newest batch of a lane in the cut; None where all batches are."""
        app = app_id(pipeline, life, lane)
        return None if app in self.unlimited else self.limits.get(app, -1)

    def describe(self) -> str:
        """Return the words by which messages name the cut."""
        names = [f"{one.batch}" for one in self.batches]
        if len(names) == 1:
            return f"cut {names[0]}"
        return "the newest cut" if self.at is None else f"the cut of {self.at.isoformat()}"


@dataclass(frozen=True, slots=True)
class CutTable:
    """A table of a cut."""

    table: str
    role: str
    path: str
    """The address of the table's folder."""
    format: str
    version: int | None
    """None for a format without versions: readers see its newest state."""
    behind: int | None = None
    """The first batch of the cut that the table lacks, because it is parked."""
    snapshot: int | None = None
    """The snapshot of its Iceberg mirror that shows this version; None if none does."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One moment of a lake: readers of these versions see whole batches only."""

    lake: str
    at: datetime | None
    batches: tuple[CutBatch, ...]
    tables: tuple[CutTable, ...]

    def has(self, pipeline: str, life: str, batch: int) -> bool:
        """Return whether a batch is the newest one of its pipeline in the cut."""
        return any((b.pipeline, b.life, b.batch) == (pipeline, life, batch) for b in self.batches)

    def as_dict(self) -> dict[str, Any]:
        """Return the document, `cut.json`, in the types of JSON."""
        batches = [
            {**asdict(one), "settled_at": one.settled_at.isoformat()} for one in self.batches
        ]
        at = None if self.at is None else self.at.isoformat()
        tables = [asdict(one) for one in self.tables]
        return {"lake": self.lake, "at": at, "batches": batches, "tables": tables}


@dataclass(frozen=True, slots=True)
class CutPin:
    """A cut that stays readable until a moment."""

    name: str
    """`games:41`, or the time of a cut that is not that of a batch."""
    until: datetime
    cut: Cut

    def as_dict(self) -> dict[str, Any]:
        """Return the document in the types of JSON."""
        return {"name": self.name, "until": self.until.isoformat(), "cut": self.cut.as_dict()}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], *, lake: str) -> CutPin:
        """Return the pin of a document, with the tables where the lake is now.

        Raises KeyError, TypeError or ValueError for a document of another kind.
        """
        cut = document["cut"]
        moment = datetime.fromisoformat
        batches = tuple(
            CutBatch(**{**one, "settled_at": moment(one["settled_at"])}) for one in cut["batches"]
        )
        tables = tuple(
            CutTable(**{**one, "path": layout.place(lake, one["path"])}) for one in cut["tables"]
        )
        whole = Cut(lake, None if cut["at"] is None else moment(cut["at"]), batches, tables)
        return cls(str(document["name"]), moment(document["until"]), whole)
