"""The seam that every format implements."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from distributary.errors import ErrorCode
from distributary.model.deadletter import Decoded, Failure
from distributary.model.table import Column

Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Read = TypeVar("Read")


class RefusedError(Exception):
    """A payload, or a value in it, is nothing that the lake can hold; `code` says why."""

    def __init__(self, code: ErrorCode, reason: str, position: int | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.position = position


class Gathered:
    """Rows and failures of an array of payloads, as they become known."""

    def __init__(self, schema: pa.Schema, count: int) -> None:
        self._schema = schema
        self._count = count
        self._parts: list[tuple[pa.RecordBatch, Positions]] = []
        self._failures: list[Failure] = []
        self._empty = 0
        self._unknown: list[int] = []

    def add(self, batch: pa.RecordBatch, positions: Positions, *, empty: int = 0) -> None:
        """Rows, and which payloads they come from; some payloads may give no row."""
        self._parts.append((batch, positions))
        self._empty += empty

    def fail(
        self, position: int, code: ErrorCode, reason: str, *, at_byte: int | None = None
    ) -> None:
        """A payload that is no row."""
        self._failures.append(Failure(int(position), code, reason, at_byte))

    def fail_all(self, failures: Iterable[Failure], positions: Positions) -> None:
        """Failures of some payloads, and which they are."""
        for each in failures:
            self.fail(positions[each.index], each.code, each.message, at_byte=each.position)

    def refuse(
        self,
        refused: Mapping[int, RefusedError],
        payloads: pa.BinaryArray,
        positions: Positions,
    ) -> tuple[pa.BinaryArray, Positions]:
        """Payloads and their positions, less those with these indices, which have failed."""
        if not refused:
            return payloads, positions
        for index, error in refused.items():
            self.fail(positions[index], error.code, error.reason, at_byte=error.position)
        keep = np.ones(len(positions), np.bool_)
        keep[list(refused)] = False
        return payloads.filter(pa.array(keep)), positions[keep]

    def take(self, decoded: Decoded, positions: Positions) -> Positions:
        """The failures of payloads that were decoded apart; gives the positions of their rows."""
        self.fail_all(decoded.failed, positions)
        return origins(decoded, positions)

    def note_unknown(self, position: int) -> None:
        """A payload with fields that its schema does not have, and that no column is for."""
        self._unknown.append(int(position))

    def decoded(self) -> Decoded:
        """Everything, in the order of the payloads."""
        none = pa.RecordBatch.from_pylist([], schema=self._schema), np.array([], np.int64)
        parts = [part for part in self._parts if len(part[1])] or [none]
        batch, positions = parts[0]
        if len(parts) > 1:
            positions = np.concatenate([positions for _, positions in parts])
            # stable: rows of one payload keep their order
            order = np.argsort(positions, kind="stable")
            positions = positions[order]
            # as structs, because a batch without columns does not remember how many rows it has
            rows = pa.concat_arrays([batch.to_struct_array() for batch, _ in parts])
            batch = pa.RecordBatch.from_struct_array(rows.take(pa.array(order)))
        # as many rows as payloads may also be payloads without rows and payloads with several
        one_each = len(positions) == self._count and not self._empty and not self._failures
        return Decoded(
            ok=batch,
            origin=None if one_each else pa.array(positions, pa.int64()),
            failed=tuple(sorted(self._failures, key=lambda failure: failure.index)),
            empty=self._empty,
            unknown=tuple(sorted(set(self._unknown) - {f.index for f in self._failures})),
        )


def origins(decoded: Decoded, positions: Positions) -> Positions:
    """Which payloads decoded rows come from, where these are some of many."""
    kept: Positions = positions if decoded.origin is None else positions[decoded.origin.to_numpy()]
    return kept


# Arrow's arrays in numpy and Python.

_AT_ONCE = 10_000
_MOST_COMBINATIONS = 2**40


def truths(flags: pa.Array) -> Mask:
    """Flags; null is false."""
    return np.asarray(flags.fill_null(False))


def nulls(array: pa.Array) -> Mask:
    """Which elements are null."""
    return np.asarray(array.is_null())


def where(flags: pa.Array | Mask) -> list[int]:
    """The indices of flags that are set."""
    found: list[int] = np.flatnonzero(
        truths(flags) if isinstance(flags, pa.Array) else flags
    ).tolist()
    return found


def slices(texts: pa.BinaryArray, starts: Positions, ends: Positions) -> pa.BinaryArray:
    """Parts of the bytes of an array; the parts come one after the other."""
    if not len(starts):
        return texts[:0]
    offsets = np.column_stack([starts, ends]).reshape(-1).astype(np.int32)
    count = len(offsets) - 1
    buffers = [None, pa.py_buffer(offsets), texts.buffers()[2]]
    whole = pa.Array.from_buffers(pa.binary(), count, buffers, 0)
    return whole.take(pa.array(np.arange(0, count, 2)))


def iterated(array: pa.BinaryArray) -> Iterator[bytes]:
    """The bytes of each element of an array without nulls; never all of them at once."""
    for start in range(0, len(array), _AT_ONCE):
        yield from array[start : start + _AT_ONCE].to_pylist()


def offsets_of(lists: pa.Array) -> npt.NDArray[np.int32]:
    """Where the items of lists or maps begin and end, in an array that is not sliced."""
    return np.frombuffer(lists.buffers()[1], np.int32, len(lists) + 1)


def owners(offsets: npt.NDArray[np.int32], items: Sequence[int]) -> list[int]:
    """The lists that items are in."""
    # nothing to look for is the usual, and numpy would copy the offsets for it
    found: list[int] = []
    if len(items):
        found = (np.searchsorted(offsets, items, side="right") - 1).tolist()
    return found


def with_repeated_keys(maps: pa.Array, keys: pa.Array) -> list[int]:
    """Maps in which a key occurs again: the last entry counts."""
    lengths = np.diff(offsets_of(maps))
    if len(lengths) == 0 or lengths.max() < 2:
        return []
    encoded = keys.dictionary_encode()
    size = len(encoded.dictionary)
    owner = np.repeat(np.arange(len(maps)), lengths)
    places = np.sort(owner * size + encoded.indices.to_numpy())
    again: list[int] = np.unique(places[1:][places[1:] == places[:-1]] // size).tolist()
    return again


def coded(array: pa.Array) -> tuple[Positions, int]:
    """The number of each value, null as well, and how many different ones there are."""
    encoded = pc.dictionary_encode(array, null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)


def combined(columns: Iterable[tuple[Positions, int]], count: int) -> tuple[Positions, list[int]]:
    """The number of each row's combination of numbers, as `coded` gives them; a row of each."""
    codes, size = np.zeros(count, np.int64), 1
    for numbers, more in columns:
        if size * more > _MOST_COMBINATIONS:
            # small again: there are no more than rows
            codes, size = coded(pa.array(codes))
        codes, size = codes * more + numbers, size * more
    codes, size = coded(pa.array(codes))
    rows = np.zeros(size, np.int64)
    rows[codes] = np.arange(count)
    return codes, rows.tolist()


