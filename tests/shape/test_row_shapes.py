"""Shapes over Arrow columns: the same rows as a plain reference in Python, however they are cut."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.config.rules.shape import ShapeConfig
from distributary.model.record import TIMESTAMP
from distributary.model.rules.shape_plan import ShapePlan
from distributary.model.table import Column
from distributary.shape import evaluation as engine
from distributary.shape.resolve import Resolved, ShapeError, resolve
from distributary.shape.row_shapes import Shaper

Row = dict[str, Any]
SCHEMA = pa.schema([("n", pa.int64()), ("m", pa.int32()), ("s", pa.string()), ("x", pa.float64())])
COLUMNS = [Column(field.name, field.type) for field in SCHEMA]


def resolved(
    *entries: dict[str, Any], columns: Sequence[Column] = COLUMNS, table: Sequence[Column] = ()
) -> Resolved:
    return resolve([ShapeConfig(**entry).rule() for entry in entries], columns, table)


def one(entry: dict[str, Any], **more: Any) -> ShapePlan:
    (shape,) = resolved(entry, **more).shapes
    return shape


def raw_of(rows: int) -> pa.Table:
    return pa.table(
        {
            "key": pa.nulls(rows, pa.binary()),
            "topic": pa.repeat("t", rows),
            "partition": pa.array([0] * rows, pa.int32()),
            "offset": pa.array(range(rows), pa.int64()),
            "timestamp": pa.array(range(rows), pa.int64()).cast(TIMESTAMP),
        }
    )


def outcome(shaper: Shaper, rows: list[Row]) -> list[Row | str]:
    """Return each row's new values, or what became of it."""
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    result = shaper(batch, raw_of(len(rows)))
    found: list[Row | str] = list(result.rows.to_pylist())
    for row in range(len(rows)):
        if not result.kept[row]:
            found[row] = "filtered"
        settings = [e.setting for e, flags in result.failed if flags[row]]
        if settings:
            found[row] = f"failed {settings[0]}"
    return found


# The reference: SQL's rules for one row, spelled out.

_WHERE, _CAST, _DIVIDED = "n > 1 OR s = 'a'", "CAST(s AS INTEGER) + 1", "m % 2 = 0"
_INT = range(-(2**31), 2**31)


def reference(row: Row) -> Row | str:
    n, m, s = row["n"], row["m"], row["s"]
    first = None if n is None else n > 1
    second = None if s is None else s == "a"
    if first is not True and second is not True:
        return "filtered"
    number = None
    if s is not None:
        try:
            number = int(s) + 1
        except ValueError:
            return "failed set.s"
        if number not in _INT or number - 1 not in _INT:
            return "failed set.s"
    even = None if m is None else m % 2 == 0
    return {"n": n, "s": number, "upper": None if s is None else s.upper(), "even": even}


rows_strategy = st.lists(
    st.fixed_dictionaries(
        {
            "n": st.none() | st.integers(-3, 5),
            "m": st.none() | st.integers(-(2**31), 2**31 - 1),
            "s": st.none() | st.sampled_from(["a", "7", "-8", "2147483647", "2147483648", "z"]),
            "x": st.none() | st.floats(allow_nan=False),
        }
    ),
    max_size=40,
)


@given(rows=rows_strategy, cuts=st.lists(st.integers(0, 40)))
@settings(deadline=None, max_examples=150)
def test_any_cut_gives_the_rows_of_the_reference(rows: list[Row], cuts: list[int]) -> None:
    sets = {"s": _CAST, "upper": "upper(s)", "even": _DIVIDED}
    shaper = Shaper(one({"where": _WHERE, "set": sets, "drop": ["m", "x*"]}))
    ends = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    found: list[Row | str] = []
    for start, end in itertools.pairwise(ends):
        found += outcome(shaper, rows[start:end])
    assert found == [reference(row) for row in rows]


