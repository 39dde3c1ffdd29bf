"""Batches of records for tables with a key, staged, committed and merged without Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable

from distributary.config.load import load_text
from distributary.engine.planning.planner import Planner
from distributary.engine.planning.table_book import log_files, log_of, merge_config
from distributary.engine.steps.merges import DERIVED, derived_entries, merge_of, merged
from distributary.model.manifest import Mark, TableEntry
from distributary.model.record import RAW
from distributary.model.table import Role
from distributary.publish.base import Outcome
from distributary.publish.direct import DirectPublisher
from distributary.registry.record_schemas import InferredSchemas
from distributary.stage.job import Staged
from tests.registry.scratch import ScratchRegistry
from tests.stage.conftest import Bench

PIPELINE = """
name: shop
source: {{type: kafka, bootstrap_servers: "127.0.0.1:9", topics: [orders]}}
payload: {{format: {payload}}}
{registry}
tables: {{each: "silver_{{topic}}"{tables}}}
keys: [{keys}]
lake: {{path: {lake}}}
{extra}
"""
MARK = "shop/life/stream"


class Sent(NamedTuple):
    """A record where it is in its topic."""

    partition: int
    offset: int
    value: Any
    timestamp: int = 1_000_000
    topic: str = "orders"
    key: bytes | None = b"k"


class KeyedStream:
    """A lake whose tables have a key, and the batches that are brought to it."""

    def __init__(
        self,
        lake: Path,
        keys: str,
        *,
        tables: str = "",
        extra: str = "",
        exchange: str = "disk",
        payload: str = "json, framing: none",
        secret: str = "",
    ) -> None:
        registered = payload in ("protobuf", "avro")
        registry = "registry: {path: ./schemas}" if registered else ""
        text = PIPELINE.format(
            lake=lake, keys=keys, tables=tables, extra=extra, payload=payload, registry=registry
        )
        self.lake, self.config = lake, load_text(text, file="shop.yaml", environ={}).config
        self.publisher = DirectPublisher()
        self.bench = Bench(lake, ScratchRegistry(), self.config, exchange)
        self.registry = self.bench.registry if registered else None
        self.inferred = None if registered else InferredSchemas(lake / "inferred")
        self.batch = -1
        self.secret = secret
        self.restart()

    def restart(self) -> None:
        """Begin with a planner that knows only what is in the lake."""
        self.planner = self.bench.planner = Planner(
            self.config, registry=self.registry, publisher=self.publisher, inferred=self.inferred
        )

    def bring(self, *records: Sent) -> Staged:
        """Stage a batch, commit its logs, and merge the tables that are made of them."""
        self.batch += 1
        self.planner.begin_batch()
        raw = [_raw(records)]
        seen = self.bench.sorted(raw, batch=self.batch)
        self.planner.learn(seen.shapes, seen.carried)
        key = self.secret.encode()
        staged = self.bench.stage(raw, batch=self.batch, mask_key=key)
        tables = self.planner.book.tables
        entries = [
            TableEntry(table=tables[name], files=tuple(staged.files.get(name, ())), records=count)
            for name, count in sorted(staged.records.items())
        ]
        mark = Mark(MARK, self.batch, "hash")
        for entry in entries:
            if entry.files:
                assert self.publisher.publish(entry, mark).outcome is Outcome.PUBLISHED
        pending = self.planner.book.take_pending()
        derived = derived_entries(self.config, entries, tables, pending)
        for entry in sorted(derived, key=lambda each: each.table.role is Role.HISTORY):
            self._merge(entry, mark)
        self.planner.committed([e.table.name for e in (*entries, *derived) if self._is_there(e)])
        return staged

    def _merge(self, entry: TableEntry, mark: Mark) -> None:
        how = merge_config(self.config, entry.table.name)
        assert how is not None
        assert entry.table.role in DERIVED
        files = log_files(str(self.lake / log_of(entry.table.name)), mark.batch)
        result = merged(merge_of(self.config, how, entry, mark, files))
        assert not result.error

    def _is_there(self, entry: TableEntry) -> bool:
        return (Path(entry.table.path) / "_delta_log").exists()

    def rows(self, table: str = "silver_orders") -> list[dict[str, Any]]:
        """Read a table, less the columns that the engine adds."""
        if not (self.lake / table / "_delta_log").exists():
            return []
        rows = DeltaTable(str(self.lake / table)).to_pyarrow_table().to_pylist()
        return [{k: v for k, v in row.items() if not k.startswith("_")} for row in rows]

    def table(self, name: str) -> pa.Table:
        """Read a whole table."""
        return DeltaTable(str(self.lake / name)).to_pyarrow_table()


def _raw(records: Sequence[Sent]) -> pa.RecordBatch:
    rows = [
        {"key": one.key, "topic": one.topic, "partition": one.partition, "offset": one.offset}
        | {"timestamp": one.timestamp, "headers": None, "value": _bytes(one.value)}
        for one in records
    ]
    return pa.RecordBatch.from_pylist(rows, schema=RAW)


def _bytes(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
