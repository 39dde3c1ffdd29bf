"""The merge of a batch's columns with the columns that a table has when the batch commits.

The module does no I/O. A table's columns are handled in the JSON form of its log, so that comments
and the settings of other engines are kept.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from distributary.evolve.types import wider
from distributary.model.table import Column

Field = dict[str, Any]

_PRIMITIVES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_NUMBER, _ALIASES = "distributary.number", "distributary.aliases"
_NAMES = {arrow: name for name, arrow in _PRIMITIVES.items()}


class ColumnConflictError(Exception):
    """An error for a column that exists with an incompatible type."""

    def __init__(self, column: str, have: object, want: object) -> None:
        super().__init__(f"{column}: the table has {type_text(have)}, not {type_text(want)}")


class UnsupportedTypeError(Exception):
    """An error for a type that no column of a lake can have."""


@dataclass(frozen=True, slots=True)
class MergedFields:
    """A table's columns after a commit."""

    fields: list[Field]
    changed: bool
    widened: bool
    """True if an existing column, or a field inside of one, got a wider type."""


def fields_of(columns: Sequence[Column]) -> list[Field]:
    """Return columns in the JSON form of a log."""
    return [
        {
            "name": c.name,
            "type": _type_to_json(c.type),
            "nullable": True,
            "metadata": _metadata(c),
        }
        for c in columns
    ]


def columns_of(fields: Sequence[Field]) -> tuple[Column, ...]:
    """Return the columns of a log's fields; the inverse of `fields_of`."""
    return tuple(
        Column(
            f["name"],
            _type_from_json(f["type"]),
            str(f["metadata"].get("comment") or ""),
            number=_number(f["metadata"].get(_NUMBER)),
            aliases=tuple(str(f["metadata"].get(_ALIASES) or "").split()),
        )
        for f in fields
    )


def _metadata(column: Column) -> dict[str, str]:
    """Return a column's metadata: its comment, and the number and aliases that reveal renames."""
    kept = {"comment": column.comment, _ALIASES: " ".join(column.aliases)}
    if column.number is not None:
        kept[_NUMBER] = str(column.number)
    return {name: value for name, value in kept.items() if value}


def _number(text: object) -> int | None:
    return int(text) if isinstance(text, str) and text.isdigit() else None


def schema_string(fields: Sequence[Field]) -> str:
    """Return fields as the schema text of a log."""
    return json.dumps({"type": "struct", "fields": list(fields)}, separators=(",", ":"))


def fields_in(schema: str) -> list[Field]:
    """Parse the schema text of a log; the inverse of `schema_string`."""
    fields: list[Field] = json.loads(schema)["fields"]
    return fields


def merge_fields(have: Sequence[Field], want: Sequence[Field]) -> MergedFields:
    """Merge the batch's columns into the table's; the wider of two types wins.

    Raises ColumnConflictError for incompatible types.
    """
    merged, widened = _merge_structs(have, want, "")
    return MergedFields(merged, changed=merged != list(have), widened=widened)


def cut_to(merged: Sequence[Field], want: Sequence[Field]) -> list[Field]:
    """Return only the columns of `want`, with the types that they have in `merged`."""
    by_name = {f["name"]: f for f in merged}
    return [{**f, "type": _cut_type(by_name[f["name"]]["type"], f["type"])} for f in want]


def type_text(spelled: object) -> str:
    """Format a type for messages."""
    return spelled if isinstance(spelled, str) else json.dumps(spelled, separators=(",", ":"))


def _merge_structs(
    have: Sequence[Field], want: Sequence[Field], path: str
) -> tuple[list[Field], bool]:
    # Names that differ only in case are one column to most engines.
    wanted = {f["name"].lower(): f for f in want}
    merged, widened = [], False
    for field in have:
        new = wanted.pop(field["name"].lower(), None)
        if new is None:
            merged.append(field)
            continue
        where = f"{path}{field['name']}"
        if new["name"] != field["name"]:
            raise ColumnConflictError(where, field["name"], new["name"])
        spelled, wider = _merge_types(field["type"], new["type"], where)
        merged.append({**field, "type": spelled})
        widened |= wider
    return merged + list(wanted.values()), widened


def _merge_types(have: Any, want: Any, path: str) -> tuple[Any, bool]:
    if have == want:
        return have, False
    if isinstance(have, str) and isinstance(want, str):
        both = _wider(have, want)
        if both is None:
            raise ColumnConflictError(path, have, want)
        return both, both != have
    if isinstance(have, str) or isinstance(want, str) or have["type"] != want["type"]:
        raise ColumnConflictError(path, have, want)
    if have["type"] == "struct":
        fields, widened = _merge_structs(have["fields"], want["fields"], f"{path}.")
        return {**have, "fields": fields}, widened
    parts = ("elementType",) if have["type"] == "array" else ("keyType", "valueType")
    merged, widened = dict(have), False
    for part in parts:
        merged[part], wider_part = _merge_types(have[part], want[part], f"{path}.{part[:-4]}")
        widened |= wider_part
    return merged, widened


def _wider(have: str, want: str) -> str | None:
    both = wider(_type_from_json(have), _type_from_json(want))
    return None if both is None else str(_type_to_json(both))


def _cut_type(merged: Any, want: Any) -> Any:
    if isinstance(merged, str):
        return merged
    if merged["type"] == "struct":
        return {**want, "fields": cut_to(merged["fields"], want["fields"])}
    parts = ("elementType",) if merged["type"] == "array" else ("keyType", "valueType")
    return {**want, **{part: _cut_type(merged[part], want[part]) for part in parts}}


def _decimal(spelled: str) -> tuple[int, int]:
    precision, scale = spelled.removeprefix("decimal(").removesuffix(")").split(",")
    return int(precision), int(scale)


def _type_to_json(arrow: pa.DataType) -> Any:
    if arrow in _NAMES:
        return _NAMES[arrow]
    if pa.types.is_decimal128(arrow):
        return f"decimal({arrow.precision},{arrow.scale})"
    if pa.types.is_struct(arrow):
        fields = [Column(f.name, f.type, _comment(f)) for f in arrow]
        return {"type": "struct", "fields": fields_of(fields)}
    if pa.types.is_list(arrow):
        element = _type_to_json(arrow.value_type)
        return {"type": "array", "elementType": element, "containsNull": True}
    if pa.types.is_map(arrow):
        key, value = _type_to_json(arrow.key_type), _type_to_json(arrow.item_type)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    raise UnsupportedTypeError(f"a table cannot hold the type {arrow}")


def _type_from_json(spelled: Any) -> pa.DataType:
    if isinstance(spelled, str):
        if spelled in _PRIMITIVES:
            return _PRIMITIVES[spelled]
        if spelled.startswith("decimal("):
            return pa.decimal128(*_decimal(spelled))
    elif spelled["type"] == "struct":
        return pa.struct([pa.field(c.name, c.type) for c in columns_of(spelled["fields"])])
    elif spelled["type"] == "array":
        return pa.list_(_type_from_json(spelled["elementType"]))
    elif spelled["type"] == "map":
        key, value = spelled["keyType"], spelled["valueType"]
        return pa.map_(_type_from_json(key), _type_from_json(value))
    raise UnsupportedTypeError(f"the table has a column of the type {type_text(spelled)}")


def _comment(field: pa.Field) -> str:
    comment: bytes = (field.metadata or {}).get(b"comment", b"")
    return comment.decode("utf-8", "replace")
