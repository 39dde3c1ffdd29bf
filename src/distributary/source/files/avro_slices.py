"""The cutting of a block of Avro data into its events, without decoding them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from distributary.errors import DecodeError
from distributary.registry.compile.avro_schema import (
    Array,
    AvroRecord,
    Enum,
    Fixed,
    Map,
    Name,
    Primitive,
    Schema,
    Type,
    Union,
    parse_avro,
)
from distributary.registry.frames import read_varint
from distributary.source.files.file_bytes import (
    NAMES,
)

# Generation of Python code that steps over Avro data of one schema.
# The code has a handful of instructions per field, and few calls: 4 us an event, where a closure
# for each type takes 9 and decoding with a library 19, by turns. A run spends 11 to 14 on an event.
# `p` is the position in the bytes `b`. Only numbers from outside become part of the code: of
# branches, and of sizes.

_MOST_INDENTED = 12
_FIXED_SIZES = {"boolean": 1, "float": 4, "double": 8}
_TABLE = "source_metadata"
_TIME = "source_timestamp"


def _takes_no_bytes(schema: Schema, type_: Type, known: dict[str, bool]) -> bool:
    """Return whether values of a type take no bytes: then a count of them could be anything.

    The results for named types are added to `known`.
    """
    match type_:
        case Primitive(name):
            return name == "null"
        case Name(full) if full not in known:
            # A record that contains nothing but itself has no data at all.
            known[full] = True
            match schema.named[full]:
                case Fixed(size=size):
                    known[full] = size == 0
                case AvroRecord(fields=fields):
                    known[full] = all(_takes_no_bytes(schema, f.type, known) for f in fields)
                case _:
                    known[full] = False
            return known[full]
        case Name(full):
            return known[full]
    return False


class _StepWriter:
    """A generator of the functions for a schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._weightless: dict[str, bool] = {}
        self._shared = _used_often(schema)
        self._lines: list[str] = []
        self._named: dict[str | int, str] = {}
        self._waiting: list[tuple[str, Type]] = []
        self.time_micros = False

    def text(self) -> str:
        """Generate the module: `run` for the events of a block, and a function per shared type.

        It needs `wide`, `block` and `items`, for numbers of several bytes and for invalid ones.
        """
        empty = " = ".join(NAMES)
        self._add(0, "def run(b, p, count, ends, names, times):")
        self._add(1, "for _ in range(count):")
        self._add(2, f"{empty} = b''")
        self._add(2, "t = -1")
        self._envelope(2)
        self._add(2, f"ends(p); names(({', '.join(NAMES)})); times(t)")
        while self._waiting:
            name, type_ = self._waiting.pop()
            self._add(0, f"def {name}(b, p):")
            self._inline(type_, 1)
            self._add(1, "return p")
        return "\n".join(self._lines) + "\n"

    def _envelope(self, level: int) -> None:
        """Generate the steps over the envelope, of which some fields are kept."""
        record = self._schema.resolve(self._schema.top)
        if not isinstance(record, AvroRecord):
            self._inline(self._schema.top, level)
            return
        for field in record.fields:
            if field.name == _TIME:
                self._noted(field.type, level, "t", "long")
            elif field.name == _TABLE:
                self._metadata(field.type, level)
            else:
                self._type(field.type, level)

    def _metadata(self, type_: Type, level: int) -> None:
        if isinstance(type_, Union):
            self._branches(type_, level, self._metadata)
            return
        record = self._schema.resolve(type_)
        if not isinstance(record, AvroRecord):
            self._type(type_, level)
            return
        for field in record.fields:
            if field.name in NAMES:
                self._noted(field.type, level, field.name, "string")
            else:
                self._type(field.type, level)

    def _noted(self, type_: Type, level: int, variable: str, kind: str) -> None:
        """Generate the step over a field that is kept if it has the expected type."""
        match type_:
            case Union():
                self._branches(type_, level, partial(self._noted, variable=variable, kind=kind))
            case Primitive("long") if kind == "long":
                self.time_micros = bool(type_.logical and type_.logical.name.endswith("micros"))
                self._add(level, f"{variable} = p")
                self._type(type_, level)
            case Primitive("string") if kind == "string":
                self._length(level)
                self._add(level, f"{variable} = b[p:p + x]")
                self._add(level, "p += x")
            case _:
                self._type(type_, level)

    def _type(self, type_: Type, level: int) -> None:
        """Generate the step over a value; deep or shared types get their own function."""
        often = isinstance(type_, Name) and type_.full in self._shared
        if not often and level < _MOST_INDENTED:
            self._inline(type_, level)
            return
        key = type_.full if isinstance(type_, Name) else id(type_)
        if key not in self._named:
            self._named[key] = f"f{len(self._named)}"
            self._waiting.append((self._named[key], type_))
        self._add(level, f"p = {self._named[key]}(b, p)")

    def _inline(self, type_: Type, level: int) -> None:
        match type_:
            case Primitive(name):
                self._primitive(name, level)
            case Array(items):
                self._blocks(items, level, keyed=False)
            case Map(values):
                self._blocks(values, level, keyed=True)
            case Union():
                self._branches(type_, level, self._type)
            case Name(full):
                self._definition(full, level)

    def _definition(self, full: str, level: int) -> None:
        match self._schema.named[full]:
            case Enum():
                self._primitive("long", level)
            case Fixed(size=size):
                self._add(level, f"p += {size}")
            case AvroRecord(fields=fields):
                self._add(level, "pass")
                for field in fields:
                    self._type(field.type, level)

    def _primitive(self, name: str, level: int) -> None:
        if name in ("int", "long"):
            self._add(level, "while b[p] > 127: p += 1")
            self._add(level, "p += 1")
        elif name in ("string", "bytes"):
            self._length(level)
            self._add(level, "p += x")
        else:
            self._add(level, f"p += {_FIXED_SIZES.get(name, 0)}")

    def _length(self, level: int) -> None:
        self._add(level, "x = b[p]; p += 1")
        self._add(level, "if x & 129: x, p = wide(b, p)")
        self._add(level, "else: x >>= 1")

    def _branches(self, union: Union, level: int, write: Callable[[Type, int], None]) -> None:
        self._length(level)
        for number, branch in enumerate(union.branches):
            self._add(level, f"{'elif' if number else 'if'} x == {number}:")
            write(branch, level + 1)
        self._add(level, "else: raise ValueError('a union has no branch of this number')")

    def _blocks(self, items: Type, level: int, *, keyed: bool) -> None:
        weightless = not keyed and _takes_no_bytes(self._schema, items, self._weightless)
        self._add(level, "while True:")
        self._add(level + 1, "n = b[p]; p += 1")
        self._add(level + 1, f"if n & 129: n, p = {'block' if weightless else 'items'}(b, p)")
        self._add(level + 1, "else: n >>= 1")
        self._add(level + 1, "if not n: break")
        if weightless:
            return
        self._add(level + 1, "for _ in range(n):")
        if keyed:
            self._primitive("string", level + 2)
        self._type(items, level + 2)

    def _add(self, level: int, line: str) -> None:
        self._lines.append("  " * level + line)


