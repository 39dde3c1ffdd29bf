"""What must be in a lake, and what is: told by ids that the harness made, read by other readers.

Nothing of the product is imported here. Tables are read with `deltalake`, plain folders with
pyarrow, and what is parked from the Parquet files beside each `entry.json`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

ID = re.compile(r"ID[0-9a-f]+x[0-9]{7}Z")
_ID_BYTES = re.compile(ID.pattern.encode())
BRONZE, UNIFIED, SILVER, LETTERS = "bronze_events", "unified_gold", "silver_", "dead_letters"
_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)


def make_id(seed: int, number: int) -> str:
    """The id of a record: found again wherever its bytes are."""
    return f"ID{seed:x}x{number:07d}Z"


class Kind(StrEnum):
    """What can be wrong with an id, or with the run that carried it."""

    LOST = "LOST"
    DOUBLE = "DOUBLE"
    ALIEN = "ALIEN"
    BROKEN = "BROKEN"
    """Not about an id: an INTERNAL, a traceback, an unknown code, a state that went backward."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of wrong in one layer, with some of the ids."""

    kind: Kind
    layer: str
    count: int
    example: str

    def __str__(self) -> str:
        return f"{self.kind} {self.count} in {self.layer} ({self.example})"


@dataclass(frozen=True, slots=True)
class Change:
    """An event of change data, as the harness fed it."""

    id: str
    table: str
    key: int
    place: tuple[int, int]
    """Time and position: the order of the source."""
    deleted: bool


@dataclass(slots=True)
class Book:
    """Everything that was fed, and what a person took away again."""

    layers: frozenset[str] = frozenset()
    """Of `bronze` and `unified`, those that are configured; the records' own tables always are."""
    due: set[str] = field(default_factory=set)
    """Ids that must be there, once."""
    free: set[str] = field(default_factory=set)
    """Ids that may be there once or not at all: their source went before anybody could read it."""
    bad: set[str] = field(default_factory=set)
    """Ids of records that cannot be decoded: no unified table has them."""
    removed: dict[str, set[str]] = field(default_factory=dict)
    """Ids that a person removed from a layer: they must not come back."""
    changes: list[Change] = field(default_factory=list)

    def take_away(self, layer: str, ids: Iterable[str]) -> None:
        self.removed.setdefault(layer, set()).update(ids)

    def drop_source(self, *, unread: Iterable[str] = ()) -> None:
        """What the source still held for nobody is free; what was read stays due."""
        gone = set(unread)
        self.free |= gone
        self.due -= gone

    def save(self, path: Path) -> None:
        """For whoever looks at a failed round later."""
        document = {
            "due": sorted(self.due),
            "free": sorted(self.free),
            "bad": sorted(self.bad),
            "removed": {layer: sorted(ids) for layer, ids in self.removed.items()},
            "changes": [[c.id, c.table, c.key, *c.place, c.deleted] for c in self.changes],
        }
        path.write_text(json.dumps(document))


@dataclass(frozen=True, slots=True)
class Lake:
    """Where the tables are, and how to open them."""

    address: str
    options: Mapping[str, str] = field(default_factory=dict)
    files: Any = None
    """A file system of Arrow for an object store; None for a folder of this machine."""
    checkpoint: Path | None = None

    def tables(self) -> list[str]:
        """Names of folders that hold a table."""
        if self.files is not None:
            base = self.address.partition("://")[2]
            found = self.files.get_file_info(pafs.FileSelector(base, allow_not_found=True))
            return sorted(i.base_name for i in found if not i.base_name.startswith("_"))
        root = Path(self.address)
        if not root.exists():
            return []
        names = [p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("_")]
        return sorted(n for n in names if self._is_table(n))

    def read(self, table: str) -> pa.Table:
        """All rows of a table, by the readers that people use."""
        where = f"{self.address}/{table}"
        if self.files is None and not Path(where, "_delta_log").exists():
            return ds.dataset(where, format="parquet", partitioning=None).to_table()
        return self._delta(where)

    def parked(self) -> Iterator[tuple[str, pa.Table]]:
        """Table and rows of every batch that waits."""
        roots = [p for p in (self.checkpoint, Path(self.address)) if p is not None and p.exists()]
        for entry in sorted({e for root in roots for e in root.glob("**/parked/*/*/entry.json")}):
            # the line behind it is its checksum
            named = json.loads(entry.read_text().splitlines()[0])["entry"].get("files", [])
            for file in named:
                path = entry.parent / file["path"]
                yield entry.parent.parent.name, ds.dataset(str(path), format="parquet").to_table()

    def ledger(self, table: str) -> pa.Table | None:
        """One of the product's own tables of accounts."""
        where = f"{self.address}/_distributary/ledger/{table}"
        try:
            return self._delta(where)
        except TableNotFoundError:
            # no batch was settled yet
            return None

    def _delta(self, where: str) -> pa.Table:
        table = DeltaTable(where, storage_options=dict(self.options))
        # its own file system calls back into Python, also while the process ends, and crashes it
        own = pafs.SubTreeFileSystem(where, pafs.LocalFileSystem()) if self.files is None else None
        return table.to_pyarrow_dataset(filesystem=own).to_table()

    def _is_table(self, name: str) -> bool:
        where = Path(self.address, name)
        return (where / "_delta_log").exists() or (where / "0-columns.parquet").exists()


def ids_of(rows: pa.Table) -> Counter[str]:
    """How many rows hold each id, in whatever column of text or bytes."""
    if "id" in rows.column_names and pa.types.is_string(rows.schema.field("id").type):
        found = [v for v in rows["id"].to_pylist() if v is not None and ID.fullmatch(v)]
        if len(found) == rows.num_rows:
            return Counter(found)
    counted: Counter[str] = Counter()
    columns = [c for c in rows.column_names if _holds_text(rows.schema.field(c).type)]
    for values in zip(*(rows[c].to_pylist() for c in columns), strict=True):
        counted.update({found for value in values if value for found in _ids_in(value)})
    return counted


