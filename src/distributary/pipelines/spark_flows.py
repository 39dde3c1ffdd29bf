"""Streams for the query functions of a declarative pipeline.

Query functions may not analyse a plan, and `mapInArrow` of Spark Connect asks for the columns of
its input: they are known here, and told to the frame beforehand.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from distributary.config.kafka import KafkaSource
from distributary.config.pipeline import PipelineConfig
from distributary.config.source import DeltaSource
from distributary.errors import ConfigError
from distributary.model.record import RAW
from distributary.pipelines.assumed import assume
from distributary.pipelines.known import Known, known, settings
from distributary.pipelines.spark_options import delta_options, kafka_options

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Rows = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


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
    from distributary.pipelines.rows import TypeRows
    from distributary.source.kafka import KafkaReader

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
    rows = TypeRows(config, part, type, KafkaReader())
    return _mapped(_raw(spark, config), rows, rows.schema)


def dead_letters(spark: SparkSession, file: str | os.PathLike[str]) -> DataFrame:
    """A streaming frame of the records that are a row of no type, each with the reason."""
    from distributary.pipelines.rows import LETTERS, DeadLetters
    from distributary.source.kafka import KafkaReader

    config, now = _now(file)
    return _mapped(_raw(spark, config), DeadLetters(config, now, KafkaReader()), LETTERS)


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

    from distributary.stage.worker import keep_zip_directories

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
        return f.lit(None).cast(kind) if name is None else f.col(_quoted(name)).cast(kind)

    headers = f.lit(None).cast("string")
    if source.headers is not None:
        headers = f.to_json(f.col(_quoted(source.headers)))
    return [
        column(source.key, "binary").alias("key"),
        column(source.value, "binary").alias("value"),
        headers.alias("headers"),
        f.lit(source.topic_name).alias("topic"),
        f.lit(0).cast("int").alias("partition"),
        f.lit(None).cast("bigint").alias("offset"),
        column(source.timestamp, "timestamp").alias("timestamp"),
    ]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
