"""Streams for the query functions of a declarative pipeline.

Query functions must not analyse a plan, but `mapInArrow` of Spark Connect needs the columns of its
input. They are known here and are set on the frame beforehand.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from distributary.config.pipeline_config import PipelineConfig
from distributary.decode.base import Decoder
from distributary.decode.formats import decoder_for
from distributary.engine.planning.planner import Planner
from distributary.errors import ConfigError, ErrorCode, SchemaGrewError
from distributary.evolve.align import align
from distributary.evolve.merge import merge
from distributary.model.deadletter import DEAD_LETTER_SCHEMA
from distributary.model.record import RAW
from distributary.model.routing import Rejected, Route, RouteKey, StageOrder
from distributary.model.table import Merged, TablePlan
from distributary.pipelines.known_types import KnownTypes, assume, known, new_planner, settings
from distributary.source.source_entry import entry_of
from distributary.stage.decoding import fills_for
from distributary.stage.exchange import group, positions
from distributary.stage.job import Unresolved
from distributary.stage.task_outputs import METADATA, Letter, letters_batch, metadata_columns
from distributary.stage.task_plan import TaskPlan
from distributary.stage.unwrap import decodable, unwrap

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


Rows = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function that a task applies to its batches."""


def decoded(spark: SparkSession, file: str | os.PathLike[str], *, type: str) -> DataFrame:
    """Return a streaming frame with the rows of one type, with the columns of its current schemas.

    Args:
        spark: the session of the project, `SparkSession.active()`.
        file: the pipeline file; relative paths in it start at the project's folder.
        type: the type, as `types` names it.

    The frame leaves out records of other types, and records that cannot become a row of any type,
    which `dead_letters` returns. A record that needs further columns fails the update with
    SCHEMA_GREW; Spark reads it again in the next update.
    """
    from distributary.source.kafka.source import raw_records

    config, now = _now(file)
    if type not in now.tables:
        names = ", ".join(known_type.name for known_type in now.types[:10]) or "none"
        raise ConfigError(
            "the registry has no such type",
            where=f"type {type[:200]!r}",
            evidence=f"known: {names}",
            next_step="take a name from `distributary.pipelines.types`",
        )
    # sent to every task: with a thousand flows, each must not contain a thousand types
    part = now.only(type) if config.envelope is not None else now
    rows = TypeRows(config, part, type, raw_records)
    return _mapped(_raw(spark, config), rows, rows.schema)


def dead_letters(spark: SparkSession, file: str | os.PathLike[str]) -> DataFrame:
    """Return a streaming frame of the records that cannot become a row, each with the reason."""
    from distributary.source.kafka.source import raw_records

    config, now = _now(file)
    return _mapped(_raw(spark, config), DeadLetterRows(config, now, raw_records), LETTERS)


_answers: dict[Path, tuple[float, PipelineConfig, KnownTypes]] = {}
_FRESH_SECONDS = 30.0
_COLUMNS = "_cached_schema"
"""The private attribute in which a frame of Spark Connect caches its columns."""


def _now(file: str | os.PathLike[str]) -> tuple[PipelineConfig, KnownTypes]:
    """Return the settings and the registry's types; the flows of a project share one answer."""
    place = Path(file).absolute()
    answer = _answers.get(place)
    if answer is None or time.monotonic() - answer[0] > _FRESH_SECONDS:
        config = settings(place)
        answer = (time.monotonic(), config, known(config))
        _answers[place] = answer
        assume(place, answer[2].shape())
    return answer[1:]


def _mapped(raw: DataFrame, rows: Rows, schema: pa.Schema) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema

    from distributary.stage.guard import keep_zip_directories

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_zip_directories()
        yield from rows(iter(batches))

    return raw.mapInArrow(task, from_arrow_schema(schema))  # type: ignore[arg-type]


