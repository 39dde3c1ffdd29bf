"""`demo`: records are simulated while a pipeline ingests them, and the result is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from distributary.cli.command.verb import START, Invocation, argument, option, single, verb

app = single(START)


@verb(app, "demo games", "demo games --chaos", "demo games --kafka", "demo orders", "demo cdc")
def demo(
    call: Invocation,
    subject: Annotated[Literal["games", "orders", "cdc"], argument("What is simulated.")] = "games",
    games: Annotated[
        int | None, option("--games", "How many types of record; else 20.", min=1)
    ] = None,
    versions: Annotated[
        int | None, option("--versions", "Schema versions; else 5, of orders 2.", min=1)
    ] = None,
    records: Annotated[
        int, option("--records", "Good messages per type and version.", min=1)
    ] = 100,
    bad: Annotated[int | None, option("--bad", "Bad records; else 3, of orders 1.", min=0)] = None,
    tables: Annotated[
        int | None, option("--tables", "Of cdc: how many tables; else 5.", min=1)
    ] = None,
    events: Annotated[
        int | None, option("--events", "Of cdc: how many changes; else 2000.", min=20)
    ] = None,
    seed: Annotated[int, option("--seed", "The same seed sends the same records.")] = 999,
    path: Annotated[
        Path, option("--path", "The lake to make; started over if it is a demo's.")
    ] = Path("distributary-demo"),
    kafka: Annotated[
        bool, option("--kafka", "With a broker and a registry of its own; orders always.")
    ] = False,
    chaos: Annotated[bool, option("--chaos", "Kill it at each of its steps, and go on.")] = False,
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
    from distributary_lab.demo.play import Scene, play
    from distributary_lab.demo.scenes import changes_scene, games_scene, orders_scene

    foreign = {
        "games": {"--tables": tables, "--events": events},
        "orders": {"--tables": tables, "--events": events, "--games": games},
        "cdc": {"--games": games, "--versions": versions, "--bad": bad, "--kafka": kafka or None},
    }
    for name, value in foreign[subject].items():
        if value is not None:
            raise call.usage(f"{name} means nothing for demo {subject}.")
    scene: Scene
    match subject:
        case "games":
            scene = games_scene(
                games=games or 20,
                versions=versions or 5,
                records=records,
                bad=3 if bad is None else bad,
                seed=seed,
                kafka=kafka,
            )
        case "orders":
            bare = 1 if bad is None else bad
            scene = orders_scene(versions=versions or 2, records=records, bare=bare, seed=seed)
        case "cdc":
            scene = changes_scene(
                tables=tables or 5, events=events or 2_000, seed=seed, chaos=chaos
            )
    return play(call, scene, path, chaos=chaos)
