"""Stored sums of the ledger's rows, so that readers only read the newest rows themselves.

A view is a table of sums by some keys. `lift` turns rows of the ledger into rows of the view, and
`merge` combines rows of the view with equal keys; it also merges sums with sums. So rows are summed
only once: the sums of a version are those of the version before, merged with the rows since then.
Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.model.change import OP_COLUMNS
from distributary.model.manifest import Counts
from distributary.model.record import TIMESTAMP
from distributary.observe.ledger.ledger_rows import (
    ACCEPTED,
    PARKED,
    RESUMED,
    flat_ranges,
    tables_of,
)
from distributary.observe.ledger.recording import TABLES, still_parked

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class View:
    """The definition of a table of sums: its keys, and the ways to combine columns."""

    schema: pa.Schema
    lift: Callable[[pa.Table], pa.Table]
    needs: tuple[str, ...]
    """The columns of the ledger that `lift` reads."""
    keys: tuple[str, ...]
    added: tuple[str, ...] = ()
    lowest: tuple[str, ...] = ()
    highest: tuple[str, ...] = ()
    latest: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Columns taken from the last row by the order of some columns; `-` reverses a column."""
    reduce: Callable[[pa.Table], pa.Table] | None = None
    """A function that replaces all of these ways."""

    def merge(self, parts: Iterable[pa.Table], keys: Sequence[str] = ()) -> pa.Table:
        """Combine rows with equal keys; with fewer keys, sums are larger."""
        rows = pa.concat_tables([self.schema.empty_table(), *parts])
        if self.reduce is not None:
            return self.reduce(rows)
        return self._merged(rows, tuple(keys) or self.keys) if len(rows) else rows

    def _merged(self, rows: pa.Table, keys: Sequence[str]) -> pa.Table:
        groups = _Groups(rows, keys)
        columns = {name: groups.first(name) for name in keys}
        columns |= {name: groups.total(name) for name in self.added}
        columns |= {name: groups.extreme(name, np.minimum) for name in self.lowest}
        columns |= {name: groups.extreme(name, np.maximum) for name in self.highest}
        columns |= {name: groups.latest(name, by) for name, by in self.latest.items()}
        known = [each for each in self.schema if each.name in columns]
        return pa.table([columns[each.name] for each in known], schema=pa.schema(known))


class _Groups:
    """Rows grouped by keys; each group has a number."""

    def __init__(self, rows: pa.Table, keys: Sequence[str]) -> None:
        self._rows = rows.combine_chunks()
        codes: Ints = np.zeros(len(rows), np.int64)
        for key in keys:
            column = pc.dictionary_encode(self._rows[key], null_encoding="encode")
            own = column.combine_chunks()
            own = own.chunk(0) if isinstance(own, pa.ChunkedArray) else own
            values = own.indices.to_numpy().astype(np.int64)
            _, codes = np.unique(codes * len(own.dictionary) + values, return_inverse=True)
        self._codes, self._count = codes, int(codes.max()) + 1

    def first(self, name: str) -> pa.ChunkedArray:
        index: Ints = np.zeros(self._count, np.int64)
        index[self._codes[::-1]] = np.arange(len(self._rows))[::-1]
        return self._rows[name].take(_integers(index))

    def total(self, name: str) -> pa.Array:
        values, valid = self._numbers(name)
        sums: Ints = np.zeros(self._count, np.int64)
        np.add.at(sums, self._codes[valid], values[valid])
        return self._array(sums, valid, name)

    def extreme(self, name: str, choose: np.ufunc) -> pa.Array:
        values, valid = self._numbers(name)
        limits = np.iinfo(np.int64)
        start = limits.max if choose is np.minimum else limits.min
        found: Ints = np.full(self._count, start, np.int64)
        choose.at(found, self._codes[valid], values[valid])
        return self._array(found, valid, name)

    def latest(self, name: str, by: Sequence[str]) -> pa.ChunkedArray:
        """Return the values of each group's last row by some columns; null without a row."""
        ordered = [self._numbers(each.removeprefix("-")) for each in by]
        _, valid = ordered[0]
        keys = [
            -values if each.startswith("-") else values
            for each, (values, _) in zip(by, ordered, strict=True)
        ]
        order = np.lexsort(keys[::-1])
        order = order[valid[order]]
        index: Ints = np.full(self._count, -1, np.int64)
        # if several values are assigned to one position, the last one remains
        index[self._codes[order]] = order
        return self._rows[name].take(_integers(index, index >= 0))

    def _numbers(self, name: str) -> tuple[Ints, np.ndarray[Any, np.dtype[np.bool_]]]:
        column = self._rows[name]
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        numbers = column.cast(pa.int64()) if len(column) else column
        return numbers.fill_null(0).to_numpy().astype(np.int64), valid

    def _array(
        self, values: Ints, valid: np.ndarray[Any, np.dtype[np.bool_]], name: str
    ) -> pa.Array:
        there = np.zeros(self._count, np.bool_)
        there[self._codes[valid]] = True
        return _integers(values, there).cast(self._rows[name].type)


