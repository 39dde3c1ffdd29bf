"""What must be in a lake, and what is: told by ids that the harness made, read by other readers.

Nothing of the product is imported here. Tables are read with `deltalake`, plain folders with
pyarrow, and what is parked from the Parquet files beside each `entry.json`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
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
    WRONG = "WRONG"
    """It is there, and a value of its row is not what was fed."""
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
    """Of `bronze`, `unified` and `log`, those that are kept; the tables of types always are."""
    due: set[str] = field(default_factory=set)
    """Ids that must be there, once."""
    free: set[str] = field(default_factory=set)
    """Ids that may be there once or not at all: their source went before anybody could read it."""
    bad: set[str] = field(default_factory=set)
    """Ids of records that cannot be decoded, or need not be: no unified table must have them."""
    removed: dict[str, set[str]] = field(default_factory=dict)
    """Ids that a person removed from a layer: they must not come back."""
    forgiven: dict[str, set[str]] = field(default_factory=dict)
    """Ids that a message said a layer would lack: they may be there once or not at all."""
    accepted: dict[str, int] = field(default_factory=dict)
    """Tables of rows as they are now that a message had taken as they are, and how many changes
    there were by then: which rows they lack is not known, so that those with later changes are
    judged."""
    garbled: bool = False
    """Records of the source are no longer as they were fed: values and new ids are not judged."""
    misread: bool = False
    """A registry knows other schemas than records were written with: any may be a dead letter."""
    changes: list[Change] = field(default_factory=list)
    texts: dict[str, dict[str, str]] = field(default_factory=dict)
    """By id, the values of the columns that not every version of a schema has."""

    def take_away(self, layer: str, ids: Iterable[str]) -> None:
        self.removed.setdefault(layer, set()).update(ids)

    @property
    def excused(self) -> bool:
        """Return whether tables may lack rows, because a person or a message said so."""
        return bool(self.removed or self.forgiven)

    def source_holds(self, held: Set[str], *, there: Set[str]) -> None:
        """Make due what the source or a table has; the rest may be there once or not at all."""
        known = self.due | self.free
        # a record that was changed in the source has an id that was never made
        strange = set() if self.garbled else held - known
        # those of another source were written with the schemas of its own registry
        self.bad |= strange
        known |= strange
        self.due = known & (held | there)
        self.free = known - self.due

    def forgive(self, layer: str, ids: Iterable[str]) -> None:
        """Note what a message has announced as lost."""
        self.forgiven.setdefault(layer, set()).update(ids)

    def read_again(self) -> None:
        """Note that a run reads again from an earlier place: removed rows may come back with it."""
        for layer, ids in self.removed.items():
            self.forgive(layer, ids)
        self.removed.clear()

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

    def ids(self, wanted: Callable[[str], bool] = bool) -> set[str]:
        """Return the ids in the tables whose names are `wanted`, and in their parked batches."""
        found: set[str] = set()
        for name in filter(wanted, self.tables()):
            # what cannot be read is not there
            with suppress(Exception):
                found |= ids_of(self.read(name)).keys()
        parked = (ids_of(rows).keys() for name, rows in self.parked() if wanted(name))
        return found.union(*parked)

    def entries(self) -> list[Path]:
        """Return the documents of all batches that wait."""
        roots = [p for p in (self.checkpoint, Path(self.address)) if p is not None and p.exists()]
        return sorted({e for root in roots for e in root.glob("**/parked/*/*/entry.json")})

    def parked(self) -> Iterator[tuple[str, pa.Table]]:
        """Table and rows of every batch that waits; what cannot be read does not wait."""
        for entry in self.entries():
            with suppress(ValueError, LookupError, OSError, pa.ArrowException):
                # the line behind it is its checksum
                document = json.loads(entry.read_text().splitlines()[0])
                for file in document["entry"].get("files", []):
                    rows = ds.dataset(str(entry.parent / file["path"]), format="parquet").to_table()
                    yield entry.parent.parent.name, rows

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
        signs = ("_delta_log", "0-columns.parquet")
        return any((where / sign).exists() for sign in signs)


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
    letters: set[str] = set()
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
                letters |= ids_of(rows).keys()
                findings += _letters(rows)
            elif name.startswith(SILVER) and not book.garbled:
                findings += _values(book, name, rows)
    for layer, found in layers.items():
        if layer == "silver" or layer in book.layers:
            wanted = book.due - book.bad - letters if layer == "unified" else book.due
            findings += _once(book, layer, found + parked.get(layer, Counter()), wanted)
    if not (book.misread or book.garbled):
        findings += _finding(Kind.WRONG, LETTERS, sorted((letters & book.due) - book.bad))
    return [*findings, *_accounts(lake)]


def forgive_missing(book: Book, lake: Lake, table: str) -> None:
    """Note that a table is accepted: without the rows it lacks, with those of another lake."""
    if book.changes and not table.endswith("_log"):
        book.accepted[table] = len(book.changes)
        return
    layer = "log" if book.changes else _layer(table)
    there = lake.ids(lambda name: name.endswith("_log") if book.changes else _layer(name) == layer)
    book.forgive(layer, book.due - there)
    strange = lake.ids(lambda name: name == table) - book.due - book.free
    book.free |= strange
    # those of another lake were written with the schemas of its own registry
    book.bad |= strange


def _layer(table: str) -> str:
    if table == BRONZE:
        return "bronze"
    if table == UNIFIED:
        return "unified"
    return "silver" if table.startswith(SILVER) or table == LETTERS else ""


def _once(book: Book, layer: str, found: Counter[str], due: set[str]) -> list[Finding]:
    removed = book.removed.get(layer, set())
    lost = sorted(due - removed - book.forgiven.get(layer, set()) - found.keys())
    double = sorted(i for i, n in found.items() if n > 1)
    known = book.due | book.free
    alien = sorted(i for i in found if i in removed or not (i in known or book.garbled))
    return [
        *_finding(Kind.LOST, layer, lost),
        *_finding(Kind.DOUBLE, layer, double),
        *_finding(Kind.ALIEN, layer, alien),
    ]


def _finding(kind: Kind, layer: str, ids: Sequence[str]) -> list[Finding]:
    return [Finding(kind, layer, len(ids), ", ".join(ids[:3]))] if ids else []


def _values(book: Book, name: str, rows: pa.Table) -> list[Finding]:
    """Compare the values of a table's rows with those that were fed."""
    if not {"id", "n"} <= set(rows.column_names):
        return []
    wrong = []
    for row in rows.select([c for c in rows.column_names if not c.startswith("_")]).to_pylist():
        known, texts = str(row["id"]), book.texts.get(row["id"], {})
        expected = {"n": int(known[-8:-1]) if ID.fullmatch(known) else None, **texts}
        if any(row.get(column) != value for column, value in expected.items()):
            wrong.append(known)
    return _finding(Kind.WRONG, name, sorted(wrong))