def _holds_text(kind: pa.DataType) -> bool:
    return any(is_one(kind) for is_one in (*_TEXT, *_BYTES))


def _ids_in(value: str | bytes) -> Sequence[str]:
    if isinstance(value, str):
        return ID.findall(value)
    return [found.decode() for found in _ID_BYTES.findall(value)]


def judge(book: Book, lake: Lake) -> list[Finding]:
    """Everything that is wrong with a lake; nothing, if every promise is kept."""
    if book.changes:
        return [*_changes(book, lake), *_accounts(lake)]
    names = lake.tables()
    parked: dict[str, Counter[str]] = {}
    for table, rows in lake.parked():
        parked.setdefault(_layer(table), Counter()).update(ids_of(rows))
    layers: dict[str, Counter[str]] = {"silver": Counter(), "bronze": Counter()}
    layers["unified"] = Counter()
    findings: list[Finding] = []
    for name in names:
        layer = _layer(name)
        if layer in layers:
            try:
                rows = lake.read(name)
            except Exception as error:
                findings.append(Finding(Kind.BROKEN, name, 1, f"cannot be read: {error}"[:300]))
                continue
            layers[layer] += ids_of(rows)
            if name.startswith(LETTERS):
                findings += _letters(rows)
    for layer, found in layers.items():
        if layer == "silver" or layer in book.layers:
            wanted = book.due - book.bad if layer == "unified" else book.due
            findings += _once(book, layer, found + parked.get(layer, Counter()), wanted)
    return [*findings, *_accounts(lake)]


def _layer(table: str) -> str:
    if table == BRONZE:
        return "bronze"
    if table == UNIFIED:
        return "unified"
    return "silver" if table.startswith(SILVER) or table == LETTERS else ""


def _once(book: Book, layer: str, found: Counter[str], due: set[str]) -> list[Finding]:
    removed = book.removed.get(layer, set())
    lost = sorted(due - removed - found.keys())
    double = sorted(i for i, n in found.items() if n > 1)
    known = book.due | book.free
    alien = sorted(i for i in found if i in removed or i not in known)
    return [
        *_finding(Kind.LOST, layer, lost),
        *_finding(Kind.DOUBLE, layer, double),
        *_finding(Kind.ALIEN, layer, alien),
    ]


def _finding(kind: Kind, layer: str, ids: Sequence[str]) -> list[Finding]:
    return [Finding(kind, layer, len(ids), ", ".join(ids[:3]))] if ids else []


def _letters(rows: pa.Table) -> list[Finding]:
    """Whoever discards or replays a letter names it by its id: no two may share one."""
    counted = Counter(zip(rows["pipeline"].to_pylist(), rows["id"].to_pylist(), strict=True))
    shared = sorted(f"{p}/{i}" for (p, i), n in counted.items() if n > 1)
    return _finding(Kind.DOUBLE, "ids of dead letters", shared)


def _accounts(lake: Lake) -> list[Finding]:
    """The ledger has one row for each settled batch of a life."""
    batches = lake.ledger("batches")
    if batches is None:
        return []
    columns = [batches[c].to_pylist() for c in ("pipeline", "life", "lane", "batch")]
    counted = Counter("/".join(map(str, row)) for row in zip(*columns, strict=True))
    return _finding(Kind.DOUBLE, "ledger", sorted(row for row, n in counted.items() if n > 1))


def current_rows(changes: Iterable[Change]) -> dict[str, dict[int, str]]:
    """By table and key, the event that holds now: the last in the order of the source."""
    last: dict[tuple[str, int], Change] = {}
    for change in changes:
        known = last.get((change.table, change.key))
        if known is None or change.place > known.place:
            last[change.table, change.key] = change
    rows: dict[str, dict[int, str]] = {change.table: {} for change in last.values()}
    for (table, key), change in last.items():
        if not change.deleted:
            rows[table][key] = change.id
    return rows


def _changes(book: Book, lake: Lake) -> list[Finding]:
    """Each event in its log once, and the tables of current rows as the source has them."""
    findings = []
    there = set(lake.tables())
    parked: Counter[str] = Counter()
    for table, rows in lake.parked():
        if table.endswith("_log"):
            parked.update(_events_of(rows))
    logs: Counter[str] = Counter(parked)
    for name in sorted(there):
        if name.endswith("_log"):
            logs.update(_events_of(lake.read(name)))
    findings += _once(book, "log", logs, {c.id for c in book.changes})
    for table, expected in current_rows(book.changes).items():
        name = f"shop_{table}"
        rows = lake.read(name).select(["id", "eid"]) if name in there else None
        pairs = [] if rows is None else zip(*(c.to_pylist() for c in rows.columns), strict=True)
        found = [(int(key), event) for key, event in pairs]
        keys = Counter(key for key, _ in found)
        wrong = [f"{k}: {e}" for k, e in found if k in expected and expected[k] != e]
        missing = [str(key) for key in expected if key not in keys]
        findings += _finding(Kind.LOST, name, sorted(wrong + missing))
        findings += _finding(Kind.DOUBLE, name, sorted(str(k) for k, n in keys.items() if n > 1))
        findings += _finding(Kind.ALIEN, name, sorted(str(k) for k in keys if k not in expected))
    return findings


def _events_of(rows: pa.Table) -> Counter[str]:
    if "eid" in rows.column_names:
        return Counter(v for v in rows["eid"].to_pylist() if v is not None)
    return ids_of(rows)
