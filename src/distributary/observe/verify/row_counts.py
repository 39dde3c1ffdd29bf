"""Verify that a table holds the rows that the ledger says were written to it.

Only logs and statistics are used; no row is read. The checks are: the table exists, it has the
newest batch of every writer, it has as many rows, and every file in its log exists. Differences in
rows are explained if the log allows it: by unsettled batches, by our own maintenance, or by other
writers, by name.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from distributary.delta.commit import pipeline_of
from distributary.delta.compact import REMOVED
from distributary.delta.damage import TAG
from distributary.errors import (
    DamagedFileError,
    DistributaryError,
    LakeUnavailableError,
    PublishError,
)
from distributary.model import layout
from distributary.model.table import Role
from distributary.observe.ledger.ledger_rows import LastCommit
from distributary.observe.status.health import DERIVED
from distributary.publish.formats.table_format_entry import open_written
from distributary.publish.formats.written import LogCommit, TableHistory, WrittenFiles

_SHOWN = 5
_OURS = "Distributary"
"""The engine that our own commits name."""
_COPY = "put the table back from a copy that has it"


@dataclass(frozen=True, slots=True)
class TableFinding:
    """Something that is wrong with a table."""

    kind: str
    """missing, behind, rows, foreign, file_missing, file_changed, unreadable, damaged; of a deep
    look also duplicates, outside, batch_counts, lost, extra."""
    what: str
    evidence: str
    next_step: str


@dataclass(frozen=True, slots=True)
class WrittenTable:
    """A table with all of its writers."""

    path: str
    commits: tuple[LastCommit, ...]
    parked_batches: int = 0
    accept: str = ""
    """The command that takes it as it is."""

    @property
    def table(self) -> str:
        """Return the name of the table."""
        return self.commits[0].table

    @property
    def role(self) -> str:
        """Return the role of the table."""
        return self.commits[0].role

    @property
    def type(self) -> str:
        """Return the type of its records."""
        return self.commits[0].type

    @property
    def pipelines(self) -> tuple[str, ...]:
        """Return the pipelines that write to the table."""
        return tuple(sorted({commit.pipeline for commit in self.commits}))

    @property
    def rows(self) -> int | None:
        """Return the number of rows by the ledger; None if batches do not add up to it."""
        passing = f"/{layout.HOME}/" in self.path
        if self.role in DERIVED or passing:
            return None
        return sum(commit.rows for commit in self.commits)

    @property
    def accepted_version(self) -> int:
        """Return the version up to which the table was accepted, or -1."""
        taken = (commit.accepted_version for commit in self.commits)
        return max((version for version in taken if version is not None), default=-1)

    @property
    def records(self) -> int:
        """Records of the source that became these rows."""
        return sum(commit.records for commit in self.commits)

    @property
    def filtered(self) -> int:
        """Return the records of the source that conditions of `shape` kept out of it."""
        return sum(commit.filtered for commit in self.commits)


@dataclass(frozen=True, slots=True)
class TableCheck:
    """The result of comparing a table with the ledger."""

    table: str
    role: str
    path: str
    pipelines: tuple[str, ...]
    version: int | None = None
    """None: there is no table."""
    rows: int | None = None
    rows_by_ledger: int | None = None
    rows_removed: int = 0
    """Rows that retention, expiry and erasures have removed, by the table's own count."""
    files: int = 0
    parked_batches: int = 0
    compared: tuple[str, ...] = ()
    findings: tuple[TableFinding, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    @property
    def agrees(self) -> bool:
        """Return whether there is no finding."""
        return not self.findings

    def with_more(
        self,
        *,
        compared: Iterable[str] = (),
        findings: Iterable[TableFinding] = (),
        notes: Iterable[str] = (),
    ) -> TableCheck:
        """Return the check with more comparisons, findings and notes."""
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
    """Return each table of a lake once, with all writers, by name.

    `parked` counts parked batches by pipeline and table; `files` has each pipeline's file.
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
    """Compare one table with the ledger."""
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


def unreadable(known: WrittenTable, error: DistributaryError) -> TableFinding:
    """Return the finding for an error that ended the look at a table."""
    if isinstance(error, DamagedFileError):
        own = error.where.startswith(f"{known.path}/")
        what = "a data file is damaged" if own else "a data file of its log is damaged"
        in_log = error.where.startswith(f"{known.path}/_delta_log/")
        what = "a checkpoint of its log is damaged" if in_log else what
        step = mend(known) if own and not in_log else error.next_step
        return TableFinding("damaged", what, f"{error.where}: {error.evidence}", step)
    what = "its log cannot be read"
    step = f"{_COPY}, or fix the file that is named; without a copy, {_way_on(known)}"
    return TableFinding("unreadable", what, error.evidence or error.what, step)


def _way_on(known: WrittenTable) -> str:
    """Say how to go on without a log that can be read."""
    again = f"`distributary rebuild {known.table}`"
    return (
        "look at the commit: if it is right but for its checksum, delete the key "
        f"{TAG} at its beginning; else move the table's folder away, then "
        f"{again if known.role == Role.MERGED else f'`{known.accept}`'}"
    )


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
    """Count the rows by which a table differs from the ledger, without unsettled batches."""
    if known.rows is None or (check.version is not None and check.rows is None):
        return 0
    unsettled = 0
    opened = None if check.version is None else open_written(known.path)
    if opened is not None:
        newest = _newest(known)
        unsettled = sum(
            rows for app, batch, rows in opened.commits() if batch > newest.get(app, batch)
        )
    return (check.rows or 0) + check.rows_removed - unsettled - known.rows


def _absent(check: TableCheck, known: WrittenTable) -> TableCheck:
    wanted = [commit for commit in known.commits if commit.required is not None]
    if not wanted:
        waits = "everything it was given is parked" if known.parked_batches else "it has no rows"
        return check.with_more(notes=[f"there is no table yet: {waits}"])
    rows = "" if known.rows is None else f"{known.rows:,} rows, "
    newest = ", ".join(f"batch {c.required} of {c.pipeline}" for c in wanted[:_SHOWN])
    evidence = f"no {known.path}; by the ledger it has {rows}the newest: {newest}"
    gone = TableFinding("missing", "there is no table", evidence, _way_out(known))
    return check.with_more(findings=[gone])


def _examined(check: TableCheck, known: WrittenTable, table: WrittenFiles) -> TableCheck:
    rows, why = table.rows()
    count, gone, changed = table.files()
    removed = table.mark(REMOVED) or 0
    check = replace(check, version=table.version(), rows=rows, files=count, rows_removed=removed)
    check = check.with_more(compared=["marks"], findings=_behind(known, table))
    if known.rows is not None and rows is None:
        check = check.with_more(notes=[f"rows were not compared: {why}"])
    elif known.rows is not None and rows is not None:
        check = check.with_more(compared=["rows"])
        if removed:
            note = f"rows that retention, expiry or an erasure has removed: {removed:,}"
            check = check.with_more(notes=[note])
        if rows + removed != known.rows:
            check = _explained(check, known, table.past(), rows + removed - known.rows)
    return check.with_more(compared=["files"], findings=_files(known, gone, changed))


def _behind(known: WrittenTable, table: WrittenFiles) -> list[TableFinding]:
    """Return the lanes whose newest batch the table lacks."""
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
    return [TableFinding("behind", what, "; ".join(lacking[:_SHOWN]), _way_out(known))]


def _files(known: WrittenTable, gone: Sequence[str], changed: Sequence[str]) -> list[TableFinding]:
    found = []
    if gone:
        what = f"files that its log names and that are gone: {len(gone):,}"
        step = (
            "put them back from a copy (a VACUUM with a short retention may have taken them), or "
            f"take them out of its log with FSCK REPAIR TABLE; then `{known.accept}`"
        )
        found.append(TableFinding("file_missing", what, ", ".join(gone[:_SHOWN]), step))
    if changed:
        what = f"files of another size than its log says: {len(changed):,}"
        step = "put them back from a copy"
        found.append(TableFinding("file_changed", what, ", ".join(changed[:_SHOWN]), step))
    return found


def _way_out(known: WrittenTable) -> str:
    rebuild = f"`distributary rebuild {known.table}` makes it again from its log; "
    first = rebuild if known.role == Role.MERGED else f"{_COPY}; "
    return f"{first}if it was intended, `{known.accept}` takes it as it is"


def _explained(
    check: TableCheck, known: WrittenTable, past: TableHistory | None, difference: int
) -> TableCheck:
    """Add the causes of differing rows: unsettled batches, our maintenance, or other writers."""
    if past is None:
        return check.with_more(findings=[_unexplained(known, difference, None)])
    newest, taken = _newest(known), known.accepted_version
    # merges mark dead letters, and cleaning a pipeline away removes its letters
    letters = known.role == Role.DEAD_LETTERS
    under_way, upkeep, unknown, foreign = [], [], [], []
    for commit in past.commits:
        if (
            commit.rows == 0
            or commit.counted
            or (commit.version <= taken and commit.app_id not in newest)
        ):
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
        batches_text = [f"batch {c.batch} of {pipeline_of(c.app_id)}" for c in under_way[-_SHOWN:]]
        notes.append(f"not finished yet, and not in the ledger: {', '.join(batches_text)}")
    if upkeep:
        notes.append(f"rows removed by maintenance: {_described(upkeep)}")
    if unknown:
        names = ", ".join(sorted({pipeline_of(commit.app_id) for commit in unknown})[:_SHOWN])
        notes.append(f"commits that the ledger does not know: {len(unknown):,}, by {names}")
    findings = []
    if foreign:
        what = f"commits of others that changed its rows: {len(foreign):,}"
        step = f"find out who wrote them; if intended, `{known.accept}` takes the table as it is"
        findings.append(TableFinding("foreign", what, _described(foreign), step))
    effects = [c.rows for c in (*under_way, *upkeep, *unknown, *foreign)]
    left = difference - sum(effect or 0 for effect in effects)
    if None not in effects and left:
        if letters and not past.complete and left < 0:
            notes.append(f"dead letters that were done with, removed by `maintain`: {-left:,}")
        else:
            findings.append(_unexplained(known, left, past))
    return check.with_more(findings=findings, notes=notes)


def _described(commits: Sequence[LogCommit]) -> str:
    return "; ".join(commit.describe() for commit in commits[-_SHOWN:])


def _newest(known: WrittenTable) -> dict[str, int]:
    """Return the newest settled batch of every lane."""
    batches = {c.app_id: (c.batch, c.accepted) for c in known.commits}
    return {a: max(-1 if n is None else n for n in both) for a, both in batches.items()}


def _unexplained(known: WrittenTable, left: int, past: TableHistory | None) -> TableFinding:
    evidence = [f"by the ledger {known.rows:,} rows, the table has {(known.rows or 0) + left:,}"]
    if past is not None:
        blank = [str(commit.version) for commit in past.commits if commit.blank]
        evidence += [f"the commit of version {', '.join(blank)} is an empty file"] if blank else []
        if not past.complete:
            evidence.append("older commits are no longer in its log, so the writer is unknown")
    what = f"{'missing' if left < 0 else 'surplus'} rows: {abs(left):,}"
    step = f"`distributary verify {known.table} --deep` says which; {_way_out(known)}"
    return TableFinding("rows", what, "; ".join(evidence), step)
