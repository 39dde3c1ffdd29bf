"""Compiles an Avro schema and its references into one self-contained text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from distributary.errors import InvalidSchemaError
from distributary.model.names import printable
from distributary.model.record import Compiled
from distributary.registry.compile import NO_IMPORTS
from distributary.registry.compile.avro_schema import (
    MAX_LEVELS,
    Array,
    AvroField,
    AvroRecord,
    Enum,
    Fixed,
    Logical,
    Map,
    Name,
    Named,
    Primitive,
    Schema,
    Type,
    Union,
    parse_avro,
    type_name,
)

_NULL = Primitive("null")


def compile_avro(text: str, *, imports: Mapping[str, str] = NO_IMPORTS) -> Compiled:
    """Compile a schema's JSON, with the texts of the schemas that it references, by full name."""
    schema = parse_avro(text, imports=imports)
    body = json.dumps(_Writer(schema).type(schema.top), separators=(",", ":"))
    return compiled(schema, body.encode("ascii"))


def compiled(schema: Schema, body: bytes) -> Compiled:
    """Return a schema in compiled form, with the text that decoders get."""
    messages = branch_records(schema) or (payload_name(schema),)
    return Compiled(body, next(filter(None, messages)), messages)


def branch_records(schema: Schema) -> tuple[str, ...] | None:
    """Return the records of a union at the top, empty for null; None for any other top."""
    if not isinstance(schema.top, Union):
        return None
    names = []
    for branch in schema.top.branches:
        if branch == _NULL:
            names.append("")
        elif isinstance(schema.resolve(branch), AvroRecord):
            names.append(type_name(branch))
        else:
            return None
    return tuple(names) if any(names) else None


def payload_name(schema: Schema) -> str:
    """Return the name of a schema's payloads."""
    top = schema.top
    if isinstance(top, Array) and isinstance(schema.resolve(top.items), AvroRecord):
        return type_name(top.items)
    return type_name(top)


class _Writer:
    """A writer of schemas that defines each named type at its first use, as Avro demands."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._written: set[str] = set()

    def type(self, type_: Type, space: str = "", level: int = 0) -> Any:
        if level > MAX_LEVELS:
            raise InvalidSchemaError(
                "an Avro schema nests too deep, including the schemas that it references",
                where=printable(type_name(type_)),
                evidence=f"more than {MAX_LEVELS} levels",
                next_step="ask the schema's author for fewer levels of records",
            )
        match type_:
            case Primitive(name, logical, connect):
                attributes = logical_words(logical)
                if connect is not None:
                    attributes["connect.name"] = connect.name
                    if connect.parameters:
                        attributes["connect.parameters"] = dict(connect.parameters)
                return {"type": name, **attributes} if attributes else name
            case Array(items):
                return {"type": "array", "items": self.type(items, space, level + 1)}
            case Map(values):
                return {"type": "map", "values": self.type(values, space, level + 1)}
            case Union(branches):
                return [self.type(branch, space, level + 1) for branch in branches]
            case Name(full) if full in self._written:
                # a name without a namespace could be read as a name of the namespace around it
                taken = space and "." not in full and f"{space}.{full}" in self._schema.named
                return f".{full}" if taken else full
            case Name(full):
                self._written.add(full)
                return self._named(self._schema.named[full], space, level)

    def _named(self, named: Named, around: str, level: int) -> dict[str, Any]:
        space, _, name = named.name.rpartition(".")
        written: dict[str, Any] = {"type": named.kind, "name": name}
        if space != around:
            written["namespace"] = space
        match named:
            case AvroRecord(fields=fields):
                written["fields"] = [self._field(field, space, level) for field in fields]
            case Enum(symbols=symbols, default=default):
                written["symbols"] = list(symbols)
                if default is not None:
                    written["default"] = default
            case Fixed(size=size, logical=logical):
                written |= {"size": size, **logical_words(logical)}
        return written | _aliases_and_doc(named)

    def _field(self, field: AvroField, space: str, level: int) -> dict[str, Any]:
        written = {"name": field.name, "type": self.type(field.type, space, level + 1)}
        if field.default is not None:
            written["default"] = json.loads(field.default)
        return written | _aliases_and_doc(field)


def _aliases_and_doc(definition: Named | AvroField) -> dict[str, Any]:
    attributes = {"aliases": list(definition.aliases), "doc": definition.doc}
    return {key: value for key, value in attributes.items() if value}


def logical_words(logical: Logical | None) -> dict[str, Any]:
    """Return a logical type as it is written in a schema's JSON."""
    if logical is None:
        return {}
    digits = {"precision": logical.precision, "scale": logical.scale}
    return {"logicalType": logical.name, **(digits if logical.name == "decimal" else {})}
