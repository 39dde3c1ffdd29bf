"""Which logical types annotate what. One that does not fit its type is ignored, as Avro asks."""

from __future__ import annotations

from collections.abc import Mapping
from math import log10
from typing import Any

from distributary.registry.avro_model import Connect, Logical

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


def logical_of(given: Mapping[str, Any], kind: str, size: int | None = None) -> Logical | None:
    """The logical type in a type's JSON, if it is known and may annotate the type.

    Args:
        given: The type's JSON object.
        kind: The type's name.
        size: How many bytes a fixed has.
    """
    name = given.get("logicalType")
    if not isinstance(name, str) or kind not in _ANNOTATES.get(name, ()):
        return None
    if name == "decimal":
        return _decimal(given.get("precision"), given.get("scale", 0), size)
    return Logical(name) if size is None or size == _SIZES.get(name) else None


def connect_of(given: Mapping[str, Any]) -> Connect | None:
    """The type of Kafka Connect in a type's JSON, if there is one."""
    name, parameters = given.get("connect.name"), given.get("connect.parameters")
    if not isinstance(name, str):
        return None
    told = parameters.items() if isinstance(parameters, dict) else ()
    return Connect(name, tuple((str(key), value) for key, value in told if isinstance(value, str)))


def _decimal(precision: object, scale: object, size: int | None) -> Logical | None:
    if type(precision) is not int or type(scale) is not int:
        return None
    if not 1 <= precision <= MAX_DIGITS or not 0 <= scale <= precision:
        return None
    # a fixed of n bytes holds numbers below 2 to the power of 8n - 1
    if size is not None and precision > (8 * size - 1) * log10(2):
        return None
    return Logical("decimal", precision, scale)
