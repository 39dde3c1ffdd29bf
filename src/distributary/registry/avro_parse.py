"""Reads the JSON text of an Avro schema, with the texts of the schemas that it refers to.

Lenient where registries are: a default that does not fit its type is left out, and so is a logical
type that nobody knows; two texts may define the same type, if they do it alike. Strict about all
that a decoder relies on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from distributary.errors import InvalidSchemaError
from distributary.registry.avro_defaults import Defaults
from distributary.registry.avro_logical import connect_of, logical_of
from distributary.registry.avro_model import (
    PRIMITIVES,
    Array,
    Enum,
    Field,
    Fixed,
    Map,
    Name,
    Named,
    Primitive,
    Record,
    Schema,
    Type,
    Union,
    type_name,
)
from distributary.registry.hostile import printable

MAX_TEXT = 1024 * 1024
"""The longest schema text: what a broker accepts by default for the registry's own topic."""
MAX_TEXTS = 1000
"""The most schemas that one schema may refer to."""
MAX_LEVELS = 100
"""Of types inside types."""

_WORD = re.compile(r"[^\W\d]\w*")
_MAX_FIXED = 2**31 - 1


def parse_avro(text: str, *, imports: Mapping[str, str] | None = None) -> Schema:
    """Read a schema.

    Args:
        text: The schema's JSON.
        imports: The texts of the schemas it refers to, by full name.

    Raises:
        InvalidSchemaError: With the place in the schema in its evidence.
    """
    given = dict(imports or {})
    if len(given) > MAX_TEXTS:
        raise _invalid("schema", f"{len(given)} references", "refers to too many schemas")
    parser = _Parser(given)
    try:
        top = parser.text(text, "schema", 0)
        return Schema(top, _with_fitting_defaults(parser.named))
    except RecursionError:
        raise _invalid("schema", "brackets in brackets without end", "nests too deep") from None


def _with_fitting_defaults(named: Mapping[str, Named]) -> dict[str, Named]:
    defaults = Defaults(named)
    return {
        name: replace(each, fields=tuple(_fitting(name, f, defaults) for f in each.fields))
        if isinstance(each, Record)
        else each
        for name, each in named.items()
    }


def _fitting(record: str, field: Field, defaults: Defaults) -> Field:
    unfit = field.default is not None and defaults.encoded(record, field) is None
    return replace(field, default=None) if unfit else field


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
    def __init__(self, imports: dict[str, str]) -> None:
        self.named: dict[str, Named] = {}
        self._imports = imports
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
                return Primitive(kind, logical_of(given, kind), connect_of(given))
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
        self._import_the_rest(full, level)
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

    def _import_the_rest(self, full: str, level: int) -> None:
        """A reference may have another name than the type, or define it on the way."""
        while self._imports and not self._known(full):
            self._import(next(iter(self._imports)), level)

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
        full = _full_name(given, space, at)
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
        name = _word(given.get("name"), f"a field of {record}")
        at = f"{record}.{name}"
        if "type" not in given:
            _missing("type", at)
        type_ = self._type(given["type"], space, at, level + 1)
        default = json.dumps(given["default"]) if "default" in given else None
        return Field(name, type_, _aliases(given, ""), _doc(given), default)

    def _leaf(self, kind: str, given: dict[str, Any], space: str, at: str) -> Name:
        full = _full_name(given, space, at)
        aliases = _aliases(given, full.rpartition(".")[0])
        if kind == "enum":
            listed = given.get("symbols")
            if not isinstance(listed, list):
                _missing("symbols", at)
            symbols = tuple(_word(each, f"{at} enum {full}") for each in listed)
            _unique(symbols, full, "has a symbol twice")
            default = given.get("default")
            if default not in symbols:
                default = None
            return self._define(Enum(full, symbols, aliases, _doc(given), default), at)
        size = given.get("size")
        if type(size) is not int or not 0 <= size <= _MAX_FIXED:
            raise _invalid(f"{at} fixed {full}", f"size {json.dumps(size)}", "has a wrong size")
        logical = logical_of(given, "fixed", size)
        return self._define(Fixed(full, size, aliases, _doc(given), logical), at)

    def _define(self, new: Named, at: str) -> Name:
        known = self.named.setdefault(new.name, new)
        if known != new:
            raise _invalid(at, f"type {new.name}", "defines a type twice, and not alike")
        return Name(new.name)


def _full_name(given: Mapping[str, Any], space: str, at: str) -> str:
    name, namespace = given.get("name"), given.get("namespace", space)
    if not isinstance(name, str) or not isinstance(namespace, str | None):
        _missing("name", at)
    full = name if "." in name or not namespace else f"{namespace}.{name}"
    full = full.removeprefix(".")
    if not _is_name(full) or full in PRIMITIVES:
        raise _invalid(at, f"name {full}", "has a name that is not allowed")
    return full


def _aliases(given: Mapping[str, Any], space: str) -> tuple[str, ...]:
    """Other names; those that no type or field can have are left out."""
    listed = given.get("aliases")
    words = [a for a in listed if isinstance(a, str)] if isinstance(listed, list) else []
    full = [f"{space}.{a}" if space and "." not in a else a for a in words]
    return tuple(dict.fromkeys(a for a in full if _is_name(a)))


def _is_name(full: str) -> bool:
    return all(_WORD.fullmatch(word) for word in full.split("."))


def _word(given: Any, at: str) -> str:
    if not isinstance(given, str) or not _WORD.fullmatch(given):
        raise _invalid(at, json.dumps(given), "has a name that is not allowed")
    return given


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
        next_step="mend the schema text; a type of another schema must be listed as a reference",
    )
