"""Batches get the shape of their table, whatever they were cut from."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from distributary.errors import ErrorCode, EvolutionError
from distributary.evolve.align import align, aligner
from distributary.model.table import Fill

POINT = pa.struct([("x", pa.int32()), ("label", pa.string())])
WIDE_POINT = pa.struct([("z", pa.float32()), ("x", pa.int64()), ("label", pa.string())])
BATCH = pa.RecordBatch.from_pydict(
    {
        "id": pa.array([1, None, 3, 4], pa.int32()),
        "point": pa.array(
            [{"x": 1, "label": "a"}, None, {"x": None, "label": "c"}, {"x": 4, "label": None}],
            POINT,
        ),
        "points": pa.array([[{"x": 1, "label": "a"}, None], None, [], [{"x": 9}]], pa.list_(POINT)),
        "by_name": pa.array(
            [[("a", 1)], None, [("b", 2), ("c", None)], []], pa.map_(pa.string(), pa.int32())
        ),
    }
)
TARGET = pa.schema(
    [
        ("extra", pa.map_(pa.string(), pa.list_(POINT))),
        ("by_name", pa.map_(pa.string(), pa.int64())),
        ("points", pa.list_(WIDE_POINT)),
        ("point", WIDE_POINT),
        ("id", pa.decimal128(12, 2)),
    ]
)
EXPECTED = [
    {
        "extra": None,
        "by_name": [("a", 1)],
        "points": [{"z": None, "x": 1, "label": "a"}, None],
        "point": {"z": None, "x": 1, "label": "a"},
        "id": Decimal("1.00"),
    },
    {"extra": None, "by_name": None, "points": None, "point": None, "id": None},
    {
        "extra": None,
        "by_name": [("b", 2), ("c", None)],
        "points": [],
        "point": {"z": None, "x": None, "label": "c"},
        "id": Decimal("3.00"),
    },
    {
        "extra": None,
        "by_name": [],
        "points": [{"z": None, "x": 9, "label": None}],
        "point": {"z": None, "x": 4, "label": None},
        "id": Decimal("4.00"),
    },
]


def plain(batch: pa.RecordBatch, target: pa.Schema) -> tuple[Fill, ...]:
    shared = [name for name in batch.schema.names if name in target.names]
    return tuple(Fill(name, name, target.field(name).type) for name in shared)


@pytest.mark.parametrize("first", range(5))
@pytest.mark.parametrize("last", range(5))
def test_any_slice_is_cast_reordered_and_filled_up(first: int, last: int) -> None:
    part = BATCH.slice(first, max(0, last - first))
    aligned = align(part, plain(BATCH, TARGET), TARGET)
    aligned.validate(full=True)
    assert aligned.schema == TARGET
    assert aligned.to_pylist() == EXPECTED[first:last]


def test_an_empty_batch_keeps_the_types() -> None:
    empty = pa.RecordBatch.from_pylist([], schema=BATCH.schema)
    aligned = align(empty, plain(BATCH, TARGET), TARGET)
    aligned.validate(full=True)
    assert (aligned.schema, aligned.num_rows) == (TARGET, 0)


def test_a_batch_without_any_known_column_keeps_its_rows() -> None:
    assert align(BATCH, (), TARGET).column("id").null_count == 4


def test_columns_that_the_table_lacks_are_left_out() -> None:
    target = pa.schema([("id", pa.int32())])
    aligned = align(BATCH, (*plain(BATCH, target), Fill("point", "gone", POINT)), target)
    assert aligned.schema == target


def test_equal_types_are_not_copied() -> None:
    aligned = align(BATCH, plain(BATCH, BATCH.schema), BATCH.schema)
    for name in BATCH.schema.names:
        before = [b.address for b in BATCH.column(name).buffers() if b is not None]
        assert [b.address for b in aligned.column(name).buffers() if b is not None] == before


def test_what_does_not_change_inside_a_list_is_not_copied() -> None:
    target = pa.schema([("points", pa.list_(pa.struct([*POINT, ("new", pa.int32())])))])
    aligned = align(BATCH, plain(BATCH, target), target)
    before = BATCH.column("points").values.field("label").buffers()[2].address
    assert aligned.column("points").values.field("label").buffers()[2].address == before


def test_a_column_is_stored_under_another_name() -> None:
    target = pa.schema([("id", pa.string()), ("id__int", pa.int32())])
    aligned = align(BATCH, (Fill("id", "id__int", pa.int32()),), target)
    assert aligned.column("id").null_count == 4
    assert aligned.column("id__int").to_pylist() == [1, None, 3, 4]


def test_a_field_inside_a_struct_finds_its_side_field() -> None:
    have = pa.struct([("x", pa.string()), ("label", pa.string()), ("x__int", pa.int32())])
    target = pa.schema([("point", have)])
    aligned = align(BATCH, plain(BATCH, target), target)
    assert aligned.column("point")[0].as_py() == {"x": None, "label": "a", "x__int": 1}


def test_nothing_is_lost_in_silence() -> None:
    target = pa.schema([("point", pa.struct([("x", pa.string())]))])
    with pytest.raises(EvolutionError) as caught:
        align(BATCH, plain(BATCH, target), target)
    assert caught.value.code is ErrorCode.INTERNAL
    with pytest.raises(EvolutionError):
        align(BATCH, plain(BATCH, TARGET), pa.schema([("id", pa.string())]))


@pytest.mark.parametrize(
    ("values", "target"),
    [
        (pa.array(["a", None], pa.large_string()), pa.string()),
        (pa.array([[1], None], pa.large_list(pa.int32())), pa.list_(pa.int64())),
        (pa.array([[1, 2], None], pa.list_(pa.int32(), 2)), pa.list_(pa.int32())),
        (pa.array([0, None], pa.timestamp("ms", "UTC")), pa.timestamp("us", "UTC")),
    ],
    ids=str,
)
def test_other_arrow_layouts_become_the_tables(values: pa.Array, target: pa.DataType) -> None:
    batch = pa.RecordBatch.from_arrays([values], names=["a"])
    schema = pa.schema([("a", target)])
    aligned = align(batch, (Fill("a", "a", target),), schema)
    aligned.validate(full=True)
    assert aligned.column("a").type == target
    assert aligned.column("a").to_pylist() == values.to_pylist()


def test_an_aligner_is_made_once_per_pair_of_schemas() -> None:
    fills = plain(BATCH, TARGET)
    again = pa.schema(list(TARGET))
    assert aligner(BATCH.schema, fills, TARGET) is aligner(BATCH.schema, fills, again)
    assert aligner(BATCH.schema, fills, TARGET) is not aligner(BATCH.schema, (), TARGET)
