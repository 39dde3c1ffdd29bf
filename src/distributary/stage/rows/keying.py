"""Hop two, keys: records of tables with a key become events of a log, from which rows are merged.

An event has the columns that events of change data have. Its place in the order is made of the
order columns, then of the offset, so that the engine of change data decides which record wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.events.log_events import Flags, Ints
from distributary.config.rules.expressions import enclosed
from distributary.decode.change.base import content_hashes
from distributary.errors import ErrorCode
from distributary.model.change import CHANGE_COLUMNS, CHANGE_NAMES, SEQ
from distributary.model.names import printable
from distributary.model.record import TIMESTAMP
from distributary.model.routing import StageOrder
from distributary.model.rules.key_rule import TIME_OF_RECORD, KeyRule
from distributary.model.table import TablePlan
from distributary.shape.checks import checks_of
from distributary.stage.decoding import DecodedPart
from distributary.stage.rows.partitions import columns_as_written, without_records
from distributary.stage.task_outputs import WINDOW, letters_batch
from distributary.stage.task_plan import TaskPlan

Reasons = npt.NDArray[np.object_]

_TYPES = {column.name: column.type for column in CHANGE_COLUMNS}
_SLOTS = ("ts", "a", "b", "c")
"""The numbers of a place that are free here, in the order in which they are compared."""
_DELETES = "deletes"
_LARGEST = 2**63 - 1
_MOST_ROWS = 10**6 - 1
_DIGITS = 19
_END = "\x01"
"""The end of a text in a position: below all characters, three of which are escaped for it."""
_SPELLED = (("\x02", "\x02\x03"), ("\x01", "\x02\x02"), ("\x00", "\x02\x01"))


@dataclass(slots=True)
class KeyedRows:
    """The records of a table: those with a key and a place in the order, and the refused ones."""

    parts: list[DecodedPart]
    dead: list[pa.RecordBatch] = field(default_factory=list)
    deletes: Flags = field(default_factory=lambda: np.zeros(0, np.bool_))
    """The rows, of all parts, that delete the row with their key."""


def held_to_key(parts: list[DecodedPart], plan: TaskPlan, order: StageOrder) -> KeyedRows:
    """Remove the records of one table that cannot be events of its log."""
    table = plan.output.tables.get(parts[0].route.table) if parts else None
    rule = plan.output.keys.get(table.name) if table is not None else None
    filled = [part for part in parts if part.batch.num_rows]
    if table is None or rule is None or not filled:
        return KeyedRows(parts)
    columns = [c for c in table.columns if c.name not in CHANGE_NAMES]
    checks = None
    if rule.delete is not None:
        # a broken rule deletes the row; a condition with the value null deletes nothing
        kept = f"NOT coalesce({enclosed(rule.delete.check)}, false)"
        checks = checks_of((replace(rule.delete, check=kept),), columns)
    names = {*rule.key, *rule.order, *(checks.schema.names if checks else ())}
    values = columns_as_written(filled, table, names, plan, order)
    count = sum(part.batch.num_rows for part in filled)
    reasons = _missing(values, rule, count)
    deletes = np.zeros(count, np.bool_)
    # a condition over unknown columns deletes nothing
    if checks is not None and checks.rules:
        (verdict,) = checks(pa.table({name: values[name] for name in checks.schema.names}))
        deletes = verdict.broken & ~verdict.failed
        reasons[verdict.failed & (reasons == "")] = "delete_when cannot be evaluated for it"
    deletes |= np.repeat(
        [part.tombstones for part in filled], [part.batch.num_rows for part in filled]
    )
    if not (reasons != "").any():
        return KeyedRows(parts, deletes=deletes)
    return _without_refused(parts, reasons, deletes, order)


def _missing(values: dict[str, pa.ChunkedArray], rule: KeyRule, count: int) -> Reasons:
    """Return why each record has no key or no place; empty for those that have both."""
    reasons: Reasons = np.full(count, "", object)
    ordering = [name for name in rule.order if name != TIME_OF_RECORD]
    for what, names in (("order", ordering), ("key", rule.key)):
        for name in names:
            if values[name].null_count:
                why = f"column {printable(name)} of its {what} has no value"
                reasons[~values[name].is_valid().to_numpy()] = why
    return reasons


def _without_refused(
    parts: Sequence[DecodedPart], reasons: Reasons, deletes: Flags, order: StageOrder
) -> KeyedRows:
    held = KeyedRows([part for part in parts if not part.batch.num_rows])
    kept: list[Flags] = []
    start = 0
    for part in parts:
        if not part.batch.num_rows:
            continue
        here = slice(start, start + part.batch.num_rows)
        start = here.stop
        why = reasons[here]
        if not (why != "").any():
            held.parts.append(part)
            kept.append(deletes[here])
            continue
        # as a column, so that a flag is removed together with its row
        marked = replace(part, raw=part.raw.append_column(_DELETES, pa.array(deletes[here])))
        rest, first = without_records(marked, why != "")
        kept.append(rest.raw.column(_DELETES).to_numpy())
        held.parts.append(replace(rest, raw=rest.raw.drop_columns([_DELETES])))
        letters = [
            part.letter(row, ErrorCode.KEY_NOT_IN_PAYLOAD, str(why[row]), "keys")
            for row in first.tolist()
        ]
        held.dead.append(letters_batch(part.raw, letters, order))
    held.deletes = np.concatenate(kept)
    return held


# The columns of events.


def with_change_columns(
    body: pa.Table, raw: pa.Table, table: TablePlan, rule: KeyRule, deletes: Flags
) -> pa.Table:
    """Return the rows of a log: the columns of change data, then the table's columns."""
    count = body.num_rows
    offsets, partitions = _texts(raw.column("offset"), _DIGITS), _texts(raw.column("partition"), 6)
    endings = _endings(raw, rule)
    types = {column.name: column.type for column in table.columns}
    key = (*((WINDOW.name,) if rule.horizon else ()), *rule.key)
    lists = pa.ListArray.from_arrays(
        pa.array(np.arange(count + 1, dtype=np.int32) * len(key)),
        pa.array(key, pa.string()).take(pa.array(np.tile(np.arange(len(key)), count))),
    )
    times = _times(body, raw, rule, types)
    kept = "insert" if rule.keeps_first else "update"
    columns = {
        "_op": pc.if_else(pa.array(deletes), "delete", kept),
        "_deleted": pa.array(deletes),
        "_key": lists,
        "_seq": _places(body, raw, rule, types, endings),
        "_source_ts": times,
        "_backfill": pa.repeat(False, count),
        "_uuid": pc.binary_join_element_wise(offsets, partitions, endings, "."),
        "_hash": _hashes(raw.column("value")),
        "_unchanged": pa.nulls(count, _TYPES["_unchanged"]),
        "_envelope": pa.nulls(count, pa.string()),
    }
    fields = [pa.field(name, _TYPES[name]) for name in CHANGE_NAMES]
    added = pa.table([columns[field.name] for field in fields], pa.schema(fields))
    if rule.horizon:
        added = added.append_column(WINDOW.name, _windows(times, rule.horizon))
    for name in body.column_names:
        added = added.append_column(body.schema.field(name), body.column(name))
    return added


