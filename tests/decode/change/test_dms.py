"""Files of AWS DMS: operations, tables by folder, keys by settings, order, hostile rows."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from distributary.config.cdc import DmsConfig
from distributary.decode.change.base import Sampled
from distributary.decode.change.change_formats import CHANGE_FORMATS, recognized
from distributary.decode.change.connect_frames import framed
from distributary.decode.change.json_rows import carried_types
from tests.decode.change.events import codes, decoded, named, rows

TYPES = {"Op": "text", "id": "int64", "name": "text", "at": "timestamp", "no": "text"}
CHANGES = "shop/orders/20240131-101500123.parquet"
LOAD = "shop/orders/LOAD00000001.csv"


def options(**given: Any) -> Any:
    return DmsConfig.model_validate({"keys": {"shop.*": ["id"]}} | given).options


def row(op: str | None = "I", **values: Any) -> bytes:
    event = {"Op": op, "id": 1, "name": "a"} | values
    event = {name: value for name, value in event.items() if name != "Op" or op is not None}
    return framed(carried_types(TYPES), json.dumps(event).encode())


def test_operations_of_changes_and_of_a_full_load() -> None:
    result = decoded("dms", [row(op) for op in "IUD"], topic=CHANGES, options=options())
    assert rows(result, "_op", "id", "_key", "_backfill") == [
        ("insert", 1, ["id"], False),
        ("update", 1, ["id"], False),
        ("delete", 1, ["id"], False),
    ]
    at = datetime(2024, 1, 31, 10, 15, 0, 123_000, UTC)
    assert set(rows(result, "_source_ts")) == {(at,)}
    assert "Op" not in result.ok.schema.names
    loaded = decoded("dms", [row(None), row("I")], topic=LOAD, options=options())
    assert rows(loaded, "_op", "_backfill") == [("read", True)] * 2


def test_files_and_rows_order_changes() -> None:
    later = "shop/orders/2024/01/31/20240131-101500124.parquet"
    first = decoded("dms", [row()] * 2, topic=CHANGES, options=options()).ok.to_pylist()
    second = decoded("dms", [row()], topic=later, options=options()).ok.to_pylist()
    places = [tuple(one["_seq"].values()) for one in (*first, *second)]
    assert places == sorted(places) and len(set(places)) == 3
    assert len({one["_uuid"] for one in (*first, *second)}) == 3


def test_a_sequence_and_a_time_of_columns_that_are_named() -> None:
    named_ = options(timestamp="at", sequence="no")
    numbers = ["2024013110150000000000000000000000" + n for n in ("10", "02", "9")]
    moment = "2024-01-31T10:15:00.5"
    result = decoded(
        "dms", [row("U", no=n, at=moment) for n in numbers], topic=CHANGES, options=named_
    )
    places = [(one["_seq"]["a"], one["_seq"]["b"]) for one in result.ok.to_pylist()]
    assert places[1] < places[0] and places[2] < places[1]
    assert rows(result, "_source_ts")[0] == (datetime(2024, 1, 31, 10, 15, 0, 500_000, UTC),)
    assert not {"at", "no"} & set(result.ok.schema.names)
    assert json.loads(result.ok.to_pylist()[0]["_envelope"])["no"] == numbers[0]


@pytest.mark.parametrize(
    ("path", "table"),
    [
        ("shop/orders/LOAD1.csv", ["", "shop", "orders"]),
        ("shop/orders/2024/01/31/x.csv", ["", "shop", "orders"]),
        ("shop/orders/20240131/x.csv", ["", "shop", "orders"]),
        ("all/of/it/shop/orders/x.csv", ["", "shop", "orders"]),
        ("orders/x.csv", ["", "", "orders"]),
        ("2024/01/x.csv", ["", "2024", "01"]),
        ("x.csv", None),
    ],
)
def test_folders_name_the_table(path: str, table: list[str] | None) -> None:
    claim = named("dms", [row()], topic=path).claims[0].as_py()
    assert (None if claim is None else json.loads(claim)) == table


def test_the_first_pattern_that_fits_names_the_key() -> None:
    keys = {"shop.orders": ["id", "name"], "shop.*": ["id"]}
    chosen = options(keys=keys)
    assert rows(decoded("dms", [row()], topic=CHANGES, options=chosen), "_key") == [
        (["id", "name"],)
    ]
    other = CHANGES.replace("orders", "people")
    assert rows(decoded("dms", [row()], topic=other, options=chosen), "_key") == [(["id"],)]
    away = CHANGES.replace("shop", "crm")
    assert rows(decoded("dms", [row()], topic=away, options=chosen), "_key") == [([],)]


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (row("X"), "NOT_AN_ENVELOPE"),
        (row(None), "NOT_AN_ENVELOPE"),
        (row(7), "NOT_AN_ENVELOPE"),  # type: ignore[arg-type]
        (row(["I"]), "NOT_AN_ENVELOPE"),  # type: ignore[arg-type]
        (row("I", other=1), "PAYLOAD_MISMATCH"),
        (row("I", id="one"), "PAYLOAD_MISMATCH"),
    ],
)
def test_hostile_rows_fail_alone(bad: bytes, code: str) -> None:
    result = decoded("dms", [row(), bad, row()], topic=CHANGES, options=options())
    assert codes(result) == [code] and result.ok.num_rows == 2


def test_changes_without_an_order_are_refused() -> None:
    odd = "shop/orders/changes.parquet"
    assert codes(decoded("dms", [row()], topic=odd, options=options())) == ["BAD_POSITION"]
    sequence = options(sequence="no")
    events = [row(no=n) for n in ("x", "9" * 37, None, "-1")]
    assert codes(decoded("dms", events, topic=CHANGES, options=sequence)) == ["BAD_POSITION"] * 4
    time = options(timestamp="at")
    assert codes(decoded("dms", [row(at="soon")], topic=CHANGES, options=time)) == [
        "BAD_SOURCE_TIME"
    ]


def test_a_key_that_no_file_has_is_refused() -> None:
    wrong = options(keys={"*": ["nowhere"]})
    result = decoded("dms", [row()], topic=CHANGES, options=wrong)
    assert codes(result) == ["KEY_NOT_IN_PAYLOAD"]


def test_a_sample_is_recognized() -> None:
    def sampled(path: str) -> Sampled:
        event = {"Op": "I", "id": 1}
        return Sampled(path, None, json.dumps(event).encode(), event)

    match = recognized([sampled(CHANGES), sampled(LOAD)], carrier="files")
    assert match is not None and match.source == {"layout": "dms"}
    assert match.cdc == {"format": "dms", "dms": {"keys": {"*": ["id"]}}}
    assert match.tables == {"shop.orders"}
    assert CHANGE_FORMATS["dms"].recognize([sampled("shop/orders/part-0.parquet")]) is None
