"""JSON payloads with a JSON Schema to Arrow columns, by the table in docs/json.md.

A payload is a row, or with an array at the top as many rows as it has items, if and only if it is
one strict JSON text that the schema takes and whose values the lake can hold. The validator asserts
no formats; a text that is not what its `format` says is refused where the format decides about the
column. `default` is not applied: it says what a reader may assume, not what was written.
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
from distributary.decode.json.schema import Kind, Payload, Value, plan_payload
from distributary.decode.json.text import parse, plain_numbers, render
from distributary.errors import DecodeError, ErrorCode
from distributary.model.names import printable
from distributary.model.table import Column, Origin
from distributary.registry.compile.json import message_of
from distributary.registry.compile.json_documents import Documents, is_panic

# A schema that is not closed lets properties pass that it does not name. They are kept in the shape
# they had: `{"address": {"zip4": 12}, "lines": [null, {"gift": true}]}` is a record with a property
# `zip4` in `address` that nobody announced, and a `gift` in its second line.

NOTHING = object()
"""There is nothing left."""

Rest = Callable[[Any], Any]


def rest_of(value: Value) -> Rest | None:
    """A function that gives what is left of a value, or `NOTHING`; None when nothing ever is."""
    if not value.leaves_rest:
        return None
    if value.item is not None:
        # only what has an item that leaves one leaves a rest itself
        return _items(cast(Rest, rest_of(value.item)))
    known = {m.property for m in value.members}
    inside = [(m.property, rest_of(m.value)) for m in value.shown]
    below = [(name, rest) for name, rest in inside if rest is not None]

    def rest(content: Any) -> Any:
        if type(content) is not dict:
            return NOTHING
        left = {}
        if not content.keys() <= known:
            left = {name: each for name, each in content.items() if name not in known}
        for name, inner in below:
            if name in content:
                found = inner(content[name])
                if found is not NOTHING:
                    left[name] = found
        return left or NOTHING

    return rest


def _items(item: Rest) -> Rest:
    def rest(content: Any) -> Any:
        if type(content) is dict:
            found = {name: item(each) for name, each in content.items()}
            return {name: each for name, each in found.items() if each is not NOTHING} or NOTHING
        left = [item(each) for each in content] if type(content) is list else []
        if all(each is NOTHING for each in left):
            return NOTHING
        return [None if each is NOTHING else each for each in left]

    return rest


REST = Column("_rest", pa.string(), comment="JSON text of what the schema does not name")
MAX_DEPTH = 100
"""Of objects and arrays in each other; beyond it a payload is refused whatever the limit."""

_PLAIN = 2
"""Bytes that a byte becomes where it is no item: `{}` is `null` in the rest of a list."""

_BYTES_AT_ONCE, _PAYLOADS_AT_ONCE = 1024 * 1024, 500
"""What is held as objects before it becomes columns: few enough to stay in the caches."""

_MOST_SQUARES = 25_000**2
"""A pattern may look around from each character of a text: one of so many takes seconds."""


@contextmanager
def _uncollected() -> Iterator[None]:
    """Spares the garbage collector values that are in no cycle: a fifth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class JsonDecoder(TwoSpeedDecoder):
    """Decodes the payloads of one schema."""

    # an object with a name that the schema does not have is refused, and every record may be one;
    # read one by one they take twice as long, and that is soon less than to look for the others
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
        schema = pa.schema([pa.field(c.name, c.type) for c in columns])
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
        """Read payloads one by one, and make columns of as many as are cheap to hold as objects."""
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
        """Add the rows of payloads; one that has a value without a place in its column fails."""
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
            reason = "its texts are too long for the patterns with look-around of the schema"
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
                reason += ": it takes too many steps to tell"
            raise RefusedError(ErrorCode.PAYLOAD_MISMATCH, reason) from None
        except BaseException as error:
            if not isinstance(error, ValueError) and not is_panic(error):
                raise
            reason = "the validator cannot read it"
            raise RefusedError(ErrorCode.PAYLOAD_MISMATCH, reason) from None

    def _shown_path(self, path: list[str | int]) -> str:
        """Where in a payload; names that only the payload has are not told."""
        steps = (printable(str(s)) if type(s) is int or s in self._names else "*" for s in path)
        return "/" + "/".join(steps)


def _squares(content: Any) -> int:
    """The squared lengths of all texts and names in a value: what looking around may cost."""
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


def _columns(row: Value, message: str) -> tuple[Column, ...]:
    def source(property_: str) -> str:
        what = f"property {printable(property_)}" if property_ else "value"
        return f"{what} of {printable(message)}"

    return tuple(
        Column(
            m.name,
            m.value.type,
            comment="; ".join(filter(None, (source(m.property), m.note))),
            origin=Origin(f"{message}.{m.property}" if m.property else message),
            side_of=m.side_of,
        )
        for m in row.shown
    )


def _names(documents: Documents) -> frozenset[str]:
    """The names of all properties that any of the documents tells."""
    found: set[str] = set()
    waiting: list[Any] = [documents.content, *documents.references.values()]
    while waiting:
        content = waiting.pop()
        if isinstance(content, dict):
            told = content.get("properties")
            found |= told.keys() if isinstance(told, dict) else set()
            waiting += content.values()
        elif isinstance(content, list):
            waiting += content
    return frozenset(found)


def _levels(value: Value) -> int:
    """How deep objects and arrays nest in it, itself included."""
    below = value.below()
    return bool(below) + max(map(_levels, below), default=0)


def _expansion(payload: Payload, max_depth: int) -> Expansion:
    """How large payloads of a plan become."""
    row = width(payload.row.type) + TEXT
    lists = list(_lists(payload.row))
    # an item is `{},` or `null,`, or `1,` where it is no object
    objects = [_item_width(v) for v in lists if v.item and v.item.kind is Kind.STRUCT]
    others = [_item_width(v) for v in lists if v.item and v.item.kind is not Kind.STRUCT]
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


def _counter(value: Value) -> Callable[[Any], int] | None:
    """A function that gives the bytes of the items in a value; None where it never has any."""
    if value.item is not None:
        size, inner = _item_width(value), _counter(value.item)

        def items(content: Any) -> int:
            if isinstance(content, dict):
                content = content.values()
            elif not isinstance(content, list):
                return 0
            return size * len(content) + (sum(map(inner, content)) if inner is not None else 0)

        return items
    inside = [(m.property, _counter(m.value)) for m in value.shown]
    below = [(name, count) for name, count in inside if count is not None]

    def members(content: Any) -> int:
        if not isinstance(content, dict):
            return 0
        return sum(count(content.get(name)) for name, count in below)

    return members if below else None


def _lists(value: Value) -> Iterator[Value]:
    """All lists and maps in a value."""
    below = [m.value for m in value.shown]
    if value.item is not None:
        yield value
        below = [value.item]
    for each in below:
        yield from _lists(each)


def _item_width(value: Value) -> int:
    own = width(value.item.type) if value.item is not None else 0
    return own + TEXT * (value.kind is Kind.MAP)
