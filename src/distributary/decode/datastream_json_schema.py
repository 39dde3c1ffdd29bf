"""From the inferred schema of JSON events to the two schemas that they are decoded with."""

from __future__ import annotations

from typing import Any

from distributary.errors import DecodeError
from distributary.registry.json_documents import Documents

SOURCE, PAYLOAD = "source_metadata", "payload"
_SCALARS = {"boolean", "integer", "number", "string"}
_BOUNDS = {"minimum", "maximum"}
_EXPECTED = {
    "is_deleted": "boolean",
    "log_position": "integer",
    "scn": "integer",
    "ssn": "integer",
}
_NAMES: dict[str, Any] = {"type": ["array", "null"], "items": {"type": ["string", "null"]}}
_TEXT: dict[str, Any] = {"type": ["string", "null"]}


class Shapes:
    """What is known about the events of one table."""

    def __init__(self, body: bytes) -> None:
        try:
            content = Documents.of(body).content
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DecodeError(
                "the compiled schema is not a usable JSON Schema",
                where="schema of change events",
                evidence=type(error).__name__,
                next_step="look at the schema of the table",
            ) from error
        self._top = _properties(content)
        self._source = _properties(self._top.get(SOURCE))
        self._payload = {n: _flat(s) for n, s in _properties(self._top.get(PAYLOAD)).items()}
        self.void = tuple(n for n, s in self._payload.items() if _types(s) == {"null"})
        """Columns that were never anything but null: they do not exist yet."""
        self.columns = tuple(n for n in self._payload if n not in self.void)
        """The others, in the order of the payload."""
        self.every = tuple(self._payload)
        self.metadata = tuple(self._source)
        self.top = tuple(self._top)
        """The parts of an event, in the order of the quick schema."""

    def careful(self) -> dict[str, Any]:
        """A schema that knows the payload and lets everything else pass."""
        if PAYLOAD not in self._top:
            # something must be named, so that the rest is the rest
            return {"type": "object", "properties": {"\x00": {"type": "null"}}}
        return {"type": "object", "properties": {PAYLOAD: _closed(self._payload)}}

    def quick(self) -> dict[str, Any] | None:
        """A schema that Arrow can follow; None where the events are not simple enough."""
        if not self.columns or not self._source or not all(map(_simple, self._payload.values())):
            return None
        top = {name: _expected(name, each) for name, each in self._top.items()}
        source = {name: _expected(name, each) for name, each in self._source.items()}
        payload = {n: _TEXT if n in self.void else s for n, s in self._payload.items()}
        if not all(source.values()) or any(
            each is None for name, each in top.items() if name not in (SOURCE, PAYLOAD)
        ):
            return None
        return _closed({**top, SOURCE: _closed(source), PAYLOAD: _closed(payload)}, null=False)


def _properties(schema: Any) -> dict[str, Any]:
    found = schema.get("properties") if isinstance(schema, dict) else None
    return found if isinstance(found, dict) else {}


def _closed(properties: dict[str, Any], *, null: bool = True) -> dict[str, Any]:
    return {
        "type": ["object", "null"] if null else "object",
        "properties": properties,
        "additionalProperties": False,
    }


def _types(schema: Any) -> set[str]:
    given = schema.get("type") if isinstance(schema, dict) else None
    return set(given) if isinstance(given, list) else {given} if isinstance(given, str) else set()


def _flat(schema: Any) -> Any:
    """A column: single values as they are, all that has others in it as JSON text."""
    types = _types(schema) - {"null"}
    return schema if types <= _SCALARS and isinstance(schema, dict) and _types(schema) else {}


def _simple(schema: Any) -> bool:
    """Whether Arrow reads a column in the same way as the careful decoder."""
    types = _types(schema) - {"null"}
    if types == {"integer", "number"}:
        types = {"number"}
    single = len(types) <= 1 and types <= _SCALARS and bool(_types(schema))
    return single and not _BOUNDS & schema.keys()


def _expected(name: str, schema: Any) -> dict[str, Any] | None:
    """A part of the envelope as it usually is; None when it can be anything."""
    if name == "sort_keys":
        return _NAMES
    types = _types(schema) - {"null"}
    if types == {"array"}:
        items = _types(schema.get("items")) - {"null"}
        return _NAMES if items <= {"string"} else None
    scalars = types & _SCALARS
    if types and not scalars:
        return None
    wanted = _EXPECTED.get(name)
    for each in (wanted, "string", "integer", "boolean", "number"):
        if each in scalars:
            return {"type": [each, "null"]}
    return _TEXT
