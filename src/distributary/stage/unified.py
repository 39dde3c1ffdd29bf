"""The unified table: every type's rows in one file a task, shared fields as columns.

Rows of more than a bounded size are several files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from distributary.evolve.align import align
from distributary.evolve.rest import rest_as_json
from distributary.evolve.unified import REST, share_of
from distributary.model.plan import Catalog, StageOrder
from distributary.model.record import TIMESTAMP
from distributary.model.table import Column
from distributary.stage.facts import file_fact
from distributary.stage.metadata import DATE, metadata_columns, metadata_plan
from distributary.stage.names import file_name
from distributary.stage.parquet import write_file
from distributary.stage.partitions import partition_facts, with_date

if TYPE_CHECKING:
    from distributary.stage.parts import Part

TYPE = Column("_type", pa.string(), "type of the record")
BYTES_PER_FILE = 512 * 1024 * 1024
"""As columns in memory: what a task holds of one table at once."""


class UnifiedWriter:
    """Collects the parts of a task and writes them."""

    def __init__(self, catalog: Catalog, order: StageOrder) -> None:
        self._catalog, self._order = catalog, order
        self._table = catalog.tables[catalog.unified]
        system = {c.name for c in (TYPE, DATE, *metadata_plan(catalog.metadata))}
        self._own = tuple(c for c in self._table.columns if c.name not in system)
        self._reserved = frozenset(system)
        self._schema = pa.schema([pa.field(c.name, c.type) for c in self._own if c.name != REST])
        self._parts: list[pa.Table] = []
        self._times: list[pa.ChunkedArray] = []
        self._records = 0

    def add(self, parts: Sequence[Part]) -> list[tuple[str, str]]:
        """Keep the rows of one table's parts, in the unified table's columns; may write a file."""
        for part in parts:
            self._records += part.records
            if part.batch.num_rows:
                self._parts.append(self._columns(part))
                self._times.append(part.raw.column("timestamp"))
        return self.finish() if sum(part.nbytes for part in self._parts) > BYTES_PER_FILE else []

    def finish(self) -> list[tuple[str, str]]:
        """Write what is not written yet."""
        facts = self._written()
        self._parts, self._times, self._records = [], [], 0
        return facts

    def _written(self) -> list[tuple[str, str]]:
        if not self._parts:
            return [file_fact(self._table.name, self._records, None)] if self._records else []
        table = pa.concat_tables(self._parts)
        if self._table.partition_by:
            times = pa.chunked_array([c for t in self._times for c in t.chunks], TIMESTAMP)
            body = with_date(table, times, self._table)
            offset = body["_offset"] if "_offset" in body.column_names else None
            return partition_facts(
                body, self._table, self._order, records=self._records, offsets=offset
            )
        offsets = table["_offset"].to_numpy() if "_offset" in table.column_names else np.array([-1])
        staged = write_file(
            table,
            self._table.path,
            self._table.staged(file_name(self._order)),
            first_offset=int(offsets.min()),
            last_offset=int(offsets.max()),
        )
        return [file_fact(self._table.name, self._records, staged)]

    def _columns(self, part: Part) -> pa.Table:
        writer = tuple(Column(f.name, f.type) for f in part.batch.schema)
        share = share_of(self._own, writer, self._reserved | {REST})
        table = pa.Table.from_batches([align(part.batch, share.fills, self._schema)])
        if any(c.name == REST for c in self._own):
            table = table.append_column(REST, rest_as_json(part.batch, share.rest))
        count = part.batch.num_rows
        table = table.append_column(TYPE.name, pa.repeat(pa.scalar(part.route.type), count))
        ids = pa.array(np.full(count, part.route.schema_id, dtype=np.int64))
        extra = metadata_columns(part.raw, ids, self._catalog.metadata, self._order)
        for name, array in extra:
            table = table.append_column(name, array)
        return table
