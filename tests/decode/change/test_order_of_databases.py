"""A model of databases of all kinds, followed by Datastream and Debezium: the table is the model's.

The model commits changes one after the other, on servers that take over from each other, and that
is its order. The events are those of the writers, with the words of each database for a position;
MySQL's carry the time of the statement, which may have waited for a lock, the others' that of the
commit. Debezium's are sent again now and then, Datastream's files come in any order.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.changes.history import merge_history
from distributary.changes.rebuild import merge_in_order, rebuild, verify
from distributary.decode.change.change_formats import CHANGE_FORMATS
from distributary.decode.formats import change_decoder_for
from distributary.decode.json.infer import NOTHING, grown, infer
from distributary.model.change import ChangeSettings
from distributary.model.table import Column
from tests.changes.events.test_incarnations import Committed, databases, rows_of
from tests.changes.logs import Shop, plain
from tests.decode import datastream_samples
from tests.decode.change.events import LIMITS, named, raw_of
from tests.decode.json_samples import writer_schema

KINDS = ("mysql", "postgresql", "oracle", "sqlserver")
COLUMNS = (Column("id", pa.int64()), Column("price", pa.float64()))
OPS = {"update": "u", "delete": "d"}


def by_commit(changes: Sequence[Committed]) -> list[Committed]:
    """Give changes the times of their commits: no later one of a server is earlier."""
    made: list[Committed] = []
    for change in changes:
        last = made[-1].time if made else 0
        made.append(replace(change, time=max(change.time, last)))
    return made


def debezium_position(kind: str, change: Committed) -> dict[str, Any]:
    file, at = change.position
    words: dict[str, dict[str, Any]] = {
        "mysql": {"file": f"binlog.{file:06}", "pos": at, "row": 0, "server_id": 1, "gtid": None},
        "postgresql": {"lsn": (file << 24) + at, "txId": at},
        "oracle": {"scn": str(file * 10_000 + at), "rs_id": None, "ssn": 0},
        "sqlserver": {
            "change_lsn": f"{file:08x}:{at:08x}:0003",
            "commit_lsn": f"{file:08x}:{at:08x}:0004",
        },
    }
    return words[kind]


def debezium(kind: str, change: Committed) -> tuple[bytes, dict[str, Any]]:
    """The key and the value of a message."""
    row = {"id": change.id, "price": change.number + 0.5}
    gone = change.op == "delete"
    source = {"connector": kind, "db": "shop", "schema": "dbo", "table": "orders"}
    source |= {"ts_ms": change.time, "snapshot": "false"} | debezium_position(kind, change)
    # what the row was is said by no connector that keeps its keys alone
    value = {"before": row if gone else None, "after": None if gone else row, "source": source}
    key = json.dumps({"id": change.id}).encode()
    return key, value | {"op": OPS[change.op], "ts_ms": change.time + 5}


def datastream(kind: str, change: Committed) -> tuple[None, dict[str, Any]]:
    file, at = change.position
    words: dict[str, dict[str, Any]] = {
        "mysql": {"log_file": f"mysql-bin.{file:06}", "log_position": at},
        "postgresql": {"lsn": f"{file >> 8:X}/{((file & 255) << 24) + at:X}"},
        "oracle": {"scn": file * 10_000 + at, "rs_id": " 0x0000e5.0000e5c7.0010 ", "ssn": 0},
        "sqlserver": {"lsn": f"{file:08x}:{at:08x}:0003", "replication_index": ["id"]},
    }
    gone = change.op == "delete"
    metadata = words[kind] | {"change_type": "DELETE" if gone else "UPDATE"}
    if kind != "mysql":
        metadata["is_deleted"] = gone
    return None, datastream_samples.event(
        change.number,
        kind,
        payload={"id": change.id, "price": change.number + 0.5},
        metadata=metadata,
        source_timestamp=change.time,
        # the database in which the row is, not that of a server
        uuid=f"{change.server}-{change.number}",
    )


Write = Callable[[str, Committed], tuple[bytes | None, dict[str, Any]]]
Message = tuple[bytes | None, dict[str, Any]]


def log_rows(format_: str, messages: Sequence[Message], start: int, batch: int) -> pa.Table:
    """The rows of a log of messages that come from an offset on."""
    keys, events = zip(*messages, strict=True)
    raw = raw_of(events, keys=keys)
    offsets = pa.array(range(start, start + len(events)), pa.int64())
    at = raw.schema.get_field_index("offset")
    raw = raw.set_column(at, raw.schema.field("offset"), [offsets])
    seen = named(format_, events)
    images = CHANGE_FORMATS[format_].images
    schema = writer_schema(grown(NOTHING, infer(seen.payloads, parts=True), images=images))
    decoder = change_decoder_for(schema, ChangeSettings(format=format_), LIMITS)
    result = decoder.decode(seen.payloads, raw)
    assert not result.failed, result.failed
    origin = range(len(events)) if result.origin is None else result.origin.to_pylist()
    table = pa.Table.from_batches([result.ok])
    arrival = {
        "_topic": pa.array(["t"] * len(table)),
        "_partition": pa.array([0] * len(table), pa.int32()),
        "_offset": pa.array([start + n for n in origin], pa.int64()),
        "_batch": pa.array([batch] * len(table), pa.int64()),
    }
    for name, values in arrival.items():
        table = table.append_column(name, values)
    return table


@dataclass
class Lake(Shop):
    """A log, the table merged of it and its history, batch by batch."""

    seen: frozenset[tuple[str, int]] = frozenset()

    def bring(self, rows: pa.Table) -> None:
        """Write the events that the log does not have into it, and merge them."""
        ids = list(zip(rows["_uuid"].to_pylist(), rows["_hash"].to_pylist(), strict=True))
        fresh = [n for n, id_ in enumerate(ids) if id_ not in self.seen | {*ids[:n]}]
        self.seen |= {*ids}
        rows = rows.take(pa.array(fresh, pa.int64()))
        order = self.order([], log=str(self.folder / "log" / "table"))
        path = self.folder / f"{self.batch}.parquet"
        pq.write_table(rows, path, store_schema=False)
        write_deltalake(order.log, rows, mode="append", schema_mode="merge")
        self.last = replace(order, files=(str(path),), columns=COLUMNS)
        merge_in_order(self.last)
        merge_history(
            replace(self.last, path=str(self.folder / "orders_history"), current=self.last.path)
        )

    def check(self, changes: Sequence[Committed]) -> None:
        """Compare table, history and what is made of the log again with the model."""
        there = [(id_, price + 0.5) for id_, price in rows_of(changes)]
        assert plain(self.rows(), "id", "price") == there
        current = [row for row in self.history() if row["_current"]]
        assert plain(current, "id", "price") == there
        assert verify(self.last.log, self.last).agrees
        rebuild(self.last.log, self.last)
        assert plain(self.rows(), "id", "price") == there


def brought(folder: str, format_: str, batches: Sequence[Sequence[Message]], arrival: str) -> Lake:
    lake, start = Lake(Path(folder), settings={"arrival": arrival}), 0
    for number, batch in enumerate(batches):
        lake.bring(log_rows(format_, batch, start, number))
        start += len(batch)
    return lake


def cut(draw: st.DrawFn, messages: Sequence[Message]) -> list[Sequence[Message]]:
    ends = sorted(draw(st.sets(st.integers(1, len(messages)), max_size=4)) | {len(messages)})
    return [messages[a:b] for a, b in zip([0, *ends], ends, strict=False)]


@st.composite
def topics(draw: st.DrawFn, kind: str) -> tuple[list[Committed], list[Sequence[Message]]]:
    """A topic: the order of the log, some of a server's events once more, in any batches."""
    changes = draw(databases())
    changes = changes if kind == "mysql" else by_commit(changes)
    sent: list[Committed] = []
    for number, change in enumerate(changes):
        own = [each for each in changes[:number] if each.server == change.server]
        if own and draw(st.integers(0, 4)) == 0:
            sent += own[draw(st.integers(0, len(own) - 1)) :]
        sent.append(change)
    return changes, cut(draw, [debezium(kind, change) for change in sent])


@st.composite
def folders(draw: st.DrawFn, kind: str) -> tuple[list[Committed], list[Sequence[Message]]]:
    """Files in any order, also those of several servers, in any batches."""
    changes = draw(databases())
    changes = changes if kind == "mysql" else by_commit(changes)
    sent = draw(st.permutations(changes))
    return changes, cut(draw, [datastream(kind, change) for change in sent])


FEW = settings(max_examples=settings.default.max_examples // 3)
"""An example is some merges, and each kind has as many."""


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@FEW
def test_debezium_gives_the_rows_of_the_database(kind: str, data: st.DataObject) -> None:
    changes, batches = data.draw(topics(kind))
    with tempfile.TemporaryDirectory() as folder:
        brought(folder, "debezium", batches, "partitions").check(changes)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@FEW
def test_datastream_gives_the_rows_of_the_database(kind: str, data: st.DataObject) -> None:
    changes, batches = data.draw(folders(kind))
    with tempfile.TemporaryDirectory() as folder:
        brought(folder, "datastream", batches, "files").check(changes)
