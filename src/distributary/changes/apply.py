"""Merging of a batch's events into a table: read rows, decide, store tombstones, commit.

Files without changed rows stay as they are; other files are rewritten without deleted rows and with
new ones. If the order asks for deletion vectors, a large file with few deleted rows is not
rewritten: a vector marks them. All changes are one commit, which carries the mark of the batch. A
crash before the commit leaves unnamed files, and tombstones of rows that still exist. Both are
harmless, and the next attempt merges the batch. A second merge of a batch changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.contest import NO_MEMBER, Contest
from distributary.changes.decide import (
    Decision,
    Moves,
    decide,
    gathered,
    just_before,
    memory_keys,
    with_looks,
)
from distributary.changes.events.incarnations import find_starts, needs_times, with_starts
from distributary.changes.events.log_events import (
    CHANGE_SCHEMA,
    ORDER,
    POSITION,
    PROPERTY,
    ChangeEvents,
    Definition,
    Flags,
    Ints,
    KeyIndex,
    Span,
    advanced,
    by_position,
    by_time,
    fits,
    from_text,
    highest,
    is_merged_by_time,
    lacks_mark,
    place_of,
    read_in_turn,
    to_text,
)
from distributary.changes.merge_order import (
    TIME_COLUMN,
    MergeCounts,
    MergedColumns,
    MergeOrder,
    MergeResult,
    RebuildNeededError,
    merged_columns,
)
from distributary.changes.merge_target import MemoryTarget, MergeTarget, Part, at_once
from distributary.changes.tombstones import (
    Tombstones,
    kept_as,
    made,
    marks_for,
    open_tombstones,
    refuse_behind,
    remember,
)
from distributary.delta.commit import Change, rewrite_files, write_rows
from distributary.delta.compact import Sizes, stored_schema
from distributary.delta.log import DataFile, Snapshot, snapshot_of
from distributary.delta.skipping import KeyRanges
from distributary.delta.tables import committing, until_not_overtaken
from distributary.delta.vectors import Vector, write_vectors
from distributary.evolve.types import is_nested
from distributary.model.incarnation import INCARNATIONS, Incarnations, Start
from distributary.model.manifest import Mark, StagedFile

# The plan of a merge: the step between reading a table and writing it.


@dataclass(frozen=True, slots=True)
class MergePlan:
    """The change of a table, before anything is written."""

    decision: Decision
    parts: list[Part]
    winners: pa.Table
    """The rows that the table gets, in its columns."""
    tombstones: pa.Table
    spans: tuple[Span, ...]
    incarnations: Incarnations

    def changed(self, part: Part) -> bool:
        """Return whether rows of a file leave the table or change."""
        numbers = part.known
        return bool(self.decision.gone[numbers].any() or self.decision.marked[numbers].any())


def replacing(parts: list[Part], rows: pa.Table, *, gone: Flags, key: Definition) -> MergePlan:
    """Return the plan that puts rows in place of known rows, without events."""
    nobody = np.zeros(0, np.int64)
    decision = Decision(
        gone=gone,
        marked=np.zeros_like(gone),
        winners=nobody,
        deleted=np.zeros(0, np.bool_),
        sources={},
        moved={},
        remember=(),
        emptied=None,
        counts=MergeCounts(0, 0, 0, 0),
    )
    return MergePlan(decision, parts, rows, rows.slice(0, 0), (Span(key),), Incarnations())


def plan(
    events: ChangeEvents,
    target: MergeTarget | MemoryTarget,
    tombstones: Tombstones,
    *,
    order: MergeOrder,
    table_columns: MergedColumns,
    spans: tuple[Span, ...],
    incarnations: Incarnations,
) -> MergePlan:
    """Find the rows that events are about, and decide which events win.

    If events show that another server has taken over, they are decided again as events of that
    server.
    """
    while True:
        numbered = ChangeEvents(incarnations.applied(events.rows))
        matched = _match(numbered, target, tombstones, order, table_columns, spans, incarnations)
        if not matched.starts:
            return _plan(matched, target, order, table_columns, spans, incarnations)
        incarnations = with_starts(incarnations, matched.starts, order)


@dataclass(frozen=True, slots=True)
class _Match:
    """Events, the rows and tombstones with their keys, and the servers that take over in them."""

    events: ChangeEvents
    """The events, followed by the positions at which earlier values are looked up."""
    given: ChangeEvents
    """The events without these positions."""
    moves: Moves
    owner: Ints
    definitions: list[Definition]
    contest: Contest
    parts: list[Part]
    values: pa.Table
    starts: list[Start]


def _match(
    given: ChangeEvents,
    target: MergeTarget | MemoryTarget,
    tombstones: Tombstones,
    order: MergeOrder,
    table_columns: MergedColumns,
    spans: tuple[Span, ...],
    incarnations: Incarnations,
) -> _Match:
    events, moves = with_looks(given, tombstones)
    found, numbers = events.keys
    definitions = _definitions(found, spans, table_columns)
    keys = [KeyIndex(events.rows, definition) for definition in definitions]
    renumbered = np.array([definitions.index(each) for each in found] + [-1])
    moves, owner = moves.placed(renumbered[numbers])
    several = sorted({n for d in definitions for n in d}) if len(definitions) > 1 else []
    extra = [*events.left_out, *several]
    everything = bool(events.truncates.any())
    memory = tombstones.memory(events, keys)
    # times of known rows are read only if a decision needs them
    timed = [*extra, TIME_COLUMN.name]
    for columns in (timed,) if needs_times(events.rows, order) else (extra, timed):
        known, parts, values = target.find(keys, spans=spans, extra=columns, everything=everything)
        if by_position(events.seq).any() and by_time(known.seq).any():
            raise merged_by_time(order)
        contest = Contest(events, keys=keys, owner=owner, known=known, memory=memory)
        times = values.column(TIME_COLUMN.name) if columns is timed else None
        starts = find_starts(contest, definitions, order, times, incarnations)
        if starts is not None:
            break
    return _Match(events, given, moves, owner, definitions, contest, parts, values, starts or [])


def merged_by_time(order: MergeOrder) -> RebuildNeededError:
    """Return the error for a table whose rows are in the order of the source's times."""
    again = f"`distributary rebuild {order.table}` makes it again from its log"
    anew = (
        f"move the folder of the table away, accept it as empty with `distributary reset FILE "
        f"--table {order.table}`, and have the source send all rows again"
    )
    return RebuildNeededError(
        f"table {order.table} was merged in the order of the source's times, not of positions",
        where=order.path,
        next_step=again if order.log else anew,
    )


