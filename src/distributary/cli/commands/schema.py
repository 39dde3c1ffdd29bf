"""How tables got their columns."""

from __future__ import annotations

from typing import Annotated

import typer

from distributary.cli.completion import complete_tables
from distributary.cli.help import GroupPage, show_help
from distributary.cli.options import Lake
from distributary.cli.verb import Invocation, verb

app = typer.Typer(
    help="The columns of a table, and how it got them.",
    cls=GroupPage,
    callback=show_help,
    invoke_without_command=True,
)

TableOrType = typer.Argument(
    help="The name of a table, or of a type of record.", autocompletion=complete_tables
)


@verb(app, examples=["distributary schema show bronze_events --lake distributary-demo"])
def show(call: Invocation, name: Annotated[str, TableOrType], lake: Lake = None) -> None:
    """The columns of a table, each with its type and where it came from."""
    from distributary.cli.actions.schema import show_columns

    show_columns(call, name, lake=lake)


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
