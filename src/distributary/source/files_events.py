"""What the readers of all formats give: events as they are stored, and whose they are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import pyarrow as pa

from distributary.decode.changes import claim
from distributary.errors import ErrorCode
from distributary.source.files_steps import NAMES

BYTES_PER_BATCH = 32 * 1024 * 1024

_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
EARLIEST_US = -62_135_596_800_000_000
LATEST_US = 253_402_300_799_999_999
"""The years 1 to 9999: other times are those of no event."""


@dataclass(frozen=True, slots=True)
class Events:
    """Some events of a file, in their order."""

    values: pa.BinaryArray
    claims: pa.BinaryArray
    """The source table's names; null where an event does not tell them."""
    times: pa.Int64Array
    """The source's time in microseconds; null where an event does not tell it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A part of a file that cannot be read, or all of it."""

    code: ErrorCode
    reason: str
    data: bytes | None


def told_by(event: object) -> tuple[bytes | None, int | None]:
    """The claim and the time of an event that was parsed; neither where it is no event."""
    if not isinstance(event, dict):
        return None, None
    metadata = event.get("source_metadata")
    known = None
    if isinstance(metadata, dict):
        get = metadata.get
        try:
            known = claim_of(get("database"), get("schema"), get("table"), get("collection"))
        except TypeError:
            # a name that is a list or an object is none
            known = claim_of(*(n if isinstance(n, str) else None for n in map(get, NAMES)))
    return known, micros(event.get("source_timestamp"))


@lru_cache(maxsize=4096)
def claim_of(*names: str | None) -> bytes | None:
    """The claim of a table: few names stand for many events."""
    text = claim(dict(zip(NAMES, names, strict=True)))
    return text.encode() if text else None


def micros(time: object) -> int | None:
    """A time as Datastream writes it: milliseconds, or text, which is UTC if it does not say."""
    if isinstance(time, int) and not isinstance(time, bool):
        return time * 1000 if EARLIEST_US <= time * 1000 <= LATEST_US else None
    if isinstance(time, str):
        try:
            time = datetime.fromisoformat(time.strip())
        except ValueError:
            return None
    if not isinstance(time, datetime):
        return None
    moment = time if time.tzinfo else time.replace(tzinfo=UTC)
    return (moment - _BEGINNING) // timedelta(microseconds=1)


def parsed_events(values: Sequence[bytes], parsed: Iterable[object]) -> Events:
    """Events of which the content is known already."""
    told = [told_by(each) for each in parsed]
    return Events(
        pa.array(values, pa.binary()),
        pa.array([each[0] for each in told], pa.binary()),
        pa.array([each[1] for each in told], pa.int64()),
    )


def parsed_json(text: bytes) -> object:
    """What a JSON text says; None where it is none, which only its decoder reports."""
    try:
        return json.loads(text.decode())
    except (ValueError, RecursionError):
        return None
