"""Avro schemas as data: each named type once, with references to it by full name."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import log10
from typing import Any, ClassVar, NoReturn

from distributary.errors import InvalidSchemaError
from distributary.model.names import printable

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")


@dataclass(frozen=True, slots=True)
class Logical:
    """A logical type on a type that it may annotate; others are dropped when a schema is parsed."""

    name: str
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True)
class Connect:
    """The Kafka Connect type behind a primitive type; Connect has more types than Avro."""

    name: str
    """The Connect name, such as `io.debezium.time.Date`."""
    parameters: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Primitive:
    """One of the eight primitive types."""

    name: str
    logical: Logical | None = None
    connect: Connect | None = None
    meaning: str = ""
    """The logical type as Datastream wrote it, also one that Avro does not define."""


@dataclass(frozen=True, slots=True)
class Name:
    """A reference to a record, an enum or a fixed that the schema defines elsewhere."""

    full: str


@dataclass(frozen=True, slots=True)
class Array:
    """A list of items."""

    kind: ClassVar[str] = "array"

    items: Type


@dataclass(frozen=True, slots=True)
class Map:
    """A map of values by string keys."""

    kind: ClassVar[str] = "map"

    values: Type


@dataclass(frozen=True, slots=True)
class Union:
    """One of several types, none of which is a union."""

    kind: ClassVar[str] = "union"

    branches: tuple[Type, ...]


Type = Primitive | Name | Array | Map | Union


@dataclass(frozen=True, slots=True)
class AvroField:
    """A field of a record."""

    name: str
    type: Type
    aliases: tuple[str, ...] = ()
    doc: str = ""
    default: str | None = None
    """The default as JSON text; None if the field has no default."""


@dataclass(frozen=True, slots=True)
class AvroRecord:
    """A record."""

    kind: ClassVar[str] = "record"

    name: str
    fields: tuple[AvroField, ...]
    aliases: tuple[str, ...] = ()
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Enum:
    """An enum."""

    kind: ClassVar[str] = "enum"

    name: str
    symbols: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    doc: str = ""
    default: str | None = None
    """The symbol that replaces symbols which a reader does not know."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """A fixed number of bytes."""

    kind: ClassVar[str] = "fixed"

    name: str
    size: int
    aliases: tuple[str, ...] = ()
    doc: str = ""
    logical: Logical | None = None


Named = AvroRecord | Enum | Fixed


@dataclass(frozen=True, slots=True)
class Schema:
    """A whole schema: its top type and all named types."""

    top: Type
    named: Mapping[str, Named]

    def resolve(self, type_: Type) -> Primitive | Array | Map | Union | Named:
        """Return the type itself, or the type that its name refers to."""
        return self.named[type_.full] if isinstance(type_, Name) else type_


def short_name(full: str) -> str:
    """Return a full name without its namespace."""
    return full.rpartition(".")[2]


def type_name(type_: Type) -> str:
    """Return the name of a union's branch, such as `string`, `array` or `shop.Order`."""
    match type_:
        case Primitive(name=name):
            return name
        case Name(full):
            return full
    return type_.kind


# Logical types and the types that they may annotate. Others are ignored, as Avro demands.

MAX_DIGITS = 4000
"""The largest number of digits of a decimal; larger ones are kept as bytes, because Python refuses
to print longer numbers."""

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


def _logical_of(
    definition: Mapping[str, Any], kind: str, size: int | None = None
) -> Logical | None:
    name = definition.get("logicalType")
    if not isinstance(name, str) or kind not in _ANNOTATES.get(name, ()):
        return None
    if name == "decimal":
        return decimal_of(definition.get("precision"), definition.get("scale", 0), size)
    return Logical(name) if size is None or size == _SIZES.get(name) else None


def _connect_of(definition: Mapping[str, Any]) -> Connect | None:
    name, parameters = definition.get("connect.name"), definition.get("connect.parameters")
    if not isinstance(name, str):
        return None
    entries = parameters.items() if isinstance(parameters, dict) else ()
    return Connect(
        name, tuple((str(key), value) for key, value in entries if isinstance(value, str))
    )


