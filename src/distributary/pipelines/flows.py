"""Streams for the query functions of a declarative pipeline.

Query functions may not analyse a plan, and `mapInArrow` of Spark Connect asks for the columns of
its input: they are known here, and told to the frame beforehand.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from distributary.config.kafka import KafkaSource
from distributary.config.pipeline import PipelineConfig
from distributary.config.source import DeltaSource
from distributary.decode.base import Decoder
from distributary.decode.formats import decoder_for
from distributary.engine.plan import Planner
from distributary.errors import ConfigError, ErrorCode, SchemaGrewError
from distributary.evolve.align import align
from distributary.evolve.merge import merge
from distributary.model.deadletter import DEAD_LETTER_SCHEMA
from distributary.model.names import quote_sql
from distributary.model.plan import Rejected, Route, RouteKey, StageOrder
from distributary.model.record import RAW
from distributary.model.table import Merged, TablePlan
from distributary.pipelines.known import Known, assume, known, new_planner, settings
from distributary.stage.catalog import Catalog
from distributary.stage.exchange import group, positions
from distributary.stage.files import METADATA, Letter, letters_batch, metadata_columns
from distributary.stage.job import Unresolved
from distributary.stage.parts import fills_for
from distributary.stage.unwrap import unwrap

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


# The settings of a source in the words of Spark's streaming readers.


def kafka_options(source: KafkaSource) -> dict[str, str]:
    """Options of Spark's Kafka stream; holds secrets."""
    options = {**source.spark_options(), "maxOffsetsPerTrigger": str(source.max_records_per_batch)}
    if source.topic_pattern is not None:
        options["subscribePattern"] = source.topic_pattern
    else:
        options["subscribe"] = ",".join(source.topics)
    start = source.starting_offsets
    if isinstance(start, datetime):
        options["startingTimestamp"] = str(int(start.timestamp() * 1000))
        # a partition without newer records is read from its end on
        options["startingOffsetsByTimestampStrategy"] = "latest"
    elif isinstance(start, str):
        options["startingOffsets"] = start
    else:
        given = {t: {str(p): offset for p, offset in parts.items()} for t, parts in start.items()}
        options["startingOffsets"] = json.dumps(given)
    return options


def delta_options(source: DeltaSource) -> dict[str, str]:
    """Options of Delta's stream."""
    if source.starting_version is not None:
        return {"startingVersion": str(source.starting_version)}
    if source.starting_timestamp is not None:
        return {"startingTimestamp": source.starting_timestamp.isoformat()}
    return {}


