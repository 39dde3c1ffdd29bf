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
EVENTS_PER_BATCH = 65_536
"""Events may be short: each is a row of several columns."""

_ROW_BYTES = 64
_MOST_CLAIM_BYTES = 4096
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

    @property
    def size(self) -> int:
        """Bytes that they take from here on, about: an event without content is a row too."""
        return int(self.values.nbytes) + _ROW_BYTES * len(self.values)


@dataclass(frozen=True, slots=True)
class Fault:
    """A part of a file that cannot be read, or all of it."""

    code: ErrorCode
    reason: str
    data: bytes | None

    @property
    def size(self) -> int:
        """Bytes that it takes from here on."""
        return len(self.data or b"") + _ROW_BYTES


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


def claim_of(*names: str | None) -> bytes | None:
    """The claim of a table: few names stand for many events, and long ones are not kept."""
    try:
        return _claim_of(*names)
    except _LongError as error:
        return error.claim


class _LongError(Exception):
    """A cache does not keep what is raised."""

    def __init__(self, claim: bytes) -> None:
        super().__init__()
        self.claim = claim


@lru_cache(maxsize=4096)
def _claim_of(*names: str | None) -> bytes | None:
    text = claim(dict(zip(NAMES, names, strict=True)))
    found = text.encode() if text else None
    if found is not None and len(found) > _MOST_CLAIM_BYTES:
        raise _LongError(found)
    return found


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


def parsed_json(text: bytes, most: int) -> object:
    """What a JSON text says; None where it is none, or too long, which only its decoder reports."""
    if len(text) > most:
        return None
    try:
        return json.loads(text.decode())
    except (ValueError, RecursionError):
        return None