def _hashes(values: pa.ChunkedArray) -> pa.Array:
    """Return the hash of each record's value; rows of one record may share it."""
    if not pa.types.is_dictionary(values.type):
        return content_hashes(values.fill_null(b"").combine_chunks())
    shared = values.unify_dictionaries().combine_chunks()
    hashes = content_hashes(shared.dictionary).take(shared.indices)
    return hashes.fill_null(content_hashes(pa.array([b""]))[0])


def _times(
    body: pa.Table, raw: pa.Table, rule: KeyRule, types: dict[str, pa.DataType]
) -> pa.ChunkedArray:
    """Return when each record was made: by its first order column, if that is a time."""
    first = rule.order[0] if rule.order else TIME_OF_RECORD
    if first == TIME_OF_RECORD or order_kind(types[first]) not in ("time", "date"):
        return raw.column("timestamp")
    return body.column(first).cast(TIMESTAMP)


def _windows(times: pa.ChunkedArray, horizon: timedelta) -> pa.Array:
    """Return the beginning of the window of each time; a record without one is in the first."""
    length = horizon // timedelta(microseconds=1)
    numbers = times.cast(pa.int64()).fill_null(0).to_numpy()
    return pa.array(numbers // length * length).cast(WINDOW.type)


def _places(
    body: pa.Table,
    raw: pa.Table,
    rule: KeyRule,
    types: dict[str, pa.DataType],
    endings: pa.ChunkedArray,
) -> pa.StructArray:
    """Return `_seq`: the first values of the order as numbers, all further ones in its text."""
    numbers: list[Ints] = []
    text = None
    for name in rule.order:
        column = raw.column("timestamp") if name == TIME_OF_RECORD else body.column(name)
        if name != TIME_OF_RECORD and order_kind(types[name]) == "text":
            text = _spelled(column)
        else:
            numbers.append(_numbers(column))
    own = len(numbers)
    # the partition of a record in a file is the number of the file
    last = ("partition", "offset") if rule.by_file else ("offset", "partition")
    numbers += [raw.column(name).cast(pa.int64()).to_numpy() for name in last]
    # after a text, all further parts are in the text
    slots = own if text is not None else min(len(numbers), len(_SLOTS))
    rest = numbers[slots:]
    if rule.keeps_first:
        # the highest position wins, so the numbers are inverted
        numbers, rest = [~each for each in numbers], [_LARGEST - each for each in rest]
    parts = [] if text is None else [text]
    parts += [_texts(pa.array(each), _DIGITS) for each in rest]
    tie = pc.binary_join_element_wise(*parts, endings, ".")
    zeros = np.zeros(body.num_rows, np.int64)
    chosen = dict(zip(_SLOTS, (*numbers[:slots], *[zeros] * len(_SLOTS)), strict=False))
    # phase 0 means that the position states no server
    fixed = {"phase": zeros, "half": zeros + 1}
    arrays = [
        pa.array((fixed | chosen)[each.name]).cast(each.type) for each in SEQ if each.name != "tie"
    ]
    return pa.StructArray.from_arrays([*arrays, _whole(tie)], fields=[*SEQ])


def _endings(raw: pa.Table, rule: KeyRule) -> pa.ChunkedArray:
    """Return the topic of each row, and its number among the rows of its record.

    A record has several rows if its payload is an array.
    """
    topics, offsets = raw.column("topic"), raw.column("offset").to_numpy()
    follows = np.zeros(len(offsets), np.bool_)
    follows[1:] = offsets[1:] == offsets[:-1]
    if not rule.keeps_first and not follows.any():
        return topics
    for name in ("partition", "topic"):
        values = raw.column(name).to_numpy()
        follows[1:] &= values[1:] == values[:-1]
    at = np.arange(len(offsets))
    numbers = at - np.maximum.accumulate(np.where(follows, 0, at))
    if rule.keeps_first:
        # the highest position wins, so the numbers are inverted
        return pc.binary_join_element_wise(topics, _texts(pa.array(_MOST_ROWS - numbers), 6), ".")
    numbered = pc.binary_join_element_wise(topics, _texts(pa.array(numbers), 6), ".")
    return pc.if_else(pa.array(numbers == 0), topics, numbered)


def _numbers(column: pa.ChunkedArray) -> Ints:
    """Return whole numbers in the order of the column's values."""
    if pa.types.is_floating(column.type):
        # adding zero turns the negative zero into the positive one
        values = column.cast(pa.float64()).to_numpy() + 0.0
        values = np.where(np.isnan(values), np.nan, values)
        bits = values.view(np.int64)
        return np.where(bits < 0, bits ^ _LARGEST, bits)
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    numbers: Ints = column.cast(pa.int64()).fill_null(0).to_numpy()
    return numbers


def _spelled(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return texts that keep their order with other text behind them."""
    for character, spelled in _SPELLED:
        texts = pc.replace_substring(texts, character, spelled)
    return pc.binary_join_element_wise(texts, _END, "")


def _texts(numbers: pa.Array | pa.ChunkedArray, digits: int) -> pa.Array | pa.ChunkedArray:
    """Return numbers from 0 on as texts that sort as the numbers do."""
    return pc.utf8_lpad(numbers.cast(pa.string()), digits, "0")


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def order_kind(type_: pa.DataType) -> str:
    """Return the kind of an order column's values; empty if they cannot be put in order.

    Values can be compared if they are of one kind, even if their types differ.
    """
    if pa.types.is_integer(type_) or pa.types.is_boolean(type_):
        return "whole number"
    if pa.types.is_floating(type_):
        return "floating point"
    if pa.types.is_timestamp(type_):
        return "time"
    if pa.types.is_date32(type_):
        return "date"
    return "text" if pa.types.is_string(type_) else ""
