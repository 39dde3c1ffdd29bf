"""What each of Datastream's unified types becomes in the lake.

| in the file | lake |
|---|---|
| boolean, int, long, float, double, bytes, string, enum | as they are |
| string as `json`, `number`, `varchar` | text |
| record `varchar`, `year` | its value |
| bytes as `decimal` | decimal; text beyond 38 digits |
| int as `date`, record `calendarDate` | date |
| long as `timestamp-*`, `local-timestamp-*`, record `datetime` | timestamp in UTC |
| record `timestampTz` | timestamp in UTC; the clock's offset stays in the envelope |
| `time-micros`, `time-millis` | text `HH:MM:SS.ffffff` |
| record `timeTz` | text `HH:MM:SS.ffffff+HH:MM` |
| long as `time-interval-micros` | text `[-]HH:MM:SS.ffffff` |
| record `interval` | text, ISO 8601 |
| record `multidimensionalArray_*` | text, a JSON array |
| anything else | as for any Avro payload |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from distributary.decode import datastream_values as values
from distributary.decode.datastream_arrays import MAX_DIMENSIONS, arrays
from distributary.decode.datastream_schema import PrivateCopy, Schema, Typed
from distributary.decode.datastream_values import Read
from distributary.model.record import TIMESTAMP

_INTEGERS = ("int", "long")
_MOST_DIGITS = 4_000


@dataclass(frozen=True, slots=True)
class Plan:
    """How a value of the source is read."""

    wire: Any
    """Its type in the private copy."""
    read: Read = values.same
    type: pa.DataType | None = None
    """In the lake; None for whatever the decoder inside makes of it."""
    note: str = ""


_Made = tuple[Read, pa.DataType, str]
_LOGICAL: Mapping[tuple[str, str], _Made] = {
    ("int", "date"): (values.dates, pa.date32(), ""),
    ("long", "time-interval-micros"): (values.spans, pa.string(), "hours, minutes and seconds"),
    **{
        (kind, f"time-{unit}"): (values.times(factor), pa.string(), "time of day")
        for kind in _INTEGERS
        for unit, factor in (("micros", 1), ("millis", 1_000))
    },
    **{
        ("long", f"{local}timestamp-{unit}"): (values.instants(factor), TIMESTAMP, note)
        for local, note in (("", ""), ("local-", "wall clock, said to be UTC"))
        for unit, factor in (("micros", 1), ("millis", 1_000))
    },
    ("string", "json"): (values.same, pa.string(), "JSON text"),
    ("string", "number"): (values.same, pa.string(), "number as text"),
    ("string", "varchar"): (values.same, pa.string(), ""),
}
_RECORDS: Mapping[str, tuple[tuple[str, ...], _Made]] = {
    "datetime": (
        ("date", "time"),
        (values.datetimes, TIMESTAMP, "wall clock, said to be UTC"),
    ),
    "timestamptz": (("timestamp", "offset"), (values.zoned_instants, TIMESTAMP, "")),
    "timetz": (("time", "offset"), (values.zoned_times, pa.string(), "time of day with offset")),
    "interval": (
        ("months", "hours", "micros"),
        (values.intervals, pa.string(), "ISO 8601 duration"),
    ),
    "calendardate": (("year", "month", "day"), (values.calendar_dates, pa.date32(), "")),
}
_ARRAY = ("nestedArray", "elementValue")


class Planner:
    """Plans the values of one schema."""

    def __init__(self, schema: Schema, copy: PrivateCopy) -> None:
        self._schema = schema
        self._copy = copy

    def plan(self, typed: Typed) -> Plan | None:
        """How values of a type are read; None for one that is only ever null."""
        schema, copy = self._schema, self._copy
        only = schema.only(typed)
        kind = schema.kind(only)
        if kind == "null" or (kind == "union" and not self._real(only)):
            return None
        plan = self._record(only) if kind == "record" else self._leaf(only, kind)
        if plan is None:
            return Plan(copy.whole(typed))
        return Plan(copy.beside_null(typed, plan.wire), plan.read, plan.type, plan.note)

    def _real(self, union: Typed) -> bool:
        return any(self._schema.kind(each) != "null" for each in self._schema.branches(union))

    def _leaf(self, typed: Typed, kind: str) -> Plan | None:
        resolved = self._schema.resolved(typed)
        logical = typed.logical or resolved.logical
        if kind == "bytes" and logical == "decimal":
            return _decimal(resolved.json)
        made = _LOGICAL.get((kind, logical))
        return Plan(kind, *made) if made else None

    def _record(self, typed: Typed) -> Plan | None:
        resolved = self._schema.resolved(typed).json
        name = str(resolved.get("name")).rpartition(".")[2].replace("_", "").lower()
        fields = self._schema.fields(typed)
        names = tuple(f.name for f in fields)
        if name.startswith("multidimensionalarray") and names == _ARRAY:
            return self._array(fields[1].type)
        kinds = [self._schema.kind(f.type) for f in fields]
        if name == "varchar" and names[:1] == ("value",) and kinds[0] == "string":
            return self._member(kinds, pa.string())
        if name == "year" and names == ("year",) and kinds[0] == "int":
            return self._member(kinds, pa.int32())
        wanted, made = _RECORDS.get(name, ((), None))
        if made is None or names != wanted or not all(kind in _INTEGERS for kind in kinds):
            return None
        return Plan(self._copy.record(list(kinds)), *made)

    def _member(self, kinds: list[str], type_: pa.DataType) -> Plan | None:
        if any(kind not in ("int", "long", "string") for kind in kinds):
            return None
        return Plan(self._copy.record(list(kinds)), values.member(0), type_)

    def _array(self, element: Typed) -> Plan | None:
        plan = self.plan(element)
        if plan is None:
            return None
        # the type of an array does not say how many dimensions it has: a level for each that
        # PostgreSQL allows, and one for seeing that there are more
        wire: Any = self._copy.record([["null", "long"], plan.wire])
        for _ in range(MAX_DIMENSIONS):
            wire = self._copy.record([["null", {"type": "array", "items": wire}], plan.wire])
        is_json = self._schema.only(element).logical == "json"
        return Plan(wire, arrays(plan.read, is_json=is_json), pa.string(), "JSON array")


def _decimal(given: Any) -> Plan | None:
    precision, scale = given.get("precision"), given.get("scale", 0)
    if type(precision) is not int or type(scale) is not int:
        return None
    if not 1 <= precision <= _MOST_DIGITS or not 0 <= scale <= precision:
        return None
    fits = precision <= 38
    type_ = pa.decimal128(precision, scale) if fits else pa.string()
    note = "" if fits else f"decimal({precision},{scale}) as text"
    return Plan("bytes", values.decimals(precision, scale), type_, note)
