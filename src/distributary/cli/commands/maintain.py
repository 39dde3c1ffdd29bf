"""To keep: tables stay small and quick to read while pipelines write to them."""

from __future__ import annotations

from typing import Annotated

import typer

from distributary.cli.completion import complete_tables
from distributary.cli.options import DryRun, Lake
from distributary.cli.verb import MEND, Invocation, verb

_Targets = Annotated[
    list[str] | None,
    typer.Argument(
        help="The pipeline file, and tables if not all are meant; all may be left out.",
        metavar="FILE|TABLE",
        autocompletion=complete_tables,
        show_default=False,
    ),
]


def _flag(name: str, help: str) -> typer.models.OptionInfo:
    return typer.Option(f"--{name}", help=help)  # type: ignore[no-any-return]


def declare(app: typer.Typer) -> None:
    """Adds the command."""

    @verb(
        app,
        panel=MEND,
        examples=[
            "distributary maintain distributary-demo/games.yaml --dry-run",
            "distributary maintain --lake distributary-demo --optimize",
        ],
    )
    def maintain(
        call: Invocation,
        targets: _Targets = None,
        lake: Lake = None,
        optimize: Annotated[bool, _flag("optimize", "Put small files together.")] = False,
        checkpoint: Annotated[
            bool, _flag("checkpoint", "Sum logs up, and remove their expired commits.")
        ] = False,
        vacuum: Annotated[
            bool, _flag("vacuum", "Delete files that are no longer part of a table.")
        ] = False,
        expire: Annotated[
            bool, _flag("expire", "Remove old dead letters, and details of old batches.")
        ] = False,
        retention: Annotated[
            str | None,
            typer.Option(
                "--retention",
                metavar="AGE",
                help="Keep files for readers of older versions for so long: 7d.",
            ),
        ] = None,
        force: Annotated[bool, _flag("force", "Allow a retention of less than a day.")] = False,
        dry_run: DryRun = False,
    ) -> int:
        """Compact, clean up and expire, beside running pipelines.

        Without a choice, what `maintain` in the pipeline file asks for is done.
        """
        from distributary.cli.actions.maintain import maintain_lake

        chosen = {
            "optimize": optimize,
            "checkpoint": checkpoint,
            "vacuum": vacuum,
            "expire": expire,
        }
        return maintain_lake(
            call,
            targets or [],
            lake=lake,
            steps=[name for name, asked in chosen.items() if asked],
            retention=retention,
            force=force,
            dry_run=dry_run,
        )
