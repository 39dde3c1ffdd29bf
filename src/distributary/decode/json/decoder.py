"""JSON payloads with a JSON Schema to Arrow columns, by the table in docs/json.md.

A payload is one row, or with an array at the top one row for each item. It is accepted if it is one
strict JSON text, the schema accepts it and the lake can hold its values. The validator does not
check formats: a text that contradicts its `format` is refused only where the format decides the
column's type. `default` is ignored: it is an assumption for readers, not a value that was written.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, cast

import jsonschema_rs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.base import (
    TEXT,
    DecodeLimits,
    Expansion,
    Gathered,
    Positions,
    Quick,
    RefusedError,
    TwoSpeedDecoder,
    iterated,
    nulls,
    owners,
    where,
    width,
)
from distributary.decode.json.columns import (
    array_of,
    doubtful_null,
    engine_supports,
    kind_of,
    lake_array,
    mismatch,
    read_texts,
    reader_type,
    rows_of,
)
from distributary.decode.json.json_text import parse, plain_numbers, render
from distributary.decode.json.schema import JsonKind, JsonPayload, JsonValue, plan_payload
from distributary.errors import DecodeError, ErrorCode
from distributary.model.names import printable
from distributary.model.table import Column, Origin
from distributary.registry.compile.json_compiler import message_of
from distributary.registry.compile.json_documents import Documents, is_panic

# A schema that is not closed accepts properties that it does not name. They are kept in their own
# structure: `{"address": {"zip4": 12}, "lines": [null, {"gift": true}]}` stands for an unnamed
# property `zip4` in `address` and an unnamed `gift` in the second line.

NOTHING = object()
"""The result of a rest function if every property has a column."""

Rest = Callable[[Any], Any]


def rest_of(value: JsonValue) -> Rest | None:
    """Return a function that gives the parts of a value without columns; None if all have one.

    The function returns `NOTHING` for a value that has columns for everything.
    """
    if not value.leaves_rest:
        return None
    if value.item is not None:
        # a list can leave a rest only if its items can
        return _items(cast(Rest, rest_of(value.item)))
    named = {member.property for member in value.members}
    rests = [(member.property, rest_of(member.value)) for member in value.shown]
    inner_rests = [(name, rest) for name, rest in rests if rest is not None]

    def rest(content: Any) -> Any:
        if type(content) is not dict:
            return NOTHING
        left = {}
        if not content.keys() <= named:
            left = {
                name: inner_content for name, inner_content in content.items() if name not in named
            }
        for name, inner in inner_rests:
            if name in content:
                inner_left = inner(content[name])
                if inner_left is not NOTHING:
                    left[name] = inner_left
        return left or NOTHING

    return rest


def _items(item: Rest) -> Rest:
    def rest(content: Any) -> Any:
        if type(content) is dict:
            left_by_name = {name: item(inner) for name, inner in content.items()}
            return {
                name: inner for name, inner in left_by_name.items() if inner is not NOTHING
            } or NOTHING
        left = [item(inner) for inner in content] if type(content) is list else []
        if all(inner is NOTHING for inner in left):
            return NOTHING
        return [None if inner is NOTHING else inner for inner in left]

    return rest


REST = Column("_rest", pa.string(), comment="JSON text of what the schema does not name")
MAX_DEPTH = 100
"""The deepest nesting of objects and arrays; deeper payloads are refused whatever the limits
say."""

_PLAIN = 2
"""The largest number of bytes that a byte outside list items becomes: `{}` is `null` in the rest of
a list."""

_BYTES_AT_ONCE, _PAYLOADS_AT_ONCE = 1024 * 1024, 500
"""Bytes and payloads that are held as objects before they become columns, to stay in the CPU
caches."""

_MOST_SQUARES = 25_000**2
"""The largest sum of squared text lengths for patterns with look-around. A pattern may search from
each character of a text, and longer texts take seconds."""


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pause the garbage collector, which finds no cycles here and takes a fifth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class JsonDecoder(TwoSpeedDecoder):
    """A decoder of the payloads of one schema."""

    # Arrow refuses an object with a name that the schema does not have, and every record may be
    # one. Reading one by one takes twice as long, which is soon less than searching for the other
    # records.
    _patience = 2
    _few = 2_000

    def __init__(self, body: bytes, message: str, limits: DecodeLimits) -> None:
        self._max_depth = min(limits.max_depth, MAX_DEPTH)
        documents = _opened(body, message)
        self._validator = documents.validator
        self._is_valid = self._validator.is_valid
        self._looks_around = documents.looks_around
        self._names = _names(documents)
        self._payload = plan_payload(documents, recursion_depth=limits.recursion_depth)
        row = self._payload.row
        columns = _columns(row, message) + ((REST,) if row.leaves_rest else ())
        schema = pa.schema([pa.field(column.name, column.type) for column in columns])
        super().__init__(columns, schema, _expansion(self._payload, self._max_depth), limits)
        self._rest_of = rest_of(row.members[0].value if self._payload.bare else row)
        deep = _levels(row) - self._payload.bare + self._payload.listed > self._max_depth
        self._engine: pa.DataType | None = None
        if engine_supports(row) and not deep:
            content = row.members[0].value if self._payload.bare else row
            type_ = reader_type(content)
            self._engine = pa.list_(type_) if self._payload.listed else type_
            self._doubtful_null = doubtful_null(content)

    def _quickly(self, array: pa.BinaryArray) -> Quick | None:
        values = read_texts(array, self._engine, unexpected="error")
        if values is None:
            return None
        doubtful: list[int] = []
        if self._doubtful_null:
            null = pc.match_substring(array, "null")
            if pc.any(null).as_py():
                null = pc.and_(null, pc.match_substring_regex(array, self._doubtful_null))
                doubtful += where(null)
        counts, below = None, list[int]()
        if self._payload.listed:
            doubtful += where(nulls(values))
            batch = self._batch(values.values, below)
            offsets = values.offsets.to_numpy()
            below = owners(offsets, below)
            counts = np.diff(offsets)
        else:
            batch = self._batch(values, below)
        rest = pa.nulls(batch.num_rows, pa.string())
        return Quick(_with_rest(batch, rest, self._schema), doubtful + below, counts=counts)

    def _batch(self, values: pa.Array, doubtful: list[int]) -> pa.RecordBatch:
        row = self._payload.row
        if self._payload.bare:
            array = lake_array(values, row.members[0].value, doubtful)
            return pa.RecordBatch.from_arrays([array], schema=pa.schema(list(row.type)))
        doubtful.extend(where(nulls(values)))
        return pa.RecordBatch.from_struct_array(lake_array(values, row, doubtful))

    @_uncollected()
    def _carefully(self, array: pa.BinaryArray, positions: Positions, gathered: Gathered) -> None:
        """Read payloads one by one, and build columns of a few hundred at a time."""
        payloads: list[list[Any]] = []
        owners: list[int] = []
        size = 0
        for position, data, plain in zip(
            positions.tolist(), iterated(array), plain_numbers(array), strict=True
        ):
            try:
                payloads.append(self._contents(data, plain=plain))
            except RefusedError as error:
                gathered.fail(position, error.code, error.reason, at_byte=error.position)
                continue
            owners.append(position)
            size += len(data)
            if size > _BYTES_AT_ONCE or len(owners) >= _PAYLOADS_AT_ONCE:
                self._gather(payloads, owners, gathered)
                payloads, owners, size = [], [], 0
        self._gather(payloads, owners, gathered)

    def _gather(
        self, payloads: Sequence[list[Any]], positions: Sequence[int], gathered: Gathered
    ) -> None:
        """Add the rows of payloads; halve them to find those with values that fit no column."""
        if not payloads:
            return
        try:
            batch = self._built([*chain.from_iterable(payloads)])
        except RefusedError as error:
            if len(payloads) == 1:
                gathered.fail(positions[0], error.code, error.reason, at_byte=error.position)
                return
            half = len(payloads) // 2
            self._gather(payloads[:half], positions[:half], gathered)
            self._gather(payloads[half:], positions[half:], gathered)
            return
        counts = [*map(len, payloads)]
        gathered.add(batch, np.repeat(np.array(positions, np.int64), counts), empty=counts.count(0))

    def _built(self, contents: list[Any]) -> pa.RecordBatch:
        row = self._payload.row
        if self._payload.bare:
            array = array_of(row.members[0].value, contents)
            batch = pa.RecordBatch.from_arrays([array], schema=pa.schema(list(row.type)))
        else:
            batch = rows_of(row, contents)
        if self._rest_of is None:
            return batch
        rest = [None if left is NOTHING else render(left) for left in map(self._rest_of, contents)]
        return _with_rest(batch, pa.array(rest, pa.string()), self._schema)

    def _contents(self, data: bytes, *, plain: bool) -> list[Any]:
        content = parse(data, max_depth=self._max_depth, plain=plain)
        self._validate(content)
        if not self._payload.listed:
            return [content]
        if not isinstance(content, list):
            raise mismatch("", "an array")
        return content

    def _validate(self, content: Any) -> None:
        if self._looks_around and _squares(content) > _MOST_SQUARES:
            reason = (
                "the texts of the payload are too long for the schema's patterns with look-around"
            )
            raise RefusedError(ErrorCode.PAYLOAD_MISMATCH, reason)
        try:
            if self._is_valid(content):
                return
            self._validator.validate(content)
        except jsonschema_rs.ValidationError as error:
            path = self._shown_path(error.instance_path)
            reason = f"{path} does not match `{printable(error.kind.name)}` of the schema"
            if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Type):
                reason += f": {kind_of(error.instance)} instead of {' or '.join(error.kind.types)}"
            elif isinstance(error.kind, jsonschema_rs.ValidationErrorKind.BacktrackLimitExceeded):
                reason += ": matching the pattern takes too many steps"
            raise RefusedError(ErrorCode.PAYLOAD_MISMATCH, reason) from None
        except BaseException as error:
            if not isinstance(error, ValueError) and not is_panic(error):
                raise
            reason = "the schema validator cannot read the payload"
            raise RefusedError(ErrorCode.PAYLOAD_MISMATCH, reason) from None

    def _shown_path(self, path: list[str | int]) -> str:
        """Format a path in a payload, hiding names that the schema does not have."""
        steps = (
            printable(str(step)) if type(step) is int or step in self._names else "*"
            for step in path
        )
        return "/" + "/".join(steps)


def _squares(content: Any) -> int:
    """Return the sum of the squared lengths of all texts and names, the cost of look-around."""
    if isinstance(content, str):
        return len(content) ** 2
    if isinstance(content, dict):
        return sum(len(name) ** 2 + _squares(value) for name, value in content.items())
    return sum(map(_squares, content)) if isinstance(content, list) else 0


def _with_rest(batch: pa.RecordBatch, rest: pa.Array, schema: pa.Schema) -> pa.RecordBatch:
    if batch.num_columns == len(schema):
        return batch
    return pa.RecordBatch.from_arrays([*batch.columns, rest], schema=schema)


def _opened(body: bytes, message: str) -> Documents:
    try:
        documents = Documents.of(body)
        _ = documents.validator
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DecodeError(
            "the compiled schema is not a usable JSON Schema",
            where=f"message {printable(message)!r}",
            evidence=printable(str(error)),
            next_step="look at the schema in the registry",
        ) from error
    if message != message_of(documents.content):
        raise DecodeError(
            "the schema does not define this message",
            where=f"message {printable(message)!r}",
            evidence=f"it defines {printable(message_of(documents.content))}",
            next_step="compare the message name with the schema's title",
        )
    return documents


def _columns(row: JsonValue, message: str) -> tuple[Column, ...]:
    def source(property_: str) -> str:
        what = f"property {printable(property_)}" if property_ else "value"
        return f"{what} of {printable(message)}"

    return tuple(
        Column(
            member.name,
            member.value.type,
            comment="; ".join(filter(None, (source(member.property), member.note))),
            origin=Origin(f"{message}.{member.property}" if member.property else message),
            side_of=member.side_of,
        )
        for member in row.shown
    )


def _names(documents: Documents) -> frozenset[str]:
    """Return the names of all properties in the documents of a schema."""
    names: set[str] = set()
    contents: list[Any] = [documents.content, *documents.references.values()]
    while contents:
        content = contents.pop()
        if isinstance(content, dict):
            properties = content.get("properties")
            names |= properties.keys() if isinstance(properties, dict) else set()
            contents += content.values()
        elif isinstance(content, list):
            contents += content
    return frozenset(names)


def _levels(value: JsonValue) -> int:
    """Return how deep objects and arrays nest in a value, counting the value."""
    below = value.below()
    return bool(below) + max(map(_levels, below), default=0)


def _expansion(payload: JsonPayload, max_depth: int) -> Expansion:
    """Return the estimate of the memory that payloads of a plan need as columns."""
    row = width(payload.row.type) + TEXT
    lists = list(_lists(payload.row))
    # an item takes at least three bytes if it is an object (`{},`), else two (`1,`)
    objects = [
        _item_width(list_value)
        for list_value in lists
        if list_value.item and list_value.item.kind is JsonKind.STRUCT
    ]
    others = [
        _item_width(list_value)
        for list_value in lists
        if list_value.item and list_value.item.kind is not JsonKind.STRUCT
    ]
    (others if payload.bare else objects).extend([row] * payload.listed)
    object_, other = max(objects, default=0), max(others, default=0)
    factor = max(_PLAIN, -(-object_ // 3), -(-other // 2))

    content_of = payload.row.members[0].value if payload.bare else payload.row
    count = _counter(content_of) or (lambda content: 0)

    def measure(data: bytes, limit: int) -> int:
        most = row + _PLAIN * len(data)
        most += object_ * (data.count(b"{") + data.count(b"null"))
        most += other * (data.count(b",") + data.count(b"[") + data.count(b"{"))
        if most <= limit:
            return most
        content = parse(data, max_depth=max_depth)
        rows = content if payload.listed and isinstance(content, list) else [content]
        return row * len(rows) + len(data) + sum(map(count, rows))

    return Expansion(row, factor, measure)


def _counter(value: JsonValue) -> Callable[[Any], int] | None:
    """Return a function that sums the bytes of the items in a value, or None if it has no items."""
    if value.item is not None:
        size, inner = _item_width(value), _counter(value.item)

        def items(content: Any) -> int:
            if isinstance(content, dict):
                content = content.values()
            elif not isinstance(content, list):
                return 0
            return size * len(content) + (sum(map(inner, content)) if inner is not None else 0)

        return items
    counters = [(member.property, _counter(member.value)) for member in value.shown]
    inner_counters = [(name, count) for name, count in counters if count is not None]

    def members(content: Any) -> int:
        if not isinstance(content, dict):
            return 0
        return sum(count(content.get(name)) for name, count in inner_counters)

    return members if inner_counters else None


def _lists(value: JsonValue) -> Iterator[JsonValue]:
    """Yield all lists and maps in a value."""
    below = [member.value for member in value.shown]
    if value.item is not None:
        yield value
        below = [value.item]
    for inner in below:
        yield from _lists(inner)


def _item_width(value: JsonValue) -> int:
    item_bytes = width(value.item.type) if value.item is not None else 0
    return item_bytes + TEXT * (value.kind is JsonKind.MAP)
