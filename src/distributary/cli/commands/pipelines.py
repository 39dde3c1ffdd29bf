"""Declarative pipelines: projects of `spark-pipelines` that use the decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from distributary.cli.help import GroupPage, show_help
from distributary.cli.verb import RUN, Invocation, verb

app = typer.Typer(
    help="Declarative pipelines: run a project of Spark's.",
    cls=GroupPage,
    callback=show_help,
    invoke_without_command=True,
)


@verb(
    app,
    panel=RUN,
    examples=[
        "distributary pipelines run examples/declarative",
        "distributary pipelines run examples/declarative --dry-run",
    ],
)
def run(
    call: Invocation,
    project: Annotated[
        Path, typer.Argument(metavar="PROJECT", help="The project's folder, or its spec file.")
    ],
    master: Annotated[
        str, typer.Option("--master", help="Where Spark runs, such as local[4].")
    ] = "local[*]",
    remote: Annotated[
        str | None,
        typer.Option("--remote", envvar="SPARK_REMOTE", help="A Spark Connect server: sc://host."),
    ] = None,
    max_restarts: Annotated[
        str,
        typer.Option("--max-restarts", help="Updates that may fail in a row: unlimited, or 5."),
    ] = "unlimited",
    grace: Annotated[
        str, typer.Option("--grace", help="How long an update may take to end when stopped.")
    ] = "60s",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check the project's definitions.")
    ] = False,
) -> int:
    """Run one update of a declarative project, and again if the schema grows meanwhile.

    The same as `spark-pipelines run`, under a supervisor: an update that fails is run again after a
    pause, with the columns that the registry knows by then. Nothing is lost and nothing doubled.
    """
    from distributary.cli.actions.pipelines import Wanted, run_project

    wanted = Wanted(
        master=master, remote=remote, max_restarts=max_restarts, grace=grace, dry_run=dry_run
    )
    return run_project(call, project, wanted)
