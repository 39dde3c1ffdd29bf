"""One Delta table of the ledger: rows go in exactly once, and it stays small by itself."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import (
    CommitProperties,
    DeltaTable,
    QueryBuilder,
    Schema,
    Transaction,
    write_deltalake,
)
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from distributary.model.ledger import RULE
from distributary.model.record import TIMESTAMP
from distributary.observe.delta import (
    Storage,
    StorageOptions,
    conflict_attempts,
    open_table,
    reaching,
    read_rows,
)

_log = logging.getLogger(__name__)

UPKEEP_EVERY = 50
"""Commits between two compactions."""
TARGET_FILE_SIZE = 4 << 20
"""Small enough that compacting again and again rewrites little, large enough to read fast."""

_STORED = "stored"
_WHOLE = "arrow_cast(NULL, 'Int64')"
_NULLS = {
    pa.int64(): _WHOLE,
    TIMESTAMP: """arrow_cast(NULL, 'Timestamp(Microsecond, Some("UTC"))')""",
    pa.list_(RULE): "CASE WHEN false THEN make_array(named_struct("
    f"'rule', '', 'action', '', 'checked', {_WHOLE}, 'violated', {_WHOLE}, "
    "'unfit', '', 'example', '')) END",
}
"""Null, in the engine's words, of the types of columns that were added to the ledger later."""

PROPERTIES = {
    # opening a table costs as much as there are commits after its newest checkpoint, and a
    # commit as much as there are files in its log (2,000 of them: 20 ms). Readers of the ledger
    # hold a version for seconds, and nobody asks for its past: neither has to be kept for long
    "delta.checkpointInterval": "20",
    "delta.logRetentionDuration": "interval 10 minutes",
    "delta.deletedFileRetentionDuration": "interval 1 hour",
}


