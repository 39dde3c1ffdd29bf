"""Appends to tables that ask for more than we know, mapped columns for one, by `deltalake`.

It knows what each table feature asks of a writer. The price is a load of the table's state at every
commit, and two commits where columns change.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, CommitProperties, Transaction

from distributary.delta.columns import MergedFields, fields_in, schema_string
from distributary.delta.commit import facts
from distributary.delta.log import Snapshot
from distributary.delta.tables import OvertakenError
from distributary.model.manifest import Mark, TableEntry
from distributary.store.base import options_of


def append(before: Snapshot, entry: TableEntry, mark: Mark, merged: MergedFields) -> int:
    """Change the columns if need be, then add the files: each in a commit of its own.

    Returns the new version. Raises OvertakenError if anybody committed anything since.
    """
    table = _opened(before)
    if table.version() != before.version:
        raise OvertakenError(f"{before.folder} has version {table.version()} by now")
    try:
        if merged.changed:
            _evolve(table, merged)
        version = table.version() + 1
        table.create_write_transaction(
            _actions(entry), "append", table.schema(), commit_properties=_marked(mark)
        )
        return version
    except CommitFailedError as error:
        raise OvertakenError(str(error)) from error
    except Exception:
        # it may have landed all the same: the log decides
        if (found := _landed(before, mark)) is None:
            raise
        return found


def _opened(before: Snapshot) -> DeltaTable:
    return DeltaTable(before.folder, storage_options=options_of(before.folder))


def _landed(before: Snapshot, mark: Mark) -> int | None:
    try:
        table = _opened(before)
    except Exception:
        # still not known: the first error is the one to tell, and the next try looks again
        return None
    return table.version() if table.transaction_version(mark.app_id) == mark.batch else None


def _evolve(table: DeltaTable, merged: MergedFields) -> None:
    schema = Schema.from_json(schema_string(merged.fields))
    if merged.widened:
        # nothing is overwritten, as no row fulfils the condition: only the columns change
        write_deltalake(
            table,
            pa.schema(schema.to_arrow()).empty_table(),
            mode="overwrite",
            schema_mode="overwrite",
            predicate="false",
            partition_by=list(table.metadata().partition_columns) or None,
            commit_properties=_once(),
        )
    else:
        before = {f["name"]: f for f in fields_in(table.schema().to_json())}
        changed = [f for f in schema.fields if before.get(f.name) != json.loads(f.to_json())]
        table.alter.add_columns(changed, commit_properties=_once())
    table.update_incremental()


def _actions(entry: TableEntry) -> list[Any]:
    # a list of AddAction: one call takes that, another one a list that may also hold removals
    now = time.time_ns() // 1_000_000
    return [
        AddAction(f.path, f.size, dict(f.partition_values), now, True, f.stats) for f in entry.files
    ]


def _marked(mark: Mark) -> CommitProperties:
    return _once(facts(mark), Transaction(mark.app_id, mark.batch))


def _once(told: Mapping[str, str] | None = None, *marks: Transaction) -> CommitProperties:
    # never again by itself: a second try must look at the table first
    return CommitProperties(
        custom_metadata=dict(told or {}), max_commit_retries=0, app_transactions=list(marks)
    )
