"""Rows of tables: as columns for people, and as objects for JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from distributary.cli.command.output import Paper
from distributary.model.names import one_line
from distributary.observe.log_format import cut

if TYPE_CHECKING:
    from distributary.operations.query import ResultColumn

WIDEST = 60
"""Characters of a value where people read it."""


def draw_rows(paper: Paper, columns: Sequence[ResultColumn], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under the names of their columns."""
    if paper.fancy and len(columns) * 4 > paper.console.width:
        # a table that is wider than the screen has a line for each value
        for number, row in enumerate(rows, 1):
            paper.line(f"row {number}")
            for column, value in zip(columns, row, strict=True):
                paper.row(column.name, value, width=28)
        return
    # names of columns come from records and from the statement, so they are untrusted
    headers = [one_line(column.name) + ">" * _is_number(column.type) for column in columns]
    paper.table(headers, rows, indent=0)


def _is_number(type_name: str) -> bool:
    return type_name.startswith(("int", "uint", "float", "double", "decimal", "half"))


def cell_text(value: Any, width: int | None) -> str:
    """Format a value, and cut it to a width: an empty text for null, JSON for a nested value."""
    text = _text(value)
    return text if width is None else cut(text, width)


def _text(value: Any) -> str:
    from distributary.operations.query import json_value

    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return json.dumps(json_value(value), ensure_ascii=False)
    known = json_value(value)
    # JSON cannot spell infinity and NaN
    return "" if value is None else str(value) if known is None else str(known)


def json_rows(
    columns: Sequence[ResultColumn], rows: Iterable[Sequence[Any]], width: int | None
) -> list[dict[str, Any]]:
    """Return rows as objects of JSON; values that are longer than a width are texts, cut to it."""
    names = [column.name for column in columns]
    return [
        {name: _json(value, width) for name, value in zip(names, row, strict=True)} for row in rows
    ]


def _json(value: Any, width: int | None) -> Any:
    from distributary.operations.query import json_value

    known = json_value(value)
    if width is None or not isinstance(known, str | dict | list):
        return known
    text = known if isinstance(known, str) else json.dumps(known, ensure_ascii=False)
    return known if len(text) <= width else cut(text, width)
