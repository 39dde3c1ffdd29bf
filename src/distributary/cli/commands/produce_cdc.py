"""The producer of changes in a database."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from distributary.cli.commands.produce_options import KAFKA, Partitions, Seed, Servers
from distributary.cli.verb import Invocation, verb

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
        from distributary.cli.actions.produce_cdc import CdcTarget, Truth, send_changes

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
