"""`reset --table`: a table is taken as it is; what that means is shown before it is done."""

from __future__ import annotations

from pathlib import Path

from distributary.cli.actions.confirm import confirmed
from distributary.cli.failure import usage_error
from distributary.cli.lakes import open_pipeline
from distributary.cli.output import Paper, styled
from distributary.cli.verb import Invocation
from distributary.cli.words import counted
from distributary.run.accepting import Acceptance, accept, plan_acceptance, refuse_running


def accept_table(
    call: Invocation, file: Path, table: str, *, with_tables: bool, dry_run: bool, yes: bool
) -> int:
    """Say in the ledger that a table counts as it is now; 1 if the person says no."""
    if with_tables:
        raise usage_error(
            "--table keeps everything, --with-tables removes it: say one of them.",
            command="distributary reset",
        )
    pipeline = open_pipeline(call, file)
    plan = plan_acceptance(pipeline, table)
    check = plan.check
    data = {
        "pipeline": pipeline.config.name,
        "table": check.table,
        "dry_run": dry_run,
        "exists": check.version is not None,
        "rows": check.rows,
        "rows_by_ledger": check.rows_by_ledger,
        "difference": plan.difference,
        "findings": check.findings,
    }
    if dry_run:
        call.out.show(data | {"accepted": False}, lambda paper: _draw(paper, plan))
        return 0
    refuse_running(pipeline, plan)
    if not yes:
        _draw(call.out.margin, plan)
        if not confirmed(call, f"Take {check.table} as it is?", yes=yes, evidence=_summary(plan)):
            return 1
    accept(pipeline, plan)
    done = f"taken as it is: {_summary(plan)}"
    call.out.show(data | {"accepted": True}, lambda paper: paper.line(done))
    return 0


def _draw(paper: Paper, plan: Acceptance) -> None:
    paper.line(_summary(plan))
    if plan.check.agrees:
        paper.line("  by marks, rows and files it is what the ledger says")
    for finding in plan.check.findings:
        paper.line("  ", styled(finding.what, "bold red"), f": {finding.evidence}")


def _summary(plan: Acceptance) -> str:
    check = plan.check
    if check.version is None:
        has = "there is no table"
    else:
        has = f"version {check.version}, " + (
            "rows not counted" if check.rows is None else counted(check.rows, "row")
        )
    if not plan.difference:
        return f"{check.table} ({has})"
    rows = counted(abs(plan.difference), "row")
    return (
        f"{check.table} ({has}), {rows} {'fewer' if plan.difference < 0 else 'more'} than written"
    )
