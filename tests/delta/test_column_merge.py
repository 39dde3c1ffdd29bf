"""Columns of a batch meet columns of a table."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import Schema
from hypothesis import given
from hypothesis import strategies as st

from distributary.delta.column_merge import (
    ColumnConflictError,
    UnsupportedTypeError,
    columns_of,
    cut_to,
    fields_in,
    fields_of,
    merge_fields,
    schema_string,
)
from distributary.model.manifest import columns_from_text, columns_to_text
from distributary.model.table import Column

SCALARS = st.sampled_from(
    [
        pa.bool_(),
        pa.int8(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.decimal128(10, 2),
        pa.decimal128(20, 4),
        pa.string(),
        pa.binary(),
        pa.date32(),
        pa.timestamp("us", "UTC"),
    ]
)
NAMES = st.sampled_from(["a", "b", "c", "d e", "f.g", "`h`", "é"])


def structs(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.dictionaries(NAMES, types, min_size=1, max_size=3)
    return fields.map(lambda named: pa.struct(list(named.items())))


TYPES = st.recursive(
    SCALARS,
    lambda types: st.one_of(
        structs(types), types.map(pa.list_), st.builds(pa.map_, st.just(pa.string()), types)
    ),
    max_leaves=6,
)
COLUMNS = st.dictionaries(NAMES, TYPES, max_size=5).map(
    lambda named: tuple(Column(name, type_, f"about {name}") for name, type_ in named.items())
)


@given(COLUMNS)
def test_columns_survive_the_log(columns: tuple[Column, ...]) -> None:
    assert columns_of(fields_in(schema_string(fields_of(columns)))) == columns


@given(COLUMNS)
def test_deltalake_reads_the_same_columns(columns: tuple[Column, ...]) -> None:
    text = schema_string(fields_of(columns))
    read = pa.schema(Schema.from_json(text).to_arrow())
    assert read.equals(pa.schema([(c.name, c.type) for c in columns]))
    assert fields_in(Schema.from_json(text).to_json()) == fields_of(columns)


@given(COLUMNS)
def test_same_columns_change_nothing(columns: tuple[Column, ...]) -> None:
    fields = fields_of(columns)
    merged = merge_fields(fields, fields)
    assert (merged.fields, merged.changed, merged.widened) == (fields, False, False)


@given(COLUMNS, COLUMNS)
def test_merging_again_changes_nothing(have: tuple[Column, ...], want: tuple[Column, ...]) -> None:
    try:
        merged = merge_fields(fields_of(have), fields_of(want))
    except ColumnConflictError:
        return
    for part in (have, want):
        assert not merge_fields(merged.fields, fields_of(part)).changed
    names = [f["name"] for f in merged.fields]
    assert names[: len(have)] == [c.name for c in have]
    assert sorted(names) == sorted({c.name for c in (*have, *want)})


@given(COLUMNS, COLUMNS)
def test_order_decides_no_type(have: tuple[Column, ...], want: tuple[Column, ...]) -> None:
    def types(one: tuple[Column, ...], two: tuple[Column, ...]) -> object:
        try:
            columns = columns_of(merge_fields(fields_of(one), fields_of(two)).fields)
        except ColumnConflictError:
            return "conflict"
        return {c.name: str(sorted_type(c.type)) for c in columns}

    assert types(have, want) == types(want, have)


REMEMBERED = (Column("id", pa.int64(), "field R.id", number=3, aliases=("key", "nr")),)


def test_other_names_survive_log_and_manifest() -> None:
    text = Schema.from_json(schema_string(fields_of(REMEMBERED))).to_json()
    assert columns_of(fields_in(text)) == REMEMBERED
    assert columns_from_text(columns_to_text(REMEMBERED)) == REMEMBERED


def test_defaults_that_earlier_versions_kept_are_carried_along_and_mean_nothing() -> None:
    (field,) = fields_of(REMEMBERED)
    kept = {"distributary.default": "5", "distributary.innerDefaults": '{"element.b": "7"}'}
    before = [{**field, "metadata": field["metadata"] | kept}]
    assert columns_of(before) == REMEMBERED
    merged = merge_fields(before, fields_of(REMEMBERED))
    assert (merged.fields, merged.changed) == (before, False)


def sorted_type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(type_):
        return pa.struct(sorted(((f.name, sorted_type(f.type)) for f in type_), key=lambda f: f[0]))
    if pa.types.is_list(type_):
        return pa.list_(sorted_type(type_.value_type))
    if pa.types.is_map(type_):
        return pa.map_(type_.key_type, sorted_type(type_.item_type))
    return type_


@given(COLUMNS, COLUMNS)
def test_cut_has_the_shape_of_the_batch(have: tuple[Column, ...], want: tuple[Column, ...]) -> None:
    try:
        merged = merge_fields(fields_of(have), fields_of(want))
    except ColumnConflictError:
        return
    cut = cut_to(merged.fields, fields_of(want))
    assert [f["name"] for f in cut] == [c.name for c in want]
    assert not merge_fields(merged.fields, cut).changed
    if not have:
        assert columns_of(cut) == want


def test_comment_of_a_person_is_kept() -> None:
    have = fields_of([Column("n", pa.int32(), "counted by hand")])
    merged = merge_fields(have, fields_of([Column("n", pa.int64(), "field n")]))
    assert merged.widened
    assert columns_of(merged.fields) == (Column("n", pa.int64(), "counted by hand"),)


def test_settings_of_other_engines_are_kept() -> None:
    have = fields_of([Column("n", pa.int32())])
    have[0] |= {"nullable": False, "metadata": {"theirs": {"x": 1}}}
    merged = merge_fields(have, fields_of([Column("n", pa.int32()), Column("m", pa.int32())]))
    assert merged.fields[0] == have[0]


@pytest.mark.parametrize(
    ("have", "want"),
    [
        (pa.int32(), pa.string()),
        (pa.int64(), pa.float64()),
        (pa.string(), pa.struct([("a", pa.int32())])),
        (pa.list_(pa.int32()), pa.map_(pa.string(), pa.int32())),
        (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.string())])),
        (pa.decimal128(38, 0), pa.decimal128(38, 10)),
    ],
    ids=str,
)
def test_types_that_do_not_go_together(have: pa.DataType, want: pa.DataType) -> None:
    with pytest.raises(ColumnConflictError):
        merge_fields(fields_of([Column("c", have)]), fields_of([Column("c", want)]))


def test_names_that_differ_in_case_only_do_not_go_together() -> None:
    with pytest.raises(ColumnConflictError):
        merge_fields(fields_of([Column("Id", pa.int32())]), fields_of([Column("id", pa.int32())]))


def test_type_that_no_table_holds() -> None:
    with pytest.raises(UnsupportedTypeError):
        fields_of([Column("c", pa.uint64())])
    field = {"name": "v", "type": "variant", "nullable": True, "metadata": {}}
    with pytest.raises(UnsupportedTypeError):
        columns_of([field])
