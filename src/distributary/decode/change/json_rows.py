"""Decodes change events that are JSON objects with one or several rows in them.

A format reads each event into rows (`EventRows`). Their columns come from a schema that was
inferred from the events, or from types that the writer gives for each column.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np
import orjson
import pyarrow as pa

from distributary.decode.base import (
    DecodeLimits,
    Expansion,
    Gathered,
    RefusedError,
)
from distributary.decode.change.base import Keys, column_names, content_hashes
from distributary.decode.change.column_types import ColumnType, column_type
from distributary.decode.change.order.place import Place, sequence
from distributary.decode.json.decoder import JsonDecoder
from distributary.decode.json.json_text import parse, render
from distributary.errors import DecodeError, ErrorCode
from distributary.model.change import CHANGE_COLUMNS, ChangeSettings
from distributary.model.deadletter import Decoded
from distributary.model.names import printable
from distributary.model.record import TIMESTAMP
from distributary.model.table import Column, Origin
from distributary.registry.compile.json_documents import Documents

NOWHERE = (0, 0, 0)
_CHANGE_BYTES = 256
"""Bytes of a row beside the columns of its table."""
_VALUE_BYTES = 16
_TEXTS = pa.list_(pa.string())


class EventRecord(NamedTuple):
    """The record that an event came in."""

    topic: str
    """Of files: the path below the source's root."""
    key: bytes | None
    partition: int
    offset: int
    time_us: int


@dataclass(frozen=True, slots=True)
class RowChange:
    """A change of one row, under the source's names."""

    op: str
    """`insert`, `update`, `delete` or `read`."""
    row: Mapping[str, Any]
    key: tuple[str, ...]
    """The columns of the key; empty for a table without one."""
    place: tuple[int, int, int] = NOWHERE
    """The position in the source's log; zeros where the event gives none."""
    half: int = 1
    """0 for the row that a change of key removes."""
    old: Mapping[str, Any] | None = None
    """Values before an update, of columns that it has changed."""
    has_own_place: bool = False
    """Whether no other change has this position."""


@dataclass(frozen=True, slots=True)
class EventRows:
    """The rows of an event, with its time and envelope."""

    changes: Sequence[RowChange]
    time_us: int
    """The time at which the source made the change."""
    envelope: Mapping[str, Any]
    """The event without its rows."""
    content: Mapping[str, Any] | None = None
    """The content of the change without its position; None: the whole event."""


ReadEvent = Callable[[Any, EventRecord], EventRows]
"""Reads a parsed event. Raises RefusedError for an event that changes no rows."""


def with_old_key(change: RowChange) -> Sequence[RowChange]:
    """Return the changes of an update: two where it gave its row another key."""
    old = change.old or {}
    if not any(name in old for name in change.key):
        return (change,)
    return replace(change, op="delete", row={**change.row, **old}, half=0), change


def parsed(payloads: pa.BinaryArray) -> Iterator[Any]:
    """Parse records for a first look; None for what is no JSON, which is reported elsewhere."""
    for data in payloads.to_pylist():
        try:
            yield orjson.loads(data)
        except orjson.JSONDecodeError:
            try:
                yield json.loads(data)
            except (ValueError, RecursionError):
                yield None


def text_in(event: Mapping[str, Any], name: str) -> str:
    """Return a member that is text; empty for any other."""
    value = event.get(name)
    return value if isinstance(value, str) else ""


def refuse(code: ErrorCode, reason: str) -> NoReturn:
    """Raise RefusedError."""
    raise RefusedError(code, reason)


class Reading(NamedTuple):
    """Columns of some rows, and the values that could not be read."""

    columns: list[pa.Array]
    lost: dict[int, dict[str, Any]]
    """The values that a column cannot hold, by row and column."""
    failed: dict[int, tuple[ErrorCode, str]]
    """Rows that do not fit the schema at all."""


class RowReader(Protocol):
    """Reads rows as the columns of their table."""

    names: Mapping[str, str]
    """The columns' names in the log, by their names in the source."""
    columns: tuple[Column, ...]

    def read(self, rows: Sequence[Mapping[str, Any]]) -> Reading:
        """Read rows; members that are null may be left out."""


