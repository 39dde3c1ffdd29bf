"""The last event of each key, found by Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from distributary.merge.events import CHANGE_SCHEMA
from distributary.merge.keys import Definition, key_texts
from distributary.merge.sequence import Place
from distributary.merge.shape import Shape
from distributary.merge.spark_statement import SYSTEM, quoted
from distributary.merge.tombstones import ROW, definition_text
from distributary.model.change import SEQ
from distributary.model.table import Column
from distributary.publish.columns import Field, fields_of, schema_string

_ARRIVAL = ("_topic", "_partition", "_offset", "_hash")
_KEY_TEXT = "key_text"


@dataclass(frozen=True, slots=True)
class Winners:
    """What a view of winners is made of; see `merge_statement` for its columns."""

    columns: tuple[str, ...]
    """The table's columns: the n-th is `c<n>`."""
    key: Definition
    left_out: Mapping[str, tuple[str, ...]]
    """Columns that events leave out, with the names under which they say so."""

    def number(self, name: str) -> int:
        """The number of a column."""
        return self.columns.index(name)

    def key_columns(self) -> list[str]:
        """The names in the view of the key's columns."""
        return [f"c{self.number(name)}" for name in self.key]


def read_frame(spark: SparkSession, files: Sequence[str], shape: Shape) -> DataFrame:
    """Events with the columns of a table; one that a file lacks is null."""
    change = fields_of([Column(field.name, field.type) for field in CHANGE_SCHEMA])
    own = [f for f in shape.fields if f["name"] not in CHANGE_SCHEMA.names]
    return spark.read.schema(_struct([*change, *own])).parquet(*map(_no_glob, files))


def winners_of(
    events: DataFrame, about: Winners, *, soft: bool, emptied: Place | None
) -> DataFrame:
    """The last event of each key, with the last value told of each column that events leave out."""
    events = events.filter(F.coalesce(F.col("_op") != "truncate", F.lit(True)))
    events = events.filter(F.size("_key") > 0)
    if emptied is not None and not soft:
        events = events.filter(F.col("_seq") >= place_literal(emptied))
    gone = (F.col("_op") == "delete") | F.coalesce(F.col("_deleted"), F.lit(False))
    own = [name for name in about.columns if name not in SYSTEM]
    rows = events.select(
        *(F.col(quoted(name)).alias(f"c{about.number(name)}") for name in own),
        "_seq",
        "_source_ts",
        gone.alias("gone"),
        F.struct("_seq", *_ARRIVAL).alias("place"),
        *(_told(names).alias(f"t{about.number(name)}") for name, names in about.left_out.items()),
    )
    keys = about.key_columns()
    values = [f"c{about.number(n)}" for n in own if f"c{about.number(n)}" not in keys]
    last = F.max_by(F.struct(*values, "_seq", "_source_ts", "gone"), "place").alias("last")
    told = [_last_told(about.number(name), soft=soft) for name in about.left_out]
    found = rows.groupBy(*keys).agg(last, *told)
    return found.select(*keys, "last.*", *(f"l{about.number(name)}" for name in about.left_out))


def with_stale(
    winners: DataFrame, tombstones: DataFrame, about: Winners, *, since_us: int
) -> DataFrame:
    """Winners, `stale` if they are not newer than what is remembered of their rows."""
    remembered = (
        tombstones.filter(F.col("kind") == ROW)
        .filter(F.col("definition") == definition_text(about.key))
        .filter(F.col("removed_at") >= F.timestamp_micros(F.lit(since_us)))
        .groupBy(F.col("key").alias(_KEY_TEXT))
        .agg(F.max("_seq").alias("removed"))
    )
    names = winners.columns
    joined = with_key_texts(winners, about).join(remembered, _KEY_TEXT, "left")
    newer = F.col("_seq") > F.col("removed")
    again = F.col("gone") & (F.col("_seq") == F.col("removed"))
    joined = joined.withColumn("stale", ~(F.col("removed").isNull() | newer | again))
    for name in about.left_out:
        told = f"l{about.number(name)}"
        later = F.col("removed").isNull() | (F.col(f"{told}._seq") > F.col("removed"))
        joined = joined.withColumn(told, F.when(later, F.col(told)))
    return joined.select(*names, "stale")


def with_key_texts(winners: DataFrame, about: Winners) -> DataFrame:
    """Winners with the text of their key, by the same code that writes tombstones."""
    schema = StructType([*winners.schema]).add(_KEY_TEXT, StringType())
    columns = dict(zip(about.key_columns(), about.key, strict=True))
    return winners.mapInArrow(partial(_add_texts, columns), schema)


def place_literal(place: Place) -> Expression:
    """A place as a constant."""
    spelled = _struct(fields_of([Column(field.name, field.type) for field in SEQ]))
    parts = [
        F.lit(value).cast(field.dataType).alias(field.name)
        for value, field in zip(place, spelled, strict=True)
    ]
    return F.struct(*parts)


def _told(names: Sequence[str]) -> Expression:
    given = F.array(*(F.lit(name) for name in names))
    return ~F.coalesce(F.arrays_overlap("_unchanged", given), F.lit(False))


def _last_told(number: int, *, soft: bool) -> Expression:
    value, tells = F.col(f"c{number}"), F.col(f"t{number}")
    if not soft:
        # a row that was removed takes its values with it
        value, tells = F.when(~F.col("gone"), value), tells | F.col("gone")
    pair = F.struct(value.alias("value"), "_seq")
    return F.max_by(pair, F.when(tells, F.col("place"))).alias(f"l{number}")


def _add_texts(
    columns: Mapping[str, str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    names = tuple(columns.values())
    for batch in batches:
        keys = pa.table([batch.column(alias) for alias in columns], names=list(names))
        texts = key_texts(keys, names)
        yield pa.RecordBatch.from_arrays([*batch.columns, texts], [*batch.schema.names, _KEY_TEXT])


def _struct(fields: Sequence[Field]) -> StructType:
    return StructType.fromJson(json.loads(schema_string(fields)))


def _no_glob(path: str) -> str:
    return re.sub(r"([\\\[\]{}*?])", r"\\\1", path)
