"""Rules over Arrow columns: verdicts are those of SQL, and nothing in a row stops the others."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.config.rules.expectations import Expectation
from distributary.model.table import Column
from distributary.shape import evaluation as rule_engine
from distributary.shape.checks import Checks, checks_of

Row = dict[str, Any]


def checks(rows: pa.Table, *texts: str) -> Checks:
    rules = [Expectation(name=f"r{n}", check=text).rule() for n, text in enumerate(texts)]
    return Checks(rules, [Column(field.name, field.type) for field in rows.schema])


def broken(rows: pa.Table, check: str) -> list[bool]:
    return [bool(flag) for flag in checks(rows, check)(rows)[0].broken]


SCHEMA = pa.schema([("n", pa.int64()), ("m", pa.int32()), ("s", pa.string()), ("b", pa.bool_())])

Unknown = bool | None


def both(first: Unknown, second: Unknown) -> Unknown:
    if first is False or second is False:
        return False
    return None if first is None or second is None else True


def either(first: Unknown, second: Unknown) -> Unknown:
    inverse = both(none(first), none(second))
    return none(inverse)


def none(value: Unknown) -> Unknown:
    return None if value is None else not value


def compared(sign: str, a: Any, b: Any) -> Unknown:
    if a is None or b is None:
        return None
    return bool({"<": a < b, "<=": a <= b, "=": a == b, "<>": a != b}[sign])


Judge = Callable[[Row], Unknown]


@st.composite
def leaves(draw: st.DrawFn) -> tuple[str, Judge]:
    kind = draw(st.sampled_from(["number", "text", "null", "bool", "in", "columns", "between"]))
    if kind == "text":
        word = draw(st.sampled_from(["", "a", "Zoë", "it's", "%"]))
        sign = draw(st.sampled_from(["=", "<>"]))
        quoted = word.replace("'", "''")
        return f"s {sign} '{quoted}'", lambda row: compared(sign, row["s"], word)
    if kind == "null":
        name = draw(st.sampled_from(SCHEMA.names))
        return f"{name} IS NULL", lambda row: row[name] is None
    if kind == "bool":
        return "b", lambda row: row["b"]
    if kind == "in":
        few = draw(st.lists(st.integers(-3, 3), min_size=1, max_size=3))
        listed = ", ".join(map(str, few))
        return f"m IN ({listed})", lambda row: None if row["m"] is None else row["m"] in few
    if kind == "columns":
        sign = draw(st.sampled_from(["<", "<=", "=", "<>"]))
        return f"n {sign} m", lambda row: compared(sign, row["n"], row["m"])
    low = draw(st.integers(-5, 5))
    if kind == "between":
        high = low + draw(st.integers(0, 5))
        return f"n BETWEEN {low} AND {high}", lambda row: both(
            compared("<=", low, row["n"]), compared("<=", row["n"], high)
        )
    sign = draw(st.sampled_from(["<", "<=", "=", "<>"]))
    return f"n {sign} {low}", lambda row: compared(sign, row["n"], low)


def _grown(inner: st.SearchStrategy[tuple[str, Judge]]) -> st.SearchStrategy[tuple[str, Judge]]:
    def joined(pair: tuple[tuple[str, Judge], tuple[str, Judge]], word: str) -> tuple[str, Judge]:
        (a, left), (b, right) = pair
        join = both if word == "AND" else either
        return f"({a}) {word} ({b})", lambda row: join(left(row), right(row))

    pairs = st.tuples(inner, inner)
    return st.one_of(
        st.builds(joined, pairs, st.sampled_from(["AND", "OR"])),
        inner.map(lambda one: (f"NOT ({one[0]})", lambda row: none(one[1](row)))),
    )


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "n": st.none() | st.integers(-6, 6) | st.sampled_from([2**63 - 1, -(2**63)]),
            "m": st.none() | st.integers(-4, 4),
            "s": st.none() | st.sampled_from(["", "a", "Zoë", "it's", "%", "\u0000", "🂡"]),
            "b": st.none() | st.booleans(),
        }
    ),
    min_size=1,
    max_size=20,
)


@given(rule=st.recursive(leaves(), _grown, max_leaves=6), rows=ROWS)
def test_a_row_breaks_a_rule_when_sql_says_false(rule: tuple[str, Judge], rows: list[Row]) -> None:
    check, judge = rule
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    assert broken(table, check) == [judge(row) is False for row in rows]


def test_rows_stay_in_order_however_many_there_are() -> None:
    rows = pa.table({"n": pa.chunked_array([np.arange(150_000), np.arange(150_000, 300_000)])})
    (verdict,) = checks(rows, "n % 7 <> 3")(rows)
    assert np.array_equal(np.flatnonzero(verdict.broken), np.arange(3, 300_000, 7))


@pytest.mark.parametrize(
    ("check", "values", "expected"),
    [
        ("v::int > 0", ["1", "x", None, "-3"], [False, True, False, True]),
        ("v::tinyint > 0", [1, 300, None], [False, True, False]),
        ("v * v * v > 0", [1, 2**40, None], [False, True, False]),
        ("regexp_matches('abc', v)", ["b", "[", None], [False, True, False]),
        ("repeat('x', v) <> ''", [1, 10**12, None], [False, True, False]),
        ("make_date(v, 1, 1) > '2000-01-01'", [2024, 10**9, 1999], [False, True, True]),
    ],
)
def test_what_cannot_be_evaluated_for_a_row_is_broken_by_that_row(
    check: str, values: list[Any], expected: list[bool]
) -> None:
    rows = pa.table({"v": values})
    (verdict,) = checks(rows, check)(rows)
    assert [bool(x) for x in verdict.broken] == expected
    assert not any(f and not b for f, b in zip(verdict.failed, verdict.broken, strict=True))
    assert verdict.failed[1]


def test_types_are_those_of_the_table() -> None:
    rows = pa.table(
        {
            "ts": pa.array([0, 10**15], pa.timestamp("us", "UTC")),
            "price": pa.array([decimal.Decimal("1.50"), None], pa.decimal128(10, 2)),
            "who": pa.array([{"name": "a", "at": {"x": 1.5}}, None]),
            "items": pa.array([[{"p": 1}], [{"p": -1}]]),
            "tags": pa.array([[("k", 1)], [("k", 2)]], pa.map_(pa.string(), pa.int64())),
            "raw": pa.array([b"\xff", b""]),
            "day": pa.array([0, 20_000], pa.date32()),
        }
    )
    texts = {
        "ts < '2000-01-01'": [False, True],
        "ts < current_timestamp and day < current_date": [False, False],
        "date_trunc('day', ts) = ts": [False, True],
        "price > 2": [True, False],
        "who.at.x > 2": [True, False],
        "WHO.Name = 'a'": [False, False],
        "len(list_filter(items, lambda i: i.p < 0)) = 0": [False, True],
        "tags['k'] = 1": [False, True],
        "octet_length(raw) > 0": [False, True],
    }
    every = checks(rows, *texts)
    assert not every.unfit
    found = [[bool(x) for x in verdict.broken] for verdict in every(rows)]
    assert found == list(texts.values())


@pytest.mark.parametrize(
    "check",
    [
        *("nope > 1", "s.x > 1", "who.nope = 1", "n", "s > 5", "who > 5", "list_sum(s) > 1"),
        *("regexp_matches(s, '[')", "length(n, n, n) = 1", "who['nope'] = 1", "current_user = s"),
    ],
)
def test_a_rule_that_does_not_fit_is_named_and_does_not_spoil_the_others(check: str) -> None:
    rows = pa.table({"n": [1], "s": ["a"], "who": [{"name": "b"}]})
    every = checks(rows, "n > 5", check, "s = 'a'")
    assert list(every.unfit) == ["r1"]
    assert every.unfit["r1"]
    assert [bool(v.broken[0]) for v in every(rows)] == [True, False]


def test_an_engine_that_breaks_down_is_replaced_and_finds_the_row() -> None:
    # a string that is none: no decoder lets it through, but it must not take the others along
    texts = pa.array([b"good", b"\xff\xfe", b"good", b"bad"])
    strings = pa.StringArray.from_buffers(4, *texts.buffers()[1:3])
    rows = pa.table({"s": strings})
    every = checks(rows, "upper(s) = 'GOOD'")
    (verdict,) = every(rows)
    assert [bool(x) for x in verdict.broken] == [False, True, False, True]
    assert [bool(x) for x in verdict.failed] == [False, True, False, False]
    assert broken(pa.table({"s": ["good"]}), "s = 'good'") == [False]


def test_rows_that_always_break_the_engine_are_broken_and_not_tried_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []

    def fail(self: object, rows: pa.Table) -> None:
        calls.append(rows.num_rows)
        raise duckdb.OutOfMemoryException("no")

    monkeypatch.setattr(rule_engine.Evaluation, "__call__", fail)
    rows = pa.table({"n": range(5000)})
    (verdict,) = checks(rows, "n > 0")(rows)
    assert verdict.broken.all()
    assert verdict.failed.all()
    assert len(calls) < 3 * rule_engine._MOST_TRIES


def test_tables_of_one_kind_share_what_was_prepared() -> None:
    rules = (Expectation(name="a", check="n > 0").rule(),)
    first = checks_of(rules, [Column("n", pa.int64()), Column("x", pa.string())])
    second = checks_of(rules, [Column("n", pa.int64()), Column("y", pa.bool_())])
    assert first is second
    assert checks_of(rules, [Column("n", pa.float64())]) is not first


def test_more_statements_than_are_kept_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule_engine, "_MOST_KNOWN", 3)
    rows = pa.table({"n": [1, 2]})
    every = [checks(rows, f"n <> {k}") for k in range(8)]
    for _ in range(2):
        found = [[bool(x) for x in one(rows)[0].broken] for one in every]
        assert found[:4] == [[False, False], [True, False], [False, True], [False, False]]


def test_the_engine_reads_no_files_and_stays_so() -> None:
    from distributary.config.rules.expressions import open_engine

    engine = open_engine()
    for query in (
        "SELECT * FROM read_text('/etc/hostname')",
        "COPY (SELECT 1) TO '/tmp/never.csv'",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "LOAD httpfs",
    ):
        with pytest.raises(duckdb.Error):
            engine.execute(query)
    engine.close()
