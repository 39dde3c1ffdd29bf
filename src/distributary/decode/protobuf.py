"""Protobuf payloads to Arrow columns.

A payload becomes a row if and only if the official parser accepts it, every field in it is one of
the schema's, and the lake can hold its values. Every array is therefore parsed twice: by the
official parser, which only says yes or no and is quick at that, and by the engine, which makes the
columns and is not strict.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from distributary.decode.base import DecodeLimits
from distributary.decode.expansion import Expansion
from distributary.decode.gather import Gathered, Positions, small_enough, without
from distributary.decode.protobuf_columns import Columns, Problem
from distributary.decode.protobuf_descriptors import (
    OFFICIAL_MAX_DEPTH,
    find_message,
    message_class,
    open_pool,
    replaces_nothing,
    with_nothing_replaced,
)
from distributary.decode.protobuf_engine import (
    Engine,
    EngineRefusedError,
    engine_supports,
    has_engine,
)
from distributary.decode.protobuf_json import JsonText
from distributary.decode.protobuf_parser import judge
from distributary.decode.protobuf_rows import RowReader
from distributary.decode.protobuf_shape import Value
from distributary.decode.protobuf_types import can_nest_deeper, columns_of, plan_message
from distributary.decode.protobuf_wire import Fault, expansion_of, find_fault, find_foreign
from distributary.errors import ErrorCode
from distributary.model.decoded import Decoded
from distributary.model.table import Column

_FEW = 64
"""When so few are left of an array that the engine refuses, they are decoded one by one."""


class ProtobufDecoder:
    """Decodes the payloads of one message type.

    Unsigned 64-bit numbers are decimals, enums are names (a number without a name is kept as
    digits, also of a closed enum), durations are microseconds, messages without fixed columns are
    JSON text, and a message that contains itself is columns for `recursion_depth` levels and JSON
    text below. Nesting beyond 100 is refused whatever the limit, because the official parser does.
    """

    def __init__(self, body: bytes, message: str, limits: DecodeLimits) -> None:
        pool = open_pool(body, message)
        self._body = body
        self._limits = limits
        self._descriptor = find_message(pool, message)
        self._class = message_class(self._descriptor)
        self._max_depth = min(limits.max_depth, OFFICIAL_MAX_DEPTH)
        # the official parser watches its own limit; a lower one is ours to watch
        self._watch_depth = self._max_depth < OFFICIAL_MAX_DEPTH and can_nest_deeper(
            self._descriptor, self._max_depth
        )
        self._plan = plan_message(self._descriptor, recursion_depth=limits.recursion_depth)
        self._columns = columns_of(self._plan)
        self._expansion = expansion_of(self._plan)
        self._json = JsonText(pool)
        self._finish = Columns(self._plan, self._json)
        fits = has_engine() and engine_supports(self._plan)
        self._engine = Engine(self._plan) if fits else None

    @property
    def columns(self) -> tuple[Column, ...]:
        """The lake columns of the message, in the schema's order."""
        return self._columns

    @property
    def expansion(self) -> Expansion:
        """How large payloads become."""
        return self._expansion

    @property
    def message(self) -> Value:
        """The plan by which the message is decoded."""
        return self._plan

    @property
    def required(self) -> frozenset[str]:
        """Fields of the message, at its top, without which a payload is none."""
        return frozenset(f.name for f in self._descriptor.fields if f.is_required)

    def decode(self, payloads: pa.BinaryArray, *, accepted: bool = False) -> Decoded:
        """Decode an array without nulls; what cannot be a row is in `failed`.

        `accepted` says that the payloads were found to be messages of this type already.
        """
        array = payloads if payloads.type == pa.binary() else payloads.cast(pa.binary())
        gathered = Gathered(self._finish.schema, len(array))
        array, positions = small_enough(array, self._limits.max_payload_bytes, gathered)
        array, positions = self._expansion.small_enough(
            array, positions, self._limits.max_decoded_bytes, gathered
        )
        if not accepted:
            array, positions = self._accepted(array, positions, gathered)
        if self._engine is None:
            self._carefully(array, positions, gathered)
        else:
            self._quickly(self._engine, array, positions, gathered)
        return gathered.decoded()

    def accepts(self, payloads: pa.BinaryArray) -> bool:
        """Whether every payload is a message of this type, and nothing more than that."""
        refused, unknown = self._judged(payloads.to_pylist(), payloads.nbytes)
        return not refused and not unknown

    def _accepted(
        self, array: pa.BinaryArray, positions: Positions, gathered: Gathered
    ) -> tuple[pa.BinaryArray, Positions]:
        refused, unknown = self._judged(array.to_pylist(), array.nbytes)
        for index in unknown:
            gathered.note_unknown(positions[index])
        if refused:
            for index, fault in refused.items():
                gathered.fail(positions[index], fault.code, fault.reason, at_byte=fault.position)
            array, positions = without(refused, array, positions)
        return array, positions

    def _judged(self, data: Sequence[bytes], size: int) -> tuple[dict[int, Fault], list[int]]:
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

    def _fault(self, payload: bytes) -> Fault:
        found = find_fault(payload, self._descriptor, max_depth=self._max_depth)
        name = self._descriptor.full_name
        reason = f"the protobuf runtime does not accept it as {name}"
        return found or Fault(ErrorCode.PAYLOAD_MISMATCH, reason, None)

    def _quickly(
        self, engine: Engine, array: pa.BinaryArray, positions: Positions, gathered: Gathered
    ) -> None:
        try:
            raw = engine.decode(array)
        except EngineRefusedError:
            self._after_refusal(engine, array, positions, gathered)
            return
        batch, problems = self._finish.finish(raw)
        if not problems:
            gathered.add(batch, positions)
            return
        gathered.add(*without({p.index for p in problems}, batch, positions))
        again = {p.index for p in problems if p.code is None}
        _report([p for p in problems if p.index not in again], positions, gathered)
        if again:
            indices = sorted(again)
            self._carefully(array.take(pa.array(indices)), positions[indices], gathered)

    def _after_refusal(
        self, engine: Engine, array: pa.BinaryArray, positions: Positions, gathered: Gathered
    ) -> None:
        """The engine also refuses text of proto2 that is not UTF-8, and so does the lake."""
        data = array.to_pylist()
        faults = {i: self._fault(data[i]) for i in engine.not_utf8(data, size=array.nbytes)}
        not_text = {i: f for i, f in faults.items() if f.code is ErrorCode.INVALID_UTF8}
        if not_text:
            for index, fault in not_text.items():
                gathered.fail(positions[index], fault.code, fault.reason, at_byte=fault.position)
            array, positions = without(not_text, array, positions)
            self._quickly(engine, array, positions, gathered)
        elif len(data) <= _FEW:
            self._carefully(array, positions, gathered)
        else:
            half = len(data) // 2
            for part in (slice(None, half), slice(half, None)):
                self._quickly(engine, array[part], positions[part], gathered)

    def _carefully(self, array: pa.BinaryArray, positions: Positions, gathered: Gathered) -> None:
        batch, problems = self._rows.read(array.to_pylist())
        _report(problems, positions, gathered)
        gathered.add(batch, np.delete(positions, [p.index for p in problems]))

    @cached_property
    def _judge(self) -> Any:
        """The class whose parser judges; made at the first payload, which a driver never sees."""
        if replaces_nothing(self._descriptor):
            return self._class
        pool = open_pool(self._body, self._descriptor.full_name, change=with_nothing_replaced)
        return message_class(find_message(pool, self._descriptor.full_name))

    @cached_property
    def _rows(self) -> RowReader:
        return RowReader(self._body, self._plan, self._json)


def _report(problems: Iterable[Problem], positions: Positions, gathered: Gathered) -> None:
    # a record fails once, for the first thing that is wrong with it
    for problem in {p.index: p for p in reversed(list(problems))}.values():
        if problem.code is not None:
            gathered.fail(positions[problem.index], problem.code, problem.reason)
