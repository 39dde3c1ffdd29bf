"""Files of records, each line or row of which is a record of a type that the path names."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.config.sources.files import FilesSourceConfig
from distributary.decode.base import DecodeLimits
from distributary.decode.formats import decoder_for
from distributary.model.deadletter import REASON_HEADER
from distributary.registry.record_schemas import FileSchemas, guid_of, keep_schema
from distributary.source.files.file_bytes import FileFaultError
from distributary.source.files.parquet_as_avro import read_rows, schema_text
from distributary.source.files.source import FilesSource
from tests.source.change_files import put, records

_FRAME_BYTES = 17


def plain(tmp_path: Path, **settings: Any) -> FilesSource:
    """Open the source of plain files below `in`."""
    config = FilesSourceConfig.model_validate(
        {"type": "files", "path": str(tmp_path / "in"), "layout": "plain", "settle": "0s"}
        | settings
    )
    return FilesSource(
        config, folder=tmp_path / "checkpoint" / "files", schemas=tmp_path / "checkpoint/schemas"
    )


def read_csv(tmp_path: Path, text: str, **settings: Any) -> list[Any]:
    """Return the records of one file of CSV, and the reasons of its dead letters."""
    put(tmp_path / "in", "orders/a.csv", text.encode())
    found = records(plain(tmp_path, format="csv", **settings)).to_pylist()
    return [reason_of(row) or json.loads(row["value"]) for row in found]


def reason_of(row: dict[str, Any]) -> str:
    """Return the reason of a record that stands for a part which cannot be read; else nothing."""
    named = {header["key"]: header["value"] for header in row["headers"] or ()}
    return (named.get(REASON_HEADER) or b"").decode()


def test_columns_of_csv_have_the_types_of_their_first_values(tmp_path: Path) -> None:
    text = "id,amount,zip,paid,note,never\n1,1.50,01234,true,7,\n-2,2,99999,FALSE,x,\n"
    assert read_csv(tmp_path, text) == [
        {"id": 1, "amount": 1.5, "zip": "01234", "paid": True, "note": "7", "never": None},
        {"id": -2, "amount": 2.0, "zip": "99999", "paid": False, "note": "x", "never": None},
    ]


@pytest.mark.parametrize(
    "value", ["1" * 19, "0.12345678901234567890", "1e999", "+1", "0x1", "\u0661"]
)
def test_a_text_that_no_number_holds_exactly_stays_text(tmp_path: Path, value: str) -> None:
    assert read_csv(tmp_path, f"n\n{value}\n") == [{"n": value}]


def test_columns_can_all_be_text(tmp_path: Path) -> None:
    text = "1;'a;b'\n2;\n"
    found = read_csv(
        tmp_path,
        text,
        csv_types="text",
        csv_header=False,
        csv_delimiter=";",
        csv_quote="'",
        csv_null="2",
    )
    assert found == [
        {"column_1": "1", "column_2": "a;b"},
        {"column_1": None, "column_2": ""},
    ]


def test_a_bad_line_is_a_dead_letter_with_its_line_and_the_next_is_read(tmp_path: Path) -> None:
    text = 'id,note\n1,a\n2\n3,"x"y\n4,"two\nlines"\n5,b,c\n6,d\n'
    put(tmp_path / "in", "orders/a.csv", text.encode())
    found = records(plain(tmp_path, format="csv")).to_pylist()
    good = [json.loads(row["value"])["id"] for row in found if not reason_of(row)]
    assert good == [1, 4, 6]
    bad = [(reason_of(row), row["value"]) for row in found if reason_of(row)]
    assert [reason.partition(":")[0] for reason, _ in bad] == ["line 3", "line 4", "line 7"]
    assert [value for _, value in bad] == [b"2", b'3,"x"y', b"5,b,c"]
    assert [row["offset"] for row in found] == list(range(6))


def test_the_path_names_the_type(tmp_path: Path) -> None:
    for path in ("orders/x/1.json", "users/1.json", "top.json", ".hidden/1.json", "users/_2.json"):
        put(tmp_path / "in", path, b'{"a":1}\n[broken\n')
    found = records(plain(tmp_path, format="json"))
    assert found["key"].to_pylist() == [b"orders", b"orders", b"in", b"in", b"users", b"users"]
    assert found["topic"].to_pylist()[::2] == ["orders/x/1.json", "top.json", "users/1.json"]


def test_a_pattern_and_names_choose_files(tmp_path: Path) -> None:
    for path in ("e_orders_1.log", "e_users_1.log", "e_users_2.txt", "x/e_orders_3.log"):
        put(tmp_path / "in", path, b'{"a":1}\n')
    source = plain(tmp_path, format="json", pattern="e_{type}_*.log", exclude=["users"])
    assert records(source)["topic"].to_pylist() == ["e_orders_1.log"]


def test_a_json_file_may_be_an_array(tmp_path: Path) -> None:
    put(tmp_path / "in", "t/a.json", b'[{"a":1},\n {"a":2}]')
    put(tmp_path / "in", "t/b.json", b'{"a":\n 3}\n{"a":4}')
    found = records(plain(tmp_path, format="json"))
    assert [json.loads(value)["a"] for value in found["value"].to_pylist()] == [1, 2, 3, 4]
    assert set(found["key"].to_pylist()) == {b"t"}


# Rows of Parquet as Avro.


def decoded(table: pa.Table, folder: Path) -> pa.Table:
    """Return what the Avro decoder makes of the rows of a table."""
    schemas: list[bytes] = []
    (batch,) = table.combine_chunks().to_batches()

    def keep(text: bytes) -> None:
        schemas.append(text)
        keep_schema(str(folder), text)

    values = read_rows(batch, "row", keep).values
    guid = UUID(bytes=values[0].as_py()[1:_FRAME_BYTES])
    assert guid == guid_of(schemas[0])
    payloads = pa.array([value.as_py()[_FRAME_BYTES:] for value in values], pa.binary())
    schema = FileSchemas(str(folder)).by_guid(guid)
    result = decoder_for(schema, schema.message, DecodeLimits()).decode(payloads)
    assert not result.failed
    return pa.Table.from_batches([result.ok])


MICROS = st.integers(-(2**50), 2**50)
TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "i8": (pa.int8(), st.integers(-128, 127)),
    "i64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "u32": (pa.uint32(), st.integers(0, 2**32 - 1)),
    "u64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "f64": (pa.float64(), st.floats(allow_nan=False)),
    "yes": (pa.bool_(), st.booleans()),
    "text": (pa.string(), st.text(st.characters(codec="utf-8"))),
    "bytes": (pa.binary(), st.binary()),
    "price": (
        pa.decimal128(38, 9),
        st.decimals(min_value=-(10**20), max_value=10**20, places=9, allow_nan=False),
    ),
    "day": (pa.date32(), st.dates()),
    "at": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(dt.UTC))),
    "list": (pa.list_(pa.int64()), st.lists(st.none() | st.integers(-9, 999))),
    "struct": (
        pa.struct([("x y", pa.int32()), ("z", pa.list_(pa.string()))]),
        st.fixed_dictionaries(
            {"x y": st.none() | st.integers(-9, 9), "z": st.none() | st.lists(st.text("ab"))}
        ),
    ),
    "map": (
        pa.map_(pa.string(), pa.int64()),
        st.dictionaries(st.text("kl"), st.none() | st.integers(0, 9)).map(lambda d: [*d.items()]),
    ),
    "a column": (pa.int32(), st.integers(-9, 9)),
}
ROWS = st.lists(
    st.fixed_dictionaries({name: st.none() | values for name, (_, values) in TYPES.items()}),
    min_size=1,
    max_size=8,
)


@given(rows=ROWS)
def test_rows_of_parquet_keep_their_values_and_types(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    schema = pa.schema([(name, type_) for name, (type_, _) in TYPES.items()])
    table = pa.Table.from_pylist(rows, schema=schema)
    # a part of a longer file: its arrays begin somewhere inside of their buffers
    part = pa.concat_tables([table, table]).combine_chunks().slice(1, len(rows))
    found = decoded(part, tmp_path_factory.mktemp("schemas"))
    assert found.column_names == table.column_names
    for row, expected in zip(found.to_pylist(), part.to_pylist(), strict=True):
        assert row == expected


def test_unusual_types_of_parquet(tmp_path: Path) -> None:
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, 6)
    table = pa.table(
        {
            "local": pa.array([moment], pa.timestamp("ns")),
            "coded": pa.array(["a"]).dictionary_encode(),
            "fixed": pa.array([b"ab"], pa.binary(2)),
            "pair": pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)),
            "time": pa.array([dt.time(0, 0, 1)]),
            "none": pa.nulls(1),
            "small": pa.array([Decimal("-0.01")], pa.decimal128(5, 2)),
            "keys": pa.array([[(1, "a")]], pa.map_(pa.int32(), pa.string())),
        }
    )
    (row,) = decoded(table, tmp_path).to_pylist()
    assert row == {
        "local": moment.replace(tzinfo=dt.UTC),
        "coded": "a",
        "fixed": b"ab",
        "pair": [1.0, 2.0],
        "time": 1_000_000,
        "small": Decimal("-0.01"),
        "keys": [{"key": 1, "value": "a"}],
    }


def test_a_file_that_is_no_parquet_is_a_dead_letter_and_the_others_are_read(tmp_path: Path) -> None:
    out = io.BytesIO()
    pq.write_table(pa.table({"a": [1]}), out)
    put(tmp_path / "in", "t/a.parquet", b"PAR1 cut")
    put(tmp_path / "in", "t/b.parquet", out.getvalue())
    fault, row = records(plain(tmp_path, format="parquet")).to_pylist()
    assert "Parquet" in reason_of(fault)
    assert (row["key"], reason_of(row)) == (b"t", "")


def test_a_type_that_avro_has_not_is_refused_by_name() -> None:
    interval = pa.schema([("i", pa.month_day_nano_interval())])
    with pytest.raises(FileFaultError, match="month_day_nano"):
        schema_text(interval, "t")
