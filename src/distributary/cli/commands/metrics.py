"""To give monitoring systems what they need."""

from __future__ import annotations

from typing import Annotated

import typer

from distributary.cli.verb import LOOK, Invocation, verb


def declare(app: typer.Typer) -> None:
    """Adds the commands of this group."""

    @verb(
        app,
        panel=LOOK,
        examples=[
            "distributary metrics",
            "distributary metrics --grafana > distributary.json",
            "distributary metrics --rules > distributary-rules.yaml",
        ],
    )
    def metrics(
        call: Invocation,
        grafana: Annotated[
            bool, typer.Option("--grafana", help="Print a dashboard for Grafana to import.")
        ] = False,
        rules: Annotated[
            bool, typer.Option("--rules", help="Print alert rules for Prometheus.")
        ] = False,
    ) -> None:
        """The metrics, a dashboard for Grafana, alert rules.

        The metrics themselves are served by `run FILE --metrics 127.0.0.1:9464`.
        """
        from distributary.cli.actions.metrics import show_metrics

        show_metrics(call, grafana=grafana, rules=rules)
