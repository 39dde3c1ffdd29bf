"""Kinds of columns of JSON without a schema: decided once, so that good values stay alike."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.config.lake import Evolution
from distributary.decode.base import DecodeLimits
from distributary.decode.json.decoder import JsonDecoder
from distributary.decode.json.infer import MAX_PROPERTIES, NOTHING
from distributary.decode.json.kinds import Learner, added, nothing, profile_texts
from distributary.errors import EvolutionError
from distributary.evolve.align import align
from distributary.evolve.merge import merge
from distributary.model.table import Column, ColumnChange
from tests.decode.json_samples import writer_schema


class Table:
    """A table of records without a schema, kept as a run keeps it."""

    def __init__(self, **policy: str) -> None:
        self.policy = Evolution.model_validate(policy)
        self.document: Any = NOTHING
        self.columns: tuple[Column, ...] = ()
        self.changes: list[ColumnChange] = []
        self.doubts: list[str] = []
        self.later: dict[str, dict[str, int]] = {}

    def batch(self, *records: Any, tasks: int = 1) -> list[dict[str, Any] | None]:
        """Store records; the row of each, and None of a dead letter."""
        texts = [r if isinstance(r, bytes) else json.dumps(r).encode() for r in records]
        profile = nothing()
        for number in range(tasks):
            found = profile_texts(pa.array(texts[number::tasks], pa.binary()))
            profile = added(profile, found or nothing())
        learner = Learner(self.policy)
        self.document = learner.extended(self.document, profile)
        self.doubts += [doubt.column for doubt in learner.doubts]
        self.later = learner.later
        schema = writer_schema(self.document)
        decoder = JsonDecoder(schema.body, schema.message, DecodeLimits())
        merged = merge(self.columns, decoder.columns, self.policy)
        assert merged.refused is None
        self.columns = merged.columns
        self.changes += merged.changes
        decoded = decoder.decode(pa.array(texts, pa.binary()))
        target = pa.schema([(column.name, column.type) for column in self.columns])
        rows: list[dict[str, Any] | None] = [None] * len(texts)
        origin = range(len(texts)) if decoded.origin is None else decoded.origin.to_pylist()
        stored = align(decoded.ok, merged.fills, target).to_pylist() if self.columns else []
        for place, row in zip(origin, stored, strict=True):
            rows[place] = {name: value for name, value in row.items() if value is not None}
        return rows

    def types(self) -> dict[str, str]:
        return {column.name: str(column.type) for column in self.columns}


GOOD = {"id": 1, "status": "paid", "n": 7, "price": 1.5, "ok": True, "tags": ["a"]}
GOOD_INSIDE = GOOD | {"inner": {"k": 3, "w": "x"}}
ODD: dict[str, list[Any]] = {
    "id": ["x", 1.5, True, {"deep": 1}, [1], 2**70, 10**50, None],
    "status": [404, 1.5, False, {"a": 1}, ["paid"], 10**50],
    "n": ["oops", 2.5, False, [], {}, 2**63, -(2**63)],
    "price": ["free", True, 2**60, 10**40, 3],
    "ok": ["true", 1, 0.5],
    "tags": ["a", [1], ["a", 1], [[1]], [{"b": 1}], {}, None],
    "inner": ["x", 5, {"k": "y"}, {"k": {"z": 1}}, {"w": 3, "k": 1.5}, {"new": 1}, []],
    "other": [1, "x", {"a": 1}],
}
ODD_RECORDS = st.sampled_from(sorted(ODD)).flatmap(
    lambda name: st.sampled_from(ODD[name]).map(lambda value: GOOD_INSIDE | {name: value})
)
ROWS = st.lists(st.just(None) | ODD_RECORDS, min_size=1, max_size=12)


@settings(deadline=None, max_examples=50)
@given(ROWS, st.lists(st.integers(1, 4), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_a_good_value_is_stored_alike_whatever_came_between(
    records: list[Any], sizes: list[int], random: Any
) -> None:
    table = Table()
    # the first batch has odd ones too, but most of its values are good
    first = [GOOD_INSIDE] * 8 + [record for record in records[:3] if record]
    random.shuffle(first)
    table.batch(*first, tasks=random.randint(1, 3))
    rest = [record or GOOD_INSIDE for record in records] + [GOOD_INSIDE] * 3
    random.shuffle(rest)
    while rest:
        size = random.choice(sizes)
        some, rest = rest[:size], rest[size:]
        for record, row in zip(some, table.batch(*some, tasks=random.randint(1, 2)), strict=True):
            if record is GOOD_INSIDE:
                assert row == GOOD_INSIDE
            elif row is not None:
                for name, value in record.items():
                    if value is GOOD_INSIDE.get(name, NOTHING):
                        assert row[name] == value


@settings(deadline=None, max_examples=30)
@given(st.lists(ODD_RECORDS, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_neither_order_nor_tasks_of_the_first_batch_matter(records: list[Any], random: Any) -> None:
    found = []
    for _ in range(2):
        random.shuffle(records)
        table = Table()
        table.batch(*records, *[GOOD] * 2, tasks=random.randint(1, 4))
        found.append(table.document)
    assert found[0] == found[1]


def test_the_odd_ones_go_aside_and_the_history_says_so() -> None:
    table = Table()
    table.batch({"id": 1, "status": "paid", "n": 1}, {"id": 2, "status": "paid", "n": 2})
    assert table.batch({"id": 3, "status": 404, "n": 3}) == [
        {"id": 3, "status__bigint": 404, "n": 3}
    ]
    assert table.batch({"id": 4, "status": "paid", "n": "oops"}) == [
        {"id": 4, "status": "paid", "n__string": "oops"}
    ]
    good = {"id": 5, "status": "paid", "n": 5}
    assert table.batch(good) == [good]
    assert [c.column for c in table.changes if c.kind == "side_column_added"] == [
        "status__bigint",
        "n__string",
    ]
    assert table.batch(good, good | {"n": "again"}, good)[1] == {
        "id": 5,
        "status": "paid",
        "n__string": "again",
    }
    assert len(table.changes) == 3


@pytest.mark.parametrize(
    ("first", "odd", "column", "value"),
    [
        (1, "x", "v__string", "x"),
        (1, 1.5, "v__double", 1.5),
        (1, True, "v__boolean", True),
        (1, 10**50, "v__string", str(10**50)),
        (1.5, "x", "v__string", "x"),
        (1.5, 2**60, "v__bigint", 2**60),
        (1.5, 3, "v", 3.0),
        (1.5, 10**30, "v__decimal_38_0", 10**30),
        ("x", 5, "v__bigint", 5),
        ("x", 10**30, "v__decimal_38_0", 10**30),
        (True, 0, "v__bigint", 0),
        (1, 2**64, "v", 2**64),
        (2**60, 0.5, "v__double", 0.5),
    ],
)
def test_where_a_single_value_of_another_kind_goes(
    first: Any, odd: Any, column: str, value: Any
) -> None:
    table = Table()
    table.batch({"v": first})
    (row,) = table.batch({"v": odd})
    assert row == {column: value}
    assert table.batch({"v": first}) == [{"v": first}]


def test_digits_that_a_double_would_lose_are_kept_as_text() -> None:
    table = Table()
    table.batch({"v": 1.5}, {"v": 2.5})
    exact = "0.12345678901234567890"
    assert table.batch(f'{{"v": {exact}}}'.encode(), {"v": 2.5}) == [
        {"v__string": exact},
        {"v": 2.5},
    ]


@pytest.mark.parametrize(
    ("good", "odd"),
    [
        (1, {"deep": 1}),
        (1, [1]),
        ({"a": 1}, 1),
        ({"a": 1}, [1]),
        ([1], 1),
        ([1], ["x"]),
        (["x"], ["x", 1]),
        (["x"], [["x"]]),
        ("x", 10**50),
    ],
)
def test_objects_and_lists_against_others_are_dead_letters(good: Any, odd: Any) -> None:
    table = Table()
    table.batch({"v": good})
    assert table.batch({"v": odd}, {"v": good, "w": 1}) == [None, {"v": good, "w": 1}]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([{"deep": 1}, 1, 2, 3], "int64"),
        (["x", 1, 2], "int64"),
        ([1, "x", "y"], "string"),
        ([None, "x"], "string"),
        ([1, 2, 1.5], "double"),
        ([2**60, 2**61, 1.5], "int64"),
        ([2**60, 0.5, 1.5], "double"),
        ([1, "x"], "string"),
        ([True, 1], "int64"),
        ([2**64, 1], "decimal128(20, 0)"),
        ([[], [1]], "list<element: int64>"),
        ([[1], [1.5]], "list<element: double>"),
        ([["a", 1], ["b", 2], ["c"]], "list<element: string>"),
        ([{}, {}], "string"),
        ([{}, {"a": 1}], "struct<a: int64>"),
    ],
)
def test_the_kind_that_most_values_have(values: list[Any], expected: str) -> None:
    for tasks in (1, 2):
        table = Table()
        table.batch(*({"v": value} for value in values), tasks=tasks)
        assert table.types()["v"] == expected


def test_a_column_that_was_null_is_decided_when_it_has_values() -> None:
    table = Table()
    table.batch({"v": None, "id": 1})
    assert "v" not in table.types()
    table.batch({"v": "x"}, {"v": "y"}, {"v": 1})
    assert table.types()["v"] == "string"


@pytest.mark.parametrize(
    ("first", "later"), [({}, {"a": 1}), ([], [1]), ([], ["a"]), ({"a": None}, {"a": 2})]
)
def test_what_was_empty_at_first_stays_text(first: Any, later: Any) -> None:
    table = Table()
    table.batch({"v": first})
    kind = table.types()["v"]
    assert None not in table.batch({"v": later}, {"v": first})
    assert table.types() == {"v": kind}


def test_a_policy_of_dead_letters_makes_no_columns() -> None:
    table = Table(type_change="dead_letter")
    table.batch({"v": 1})
    assert table.batch({"v": "x"}, {"v": 2}) == [None, {"v": 2}]
    assert table.types() == {"v": "int64"}


def test_a_policy_of_failure_fails() -> None:
    table = Table(type_change="fail")
    table.batch({"v": 1})
    with pytest.raises(EvolutionError):
        table.batch({"v": "x"})


def test_wider_integers_go_aside_where_the_policy_does_not_widen() -> None:
    table = Table(wider_type="side_column")
    table.batch({"v": 1})
    assert table.batch({"v": 2**70}, {"v": 2}) == [{"v__decimal_38_0": 2**70}, {"v": 2}]
    table = Table(wider_type="dead_letter")
    table.batch({"v": 1})
    assert table.batch({"v": 2**70}, {"v": 2}) == [None, {"v": 2}]


def test_a_new_field_costs_only_its_own_record_where_none_are_wanted() -> None:
    table = Table(new_field="dead_letter")
    table.batch({"v": 1})
    assert table.batch({"v": 2, "w": 1}, {"v": 3}) == [None, {"v": 3}]


def test_a_field_that_is_called_like_a_side_column_keeps_its_values() -> None:
    table = Table()
    table.batch({"v": 1, "v__string": "mine"})
    (row, good) = table.batch({"v": "odd", "v__string": "mine"}, {"v": 2, "v__string": "mine"})
    assert row is not None and sorted(row.values()) == ["mine", "odd"]
    assert good == {"v": 2, "v__string": "mine"}


def test_a_text_of_a_version_that_mixed_kinds_stays_one() -> None:
    table = Table()
    table.document = {
        "type": ["null", "object"],
        "properties": {"v": {"type": ["integer", "null", "string"]}},
        "additionalProperties": False,
    }
    assert table.batch({"v": "x"}, {"v": 1}, {"v": True}) == [
        {"v": '"x"'},
        {"v": "1"},
        {"v": "true"},
    ]


def test_only_close_decisions_are_doubted() -> None:
    table = Table()
    table.batch(*({"v": 1, "w": 1} for _ in range(50)), {"v": "x"}, *({"w": "y"} for _ in range(9)))
    assert table.doubts == ["w"]


def test_decisions_on_few_values_are_doubted_and_later_values_counted() -> None:
    table = Table()
    table.batch({"id": {"deep": 1}, "n": 404}, *({"m": n} for n in range(10)))
    assert table.doubts == ["id", "id.deep", "n"]
    assert table.later == {}
    table.batch(*({"id": n, "n": "paid", "m": n} for n in range(50)))
    assert table.doubts == ["id", "id.deep", "n"]
    assert table.later == {"id": {"integer": 50}, "n": {"string": 50}}
    table.batch({"id": {"deep": 2**60}, "n": None, "m": 1.5})
    assert table.later == {}


def test_many_records_like_the_first_count_as_these_do() -> None:
    texts = pa.array([b'{"v":1}'] * 5_000 + [b'{"v":"x"}'] * 4_000, pa.binary())
    found = profile_texts(texts)
    assert found is not None
    kinds = found["fields"]["v"]["kinds"]
    assert kinds == {"integer53": 5_000, "string": 4_000}


def test_an_object_of_too_many_fields_says_nothing_beside_others() -> None:
    many = {f"p{n}": n for n in range(MAX_PROPERTIES + 1)}
    table = Table()
    assert table.batch({"id": 1}, many, {"id": 2}) == [{"id": 1}, None, {"id": 2}]
    alone = Table()
    alone.batch(many)
    assert alone.types() == {"value": "string"}