def small_enough(
    array: pa.BinaryArray, limit: int, gathered: Gathered
) -> tuple[pa.BinaryArray, Positions]:
    """The payloads of at most so many bytes; the others have failed."""
    positions = np.arange(len(array), dtype=np.int64)
    if array.nbytes <= limit:
        return array, positions
    lengths = pc.binary_length(array).to_numpy()
    refused = {}
    for index in where(lengths > limit):
        reason = f"the payload has {lengths[index]} bytes, the limit is {limit}"
        refused[index] = RefusedError(ErrorCode.PAYLOAD_TOO_LARGE, reason)
    return gathered.refuse(refused, array, positions)


def json_number(number: float, *, single: bool = False) -> float | str:
    """A number as JSON has it; what JSON has no number for is a text."""
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    if not single:
        return number
    # the fewest digits that give the same 32 bits: 0.1, not 0.10000000149011612
    candidates = (float(f"{number:.{digits}g}") for digits in (6, 7, 8, 9))
    return next((c for c in candidates if np.float32(c) == number), number)


def printable_lines(text: str) -> str:
    """A text for human eyes, in which everything but line breaks is printable."""
    return "".join(c if c == "\n" or c.isprintable() else ascii(c)[1:-1] for c in text)


# How large payloads become as columns, told before any of them is decoded: an item of a list may
# take one byte of a payload, and as a row a thousand bytes of memory. A schema tells how bad it can
# be for each byte; the few payloads to which that matters are counted, item by item.