class Store:
    """A table that only Distributary writes. Thread-safe."""

    def __init__(
        self,
        path: str,
        *,
        schema: pa.Schema,
        indexed: Sequence[str],
        description: str,
        storage_options: StorageOptions | None = None,
    ) -> None:
        """`indexed` are texts and numbers by which files can be skipped when reading."""
        self.path = path
        self.schema = schema
        self._indexed = tuple(indexed)
        self._description = description
        self._options = storage_options
        self._lock = threading.Lock()
        self._table: DeltaTable | None = None
        self._storage: Storage | None = None

    def append_once(self, rows: pa.Table, *, app_id: str, version: int) -> bool:
        """Appends the rows in one commit marked (app_id, version), unless that mark is there.

        A commit whose answer was lost, a second call after a crash, and a second process with
        the same mark all end with the rows in the table once. False: they were there before.
        """
        with self._writing():
            for attempt in conflict_attempts():
                with attempt:
                    table = self._newest()
                    mark = table.transaction_version(app_id)
                    if mark is not None and mark >= version:
                        return False
                    marks = CommitProperties(app_transactions=[Transaction(app_id, version)])
                    table.create_write_transaction(
                        [self._file_of(rows)], "append", table.schema(), commit_properties=marks
                    )
            if (table.version() + 1) % UPKEEP_EVERY == 0:
                self._upkeep()
            return True

    def replace_before(
        self, column: str, moment: datetime, rows: Callable[[], pa.Table | None]
    ) -> None:
        """Replaces every row whose `column` is before the moment, in one commit.

        `rows` reads the table and says what to put there (None: leave it). It is asked again when
        somebody else has added such rows meanwhile, so that none is lost.
        """
        with self._writing():
            for attempt in conflict_attempts():
                with attempt:
                    # the handle first: what is added after it, read or not, is a conflict
                    table = self._newest()
                    replacement = rows()
                    if replacement is None:
                        return
                    write_deltalake(
                        table,
                        replacement,
                        mode="overwrite",
                        # a name from our own schema and a time: nothing from outside
                        predicate=f"{column} < '{moment.isoformat()}'",
                    )

    def forget(self, column: str, value: str) -> None:
        """Deletes the rows that hold this value."""
        if open_table(self.path, self._options) is None:
            return
        with self._writing():
            for attempt in conflict_attempts():
                with attempt:
                    merge = self._newest().merge(
                        pa.table({column: [value]}),
                        f"t.{column} = s.{column}",
                        source_alias="s",
                        target_alias="t",
                    )
                    merge.when_matched_delete().execute()

    def read(
        self, columns: Sequence[str] | None = None, where: pc.Expression | None = None
    ) -> pa.Table:
        """Rows at the newest version; none where the table was never written."""
        table = open_table(self.path, self._options)
        if table is None:
            return self.schema.empty_table().select(list(columns or self.schema.names))
        return read_rows(table, columns=columns, where=where)

    def query(self, sql: str) -> pa.Table | None:
        """A fixed query over the table `ledger`, by the engine inside deltalake.

        For sums over millions of rows. Never put a value from outside into `sql`.
        """
        table = open_table(self.path, self._options)
        if table is None:
            return None
        missing = self._missing(table)
        with reaching(self.path):
            query = QueryBuilder().register(_STORED if missing else "ledger", table)
            return pa.table(query.execute(_padded(missing) + sql).read_all())

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._lock, reaching(self.path):
            try:
                yield
            except BaseException:
                # what this handle believes about the table may be wrong now
                self._table = None
                raise

    def _newest(self) -> DeltaTable:
        if self._table is None:
            self._table = open_table(self.path, self._options) or self._create()
            missing = self._missing(self._table)
            if missing:
                # a lake from before these columns: its rows have nothing to say about them
                self._table.alter.add_columns(Schema.from_arrow(pa.schema(missing)).fields)
        else:
            self._table.update_incremental()
        return self._table

    def _missing(self, table: DeltaTable) -> list[pa.Field]:
        """Columns that the table does not have yet."""
        known = {field.name for field in table.schema().fields}
        return [field for field in self.schema if field.name not in known]

    def _create(self) -> DeltaTable:
        return DeltaTable.create(
            self.path,
            self.schema,
            # of two processes that create it at once, the second takes the first's
            mode="ignore",
            description=self._description,
            configuration={
                **PROPERTIES,
                "delta.dataSkippingStatsColumns": ",".join(self._indexed),
            },
            storage_options=self._options,
        )

    def _file_of(self, rows: pa.Table) -> AddAction:
        # writing the file here and only committing it is twice as fast as the general writer,
        # whose cost grows with the number of files in the table
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, compression="zstd")
        data = sink.getvalue().to_pybytes()
        name = f"part-{uuid4().hex}.parquet"
        self._storage = self._storage or Storage(self.path, self._options)
        self._storage.put(name, data)
        now = time.time_ns() // 1_000_000
        # deltalake 1.6 takes an escaped character from above U+1FFFF for another one
        bounds = json.dumps(self._statistics(rows), ensure_ascii=False)
        return AddAction(name, len(data), {}, now, True, bounds)

    def _statistics(self, rows: pa.Table) -> dict[str, Any]:
        ends = {name: pc.min_max(rows[name]).as_py() for name in self._indexed}
        return {
            "numRecords": len(rows),
            "minValues": {name: end["min"] for name, end in ends.items()},
            "maxValues": {name: end["max"] for name, end in ends.items()},
            "nullCount": {name: rows[name].null_count for name in self._indexed},
        }

    def _upkeep(self) -> None:
        table = self._newest()
        try:
            table.optimize.compact(target_size=TARGET_FILE_SIZE)
            table.create_checkpoint()
            table.vacuum(dry_run=False, full=True)
            table.cleanup_metadata()
        except (DeltaError, OSError) as error:
            # another process tidies up at the same moment: the next turn makes good for it
            _log.info("ledger not compacted this time: %s", error)


def _padded(missing: Sequence[pa.Field]) -> str:
    """The table `ledger` with nulls for what the stored one has no columns for."""
    if not missing:
        return ""
    nulls = (f"{_NULLS[field.type]} AS {field.name}" for field in missing)
    return f"WITH ledger AS (SELECT *, {', '.join(nulls)} FROM {_STORED}) "  # noqa: S608
