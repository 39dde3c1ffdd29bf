"""A real broker and a real registry on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from distributary.cli.help import GroupPage, show_help
from distributary.cli.options import DryRun
from distributary.cli.verb import Invocation, verb

app = typer.Typer(
    help="Kafka and a schema registry on this machine.",
    cls=GroupPage,
    callback=show_help,
    invoke_without_command=True,
)

Folder = Annotated[
    Path | None,
    typer.Option(
        "--folder", metavar="DIR", help="Keeps data and logs; one of the user if not given."
    ),
]


@verb(
    app,
    examples=[
        "distributary dev up",
        "distributary dev up --kafka-port 19092 --registry-port 18081 --folder kafka-2",
    ],
)
def up(
    call: Invocation,
    kafka_port: Annotated[
        int | None,
        typer.Option("--kafka-port", min=1, max=65535, help="The broker's port; else 9092."),
    ] = None,
    registry_port: Annotated[
        int | None,
        typer.Option("--registry-port", min=1, max=65535, help="The registry's port; else 8081."),
    ] = None,
    folder: Folder = None,
) -> None:
    """Start them on loopback, and wait until both answer.

    They go on in the background until `dev down`. What runs already stays as it is. The first
    time, about 150 MB are fetched into the user's cache.
    """
    from distributary.cli.actions.dev import start_services

    start_services(call, folder=folder, kafka_port=kafka_port, registry_port=registry_port)


@verb(app, examples=["distributary dev down", "distributary dev down --wipe --dry-run"])
def down(
    call: Invocation,
    wipe: Annotated[
        bool, typer.Option("--wipe", help="Remove topics, schemas and logs as well.")
    ] = False,
    folder: Folder = None,
    dry_run: DryRun = False,
) -> None:
    """Stop them; topics and schemas stay."""
    from distributary.cli.actions.dev import stop_services

    stop_services(call, folder=folder, wipe=wipe, dry_run=dry_run)


@verb(app, examples=["distributary dev status"])
def status(call: Invocation, folder: Folder = None) -> int:
    """What runs, where, since when, and whether it answers; exit code 1 unless both do."""
    from distributary.cli.actions.dev import show_services

    return show_services(call, folder=folder)
