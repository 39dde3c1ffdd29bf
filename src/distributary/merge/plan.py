"""What one batch does to one table, worked out from both: the step between reading and writing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np
import pyarrow as pa

from distributary.merge.contest import NOBODY
from distributary.merge.decide import Decision, decide
from distributary.merge.definitions import Span, advanced, fits
from distributary.merge.events import Events
from distributary.merge.keys import Definition, KeyIndex
from distributary.merge.left_out import gathered
from distributary.merge.moves import Moves, memories, with_looks
from distributary.merge.sequence import Ints, Place, highest, place_of
from distributary.merge.shape import Shape
from distributary.merge.target import MemoryTarget, Part, Target
from distributary.merge.tombstones import Tombstones, made


@dataclass(frozen=True, slots=True)
class Plan:
    """The change of a table, before anything is written."""

    decision: Decision
    parts: list[Part]
    winners: pa.Table
    """Rows that come into the table, in its columns."""
    tombstones: pa.Table
    spans: tuple[Span, ...]

    def changed(self, part: Part) -> bool:
        """Whether rows of a file leave the table or become others."""
        numbers = part.known
        return bool(self.decision.gone[numbers].any() or self.decision.marked[numbers].any())


def plan(
    events: Events,
    target: Target | MemoryTarget,
    tombstones: Tombstones,
    *,
    shape: Shape,
    spans: tuple[Span, ...],
    soft: bool,
    now_us: int,
) -> Plan:
    """Find the rows that events speak of, and settle who wins."""
    after = partial(_spans, spans, events, target)
    events, moves = with_looks(events, tombstones)
    found, numbers = events.keys
    definitions = _definitions(found, spans, shape)
    keys = [KeyIndex(events.rows, definition) for definition in definitions]
    renumbered = np.array([definitions.index(each) for each in found] + [-1])
    moves, owner = moves.placed(renumbered[numbers])
    several = sorted({n for d in definitions for n in d}) if len(definitions) > 1 else []
    known, parts, values = target.find(
        keys,
        spans=spans,
        extra=[*events.left_out, *several],
        everything=bool(events.truncates.any()),
    )
    memory = tombstones.memory(events, keys)
    decision = decide(
        events, keys=keys, owner=owner, known=known, memory=memory, moves=moves, soft=soft
    )
    told = moves.behind(values)
    made_now = _tombstones(events, values, decision, definitions, now_us=now_us)
    kept = _kept(events, told, decision, moves, owner, definitions, now_us=now_us)
    return Plan(
        decision=decision,
        parts=parts,
        winners=_winners(events, told, decision, shape),
        tombstones=pa.concat_tables([made_now, *kept]),
        spans=after(),
    )


def _definitions(
    found: Sequence[Definition], spans: Sequence[Span], shape: Shape
) -> list[Definition]:
    have = set(shape.names)
    earlier = {span.key for span in spans if have.issuperset(span.key)}
    return sorted({*found, *earlier}) if found else []


def _winners(events: Events, values: pa.Table, decision: Decision, shape: Shape) -> pa.Table:
    columns: list[pa.ChunkedArray | pa.Array] = []
    for field in shape.schema:
        if field.name in decision.sources:
            sources = decision.sources[field.name]
            rows = values.column(field.name)
            columns.append(gathered(sources, events.rows.column(field.name), rows))
        elif field.name == "_deleted":
            columns.append(pa.array(decision.deleted, pa.bool_()))
        else:
            columns.append(events.rows.column(field.name).take(decision.winners))
    return pa.table(columns, schema=shape.schema)


def _kept(
    events: Events,
    values: pa.Table,
    decision: Decision,
    moves: Moves,
    owner: Ints,
    definitions: Sequence[Definition],
    *,
    now_us: int,
) -> Iterator[pa.Table]:
    """What rows had that live on under a key of which nothing is known yet."""
    some = np.zeros(len(moves.away), np.bool_)
    for sources in decision.moved.values():
        some |= sources != NOBODY
    for number, definition in enumerate(definitions):
        own = np.flatnonzero(some & (owner[moves.away] == number))
        away = moves.away[own]
        rows = pa.table(
            {
                name: gathered(sources[own], events.rows.column(name), values.column(name))
                for name, sources in decision.moved.items()
                if name not in definition
            }
        )
        if len(own) and rows.num_columns:
            keys = events.rows.select(definition).take(away)
            seq = events.seq.take(pa.array(away))
            yield memories(rows, keys, definition, seq, now_us=now_us)


def _tombstones(
    events: Events,
    values: pa.Table,
    decision: Decision,
    definitions: Sequence[Definition],
    *,
    now_us: int,
) -> pa.Table:
    size = events.rows.num_rows
    parts = []
    for number, who in decision.remember:
        names = [*definitions[number], "_seq"]
        rows = [events.rows.select(names).take(who[who < size])]
        if (who >= size).any():
            rows.append(values.select(names).take(who[who >= size] - size))
        parts.append(made(pa.concat_tables(rows), definitions[number], now_us=now_us))
    if decision.emptied is not None:
        parts.append(made(events.rows.slice(decision.emptied, 1), None, now_us=now_us))
    nothing = made(events.rows.slice(0, 0), None, now_us=now_us)
    return pa.concat_tables([nothing, *parts])


def _spans(
    spans: tuple[Span, ...], events: Events, target: Target | MemoryTarget
) -> tuple[Span, ...]:
    found, numbers = events.keys
    seq = events.seq.filter(pa.array(numbers >= 0))
    if not found or fits(spans, found, seq):
        return spans
    if not spans and len(found) == 1:
        return (Span(found[0]),)
    owner: Ints = numbers[numbers >= 0]
    seen = [(place_of(e), found[n]) for e, n in zip(seq.to_pylist(), owner, strict=True)]
    return advanced(spans, seen, _top(highest(each) for each in target.places()))


def _top(places: Iterable[Place | None]) -> Place | None:
    known = [place for place in places if place is not None]
    return reduce(max, known) if known else None
