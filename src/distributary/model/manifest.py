"""The manifest: the document that decides a batch, with the files and counts of each table."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import orjson
import pyarrow as pa

from distributary.model.cache import Cache
from distributary.model.change import ChangeFacts
from distributary.model.rules.expectation import RuleCount
from distributary.model.table import (
    STAGED,
    ChangeKind,
    Column,
    ColumnChange,
    Role,
    TablePlan,
    counts_records,
    is_below,
)

# Fast, compact JSON: a batch writes and reads thousands of documents.

# pass to `default` all types that `json` does not know
_AS_JSON = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


def compact(
    document: object, *, escaped: bool = True, default: Callable[[Any], Any] | None = None
) -> str:
    """Return the JSON text of a document without spaces, with non-ASCII characters unescaped.

    Text that is not UTF-8, such as some file names, is escaped unless `escaped` is false. `default`
    converts values that `json` cannot write.
    """
    try:
        return orjson.dumps(document, default=default, option=_AS_JSON).decode()
    except TypeError:
        # orjson refuses numbers beyond 64 bits, keys that are not text, and invalid UTF-8
        return json.dumps(document, separators=(",", ":"), default=default, ensure_ascii=escaped)


def parsed(text: str | bytes) -> Any:
    """Parse text of `compact`; whole numbers beyond 64 bits become floats."""
    try:
        return orjson.loads(text)
    except ValueError:
        return json.loads(text)


MANIFEST_FORMAT = 1

REPLAYS, READS = "replay", "reads"
"""The lanes of dead letters that are sent again, and of rows that were read from a database."""
ASIDE = (REPLAYS, READS)
"""The lanes beside the stream. What a batch of them writes is frozen in a file before."""
LANES = ("stream", *ASIDE)


@dataclass(frozen=True, slots=True)
class Mark:
    """The application and batch of a commit, stored in the table's log to detect repetitions."""

    app_id: str
    batch: int
    source_hash: str
    """Fingerprint of the batch's source ranges: a batch is skipped only if it matches."""


