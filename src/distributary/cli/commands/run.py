"""To run a pipeline."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from distributary.cli.verb import (
    RUN,
    START,
    DryRun,
    File,
    GroupPage,
    Invocation,
    LogForm,
    Token,
    show_help,
    verb,
)


def declare(app: typer.Typer) -> None:
    """Adds the commands of this group."""

    @verb(
        app,
        panel=RUN,
        examples=[
            "distributary run distributary-demo/games.yaml",
            "distributary run distributary-demo/games.yaml --every 10s",
            "distributary run distributary-demo/games.yaml --metrics 127.0.0.1:9464",
        ],
    )
    def run(
        call: Invocation,
        file: File,
        continuous: Annotated[
            bool, typer.Option("--continuous", help="Go on until stopped, without a pause.")
        ] = False,
        every: Annotated[
            str | None, typer.Option("--every", help="Go on until stopped, a batch every 10s.")
        ] = None,
        available_now: Annotated[
            bool, typer.Option("--available-now", help="Take what is there, then end.")
        ] = False,
        metrics: Annotated[
            str | None,
            typer.Option(
                "--metrics", metavar="HOST:PORT", help="Serve metrics for Prometheus meanwhile."
            ),
        ] = None,
        token: Token = None,
        log_format: LogForm = None,
    ) -> int:
        """Run a pipeline in the foreground, with live progress.

        In a terminal the view redraws itself; in a pipe there is one line per batch. Without one
        of the three flags the file's trigger holds. Ctrl-C once finishes the batch.
        """
        from distributary.cli.actions.run import run_pipeline, trigger_of

        trigger = trigger_of(continuous=continuous, every=every, available_now=available_now)
        return run_pipeline(
            call, file, trigger=trigger, log_format=log_format, metrics=metrics, token=token
        )


# To run many pipelines.


def declare_up(app: typer.Typer) -> None:
    """Adds the command."""

    @verb(
        app,
        panel=RUN,
        examples=[
            "distributary up distributary-demo/games.yaml",
            "distributary up distributary-demo/games.yaml --every 10s --listen 127.0.0.1:0",
        ],
    )
    def up(
        call: Invocation,
        files: Annotated[list[Path], typer.Argument(help="The pipeline files.", metavar="FILE")],
        every: Annotated[
            str | None,
            typer.Option("--every", help="Go on until stopped, a batch every 10s, all of them."),
        ] = None,
        grace: Annotated[
            str,
            typer.Option("--grace", help="How long pipelines may take to finish when stopped."),
        ] = "60s",
        listen: Annotated[
            str | None,
            typer.Option(
                "--listen",
                metavar="HOST:PORT",
                help="Answer /live, /ready, /status and /metrics; port 0 takes a free one.",
            ),
        ] = None,
        token: Token = None,
        log_format: LogForm = None,
    ) -> int:
        """Run many pipelines, a process each, and start again what fails.

        A pipeline that fails does not touch the others; it is started again after a pause, as its
        section `restart` says. Ctrl-C or SIGTERM once lets every pipeline finish its batch.
        """
        from distributary.cli.actions.up import Wanted, run_all

        wanted = Wanted(every, grace=grace, listen=listen, token=token, log_format=log_format)
        return run_all(call, files, wanted)


# Declarative pipelines: projects of `spark-pipelines` that use the decoder.

pipelines_app = typer.Typer(
    help="Declarative pipelines: run a project of Spark's.",
    cls=GroupPage,
    callback=show_help,
    invoke_without_command=True,
)


@verb(
    pipelines_app,
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
    from distributary.cli.actions.pipelines import UpdatesWanted, run_project

    wanted = UpdatesWanted(
        master=master, remote=remote, max_restarts=max_restarts, grace=grace, dry_run=dry_run
    )
    return run_project(call, project, wanted)


# To begin with: the demo.


class Subject(StrEnum):
    """What the demo is about."""

    GAMES = "games"
    ORDERS = "orders"
    CDC = "cdc"


def declare_start(app: typer.Typer) -> None:
    """Adds the commands of this group."""

    @verb(
        app,
        panel=START,
        examples=[
            "distributary demo games",
            "distributary demo games --chaos",
            "distributary demo games --kafka",
            "distributary demo orders",
            "distributary demo cdc",
        ],
    )
    def demo(
        call: Invocation,
        subject: Annotated[Subject, typer.Argument(help="What is simulated.")] = Subject.GAMES,
        games: Annotated[
            int | None, typer.Option("--games", min=1, help="How many types of record; else 20.")
        ] = None,
        versions: Annotated[
            int | None,
            typer.Option("--versions", min=1, help="Schema versions; else 5, of orders 2."),
        ] = None,
        records: Annotated[
            int, typer.Option("--records", min=1, help="Good messages per type and version.")
        ] = 100,
        bad: Annotated[
            int | None, typer.Option("--bad", min=0, help="Bad records; else 3, of orders 1.")
        ] = None,
        tables: Annotated[
            int | None, typer.Option("--tables", min=1, help="Of cdc: how many tables; else 5.")
        ] = None,
        events: Annotated[
            int | None,
            typer.Option("--events", min=20, help="Of cdc: how many changes; else 2000."),
        ] = None,
        seed: Annotated[
            int, typer.Option("--seed", help="The same seed sends the same records.")
        ] = 999,
        path: Annotated[
            Path, typer.Option("--path", help="The lake to make; begun anew if it is a demo's.")
        ] = Path("distributary-demo"),
        kafka: Annotated[
            bool,
            typer.Option("--kafka", help="With a broker and a registry of its own; orders always."),
        ] = False,
        chaos: Annotated[
            bool, typer.Option("--chaos", help="Kill it at each of its steps, and go on.")
        ] = False,
    ) -> int:
        """Simulate, ingest and show the result, all on this machine.

        Schemas evolve while the pipeline runs. The games need nothing: a table stands for Kafka
        and a folder for the registry. With --kafka, and for the orders, a real broker and a real
        registry are started on free ports and end with the demo; others that run are left alone.
        In cdc the rows of a database change: its tables are kept current from files of changes,
        and are compared with their logs and with the database.
        The folder then holds a lake and the pipeline's file, and the other commands work on it.
        """
        from distributary.cli.actions.demo import run_demo
        from distributary.cli.actions.demo_changes import changes_scene, run_changes_demo
        from distributary.cli.actions.demo_scene import games_scene, orders_scene, refuse

        if subject is Subject.CDC:
            refuse({"--games": games, "--versions": versions, "--bad": bad}, subject)
            refuse({"--kafka": kafka or None}, subject)
            changes = changes_scene(
                tables=tables or 5, events=events or 2_000, seed=seed, chaos=chaos
            )
            return run_changes_demo(call, changes, path=path, chaos=chaos)
        refuse({"--tables": tables, "--events": events}, subject)

        if subject is Subject.ORDERS:
            scene = orders_scene(
                games=games, versions=versions, records=records, bad=bad, seed=seed
            )
        else:
            scene = games_scene(
                games=games, versions=versions, records=records, bad=bad, seed=seed, kafka=kafka
            )
        return run_demo(call, scene, path=path, chaos=chaos)


# A real broker and a real registry on this machine.

dev_app = typer.Typer(
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
    dev_app,
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


@verb(dev_app, examples=["distributary dev down", "distributary dev down --wipe --dry-run"])
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


@verb(dev_app, examples=["distributary dev status"])
def status(call: Invocation, folder: Folder = None) -> int:
    """What runs, where, since when, and whether it answers; exit code 1 unless both do."""
    from distributary.cli.actions.dev import show_services

    return show_services(call, folder=folder)
