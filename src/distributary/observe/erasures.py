"""The layers of an erasure, and the check that erased records are still gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distributary.delta.log import Snapshot, load
from distributary.delta.removal.erased_records import (
    IN_LETTERS,
    IN_TABLES,
    ErasedRows,
    KnownErased,
    RowPlaces,
    certificate_of,
    is_done,
    is_later,
    names_in,
    read_all,
    read_erasure,
)
from distributary.delta.removal.row_removal import matches_in
from distributary.delta.tables import reaching_table
from distributary.errors import CheckpointError
from distributary.model import layout
from distributary.model.table import Role
from distributary.model.table_format import DELTA, TABLE_FORMATS
from distributary.observe.ledger.ledger import Ledger
from distributary.publish.formats.table_format_entry import format_at
from distributary.store.base import at, is_remote

ERASED_FROM = frozenset({Role.BRONZE, Role.EACH, Role.UNIFIED, Role.DEAD_LETTERS})
"""The roles of tables whose rows an erasure removes by their records and values."""
BY_KEY = frozenset({Role.LOG, Role.MERGED, Role.HISTORY})
"""The roles of tables that are made of one log, from which an erasure removes whole keys."""


@dataclass(frozen=True, slots=True)
class ErasableTable:
    """A table of the lake, in the folder where it is now."""

    table: str
    role: str
    folder: str
    pipelines: tuple[str, ...]

    @property
    def places(self) -> RowPlaces:
        """Return the columns that say where its rows came from."""
        return IN_LETTERS if self.role == Role.DEAD_LETTERS else IN_TABLES


def tables_of(lake: str) -> tuple[ErasableTable, ...]:
    """Return each table of a lake once, with all of its pipelines."""
    found: dict[str, ErasableTable] = {}
    for table in Ledger(lake).tables(schema_ids=False):
        folder = layout.place(lake, table.path)
        known = found.get(folder)
        pipelines = (*(known.pipelines if known else ()), table.pipeline)
        found[folder] = ErasableTable(table.table, table.role, folder, pipelines)
    return tuple(sorted(found.values(), key=lambda table: (table.table, table.folder)))


def open_delta(table: ErasableTable) -> tuple[Snapshot | None, str]:
    """Open a table of the lake; return None and a reason if its rows cannot be reached."""
    kind = DELTA if is_remote(table.folder) else format_at(table.folder)
    if kind is None:
        return None, ""
    if kind != DELTA:
        return None, f"it is a table of {TABLE_FORMATS[kind].label}"
    with reaching_table(table.folder):
        return load(at(table.folder)), ""


def erased_rows(state: Snapshot, table: ErasableTable, known: KnownErased) -> ErasedRows:
    """Return the erased rows of a table."""
    return ErasedRows.of(known, state, table.places)


# The comparison of certificates with the tables.


@dataclass(frozen=True, slots=True)
class ErasureFinding:
    """Something that is wrong with an erasure."""

    kind: str
    """unfinished, damaged, or of a deep look rows."""
    what: str
    evidence: str
    next_step: str


@dataclass(frozen=True, slots=True)
class ErasureCheck:
    """The erasures of a lake, and their problems."""

    erasures: int = 0
    """Erasures with a certificate."""
    waiting: int = 0
    """Batches with records of an erased value that are still in bronze."""
    rows_compared: bool = False
    findings: tuple[ErasureFinding, ...] = ()

    @property
    def agrees(self) -> bool:
        """Return whether there is no finding."""
        return not self.findings


def check_erasures(lake: str, *, deep: bool) -> ErasureCheck:
    """Check the documents of all erasures; a deep look reads the tables for rows that came back."""
    with reaching_table(layout.erased(lake)):
        names = names_in(lake)
    done, findings = list[str](), list[ErasureFinding]()
    own = [name for name in names if not is_later(name)]
    for name in own:
        try:
            read_erasure(lake, name)
            if not is_done(lake, name):
                step = "`distributary erase` or the next run of a pipeline finishes it"
                what = "an erasure was begun and has not ended"
                findings.append(ErasureFinding("unfinished", what, name, step))
                continue
            certificate_of(lake, name)
            done.append(name)
        except CheckpointError as error:
            evidence = f"{error.where}: {error.evidence}"
            findings.append(ErasureFinding("damaged", error.what, evidence, error.next_step))
    waiting = sum(not is_done(lake, name) for name in names if is_later(name))
    if deep and done:
        findings += _rows_that_are_back(lake, read_all(lake, done))
    return ErasureCheck(len(done), waiting, deep and bool(done), tuple(findings))


def _rows_that_are_back(lake: str, known: KnownErased) -> Sequence[ErasureFinding]:
    found = []
    for table in tables_of(lake):
        state, _ = open_delta(table)
        rows = None if state is None else erased_rows(state, table, known)
        if state is None or rows is None or not rows.columns:
            continue
        with reaching_table(table.folder):
            count = sum(match.gone for match in matches_in(state, rows))
        if count:
            what = f"rows of erased records that are in {table.table}: {count:,}"
            step = "find out which program wrote them; `distributary erase` removes them again"
            found.append(ErasureFinding("rows", what, table.folder, step))
    return found
