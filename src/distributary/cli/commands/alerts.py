"""Alerts: whether they arrive."""

from __future__ import annotations

from typing import Annotated

import typer

from distributary.cli.help import GroupPage, show_help
from distributary.cli.options import DryRun, File
from distributary.cli.verb import LOOK, Invocation, verb

app = typer.Typer(
    help="Alerts: send a test message.",
    cls=GroupPage,
    callback=show_help,
    invoke_without_command=True,
)


@verb(
    app,
    panel=LOOK,
    examples=["distributary alerts test distributary-demo/games.yaml --dry-run"],
)
def test(
    call: Invocation,
    file: File,
    to: Annotated[
        str | None, typer.Option("--to", metavar="NAME", help="Only the target of this name.")
    ] = None,
    dry_run: DryRun = False,
) -> int:
    """Send a test message to each target of a pipeline file.

    PagerDuty gets an incident that is resolved at once. Exit code 1 if a target was not reached,
    or if there is none.
    """
    from distributary.cli.actions.alerts import test_targets

    return test_targets(call, file, to=to, dry_run=dry_run)
