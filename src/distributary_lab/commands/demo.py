"""`demo`: records are simulated while a pipeline ingests them, and the result is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from distributary.cli.command.verb import START, Invocation, argument, option, single, verb

app = single(START)


@verb(app, "demo games", "demo games --chaos", "demo games --kafka", "demo orders", "demo cdc")
def demo(
    call: Invocation,
    subject: Annotated[Literal["games", "orders", "cdc"], argument("What to simulate.")] = "games",
    games: Annotated[
        int | None, option("--games", "Number of record types; 20 by default.", min=1)
    ] = None,
    versions: Annotated[
        int | None,
        option("--versions", "Number of schema versions; 5 by default, 2 for orders.", min=1),
    ] = None,
    records: Annotated[
        int, option("--records", "Number of valid messages per type and version.", min=1)
    ] = 100,
    bad: Annotated[
        int | None, option("--bad", "Number of invalid records; 3 by default, 1 for orders.", min=0)
    ] = None,
    tables: Annotated[
        int | None, option("--tables", "For cdc: number of tables; 5 by default.", min=1)
    ] = None,
    events: Annotated[
        int | None, option("--events", "For cdc: number of changes; 2000 by default.", min=20)
    ] = None,
    seed: Annotated[int, option("--seed", "The same seed sends the same records.")] = 999,
    path: Annotated[
        Path, option("--path", "Folder of the new lake; the lake of an earlier demo is replaced.")
    ] = Path("distributary-demo"),
    kafka: Annotated[
        bool, option("--kafka", "Use a broker and a registry; `orders` always does.")
    ] = False,
    chaos: Annotated[
        bool, option("--chaos", "Kill the run at each of its steps, and start it again.")
    ] = False,
) -> int:
    """Simulate records, ingest them and show the result, all on this machine.

    Schemas evolve while the pipeline runs. `games` needs no services: a Delta table replaces Kafka,
    and a folder the registry. `games --kafka` and `orders` start a broker and a registry on free
    ports, and stop them at the end. `cdc` simulates a database: files of its changes are merged
    into tables, which are compared with their logs and with the database. The folder then holds a
    lake and the pipeline file, and the other commands work on it.
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
