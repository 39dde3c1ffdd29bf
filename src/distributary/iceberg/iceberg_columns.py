"""The columns of a Delta table as an Iceberg schema: field ids, name mapping, partitions.

Data files carry no field ids. Delta finds the columns of a file by their names, so the name mapping
of the mirror has the names of the current columns and no older ones: both formats then read the
same values. A column keeps its id as long as it keeps its name and a type that Iceberg can widen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import count
from typing import Any

from distributary.delta.column_merge import (
    ColumnConflictError,
    Field,
    UnsupportedTypeError,
    type_text,
)

_SMALL = ("byte", "short")
_PRIMITIVES = {
    "boolean": "boolean",
    # Iceberg has no types for integers of one or two bytes.
    "byte": "int",
    "short": "int",
    "integer": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}
_SPELLED = {type_: spelled for spelled, type_ in _PRIMITIVES.items() if spelled not in _SMALL}
_PARTITION_TYPES = {
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "string": "string",
    "date": {"type": "int", "logicalType": "date"},
}
"""The types of partition columns, with the Avro types of their values in manifests."""
_WIDER = {("int", "long"), ("float", "double")}
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")
_FIRST_PARTITION_ID = 1000
"""The number of the first partition field, by Iceberg's convention."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Partitioning:
    """The partition columns of a table, in Iceberg's words."""

    names: tuple[str, ...] = ()
    """The names of the columns."""
    keys: tuple[str, ...] = ()
    """The names of the same fields in manifests, where Avro allows fewer characters."""
    types: tuple[str, ...] = ()

    def values(self, spelled: Mapping[str, str | None]) -> dict[str, Any]:
        """Return the values of a file's partition, as a manifest has them."""
        texts = (spelled.get(name) for name in self.names)
        return {
            key: _partition_value(type_, text)
            for key, type_, text in zip(self.keys, self.types, texts, strict=True)
        }

    def avro(self) -> list[Json]:
        """Return the fields of a partition in the Avro schema of a manifest."""
        return [
            {
                "name": key,
                "type": ["null", _PARTITION_TYPES[type_]],
                "default": None,
                "field-id": number,
            }
            for number, key, type_ in zip(
                count(_FIRST_PARTITION_ID), self.keys, self.types, strict=False
            )
        ]


def partitioning(schema: Json, names: Sequence[str]) -> Partitioning:
    """Return the partitioning by some columns of a schema. Raises UnsupportedTypeError."""
    types = {field["name"]: field["type"] for field in schema["fields"]}
    for name in names:
        if not isinstance(types.get(name), str) or types[name] not in _PARTITION_TYPES:
            raise UnsupportedTypeError(
                f"the table is partitioned by {name}, of the type {type_text(types.get(name))}"
            )
    keys = tuple(_avro_name(name) for name in names)
    return Partitioning(tuple(names), keys, tuple(types[name] for name in names))


def partition_fields(schema: Json, parts: Partitioning) -> list[Json]:
    """Return the fields of the partition spec of a table."""
    ids = {field["name"]: field["id"] for field in schema["fields"]}
    return [
        {"name": name, "transform": "identity", "source-id": ids[name], "field-id": number}
        for number, name in zip(count(_FIRST_PARTITION_ID), parts.names, strict=False)
    ]


def _avro_name(name: str) -> str:
    """Convert a name to one that Avro allows, as Iceberg's own code does."""
    plain = re.sub(r"[^A-Za-z0-9_]", lambda match: f"_x{ord(match[0]):X}", name)
    return f"_{plain}" if plain[:1].isdigit() else plain


def _partition_value(type_: str, text: str | None) -> Any:
    # Delta writes the empty text and null alike.
    if text is None or text == "":
        return None
    match type_:
        case "int" | "long":
            return int(text)
        case "boolean":
            return text.lower() == "true"
        case "date":
            return date.fromisoformat(text)
    return text


# The schema, with the ids of the schema before it.


def iceberg_schema(fields: Sequence[Field], before: Json | None, last_id: int) -> tuple[Json, int]:
    """Return the columns of a Delta log as an Iceberg schema, and the highest id in use.

    Columns of the schema `before` keep their ids; new ones get ids above `last_id`. Raises
    ColumnConflictError for a type that Iceberg cannot widen, and UnsupportedTypeError.
    """
    ids = count(last_id + 1)
    grown = _struct(fields, (before or {}).get("fields", ()), ids, "")
    return grown, next(ids) - 1


def delta_fields(struct: Json) -> list[Field]:
    """Return the columns of an Iceberg schema in Delta's form. Raises UnsupportedTypeError."""
    fields = []
    for field in struct["fields"]:
        if field.get("required"):
            raise UnsupportedTypeError(f"the column {field['name']} is required")
        metadata = {"comment": field["doc"]} if field.get("doc") else {}
        spelled = _delta_type(field["type"])
        one = {"name": field["name"], "type": spelled, "nullable": True, "metadata": metadata}
        fields.append(one)
    return fields