def _integers(values: Ints, valid: np.ndarray[Any, np.dtype[np.bool_]] | None = None) -> pa.Array:
    """Return numbers as Arrow's, null where they are not valid, by handing over their memory.

    `pa.array` imports the masked arrays of numpy, a fiftieth of what `status` takes.
    """
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    memory = pa.py_buffer(np.ascontiguousarray(values, np.int64))
    return pa.Array.from_buffers(pa.int64(), len(values), [bits, memory])


# Views of `tables`.

_LANE = ("pipeline", "life", "lane", "table")
_SUMMED = ("records", "rows", "bytes", "batches", "filtered")
LANES = pa.schema(
    [
        *((name, pa.string()) for name in (*_LANE, "role", "type", "path")),
        ("seen", TIMESTAMP),
        ("columns", pa.int32()),
        *((name, pa.int64()) for name in (*_SUMMED, "written", "parked")),
        ("version", pa.int64()),
        ("version_at", TIMESTAMP),
        ("version_batch", pa.int64()),
        ("commit_batch", pa.int64()),
        ("commit_version", pa.int64()),
        ("accepted", pa.int64()),
        ("accepted_at", TIMESTAMP),
        ("accepted_version", pa.int64()),
        ("last_commit", TIMESTAMP),
        ("first_seen", TIMESTAMP),
        *((name, pa.int64()) for name in OP_COLUMNS.values()),
        ("last_event", TIMESTAMP),
        ("last_event_at", TIMESTAMP),
    ]
)


def _lift_lanes(rows: pa.Table) -> pa.Table:
    outcome = rows["outcome"]
    live = pc.not_equal(outcome, PARKED)
    accepted = pc.equal(outcome, ACCEPTED)
    wrote = pc.and_(live, pc.invert(accepted))
    versioned = pc.and_(live, rows["version"].is_valid())
    committed = pc.and_(wrote, rows["version"].is_valid())
    at, batch, version = rows["at"], rows["batch"], rows["version"]
    eventful = pc.and_(live, rows["last_event"].is_valid())
    columns: dict[str, Any] = {name: rows[name] for name in (*_LANE, "role", "type", "path")}
    columns |= {"seen": at, "columns": rows["columns"], "first_seen": rows["since"]}
    # Rows of earlier versions have no count of filtered records.
    columns |= {name: pc.if_else(live, pc.fill_null(rows[name], 0), 0) for name in _SUMMED}
    columns |= {
        "written": pc.if_else(wrote, rows["rows"], 0),
        "parked": pc.cast(pc.invert(live), pa.int64()),
        "version": _where(versioned, version),
        "version_at": _where(versioned, at),
        "version_batch": _where(versioned, batch),
        "commit_batch": _where(committed, batch),
        "commit_version": _where(committed, version),
        "accepted": _where(accepted, batch),
        "accepted_at": _where(accepted, at),
        "accepted_version": _where(accepted, version),
        "last_commit": _where(wrote, at),
        "last_event": _where(live, rows["last_event"]),
        "last_event_at": _where(eventful, at),
    }
    columns |= {name: _where(live, rows[name]) for name in OP_COLUMNS.values()}
    return pa.table([columns[name] for name in LANES.names], schema=LANES)


