"""The place of a change in the log of its source, for each kind of source."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from distributary.decode.json.infer import infer
from distributary.errors import ErrorCode
from tests.decode.debezium_samples import decode
from tests.decode.json_samples import writer_schema


def event(op: str = "u", **source: Any) -> bytes:
    told = {"connector": "any", "db": "d", "table": "t", **source}
    after = None if op == "t" else {"id": 1}
    return json.dumps({"before": None, "after": after, "source": told, "op": op}).encode()


def places(events: list[bytes]) -> list[tuple[Any, ...]]:
    decoded = decode(writer_schema(infer(events)), events)
    assert decoded.failed == ()
    return [tuple(each.values()) for each in decoded.ok["_seq"].to_pylist()]


MYSQL = {"connector": "mysql", "pos": 4, "row": 0}
SQLSERVER = {"connector": "sqlserver", "commit_lsn": "00000025:00000728:0009"}
ORACLE = {"connector": "oracle", "rs_id": " 0x00008c.000175f4.0010 ", "ssn": 0}


@pytest.mark.parametrize(
    "sources",
    [
        [{"lsn": 5}, {"lsn": 6}, {"lsn": 2**40}],
        [
            MYSQL | {"file": "mysql-bin.000009", "pos": 99},
            MYSQL | {"file": "mysql-bin.000010", "pos": 4},
            MYSQL | {"file": "mysql-bin.000010", "pos": 4, "row": 1},
            MYSQL | {"file": "mysql-bin.000010", "pos": 5},
            # as text it would be less
            MYSQL | {"file": "mysql-bin.999999"},
            MYSQL | {"file": "mysql-bin.1000000"},
        ],
        [
            SQLSERVER | {"change_lsn": "00000025:00000728:0003", "event_serial_no": 1},
            SQLSERVER | {"change_lsn": "00000025:00000728:0003", "event_serial_no": 2},
            SQLSERVER | {"change_lsn": "00000025:00000728:0010", "event_serial_no": 1},
            SQLSERVER | {"change_lsn": "00000025:00001728:0001", "event_serial_no": 1},
            SQLSERVER | {"change_lsn": "00000125:00000001:0001", "event_serial_no": 1},
        ],
        [
            ORACLE | {"scn": "9"},
            ORACLE | {"scn": "10"},
            ORACLE | {"scn": "10", "ssn": 1},
            ORACLE | {"scn": "10", "rs_id": " 0x00008c.000175f4.0011 "},
            ORACLE | {"scn": "10", "rs_id": " 0x00008c.000175f5.0000 "},
            ORACLE | {"scn": "10", "rs_id": " 0x00008d.00000000.0000 "},
            ORACLE | {"scn": str(2**48), "rs_id": None},
        ],
        [
            {"connector": "mongodb", "ord": 2, "ts_ms": 1_000},
            {"connector": "mongodb", "ord": 1, "ts_ms": 2_000},
            {"connector": "mongodb", "ord": 2, "ts_ms": 2_000},
        ],
        # nothing is told: the order of the topic remains
        [{}, {}, {}],
    ],
    ids=["postgresql", "mysql", "sqlserver", "oracle", "mongodb", "unknown"],
)
def test_places_go_up(sources: list[dict[str, Any]]) -> None:
    found = places([event(**source) for source in sources])
    assert all(one < other for one, other in pairwise(found))
    backwards = places([event(**source) for source in reversed(sources)])
    decided = [place[:5] for place in found]
    assert [place[:5] for place in reversed(backwards)] == decided


def test_rows_of_a_snapshot_are_before_all_changes() -> None:
    found = places([event("r", lsn=900), event("u", lsn=5)])
    assert found[0] < found[1]


@pytest.mark.parametrize(
    "source",
    [
        {"lsn": -1},
        MYSQL | {"file": "no number"},
        MYSQL | {"file": "bin.1", "pos": -4},
        SQLSERVER | {"change_lsn": "25:728"},
        SQLSERVER | {"change_lsn": "xyz:1:2"},
        SQLSERVER | {"change_lsn": "zz:00000025:00000728:0003"},
        SQLSERVER | {"change_lsn": "00000025:00000728:0003:"},
        SQLSERVER | {"change_lsn": "00000025:00000728:10000"},
        SQLSERVER | {"change_lsn": 25},
        MYSQL | {"file": "bin.99999999999999999999"},
        MYSQL | {"file": 7},
        ORACLE | {"scn": "nine"},
        ORACLE | {"scn": "-9"},
        ORACLE | {"scn": "9", "ssn": -1},
        ORACLE | {"scn": "9", "rs_id": "0x1.zz.2.3"},
        ORACLE | {"scn": "9", "rs_id": 1},
        ORACLE | {"scn": "9", "rs_id": "0x1.2"},
    ],
)
def test_a_position_that_is_none_is_refused(source: dict[str, Any]) -> None:
    good = event(**{name: value for name, value in source.items() if name == "connector"})
    events = [event(**source), good]
    decoded = decode(writer_schema(infer(events)), events)
    assert [(f.index, f.code) for f in decoded.failed] == [(0, ErrorCode.BAD_POSITION)]
    assert decoded.ok.num_rows == 1


def test_flattened_events_whose_deletes_tell_no_position_are_in_the_order_of_the_topic() -> None:
    events = [b'{"id":1,"__lsn":9}', b"null", b'{"id":1,"__lsn":3}']
    decoded = decode(writer_schema(infer(events)), events)
    found = [tuple(each.values()) for each in decoded.ok["_seq"].to_pylist()]
    assert found == sorted(found)
    assert decoded.ok["_op"].to_pylist() == ["update", "delete", "update"]


def test_flattened_events_whose_deletes_tell_it_are_in_the_order_of_the_source() -> None:
    events = [
        b'{"id":1,"__lsn":9,"__deleted":"true"}',
        b"null",
        b'{"id":1,"__lsn":3,"__deleted":"false"}',
    ]
    decoded = decode(writer_schema(infer(events)), events)
    assert decoded.empty == 1
    found = [tuple(each.values()) for each in decoded.ok["_seq"].to_pylist()]
    assert found[0] > found[1]
    assert decoded.ok["_op"].to_pylist() == ["delete", "update"]


def test_time_of_the_source() -> None:
    sources = [{"ts_ms": 1_500}, {"ts_ms": 1, "ts_us": 1_500_001}, {"ts_ns": 1_500_001_999}, {}]
    events = [event(**source) for source in sources]
    decoded = decode(writer_schema(infer(events)), events)
    found = decoded.ok["_source_ts"].cast("int64").to_pylist()
    # the last one does not say it: it is when its message was written
    assert found == [1_500_000, 1_500_001, 1_500_001, 3_000_000]


def test_time_of_a_flattened_event() -> None:
    events = [b'{"id":1,"__ts_ms":9,"__source_ts_ms":7}', b'{"id":1,"__ts_ms":9}', b'{"id":1}']
    decoded = decode(writer_schema(infer(events)), events)
    assert decoded.ok["_source_ts"].cast("int64").to_pylist() == [7_000, 9_000, 2_000_000]
