import io

from distributary.cli.command.output import Paper
from distributary.cli.plan import draw_changes
from distributary.model.table import ChangeKind, ColumnChange


def drawn(*changes: ColumnChange) -> list[str]:
    stream = io.StringIO()
    draw_changes(Paper(stream), changes)
    return stream.getvalue().splitlines()


def test_a_new_table_has_its_first_columns_on_one_line() -> None:
    created = ColumnChange(
        ChangeKind.TABLE_CREATED, after="move string, at timestamp", action="create"
    )
    added = ColumnChange(ChangeKind.COLUMN_ADDED, "rating", after="int", action="add")
    assert drawn(created, added) == [
        "    + columns move string, at timestamp",
        "    + column rating int",
    ]


def test_a_new_table_whose_columns_are_the_same_everywhere_has_no_line_for_them() -> None:
    assert drawn(ColumnChange(ChangeKind.TABLE_CREATED, action="create")) == []


def test_a_new_table_with_a_thousand_columns_is_still_one_line() -> None:
    columns = ", ".join(f"column_{n} string" for n in range(1000))
    (line,) = drawn(ColumnChange(ChangeKind.TABLE_CREATED, after=columns, action="create"))
    assert line.endswith("…") and len(line) < 500