def _rebuilt_elsewhere(error: RebuildNeededError, order: MergeOrder) -> RebuildNeededError:
    """Return the error with the way for tables that only Spark may write, which `rebuild` refuses.

    A missing table is built from its log as a new one, without the features that only Spark writes.
    """
    return RebuildNeededError(
        error.what,
        where=error.where,
        evidence="only Spark may write this table, so `rebuild` refuses it",
        next_step="stop the pipeline, move the folder of the table away, and "
        f"`distributary rebuild {order.table}` makes a new one from its log; then give it its "
        "features again, if it needs them",
    )


def _plan(
    matched: _Match,
    target: MergeTarget | MemoryTarget,
    order: MergeOrder,
    table_columns: MergedColumns,
    spans: tuple[Span, ...],
    incarnations: Incarnations,
) -> MergePlan:
    events, moves, owner, definitions, contest, values = (
        matched.events,
        matched.moves,
        matched.owner,
        matched.definitions,
        matched.contest,
        matched.values,
    )
    soft, now_us = order.soft, order.now_us
    decision = decide(contest, moves, soft=soft)
    behind = moves.behind(values)
    made_now = _tombstones(events, values, decision, definitions, now_us=now_us)
    kept = _kept(events, behind, decision, moves, owner, definitions, now_us=now_us)
    return MergePlan(
        decision=decision,
        parts=matched.parts,
        winners=_winners(events, behind, decision, table_columns),
        tombstones=pa.concat_tables([made_now, *kept]),
        spans=_spans(spans, matched.given, target),
        incarnations=incarnations,
    )


def _definitions(
    found: Sequence[Definition], spans: Sequence[Span], table_columns: MergedColumns
) -> list[Definition]:
    have = set(table_columns.names)
    earlier = {span.key for span in spans if have.issuperset(span.key)}
    return sorted({*found, *earlier}) if found else []


