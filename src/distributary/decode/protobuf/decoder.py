"""Protobuf payloads to Arrow columns.

A payload becomes a row if the official parser accepts it, the schema has every field in it, and the
lake can hold its values. Every array is therefore parsed twice: by the official parser, which is
fast and only accepts or rejects, and by the engine, which builds the columns and is not strict.
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
from distributary.decode.protobuf.fast_decoder import (
    Columns,
    JsonText,
    ProtobufEngine,
    engine_supports,
    has_engine,
)
from distributary.decode.protobuf.schema import (
    OFFICIAL_MAX_DEPTH,
    ProtobufField,
    ProtobufKind,
    ProtobufValue,
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


class MessageReader:
    """A reader of single payloads with the official runtime, for those that the engine refuses."""

    def __init__(self, body: bytes, message: ProtobufValue, json_text: JsonText) -> None:
        pool = open_pool(body, message.message, change=with_open_enums)
        self._class = message_class(find_message(pool, message.message))
        self._message = message
        self._json = json_text

    def rows(self, payload: bytes) -> list[dict[str, Any]]:
        """Return the one row of a payload, in a list."""
        try:
            return [self._struct(self._class.FromString(payload), self._message)]
        except UnicodeDecodeError:
            # raised for map keys, which the runtime does not return as bytes
            reason = "a map has keys that are not UTF-8"
            raise RefusedError(ErrorCode.INVALID_UTF8, reason) from None

    def _struct(self, message: Any, value: ProtobufValue) -> dict[str, Any]:
        # fields are read by number, because a field's name may also be the name of a method
        content_by_number = {
            field.number: content
            for field, content in message.ListFields()
            if not field.is_extension
        }
        return {
            field.name: self._field(content_by_number.get(field.number), field)
            for field in value.fields
        }

    def _field(self, content: Any, field: ProtobufField) -> Any:
        value = field.value
        if field.key is not None:
            label, key_plan = field.label, field.key
            return [
                (self._value(key, key_plan, label), self._value(content[key], value, label))
                for key in content or ()
            ]
        if field.repeated:
            return [self._value(item, value, field.label) for item in content or ()]
        if content is not None:
            return self._value(content, value, field.label)
        if field.presence:
            return None
        return value.names.get(0, "0") if value.names else _ZERO_OF.get(value.type, 0)

    def _value(self, content: Any, value: ProtobufValue, label: str) -> Any:
        match value.kind:
            case ProtobufKind.STRUCT:
                return self._struct(content, value)
            case ProtobufKind.JSON | ProtobufKind.EMPTY:
                return self._json.render(value.message, content.SerializePartialToString())
            case ProtobufKind.TIMESTAMP | ProtobufKind.DURATION:
                return _micros(content, value, label)
            case ProtobufKind.FIELD_MASK:
                return ",".join(_utf8(path, label) for path in content.paths)
            case ProtobufKind.ENUM:
                return value.names.get(content, str(content))
        content = content.value if value.wrapped else content
        if value.kind is ProtobufKind.UINT64:
            return Decimal(content)
        return _utf8(content, label) if pa.types.is_string(value.type) else content


def _micros(content: Any, value: ProtobufValue, label: str) -> int:
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
    # the runtime returns a text that is not UTF-8 as bytes
    if isinstance(text, bytes):
        raise RefusedError(ErrorCode.INVALID_UTF8, f"field {label} holds text that is not UTF-8")
    return text


class ProtobufDecoder(RowByRowDecoder):
    """A decoder of the payloads of one message type.

    Unsigned 64-bit numbers become decimals, enums become names (a number without a name becomes its
    digits, also in a closed enum), durations become microseconds, and messages without fixed
    columns become JSON text. A message that contains itself becomes columns for `recursion_depth`
    levels and JSON text below. Nesting beyond 100 levels is refused whatever the limits say,
    because the official parser refuses it.
    """

    def __init__(self, body: bytes, message: str, limits: DecodeLimits) -> None:
        pool = open_pool(body, message)
        self._body = body
        self._descriptor = find_message(pool, message)
        self._class = message_class(self._descriptor)
        self._max_depth = min(limits.max_depth, OFFICIAL_MAX_DEPTH)
        # the official parser checks only its own limit, so a lower limit is checked here
        self._watch_depth = self._max_depth < OFFICIAL_MAX_DEPTH and can_nest_deeper(
            self._descriptor, self._max_depth
        )
        self.required = {field.name for field in self._descriptor.fields if field.is_required}
        self.plan = plan_message(self._descriptor, recursion_depth=limits.recursion_depth)
        self._row_type = self.plan.type
        self._json = JsonText(pool)
        self._finish = Columns(self.plan, self._json)
        super().__init__(
            columns_of(self.plan), self._finish.schema, expansion_of(self.plan), limits
        )
        fits = has_engine() and engine_supports(self.plan)
        self._engine = ProtobufEngine(self.plan) if fits else None

    def accepts(self, payloads: pa.BinaryArray) -> bool:
        """Return True if every payload is a message of this type without unknown fields."""
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
        """Return the refused payloads, and the accepted ones whose unknown fields are dropped."""
        rejected, foreign = judge(self._judge, data, size=size)
        refused = {index: self._fault(data[index]) for index in rejected}
        if self._watch_depth:
            for index, payload in enumerate(data):
                # each level takes at least two bytes
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
            wrong_type, unknown_field = find_foreign(data[index], self._descriptor)
            if wrong_type is not None:
                refused[index] = wrong_type
            elif unknown_field is not None and self._limits.drop_unknown_fields:
                unknown.append(index)
            elif unknown_field is not None:
                refused[index] = unknown_field
        return refused, unknown

    def _fault(self, payload: bytes) -> RefusedError:
        fault = find_fault(payload, self._descriptor, max_depth=self._max_depth)
        reason = f"the protobuf runtime does not accept the payload as {self._descriptor.full_name}"
        return fault or RefusedError(ErrorCode.PAYLOAD_MISMATCH, reason)

    def _quickly(self, array: pa.BinaryArray) -> Quick | None:
        raw = self._engine.decode(array)
        if raw is None:
            return None
        batch, problems = self._finish.finish(raw)
        doubtful = {problem.index for problem in problems if problem.code is None}
        failed = {
            # a record fails once, for its first problem
            problem.index: Failure(problem.index, problem.code, problem.reason)
            for problem in reversed(problems)
            if problem.code is not None and problem.index not in doubtful
        }
        return Quick(batch, list(doubtful), list(failed.values()))

    def _decode(self, array: pa.BinaryArray, positions: Positions, gathered: Gathered) -> None:
        if self._engine is not None and len(array):
            quick = self._quickly(array)
            if quick is not None:
                self._add(quick, array, positions, gathered)
                return
            # the engine also refuses proto2 text that is not UTF-8, which the lake cannot hold
            # either
            data = array.to_pylist()
            rejected = self._engine.not_utf8(data, size=array.nbytes)
            faults = {index: self._fault(data[index]) for index in rejected}
            not_text = {
                index: fault
                for index, fault in faults.items()
                if fault.code is ErrorCode.INVALID_UTF8
            }
            array, positions = gathered.refuse(not_text, array, positions)
        super()._decode(array, positions, gathered)

    def _read(self, data: bytes) -> list[Any]:
        return self._reader.rows(data)

    @cached_property
    def _judge(self) -> Any:
        """Return the class whose parser accepts or rejects payloads, built at the first payload.

        A driver never decodes a payload, so it never builds the class.
        """
        if replaces_nothing(self._descriptor):
            return self._class
        pool = open_pool(self._body, self._descriptor.full_name, change=with_nothing_replaced)
        return message_class(find_message(pool, self._descriptor.full_name))

    @cached_property
    def _reader(self) -> MessageReader:
        return MessageReader(self._body, self.plan, self._json)


# Decoding of several schema versions in one call. A call costs as much as decoding a few hundred
# records, and a table gets records of several versions in every batch. A version with every field
# of the others, unchanged, can read their payloads too. If anything is unusual, each version
# decodes its own payloads.

_MOST_COVERS = 50_000


class _Cover:
    """The decoder with the most columns, and the indices of the other decoders' columns in it."""

    def __init__(self, decoders: tuple[Decoder, ...]) -> None:
        self.widest: ProtobufDecoder | None = None
        self.picks: list[list[int]] = []
        self.versions = [decoder for decoder in decoders if isinstance(decoder, ProtobufDecoder)]
        widest = max(self.versions, key=lambda decoder: len(decoder.columns), default=None)
        if widest is None or len(self.versions) < len(decoders):
            return
        if all(decoder is widest or _covers(widest, decoder) for decoder in self.versions):
            self.widest = widest
            place = {column.name: index for index, column in enumerate(widest.columns)}
            self.picks = [
                [place[column.name] for column in decoder.columns] for decoder in self.versions
            ]


