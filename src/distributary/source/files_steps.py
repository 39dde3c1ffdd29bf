"""Writes Python that steps over Avro data of one schema.

A handful of instructions a field, without a call where there need be none: several times faster
than decoding with a library. `p` is the position in the bytes `b`. Nothing from outside becomes
part of the text but numbers: of branches, and of sizes.
"""

from __future__ import annotations

from collections.abc import Callable

from distributary.registry.avro_model import (
    Array,
    Enum,
    Fixed,
    Map,
    Name,
    Primitive,
    Record,
    Schema,
    Type,
    Union,
)

NAMES = ("database", "schema", "table", "collection")
"""What `source_metadata` says about the table, as far as a source has it."""

_MOST_INDENTED = 12
_FIXED_SIZES = {"boolean": 1, "float": 4, "double": 8}
_TABLE = "source_metadata"
_TIME = "source_timestamp"


def takes_no_bytes(schema: Schema, type_: Type) -> bool:
    """Whether values of a type take no bytes: a count of them could be anything."""
    return _Sizes(schema).weightless(type_)


class _Sizes:
    """Tells which types take no bytes: a count of them could be anything."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._known: dict[str, bool] = {}

    def weightless(self, type_: Type) -> bool:
        match type_:
            case Primitive(name):
                return name == "null"
            case Name(full):
                if full not in self._known:
                    # a record that contains itself, and nothing else, has no data at all
                    self._known[full] = True
                    self._known[full] = self._named(full)
                return self._known[full]
        return False

    def _named(self, full: str) -> bool:
        match self._schema.named[full]:
            case Fixed(size=size):
                return size == 0
            case Record(fields=fields):
                return all(self.weightless(each.type) for each in fields)
        return False


class StepWriter:
    """Writes the functions for a schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._sizes = _Sizes(schema)
        self._shared = _used_often(schema)
        self._lines: list[str] = []
        self._functions: list[str] = []
        self._named: dict[str, str] = {}
        self._waiting: list[tuple[str, Type]] = []
        self.time_micros = False

    def text(self) -> str:
        """The module: `run` for the events of a block, and a function for each type used often.

        It needs `wide`, `block`, `items` and `Unfit`, for numbers of several bytes and for what
        cannot be.
        """
        empty = " = ".join(NAMES)
        self._add(0, "def run(b, p, count, ends, names, times):")
        self._add(1, "for _ in range(count):")
        self._add(2, f"{empty} = b''")
        self._add(2, "t = -1")
        self._top(2)
        self._add(2, f"ends(p); names(({', '.join(NAMES)})); times(t)")
        while self._waiting:
            name, type_ = self._waiting.pop()
            self._add(0, f"def {name}(b, p):")
            self._inline(type_, 1)
            self._add(1, "return p")
        return "\n".join(self._lines) + "\n"

    def _top(self, level: int) -> None:
        """The envelope, of which some fields are looked at."""
        top = self._schema.resolve(self._schema.top)
        if not isinstance(top, Record):
            self._inline(self._schema.top, level)
            return
        for field in top.fields:
            if field.name == _TIME:
                self._noted(field.type, level, "t", ("long",))
            elif field.name == _TABLE:
                self._metadata(field.type, level)
            else:
                self._type(field.type, level)

    def _metadata(self, type_: Type, level: int) -> None:
        if isinstance(type_, Union):
            self._branches(type_, level, self._metadata)
            return
        record = self._schema.resolve(type_)
        if not isinstance(record, Record):
            self._type(type_, level)
            return
        for field in record.fields:
            if field.name in NAMES:
                self._noted(field.type, level, field.name, ("string",))
            else:
                self._type(field.type, level)

    def _noted(self, type_: Type, level: int, variable: str, kinds: tuple[str, ...]) -> None:
        """A field that is kept, where it is of the kind that it should be."""
        if isinstance(type_, Union):
            self._branches(
                type_, level, lambda each, inner: self._noted(each, inner, variable, kinds)
            )
        elif isinstance(type_, Primitive) and type_.name in kinds:
            if type_.name == "long":
                self.time_micros = bool(type_.logical and type_.logical.name.endswith("micros"))
                self._add(level, f"{variable} = p")
                self._type(type_, level)
            else:
                self._length(level)
                self._add(level, f"{variable} = b[p:p + x]")
                self._add(level, "p += x")
        else:
            self._type(type_, level)

    def _type(self, type_: Type, level: int) -> None:
        """Step over a value; what is deep or used often is a function of its own."""
        often = isinstance(type_, Name) and type_.full in self._shared
        if not often and level < _MOST_INDENTED:
            self._inline(type_, level)
            return
        key = type_.full if isinstance(type_, Name) else ""
        name = self._named.get(key) if key else None
        if name is None:
            name = f"f{len(self._functions)}"
            self._functions.append(name)
            self._waiting.append((name, type_))
            if key:
                self._named[key] = name
        self._add(level, f"p = {name}(b, p)")

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
            case Record(fields=fields):
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
        self._add(level, "else: raise Unfit('a union has no branch of this number')")

    def _blocks(self, items: Type, level: int, *, keyed: bool) -> None:
        weightless = not keyed and self._sizes.weightless(items)
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
    """Names that stand at more than one place: written out at each of them, they could explode."""
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
                if isinstance(named, Record):
                    waiting += [field.type for field in named.fields]
    return often
