"""One test for each line of the table of changes, and for each way to get it wrong."""

from __future__ import annotations

import pyarrow as pa
import pytest

from distributary.config.lake import Evolution
from distributary.errors import ErrorCode
from distributary.evolve.merge import ignored, merge, missing
from distributary.model.table import ChangeKind, Column, ColumnChange, Merged

INT, LONG, FLOAT, DOUBLE, TEXT = pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string()
DEFAULT = Evolution()


def columns(**types: pa.DataType) -> tuple[Column, ...]:
    return tuple(Column(name, type_) for name, type_ in types.items())


def shape(merged: Merged) -> dict[str, pa.DataType]:
    return {column.name: column.type for column in merged.columns}


def targets(merged: Merged) -> dict[str, str]:
    return {fill.source: fill.target for fill in merged.fills}


def kinds(merged: Merged) -> list[tuple[ChangeKind, str]]:
    return [(change.kind, change.column) for change in merged.changes]


def test_nothing_changed_gives_the_same_table() -> None:
    table = columns(a=INT, b=TEXT)
    merged = merge(table, columns(b=TEXT, a=INT), DEFAULT)
    assert merged.columns is table
    assert merged.changes == ()
    assert [(fill.source, fill.target, fill.type) for fill in merged.fills] == [
        ("b", "b", TEXT),
        ("a", "a", INT),
    ]


def test_an_empty_table_is_created_whatever_the_policy_for_new_fields() -> None:
    merged = merge((), columns(a=INT, b=TEXT), Evolution(new_field="fail"))
    assert shape(merged) == {"a": INT, "b": TEXT}
    assert merged.changes[0].kind is ChangeKind.TABLE_CREATED
    assert merged.changes[0].after == "a int, b string"


def test_system_columns_are_not_filled_by_a_writer() -> None:
    reserved = frozenset(["_offset"])
    writer = columns(_offset=TEXT, a=INT)
    merged = merge(columns(_offset=LONG), writer, DEFAULT, reserved=reserved)
    assert shape(merged) == {"_offset": LONG, "_offset__field": TEXT, "a": INT}
    assert targets(merged) == {"_offset": "_offset__field", "a": "a"}
    again = merge(merged.columns, columns(_offset=TEXT), DEFAULT, reserved=reserved)
    assert again.columns is merged.columns
    assert targets(again) == {"_offset": "_offset__field"}


def test_a_new_field_is_added_at_the_end() -> None:
    table = columns(b=INT)
    merged = merge(table, (Column("a", TEXT, "Chess.a", 7), Column("b", INT)), DEFAULT)
    assert merged.columns == (*table, Column("a", TEXT, "Chess.a", 7))
    assert kinds(merged) == [(ChangeKind.COLUMN_ADDED, "a")]
    assert merged.changes[0].describe() == "+ a string"


def test_a_new_field_can_be_ignored() -> None:
    table = columns(b=INT)
    writer = columns(a=TEXT, b=INT)
    merged = merge(table, writer, Evolution(new_field="ignore"))
    assert merged.columns is table
    assert targets(merged) == {"b": "b"}
    assert [(c.kind, c.column) for c in ignored(writer, merged)] == [
        (ChangeKind.FIELD_IGNORED, "a")
    ]


@pytest.mark.parametrize(("action", "fatal"), [("dead_letter", False), ("fail", True)])
@pytest.mark.parametrize(
    ("setting", "writer", "code"),
    [
        ("new_field", columns(a=INT, b=INT), ErrorCode.NEW_FIELD_REFUSED),
        ("wider_type", columns(a=LONG), ErrorCode.TYPE_CHANGE_REFUSED),
        ("type_change", columns(a=TEXT), ErrorCode.TYPE_CHANGE_REFUSED),
    ],
)
def test_a_change_can_be_refused(
    setting: str, writer: tuple[Column, ...], code: ErrorCode, action: str, fatal: bool
) -> None:
    table = columns(a=INT)
    merged = merge(table, writer, Evolution.model_validate({setting: action}))
    assert merged.columns is table
    assert merged.fills == ()
    assert (merged.refused, merged.fatal) == (code, fatal)
    assert [change.kind for change in merged.changes] == [ChangeKind.REFUSED]
    assert merged.reason