def _used_often(schema: Schema) -> set[str]:
    """Return the names that occur more than once: repeating their code could explode."""
    seen: set[str] = set()
    often: set[str] = set()
    waiting: list[Type] = [schema.top]
    while waiting:
        match waiting.pop():
            case Array(inner) | Map(inner):
                waiting.append(inner)
            case Union(branches):
                waiting += branches
            case Name(full) if full in seen:
                often.add(full)
            case Name(full):
                seen.add(full)
                named = schema.named[full]
                if isinstance(named, AvroRecord):
                    waiting += [field.type for field in named.fields]
    return often


# Cutting of a block of Avro data into its events, without decoding them.
# Avro does not store the length of a record: to find its end, every field must be stepped over, by
# the function that `_StepWriter` generates. On its way it notes the names of the source table and
# the source's time.


@dataclass(slots=True)
class Slices:
    """The ends of events in a block, with the tables and times they name, in order."""

    start: int
    """The start of the first event."""

    ends: list[int]
    names: list[tuple[bytes, ...]]
    """For each event, the bytes of NAMES; empty for a missing name."""
    times: list[int]
    """For each event, the start of its time; -1 if it has none."""
    time_micros: bool
    """True if times are microseconds, not milliseconds."""
    fault: str = ""
    """The reason why the rest could not be cut."""

    @property
    def end(self) -> int:
        """Return the end of the last event."""
        return self.ends[-1] if self.ends else self.start


class Slicer:
    """A function that cuts data of one schema into events."""

    def __init__(self, schema: Schema) -> None:
        if _takes_no_bytes(schema, schema.top, {}):
            raise DecodeError("events of this schema take no bytes, so that they cannot be counted")
        writer = _StepWriter(schema)
        names: dict[str, Any] = {"wide": _wide, "block": _cut_block, "items": _items}
        # The code is our own: of a schema it only contains the numbers of branches and sizes.
        exec(compile(writer.text(), "<slices>", "exec"), names)  # noqa: S102
        self._run: Callable[..., None] = names["run"]
        self._time_micros = writer.time_micros

    def __call__(self, data: bytes, count: int, *, start: int = 0, last: bool = True) -> Slices:
        """Cut `count` events, or as many as are valid."""
        cut = Slices(start, [], [], [], self._time_micros)
        try:
            self._run(data, start, count, cut.ends.append, cut.names.append, cut.times.append)
        except IndexError:
            cut.fault = "the data end inside of an event"
        except RecursionError:
            cut.fault = "an event nests deeper than the interpreter can follow"
        except ValueError as error:
            cut.fault = str(error)
        within = bisect_right(cut.ends, len(data))
        if within < len(cut.ends):
            # A length that leads behind the end is only noticed where something is read there.
            for column in (cut.ends, cut.names, cut.times):
                del column[within:]
            cut.fault = "the data end inside of an event"
        left = len(data) - cut.end
        if last and not cut.fault and left:
            cut.fault = f"{left} bytes are left after the last event"
        return cut


@lru_cache(maxsize=512)
def slicer_for(text: str) -> Slicer:
    """Return the slicer of a schema's text.

    Raises:
        InvalidSchemaError: The text is no Avro schema.
        DecodeError: The schema's data cannot be cut.
    """
    return Slicer(parse_avro(text, datastream=True))


def _wide(data: bytes, position: int) -> tuple[int, int]:
    """Read a length whose first byte has been read; return it and the position after it."""
    value, position = read_varint(data, position - 1)
    if value & 1:
        raise ValueError("a length or an index is negative")
    return value >> 1, position


def _cut_block(data: bytes, position: int) -> tuple[int, int]:
    """Read the number of items of a block; return it and the position after the block's size."""
    value, position = read_varint(data, position - 1)
    if not value & 1:
        return value >> 1, position
    _, position = read_varint(data, position)
    return (value >> 1) + 1, position


def _items(data: bytes, position: int) -> tuple[int, int]:
    """Read a number of items that take bytes, and check that the data can hold them."""
    count, position = _cut_block(data, position)
    if count > len(data):
        raise ValueError("an array has more items than bytes")
    return count, position
