"""A change that is delivered again is known again, and no other change is taken for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.changes.tombstones import redelivered
from distributary.decode.change.debezium.decoder import DebeziumDecoder
from distributary.decode.json.infer import infer, writer_schema
from tests.decode.debezium_samples import LIMITS, SETTINGS, raw_table

POSTGRES = {"connector": "postgresql", "name": "shop", "db": "d", "schema": "s", "table": "t"}
SEEN = {"ts_ms": 1, "sequence": "[null]", "snapshot": "false"}


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


def ids(events: list[bytes], keys: list[bytes | None]) -> pa.Table:
    shape = infer(events)
    assert shape is not None
    raw = raw_table({"key": key, "value": each} for key, each in zip(keys, events, strict=True))
    decoded = DebeziumDecoder(writer_schema(shape), SETTINGS, LIMITS).decode(
        pa.array(events, pa.binary()), raw
    )
    assert decoded.failed == ()
    return pa.table(
        decoded.ok.select(["_uuid", "_hash", "_source_ts"]).columns,
        ["_uuid", "_hash", "_source_ts"],
    )


CHANGES = st.tuples(
    st.integers(1, 3), st.sampled_from("cud"), st.integers(1, 2), st.sampled_from(["a", "b", None])
)


@pytest.mark.parametrize("flat", [False, True], ids=["envelope", "flattened"])
@given(changes=st.lists(CHANGES, min_size=1, max_size=12))
@settings(max_examples=60)
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
