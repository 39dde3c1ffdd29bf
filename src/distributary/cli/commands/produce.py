"""The producers of simulated records."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from distributary.cli.commands import produce_cdc
from distributary.cli.commands.produce_options import (
    KAFKA,
    SERVERS_HELP,
    URL_HELP,
    Destination,
    Partitions,
    PipelineFile,
    Rate,
    RegistryFolder,
    RegistryUrl,
    Seed,
    Servers,
    Table,
    To,
    Topic,
)
from distributary.cli.help import GroupPage, show_help
from distributary.cli.verb import Invocation, verb

app = typer.Typer(
    help="Send simulated records to a source.",
    cls=GroupPage,
    callback=show_help,
    invoke_without_command=True,
)


class Framing(StrEnum):
    """Whether the registry's header stands before a message."""

    NONE = "none"
    CONFLUENT = "confluent"
    MIXED = "mixed"


class OrderFraming(StrEnum):
    """The same for orders, of which none can be mistaken for the other."""

    NONE = "none"
    CONFLUENT = "confluent"


class OrderType(StrEnum):
    """What is ordered, or who orders."""

    ORDERS = "orders"
    CUSTOMER = "customer"
    PRODUCT = "product"


Games = Annotated[int, typer.Option("--games", min=1, help="How many types of record.")]
Versions = Annotated[int, typer.Option("--versions", min=1, help="How many schema versions each.")]
Records = Annotated[
    int, typer.Option("--records", min=1, help="Good records per type and version.")
]
Bad = Annotated[int, typer.Option("--bad", min=0, help="Bad records, in addition.")]
StartVersion = Annotated[
    int, typer.Option("--start-version", min=1, help="Go on with this version of the schemas.")
]


@verb(
    app,
    examples=[
        "distributary produce games --to delta my-lake/wrapper --registry my-lake/schemas",
        "distributary produce games --to kafka --games 20 --bad 25",
    ],
)
def games(
    call: Invocation,
    path: Table = None,
    to: To = Destination.KAFKA,
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
    bootstrap_servers: Servers = None,
    registry_url: RegistryUrl = None,
    topic: Topic = None,
    partitions: Partitions = None,
    pipeline: PipelineFile = None,
    registry: RegistryFolder = None,
) -> None:
    """Wrapped events of many games, whose schemas grow while they are sent.

    The topic is wrapper if no other is named.
    """
    from distributary.cli.actions.produce import send_games
    from distributary.cli.actions.produce_target import Target

    target = Target(
        to, path, registry, bootstrap_servers, registry_url, topic, partitions, pipeline
    )
    send_games(
        call,
        target,
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
    app,
    examples=[
        "distributary produce people --to delta my-lake/people --registry my-lake/schemas",
        "distributary produce people --to kafka --versions 3",
    ],
)
def people(
    call: Invocation,
    path: Table = None,
    to: To = Destination.KAFKA,
    versions: Versions = 2,
    records: Records = 10,
    start_version: StartVersion = 1,
    rate: Rate = None,
    seed: Seed = 999,
    bootstrap_servers: Servers = None,
    registry_url: RegistryUrl = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic", envvar="KAFKA_TOPIC", help="The topic; else people.", rich_help_panel=KAFKA
        ),
    ] = None,
    partitions: Partitions = None,
    pipeline: PipelineFile = None,
    registry: RegistryFolder = None,
) -> None:
    """One type of framed message, whose schema gains a field with every version."""
    from distributary.cli.actions.produce import send_people
    from distributary.cli.actions.produce_target import Target

    target = Target(
        to, path, registry, bootstrap_servers, registry_url, topic, partitions, pipeline
    )
    send_people(
        call,
        target,
        rate=rate,
        versions=versions,
        records=records,
        start_version=start_version,
        seed=seed,
    )


@verb(
    app,
    examples=[
        "distributary produce orders --to delta my-lake/orders --registry my-lake/schemas",
        "distributary produce orders --to kafka --versions 2 --empty 3",
        "distributary produce orders --to kafka --framing none --records 1",
    ],
)
def orders(
    call: Invocation,
    path: Table = None,
    to: To = Destination.KAFKA,
    type: Annotated[
        OrderType,
        typer.Option("--type", help="Lists of orders, or one of two types that share a topic."),
    ] = OrderType.ORDERS,
    records: Annotated[
        int, typer.Option("--records", min=1, help="Messages per version, none of them empty.")
    ] = 10,
    versions: Annotated[
        int, typer.Option("--versions", min=1, max=2, help="2 adds a field to products in orders.")
    ] = 1,
    empty: Annotated[
        int, typer.Option("--empty", min=0, help="Lists without an order, in addition.")
    ] = 0,
    framing: Annotated[
        OrderFraming,
        typer.Option("--framing", help="none: without the registry's header, for dead letters."),
    ] = OrderFraming.CONFLUENT,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Ask for each record; an empty line ends it.")
    ] = False,
    rate: Rate = None,
    seed: Seed = 999,
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-servers",
            envvar=["KAFKA_URL", "KAFKA_SERVER"],
            help=SERVERS_HELP,
            rich_help_panel=KAFKA,
        ),
    ] = None,
    registry_url: Annotated[
        str | None,
        typer.Option(
            "--registry-url",
            envvar=["SCHEMA_REGISTRY_URL", "SR_URL"],
            help=URL_HELP,
            rich_help_panel=KAFKA,
        ),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            envvar="KAFKA_TOPIC",
            help="The topic; else dev.orders, or dev.types for the two types.",
            rich_help_panel=KAFKA,
        ),
    ] = None,
    partitions: Partitions = None,
    pipeline: PipelineFile = None,
    registry: RegistryFolder = None,
) -> None:
    """Orders in Avro, several to a message, with names beyond ASCII.

    With --type customer and --type product, records of two types share a topic: its schema is a
    union that refers to theirs.
    """
    from distributary.cli.actions.produce_orders import send_orders
    from distributary.cli.actions.produce_target import Target

    target = Target(
        to, path, registry, bootstrap_servers, registry_url, topic, partitions, pipeline
    )
    send_orders(
        call,
        target,
        interactive=interactive,
        rate=rate,
        kind=type.value,
        framed=framing is OrderFraming.CONFLUENT,
        records=records,
        versions=versions,
        empty=empty,
        seed=seed,
    )


produce_cdc.declare(app)
