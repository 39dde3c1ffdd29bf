"""Tombstones: records of removed rows, so that a late older event does not bring a row back.

They are in a separate Delta table beside the merged one, which is written first: a tombstone of a
row that still exists is harmless, while a removed row without one could come back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.contest import Memory
from distributary.changes.events.log_events import (
    ChangeEvents,
    Definition,
    Flags,
    Ints,
    KeyIndex,
    combined,
    fractional,
    key_texts,
    ranks,
    shortened,
    whole,
)
from distributary.changes.merge_order import SEQ_COLUMN, TIME_COLUMN, TombstonesBehindError
from distributary.delta.column_merge import Field, fields_of
from distributary.delta.commit import Change, rewrite_files, write_rows
from distributary.delta.log import DataFile, Snapshot, snapshot_of
from distributary.delta.tables import committing, until_not_overtaken
from distributary.model.change import SEQ
from distributary.model.incarnation import integers
from distributary.model.manifest import Mark
from distributary.model.record import TIMESTAMP
from distributary.model.table import Column

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
    Column("source_ts", TIMESTAMP, "the source's time of the removal"),
)
SCHEMA = pa.schema([pa.field(column.name, column.type) for column in TOMBSTONE_COLUMNS])
MOST_FILES = 2
"""The number of small files that are combined, without expired and repeated tombstones."""
SMALL_FILE = 2**20
"""The size in bytes below which a file is small."""
_APP = "distributary/tombstones/"
"""The prefix of a mark of a merged table. The id of the table of tombstones follows. The number
says with how many of its commits the table was merged; 0 for a table of tombstones that was
replaced."""


@dataclass(frozen=True, slots=True)
class Tombstones:
    """The tombstones of a table at one version."""

    folder: str
    rows: pa.Table
    since_us: int
    """The moment before which tombstones have expired."""
    table: Snapshot | None = None
    """The version from which the tombstones were read."""

    def memory(self, events: ChangeEvents, keys: Sequence[KeyIndex]) -> Memory:
        """Return the tombstones of the rows that events concern."""
        parts = [_met(self.rows, events, index) for index in keys] if self.rows.num_rows else []
        owners = [np.full(len(groups), number) for number, (_, groups, _) in enumerate(parts)]
        none = np.zeros(0, np.int64)
        found = pc.equal(self.rows.column("kind"), TRUNCATE)
        return Memory(
            seq=whole([seq for seq, _, _ in parts]),
            owner=np.concatenate([none, *owners]),
            groups=np.concatenate([none, *(groups for _, groups, _ in parts)]),
            time=np.concatenate([none, *(times for _, _, times in parts)]),
            truncated=combined(self.rows.column("_seq").filter(found)),
        )


def open_tombstones(folder: str, *, now_us: int, horizon: int) -> Tombstones:
    """Read the tombstones that have not expired at a moment."""
    snapshot = snapshot_of(folder)
    rows = SCHEMA.empty_table() if snapshot is None else snapshot.rows(SCHEMA)
    since = now_us - horizon * 1_000_000
    return Tombstones(folder, _since(rows, since), since, snapshot)


def refuse_behind(known: Tombstones, merged: Snapshot | None, *, table: str) -> None:
    """Raise if a merged table was merged with a later or another table of tombstones.

    Rows that were deleted in between could come back with a late event. Tables without such a mark,
    of earlier versions, are not checked, nor are tables that only Spark may write.
    """
    marks = {} if merged is None or merged.no_changes() else merged.marks
    seen = {app: count for app, count in marks.items() if app.startswith(_APP) and count}
    have = _counted(known.table)
    if not seen or any(have.get(app, 0) >= count for app, count in seen.items()):
        return
    version = max(seen.values()) - 1
    found = "it is gone" if known.table is None else f"it is at version {known.table.version}"
    raise TombstonesBehindError(
        f"the tombstones of rows deleted from table {table} are older than the table",
        where=known.folder,
        evidence=f"the table was merged with version {version} of this folder; now {found}",
        next_step="put the newest copy of this folder back; without one, `distributary reset FILE "
        f"--table {table}` accepts the folder as it is: a late event may then bring a deleted row "
        "back",
    )


def marks_for(merged: Snapshot | None, tombstones: Snapshot | None) -> dict[str, int]:
    """Return the changed marks by which a merged table identifies its tombstones.

    The marks of replaced tables of tombstones become 0.
    """
    known = {} if merged is None else merged.marks
    have = _counted(tombstones)
    had = {app: 0 for app in known if app.startswith(_APP)}
    return {app: count for app, count in {**had, **have}.items() if known.get(app) != count}


def take_as_they_are(path: str, folder: str, *, table: str) -> None:
    """Accept the current tombstones of a merged table: commit their mark to the table."""

    def attempt() -> None:
        merged = snapshot_of(path)
        if merged is None or merged.no_changes():
            return
        marks = marks_for(merged, snapshot_of(folder))
        if marks:
            rewrite_files(path, merged, Change("ACCEPT", table, marks=marks))

    with committing(path, doing="accept tombstones"):
        until_not_overtaken(attempt)


def _counted(tombstones: Snapshot | None) -> dict[str, int]:
    if tombstones is None:
        return {}
    return {f"{_APP}{tombstones.metadata.get('id')}": tombstones.version + 1}


def made(rows: pa.Table, definition: Definition | None, *, now_us: int) -> pa.Table:
    """Build tombstones of rows by a key, or of the whole table at the positions of the rows."""
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
            rows.column(TIME_COLUMN.name),
        ],
        schema=SCHEMA,
    )


def kept_as(keys: Sequence[str], seq: pa.StructArray, rows: pa.Table, *, now_us: int) -> pa.Table:
    """Build tombstones that keep whole rows, under texts that identify them."""
    size = rows.num_rows
    return pa.table(
        [
            pa.repeat(pa.scalar(MOVED), size),
            pa.repeat(pa.scalar(""), size),
            pa.array(keys, pa.string()),
            seq,
            pa.repeat(pa.scalar(now_us, pa.int64()).cast(TIMESTAMP), size),
            pa.array([_stream(rows.slice(at, 1)) for at in range(size)], pa.binary()),
            pa.nulls(size, TIMESTAMP),
        ],
        schema=SCHEMA,
    )


def _stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    # a slice would be written together with the whole array behind it
    own = rows.take([0])
    with pa.ipc.new_stream(sink, own.schema) as writer:
        writer.write_table(own)
    return bytes(sink.getvalue().to_pybytes())


def definition_text(definition: Definition) -> str:
    """Return the name of a key in the table of tombstones."""
    return json.dumps(definition, ensure_ascii=False)


def remember(
    known: Tombstones, new: pa.Table, *, table: str, mark: Mark | None = None
) -> Snapshot | None:
    """Add tombstones, once for each batch; without a mark, only the missing ones.

    Return the new state of the table of tombstones.
    """
    if not new.num_rows:
        return known.table
    return until_not_overtaken(lambda: _add(known, new, table=table, mark=mark))


def replace_all(folder: str, rows: pa.Table, *, table: str) -> None:
    """Replace all tombstones by these."""
    before = snapshot_of(folder)
    if before is None and not rows.num_rows:
        return
    staged = (write_rows(rows, folder),) if rows.num_rows else ()
    change = Change(
        "REBUILD",
        f"{table} tombstones",
        fields=_fields(before),
        removed=() if before is None else list(before.files.values()),
        added=staged,
    )
    rewrite_files(folder, before, change)


def _add(known: Tombstones, new: pa.Table, *, table: str, mark: Mark | None) -> Snapshot:
    before = snapshot_of(known.folder)
    if before is not None and (mark is None or before.has(mark.app_id, mark.batch)):
        # the tombstones of an earlier attempt may have expired, or a rebuild has removed them
        new, mark = _unknown(new, _since(before.rows(SCHEMA), known.since_us)), None
        if not new.num_rows:
            return before
    removed = [] if before is None else _to_compact(before)
    if before is not None and removed:
        old = [before.read(file, SCHEMA) for file in removed]
        new = latest(_since(pa.concat_tables([*old, new]), known.since_us))
    change = Change(
        "MERGE",
        f"{table} tombstones",
        comment=f"rows that were removed from table {table}",
        fields=_fields(before),
        removed=removed,
        added=(write_rows(new, known.folder),),
        mark=mark,
        metrics={"numOutputRows": new.num_rows},
    )
    return rewrite_files(known.folder, before, change)


def _unknown(new: pa.Table, rows: pa.Table) -> pa.Table:
    """Return the new tombstones that the table does not have yet."""
    index = KeyIndex(rows, ("definition", "key", "kind", "_seq"))
    return new.filter(pa.array(index.find(new) < 0))


def _fields(before: Snapshot | None) -> list[Field] | None:
    """Return the columns for a table of tombstones that has none or fewer columns."""
    known = before is not None and len(before.fields) == len(TOMBSTONE_COLUMNS)
    return None if known else fields_of(TOMBSTONE_COLUMNS)


def _to_compact(before: Snapshot) -> list[DataFile]:
    small = [file for file in before.files.values() if file.size <= SMALL_FILE]
    if len(small) < MOST_FILES:
        return []
    # large files are included from time to time, because most of their tombstones may have expired
    large = [file for file in before.files.values() if file.size > SMALL_FILE]
    return [*small, *(large if len(large) >= MOST_FILES else ())]


def _since(rows: pa.Table, since_us: int) -> pa.Table:
    since = pa.scalar(since_us, pa.int64()).cast(TIMESTAMP)
    return rows.filter(pc.greater_equal(rows.column("removed_at"), since))


def latest(rows: pa.Table) -> pa.Table:
    """Return the last tombstone of each key."""
    rank = ranks([rows.column("_seq")])[0]
    index = KeyIndex(rows, ("definition", "key", "kind"))
    order = np.lexsort((rank, index.groups))
    groups = index.groups[order]
    last: Flags = np.append(groups[1:] != groups[:-1], True) if len(order) else order > 0
    return rows.take(np.sort(order[last]))


def _met(rows: pa.Table, events: ChangeEvents, index: KeyIndex) -> tuple[pa.Array, Ints, Ints]:
    """Return the tombstones with the key of an event, and the group and the time of each."""
    text = definition_text(index.definition)
    of_rows = pc.equal(rows.column("kind"), ROW)
    mine = rows.filter(pc.and_(of_rows, pc.equal(rows.column("definition"), text)))
    if mine.num_rows == 0:
        return pa.array([], SEQ), np.zeros(0, np.int64), np.zeros(0, np.int64)
    texts = key_texts(events.rows, index.definition)
    # earlier versions kept trailing zeros
    kept = shortened(mine.column("key"), fractional(events.rows.schema, index.definition))
    found = pc.index_in(kept, value_set=texts)
    met = pc.is_valid(found)
    numbers = found.filter(met).to_numpy()
    mine = mine.filter(met)
    return combined(mine.column("_seq")), index.groups[numbers], integers(mine, "source_ts")
