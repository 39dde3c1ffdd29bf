"""Options that several producers have."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


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
