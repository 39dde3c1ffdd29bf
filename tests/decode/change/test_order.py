"""Datastream and Debezium tell of one database's positions: they are read, or refused, alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from distributary.decode.change.datastream.event_parts import DatastreamEvents
from distributary.decode.change.datastream.origin import datastream_places
from distributary.decode.change.debezium.log_position import debezium_places
from distributary.decode.change.order.place import Place

NAMES = {
    "mysql": {"log_file": "file", "log_position": "pos"},
    "sqlserver": {"lsn": "change_lsn"},
    "oracle": {"scn": "scn", "rs_id": "rs_id", "ssn": "ssn"},
}
HEX = st.text("0123456789abcdefABCDEF", min_size=1, max_size=9)
ODD = st.text("0aFz:./x- ", max_size=6)
TEXTS = st.one_of(
    st.none(),
    ODD,
    st.lists(st.one_of(HEX, ODD), min_size=1, max_size=5).map(":".join),
    st.lists(st.one_of(HEX, ODD), min_size=1, max_size=5).map(".".join),
    HEX.map("mysql-bin.".__add__),
    st.text("0123456789abcdef", min_size=20, max_size=20).map("0x".__add__),
)
NUMBERS = st.one_of(st.none(), st.integers(-2, 2**40))


def of_datastream(kind: str, told: dict[str, pa.Array], count: int) -> Place:
    every = np.ones(count, np.bool_)
    events = DatastreamEvents(np.arange(count), {}, None, told, (), every, every)
    return datastream_places(events, kind, np.zeros(count, np.int64))


def of_debezium(kind: str, told: dict[str, pa.Array], count: int) -> Place:
    renamed = {NAMES[kind][name]: array for name, array in told.items()}
    return debezium_places(renamed, count, ordered=True)


def ranks(place: Place) -> list[Any]:
    """Places as numbers from the first to the last, whatever they are made of; None if bad."""
    triples = list(zip(place.a.tolist(), place.b.tolist(), place.c.tolist(), strict=True))
    order = sorted(set(triples))
    return [
        None if bad else order.index(triple)
        for triple, bad in zip(triples, place.bad.tolist(), strict=True)
    ]


def alike(kind: str, told: dict[str, pa.Array], count: int) -> list[Any]:
    found = ranks(of_datastream(kind, told, count))
    assert ranks(of_debezium(kind, told, count)) == found
    return found


@given(st.lists(TEXTS, min_size=1, max_size=8))
@example(["zz:00000025:00000728:0003", "00000025:00000728:0003", "00000025:00000728:0003:"])
@example(["0x00000025000007280003", "00000025:00000728:0004"])
def test_sql_server(texts: list[str | None]) -> None:
    alike("sqlserver", {"lsn": pa.array(texts, pa.string())}, len(texts))


@given(st.lists(st.tuples(TEXTS, NUMBERS), min_size=1, max_size=8))
@example([("mysql-bin.99999999999999999999", 4), ("mysql-bin.000001", -4)])
def test_mysql(given_: list[tuple[str | None, int | None]]) -> None:
    files, positions = zip(*given_, strict=True)
    told = {
        "log_file": pa.array(files, pa.string()),
        "log_position": pa.array(positions, pa.int64()),
    }
    alike("mysql", told, len(given_))


@given(st.lists(st.tuples(NUMBERS, TEXTS, NUMBERS), min_size=1, max_size=8))
@example([(9, "0x1.zz.2.3", 0), (9, "0x1.2.3", -1), (-9, "0x1.2.3", 0)])
def test_oracle(given_: list[tuple[int | None, str | None, int | None]]) -> None:
    scn, redo, ssn = zip(*given_, strict=True)
    told = {
        "scn": pa.array(map(str, scn), pa.string()),
        "rs_id": pa.array(redo, pa.string()),
        "ssn": pa.array(ssn, pa.int64()),
    }
    alike("oracle", told, len(given_))


@pytest.mark.parametrize(
    ("kind", "name"), [("sqlserver", "lsn"), ("mysql", "log_file"), ("oracle", "rs_id")]
)
def test_what_is_no_text_is_no_position(kind: str, name: str) -> None:
    whole = {other: pa.nulls(2, pa.int64()) for other in NAMES[kind]}
    assert alike(kind, whole | {name: pa.array([25, None])}, 2) == [None, 0]


@pytest.mark.parametrize("text", ["zz:00000025:00000728:0003", "00000025:00000728", "25:728:10000"])
def test_a_part_that_is_no_number_is_not_passed_over(text: str) -> None:
    assert alike("sqlserver", {"lsn": pa.array([text, "00000025:00000728:0003"])}, 2)[0] is None
