"""People: one framed type of message, whose schema gains a measure with every version."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from distributary.errors import ConfigError
from distributary.simulate.base import MESSAGES, SchemaSink, Sink
from distributary.simulate.deliver import deliver
from distributary.simulate.dice import roll, seed_for
from distributary.simulate.rounds import Round, Tally
from distributary.simulate.schemas import (
    FIRST_CUSTOM_FIELD,
    MAX_VERSION,
    PEOPLE_SUBJECT,
    person,
    person_columns,
)
from distributary.simulate.sent import Sent
from distributary.simulate.wire import FIXED32, VARINT, delimited, header, tag, varint

Framing = Callable[[str, int], Callable[[bytes], bytes]]
"""From a schema's text and id: puts the registry's header before an encoded message."""

PERSON = "Person"
_FIRST_ID = 1234
_STEP_MILLIS = 20
_ROWS_PER_BATCH = 10_000


@dataclass(frozen=True, kw_only=True)
class PeoplePlan:
    """Exactly `versions * records` messages; version v has v measures."""

    versions: int = 2
    records: int = 10
    """Messages per version."""
    seed: int = 999
    start_version: int = 1
    subject: str = PEOPLE_SUBJECT
    start: datetime = datetime(2024, 1, 1, tzinfo=UTC)
    """Time of the first message of version 1."""

    def __post_init__(self) -> None:
        last = self.start_version + self.versions - 1
        counts = min(self.versions, self.records, self.start_version) >= 1
        if not counts or last > MAX_VERSION or self.start.tzinfo is None or not self.subject:
            raise ConfigError(
                "these people cannot be simulated",
                where="versions, records, start_version, subject, start",
                evidence=f"{self.versions}, {self.records}, {self.start_version}, {self.start}",
                next_step=f"at least 1 of each, no version above {MAX_VERSION}, a time with a zone",
            )


def produce_people(
    plan: PeoplePlan,
    *,
    registry: SchemaSink,
    sink: Sink,
    framing: Framing | None = None,
    rate: float | None = None,
    on_round: Callable[[Round], None] | None = None,
) -> Sent:
    """Register every version when its turn comes, send everything, and say what was sent.

    Args:
        plan: what to send.
        registry: where the schemas go.
        sink: where the messages go; one write per version, more with a rate.
        framing: who puts the registry's header before a message, when it is not done here.
        rate: messages a second; None for as fast as possible.
        on_round: called after each version, for progress.
    """
    rounds = stream_people(plan, registry=registry, framing=framing)
    return deliver(rounds, sink=sink, rate=rate, on_round=on_round)


def stream_people(
    plan: PeoplePlan, *, registry: SchemaSink, framing: Framing | None = None
) -> Iterator[Round]:
    """Version by version: each is registered when it is asked for, not before."""
    registry.set_compatibility(plan.subject, "FULL")
    ids: dict[int, int] = {}
    for number in range(plan.versions):
        version = plan.start_version + number
        ids[version] = registry.register(plan.subject, person(version))
        framed = (framing or _headed)(person(version), ids[version])
        tally = Tally(first_position=number * plan.records)
        yield Round(
            _batches(plan, version, framed=framed, tally=tally),
            number=number,
            version=version,
            tally=tally,
            schema_ids={PERSON: dict(ids)},
            columns={PERSON: person_columns(version)},
            type_changes={},
        )


def _headed(text: str, schema_id: int) -> Callable[[bytes], bytes]:
    return header(schema_id).__add__


def _batches(
    plan: PeoplePlan, version: int, *, framed: Callable[[bytes], bytes], tally: Tally
) -> Iterator[pa.RecordBatch]:
    seed = seed_for(plan.seed, "people")
    first = int(plan.start.timestamp() * 1000)
    start = (version - 1) * plan.records
    for low in range(start, start + plan.records, _ROWS_PER_BATCH):
        rows = range(low, min(low + _ROWS_PER_BATCH, start + plan.records))
        times = [first + row * _STEP_MILLIS for row in rows]
        tally.good[PERSON, version] += len(rows)
        tally.framed += len(rows)
        tally.add_times(times[0], times[-1])
        columns = [
            pa.array([PERSON] * len(rows), pa.string()),
            pa.array([framed(_person(seed, row, version)) for row in rows], pa.binary()),
            pa.array(times, pa.timestamp("ms", "UTC")).cast(MESSAGES.field("produced_at").type),
            pa.array([b"%d.%d" % (version, row - start) for row in rows], pa.binary()),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=MESSAGES)


def _person(seed: int, row: int, version: int) -> bytes:
    bits = roll(seed, row)
    fields = [
        tag(1, VARINT) + varint(_FIRST_ID + row),
        delimited(2, b"John%d Doe" % row),
        delimited(3, b"jdoe%d@example.com" % row),
        tag(4, VARINT) + varint(5678 + bits % 10_000),
    ]
    # quarters are exact in a float, so that a reader can compare them
    fields += [
        tag(FIRST_CUSTOM_FIELD + i, FIXED32) + struct.pack("<f", i + (bits >> i % 48 & 0xFF) / 4)
        for i in range(version)
    ]
    return b"".join(fields)
