"""Tests of pipeline files: records in, tables and dead letters out, without Kafka and a JVM.

    from distributary.testing import run

    result = run("orders.yaml", [{"id": 1, "amount": 9.5}])
    assert result.tables["silver_orders"].num_rows == 1
    assert not result.dead_letters

The tables are made by the code that runs in production: planner, decoders, evolution, commits. Only
the source is replaced, the lake is a folder that is removed, and tasks run in this process.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from distributary.config.catalog import IcebergConfig
from distributary.config.load import Loaded, load, load_text
from distributary.config.runtime import AVAILABLE_NOW
from distributary.engine.loop import StreamRun
from distributary.engine.pipeline import Pipeline
from distributary.engine.seams import make_source
from distributary.errors import DistributaryError, SetupError
from distributary.model import layout
from distributary.model.manifest import Counts, SourceRange
from distributary.model.record import RAW, Format
from distributary.observe.events import Event, SchemaSeen
from distributary.publish.formats.table_format_entry import open_readable
from distributary.registry.folder import FileRegistry
from distributary.source.base import BatchInput, Position
from distributary.spark.in_process import in_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TOPIC = "records"
_FOREVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a topic. A `value` that is no bytes is written as JSON."""

    value: Any
    key: bytes | str | None = None
    headers: Mapping[str, bytes | str] = field(default_factory=dict)
    topic: str = ""
    """The topic; the first one of the pipeline file when left out."""
    timestamp: datetime = datetime(2026, 1, 1, tzinfo=UTC)


class Schemas:
    """A registry in a folder of its own, for payloads that name their schema."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="distributary-schemas-")
        self._registry = FileRegistry(self.path, durable=False)

    @property
    def path(self) -> str:
        """Return the folder."""
        return self._folder.name

    def register(self, subject: str, text: str, *, format: str = "avro") -> int:
        """Register a schema of format avro, protobuf or json, and return its id."""
        return self._registry.register(subject, text, format=Format(format))

    def frame(self, schema_id: int, payload: bytes, *, protobuf: bool = False) -> bytes:
        """Return a payload with the registry's header in front; protobuf: its first message."""
        return b"\0" + schema_id.to_bytes(4, "big") + (b"\0" if protobuf else b"") + payload

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._folder.cleanup()


@dataclass(frozen=True, slots=True)
class Result:
    """The tables that a pipeline made of some records."""

    tables: Mapping[str, pa.Table]
    """The rows of each table, by its name; without the dead letters."""
    dead_letters: Sequence[Mapping[str, Any]]
    """The records that became no row, with `error_code` and `error_message`."""
    counts: Counts
    """The equation: read, written, dead_lettered, parked, skipped."""
    schema_changes: Sequence[str]
    """The changes of the tables' columns, a sentence each."""


def run(
    pipeline: str | os.PathLike[str],
    records: Iterable[Record | bytes | Mapping[str, Any] | None] = (),
    *,
    schemas: Schemas | None = None,
    files: Mapping[str, bytes | str] | None = None,
    batch_size: int = _FOREVER,
    **overrides: Any,
) -> Result:
    """Run a pipeline file over records, or over the files of a source of files.

    `pipeline` is the path of a file, or its text. A record may be just its value: bytes, or
    something that is written as JSON. `overrides` are other settings by their keys, such as
    `**{"evolution.type_change": "dead_letter"}`. Raises DistributaryError as a run would.
    """
    with tempfile.TemporaryDirectory(prefix="distributary-test-") as folder:
        loaded = _loaded(pipeline, folder, schemas, files, overrides)
        changes: list[str] = []
        mine = Pipeline(loaded)
        mine.bus.subscribe(_noting(changes))
        source = (
            make_source(loaded.config)
            if files is not None
            else RecordSource(list(map(_record, records)), loaded.config.topics, batch_size)
        )
        with mine.open(in_process(_no_spark)) as context:
            summary = StreamRun(context, source, stop=threading.Event()).run(AVAILABLE_NOW)
        return _result(mine, summary.counts, changes)