SLICE_BYTES = 256 * 1024 * 1024
"""What is decoded at once becomes about so many bytes at most."""
TEXT = 16
"""Bytes that a text takes beside its characters."""
JSON_GROWTH = 6
"""Bytes that a byte can become in JSON text, where it has to be escaped."""
_VALUE = 8
"""Bytes of any other value: parsers have a pointer or a word for each, whatever columns need."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """What payloads of one schema become."""

    row: int
    """Bytes of the columns of one payload without any items."""
    factor: int
    """The most bytes that a byte of a payload becomes."""
    measure: Callable[[bytes, int], int]
    """The bytes of one payload; above a limit, any number that is above it. What is no JSON at all
    need not be counted, and may be refused as its decoder would."""

    def most(self, payloads: pa.BinaryArray) -> int:
        """The most bytes that payloads become together."""
        return self.row * len(payloads) + self.factor * int(payloads.nbytes)

    def slices(self, payloads: pa.BinaryArray, *, limit: int) -> Iterator[slice]:
        """Parts to decode one after the other, where each payload is below a limit."""
        if len(payloads) < 2 or self.most(payloads) <= SLICE_BYTES:
            yield slice(0, len(payloads))
            return
        sizes = self._most_each(payloads)
        ends = np.cumsum(np.minimum(sizes, limit))
        start, before = 0, 0
        while start < len(payloads):
            stop = max(start + 1, int(np.searchsorted(ends, before + SLICE_BYTES, side="right")))
            yield slice(start, stop)
            start, before = stop, int(ends[stop - 1])

    def small_enough(
        self, payloads: pa.BinaryArray, positions: Positions, limit: int, gathered: Gathered
    ) -> tuple[pa.BinaryArray, Positions]:
        """The payloads that become at most so many bytes; the others have failed."""
        if self.row + self.factor * payloads.nbytes <= limit:
            return payloads, positions
        refused: dict[int, RefusedError] = {}
        for index in where(self._most_each(payloads) > limit):
            try:
                size = self.measure(payloads[index].as_py(), limit)
            except RefusedError as error:
                refused[index] = error.with_traceback(None)
                continue
            if size > limit:
                most = f"limits.max_decoded_bytes is {limit}"
                reason = f"it would become {size} bytes of columns or more; {most}"
                refused[index] = RefusedError(ErrorCode.PAYLOAD_EXPANDS, reason)
        return gathered.refuse(refused, payloads, positions)

    def _most_each(self, payloads: pa.BinaryArray) -> Positions:
        lengths = pc.binary_length(payloads).to_numpy().astype(np.int64)
        most: Positions = self.row + self.factor * lengths
        return most


def width(type_: pa.DataType) -> int:
    """Bytes of a value of a type, also of one that is null, without items and characters."""
    if kinds.is_struct(type_):
        return _VALUE + sum(width(field.type) for field in type_)
    if kinds.is_string(type_) or kinds.is_binary(type_) or kinds.is_decimal(type_):
        return TEXT
    return _VALUE


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """What a decoder refuses, so that one record cannot hurt the others."""

    max_payload_bytes: int = 16 * 1024 * 1024
    max_decoded_bytes: int = 128 * 1024 * 1024
    """Of the columns that one payload becomes, estimated before it is decoded."""
    max_depth: int = 100
    """Nesting of messages in one payload, as the official runtimes limit it."""
    recursion_depth: int = 3
    """How often a message may contain itself as columns; what lies deeper is kept as JSON text."""
    drop_unknown_fields: bool = False
    """Protobuf: fields that the schema does not have are left out, and only counted."""
    raw_bytes: bool = False
    """Avro: a payload that is bytes at the top comes as it is, without its length before it."""


class HasColumns(Protocol):
    """What is known of a decoder by those who only want to know where its columns go."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The lake columns that this writer schema gives, in the schema's order."""


class Decoder(HasColumns, Protocol):
    """Decodes payloads of one writer schema. Built once per schema and process, then reused."""

    @property
    def expansion(self) -> Expansion:
        """How large payloads become; what is decoded at once should be one of its slices."""

    def decode(self, payloads: pa.BinaryArray) -> Decoded:
        """Decode an array without nulls. Never raises for what a payload contains."""


# Two speeds: an engine takes a whole array or refuses all of it, and does not say because of which
# payload. What it refuses is halved until few are left. Those, and what is doubtful in its answers,
# are read one by one, by a reader that decides what is a row.

_FEW = 64
"""When so few are left of an array that an engine refuses, they are read one by one."""


def attempt(engine: Callable[[], Read]) -> Read | None:
    """What an engine answers, or None where it refuses; a lack of memory is no refusal."""
    try:
        return engine()
    except MemoryError:
        raise
    except Exception:
        return None
    except BaseException as error:
        # a panic of an engine is not an Exception, so that `except Exception` lets it pass
        if type(error).__name__ != "PanicException":
            raise
        return None


def by_halves(
    array: pa.Array,
    read: Callable[[pa.Array], Read | None],
    *,
    most_bytes: int = SLICE_BYTES,
    patience: int | None = None,
    few: int = _FEW,
) -> Iterator[tuple[slice, Read | None]]:
    """The parts of an array in their order, with what was read of each; None where it was refused.

    What has more than `most_bytes` is halved without asking, what has only `few` elements is not
    halved. After `patience` parts in a row that stay refused, all the rest counts as refused:
    trying on would cost more than it could save.
    """
    waiting = [slice(0, len(array))] if len(array) else []
    refusals = 0
    while waiting:
        part = waiting.pop()
        some, count = array[part], part.stop - part.start
        large = count > 1 and some.nbytes > most_bytes
        tried = not large and (patience is None or refusals < patience)
        found = read(some) if tried else None
        if found is None and (large or (tried and count > few)):
            half = part.start + count // 2
            waiting += [slice(half, part.stop), slice(part.start, half)]
            continue
        refusals = refusals + 1 if found is None else 0
        yield part, found


