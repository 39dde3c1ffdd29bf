"""Columns of Iceberg tables in the form in which columns are merged, and back to types with ids.

Merging works on Delta's JSON form of columns. Iceberg's columns have ids, which a commit must keep,
and the table's name mapping names the column of each name in the files, which carry no ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import MappedField, NameMapping
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from distributary.delta.column_merge import (
    ColumnConflictError,
    Field,
    UnsupportedTypeError,
    columns_of,
)
from distributary.model.table import Column

COLUMNS_PROPERTY = "distributary.columns"
"""The property that holds the metadata of columns which Iceberg has no place for."""
_PRIMITIVES: dict[str, IcebergType] = {
    "boolean": BooleanType(),
    "integer": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "string": StringType(),
    "binary": BinaryType(),
    "date": DateType(),
    "timestamp": TimestamptzType(),
    "timestamp_ntz": TimestampType(),
}
_NAMES = {str(kind): name for name, kind in _PRIMITIVES.items()}
_WIDER = {("integer", "long"), ("float", "double")}


def columns_in(metadata: TableMetadata) -> tuple[Column, ...]:
    """Return the columns of a table."""
    return columns_of(iceberg_fields(metadata))


def iceberg_fields(metadata: TableMetadata) -> list[Field]:
    """Return the columns of a table in Delta's JSON form."""
    kept: Any = {}
    with suppress(ValueError):
        kept = json.loads(metadata.properties.get(COLUMNS_PROPERTY) or "{}")
    fields = _struct_fields(metadata.schema().as_struct())
    return [{**f, "metadata": {**kept.get(f["name"], {}), **f["metadata"]}} for f in fields]


def kept_metadata(fields: Sequence[Field]) -> str:
    """Return as JSON the metadata of columns that Iceberg cannot hold: numbers and aliases."""
    metadata = {
        f["name"]: {key: value for key, value in f["metadata"].items() if key != "comment"}
        for f in fields
    }
    return json.dumps({name: value for name, value in metadata.items() if value})


def _struct_fields(struct: StructType) -> list[Field]:
    return [
        {
            "name": field.name,
            "type": _spelled(field.field_type),
            "nullable": True,
            "metadata": {"comment": field.doc} if field.doc else {},
        }
        for field in struct.fields
    ]


def _spelled(kind: IcebergType) -> Any:
    match kind:
        case StructType():
            return {"type": "struct", "fields": _struct_fields(kind)}
        case ListType():
            element = _spelled(kind.element_type)
            return {"type": "array", "elementType": element, "containsNull": True}
        case MapType():
            key, value = _spelled(kind.key_type), _spelled(kind.value_type)
            return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
        case DecimalType():
            return f"decimal({kind.precision},{kind.scale})"
    if str(kind) not in _NAMES:
        raise UnsupportedTypeError(f"the table has a column of the type {kind}")
    return _NAMES[str(kind)]


def grown_columns(
    have: StructType, fields: Sequence[Field], ids: Iterator[int], path: str = ""
) -> StructType:
    """Return the columns of a table after a commit; existing columns keep their ids."""
    existing = {field.name: field for field in have.fields}
    grown = []
    for field in fields:
        name, old = field["name"], existing.get(field["name"])
        number = next(ids) if old is None else old.field_id
        kind = _type(None if old is None else old.field_type, field["type"], ids, f"{path}{name}")
        doc = field["metadata"].get("comment") or None
        if old is None:
            grown.append(NestedField(number, name, kind, required=False, doc=doc))
        else:
            grown.append(old.model_copy(update={"field_type": kind}))
    return StructType(*grown)


def _type(have: IcebergType | None, spelled: Any, ids: Iterator[int], path: str) -> IcebergType:
    """Return the type of a column; a type becomes wider only where Iceberg allows it."""
    if isinstance(spelled, str):
        return _primitive(have, spelled, path)
    if spelled["type"] == "struct":
        struct = have if isinstance(have, StructType) else StructType()
        return grown_columns(struct, spelled["fields"], ids, f"{path}.")
    if spelled["type"] == "array":
        old = have if isinstance(have, ListType) else None
        number = old.element_id if old else next(ids)
        element = _type(old and old.element_type, spelled["elementType"], ids, f"{path}.element")
        return ListType(number, element, element_required=bool(old and old.element_required))
    before = have if isinstance(have, MapType) else None
    numbers = (before.key_id, before.value_id) if before else (next(ids), next(ids))
    key = _type(before and before.key_type, spelled["keyType"], ids, f"{path}.key")
    if before and key != before.key_type:
        raise ColumnConflictError(f"{path}.key", _spelled(before.key_type), spelled["keyType"])
    value = _type(before and before.value_type, spelled["valueType"], ids, f"{path}.value")
    required = bool(before and before.value_required)
    return MapType(numbers[0], key, numbers[1], value, value_required=required)


def _primitive(have: IcebergType | None, spelled: str, path: str) -> IcebergType:
    if spelled.startswith("decimal("):
        precision, scale = spelled.removeprefix("decimal(").removesuffix(")").split(",")
        kind: IcebergType = DecimalType(int(precision), int(scale))
    else:
        # Iceberg has no types for integers of one or two bytes.
        kind = _PRIMITIVES.get(spelled, _PRIMITIVES["integer"])
    if have is None or have == kind:
        return kind
    if isinstance(have, DecimalType) and isinstance(kind, DecimalType):
        if have.scale == kind.scale and have.precision <= kind.precision:
            return kind
    if (_spelled(have), spelled) not in _WIDER:
        raise ColumnConflictError(path, _spelled(have), spelled)
    return kind


def name_mapping(schema: Schema, before: NameMapping | None) -> str:
    """Return the name mapping after a commit: the names that columns have in files."""
    return NameMapping(_level(schema.fields, before.root if before else ())).model_dump_json()


def _level(fields: Sequence[NestedField], before: Sequence[MappedField]) -> list[MappedField]:
    """Return the name mapping of one level; renamed and dropped columns keep their old names.

    Otherwise readers would take older files' values under an old name for values of a new column.
    """
    mapped = {field.field_id: field for field in before}
    level = []
    for field in fields:
        old = mapped.pop(field.field_id, None)
        # A mapped field without fields inside is false, so compare with None.
        former, below = ((), ()) if old is None else (old.names, old.fields)
        names = list(dict.fromkeys([*former, field.name]))
        inner = _level(_inner(field.field_type), below)
        level.append(MappedField(**{"field-id": field.field_id}, names=names, fields=inner))
    level += mapped.values()
    taken: set[str] = set()
    for entry in level:
        for name in entry.names:
            if name in taken:
                raise ColumnConflictError(
                    name, "a renamed or dropped column of that name", "a new one"
                )
            taken.add(name)
    return level


def _inner(kind: IcebergType) -> Sequence[NestedField]:
    match kind:
        case StructType():
            return kind.fields
        case ListType():
            return (kind.element_field,)
        case MapType():
            return (kind.key_field, kind.value_field)
    return ()