def _winners(
    events: ChangeEvents, values: pa.Table, decision: Decision, table_columns: MergedColumns
) -> pa.Table:
    columns: list[pa.ChunkedArray | pa.Array] = []
    for field in table_columns.schema:
        if field.name in decision.sources:
            sources = decision.sources[field.name]
            rows = values.column(field.name)
            columns.append(gathered(sources, events.rows.column(field.name), rows))
        elif field.name == "_deleted":
            columns.append(pa.array(decision.deleted, pa.bool_()))
        else:
            columns.append(events.rows.column(field.name).take(decision.winners))
    return pa.table(columns, schema=table_columns.schema)


def _kept(
    events: ChangeEvents,
    values: pa.Table,
    decision: Decision,
    moves: Moves,
    owner: Ints,
    definitions: Sequence[Definition],
    *,
    now_us: int,
) -> Iterator[pa.Table]:
    """Return the values of rows that continue under a new key without any known event."""
    some = np.zeros(len(moves.away), np.bool_)
    for sources in decision.moved.values():
        some |= sources != NO_MEMBER
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
            before = just_before(events.seq.take(pa.array(away)))
            yield kept_as(memory_keys(keys, definition, before), before, rows, now_us=now_us)


def _tombstones(
    events: ChangeEvents,
    values: pa.Table,
    decision: Decision,
    definitions: Sequence[Definition],
    *,
    now_us: int,
) -> pa.Table:
    size = events.rows.num_rows
    parts = []
    for number, members in decision.remember:
        names = [*definitions[number], "_seq", TIME_COLUMN.name]
        rows = [events.rows.select(names).take(members[members < size])]
        if (members >= size).any():
            some = values.take(members[members >= size] - size)
            if TIME_COLUMN.name not in some.column_names:
                some = some.append_column(TIME_COLUMN.name, pa.nulls(len(some), TIME_COLUMN.type))
            rows.append(some.select(names))
        parts.append(made(pa.concat_tables(rows), definitions[number], now_us=now_us))
    if decision.emptied is not None:
        parts.append(made(events.rows.slice(decision.emptied, 1), None, now_us=now_us))
    nothing = made(events.rows.slice(0, 0), None, now_us=now_us)
    return pa.concat_tables([nothing, *parts])


def _spans(
    spans: tuple[Span, ...], events: ChangeEvents, target: MergeTarget | MemoryTarget
) -> tuple[Span, ...]:
    found, numbers = events.keys
    seq = events.seq.filter(pa.array(numbers >= 0))
    if not found or fits(spans, found, seq):
        return spans
    if not spans and len(found) == 1:
        return (Span(found[0]),)
    owner: Ints = numbers[numbers >= 0]
    seen = [(place_of(e), found[n]) for e, n in zip(seq.to_pylist(), owner, strict=True)]
    return advanced(spans, seen, max(filter(None, map(highest, target.places())), default=None))


# Rewriting of the files that change. A new row whose key is within the bounds of a file goes into
# that file; other rows go to new files, in the order of their keys. So the bounds of files stay
# narrow, and the next batch reads few files.

FILE_BYTES = 64 * 2**20
"""The approximate bytes of a file's rows in memory; a piece has at most twice as many."""
MOST_SMALL_FILES = 4
"""The number of small files (under a quarter of `FILE_BYTES`) that are then combined."""
MOST_LOST = 0.5
"""The share of deleted rows above which a file is rewritten instead of getting a vector."""
_UNPACKED = 8
"""The approximate ratio of the size of rows in memory to their size in a file."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The files that were written for a commit."""

    removed: list[DataFile]
    added: list[StagedFile]
    vectors: list[tuple[DataFile, Vector]]
    """The files that stay in the table, each with its deleted rows."""


