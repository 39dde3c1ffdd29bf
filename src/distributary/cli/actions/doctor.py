"""`doctor`: one row per check, found against needed, and the command that mends it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from distributary.cli.actions.check import Check, State
from distributary.cli.actions.checks import checks_for_file, checks_of_machine
from distributary.cli.lakes import load_file
from distributary.cli.output import Paper, styled
from distributary.cli.verb import Invocation
from distributary.cli.words import counted

_COLOURS = {State.PASS: "green", State.WARN: "yellow", State.FAIL: "bold red"}


def examine(call: Invocation, *, file: Path | None, lake: str | None) -> int:
    """All checks; 1 if any fails."""
    loaded = load_file(call, file) if file is not None else None
    checks = list(checks_of_machine())
    checks += checks_for_file(loaded, lake)
    failed = sum(check.state is State.FAIL for check in checks)
    data = {"ok": not failed, "checks": checks}
    call.out.show(data, lambda paper: _draw(paper, checks, failed))
    return 1 if failed else 0


def _draw(paper: Paper, checks: Sequence[Check], failed: int) -> None:
    paper.table(
        ("CHECK", "", "FOUND", "NEEDED"),
        (
            (check.name, styled(check.state, _COLOURS[check.state]), check.found, check.needed)
            for check in checks
        ),
        indent=0,
    )
    for check in checks:
        if check.mend and check.state is not State.PASS:
            paper.line(styled(f"{check.name}: ", "bold"), check.mend)
    if failed:
        paper.line(styled(f"{counted(failed, 'check')} failed", "bold red"))
    else:
        paper.line(styled("all that is needed is there", "green"))
