"""What holds for every table, every writer and every policy."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from itertools import permutations
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from distributary.config.lake import Evolution
from distributary.evolve.align import align
from distributary.evolve.merge import ignored, merge
from distributary.evolve.types import fold, sql_name, wider
from distributary.model.table import Column, Merged

NAMES = [
    "score", "Score", "SCORE", "e", "E", "name", "score__string", "Score__String", "score__int",
    "score__string_2", "score__field", "_offset", "with space", "\u0131", "I", "weird`;--",
]  # fmt: skip
RESERVED = frozenset(["_offset"])
SCALARS = st.sampled_from(
    [
        pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
        pa.date32(), pa.timestamp("us", "UTC"), pa.decimal128(6, 2), pa.decimal128(20, 0),
        pa.decimal128(38, 10),
    ]
)  # fmt: skip


def structs(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.dictionaries(st.sampled_from(NAMES), inner, min_size=1, max_size=3)
    return fields.map(lambda found: pa.struct(list(found.items())))


TYPES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        structs(inner),
        inner.map(pa.list_),
        st.tuples(st.sampled_from([pa.string(), pa.int32(), pa.int64()]), inner).map(
            lambda pair: pa.map_(*pair)
        ),
    ),
    max_leaves=4,
)


@st.composite
def writers(draw: st.DrawFn, types: st.SearchStrategy[pa.DataType] = TYPES) -> tuple[Column, ...]:
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=5))
    numbers = draw(st.lists(st.integers(1, 6), unique=True, min_size=5, max_size=5))
    numbered = draw(st.booleans())
    aliased = st.lists(st.sampled_from(NAMES), max_size=1).map(tuple)
    return tuple(
        Column(
            name,
            draw(types),
            draw(st.sampled_from(["", "a field", 'side column of "score"'])),
            numbers[i] if numbered else None,
            () if numbered else draw(aliased),
        )
        for i, name in enumerate(names)
    )


POLICIES = st.builds(
    Evolution,
    new_field=st.sampled_from(["add", "ignore", "dead_letter", "fail"]),
    wider_type=st.sampled_from(["widen", "side_column", "dead_letter", "fail"]),
    type_change=st.sampled_from(["side_column", "dead_letter", "fail"]),
    renamed=st.sampled_from(["new_column", "keep_name"]),
)
STORING = st.builds(
    Evolution,
    wider_type=st.sampled_from(["widen", "side_column"]),
    renamed=st.sampled_from(["new_column", "keep_name"]),
)
HISTORIES = st.lists(writers(), min_size=1, max_size=4)


def after(history: list[tuple[Column, ...]], policy: Evolution) -> tuple[Column, ...]:
    table: tuple[Column, ...] = (Column("_offset", pa.int64()),)
    for writer in history:
        table = merge(table, writer, policy, reserved=RESERVED).columns
    return table


def merged_with(table: tuple[Column, ...], writer: tuple[Column, ...], policy: Evolution) -> Merged:
    return merge(table, writer, policy, reserved=RESERVED)


def holds(new: pa.DataType, old: pa.DataType) -> bool:
    """Every value of the old type is found in the new one, at the same place."""
    if pa.types.is_struct(old):
        return bool(new.num_fields >= old.num_fields) and all(
            new.field(i).name == field.name and holds(new.field(i).type, field.type)
            for i, field in enumerate(old)
        )
    if pa.types.is_list(old):
        return holds(new.value_type, old.value_type)
    if pa.types.is_map(old):
        return holds(new.key_type, old.key_type) and holds(new.item_type, old.item_type)
    return bool(wider(old, new) == new)


def distinct_names(type_: pa.DataType) -> bool:
    if pa.types.is_struct(type_):
        keys = {fold(field.name) for field in type_}
        return len(keys) == type_.num_fields and all(distinct_names(f.type) for f in type_)
    if pa.types.is_list(type_):
        return distinct_names(type_.value_type)
    return not pa.types.is_map(type_) or distinct_names(type_.item_type)


@given(HISTORIES, writers(), POLICIES, POLICIES)
def test_the_same_writer_again_changes_nothing(
    history: list[tuple[Column, ...]], writer: tuple[Column, ...], before: Evolution, now: Evolution
) -> None:
    merged = merged_with(after(history, before), writer, now)
    again = merged_with(merged.columns, writer, now)
    assert again.columns is merged.columns
    if merged.refused is None:
        assert again.changes == ()
        assert again.fills == merged.fills
    else:
        assert again == merged


@given(HISTORIES, writers(), POLICIES)
def test_no_column_is_ever_removed_moved_or_narrowed(
    history: list[tuple[Column, ...]], writer: tuple[Column, ...], policy: Evolution
) -> None:
    table = after(history, Evolution())
    merged = merged_with(table, writer, policy)
    for old, new in zip(table, merged.columns, strict=False):
        assert (new.name, new.comment, new.number) == (old.name, old.comment, old.number)
        assert holds(new.type, old.type)
    assert len(merged.columns) >= len(table)
    assert merged.columns[0] == table[0]


@given(HISTORIES, writers(), POLICIES)
def test_every_field_has_exactly_one_place(
    history: list[tuple[Column, ...]], writer: tuple[Column, ...], policy: Evolution
) -> None:
    merged = merged_with(after(history, Evolution()), writer, policy)
    types = {column.name: column.type for column in merged.columns}
    targets = [fill.target for fill in merged.fills]
    assert len(set(targets)) == len(targets)
    assert "_offset" not in targets
    assert all(fill.type == types[fill.target] for fill in merged.fills)
    left_out = {column.name for column in writer} - {fill.source for fill in merged.fills}
    if merged.refused is None:
        told = {change.column for change in ignored(writer, merged)}
        assert left_out <= told
        assert policy.new_field == "ignore" or not told
    assert len({fold(name) for name in types}) == len(merged.columns)
    assert all(distinct_names(type_) for type_ in types.values())


@given(HISTORIES, writers(), POLICIES)
def test_a_refusal_leaves_the_table_alone(
    history: list[tuple[Column, ...]], writer: tuple[Column, ...], policy: Evolution
) -> None:
    table = after(history, Evolution())
    merged = merged_with(table, writer, policy)
    if merged.refused is not None:
        assert merged.columns is table
        assert merged.fills == ()
        assert merged.reason
        chosen = {policy.new_field, policy.wider_type, policy.type_change}
        assert chosen & {"fail"} if merged.fatal else chosen & {"dead_letter"}


@given(st.data())
def test_the_order_of_versions_does_not_matter_when_fields_are_only_added(
    data: st.DataObject,
) -> None:
    names = ["a", "b", "c", "d", "e"]
    types = {name: data.draw(TYPES) for name in names}
    subsets = st.lists(st.sampled_from(names), unique=True, min_size=1)
    history = [tuple(Column(name, types[name]) for name in data.draw(subsets)) for _ in range(3)]
    results = {
        frozenset((c.name, sql_name(c.type)) for c in after(list(order), Evolution()))
        for order in permutations(history)
    }
    assert len(results) == 1


INTEGRAL = st.sampled_from([pa.int32(), pa.int64(), pa.decimal128(6, 2), pa.decimal128(20, 0)])
FLOATING = st.sampled_from([pa.int32(), pa.float32(), pa.float64()])


@given(st.one_of([st.lists(kind, min_size=2, max_size=4) for kind in (INTEGRAL, FLOATING)]))
def test_the_order_of_versions_does_not_matter_when_a_type_widens(types: list[pa.DataType]) -> None:
    results = {
        tuple(sql_name(c.type) for c in after([(Column("a", t),) for t in order], Evolution()))
        for order in permutations(types)
    }
    assert len(results) == 1


def values(type_: pa.DataType) -> st.SearchStrategy[Any]:
    return st.none() | _values(type_)


def _values(type_: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_struct(type_):
        return st.fixed_dictionaries({field.name: values(field.type) for field in type_})
    if pa.types.is_list(type_):
        return st.lists(values(type_.value_type), max_size=2)
    if pa.types.is_map(type_):
        keys = _values(type_.key_type)
        return st.dictionaries(keys, values(type_.item_type), max_size=2).map(
            lambda found: list(found.items())
        )
    if pa.types.is_decimal(type_):
        limit = 10**type_.precision - 1
        return st.integers(-limit, limit).map(lambda n: exact(n, type_.scale))
    return {
        pa.bool_(): st.booleans(),
        pa.int32(): st.integers(-(2**31), 2**31 - 1),
        pa.int64(): st.integers(-(2**63), 2**63 - 1),
        pa.float32(): st.floats(width=32, allow_nan=False),
        pa.float64(): st.floats(allow_nan=False),
        pa.string(): st.text(max_size=3),
        pa.binary(): st.binary(max_size=3),
        pa.date32(): st.dates(),
        pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(dt.UTC)),
    }[type_]


def exact(number: int, scale: int) -> Decimal:
    digits = tuple(int(digit) for digit in str(abs(number)))
    return Decimal((int(number < 0), digits, -scale))


def leaves(value: Any) -> Iterator[Any]:
    """The scalars inside a value; structs come from Arrow as lists of pairs when names repeat."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    elif value is not None:
        yield type(value).__name__ if isinstance(value, bool) else "", value