def decimal_of(precision: object, scale: object, size: int | None = None) -> Logical | None:
    """Return a decimal type, in bytes or in a fixed of a size; None if it is not valid."""
    if type(precision) is not int or type(scale) is not int:
        return None
    if not 1 <= precision <= MAX_DIGITS or not 0 <= scale <= precision:
        return None
    # a fixed of n bytes holds numbers below 2 to the power of 8n - 1
    if size is not None and precision > (8 * size - 1) * log10(2):
        return None
    return Logical("decimal", precision, scale)


# Defaults of fields, encoded as Avro data, as the Java library does.
#
# A default of a union may be of any branch, not only of the first: schemas with such defaults are
# in use, and Avro allows them since 1.12.

_MOST_STEPS = 100_000
"""The largest number of steps for all defaults of a schema; trying every path through unions of
records takes more."""
_MOST_BYTES = 64 * 1024
_MOST_LEVELS = 100
_BITS = {"int": 32, "long": 64}


class _UnfitError(Exception):
    """A default that does not fit its type, or is too large."""


class Defaults:
    """An encoder of the defaults of one schema's fields."""

    def __init__(self, named: Mapping[str, Named]) -> None:
        self._named = named
        self._encoded: dict[tuple[str, str], bytes | None] = {}
        self._steps = 0

    def encoded(self, record: str, field: AvroField) -> bytes | None:
        """Return a field's default as Avro data; None without a default that fits the type."""
        if field.default is None:
            return None
        key = (record, field.name)
        if key not in self._encoded:
            # None while it is encoded, so that a default that needs itself comes to an end
            self._encoded[key] = None
            try:
                data = self._type(field.type, json.loads(field.default), 0)
            except (_UnfitError, RecursionError):
                return None
            self._encoded[key] = data if len(data) <= _MOST_BYTES else None
        return self._encoded[key]

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
                return _block([self._type(items, item, level + 1) for item in value])
            case Map(values) if isinstance(value, dict):
                return _block(
                    [_text(k) + self._type(values, item, level + 1) for k, item in value.items()]
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
                # each byte is written as the character with its number
                return _encoded(value, "latin-1")
            case AvroRecord(name=name, fields=fields) if isinstance(value, dict):
                return b"".join(self._member(name, field, value, level) for field in fields)
        raise _UnfitError

    def _member(self, record: str, field: AvroField, value: dict[str, Any], level: int) -> bytes:
        if field.name in value:
            return self._type(field.type, value[field.name], level + 1)
        data = self.encoded(record, field)
        if data is None:
            raise _UnfitError
        return data


def zigzag(number: int) -> bytes:
    """Encode a number as Avro encodes ints, longs, lengths and indexes."""
    return varint((number << 1) ^ (number >> 63))


def varint(number: int) -> bytes:
    """Encode a non-negative number with seven bits in a byte, lowest first."""
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


# Parsing of the JSON text of an Avro schema, with the texts of the schemas that it references.
#
# The parser is lenient where registries are: a default that does not fit its type is dropped, and
# so is an unknown logical type. Two texts may define the same type, if the definitions are equal.
# It is strict about everything that a decoder relies on.

MAX_TEXT = 1024 * 1024
"""The longest schema text: a broker's default limit for the registry's own topic."""
MAX_TEXTS = 1000
"""The largest number of schemas that one schema may reference."""
MAX_LEVELS = 100
"""The deepest nesting of types."""

_WORD = re.compile(r"[^\W\d]\w*")
_MAX_FIXED = 2**31 - 1


def parse_avro(
    text: str,
    *,
    imports: Mapping[str, str] | None = None,
    datastream: bool = False,
    any_names: bool = False,
) -> Schema:
    """Parse a schema's JSON, with the texts of the schemas that it references, by full name.

    In files of Datastream, names need not follow Avro's rules, and Datastream's own logical types
    count, also where they are set on a field instead of its type. With `any_names`, only the
    former: columns of Parquet files have names of any kind.
    """
    import_texts = dict(imports or {})
    if len(import_texts) > MAX_TEXTS:
        raise _invalid("schema", f"{len(import_texts)} references", "refers to too many schemas")
    parser = _Parser(import_texts, datastream, any_names=any_names or datastream)
    try:
        top = parser.text(text, "schema", 0)
    except RecursionError:
        raise _invalid("schema", "endlessly nested brackets", "nests too deep") from None
    defaults, named = Defaults(parser.named), dict(parser.named)
    for name, named_type in parser.named.items():
        if isinstance(named_type, AvroRecord):
            fields = tuple(
                replace(field, default=None) if defaults.encoded(name, field) is None else field
                for field in named_type.fields
            )
            named[name] = replace(named_type, fields=fields)
    return Schema(top, named)


def _loaded(text: str, where: str) -> Any:
    if len(text) > MAX_TEXT:
        raise _invalid(where, f"{len(text)} characters", f"is longer than {MAX_TEXT}")
    try:
        return json.loads(text)
    except ValueError as error:
        # a bare name is a schema too, and some registries keep it without quotes
        bare = text.strip()
        if bare in PRIMITIVES:
            return bare
        raise _invalid(where, str(error), "is not JSON") from None


class _Parser:
    def __init__(self, imports: dict[str, str], datastream: bool, *, any_names: bool) -> None:
        self.named: dict[str, Named] = {}
        self._imports = imports
        self._datastream = datastream
        self._any_names = any_names
        self._open: set[str] = set()
        """Records whose fields are being parsed, which may refer to themselves."""

    def text(self, text: str, where: str, level: int) -> Type:
        return self._type(_loaded(text, where), "", where, level)

    def _type(self, definition: Any, space: str, at: str, level: int) -> Type:
        if level > MAX_LEVELS:
            raise _invalid(at, f"more than {MAX_LEVELS} levels", "nests too deep")
        if isinstance(definition, str):
            return self._reference(definition, space, at, level)
        if isinstance(definition, list):
            return self._union(definition, space, at, level)
        if not isinstance(definition, dict):
            raise _invalid(at, json.dumps(definition), "has something that is not a type")
        kind = definition.get("type")
        match kind:
            case "record" | "error":
                return self._record(definition, space, at, level)
            case "enum" | "fixed":
                return self._leaf(kind, definition, space, at)
            case "array" | "map":
                part = "items" if kind == "array" else "values"
                if part not in definition:
                    _missing(part, at)
                inner = self._type(definition[part], space, f"{at}.{part}", level + 1)
                return Array(inner) if kind == "array" else Map(inner)
            case str() if kind in PRIMITIVES:
                logical, connect = _logical_of(definition, kind), _connect_of(definition)
                meaning = definition.get("logicalType") if self._datastream else ""
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
        # as in Java, a name unknown in its own namespace may be a name without a namespace
        for candidate in dict.fromkeys((full, name)):
            if self._is_defined(candidate) or self._import(candidate, level):
                return Name(candidate)
        # a reference may have another name than its type, or define the type on the way
        while self._imports and not self._is_defined(full):
            self._import(next(iter(self._imports)), level)
        if self._is_defined(full):
            return Name(full)
        raise _invalid(at, f"type {name}", "uses a type that it does not define or refer to")

    def _is_defined(self, full: str) -> bool:
        return full in self.named or full in self._open

    def _import(self, full: str, level: int) -> bool:
        text = self._imports.pop(full, None)
        if text is not None:
            self.text(text, f"reference {full}", level + 1)
        return self._is_defined(full)

    def _union(self, definition: list[Any], space: str, at: str, level: int) -> Union:
        branches = tuple(
            self._type(branch, space, f"{at}[{i}]", level + 1)
            for i, branch in enumerate(definition)
        )
        if not branches:
            raise _invalid(at, "[]", "has a union without types")
        if any(isinstance(branch, Union) for branch in branches):
            raise _invalid(at, "[[...]]", "has a union in a union")
        _unique([type_name(branch) for branch in branches], at, "has a type twice in a union")
        return Union(branches)

    def _record(self, definition: dict[str, Any], space: str, at: str, level: int) -> Name:
        full = self._full_name(definition, space, at)
        inner = full.rpartition(".")[0]
        fields = definition.get("fields")
        if not isinstance(fields, list):
            _missing("fields", f"{at} record {full}")
        if full in self._open:
            raise _invalid(at, f"type {full}", "defines a type inside itself")
        self._open.add(full)
        members = tuple(self._field(entry, inner, full, level) for entry in fields)
        self._open.discard(full)
        _unique([field.name for field in members], full, "has a field twice")
        return self._define(
            AvroRecord(full, members, _aliases(definition, inner), _doc(definition)), at
        )

    def _field(self, definition: Any, space: str, record: str, level: int) -> AvroField:
        if not isinstance(definition, dict):
            raise _invalid(record, json.dumps(definition), "has something that is not a field")
        name = self._word(definition.get("name"), f"a field of {record}")
        at = f"{record}.{name}"
        if "type" not in definition:
            _missing("type", at)
        written = _annotated(definition) if self._datastream else definition["type"]
        type_ = self._type(written, space, at, level + 1)
        default = json.dumps(definition["default"]) if "default" in definition else None
        return AvroField(name, type_, _aliases(definition, ""), _doc(definition), default)

    def _leaf(self, kind: str, definition: dict[str, Any], space: str, at: str) -> Name:
        full = self._full_name(definition, space, at)
        aliases = _aliases(definition, full.rpartition(".")[0])
        if kind == "enum":
            listed = definition.get("symbols")
            if not isinstance(listed, list):
                _missing("symbols", at)
            symbols = tuple(self._word(symbol, f"{at} enum {full}") for symbol in listed)
            _unique(symbols, full, "has a symbol twice")
            default = definition.get("default")
            if default not in symbols:
                default = None
            return self._define(Enum(full, symbols, aliases, _doc(definition), default), at)
        size = definition.get("size")
        if type(size) is not int or not 0 <= size <= _MAX_FIXED:
            raise _invalid(f"{at} fixed {full}", f"size {json.dumps(size)}", "has a wrong size")
        logical = _logical_of(definition, "fixed", size)
        return self._define(Fixed(full, size, aliases, _doc(definition), logical), at)

    def _define(self, new: Named, at: str) -> Name:
        existing = self.named.setdefault(new.name, new)
        if existing != new:
            raise _invalid(
                at, f"type {new.name}", "defines a type twice, with different definitions"
            )
        return Name(new.name)

    def _full_name(self, definition: Mapping[str, Any], space: str, at: str) -> str:
        name, namespace = definition.get("name"), definition.get("namespace", space)
        if not isinstance(name, str) or not isinstance(namespace, str | None):
            _missing("name", at)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        full = full.removeprefix(".")
        if not (self._any_names or _is_name(full)) or full in PRIMITIVES:
            raise _invalid(at, f"name {full}", "has a name that is not allowed")
        return full

    def _word(self, definition: Any, at: str) -> str:
        if not isinstance(definition, str) or not (self._any_names or _WORD.fullmatch(definition)):
            raise _invalid(at, json.dumps(definition), "has a name that is not allowed")
        return definition


def _annotated(field: Mapping[str, Any]) -> Any:
    """Return a field's type with the logical type that is set on the field."""
    annotation = {key: field[key] for key in ("logicalType", "precision", "scale") if key in field}

    def annotated(type_: Any) -> Any:
        plain = isinstance(type_, str) and type_ in PRIMITIVES and type_ != "null"
        return {"type": type_, **annotation} if plain and annotation else type_

    definition = field["type"]
    return (
        [annotated(branch) for branch in definition]
        if isinstance(definition, list)
        else annotated(definition)
    )


def _aliases(definition: Mapping[str, Any], space: str) -> tuple[str, ...]:
    """Return the aliases that are valid names of types or fields."""
    listed = definition.get("aliases")
    words = (
        [alias for alias in listed if isinstance(alias, str)] if isinstance(listed, list) else []
    )
    full = [f"{space}.{alias}" if space and "." not in alias else alias for alias in words]
    return tuple(dict.fromkeys(alias for alias in full if _is_name(alias)))


def _is_name(full: str) -> bool:
    return all(_WORD.fullmatch(word) for word in full.split("."))


def _doc(definition: Mapping[str, Any]) -> str:
    doc = definition.get("doc")
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
