"""The protocol that every payload format implements, and the helpers that all decoders share."""

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
    """A payload that cannot become rows of the lake; `code` and `reason` say why."""

    def __init__(self, code: ErrorCode, reason: str, position: int | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.position = position


class Gathered:
    """The rows and failures of one array of payloads, collected while it is decoded."""

    def __init__(self, schema: pa.Schema, count: int) -> None:
        self._schema = schema
        self._count = count
        self._parts: list[tuple[pa.RecordBatch, Positions]] = []
        self._failures: list[Failure] = []
        self._empty = 0
        self._unknown: list[int] = []

    def add(self, batch: pa.RecordBatch, positions: Positions, *, empty: int = 0) -> None:
        """Add decoded rows, the payload position of each row, and how many payloads gave no row."""
        self._parts.append((batch, positions))
        self._empty += empty

    def fail(
        self, position: int, code: ErrorCode, reason: str, *, at_byte: int | None = None
    ) -> None:
        """Add the failure of one payload."""
        self._failures.append(Failure(int(position), code, reason, at_byte))

    def fail_all(self, failures: Iterable[Failure], positions: Positions) -> None:
        """Add failures whose indices refer to `positions`."""
        for failure in failures:
            self.fail(
                positions[failure.index], failure.code, failure.message, at_byte=failure.position
            )

    def refuse(
        self,
        refused: Mapping[int, RefusedError],
        payloads: pa.BinaryArray,
        positions: Positions,
    ) -> tuple[pa.BinaryArray, Positions]:
        """Add a failure for each refused index; return the other payloads and their positions."""
        if not refused:
            return payloads, positions
        for index, error in refused.items():
            self.fail(positions[index], error.code, error.reason, at_byte=error.position)
        keep = np.ones(len(positions), np.bool_)
        keep[list(refused)] = False
        return payloads.filter(pa.array(keep)), positions[keep]

    def take(self, decoded: Decoded, positions: Positions) -> Positions:
        """Add the failures of separately decoded payloads; return the positions of their rows."""
        self.fail_all(decoded.failed, positions)
        return origins(decoded, positions)

    def note_unknown(self, position: int) -> None:
        """Note that a payload has fields which neither its schema nor any column has."""
        self._unknown.append(int(position))

    def decoded(self) -> Decoded:
        """Return all rows and failures in the order of the payloads."""
        none = pa.RecordBatch.from_pylist([], schema=self._schema), np.array([], np.int64)
        parts = [part for part in self._parts if len(part[1])] or [none]
        batch, positions = parts[0]
        if len(parts) > 1:
            positions = np.concatenate([positions for _, positions in parts])
            # a stable sort keeps the order of the rows within one payload
            order = np.argsort(positions, kind="stable")
            positions = positions[order]
            # concatenated as structs, because a batch without columns loses its number of rows
            rows = pa.concat_arrays([batch.to_struct_array() for batch, _ in parts])
            batch = pa.RecordBatch.from_struct_array(rows.take(pa.array(order)))
        # Equal counts do not prove one row for each payload: some payloads may have no row and
        # others several.
        one_each = len(positions) == self._count and not self._empty and not self._failures
        return Decoded(
            ok=batch,
            origin=None if one_each else pa.array(positions, pa.int64()),
            failed=tuple(sorted(self._failures, key=lambda failure: failure.index)),
            empty=self._empty,
            unknown=tuple(sorted(set(self._unknown) - {f.index for f in self._failures})),
        )


def origins(decoded: Decoded, positions: Positions) -> Positions:
    """Return the position of each decoded row's payload, given the positions of all payloads."""
    kept: Positions = positions if decoded.origin is None else positions[decoded.origin.to_numpy()]
    return kept


# Helpers that convert Arrow arrays to numpy and Python.

_AT_ONCE = 10_000
_MOST_COMBINATIONS = 2**40


def truths(flags: pa.Array) -> Mask:
    """Return flags as a numpy mask in which null is false."""
    return np.asarray(flags.fill_null(False))


def nulls(array: pa.Array) -> Mask:
    """Return a mask of the elements that are null."""
    return np.asarray(array.is_null())


def where(flags: pa.Array | Mask) -> list[int]:
    """Return the indices of the flags that are set."""
    indices: list[int] = np.flatnonzero(
        truths(flags) if isinstance(flags, pa.Array) else flags
    ).tolist()
    return indices


def slices(texts: pa.BinaryArray, starts: Positions, ends: Positions) -> pa.BinaryArray:
    """Return the byte ranges from `starts` to `ends` of an array; the ranges must be in order."""
    if not len(starts):
        return texts[:0]
    offsets = np.column_stack([starts, ends]).reshape(-1).astype(np.int32)
    count = len(offsets) - 1
    buffers = [None, pa.py_buffer(offsets), texts.buffers()[2]]
    whole = pa.Array.from_buffers(pa.binary(), count, buffers, 0)
    return whole.take(pa.array(np.arange(0, count, 2)))


def iterated(array: pa.BinaryArray) -> Iterator[bytes]:
    """Iterate over the bytes of an array without nulls, converting a few thousand at a time."""
    for start in range(0, len(array), _AT_ONCE):
        yield from array[start : start + _AT_ONCE].to_pylist()


def json_texts_of(
    payloads: pa.BinaryArray, json_text: Callable[[bytes], bytes]
) -> tuple[pa.BinaryArray, list[Failure]]:
    """Convert payloads to JSON texts one by one; return the texts and the failures.

    The text of a payload for which `json_text` raises RefusedError is null.
    """
    texts: list[bytes | None] = []
    failures: list[Failure] = []
    for index, payload in enumerate(iterated(payloads)):
        try:
            texts.append(json_text(payload))
        except RefusedError as refused:
            texts.append(None)
            failures.append(Failure(index, refused.code, refused.reason, refused.position))
    return pa.array(texts, pa.binary()), failures


def offsets_of(lists: pa.Array) -> npt.NDArray[np.int32]:
    """Return the offsets of the items of lists or maps; the array must not be sliced."""
    return np.frombuffer(lists.buffers()[1], np.int32, len(lists) + 1)


def owners(offsets: npt.NDArray[np.int32], items: Sequence[int]) -> list[int]:
    """Return, for each item, the index of the list that holds it."""
    # Usually there are no items, and numpy would copy the offsets even then.
    lists: list[int] = []
    if len(items):
        lists = (np.searchsorted(offsets, items, side="right") - 1).tolist()
    return lists


def with_repeated_keys(maps: pa.Array, keys: pa.Array) -> list[int]:
    """Return the indices of the maps in which a key occurs more than once."""
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
    """Number the distinct values, null included; return each element's number and their count."""
    encoded = pc.dictionary_encode(array, null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)


def combined(columns: Iterable[tuple[Positions, int]], count: int) -> tuple[Positions, list[int]]:
    """Number the combinations of coded columns; return each row's number and one row of each.

    `columns` are pairs of numbers and their count, as `coded` returns them.
    """
    codes, size = np.zeros(count, np.int64), 1
    for numbers, more in columns:
        if size * more > _MOST_COMBINATIONS:
            # Number the combinations anew, which keeps them below the number of rows.
            codes, size = coded(pa.array(codes))
        codes, size = codes * more + numbers, size * more
    codes, size = coded(pa.array(codes))
    rows = np.zeros(size, np.int64)
    rows[codes] = np.arange(count)
    return codes, rows.tolist()


def small_enough(
    array: pa.BinaryArray, limit: int, gathered: Gathered
) -> tuple[pa.BinaryArray, Positions]:
    """Return the payloads of at most `limit` bytes; add a failure for each larger one."""
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
    """Return a number as JSON writes it, and NaN and the infinities as texts."""
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    if not single:
        return number
    # the fewest digits that give the same 32 bits: 0.1, not 0.10000000149011612
    candidates = (float(f"{number:.{digits}g}") for digits in (6, 7, 8, 9))
    return next((c for c in candidates if np.float32(c) == number), number)


# Estimates of the memory that payloads need as columns, made before they are decoded. An item of a
# list may take one byte in a payload and a thousand bytes as a row. The schema gives the worst case
# for each byte; only payloads that could exceed a limit are measured item by item.

SLICE_BYTES = 256 * 1024 * 1024
"""The estimated bytes of columns that are decoded at once."""
TEXT = 16
"""Bytes that a text takes in addition to its characters."""
JSON_GROWTH = 6
"""The largest number of bytes that one byte becomes in JSON text, where it has to be escaped."""
_VALUE = 8
"""Bytes of any other value: parsers keep a pointer or a word for each, whatever its column
needs."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """An estimate of the memory that payloads of one schema need as columns."""

    row: int
    """Bytes of the columns of one payload without any list items."""
    factor: int
    """The largest number of bytes of columns that one byte of a payload becomes."""
    measure: Callable[[bytes, int], int]
    """Returns the bytes that one payload becomes, or any number above the given limit. It may raise
    `RefusedError` as the decoder would, and need not measure a payload that is no JSON."""

    def most(self, payloads: pa.BinaryArray) -> int:
        """Return an upper bound of the bytes that payloads become together."""
        return self.row * len(payloads) + self.factor * int(payloads.nbytes)

    def slices(self, payloads: pa.BinaryArray, *, limit: int) -> Iterator[slice]:
        """Yield slices that fit in memory, counting at most `limit` bytes for each payload."""
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
        """Return the payloads that become at most `limit` bytes; add failures for the others."""
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
                reason = f"the payload would become {size} bytes of columns or more; {most}"
                refused[index] = RefusedError(ErrorCode.PAYLOAD_EXPANDS, reason)
        return gathered.refuse(refused, payloads, positions)

    def _most_each(self, payloads: pa.BinaryArray) -> Positions:
        lengths = pc.binary_length(payloads).to_numpy().astype(np.int64)
        most: Positions = self.row + self.factor * lengths
        return most


def width(type_: pa.DataType) -> int:
    """Return the bytes of one value of a type, null or not, without its items and characters."""
    if kinds.is_struct(type_):
        return _VALUE + sum(width(field.type) for field in type_)
    if kinds.is_string(type_) or kinds.is_binary(type_) or kinds.is_decimal(type_):
        return TEXT
    return _VALUE


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """The limits of a decoder, so that one record cannot harm the others."""

    max_payload_bytes: int = 16 * 1024 * 1024
    max_decoded_bytes: int = 128 * 1024 * 1024
    """The largest number of bytes of columns that one payload may become, estimated before it is
    decoded."""
    max_depth: int = 100
    """The deepest nesting of messages in one payload, limited as in the official runtimes."""
    recursion_depth: int = 3
    """The number of levels of a self-containing message that become columns; the rest is JSON
    text."""
    drop_unknown_fields: bool = False
    """Protobuf: drop fields that the schema does not have, and only count the records."""
    raw_bytes: bool = False
    """Avro: read a payload of type `bytes` as it is, without a length before it."""


class HasColumns(Protocol):
    """A decoder, seen by code that needs only its columns."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """Return the lake columns of this writer schema, in the schema's order."""


class Decoder(HasColumns, Protocol):
    """A decoder of payloads of one writer schema, built once per schema and process."""

    @property
    def expansion(self) -> Expansion:
        """Return the estimate of memory; callers should decode one of its slices at once."""

    def decode(self, payloads: pa.BinaryArray) -> Decoded:
        """Decode an array without nulls; a bad payload becomes a failure and never raises."""


# Decoding at two speeds. An engine decodes a whole array or refuses all of it without naming the
# bad payload. A refused array is halved until few payloads are left. These, and the payloads whose
# values the engine may have misread, are read one by one by a reader that decides what is a row.

_FEW = 64
"""A refused array of at most this many payloads is read one by one."""


def attempt(engine: Callable[[], Read]) -> Read | None:
    """Run an engine; return None where it refuses or panics, and raise on a lack of memory."""
    try:
        return engine()
    except MemoryError:
        raise
    except Exception:
        return None
    except BaseException as error:
        # a panic of a Rust engine is no Exception and passes `except Exception`
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
    """Read an array in parts; yield each part with its result, or with None where it was refused.

    A part of more than `most_bytes` is halved before it is read, a refused part of `few` elements
    or less is not halved. After `patience` refused parts in a row the rest counts as refused,
    because more attempts would cost more than they could save.
    """
    parts = [slice(0, len(array))] if len(array) else []
    refusals = 0
    while parts:
        part = parts.pop()
        elements, count = array[part], part.stop - part.start
        large = count > 1 and elements.nbytes > most_bytes
        tried = not large and (patience is None or refusals < patience)
        result = read(elements) if tried else None
        if result is None and (large or (tried and count > few)):
            half = part.start + count // 2
            parts += [slice(half, part.stop), slice(part.start, half)]
            continue
        refusals = refusals + 1 if result is None else 0
        yield part, result


@dataclass(frozen=True, slots=True)
class Quick:
    """An engine's result for an array of payloads."""

    rows: pa.RecordBatch
    doubtful: Sequence[int] = ()
    """Indices of payloads that must be read again, one by one."""
    failed: Sequence[Failure] = ()
    counts: Positions | None = None
    """The number of rows of each payload; None if each has one."""


class TwoSpeedDecoder(ABC):
    """A decoder that uses an engine where it can, and reads the other payloads one by one."""

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
        """Decode an array without nulls; payloads that cannot be rows are in `failed`.

        `accepted` means that the payloads are known to match this schema.
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
        """Convert payloads to the engine's form; leave out payloads that cannot be rows."""
        return array, positions

    @abstractmethod
    def _quickly(self, array: pa.BinaryArray) -> Quick | None:
        """Decode an array with the engine; return None where it refuses."""

    @abstractmethod
    def _carefully(self, array: pa.BinaryArray, positions: Positions, gathered: Gathered) -> None:
        """Read, one by one, the payloads that the engine refused or may have misread."""

    def _decode(self, array: pa.BinaryArray, positions: Positions, gathered: Gathered) -> None:
        patience = 0 if self._engine is None else self._patience
        for part, quick in by_halves(array, self._quickly, patience=patience, few=self._few):
            self._add(quick, array[part], positions[part], gathered)

    def _add(
        self, quick: Quick | None, array: pa.BinaryArray, positions: Positions, gathered: Gathered
    ) -> None:
        """Add the engine's rows, and read the refused and doubtful payloads one by one."""
        if quick is None:
            self._carefully(array, positions, gathered)
            return
        rows, counts, unused = quick.rows, quick.counts, np.zeros(len(array), np.bool_)
        unused[[*quick.doubtful, *(failure.index for failure in quick.failed)]] = True
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
    """A decoder that reads the payloads its engine refuses one by one, row after row."""

    _row_type: pa.DataType

    @abstractmethod
    def _read(self, data: bytes) -> list[Any]:
        """Return the rows of one payload, or raise `RefusedError` if it has none."""

    def _carefully(self, array: pa.BinaryArray, positions: Positions, gathered: Gathered) -> None:
        rows: list[Any] = []
        owners: list[int] = []
        empty = 0
        for position, data in zip(positions.tolist(), iterated(array), strict=True):
            try:
                payload_rows = self._read(data)
            except RefusedError as error:
                gathered.fail(position, error.code, error.reason, at_byte=error.position)
                continue
            rows += payload_rows
            owners += [position] * len(payload_rows)
            empty += not payload_rows
        batch = pa.RecordBatch.from_struct_array(pa.array(rows, self._row_type))
        gathered.add(batch, np.array(owners, np.int64), empty=empty)
