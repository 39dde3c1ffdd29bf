"""What was removed from a table, remembered for a while: a late older event must not bring it back.

A Delta table of its own beside the merged one. It is written before the merged table: a memory of
a row that is still there does no harm, a row without a memory could come back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.merge.commit import Changeset, commit, write_rows
from distributary.merge.contest import Memory
from distributary.merge.events import Events
from distributary.merge.keys import Definition, KeyIndex, key_texts
from distributary.merge.order import SEQ_COLUMN
from distributary.merge.sequence import Flags, ranks
from distributary.merge.snapshot import LiveFile, Snapshot, load
from distributary.model.change import SEQ
from distributary.model.record import TIMESTAMP
from distributary.model.table import Column
from distributary.publish.base import Mark
from distributary.publish.columns import Field, fields_of
from distributary.publish.races import until_not_overtaken

ROW, TRUNCATE, MOVED = "row", "truncate", "moved"
TOMBSTONE_COLUMNS = (
    Column(
        "kind",
        pa.string(),
        "row: one row is gone; truncate: all that was before is; moved: one got another key",
    ),
    Column("definition", pa.string(), "names of the key's columns, as a JSON list"),
    Column("key", pa.string(), "the key's values, as a JSON object without what is null"),
    SEQ_COLUMN,
    Column("removed_at", TIMESTAMP, "when it was removed here: it is forgotten after a while"),
    Column("row", pa.binary(), "of a row that got another key, what it had: a stream of Arrow"),
)
SCHEMA = pa.schema([pa.field(column.name, column.type) for column in TOMBSTONE_COLUMNS])
MOST_FILES = 2
"""Small ones: then they become one, without what is older than the horizon or known better."""
SMALL_FILE = 2**20
"""Bytes."""


@dataclass(frozen=True, slots=True)
class Tombstones:
    """What is remembered of a table's rows, as of one version."""

    folder: str
    rows: pa.Table
    since_us: int
    """What was removed before this moment is forgotten."""

    def memory(self, events: Events, keys: Sequence[KeyIndex]) -> Memory:
        """What concerns the rows that events speak of."""
        parts = [_met(self.rows, events, index) for index in keys] if self.rows.num_rows else []
        owners = [np.full(len(groups), number) for number, (_, groups) in enumerate(parts)]
        none = np.zeros(0, np.int64)
        found = pc.equal(self.rows.column("kind"), TRUNCATE)
        return Memory(
            seq=_one([seq for seq, _ in parts]),
            owner=np.concatenate([none, *owners]),
            groups=np.concatenate([none, *(groups for _, groups in parts)]),
            truncated=_one([self.rows.column("_seq").filter(found)]),
        )


def open_tombstones(folder: str, *, app_id: str, now_us: int, horizon: int) -> Tombstones:
    """All that is still remembered at a moment."""
    snapshot = load(folder, app_id=app_id)
    rows = SCHEMA.empty_table() if snapshot is None else snapshot.rows(SCHEMA)
    since = now_us - horizon * 1_000_000
    return Tombstones(folder, _since(rows, since), since)


def made(rows: pa.Table, definition: Definition | None, *, now_us: int) -> pa.Table:
    """Tombstones of rows under a key, or of the whole table at the places of the rows."""
    size = rows.num_rows
    named = definition is not None
    return pa.table(
        [
            pa.repeat(pa.scalar(ROW if named else TRUNCATE), size),
            pa.repeat(pa.scalar(definition_text(definition or ())), size),
            key_texts(rows, definition) if definition else pa.repeat(pa.scalar(""), size),
            rows.column("_seq"),
            pa.repeat(pa.scalar(now_us, pa.int64()).cast(TIMESTAMP), size),
            pa.nulls(size, pa.binary()),
        ],
        schema=SCHEMA,
    )


def kept_as(keys: Sequence[str], seq: pa.StructArray, rows: pa.Table, *, now_us: int) -> pa.Table:
    """Rows, to be kept whole under texts that name them."""
    size = rows.num_rows
    return pa.table(
        [
            pa.repeat(pa.scalar(MOVED), size),
            pa.repeat(pa.scalar(""), size),
            pa.array(keys, pa.string()),
            seq,
            pa.repeat(pa.scalar(now_us, pa.int64()).cast(TIMESTAMP), size),
            pa.array([_stream(rows.slice(at, 1)) for at in range(size)], pa.binary()),
        ],
        schema=SCHEMA,
    )


