"""Avro payloads to Arrow columns.

A payload is a row, or with an array at the top as many rows as it has items, if and only if the
careful reader accepts all of it and the lake can hold its values. The engine decodes whole arrays;
what it refuses, and what is doubtful in its answer, is decided by the careful reader.

| Avro | lake |
|---|---|
| null beside other types | nullable; a field that can only be null has no column |
| boolean, string, bytes | bool, string, binary |
| int, long, float, double | int32, int64, float32, float64 |
| fixed, enum, array, map, record | binary, string, list, map of strings, struct |
| union | see `avro_unions`: one type, the wider number, or a struct with a member per branch |
| decimal | decimal; text where it has more than 38 digits |
| date, timestamp-millis, timestamp-micros | date, timestamp in UTC; years 1 to 9999 |
| time-*, local-timestamp-*, timestamp-nanos | the number as it is, with its unit in the comment |
| uuid, duration | text; struct of months, days and millis |
| any other logical type | what it annotates |

A lake has no time of day, and a local timestamp needs a table feature that not every reader has:
the number loses nothing. A record that contains itself is columns for `recursion_depth` levels and
JSON text below; a record without columns is JSON text as well.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.avro_columns import lake_array
from distributary.decode.avro_defaults import columns_with_defaults
from distributary.decode.avro_engine import (
    Engine,
    EngineRefusedError,
    engine_supports,
    has_engine,
)
from distributary.decode.avro_payload import plan_payload
from distributary.decode.avro_reader import Reader, expansion_of
from distributary.decode.avro_shape import levels
from distributary.decode.avro_wire import StoppedAtError
from distributary.decode.base import DecodeLimits
from distributary.decode.expansion import Expansion
from distributary.decode.gather import Gathered, Positions, small_enough
from distributary.model.decoded import Decoded
from distributary.model.table import Column
from distributary.registry.avro_defaults import zigzag

MAX_LEVELS = 100
"""Of records, arrays and maps below the top; beyond it a payload is refused whatever the limit."""

_FEW = 64
"""When so few are left of an array that the engine refuses, they are decoded one by one."""
_BYTES_AT_ONCE = 256 * 1024 * 1024
_ENDLESS = b"\xff" * 9
"""In every way to write the lowest long, which the engine takes for a block of no items."""


class AvroDecoder:
    """Decodes the payloads of one schema, or of one branch of a union of records."""

    def __init__(self, body: bytes, message: str, limits: DecodeLimits) -> None:
        self._limits = limits
        self._payload = plan_payload(body, message, recursion_depth=limits.recursion_depth)
        self._columns = columns_with_defaults(self._payload)
        self._most_levels = 1 + min(limits.max_depth, MAX_LEVELS)
        self._expansion = expansion_of(self._payload, most_levels=self._most_levels)
        self._engine = self._fitting_engine()

    @property
    def columns(self) -> tuple[Column, ...]:
        """The lake columns of the schema, in its order."""
        return self._columns

    @property
    def expansion(self) -> Expansion:
        """How large payloads become."""
        return self._expansion

    def decode(self, payloads: pa.BinaryArray) -> Decoded:
        """Decode an array without nulls; what cannot be read is in `failed`."""
        array = payloads if payloads.type == pa.binary() else payloads.cast(pa.binary())
        gathered = Gathered(pa.schema(list(self._payload.row.type)), len(array))
        array, positions = small_enough(array, self._limits.max_payload_bytes, gathered)
        array, positions = self._expansion.small_enough(
            array, positions, self._limits.max_decoded_bytes, gathered
        )
        if self._limits.raw_bytes and self._payload.bytes_at_the_top:
            array = _counted(array)
        if self._engine is None:
            self._carefully(array, positions, gathered)
        else:
            self._quickly(self._engine, array, positions, gathered)
        return gathered.decoded()

    def _fitting_engine(self) -> Engine | None:
        """The engine, unless the schema holds what it cannot read or must not be let loose on."""
        if not has_engine():
            return None
        payload = self._payload
        deep = levels(payload.row) + payload.listed > self._most_levels
        endless = payload.listed and payload.row.weightless
        if deep or endless or not engine_supports(payload.row):
            return None
        return Engine(payload.row, listed=payload.listed, branch=payload.branch is not None)

    def _quickly(
        self, engine: Engine, array: pa.BinaryArray, positions: Positions, gathered: Gathered
    ) -> None:
        if not len(array):
            return
        if len(array) > 1 and array.nbytes > _BYTES_AT_ONCE:
            self._halves(engine, array, positions, gathered)
            return
        try:
            arrays, ended = engine.decode(array)
        except EngineRefusedError:
            if len(array) <= _FEW:
                self._carefully(array, positions, gathered)
            else:
                self._halves(engine, array, positions, gathered)
            return
        doubtful = np.flatnonzero(~ended).tolist()
        if self._payload.branch is not None:
            branches = arrays[0].to_numpy()
            doubtful += np.flatnonzero(branches != self._payload.branch).tolist()
        if self._payload.blocks:
            found = pc.find_substring(array, pattern=_ENDLESS).to_numpy()
            doubtful += np.flatnonzero(found >= 0).tolist()
        self._add(arrays[-1], doubtful, array, positions, gathered)

    def _halves(
        self, engine: Engine, array: pa.BinaryArray, positions: Positions, gathered: Gathered
    ) -> None:
        half = len(array) // 2
        for part in (slice(None, half), slice(half, None)):
            self._quickly(engine, array[part], positions[part], gathered)

    def _add(
        self,
        values: pa.Array,
        doubtful: list[int],
        array: pa.BinaryArray,
        positions: Positions,
        gathered: Gathered,
    ) -> None:
        """Take what the engine gave, and read what is doubtful again."""
        payload = self._payload
        below: list[int] = []
        if payload.listed:
            rows = lake_array(values.values, payload.row, below)
            offsets = values.offsets.to_numpy()
            doubtful += (np.searchsorted(offsets, below, side="right") - 1).tolist()
            counts = np.diff(offsets)
        else:
            rows = lake_array(values, payload.row, below)
            doubtful += below
            counts = np.ones(len(array), np.int64)
        again = np.zeros(len(array), np.bool_)
        again[doubtful] = True
        owners = np.repeat(np.arange(len(array)), counts)
        batch = pa.RecordBatch.from_struct_array(rows)
        if again.any():
            kept = ~again[owners]
            batch, owners = batch.filter(pa.array(kept)), owners[kept]
            indices = np.flatnonzero(again)
            self._carefully(array.take(pa.array(indices)), positions[indices], gathered)
        empty = int(np.count_nonzero((counts == 0) & ~again))
        gathered.add(batch, positions[owners], empty=empty)

    def _carefully(self, array: pa.BinaryArray, positions: Positions, gathered: Gathered) -> None:
        rows: list[object] = []
        owners: list[int] = []
        empty = 0
        for position, data in zip(positions.tolist(), array.to_pylist(), strict=True):
            try:
                found = self._reader.rows(data)
            except StoppedAtError as error:
                fault = error.fault()
                gathered.fail(position, fault.code, fault.reason, at_byte=fault.position)
                continue
            rows += found
            owners += [position] * len(found)
            empty += not found
        gathered.add(self._reader.batch(rows), np.array(owners, np.int64), empty=empty)

    @cached_property
    def _reader(self) -> Reader:
        return Reader(self._payload, most_levels=self._most_levels)


def _counted(array: pa.BinaryArray) -> pa.BinaryArray:
    """Bytes as Avro has them anywhere but at the top of a message."""
    return pa.array([zigzag(len(each)) + each for each in array.to_pylist()], pa.binary())
