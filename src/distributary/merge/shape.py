"""Which columns a table has after an order, as evolution allows, in the words of its log. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from distributary.merge.order import Evolution
from distributary.model.table import Column
from distributary.publish.columns import (
    ColumnConflictError,
    Field,
    columns_of,
    fields_of,
    merge_fields,
)


@dataclass(frozen=True, slots=True)
class Shape:
    """A table's columns after a commit."""

    fields: list[Field]
    schema: pa.Schema
    changed: bool
    """The table has to be told of its columns."""
    rewritten: bool = False
    """Files that are there do not fit: every row is written again, in the same commit."""

    @property
    def names(self) -> list[str]:
        """The columns' names."""
        return list(self.schema.names)


def shape(
    have: Sequence[Field] | None,
    wanted: Sequence[Column],
    *,
    system: Sequence[Column],
    evolution: Evolution,
) -> Shape:
    """The columns of a table that has some (None: there is no table) after an order wants some.

    `system` are columns without which no table can be merged: they come last, and are there
    whatever evolution says. Raises ColumnConflictError.
    """
    want = [*fields_of(wanted), *fields_of(system)]
    if have is None:
        return _shape(want, changed=True)
    if evolution == "overwriteSchema":
        return _overwritten(have, want)
    if evolution == "none":
        want = want[len(wanted) :]
    merged = merge_fields(have, want)
    last = {column.name for column in system}
    fields = sorted(merged.fields, key=lambda f: f["name"] in last) if merged.changed else have
    return _shape(list(fields), changed=merged.changed)


def _overwritten(have: Sequence[Field], want: Sequence[Field]) -> Shape:
    by_name = {f["name"]: f for f in have}
    # a comment that somebody wrote is no reason to change a table
    fields = [by_name[f["name"]] if _type(by_name.get(f["name"])) == f["type"] else f for f in want]
    kept = {f["name"] for f in fields}
    narrower = any(f["name"] not in kept for f in have)
    return _shape(
        fields,
        changed=fields != list(have),
        rewritten=narrower or any(not _holds(by_name[n], f) for n, f in _pairs(by_name, fields)),
    )


def _pairs(by_name: dict[str, Field], fields: Sequence[Field]) -> list[tuple[str, Field]]:
    return [(f["name"], f) for f in fields if f["name"] in by_name]


def _holds(old: Field, new: Field) -> bool:
    """Whether files with the old column can be read as the new one."""
    try:
        merged = merge_fields([old], [new])
    except ColumnConflictError:
        return False
    return bool(merged.fields[0]["type"] == new["type"])


def _type(field: Field | None) -> Any:
    return None if field is None else field["type"]


def _shape(fields: list[Field], *, changed: bool, rewritten: bool = False) -> Shape:
    columns = columns_of(fields)
    schema = pa.schema([pa.field(column.name, column.type) for column in columns])
    return Shape(fields, schema, changed, rewritten)
