"""The facts that tasks report to the driver: one class for each kind, sent as a JSON document.

Accounting rests on these facts, so a kind that the driver does not know is an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from distributary.errors import AccountingError
from distributary.model.change import ChangeFacts
from distributary.model.manifest import StagedFile, compact, parsed
from distributary.model.record import LastRecords
from distributary.model.routing import RouteKey
from distributary.model.rules.expectation import RuleCount


@dataclass(frozen=True, slots=True)
class RecordsRead:
    """The records that a task of hop one has read."""

    records: int
    skipped: int
    """Records that became neither rows nor dead letters."""
    bytes: int
    """The bytes of the records' values."""
    newest_us: int
    """The time of the newest record in microseconds since 1970; 0 if no record has a time."""
    last: LastRecords
    """The last record of each partition, if the order asks for it."""
    heartbeats: Mapping[str, int]
    """The time of the newest heartbeat by topic, in microseconds since 1970."""

    def body(self) -> Any:
        """Return the fact as JSON has it."""
        last = [[*partition, *record] for partition, record in self.last.items()]
        return [self.records, self.skipped, self.bytes, self.newest_us, last, self.heartbeats]

    @classmethod
    def of(cls, body: Any) -> RecordsRead:
        """Build the fact from its body."""
        records, skipped, size, newest_us, last, heartbeats = body
        last_records = {(topic, number): (offset, crc) for topic, number, offset, crc in last}
        return cls(records, skipped, size, newest_us, last_records, heartbeats)


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The rows of a run that have one key."""

    key: RouteKey
    start: int
    count: int
    first_offset: int
    newest: int = 0
    """For change data, the time of the newest of these records in microseconds since 1970."""


@dataclass(frozen=True, slots=True)
class SortedRun:
    """A file of records sorted by key."""

    path: str
    ranges: tuple[KeyRange, ...]

    def body(self) -> Any:
        """Return the fact as JSON has it."""
        ranges = [[r.key, r.start, r.count, r.first_offset, r.newest] for r in self.ranges]
        return [self.path, ranges]

    @classmethod
    def of(cls, body: Any) -> SortedRun:
        """Build the fact from its body."""
        path, ranges = body
        return cls(path, tuple(KeyRange(route_key(*key), *more) for key, *more in ranges))


def route_key(
    claim: str, schema_id: int, message_index: Sequence[int] = (), *more: Any, **others: Any
) -> RouteKey:
    """Build a key from values that came through JSON or Arrow."""
    # Arrow and JSON give a list instead of a tuple.
    return RouteKey(claim, schema_id, tuple(message_index), *more, **others)


@dataclass(frozen=True, slots=True)
class LettersFile:
    """A file of dead letters that waits for hop two."""

    path: str

    def body(self) -> Any:
        """Return the fact as JSON has it."""
        return self.path

    @classmethod
    def of(cls, body: Any) -> LettersFile:
        """Build the fact from its body."""
        return cls(body)


@dataclass(frozen=True, slots=True)
class ShapeSeen:
    """The shape of records without a schema: a profile, or the JSON Schema of change events."""

    claim: str
    shape: Mapping[str, Any]

    def body(self) -> Any:
        """Return the fact as JSON has it."""
        # as text of its own: bounds of integers are numbers of more than 64 bits
        return [self.claim, compact(self.shape)]

    @classmethod
    def of(cls, body: Any) -> ShapeSeen:
        """Build the fact from its body."""
        claim, shape = body
        return cls(claim, json.loads(shape))


@dataclass(frozen=True, slots=True)
class SchemaCarried:
    """The text of a schema that records without a route have carried."""

    text: str

    def body(self) -> Any:
        """Return the fact as JSON has it."""
        return self.text

    @classmethod
    def of(cls, body: Any) -> SchemaCarried:
        """Build the fact from its body."""
        return cls(body)


@dataclass(frozen=True, slots=True)
class EventsCounted:
    """The change events that were written to a log."""

    log: str
    events: ChangeFacts

    def body(self) -> Any:
        """Return the fact as JSON has it."""
        return [self.log, self.events.as_dict()]

    @classmethod
    def of(cls, body: Any) -> EventsCounted:
        """Build the fact from its body."""
        return cls(body[0], ChangeFacts.of(body[1]) or ChangeFacts())


@dataclass(frozen=True, slots=True)
class RulesCounted:
    """The rows of a table that rules have checked."""

    table: str
    counts: tuple[RuleCount, ...]

    def body(self) -> Any:
        """Return the fact as JSON has it."""
        return [self.table, [count.as_dict() for count in self.counts]]

    @classmethod
    def of(cls, body: Any) -> RulesCounted:
        """Build the fact from its body."""
        return cls(body[0], tuple(map(RuleCount.of, body[1])))


@dataclass(frozen=True, slots=True)
class RecordsSkipped:
    """Records that hop two did not write, because their table has them or by policy."""

    count: int

    def body(self) -> Any:
        """Return the fact as JSON has it."""
        return self.count

    @classmethod
    def of(cls, body: Any) -> RecordsSkipped:
        """Build the fact from its body."""
        return cls(body)


@dataclass(frozen=True, slots=True)
class RecordsFiltered:
    """Records that a condition of `shape` keeps out of a table."""

    table: str
    count: int

    def body(self) -> Any:
        """Return the fact as JSON has it."""
        return [self.table, self.count]

    @classmethod
    def of(cls, body: Any) -> RecordsFiltered:
        """Build the fact from its body."""
        return cls(*body)


@dataclass(frozen=True, slots=True)
class RecordsErased:
    """Records with an erased value: topic, partition, offset, time in microseconds since 1970."""

    records: tuple[tuple[str, int, int, int | None], ...]

    def body(self) -> Any:
        """Return the fact as JSON has it."""
        return self.records

    @classmethod
    def of(cls, body: Any) -> RecordsErased:
        """Build the fact from its body."""
        return cls(tuple((topic, part, offset, time) for topic, part, offset, time in body))


@dataclass(frozen=True, slots=True)
class DeadLettersCounted:
    """Dead letters by error code."""

    counts: Mapping[str, int]

    def body(self) -> Any:
        """Return the fact as JSON has it."""
        return self.counts

    @classmethod
    def of(cls, body: Any) -> DeadLettersCounted:
        """Build the fact from its body."""
        return cls(body)


@dataclass(frozen=True, slots=True)
class FileStaged:
    """A file that was written for a table, and the records in it."""

    table: str
    records: int
    file: StagedFile | None
    """None for records that gave no row."""

    def body(self) -> Any:
        """Return the fact as JSON has it."""
        return [self.table, self.records, self.file.as_dict() if self.file else None]

    @classmethod
    def of(cls, body: Any) -> FileStaged:
        """Build the fact from its body."""
        table, records, file = body
        if file is None:
            return cls(table, records, None)
        file["schema_ids"] = tuple(file["schema_ids"])
        return cls(table, records, StagedFile(**file))


Fact = (
    RecordsRead
    | SortedRun
    | LettersFile
    | ShapeSeen
    | SchemaCarried
    | EventsCounted
    | RulesCounted
    | RecordsSkipped
    | RecordsFiltered
    | RecordsErased
    | DeadLettersCounted
    | FileStaged
)
_KINDS: Mapping[str, type[Fact]] = {kind.__name__: kind for kind in get_args(Fact)}


def encode(fact: Fact) -> tuple[str, str]:
    """Return the kind of a fact and its JSON document."""
    return type(fact).__name__, compact(fact.body())


def decode(kind: str, document: str) -> Fact:
    """Return the fact of a document. Raises AccountingError for an unknown kind."""
    if kind not in _KINDS:
        raise AccountingError(
            "a task reported a fact of an unknown kind",
            evidence=f"{kind!r}; known are {', '.join(sorted(_KINDS))}",
            next_step="run the driver and the workers with one version of Distributary",
        )
    return _KINDS[kind].of(parsed(document))