def rewrite(
    target: MergeTarget,
    made: MergePlan,
    table_columns: MergedColumns,
    *,
    folder: str,
    vectors: bool = False,
) -> Rewritten:
    """Write the rows of changed files and the winners; `vectors` avoids most rewrites."""
    winners = made.winners
    key = clustering(made.spans[-1].key, table_columns.schema) if made.spans else ()
    changed = [part for part in made.parts if table_columns.rewritten or made.changed(part)]
    small = small_files([part.file for part in made.parts], winners)
    if not winners.num_rows and not changed:
        small = set()
    own = [part for part in changed if part.file.path not in small]
    stay = [
        part for part in own if vectors and not table_columns.rewritten and _may_stay(part, made)
    ]
    own = [part for part in own if all(part is not each for each in stay)]
    if len(small) < MOST_SMALL_FILES:
        small &= {part.file.path for part in changed}
    few = [part for part in made.parts if part.file.path in small]
    places, rest = _placed(winners, key, [part.file for part in own])

    # a single rewritten file is split in two, so that the next batch can write both in parallel
    halves = max(1, pa.cpu_count() // max(1, len(own)))

    def again(number: int) -> list[StagedFile]:
        come = winners.take(places[number])
        pieces = _kept_pieces(target, own[number], made)
        return written(chain(pieces, [come]), folder=folder, key=key, halves=halves)

    added = [file for files in at_once(again, range(len(own))) for file in files]
    kept = chain.from_iterable(_kept_pieces(target, part, made) for part in few)
    added += written(chain(kept, [winners.take(rest)]), folder=folder, key=key)
    return Rewritten([part.file for part in (*own, *few)], added, _named(target, stay, made))


def _may_stay(part: Part, made: MergePlan) -> bool:
    """Return whether a file may get a vector: none of its rows is replaced in place.

    A vector needs the number of rows that were written to the file.
    """
    here = made.decision
    lost = part.file.lost + int(here.gone[part.known].sum())
    whole = part.file.written
    return whole is not None and lost <= whole * MOST_LOST and not here.marked[part.known].any()


def _named(
    target: MergeTarget, parts: Sequence[Part], made: MergePlan
) -> list[tuple[DataFile, Vector]]:
    """Write vectors of all rows that are deleted from files so far."""
    before = target.snapshot
    if before is None or not parts:
        return []
    sets = []
    for part in parts:
        old = before.gone(part.file)
        left = np.delete(np.arange(part.file.written or 0), old)
        new = left[part.places[made.decision.gone[part.known]]]
        sets.append(np.union1d(old, new))
    vectors = write_vectors(before.store, sets)
    return [(part.file, vector) for part, vector in zip(parts, vectors, strict=True)]


def clustering(key: Definition, schema: pa.Schema) -> Definition:
    """Return the columns that order rows in files: the key, unless its types have no order."""
    ordered = [name in schema.names and not is_nested(schema.field(name).type) for name in key]
    return key if all(ordered) else ()


def compaction(state: Snapshot, sizes: Sizes) -> Sizes:
    """Return the sizes for compacting a table that is merged into.

    Neighbours by key are combined up to the size that merges make: larger files would be split
    again.
    """
    spans = from_text(state.property(PROPERTY))
    if not spans:
        return sizes
    key = clustering(spans[-1].key, stored_schema(state))
    return replace(sizes, target=min(sizes.target, FILE_BYTES // _UNPACKED), by=key)


def small_files(files: Sequence[DataFile], rows: pa.Table) -> set[str]:
    """Return the paths of files that are much smaller than a file of this size should be."""
    small = set()
    for file in files:
        size = file.size * _UNPACKED
        if rows.num_rows and file.rows is not None:
            size = file.rows * rows.nbytes // rows.num_rows
        if size < FILE_BYTES // MOST_SMALL_FILES:
            small.add(file.path)
    return small


def written(
    tables: Iterable[pa.Table],
    *,
    folder: str,
    prefix: str = "merged",
    key: Definition = (),
    halves: int = 1,
) -> list[StagedFile]:
    """Write rows as few files, each within the memory limit.

    Up to `halves` files may be half as large, so that more files are written in parallel.
    """
    files: list[StagedFile] = []
    waiting: list[pa.Table] = []
    size = 0
    for table in tables:
        if table.num_rows:
            waiting.append(table)
            size += table.nbytes
        if size >= 2 * FILE_BYTES:
            files += _cut(pa.concat_tables(waiting), folder, prefix, key, halves)
            waiting, size = [], 0
    return files + (_cut(pa.concat_tables(waiting), folder, prefix, key, halves) if waiting else [])


def _cut(
    rows: pa.Table, folder: str, prefix: str, key: Definition, halves: int
) -> list[StagedFile]:
    """Cut rows into files of about the target size, each with a range of keys."""
    fit = round(rows.nbytes / FILE_BYTES), min(halves, rows.nbytes // (FILE_BYTES * 3 // 8))
    count = min(rows.num_rows, max(1, *fit))
    if count == 1:
        return [write_rows(rows, folder, prefix=prefix, key=key)]
    order: Ints = np.arange(rows.num_rows)
    if key:
        by = [(name, "ascending") for name in key]
        order = pc.sort_indices(rows.select(key), sort_keys=by).to_numpy().astype(np.int64)

    def write(share: Ints) -> StagedFile:
        in_line = bool((np.diff(share) == 1).all())
        some = rows.slice(share[0], len(share)) if in_line else rows.take(share)
        return write_rows(some, folder, prefix=prefix, key=key)

    return at_once(write, np.array_split(order, count))


def _placed(
    winners: pa.Table, key: Definition, files: Sequence[DataFile]
) -> tuple[list[Ints], Ints]:
    """Return the winners within the bounds of each file, and those outside of all bounds."""
    free = np.ones(winners.num_rows, np.bool_)
    places = [np.zeros(0, np.int64) for _ in files]
    if key and files and winners.num_rows:
        keys = KeyRanges(winners, key)
        within = [keys.within(file) for file in files]
        # files with narrow bounds first, because a file with wide bounds would take all rows
        for number in sorted(range(len(files)), key=lambda each: len(within[each])):
            places[number] = np.sort(within[number][free[within[number]]])
            free[places[number]] = False
    return places, np.flatnonzero(free)


def _kept_pieces(target: MergeTarget, part: Part, made: MergePlan) -> Iterator[pa.Table]:
    drop = target.forgotten(part.file)
    at = 0
    for rows in target.pieces(part.file):
        here = None if drop is None else drop[at : at + rows.num_rows]
        yield staying(rows, part, made.decision, at=at, drop=here)
        at += rows.num_rows


def staying(
    rows: pa.Table, part: Part, decision: Decision, *, at: int = 0, drop: Flags | None = None
) -> pa.Table:
    """Return the rows of a file or piece that stay, with soft-deleted rows marked."""
    inside = (part.places >= at) & (part.places < at + rows.num_rows)
    places, known = part.places[inside] - at, part.known[inside]
    keep = np.ones(rows.num_rows, np.bool_) if drop is None else ~drop
    keep[places[decision.gone[known]]] = False
    marked = places[decision.marked[known]]
    if len(marked):
        flags = np.zeros(rows.num_rows, np.bool_)
        flags[marked] = True
        column = rows.schema.get_field_index("_deleted")
        deleted = pc.or_(rows.column(column).fill_null(False), pa.array(flags))
        rows = rows.set_column(column, rows.schema.field(column), deleted)
    return rows if keep.all() else rows.filter(pa.array(keep))


def merge_table(order: MergeOrder) -> MergeResult:
    """Apply the events of an order's files to its table, once. Raises PublishError."""
    with committing(order.path, doing="merge into a table"):
        return until_not_overtaken(lambda: _attempt(order))


def open_target(
    order: MergeOrder, *, version: int | None = None
) -> tuple[Snapshot | None, MergedColumns]:
    """Open a merged table, at a version or the newest, and plan the columns that it will have."""
    before, columns = look_at(order, version=version)
    if before is not None:
        before.refuse_unusable(order.table)
    return before, columns


def look_at(
    order: MergeOrder, *, version: int | None = None
) -> tuple[Snapshot | None, MergedColumns]:
    """Open a merged table as `open_target` does, including tables that only Spark may write."""
    before = snapshot_of(order.path, version=version)
    wanted, payload = order.wanted(), len(order.columns)
    have = None if before is None else before.fields
    system = wanted[payload:]
    return before, merged_columns(have, wanted[:payload], system=system, evolution=order.evolution)


def events_schema(columns: MergedColumns) -> pa.Schema:
    """Return the columns to read from a log for a table with these columns."""
    own = [field for field in columns.schema if field.name not in CHANGE_SCHEMA.names]
    return pa.schema(own)


def _attempt(order: MergeOrder) -> MergeResult:
    before, columns = open_target(order)
    if before is not None and before.has(order.app_id, order.batch):
        return MergeResult(order.table, before.version, skipped=True)
    version = -1
    for events, last in read_in_turn(order.files, events_schema(columns)):
        target = MergeTarget(before, columns)
        made, properties, marks = prepare(order, before, columns, events, target)
        mark = order.mark if last else None
        version = _commit(
            order, target, columns, made, properties=properties, marks=marks, mark=mark
        )
        if not last:
            before, columns = open_target(order)
    return MergeResult(order.table, version)


def prepare(
    order: MergeOrder,
    before: Snapshot | None,
    columns: MergedColumns,
    events: ChangeEvents,
    target: MergeTarget | MemoryTarget,
) -> tuple[MergePlan, dict[str, str], dict[str, int]]:
    """Plan the changes that events make to a table, and store tombstones of removed rows.

    Also return the properties and the marks of tombstones that the table gets.
    """
    spans = from_text(before.property(PROPERTY)) if before else ()
    text = before.property(INCARNATIONS) if before else None
    incarnations = Incarnations.from_text(text)
    # a table that cannot be built again from its log keeps its rows; those of the batch are refused
    is_ours = before is None or not before.beyond_us()
    unmarked = bool(order.log) and is_ours and lacks_mark(before, events.seq)
    if unmarked and before is not None and is_merged_by_time(before):
        error = merged_by_time(order)
        raise _rebuilt_elsewhere(error, order) if before.no_changes() else error
    tombstones = open_tombstones(order.tombstones, now_us=order.now_us, horizon=order.horizon)
    refuse_behind(tombstones, before, table=order.table)
    try:
        made = plan(
            events,
            target,
            tombstones,
            order=order,
            table_columns=columns,
            spans=spans,
            incarnations=incarnations,
        )
    except RebuildNeededError as error:
        if before is None or not order.log or not before.no_changes():
            raise
        raise _rebuilt_elsewhere(error, order) from error
    # tombstones come first: without them, a late event could bring a deleted row back
    remembered = remember(tombstones, made.tombstones, table=order.table, mark=order.mark)
    properties = {ORDER: POSITION} if unmarked else {}
    if made.spans != spans:
        properties[PROPERTY] = to_text(made.spans)
    # an operator's decision about a source that goes back is stored, and not asked for again
    answered = order.undecided != "refuse" and text is None
    if made.incarnations != incarnations or answered:
        properties[INCARNATIONS] = made.incarnations.to_text()
    return made, properties, marks_for(before, remembered)


def _commit(
    order: MergeOrder,
    target: MergeTarget,
    columns: MergedColumns,
    made: MergePlan,
    *,
    properties: dict[str, str],
    marks: dict[str, int],
    mark: Mark | None,
) -> int:
    """Commit the changes, if there are any; return the table's newest version."""
    before = target.snapshot
    if before is None and made.winners.num_rows == 0 and not made.incarnations.starts:
        # there are no rows for a new table: it has no key, or all rows are deleted
        return -1
    changed = made.winners.num_rows or any(map(made.changed, made.parts))
    # a delete of a row that the table never had only adds a tombstone
    changed = changed or (marks and made.tombstones.num_rows)
    if before is not None and not (changed or columns.changed or properties):
        return before.version
    vectors = order.deletes_as == "vectors"
    done = rewrite(target, made, columns, folder=order.path, vectors=vectors)
    counts = made.decision.counts
    change = Change(
        "MERGE",
        order.table,
        comment=order.comment,
        fields=columns.fields if columns.changed else None,
        properties=properties,
        removed=done.removed,
        added=done.added,
        vectors=done.vectors,
        mark=mark,
        marks=marks,
        metrics={
            "numSourceRows": counts.events,
            "numTargetRowsInserted": counts.inserted,
            "numTargetRowsUpdated": counts.updated,
            "numTargetRowsDeleted": counts.deleted,
            "numTargetFilesAdded": len(done.added),
            "numTargetFilesRemoved": len(done.removed),
            "numTargetDeletionVectorsAdded": len(done.vectors),
        },
    )
    return rewrite_files(order.path, before, change).version
