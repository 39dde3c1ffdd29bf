"""Parameters that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from distributary.cli.completion import complete_pipelines, complete_reasons, complete_tables

File = Annotated[Path, typer.Argument(help="The pipeline file.", metavar="FILE")]
OptionalFile = Annotated[
    Path | None, typer.Argument(help="The pipeline file; all of the lake's when left out.")
]
FileOption = Annotated[
    Path | None,
    typer.Option("--file", "-f", help="The pipeline file, if the lake's own card of it is wrong."),
]
Lake = Annotated[
    str | None,
    typer.Option(
        "--lake",
        help="The lake's folder; else $DISTRIBUTARY_LAKE, ./lake or ./distributary-demo.",
    ),
]
PipelineName = Annotated[
    str | None,
    typer.Option(
        "--pipeline",
        help="Only this pipeline, where a lake has several.",
        autocompletion=complete_pipelines,
    ),
]
TableArgument = Annotated[
    str, typer.Argument(help="The name of a table.", autocompletion=complete_tables)
]
Reason = Annotated[
    str | None,
    typer.Option("--reason", help="Only this error code.", autocompletion=complete_reasons),
]
Type = Annotated[str | None, typer.Option("--type", help="Only records of this type.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
