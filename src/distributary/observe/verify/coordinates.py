"""Compares the coordinates of a table's rows, row by row, with the records that were read.

Coordinates (topic, partition, offset) must be there once, and only those that were read. Where
bronze is kept, each record that bronze has of a type must be in the type's table or among the dead
letters, and the other way round. They are put into a database on disk, so that a table of any size
can be compared; only where they came from is read, nothing else of a row.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from distributary.delta.compact import REMOVED
from distributary.delta.removal.erased_records import names_in, read_erasure
from distributary.delta.tables import reaching_table, refuse_damaged
from distributary.errors import DamagedFileError, LakeUnavailableError, PublishError
from distributary.model.table import Role
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.ledger.ledger_rows import ACCEPTED, PARKED, TableRow
from distributary.observe.verify.row_counts import (
    TableCheck,
    TableFinding,
    WrittenTable,
    unreadable,
)
from distributary.publish.formats.table_format_entry import open_readable, open_written

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_SETTINGS = {
    "memory_limit": "1GB",
    "preserve_insertion_order": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
_SHARD = re.compile(r"-(shard-[0-9]+|unified)$")
_NOT_READ = frozenset({"damaged", "unreadable", "file_missing", "file_changed"})
"""Findings about files: without them, the rows of a table are not all there."""
_EXAMPLES = 5
_LONGEST_EVIDENCE = 300
_COLUMNS = {"t": "VARCHAR", "p": "INTEGER", "o": "BIGINT", "b": "BIGINT", "k": "VARCHAR"}
"""Topic, partition, offset, batch, and what kind: the type, of a letter its status."""
_USUAL = {"t": "_topic", "p": "_partition", "o": "_offset", "b": "_batch"}
_LETTERS = {"t": "topic", "p": "partition", "o": "offset", "b": "batch", "k": "status"}
_NAMES = {Role.BRONZE: {**_USUAL, "k": "type", "a": "_arrived_at"}, Role.DEAD_LETTERS: _LETTERS}


@dataclass(frozen=True, slots=True)
class LoadedRows:
    """Where the rows of a table came from, in the database."""

    name: str
    has: frozenset[str]
    """Columns that the table has."""

    @property
    def placed(self) -> bool:
        """Return whether the coordinates of a row identify it."""
        return {"t", "p", "o"} <= self.has


@dataclass(slots=True)
class CoordinateComparison:
    """Compares tables of one lake; what several comparisons need is read once."""

    ledger: Ledger
    tables: Sequence[WrittenTable]
    engine: DuckDBPyConnection
    _kept: dict[str, LoadedRows | None] = field(default_factory=dict)
    _parked: tuple[TableRow, ...] | None = None
    _erased: bool | None = None
    """Whether records were erased; None until the first request."""
    _numbers: Iterator[int] = field(default_factory=count)

    def check(self, known: WrittenTable, check: TableCheck) -> TableCheck:
        """Return the check with the findings of a deep comparison."""
        if check.version is None:
            return check
        if any(finding.kind in _NOT_READ for finding in check.findings):
            note = "where its rows came from was not compared: not all of them can be read"
            return check.with_more(notes=[note])
        try:
            return self._checked(known, check)
        except (LakeUnavailableError, PublishError) as error:
            return check.with_more(findings=[unreadable(known, error)])

    def _checked(self, known: WrittenTable, check: TableCheck) -> TableCheck:
        with reaching_table(known.path):
            loaded = self._load(known)
            if loaded is None:
                return check
            check = self._batches(known, check, loaded)
            if not loaded.placed:
                reason = "tables.metadata keeps no topic, partition and offset in it"
                note = f"without coordinates only counts were compared: {reason}"
                check = check.with_more(notes=[note])
            else:
                check = self._once(known, check, loaded)
                check = self._inside(known, check, loaded)
                check = self._with_bronze(known, check, loaded)
            if known.path not in self._kept:
                self.engine.execute(f"DROP TABLE {loaded.name}")
        return check

    def _load_other(self, table: WrittenTable) -> LoadedRows | None:
        """Load a table that another one is compared with; None where it is gone or damaged."""
        try:
            return self._load(table, keep=True)
        except DamagedFileError:
            self._kept[table.path] = None
            return None

    def _load(self, known: WrittenTable, *, keep: bool = False) -> LoadedRows | None:
        if known.path in self._kept:
            return self._kept[known.path]
        readable = open_readable(known.path)
        if readable is None:
            return None
        names = _NAMES.get(Role(known.role), _USUAL)
        there = {short: name for short, name in names.items() if name in readable.schema.names}
        name = f"rows_{next(self._numbers)}"
        columns = ", ".join(
            f'"{there[short]}"::{kind} AS {short}' if short in there else f"NULL::{kind} AS {short}"
            for short, kind in {**_COLUMNS, "a": "TIMESTAMPTZ"}.items()
        )
        with (
            _readable(known.path),
            readable.batches(list(there.values()) or readable.schema.names[:1]) as incoming,
        ):
            self.engine.register("incoming", incoming)
            # names of our own columns, and nothing from outside
            self.engine.execute(f"CREATE TABLE {name} AS SELECT {columns} FROM incoming")  # noqa: S608
            self.engine.unregister("incoming")
        loaded = LoadedRows(name, frozenset(there))
        if keep:
            self._kept[known.path] = loaded
        return loaded

    def _batches(self, known: WrittenTable, check: TableCheck, loaded: LoadedRows) -> TableCheck:
        """Compare the rows by batch, if the table names the batch of each row."""
        if known.rows is None or "b" not in loaded.has or known.role == Role.DEAD_LETTERS:
            return check
        rows = [row for c in known.commits for row in self.ledger.table_batches(c).to_pylist()]
        rows = [row for row in rows if row["outcome"] != PARKED]
        sums = [r["batch"] for r in rows if r["outcome"] == ACCEPTED or r["batches"] != 1]
        # batches that were summed up or accepted are compared as one
        summed = max(sums, default=-1)
        expected: Counter[int] = Counter()
        for row in rows:
            expected[max(row["batch"], summed)] += row["rows"]
        newest = max(expected, default=-1)
        found: Counter[int] = Counter()
        counts = f"SELECT coalesce(b, -1), count(*) FROM {loaded.name} GROUP BY b"  # noqa: S608
        for number, size in self._ask(counts):
            if number <= newest:
                found[max(number, summed)] += size
        unlike = sorted(n for n in {*expected, *found} if expected[n] != found[n])
        removed = check.rows_removed
        if removed and all(expected[n] > found[n] for n in unlike):
            # Only the number of removed rows is recorded, and not their batches.
            unlike = unlike if sum(expected[n] - found[n] for n in unlike) > removed else []
        examples = "; ".join(
            f"batch {n}: {expected[n]:,} by the ledger, {found[n]:,} in the table"
            for n in unlike[:_EXAMPLES]
        )
        what = "batches with other rows in the table than were written"
        findings = _finding("batch_counts", what, (len(unlike), examples), _step(known))
        return check.with_more(compared=["counts per batch"], findings=findings)

    def _once(self, known: WrittenTable, check: TableCheck, loaded: LoadedRows) -> TableCheck:
        """Check that each record is there once, unless two pipelines or lives have read it."""
        written = sum(commit.written for commit in known.commits)
        if known.role not in (Role.BRONZE, Role.DEAD_LETTERS) and written != known.records:
            note = "a record may be several rows of it, so that doubled ones were not looked for"
            return check.with_more(notes=[note])
        lives = len({(commit.pipeline, commit.life) for commit in known.commits})
        taken = _accepted(known)
        self._cover(known)
        doubled = self._some(
            f"""
            SELECT t, p, o FROM (
                SELECT t, p, o, count(*) AS n FROM {loaded.name}
                WHERE coalesce(b, {taken} + 1) > {taken} GROUP BY t, p, o HAVING n > 1
            ) d LEFT JOIN (SELECT DISTINCT t AS known FROM covered) ON known = t
            WHERE n > CASE WHEN known IS NULL THEN {lives} ELSE greatest(1, (
                SELECT count(*) FROM covered c
                WHERE c.t = d.t AND c.p = d.p AND d.o >= c.low AND d.o < c.high)) END
            """  # noqa: S608
        )
        what = "records that are in it more than once"
        findings = _finding("duplicates", what, doubled, _step(known))
        return check.with_more(compared=["doubled coordinates"], findings=findings)

    def _inside(self, known: WrittenTable, check: TableCheck, loaded: LoadedRows) -> TableCheck:
        """Look for rows outside of the ranges that settled batches have read."""
        settled = max((c.batch for c in known.commits if c.batch is not None), default=-1)
        if "b" not in loaded.has and (check.rows or 0) > (check.rows_by_ledger or 0):
            return check.with_more(notes=["ranges were not compared: a batch is not finished yet"])
        self._cover(known)
        known_topics = f"SELECT 1 FROM {loaded.name} WHERE t IN (SELECT t FROM covered)"  # noqa: S608
        if not self._ask(f"{known_topics} LIMIT 1"):
            return check
        outside = self._some(
            f"""
            SELECT t, p, o FROM {loaded.name} x
            WHERE coalesce(b, {settled}) BETWEEN {_accepted(known)} + 1 AND {settled}
            AND t IN (SELECT t FROM covered) AND NOT EXISTS (SELECT 1 FROM covered c
                            WHERE c.t = x.t AND c.p = x.p AND x.o >= c.low AND x.o < c.high)
            """  # noqa: S608
        )
        what = "rows of records that no finished batch has read"
        findings = _finding("outside", what, outside, _step(known))
        return check.with_more(compared=["ranges that were read"], findings=findings)

    def _with_bronze(
        self, known: WrittenTable, check: TableCheck, loaded: LoadedRows
    ) -> TableCheck:
        if known.role not in (Role.EACH, Role.UNIFIED, Role.LOG):
            return check
        homes = {name: self._bronze_of(name) for name in known.pipelines}
        bronzes = {home.path: home for home in homes.values() if home is not None}
        for bronze in bronzes.values():
            raw = self._load_other(bronze)
            if raw is None:
                note = f"{bronze.table} is gone or damaged, so that it was not compared with it"
                check = check.with_more(notes=[note])
                continue
            check = check.with_more(compared=[f"coordinates in {bronze.table}"])
            if None not in homes.values() and len(bronzes) == 1:
                check = self._extra(check, loaded, bronze, raw)
            check = self._lost(known, check, loaded, bronze, raw)
        return check

    def _bronze_of(self, pipeline: str) -> WrittenTable | None:
        names = {pipeline, _SHARD.sub("", pipeline)}
        found = (t for t in self.tables if t.role == Role.BRONZE and names & {*t.pipelines})
        return next(found, None)

    def _extra(
        self, check: TableCheck, loaded: LoadedRows, bronze: WrittenTable, raw: LoadedRows
    ) -> TableCheck:
        """Find rows whose record is not in bronze; rows older than bronze are allowed."""
        extra = self._some(
            f"""
            SELECT x.t, x.p, x.o FROM {loaded.name} x
            JOIN (SELECT t, p, min(o) AS low FROM {raw.name} GROUP BY t, p) r
            ON r.t = x.t AND r.p = x.p AND x.o >= r.low
            WHERE NOT EXISTS (
                SELECT 1 FROM {raw.name} y WHERE y.t = x.t AND y.p = x.p AND y.o = x.o)
            {self._not_waiting(bronze)}
            """  # noqa: S608
        )
        if 0 < extra[0] <= _rows_removed(bronze):
            note = f"rows of records that were removed from {bronze.table}: {extra[0]:,}"
            return check.with_more(notes=[note])
        what = f"rows of records that {bronze.table} does not have"
        step = f"`distributary verify {bronze.table} --deep` says whether bronze lost them"
        return check.with_more(findings=_finding("extra", what, extra, step))

    def _lost(
        self,
        known: WrittenTable,
        check: TableCheck,
        loaded: LoadedRows,
        bronze: WrittenTable,
        raw: LoadedRows,
    ) -> TableCheck:
        """Records of bronze that are neither in the table nor among the dead letters."""
        if known.role == Role.LOG:
            note = "events that came twice are in bronze and not in a log: none were looked for"
            return check.with_more(notes=[note])
        values: list[Any] = []
        wanted = "x.k IS NOT NULL"
        if known.role == Role.EACH:
            wanted, values = "x.k = ?", [known.type]
            if not self._ask(f"SELECT 1 FROM {raw.name} x WHERE {wanted} LIMIT 1", values):  # noqa: S608
                note = f"{bronze.table} does not say which of its records are of {known.type}"
                return check.with_more(notes=[f"{note}: missing records were only counted"])
        places = [loaded.name, *self._same_type(known)]
        letters = [t for t in self.tables if t.role == Role.DEAD_LETTERS]
        kept = [self._load_other(t) for t in letters]
        if self._unread([*letters, *self._kin(known)]):
            note = "tables that could have its records are gone or damaged"
            return check.with_more(notes=[f"{note}: records that are missing were not looked for"])
        places += [f"(SELECT * FROM {k.name} WHERE k <> 'replayed')" for k in kept if k]  # noqa: S608
        nowhere = " ".join(
            f"AND NOT EXISTS (SELECT 1 FROM {place} y WHERE y.t = x.t AND y.p = x.p AND y.o = x.o)"  # noqa: S608
            for place in places
        )
        lost = self._some(
            f"""
            SELECT x.t, x.p, x.o FROM {raw.name} x
            WHERE {wanted} AND {self._judged(known, bronze)} {nowhere}
            {self._not_waiting(known)} {self._not_erased()}
            """,  # noqa: S608
            values,
        )
        sizes = (self._ask(f"SELECT count(*) FROM {k.name}")[0][0] for k in kept if k)  # noqa: S608
        expired = sum(t.rows or 0 for t in letters) - sum(sizes)
        filtered = sum(t.filtered for t in (known, *self._kin(known)))
        removed = sum(map(_rows_removed, (known, *self._kin(known))))
        if 0 < lost[0] <= expired + filtered + removed:
            note = f"records that are in {bronze.table} only: {lost[0]:,}"
            may = [f"rows that retention or an erasure has removed ({removed:,})"] * bool(removed)
            if lost[0] > removed and filtered:
                may.append(f"those that `shape` or an erasure has filtered ({filtered:,})")
            if lost[0] > filtered + removed:
                may.append(f"dead letters that `maintain` has removed since ({expired:,})")
            return check.with_more(notes=[f"{note}: {' and '.join(may)} may be them"])
        what = f"records of {bronze.table} that are neither in it nor dead letters"
        return check.with_more(findings=_finding("lost", what, lost, _step(known)))

    def _unread(self, tables: Sequence[WrittenTable]) -> bool:
        """Return whether rows of one of these tables could not be read, though it is there."""
        return any(
            t.path in self._kept and self._kept[t.path] is None and open_readable(t.path)
            for t in tables
        )

    def _kin(self, known: WrittenTable) -> list[WrittenTable]:
        """Return other tables with records of the type, as after a change of `tables.each`."""
        return [
            table
            for table in self.tables
            if table.role == Role.EACH == known.role
            and table.type == known.type
            and {*table.pipelines} & {*known.pipelines}
            and table.path != known.path
        ]

    def _same_type(self, known: WrittenTable) -> Iterator[str]:
        for table in self._kin(known):
            found = self._load_other(table)
            if found is not None and found.placed:
                yield found.name

    def _judged(self, known: WrittenTable, bronze: WrittenTable) -> str:
        """Return the settled batches since both tables were kept, after a table was accepted."""
        settled = max((c.batch for c in bronze.commits if c.batch is not None), default=-1)
        lives = {(commit.pipeline, commit.life) for commit in known.commits}
        kin = (commit for t in self.tables if t.role == known.role for commit in t.commits)
        began = min(commit.since for commit in kin if (commit.pipeline, commit.life) in lives)
        test = f"x.b <= {settled} AND x.b > {_accepted(known)}"
        if began > min(commit.since for commit in bronze.commits):
            test += f" AND x.a >= TIMESTAMPTZ '{began.isoformat()}'"
        return test

    def _not_waiting(self, table: WrittenTable) -> str:
        """Return the condition that leaves out parked batches, which the table lacks."""
        if self._parked is None:
            self._parked = self.ledger.parked()
        mine = (r for r in self._parked if r.table == table.table)
        waits = sorted({row.batch for row in mine if row.pipeline in table.pipelines})
        return f"AND coalesce(x.b, -1) NOT IN ({', '.join(map(str, waits))})" if waits else ""

    def _not_erased(self) -> str:
        """Return the condition that leaves out erased records, which bronze may still have."""
        if self._erased is None:
            names = names_in(self.ledger.lake)
            records = {
                r[:3] for name in names for r in read_erasure(self.ledger.lake, name).records
            }
            self._erased = bool(records)
            if records:
                topics, partitions, offsets = zip(*sorted(records), strict=True)
                rows = {"t": topics, "p": partitions, "o": offsets}
                self.engine.register("erasures", pa.table(rows))
                self.engine.execute("CREATE TEMP TABLE erased AS SELECT * FROM erasures")
                self.engine.unregister("erasures")
        if not self._erased:
            return ""
        return "AND NOT EXISTS (SELECT 1 FROM erased e WHERE e.t = x.t AND e.p = x.p AND e.o = x.o)"

    def _cover(self, known: WrittenTable) -> None:
        """Load the ranges that the table's writers have read, as a table `covered`."""
        ranges = self.ledger.covered()
        mine = pa.compute.is_in(ranges["pipeline"], pa.array(known.pipelines))
        self.engine.register("ranges", ranges.filter(mine))
        self.engine.execute(
            "CREATE OR REPLACE TEMP TABLE covered AS SELECT pipeline, life, topic AS t, "
            'partition AS p, start AS low, "end" AS high FROM ranges'
        )
        self.engine.unregister("ranges")

    def _some(self, sql: str, values: Sequence[Any] = ()) -> tuple[int, str]:
        """Return the number of rows that a query yields, and the first of them."""
        first = self._ask(f"{sql} ORDER BY ALL LIMIT {_EXAMPLES}", values)
        if not first:
            return 0, ""
        (count,) = self._ask(f"SELECT count(*) FROM ({sql})", values)[0]  # noqa: S608
        return int(count), ", ".join(f"{t}/{p}/{o}" for t, p, o in first)

    def _ask(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self.engine.execute(sql, list(values)).fetchall()


def _rows_removed(table: WrittenTable) -> int:
    """Return how many rows retention, expiry and erasures have removed from a table."""
    opened = open_written(table.path)
    return 0 if opened is None else opened.mark(REMOVED) or 0


def _finding(kind: str, what: str, found: tuple[int, str], step: str) -> list[TableFinding]:
    """Return a finding with the number of rows and the first examples, if there are any."""
    count, examples = found
    return [TableFinding(kind, f"{what}: {count:,}", examples, step)] if count else []


@contextmanager
def _readable(path: str) -> Iterator[None]:
    """Raise DamagedFileError where the engine could not read a table because a file is damaged."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        refuse_damaged(path, cause=error)
        raise


@contextmanager
def coordinates(ledger: Ledger, tables: Sequence[WrittenTable]) -> Iterator[CoordinateComparison]:
    """Provide a temporary database for the comparison; its files are removed at the end."""
    import duckdb

    with tempfile.TemporaryDirectory(prefix="distributary-verify-") as folder:
        settings: dict[str, Any] = {**_SETTINGS, "temp_directory": folder}
        engine = duckdb.connect(f"{folder}/coordinates.duckdb", config=settings)
        try:
            yield CoordinateComparison(ledger, tables, engine)
        except duckdb.Error as error:
            raise LakeUnavailableError(
                "the rows of the lake cannot be compared",
                evidence=str(error).partition("\n")[0][:_LONGEST_EVIDENCE],
                next_step="check the files of the tables: `distributary verify --all` names those "
                "that are gone or of another size",
            ) from error
        finally:
            engine.close()


def _accepted(known: WrittenTable) -> int:
    """Return the newest batch up to which the table was accepted as it is, or -1."""
    return max((c.accepted for c in known.commits if c.accepted is not None), default=-1)


def _step(known: WrittenTable) -> str:
    return (
        "`distributary trace TOPIC/PARTITION/OFFSET` says where a record is; put "
        f"{known.table} back from a copy; if it was intended, `{known.accept}` takes it as it is"
    )
