"""The events that a merge reads from a log: their order, their keys, their omitted columns."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.base import truths
from distributary.decode.change.base import with_values_at
from distributary.delta.log import Snapshot
from distributary.delta.parquet import read_file
from distributary.evolve.types import fold, is_nested
from distributary.evolve.unified import rest_as_json
from distributary.model.change import CHANGE_COLUMNS, SEQ, SHARD

# The order of events, as numbers: places in a source's log are compared field by field.

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Place = tuple[int | str, ...]
"""A `_seq` as a tuple: the fields of SEQ in their order."""

_LOWEST = -(2**63)


def ranks(parts: Sequence[pa.Array | pa.ChunkedArray]) -> list[Ints]:
    """Number the places of all parts: equal places get equal numbers, later ones larger numbers."""
    sizes = [len(part) for part in parts]
    seq = whole(parts)
    rank = _dense([_numbers(seq, field.name) for field in SEQ if field.name != "tie"])
    tie = seq.field("tie") if len(rank) else None
    if tie is not None and len(rank) and int(rank.max()) + 1 < len(rank):
        rank = _dense([rank, pc.rank(tie.fill_null(""), tiebreaker="dense").to_numpy()])
    return np.split(rank, np.cumsum(sizes)[:-1]) if sizes else []


def place_of(value: dict[str, Any]) -> Place:
    """Return a `_seq` of Arrow as a tuple, which Python compares in the same order."""
    return tuple(value[field.name] for field in SEQ)


def places(values: Sequence[Place]) -> pa.StructArray:
    """Return tuples as `_seq` of Arrow; the inverse of `place_of`."""
    names = [field.name for field in SEQ]
    return pa.array([dict(zip(names, value, strict=True)) for value in values], SEQ)


def highest(seq: pa.Array | pa.ChunkedArray) -> Place | None:
    """Return the last place; None without events."""
    if len(seq) == 0:
        return None
    return place_of(seq[int(np.argmax(ranks([seq])[0]))].as_py())


def lowest(seq: pa.Array | pa.ChunkedArray) -> Place | None:
    """Return the first place; None without events."""
    if len(seq) == 0:
        return None
    return place_of(seq[int(np.argmin(ranks([seq])[0]))].as_py())


def whole(parts: Sequence[pa.Array | pa.ChunkedArray]) -> pa.StructArray:
    """Join the places of several parts."""
    chunks: list[pa.Array] = []
    for part in parts:
        chunks += part.chunks if isinstance(part, pa.ChunkedArray) else [part]
    # the fields of a slice keep their full length; those of a copy do not
    return pa.concat_arrays([*chunks, pa.array([], SEQ)])


def combined(column: pa.ChunkedArray) -> pa.Array:
    """Return a column of many chunks as one array."""
    return pa.concat_arrays([*column.chunks, pa.array([], column.type)])


def _numbers(seq: pa.StructArray, name: str) -> Ints:
    # a row of another writer may have no place, and then precedes all others
    field = seq.field(name)
    values: Ints = field.cast(pa.int64()).fill_null(_LOWEST).to_numpy(zero_copy_only=False)
    return values


def _dense(keys: Sequence[Ints]) -> Ints:
    """Return ranks without gaps by several keys, the most significant first."""
    telling = [key for key in keys if len(key) and (key != key[0]).any()]
    if not telling:
        return np.zeros(len(keys[0]), np.int64)
    order = np.lexsort(telling[::-1])
    new = np.zeros(len(order), np.bool_)
    for key in telling:
        ordered = key[order]
        new[1:] |= ordered[1:] != ordered[:-1]
    rank = np.empty(len(order), np.int64)
    rank[order] = np.cumsum(new)
    return rank


# Places of an earlier version, in which the source's time precedes the position.


def by_position(seq: pa.StructArray) -> Flags:
    """Mark the changes that are ordered by their position alone."""
    untimed: Flags = _numbers(seq, "ts") == 0
    return _positioned(seq) & untimed


def by_time(seq: pa.StructArray) -> Flags:
    """Mark the changes that have a position with a time before it."""
    timed: Flags = _numbers(seq, "ts") != 0
    return _positioned(seq) & timed


ORDER = "distributary.order"
"""The table property of tables whose rows are all in the order of positions: POSITION."""
POSITION = "position"


def lacks_mark(table: Snapshot | None, seq: pa.StructArray) -> bool:
    """Return whether a table gets changes by position, and its property does not say so yet."""
    marked = table is not None and table.property(ORDER) == POSITION
    return not marked and bool(by_position(seq).any())


def is_merged_by_time(table: Snapshot, *, most_files: int | None = None) -> bool:
    """Return whether a table has rows that an earlier release put in the order of their times.

    With `most_files`, only so many files are read, in the order of the log.
    """
    if table.property(ORDER) == POSITION:
        return False
    schema = pa.schema([pa.field("_seq", SEQ)])
    return any(
        bool(by_time(combined(table.read(file, schema).column("_seq"))).any())
        for file in [*table.files.values()][:most_files]
    )


def without_times(rows: pa.Table) -> pa.Table:
    """Return rows with the time removed from the places of changes that have a position."""
    seq = whole([rows.column("_seq")])
    timed = by_time(seq)
    if not timed.any():
        return rows
    fields = {field.name: seq.field(field.name) for field in SEQ}
    fields["ts"] = pa.array(np.where(timed, 0, _numbers(seq, "ts")))
    at = rows.schema.get_field_index("_seq")
    places_ = pa.StructArray.from_arrays([*fields.values()], fields=[*SEQ])
    return rows.set_column(at, rows.schema.field(at), places_)


def _positioned(seq: pa.StructArray) -> Flags:
    seq = whole([seq])
    known = np.zeros(len(seq), np.bool_)
    for name in "abc":
        known |= _numbers(seq, name) > 0
    changed: Flags = (_numbers(seq, "phase") & 1) == 1
    return known & changed


# Comparison of keys between two tables, also with columns of different types. Null equals null, NaN
# equals NaN, and both zeros of floating point are equal, as in Spark.

Definition = tuple[str, ...]
"""The sorted names of a key's columns in the table; their order is not part of the key."""

