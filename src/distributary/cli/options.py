"""Parameters that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from distributary.cli.completion import complete_pipelines, complete_reasons, complete_tables
from distributary.observe.log_format import LogFormat

File = Annotated[Path, typer.Argument(help="The pipeline file.", metavar="FILE")]
OptionalFile = Annotated[
    Path | None, typer.Argument(help="The pipeline file; may be left out.", metavar="[FILE]")
]
FileOption = Annotated[
    Path | None,
    typer.Option(
        "--file",
        "-f",
        metavar="FILE",
        help="The pipeline file, where this user has not run it as it is now.",
    ),
]
Lake = Annotated[
    str | None,
    typer.Option(
        "--lake",
        metavar="DIR",
        help="The lake's folder; else $DISTRIBUTARY_LAKE, ./lake, ./distributary-demo or this one.",
    ),
]
PipelineName = Annotated[
    str | None,
    typer.Option(
        "--pipeline",
        metavar="NAME",
        help="Only this pipeline, where a lake has several.",
        autocompletion=complete_pipelines,
    ),
]
TableArgument = Annotated[
    str,
    typer.Argument(help="The name of a table.", metavar="TABLE", autocompletion=complete_tables),
]
AsOf = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="TIME",
        help="Only what the source did up to then: 2026-11-15T12:00:00Z; UTC without an offset.",
    ),
]
Reason = Annotated[
    str | None,
    typer.Option(
        "--reason",
        metavar="CODE",
        help="Only this error code.",
        autocompletion=complete_reasons,
    ),
]
Type = Annotated[
    str | None, typer.Option("--type", metavar="TYPE", help="Only records of this type.")
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="DISTRIBUTARY_TOKEN",
        help="Ask for it at /status and /metrics; an address beyond loopback needs one.",
    ),
]
LogForm = Annotated[
    LogFormat | None,
    typer.Option(
        "--log-format",
        help="Tell everything on standard error, a line each: for people, or as JSON.",
        rich_help_panel="Output",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