class InferredRows:
    """Reads rows by a JSON Schema that was inferred from the events."""

    def __init__(self, body: bytes, image: str, limits: DecodeLimits) -> None:
        """Take the columns from the member `image` of the events."""
        try:
            events = Documents.of(body).content
            shapes = events["properties"][image]["properties"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise unusable(type(error).__name__) from error
        # a column that was always null does not exist yet
        known = {name: _flat(shape) for name, shape in shapes.items() if not _is_void(shape)}
        self.names: Mapping[str, str] = column_names(known)
        if not known:
            raise unusable("its rows have no columns")
        closed = {"type": "object", "properties": known, "additionalProperties": False}
        whole = {"type": "object", "properties": {"row": closed}}
        document = Documents(whole, draft=7, references={})
        self._inner = JsonDecoder(document.body, "value", limits)
        fields = self._inner.columns[0].type
        self.columns = tuple(
            _column(name, self.names[name], each.type)
            for name, each in zip(known, fields, strict=True)
        )

    def read(self, rows: Sequence[Mapping[str, Any]]) -> Reading:
        """Read rows; one with a value that its column cannot hold has failed."""
        filled = ({name: v for name, v in row.items() if v is not None} for row in rows)
        texts = [f'{{"row":{render(row)}}}'.encode("utf-8", "replace") for row in filled]
        decoded = self._inner.decode(pa.array(texts, pa.binary()))
        failed = {each.index: (each.code, each.message) for each in decoded.failed}
        origin = decoded.origin
        places = np.arange(len(rows)) if origin is None else origin.to_numpy()
        at = np.full(len(rows), -1)
        at[places] = np.arange(len(places))
        indices = pa.array(at, mask=at < 0)
        return Reading([c.take(indices) for c in decoded.ok.column(0).flatten()], {}, failed)


class TypedRows:
    """Reads rows by the type that the writer gives for each column."""

    def __init__(self, body: bytes, without: Collection[str] = ()) -> None:
        """Read the text of `carried_types`, but for columns that are not the table's."""
        try:
            types = json.loads(body)["columns"]
            self._types: dict[str, ColumnType] = {
                name: column_type(word) for name, word in types.items() if name not in without
            }
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise unusable(type(error).__name__) from error
        self.names: Mapping[str, str] = column_names(self._types)
        self.columns = tuple(
            _column(name, self.names[name], each.type, each.note)
            for name, each in self._types.items()
        )

    def read(self, rows: Sequence[Mapping[str, Any]]) -> Reading:
        """Read rows; a value that its column cannot hold is null there, and kept beside the row."""
        columns: list[pa.Array] = []
        lost: dict[int, dict[str, Any]] = {}
        for name, type_ in self._types.items():
            array, missing = type_.array([row.get(name) for row in rows])
            columns.append(array)
            for at, value in missing.items():
                lost.setdefault(at, {})[self.names[name]] = value
        failed: dict[int, tuple[ErrorCode, str]] = {}
        for at, row in enumerate(rows):
            unknown = [n for n, v in row.items() if n not in self._types and v is not None]
            if unknown:
                reason = f"no type is given for its column {printable(unknown[0])}"
                failed[at] = (ErrorCode.PAYLOAD_MISMATCH, reason)
        return Reading(columns, lost, failed)


def carried_types(words: Mapping[str, str]) -> bytes:
    """Return the schema of rows whose columns have these types, as records carry it."""
    return json.dumps({"columns": dict(words)}, separators=(",", ":")).encode()


def unusable(evidence: str) -> DecodeError:
    """Return the error for a schema from which no decoder can be made."""
    return DecodeError(
        "the schema is not one of change events",
        where="schema of change events",
        evidence=evidence,
        next_step="look at the events of the source",
    )


def _column(name: str, column: str, type_: pa.DataType, note: str = "") -> Column:
    comment = "; ".join(filter(None, (f"column {printable(name)}", note)))
    return Column(column, type_, comment, origin=Origin(name))


def _is_void(shape: Any) -> bool:
    return isinstance(shape, dict) and shape.get("type") == "null"


def _flat(shape: Any) -> Any:
    """Return the shape of a column; what has members of its own becomes JSON text."""
    types = shape.get("type") if isinstance(shape, dict) else None
    return {} if types == "object" or (types and "object" in types) else shape


class _Row(NamedTuple):
    """A row of the log, before its columns are built."""

    position: int
    """The position of the payload that has the row."""
    number: int
    """The number of the row among the rows of that payload."""
    event: EventRows
    change: RowChange


class RowsDecoder:
    """Decodes the events of one table that were written with one schema."""

    def __init__(
        self,
        reader: RowReader,
        read: ReadEvent,
        settings: ChangeSettings,
        limits: DecodeLimits,
    ) -> None:
        self._reader, self._read = reader, read
        self._settings, self._limits = settings, limits
        self.columns = CHANGE_COLUMNS + reader.columns
        self._schema = pa.schema([pa.field(c.name, c.type) for c in self.columns])
        self._row_bytes = _CHANGE_BYTES + _VALUE_BYTES * len(reader.columns)
        # each brace in a payload may begin a row
        self.expansion = Expansion(
            row=self._row_bytes,
            factor=self._row_bytes,
            measure=lambda data, _: (1 + data.count(b"{")) * self._row_bytes + 4 * len(data),
        )

    def decode(self, payloads: pa.BinaryArray, raw: pa.Table) -> Decoded:
        """Decode events without nulls; what cannot be rows is in `failed`."""
        array = payloads if payloads.type == pa.binary() else payloads.cast(pa.binary())
        gathered = Gathered(self._schema, len(array))
        rows: list[_Row] = []
        silent = 0
        for position, (data, message) in enumerate(
            zip(array.to_pylist(), _messages(raw), strict=True)
        ):
            try:
                event = self._event(data, message)
            except RefusedError as error:
                gathered.fail(position, error.code, error.reason, at_byte=error.position)
                continue
            silent += not event.changes
            rows += [_Row(position, n, event, each) for n, each in enumerate(event.changes)]
        if silent:
            none = pa.RecordBatch.from_pylist([], schema=self._schema)
            gathered.add(none, np.array([], np.int64), empty=silent)
        if rows:
            self._add(rows, array, raw, gathered)
        return gathered.decoded()

    def _event(self, data: bytes, message: EventRecord) -> EventRows:
        event = self._read(parse(data, max_depth=self._limits.max_depth), message)
        for change in event.changes:
            missing = [n for n in change.key if n not in change.row or n not in self._reader.names]
            if missing:
                reason = f"column {printable(missing[0])} of its key is not in its row"
                raise RefusedError(ErrorCode.KEY_NOT_IN_PAYLOAD, reason)
        count = len(event.changes)
        # each row of an event repeats its envelope
        size = count * (self._row_bytes + len(render(event.envelope))) if count > 2 else 0
        if size > self._limits.max_decoded_bytes:
            most = f"limits.max_decoded_bytes is {self._limits.max_decoded_bytes}"
            reason = f"its rows would become {size} bytes of columns or more; {most}"
            raise RefusedError(ErrorCode.PAYLOAD_EXPANDS, reason)
        return event

    def _add(
        self, rows: list[_Row], array: pa.BinaryArray, raw: pa.Table, gathered: Gathered
    ) -> None:
        reading = self._reader.read([row.change.row for row in rows])
        failed = dict(reading.failed)
        for at, lost in reading.lost.items():
            key = {self._reader.names[name] for name in rows[at].change.key}
            if named := key & lost.keys():
                reason = f"column {min(named)} of its key cannot be read by its type"
                failed.setdefault(at, (ErrorCode.PAYLOAD_MISMATCH, reason))
        refused: dict[int, tuple[ErrorCode, str]] = {}
        for at, why in sorted(failed.items()):
            # if one row of a record fails, the log has none of its rows
            refused.setdefault(rows[at].position, why)
        for position, (code, reason) in refused.items():
            gathered.fail(position, code, reason)
        kept = np.array([n for n, row in enumerate(rows) if row.position not in refused], np.int64)
        positions = np.array([row.position for row in rows], np.int64)[kept]
        batch = self._batch(rows, reading, array, raw).take(pa.array(kept))
        gathered.add(batch, positions)

    def _batch(
        self, rows: list[_Row], reading: Reading, array: pa.BinaryArray, raw: pa.Table
    ) -> pa.RecordBatch:
        changes = [row.change for row in rows]
        reads = np.array([each.op == "read" for each in changes], np.bool_)
        a, b, c = np.array([each.place for each in changes], np.int64).T
        place = Place(a, b, c, np.zeros(len(rows), np.bool_))
        before_cdc = self._settings.backfill == "before_cdc"
        seq = sequence(
            place,
            phase=(~reads if before_cdc else np.zeros(len(rows), np.bool_)),
            ts=np.zeros(len(rows), np.int64),
            # without positions, the order of arrival decides
            half=np.array([each.half or each.place == NOWHERE for each in changes], np.int64),
            tie=pa.array(self._ties(rows, raw), pa.string()),
        )
        return pa.RecordBatch.from_arrays(
            [
                pa.array([each.op for each in changes], pa.string()),
                pa.array([each.op == "delete" for each in changes], pa.bool_()),
                self._keys(changes).array(),
                seq,
                pa.array([row.event.time_us for row in rows], pa.int64()).cast(TIMESTAMP),
                pa.array(reads),
                pa.array(list(map(_id, rows)), pa.string()),
                content_hashes(pa.array(_contents(rows, array), pa.binary())),
                pa.array(list(map(self._unchanged, changes)), _TEXTS),
                pa.array(self._envelopes(rows, reading.lost), pa.string()),
                *reading.columns,
            ],
            schema=self._schema,
        )

    def _keys(self, changes: Iterable[RowChange]) -> Keys:
        codes: dict[tuple[str, ...], int] = {}
        numbers = [codes.setdefault(each.key, len(codes)) for each in changes]
        names = tuple(tuple(self._reader.names[n] for n in key) for key in codes)
        return Keys(np.array(numbers, np.int64), names)

    def _unchanged(self, change: RowChange) -> list[str] | None:
        """Return the columns of the log that an update leaves out."""
        if change.op != "update" or len(change.row) >= len(self._reader.names):
            return None
        names = self._reader.names.items()
        return [column for name, column in names if name not in change.row] or None

    def _old_key(self, change: RowChange) -> dict[str, Any]:
        """Return the key that an update took from its row, for the envelope."""
        before = {**change.row, **(change.old or {})}
        if change.op != "update" or not any(name in (change.old or ()) for name in change.key):
            return {}
        return {"old_key": {self._reader.names[name]: before[name] for name in change.key}}

    def _ties(self, rows: Sequence[_Row], raw: pa.Table) -> list[str]:
        """Return texts that sort as the events arrived."""
        offsets = raw.column("offset").to_pylist()
        partitions = raw.column("partition").to_pylist()
        ties: list[str] = []
        for row in rows:
            offset, partition = offsets[row.position], partitions[row.position]
            if self._settings.from_files:
                # files are numbered in the order of their paths; the offset is a row of a file
                tie = f"{partition:010}.{offset:019}"
            else:
                tie = f"{offset:019}.{partition:06}"
            ties.append(f"{tie}.{row.number:06}" if row.number else tie)
        return ties

    def _envelopes(self, rows: Sequence[_Row], lost: Mapping[int, Mapping[str, Any]]) -> list[str]:
        texts: list[str] = []
        at = 0
        for _, group in groupby(rows, key=lambda row: row.position):
            common = ""
            for row in group:
                common = common or _text(row.event.envelope)
                more: dict[str, Any] = {}
                if row.change.old is not None:
                    more["old"] = row.change.old
                    more |= self._old_key(row.change)
                if at in lost:
                    more["rescued"] = lost[at]
                texts.append(_text({**row.event.envelope, **more}) if more else common)
                at += 1
        return texts


def _contents(rows: Sequence[_Row], array: pa.BinaryArray) -> Iterator[bytes]:
    """Yield what each row's hash is made of."""
    for row in rows:
        if row.event.content is None:
            yield array[row.position].as_py()
        else:
            yield render(row.event.content).encode("utf-8", "replace")


def _text(envelope: Mapping[str, Any]) -> str:
    return render(envelope).encode("utf-8", "replace").decode()


def _id(row: _Row) -> str:
    """Return the id of a change with a position of its own, as text that sorts as positions do."""
    if not row.change.has_own_place:
        return ""
    return "-".join(f"{number:019}" for number in (*row.change.place, row.number))


def _messages(raw: pa.Table) -> Iterable[EventRecord]:
    names = ("topic", "key", "partition", "offset")
    columns = [raw.column(name).to_pylist() for name in names]
    times = raw.column("timestamp").cast(pa.int64()).fill_null(0).to_pylist()
    return map(EventRecord._make, zip(*columns, times, strict=True))
