"""The removal of what an erasure names, from every layer: done at once, or by the next command.

The erasure is written first (`delta/removal/erased_records.py`): from then on no record that it
names comes back. Then its rows leave the tables, one commit a table, and the certificate is written
last. If the process is killed in between, the next `erase`, the next run of a pipeline of the
lake or `maintain` completes it: an erasure without a certificate starts again, and finds only the
rows that are left. Where tables are made of a log, the log loses its events last, because they
say which keys the erased records have.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa

from distributary.changes.aggregate_tables import (
    AggregateOrder,
    merge_aggregates,
    origin_of,
    recorded_rule,
)
from distributary.changes.erased_rows import LogKeys, RowsOfKeys, TombstonesOfKeys
from distributary.delta.column_merge import UnsupportedTypeError
from distributary.delta.column_merge import columns_of as table_columns
from distributary.delta.compact import BusyError
from distributary.delta.log import Snapshot
from distributary.delta.log_checkpoint import retention_of
from distributary.delta.removal.erased_records import (
    Erasure,
    KnownErased,
    certificate_of,
    finish,
    is_done,
    is_later,
    lake_key,
    names_in,
    read_erasure,
)
from distributary.delta.removal.holds import read_holds
from distributary.delta.removal.row_removal import (
    RemovedRows,
    RowSelection,
    matches_in,
    remove_rows,
)
from distributary.delta.tables import OvertakenError, as_publish_error, reaching_table
from distributary.engine.kill_points import ErasePoint, reached
from distributary.engine.planning.table_book import relatives
from distributary.engine.progress.claim import Claim
from distributary.errors import PublishError
from distributary.model import layout
from distributary.model.table import Role
from distributary.observe.erasures import (
    ERASED_FROM,
    ErasableTable,
    erased_rows,
    open_delta,
    tables_of,
)
from distributary.observe.ledger.ledger import Ledger
from distributary.store.base import at

_log = logging.getLogger(__name__)
_LEASE_SECONDS = 60.0
_USUAL_RETENTION = timedelta(days=7)
CLAIMED = "claimed"
"""The folder of the claim to erase, below that of the erasures."""


@contextmanager
def erasing(lake: str) -> Iterator[Callable[[], None]]:
    """Hold the claim to erase from a lake. Raises OwnedError while another process does."""
    claim = Claim.take(at(layout.join(layout.erased(lake), CLAIMED)), lease=_LEASE_SECONDS)
    try:
        yield claim.check
    finally:
        claim.release()


def unfinished_in(lake: str) -> list[str]:
    """Return the names of the erasures whose rows are not all gone, and of later records."""
    return [name for name in names_in(lake) if not is_done(lake, name)]


def finish_erasures(lake: str, *, later: bool = False) -> list[str]:
    """Finish erasures that were begun and have not ended; return their names.

    With `later` also records that came since, unless parked batches may hold them. Raises
    OwnedError while another process erases.
    """
    with reaching_table(layout.erased(lake)):
        waiting = unfinished_in(lake)
    if not later or (waiting and Ledger(lake).parked()):
        waiting = [name for name in waiting if not is_later(name)]
    if not waiting:
        return []
    with erasing(lake) as check:
        for name in waiting:
            if not is_done(lake, name):
                _log.warning("finishing the erasure %s, which was interrupted", name)
                carry_out(lake, name, check)
    return waiting


def carry_out(lake: str, name: str, check: Callable[[], None]) -> dict[str, Any]:
    """Remove what a document names from all tables; write its certificate and return it."""
    erasure = read_erasure(lake, name)
    known = KnownErased([erasure], lake_key(lake) if erasure.values else b"")
    gone = []
    tables = tables_of(lake)
    for number, (table, rows) in enumerate(_selections(lake, tables, known)):
        check()
        done = _remove(table, rows, check)
        reached(ErasePoint.AFTER_TABLE, number)
        if done is not None and table.role:
            gone.append(_entry(lake, table, erasure, *done))
    for table in tables:
        if (order := aggregate_order(table, tables)) is not None:
            check()
            merge_aggregates(order)
    reached(ErasePoint.BEFORE_CERTIFICATE, 0)
    certificate = {
        "format": 1,
        "id": erasure.id,
        "begun_at": erasure.begun_at,
        "finished_at": datetime.now(UTC).isoformat(),
        "records": len(erasure.records),
        "values": [{"columns": v.columns, "values": len(v.digests)} for v in erasure.values],
        "tables": gone,
        "rows": sum(entry["rows"] for entry in gone),
        "notes": list(erasure.notes),
    }
    finish(lake, name, certificate)
    return certificate_of(lake, name)


def aggregate_order(table: ErasableTable, tables: Sequence[ErasableTable]) -> AggregateOrder | None:
    """Return the order that brings an aggregate table up to date; None if it cannot be made.

    A table that an earlier release wrote last does not record its rule.
    """
    if table.role != Role.AGGREGATE:
        return None
    with reaching_table(table.folder):
        origin, rule = origin_of(table.folder), recorded_rule(table.folder)
    source = next((one for one in tables if origin and one.table == origin[0]), None)
    if rule is None or source is None:
        return None
    return AggregateOrder(
        table=table.table,
        path=table.folder,
        source=source.table,
        source_path=source.folder,
        role=Role(source.role),
        rule=rule,
    )


Selection = Callable[[Snapshot], RowSelection]
"""Returns the rows to remove of the newest state of a table."""


def _selections(
    lake: str, tables: Sequence[ErasableTable], known: KnownErased
) -> Iterator[tuple[ErasableTable, Selection]]:
    """Yield each table with its rows to remove; tables made of a log come before the log."""
    by_folder = {table.folder: table for table in tables}
    for table in tables:
        if table.role in ERASED_FROM:
            yield table, partial(erased_rows, table=table, known=known)
        elif table.role == Role.LOG:
            family = LogFamily.of(lake, table, by_folder)
            keys, texts = family.erased_keys(known)
            yield from family.selections(keys, texts)
            yield table, partial(erased_rows, table=table, known=known)


@dataclass(frozen=True, slots=True)
class LogFamily:
    """A log, the tables that are made of it, and the tombstones of their rows."""

    log: ErasableTable
    merged: tuple[ErasableTable, ...]
    tombstones: str
    """The folder of the tombstones."""

    @classmethod
    def of(cls, lake: str, log: ErasableTable, by_folder: Mapping[str, ErasableTable]) -> LogFamily:
        """Return the family of a log."""
        folders = relatives(log.folder)[1:]
        merged = tuple(by_folder[folder] for folder in folders if folder in by_folder)
        name = relatives(log.table)[1]
        return cls(log, merged, layout.tombstones(lake, name))

    def erased_keys(self, known: KnownErased) -> tuple[LogKeys, frozenset[str]]:
        """Return the key of the log, and the keys of its erased events."""
        state, _ = open_delta(self.log)
        if state is None:
            return LogKeys(), frozenset()
        rows = erased_rows(state, self.log, known)
        with reaching_table(self.log.folder):
            if not matches_in(state, rows):
                return LogKeys(), frozenset()
            keys = LogKeys.of(state)
            if keys.refused:
                raise _refused(self.log, keys.refused)
            return keys, keys.texts(state, rows)

    def selections(
        self, keys: LogKeys, texts: frozenset[str]
    ) -> Iterator[tuple[ErasableTable, Selection]]:
        """Yield the tables that are made of the log, their tombstones, and their rows to remove.

        The tombstones have no role: the ledger does not know them as a table.
        """
        for table in self.merged:
            yield table, lambda state: RowsOfKeys(keys.definition, texts)
        state = open_delta(self.log)[0] if texts else None
        if state is not None and at(self.tombstones).exists():
            columns = table_columns(state.fields)
            schema = pa.schema([pa.field(column.name, column.type) for column in columns])
            rows = TombstonesOfKeys(keys.definition, texts, schema)
            table = ErasableTable(self.log.table, "", self.tombstones, self.log.pipelines)
            yield table, lambda state: rows


def _remove(
    table: ErasableTable, selection: Selection, check: Callable[[], None]
) -> tuple[Snapshot, RemovedRows] | None:
    """Remove the erased rows of a table, as often as another writer comes between."""
    state, why = open_delta(table)
    if state is None:
        if why:
            raise _refused(table, why)
        return None
    rows = selection(state)
    if not rows.columns:
        return state, RemovedRows()
    total = RemovedRows()
    for _ in range(_TRIES):
        try:
            with reaching_table(table.folder):
                state, done = remove_rows(state, rows, ready=check)
        except UnsupportedTypeError as error:
            raise _refused(table, str(error)) from error
        except (BusyError, OvertakenError) as error:
            doing = "erase rows of a table"
            raise as_publish_error(error, doing=doing, path=table.folder) from error
        total = RemovedRows(
            total.rows + done.rows,
            total.whole_files + done.whole_files,
            total.rewritten_files + done.rewritten_files,
            total.bytes + done.bytes,
            done.version if done.version is not None else total.version,
        )
        if not done.left:
            return state, total
    raise _refused(table, "other writers replaced its files again and again")


_TRIES = 10


def _refused(table: ErasableTable, why: str) -> PublishError:
    return PublishError(
        f"rows of table {table.table} cannot be erased",
        where=table.folder,
        evidence=why,
        next_step="remove the cause, then run `distributary erase` again: it continues there",
        table=table.table,
    )


def _entry(
    lake: str, table: ErasableTable, erasure: Erasure, state: Snapshot, done: RemovedRows
) -> dict[str, Any]:
    """Return what a certificate says of a table."""
    found = {t.path: t.rows for t in erasure.tables}
    rows = max(found.get(layout.inside(lake, table.folder), 0), done.rows)
    entry = asdict(table) | {"folder": layout.inside(lake, table.folder), "rows": rows}
    entry["version"] = state.version
    if rows:
        entry["files_deleted_after"] = deleted_after(state).isoformat()
        entry["held_by"] = held_by(lake, table.folder)
    return entry


def deleted_after(state: Snapshot) -> datetime:
    """Return the time after which vacuum deletes files that leave a table now."""
    return datetime.now(UTC) + retention_of(state, _USUAL_RETENTION)


def held_by(lake: str, folder: str) -> list[str]:
    """Return the pinned cuts that keep older versions of a table, each with its end."""
    address = at(folder).address
    pins = read_holds(lake).pins
    return [
        f"cut {pin.name}, pinned until {pin.until:%Y-%m-%d}"
        for pin in pins
        if any(table.path == address and table.version is not None for table in pin.cut.tables)
    ]
