"""Does a table hold what the ledger says was written to it? By logs and statistics, no row is read.

Four questions: is the table there; does it carry the newest batch of everybody who writes to it;
has it as many rows; is every file there that its log names. Rows that differ are explained, where
the log still tells: by batches that are not settled yet, by our own upkeep, or by others, by name.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from distributary.delta.commit import APP, BATCH, facts_in, pipeline_of
from distributary.delta.damage import TAG
from distributary.delta.log import Snapshot, commit_name, data_file, load, log_names
from distributary.delta.tables import reaching
from distributary.delta.vectors import BrokenVectorError
from distributary.errors import (
    DamagedFileError,
    DistributaryError,
    LakeUnavailableError,
    PublishError,
)
from distributary.model import layout
from distributary.model.table import Role, is_below
from distributary.observe.health import DERIVED
from distributary.observe.rows import LastCommit
from distributary.publish.parquet import ParquetTable, TableRecord, format_of, open_parquet
from distributary.store.base import Store, at, is_remote

if TYPE_CHECKING:
    from distributary.publish.iceberg import IcebergTable

_SHOWN = 5
_COPY = "put the table back from a copy that has it"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong with a table."""

    kind: str
    """missing, behind, rows, foreign, file_missing, file_changed, unreadable, damaged; of a deep
    look also duplicates, outside, batch_counts, lost, extra."""
    what: str
    evidence: str
    next_step: str


@dataclass(frozen=True, slots=True)
class WrittenTable:
    """A table, and everybody who has written to it."""

    path: str
    commits: tuple[LastCommit, ...]
    parked_batches: int = 0
    accept: str = ""
    """The command that takes it as it is."""

    @property
    def table(self) -> str:
        """Its name."""
        return self.commits[0].table

    @property
    def role(self) -> str:
        """Why it exists."""
        return self.commits[0].role

    @property
    def type(self) -> str:
        """The type of its records."""
        return self.commits[0].type

    @property
    def pipelines(self) -> tuple[str, ...]:
        """Who writes to it."""
        return tuple(sorted({commit.pipeline for commit in self.commits}))

    @property
    def rows(self) -> int | None:
        """Rows by the ledger; None where they are no sum of batches."""
        passing = f"/{layout.HOME}/" in self.path
        if self.role in DERIVED or passing:
            return None
        return sum(commit.rows for commit in self.commits)

    @property
    def accepted_version(self) -> int:
        """Up to which version it was taken as it is, or -1."""
        taken = (commit.accepted_version for commit in self.commits)
        return max((version for version in taken if version is not None), default=-1)

    @property
    def records(self) -> int:
        """Records of the source that became these rows."""
        return sum(commit.records for commit in self.commits)