def test_the_columns_that_come_out_are_known_before_any_row() -> None:
    shape = one(
        {
            "set": {"sum": "n + m", "x": "CAST(x AS INTEGER)", "S": "[s]", "when": "_timestamp"},
            "keep": ["n", "s", "sum", "when"],
            "rename": {"sum": "total"},
        }
    )
    found = [(column.name, column.type) for column in shape.columns]
    assert found == [
        ("n", pa.int64()),
        ("s", pa.list_(pa.string())),
        ("total", pa.int64()),
        ("when", TIMESTAMP),
    ]
    assert outcome(Shaper(shape), []) == []
    (row,) = outcome(Shaper(shape), [{"n": 1, "m": 2, "s": "a", "x": 1.5}])
    assert isinstance(row, dict)
    assert (row["total"], row["s"]) == (3, ["a"])


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("m::SMALLINT", pa.int32()),
        ("m::UTINYINT", pa.int32()),
        ("n::UBIGINT", pa.decimal128(20, 0)),
        ("list_sum([n, m])", pa.decimal128(38, 0)),
        ("strptime(s, '%Y')", TIMESTAMP),
        ("s::UUID", pa.string()),
        ("{'a': s, 'b': [n]}", pa.struct([("a", pa.string()), ("b", pa.list_(pa.int64()))])),
        ("1.5::DECIMAL(10, 2)", pa.decimal128(10, 2)),
        ("s::DATE", pa.date32()),
        ("encode(s)", pa.binary()),
    ],
)
def test_types_that_no_table_holds_are_widened(text: str, type_: pa.DataType) -> None:
    shape = one({"set": {"new": text}})
    assert shape.columns[-1].type == type_
    rows = Shaper(shape)(pa.RecordBatch.from_pylist([{"n": 1, "m": 2}], schema=SCHEMA), raw_of(1))
    assert rows.rows.schema.field("new").type == type_


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"where": "missing > 1"}, "where: no column missing"),
        ({"where": "n"}, "where: gives BIGINT, not true or false"),
        ({"where": "lower(n) = 'a'"}, "where: Binder Error"),
        ({"set": {"a": "lower(n)"}}, "set.a: Binder Error"),
        ({"set": {"a": "NULL"}}, "set.a: gives null, which no table holds"),
        ({"set": {"a": "INTERVAL 1 DAY"}}, "set.a: gives month_day_nano"),
        ({"rename": {"n": "M"}}, "rename: makes two columns of the name M"),
        ({"drop": ["*"]}, "drop: leaves no column"),
    ],
)
def test_records_that_cannot_be_shaped_say_why(entry: dict[str, Any], why: str) -> None:
    with pytest.raises(ShapeError) as caught:
        resolved(entry)
    assert str(caught.value).startswith(why)


def test_what_a_schema_lacks_is_null_if_the_table_has_it_and_else_not_applied() -> None:
    entry = {"set": {"low": "lower(gone)", "new": "never + 1"}, "drop": ["nothing"]}
    found = resolved(entry, table=[Column("gone", pa.string()), Column("_offset", pa.int64())])
    assert [(u.setting, u.why) for u in found.unapplied] == [
        ("set.new", "no column never"),
        ("drop", "no column nothing"),
    ]
    assert [a.setting for a in found.absent] == ["set.low"]
    (shape,) = found.shapes
    assert shape.columns[-1] == Column("low", pa.string(), comment="shape: lower(gone)")
    (row,) = outcome(Shaper(shape), [{"n": 1}])
    assert isinstance(row, dict)
    assert row["low"] is None
    # an entry that changes nothing costs nothing
    assert resolved({"drop": ["nothing"]}).shapes == ()


def test_hostile_names_are_columns_and_nothing_else() -> None:
    names = ['a"b', "select", "x; DROP TABLE y", "v0", "rows_1", "é", "a.b", "Groß", "' OR 1=1"]
    columns = [Column(name, pa.int64()) for name in names]
    quoted = {f"c{n}": '"' + name.replace('"', '""') + '" + 1' for n, name in enumerate(names)}
    shape = one({"set": quoted}, columns=columns)
    batch = pa.RecordBatch.from_pylist(
        [dict.fromkeys(names, 1)], schema=pa.schema([(name, pa.int64()) for name in names])
    )
    (row,) = Shaper(shape)(batch, raw_of(1)).rows.to_pylist()
    assert [row[f"c{n}"] for n in range(len(names))] == [2] * len(names)


def test_entries_are_applied_one_after_the_other() -> None:
    found = resolved({"rename": {"n": "k"}}, {"set": {"k": "k * 2"}}, {"where": "k > 2"})
    assert [c.name for c in found.columns] == ["k", "m", "s", "x"]
    assert len(found.shapes) == 3


def test_side_columns_go_with_their_column() -> None:
    columns = [Column("a", pa.int64()), Column("a__string", pa.string(), side_of="a")]
    columns.append(Column("b", pa.int64()))
    assert [c.name for c in resolved({"drop": ["a"]}, columns=columns).columns] == ["b"]
    renamed = resolved({"rename": {"a": "z"}}, columns=columns).columns
    assert [(c.name, c.side_of) for c in renamed] == [("z", ""), ("a__string", "z"), ("b", "")]


def test_rows_that_always_break_the_engine_fail_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    shaper = Shaper(one({"where": "n > 0", "set": {"s": "upper(s)"}}))
    evaluate = engine.Evaluation.__call__

    def fail(self: Any, rows: pa.Table) -> Any:
        if 13 in rows["n"].to_pylist():
            raise duckdb.OutOfMemoryException("no")
        return evaluate(self, rows)

    monkeypatch.setattr(engine.Evaluation, "__call__", fail)
    found = outcome(shaper, [{"n": n, "s": "a"} for n in range(1, 100)])
    assert found[12] == "failed where"
    assert [row for row in found if isinstance(row, str)] == ["failed where"]


def test_an_entry_is_the_same_after_json() -> None:
    entry = {"set": {"a": "n + 1"}, "where": "n > 0"}
    assert resolved(json.loads(json.dumps(entry))) == resolved(entry)
