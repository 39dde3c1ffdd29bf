"""Points in time as ISO-8601 text; UTC where no zone is named."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

MOMENT_SCHEMA = {"type": "string", "pattern": r"^\s*[0-9]{4}-?[0-9W]"}


def parse_moment(value: object) -> datetime:
    """`2026-01-31T12:00:00Z` or a date; a datetime passes. Of a number, nobody knows the unit."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            value = None
    if not isinstance(value, datetime):
        raise PydanticCustomError("moment", "must be a time such as 2026-01-31T12:00:00Z")
    return value if value.tzinfo else value.replace(tzinfo=UTC)


Moment = Annotated[
    datetime,
    PlainValidator(parse_moment),
    PlainSerializer(datetime.isoformat, return_type=str),
    WithJsonSchema(MOMENT_SCHEMA),
]
