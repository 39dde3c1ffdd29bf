"""To run many pipelines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from distributary.cli.options import LogForm, Token
from distributary.cli.verb import RUN, Invocation, verb


def declare(app: typer.Typer) -> None:
    """Adds the command."""

    @verb(
        app,
        panel=RUN,
        examples=[
            "distributary up distributary-demo/games.yaml",
            "distributary up distributary-demo/games.yaml --every 10s --listen 127.0.0.1:0",
        ],
    )
    def up(
        call: Invocation,
        files: Annotated[list[Path], typer.Argument(help="The pipeline files.", metavar="FILE")],
        every: Annotated[
            str | None,
            typer.Option("--every", help="Go on until stopped, a batch every 10s, all of them."),
        ] = None,
        grace: Annotated[
            str,
            typer.Option("--grace", help="How long pipelines may take to finish when stopped."),
        ] = "60s",
        listen: Annotated[
            str | None,
            typer.Option(
                "--listen",
                metavar="HOST:PORT",
                help="Answer /live, /ready, /status and /metrics; port 0 takes a free one.",
            ),
        ] = None,
        token: Token = None,
        log_format: LogForm = None,
    ) -> int:
        """Run many pipelines, a process each, and start again what fails.

        A pipeline that fails does not touch the others; it is started again after a pause, as its
        section `restart` says. Ctrl-C or SIGTERM once lets every pipeline finish its batch.
        """
        from distributary.cli.actions.up import Wanted, run_all

        wanted = Wanted(every, grace=grace, listen=listen, token=token, log_format=log_format)
        return run_all(call, files, wanted)
