"""How types are spelled and which holds which."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.evolve.types import same, settled, side_suffix, sql_name, wider

STRUCT = pa.struct([("a", pa.int32()), ("b c", pa.string())])


@pytest.mark.parametrize(
    ("type_", "name"),
    [
        (pa.bool_(), "boolean"),
        (pa.int32(), "int"),
        (pa.int64(), "bigint"),
        (pa.float32(), "float"),
        (pa.float64(), "double"),
        (pa.decimal128(20, 0), "decimal(20,0)"),
        (pa.string(), "string"),
        (pa.large_string(), "string"),
        (pa.binary(), "binary"),
        (pa.date32(), "date"),
        (pa.timestamp("us", "UTC"), "timestamp"),
        (pa.timestamp("us"), "timestamp_ntz"),
        (pa.list_(pa.int64()), "array<bigint>"),
        (pa.map_(pa.string(), pa.float64()), "map<string, double>"),
        (STRUCT, "struct<a: int, `b c`: string>"),
        (pa.list_(pa.struct([("x", pa.list_(pa.date32()))])), "array<struct<x: array<date>>>"),
    ],
    ids=str,
)
def test_types_are_spelled_as_delta_does(type_: pa.DataType, name: str) -> None:
    assert sql_name(type_) == name


@pytest.mark.parametrize(
    ("type_", "suffix"),
    [
        (pa.string(), "string"),
        (pa.float64(), "double"),
        (pa.decimal128(10, 2), "decimal_10_2"),
        (pa.timestamp("us", "UTC"), "timestamp"),
        (pa.list_(pa.string()), "array_string"),
    ],
    ids=str,
)
def test_suffixes_of_simple_types_are_readable(type_: pa.DataType, suffix: str) -> None:
    assert side_suffix(type_) == suffix


@pytest.mark.parametrize(
    ("type_", "kind"),
    [
        (STRUCT, "struct"),
        (pa.map_(pa.string(), pa.int32()), "map"),
        (pa.list_(STRUCT), "array"),
        (pa.list_(pa.list_(pa.int32())), "array"),
    ],
    ids=str,
)
def test_suffixes_of_nested_types_are_short_and_stable(type_: pa.DataType, kind: str) -> None:
    head, _, digits = side_suffix(type_).partition("_")
    assert head == kind
    assert len(digits) == 6
    assert side_suffix(settled(type_)) == side_suffix(type_)


def test_a_field_name_cannot_imitate_a_type() -> None:
    honest = pa.struct([("a", pa.int32()), ("b", pa.int32())])
    forged = pa.struct([("a: int, b", pa.int32())])
    assert not same(honest, forged)


@pytest.mark.parametrize(
    ("one", "other", "joined"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.int32(), pa.float64(), pa.float64()),
        (pa.int32(), pa.float32(), pa.float64()),
        (pa.int64(), pa.float64(), None),
        (pa.decimal128(10, 2), pa.decimal128(12, 4), pa.decimal128(12, 4)),
        (pa.decimal128(10, 2), pa.decimal128(8, 4), pa.decimal128(12, 4)),
        (pa.decimal128(38, 0), pa.decimal128(38, 10), None),
        (pa.int32(), pa.decimal128(10, 0), pa.decimal128(10, 0)),
        (pa.int64(), pa.decimal128(20, 0), pa.decimal128(20, 0)),
        (pa.int32(), pa.decimal128(4, 2), pa.decimal128(12, 2)),
        (pa.float64(), pa.decimal128(38, 2), None),
        (pa.date32(), pa.timestamp("us", "UTC"), None),
        (pa.bool_(), pa.int32(), None),
        (pa.string(), pa.binary(), None),
        (pa.int32(), pa.string(), None),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), None),
    ],
    ids=str,
)
def test_the_smallest_type_for_both(
    one: pa.DataType, other: pa.DataType, joined: pa.DataType | None
) -> None:
    assert wider(one, other) == joined
    assert wider(other, one) == joined


NUMBERS = st.one_of(
    st.sampled_from([pa.int32(), pa.int64(), pa.float32(), pa.float64()]),
    st.integers(1, 38).flatmap(
        lambda p: st.integers(0, p).map(lambda s: pa.decimal128(p, s)),
    ),
)


def extremes(type_: pa.DataType) -> list[int | float | Decimal]:
    if pa.types.is_integer(type_):
        bits = type_.bit_width - 1
        return [-(2**bits), 2**bits - 1, 0]
    if pa.types.is_floating(type_):
        return [1.5, -0.1 if type_ == pa.float64() else -0.5, 2.0**100]
    nines = (9,) * type_.precision
    return [
        Decimal((sign, digits, -type_.scale))
        for sign, digits in ((0, nines), (1, nines), (0, (1,)))
    ]


@given(NUMBERS, NUMBERS)
def test_widening_loses_nothing(one: pa.DataType, other: pa.DataType) -> None:
    joined = wider(one, other)
    if joined is None:
        return
    for type_ in (one, other):
        values = pa.array(extremes(type_), type_)
        assert values.cast(joined).to_pylist() == values.to_pylist()
        assert values.cast(joined).cast(type_).equals(values)


@given(NUMBERS, NUMBERS, NUMBERS)
def test_widening_does_not_depend_on_the_order(
    one: pa.DataType, two: pa.DataType, three: pa.DataType
) -> None:
    def fold(*types: pa.DataType) -> pa.DataType | None:
        result: pa.DataType | None = types[0]
        for type_ in types[1:]:
            result = None if result is None else wider(result, type_)
        return result

    results = {fold(one, two, three), fold(three, two, one), fold(two, one, three)} - {None}
    assert len(results) <= 1
