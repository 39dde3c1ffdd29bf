"""An Avro schema as data: every named type once, and references to them by full name."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import log10
from typing import Any, NoReturn

from distributary.errors import InvalidSchemaError
from distributary.model.names import printable

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")


@dataclass(frozen=True, slots=True)
class Logical:
    """A logical type on a type that it may annotate; all others are dropped when a text is read."""

    name: str
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True)
class Connect:
    """What Kafka Connect, which knows more types than Avro, means by a primitive type."""

    name: str
    """`io.debezium.time.Date`."""
    parameters: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Primitive:
    """One of the eight primitive types."""

    name: str
    logical: Logical | None = None
    connect: Connect | None = None
    meaning: str = ""
    """The logical type as Datastream wrote it, also one that Avro does not know."""


@dataclass(frozen=True, slots=True)
class Name:
    """A record, an enum or a fixed, which the schema defines elsewhere."""

    full: str


@dataclass(frozen=True, slots=True)
class Array:
    """A list of items."""

    items: Type


@dataclass(frozen=True, slots=True)
class Map:
    """Values by string keys."""

    values: Type


@dataclass(frozen=True, slots=True)
class Union:
    """One of several types; never a union itself."""

    branches: tuple[Type, ...]


Type = Primitive | Name | Array | Map | Union


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record."""

    name: str
    type: Type
    aliases: tuple[str, ...] = ()
    doc: str = ""
    default: str | None = None
    """JSON text of a value of the type; None when the field has no default."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record."""

    name: str
    fields: tuple[Field, ...]
    aliases: tuple[str, ...] = ()
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Enum:
    """An enum."""

    name: str
    symbols: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    doc: str = ""
    default: str | None = None
    """The symbol that stands for those which a reader does not know."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """So many bytes."""

    name: str
    size: int
    aliases: tuple[str, ...] = ()
    doc: str = ""
    logical: Logical | None = None


Named = Record | Enum | Fixed


@dataclass(frozen=True, slots=True)
class Schema:
    """A whole schema."""

    top: Type
    named: Mapping[str, Named]

    def resolve(self, type_: Type) -> Primitive | Array | Map | Union | Named:
        """The type itself, or what its name stands for."""
        return self.named[type_.full] if isinstance(type_, Name) else type_


def short_name(full: str) -> str:
    """A full name without its namespace."""
    return full.rpartition(".")[2]


def type_name(type_: Type) -> str:
    """What a union calls a branch: `string`, `array`, `shop.Order`."""
    match type_:
        case Primitive(name=name):
            return name
        case Name(full):
            return full
    return type(type_).__name__.lower()


# Which logical types annotate what. One that does not fit its type is ignored, as Avro asks.

MAX_DIGITS = 4000
"""Of a decimal; one with more is bytes to us, because Python refuses to print longer numbers."""

_ANNOTATES = {
    "date": ("int",),
    "time-millis": ("int",),
    "time-micros": ("long",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "timestamp-nanos": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "local-timestamp-nanos": ("long",),
    "uuid": ("string", "fixed"),
    "duration": ("fixed",),
    "decimal": ("bytes", "fixed"),
}
_SIZES = {"uuid": 16, "duration": 12}


def _logical_of(given: Mapping[str, Any], kind: str, size: int | None = None) -> Logical | None:
    name = given.get("logicalType")
    if not isinstance(name, str) or kind not in _ANNOTATES.get(name, ()):
        return None
    if name == "decimal":
        return decimal_of(given.get("precision"), given.get("scale", 0), size)
    return Logical(name) if size is None or size == _SIZES.get(name) else None


def _connect_of(given: Mapping[str, Any]) -> Connect | None:
    name, parameters = given.get("connect.name"), given.get("connect.parameters")
    if not isinstance(name, str):
        return None
    told = parameters.items() if isinstance(parameters, dict) else ()
    return Connect(name, tuple((str(key), value) for key, value in told if isinstance(value, str)))


def decimal_of(precision: object, scale: object, size: int | None = None) -> Logical | None:
    """A decimal of so many digits, in bytes or in a fixed of a size; None if there is none."""
    if type(precision) is not int or type(scale) is not int:
        return None
    if not 1 <= precision <= MAX_DIGITS or not 0 <= scale <= precision:
        return None
    # a fixed of n bytes holds numbers below 2 to the power of 8n - 1
    if size is not None and precision > (8 * size - 1) * log10(2):
        return None
    return Logical("decimal", precision, scale)


# Defaults of fields, encoded as the data that they stand for, as the Java library does it.
#
# A default of a union may be of any of its branches, not of the first one only: schemas with such
# defaults are in use, and since Avro 1.12 they are right.

_MOST_STEPS = 100_000
"""For all defaults of a schema; one that tries every way through unions of records needs more."""
_MOST_BYTES = 64 * 1024
_MOST_LEVELS = 100
_BITS = {"int": 32, "long": 64}


class _UnfitError(Exception):
    """A default does not fit its type, or is beyond all measure."""


class Defaults:
    """Encodes the defaults of one schema's fields."""

    def __init__(self, named: Mapping[str, Named]) -> None:
        self._named = named
        self._known: dict[tuple[str, str], bytes | None] = {}
        self._steps = 0

    def encoded(self, record: str, field: Field) -> bytes | None:
        """A field's default as Avro data; None when it has none that fits its type."""
        if field.default is None:
            return None
        key = (record, field.name)
        if key not in self._known:
            # a default that needs itself never ends
            self._known[key] = None
            try:
                data = self._type(field.type, json.loads(field.default), 0)
            except (_UnfitError, RecursionError):
                return None
            self._known[key] = data if len(data) <= _MOST_BYTES else None
        return self._known[key]

    def _type(self, type_: Type, value: Any, level: int) -> bytes:
        self._steps += 1
        if self._steps > _MOST_STEPS or level > _MOST_LEVELS:
            raise _UnfitError
        match type_:
            case Primitive(name=name):
                return _primitive(name, value)
            case Name(full):
                return self._of_named(self._named[full], value, level)
            case Array(items) if isinstance(value, list):
                return _block([self._type(items, each, level + 1) for each in value])
            case Map(values) if isinstance(value, dict):
                return _block(
                    [_text(k) + self._type(values, each, level + 1) for k, each in value.items()]
                )
            case Union(branches):
                for index, branch in enumerate(branches):
                    try:
                        return zigzag(index) + self._type(branch, value, level + 1)
                    except _UnfitError:
                        continue
        raise _UnfitError

    def _of_named(self, named: Named, value: Any, level: int) -> bytes:
        match named:
            case Enum(symbols=symbols) if value in symbols:
                return zigzag(symbols.index(value))
            case Fixed(size=size) if isinstance(value, str) and len(value) == size:
                # bytes are written as the characters with these numbers
                return _encoded(value, "latin-1")
            case Record(name=name, fields=fields) if isinstance(value, dict):
                return b"".join(self._member(name, each, value, level) for each in fields)
        raise _UnfitError

    def _member(self, record: str, field: Field, value: dict[str, Any], level: int) -> bytes:
        if field.name in value:
            return self._type(field.type, value[field.name], level + 1)
        data = self.encoded(record, field)
        if data is None:
            raise _UnfitError
        return data


