"""Logs of changes made by hand, orders to merge them, and what the tables should then hold."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.changes.apply import merge_table
from distributary.changes.merge_order import MergeOrder
from distributary.delta.tables import read_rows
from distributary.model.change import CHANGE_COLUMNS, SEQ
from distributary.model.manifest import app_id
from distributary.model.table import Column

LIFE = app_id("shop", "life1")
NOW = 1_700_000_000_000_000
DAY = 24 * 3600 * 1_000_000
Row = dict[str, Any]
Place = tuple[int, int, int, int, int, int, str]

COLUMNS = (
    Column("id", pa.int64(), "number of the order"),
    Column("region", pa.string()),
    Column("price", pa.float64()),
)
ARRIVAL = pa.schema(
    [
        pa.field("_topic", pa.string()),
        pa.field("_partition", pa.int32()),
        pa.field("_offset", pa.int64()),
        pa.field("_batch", pa.int64()),
    ]
)


@dataclass(frozen=True)
class Event:
    """One change."""

    place: Place
    op: str = "update"
    values: Mapping[str, Any] = field(default_factory=dict)
    key: tuple[str, ...] | None = ("id",)
    unchanged: tuple[str, ...] = ()
    offset: int = 0
    partition: int = 0
    deleted: bool | None = None
    time: int | None = None
    uuid: str = ""
    hash: int = 0
    old_key: Mapping[str, Any] | None = None
    source: Mapping[str, Any] = field(default_factory=lambda: {"lsn": 1})
    """What the envelope says of the source."""

    @property
    def position(self) -> tuple[int | str, ...]:
        """What both halves of a change of key have in common."""
        return self.place[:5]

    @property
    def removes(self) -> bool:
        return self.op == "delete" or bool(self.deleted)


def event(number: int | Place, op: str = "update", **values: Any) -> Event:
    """A change at a place: a number stands for a time in milliseconds."""
    place = (1, number, 0, 0, 0, 1, "") if isinstance(number, int) else number
    return Event(place, op, values, deleted=op == "delete")


def rows_of(events: Sequence[Event], columns: Sequence[Column], *, batch: int = 0) -> pa.Table:
    """Events as a log has them."""
    change = {
        "_op": [e.op for e in events],
        "_deleted": [e.removes if e.deleted is not None else None for e in events],
        "_key": [None if e.key is None else list(e.key) for e in events],
        "_seq": [dict(zip([f.name for f in SEQ], e.place, strict=True)) for e in events],
        "_source_ts": [moment(e) for e in events],
        "_backfill": [e.place[0] == 0 for e in events],
        "_uuid": [e.uuid for e in events],
        "_hash": [e.hash for e in events],
        "_unchanged": [list(e.unchanged) for e in events],
        "_envelope": [_envelope(e) for e in events],
    }
    arrays = [pa.array(change[c.name], c.type) for c in CHANGE_COLUMNS]
    arrays += [pa.array([e.values.get(c.name) for e in events], c.type) for c in columns]
    arrival = [
        pa.array(["orders"] * len(events)),
        pa.array([e.partition for e in events], pa.int32()),
        pa.array([e.offset for e in events], pa.int64()),
        pa.array([batch] * len(events), pa.int64()),
    ]
    fields = [pa.field(c.name, c.type) for c in (*CHANGE_COLUMNS, *columns)]
    return pa.table([*arrays, *arrival], schema=pa.schema([*fields, *ARRIVAL]))


def _envelope(e: Event) -> str:
    return json.dumps({"source": e.source} | ({"old_key": e.old_key} if e.old_key else {}))


def moment(e: Event) -> int:
    """Microseconds of the source's time."""
    return (e.place[1] if e.time is None else e.time) * 1000