@dataclass(frozen=True, slots=True)
class TableCheck:
    """What was compared, and what was found."""

    table: str
    role: str
    path: str
    pipelines: tuple[str, ...]
    version: int | None = None
    """None: there is no table."""
    rows: int | None = None
    rows_by_ledger: int | None = None
    files: int = 0
    parked_batches: int = 0
    compared: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    @property
    def agrees(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def with_more(
        self,
        *,
        compared: Iterable[str] = (),
        findings: Iterable[Finding] = (),
        notes: Iterable[str] = (),
    ) -> TableCheck:
        """The same with more that was looked at."""
        return replace(
            self,
            compared=(*self.compared, *compared),
            findings=(*self.findings, *findings),
            notes=(*self.notes, *notes),
        )


def written_tables(
    lake: str,
    commits: Iterable[LastCommit],
    *,
    parked: Mapping[tuple[str, str], int],
    files: Mapping[str, str],
) -> tuple[WrittenTable, ...]:
    """The tables of a lake, each once, whoever writes to it; by name.

    `parked` counts what waits, by pipeline and table; `files` has each pipeline's file.
    """
    grouped: dict[str, list[LastCommit]] = defaultdict(list)
    for commit in commits:
        grouped[layout.place(lake, commit.path)].append(commit)
    found = []
    for path, group in grouped.items():
        first = min(group, key=lambda commit: commit.pipeline)
        pairs = {(commit.pipeline, commit.table) for commit in group}
        waits = sum(parked.get(pair, 0) for pair in pairs)
        file = files.get(first.pipeline, "FILE")
        accept = f"distributary reset {file} --table {first.table}"
        found.append(WrittenTable(path, tuple(group), waits, accept))
    return tuple(sorted(found, key=lambda each: (each.table, each.path)))


def check_table(known: WrittenTable) -> TableCheck:
    """Compare one table with what the ledger says of it."""
    started = time.perf_counter()
    check = TableCheck(
        table=known.table,
        role=known.role,
        path=known.path,
        pipelines=known.pipelines,
        rows_by_ledger=known.rows,
        parked_batches=known.parked_batches,
    )
    try:
        opened = open_written(known.path)
        check = _absent(check, known) if opened is None else _examined(check, known, opened)
    except (LakeUnavailableError, PublishError) as error:
        check = check.with_more(findings=[unreadable(known, error)])
    return replace(check, seconds=time.perf_counter() - started)


def unreadable(known: WrittenTable, error: DistributaryError) -> Finding:
    """Return the finding for an error that ended the look at a table."""
    if isinstance(error, DamagedFileError):
        own = error.where.startswith(f"{known.path}/")
        what = "a data file is damaged" if own else "a data file of its log is damaged"
        step = mend(known) if own else error.next_step
        return Finding("damaged", what, f"{error.where}: {error.evidence}", step)
    what = "its log cannot be read"
    step = f"{_COPY}, or fix the file that is named"
    return Finding("unreadable", what, error.evidence or error.what, step)


def mend(known: WrittenTable) -> str:
    """Say what to do about damaged files of a table."""
    if known.role == Role.MERGED:
        return f"`distributary rebuild {known.table}` writes the table again from its log"
    return (
        "put the files back from a copy, under the same names; where there is no copy, move them "
        "away, take them out of its log (`DeltaTable(PATH).repair()` of the package deltalake, or "
        f"FSCK REPAIR TABLE), then `{known.accept}`"
    )


def rows_to_accept(known: WrittenTable, check: TableCheck) -> int:
    """By how much a table differs from the ledger, batches that will be settled left out."""
    if known.rows is None or (check.version is not None and check.rows is None):
        return 0
    unsettled = 0
    opened = None if check.version is None else open_written(known.path)
    if opened is not None:
        newest = _newest(known)
        unsettled = sum(
            rows for app, batch, rows in opened.commits() if batch > newest.get(app, batch)
        )
    return (check.rows or 0) - unsettled - known.rows


def _absent(check: TableCheck, known: WrittenTable) -> TableCheck:
    wanted = [commit for commit in known.commits if commit.required is not None]
    if not wanted:
        waits = "everything it was given is parked" if known.parked_batches else "it has no rows"
        return check.with_more(notes=[f"there is no table yet: {waits}"])
    rows = "" if known.rows is None else f"{known.rows:,} rows, "
    newest = ", ".join(f"batch {c.required} of {c.pipeline}" for c in wanted[:_SHOWN])
    evidence = f"no {known.path}; by the ledger it has {rows}the newest: {newest}"
    gone = Finding("missing", "there is no table", evidence, _way_out(known))
    return check.with_more(findings=[gone])


def open_written(path: str) -> _Opened | None:
    """Open the table in a folder, of whichever format it is; None where there is none."""
    if (parquet := open_parquet(path)) is not None:
        return _Parquet(*parquet)
    if not is_remote(path) and format_of(path) == "iceberg":
        from distributary.publish.iceberg import open_iceberg

        iceberg = open_iceberg(path)
        return None if iceberg is None else _Iceberg(iceberg)
    with reaching(path):
        delta = load(at(path))
    return None if delta is None else _Delta(delta)


def _examined(check: TableCheck, known: WrittenTable, table: _Opened) -> TableCheck:
    rows, why = table.rows()
    count, gone, changed = table.files()
    check = replace(check, version=table.version(), rows=rows, files=count)
    check = check.with_more(compared=["marks"], findings=_behind(known, table))
    if known.rows is not None and rows is None:
        check = check.with_more(notes=[f"rows were not compared: {why}"])
    elif known.rows is not None and rows is not None:
        check = check.with_more(compared=["rows"])
        if rows != known.rows:
            check = _explained(check, known, table.past(), rows - known.rows)
    return check.with_more(compared=["files"], findings=_files(known, gone, changed))


def _behind(known: WrittenTable, table: _Opened) -> list[Finding]:
    """Lanes whose newest batch the table does not carry."""
    lacking = []
    for commit in known.commits:
        if commit.required is None:
            continue
        who = f"pipeline {commit.pipeline}, lane {commit.lane}"
        if commit.role in DERIVED:
            # a merge that changes nothing makes no commit, and leaves no mark
            if table.version() < (commit.version or 0):
                at = f"version {table.version()} instead of {commit.version}"
                lacking.append(f"{who}: the table is at {at} (batch {commit.required})")
            continue
        mark = table.mark(commit.app_id)
        if mark is None or mark < commit.required:
            has = "has none of its batches" if mark is None else f"ends with batch {mark}"
            lacking.append(f"{who}: the table {has}, finished is batch {commit.required}")
    if not lacking:
        return []
    what = "the table lacks batches that were written to it"
    return [Finding("behind", what, "; ".join(lacking[:_SHOWN]), _way_out(known))]


def _files(known: WrittenTable, gone: Sequence[str], changed: Sequence[str]) -> list[Finding]:
    found = []
    if gone:
        what = f"files that its log names and that are gone: {len(gone):,}"
        step = (
            "put them back from a copy (a VACUUM with a short retention may have taken them), or "
            f"take them out of its log with FSCK REPAIR TABLE; then `{known.accept}`"
        )
        found.append(Finding("file_missing", what, ", ".join(gone[:_SHOWN]), step))
    if changed:
        what = f"files of another size than its log says: {len(changed):,}"
        step = "put them back from a copy"
        found.append(Finding("file_changed", what, ", ".join(changed[:_SHOWN]), step))
    return found


def _way_out(known: WrittenTable) -> str:
    rebuild = f"`distributary rebuild {known.table}` makes it again from its log; "
    first = rebuild if known.role == Role.MERGED else f"{_COPY}; "
    return f"{first}if it was meant to be, `{known.accept}` takes it as it is"


def _explained(
    check: TableCheck, known: WrittenTable, past: _History | None, difference: int
) -> TableCheck:
    """Who made the rows differ: what is not settled, ourselves, or somebody else."""
    if past is None:
        return check.with_more(findings=[_unexplained(known, difference, None)])
    newest, taken = _newest(known), known.accepted_version
    # these are marked by merges, and those of a pipeline that is cleaned away go by one
    letters = known.role == Role.DEAD_LETTERS
    under_way, upkeep, unknown, foreign = [], [], [], []
    for commit in past.commits:
        if commit.rows == 0 or (commit.version <= taken and commit.app_id not in newest):
            continue
        if commit.app_id in newest:
            if commit.batch > newest[commit.app_id]:
                under_way.append(commit)
        elif commit.app_id:
            unknown.append(commit)
        elif commit.engine == _OURS or (letters and commit.operation == "MERGE"):
            upkeep.append(commit)
        else:
            foreign.append(commit)
    notes = []
    if under_way:
        told = [f"batch {c.batch} of {pipeline_of(c.app_id)}" for c in under_way[-_SHOWN:]]
        notes.append(f"not finished yet, and not in the ledger: {', '.join(told)}")
    if upkeep:
        notes.append(f"rows removed by maintenance: {_described(upkeep)}")
    if unknown:
        names = ", ".join(sorted({pipeline_of(commit.app_id) for commit in unknown})[:_SHOWN])
        notes.append(f"commits that the ledger does not know: {len(unknown):,}, by {names}")
    findings = []
    if foreign:
        what = f"commits of others that changed its rows: {len(foreign):,}"
        step = f"ask who did it; if it was meant to be, `{known.accept}` takes it as it is"
        findings.append(Finding("foreign", what, _described(foreign), step))
    effects = [c.rows for c in (*under_way, *upkeep, *unknown, *foreign)]
    left = difference - sum(effect or 0 for effect in effects)
    if None not in effects and left:
        if letters and not past.complete and left < 0:
            notes.append(f"dead letters that were done with, removed by `maintain`: {-left:,}")
        else:
            findings.append(_unexplained(known, left, past))
    return check.with_more(findings=findings, notes=notes)


def _described(commits: Sequence[_LogCommit]) -> str:
    return "; ".join(commit.describe() for commit in commits[-_SHOWN:])


def _newest(known: WrittenTable) -> dict[str, int]:
    """The newest batch of every lane that the ledger has settled."""
    batches = {c.app_id: (c.batch, c.accepted) for c in known.commits}
    return {a: max(-1 if n is None else n for n in both) for a, both in batches.items()}


def _unexplained(known: WrittenTable, left: int, past: _History | None) -> Finding:
    evidence = [f"by the ledger {known.rows:,} rows, the table has {(known.rows or 0) + left:,}"]
    if past is not None:
        blank = [str(commit.version) for commit in past.commits if commit.blank]
        evidence += [f"the commit of version {', '.join(blank)} is an empty file"] if blank else []
        if not past.complete:
            evidence.append("older commits are no longer in its log, so who did it is not known")
    what = f"{'missing' if left < 0 else 'surplus'} rows: {abs(left):,}"
    step = f"`distributary verify {known.table} --deep` says which; {_way_out(known)}"
    return Finding("rows", what, "; ".join(evidence), step)


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A data file as the commits of its table name it."""

    path: str
    size: int
    checksum: str | None
    held: str
    """Rows and batches in it, as far as the table tells without it."""


def _held(rows: object, batches: tuple[object, object]) -> str:
    low, high = batches
    told = [f"{rows:,} rows"] if isinstance(rows, int) else []
    if low is not None:
        told.append(f"batch {low}" if low == high else f"batches {low} to {high}")
    return " of ".join(told) or "rows that its log does not count"


# A Delta table by its own log: the files it has now, and what each commit did to its rows.

_OURS = "Distributary"
"""The engine that our own commits name."""


@dataclass(frozen=True, slots=True)
class _LogCommit:
    version: int
    operation: str
    """`DELETE`, `WRITE (Overwrite)`."""
    at: datetime | None
    engine: str
    app_id: str
    """Of a commit of a pipeline: which one, in which life and lane."""
    batch: int
    rows: int | None
    """Rows more, or fewer, after it; None where files do not tell."""
    blank: bool
    """It is there without a word in it."""

    def describe(self) -> str:
        """`DELETE at version 12, 2026-11-15 12:00 UTC, by delta-rs: 40 rows fewer`."""
        when = f", {self.at:%Y-%m-%d %H:%M} UTC" if self.at else ""
        who = f", by {self.engine}" if self.engine else ""
        what = "an unknown number of rows"
        if self.rows is not None:
            what = f"{abs(self.rows):,} rows {'fewer' if self.rows < 0 else 'more'}"
        return f"{self.operation or 'a commit'} at version {self.version}{when}{who}: {what}"


@dataclass(frozen=True, slots=True)
class _History:
    """The commits of a log that are still there, the oldest first."""

    commits: tuple[_LogCommit, ...] = ()
    complete: bool = False
    """Whether it begins with the table itself."""


@dataclass(frozen=True, slots=True)
class _Delta:
    table: Snapshot

    def version(self) -> int:
        return self.table.version

    def mark(self, app_id: str) -> int | None:
        return self.table.marks.get(app_id)

    def rows(self) -> tuple[int | None, str]:
        """The rows of the newest version, by statistics; or None, and why that is not known."""
        return self.table.count, "some of its files do not say how many rows they have"

    def files(self) -> tuple[int, list[str], list[str]]:
        """How many files the log names, those that are gone, those of another size."""
        files = self.table.files.values()
        told: dict[str, int | None] = {file.path: file.size for file in files}
        told |= {f.vector.path: None for f in files if f.vector and f.vector.path}
        # files of a shallow clone are in the folder of another table
        own = {name: size for name, size in told.items() if "://" not in name and name[:1] != "/"}
        with reaching(self.table.folder):
            return len(told), *_compared(own, self.table.store.sizes())

    def contents(self) -> list[KnownFile]:
        """The files in the table's own folder."""
        return [
            KnownFile(f.path, f.size, f.checksum, _held(f.written, f.bounds("_batch")))
            for f in self.table.files.values()
            if is_below(f.path)
        ]

    def broken_vectors(self) -> Iterator[tuple[str, str]]:
        """Files of which it cannot be told any more which rows are gone, and why."""
        for file in self.table.files.values():
            try:
                self.table.gone(file)
            except BrokenVectorError as error:
                yield file.path, str(error)

    def past(self) -> _History:
        """What every commit did that the log still has."""
        store = self.table.store
        with reaching(store.address):
            names = log_names(store)
            versions = list(names.commits)
            gaps = [after for before, after in pairwise(versions) if after != before + 1]
            first = max(gaps, default=min(versions, default=0))
            rows: dict[str, int | None] = {}
            if first > 0:
                start = min((v for v in names.checkpoints if v >= first - 1), default=None)
                old = None if start is None else load(store, version=start)
                if old is None:
                    return _History()
                rows = {path: file.rows for path, file in old.files.items()}
                first = old.version + 1
            later = (version for version in versions if version >= first)
            commits = tuple(_commit(n, _actions(store, n), rows) for n in later)
        return _History(commits, complete=first == 0)

    def commits(self) -> list[tuple[str, int, int]]:
        """Application, batch and rows of the commits of pipelines."""
        return [(c.app_id, c.batch, c.rows or 0) for c in self.past().commits if c.app_id]


def _compared(
    told: Mapping[str, int | None], size_of: Callable[[str], int | None]
) -> tuple[list[str], list[str]]:
    """Files that are gone, and those of another size than a log told, if it did."""
    found = {path: size_of(path) for path in told}
    gone = [path for path, size in found.items() if size is None]
    changed = [p for p, size in told.items() if None not in (size, found[p]) and found[p] != size]
    return gone, changed


def _actions(store: Store, version: int) -> list[dict[str, Any]]:
    text = store.read(commit_name(version)).decode("utf-8", "replace")
    found = []
    for line in text.split("\n"):
        # a line that was cut short says nothing
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def _commit(
    version: int, actions: Sequence[dict[str, Any]], rows: dict[str, int | None]
) -> _LogCommit:
    """What a commit says; `rows` of the table's files are brought up to date with it."""
    info: dict[str, Any] = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
    removed = [rows.pop(unquote(a["remove"]["path"]), None) for a in actions if "remove" in a]
    added = {unquote(a["add"]["path"]): data_file(a["add"]).rows for a in actions if "add" in a}
    rows |= added
    known = None not in removed and None not in added.values()
    told = facts_in(info)
    batch, name = str(told.get(BATCH, "")), str(info.get("operation") or "")
    mode = (info.get("operationParameters") or {}).get("mode", "")
    at = info.get("timestamp")
    return _LogCommit(
        version=version,
        operation=f"{name} ({mode})" if name == "WRITE" and mode not in ("", "Append") else name,
        at=datetime.fromtimestamp(at / 1000, UTC) if isinstance(at, int) else None,
        engine=str(info.get("engineInfo") or info.get("clientVersion") or "")[:60],
        app_id=str(told.get(APP, "")),
        batch=int(batch) if batch.isdecimal() else -1,
        rows=sum(n or 0 for n in added.values()) - sum(n or 0 for n in removed) if known else None,
        blank=not actions,
    )


@dataclass(frozen=True, slots=True)
class _Parquet:
    """The same of a folder of Parquet files: only its own publisher makes commits there."""

    table: ParquetTable
    record: TableRecord

    def version(self) -> int:
        return self.table.log().version

    def mark(self, app_id: str) -> int | None:
        return self.table.log().newest(app_id)

    def rows(self) -> tuple[int | None, str]:
        with reaching(self.table.folder):
            return int(self.table.dataset(self.record).count_rows()), ""

    def files(self) -> tuple[int, list[str], list[str]]:
        named = [file for commit in self._log() for file in commit.get("files", ())]
        told = {file["path"]: file["size"] for file in named}
        return len(named), *_compared(told, self.table.store.sizes())

    def contents(self) -> list[KnownFile]:
        """The files that readers see; commits that have expired no longer tell of theirs."""
        told = {f["path"]: (f, c.get(BATCH)) for c in self._log() for f in c.get("files", ())}
        size_of = self.table.store.sizes()
        found = []
        for path in self.table.dataset(self.record).files:
            file, batch = told.get(path, ({}, None))
            size = file.get("size") or size_of(path) or 0
            held = _held(file.get("rows"), (batch, batch))
            found.append(KnownFile(path, size, file.get(TAG), held))
        return found

    def broken_vectors(self) -> Iterator[tuple[str, str]]:
        """There are no vectors in such a table."""
        return iter(())

    def past(self) -> None:
        return None

    def commits(self) -> list[tuple[str, int, int]]:
        return [(c[APP], int(c[BATCH]), int(c["rows"])) for c in self._log() if APP in c]

    def _log(self) -> list[dict[str, Any]]:
        return [self.table.commit(commit) for commit in self.table.log().commits]


@dataclass(frozen=True, slots=True)
class _Iceberg:
    """The same of an Iceberg table, whose snapshots may have expired."""

    table: IcebergTable

    def version(self) -> int:
        return self.table.version

    def mark(self, app_id: str) -> int | None:
        return self.table.mark(app_id)

    def rows(self) -> tuple[int | None, str]:
        files = self.table.files()
        if files is None:
            return None, "it has delete files"
        return sum(file.record_count for file in files.values()), ""

    def files(self) -> tuple[int, list[str], list[str]]:
        files = self.table.files() or {}
        told = {path: file.file_size_in_bytes for path, file in files.items()}
        return len(files), *_compared(told, at(self.table.folder).size)

    def contents(self) -> list[KnownFile]:
        """The live files, of which snapshots that have not expired tell the checksums."""
        sums = self.table.checksums()
        return [
            KnownFile(
                path, file.file_size_in_bytes, sums.get(path), _held(file.record_count, (None,) * 2)
            )
            for path, file in (self.table.files() or {}).items()
        ]

    def broken_vectors(self) -> Iterator[tuple[str, str]]:
        """Vectors of Iceberg are for Iceberg's own tools."""
        return iter(())

    def past(self) -> None:
        return None

    def commits(self) -> list[tuple[str, int, int]]:
        return self.table.commits()


_Opened = _Delta | _Parquet | _Iceberg
