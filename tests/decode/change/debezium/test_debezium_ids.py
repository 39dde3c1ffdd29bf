"""A change that is delivered again is known again, and no other change is taken for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.changes.events.copies import redelivered
from distributary.decode.change.debezium.decoder import DebeziumDecoder
from distributary.decode.json.infer import infer
from distributary.delta.column_merge import fields_of
from distributary.delta.commit import Change, rewrite_files, write_rows
from distributary.delta.log import DataFile, Snapshot, snapshot_of
from distributary.model.table import Column
from tests.decode.debezium_samples import LIMITS, SETTINGS, raw_table
from tests.decode.json_samples import writer_schema

POSTGRES = {"connector": "postgresql", "name": "shop", "db": "d", "schema": "s", "table": "t"}
SEEN = {"ts_ms": 1, "sequence": "[null]", "snapshot": "false"}
NAMES = ["_uuid", "_hash", "_source_ts", "_envelope"]


def event(op: str, image: Any, *, seen: int = 0, flat: bool = False, **source: Any) -> bytes:
    """One change; `seen` is what differs when a connector sends it again."""
    if flat:
        told = {f"__{name}": value for name, value in source.items()}
        return json.dumps(
            {**image, "__deleted": "false", "__op": op, "__ts_ms": seen, **told}
        ).encode()
    told = {**POSTGRES, **SEEN, **source, "sequence": f'["{seen}"]'}
    images = {"before": image, "after": None} if op == "d" else {"before": None, "after": image}
    return json.dumps({**images, "source": told, "op": op, "ts_ms": seen}).encode()


def ids(events: list[bytes], keys: list[bytes | None], *, seconds: int = 0) -> pa.Table:
    """What tells changes apart; `seconds` is when Kafka got the first of them, and so on."""
    shape = infer(events)
    assert shape is not None
    raw = raw_table(
        {"key": key, "value": each, "timestamp": (seconds + n) * 1_000_000}
        for n, (key, each) in enumerate(zip(keys, events, strict=True))
    )
    decoded = DebeziumDecoder(writer_schema(shape), SETTINGS, LIMITS).decode(
        pa.array(events, pa.binary()), raw
    )
    assert decoded.failed == ()
    return pa.Table.from_batches([decoded.ok]).select(NAMES)


CHANGES = st.tuples(
    st.integers(1, 3), st.sampled_from("cud"), st.integers(1, 2), st.sampled_from(["a", "b", None])
)


@pytest.mark.parametrize("flat", [False, True], ids=["envelope", "flattened"])
@given(changes=st.lists(CHANGES, min_size=1, max_size=12))
def test_the_same_change_again_is_dropped_and_no_other(flat: bool, changes: list[Any]) -> None:
    events = [
        event(op, {"id": id_, "v": value}, seen=n, flat=flat, lsn=lsn)
        for n, (lsn, op, id_, value) in enumerate(changes)
    ]
    keys: list[bytes | None] = [f'{{"id":{id_}}}'.encode() for _, _, id_, _ in changes]
    # all of the columns are there in every batch
    events += [event("c", {"id": 9, "v": "x"}, flat=flat, lsn=99)]
    again = redelivered(str(Path("no-such-log").absolute()), ids(events, [*keys, b'{"id":9}']))
    expected = [change in changes[:n] for n, change in enumerate(changes)]
    assert again.to_pylist() == [*expected, False]


@pytest.mark.parametrize(
    ("source", "has_id"),
    [
        ({"lsn": 7}, True),
        ({"lsn": None}, False),
        ({"file": "binlog.000003", "pos": 4, "row": 0}, True),
        ({"change_lsn": "0000002b:00000e98:0002", "event_serial_no": 1}, True),
        # several changes of one row may have the same
        ({"file": "binlog.000003", "pos": 4}, False),
        ({"change_lsn": "0000002b:00000e98:0002"}, False),
        ({"scn": "77"}, False),
        ({"ord": 1}, False),
        ({}, False),
    ],
)
def test_only_where_each_change_has_a_position_of_its_own(
    source: dict[str, Any], has_id: bool
) -> None:
    found = ids([event("c", {"id": 1}, **source)], [b'{"id":1}'])
    assert (found["_uuid"].to_pylist() != [""]) is has_id


def test_events_without_a_key_have_none() -> None:
    """One statement may insert the same row twice, at one position."""
    events = [event("c", {"id": 1}, lsn=7)] * 2
    assert ids(events, [None, None])["_uuid"].to_pylist() == ["", ""]
    found = ids(events, [None, b'{"id":1}'])["_uuid"].to_pylist()
    assert (found[0] == "", found[1] == "") == (True, False)


def test_ids_go_up_with_the_log() -> None:
    events = [event("c", {"id": 1}, lsn=lsn) for lsn in (9, 10, 2**40, 2**62)]
    found = ids(events, [b'{"id":1}'] * 4)["_uuid"].to_pylist()
    assert found == sorted(found)


def log_of(folder: Path, batches: list[pa.Table]) -> str:
    """A log with a file for each batch."""
    for rows in batches:
        before = snapshot_of(str(folder))
        columns = [Column(field.name, field.type) for field in rows.schema]
        fields = fields_of(columns) if before is None else None
        added = [write_rows(rows, str(folder))]
        rewrite_files(str(folder), before, Change("WRITE", "t", fields=fields, added=added))
    return str(folder)


def flattened(number: int, **told: Any) -> bytes:
    """A flattened change without a time of its source."""
    return json.dumps({"id": number, "v": "a", "__deleted": "false", "__op": "c", **told}).encode()


def mysql(number: int) -> bytes:
    return flattened(number, __file="binlog.000003", __pos=number, __row=0)


@pytest.mark.parametrize(
    ("change", "again"),
    [
        (lambda n: flattened(n, __lsn=n), lambda n: flattened(n, __lsn=n)),
        # the connector's own clock
        (
            lambda n: flattened(n, __lsn=n, __ts_ms=n),
            lambda n: flattened(n, __lsn=n, __ts_ms=99_000 + n),
        ),
        (mysql, mysql),
        # a time of the source in a coarser unit counts before the connector's in a finer one
        (
            lambda n: flattened(n, __lsn=n, __ts_us=n, __source_ts_ms=7),
            lambda n: flattened(n, __lsn=n, __ts_us=10**9 + n, __source_ts_ms=7),
        ),
    ],
    ids=["kafka", "connector", "mysql", "source"],
)
def test_a_flattened_change_with_another_time_is_the_same(
    tmp_path: Path, change: Callable[[int], bytes], again: Callable[[int], bytes]
) -> None:
    keys: list[bytes | None] = [f'{{"id":{n}}}'.encode() for n in range(1, 4)]
    first, second = ([change(n) for n in range(start, start + 3)] for start in (1, 4))
    log = log_of(tmp_path / "log", [ids(first, keys), ids(second, keys, seconds=3)])
    sent = [again(2), again(3), again(9)]
    found = redelivered(log, ids(sent, [keys[1], keys[2], b'{"id":9}'], seconds=300))
    assert found.to_pylist() == [True, True, False]


@pytest.mark.parametrize(
    "change", [lambda n: flattened(n, __lsn=n), mysql], ids=["postgresql", "mysql"]
)
def test_files_of_other_positions_stay_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[int], bytes]
) -> None:
    key = b'{"id":1}'
    log = log_of(tmp_path / "log", [ids([change(n)], [key], seconds=n) for n in range(1, 7)])
    opened: list[str] = []
    real = Snapshot.read

    def read(self: Snapshot, file: DataFile, schema: pa.Schema) -> pa.Table:
        opened.append(file.path)
        return real(self, file, schema)

    monkeypatch.setattr(Snapshot, "read", read)
    assert redelivered(log, ids([change(7)], [key])).to_pylist() == [False]
    assert opened == []
    assert redelivered(log, ids([change(3)], [key], seconds=300)).to_pylist() == [True]
    assert len(opened) == 1
