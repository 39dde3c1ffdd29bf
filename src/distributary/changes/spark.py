"""The same merge with Spark's MERGE: for changes that touch more than suits one process.

Spark finds the last event of each key, and rewrites what changes, in as many tasks as it takes.
What is rare in large tables is left to `apply`: several definitions of a key in play, keys that
Spark cannot compare, column names that its writer refuses, columns that are taken away.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from distributary.changes.apply import MemoryTarget, look_at, merge_table, plan
from distributary.changes.decide import leaving
from distributary.changes.events import (
    CHANGE_SCHEMA,
    OLD_KEY,
    PROPERTY,
    Definition,
    Events,
    Flags,
    KeyIndex,
    Place,
    Span,
    definitions_of,
    fractional,
    from_text,
    highest,
    key_texts,
    left_out_names,
    read_events,
    read_old_keys,
    shortened,
    to_text,
)
from distributary.changes.shape import MergeOrder, MergeResult, Shape
from distributary.changes.tombstones import (
    MOVED,
    ROW,
    TRUNCATE,
    Tombstones,
    definition_text,
    made,
    open_tombstones,
    remember,
)
from distributary.delta.columns import Field, fields_of, schema_string
from distributary.delta.commit import Change, facts, rewrite_files
from distributary.delta.log import Snapshot, snapshot_of
from distributary.delta.parquet import conform, read_file
from distributary.delta.skipping import Keys
from distributary.delta.tables import OvertakenError, committing, until_not_overtaken
from distributary.evolve.types import is_map
from distributary.model.change import SEQ
from distributary.model.names import quote_sql
from distributary.model.table import Column
from distributary.publish.spark import RACE, no_glob
from distributary.store.base import is_remote

# The text of a MERGE: names from outside only ever appear quoted, and texts as their bytes.

SYSTEM = ("_seq", "_source_ts", "_deleted")
_TYPES = {"int32": "INT", "int64": "BIGINT", "string": "STRING"}


def merge_statement(
    path: str,
    view: str,
    *,
    columns: Sequence[str],
    key: Collection[str],
    left_out: Collection[str],
    soft: bool,
    emptied: Place | None,
    empties: bool,
) -> str:
    """Apply the winners in a view to a table.

    The view has the table's columns as `c0`, `c1` and so on, and `_seq`, `_source_ts`, `gone`; for
    columns that events leave out `l<n>` with the last `value` that was told and its `_seq`.
    `emptied` is the last truncate, and `empties` whether it is news for the table.
    """
    newer = "coalesce(s._seq > t._seq, true)"
    old = "false" if emptied is None else f"t._seq < {_place(emptied)}"
    payload = [(n, name) for n, name in enumerate(columns) if name not in SYSTEM]
    gone = "s.gone" if emptied is None or not soft else f"(s.gone OR s._seq < {_place(emptied)})"
    system = {"_seq": "s._seq", "_source_ts": "s._source_ts", "_deleted": gone if soft else "false"}
    own = {name: system[name] for name in SYSTEM if name in columns}
    # a row that was removed takes its values with it
    before = f"NOT {old}" if empties and not soft else "true"
    told = {n: _quoted_text(n, name, before) for n, name in payload if name in left_out}
    sets = {name: told.get(n, f"s.c{n}") for n, name in payload} | own
    values = {name: f"s.l{n}.value" if name in left_out else f"s.c{n}" for n, name in payload} | own
    met = [f"t.{quote_sql(name)} <=> s.c{n}" for n, name in payload if name in key]
    lines = [
        f"MERGE INTO delta.{quote_sql(path)} t USING {view} s ON {' AND '.join(met)}",
        *(() if soft else (f"WHEN MATCHED AND {newer} AND s.gone THEN DELETE",)),
        f"WHEN MATCHED AND {newer} THEN UPDATE SET {_assignments(sets)}",
    ]
    if empties and soft:
        live = f"{old} AND NOT coalesce(t._deleted, false)"
        lines.append(f"WHEN MATCHED AND {live} THEN UPDATE SET _deleted = true")
    inserts = f"({', '.join(map(quote_sql, values))}) VALUES ({', '.join(values.values())})"
    lines.append(f"WHEN NOT MATCHED {'' if soft else 'AND NOT s.gone '}THEN INSERT {inserts}")
    if empties and soft:
        lines.append(f"WHEN NOT MATCHED BY SOURCE AND {live} THEN UPDATE SET _deleted = true")
    elif empties:
        lines.append(f"WHEN NOT MATCHED BY SOURCE AND {old} THEN DELETE")
    return "\n".join(lines)


def _quoted_text(number: int, name: str, before: str) -> str:
    place = f"s.l{number}._seq"
    return (
        f"CASE WHEN coalesce({place} > t._seq, {place} IS NOT NULL) THEN s.l{number}.value "
        f"WHEN {before} THEN t.{quote_sql(name)} END"
    )


def _assignments(sets: dict[str, str]) -> str:
    return ", ".join(f"{quote_sql(name)} = {value}" for name, value in sets.items())


def _place(place: Place) -> str:
    pairs = zip(SEQ, place, strict=True)
    parts = [f"'{f.name}', CAST({_literal(v)} AS {_TYPES[str(f.type)]})" for f, v in pairs]
    return f"named_struct({', '.join(parts)})"


def _literal(value: int | str) -> str:
    return str(value) if isinstance(value, int) else f"X'{value.encode().hex()}'"


# The last event of each key, found by Spark.

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
    return spark.read.schema(_struct([*change, *own])).parquet(*map(no_glob, files))


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
        *(F.col(quote_sql(name)).alias(f"c{about.number(name)}") for name in own),
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
    winners: DataFrame,
    tombstones: DataFrame,
    about: Winners,
    *,
    schema: pa.Schema,
    since_us: int,
) -> DataFrame:
    """Winners, `stale` if they are not newer than what is remembered of their rows."""
    kept = (
        tombstones.filter(F.col("kind") == ROW)
        .filter(F.col("definition") == definition_text(about.key))
        .filter(F.col("removed_at") >= F.timestamp_micros(F.lit(since_us)))
        .select(F.col("key").alias(_KEY_TEXT), "_seq")
    )
    numbers = fractional(schema, about.key)
    if numbers:
        # older versions kept zeros
        kept = kept.mapInArrow(partial(_shorten_texts, numbers), kept.schema)
    remembered = kept.groupBy(_KEY_TEXT).agg(F.max("_seq").alias("removed"))
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


def _shorten_texts(
    names: Sequence[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        texts = shortened(batch.column(_KEY_TEXT), names)
        yield batch.set_column(0, batch.schema.field(0), texts)


def _struct(fields: Sequence[Field]) -> StructType:
    return StructType.fromJson(json.loads(schema_string(fields)))


# Rows that get another key, for Spark: the few of them are settled in one process.
#
# What is known of these rows is fetched from the table by their keys, the events about them are
# taken out of the batch, and what became of them is put in instead: nothing is left out any more.

_POSITION = ("phase", "ts", "a", "b", "c")


@dataclass(frozen=True, slots=True)
class Settled:
    """What stands for the events about some rows."""

    keys: pa.Table
    """Of these rows."""
    events: pa.Table
    """As a log would have them, without arrivals."""
    memories: pa.Table
    """Of rows whose new keys are not known yet."""

    def applied(self, session: SparkSession, frame: DataFrame) -> DataFrame:
        """A batch with these events instead of its own about the same rows."""
        keys = session.createDataFrame(_numbered(self.keys))
        rest = frame.join(keys, _same(frame, keys, self.keys.column_names), "left_anti")
        return rest.unionByName(session.createDataFrame(self.events, frame.schema))


def settle_moves(
    session: SparkSession,
    order: MergeOrder,
    columns: Shape,
    key: Definition,
    tombstones: Tombstones,
    *,
    exists: bool,
) -> Settled | None:
    """Settle the rows that get another key; None if there are none, as nearly always."""
    keys = _concerned(order.files, columns, key)
    if keys is None:
        return None
    events = _events_about(order.files, columns, keys)
    known = columns.schema.empty_table()
    if exists:
        known = conform(
            found := _known(session, order.path, columns, keys), columns.schema, rows=found.num_rows
        )
    made = plan(
        events,
        MemoryTarget(known),
        tombstones,
        shape=columns,
        spans=(Span(key),),
        soft=order.soft,
        now_us=order.now_us,
    )
    moved = made.tombstones.filter(pc.equal(made.tombstones.column("kind"), MOVED))
    told = [_moved(made.winners, columns, key)]
    if not order.soft:
        gone = events.rows.filter(pa.array(events.deletes))
        told.append(gone.select(told[0].column_names))
    return Settled(keys, pa.concat_tables(told), moved)


def _concerned(files: Sequence[str], columns: Shape, key: Definition) -> pa.Table | None:
    """The keys of rows that move, old and new, unless an event alone tells all of the row."""
    own = pa.schema([columns.schema.field(name) for name in key])
    found: list[pa.Table] = []
    for file in files:
        events = read_events([file], own)
        found.append(events.rows.take(np.union1d(events.asking, leaving(events))))
    some = Events(pa.concat_tables(found)) if found else None
    if some is None or not some.rows.num_rows:
        return None
    old = read_old_keys(some.rows.column(OLD_KEY.name), some.asking, own)
    told = _told_at(files, some.seq.filter(pa.array(some.deletes)))
    kept = ~(some.deletes & np.isin(_positions(some.seq), told))
    parts = [some.rows.filter(pa.array(kept)).select(key)]
    parts += [each.rows for each in old if each.definition == key]
    keys = pa.concat_tables(parts)
    index = KeyIndex(keys, key)
    return keys.take(np.unique(index.groups, return_index=True)[1]) if keys.num_rows else None


def _told_at(files: Sequence[str], seq: pa.StructArray) -> np.ndarray:
    """Those of some positions at which an event of the batch tells all of its row."""
    wanted, met = _positions(seq), [np.array([], object)]
    for file in files if len(wanted) else ():
        events = read_events([file], pa.schema([]))
        left = pc.list_value_length(events.rows.column("_unchanged")).fill_null(0)
        whole: Flags = pc.equal(left, 0).to_numpy() & ~events.deletes & ~events.truncates
        here = _positions(events.seq.filter(pa.array(whole)))
        met.append(here[np.isin(here, wanted)])
    return np.concatenate(met)


def _positions(seq: pa.StructArray) -> np.ndarray:
    """Positions as texts: they are compared across files."""
    parts = [seq.field(name).cast(pa.string()) for name in _POSITION]
    texts: np.ndarray = pc.binary_join_element_wise(*parts, " ").to_numpy(zero_copy_only=False)
    return texts


def _events_about(files: Sequence[str], columns: Shape, keys: pa.Table) -> Events:
    own = pa.schema([field for field in columns.schema if field.name not in CHANGE_SCHEMA.names])
    index = KeyIndex(keys, tuple(keys.column_names))
    parts = []
    for file in files:
        events = read_events([file], own)
        mine = (index.find(events.rows) >= 0) & (events.keys[1] >= 0)
        parts.append(events.rows.filter(pa.array(mine | events.truncates)))
    return Events(pa.concat_tables(parts))


def _known(session: SparkSession, path: str, columns: Shape, keys: pa.Table) -> pa.Table:
    """The rows of the table under these keys."""
    table = session.read.format("delta").load(path)
    some = session.createDataFrame(_numbered(keys))
    found = table.join(F.broadcast(some), _same(table, some, keys.column_names), "left_semi")
    have = [name for name in columns.names if name in table.columns]
    rows: pa.Table = found.select(*map(quote_sql, have)).toArrow()
    return rows


def _numbered(keys: pa.Table) -> pa.Table:
    # names from outside may hold what means something to Spark
    return keys.rename_columns([f"k{number}" for number in range(keys.num_columns)])


def _same(one: DataFrame, keys: DataFrame, names: Sequence[str]) -> Expression:
    pairs = [one[quote_sql(name)].eqNullSafe(keys[f"k{n}"]) for n, name in enumerate(names)]
    whole = pairs[0]
    for pair in pairs[1:]:
        whole &= pair
    return whole


def _moved(winners: pa.Table, columns: Shape, key: Definition) -> pa.Table:
    """Rows as events that leave nothing out."""
    size = winners.num_rows
    deleted = winners.column("_deleted") if "_deleted" in columns.names else None
    flags = pa.nulls(size, pa.bool_()) if deleted is None else deleted
    told = {
        "_op": pa.repeat(pa.scalar("update"), size),
        "_deleted": flags,
        "_key": pa.array([list(key)] * size, pa.list_(pa.string())),
    }
    own = [name for name in columns.names if name not in CHANGE_SCHEMA.names]
    schema = pa.schema([*CHANGE_SCHEMA, *(columns.schema.field(name) for name in own)])
    have = set(winners.column_names)
    arrays = [
        told[f.name]
        if f.name in told
        else winners.column(f.name)
        if f.name in have
        else pa.nulls(size, f.type)
        for f in schema
    ]
    return pa.table(arrays, schema=schema)


_REFUSED = re.compile(r"[ ,;{}()\n\t=]")
"""What Delta's writer does not take in a column's name, unless the table maps its columns."""


@dataclass(frozen=True, slots=True)
class _Survey:
    """What a batch holds, as far as it decides how to merge it."""

    keys: tuple[Definition, ...]
    left_out: Mapping[str, tuple[str, ...]]
    truncates: pa.Table
    """These events."""
    strange: bool
    """Some events name a key that the table does not have."""


def merge_table_with_spark(spark: SparkSession, order: MergeOrder) -> MergeResult:
    """Like `merge_table`, by a session. Raises PublishError.

    In the commit, rows that are marked as deleted count as updated: Spark does not tell them apart.
    """
    with committing(order.path, doing="merge into a table with Spark"):
        return until_not_overtaken(lambda: _attempt(spark, order))


def _attempt(spark: SparkSession, order: MergeOrder) -> MergeResult:
    before, columns = look_at(order)
    if before is not None and before.has(order.app_id, order.batch):
        return MergeResult(order.table, before.version, skipped=True)
    survey = _survey(order, columns)
    spans = from_text(before.property(PROPERTY)) if before else ()
    if not _suits(survey, spans, columns):
        return merge_table(order)
    _prepare(order, before, columns, Span(survey.keys[0]))
    about = Winners(tuple(columns.names), survey.keys[0], survey.left_out)
    tombstones = open_tombstones(order.tombstones, now_us=order.now_us, horizon=order.horizon)
    remembered = tombstones.rows.filter(pc.equal(tombstones.rows.column("kind"), TRUNCATE))
    known, new = highest(remembered.column("_seq")), highest(survey.truncates.column("_seq"))
    empties = new is not None and (known is None or new > known)
    emptied = new if empties else known
    session = spark.newSession()
    try:
        moves = settle_moves(
            session, order, columns, about.key, tombstones, exists=before is not None
        )
        return _merge(session, order, columns, survey, about, tombstones, moves, emptied, empties)
    except (Py4JError, PySparkException) as error:
        if RACE.search(str(error)):
            raise OvertakenError(str(error)) from error
        raise


def _merge(
    session: SparkSession,
    order: MergeOrder,
    columns: Shape,
    survey: _Survey,
    about: Winners,
    tombstones: Tombstones,
    moves: Settled | None,
    emptied: Place | None,
    empties: bool,
) -> MergeResult:
    frame = read_frame(session, order.files, columns)
    frame = frame if moves is None else moves.applied(session, frame)
    winners = winners_of(frame, about, soft=order.soft, emptied=emptied)
    if tombstones.rows.num_rows > 0:
        stones = session.read.format("delta").load(order.tombstones)
        winners = with_stale(
            winners, stones, about, schema=columns.schema, since_us=tombstones.since_us
        )
    else:
        winners = winners.withColumn("stale", F.lit(False))
    winners = winners.persist()
    try:
        fresh = winners.filter("NOT stale")
        kept = [] if moves is None else [moves.memories]
        _remember(order, fresh, about, survey, tombstones, kept, empties=empties)
        view = f"winners_{uuid.uuid4().hex}"
        fresh.createTempView(view)
        session.conf.set("spark.databricks.delta.write.txnAppId", order.app_id)
        session.conf.set("spark.databricks.delta.write.txnVersion", str(order.batch))
        session.conf.set(
            "spark.databricks.delta.commitInfo.userMetadata", json.dumps(facts(order.mark))
        )
        statement = merge_statement(
            order.path,
            view,
            columns=about.columns,
            key=about.key,
            left_out=about.left_out,
            soft=order.soft,
            emptied=emptied,
            empties=empties,
        )
        session.sql(statement)
        session.catalog.dropTempView(view)
    finally:
        winners.unpersist()
    after = snapshot_of(order.path)
    return MergeResult(order.table, -1 if after is None else after.version)


def _survey(order: MergeOrder, columns: Shape) -> _Survey:
    names = ("_op", "_key", "_seq", "_unchanged")
    schema = pa.schema([CHANGE_SCHEMA.field(name) for name in names])
    own = [name for name in columns.names if name not in CHANGE_SCHEMA.names]
    rows = pa.concat_tables([schema.empty_table(), *(read_file(f, schema) for f in order.files)])
    truncates = pc.equal(rows.column("_op"), "truncate").fill_null(False)
    given = rows.filter(pc.invert(truncates)).column("_key")
    keys, owner = definitions_of(given, own)
    named = pc.greater(pc.list_value_length(given).fill_null(0), 0)
    left_out: dict[str, tuple[str, ...]] = {}
    for name, column in left_out_names(rows.column("_unchanged"), own).items():
        left_out[column] = (*left_out.get(column, ()), name)
    strange = bool(((owner < 0) & named.to_numpy(zero_copy_only=False)).any())
    return _Survey(keys, left_out, rows.filter(truncates), strange)


def _suits(survey: _Survey, spans: tuple[Span, ...], columns: Shape) -> bool:
    """Whether Spark can do it, with the events and the columns being what they are."""
    if len(survey.keys) != 1 or survey.strange or columns.rewritten:
        return False
    if _REFUSED.search("".join(columns.names)):
        return False
    if spans not in ((), (Span(survey.keys[0]),)):
        return False
    return not any(_has_map(columns.schema.field(name).type) for name in survey.keys[0])


def _has_map(type_: pa.DataType) -> bool:
    fields = [type_.field(at) for at in range(type_.num_fields)]
    return is_map(type_) or any(_has_map(field.type) for field in fields)


def _prepare(order: MergeOrder, before: Snapshot | None, columns: Shape, span: Span) -> None:
    """Make the table, or give it its columns, in a commit of its own that does no harm alone."""
    keyed = before is not None and before.property(PROPERTY) is not None
    if keyed and not columns.changed:
        return
    if before is not None and before.no_changes():
        if columns.changed:
            before.refuse_unusable(order.table)
        return
    change = Change(
        "MERGE",
        order.table,
        comment=order.comment,
        fields=columns.fields if columns.changed else None,
        properties={PROPERTY: to_text((span,))},
    )
    rewrite_files(order.path, before, change)


def _remember(
    order: MergeOrder,
    winners: DataFrame,
    about: Winners,
    survey: _Survey,
    tombstones: Tombstones,
    kept: Sequence[pa.Table],
    *,
    empties: bool,
) -> None:
    """First: a row that is gone without a memory could come back."""
    new = [made(survey.truncates.slice(0, 0), None, now_us=order.now_us), *kept]
    if not order.soft:
        gone = winners.filter("gone").select(*about.key_columns(), "_seq").toArrow()
        gone = gone.rename_columns([*about.key, "_seq"])
        new.append(made(gone, about.key, now_us=order.now_us))
    if empties:
        new.append(made(survey.truncates, None, now_us=order.now_us))
    remember(tombstones, pa.concat_tables(new), table=order.table, mark=order.mark)


# Which way a table is merged: in one process, or by Spark.

LARGE_CHANGE = 4 * 2**30
"""Bytes in the files of a table that a batch can touch: up to this one process is several times as
fast as MERGE on two cores; beyond it, a cluster's many cores are faster."""
LARGE_BATCH = 256 * 2**20
"""Bytes in a batch's files: their events are in memory all at once, several times larger."""


def choose(order: MergeOrder) -> Literal["arrow", "spark"]:
    """The way for an order: by what it brings, and how much of its table that can touch."""
    if is_remote(order.path):
        # the session need not know the bucket; one process reads a large table file by file
        return "arrow"
    if sum(os.path.getsize(file) for file in order.files) > LARGE_BATCH:
        return "spark"
    with committing(order.path, doing="look at a table"):
        snapshot = snapshot_of(order.path)
        if snapshot is None:
            return "arrow"
        if snapshot.no_changes():
            return "spark"
        large = snapshot.size > LARGE_CHANGE and _touched(order) > LARGE_CHANGE
    return "spark" if large else "arrow"


def _touched(order: MergeOrder) -> int:
    """Bytes in the files of a table that can hold rows of which a batch speaks."""
    before, columns = look_at(order)
    survey = _survey(order, columns)
    files = list(before.files.values()) if before else []
    if len(survey.keys) == 1 and not survey.truncates.num_rows:
        key = pa.schema([columns.schema.field(name) for name in survey.keys[0]])
        keys = Keys(pa.concat_tables([read_file(file, key) for file in order.files]), key.names)
        files = [file for file in files if keys.may_be_in(file)]
    return sum(file.size for file in files)
