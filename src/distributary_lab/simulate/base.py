"""The base of all simulators: messages, sinks, counts of what was sent, and plans."""

from __future__ import annotations

import time
import uuid
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from enum import StrEnum
from itertools import islice, repeat
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, create_table_with_add_actions

from distributary.delta.parquet import statistics
from distributary.errors import ConfigError, ErrorCode, LakeUnavailableError
from distributary.model.record import TIMESTAMP, Format, WriterSchema
from distributary.registry.base import References
from distributary_lab.simulate.dice import seed_for

MESSAGES = pa.schema(
    [
        pa.field("type", pa.string()),
        pa.field("value", pa.binary()),
        pa.field("produced_at", TIMESTAMP),
        pa.field("key", pa.binary()),
    ]
)
"""The columns of messages, for sinks that take them in batches."""


def message_batch(
    types: Sequence[Any], values: Sequence[Any], millis: pa.Array, keys: Sequence[Any]
) -> pa.RecordBatch:
    """Build a batch of messages; times are milliseconds since 1970."""
    times = millis.cast(pa.int64()).cast(pa.timestamp("ms", "UTC"))
    columns = {"type": types, "value": values, "produced_at": times, "key": keys}
    return pa.RecordBatch.from_pydict(columns, schema=MESSAGES)


class SinkMessage(NamedTuple):
    """One message for a sink; a tuple, because there are millions of them."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp: int
    """Time of sending in milliseconds since 1970, UTC."""
    type: str | None
    """The readable name of its type; None for a record that is bad on purpose."""


class SchemaSink(Protocol):
    """A registry in which schemas can be registered."""

    def set_compatibility(self, subject: str, level: str) -> object:
        """Set the level of a subject, which need not exist yet."""
        ...

    def register(
        self,
        subject: str,
        text: str,
        *,
        format: Format = Format.PROTOBUF,
        references: References = (),
    ) -> int:
        """Register a schema (the same text twice is one version) and return its id."""
        ...


class ReferencedRegistry(SchemaSink, Protocol):
    """A registry that also returns the subjects and versions of a schema, for references to it."""

    def by_id(self, schema_id: int) -> WriterSchema:
        """Return the schema with this id, with its subjects and versions."""
        ...


class Sink(Protocol):
    """A destination of messages."""

    def write(self, messages: Iterable[SinkMessage]) -> None:
        """Write all messages, in order."""
        ...


@runtime_checkable
class ArrowSink(Protocol):
    """A sink that also takes Arrow batches."""

    def write_arrow(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Write all batches of schema `MESSAGES`, in order."""
        ...


# Counts of sent messages, which tests compare with what arrived.


@dataclass(frozen=True, slots=True)
class Sent:
    """Counts of the messages of a stream; positions count from 0 over the whole stream."""

    messages: int = 0
    good: int = 0
    bad: int = 0
    framed: int = 0
    """Number of good messages with the registry's header."""
    late: int = 0
    """Number of good messages of an old version that were sent at the end."""
    rows: int = 0
    """Number of rows in the good messages: one each, unless messages are lists."""
    first_position: int = 0
    last_position: int = -1
    first_time: int | None = None
    """Time of the first message in milliseconds since 1970; None when nothing was sent."""
    last_time: int | None = None
    bad_by_code: dict[str, int] = field(default_factory=dict)
    """Number of records that must be dead-lettered, by error code."""
    first_bad: dict[str, int] = field(default_factory=dict)
    """Position of the first bad record of each error code."""
    per_type: dict[str, dict[int, int]] = field(default_factory=dict)
    """Number of good messages by type and version."""
    schema_ids: dict[str, dict[int, int]] = field(default_factory=dict)
    """Schema ids by type and version."""
    columns: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Fields of the newest schema of each type, in order."""
    type_changes: dict[str, str] = field(default_factory=dict)
    """The field that changed its type, by type of record."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values; versions become text, as JSON requires of keys."""
        plain = asdict(self)
        for name in ("per_type", "schema_ids"):
            plain[name] = {
                kind: {str(version): n for version, n in versions.items()}
                for kind, versions in plain[name].items()
            }
        plain["columns"] = {kind: list(columns) for kind, columns in self.columns.items()}
        return plain

    @classmethod
    def total(cls, parts: Iterable[Sent]) -> Sent:
        """Return the sum of several rounds, given in the order in which they were sent."""
        filled = [part for part in parts if part.messages]
        if not filled:
            return cls()
        counted = ("messages", "good", "bad", "framed", "late", "rows")
        per_type: dict[str, Counter[int]] = {}
        schema_ids: dict[str, dict[int, int]] = {}
        for part in filled:
            for kind, versions in part.per_type.items():
                per_type.setdefault(kind, Counter()).update(versions)
            for kind, ids in part.schema_ids.items():
                schema_ids.setdefault(kind, {}).update(ids)
        return replace(
            filled[-1],
            **{name: sum(getattr(part, name) for part in filled) for name in counted},
            first_position=filled[0].first_position,
            first_time=filled[0].first_time,
            bad_by_code=dict(sum((Counter(part.bad_by_code) for part in filled), Counter())),
            per_type={kind: dict(versions) for kind, versions in per_type.items()},
            schema_ids=schema_ids,
            # where two rounds have the same entry, take the first bad record and the newest columns
            first_bad=dict(ChainMap(*(part.first_bad for part in filled))),
            columns=dict(ChainMap(*(part.columns for part in reversed(filled)))),
            type_changes=dict(ChainMap(*(part.type_changes for part in reversed(filled)))),
        )


