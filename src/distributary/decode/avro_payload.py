"""What a payload of a schema is: a record, a branch of a union, an array of rows, or one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from distributary.decode.avro_plan import plan_record, plan_type
from distributary.decode.avro_shape import Kind, Value
from distributary.errors import DecodeError, InvalidSchemaError
from distributary.model.table import Column, Origin
from distributary.registry.avro import branch_records, payload_name
from distributary.registry.avro_model import Array, Primitive, Record, Schema
from distributary.registry.avro_parse import parse_avro
from distributary.registry.hostile import printable


@dataclass(frozen=True, slots=True)
class Payload:
    """How the bytes of a payload become rows."""

    schema: Schema
    row: Value
    """A struct; the columns are its members."""
    listed: bool
    """The payload is an array of rows."""
    branches: tuple[str, ...] = ()
    """Of a union at the top: the records by number, empty for null."""
    branch: int | None = None
    """Of a union at the top: the number that stands before the row."""
    blocks: bool = False
    """There are arrays or maps in it."""
    columns: tuple[Column, ...] = ()

    @property
    def bytes_at_the_top(self) -> bool:
        """Whether a payload is nothing but bytes, of any logical type."""
        return isinstance(self.schema.top, Primitive) and self.schema.top.name == "bytes"


def plan_payload(body: bytes, message: str, *, recursion_depth: int) -> Payload:
    """Plan the payloads of a compiled schema.

    Raises:
        DecodeError: When the schema cannot be used, or has no such message.
    """
    schema = open_schema(body, message)
    listed, type_ = False, schema.top
    branches = branch_records(schema) or ()
    branch = branches.index(message) if message and message in branches else None
    known = branch is not None if branches else message == payload_name(schema)
    if not known:
        raise DecodeError(
            "the schema does not define this message",
            where=f"message {printable(message)!r}",
            evidence=f"it defines {', '.join(filter(None, branches)) or payload_name(schema)}",
            next_step="compare the message name with the schema's text",
        )
    if branch is not None:
        record: Record | None = cast(Record, schema.named[message])
    else:
        if isinstance(type_, Array):
            listed, type_ = True, type_.items
        resolved = schema.resolve(type_)
        record = resolved if isinstance(resolved, Record) else None
    if record is not None:
        row = plan_record(schema, record, recursion_depth=recursion_depth)
    else:
        label = f"{'item' if listed else 'value'} of the schema"
        row = plan_type(schema, type_, recursion_depth=recursion_depth, label=label)
    return Payload(
        schema=schema,
        row=row,
        listed=listed,
        branches=branches,
        branch=branch,
        blocks=listed or _has_blocks(row),
        columns=_columns(row),
    )


def open_schema(body: bytes, message: str) -> Schema:
    """Parse a compiled schema again."""
    try:
        return parse_avro(body.decode())
    except (InvalidSchemaError, UnicodeDecodeError) as error:
        raise DecodeError(
            "the compiled schema is not usable Avro",
            where=f"message {printable(message)!r}",
            evidence=error.what if isinstance(error, InvalidSchemaError) else "not UTF-8",
            next_step="look at the schema in the registry",
        ) from error


def _columns(row: Value) -> tuple[Column, ...]:
    return tuple(
        Column(
            m.name,
            m.value.type,
            comment="; ".join(filter(None, (f"field {m.label}", m.note))),
            aliases=m.aliases,
            origin=Origin(m.label if "." in m.label else m.name),
        )
        for m in row.shown
    )


def _has_blocks(value: Value) -> bool:
    if value.kind in (Kind.LIST, Kind.MAP):
        return True
    below = [m.value for m in value.members] + [b.value for b in value.branches]
    return any(map(_has_blocks, below))
