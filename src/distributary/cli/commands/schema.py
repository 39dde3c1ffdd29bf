"""How tables got their columns, and the schemas that gave them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from distributary.cli.verb import (
    DryRun,
    File,
    GroupPage,
    Invocation,
    Lake,
    OptionalFile,
    PipelineName,
    complete_schemas,
    complete_subjects,
    complete_tables,
    show_help,
    verb,
)

app = typer.Typer(
    help="Columns of tables, and the schemas they came from.",
    cls=GroupPage,
    callback=show_help,
    invoke_without_command=True,
)

TableOrType = typer.Argument(
    help="The name of a table, or of a type of record.", autocompletion=complete_tables
)
RegistryOption = Annotated[
    str | None,
    typer.Option(
        "--registry",
        metavar="PLACE",
        help="The registry's folder or address; else that of the pipeline.",
    ),
]
PipelineFile = Annotated[
    Path | None,
    typer.Option(
        "--file",
        "-f",
        "--config",
        metavar="FILE",
        help="The pipeline file, where this user has not run it as it is now.",
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The pipeline file, where this user has not run it as it is now.",
    ),
]


@verb(
    app,
    examples=[
        "distributary schema show bronze_events --lake distributary-demo",
        "distributary schema show wrapper-value 1 --lake distributary-demo",
    ],
)
def show(
    call: Invocation,
    name: Annotated[
        str,
        typer.Argument(
            help="The name of a table, of a type of record, or of a subject.",
            autocompletion=complete_schemas,
        ),
    ],
    version: Annotated[
        str | None, typer.Argument(help="The subject's version; else the newest.")
    ] = None,
    lake: Lake = None,
    pipeline: PipelineName = None,
    file: PipelineFile = None,
    registry: RegistryOption = None,
) -> None:
    """The columns of a table with where they came from, or one version of a subject."""
    from distributary.cli.actions.schema import show_schema
    from distributary.cli.lakes import Whose

    show_schema(call, name, version, Whose(registry, file, lake, pipeline))


@verb(app, examples=["distributary schema history --lake distributary-demo"])
def history(
    call: Invocation,
    name: Annotated[str | None, TableOrType] = None,
    lake: Lake = None,
    last: Annotated[int, typer.Option("--last", min=1, help="Only so many of the newest.")] = 50,
) -> None:
    """What schemas changed: when, in which batch, by which id, and what was done."""
    from distributary.cli.actions.schema import show_history

    show_history(call, name, lake=lake, last=last)


@verb(
    app,
    examples=[
        "distributary schema subjects distributary-demo/games.yaml",
        "distributary schema subjects --registry distributary-demo/schemas",
    ],
)
def subjects(
    call: Invocation,
    file: OptionalFile = None,
    matching: Annotated[
        str | None,
        typer.Option("--matching", metavar="TEXT", help="Only those with this in their name."),
    ] = None,
    lake: Lake = None,
    pipeline: PipelineName = None,
    registry: RegistryOption = None,
) -> None:
    """Every subject of the registry, with its versions and the newest of them."""
    from distributary.cli.actions.schema import show_subjects
    from distributary.cli.lakes import Whose

    show_subjects(call, Whose(registry, file, lake, pipeline), matching=matching)


@verb(
    app,
    examples=[
        "distributary schema diff wrapper-value --lake distributary-demo",
    ],
)
def diff(
    call: Invocation,
    subject: Annotated[str, typer.Argument(help="The subject.", autocompletion=complete_subjects)],
    before: Annotated[
        str | None,
        typer.Argument(help="The older version; else the one before.", metavar="[V1]"),
    ] = None,
    after: Annotated[
        str | None, typer.Argument(help="The newer version; else the newest.", metavar="[V2]")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            metavar="SCHEMA",
            help="A schema that is not registered, in place of the newer version.",
        ),
    ] = None,
    reference: Annotated[
        list[str] | None,
        typer.Option(
            "--reference",
            metavar="NAME=SUBJECT[:VERSION]",
            help="What an import of that file stands for; may be repeated.",
        ),
    ] = None,
    lake: Lake = None,
    pipeline: PipelineName = None,
    config: ConfigOption = None,
    registry: RegistryOption = None,
) -> int:
    """What changes between two versions: columns, text, and whether the registry takes it.

    With --file, exits with 1 when the registry would refuse the schema.
    """
    from distributary.cli.actions.schema import diff_file, diff_versions
    from distributary.cli.lakes import Whose, find_registry

    found = find_registry(call, Whose(registry, config, lake, pipeline))
    if file is None:
        diff_versions(call, found, subject, before, after)
        return 0
    return diff_file(call, found, subject, before, file, reference or ())


@verb(app, examples=["distributary schema ids bronze_events --lake distributary-demo"])
def ids(
    call: Invocation,
    name: Annotated[
        str,
        typer.Argument(
            help="The name of a table, of a type of record, or of a topic.",
            autocompletion=complete_tables,
        ),
    ],
    lake: Lake = None,
    pipeline: PipelineName = None,
    file: PipelineFile = None,
    registry: RegistryOption = None,
) -> None:
    """Which schemas its records were written with: subjects, versions, rows and batches."""
    from distributary.cli.actions.schema import show_ids
    from distributary.cli.lakes import Whose

    show_ids(call, name, Whose(registry, file, lake, pipeline))


@verb(
    app,
    examples=["distributary schema forget events events.yaml --dry-run"],
)
def forget(
    call: Invocation,
    name: Annotated[
        str, typer.Argument(help="The topic, or the table of the database, of the records.")
    ],
    file: File,
    dry_run: DryRun = False,
) -> None:
    """Forget what records without a schema look like: the next batch tells anew.

    For JSON without a registry, when what came first was not what the rest is. The table keeps its
    columns and rows; dlq replay then lands the letters. The pipeline must not run meanwhile.
    """
    from distributary.cli.actions.schema import forget_schema

    forget_schema(call, name, file, dry_run=dry_run)
