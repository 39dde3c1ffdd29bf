"""Rows that get another key: what the new row leaves out is what the old one had.

A source reports such a change as two halves at one place: a delete of the old row, an insert of the
new one. Of large values that did not change the insert says nothing. Who wants to know them looks
under the old key, just before the delete. If the halves come in different batches the old row may
be gone by then, so what a delete removes whose other half is not there is kept with the tombstones.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.merge.conform import conform
from distributary.merge.events import Events
from distributary.merge.keys import Definition, key_texts
from distributary.merge.old_keys import OLD_KEY, OldKeys, read_old_keys
from distributary.merge.sequence import Flags, Ints
from distributary.merge.tombstones import MOVED, Tombstones, definition_text, kept_as
from distributary.model.change import SEQ

_POSITION = ("phase", "ts", "a", "b", "c")


def _none() -> Ints:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Moves:
    """What there is to look up under other keys."""

    asking: Ints = field(default_factory=_none)
    """Events that gave their row another key and leave values out."""
    looks: Ints = field(default_factory=_none)
    """For each the number of a row behind the events: the old key, just before the change."""
    owner: Ints = field(default_factory=_none)
    """For each the number of the old key's definition."""
    kept: Ints = field(default_factory=_none)
    """For each the number of what was kept of the old row, or -1."""
    rows: pa.Table | None = None
    """What was kept."""
    away: Ints = field(default_factory=_none)
    """Deletes of rows that live on under another key, of which nothing is known yet."""

    def placed(self, owner: Ints) -> tuple[Moves, Ints]:
        """The same with the definitions of rows, which are then no one's but the events'."""
        own = owner.copy()
        own[self.looks] = -1
        return replace(self, owner=owner[self.looks]), own

    def behind(self, values: pa.Table) -> pa.Table:
        """Values of known rows, and of those that were kept behind them."""
        if self.rows is None:
            return values
        more = conform(self.rows, values.schema, rows=self.rows.num_rows, lenient=True)
        return pa.concat_tables([values, more])


def with_looks(events: Events, tombstones: Tombstones) -> tuple[Events, Moves]:
    """The events, behind them the places to look at, and what has to be looked up."""
    away = _away(events)
    if not len(events.asking):
        return events, Moves(away=away)
    own = pa.schema([events.rows.schema.field(name) for name in events.own_names])
    size, asking, parts = events.rows.num_rows, [], [events.rows]
    texts: list[str] = []
    for old in read_old_keys(events.rows.column(OLD_KEY.name), events.asking, own):
        seq = just_before(events.seq.take(pa.array(old.events)))
        asking.append(old.events)
        parts.append(_rows(old, seq, events.rows.schema))
        texts += memory_keys(old.rows, old.definition, seq)
    numbers = np.concatenate([_none(), *asking])
    kept, rows = _kept(tombstones, texts)
    looks = size + np.arange(len(numbers))
    return Events(pa.concat_tables(parts)), Moves(numbers, looks, kept=kept, rows=rows, away=away)


def just_before(seq: pa.StructArray) -> pa.StructArray:
    """Places before all that is at a position of the source: before both halves of a change."""
    whole = pa.concat_arrays([seq, pa.array([], SEQ)])
    fields = {each.name: whole.field(each.name) for each in SEQ}
    fields["half"] = pa.repeat(pa.scalar(0, SEQ.field("half").type), len(seq))
    fields["tie"] = pa.repeat(pa.scalar(""), len(seq))
    return pa.StructArray.from_arrays([*fields.values()], fields=[*SEQ])


def memories(
    rows: pa.Table, keys: pa.Table, definition: Definition, seq: pa.StructArray, *, now_us: int
) -> pa.Table:
    """What is to be remembered of rows that got another key, as tombstones."""
    before = just_before(seq)
    return kept_as(memory_keys(keys, definition, before), before, rows, now_us=now_us)


def memory_keys(keys: pa.Table, definition: Definition, before: pa.StructArray) -> list[str]:
    """Under which name it is kept what a row had at a place."""
    name = definition_text(definition)
    at = [[place[part] for part in _POSITION] for place in before.to_pylist()]
    texts = key_texts(keys, definition).to_pylist()
    return [json.dumps([name, *each]) for each in zip(texts, at, strict=True)]


def leaving(events: Events) -> Ints:
    """Deletes with which a change of key begins, by a source that leaves values out."""
    half: Ints = events.seq.field("half").fill_null(1).to_numpy(zero_copy_only=False)
    left = pc.greater(pc.list_value_length(events.rows.column("_unchanged")), 0)
    says_little: Flags = left.fill_null(False).to_numpy(zero_copy_only=False)
    return np.flatnonzero(events.deletes & (half == 0) & says_little & (events.keys[1] >= 0))


def _away(events: Events) -> Ints:
    """Those of them whose other half is not among the events."""
    first = leaving(events)
    if not len(first):
        return first
    position = _positions(events.seq)
    others = np.flatnonzero(~events.deletes & ~events.truncates)
    return first[~np.isin(position[first], position[others])]


def _positions(seq: pa.StructArray) -> Ints:
    """One number for each position, whatever the half."""
    parts = [seq.field(name).cast(pa.int64()).to_numpy(zero_copy_only=False) for name in _POSITION]
    numbers: Ints = np.unique(np.stack(parts, axis=1), axis=0, return_inverse=True)[1]
    return numbers.reshape(-1)


def _rows(old: OldKeys, seq: pa.StructArray, schema: pa.Schema) -> pa.Table:
    size = len(seq)
    names = pa.array([list(old.definition)] * size, pa.list_(pa.string()))
    told = {"_key": names, "_seq": seq} | {n: old.rows.column(n) for n in old.definition}
    columns = [
        told[each.name] if each.name in told else pa.nulls(size, each.type) for each in schema
    ]
    return pa.table(columns, schema=schema)


def _kept(tombstones: Tombstones, texts: Sequence[str]) -> tuple[Ints, pa.Table | None]:
    """For each text the number of what was kept under it, and all of that."""
    mine = tombstones.rows.filter(pc.equal(tombstones.rows.column("kind"), MOVED))
    found = pc.index_in(pa.array(texts, pa.string()), value_set=mine.column("key").combine_chunks())
    at = np.unique(found.drop_null().to_numpy())
    if not len(at):
        return np.full(len(texts), -1), None
    rows = [pa.ipc.open_stream(row).read_all() for row in mine.column("row").take(at).to_pylist()]
    numbers = np.searchsorted(at, found.fill_null(0).to_numpy())
    kept: Ints = np.where(found.is_valid().to_numpy(zero_copy_only=False), numbers, -1)
    return kept, _together(rows)


def _together(rows: Sequence[pa.Table]) -> pa.Table:
    """Rows that were kept at different times may differ in their columns: the newest types win."""
    fields = {column.name: column for each in rows for column in each.schema}
    schema = pa.schema([*fields.values()])
    return pa.concat_tables([conform(each, schema, rows=1, lenient=True) for each in rows])