@dataclass(frozen=True, slots=True)
class SourceRange:
    """A range of one partition: `start` is the first offset, `end` is one past the last."""

    topic: str
    partition: int
    start: int
    end: int
    records: int
    """The number of records in the range, by the source's count (offsets may have gaps)."""


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A Parquet file in a table's folder that no commit names yet."""

    path: str
    """Path relative to the table's folder."""
    size: int
    rows: int
    stats: str = "{}"
    """Column statistics in the format of Delta."""
    partition_values: Mapping[str, str | None] = field(default_factory=dict)
    first_offset: int = -1
    last_offset: int = -1
    schema_ids: tuple[int, ...] = ()
    checksum: str | None = None
    """Checksum of the file's bytes; None in manifests of the previous version."""

    def as_dict(self) -> dict[str, Any]:
        """Return a dict for JSON; `asdict` would copy every value, for each table and batch."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class TableEntry:
    """The files and changes of one table in one batch."""

    table: TablePlan
    files: tuple[StagedFile, ...]
    records: int
    """Number of source records that became rows of this table (none, one or many each)."""
    changes: tuple[ColumnChange, ...] = ()
    """Changes of the columns in this batch; empty when rows are only appended."""
    events: ChangeFacts | None = None
    """Counts of change events, for a log and for the tables derived from it."""
    rules: tuple[RuleCount, ...] = ()
    """Results of the expectations for the rows of this batch."""
    filtered: int = 0
    """Number of source records that the conditions of `shape` keep out of this table."""

    @property
    def rows(self) -> int:
        """Return the number of rows in all staged files."""
        return sum(f.rows for f in self.files)


@dataclass(frozen=True, slots=True)
class Counts:
    """The record counts of a batch, which must add up."""

    read: int = 0
    written: int = 0
    dead_lettered: int = 0
    parked: int = 0
    skipped: int = 0
    """Records that a setting says to skip (Kafka tombstones)."""
    filtered: int = 0
    """Records that the conditions of `shape` keep out of their tables."""

    @property
    def balanced(self) -> bool:
        """Return true when the counts add up: no record is lost or counted twice."""
        placed = self.written + self.dead_lettered + self.parked
        return self.read == placed + self.skipped + self.filtered

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, n) + getattr(other, n) for n in Counts.__slots__))

    def equation(self) -> str:
        """Format the counts: `read 10,000 = written 9,997 + dead letters 3 + parked 0`."""
        skipped = f" + skipped {self.skipped:,}" if self.skipped else ""
        skipped += f" + filtered {self.filtered:,}" if self.filtered else ""
        return (
            f"read {self.read:,} = written {self.written:,} + dead letters "
            f"{self.dead_lettered:,} + parked {self.parked:,}{skipped}"
        )


@dataclass(frozen=True, slots=True)
class SchemaUse:
    """A schema that first appears in this batch, and the changes it made to a table."""

    type: str
    table: str
    schema_id: int
    label: str
    """Subject and version, such as `chess-value v3`."""
    changes: tuple[ColumnChange, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """A decided batch. A second attempt at its number publishes these files and no others."""

    pipeline: str
    life: str
    batch: int
    epoch: int
    """Number of the claim under which the manifest was written."""
    ranges: tuple[SourceRange, ...]
    tables: tuple[TableEntry, ...]
    counts: Counts
    """Counts as staged: `parked` is 0 here and is known only after publishing."""
    dead_letters: Mapping[str, int]
    """Number of dead letters by error code."""
    schemas: tuple[SchemaUse, ...]
    created_at: str
    lane: str = "stream"
    """`stream` for the source's batches, or one of `ASIDE`."""
    source_state: Mapping[str, Any] = field(default_factory=dict)
    """State that the source needs to begin the next batch."""
    source_start: Mapping[str, Any] = field(default_factory=dict)
    """State of the source at the start of the batch; empty in manifests of the previous version."""
    stage_seconds: float = 0.0
    primary_role: str = str(Role.EACH)
    """Role of the tables in which a record counts as written: it may be in several tables."""
    bytes_read: int | None = None
    """Total size of the values of all records, as read."""
    newest_us: int | None = None
    """Timestamp of the newest record, in microseconds since 1970."""
    heartbeats: Mapping[str, int] = field(default_factory=dict)
    """Time of the newest heartbeat of each Debezium connector, by topic, in microseconds since
    1970."""
    batch_us: int | None = None
    """The time of the batch, in microseconds since 1970: the same if it is staged again. None in
    manifests of the previous version."""
    erased: tuple[tuple[str, int, int, int | None], ...] = ()
    """Records with an erased value, which are in bronze alone: topic, partition, offset, time."""

    def primary(self) -> tuple[TableEntry, ...]:
        """Return the entries whose records count as written."""
        return tuple(e for e in self.tables if counts_records(e.table.role, self.primary_role))

    @property
    def app_id(self) -> str:
        """Return the application id of the marks, which names this life of the checkpoint."""
        return app_id(self.pipeline, self.life, self.lane)

    @property
    def source_hash(self) -> str:
        """Return the fingerprint of the source ranges: equal for batches with the same records."""
        return source_hash(self.ranges)

    def with_parked(self, parked: int) -> Counts:
        """Return the final counts, once the number of parked records is known."""
        return replace(self.counts, written=self.counts.written - parked, parked=parked)

    def to_json(self) -> str:
        """Return the manifest as JSON."""
        data = asdict(replace(self, tables=()))
        data["format"] = MANIFEST_FORMAT
        data["tables"] = [entry_to_dict(entry) for entry in self.tables]
        return compact(data, default=str)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Parse JSON of `to_json`."""
        data = json.loads(text)
        data.pop("format")
        data["ranges"] = tuple(SourceRange(**r) for r in data["ranges"])
        data["counts"] = Counts(**data["counts"])
        data["schemas"] = tuple(
            SchemaUse(**{**use, "changes": _changes(use["changes"])}) for use in data["schemas"]
        )
        data["erased"] = tuple((t, p, o, at) for t, p, o, at in data.get("erased", ()))
        data["tables"] = tuple(entry_from_dict(entry) for entry in data["tables"])
        return cls(**data)


def app_id(pipeline: str, life: str, lane: str = "stream") -> str:
    """Return the application id of marks: one per pipeline, life of the checkpoint, and lane."""
    return f"distributary/{pipeline}/{life}/{lane}"


def source_hash(ranges: tuple[SourceRange, ...]) -> str:
    """Return a short fingerprint of the source ranges of a batch."""
    lines = sorted(f"{r.topic}\0{r.partition}\0{r.start}\0{r.end}" for r in ranges)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _changes(items: list[dict[str, Any]]) -> tuple[ColumnChange, ...]:
    return tuple(ColumnChange(**{**item, "kind": ChangeKind(item["kind"])}) for item in items)


def entry_to_dict(entry: TableEntry) -> dict[str, Any]:
    """Return the part of the document for one table."""
    table = entry.table
    return {
        "name": table.name,
        "role": str(table.role),
        "type": table.type,
        "path": table.path,
        "exists": table.exists,
        "format": table.format,
        "partition_by": list(table.partition_by),
        "comment": table.comment,
        "columns": _TEXTS.of((table.columns,), lambda: columns_to_text(table.columns)),
        "records": entry.records,
        "changes": [asdict(change) for change in entry.changes],
        "files": [file.as_dict() for file in entry.files],
        "events": entry.events.as_dict() if entry.events else None,
        "rules": [count.as_dict() for count in entry.rules],
        "filtered": entry.filtered,
        **({"source": table.source, "aggregate": table.aggregate} if table.source else {}),
    }


def entry_from_dict(data: dict[str, Any]) -> TableEntry:
    """Build an entry from its dict; raise ValueError when a path leaves the table's folder."""
    if "/" in data["name"] or not is_below(data["name"]):
        raise ValueError("the name of a table leads out of the lake")
    table = TablePlan(
        name=data["name"],
        role=Role(data["role"]),
        type=data["type"],
        path=data["path"],
        columns=columns_from_text(data["columns"]),
        exists=data["exists"],
        partition_by=tuple(data["partition_by"]),
        comment=data["comment"],
        format=data.get("format", "delta"),
        source=data.get("source", ""),
        aggregate=data.get("aggregate", ""),
    )
    files = tuple(StagedFile(**{**f, "schema_ids": tuple(f["schema_ids"])}) for f in data["files"])
    filtered = data.get("filtered", 0)
    counts = (
        data["records"],
        filtered,
        *(number for file in files for number in (file.size, file.rows)),
    )
    words = (table.name, table.type, table.path, table.comment, table.format, table.aggregate)
    if not all(type(n) is int for n in counts) or not all(isinstance(w, str) for w in words):
        raise TypeError("a text or a number of a table's entry has another type")
    if table.source and ("/" in table.source or not is_below(table.source)):
        raise ValueError("the name of a table leads out of the lake")
    if not all(is_below(f.path) and f.path.endswith((".parquet", STAGED)) for f in files):
        raise ValueError("a staged file is not in the folder of its table")
    events = ChangeFacts.of(data.get("events"))
    rules = tuple(RuleCount.of(count) for count in data.get("rules", ()))
    changes = _changes(data["changes"])
    return TableEntry(table, files, data["records"], changes, events, rules, filtered)