@dataclass
class Shop:
    """A folder with a table, its log and its tombstones; each `order` is the next batch."""

    folder: Path
    columns: tuple[Column, ...] = COLUMNS
    settings: dict[str, Any] = field(default_factory=dict)
    batch: int = -1

    def write(self, events: Sequence[Event], *, files: int = 1) -> tuple[str, ...]:
        """The events of a batch in so many files, in the order in which they arrived."""
        paths = []
        size = -(-len(events) // files)
        for number in range(files):
            path = self.folder / "log" / f"{self.batch}-{number}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = rows_of(
                events[number * size : (number + 1) * size], self.columns, batch=self.batch
            )
            pq.write_table(rows, path, store_schema=False)
            paths.append(str(path))
        return tuple(paths)

    def order(self, events: Sequence[Event], *, files: int = 1, **settings: Any) -> MergeOrder:
        self.batch += 1
        given: dict[str, Any] = (
            {"now_us": NOW, "comment": 'orders; `all` of "them"'} | self.settings | settings
        )
        return MergeOrder(
            table="orders",
            path=str(self.folder / "orders"),
            tombstones=str(self.folder / "_distributary/tombstones/orders"),
            files=self.write(events, files=files),
            columns=self.columns,
            app_id=LIFE,
            batch=self.batch,
            **given,
        )

    def publish_log(self) -> str:
        """The files of all batches so far as a table; returns its path."""
        log = self.folder / "log"
        batches = sorted(log.glob("*.parquet"))
        for file in batches:
            write_deltalake(log / "table", pq.read_table(file), mode="append", schema_mode="merge")
        return str(log / "table")

    def rows(self) -> list[Row]:
        return table_rows(self.folder / "orders")

    def history(self) -> list[Row]:
        return table_rows(self.folder / "orders_history")

    def tombstones(self) -> list[Row]:
        return table_rows(self.folder / "_distributary/tombstones/orders")

    def version(self) -> int:
        return DeltaTable(self.folder / "orders").version()