_COVERS: Cache[_Cover] = Cache(_MOST_COVERS)


def decode_together(
    decoders: tuple[Decoder, ...], arrays: Sequence[pa.BinaryArray]
) -> list[Decoded] | None:
    """Decode each decoder's array in one call; return None if they must be called one by one."""
    # computed once, because decoders live as long as their worker
    cover = _COVERS.of(decoders, lambda: _Cover(decoders))
    if cover.widest is None:
        return None
    if (
        sum(decoder.expansion.most(array) for decoder, array in zip(decoders, arrays, strict=True))
        > SLICE_BYTES
    ):
        return None
    # each schema judges its own payloads, because the widest schema knows fields that others do not
    if not all(
        decoder.accepts(array) for decoder, array in zip(cover.versions, arrays, strict=True)
    ):
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
    """Return True if `wide` reads the payloads of `narrow` exactly as `narrow` does."""
    if not narrow.columns:
        # a batch without columns loses its number of rows
        return False
    if narrow.plan.renders_others:
        # versions may define the message in an `Any`, or the names of its enums, differently
        return False
    wide_fields, narrow_fields = (
        {field.name: replace(field, place=0) for field in decoder.plan.fields}
        for decoder in (wide, narrow)
    )
    if any(wide_fields.get(name) != field for name, field in narrow_fields.items()):
        return False
    # a new oneof member could replace an old one, and a new required field would be missing
    for oneof in wide.plan.oneofs:
        if len({field.name in narrow_fields for field in oneof}) > 1:
            return False
    return wide.required <= narrow.required