def _where(mask: pa.ChunkedArray, values: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(mask, values, pa.scalar(None, values.type))


LANES_VIEW = View(
    schema=LANES,
    lift=_lift_lanes,
    needs=(
        *(*_LANE, "role", "type", "path", "columns", "batch", "at", "outcome", "version", "since"),
        *(*_SUMMED, "last_event", *OP_COLUMNS.values()),
    ),
    keys=_LANE,
    added=(*_SUMMED, "written", "parked", *OP_COLUMNS.values()),
    lowest=("first_seen",),
    highest=(
        *("seen", "columns", "version_at", "commit_batch", "accepted", "accepted_at"),
        *("last_commit", "last_event"),
    ),
    latest={
        **dict.fromkeys(("role", "type", "path"), ("seen",)),
        **dict.fromkeys(("version", "version_batch"), ("version_at", "version_batch")),
        "commit_version": ("commit_batch",),
        "accepted_version": ("accepted_at",),
        "last_event_at": ("last_event", "-last_event_at"),
    },
)

RULES = pa.schema(
    [
        *((name, pa.string()) for name in ("pipeline", "table", "rule", "action")),
        ("checked", pa.int64()),
        ("violated", pa.int64()),
        ("unfit", pa.string()),
        ("example", pa.string()),
        ("last_violated", TIMESTAMP),
        ("last_checked", TIMESTAMP),
    ]
)


def _lift_rules(rows: pa.Table) -> pa.Table:
    found = rows.filter(pc.not_equal(rows["outcome"], PARKED)).combine_chunks()
    if not len(found):
        return RULES.empty_table()
    lists = _one(found["expectations"])
    rules = pa.Table.from_struct_array(pc.list_flatten(lists))
    place = pc.list_parent_indices(lists)
    at = found["at"].take(place)
    broken = pc.greater(rules["violated"], 0)
    columns = {name: rules[name] for name in rules.column_names}
    columns |= {name: found[name].take(place) for name in ("pipeline", "table")}
    columns |= {"last_violated": _where(broken, at), "last_checked": at}
    return pa.table([columns[name] for name in RULES.names], schema=RULES)


RULES_VIEW = View(
    schema=RULES,
    lift=_lift_rules,
    needs=("pipeline", "table", "at", "outcome", "expectations"),
    keys=("pipeline", "table", "rule"),
    added=("checked", "violated"),
    highest=("last_violated", "last_checked"),
    latest={
        **dict.fromkeys(("action", "unfit"), ("last_checked",)),
        "example": ("last_violated",),
    },
)

SCHEMA_IDS = pa.schema(
    [
        ("pipeline", pa.string()),
        ("table", pa.string()),
        ("id", pa.int64()),
        ("parked", pa.bool_()),
        *((name, pa.int64()) for name in ("rows", "mixed", "batches", "first_batch", "last_batch")),
        ("first_seen", TIMESTAMP),
        ("last_seen", TIMESTAMP),
    ]
)


def _lift_schema_ids(rows: pa.Table) -> pa.Table:
    rows = rows.combine_chunks()
    if not len(rows):
        return SCHEMA_IDS.empty_table()
    lists = _one(rows["schema_ids"])
    place = pc.list_parent_indices(lists)
    each = rows.drop_columns(["schema_ids"]).take(place)
    columns = {
        "pipeline": each["pipeline"],
        "table": each["table"],
        "id": pc.list_flatten(lists),
        "parked": pc.equal(each["outcome"], PARKED),
        "rows": each["rows"],
        "mixed": pc.list_value_length(lists).take(place).cast(pa.int64()),
        "batches": each["batches"],
        "first_batch": each["batch"],
        "last_batch": each["batch"],
        "first_seen": each["since"],
        "last_seen": each["at"],
    }
    return pa.table([columns[name] for name in SCHEMA_IDS.names], schema=SCHEMA_IDS)


SCHEMA_IDS_VIEW = View(
    schema=SCHEMA_IDS,
    lift=_lift_schema_ids,
    needs=(
        *("pipeline", "table", "batch", "at", "outcome", "rows", "batches", "since", "schema_ids"),
    ),
    keys=("pipeline", "table", "id", "parked"),
    added=("rows",),
    lowest=("first_batch", "first_seen"),
    highest=("mixed", "batches", "last_batch", "last_seen"),
)


def _lift_parked(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.is_in(rows["outcome"], pa.array([PARKED, RESUMED])))


def _reduce_parked(rows: pa.Table) -> pa.Table:
    """Return the parked rows without a matching row `resumed`."""
    if not len(rows):
        return rows
    waiting = {(row.key, row.table) for row in still_parked(tables_of(rows))}
    names = ("pipeline", "life", "lane", "batch", "table", "outcome")
    keys = zip(*(rows[name].to_pylist() for name in names), strict=True)
    kept = [o == PARKED and ((p, li, la, b), t) in waiting for p, li, la, b, t, o in keys]
    return rows.filter(pa.array(kept, pa.bool_()))


PARKED_VIEW = View(
    schema=TABLES,
    lift=_lift_parked,
    needs=tuple(TABLES.names),
    keys=(),
    reduce=_reduce_parked,
)

# Views of `batches`.

_COUNTS = tuple(Counts.__dataclass_fields__)
TOTALS = pa.schema(
    [
        *((name, pa.string()) for name in ("pipeline", "life", "lane")),
        *((name, pa.int64()) for name in (*_COUNTS, "batches", "batch")),
        ("finished_at", TIMESTAMP),
    ]
)
TOTALS_VIEW = View(
    schema=TOTALS,
    lift=lambda rows: rows.select(TOTALS.names).cast(TOTALS),
    needs=tuple(TOTALS.names),
    keys=("pipeline", "life", "lane"),
    added=(*_COUNTS, "batches"),
    highest=("batch", "finished_at"),
)

BLOCK = 1024
"""The number of batches whose ranges are summed: a search reads at most as many batches."""
RANGES = pa.schema(
    [
        *((name, pa.string()) for name in ("pipeline", "life", "lane", "topic")),
        ("block", pa.int64()),
        ("partition", pa.int32()),
        *((name, pa.int64()) for name in ("start", "end", "records")),
    ]
)


def _lift_ranges(rows: pa.Table) -> pa.Table:
    rows = rows.combine_chunks()
    if not len(rows):
        return RANGES.empty_table()
    flat = flat_ranges(rows)
    columns = {name: flat[name] for name in ("topic", "partition", "start", "end", "records")}
    columns |= {name: rows[name].take(flat["row"]) for name in ("pipeline", "life", "lane")}
    columns["block"] = pc.divide(rows["batch"].take(flat["row"]), BLOCK)
    return pa.table([columns[name] for name in RANGES.names], schema=RANGES)


RANGES_VIEW = View(
    schema=RANGES,
    lift=_lift_ranges,
    needs=("pipeline", "life", "lane", "batch", "ranges"),
    keys=("pipeline", "life", "lane", "block", "topic", "partition"),
    added=("records",),
    lowest=("start",),
    highest=("end",),
)


def _one(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return found.chunk(0) if isinstance(found, pa.ChunkedArray) else found


# The stored form: all views of a table, and the files whose rows are in them.

Views = Mapping[str, View]
_COVERED = b"covered"


@dataclass(frozen=True, slots=True)
class Sums:
    """The views of some files of a ledger table."""

    covered: frozenset[str]
    """The names of the files whose rows are in the views."""
    views: Mapping[str, pa.Table]

    def to_bytes(self) -> bytes:
        """Return the sums as the content of one file."""
        contents = []
        for table in self.views.values():
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table)
            contents.append(sink.getvalue().to_pybytes())
        rows = pa.table({"view": list(self.views), "content": pa.array(contents, pa.binary())})
        rows = rows.replace_schema_metadata({_COVERED: json.dumps(sorted(self.covered))})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(
            sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
        ) as stream:
            stream.write_table(rows)
        return bytes(sink.getvalue().to_pybytes())

    @classmethod
    def from_bytes(cls, data: bytes, views: Views) -> Sums | None:
        """Read the content of `to_bytes`; None for another version or other content."""
        try:
            rows = pa.ipc.open_stream(data).read_all()
            covered = frozenset(json.loads(rows.schema.metadata[_COVERED]))
            contents = rows["content"].to_pylist()
            found = {
                name: pa.ipc.open_stream(content).read_all()
                for name, content in zip(rows["view"].to_pylist(), contents, strict=True)
            }
        except (pa.ArrowException, OSError, KeyError, TypeError, ValueError):
            return None
        same = found.keys() == views.keys() and all(
            table.schema.equals(views[name].schema) for name, table in found.items()
        )
        return cls(covered, found) if same else None
