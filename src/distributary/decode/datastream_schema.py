"""The Avro schema of Datastream events, and a private copy of it for the decoder inside.

The copy is the same on the wire, but has names of our own, because a source's names need not be
Avro's, and none of the logical types that refuse a value: what a value means is decided afterwards,
where one that the lake cannot hold is kept beside the row. Datastream also writes logical types
where Avro does not look for them, on the field instead of its type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from distributary.errors import DecodeError

PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
_NAMED = ("record", "error", "enum", "fixed")
_LEGAL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ANNOTATIONS = ("logicalType", "precision", "scale")


@dataclass(frozen=True, slots=True)
class Typed:
    """A type with the namespace around it, in which its names are to be found."""

    json: Any
    space: str = ""

    @property
    def logical(self) -> str:
        """Its logical type, if it has one."""
        name = self.json.get("logicalType") if isinstance(self.json, dict) else None
        return name if isinstance(name, str) else ""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record."""

    name: str
    type: Typed


class Schema:
    """A schema's text with all types that it names."""

    def __init__(self, body: bytes) -> None:
        try:
            self.top = Typed(json.loads(body))
            self._named = dict(_definitions(self.top.json, ""))
        except (ValueError, RecursionError, KeyError) as error:
            raise _unusable(type(error).__name__) from error

    def resolved(self, typed: Typed) -> Typed:
        """A type itself, where it is only named or wrapped; what is not known stays a name."""
        for _ in range(100):
            given = typed.json
            if isinstance(given, dict) and isinstance(given.get("type"), dict | list):
                typed = Typed(given["type"], typed.space)
            elif isinstance(given, dict) and not _is_known(given.get("type")):
                typed = Typed(given.get("type"), typed.space)
            elif isinstance(given, str) and given not in PRIMITIVES:
                found = self._named.get(_full(given, typed.space)) or self._named.get(given)
                if found is None:
                    return typed
                typed = found
            else:
                return _inside(typed)
        return typed

    def kind(self, typed: Typed) -> str:
        """`record`, `array`, `union`, `long` and so on; a name if that is all there is."""
        given = self.resolved(typed).json
        if isinstance(given, list):
            return "union"
        kind = given.get("type") if isinstance(given, dict) else given
        return kind if isinstance(kind, str) else ""

    def fields(self, typed: Typed) -> list[Field]:
        """The fields of a record."""
        record = self.resolved(typed)
        fields = [Field(str(f["name"]), _annotated(f, record.space)) for f in record.json["fields"]]
        if len({f.name for f in fields}) < len(fields):
            raise _unusable("a record has two fields of one name")
        return fields

    def branches(self, typed: Typed) -> list[Typed]:
        """The branches of a union."""
        union = self.resolved(typed)
        return [Typed(each, union.space) for each in union.json]

    def only(self, typed: Typed) -> Typed:
        """A type without the null beside it."""
        if self.kind(typed) != "union":
            return typed
        real = [each for each in self.branches(typed) if self.kind(each) != "null"]
        return real[0] if len(real) == 1 else typed


class PrivateCopy:
    """Writes types again, with names of its own."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._records = 0
        self._written: dict[int, str] = {}

    def record(self, types: list[Any]) -> dict[str, Any]:
        """A record of some types; its fields are f0, f1 and so on."""
        fields = [{"name": f"f{index}", "type": each} for index, each in enumerate(types)]
        return {"type": "record", "name": self._name(), "fields": fields}

    def beside_null(self, typed: Typed, inner: Any) -> Any:
        """What a type without null becomes, with the null where the type has it."""
        if self._schema.kind(typed) != "union":
            return inner
        branches = self._schema.branches(typed)
        return ["null" if self._schema.kind(b) == "null" else inner for b in branches]

    def bare(self, typed: Typed) -> Any:
        """A type as it is, but for logical types at the top of it."""
        only = self._schema.only(typed)
        kind = self._schema.kind(only)
        inner = kind if kind in PRIMITIVES else self.whole(only)
        return self.beside_null(typed, inner) if only is not typed else inner

    def whole(self, typed: Typed) -> Any:
        """A type as it is, everything in it included."""
        resolved = self._schema.resolved(typed)
        given = resolved.json
        if isinstance(given, list):
            return [self.whole(Typed(each, resolved.space)) for each in given]
        if not isinstance(given, dict):
            return given
        kind = given.get("type")
        if kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            return {"type": kind, part: self.whole(Typed(given.get(part), resolved.space))}
        if kind not in _NAMED:
            return given
        if id(given) in self._written:
            return self._written[id(given)]
        name = self._written[id(given)] = self._name()
        copy = {key: value for key, value in given.items() if key not in ("namespace", "aliases")}
        copy["name"] = name
        if kind in ("record", "error"):
            copy["fields"] = [
                {"name": _legal(f.name, i), "type": self.whole(f.type)}
                for i, f in enumerate(self._schema.fields(resolved))
            ]
        return copy

    def _name(self) -> str:
        self._records += 1
        return f"R{self._records}"


def size(given: Any) -> int:
    """How many fields of records and branches of unions a type has in it."""
    if isinstance(given, list):
        return len(given) + sum(map(size, given))
    if not isinstance(given, dict):
        return 0
    fields = given.get("fields", ())
    inner = [field["type"] for field in fields] + [given.get("items"), given.get("values")]
    return len(fields) + sum(map(size, inner))


def _definitions(given: Any, space: str) -> Iterator[tuple[str, Typed]]:
    """Every named type in a schema's JSON, by its full name."""
    if isinstance(given, list):
        for each in given:
            yield from _definitions(each, space)
    if not isinstance(given, dict):
        return
    if given.get("type") in _NAMED and isinstance(given.get("name"), str):
        yield _full(given["name"], str(given.get("namespace") or space)), Typed(given, space)
        space = _inside(Typed(given, space)).space
    for part in ("type", "items", "values"):
        yield from _definitions(given.get(part), space)
    fields = given.get("fields")
    for field in fields if isinstance(fields, list) else ():
        if isinstance(field, dict):
            yield from _definitions(field.get("type"), space)


def _full(name: str, space: str) -> str:
    return name.removeprefix(".") if "." in name or not space else f"{space}.{name}"


def _inside(typed: Typed) -> Typed:
    """A named type with the namespace that holds inside it."""
    given = typed.json
    if not isinstance(given, dict) or given.get("type") not in _NAMED:
        return typed
    name = str(given.get("name"))
    space = name.rpartition(".")[0] if "." in name else str(given.get("namespace") or typed.space)
    return Typed(given, space)


def _legal(name: str, index: int) -> str:
    return name if _LEGAL.fullmatch(name) else f"field{index}"


def _is_known(kind: Any) -> bool:
    return kind in PRIMITIVES or kind in _NAMED or kind in ("array", "map")


def _annotated(field: dict[str, Any], space: str) -> Typed:
    """A field's type with the logical type that stands on the field."""
    given = field.get("type")
    if not isinstance(field.get("logicalType"), str):
        return Typed(given, space)
    more = {key: field[key] for key in _ANNOTATIONS if key in field}
    if isinstance(given, str) and given in PRIMITIVES:
        return Typed({"type": given, **more}, space)
    if isinstance(given, list):
        branches = [
            {"type": b, **more} if isinstance(b, str) and b in PRIMITIVES - {"null"} else b
            for b in given
        ]
        return Typed(branches, space)
    return Typed(given, space)


def _unusable(evidence: str) -> DecodeError:
    return DecodeError(
        "the schema is not usable Avro",
        where="schema of change events",
        evidence=evidence,
        next_step="look at the header of the file",
    )
