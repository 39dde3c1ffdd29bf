"""Events with the messages that they came in, and which of them can be rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from distributary.decode.datastream_values import Mask
from distributary.decode.debezium_keys import KeyReader, Keys, fill
from distributary.decode.debezium_shape import DELETE, MESSAGE, TRUNCATE, UNKNOWN, Parts
from distributary.decode.gather import Gathered, Positions
from distributary.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Events:
    """Decoded events of one array."""

    parts: Parts
    positions: Positions
    """Which payloads they are."""
    payloads: pa.BinaryArray
    """All of the array."""
    raw: pa.Table
    """Their messages, all of them."""

    def __len__(self) -> int:
        return len(self.positions)

    def message(self, column: str) -> pa.Array:
        """A column of the messages, one value for each event."""
        chunks = self.raw.column(column).chunks
        whole = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
        return self._own(whole)

    def own_payloads(self) -> pa.BinaryArray:
        """The payloads of the events."""
        return self._own(self.payloads)

    def _own(self, array: pa.Array) -> pa.Array:
        # positions go up: as many as there are means all of them
        whole = len(self.positions) == len(array)
        return array if whole else array.take(pa.array(self.positions))

    def only(self, kept: Mask) -> Events:
        """Those that a mask selects."""
        return replace(self, parts=self.parts.only(kept), positions=self.positions[kept])

    def fail(self, bad: Mask, code: ErrorCode, reason: str, gathered: Gathered) -> None:
        """Some of them are no rows."""
        for position in self.positions[bad].tolist():
            gathered.fail(position, code, reason)


def sound(events: Events, schema: pa.Schema, gathered: Gathered) -> Events:
    """Those that tell of a row; the others have failed, or say nothing."""
    codes = events.parts.codes
    unknown, silent = codes == UNKNOWN, codes == MESSAGE
    empty = events.parts.absent & (codes != DELETE) & ~unknown & ~silent
    events.fail(unknown, ErrorCode.NOT_AN_ENVELOPE, "it does not say what happened", gathered)
    events.fail(empty, ErrorCode.NO_PAYLOAD, "it has no row", gathered)
    if silent.any():
        say_nothing(int(np.count_nonzero(silent)), schema, gathered)
    kept = ~(unknown | silent | empty)
    return events if kept.all() else events.only(kept)


def say_nothing(count: int, schema: pa.Schema, gathered: Gathered) -> None:
    """So many payloads are fine, and no rows."""
    none = pa.RecordBatch.from_pylist([], schema=schema)
    gathered.add(none, np.array([], np.int64), empty=count)


def keyed(
    events: Events, reader: KeyReader, columns: Mapping[str, str], gathered: Gathered
) -> tuple[Events, Keys]:
    """Those whose key is among their columns."""
    keys = reader.read(events.message("key"))
    truncates = events.parts.codes == TRUNCATE
    if truncates.any():
        keys = keys.without(truncates)
    unreadable, foreign = keys.unreadable(), keys.foreign(columns)
    code = ErrorCode.KEY_NOT_IN_PAYLOAD
    events.fail(unreadable, code, "the key of its message names no columns", gathered)
    events.fail(foreign, code, "a column of its key is not in its row", gathered)
    kept = ~(unreadable | foreign)
    return (events, keys) if kept.all() else (events.only(kept), keys.only(kept))


def with_keys_for_rows(
    events: Events, keys: Keys, reader: KeyReader, names: Sequence[str], gathered: Gathered
) -> tuple[Events, Keys]:
    """Deletes without an image of the row have what the key of their message holds."""
    missing = np.flatnonzero(events.parts.absent & (events.parts.codes == DELETE))
    if not len(missing):
        return events, keys
    held = reader.values(events.message("key").take(pa.array(missing)))
    row, bad = list(events.parts.row), np.zeros(len(events), np.bool_)
    bad[[int(at) for at, each in zip(missing, held, strict=True) if not each]] = True
    for index, name in enumerate(names):
        told = [(int(at), e[name]) for at, e in zip(missing, held, strict=True) if e and name in e]
        if told:
            row[index] = _filled(row[index], told, bad)
    events = replace(events, parts=replace(events.parts, row=tuple(row)))
    reason = "it has neither a row nor a key that could be one"
    events.fail(bad, ErrorCode.NO_PAYLOAD, reason, gathered)
    return (events.only(~bad), keys.only(~bad)) if bad.any() else (events, keys)


def _filled(column: pa.Array, told: Sequence[tuple[int, Any]], bad: Mask) -> pa.Array:
    rows = [at for at, _ in told]
    filled = fill(column, rows, [value for _, value in told])
    if filled is None:
        bad[rows] = True
    return column if filled is None else filled