class Round:
    """The messages of one version, counted while they are made.

    Read it once, by `messages` or by `arrow`.
    """

    def __init__(
        self,
        batches: Callable[[Round], Iterator[pa.RecordBatch]],
        *,
        number: int,
        version: int,
        first_position: int,
        schema_ids: dict[str, dict[int, int]],
        columns: dict[str, tuple[str, ...]],
        type_changes: dict[str, str] | None = None,
    ) -> None:
        self.number = number
        """Number of the round, from 0."""
        self.version = version
        self.first_position = first_position
        self.framed = 0
        self.late = 0
        self.extra_rows = 0
        """Rows beyond one for each good message; negative where lists are empty."""
        self.good: Counter[tuple[str, int]] = Counter()
        """Number of good messages by type and version."""
        self.bad: Counter[str] = Counter()
        self._first_bad: dict[str, int] = {}
        self._times: tuple[int, int] | None = None
        self._schema_ids = {kind: dict(ids) for kind, ids in schema_ids.items()}
        self._columns = columns
        self._type_changes = type_changes or {}
        self._batches = batches(self)

    def add_bad(self, code: str, *, position: int) -> None:
        """Count a bad message."""
        self.bad[str(code)] += 1
        self._first_bad.setdefault(str(code), position)

    def add_times(self, first: int, last: int) -> None:
        """Record the times of the first and the last of some messages."""
        self._times = (self._times[0] if self._times else first, last)

    def messages(self) -> Iterator[SinkMessage]:
        """Yield the messages one by one."""
        for batch in self._batches:
            millis = batch["produced_at"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
            yield from map(
                SinkMessage,
                batch["key"].to_pylist(),
                batch["value"].to_pylist(),
                repeat(()),
                millis.to_pylist(),
                batch["type"].to_pylist(),
            )

    def arrow(self) -> Iterator[pa.RecordBatch]:
        """Return the messages as batches of schema `MESSAGES`."""
        return self._batches

    def sent(self) -> Sent:
        """Return the counts of the messages made so far."""
        good, bad = self.good.total(), self.bad.total()
        per_type: dict[str, dict[int, int]] = {}
        for (kind, version), n in self.good.items():
            per_type.setdefault(kind, {})[version] = n
        first_time, last_time = self._times or (None, None)
        return Sent(
            messages=good + bad,
            good=good,
            bad=bad,
            framed=self.framed,
            late=self.late,
            rows=good + self.extra_rows,
            first_position=self.first_position,
            last_position=self.first_position + good + bad - 1,
            first_time=first_time,
            last_time=last_time,
            bad_by_code=dict(self.bad),
            first_bad=dict(self._first_bad),
            per_type=per_type,
            schema_ids=self._schema_ids,
            columns=self._columns,
            type_changes=self._type_changes,
        )


# Kinds of bad records, each with the error code of its dead letter.


class BadKind(StrEnum):
    """The defect of a bad record; `*_name` concerns the name of its type."""

    code: ErrorCode
    """The error code with which the record must be dead-lettered."""

    def __new__(cls, name: str, code: ErrorCode) -> Self:
        """Create a kind with its name and error code."""
        kind = str.__new__(cls, name)
        kind._value_, kind.code = name, code
        return kind

    NOT_A_WRAPPER = "not_a_wrapper", ErrorCode.NOT_AN_ENVELOPE
    UNKNOWN_SCHEMA_ID = "unknown_schema_id", ErrorCode.UNKNOWN_SCHEMA_ID
    BROKEN_PAYLOAD = "broken_payload", ErrorCode.PAYLOAD_MISMATCH
    NULL_VALUE = "null_value", ErrorCode.NULL_VALUE
    EMPTY_VALUE = "empty_value", ErrorCode.EMPTY_VALUE
    NO_TYPE = "no_type", ErrorCode.MISSING_TYPE
    NO_SCHEMA_ID = "no_schema_id", ErrorCode.MISSING_SCHEMA_ID
    WRONG_SUBJECT = "wrong_subject", ErrorCode.WRONG_SUBJECT
    PATH_NAME = "path_name", ErrorCode.TYPE_NAME_UNSAFE_PATH
    SQL_NAME = "sql_name", ErrorCode.TYPE_NAME_UNSAFE_TEXT
    MARKUP_NAME = "markup_name", ErrorCode.TYPE_NAME_UNSAFE_MARKUP
    RESERVED_NAME = "reserved_name", ErrorCode.TYPE_NAME_RESERVED
    EMOJI_NAME = "emoji_name", ErrorCode.TYPE_NAME_UNSAFE_SYMBOL
    LONG_NAME = "long_name", ErrorCode.TYPE_NAME_TOO_LONG
    EMPTY_NAME = "empty_name", ErrorCode.TYPE_NAME_EMPTY
    OVERSIZE_PAYLOAD = "oversize_payload", ErrorCode.PAYLOAD_TOO_LARGE


HOSTILE_NAMES = {
    BadKind.PATH_NAME: "../../etc/passwd",
    BadKind.SQL_NAME: "'; DROP TABLE x; --",
    BadKind.MARKUP_NAME: "<script>alert(1)</script>",
    BadKind.RESERVED_NAME: "CON",
    BadKind.EMOJI_NAME: "\N{VIDEO GAME}",
    BadKind.LONG_NAME: "a" * 10_000,
    BadKind.EMPTY_NAME: "",
}

DEFAULT_KINDS = tuple(kind for kind in BadKind if kind is not BadKind.OVERSIZE_PAYLOAD)
"""The kinds in the order of their rotation; oversize payloads only on request."""


def parse_kinds(names: Iterable[str]) -> tuple[BadKind, ...]:
    """Parse the names of kinds, in their order; raise ConfigError for an unknown one."""
    return chosen(names, BadKind, what="kind of bad record", where="bad kinds")


# Delivery of rounds to a sink, at full speed or at a given rate.

BEATS_PER_SECOND = 2
"""Writes per second of a paced stream: each write to a table is a commit."""


def deliver(
    rounds: Iterable[Round],
    *,
    sink: Sink,
    rate: float | None = None,
    on_round: Callable[[Round], None] | None = None,
) -> Sent:
    """Write all rounds, each in one write or, with a rate in messages per second, in several."""
    parts = []
    for round_ in rounds:
        if rate is not None:
            for beat in paced(round_.messages(), rate=rate):
                sink.write(beat)
        elif isinstance(sink, ArrowSink):
            sink.write_arrow(round_.arrow())
        else:
            sink.write(round_.messages())
        parts.append(round_.sent())
        if on_round is not None:
            on_round(round_)
    return Sent.total(parts)


def paced(
    messages: Iterable[SinkMessage],
    *,
    rate: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[list[SinkMessage]]:
    """Yield messages in small lists, each when it is due."""
    if not rate > 0:
        raise ConfigError(
            "the rate must be above 0 messages per second",
            where="rate",
            evidence=repr(rate),
            next_step="set a rate above 0, or leave it out to send at full speed",
        )
    size = max(1, round(rate / BEATS_PER_SECOND))
    start, handed_out = clock(), 0
    source = iter(messages)
    while beat := list(islice(source, size)):
        ahead = start + handed_out / rate - clock()
        if ahead > 0:
            sleep(ahead)
        yield beat
        handed_out += len(beat)


# A sink that writes a Delta table without Spark, which `source: delta` reads.

_ROWS_PER_BATCH = 10_000


class DeltaSink:
    """A sink that appends messages to a Delta table in a local folder; each write is one commit.

    Rows keep their order: file after file in the commit, row after row in the file. The table has
    no column for headers, and none for types when `type_column` is None.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        records_per_file: int = 50_000,
        value_column: str = "wrapper",
        type_column: str | None = "game_name",
    ) -> None:
        if "://" in str(path) or records_per_file < 1:
            raise ConfigError(
                "a simulated table needs a local folder and at least one record per file",
                where="path, records_per_file",
                # an address may hold a password, so only its scheme is shown
                evidence=f"{str(path).partition('://')[0][:200]}, {records_per_file}",
                next_step="give the path of a folder on this machine",
            )
        self._path = Path(path)
        self._records_per_file = records_per_file
        self._keep = [f.name for f in MESSAGES if f.name != "type" or type_column is not None]
        names = {"type": type_column, "value": value_column}
        self.schema = pa.schema(
            [MESSAGES.field(n).with_name(names.get(n) or n) for n in self._keep]
        )

    def write(self, messages: Iterable[SinkMessage]) -> None:
        """Append messages."""
        self.write_arrow(_batches(messages))

    def write_arrow(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Append batches of schema `MESSAGES`."""
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            exists = DeltaTable.is_deltatable(str(self._path))
            if exists:
                self._check(DeltaTable(self._path))
            files = enumerate(_files(batches, self._records_per_file))
            adds = [self._write_file(table.select(self._keep), number) for number, table in files]
            if adds:
                self._commit(adds, exists=exists)
        except (OSError, DeltaError) as error:
            raise LakeUnavailableError(
                "the simulated messages could not be written",
                where=str(self._path),
                evidence=f"{type(error).__name__}: {error}",
                next_step="check that the folder can be written and that the disk is not full",
            ) from error

    def _check(self, table: DeltaTable) -> None:
        # compared in Delta's types: Arrow has several layouts for the same type
        columns = [(f.name, f.type) for f in table.schema().fields]
        if columns != [(f.name, f.type) for f in Schema.from_arrow(self.schema).fields]:
            raise ConfigError(
                "the folder holds a Delta table with other columns",
                where=str(self._path),
                evidence=f"columns {', '.join(name for name, _ in columns)}",
                next_step=f"choose another folder, or a table of {', '.join(self.schema.names)}",
            )

    def _write_file(self, table: pa.Table, number: int) -> AddAction:
        table = table.rename_columns(self.schema.names)
        name = f"part-{number:05d}-{uuid.uuid4()}.snappy.parquet"
        pq.write_table(table, self._path / name)
        return AddAction(
            path=name,
            size=(self._path / name).stat().st_size,
            partition_values={},
            modification_time=int(time.time() * 1000),
            data_change=True,
            stats=statistics(table),
        )

    def _commit(self, adds: list[AddAction], *, exists: bool) -> None:
        schema = Schema.from_arrow(self.schema)
        if exists:
            table = DeltaTable(self._path)
            table.create_write_transaction([*adds], mode="append", schema=schema)
        else:
            create_table_with_add_actions(str(self._path), schema, adds)


def _batches(messages: Iterable[SinkMessage]) -> Iterator[pa.RecordBatch]:
    source = iter(messages)
    while some := list(islice(source, _ROWS_PER_BATCH)):
        yield message_batch(
            [m.type for m in some],
            [m.value for m in some],
            pa.array([m.timestamp for m in some]),
            [m.key for m in some],
        )


def _files(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Divide the batches into tables of `rows` rows each, the last one with the rest."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        rest = batch
        while sum(map(len, waiting)) + len(rest) >= rows:
            fits = rows - sum(map(len, waiting))
            yield pa.Table.from_batches([*waiting, rest.slice(0, fits)], MESSAGES)
            waiting, rest = [], rest.slice(fits)
        if len(rest):
            waiting.append(rest)
    if waiting:
        yield pa.Table.from_batches(waiting, MESSAGES)


_FIRST_START = datetime(2024, 1, 1, tzinfo=UTC)
_MINUTES_OF_A_YEAR = 365 * 24 * 60

Choice = TypeVar("Choice", bound=StrEnum)


class SimulationPlan:
    """The parameters of a simulator; invalid ones raise ConfigError."""

    refusal: ClassVar[str]
    """The message of the error."""

    def _need(self, holds: bool, name: str, wanted: str) -> None:
        if not holds:
            raise ConfigError(
                self.refusal,
                where=name,
                evidence=repr(getattr(self, name))[:80],
                next_step=f"use {wanted}",
            )


def some_start(seed: int) -> datetime:
    """Return a minute of 2024 that depends on the seed."""
    return _FIRST_START + timedelta(minutes=seed_for(seed, "start") % _MINUTES_OF_A_YEAR)


def chosen(
    names: Iterable[str], kinds: type[Choice], *, what: str, where: str
) -> tuple[Choice, ...]:
    """Parse names of an enum, in their order; raise ConfigError for an unknown one."""
    values = []
    for name in names:
        if name not in set(kinds):
            near = get_close_matches(name, list(kinds), n=1)
            raise ConfigError(
                f"there is no such {what}",
                where=where,
                evidence=repr(name)[:80],
                next_step=f"did you mean {near[0]}?" if near else f"one of: {', '.join(kinds)}",
            )
        values.append(kinds(name))
    return tuple(values)
