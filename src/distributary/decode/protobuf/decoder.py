"""Protobuf payloads to Arrow columns.

A payload becomes a row if and only if the official parser accepts it, every field in it is one of
the schema's, and the lake can hold its values. Every array is therefore parsed twice: by the
official parser, which only says yes or no and is quick at that, and by the engine, which makes the
columns and is not strict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from distributary.decode.base import (
    SLICE_BYTES,
    DecodeLimits,
    Decoder,
    Gathered,
    Positions,
    Quick,
    RefusedError,
    RowByRowDecoder,
)
from distributary.decode.protobuf.engine import (
    Columns,
    Engine,
    JsonText,
    engine_supports,
    has_engine,
)
from distributary.decode.protobuf.schema import (
    OFFICIAL_MAX_DEPTH,
    Field,
    Kind,
    Value,
    can_nest_deeper,
    columns_of,
    find_message,
    message_class,
    microseconds,
    open_pool,
    plan_message,
    replaces_nothing,
    with_nothing_replaced,
    with_open_enums,
)
from distributary.decode.protobuf.wire import expansion_of, find_fault, find_foreign, judge
from distributary.errors import ErrorCode
from distributary.model.cache import Cache
from distributary.model.deadletter import Decoded, Failure

_ZERO_OF = {pa.string(): "", pa.binary(): b"", pa.bool_(): False}


class RowReader:
    """Reads payloads that the official parser accepts, one by one: what the engine refuses."""

    def __init__(self, body: bytes, message: Value, json_text: JsonText) -> None:
        pool = open_pool(body, message.message, change=with_open_enums)
        self._class = message_class(find_message(pool, message.message))
        self._message = message
        self._json = json_text

    def rows(self, payload: bytes) -> list[dict[str, Any]]:
        """The one row of a payload."""
        try:
            return [self._struct(self._class.FromString(payload), self._message)]
        except UnicodeDecodeError:
            # from the keys of a map: those the runtime does not give as bytes
            reason = "a map has keys that are not UTF-8"
            raise RefusedError(ErrorCode.INVALID_UTF8, reason) from None

    def _struct(self, message: Any, value: Value) -> dict[str, Any]:
        # fields are asked for by number: a name from outside may be that of a method
        given = {f.number: content for f, content in message.ListFields() if not f.is_extension}
        return {f.name: self._field(given.get(f.number), f) for f in value.fields}

    def _field(self, content: Any, field: Field) -> Any:
        value = field.value
        if field.key is not None:
            label, named = field.label, field.key
            return [
                (self._value(key, named, label), self._value(content[key], value, label))
                for key in content or ()
            ]
        if field.repeated:
            return [self._value(each, value, field.label) for each in content or ()]
        if content is not None:
            return self._value(content, value, field.label)
        if field.presence:
            return None
        return value.names.get(0, "0") if value.names else _ZERO_OF.get(value.type, 0)

    def _value(self, content: Any, value: Value, label: str) -> Any:
        match value.kind:
            case Kind.STRUCT:
                return self._struct(content, value)
            case Kind.JSON | Kind.EMPTY:
                return self._json.render(value.message, content.SerializePartialToString())
            case Kind.TIMESTAMP | Kind.DURATION:
                return _micros(content, value, label)
            case Kind.FIELD_MASK:
                return ",".join(_utf8(path, label) for path in content.paths)
            case Kind.ENUM:
                return value.names.get(content, str(content))
        content = content.value if value.wrapped else content
        if value.kind is Kind.UINT64:
            return Decimal(content)
        return _utf8(content, label) if pa.types.is_string(value.type) else content


def _micros(content: Any, value: Value, label: str) -> int:
    micros, outside = microseconds(
        value.kind,
        np.array([content.seconds], np.int64),
        np.array([content.nanos], np.int32),
    )
    if outside[0]:
        reason = f"field {label} is outside the range of {value.message}"
        raise RefusedError(ErrorCode.VALUE_OUT_OF_RANGE, reason)
    return int(micros[0])


def _utf8(text: Any, label: str) -> Any:
    # the runtime gives text that is not UTF-8 as bytes
    if isinstance(text, bytes):
        raise RefusedError(ErrorCode.INVALID_UTF8, f"field {label} holds text that is not UTF-8")
    return text


class ProtobufDecoder(RowByRowDecoder):
    """Decodes the payloads of one message type.

    Unsigned 64-bit numbers are decimals, enums are names (a number without a name is kept as
    digits, also of a closed enum), durations are microseconds, messages without fixed columns are
    JSON text, and a message that contains itself is columns for `recursion_depth` levels and JSON
    text below. Nesting beyond 100 is refused whatever the limit, because the official parser does.
    """

    def __init__(self, body: bytes, message: str, limits: DecodeLimits) -> None:
        pool = open_pool(body, message)
        self._body = body
        self._descriptor = find_message(pool, message)
        self._class = message_class(self._descriptor)
        self._max_depth = min(limits.max_depth, OFFICIAL_MAX_DEPTH)
        # the official parser watches its own limit; a lower one is ours to watch
        self._watch_depth = self._max_depth < OFFICIAL_MAX_DEPTH and can_nest_deeper(
            self._descriptor, self._max_depth
        )
        self.required = {f.name for f in self._descriptor.fields if f.is_required}
        self.plan = plan_message(self._descriptor, recursion_depth=limits.recursion_depth)
        self._row_type = self.plan.type
        self._json = JsonText(pool)
        self._finish = Columns(self.plan, self._json)
        super().__init__(
            columns_of(self.plan), self._finish.schema, expansion_of(self.plan), limits
        )
        fits = has_engine() and engine_supports(self.plan)
        self._engine = Engine(self.plan) if fits else None

    def accepts(self, payloads: pa.BinaryArray) -> bool:
        """Whether every payload is a message of this type, and nothing more than that."""
        refused, unknown = self._judged(payloads.to_pylist(), payloads.nbytes)
        return not refused and not unknown

    def _admit(
        self, array: pa.BinaryArray, positions: Positions, gathered: Gathered
    ) -> tuple[pa.BinaryArray, Positions]:
        refused, unknown = self._judged(array.to_pylist(), array.nbytes)
        for index in unknown:
            gathered.note_unknown(positions[index])
        return gathered.refuse(refused, array, positions)

    def _judged(
        self, data: Sequence[bytes], size: int
    ) -> tuple[dict[int, RefusedError], list[int]]:
        """Payloads that are refused, and others with fields that are left out of their rows."""
        rejected, foreign = judge(self._judge, data, size=size)
        refused = {index: self._fault(data[index]) for index in rejected}
        if self._watch_depth:
            for index, payload in enumerate(data):
                # a level costs two bytes at least
                if index not in refused and len(payload) >= 2 * self._max_depth:
                    fault = self._fault(payload)
                    if fault.code is ErrorCode.NESTING_TOO_DEEP:
                        refused[index] = fault
        unknown: list[int] = []
        for index, doubtful in foreign.items():
            if index in refused:
                continue
            if self._limits.drop_unknown_fields and not doubtful:
                unknown.append(index)
                continue
            wire, number = find_foreign(data[index], self._descriptor)
            if wire is not None:
                refused[index] = wire
            elif number is not None and self._limits.drop_unknown_fields:
                unknown.append(index)
            elif number is not None:
                refused[index] = number
        return refused, unknown

    def _fault(self, payload: bytes) -> RefusedError:
        found = find_fault(payload, self._descriptor, max_depth=self._max_depth)
        reason = f"the protobuf runtime does not accept it as {self._descriptor.full_name}"
        return found or RefusedError(ErrorCode.PAYLOAD_MISMATCH, reason)

    def _quickly(self, array: pa.BinaryArray) -> Quick | None:
        raw = self._engine.decode(array)
        if raw is None:
            return None
        batch, problems = self._finish.finish(raw)
        again = {p.index for p in problems if p.code is None}
        failed = {
            # a record fails once, for the first thing that is wrong with it
            p.index: Failure(p.index, p.code, p.reason)
            for p in reversed(problems)
            if p.code is not None and p.index not in again
        }
        return Quick(batch, list(again), list(failed.values()))

    def _decode(self, array: pa.BinaryArray, positions: Positions, gathered: Gathered) -> None:
        if self._engine is not None and len(array):
            quick = self._quickly(array)
            if quick is not None:
                self._add(quick, array, positions, gathered)
                return
            # the engine also refuses text of proto2 that is not UTF-8, and so does the lake
            data = array.to_pylist()
            bad = self._engine.not_utf8(data, size=array.nbytes)
            faults = {index: self._fault(data[index]) for index in bad}
            not_text = {i: f for i, f in faults.items() if f.code is ErrorCode.INVALID_UTF8}
            array, positions = gathered.refuse(not_text, array, positions)
        super()._decode(array, positions, gathered)

    def _read(self, data: bytes) -> list[Any]:
        return self._reader.rows(data)

    @cached_property
    def _judge(self) -> Any:
        """The class whose parser judges; made at the first payload, which a driver never sees."""
        if replaces_nothing(self._descriptor):
            return self._class
        pool = open_pool(self._body, self._descriptor.full_name, change=with_nothing_replaced)
        return message_class(find_message(pool, self._descriptor.full_name))

    @cached_property
    def _reader(self) -> RowReader:
        return RowReader(self._body, self.plan, self._json)


# A call costs as much as decoding a few hundred records, and a table gets records of several
# versions in every batch. A version that has every field of the others, exactly as they have it,
# reads their payloads as well. As soon as anything is unusual, each version decodes its own.

_MOST_COVERS = 50_000


class _Cover:
    """The widest of some decoders, and where each of them finds its columns in its batches."""

    def __init__(self, decoders: tuple[Decoder, ...]) -> None:
        self.widest: ProtobufDecoder | None = None
        self.picks: list[list[int]] = []
        self.versions = [d for d in decoders if isinstance(d, ProtobufDecoder)]
        widest = max(self.versions, key=lambda d: len(d.columns), default=None)
        if widest is None or len(self.versions) < len(decoders):
            return
        if all(d is widest or _covers(widest, d) for d in self.versions):
            self.widest = widest
            place = {column.name: index for index, column in enumerate(widest.columns)}
            self.picks = [[place[c.name] for c in d.columns] for d in self.versions]


_COVERS: Cache[_Cover] = Cache(_MOST_COVERS)


def decode_together(
    decoders: tuple[Decoder, ...], arrays: Sequence[pa.BinaryArray]
) -> list[Decoded] | None:
    """What each decoder makes of its array, or None where they must be asked one by one."""
    # worked out once: decoders live as long as a worker
    cover = _COVERS.of(decoders, lambda: _Cover(decoders))
    if cover.widest is None:
        return None
    if sum(d.expansion.most(a) for d, a in zip(decoders, arrays, strict=True)) > SLICE_BYTES:
        return None
    # judged by the schema of each: the widest one knows fields that others do not
    if not all(d.accepts(a) for d, a in zip(cover.versions, arrays, strict=True)):
        return None
    decoded = cover.widest.decode(pa.concat_arrays(arrays), accepted=True)
    if decoded.failed or decoded.origin is not None:
        return None
    results, start = [], 0
    for pick, array in zip(cover.picks, arrays, strict=True):
        batch = decoded.ok.slice(start, len(array)).select(pick)
        results.append(Decoded(batch, None))
        start += len(array)
    return results


def _covers(wide: ProtobufDecoder, narrow: ProtobufDecoder) -> bool:
    """Whether one reads the other's payloads just as that one does."""
    if not narrow.columns:
        # a batch without columns does not remember how many rows it has
        return False
    if narrow.plan.renders_others:
        # a version may know the message in an `Any`, or name its enums, otherwise than another
        return False
    ours, theirs = (
        {f.name: replace(f, place=0) for f in decoder.plan.fields} for decoder in (wide, narrow)
    )
    if any(ours.get(name) != field for name, field in theirs.items()):
        return False
    # a new member of a oneof would take the place of an old one, a new required field be missed
    for oneof in wide.plan.oneofs:
        if len({f.name in theirs for f in oneof}) > 1:
            return False
    return wide.required <= narrow.required