def zigzag(number: int) -> bytes:
    """A number as Avro writes ints, longs, lengths and indexes."""
    return varint((number << 1) ^ (number >> 63))


def varint(number: int) -> bytes:
    """A number that is not negative, seven bits a byte, lowest first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _primitive(name: str, value: Any) -> bytes:
    match name:
        case "null" if value is None:
            return b""
        case "boolean" if isinstance(value, bool):
            return b"\1" if value else b"\0"
        case "int" | "long" if type(value) is int:
            half = 1 << (_BITS[name] - 1)
            if -half <= value < half:
                return zigzag(value)
        case "float" | "double" if type(value) in (int, float):
            try:
                if math.isfinite(float(value)):
                    return struct.pack("<f" if name == "float" else "<d", value)
            except OverflowError:
                pass
        case "string" if isinstance(value, str):
            return _text(value)
        case "bytes" if isinstance(value, str):
            return zigzag(len(value)) + _encoded(value, "latin-1")
    raise _UnfitError


def _encoded(value: str, encoding: str) -> bytes:
    try:
        return value.encode(encoding)
    except UnicodeEncodeError:
        raise _UnfitError from None


def _text(value: str) -> bytes:
    data = _encoded(value, "utf-8")
    return zigzag(len(data)) + data


def _block(items: list[bytes]) -> bytes:
    return (zigzag(len(items)) + b"".join(items) if items else b"") + b"\0"


# Reads the JSON text of an Avro schema, with the texts of the schemas that it refers to.
#
# Lenient where registries are: a default that does not fit its type is left out, and so is a
# logical type that nobody knows; two texts may define the same type, if they do it alike. Strict
# about all that a decoder relies on.

MAX_TEXT = 1024 * 1024
"""The longest schema text: what a broker accepts by default for the registry's own topic."""
MAX_TEXTS = 1000
"""The most schemas that one schema may refer to."""
MAX_LEVELS = 100
"""Of types inside types."""

_WORD = re.compile(r"[^\W\d]\w*")
_MAX_FIXED = 2**31 - 1