def last_commit(path: Path) -> dict[str, Any]:
    """What the newest commit of a table says of itself."""
    newest = max((path / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in newest.read_text().splitlines()]
    info: dict[str, Any] = next(
        action["commitInfo"] for action in actions if "commitInfo" in action
    )
    return info


def table_rows(path: Path) -> list[Row]:
    """All rows of a table, in an order of their own; places as tuples."""
    if not (path / "_delta_log").exists():
        return []
    rows = read_rows(DeltaTable(path)).to_pylist()
    for row in rows:
        row["_seq"] = tuple(row["_seq"].values())
    return sorted(rows, key=lambda row: (row["_seq"], repr(row)))


def plain(rows: Iterable[Row], *names: str) -> list[tuple[Any, ...]]:
    """Some columns of rows, sorted."""
    return sorted((tuple(row[n] for n in names) for row in rows), key=repr)


def truth(
    batches: Sequence[Sequence[Event]], columns: Sequence[Column], *, soft: bool = False
) -> list[Row]:
    """The rows after all events, applied one by one in the order of the source."""
    state: list[Row] = []
    moved: dict[Any, Row] = {}
    for e in _in_order(batches):
        if e.op == "truncate":
            if soft:
                state = [{**row, "_deleted": True} for row in state]
            else:
                state = []
            continue
        met = [r for r in state if all(_same(r[k], e.values.get(k)) for k in e.key or ())]
        last = max(met, key=lambda r: r["_seq"]) if met else {}
        if e.removes:
            # what it takes along to another key, if it gets one
            moved[e.position] = last
        elif e.old_key:
            here = [r for r in state if all(_same(r[k], v) for k, v in e.old_key.items())]
            last = moved.get(e.position) or (here[0] if here else {})
        state = [r for r in state if r not in met]
        if e.removes and not soft:
            continue
        row = {c.name: e.values.get(c.name) for c in columns}
        row |= {name: last.get(name) for name in e.unchanged}
        row |= {"_seq": e.place, "_source_ts": pa.scalar(moment(e), STAMP).as_py()}
        state.append(row | ({"_deleted": e.removes} if soft else {}))
    return sorted(state, key=lambda row: (row["_seq"], repr(row)))


def history_truth(batches: Sequence[Sequence[Event]], columns: Sequence[Column]) -> list[Row]:
    """Every version of every row, from the last event to the first."""
    versions: list[tuple[Event, Row]] = []
    ends: list[tuple[Event, Row]] = []
    for e in reversed(_in_order(batches)):
        time = pa.scalar(moment(e), STAMP).as_py()
        if e.op == "truncate":
            ends.append((e, {"_valid_from": time}))
            continue
        after = [
            (f.place, row)
            for f, row in [*versions, *ends]
            if f.op == "truncate"
            or all(_same(f.values.get(k), e.values.get(k)) for k in f.key or ())
        ]
        end = min(after, key=lambda pair: pair[0])[1]["_valid_from"] if after else None
        row: Row = {c.name: e.values.get(c.name) for c in columns}
        row |= {
            "_valid_from": time if end is None else min(time, end),
            "_valid_to": end,
            "_current": not after and not e.removes,
            "_deleted": e.removes,
            "_op": e.op,
            "_seq": e.place,
            "_source_ts": time,
            "_key": sorted(e.key or ()),
            "_unchanged": list(e.unchanged),
            "_old_key": json.dumps(e.old_key) if e.old_key and e.unchanged else None,
        }
        versions.append((e, row))
    for e, row in versions:
        for name in e.unchanged:
            row[name] = _told_before(e, name, batches)
    return sorted((row for _, row in versions), key=lambda row: (row["_seq"], repr(row)))


def _told_before(e: Event, name: str, batches: Sequence[Sequence[Event]]) -> Any:
    about = e.old_key or {k: e.values.get(k) for k in e.key or ()}
    place = (*e.position, 0, "") if e.old_key else e.place
    for f in reversed([f for f in _in_order(batches) if f.place < place]):
        if f.op == "truncate":
            return None
        if all(_same(f.values.get(k), value) for k, value in about.items()):
            if f.removes:
                return None
            if name not in f.unchanged:
                return f.values.get(name)
            if f.old_key:
                return _told_before(f, name, batches)
    return None


STAMP = pa.timestamp("us", "UTC")


def _in_order(batches: Sequence[Sequence[Event]]) -> list[Event]:
    """Events with a key, each place of a row once: from the first batch, and there the last."""
    first: dict[Any, tuple[int, int, int, Event]] = {}
    for number, batch in enumerate(batches):
        for e in batch:
            if e.op != "truncate" and not e.key:
                continue
            names = () if e.op == "truncate" else tuple(sorted(e.key or ()))
            about = (
                e.place,
                e.op == "truncate",
                names,
                tuple(repr(e.values.get(k)) for k in names),
            )
            candidate = (-number, e.offset, e.hash, e)
            if about not in first or candidate[:3] > first[about][:3]:
                first[about] = candidate
    found = [each[-1] for each in first.values()]
    return sorted(found, key=functools.cmp_to_key(_later))


def _later(one: Event, other: Event) -> int:
    return (one.place > other.place) - (one.place < other.place)


def _same(one: Any, other: Any) -> bool:
    return bool(one == other or (one != one and other != other))


def at(e: Event, **changes: Any) -> Event:
    """The event with something else about it."""
    return replace(e, **changes)


class Crash(BaseException):
    """What a killed process would look like from the inside."""


def crash(
    monkeypatch: pytest.MonkeyPatch, step: tuple[Any, str], order: MergeOrder, *, late: bool
) -> None:
    """Merge, and end before this step, a function of a module; `late`: after it."""
    real: Callable[..., Any] = getattr(*step)

    def crashing(*args: Any, **options: Any) -> Any:
        if late:
            real(*args, **options)
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(*step, crashing)
        with pytest.raises(Crash):
            merge_table(order)