@dataclass(frozen=True, slots=True)
class Quick:
    """What an engine made of an array of payloads."""

    rows: pa.RecordBatch
    doubtful: Sequence[int] = ()
    """Payloads that have to be read again."""
    failed: Sequence[Failure] = ()
    counts: Positions | None = None
    """The rows of each payload; None for one each."""


class TwoSpeedDecoder(ABC):
    """Decodes arrays with an engine where there is one, and the rest one by one."""

    _engine: Any
    _patience: int | None = None
    _few = _FEW

    def __init__(
        self,
        columns: tuple[Column, ...],
        schema: pa.Schema,
        expansion: Expansion,
        limits: DecodeLimits,
    ) -> None:
        self.columns, self._schema = columns, schema
        self.expansion, self._limits = expansion, limits

    def decode(self, payloads: pa.BinaryArray, *, accepted: bool = False) -> Decoded:
        """Decode an array without nulls; what cannot be a row is in `failed`.

        `accepted` says that the payloads were found to be of this schema already.
        """
        array = payloads if payloads.type == pa.binary() else payloads.cast(pa.binary())
        gathered = Gathered(self._schema, len(array))
        array, positions = small_enough(array, self._limits.max_payload_bytes, gathered)
        array, positions = self.expansion.small_enough(
            array, positions, self._limits.max_decoded_bytes, gathered
        )
        if not accepted:
            array, positions = self._admit(array, positions, gathered)
        self._decode(array, positions, gathered)
        return gathered.decoded()

    def _admit(
        self, array: pa.BinaryArray, positions: Positions, gathered: Gathered
    ) -> tuple[pa.BinaryArray, Positions]:
        """Payloads as an engine takes them, less those that are no rows for certain."""
        return array, positions

    @abstractmethod
    def _quickly(self, array: pa.BinaryArray) -> Quick | None:
        """What the engine makes of an array; None where it refuses it."""

    @abstractmethod
    def _carefully(self, array: pa.BinaryArray, positions: Positions, gathered: Gathered) -> None:
        """Read payloads that the engine refuses or is not sure about."""

    def _decode(self, array: pa.BinaryArray, positions: Positions, gathered: Gathered) -> None:
        patience = 0 if self._engine is None else self._patience
        for part, quick in by_halves(array, self._quickly, patience=patience, few=self._few):
            self._add(quick, array[part], positions[part], gathered)

    def _add(
        self, quick: Quick | None, array: pa.BinaryArray, positions: Positions, gathered: Gathered
    ) -> None:
        """Use what the engine gave, and read what is refused or doubtful."""
        if quick is None:
            self._carefully(array, positions, gathered)
            return
        rows, counts, unused = quick.rows, quick.counts, np.zeros(len(array), np.bool_)
        unused[[*quick.doubtful, *(each.index for each in quick.failed)]] = True
        owners = np.arange(len(array))
        if counts is not None:
            owners = np.repeat(owners, counts)
        if unused.any():
            kept = ~unused[owners]
            rows, owners = rows.filter(pa.array(kept)), owners[kept]
        empty = 0 if counts is None else int(np.count_nonzero((counts == 0) & ~unused))
        gathered.add(rows, positions[owners], empty=empty)
        gathered.fail_all(quick.failed, positions)
        if len(quick.doubtful):
            again = np.unique(quick.doubtful)
            self._carefully(array.take(pa.array(again)), positions[again], gathered)


class RowByRowDecoder(TwoSpeedDecoder):
    """Reads what its engine does not take one by one, row after row."""

    _row_type: pa.DataType

    @abstractmethod
    def _read(self, data: bytes) -> list[Any]:
        """The rows of one payload; `RefusedError` if it has none."""

    def _carefully(self, array: pa.BinaryArray, positions: Positions, gathered: Gathered) -> None:
        rows: list[Any] = []
        owners: list[int] = []
        empty = 0
        for position, data in zip(positions.tolist(), iterated(array), strict=True):
            try:
                found = self._read(data)
            except RefusedError as error:
                gathered.fail(position, error.code, error.reason, at_byte=error.position)
                continue
            rows += found
            owners += [position] * len(found)
            empty += not found
        batch = pa.RecordBatch.from_struct_array(pa.array(rows, self._row_type))
        gathered.add(batch, np.array(owners, np.int64), empty=empty)