def test_a_refusal_inside_a_struct_refuses_the_writer() -> None:
    table = columns(s=pa.struct([("a", INT)]))
    writer = columns(s=pa.struct([("a", TEXT)]), new=INT)
    merged = merge(table, writer, Evolution(type_change="fail", new_field="dead_letter"))
    assert merged.columns is table
    assert (merged.refused, merged.fatal) == (ErrorCode.TYPE_CHANGE_REFUSED, True)
    assert [change.column for change in merged.changes] == ["s.a", "new"]


def test_what_has_a_place_is_stored_whatever_the_policy() -> None:
    strict = Evolution(new_field="fail", wider_type="fail", type_change="fail")
    table = merge(columns(a=INT), columns(a=TEXT), DEFAULT).columns
    merged = merge(table, columns(a=TEXT), strict)
    assert merged.refused is None
    assert targets(merged) == {"a": "a__string"}


@pytest.mark.parametrize(
    ("have", "got", "becomes"),
    [
        (INT, LONG, LONG),
        (FLOAT, DOUBLE, DOUBLE),
        (INT, DOUBLE, DOUBLE),
        (pa.decimal128(10, 2), pa.decimal128(12, 4), pa.decimal128(12, 4)),
        (INT, pa.decimal128(12, 2), pa.decimal128(12, 2)),
        (LONG, pa.decimal128(20, 0), pa.decimal128(20, 0)),
        (pa.list_(INT), pa.list_(LONG), pa.list_(LONG)),
        (pa.map_(TEXT, FLOAT), pa.map_(TEXT, DOUBLE), pa.map_(TEXT, DOUBLE)),
        (pa.map_(INT, TEXT), pa.map_(LONG, TEXT), pa.map_(LONG, TEXT)),
        (pa.struct([("x", INT)]), pa.struct([("x", LONG)]), pa.struct([("x", LONG)])),
    ],
    ids=str,
)
def test_a_wider_type_widens_the_column(
    have: pa.DataType, got: pa.DataType, becomes: pa.DataType
) -> None:
    merged = merge(columns(a=have), columns(a=got), DEFAULT)
    assert shape(merged) == {"a": becomes}
    assert [change.kind for change in merged.changes] == [ChangeKind.COLUMN_WIDENED]
    assert merged.fills[0].type == becomes
    older = merge(merged.columns, columns(a=have), DEFAULT)
    assert older.columns is merged.columns
    assert older.fills[0].type == becomes


def test_a_wider_type_can_have_a_column_of_its_own() -> None:
    policy = Evolution(wider_type="side_column")
    merged = merge(columns(a=INT), columns(a=LONG), policy)
    assert shape(merged) == {"a": INT, "a__bigint": LONG}
    assert targets(merge(merged.columns, columns(a=INT), policy)) == {"a": "a"}
    nested = merge(columns(a=pa.list_(INT)), columns(a=pa.list_(LONG)), policy)
    assert shape(nested) == {"a": pa.list_(INT), "a__array_bigint": pa.list_(LONG)}


@pytest.mark.parametrize(
    ("have", "got", "side"),
    [
        (INT, TEXT, "a__string"),
        (LONG, DOUBLE, "a__double"),
        (TEXT, pa.decimal128(10, 2), "a__decimal_10_2"),
        (pa.date32(), pa.timestamp("us", "UTC"), "a__timestamp"),
        (pa.list_(INT), pa.list_(TEXT), "a__array_string"),
        (TEXT, pa.list_(TEXT), "a__array_string"),
    ],
    ids=str,
)
def test_another_type_gets_a_side_column(have: pa.DataType, got: pa.DataType, side: str) -> None:
    merged = merge(columns(a=have), columns(a=got), DEFAULT)
    assert shape(merged) == {"a": have, side: got}
    assert targets(merged) == {"a": side}
    assert kinds(merged) == [(ChangeKind.SIDE_COLUMN_ADDED, side)]
    again = merge(merged.columns, columns(a=got), DEFAULT)
    assert again.columns is merged.columns
    assert again.fills == merged.fills