_NO_KEY = "{}"


class KeyIndex:
    """Groups rows by their key, and finds the group of rows elsewhere."""

    def __init__(self, rows: pa.Table, definition: Definition) -> None:
        self.definition = definition
        self.rows = rows.select(definition)
        self._values: list[pa.Array] = []
        self._steps: list[Ints] = []
        groups: Ints | None = None
        for name in definition:
            column = comparable(rows.column(name))
            values = pc.unique(column)
            codes = _codes(column, values)
            self._values.append(values)
            if groups is None:
                groups = codes
            else:
                # groups are numbered again after each column, so that the product never overflows
                known, groups = np.unique(groups * len(values) + codes, return_inverse=True)
                self._steps.append(known)
        self.groups: Ints = np.zeros(rows.num_rows, np.int64) if groups is None else groups
        """The group of each row."""
        self.count = int(self.groups.max()) + 1 if len(self.groups) else 0

    def find(self, rows: pa.Table) -> Ints:
        """Return the group of each row of another table; -1 if no row here has its key."""
        found: Ints | None = None
        steps = iter(self._steps)
        for name, values in zip(self.definition, self._values, strict=True):
            codes = _codes(comparable(rows.column(name)), values)
            if found is None:
                found = codes
                continue
            known = next(steps)
            pairs = np.where((found < 0) | (codes < 0), -1, found * len(values) + codes)
            at = np.searchsorted(known, pairs)
            at[at == len(known)] = 0
            found = np.where((pairs >= 0) & (known[at] == pairs), at, -1) if len(known) else pairs
        return np.zeros(rows.num_rows, np.int64) - 1 if found is None else found


def comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column in a form in which equal keys are equal values."""
    if pa.types.is_floating(column.type):
        # adding zero turns the negative zero into the positive one
        zeroed = pc.add(column, pa.scalar(0.0, column.type))
        return pc.if_else(pc.is_nan(zeroed), pa.scalar(float("nan"), column.type), zeroed)
    if is_nested(column.type):
        return pa.chunked_array([_texts([column], ["value"])])
    return column


def key_texts(rows: pa.Table, definition: Definition) -> pa.Array:
    """Return each row's key as a JSON object, in a form that never changes."""
    columns = [_widest(comparable(rows.column(name))) for name in definition]
    texts = _texts(columns, definition).fill_null(_NO_KEY)
    return shortened(texts, fractional(rows.schema, definition))


def _widest(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Widen floating point as columns do: 0.1 of 32 bits differs from 0.1 of 64 bits."""
    return column.cast(pa.float64()) if pa.types.is_floating(column.type) else column


_TEXT = r'"(?:[^"\\]|\\.)*"'
_BEFORE = rf'\{{(?:{_TEXT}:(?:{_TEXT}|[^",:{{}}\[\]]+),)*'
"""A pattern for the members of a key before a given one."""


def fractional(schema: pa.Schema, definition: Definition) -> list[str]:
    """Return the columns of a key whose numbers may have decimal places."""
    types = {name: schema.field(name).type for name in definition}
    scaled = [n for n, type_ in types.items() if pa.types.is_decimal(type_) and type_.scale > 0]
    return scaled + [n for n, type_ in types.items() if pa.types.is_floating(type_)]


def shortened(texts: pa.Array, names: Sequence[str]) -> pa.Array:
    """Return texts of keys without trailing zeros in some columns: 1.50 and 1.500 become 1.5.

    So keys keep their texts when a column is widened to more decimal places.
    """
    for name in names:
        start = f"^({_BEFORE}{re.escape(json.dumps(name))}:-?"
        zeros = rf"{start}[0-9]+(?:\.[0-9]*[1-9])?)\.?0*([Ee,}}])"
        # a zero with many decimal places is written with an exponent
        zero = rf"{start}0)E-[0-9]+([,}}])"
        for pattern in (zeros, zero):
            texts = pc.replace_substring_regex(texts, pattern, r"\1\2")
    return texts


def _texts(columns: Sequence[pa.ChunkedArray], names: Sequence[str]) -> pa.Array:
    table = pa.table(dict(zip(names, columns, strict=True)))
    texts = [rest_as_json(batch, names) for batch in table.combine_chunks().to_batches()]
    return pa.concat_arrays(texts) if texts else pa.array([], pa.string())


def _codes(column: pa.ChunkedArray, values: pa.Array) -> Ints:
    found = pc.index_in(column, value_set=values).fill_null(-1)
    codes: Ints = found.to_numpy().astype(np.int64)
    return codes


# The key definitions of a table over time. The source may redefine a key while events arrive. Two
# events, or an event and a row, are about the same row if they agree on the key of the newer one:
# that key applied when the newer replaced the older. So a table stores which key applied at each
# place, as spans of places. Nearly every table has one key and one span. Spans are written in the
# commit of the rows.

PROPERTY = "distributary.keys"
"""The table property that holds the spans."""
MOST_SPANS = 64
"""The largest number of spans that are kept; rows of older spans count as rows of the oldest kept
one."""


Bound = tuple[int | str, ...]
"""A place and -1, 0 or 1: just before the place, at it, or just after it."""


@dataclass(frozen=True, slots=True)
class Span:
    """A key with the first and the last place at which it applied; None for no bound."""

    key: Definition
    first: Bound | None = None
    last: Bound | None = None


def resolve(names: Iterable[str | None], columns: Sequence[str]) -> Definition | None:
    """Return the table's names for the columns of a key; None if a column is missing."""
    by_fold = {fold(column): column for column in reversed(columns)}
    exact = set(columns)
    found = [name if name in exact else by_fold.get(fold(name or "")) for name in names]
    known = {name for name in found if name is not None}
    return tuple(sorted(known)) if known and None not in found else None


def definitions_of(
    keys: pa.ChunkedArray, columns: Sequence[str]
) -> tuple[tuple[Definition, ...], Ints]:
    """Return the distinct key definitions of rows, and each row's number; -1 for none."""
    lists = combined(keys)
    firsts, codes = _distinct(lists)
    found = [resolve(lists[at].as_py() or (), columns) for at in firsts]
    known = tuple(sorted({each for each in found if each is not None}))
    numbers = np.array([known.index(each) if each is not None else -1 for each in found] + [-1])
    return known, numbers[codes]


def _distinct(lists: pa.ListArray) -> tuple[list[int], Ints]:
    """Return one row for each distinct list of names, and the number of each row's list."""
    indices = lists.flatten().dictionary_encode().indices
    names = indices.fill_null(-1).to_numpy(zero_copy_only=False)
    sizes = pc.list_value_length(lists).fill_null(0).to_numpy()
    if len(sizes) and (sizes == sizes[0]).all():
        # the usual case: all rows have one key
        table = names.reshape(len(sizes), sizes[0])
        if (table == table[:1]).all():
            return [0], np.zeros(len(sizes), np.int64)
    ends = np.cumsum(sizes)
    first: dict[bytes, int] = {}
    codes = np.empty(len(sizes), np.int64)
    starts: list[int] = []
    for row, (start, end) in enumerate(zip(ends - sizes, ends, strict=True)):
        text = names[start:end].tobytes()
        if text not in first:
            first[text] = len(starts)
            starts.append(row)
        codes[row] = first[text]
    return starts, codes


def owners(spans: Sequence[Span], keys: Sequence[Definition], seq: pa.StructArray) -> Ints:
    """Return, for each place, the number of the key that applied there."""
    if not spans:
        return np.zeros(len(seq), np.int64)
    # the table may have lost columns of a key, which then matches no row
    numbers = np.array([keys.index(s.key) if s.key in keys else -1 for s in spans])
    if len(spans) == 1:
        return np.full(len(seq), numbers[0])
    lasts = [span.last for span in spans if span.last is not None]
    ends, here = ranks([places([bound[:-1] for bound in lasts]), seq])
    sides = np.array([bound[-1] for bound in lasts], np.int64)
    # no event was seen between two spans, so the later span is used
    owner: Ints = numbers[np.searchsorted(2 * ends + sides, 2 * here)]
    return owner


def fits(spans: Sequence[Span], keys: Sequence[Definition], seq: pa.StructArray) -> bool:
    """Return whether events with these keys and positions leave the spans unchanged."""
    if not spans or tuple(keys) != (spans[-1].key,):
        return False
    first = spans[-1].first
    return first is None or all((*place_of(each), 0) >= first for each in seq.to_pylist())


def advanced(
    spans: Sequence[Span], seen: Iterable[tuple[Place, Definition]], top: Place | None
) -> tuple[Span, ...]:
    """Return the spans, extended by events with these places and keys.

    The last span stays open, so that it need not be rewritten with every batch. `top` is the last
    place of the table's rows, where an open span ends when another key appears.
    """
    result = [replace(spans[-1], last=(*top, 0))] if spans and top is not None else []
    result = [*spans[:-1], *result]
    for place, key in sorted(set(seen)):
        _see(result, place, key)
    if result:
        result[-1] = replace(result[-1], last=None)
    if len(result) == 1:
        return (Span(result[0].key),)
    return tuple(result[-MOST_SPANS:])


def _see(spans: list[Span], place: Place, key: Definition) -> None:
    here = (*place, 0)
    at = 0
    while at < len(spans) and _ends_before(spans[at], here):
        at += 1
    before = spans[at - 1] if at else None
    found = spans[at] if at < len(spans) else None
    if found is not None and (found.first is None or found.first <= here):
        if found.key != key:
            # the span keeps all of its other places, where events were seen
            left, right = replace(found, last=(*place, -1)), replace(found, first=(*place, 1))
            spans[at : at + 1] = [left, Span(key, here, here), right]
    elif before is not None and before.key == key:
        spans[at - 1] = replace(before, last=here)
    elif found is not None and found.key == key:
        spans[at] = replace(found, first=here)
    else:
        spans.insert(at, Span(key, here, here))


def _ends_before(span: Span, here: Bound) -> bool:
    return span.last is not None and span.last < here


def to_text(spans: Sequence[Span]) -> str:
    """Format spans as the text of the table property."""
    return json.dumps(
        [{"columns": s.key, "first": s.first, "last": s.last} for s in spans], ensure_ascii=False
    )


def from_text(text: str | None) -> tuple[Span, ...]:
    """Parse the text of `to_text`; return no spans for other texts."""
    try:
        return tuple(
            Span(tuple(map(str, each["columns"])), _bound(each["first"]), _bound(each["last"]))
            for each in json.loads(text or "[]")
        )
    except (ValueError, KeyError, TypeError):
        return ()


def _bound(values: list[int | str] | None) -> Bound | None:
    return None if values is None else tuple(values)


# The old key of a row whose key an event has changed, from the event's envelope.

OLD_KEY = pa.field("_old_key", pa.string())
"""A JSON object with the columns of the old key; null for most events."""
OLD_KEY_MEMBER = '"old_key":'


def old_keys_in(envelopes: pa.Array, asked: Ints) -> pa.Array:
    """Read the old key from each of the given envelopes; null if there is none."""
    some = envelopes.take(pa.array(asked))
    with_keys = asked[truths(pc.match_substring(some, OLD_KEY_MEMBER))]
    found: list[str | None] = [None] * len(envelopes)
    for row, text in zip(
        with_keys.tolist(), envelopes.take(pa.array(with_keys)).to_pylist(), strict=True
    ):
        found[row] = _old_key(text)
    return pa.array(found, OLD_KEY.type)


def _old_key(envelope: str) -> str | None:
    key = _object(envelope).get("old_key")
    return json.dumps(key, ensure_ascii=False) if isinstance(key, dict) and key else None


def _object(text: str) -> dict[str, Any]:
    try:
        # as text, a number keeps all digits
        content = json.loads(text, parse_float=str)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


@dataclass(frozen=True, slots=True)
class EarlierKeys:
    """Old keys with one key definition, for a lookup in a table."""

    definition: Definition
    events: Ints
    """The events with these old keys."""
    rows: pa.Table
    """The columns of the key, in the types of the table."""


def read_old_keys(texts: pa.ChunkedArray, events: Ints, schema: pa.Schema) -> list[EarlierKeys]:
    """Read the old keys of some events; leave out keys that the table's columns cannot hold."""
    groups: dict[Definition, list[tuple[int, dict[str, Any]]]] = {}
    for event, text in zip(events.tolist(), texts.take(events).to_pylist(), strict=True):
        key = _object(text or "{}")
        names = {name: resolve([name], schema.names) for name in key}
        definition = resolve(key, schema.names)
        if definition is not None:
            values = {(names[name] or ("",))[0]: value for name, value in key.items()}
            groups.setdefault(definition, []).append((event, values))
    return [_typed(definition, members, schema) for definition, members in sorted(groups.items())]


def _typed(
    definition: Definition, members: Sequence[tuple[int, dict[str, Any]]], schema: pa.Schema
) -> EarlierKeys:
    good = np.ones(len(members), np.bool_)
    columns: list[pa.Array] = []
    fields = [schema.field(name) for name in definition]
    for field in fields:
        scalars = [_scalar(values[field.name], field.type) for _, values in members]
        good &= np.array([each is not None for each in scalars])
        columns.append(_column(scalars, field.type))
    rows = pa.table(columns, schema=pa.schema(fields)).filter(pa.array(good))
    return EarlierKeys(definition, np.array([event for event, _ in members], np.int64)[good], rows)


def _column(scalars: Iterable[pa.Scalar | None], type_: pa.DataType) -> pa.Array:
    return pa.array([None if each is None else each.as_py() for each in scalars], type_)


def _scalar(value: Any, type_: pa.DataType) -> pa.Scalar | None:
    """Convert a JSON value to a column's type; None if it does not fit."""
    try:
        if isinstance(value, str) and pa.types.is_binary(type_):
            return pa.scalar(base64.b64decode(value, validate=True), type_)
        if isinstance(value, str) and not pa.types.is_string(type_):
            return pa.scalar(value).cast(type_)
        if isinstance(value, int | float) and pa.types.is_decimal(type_):
            return pa.scalar(str(value)).cast(type_)
        return pa.scalar(value, type_)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return None


_ARRIVAL = pa.schema(
    [
        pa.field("_batch", pa.int64()),
        pa.field("_topic", pa.string()),
        pa.field("_partition", pa.int32()),
        pa.field("_offset", pa.int64()),
    ]
)
"""The columns with the origin of an event, which `tables.metadata` may leave out."""
_READ = ("_op", "_deleted", "_key", "_seq", "_source_ts", "_hash", "_unchanged")
CHANGE_SCHEMA = pa.schema(
    [*(pa.field(c.name, c.type) for c in CHANGE_COLUMNS if c.name in _READ), *_ARRIVAL]
)
"""The columns that are read of every event besides those of the source table."""
_NOT_OWN = frozenset((*CHANGE_SCHEMA.names, OLD_KEY.name))


@dataclass(frozen=True)
class ChangeEvents:
    """Events: rows of a log with CHANGE_SCHEMA, columns of the source table, and old keys."""

    rows: pa.Table

    @cached_property
    def own_names(self) -> list[str]:
        """Return the names of the source table's columns."""
        return [name for name in self.rows.column_names if name not in _NOT_OWN]

    @cached_property
    def seq(self) -> pa.StructArray:
        """Return the place of each event."""
        return combined(self.rows.column("_seq"))

    @cached_property
    def truncates(self) -> Flags:
        """Return which events empty the table."""
        return truths(pc.equal(self.rows.column("_op"), "truncate"))

    @cached_property
    def deletes(self) -> Flags:
        """Return which events delete their row."""
        named = truths(pc.equal(self.rows.column("_op"), "delete"))
        return (named | truths(self.rows.column("_deleted"))) & ~self.truncates

    @cached_property
    def keys(self) -> tuple[tuple[Definition, ...], Ints]:
        """Return the distinct key definitions, and the number of each event's; -1 for none."""
        known, numbers = definitions_of(self.rows.column("_key"), self.own_names)
        return known, np.where(self.truncates, -1, numbers)

    @cached_property
    def left_out(self) -> dict[str, Flags]:
        """Return the omitted columns, each with a mask of the events that omit it."""
        return left_out_in(self.rows.column("_unchanged"), self.own_names)

    @cached_property
    def asking(self) -> Ints:
        """Return the events that changed the key of their row and omit values of the old row."""
        flags = truths(pc.is_valid(self.rows.column(OLD_KEY.name)))
        return np.flatnonzero(flags & ~self.deletes & (self.keys[1] >= 0))

    def preference(self, among: Ints) -> Ints:
        """Return numbers that decide among events at the same place: the highest wins.

        Events of earlier batches have been merged already; within a batch the last event wins, in
        the order of the source.
        """
        arrival = self.rows.select([*_ARRIVAL.names, "_hash"]).take(among)
        order = pc.sort_indices(
            arrival,
            sort_keys=[
                ("_batch", "descending"),
                *((name, "ascending") for name in ("_topic", "_partition", "_offset", "_hash")),
            ],
        )
        numbers = np.empty(len(among), np.int64)
        numbers[order.to_numpy()] = np.arange(len(among))
        return numbers


def left_out_in(unchanged: pa.ChunkedArray, columns: Sequence[str]) -> dict[str, Flags]:
    """Return the omitted columns of some rows, each with a mask of the rows that omit it."""
    lists = combined(unchanged)
    named = lists.flatten()
    if len(named) == 0:
        return {}
    parents = pc.list_parent_indices(lists).to_numpy()
    found: dict[str, Flags] = {}
    for name, column in left_out_names(unchanged, columns).items():
        flags = found.setdefault(column, np.zeros(len(lists), np.bool_))
        flags[parents[truths(pc.equal(named, name))]] = True
    return found


def left_out_names(unchanged: pa.ChunkedArray, columns: Sequence[str]) -> dict[str, str]:
    """Return the names that rows list as omitted, each with its column."""
    by_fold = {fold(column): column for column in reversed(columns)}
    exact = set(columns)
    names = pc.unique(combined(unchanged).flatten()).drop_null().to_pylist()
    meant = {name: name if name in exact else by_fold.get(fold(name)) for name in names}
    return {name: column for name, column in meant.items() if column is not None}


EVENT_BYTES = 2**30
"""The largest number of bytes of events in memory that are merged together. More events are merged
in several commits, which gives the same table."""


def read_events(files: Sequence[str], columns: pa.Schema) -> ChangeEvents:
    """Read the events of Parquet files, with the given columns of the source table."""
    schema = pa.schema([*CHANGE_SCHEMA, *columns])
    return ChangeEvents(_together([_with_old_keys(file, schema) for file in files], schema))


def read_in_turn(files: Sequence[str], columns: pa.Schema) -> Iterator[tuple[ChangeEvents, bool]]:
    """Yield the events of as many files as fit into memory, and whether they are the last."""
    schema = pa.schema([*CHANGE_SCHEMA, *columns])
    waiting: list[pa.Table] = []
    size = 0
    for file in files:
        rows = _with_old_keys(file, schema)
        if waiting and size + rows.nbytes > EVENT_BYTES:
            yield ChangeEvents(_together(waiting, schema)), False
            waiting, size = [], 0
        waiting.append(rows)
        size += rows.nbytes
    yield ChangeEvents(_together(waiting, schema)), True


def _together(rows: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    return pa.concat_tables([pa.schema([*schema, OLD_KEY]).empty_table(), *rows])


def _with_old_keys(path: str, schema: pa.Schema) -> pa.Table:
    """Read the envelopes of events that may lack values.

    They are long, and few events need them.
    """
    envelope = pa.schema([pa.field("_envelope", pa.string())])
    return with_old_keys(read_file(path, schema), lambda: read_file(path, envelope).column(0))


def with_old_keys(rows: pa.Table, envelopes: Callable[[], pa.ChunkedArray]) -> pa.Table:
    """Add the keys that rows had before, from envelopes that are read only if rows lack values."""
    removes = pc.or_(pc.equal(rows.column("_op"), "delete"), rows.column("_deleted"))
    some = pc.greater(pc.list_value_length(rows.column("_unchanged")), 0)
    asked = np.flatnonzero(truths(some) & ~truths(removes))
    old: pa.Array = pa.nulls(rows.num_rows, OLD_KEY.type)
    if len(asked):
        old = _in_shards(old_keys_in(combined(envelopes()), asked), rows)
    return rows.append_column(OLD_KEY, old)


def _in_shards(old: pa.Array, rows: pa.Table) -> pa.Array:
    """Add the shard to old keys: the table's keys have it, and the source's keys do not."""
    at = np.flatnonzero(truths(old.is_valid()))
    if SHARD not in rows.column_names or not len(at):
        return old
    chosen = rows.select(["_key", SHARD]).take(at).to_pylist()
    texts = [
        json.dumps({SHARD: row[SHARD], **json.loads(text)}, ensure_ascii=False)
        if SHARD in (row["_key"] or ())
        else text
        for row, text in zip(chosen, old.take(at).to_pylist(), strict=True)
    ]
    return with_values_at(old, at, pa.array(texts, OLD_KEY.type))
