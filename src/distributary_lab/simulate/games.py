"""The simulator of games: wrapped events of many games, whose schemas grow over time."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.errors import ConfigError
from distributary_lab.simulate.base import BadKind, Round, SchemaSink, message_batch
from distributary_lab.simulate.dice import (
    CHANGED_FIELD,
    FIRST_CUSTOM_FIELD,
    FIXED32,
    MAX_VERSION,
    PEOPLE_SUBJECT,
    VARINT,
    WRAPPER,
    WRAPPER_SUBJECT,
    delimited,
    event,
    event_columns,
    event_subject,
    header,
    person,
    person_columns,
    roll,
    seed_for,
    tag,
    u64,
    varint,
)
from distributary_lab.simulate.game_records import (
    Encoded,
    GameRecords,
    GamesPlan,
    GoodRecord,
    bad_message,
)

_FIELDS_PER_BATCH = 200_000
_OVERSIZE_PER_BATCH = 16


def stream_rounds(plan: GamesPlan, *, registry: SchemaSink) -> Iterator[Round]:
    """Yield rounds; the schemas of a round are registered when it is requested."""
    registry.set_compatibility(WRAPPER_SUBJECT, "FULL")
    records = GameRecords(plan, wrapper_id=registry.register(WRAPPER_SUBJECT, WRAPPER))
    schema_ids: dict[str, dict[int, int]] = {name: {} for name in plan.names}
    for number in range(plan.versions):
        version = plan.version_of(number)
        ids = [_register(plan, registry, game, version) for game in range(plan.games)]
        records.add_version(version, ids)
        for name, schema_id in zip(plan.names, ids, strict=True):
            schema_ids[name][version] = schema_id
        changed = plan.type_change and version == plan.last_version
        yield Round(
            partial(_batches, records),
            number=number,
            version=version,
            first_position=plan.good_before(number) + plan.bad_before(number),
            schema_ids=schema_ids,
            columns={name: event_columns(name, version) for name in plan.names},
            type_changes={plan.names[0]: CHANGED_FIELD} if changed else {},
        )


def _register(plan: GamesPlan, registry: SchemaSink, game: int, version: int) -> int:
    name = plan.names[game]
    changed = plan.changes_type(game, version)
    if version == plan.start_version or changed:
        # the compatibility level must be set before the version that it applies to
        registry.set_compatibility(event_subject(name), "NONE" if changed else "FULL")
    return registry.register(event_subject(name), event(name, version, changed=changed))


def _batches(records: GameRecords, round: Round) -> Iterator[pa.RecordBatch]:
    plan = records.plan
    sent, k = plan.good_before(round.number), plan.bad_before(round.number)
    for indexes, slots in _parts(plan, round.number):
        encoded = records.encode(pa.array(indexes, pa.uint64()))
        in_time = slots is indexes
        times = encoded.times if in_time else records.times(pa.array(slots, pa.uint64()))
        bads: list[tuple[int, bytes | None, bytes | None]] = []
        while k < plan.bad and plan.bad_after(k) <= sent + len(indexes):
            after = plan.bad_after(k) - sent - 1
            parts = (encoded.games, encoded.versions, encoded.payloads)
            record = GoodRecord(*(part[after].as_py() for part in parts))
            bads.append((after, *bad_message(records, record, k=k)))
            round.add_bad(plan.bad_kind(k).code, position=plan.bad_after(k) + k)
            k += 1
        sent += len(indexes)
        round.late += 0 if in_time else len(indexes)
        _count(round, encoded, plan)
        round.add_times(times[0].as_py(), times[-1].as_py())
        types, keys = records.names.take(encoded.games), records.keys.take(encoded.games)
        yield _interleaved(message_batch(types, encoded.values, times, keys), bads)


def _parts(plan: GamesPlan, number: int) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Yield the records of a round and their time slots, in parts that fit into memory."""
    rows = max(1, _FIELDS_PER_BATCH // (plan.version_of(number) + 10))
    if plan.bad and BadKind.OVERSIZE_PAYLOAD in plan.bad_kinds:
        rows = min(rows, max(1, _OVERSIZE_PER_BATCH * plan.good // plan.bad))
    indexes = plan.in_time(number)
    for start in range(0, len(indexes), rows):
        part = indexes[start : start + rows]
        yield part, part
    if number == plan.versions - 1:
        for start in range(0, plan.late, rows):
            end = start + rows
            yield plan.held_back[start:end], plan.late_slots[start:end]


def _count(round: Round, encoded: Encoded, plan: GamesPlan) -> None:
    places = pc.add(pc.multiply(encoded.versions, u64(plan.games)), encoded.games)
    for entry in pc.value_counts(places).to_pylist():
        version, game = divmod(entry["values"], plan.games)
        round.good[plan.names[game], version] += entry["counts"]
    round.framed += pc.sum(encoded.framed).as_py()


def _interleaved(
    good: pa.RecordBatch, bads: list[tuple[int, bytes | None, bytes | None]]
) -> pa.RecordBatch:
    """Insert the bad messages between the good ones, each after its good message."""
    if not bads:
        return good
    before, keys, values = zip(*bads, strict=True)
    times = good["produced_at"].take(pa.array(before))
    columns = {"type": [None] * len(bads), "value": values, "produced_at": times, "key": keys}
    bad = pa.RecordBatch.from_pydict(columns, schema=good.schema)
    last = np.arange(len(good), len(good) + len(bads))
    order = np.insert(np.arange(len(good)), np.add(before, 1), last)
    return pa.concat_batches([good, bad]).take(pa.array(order))


# The simulator of people: one framed type, whose schema gains a measure with every version.

PERSON = "Person"
_FIRST_ID = 1234
_STEP_MILLIS = 20
_ROWS_PER_BATCH = 10_000


@dataclass(frozen=True, kw_only=True)
class PeoplePlan:
    """Exactly `versions * records` messages; version v has v measures."""

    versions: int = 2
    records: int = 10
    """Number of messages per version."""
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
                next_step=f"use at least 1 of each, version {MAX_VERSION} at most, and a zone",
            )


def stream_people(plan: PeoplePlan, *, registry: SchemaSink) -> Iterator[Round]:
    """Yield rounds; each version is registered when its round is requested."""
    registry.set_compatibility(plan.subject, "FULL")
    ids: dict[int, int] = {}
    for number in range(plan.versions):
        version = plan.start_version + number
        ids[version] = registry.register(plan.subject, person(version))
        yield Round(
            partial(_batches_of_people, plan, header(ids[version])),
            number=number,
            version=version,
            first_position=number * plan.records,
            schema_ids={PERSON: ids},
            columns={PERSON: person_columns(version)},
        )


def _batches_of_people(plan: PeoplePlan, head: bytes, round: Round) -> Iterator[pa.RecordBatch]:
    version = round.version
    seed = seed_for(plan.seed, "people")
    first = int(plan.start.timestamp() * 1000)
    start = (version - 1) * plan.records
    for low in range(start, start + plan.records, _ROWS_PER_BATCH):
        rows = range(low, min(low + _ROWS_PER_BATCH, start + plan.records))
        times = [first + row * _STEP_MILLIS for row in rows]
        round.good[PERSON, version] += len(rows)
        round.framed += len(rows)
        round.add_times(times[0], times[-1])
        yield message_batch(
            [PERSON] * len(rows),
            [head + _person(seed, row, version) for row in rows],
            pa.array(times),
            [b"%d.%d" % (version, row - start) for row in rows],
        )


def _person(seed: int, row: int, version: int) -> bytes:
    bits = roll(seed, row)
    fields = [
        tag(1, VARINT) + varint(_FIRST_ID + row),
        delimited(2, b"John%d Doe" % row),
        delimited(3, b"jdoe%d@example.com" % row),
        tag(4, VARINT) + varint(5678 + bits % 10_000),
    ]
    # quarters are exact in a float, so that readers can compare values
    fields += [
        tag(FIRST_CUSTOM_FIELD + i, FIXED32) + struct.pack("<f", i + (bits >> i % 48 & 0xFF) / 4)
        for i in range(version)
    ]
    return b"".join(fields)
