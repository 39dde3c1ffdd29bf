"""`rebuild`: a merged table from its log."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from distributary.cli.actions.moments import microseconds, moment_of
from distributary.cli.actions.schema import find_table
from distributary.cli.lakes import find_lake, pipeline_of
from distributary.cli.output import Paper, styled
from distributary.cli.verb import Invocation
from distributary.cli.words import counted, duration, number
from distributary.merge.verify import Verified
from distributary.observe.ledger import Ledger
from distributary.observe.rows import TableSummary
from distributary.run.pipeline import Pipeline
from distributary.run.rebuild_requests import Rebuilt
from distributary.run.rebuilding import rebuild_table
from distributary.run.verifying import verify_table


def rebuild_from_log(
    call: Invocation,
    table: str,
    *,
    as_of: str | None,
    lake: str | None,
    pipeline: str | None,
    file: Path | None,
    dry_run: bool,
) -> int:
    """Make one table anew, or say what that would change."""
    moment = moment_of(as_of, command="distributary rebuild")
    found = find_lake(call, lake, file)
    tables = Ledger(found.path, storage_options=found.options).tables(pipeline)
    known = find_table(tables, table)
    mine = pipeline_of(call, found, name=pipeline or known.pipeline)
    data: dict[str, Any] = {"table": known.table, "dry_run": dry_run, "as_of": moment}
    if dry_run:
        would = verify_table(mine, known, as_of_us=microseconds(moment)).verified
        call.out.show(data | _planned(would), lambda paper: _draw_planned(paper, would))
    else:
        _rebuild(call, mine, known, moment, data)
    return 0


def _rebuild(
    call: Invocation,
    pipeline: Pipeline,
    known: TableSummary,
    moment: datetime | None,
    data: dict[str, Any],
) -> None:
    done = rebuild_table(pipeline, known, as_of_us=microseconds(moment))
    told = {
        "log": done.log,
        "rows": done.rows,
        "table_version": done.version if done.version >= 0 else None,
        "seconds": round(done.seconds, 3),
        "by_running_pipeline": done.by_owner,
    }
    call.out.show(data | told, lambda paper: _draw_done(paper, done))
    if moment is not None:
        call.out.warn(
            f"{known.table} is as it was at {moment.isoformat()}; new batches are merged into "
            f"that. Up to date again: distributary rebuild {known.table}"
        )
    if known.parked_batches:
        call.out.note(
            f"{counted(known.parked_batches, 'batch', 'batches')} wait for it still: "
            f"distributary resume {known.table}"
        )


def _planned(would: Verified) -> dict[str, Any]:
    changes = {"added": would.missing, "removed": would.extra, "changed": would.different}
    return {"rows": would.expected, "rows_now": would.found, **changes}


def _draw_planned(paper: Paper, would: Verified) -> None:
    paper.line(
        f"{would.table} would have {counted(would.expected, 'row')}, it has {number(would.found)}: "
        f"{number(would.missing)} would be added, {number(would.extra)} removed, "
        f"{number(would.different)} changed"
    )


def _draw_done(paper: Paper, done: Rebuilt) -> None:
    if done.version < 0:
        paper.line(f"{done.log} leaves no row: there is no table {done.table}, and none was made")
        return
    how = ", by the running pipeline" if done.by_owner else ""
    paper.line(
        "rebuilt ",
        styled(done.table, "bold"),
        f" from {done.log}: {counted(done.rows, 'row')}, version {done.version}, "
        f"{duration(done.seconds)}{how}",
    )
