"""`demo`: records are simulated while a pipeline ingests them, and the result is shown."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from distributary.cli.verb import START, Invocation, verb

app = typer.Typer()


class Subject(StrEnum):
    """What the demo is about."""

    GAMES = "games"
    ORDERS = "orders"
    CDC = "cdc"


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
    # everything that simulates and runs takes long to import
    from distributary.cli.demo.changes import changes_scene
    from distributary.cli.demo.play import Scene, play
    from distributary.cli.demo.records import games_scene, orders_scene

    foreign = {
        Subject.GAMES: {"--tables": tables, "--events": events},
        Subject.ORDERS: {"--tables": tables, "--events": events, "--games": games},
        Subject.CDC: {
            "--games": games,
            "--versions": versions,
            "--bad": bad,
            "--kafka": kafka or None,
        },
    }
    for option, value in foreign[subject].items():
        if value is not None:
            raise call.usage(f"{option} means nothing for demo {subject}.")
    scene: Scene
    match subject:
        case Subject.GAMES:
            scene = games_scene(
                games=games or 20,
                versions=versions or 5,
                records=records,
                bad=3 if bad is None else bad,
                seed=seed,
                kafka=kafka,
            )
        case Subject.ORDERS:
            bare = 1 if bad is None else bad
            scene = orders_scene(versions=versions or 2, records=records, bare=bare, seed=seed)
        case Subject.CDC:
            scene = changes_scene(
                tables=tables or 5, events=events or 2_000, seed=seed, chaos=chaos
            )
    return play(call, scene, path, chaos=chaos)
