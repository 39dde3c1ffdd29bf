"""The order of Datastream events: total, typed, and the same however they are dealt out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.decode.change.datastream.decoder import moment, moments
from distributary.errors import ErrorCode
from distributary.model.change import SEQ
from tests.decode.datastream_samples import (
    TS,
    UUID,
    codes,
    decoded_avro,
    decoded_json,
    event,
    rows,
    settings,
)

FIELDS = tuple(field.name for field in SEQ)


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    """How `_seq` is compared."""
    return tuple(row["_seq"][name] for name in FIELDS)


def place(row: dict[str, Any]) -> tuple[int, int, int]:
    return row["_seq"]["a"], row["_seq"]["b"], row["_seq"]["c"]


def one(kind: str, metadata: dict[str, Any], **more: Any) -> dict[str, Any]:
    (row,) = rows(decoded_avro([event(0, kind, metadata=metadata, **more)], kind))
    (again,) = rows(decoded_json([event(0, kind, metadata=metadata, **more)]))
    assert row["_seq"] == again["_seq"]
    return row


@pytest.mark.parametrize(
    ("kind", "metadata", "expected"),
    [
        ("mysql", {"log_file": "mysql-bin.000131", "log_position": 2550}, (131, 2550, 0)),
        ("mysql", {"log_file": "bin.1000000", "log_position": 4}, (1_000_000, 4, 0)),
        ("mysql", {"log_file": "", "log_position": 0}, (0, 0, 0)),
        ("mysql", {"log_file": None, "log_position": None}, (0, 0, 0)),
        ("postgresql", {"lsn": "16/2A50F3"}, (0x16_002A50F3, 0, 0)),
        ("postgresql", {"lsn": "0/0"}, (0, 0, 0)),
        ("postgresql", {"lsn": "7FFFFFFF/FFFFFFFF"}, (2**63 - 1, 0, 0)),
        ("postgresql", {"lsn": None}, (0, 0, 0)),
        ("sqlserver", {"lsn": "00000025:00000728:0003"}, (0x25, 0x728, 3)),
        ("sqlserver", {"lsn": "0x00000025000007280003"}, (0x25, 0x728, 3)),
        ("sqlserver", {"lsn": None}, (0, 0, 0)),
        (
            "oracle",
            {"scn": 1_706_664, "rs_id": " 0x0000e5.0000e5c7.0010 ", "ssn": 3},
            (1_706_664, (0xE5 << 32) | 0xE5C7, (0x10 << 32) | 3),
        ),
        ("oracle", {"scn": 5, "rs_id": "", "ssn": 0}, (5, 0, 0)),
        ("oracle", {"scn": 5, "rs_id": None, "ssn": None}, (5, 0, 0)),
    ],
)
def test_positions_are_numbers(kind: str, metadata: dict[str, Any], expected: Any) -> None:
    assert place(one(kind, metadata)) == expected


@pytest.mark.parametrize(
    ("kind", "metadata"),
    [
        ("mysql", {"log_file": "mysql-bin"}),
        ("mysql", {"log_file": "mysql-bin.99999999999999999999"}),
        ("postgresql", {"lsn": "16-2A50F3"}),
        ("postgresql", {"lsn": "80000000/0"}),
        ("postgresql", {"lsn": "1/100000000"}),
        ("postgresql", {"lsn": "xyz/1"}),
        ("mysql", {"log_position": -4}),
        ("sqlserver", {"lsn": "00000025:00000728"}),
        ("sqlserver", {"lsn": "zz:00000025:00000728:0003"}),
        ("sqlserver", {"lsn": "00000025:00000728:10000"}),
        ("oracle", {"scn": -1}),
        ("oracle", {"rs_id": "0x1.2"}),
        ("oracle", {"rs_id": "0x80000000.0.0"}),
        ("oracle", {"ssn": -1}),
        ("oracle", {"ssn": 2**32}),
    ],
)
def test_positions_that_cannot_be_read(kind: str, metadata: dict[str, Any]) -> None:
    events = [event(0, kind), event(1, kind, metadata=metadata), event(2, kind)]
    for found in (decoded_avro(events, kind), decoded_json(events)):
        assert codes(found) == {1: ErrorCode.BAD_POSITION}
        assert [row["id"] for row in rows(found)] == [0, 2]


def test_other_sources_are_ordered_by_their_sort_keys() -> None:
    lists: list[Any] = [
        [TS, 5, "7", 9, 11],
        [TS, "lsn", 9],
        [3, 4],
        [],
        [TS, TS, 1],
        [TS, 2**63 - 1],
    ]
    expected = [(5, 7, 9), (0, 0, 0), (3, 4, 0), (0, 0, 0), (TS, 1, 0), (2**63 - 1, 0, 0)]
    events = [event(n, "other", sort_keys=keys) for n, keys in enumerate(lists)]
    for found in (decoded_avro(events, "other"), decoded_json(events)):
        assert [place(row) for row in rows(found)] == expected


@pytest.mark.parametrize("method", ["cdc", "backfill"])
def test_bare_read_methods_with_a_source_type(method: str) -> None:
    events = [event(0, "postgresql", read_method=method, metadata={"lsn": "1/2"})]
    told = settings("postgres")
    (row,) = rows(decoded_avro(events, "postgresql", told=told))
    assert place(row) == ((1 << 32) | 2, 0, 0)
    assert row["_backfill"] is (method == "backfill")
    # what the event says itself is believed first
    (row,) = rows(decoded_avro([event(0)], told=settings("oracle")))
    assert place(row) == (131, 2550, 0)


@pytest.mark.parametrize("kind", ["mysql", "postgresql", "oracle", "sqlserver"])
def test_bare_read_methods_without_one_are_told_by_their_metadata(kind: str) -> None:
    usual = rows(decoded_avro([event(3, kind)], kind))
    bare = rows(decoded_avro([event(3, kind, read_method="cdc")], kind))
    assert place(usual[0]) == place(bare[0])


def test_sources_mixed_in_one_array() -> None:
    metadata = {"lsn": "1/2"}
    events = [event(0), event(1, read_method="postgresql-cdc"), event(2, read_method="xyz-cdc")]
    events[1]["source_metadata"] |= metadata
    found = rows(decoded_json(events))
    assert [place(row) for row in found] == [(131, 2550, 0), ((1 << 32) | 2, 0, 0), (0, 0, 0)]


def test_phases() -> None:
    events = [event(0), event(1, read_method="mysql-backfill-fulldump")]
    events += [event(2, read_method="oracle-supplementation")]
    for backfill, expected in (("before_cdc", [1, 0, 1]), ("by_timestamp", [0, 0, 0])):
        found = rows(decoded_avro(events, told=settings(backfill=backfill)))
        assert [row["_seq"]["phase"] for row in found] == expected


def test_a_backfilled_row_is_older_than_a_change_of_the_same_moment() -> None:
    dump = {"log_file": "", "log_position": 0}
    backfilled = event(9, read_method="mysql-backfill-fulldump", metadata=dump)
    for backfill in ("before_cdc", "by_timestamp"):
        found = rows(decoded_avro([backfilled, event(0)], told=settings(backfill=backfill)))
        assert key(found[0]) < key(found[1])
    later = event(9, read_method="mysql-backfill-fulldump", metadata=dump, source_timestamp=TS + 1)
    found = rows(decoded_avro([later, event(0)], told=settings(backfill="by_timestamp")))
    assert key(found[0]) > key(found[1])


BY_TIME = settings(backfill="by_timestamp")


def test_milliseconds_are_kept() -> None:
    events = [event(9, source_timestamp=TS), event(0, source_timestamp=TS + 1)]
    for found in (decoded_avro(events, told=BY_TIME), decoded_json(events, told=BY_TIME)):
        first, second = rows(found)
        assert key(first) < key(second)


def test_an_update_that_waited_for_a_lock_is_later_although_its_statement_is_older() -> None:
    first = event(0, source_timestamp=TS + 5000, metadata={"log_position": 1000})
    second = event(1, source_timestamp=TS, metadata={"log_position": 2000})
    for events in ([first, second], [second, first]):
        for found in (decoded_avro(events), decoded_json(events)):
            assert [row["id"] for row in sorted(rows(found), key=key)] == [0, 1]


def test_logs_that_are_followed_by_transaction_ids_have_other_names() -> None:
    usual = event(0, metadata={"log_file": "mysql-bin.000131", "log_position": 2550})
    other = event(0, metadata={"binlog_file": "mysql-bin.000131", "binlog_position": 2550})
    for name in ("log_file", "log_position"):
        del other["source_metadata"][name]
    (expected,), (found,) = (rows(decoded_json([one])) for one in (usual, other))
    assert found["_seq"] == expected["_seq"]
    # both in one file, and with both names, of which one is empty
    empty = {"log_file": "", "log_position": None}
    both = event(0, metadata={**empty, **other["source_metadata"]})
    mixed = rows(decoded_json([usual, other, both]))
    assert [place(row) for row in mixed] == [(131, 2550, 0)] * 3


def _halves(position: int, ts: int) -> list[dict[str, Any]]:
    place_ = {"log_position": position}
    gone = {"change_type": "UPDATE-DELETE", "is_deleted": True} | place_
    come = {"change_type": "UPDATE-INSERT"} | place_
    return [
        event(position, metadata=gone, source_timestamp=ts, payload={"id": 1, "val": "a"}),
        event(
            position + 1, metadata=come, source_timestamp=ts + 1000, payload={"id": 2, "val": "a"}
        ),
    ]


@pytest.mark.parametrize("turned", [False, True])
def test_both_halves_of_a_change_of_key_are_at_one_moment(turned: bool) -> None:
    after = event(20, source_timestamp=TS + 500, metadata={"log_position": 900})
    alone = event(30, source_timestamp=TS + 7, metadata={"change_type": "UPDATE-INSERT"})
    events = [*_halves(800, TS), after, alone]
    events = events[::-1] if turned else events
    for found in (decoded_avro(events, told=BY_TIME), decoded_json(events, told=BY_TIME)):
        in_order = sorted(rows(found), key=key)
        assert [row["_uuid"][-4:] for row in in_order] == ["0320", "0321", "001e", "0014"]
        assert [row["_seq"]["ts"] for row in in_order] == [TS, TS, TS + 7, TS + 500]
        assert [row["_seq"]["half"] for row in in_order] == [0, 1, 1, 1]
        # when it happened is what the source said
        assert in_order[1]["_source_ts"] == datetime.fromtimestamp(TS / 1000 + 1, UTC)


def test_halves_of_other_positions_and_sources_are_left_alone() -> None:
    gone, come = _halves(800, TS)
    come["source_metadata"]["log_position"] = 801
    found = rows(decoded_avro([gone, come], told=BY_TIME))
    assert [row["_seq"]["ts"] for row in found] == [TS, TS + 1000]
    for half in (gone, come):
        half["source_metadata"] |= {"log_file": None, "log_position": None}
    found = rows(decoded_avro([gone, come], told=BY_TIME))
    assert [row["_seq"]["ts"] for row in found] == [TS, TS + 1000]


POSITIONS = st.tuples(
    st.integers(TS, TS + 3),
    st.sampled_from([9, 10, 99, 999_999, 1_000_000]),
    st.integers(0, 3),
    st.sampled_from(["INSERT", "UPDATE-INSERT", "DELETE"]),
)


@given(st.lists(POSITIONS, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_the_order_is_total_and_does_not_depend_on_how_events_come(
    given_: list[tuple[int, int, int, str]], random: Any
) -> None:
    events = [
        event(
            number,
            source_timestamp=ts,
            metadata={"log_file": f"bin.{file:06}", "log_position": at, "change_type": change},
        )
        for number, (ts, file, at, change) in enumerate(given_)
    ]
    expected = sorted(range(len(events)), key=lambda n: (*given_[n][1:3], UUID.format(n)))
    dealt = list(events)
    random.shuffle(dealt)
    cut = random.randrange(len(dealt) + 1)
    found = [row for part in (dealt[:cut], dealt[cut:]) if part for row in rows(decoded_avro(part))]
    in_order = sorted(found, key=key)
    assert [row["id"] for row in in_order] == expected
    assert len({key(row) for row in found}) == len(found)


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 300), st.integers(0, 2**32 - 1)),
        min_size=1,
        max_size=10,
        unique_by=lambda each: each[1:],
    )
)
def test_log_sequence_numbers_are_numbers(given_: list[tuple[int, int, int]]) -> None:
    events = [
        event(n, "postgresql", source_timestamp=TS + ts, metadata={"lsn": f"{high:X}/{low:X}"})
        for n, (ts, high, low) in enumerate(given_)
    ]
    found = sorted(rows(decoded_avro(events, "postgresql")), key=key)
    assert [row["id"] for row in found] == sorted(range(len(given_)), key=lambda n: given_[n][1:])


@given(
    st.lists(
        st.tuples(*[st.integers(0, 2**n - 1) for n in (3, 31, 32, 16, 32)]),
        min_size=1,
        max_size=10,
        unique=True,
    )
)
def test_oracle_orders_by_scn_then_redo_record_then_ssn(given_: list[tuple[int, ...]]) -> None:
    events = [
        event(
            n,
            "oracle",
            metadata={"scn": scn, "rs_id": f" 0x{log:06x}.{block:08x}.{at:04x} ", "ssn": ssn},
        )
        for n, (scn, log, block, at, ssn) in enumerate(given_)
    ]
    found = sorted(rows(decoded_avro(events, "oracle")), key=key)
    assert [row["id"] for row in found] == sorted(range(len(given_)), key=given_.__getitem__)


SECONDS = datetime(2021, 12, 25, 5, 42, 4, tzinfo=UTC)
EXACT = SECONDS + timedelta(milliseconds=408)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (1_640_410_924_408, EXACT),
        ("1640410924408", EXACT),
        ("2021-12-25 05:42:04.408", EXACT),
        ("2021-12-25T05:42:04.408", EXACT),
        ("2021-12-25T05:42:04.408Z", EXACT),
        ("2021-12-25t05:42:04.408z", EXACT),
        ("2021-12-25 05:42:04.408 UTC", EXACT),
        ("2021-12-25T05:42:04.408000Z", EXACT),
        ("2021-12-25T05:42:04.408000999", EXACT),
        ("2021-12-25T06:42:04.408+01:00", EXACT),
        ("2021-12-25T06:42:04.408+0100", EXACT),
        ("2021-12-25T03:42:04.408-02", EXACT),
        ("2021-12-25T05:42:04", SECONDS),
        ("2021-12-25 05:42:04Z", SECONDS),
        ("2021-12-25T05:42", SECONDS.replace(second=0)),
        ("0001-01-01T00:00:00", datetime(1, 1, 1, tzinfo=UTC)),
        ("9999-12-31T23:59:59.999999", datetime.max.replace(tzinfo=UTC)),
    ],
)
def test_times_in_every_form_seen(text: str | int, expected: datetime) -> None:
    (row,) = rows(decoded_json([event(source_timestamp=text)], told=BY_TIME))
    assert row["_source_ts"] == expected
    assert row["_seq"]["ts"] == (expected - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
        milliseconds=1
    )


BAD_TIMES = [
    None,
    "",
    "yesterday",
    "2021-13-25T05:42:04",
    "2021-12-25",
    "2021-12-25T25:42:04Z",
    "12345678901234567890",
    253_402_300_800_000,
    -(10**18),
    True,
    12.5,
    {"at": 1},
    [1],
]


def test_times_that_are_none() -> None:
    events = [event(0), *(event(n, source_timestamp=t) for n, t in enumerate(BAD_TIMES, 1))]
    missing = event(99)
    del missing["source_timestamp"]
    found = decoded_json([*events, missing])
    assert codes(found) == dict.fromkeys(range(1, len(events) + 1), ErrorCode.BAD_SOURCE_TIME)
    assert [row["id"] for row in rows(found)] == [0]


@given(
    st.datetimes(
        min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30), timezones=st.none()
    ),
    st.integers(-14 * 60, 14 * 60),
    st.sampled_from(["T", " "]),
)
def test_times_are_read_as_python_reads_them(at: datetime, east: int, between: str) -> None:
    aware = at.replace(tzinfo=timezone(timedelta(minutes=east)))
    micros = (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert moment(aware.isoformat(sep=between)) == micros
    naive = at.isoformat(sep=between)
    utc = (at - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    for texts in ([naive], [f"{naive}Z", naive], [naive, "no", None]):
        found, bad = moments(pa.array(texts), len(texts))
        assert [None if b else f for f, b in zip(found.tolist(), bad, strict=True)] == [
            utc if text and text.startswith(naive) else None for text in texts
        ]
