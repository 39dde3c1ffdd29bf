"""An Avro payload for human eyes, as far as it can be read."""

from __future__ import annotations

import json
from typing import cast

from distributary.decode.avro_payload import open_schema
from distributary.decode.avro_plan import flat_record, flat_type
from distributary.decode.avro_shape import Kind, Value
from distributary.decode.avro_values import as_json, read_leaf
from distributary.decode.avro_wire import Cursor, StoppedAtError
from distributary.errors import DecodeError
from distributary.registry.avro_model import Record, Schema

MAX_CHARACTERS = 200_000
"""A longer text is cut; a person reads the beginning."""
MAX_LEVELS = 100


class _FullError(Exception):
    """There is more than a person reads."""


def best_effort_text(body: bytes | None, message: str, payload: bytes) -> str:
    """The payload value by value, up to the byte that is wrong.

    Args:
        body: The compiled schema, where there is one that can be used.
        message: The full name of the payload's type.
        payload: The bytes, whatever they are.

    Returns:
        Printable text; everything else in it is escaped.
    """
    try:
        schema = None if body is None else open_schema(body, message)
    except DecodeError:
        schema = None
    if schema is None:
        return f"# {len(payload)} bytes of Avro, which say nothing without their schema\n"
    dump = _Dump(schema, payload)
    try:
        dump.all()
    except _FullError:
        dump.lines.append("# and more")
    except RecursionError:
        dump.lines.append(f"# nests too deep from byte {dump.cursor.position}")
    except StoppedAtError as stopped:
        dump.lines.append(f"# stops to make sense at byte {stopped.position}: {stopped.reason}")
    text = "".join(f"{line}\n" for line in dump.lines)
    return "".join(c if c == "\n" or c.isprintable() else ascii(c)[1:-1] for c in text)


class _Dump:
    """One line per value, with the name of its field."""

    def __init__(self, schema: Schema, payload: bytes) -> None:
        self._schema = schema
        self.cursor = Cursor(payload, MAX_LEVELS)
        self.lines: list[str] = []
        self._characters = 0
        self._records: dict[str, Value] = {}

    def all(self) -> None:
        """Write everything."""
        self._value("", flat_type(self._schema, self._schema.top))
        self.cursor.finish()

    def _value(self, name: str, value: Value) -> None:
        match value.kind:
            case Kind.TEXT:
                self._value(name, self._record(value.name))
            case Kind.STRUCT | Kind.EMPTY:
                self._open(name, "{")
                for member in value.members:
                    self._value(f"{member.name}: ", member.value)
                self._close("}")
            case Kind.UNION:
                branch = value.branches[self.cursor.index(len(value.branches), "branch")]
                tag = "" if value.plain or branch.value.void else f"({branch.member}) "
                self._value(name + tag, branch.value)
            case Kind.LIST | Kind.MAP if value.item is not None:
                self._items(name, value.item, keyed=value.kind is Kind.MAP)
            case kind:
                content = read_leaf(value)(self.cursor)
                convert = as_json(kind)
                self._line(name + _json(content if convert is None else convert(content)))

    def _record(self, name: str) -> Value:
        if name not in self._records:
            record = cast(Record, self._schema.named[name])
            self._records[name] = flat_record(self._schema, record)
        return self._records[name]

    def _items(self, name: str, item: Value, *, keyed: bool) -> None:
        self._open(name, "{" if keyed else "[")
        while count := self.cursor.block():
            for _ in range(count):
                before = self.cursor.position
                self._value(f"{_json(self.cursor.text())}: " if keyed else "", item)
                if self.cursor.position == before:
                    self.cursor.nothing(1)
        self._close("}" if keyed else "]")

    def _open(self, name: str, bracket: str) -> None:
        self._line(name + bracket)
        self.cursor.down()

    def _close(self, bracket: str) -> None:
        self.cursor.up()
        self._line(bracket)

    def _line(self, text: str) -> None:
        line = "  " * self.cursor.level + text
        room = MAX_CHARACTERS - self._characters
        self.lines.append(line[:room])
        self._characters += len(line) + 1
        if self._characters > MAX_CHARACTERS:
            raise _FullError


def _json(content: object) -> str:
    return json.dumps(content, ensure_ascii=False)
