"""What a stage found out, written once: from here on the batch is decided."""

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
from distributary.model.expectation import RuleCount
from distributary.model.table import STAGED, Change, ChangeKind, Column, Role, TablePlan, is_below

# JSON of which a batch writes and reads thousands of documents: quick, and without spaces.

# as strict as `json`: what that does not know is for `default`
_AS_JSON = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


def compact(
    document: object, *, escaped: bool = True, default: Callable[[Any], Any] | None = None
) -> str:
    """The text of a document; its characters stay what they are.

    What is not UTF-8 (file names may hold it) is escaped, or left to whoever encodes the text.
    `default` says what becomes of anything that `json` could not write.
    """
    try:
        return orjson.dumps(document, default=default, option=_AS_JSON).decode()
    except TypeError:
        # numbers beyond 64 bits, keys that are no text, characters that are not UTF-8
        return json.dumps(document, separators=(",", ":"), default=default, ensure_ascii=escaped)


def parsed(text: str | bytes) -> Any:
    """The inverse of `compact`, except for whole numbers beyond 64 bits: these come as floats."""
    try:
        return orjson.loads(text)
    except ValueError:
        return json.loads(text)


MANIFEST_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Mark:
    """Who commits, and which batch: stored with the commit, so that a second try sees the first."""

    app_id: str
    batch: int
    source_hash: str
    """Fingerprint of the batch's source ranges: a mark hides a batch only if this agrees."""


@dataclass(frozen=True, slots=True)
class SourceRange:
    """A stretch of one partition: `start` is the first offset, `end` is one past the last."""

    topic: str
    partition: int
    start: int
    end: int
    records: int
    """How many records the source says are in it (offsets may have gaps)."""


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A Parquet file in a table's folder that no commit names yet."""

    path: str
    """Relative to the table's folder."""
    size: int
    rows: int
    stats: str = "{}"
    """Column statistics as Delta spells them."""
    partition_values: Mapping[str, str | None] = field(default_factory=dict)
    first_offset: int = -1
    last_offset: int = -1
    schema_ids: tuple[int, ...] = ()
    checksum: str | None = None
    """Of its bytes; None in manifests of the version before."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON; not `asdict`, which copies every value: this happens once a table and batch."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class TableEntry:
    """What one batch does to one table."""

    table: TablePlan
    files: tuple[StagedFile, ...]
    records: int
    """Source records that became (no, one or many) rows of this table."""
    changes: tuple[Change, ...] = ()
    """What this batch does to the columns; empty means: append, the columns stay as they are."""
    events: ChangeFacts | None = None
    """Of a log, and of what is made of it: what its events of this batch are."""
    rules: tuple[RuleCount, ...] = ()
    """What the rules for its rows have found in this batch."""

    @property
    def rows(self) -> int:
        """Rows in all staged files."""
        return sum(f.rows for f in self.files)


@dataclass(frozen=True, slots=True)
class Counts:
    """The equation of a batch, in source records."""

    read: int = 0
    written: int = 0
    dead_lettered: int = 0
    parked: int = 0
    skipped: int = 0
    """Records that a policy says to pass over (Kafka tombstones)."""

    @property
    def balanced(self) -> bool:
        """Nothing lost, nothing doubled."""
        return self.read == self.written + self.dead_lettered + self.parked + self.skipped

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, n) + getattr(other, n) for n in Counts.__slots__))

    def equation(self) -> str:
        """`read 10,000 = written 9,997 + dead letters 3 + parked 0`."""
        skipped = f" + skipped {self.skipped:,}" if self.skipped else ""
        return (
            f"read {self.read:,} = written {self.written:,} + dead letters "
            f"{self.dead_lettered:,} + parked {self.parked:,}{skipped}"
        )


@dataclass(frozen=True, slots=True)
class SchemaUse:
    """A schema that this batch met for the first time, and what it did to a table."""

    type: str
    table: str
    schema_id: int
    label: str
    """`chess-value v3`."""
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The decided batch. A replay of its number publishes these files and no others."""

    pipeline: str
    life: str
    batch: int
    epoch: int
    """The claim under which it was written."""
    ranges: tuple[SourceRange, ...]
    tables: tuple[TableEntry, ...]
    counts: Counts
    """As staged: `parked` is 0 here and is known only after publishing."""
    dead_letters: Mapping[str, int]
    """By error code."""
    schemas: tuple[SchemaUse, ...]
    created_at: str
    lane: str = "stream"
    """`stream` for the source's batches, `replay` for dead letters sent again."""
    source_state: Mapping[str, Any] = field(default_factory=dict)
    """What the source wants to find again at the next batch."""
    source_start: Mapping[str, Any] = field(default_factory=dict)
    """Where the batch began, in the same words; empty in manifests of the version before."""
    stage_seconds: float = 0.0
    primary_role: str = str(Role.EACH)
    """The tables in which a record counts as written: a record may be in several tables."""
    bytes_read: int | None = None
    """Bytes of the values of its records, as they came."""
    newest_us: int | None = None
    """Time of its newest record in microseconds since 1970, by the record's own word."""

    def primary(self) -> tuple[TableEntry, ...]:
        """The entries that the equation counts."""
        return tuple(e for e in self.tables if e.table.role == self.primary_role)

    @property
    def app_id(self) -> str:
        """Names this life of the checkpoint in every table's transaction marks."""
        return app_id(self.pipeline, self.life, self.lane)

    @property
    def source_hash(self) -> str:
        """Tells whether two batches of one number hold the same records."""
        return source_hash(self.ranges)

    def with_parked(self, parked: int) -> Counts:
        """The final equation, once it is known which tables were parked."""
        return replace(self.counts, written=self.counts.written - parked, parked=parked)

    def to_json(self) -> str:
        """One document; columns only where a table is created or changed."""
        data = asdict(replace(self, tables=()))
        data["format"] = MANIFEST_FORMAT
        data["tables"] = [entry_to_dict(entry) for entry in self.tables]
        return compact(data, default=str)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """The inverse of `to_json`."""
        data = json.loads(text)
        data.pop("format")
        data["ranges"] = tuple(SourceRange(**r) for r in data["ranges"])
        data["counts"] = Counts(**data["counts"])
        data["schemas"] = tuple(
            SchemaUse(**{**use, "changes": _changes(use["changes"])}) for use in data["schemas"]
        )
        data["tables"] = tuple(entry_from_dict(entry) for entry in data["tables"])
        return cls(**data)


