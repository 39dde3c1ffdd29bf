"""Compiles an Avro schema and what it refers to into one text that stands for itself."""

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
    Enum,
    Field,
    Fixed,
    Logical,
    Map,
    Name,
    Named,
    Primitive,
    Record,
    Schema,
    Type,
    Union,
    parse_avro,
    type_name,
)

_NULL = Primitive("null")


def compile_avro(text: str, *, imports: Mapping[str, str] = NO_IMPORTS) -> Compiled:
    """Compile a schema's JSON with the texts of the schemas it refers to, by full name."""
    schema = parse_avro(text, imports=imports)
    body = json.dumps(_Writer(schema).type(schema.top), separators=(",", ":"))
    return compiled(schema, body.encode("ascii"))


def compiled(schema: Schema, body: bytes) -> Compiled:
    """A schema with the text that decoders are to be given for it."""
    messages = branch_records(schema) or (payload_name(schema),)
    return Compiled(body, next(filter(None, messages)), messages)


def branch_records(schema: Schema) -> tuple[str, ...] | None:
    """The records of a union at the top, empty for null; None when the top is anything else."""
    if not isinstance(schema.top, Union):
        return None
    names = []
    for branch in schema.top.branches:
        if branch == _NULL:
            names.append("")
        elif isinstance(schema.resolve(branch), Record):
            names.append(type_name(branch))
        else:
            return None
    return tuple(names) if any(names) else None


def payload_name(schema: Schema) -> str:
    """A name for what a payload holds."""
    top = schema.top
    if isinstance(top, Array) and isinstance(schema.resolve(top.items), Record):
        return type_name(top.items)
    return type_name(top)


class _Writer:
    """Definitions go where a name is used first, as Avro wants them."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._written: set[str] = set()

    def type(self, type_: Type, space: str = "", level: int = 0) -> Any:
        if level > MAX_LEVELS:
            raise InvalidSchemaError(
                "an Avro schema nests too deep with the schemas that it refers to",
                where=printable(type_name(type_)),
                evidence=f"more than {MAX_LEVELS} levels",
                next_step="ask the schema's author for fewer levels of records",
            )
        match type_:
            case Primitive(name, logical, connect):
                told = logical_words(logical)
                if connect is not None:
                    told["connect.name"] = connect.name
                    if connect.parameters:
                        told["connect.parameters"] = dict(connect.parameters)
                return {"type": name, **told} if told else name
            case Array(items):
                return {"type": "array", "items": self.type(items, space, level + 1)}
            case Map(values):
                return {"type": "map", "values": self.type(values, space, level + 1)}
            case Union(branches):
                return [self.type(each, space, level + 1) for each in branches]
            case Name(full) if full in self._written:
                # a name without a namespace could be taken for one of the namespace around it
                taken = space and "." not in full and f"{space}.{full}" in self._schema.named
                return f".{full}" if taken else full
            case Name(full):
                self._written.add(full)
                return self._named(self._schema.named[full], space, level)

    def _named(self, named: Named, around: str, level: int) -> dict[str, Any]:
        space, _, name = named.name.rpartition(".")
        written: dict[str, Any] = {"type": type(named).__name__.lower(), "name": name}
        if space != around:
            written["namespace"] = space
        match named:
            case Record(fields=fields):
                written["fields"] = [self._field(each, space, level) for each in fields]
            case Enum(symbols=symbols, default=default):
                written["symbols"] = list(symbols)
                if default is not None:
                    written["default"] = default
            case Fixed(size=size, logical=logical):
                written |= {"size": size, **logical_words(logical)}
        return written | _told(named)

    def _field(self, field: Field, space: str, level: int) -> dict[str, Any]:
        written = {"name": field.name, "type": self.type(field.type, space, level + 1)}
        if field.default is not None:
            written["default"] = json.loads(field.default)
        return written | _told(field)


def _told(about: Named | Field) -> dict[str, Any]:
    told = {"aliases": list(about.aliases), "doc": about.doc}
    return {key: value for key, value in told.items() if value}


def logical_words(logical: Logical | None) -> dict[str, Any]:
    """A logical type as it stands in a schema's JSON."""
    if logical is None:
        return {}
    digits = {"precision": logical.precision, "scale": logical.scale}
    return {"logicalType": logical.name, **(digits if logical.name == "decimal" else {})}