def test_a_side_column_of_a_nested_type_has_a_short_name() -> None:
    struct = pa.struct([("x", INT), ("y", TEXT)])
    merged = merge(columns(a=INT), columns(a=struct), DEFAULT)
    side = merged.columns[1].name
    assert side.startswith("a__struct_")
    assert len(side) == len("a__struct_") + 6
    assert merge(merged.columns, columns(a=struct), DEFAULT).columns is merged.columns


def test_a_side_column_never_takes_the_column_of_somebody_else() -> None:
    genuine = columns(a=INT, A__String=TEXT)
    merged = merge(genuine, columns(a=TEXT), DEFAULT)
    assert targets(merged) == {"a": "a__string_2"}
    both = merge(merged.columns, columns(a=TEXT, A__String=TEXT), DEFAULT)
    assert both.columns is merged.columns
    assert targets(both) == {"a": "a__string_2", "A__String": "A__String"}


def test_a_field_never_takes_a_side_column() -> None:
    table = merge(columns(a=INT), columns(a=TEXT), DEFAULT).columns
    merged = merge(table, columns(a__string=TEXT), DEFAULT)
    assert targets(merged) == {"a__string": "a__string__field"}
    assert merge(merged.columns, columns(a__string=TEXT), DEFAULT).columns is merged.columns


def test_one_writer_with_a_field_called_like_the_side_column() -> None:
    merged = merge(columns(a=INT), columns(a=TEXT, a__string=TEXT), DEFAULT)
    assert targets(merged) == {"a": "a__string_2", "a__string": "a__string"}


def test_a_writers_comment_cannot_pass_for_a_mark() -> None:
    forged = Column("b", TEXT, 'side column of "a"')
    merged = merge(columns(a=INT), (forged,), DEFAULT)
    again = merge(merged.columns, (forged,), DEFAULT)
    assert again.columns is merged.columns
    assert targets(again) == {"b": "b"}


def test_fields_inside_structs_merge_at_any_depth() -> None:
    have = pa.struct([("x", INT), ("l", pa.list_(pa.struct([("y", INT)])))])
    got = pa.struct(
        [("l", pa.list_(pa.struct([("z", TEXT), ("y", LONG)]))), ("x", TEXT), ("n", INT)]
    )
    merged = merge(columns(s=have), columns(s=got), DEFAULT)
    inner = pa.struct([("y", LONG), ("z", TEXT)])
    assert shape(merged) == {
        "s": pa.struct([("x", INT), ("l", pa.list_(inner)), ("x__string", TEXT), ("n", INT)])
    }
    assert sorted(kinds(merged)) == [
        (ChangeKind.COLUMN_ADDED, "s.l.element.z"),
        (ChangeKind.COLUMN_ADDED, "s.n"),
        (ChangeKind.COLUMN_WIDENED, "s.l.element.y"),
        (ChangeKind.SIDE_COLUMN_ADDED, "s.x__string"),
    ]
    assert merge(merged.columns, columns(s=got), DEFAULT).columns is merged.columns


def test_a_new_field_inside_a_struct_can_be_ignored() -> None:
    writer = columns(s=pa.struct([("x", INT), ("y", TEXT)]))
    merged = merge(columns(s=pa.struct([("x", INT)])), writer, Evolution(new_field="ignore"))
    assert shape(merged) == {"s": pa.struct([("x", INT)])}
    assert [change.column for change in ignored(writer, merged)] == ["s.y"]


def test_values_of_maps_merge_and_keys_that_differ_need_a_side_column() -> None:
    value = pa.struct([("x", INT)])
    wider = pa.struct([("x", INT), ("y", TEXT)])
    merged = merge(columns(m=pa.map_(TEXT, value)), columns(m=pa.map_(TEXT, wider)), DEFAULT)
    assert shape(merged) == {"m": pa.map_(TEXT, wider)}
    other = merge(columns(m=pa.map_(TEXT, value)), columns(m=pa.map_(INT, wider)), DEFAULT)
    assert other.columns[0].type == pa.map_(TEXT, value)
    assert other.columns[1].name.startswith("m__map_")


def test_struct_keys_of_maps_are_compared_as_a_whole() -> None:
    one, two = pa.struct([("x", INT)]), pa.struct([("x", INT), ("y", INT)])
    merged = merge(columns(m=pa.map_(one, INT)), columns(m=pa.map_(two, INT)), DEFAULT)
    assert len(merged.columns) == 2