def app_id(pipeline: str, life: str, lane: str = "stream") -> str:
    """The transaction mark's application: one per pipeline, life of the checkpoint, and lane."""
    return f"distributary/{pipeline}/{life}/{lane}"


def source_hash(ranges: tuple[SourceRange, ...]) -> str:
    """A short fingerprint of the source ranges of a batch."""
    lines = sorted(f"{r.topic}\0{r.partition}\0{r.start}\0{r.end}" for r in ranges)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _changes(items: list[dict[str, Any]]) -> tuple[Change, ...]:
    return tuple(Change(**{**item, "kind": ChangeKind(item["kind"])}) for item in items)


def entry_to_dict(entry: TableEntry) -> dict[str, Any]:
    """One table's part of the document."""
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
    }


def entry_from_dict(data: dict[str, Any]) -> TableEntry:
    """The inverse of `entry_to_dict`; ValueError where a name leads out of the table's folder."""
    if "/" in data["name"] or not is_below(data["name"]):
        raise ValueError("the name of a table leads elsewhere")
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
    )
    files = tuple(StagedFile(**{**f, "schema_ids": tuple(f["schema_ids"])}) for f in data["files"])
    counts = (data["records"], *(number for file in files for number in (file.size, file.rows)))
    words = (table.name, table.type, table.path, table.comment, table.format)
    if not all(type(n) is int for n in counts) or not all(isinstance(w, str) for w in words):
        raise TypeError("a word or a number is something else")
    if not all(is_below(f.path) and f.path.endswith((".parquet", STAGED)) for f in files):
        raise ValueError("a file of a batch is no file in the folder of its table")
    events = ChangeFacts.of(data.get("events"))
    rules = tuple(RuleCount.of(count) for count in data.get("rules", ()))
    return TableEntry(table, files, data["records"], _changes(data["changes"]), events, rules)


# the text of columns, kept for as long as a table has them: manifests name it every batch
_TEXTS: Cache[str] = Cache(10_000)


def columns_to_text(columns: tuple[Column, ...]) -> str:
    """Columns as base64 of an Arrow schema: exact for every type."""
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
    """The inverse of `columns_to_text`."""
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


# Which files a range of a files source stands for: an offset of it is `n << 32 | fingerprint of the
# first n files`. The number of a file is the partition of its records.

FINGERPRINT_BITS = 32


def files_of(covered: SourceRange) -> range:
    """The numbers of the files that a range stands for: the partitions of their records."""
    return range(covered.start >> FINGERPRINT_BITS, covered.end >> FINGERPRINT_BITS)
