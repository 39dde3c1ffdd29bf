"""Values that a person types, and names that are not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import pyarrow as pa

from distributary.errors import ConfigError, ErrorCode
from distributary.observe.locate import COORDINATES, Coordinates


def as_type(value: Any, column: pa.Field) -> pa.Scalar:
    """A value in the type of a column. Raises ConfigError."""
    try:
        return pa.scalar(value).cast(column.type)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise ConfigError(
            f"the value does not fit column {column.name}",
            evidence=f"{str(value)[:80]!r} is not of type {column.type}",
            next_step="give a value of that type, for a time like 2026-11-15T12:00:00Z",
        ) from error


def coordinates_of(row: Mapping[str, Any]) -> Coordinates | None:
    """Where the record of a row was read, if the table keeps that."""
    topic, partition, offset = (row.get(name) for name in COORDINATES.names)
    if offset is None:
        return None
    return Coordinates(topic or "", partition or 0, offset)


def missing(what: str, name: str, known: Sequence[str]) -> ConfigError:
    """The error for a name that nothing has."""
    near = get_close_matches(name, known, n=3)
    return ConfigError(
        what,
        code=ErrorCode.NOT_FOUND,
        evidence=repr(name[:100]),
        next_step=f"did you mean {', '.join(near)}?" if near else "distributary tables",
    )
