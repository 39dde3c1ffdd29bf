"""The incarnations of a source: servers that succeed each other, each with new log positions.

A property of the merged table records where each incarnation begins. So the number of an event
depends on the event alone, and every reader of a log can compute it. Nothing here does I/O.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.model.change import SEQ

INCARNATIONS = "distributary.incarnations"
"""The table property that records where incarnations begin."""
UNKNOWN = -(2**63)
"""The value for a time or an offset that an event does not have."""

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Start:
    """The beginning of an incarnation: at an offset of a partition, or at a time of the source."""

    number: int
    topic: str | None
    """The topic; None when the source's time decides, because files arrive in any order."""
    partition: int
    at: int
    """The first offset; or the first time, in microseconds since 1970, that certainly belongs to
    it."""
    after: int = 0
    """The last time that certainly belongs to the previous incarnation."""
    position: tuple[int, ...] = ()
    """The highest log position of the previous server: between the two times, higher ones are still
    its own."""

    def covers(self, rows: pa.Table) -> Flags:
        """Mark the events that belong to this incarnation or a later one."""
        if self.topic is None:
            time = integers(rows, "_source_ts")
            between = (time > self.after) & (time < self.at)
            if between.any():
                between &= below(positions(rows), self.position)
            return (time >= self.at) | between
        if "_topic" not in rows.column_names:
            return np.zeros(rows.num_rows, np.bool_)
        here: Flags = pc.equal(rows.column("_topic"), self.topic).fill_null(False).to_numpy()
        here = here & (integers(rows, "_partition") == self.partition)
        return here & (integers(rows, "_offset") >= self.at)


@dataclass(frozen=True, slots=True)
class Incarnations:
    """The beginnings of the incarnations of a table's source, as far as events have shown them."""

    starts: tuple[Start, ...] = ()

    @property
    def by_time(self) -> tuple[Start, ...]:
        """Return the beginnings that times of the source tell, as in files."""
        return tuple(start for start in self.starts if start.topic is None)

    def applied(self, rows: pa.Table) -> pa.Table:
        """Return rows of a log with the number of their incarnation in `_seq`."""
        numbers = np.zeros(rows.num_rows, np.int64)
        for start in self.starts:
            numbers = np.maximum(numbers, np.where(start.covers(rows), start.number, 0))
        if not numbers.any():
            return rows
        return _with_phases(rows, _phases(rows) + 2 * numbers)

    def to_text(self) -> str:
        """Format the table property."""
        starts = [[s.number, s.topic, s.partition, s.at, s.after, s.position] for s in self.starts]
        return json.dumps({"version": 1, "starts": starts}, ensure_ascii=False)

    @classmethod
    def from_text(cls, text: str | None) -> Incarnations:
        """Parse the table property; a text in another format has no incarnations."""
        try:
            starts = json.loads(text or "{}").get("starts", ())
            return cls(
                tuple(Start(n, t, p, at, after, tuple(x)) for n, t, p, at, after, x in starts)
            )
        except (ValueError, TypeError, AttributeError):
            return cls()


def without_servers(rows: pa.Table) -> pa.Table:
    """Return rows whose `_seq` has no number of an incarnation."""
    phases = _phases(rows)
    return _with_phases(rows, phases & 1) if (phases > 1).any() else rows


def _phases(rows: pa.Table) -> Ints:
    values = whole_places(rows).field("phase").fill_null(0).to_numpy(zero_copy_only=False)
    phases: Ints = values.astype(np.int64)
    return phases


def _with_phases(rows: pa.Table, phases: Ints) -> pa.Table:
    seq = whole_places(rows)
    fields = {field.name: seq.field(field.name) for field in SEQ}
    fields["phase"] = pa.array(phases.astype(np.int32))
    numbered = pa.StructArray.from_arrays([*fields.values()], fields=[*SEQ])
    at = rows.schema.get_field_index("_seq")
    return rows.set_column(at, rows.schema.field(at), numbered)


def whole_places(rows: pa.Table) -> pa.StructArray:
    """Return `_seq` of all rows as one array whose fields have no offset of their own."""
    return pa.concat_arrays([*rows.column("_seq").chunks, pa.array([], SEQ)])


def positions(rows: pa.Table) -> Ints:
    """Return the log position (a, b, c) of each row."""
    seq = whole_places(rows)
    columns = [seq.field(name).fill_null(0).to_numpy(zero_copy_only=False) for name in "abc"]
    return np.stack(columns, axis=1)


def numbered_positions(rows: pa.Table) -> Ints:
    """Return the number of the incarnation and the log position (a, b, c) of each row."""
    return np.column_stack([_phases(rows) >> 1, positions(rows)])


def below(places: Ints, position: Sequence[int]) -> Flags:
    """Mark the log positions that are lower than a given one."""
    lower = np.zeros(len(places), np.bool_)
    same = np.ones(len(places), np.bool_)
    for column, part in enumerate(position):
        lower |= same & (places[:, column] < part)
        same &= places[:, column] == part
    return lower


def integers(rows: pa.Table, name: str) -> Ints:
    """Return a column as 64-bit integers; UNKNOWN where a value or the column is missing."""
    if name not in rows.column_names:
        return np.full(rows.num_rows, UNKNOWN)
    return as_integers(rows.column(name))


def as_integers(column: pa.ChunkedArray) -> Ints:
    """Return values as 64-bit integers; UNKNOWN where there is none."""
    values: Ints = column.cast(pa.int64()).fill_null(UNKNOWN).to_numpy()
    return values
