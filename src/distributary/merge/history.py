"""Every version that a row ever had, with the times between which it held: `<table>_history`.

The table holds each event about a row once, also deletes, whose interval says when the row was not
there. Versions to which something may still be added are in files of their own, apart from the
closed ones: a batch of new events reads and writes the former only. An event that comes late, or
twice, takes a look at all versions of its row.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from distributary.merge.commit import Changeset, commit
from distributary.merge.contest import highest_by
from distributary.merge.definitions import definitions_of
from distributary.merge.events import left_out_in, read_events
from distributary.merge.history_chain import Chain, Truncate, Versions, same_times, twins
from distributary.merge.history_events import (
    HISTORY_COLUMNS,
    HISTORY_NAMES,
    past_after,
    past_of,
    payload_columns,
    truncates_in,
    versions_of,
)
from distributary.merge.history_files import Stored, find_versions, write_versions
from distributary.merge.keys import KeyIndex
from distributary.merge.old_keys import OLD_KEY, read_old_keys
from distributary.merge.order import MergeCounts, MergeOrder, MergeResult
from distributary.merge.sequence import Flags, places, ranks
from distributary.merge.shape import Shape, shape
from distributary.merge.snapshot import Snapshot, load
from distributary.merge.usable import folder_of, merging, refuse_unusable
from distributary.publish.races import until_not_overtaken


def merge_history(order: MergeOrder) -> MergeResult:
    """Add the events of an order's files to the history at its path, once. Raises PublishError.

    Columns are only ever added: what a row was is not forgotten, whatever its table is now. Of the
    counts, `inserted` are new versions and `updated` old ones that got other bounds.
    """
    started = time.perf_counter()
    with merging(order.path, doing="add to the history of a table"):
        result = until_not_overtaken(lambda: _attempt(order))
    return replace(result, seconds=time.perf_counter() - started)


@dataclass(frozen=True, slots=True)
class _Settled:
    """Versions with their bounds, old ones first."""

    stored: Stored
    rows: pa.Table
    open: Flags
    added: int
    changed: int


def _attempt(order: MergeOrder) -> MergeResult:
    before = load(folder_of(order.path), app_id=order.app_id)
    if before is not None:
        refuse_unusable(before, order.table)
        if before.has(order.app_id, order.batch):
            return MergeResult(order.table, before.version, skipped=True)
    columns = shape(
        None if before is None else before.fields,
        payload_columns(order),
        system=HISTORY_COLUMNS,
        evolution="none" if order.evolution == "none" else "mergeSchema",
    )
    payload = [field for field in columns.schema if field.name not in HISTORY_NAMES]
    events = read_events(order.files, pa.schema(payload))
    new, truncates = versions_of(events, columns.schema), truncates_in(events)
    past = past_of(before)
    everything = past.is_touched(new, truncates)
    settled = _settle(
        before,
        columns,
        new,
        sorted({*past.truncates, *truncates}, key=lambda each: each.place),
        everything=everything,
        several=len(past.keys) > 1,
    )
    after = past
    if everything or not past.keys:
        after = past_after(past, settled.rows, truncates)
    after = after.with_moves(new)
    counts = MergeCounts(
        events=events.rows.num_rows,
        inserted=settled.added,
        updated=settled.changed,
        ignored=new.num_rows - settled.added,
        superseded=int((events.keys[1] >= 0).sum()) - new.num_rows,
        keyless=int(((events.keys[1] < 0) & ~events.truncates).sum()),
        truncates=len(truncates),
    )
    properties = after.properties() if after != past else {}
    version = _commit(order, before, columns, settled, properties, counts)
    return MergeResult(order.table, version, counts)


def _settle(
    before: Snapshot | None,
    columns: Shape,
    new: pa.Table,
    ends: Sequence[Truncate],
    *,
    everything: bool,
    several: bool,
) -> _Settled:
    """Read as little as will do: open versions of the rows, all of theirs, or all there are."""
    keys, _ = definitions_of(new.column("_key"), new.column_names)
    key = keys[0] if keys else ()
    moved = np.flatnonzero(new.column(OLD_KEY.name).is_valid().to_numpy())
    old = read_old_keys(new.column(OLD_KEY.name), moved, new.schema)
    everything |= any(each.definition != key for each in old)
    about = pa.concat_tables([new.select(key), *(each.rows.select(key) for each in old)])
    if not everything and not old:
        stored = find_versions(before, columns.schema, of=about, key=key, closed=False)
        settled = _bounded(stored, new, ends, whole=False, everything=False)
        if settled is not None:
            return settled
    everything |= several
    of = None if everything else about
    stored = find_versions(before, columns.schema, of=of, key=key, closed=True)
    settled = _bounded(stored, new, ends, whole=True, everything=everything)
    if settled is None:
        raise AssertionError("all versions were read")
    return settled


def _bounded(
    stored: Stored, new: pa.Table, ends: Sequence[Truncate], *, whole: bool, everything: bool
) -> _Settled | None:
    """Old and new versions with their bounds; None if other old ones have to be seen first."""
    if not whole and _is_late(stored.rows, new, ends):
        return None
    fresh = new.filter(pa.array(~_known(stored.rows, new))) if whole else new
    rows = pa.concat_tables([stored.rows, fresh])
    keys, owner = definitions_of(rows.column("_key"), rows.column_names)
    indexes = [KeyIndex(rows, key) for key in keys]
    versions = Versions(rows, keys=indexes, owner=owner, truncates=ends)
    chain = versions.chain()
    old = stored.rows.num_rows
    same_start = same_times(rows.column("_valid_from"), chain.valid_from)[:old]
    if not whole and not same_start.all():
        return None
    left_out = left_out_in(rows.column("_unchanged"), rows.column_names)
    moved: Flags = stored.rows.column(OLD_KEY.name).is_valid().to_numpy()
    for flags in left_out.values():
        # what a version left out was found when all versions before it were seen
        flags[:old] &= whole & (everything | ~moved)
    same_end = same_times(rows.column("_valid_to"), chain.valid_to)[:old]
    return _Settled(
        stored,
        _with_bounds(versions.filled(left_out), chain),
        open=chain.open,
        added=fresh.num_rows,
        changed=int((~(same_start & same_end)).sum()),
    )


def _is_late(stored: pa.Table, new: pa.Table, ends: Sequence[Truncate]) -> bool:
    """Whether an event is older than what is known of its row, or than a truncate."""
    keys, _ = definitions_of(new.column("_key"), new.column_names)
    emptied = places([each.place for each in ends])
    rank, old, end = ranks([new.column("_seq"), stored.column("_seq"), emptied])
    if not keys:
        return False
    index = KeyIndex(new, keys[0])
    last = highest_by(index.find(stored), old, index.count)
    return bool((rank <= np.maximum(last[index.groups], end.max(initial=-1))).any())


def _known(stored: pa.Table, new: pa.Table) -> Flags:
    """Events that are in the table already."""
    rows = pa.concat_tables([stored, new])
    keys, owner = definitions_of(rows.column("_key"), rows.column_names)
    rank = ranks([rows.column("_seq")])[0]
    is_old = np.arange(rows.num_rows) < stored.num_rows
    found = np.zeros(rows.num_rows, np.bool_)
    for number, key in enumerate(keys):
        own = np.flatnonzero(owner == number)
        groups = KeyIndex(rows, key).groups[own]
        found[own] = twins(rank[own], groups, is_old[own].astype(np.int64))
    return found[stored.num_rows :]


def _with_bounds(rows: pa.Table, chain: Chain) -> pa.Table:
    deleted: Flags = rows.column("_deleted").to_numpy()
    bounds = {
        "_valid_from": chain.valid_from,
        "_valid_to": chain.valid_to,
        "_current": pa.array(chain.open & ~deleted),
    }
    columns = [bounds.get(name, rows.column(name)) for name in rows.column_names]
    return pa.table(columns, schema=rows.schema)


def _commit(
    order: MergeOrder,
    before: Snapshot | None,
    columns: Shape,
    settled: _Settled,
    properties: dict[str, str],
    counts: MergeCounts,
) -> int:
    folder = folder_of(order.path)
    changed = settled.added or settled.changed
    if before is None and not changed and not properties:
        return -1
    if before is not None and not (changed or columns.changed or properties):
        return before.version
    removed, added = write_versions(
        before, settled.stored, settled.rows, open_=settled.open, folder=folder
    )
    change = Changeset(
        "MERGE",
        order.table,
        comment=order.comment,
        fields=columns.fields if columns.changed else None,
        properties=properties,
        removed=removed,
        added=added,
        mark=order.mark,
        metrics={
            "numSourceRows": counts.events,
            "numTargetRowsInserted": counts.inserted,
            "numTargetRowsUpdated": counts.updated,
        },
    )
    return commit(folder, before, change)
