"""A limited sample of a source that is not configured yet, for `init`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from distributary.errors import DistributaryError, ErrorCode

MOST_RECORDS = 200
MOST_BYTES = 16 << 20
"""Of all records together; one record may be larger, and is then the last."""


@dataclass(frozen=True, slots=True)
class SampledRecord:
    """The parts of a sampled record."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    topic: str = ""
    """Of files: their path below the folder."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Sampled records of one source, and their origin."""

    topic: str
    records: tuple[SampledRecord, ...]
    looked_at: str
    """A phrase: `200 of 10,000 records of topic orders, the oldest and the newest`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the section `source` beside those of the user."""
    faults: tuple[str, ...] = ()
    """The reason why a part of the sample could not be read."""


def records_of(batch: pa.RecordBatch) -> Iterator[SampledRecord]:
    """Yield the raw records of a batch."""
    for row in batch.select(["key", "value", "headers", "topic"]).to_pylist():
        headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
        yield SampledRecord(row["key"], row["value"], headers, row["topic"])


def unclear(what: str, *, looked_at: str, evidence: str, next_step: str) -> DistributaryError:
    """Return the error for records without a recognised format."""
    return DistributaryError(
        what,
        code=ErrorCode.SOURCE_UNCLEAR,
        where=looked_at,
        evidence=evidence,
        next_step=next_step,
    )


def described(records: Iterable[SampledRecord]) -> str:
    """Describe the values: how many, how long, and their first bytes."""
    values = [record.value for record in records if record.value is not None]
    if not values:
        return "no record has a value"
    sizes = sorted(map(len, values))
    starts = Counter(value[:8].hex(" ") for value in values).most_common(2)
    begin = " or ".join(start or "nothing" for start, _ in starts)
    return f"{len(values):,} values of {sizes[0]:,} to {sizes[-1]:,} bytes that begin with {begin}"
