"""The check of one table at its version of a cut: its rows by the ledger, and its files."""

from __future__ import annotations

from dataclasses import replace

from distributary.delta.compact import REMOVED
from distributary.delta.log import load
from distributary.delta.tables import reaching_table
from distributary.errors import DistributaryError
from distributary.model.cut import CutPoint, CutTable
from distributary.observe.cuts import Cuts
from distributary.observe.verify.row_counts import TableCheck, TableFinding
from distributary.publish.formats.delta_format import WrittenDelta
from distributary.store.base import at

_SHOWN = 5


def check_cut(cuts: Cuts, point: CutPoint, table: CutTable) -> TableCheck:
    """Compare one table of a cut with the ledger and with its files."""
    check = TableCheck(table.table, table.role, table.path, (), version=table.version)
    if table.version is None:
        return check.with_more(notes=[f"{table.format} has no versions: it was not compared"])
    lost = "its version of this cut can no longer be read"
    step = "ask for a later cut: `distributary cuts` lists them"
    try:
        with reaching_table(table.path):
            found = load(at(table.path), version=table.version)
        if found is None or found.version != table.version:
            gone = TableFinding("missing", lost, f"there is no version {table.version}", step)
            return check.with_more(findings=[gone])
        written = WrittenDelta(found)
        count, missing, changed = written.files()
    except DistributaryError as error:
        evidence = error.evidence or error.what
        return check.with_more(findings=[TableFinding("missing", lost, evidence, step)])
    expected, removed = cuts.written(point, table), found.marks.get(REMOVED) or 0
    rows = found.count
    check = replace(
        check, rows=rows, rows_by_ledger=expected, rows_removed=removed, files=count
    ).with_more(compared=["files"])
    if missing:
        evidence = ", ".join(missing[:_SHOWN])
        check = check.with_more(findings=[TableFinding("file_missing", lost, evidence, step)])
    if changed:
        what = f"files of another size than its log says: {len(changed):,}"
        evidence = ", ".join(changed[:_SHOWN])
        found_sizes = TableFinding("file_changed", what, evidence, "put them back from a copy")
        check = check.with_more(findings=[found_sizes])
    if table.behind is not None:
        note = f"parked since batch {table.behind}: its rows were not compared"
        return check.with_more(notes=[note])
    if expected is None or rows is None:
        return check
    check = check.with_more(compared=["rows"])
    if rows + removed != expected:
        what = f"rows of the cut: {rows + removed:,} instead of {expected:,}"
        step = f"`distributary verify {table.table}` says which commits changed its rows"
        evidence = f"version {table.version} against the ledger's batches up to the cut"
        check = check.with_more(findings=[TableFinding("rows", what, evidence, step)])
    return check