Rows = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What a task does with its batches."""


def decoded(spark: SparkSession, file: str | os.PathLike[str], *, type: str) -> DataFrame:
    """A streaming frame of the rows of one type, with the columns that it has now.

    Args:
        spark: the session of the project, `SparkSession.active()`.
        file: the pipeline file; relative paths in it start at the project's folder.
        type: the type, as `types` names it.

    Records of other types are left out, and so are those that are no row of any: `dead_letters` has
    them. A record that needs further columns fails the update with SCHEMA_GREW; Spark reads it
    again in the next one.
    """
    from distributary.source.kafka import raw_records

    config, now = _now(file)
    if type not in now.tables:
        names = ", ".join(each.name for each in now.types[:10]) or "none"
        raise ConfigError(
            "the registry knows no such type",
            where=f"type {type[:200]!r}",
            evidence=f"known: {names}",
            next_step="take a name from `distributary.pipelines.types`",
        )
    # sent to every task: a thousand flows must not carry a thousand types each
    part = now.only(type) if config.envelope is not None else now
    rows = TypeRows(config, part, type, raw_records)
    return _mapped(_raw(spark, config), rows, rows.schema)


def dead_letters(spark: SparkSession, file: str | os.PathLike[str]) -> DataFrame:
    """A streaming frame of the records that are a row of no type, each with the reason."""
    from distributary.source.kafka import raw_records

    config, now = _now(file)
    return _mapped(_raw(spark, config), DeadLetters(config, now, raw_records), LETTERS)


_asked: dict[Path, tuple[float, PipelineConfig, Known]] = {}
_FRESH_SECONDS = 30.0
_COLUMNS = "_cached_schema"
"""Where a frame of Spark Connect keeps what it knows of its columns; there is no public way."""


def _now(file: str | os.PathLike[str]) -> tuple[PipelineConfig, Known]:
    """What is known now; the flows of one project ask once, and agree."""
    place = Path(file).absolute()
    asked = _asked.get(place)
    if asked is None or time.monotonic() - asked[0] > _FRESH_SECONDS:
        config = settings(place)
        asked = (time.monotonic(), config, known(config))
        _asked[place] = asked
        assume(place, asked[2].shape())
    return asked[1:]


def _mapped(raw: DataFrame, rows: Rows, schema: pa.Schema) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema

    from distributary.stage.guard import keep_zip_directories

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_zip_directories()
        yield from rows(iter(batches))

    return raw.mapInArrow(task, from_arrow_schema(schema))  # type: ignore[arg-type]


def _raw(spark: SparkSession, config: PipelineConfig) -> DataFrame:
    """Raw records as a stream; headers as JSON, which is quicker on the way to Arrow."""
    from pyspark.sql import functions
    from pyspark.sql.pandas.types import from_arrow_schema

    source = config.source
    if isinstance(source, KafkaSource):
        reader = spark.readStream.format("kafka").options(**kafka_options(source))
        frame = reader.load().select(*RAW.names)
        frame = frame.withColumn("headers", functions.to_json("headers"))
    elif isinstance(source, DeltaSource):
        reader = spark.readStream.format("delta").options(**delta_options(source))
        frame = reader.load(source.path).select(*_delta_columns(source))
    else:
        raise ConfigError("a declarative pipeline reads Kafka or Delta", where="source.type")
    told = pa.schema(
        [pa.field(f.name, pa.string() if f.name == "headers" else f.type) for f in RAW]
    )
    if hasattr(frame, _COLUMNS):
        setattr(frame, _COLUMNS, from_arrow_schema(told))
    return frame


def _delta_columns(source: DeltaSource) -> list[Column]:
    from pyspark.sql import functions as f

    def column(name: str | None, kind: str) -> Column:
        return f.lit(None).cast(kind) if name is None else f.col(quote_sql(name)).cast(kind)

    headers = f.lit(None).cast("string")
    if source.headers is not None:
        headers = f.to_json(f.col(quote_sql(source.headers)))
    return [
        column(source.key, "binary").alias("key"),
        column(source.value, "binary").alias("value"),
        headers.alias("headers"),
        f.lit(source.topic_name).alias("topic"),
        f.lit(0).cast("int").alias("partition"),
        f.lit(None).cast("bigint").alias("offset"),
        column(source.timestamp, "timestamp").alias("timestamp"),
    ]


# Raw records in; rows of one type, or dead letters, out: what a task of a flow does.
#
# The columns were fixed when the update began. A record whose schema needs more of them stops the
# update with SCHEMA_GREW: Spark keeps its position, so that the next update, which begins with
# the new columns, reads the same records again.

_OWN_COLUMNS = {column.name for column in METADATA.values()}
# what people do with a dead letter later has no place in a table that is only appended to
_LETTER = [
    *("pipeline", "topic", "partition", "offset", "timestamp", "key", "value", "headers"),
    *("type", "schema_id", "stage", "error_code", "error_message", "error_position", "first_seen"),
]
LETTERS = pa.schema([DEAD_LETTER_SCHEMA.field(name) for name in _LETTER])
"""The columns of dead letters."""


class _Portion(NamedTuple):
    """Records of one key."""

    key: RouteKey
    answer: Route | Rejected
    raw: pa.RecordBatch
    payloads: pa.BinaryArray


@dataclass(slots=True)
class _Places:
    """Where records belong: by the plan, or by asking the registry what the plan lacks."""

    config: PipelineConfig
    catalog: Catalog
    late: Planner | None = None
    """Knows the keys that the plan did not foresee."""
    _found: dict[RouteKey, Route | Rejected] = field(default_factory=dict)
    _types: frozenset[str] | None = None

    def portions(
        self, raw: pa.RecordBatch, *, claim: str | None = None
    ) -> tuple[list[_Portion], list[Letter]]:
        """The records of a batch by key, those with another claim left out; and bad ones."""
        unwrapped = unwrap(raw, self.catalog)
        while True:
            groups = group(unwrapped, self._unions())
            wanted = [key for key in groups.keys if claim in (None, key.claim)]
            if all(self._answered(key) for key in wanted):
                break
            self._ask([key for key in wanted if not self._answered(key)])
        parts = []
        for key, rows in zip(groups.keys, positions(groups.codes, len(groups.keys)), strict=True):
            if claim in (None, key.claim):
                answer = self.catalog.routes.get(key) or self._found[key]
                mine = raw.take(pa.array(unwrapped.rows[rows]))
                payloads = unwrapped.payloads.take(pa.array(rows))
                parts.append(_Portion(key, answer, mine, payloads))
        return parts, unwrapped.letters

    def decoder_of(self, route: Route) -> Decoder:
        """The decoder of records on this way."""
        known = self.catalog if self.late is None else self.late.catalog()
        schema = self.catalog.schemas.get(route.schema_id) or known.schemas[route.schema_id]
        limits = replace(self.catalog.limits, raw_bytes=route.raw_bytes)
        return decoder_for(schema, route.message, limits)

    def is_listed(self, type_: str) -> bool:
        """Whether the registry lists a type by now; it is asked once a task."""
        if self._types is None:
            self._types = frozenset(known(self.config).tables)
        return type_ in self._types

    def _answered(self, key: RouteKey) -> bool:
        return key in self.catalog.routes or key in self._found

    def _unions(self) -> frozenset[RouteKey]:
        late = self.late.catalog().unions if self.late is not None else frozenset()
        return self.catalog.unions | late

    def _ask(self, keys: Iterable[RouteKey]) -> None:
        if self.late is None:
            self.late = new_planner(self.config)
        self.late.resolve([Unresolved(key, 0) for key in keys])
        self._found |= self.late.catalog().routes


@dataclass(frozen=True, slots=True)
class TypeRows:
    """The rows of one type."""

    config: PipelineConfig = field(repr=False)
    known: Known = field(repr=False)
    type: str
    reader: Rows

    @property
    def schema(self) -> pa.Schema:
        """The columns, as fixed."""
        columns = self.known.tables[self.type].columns
        return pa.schema([pa.field(column.name, column.type) for column in columns])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows of raw records; what is no row of this type is left out."""
        places = _Places(self.config, self.known.catalog)
        claim = self.type if self.config.envelope is not None else None
        for raw in self.reader(batches):
            for portion in places.portions(raw, claim=claim)[0]:
                route = portion.answer
                if isinstance(route, Route) and route.type == self.type:
                    yield from self._rows(route, places.decoder_of(route), portion)

    def _rows(self, route: Route, decoder: Decoder, portion: _Portion) -> Iterator[pa.RecordBatch]:
        table, catalog = self.known.tables[self.type], self.known.catalog
        merged = _merged(table, decoder, catalog)
        if merged.refused is not None:
            return
        if merged.changes:
            raise _grew(route, "; ".join(change.describe() for change in merged.changes))
        found = decoder.decode(portion.payloads)
        if not found.ok.num_rows:
            return
        raw = portion.raw if found.origin is None else portion.raw.take(found.origin)
        own = pa.schema([f for f in self.schema if f.name not in _OWN_COLUMNS])
        body = align(found.ok, fills_for(table, decoder, catalog), own)
        ids = pa.repeat(pa.scalar(route.schema_id, pa.int64()), body.num_rows)
        arrays = dict(zip(own.names, body.columns, strict=True))
        arrays |= dict(metadata_columns(raw, ids, catalog.metadata, _order(self.config)))
        yield pa.RecordBatch.from_arrays([arrays[f.name] for f in self.schema], schema=self.schema)


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The records that are a row of no type."""

    config: PipelineConfig = field(repr=False)
    known: Known = field(repr=False)
    reader: Rows

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Dead letters of raw records."""
        places = _Places(self.config, self.known.catalog)
        order = _order(self.config)
        for raw in self.reader(batches):
            portions, letters = places.portions(raw)
            if letters:
                yield _letters(raw, letters, order)
            for portion in portions:
                found = list(self._refused(portion, places))
                if found:
                    yield _letters(portion.raw, found, order)

    def _refused(self, portion: _Portion, places: _Places) -> Iterator[Letter]:
        key, route = portion.key, portion.answer
        if isinstance(route, Route):
            route = self._reason(route, places) or route
        if isinstance(route, Rejected):
            for row in range(0 if route.passed_over else portion.raw.num_rows):
                yield Letter(
                    *(row, route.code, route.message, "route", None, key.claim, key.schema_id)
                )
            return
        for failure in places.decoder_of(route).decode(portion.payloads).failed:
            yield Letter(
                failure.index,
                failure.code,
                failure.message,
                "decode",
                failure.position,
                type=route.type,
                schema_id=route.schema_id,
            )

    def _reason(self, route: Route, places: _Places) -> Rejected | None:
        """Why records are dead letters although their schema is known."""
        table = self.known.tables.get(route.type)
        if table is not None:
            merged = _merged(table, places.decoder_of(route), self.known.catalog)
            return None if merged.refused is None else Rejected(merged.refused, merged.reason)
        if places.is_listed(route.type):
            raise _grew(route, "+ table")
        text = "no subject of the registry is of this type"
        return Rejected(ErrorCode.NEW_TYPE_REFUSED, text)


def _merged(table: TablePlan, decoder: Decoder, catalog: Catalog) -> Merged:
    """The columns that a table needs for rows of a schema, or why a policy refuses them."""
    return merge(table.columns, decoder.columns, catalog.evolution)


def _grew(route: Route, changes: str) -> SchemaGrewError:
    return SchemaGrewError(
        "a record needs columns that the update did not know when it began",
        where=f"type {route.type[:200]!r}, schema {route.schema_id}",
        evidence=changes[:500],
        next_step="run the update again: nothing is lost, and `distributary pipelines run` "
        "does it by itself",
    )


def _order(config: PipelineConfig) -> StageOrder:
    now = time.time_ns() // 1000
    return StageOrder(config.name, "declarative", batch=-1, attempt="", now_us=now, folder="")


def _letters(raw: pa.RecordBatch, letters: list[Letter], order: StageOrder) -> pa.RecordBatch:
    return letters_batch(raw, letters, order).select(_LETTER)