def _loaded(
    pipeline: str | os.PathLike[str],
    folder: str,
    schemas: Schemas | None,
    files: Mapping[str, bytes | str] | None,
    overrides: Mapping[str, Any],
) -> Loaded:
    settings: dict[str, Any] = {
        "tables.publisher": "direct",
        "lake.catalog": None,
        "lake.database": None,
        "lake.path": f"{folder}/lake",
        "lake.checkpoint": f"{folder}/checkpoints",
    }
    if schemas is not None:
        settings |= {"registry": {"path": schemas.path}}
    if files is not None:
        settings |= {"source.path": f"{folder}/in", "source.settle": "0s"}
        for name, content in files.items():
            path = Path(folder, "in", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    settings |= overrides
    text = os.fspath(pipeline)
    loaded = (load_text if "\n" in text else load)(text, overrides=settings)
    lake = loaded.config.lake
    if lake.iceberg is None:
        return loaded
    # mirrors decide how columns evolve, and a catalog must not hear of a test
    lake = lake.model_copy(update={"iceberg": IcebergConfig(type="none")})
    return replace(loaded, config=loaded.config.model_copy(update={"lake": lake}))


def _no_spark() -> SparkSession:
    raise SetupError(
        "a setting of this pipeline needs Spark, but distributary.testing runs without Spark",
        where="distributary.testing",
        evidence="tables.publisher: spark, or a table that only Spark can write",
        next_step="override the setting, or test with `Pipeline.run`",
    )


def _record(given: Record | bytes | Mapping[str, Any] | None) -> Record:
    return given if isinstance(given, Record) else Record(given)


def _noting(changes: list[str]) -> Callable[[Event], None]:
    def note(event: Event) -> None:
        if isinstance(event, SchemaSeen):
            changes.extend(f"{event.table}: {change}" for change in event.changes)

    return note


def _result(pipeline: Pipeline, counts: Counts, changes: Sequence[str]) -> Result:
    letters = pipeline.config.tables.dead_letters
    tables: dict[str, pa.Table] = {}
    for listed in pipeline.ledger().tables():
        table = open_readable(layout.place(pipeline.lake, listed.path))
        if table is not None:
            tables[listed.table] = table.batches(table.schema.names).read_all()
    found = tables.pop(letters, None)
    return Result(tables, [] if found is None else found.to_pylist(), counts, tuple(changes))


class RecordSource:
    """A source of records that are given, in batches of a size."""

    def __init__(self, records: Sequence[Record], topics: Sequence[str], batch_size: int) -> None:
        self._batch_size = max(1, batch_size)
        default = topics[0] if topics else _TOPIC
        offsets: dict[str, int] = {}
        self._rows = [_raw(record, record.topic or default, offsets) for record in records]

    def first(self) -> Position:
        """Return the position before the first record."""
        return {"record": 0}

    def newest(self) -> Position:
        """Return the position after the last record."""
        return {"record": len(self._rows)}

    def advance(self, start: Position, until: Position) -> Position | None:
        """Return the end of a batch of the given size."""
        begin, end = int(start["record"]), int(until["record"])
        return {"record": min(end, begin + self._batch_size)} if begin < end else None

    def retrace(self, start: Position, ranges: Sequence[SourceRange]) -> Position:
        """Return the end of a batch that covered these ranges."""
        return {"record": int(start["record"]) + sum(each.records for each in ranges)}

    def open(self, spark: SparkSession, start: Position, end: Position) -> BatchInput:
        """Open the records between two positions."""
        rows = self._rows[int(start["record"]) : int(end["record"])]
        batch = pa.RecordBatch.from_pylist(rows, schema=RAW)

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for _ in batches:
                yield batch

        return BatchInput(reader=read, ranges=tuple(_ranges(rows)), end=end)

    def peek(self, start: Position) -> Iterator[pa.RecordBatch]:
        """Yield the records after a position."""
        yield pa.RecordBatch.from_pylist(self._rows[int(start["record"]) :], schema=RAW)

    def explain(self, error: Exception) -> DistributaryError | None:
        """Return nothing: records that are given cannot be the cause of a failure."""
        return None


def _raw(record: Record, topic: str, offsets: dict[str, int]) -> dict[str, Any]:
    offset = offsets.get(topic, 0)
    offsets[topic] = offset + 1
    headers = [{"key": name, "value": _bytes(value)} for name, value in record.headers.items()]
    return {
        "key": _bytes(record.key),
        "value": _bytes(record.value),
        "headers": headers or None,
        "topic": topic,
        "partition": 0,
        "offset": offset,
        "timestamp": record.timestamp,
    }


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def _ranges(rows: Sequence[Mapping[str, Any]]) -> Iterator[SourceRange]:
    topics = dict.fromkeys(row["topic"] for row in rows)
    for topic in topics:
        offsets = [row["offset"] for row in rows if row["topic"] == topic]
        yield SourceRange(topic, 0, offsets[0], offsets[-1] + 1, len(offsets))
