"""The games: one stream of wrapped events of many games, whose schemas grow while it flows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from distributary.simulate.bad import BadMessage, Event, bad_message
from distributary.simulate.base import MESSAGES, SchemaSink, Sink
from distributary.simulate.deliver import deliver
from distributary.simulate.dice import u64
from distributary.simulate.games_plan import GamesPlan
from distributary.simulate.kinds import BadKind
from distributary.simulate.records import Encoded, GameRecords
from distributary.simulate.rounds import Round, Tally
from distributary.simulate.schemas import (
    CHANGED_FIELD,
    WRAPPER,
    WRAPPER_SUBJECT,
    event,
    event_columns,
    event_subject,
)
from distributary.simulate.sent import Sent

__all__ = ["GamesPlan", "produce_games", "stream_rounds"]

_FIELDS_PER_BATCH = 200_000
_OVERSIZE_PER_BATCH = 16


def produce_games(
    plan: GamesPlan,
    *,
    registry: SchemaSink,
    sink: Sink,
    rate: float | None = None,
    on_round: Callable[[Round], None] | None = None,
) -> Sent:
    """Register every version when its turn comes, send everything, and say what was sent.

    Args:
        plan: what to send.
        registry: where the schemas go.
        sink: where the messages go; one write per round, more with a rate.
        rate: messages a second; None for as fast as possible.
        on_round: called after each round, for progress.
    """
    rounds = stream_rounds(plan, registry=registry)
    return deliver(rounds, sink=sink, rate=rate, on_round=on_round)


def stream_rounds(plan: GamesPlan, *, registry: SchemaSink) -> Iterator[Round]:
    """Round by round: the schemas of a round are registered when it is asked for, not before."""
    registry.set_compatibility(WRAPPER_SUBJECT, "FULL")
    records = GameRecords(plan, wrapper_id=registry.register(WRAPPER_SUBJECT, WRAPPER))
    schema_ids: dict[str, dict[int, int]] = {name: {} for name in plan.names}
    for number in range(plan.round_count):
        version = plan.version_of(number)
        if number < plan.versions:
            ids = [_register(plan, registry, game, version) for game in range(plan.games)]
            records.add_version(version, ids)
            for name, schema_id in zip(plan.names, ids, strict=True):
                schema_ids[name][version] = schema_id
        changed = plan.type_change and version == plan.last_version
        tally = Tally(first_position=plan.good_before(number) + plan.bad_before(number))
        yield Round(
            _batches(records, number=number, tally=tally),
            number=number,
            version=version,
            tally=tally,
            schema_ids={name: dict(ids) for name, ids in schema_ids.items()},
            columns={name: event_columns(name, version) for name in plan.names},
            type_changes={plan.names[0]: CHANGED_FIELD} if changed else {},
        )


def _register(plan: GamesPlan, registry: SchemaSink, game: int, version: int) -> int:
    name = plan.names[game]
    changed = plan.changes_type(game, version)
    if version == plan.start_version or changed:
        # the level goes first: it must hold for the very version that it is about
        registry.set_compatibility(event_subject(name), "NONE" if changed else "FULL")
    return registry.register(event_subject(name), event(name, version, changed=changed))


def _batches(records: GameRecords, *, number: int, tally: Tally) -> Iterator[pa.RecordBatch]:
    plan = records.plan
    sent, k = plan.good_before(number), plan.bad_before(number)
    for indexes, slots in _parts(plan, number):
        encoded = records.encode(pa.array(indexes, pa.uint64()))
        in_time = slots is indexes
        times = encoded.times if in_time else records.times(pa.array(slots, pa.uint64()))
        bads: list[tuple[int, BadMessage]] = []
        while k < plan.bad and plan.bad_after(k) <= sent + len(indexes):
            after = plan.bad_after(k) - sent - 1
            bads.append((after, bad_message(records, _event(encoded, after), k=k)))
            tally.add_bad(bads[-1][1].kind.code, position=plan.bad_after(k) + k)
            k += 1
        sent += len(indexes)
        tally.late += 0 if in_time else len(indexes)
        _count(tally, encoded, plan)
        tally.add_times(times[0].as_py(), times[-1].as_py())
        yield _interleaved(_good(records, encoded, times), bads)


def _parts(plan: GamesPlan, number: int) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """The records of a round and their slots in time, in parts that fit into memory."""
    rows = max(1, _FIELDS_PER_BATCH // (plan.version_of(number) + 10))
    if plan.bad and BadKind.OVERSIZE_PAYLOAD in plan.bad_kinds:
        rows = min(rows, max(1, _OVERSIZE_PER_BATCH * plan.good // plan.bad))
    indexes = plan.in_time(number)
    for start in range(0, len(indexes), rows):
        part = indexes[start : start + rows]
        yield part, part
    if number == plan.round_count - 1:
        for start in range(0, plan.late, rows):
            end = start + rows
            yield plan.held_back[start:end], plan.late_slots[start:end]


def _event(encoded: Encoded, at: int) -> Event:
    return Event(
        game=encoded.games[at].as_py(),
        version=encoded.versions[at].as_py(),
        payload=encoded.payloads[at].as_py(),
    )


def _count(tally: Tally, encoded: Encoded, plan: GamesPlan) -> None:
    places = pc.add(pc.multiply(encoded.versions, u64(plan.games)), encoded.games)
    for entry in pc.value_counts(places).to_pylist():
        version, game = divmod(entry["values"], plan.games)
        tally.good[plan.names[game], version] += entry["counts"]
    tally.framed += pc.sum(encoded.framed).as_py()


def _good(records: GameRecords, encoded: Encoded, times: pa.UInt64Array) -> pa.RecordBatch:
    return _batch(
        records.names.take(encoded.games),
        encoded.values,
        times,
        records.keys.take(encoded.games),
    )


def _batch(
    types: pa.StringArray, values: pa.BinaryArray, times: pa.UInt64Array, keys: pa.BinaryArray
) -> pa.RecordBatch:
    moments = times.cast(pa.int64()).cast(pa.timestamp("ms", "UTC"))
    produced_at = moments.cast(MESSAGES.field("produced_at").type)
    return pa.RecordBatch.from_arrays([types, values, produced_at, keys], schema=MESSAGES)


def _interleaved(good: pa.RecordBatch, bads: list[tuple[int, BadMessage]]) -> pa.RecordBatch:
    if not bads:
        return good
    before = [after for after, _ in bads]
    bad = pa.RecordBatch.from_arrays(
        [
            pa.nulls(len(bads), pa.string()),
            pa.array([message.value for _, message in bads], pa.binary()),
            good["produced_at"].take(before),
            pa.array([message.key for _, message in bads], pa.binary()),
        ],
        schema=MESSAGES,
    )
    order: list[int] = []
    start = 0
    for n, after in enumerate(before):
        order += range(start, after + 1)
        order.append(len(good) + n)
        start = after + 1
    order += range(start, len(good))
    return pa.concat_batches([good, bad]).take(pa.array(order))