@given(HISTORIES, writers(), STORING, st.data())
def test_no_value_is_lost_or_changed_on_its_way_into_the_table(
    history: list[tuple[Column, ...]],
    writer: tuple[Column, ...],
    policy: Evolution,
    data: st.DataObject,
) -> None:
    merged = merged_with(after(history, Evolution()), writer, policy)
    schema = pa.schema([(column.name, column.type) for column in merged.columns])
    rows = data.draw(st.integers(0, 3))
    arrays = [pa.array([data.draw(values(c.type)) for _ in range(rows)], c.type) for c in writer]
    batch = pa.RecordBatch.from_arrays(arrays, names=[c.name for c in writer])
    batch = batch.slice(data.draw(st.integers(0, rows)))
    aligned = align(batch, merged.fills, schema)
    aligned.validate(full=True)
    assert aligned.schema == schema
    assert aligned.num_rows == batch.num_rows
    for fill in merged.fills:
        source, target = batch.column(fill.source), aligned.column(fill.target)
        assert source.is_null().equals(target.is_null())
        for before, now in zip(source.to_pylist(), target.to_pylist(), strict=True):
            assert Counter(leaves(before)) == Counter(leaves(now))
    filled = {fill.target for fill in merged.fills}
    for name in set(schema.names) - filled:
        assert aligned.column(name).null_count == aligned.num_rows