def parse_avro(
    text: str, *, imports: Mapping[str, str] | None = None, datastream: bool = False
) -> Schema:
    """Read a schema's JSON with the texts of the schemas it refers to, by full name.

    In files of Datastream names need not be Avro's, and logical types of its own count, also where
    they stand on a field instead of its type.
    """
    given = dict(imports or {})
    if len(given) > MAX_TEXTS:
        raise _invalid("schema", f"{len(given)} references", "refers to too many schemas")
    parser = _Parser(given, datastream)
    try:
        top = parser.text(text, "schema", 0)
    except RecursionError:
        raise _invalid("schema", "brackets in brackets without end", "nests too deep") from None
    defaults, named = Defaults(parser.named), dict(parser.named)
    for name, each in parser.named.items():
        if isinstance(each, Record):
            fields = tuple(
                replace(f, default=None) if defaults.encoded(name, f) is None else f
                for f in each.fields
            )
            named[name] = replace(each, fields=fields)
    return Schema(top, named)


def _loaded(text: str, where: str) -> Any:
    if len(text) > MAX_TEXT:
        raise _invalid(where, f"{len(text)} characters", f"is longer than {MAX_TEXT}")
    try:
        return json.loads(text)
    except ValueError as error:
        # bare names are schemas as well, and some registries keep them without quotes
        bare = text.strip()
        if bare in PRIMITIVES:
            return bare
        raise _invalid(where, str(error), "is not JSON") from None


class _Parser:
    def __init__(self, imports: dict[str, str], datastream: bool) -> None:
        self.named: dict[str, Named] = {}
        self._imports = imports
        self._datastream = datastream
        self._open: set[str] = set()
        """Records whose fields are being read: they may refer to themselves."""

    def text(self, text: str, where: str, level: int) -> Type:
        return self._type(_loaded(text, where), "", where, level)

    def _type(self, given: Any, space: str, at: str, level: int) -> Type:
        if level > MAX_LEVELS:
            raise _invalid(at, f"more than {MAX_LEVELS} levels", "nests too deep")
        if isinstance(given, str):
            return self._reference(given, space, at, level)
        if isinstance(given, list):
            return self._union(given, space, at, level)
        if not isinstance(given, dict):
            raise _invalid(at, json.dumps(given), "has something that is not a type")
        kind = given.get("type")
        match kind:
            case "record" | "error":
                return self._record(given, space, at, level)
            case "enum" | "fixed":
                return self._leaf(kind, given, space, at)
            case "array" | "map":
                part = "items" if kind == "array" else "values"
                if part not in given:
                    _missing(part, at)
                inner = self._type(given[part], space, f"{at}.{part}", level + 1)
                return Array(inner) if kind == "array" else Map(inner)
            case str() if kind in PRIMITIVES:
                logical, connect = _logical_of(given, kind), _connect_of(given)
                meaning = given.get("logicalType") if self._datastream else ""
                return Primitive(
                    kind, logical, connect, meaning if isinstance(meaning, str) else ""
                )
            case None:
                _missing("type", at)
        return self._type(kind, space, at, level + 1)

    def _reference(self, name: str, space: str, at: str, level: int) -> Type:
        if name in PRIMITIVES:
            return Primitive(name)
        full = f"{space}.{name}" if space and "." not in name else name.removeprefix(".")
        # as in Java, a name that its own namespace does not know may be one without a namespace
        for candidate in dict.fromkeys((full, name)):
            if self._known(candidate) or self._import(candidate, level):
                return Name(candidate)
        # a reference may have another name than the type, or define it on the way
        while self._imports and not self._known(full):
            self._import(next(iter(self._imports)), level)
        if self._known(full):
            return Name(full)
        raise _invalid(at, f"type {name}", "uses a type that it does not define or refer to")

    def _known(self, full: str) -> bool:
        return full in self.named or full in self._open

    def _import(self, full: str, level: int) -> bool:
        text = self._imports.pop(full, None)
        if text is not None:
            self.text(text, f"reference {full}", level + 1)
        return self._known(full)

    def _union(self, given: list[Any], space: str, at: str, level: int) -> Union:
        branches = tuple(
            self._type(each, space, f"{at}[{i}]", level + 1) for i, each in enumerate(given)
        )
        if not branches:
            raise _invalid(at, "[]", "has a union without types")
        if any(isinstance(each, Union) for each in branches):
            raise _invalid(at, "[[...]]", "has a union in a union")
        _unique([type_name(each) for each in branches], at, "has a type twice in a union")
        return Union(branches)

    def _record(self, given: dict[str, Any], space: str, at: str, level: int) -> Name:
        full = self._full_name(given, space, at)
        inner = full.rpartition(".")[0]
        fields = given.get("fields")
        if not isinstance(fields, list):
            _missing("fields", f"{at} record {full}")
        if full in self._open:
            raise _invalid(at, f"type {full}", "defines a type inside itself")
        self._open.add(full)
        members = tuple(self._field(each, inner, full, level) for each in fields)
        self._open.discard(full)
        _unique([each.name for each in members], full, "has a field twice")
        return self._define(Record(full, members, _aliases(given, inner), _doc(given)), at)

    def _field(self, given: Any, space: str, record: str, level: int) -> Field:
        if not isinstance(given, dict):
            raise _invalid(record, json.dumps(given), "has something that is not a field")
        name = self._word(given.get("name"), f"a field of {record}")
        at = f"{record}.{name}"
        if "type" not in given:
            _missing("type", at)
        written = _annotated(given) if self._datastream else given["type"]
        type_ = self._type(written, space, at, level + 1)
        default = json.dumps(given["default"]) if "default" in given else None
        return Field(name, type_, _aliases(given, ""), _doc(given), default)

    def _leaf(self, kind: str, given: dict[str, Any], space: str, at: str) -> Name:
        full = self._full_name(given, space, at)
        aliases = _aliases(given, full.rpartition(".")[0])
        if kind == "enum":
            listed = given.get("symbols")
            if not isinstance(listed, list):
                _missing("symbols", at)
            symbols = tuple(self._word(each, f"{at} enum {full}") for each in listed)
            _unique(symbols, full, "has a symbol twice")
            default = given.get("default")
            if default not in symbols:
                default = None
            return self._define(Enum(full, symbols, aliases, _doc(given), default), at)
        size = given.get("size")
        if type(size) is not int or not 0 <= size <= _MAX_FIXED:
            raise _invalid(f"{at} fixed {full}", f"size {json.dumps(size)}", "has a wrong size")
        logical = _logical_of(given, "fixed", size)
        return self._define(Fixed(full, size, aliases, _doc(given), logical), at)

    def _define(self, new: Named, at: str) -> Name:
        known = self.named.setdefault(new.name, new)
        if known != new:
            raise _invalid(at, f"type {new.name}", "defines a type twice, and not alike")
        return Name(new.name)

    def _full_name(self, given: Mapping[str, Any], space: str, at: str) -> str:
        name, namespace = given.get("name"), given.get("namespace", space)
        if not isinstance(name, str) or not isinstance(namespace, str | None):
            _missing("name", at)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        full = full.removeprefix(".")
        if not (self._datastream or _is_name(full)) or full in PRIMITIVES:
            raise _invalid(at, f"name {full}", "has a name that is not allowed")
        return full

    def _word(self, given: Any, at: str) -> str:
        if not isinstance(given, str) or not (self._datastream or _WORD.fullmatch(given)):
            raise _invalid(at, json.dumps(given), "has a name that is not allowed")
        return given


