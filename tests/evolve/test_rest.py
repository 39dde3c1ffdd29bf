"""The JSON text of `_rest` is valid, whole and says the same as the columns."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.evolve.unified import rest_as_json


def texts(type_: pa.DataType, values: list[Any]) -> list[str | None]:
    batch = pa.RecordBatch.from_arrays([pa.array(values, type_)], names=["a"])
    found: list[str | None] = rest_as_json(batch, ["a"]).to_pylist()
    return found


@pytest.mark.parametrize(
    ("type_", "value", "text"),
    [
        (pa.bool_(), True, "true"),
        (pa.int64(), -(2**63), "-9223372036854775808"),
        (pa.float64(), 0.1, "0.1"),
        (pa.float64(), 1e300, "1e+300"),
        (pa.float64(), math.nan, '"NaN"'),
        (pa.float64(), math.inf, '"Infinity"'),
        (pa.float32(), -math.inf, '"-Infinity"'),
        (pa.decimal128(38, 2), Decimal("123456789012345678901234567890.10"), None),
        (pa.decimal128(38, 20), Decimal("1E-20"), "1E-20"),
        (pa.string(), 'a "b"\\\n\x00é', '"a \\"b\\"\\\\\\n\\u0000é"'),
        (pa.binary(), b"\x00\xff", '"AP8="'),
        (pa.date32(), dt.date(2024, 2, 29), '"2024-02-29"'),
        (
            pa.timestamp("us", "UTC"),
            dt.datetime(2024, 1, 2, 3, 4, 5, 6, dt.UTC),
            '"2024-01-02T03:04:05.000006Z"',
        ),
        (pa.list_(pa.string()), ["a", None, "b"], '["a",null,"b"]'),
        (pa.list_(pa.int32()), [], "[]"),
        (pa.map_(pa.string(), pa.int32()), [('k"', 1), ("l", None)], '{"k\\"":1,"l":null}'),
        (pa.map_(pa.int32(), pa.string()), [(7, "x")], '{"7":"x"}'),
        (pa.map_(pa.list_(pa.string()), pa.int32()), [(["x"], 1)], '{"[\\"x\\"]":1}'),
        (
            pa.struct([("x", pa.int32()), ("y", pa.string())]),
            {"x": 1, "y": None},
            '{"x":1}',
        ),
        (pa.struct([("x", pa.int32())]), {"x": None}, "{}"),
        (pa.list_(pa.struct([("x", pa.float64())])), [{"x": math.nan}, None], '[{"x":"NaN"},null]'),
    ],
    ids=str,
)
def test_a_value_as_json(type_: pa.DataType, value: Any, text: str | None) -> None:
    expected = f'{{"a":{value if text is None else text}}}'
    assert texts(type_, [value]) == [expected]
    # not alone in its column, and cut out of a larger one
    assert texts(type_, [None, value, None]) == [None, expected, None]
    batch = pa.RecordBatch.from_arrays([pa.array([None, value, value], type_)], names=["a"])
    assert rest_as_json(batch.slice(1, 1), ["a"]).to_pylist() == [expected]


def test_nulls_are_left_out_and_a_row_of_nulls_is_null() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"a": [1, None, None], "b": ["x", "y", None], "c": [True, True, True]}
    )
    assert rest_as_json(batch, ["a", "b"]).to_pylist() == ['{"a":1,"b":"x"}', '{"b":"y"}', None]
    assert rest_as_json(batch, []).to_pylist() == [None, None, None]
    assert rest_as_json(batch.slice(0, 0), ["a"]).to_pylist() == []


def test_names_are_escaped() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1])], names=['a"\n\\é'])
    (text,) = rest_as_json(batch, batch.schema.names).to_pylist()
    assert json.loads(text) == {'a"\n\\é': 1}


COLUMNS = {
    "text": (pa.string(), st.text(max_size=5)),
    "bytes": (pa.binary(), st.binary(max_size=5)),
    "number": (pa.float64(), st.floats()),
    "whole": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "list": (pa.list_(pa.string()), st.lists(st.none() | st.text(max_size=3), max_size=3)),
    "inner": (
        pa.struct([("s", pa.string()), ("l", pa.list_(pa.int32()))]),
        st.fixed_dictionaries(
            {
                "s": st.none() | st.text(max_size=3),
                "l": st.none() | st.lists(st.integers(0, 9), max_size=2),
            }
        ),
    ),
}
ROWS = st.lists(
    st.fixed_dictionaries({name: st.none() | values for name, (_, values) in COLUMNS.items()}),
    max_size=4,
)


def as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: as_json(inner) for key, inner in value.items() if inner is not None}
    return value


@given(ROWS, st.integers(0, 3))
def test_the_text_says_what_the_columns_say(rows: list[dict[str, Any]], first: int) -> None:
    schema = pa.schema([(name, type_) for name, (type_, _) in COLUMNS.items()])
    batch = pa.RecordBatch.from_pylist(rows, schema=schema).slice(first)
    result = rest_as_json(batch, schema.names)
    result.validate(full=True)
    found = [None if text is None else json.loads(text) for text in result.to_pylist()]
    assert found == [as_json(row) or None for row in rows[first:]]