def _stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    # a slice would be written with all that it is a slice of
    own = rows.take([0])
    with pa.ipc.new_stream(sink, own.schema) as writer:
        writer.write_table(own)
    return bytes(sink.getvalue().to_pybytes())


def definition_text(definition: Definition) -> str:
    """How a key is named in the table of tombstones."""
    return json.dumps(definition, ensure_ascii=False)


def remember(known: Tombstones, new: pa.Table, *, table: str, mark: Mark) -> None:
    """Add tombstones, once for a batch."""
    if new.num_rows:
        until_not_overtaken(lambda: _add(known, new, table=table, mark=mark))


def replace_all(folder: str, rows: pa.Table, *, table: str) -> None:
    """Forget everything, and remember this instead."""
    before = load(folder)
    if before is None and not rows.num_rows:
        return
    staged = (write_rows(rows, folder),) if rows.num_rows else ()
    change = Changeset(
        "REBUILD",
        f"{table} tombstones",
        fields=_fields(before),
        removed=() if before is None else before.files,
        added=staged,
    )
    commit(folder, before, change)


def _add(known: Tombstones, new: pa.Table, *, table: str, mark: Mark) -> None:
    before = load(known.folder, app_id=mark.app_id)
    if before is not None and before.has(mark.app_id, mark.batch):
        return
    removed = [] if before is None else _to_compact(before)
    if before is not None and removed:
        old = [before.read(file, SCHEMA) for file in removed]
        new = latest(_since(pa.concat_tables([*old, new]), known.since_us))
    change = Changeset(
        "MERGE",
        f"{table} tombstones",
        comment=f"rows that were removed from table {table}",
        fields=_fields(before),
        removed=removed,
        added=(write_rows(new, known.folder),),
        mark=mark,
        metrics={"numOutputRows": new.num_rows},
    )
    commit(known.folder, before, change)


def _fields(before: Snapshot | None) -> list[Field] | None:
    """The columns, for a table that has none yet, or fewer."""
    known = before is not None and len(before.fields) == len(TOMBSTONE_COLUMNS)
    return None if known else fields_of(TOMBSTONE_COLUMNS)


def _to_compact(before: Snapshot) -> list[LiveFile]:
    small = [file for file in before.files if file.size <= SMALL_FILE]
    if len(small) < MOST_FILES:
        return []
    # now and then the large ones too: most of what they hold may be forgotten
    large = [file for file in before.files if file.size > SMALL_FILE]
    return [*small, *(large if len(large) >= MOST_FILES else ())]


def _since(rows: pa.Table, since_us: int) -> pa.Table:
    since = pa.scalar(since_us, pa.int64()).cast(TIMESTAMP)
    return rows.filter(pc.greater_equal(rows.column("removed_at"), since))


def latest(rows: pa.Table) -> pa.Table:
    """The last tombstone of each key."""
    rank = ranks([rows.column("_seq")])[0]
    index = KeyIndex(rows, ("definition", "key", "kind"))
    order = np.lexsort((rank, index.groups))
    groups = index.groups[order]
    last: Flags = np.append(groups[1:] != groups[:-1], True) if len(order) else order > 0
    return rows.take(np.sort(order[last]))


def _met(rows: pa.Table, events: Events, index: KeyIndex) -> tuple[pa.Array, np.ndarray]:
    """Tombstones under a key that agree with an event, and the group of each."""
    text = definition_text(index.definition)
    of_rows = pc.equal(rows.column("kind"), ROW)
    mine = rows.filter(pc.and_(of_rows, pc.equal(rows.column("definition"), text)))
    if mine.num_rows == 0:
        return pa.array([], SEQ), np.zeros(0, np.int64)
    texts = key_texts(events.rows, index.definition)
    found = pc.index_in(mine.column("key"), value_set=texts)
    met = pc.is_valid(found)
    numbers = found.filter(met).to_numpy()
    return _one([mine.column("_seq").filter(met)]), index.groups[numbers]


def _one(columns: Sequence[pa.Array | pa.ChunkedArray]) -> pa.Array:
    chunks: list[pa.Array] = []
    for column in columns:
        chunks += column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return pa.concat_arrays([*chunks, pa.array([], SEQ)])