def test_names_that_differ_in_case_are_one_column() -> None:
    merged = merge(columns(score=INT), columns(Score=LONG), DEFAULT)
    assert shape(merged) == {"score": LONG}
    assert targets(merged) == {"Score": "score"}


def test_names_of_one_writer_that_differ_in_case_are_two_columns() -> None:
    merged = merge(columns(e=TEXT), columns(E=LONG, e=TEXT), DEFAULT)
    names = targets(merged)
    assert names["e"] == "e"
    assert names["E"].startswith("E__case_")
    assert merge(merged.columns, columns(e=TEXT, E=LONG), DEFAULT).columns is merged.columns
    alone = merge(merged.columns, columns(E=LONG), DEFAULT)
    assert targets(alone) == {"E": names["E"]}


def test_a_renamed_field_is_a_new_column() -> None:
    table = (Column("score", INT, number=3),)
    merged = merge(table, (Column("points", INT, number=3),), DEFAULT)
    assert shape(merged) == {"score": INT, "points": INT}
    # the history says what was done: the table has a column more
    (change,) = merged.changes
    assert change == ColumnChange(ChangeKind.COLUMN_ADDED, "points", "score", "int", "new_column")
    assert change.describe().startswith("+ points int") and "score" in change.describe()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (Column("score", INT, number=3), Column("points", LONG, number=3)),
        (Column("score", INT), Column("points", LONG, aliases=("Score",))),
        (Column("score", INT, aliases=("points",)), Column("points", LONG)),
    ],
    ids=["number", "alias", "older alias"],
)
def test_a_renamed_field_can_keep_its_column(old: Column, new: Column) -> None:
    policy = Evolution(renamed="keep_name", new_field="fail")
    merged = merge((old,), (new,), policy)
    assert shape(merged) == {"score": LONG}
    assert targets(merged) == {"points": "score"}
    assert ChangeKind.COLUMN_ADDED not in [change.kind for change in merged.changes]
    again = merge(merged.columns, (new,), policy)
    assert again.columns is merged.columns
    assert again.fills == merged.fills
    assert missing(merged.columns, (new,)) == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (INT, TEXT),
        (pa.struct([("street", TEXT)]), pa.struct([("sku", TEXT)])),
        (pa.list_(INT), INT),
    ],
    ids=str,
)
def test_a_number_given_to_something_else_is_no_rename(old: pa.DataType, new: pa.DataType) -> None:
    table = (Column("old", old, number=3),)
    merged = merge(table, (Column("new", new, number=3),), Evolution(renamed="keep_name"))
    assert shape(merged) == {"old": old, "new": new}
    assert kinds(merged) == [(ChangeKind.COLUMN_ADDED, "new")]


def test_fields_that_swap_numbers_keep_their_names() -> None:
    table = (Column("a", INT, number=1), Column("b", INT, number=2))
    writer = (Column("a", INT, number=2), Column("b", INT, number=1))
    merged = merge(table, writer, Evolution(renamed="keep_name"))
    assert merged.columns is table
    assert targets(merged) == {"a": "a", "b": "b"}


def test_existing_comments_are_kept() -> None:
    table = (Column("a", INT, "mine"),)
    merged = merge(table, (Column("a", LONG, "theirs"),), DEFAULT)
    assert merged.columns == (Column("a", LONG, "mine"),)


def test_missing_tells_what_a_writer_does_not_write() -> None:
    table = merge(columns(a=INT, b=INT), columns(a=TEXT), DEFAULT).columns
    gone = missing(table, columns(A=TEXT))
    assert [(change.kind, change.column) for change in gone] == [(ChangeKind.COLUMN_MISSING, "b")]


def test_added_types_can_hold_nulls_everywhere() -> None:
    required = pa.struct([pa.field("x", INT, nullable=False)])
    merged = merge(columns(a=INT), columns(s=required), DEFAULT)
    assert merged.columns[1].type == pa.struct([("x", INT)])
    assert merge(merged.columns, columns(s=required), DEFAULT).columns is merged.columns