def _annotated(field: Mapping[str, Any]) -> Any:
    """A field's type with the logical type that stands on the field."""
    more = {key: field[key] for key in ("logicalType", "precision", "scale") if key in field}

    def annotated(type_: Any) -> Any:
        plain = isinstance(type_, str) and type_ in PRIMITIVES and type_ != "null"
        return {"type": type_, **more} if plain and more else type_

    given = field["type"]
    return [annotated(each) for each in given] if isinstance(given, list) else annotated(given)


def _aliases(given: Mapping[str, Any], space: str) -> tuple[str, ...]:
    """Other names; those that no type or field can have are left out."""
    listed = given.get("aliases")
    words = [a for a in listed if isinstance(a, str)] if isinstance(listed, list) else []
    full = [f"{space}.{a}" if space and "." not in a else a for a in words]
    return tuple(dict.fromkeys(a for a in full if _is_name(a)))


def _is_name(full: str) -> bool:
    return all(_WORD.fullmatch(word) for word in full.split("."))


def _doc(given: Mapping[str, Any]) -> str:
    doc = given.get("doc")
    return doc if isinstance(doc, str) else ""


def _unique(names: Iterable[str], at: str, problem: str) -> None:
    seen = set()
    for name in names:
        if name in seen:
            raise _invalid(at, name, problem)
        seen.add(name)


def _missing(key: str, at: str) -> NoReturn:
    raise _invalid(at, f"{key!r} is missing or of the wrong kind", "is not complete")


def _invalid(at: str, evidence: str, problem: str) -> InvalidSchemaError:
    return InvalidSchemaError(
        f"an Avro schema {problem}",
        where=printable(at),
        evidence=printable(evidence),
        next_step="fix the schema text; a type of another schema must be listed as a reference",
    )
