"""To begin with: the demo and the producers of simulated records."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from distributary.cli.help import GroupPage, show_help
from distributary.cli.verb import START, Invocation, verb

produce = typer.Typer(
    help="Send simulated records to a source.",
    cls=GroupPage,
    callback=show_help,
    invoke_without_command=True,
)


class Subject(StrEnum):
    """What the demo is about."""

    GAMES = "games"


class Framing(StrEnum):
    """Whether the registry's header stands before a message."""

    NONE = "none"
    CONFLUENT = "confluent"
    MIXED = "mixed"


Games = Annotated[int, typer.Option("--games", min=1, help="How many types of record.")]
Versions = Annotated[int, typer.Option("--versions", min=1, help="How many schema versions each.")]
Records = Annotated[
    int, typer.Option("--records", min=1, help="Good records per type and version.")
]
Bad = Annotated[int, typer.Option("--bad", min=0, help="Bad records, in addition.")]
Seed = Annotated[int, typer.Option("--seed", help="The same seed sends the same bytes.")]
To = Annotated[
    tuple[str, str],
    typer.Option("--to", help="Where to: delta and the folder of a table.", metavar="delta PATH"),
]
Registry = Annotated[Path, typer.Option("--registry", help="The folder that keeps the schemas.")]
Rate = Annotated[
    float | None,
    typer.Option("--rate", help="Messages a second; as fast as possible if not given."),
]
StartVersion = Annotated[
    int, typer.Option("--start-version", min=1, help="Go on with this version of the schemas.")
]


def declare(app: typer.Typer) -> None:
    """Adds the commands of this group."""

    @verb(
        app,
        panel=START,
        examples=["distributary demo games", "distributary demo games --chaos"],
    )
    def demo(
        call: Invocation,
        subject: Annotated[Subject, typer.Argument(help="What is simulated.")] = Subject.GAMES,
        games: Games = 20,
        versions: Versions = 5,
        records: Records = 100,
        bad: Bad = 3,
        seed: Seed = 999,
        path: Annotated[
            Path, typer.Option("--path", help="The lake to make; begun anew if it is a demo's.")
        ] = Path("distributary-demo"),
        chaos: Annotated[
            bool, typer.Option("--chaos", help="Kill it at each of the five steps, and go on.")
        ] = False,
    ) -> int:
        """Simulate, ingest and show the result, all on this machine.

        A table stands for Kafka and a folder for the registry. Schemas evolve while the pipeline
        runs. The folder then holds a lake and games.yaml, and every other command works on it.
        """
        from distributary.cli.actions.demo import DemoPlan, run_demo

        plan = DemoPlan(games=games, versions=versions, records=records, bad=bad, seed=seed)
        return run_demo(call, plan, path=path, chaos=chaos)


@verb(
    produce,
    name="games",
    examples=[
        "distributary produce games --to delta my-lake/wrapper --registry my-lake/schemas",
    ],
)
def produce_games(
    call: Invocation,
    to: To,
    registry: Registry,
    games: Games = 5,
    versions: Versions = 5,
    records: Records = 10,
    bad: Bad = 0,
    bad_kinds: Annotated[
        str | None, typer.Option("--bad-kinds", help="Which bad records, separated by commas.")
    ] = None,
    late: Annotated[
        int, typer.Option("--late", min=0, help="Records of old versions that come at the end.")
    ] = 0,
    type_change: Annotated[
        bool, typer.Option("--type-change", help="In the newest version a field changes its type.")
    ] = False,
    start_version: StartVersion = 1,
    framing: Annotated[
        Framing, typer.Option("--framing", help="Whether the registry's header is there.")
    ] = Framing.MIXED,
    rate: Rate = None,
    seed: Seed = 999,
) -> None:
    """Wrapped events of many games, whose schemas grow while they are sent."""
    from distributary.cli.actions.produce import send_games

    send_games(
        call,
        to=to,
        registry=registry,
        rate=rate,
        framing=framing,
        bad_kinds=bad_kinds,
        games=games,
        versions=versions,
        records=records,
        bad=bad,
        late=late,
        type_change=type_change,
        start_version=start_version,
        seed=seed,
    )


@verb(
    produce,
    name="people",
    examples=["distributary produce people --to delta my-lake/people --registry my-lake/schemas"],
)
def produce_people(
    call: Invocation,
    to: To,
    registry: Registry,
    versions: Versions = 2,
    records: Records = 10,
    start_version: StartVersion = 1,
    rate: Rate = None,
    seed: Seed = 999,
) -> None:
    """One type of framed message, whose schema gains a field with every version."""
    from distributary.cli.actions.produce import send_people

    send_people(
        call,
        to=to,
        registry=registry,
        rate=rate,
        versions=versions,
        records=records,
        start_version=start_version,
        seed=seed,
    )
