"""A file is passed over only if none of the keys can be in it, whoever wrote its statistics."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import example, given, settings
from hypothesis import strategies as st

from distributary.delta.column_merge import fields_of
from distributary.delta.commit import Change, rewrite_files, write_rows
from distributary.delta.log import DataFile, load
from distributary.delta.parquet import statistics
from distributary.delta.skipping import KeyRanges
from distributary.model.table import Column
from distributary.store.base import at

Told = Callable[[pa.Table], dict[str, Any] | None]
"""What some writer says of a file."""

NEW_YEAR = datetime(2024, 1, 1, tzinfo=UTC)
TEXTS = st.text(st.sampled_from("ab\x00é\uffee\U0001f600"), max_size=3).flatmap(
    lambda text: st.sampled_from([text, "p" * 30 + text, "p" * 70 + text])
)
VALUES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.integers(-(2**63), 2**63 - 1) | st.integers(0, 20)),
    (pa.int32(), st.integers(0, 20)),
    (pa.string(), TEXTS),
    (pa.binary(), st.binary(max_size=2)),
    (pa.float64(), st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf")])),
    (pa.bool_(), st.booleans()),
    (pa.date32(), st.dates() | st.just(date(2024, 2, 29))),
    (
        pa.timestamp("us", "UTC"),
        st.datetimes(timezones=st.just(UTC))
        | st.integers(0, 3000).map(
            lambda us: datetime(2024, 1, 1, tzinfo=UTC) + us * timedelta.resolution
        ),
    ),
    (
        pa.decimal128(38, 0),
        st.integers(-(10**30), 10**30).map(Decimal) | st.integers(0, 9).map(Decimal),
    ),
    (pa.decimal128(20, 3), st.decimals(-100, 100, places=3, allow_nan=False)),
]


def ours(rows: pa.Table) -> dict[str, Any] | None:
    found: dict[str, Any] = json.loads(statistics(rows))
    return found


def nothing(rows: pa.Table) -> dict[str, Any] | None:
    return None


def careless(rows: pa.Table) -> dict[str, Any] | None:
    """Cuts texts and compares them by UTF-16, rounds times, makes fractions of decimals."""
    low, high, nulls = {}, {}, {}
    for name in rows.column_names:
        values = [value for value in rows.column(name).to_pylist() if value is not None]
        nulls[name] = rows.num_rows - len(values)
        if not values or not isinstance(values[0], int | str | date | Decimal):
            continue
        order = (lambda text: text.encode("utf-16-be")) if isinstance(values[0], str) else None
        low[name], high[name] = (_spelled(end(values, key=order)) for end in (min, max))
        if isinstance(high[name], str) and not isinstance(values[0], date):
            low[name], high[name] = low[name][:32], _cut(high[name])
    return {"numRecords": rows.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}


def _spelled(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case Decimal():
            return float(value)
    return value


def _cut(text: str) -> str:
    return text if len(text) <= 32 else f"{text[:32]}\ufffd"


@st.composite
def files_and_keys(draw: st.DrawFn) -> tuple[pa.Table, pa.Table]:
    types = draw(st.lists(st.sampled_from(VALUES), min_size=1, max_size=3))
    size = draw(st.integers(1, 5))
    names = [f"k{number}" for number in range(len(types))]

    def table(rows: int, known: list[list[Any]]) -> pa.Table:
        columns = []
        for number, (type_, values) in enumerate(types):
            either = st.none() | values
            either = either if not known else st.sampled_from(known[number]) | either
            columns.append(pa.array([draw(either) for _ in range(rows)], type_))
        return pa.table(columns, names=names)

    inside = table(size, [])
    return inside, table(draw(st.integers(0, 4)), [column.to_pylist() for column in inside.columns])


def file_of(told: dict[str, Any] | None) -> DataFile:
    return DataFile("a", "a", 1, stats=None if told is None else json.dumps(told))


def _rows(table: pa.Table) -> set[Any]:
    return {
        tuple("nan" if value != value else value for value in row.values())
        for row in table.to_pylist()
    }


@given(files_and_keys(), st.sampled_from([ours, nothing, careless]))
@settings(max_examples=5 * settings().max_examples)
def test_no_row_is_ever_missed(tables: tuple[pa.Table, pa.Table], told: Told) -> None:
    inside, wanted = tables
    may = KeyRanges(wanted, wanted.column_names).may_be_in(file_of(told(inside)))
    assert may or not _rows(inside) & _rows(wanted)


@given(files_and_keys())
def test_keys_that_are_put_into_a_file_leave_its_bounds_as_they_are(
    tables: tuple[pa.Table, pa.Table],
) -> None:
    inside, wanted = tables
    assert not len(KeyRanges(wanted, wanted.column_names).within(file_of(None)))
    come = wanted.take(KeyRanges(wanted, wanted.column_names).within(file_of(ours(inside))))
    before, after = ours(inside), ours(pa.concat_tables([inside, come]))
    assert before is not None and after is not None
    for end in ("minValues", "maxValues"):
        # those of times are widened, because others round them
        times = {name for name, told in before[end].items() if "T" in str(told)[10:11]}
        kept = {name: told for name, told in after[end].items() if name not in times}
        assert kept == {name: told for name, told in before[end].items() if name not in times}


@pytest.mark.parametrize(
    ("type_", "inside", "outside"),
    [
        (pa.int64(), [3, 9], [2, 10]),
        (pa.string(), ["b", "d" * 40], ["a", "e"]),
        (pa.date32(), [date(2024, 1, 2), date(2024, 1, 3)], [date(2024, 1, 1), date(2024, 1, 4)]),
        (
            pa.timestamp("us", "UTC"),
            [datetime(2024, 1, 2, tzinfo=UTC)],
            [datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 3, tzinfo=UTC)],
        ),
        (pa.decimal128(30, 0), [Decimal(5), Decimal(6)], [Decimal(4), Decimal(7)]),
    ],
    ids=str,
)
def test_a_file_without_any_of_the_keys_is_passed_over(
    type_: pa.DataType, inside: list[Any], outside: list[Any]
) -> None:
    told = file_of(ours(pa.table({"k": pa.array(inside, type_)})))
    assert not KeyRanges(pa.table({"k": pa.array(outside, type_)}), ["k"]).may_be_in(told)
    assert KeyRanges(pa.table({"k": pa.array(inside[:1], type_)}), ["k"]).may_be_in(told)
    nulls = pa.table({"k": pa.array([None], type_)})
    assert not KeyRanges(nulls, ["k"]).may_be_in(told)
    assert KeyRanges(nulls, ["k"]).may_be_in(
        file_of(ours(pa.table({"k": pa.array([*inside, None], type_)})))
    )


def test_keys_of_several_columns_are_compared_as_a_whole() -> None:
    told = file_of(ours(pa.table({"a": [1, 5], "b": ["x", "y"]})))
    # each value is within the bounds of its column, but never both of one key
    wanted = pa.table({"a": [3, 9], "b": ["z", "x"]})
    assert not KeyRanges(wanted, ["a", "b"]).may_be_in(told)
    assert KeyRanges(wanted, ["a"]).may_be_in(told)


@pytest.mark.parametrize(
    "stats",
    [
        "",
        "[]",
        "{",
        '{"minValues": [], "maxValues": 3, "nullCount": "x"}',
        '{"minValues": {"k": "1"}, "maxValues": {"k": "2"}}',
        '{"minValues": {"k": 7}, "maxValues": {"k": 2}}',
        '{"minValues": {"k": 1.5}, "maxValues": {"k": NaN}}',
        '{"minValues": {"k": true}, "maxValues": {"k": true}}',
        f'{{"minValues": {{"k": {"9" * 5000}}}}}',
    ],
)
def test_statistics_that_make_no_sense_tell_nothing(stats: str) -> None:
    keys = KeyRanges(pa.table({"k": pa.array([5])}), ["k"])
    assert keys.may_be_in(DataFile("a", "a", 1, stats=stats))
    assert not len(keys.within(DataFile("a", "a", 1, stats=stats)))


@settings(max_examples=settings().max_examples // 2)
@example((pa.table({"k0": pa.array([Decimal(10**30)], pa.decimal128(38, 0))}),) * 2)
@given(files_and_keys())
def test_files_that_deltalake_wrote(tables: tuple[pa.Table, pa.Table]) -> None:
    inside, wanted = tables
    with tempfile.TemporaryDirectory() as folder:
        write_deltalake(folder, inside)
        table = load(at(folder))
        assert table is not None
        keys = KeyRanges(wanted, wanted.column_names)
        may = any(keys.may_be_in(file) for file in table.files.values())
        assert may or not _rows(inside) & _rows(wanted)


def test_other_readers_take_the_bounds_of_decimals(tmp_path: Path) -> None:
    type_ = pa.decimal128(38, 0)
    folder = str(tmp_path / "t")
    parts = [[Decimal(1), Decimal(5)], [Decimal(10**20)], [Decimal(-(2**52)), None]]
    added = [write_rows(pa.table({"k": pa.array(part, type_)}), folder) for part in parts]
    rewrite_files(
        folder, None, Change("WRITE", "t", fields=fields_of([Column("k", type_)]), added=added)
    )
    table = DeltaTable(folder)
    for value in (5, -(2**52)):
        found = table.to_pyarrow_table(filters=[("k", "=", Decimal(value))])
        assert found.column("k").to_pylist() == [Decimal(value)]
