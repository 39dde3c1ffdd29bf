"""To run a pipeline."""

from __future__ import annotations

from typing import Annotated

import typer

from distributary.cli.options import File, LogForm, Token
from distributary.cli.verb import RUN, Invocation, verb


def declare(app: typer.Typer) -> None:
    """Adds the commands of this group."""

    @verb(
        app,
        panel=RUN,
        examples=[
            "distributary run distributary-demo/games.yaml",
            "distributary run distributary-demo/games.yaml --every 10s",
            "distributary run distributary-demo/games.yaml --metrics 127.0.0.1:9464",
        ],
    )
    def run(
        call: Invocation,
        file: File,
        continuous: Annotated[
            bool, typer.Option("--continuous", help="Go on until stopped, without a pause.")
        ] = False,
        every: Annotated[
            str | None, typer.Option("--every", help="Go on until stopped, a batch every 10s.")
        ] = None,
        available_now: Annotated[
            bool, typer.Option("--available-now", help="Take what is there, then end.")
        ] = False,
        metrics: Annotated[
            str | None,
            typer.Option(
                "--metrics", metavar="HOST:PORT", help="Serve metrics for Prometheus meanwhile."
            ),
        ] = None,
        token: Token = None,
        log_format: LogForm = None,
    ) -> int:
        """Run a pipeline in the foreground, with live progress.

        In a terminal the view redraws itself; in a pipe there is one line per batch. Without one
        of the three flags the file's trigger holds. Ctrl-C once finishes the batch.
        """
        from distributary.cli.actions.run import run_pipeline, trigger_of

        trigger = trigger_of(continuous=continuous, every=every, available_now=available_now)
        return run_pipeline(
            call, file, trigger=trigger, log_format=log_format, metrics=metrics, token=token
        )