def _raw(spark: SparkSession, config: PipelineConfig) -> DataFrame:
    """Return raw records as a stream, with headers as JSON, which converts to Arrow faster."""
    from pyspark.sql.pandas.types import from_arrow_schema

    frame = entry_of(config.source).stream(spark, config.source)
    raw_schema = pa.schema(
        [pa.field(f.name, pa.string() if f.name == "headers" else f.type) for f in RAW]
    )
    if hasattr(frame, _COLUMNS):
        setattr(frame, _COLUMNS, from_arrow_schema(raw_schema))
    return frame


# The work of a flow's tasks: they turn raw records into rows of one type, or into dead letters. The
# columns were fixed when the update began. A record whose schema needs more columns stops the
# update with SCHEMA_GREW. Spark keeps its position, so that the next update, which begins with the
# new columns, reads the same records again.

_OWN_COLUMNS = {column.name for column in METADATA.values()}
# replay and discard columns have no place in a table that is only appended to
_LETTER = [
    *("pipeline", "topic", "partition", "offset", "timestamp", "key", "value", "headers"),
    *("type", "schema_id", "stage", "error_code", "error_message", "error_position", "first_seen"),
]
LETTERS = pa.schema([DEAD_LETTER_SCHEMA.field(name) for name in _LETTER])
"""The columns of the dead letters' table."""


class _Portion(NamedTuple):
    """The records of one key."""

    key: RouteKey
    answer: Route | Rejected
    raw: pa.RecordBatch
    payloads: pa.BinaryArray


@dataclass(slots=True)
class _Places:
    """The routes of records: from the plan, or from the registry for keys that the plan lacks."""

    config: PipelineConfig
    plan: TaskPlan
    late: Planner | None = None
    """Resolves the keys that the plan lacks."""
    _resolved: dict[RouteKey, Route | Rejected] = field(default_factory=dict)
    _types: frozenset[str] | None = None

    def portions(
        self, raw: pa.RecordBatch, *, claim: str | None = None
    ) -> tuple[list[_Portion], list[Letter]]:
        """Return the records of a batch by key, except those of another claim.

        And invalid records.
        """
        unwrapped = decodable(unwrap(raw, self.plan), self.plan)
        while True:
            groups = group(unwrapped, self._unions())
            wanted = [key for key in groups.keys if claim in (None, key.claim)]
            if all(self._answered(key) for key in wanted):
                break
            self._ask([key for key in wanted if not self._answered(key)])
        parts = []
        for key, rows in zip(groups.keys, positions(groups.codes, len(groups.keys)), strict=True):
            if claim in (None, key.claim):
                answer = self.plan.routing.routes.get(key) or self._resolved[key]
                mine = raw.take(pa.array(unwrapped.rows[rows]))
                payloads = unwrapped.payloads.take(pa.array(rows))
                parts.append(_Portion(key, answer, mine, payloads))
        return parts, unwrapped.letters

    def decoder_of(self, route: Route) -> Decoder:
        """Return the decoder of records on a route."""
        known = self.plan if self.late is None else self.late.task_plan()
        schema = (
            self.plan.routing.schemas.get(route.schema_id) or known.routing.schemas[route.schema_id]
        )
        limits = replace(self.plan.records.limits, raw_bytes=route.raw_bytes)
        return decoder_for(schema, route.message, limits)

    def is_listed(self, type_: str) -> bool:
        """Return whether the registry lists a type by now; a task asks once."""
        if self._types is None:
            self._types = frozenset(known(self.config).tables)
        return type_ in self._types

    def _answered(self, key: RouteKey) -> bool:
        return key in self.plan.routing.routes or key in self._resolved

    def _unions(self) -> frozenset[RouteKey]:
        late = self.late.task_plan().routing.unions if self.late is not None else frozenset()
        return self.plan.routing.unions | late

    def _ask(self, keys: Iterable[RouteKey]) -> None:
        if self.late is None:
            self.late = new_planner(self.config)
        self.late.resolve([Unresolved(key, 0) for key in keys])
        self._resolved |= self.late.task_plan().routing.routes