def _letters(rows: pa.Table) -> list[Finding]:
    """Whoever discards or replays a letter names it by its id: no two may share one."""
    counted = Counter(zip(rows["pipeline"].to_pylist(), rows["id"].to_pylist(), strict=True))
    shared = sorted(f"{p}/{i}" for (p, i), n in counted.items() if n > 1)
    return _finding(Kind.DOUBLE, "ids of dead letters", shared)


def _accounts(lake: Lake) -> list[Finding]:
    """The ledger has one row for each settled batch of a life."""
    try:
        batches = lake.ledger("batches")
    except Exception as error:
        return [Finding(Kind.BROKEN, "ledger", 1, f"cannot be read: {error}"[:300])]
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
    tables: dict[str, pa.Table] = {}
    for name in sorted(there):
        try:
            tables[name] = lake.read(name)
        except Exception as error:
            findings.append(Finding(Kind.BROKEN, name, 1, f"cannot be read: {error}"[:300]))
            continue
        if name.endswith("_log"):
            logs.update(_events_of(tables[name]))
    if "log" in book.layers:
        findings += _once(book, "log", logs, book.due)
    due = [change for change in book.changes if change.id in book.due]
    for table, expected in current_rows(due).items():
        name = f"shop_{table}"
        rows = tables[name].select(["id", "eid"]) if name in tables else None
        pairs = [] if rows is None else zip(*(c.to_pylist() for c in rows.columns), strict=True)
        since = book.accepted.get(name, 0)
        judged = {c.key for c in book.changes[since:] if c.table == table}
        found = [(int(key), event) for key, event in pairs if not since or int(key) in judged]
        if since:
            expected = {key: event for key, event in expected.items() if key in judged}
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