# the serialized columns of each table, cached because every manifest repeats them
_TEXTS: Cache[str] = Cache(10_000)


def columns_to_text(columns: tuple[Column, ...]) -> str:
    """Serialize columns as base64 of an Arrow schema, which is exact for every type."""
    fields = []
    for c in columns:
        extra = {
            "comment": c.comment,
            "number": "" if c.number is None else str(c.number),
            "aliases": ",".join(c.aliases),
        }
        fields.append(pa.field(c.name, c.type, metadata=extra))
    return base64.b64encode(pa.schema(fields).serialize().to_pybytes()).decode()


def columns_from_text(text: str) -> tuple[Column, ...]:
    """Parse text of `columns_to_text`."""
    return tuple(map(_column, pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))))


def _column(field: pa.Field) -> Column:
    meta = {key.decode(): text.decode() for key, text in (field.metadata or {}).items()}
    return Column(
        field.name,
        field.type,
        comment=meta.get("comment", ""),
        number=int(meta["number"]) if meta.get("number") else None,
        aliases=tuple(a for a in meta.get("aliases", "").split(",") if a),
    )


# Ranges of a files source: an offset is `n << 32 | fingerprint of the first n files`. The number of
# a file is the partition of its records.

FINGERPRINT_BITS = 32


def files_of(covered: SourceRange) -> range:
    """Return the numbers of the files in a range; they are the partitions of their records."""
    return range(covered.start >> FINGERPRINT_BITS, covered.end >> FINGERPRINT_BITS)
