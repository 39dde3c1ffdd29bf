"""What a case is told, how a suite describes itself, and what both answer."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

Row = dict[str, Any]
"""Figures of one case, by name."""

_MEDIANS = (
    "stage_seconds",
    "manifest_seconds",
    "publish_seconds",
    "settle_seconds",
    "cpu_seconds",
    "files",
    "file_bytes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Travels to the process of a case as JSON."""

    tables: int
    records: int
    """In a batch."""
    batches: int
    """That are measured."""
    warm: int
    """Batches before them: until then a JVM compiles more than it computes."""
    rate: int
    """Records a second, where the stream is paced."""
    seconds: float
    """How long a paced stream is measured."""
    folder: str = ""
    made: str = ""
    """Where the records are that the suite made, when cases write elsewhere."""
    servers: str = ""
    registry: str = ""
    topic: str = ""

    @property
    def all_batches(self) -> int:
        return self.warm + self.batches

    @property
    def root(self) -> Path:
        """The folder in which the suite and its cases leave what they make."""
        return Path(self.folder)

    @property
    def source(self) -> Path:
        """The folder in which the suite left the records."""
        return Path(self.made or self.folder)

    def at(self, folder: str) -> Order:
        """The same in another folder."""
        return replace(self, folder=folder)

    def aside(self, name: str) -> Order:
        """The same on the same records, which leaves what it makes in a folder of its own."""
        folder = self.root / name
        folder.mkdir()
        return replace(self, folder=str(folder), made=str(self.source))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Order:
        return cls(**json.loads(text))


class Pair(NamedTuple):
    """A ratio: how many times as fast the first case is as the second."""

    name: str
    case: str
    base: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Cases on the same records."""

    name: str
    tables: tuple[int, ...]
    """Numbers of tables, unless others are asked for."""
    prepared: Callable[[Order], AbstractContextManager[Order]]
    """Makes the records and what serves them; the answer knows where they are."""
    cases: Mapping[str, Callable[[Order], Row]]
    pairs: Sequence[Pair] = ()
    per_table_cases: Mapping[str, int] = field(default_factory=dict)
    """Cases that write each table with Spark, and up to how many tables one can wait for them."""
    first: Sequence[str] = ()
    """Cases of seconds that come before all others, with each number of tables: few and many tables
    are compared within minutes then."""
    rates: tuple[int, ...] = ()
    """Records a second, where the stream is paced."""
    growth: str | None = None
    """Given where a batch with many tables is compared with one with few: what the ratios'
    names begin with."""
    share: float = 1.0
    """Of the records in a batch: messages may be larger here than elsewhere."""
    only_when_asked: bool = False
    """Whether a run of everything leaves it out: another suite shows the same."""
    derived: Callable[[Sequence[Row]], Mapping[str, float]] | None = None
    """Further figures, from the rows of the suite."""


def summarised(batches: Sequence[Mapping[str, float]], *, warm: int) -> Row:
    """Medians over the batches but the first few."""
    # these pay for what is made once: tables, compiled decoders, a warm JVM
    measured = batches[warm:]
    seconds = statistics.median(b["seconds"] for b in measured)
    size = statistics.median(b["records"] for b in measured)
    others = {
        name: round(statistics.median(b[name] for b in measured), 3)
        for name in _MEDIANS
        if all(name in batch for batch in measured)
    }
    return {
        "rows_per_second": round(size / seconds),
        "seconds_per_batch": round(seconds, 3),
        "batches": len(measured),
        **others,
    }