def _delta_type(type_: Any) -> Any:
    match type_:
        case {"type": "struct"}:
            return {"type": "struct", "fields": delta_fields(type_)}
        case {"type": "list"}:
            element = _delta_type(type_["element"])
            return {"type": "array", "elementType": element, "containsNull": True}
        case {"type": "map"}:
            key, value = _delta_type(type_["key"]), _delta_type(type_["value"])
            return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
        case str() if match := _DECIMAL.fullmatch(type_):
            return f"decimal({match[1]},{match[2]})"
        case str() if type_ in _SPELLED:
            return _SPELLED[type_]
    raise UnsupportedTypeError(f"the table has a column of the type {type_text(type_)}")


def name_mapping(schema: Json) -> str:
    """Return the name mapping as text: the name that a column id has in files."""
    return json.dumps(_mapped(schema), separators=(",", ":"))


def _mapped(type_: Any) -> list[Json]:
    match type_:
        case {"type": "struct", "fields": fields}:
            parts = [(f["id"], f["name"], f["type"]) for f in fields]
        case {"type": "list"}:
            parts = [(type_["element-id"], "element", type_["element"])]
        case {"type": "map"}:
            parts = [
                (type_["key-id"], "key", type_["key"]),
                (type_["value-id"], "value", type_["value"]),
            ]
        case _:
            return []
    return [
        {"field-id": number, "names": [name]} | ({"fields": below} if below else {})
        for number, name, below in ((number, name, _mapped(inner)) for number, name, inner in parts)
    ]


def _struct(fields: Sequence[Field], before: Sequence[Json], ids: Iterator[int], path: str) -> Json:
    existing = {field["name"]: field for field in before}
    grown = []
    for field in fields:
        name, old = field["name"], existing.get(field["name"])
        number = next(ids) if old is None else old["id"]
        type_ = _type(field["type"], None if old is None else old["type"], ids, f"{path}{name}")
        comment = (field.get("metadata") or {}).get("comment")
        doc = {"doc": str(comment)} if comment else {}
        grown.append({"id": number, "name": name, "required": False, "type": type_, **doc})
    return {"type": "struct", "fields": grown}


def _type(spelled: Any, before: Any, ids: Iterator[int], path: str) -> Any:
    if isinstance(spelled, str):
        return _primitive(spelled, before, path)
    if not isinstance(spelled, dict):
        raise UnsupportedTypeError(f"the table has a column of the type {type_text(spelled)}")
    kinds = {"struct": "struct", "array": "list", "map": "map"}
    kind = kinds.get(spelled.get("type", ""))
    if kind is None:
        raise UnsupportedTypeError(f"the table has a column of the type {type_text(spelled)}")
    if before is not None and (isinstance(before, str) or before["type"] != kind):
        raise ColumnConflictError(path, before, spelled)
    old = before or {}
    if kind == "struct":
        return _struct(spelled["fields"], old.get("fields", ()), ids, f"{path}.")
    if kind == "list":
        number = old.get("element-id") or next(ids)
        element = _type(spelled["elementType"], old.get("element"), ids, f"{path}.element")
        return {
            "type": "list",
            "element-id": number,
            "element": element,
            "element-required": False,
        }
    numbers = old.get("key-id") or next(ids), old.get("value-id") or next(ids)
    key = _type(spelled["keyType"], old.get("key"), ids, f"{path}.key")
    if old and key != old["key"]:
        # Iceberg's keys never change.
        raise ColumnConflictError(f"{path}.key", old["key"], spelled["keyType"])
    value = _type(spelled["valueType"], old.get("value"), ids, f"{path}.value")
    return {
        "type": "map",
        "key-id": numbers[0],
        "key": key,
        "value-id": numbers[1],
        "value": value,
        "value-required": False,
    }


def _primitive(spelled: str, before: Any, path: str) -> str:
    if match := _DECIMAL.fullmatch(spelled):
        type_ = f"decimal({match[1]}, {match[2]})"
    elif spelled in _PRIMITIVES:
        type_ = _PRIMITIVES[spelled]
    else:
        raise UnsupportedTypeError(f"the table has a column of the type {spelled}")
    if before is not None and before != type_ and not _widens(before, type_):
        raise ColumnConflictError(path, before, type_)
    return type_


def _widens(before: Any, type_: str) -> bool:
    """Return whether Iceberg can widen a column from one type to the other."""
    if not isinstance(before, str):
        return False
    old, new = _DECIMAL.fullmatch(before), _DECIMAL.fullmatch(type_)
    if old and new:
        return old[2] == new[2] and int(old[1]) <= int(new[1])
    return (before, type_) in _WIDER
