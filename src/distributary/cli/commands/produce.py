"""The producers of simulated records."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from distributary.cli.verb import GroupPage, Invocation, show_help, verb

# Options that several producers have.


class Destination(StrEnum):
    """Where records go."""

    KAFKA = "kafka"
    DELTA = "delta"


KAFKA, DELTA = "With --to kafka", "With --to delta"

To = Annotated[
    Destination, typer.Option("--to", help="A topic of Kafka, or a Delta table in its place.")
]
Table = Annotated[
    Path | None, typer.Argument(metavar="PATH", help="With --to delta: the table's folder.")
]
RegistryFolder = Annotated[
    Path | None,
    typer.Option(
        "--registry",
        metavar="DIR",
        help="The folder that keeps the schemas.",
        rich_help_panel=DELTA,
    ),
]
SERVERS_HELP = "The brokers, host:port; else 127.0.0.1:9092."
URL_HELP = "The schema registry; else that of `dev up`."
Servers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers", envvar="KAFKA_SERVER", help=SERVERS_HELP, rich_help_panel=KAFKA
    ),
]
RegistryUrl = Annotated[
    str | None,
    typer.Option("--registry-url", envvar="SR_URL", help=URL_HELP, rich_help_panel=KAFKA),
]
PipelineFile = Annotated[
    Path | None,
    typer.Option(
        "--pipeline",
        metavar="FILE",
        help="Take brokers, registry and how to log in to both from a pipeline file.",
        rich_help_panel=KAFKA,
    ),
]
Topic = Annotated[
    str | None,
    typer.Option("--topic", help="The topic; made if it is not there.", rich_help_panel=KAFKA),
]
Partitions = Annotated[
    int | None,
    typer.Option(
        "--partitions",
        min=1,
        help="Partitions of a topic that is made; else 1.",
        rich_help_panel=KAFKA,
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="The same seed sends the same records.")]
Rate = Annotated[
    float | None,
    typer.Option("--rate", help="Messages a second; as fast as possible if not given."),
]


# The producer of changes in a database.

_FILES = "With --to files"


class Outlet(StrEnum):
    """Where changes go."""

    FILES = "files"
    KAFKA = "kafka"


class Database(StrEnum):
    """What changes."""

    MYSQL = "mysql"
    POSTGRESQL = "postgresql"
    ORACLE = "oracle"
    SQLSERVER = "sqlserver"


class Format(StrEnum):
    """How changes are written."""

    AVRO = "avro"
    JSON = "json"
    JSON_ARRAY = "json-array"
    DEBEZIUM = "debezium"


def declare(app: typer.Typer) -> None:
    """Adds the command."""

    @verb(
        app,
        examples=[
            "distributary produce cdc my-lake/datastream --tables 5",
            "distributary produce cdc my-lake/datastream --tables 50 --chaos --truth truth.json",
            "distributary produce cdc --to kafka --source-type postgresql",
        ],
    )
    def cdc(
        call: Invocation,
        path: Annotated[
            Path | None,
            typer.Argument(metavar="PATH", help="With --to files: the folder of the stream."),
        ] = None,
        to: Annotated[
            Outlet, typer.Option("--to", help="Files of Datastream, or messages of Debezium.")
        ] = Outlet.FILES,
        source_type: Annotated[
            Database, typer.Option("--source-type", help="The database whose rows change.")
        ] = Database.MYSQL,
        tables: Annotated[int, typer.Option("--tables", min=1, help="How many tables.")] = 2,
        events: Annotated[
            int, typer.Option("--events", min=0, help="Changes in all tables together.")
        ] = 1_000,
        rows: Annotated[
            int, typer.Option("--rows", min=0, help="Rows that a table has before, to backfill.")
        ] = 20,
        rounds: Annotated[
            int, typer.Option("--rounds", min=1, help="In how many parts the stream comes.")
        ] = 5,
        interval: Annotated[
            float, typer.Option("--interval", min=0, help="Seconds between two parts.")
        ] = 0.0,
        chaos: Annotated[
            bool, typer.Option("--chaos", help="Everything that makes a stream hard to follow.")
        ] = False,
        features: Annotated[
            str | None,
            typer.Option("--with", help="Only some of it, separated by commas: see the docs."),
        ] = None,
        truth: Annotated[
            Path | None,
            typer.Option("--truth", metavar="FILE", help="Write what the tables must hold."),
        ] = None,
        print_truth: Annotated[
            bool, typer.Option("--print-truth", help="Print what the tables must hold, as JSON.")
        ] = False,
        seed: Seed = 999,
        format: Annotated[
            Format | None,
            typer.Option("--format", help="How it is written; else avro, or debezium to Kafka."),
        ] = None,
        gzip: Annotated[
            bool, typer.Option("--gzip", help="Compress files in JSON.", rich_help_panel=_FILES)
        ] = False,
        bare_methods: Annotated[
            bool,
            typer.Option(
                "--bare-methods",
                help="Read methods are cdc and backfill: no word on the database.",
                rich_help_panel=_FILES,
            ),
        ] = False,
        bootstrap_servers: Servers = None,
        topic_prefix: Annotated[
            str,
            typer.Option(
                "--topic-prefix", help="What all topics begin with.", rich_help_panel=KAFKA
            ),
        ] = "shop",
        with_schema: Annotated[
            bool,
            typer.Option(
                "--with-schema", help="Each message carries its schema.", rich_help_panel=KAFKA
            ),
        ] = False,
        partitions: Partitions = None,
    ) -> None:
        """Changes of the rows of a simulated database, and what they come to in the end.

        Some rows are there before and come by a backfill; then rows are inserted, updated and
        deleted. The same seed gives the same files, byte by byte.
        """
        from distributary.cli.actions.produce import CdcTarget, Truth, send_changes

        send_changes(
            call,
            CdcTarget(to, path, bootstrap_servers, partitions),
            Truth(truth, print_truth),
            interval=interval,
            chaos=chaos,
            with_features=features,
            format=format,
            source_type=source_type.value,
            tables=tables,
            events=events,
            rows=rows,
            rounds=rounds,
            seed=seed,
            gzip=gzip,
            bare_methods=bare_methods,
            topic_prefix=topic_prefix,
            with_schema=with_schema,
        )


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
    from distributary.cli.actions.produce import Target, send_games

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
    from distributary.cli.actions.produce import Target, send_people

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
    from distributary.cli.actions.produce import Target, send_orders

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


declare(app)