@dataclass(frozen=True, slots=True)
class TypeRows:
    """The rows of one type."""

    config: PipelineConfig = field(repr=False)
    known: KnownTypes = field(repr=False)
    type: str
    reader: Rows

    @property
    def schema(self) -> pa.Schema:
        """Return the columns that the update fixed."""
        columns = self.known.tables[self.type].columns
        return pa.schema([pa.field(column.name, column.type) for column in columns])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of raw records; records of other types are left out."""
        places = _Places(self.config, self.known.plan)
        claim = self.type if self.config.envelope is not None else None
        for raw in self.reader(batches):
            for portion in places.portions(raw, claim=claim)[0]:
                route = portion.answer
                if isinstance(route, Route) and route.type == self.type:
                    yield from self._rows(route, places.decoder_of(route), portion)

    def _rows(self, route: Route, decoder: Decoder, portion: _Portion) -> Iterator[pa.RecordBatch]:
        table, plan = self.known.tables[self.type], self.known.plan
        merged = _merged(table, decoder, plan)
        if merged.refused is not None:
            return
        if merged.changes:
            raise _grew(route, "; ".join(change.describe() for change in merged.changes))
        decoded_rows = decoder.decode(portion.payloads)
        if not decoded_rows.ok.num_rows:
            return
        raw = portion.raw if decoded_rows.origin is None else portion.raw.take(decoded_rows.origin)
        own = pa.schema([f for f in self.schema if f.name not in _OWN_COLUMNS])
        body = align(decoded_rows.ok, fills_for(table, decoder, plan), own)
        ids = pa.repeat(pa.scalar(route.schema_id, pa.int64()), body.num_rows)
        arrays = dict(zip(own.names, body.columns, strict=True))
        arrays |= dict(metadata_columns(raw, ids, plan.output.metadata, _order(self.config)))
        yield pa.RecordBatch.from_arrays([arrays[f.name] for f in self.schema], schema=self.schema)


@dataclass(frozen=True, slots=True)
class DeadLetterRows:
    """The records that cannot become a row of any type."""

    config: PipelineConfig = field(repr=False)
    known: KnownTypes = field(repr=False)
    reader: Rows

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the dead letters among raw records."""
        places = _Places(self.config, self.known.plan)
        order = _order(self.config)
        for raw in self.reader(batches):
            portions, letters = places.portions(raw)
            if letters:
                yield _letters(raw, letters, order)
            for portion in portions:
                refused = list(self._refused(portion, places))
                if refused:
                    yield _letters(portion.raw, refused, order)

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
        """Return why records of a route become dead letters although their schema is known."""
        table = self.known.tables.get(route.type)
        if table is not None:
            merged = _merged(table, places.decoder_of(route), self.known.plan)
            return None if merged.refused is None else Rejected(merged.refused, merged.reason)
        if places.is_listed(route.type):
            raise _grew(route, "+ table")
        text = "no subject of the registry belongs to this type"
        return Rejected(ErrorCode.NEW_TYPE_REFUSED, text)


def _merged(table: TablePlan, decoder: Decoder, plan: TaskPlan) -> Merged:
    """Return the columns that a table needs for rows of a schema, or the policy's refusal."""
    return merge(table.columns, decoder.columns, plan.output.evolution)


def _grew(route: Route, changes: str) -> SchemaGrewError:
    return SchemaGrewError(
        "a record needs columns that the update did not have when it began",
        where=f"type {route.type[:200]!r}, schema {route.schema_id}",
        evidence=changes[:500],
        next_step="run the update again: no record is lost, and `distributary pipelines run` "
        "does it by itself",
    )


def _order(config: PipelineConfig) -> StageOrder:
    now = time.time_ns() // 1000
    return StageOrder(config.name, "declarative", batch=-1, attempt="", now_us=now, folder="")


def _letters(raw: pa.RecordBatch, letters: list[Letter], order: StageOrder) -> pa.RecordBatch:
    return letters_batch(raw, letters, order).select(_LETTER)
