"""A model of a database, followed by Maxwell, Canal and AWS DMS: the table is the model's.

The model commits transactions one after the other. What the writers send of them may be sent again,
cut into any batches and, in files, come in any order.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.changes.apply import merge_table
from distributary.config.cdc import DmsConfig
from distributary.decode.change.connect_frames import framed
from distributary.decode.change.json_rows import carried_types
from distributary.decode.formats import change_decoder_for
from distributary.decode.json.infer import NOTHING, grown, infer
from distributary.model.change import ChangeSettings
from distributary.model.record import Format, WriterSchema
from distributary.model.table import Column
from tests.changes.logs import Shop
from tests.decode.change.events import LIMITS, as_bytes, decoded, named, raw_of
from tests.decode.json_samples import writer_schema

Rows = dict[int, str]


@dataclass(frozen=True)
class Change:
    """A change as the model committed it."""

    number: int
    """Of the transaction, then of the change in it."""
    place: int
    last: bool
    op: str
    id: int
    name: str
    old: dict[str, Any]


@st.composite
def databases(draw: st.DrawFn) -> tuple[list[Change], Rows]:
    """Some transactions, and the rows that are left behind them."""
    rows: Rows = {}
    changes: list[Change] = []
    for number in range(draw(st.integers(1, 6))):
        count = draw(st.integers(1, 4))
        for place in range(count):
            id_, name = draw(st.integers(1, 4)), draw(st.sampled_from("abc"))
            op, old = "insert", dict[str, Any]()
            if id_ in rows:
                op = draw(st.sampled_from(["update", "delete", "move"]))
                free = [each for each in range(1, 5) if each not in rows]
                if op == "move" and free:
                    old = {"id": id_}
                    name, id_ = rows.pop(id_), free[0]
                if op == "delete":
                    name = rows.pop(id_)
                elif op == "update":
                    old = {"name": rows[id_]}
                op = "update" if op == "move" else op
            if op != "delete":
                rows[id_] = name
            changes.append(Change(number, place, place == count - 1, op, id_, name, old))
    return changes, rows


def maxwell(change: Change) -> dict[str, Any]:
    event = {"database": "shop", "table": "orders", "type": change.op}
    event |= {"ts": 1_700_000_000, "position": f"log.000001:{change.number}"}
    event |= {"data": {"id": change.id, "name": change.name}, "primary_key_columns": ["id"]}
    event |= {"commit": True} if change.last else {"xoffset": change.place}
    return event | ({"old": change.old} if change.old else {})


def canal(change: Change) -> dict[str, Any]:
    row = {"id": str(change.id), "name": change.name}
    old = {name: str(value) for name, value in change.old.items()}
    return {
        "database": "shop",
        "table": "orders",
        "type": change.op.upper(),
        "isDdl": False,
        "es": 1_700_000_000_000,
        "pkNames": ["id"],
        "data": [row],
        "mysqlType": {"id": "bigint", "name": "text"},
        "old": [old] if old else None,
    }


TYPES = carried_types({"Op": "text", "id": "int64", "name": "text"})


def dms(change: Change) -> bytes:
    event = {"Op": change.op[0].upper(), "id": change.id, "name": change.name}
    return framed(TYPES, as_bytes(event))


def merged(folder: Path, batches: Sequence[pa.Table], arrival: str) -> Rows:
    """What is left of batches of a log."""
    shop = Shop(folder, settings={"arrival": arrival})
    for number, batch in enumerate(batches):
        order = shop.order(())
        path = folder / f"{number}.parquet"
        pq.write_table(batch, path, store_schema=False)
        merge_table(replace(order, files=(str(path),), columns=COLUMNS))
    return {row["id"]: row["name"] for row in shop.rows()}


COLUMNS = (Column("id", pa.int64()), Column("name", pa.string()))


def as_log(rows: pa.RecordBatch, offsets: Sequence[int], batch: int, partition: int) -> pa.Table:
    table = pa.Table.from_batches([rows])
    at = {
        "_batch": pa.array([batch] * len(rows), pa.int64()),
        "_topic": pa.array(["t"] * len(rows)),
        "_partition": pa.array([partition] * len(rows), pa.int32()),
        "_offset": pa.array(offsets, pa.int64()),
    }
    for name, column in at.items():
        table = table.append_column(name, column)
    return table


def log_of(format_: str, events: Sequence[Any], start: int, batch: int) -> pa.Table:
    """The rows of a batch whose first event has an offset."""
    raw = raw_of(events)
    offsets = pa.array(range(start, start + len(events)), pa.int64())
    raw = raw.set_column(
        raw.schema.get_field_index("offset"), raw.schema.field("offset"), [offsets]
    )
    seen = named(format_, events)
    if not seen.schemas:
        every = [maxwell(Change(0, 0, True, "insert", 1, "a", {"id": 2, "name": "b"}))]
        shape = infer([as_bytes(each) for each in (*every, *events)], parts=True) or NOTHING
        schema = writer_schema(grown(NOTHING, shape, images=("data",)))
    else:
        schema = WriterSchema(1, Format.JSON, seen.schemas[0], "event")
    decoder = change_decoder_for(schema, ChangeSettings(format=format_), LIMITS)
    result = decoder.decode(seen.payloads, raw)
    assert not result.failed
    origin = range(len(events)) if result.origin is None else result.origin.to_pylist()
    return as_log(result.ok, [start + n for n in origin], batch, 0)


@st.composite
def cuts(draw: st.DrawFn, events: list[Any], *, again: bool) -> list[list[Any]]:
    """Events in batches; with `again`, a writer goes back now and then and sends some once more."""
    sent: list[Any] = []
    for number, event in enumerate(events):
        if again and number and draw(st.integers(0, 5)) == 0:
            sent += events[draw(st.integers(0, number - 1)) : number]
        sent.append(event)
    ends = sorted(draw(st.sets(st.integers(1, len(sent)), max_size=4)) | {len(sent)})
    return [sent[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def without_position(change: Change) -> dict[str, Any]:
    return {name: value for name, value in maxwell(change).items() if name != "position"}


WRITERS = [("maxwell", maxwell), ("maxwell", without_position), ("canal", canal)]


FEW = settings(max_examples=settings.default.max_examples // 3)
"""An example is some merges, and each kind has as many."""


@pytest.mark.parametrize(("format_", "write"), WRITERS)
@given(data=st.data())
@FEW
def test_a_stream_gives_the_rows_of_the_database(
    format_: str, write: Any, data: st.DataObject
) -> None:
    changes, rows = data.draw(databases())
    batches = data.draw(cuts([write(change) for change in changes], again=True))
    tables, start = [], 0
    for number, batch in enumerate(batches):
        tables.append(log_of(format_, batch, start, number))
        start += len(batch)
    with tempfile.TemporaryDirectory() as folder:
        assert merged(Path(folder), tables, "unknown") == rows


@given(data=st.data())
@FEW
def test_files_in_any_order_give_the_rows_of_the_database(data: st.DataObject) -> None:
    changes, rows = data.draw(databases())
    # DMS does not write the key that a row had before
    gone = {change.old["id"] for change in changes if "id" in change.old}
    options = DmsConfig.model_validate({"keys": {"*": ["id"]}}).options
    batches = data.draw(cuts(changes, again=False))
    files = []
    for number, batch in enumerate(batches):
        events = [dms(change) for change in batch]
        topic = f"shop/orders/20240131-1015{number:05}.parquet"
        result = decoded("dms", events, topic=topic, options=options, from_files=True)
        files.append(as_log(result.ok, range(len(events)), 0, number))
    shuffled = data.draw(st.permutations(files))
    with tempfile.TemporaryDirectory() as folder:
        result_rows = merged(Path(folder), shuffled, "files")
    assert {id_: name for id_, name in result_rows.items() if id_ not in gone} == {
        id_: name for id_, name in rows.items() if id_ not in gone
    }
