"""The dashboard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from distributary.cli.options import FileOption, Lake
from distributary.cli.verb import LOOK, Invocation, verb

PORT = 8642


def declare(app: typer.Typer) -> None:
    """Adds the command."""

    @verb(
        app,
        panel=LOOK,
        examples=[
            "distributary ui --lake distributary-demo",
            "distributary ui --lake distributary-demo --host 0.0.0.0 --new-token",
        ],
    )
    def ui(
        call: Invocation,
        lake: Lake = None,
        file: FileOption = None,
        host: Annotated[
            str, typer.Option("--host", help="Where to listen; beyond this machine with a token.")
        ] = "127.0.0.1",
        port: Annotated[
            int, typer.Option("--port", min=0, max=65535, help="At which port; 0 for a free one.")
        ] = PORT,
        token_file: Annotated[
            Path | None,
            typer.Option(
                "--token-file",
                metavar="FILE",
                help="Ask for the token in this file; else for $DISTRIBUTARY_TOKEN.",
            ),
        ] = None,
        new_token: Annotated[
            bool, typer.Option("--new-token", help="Make a token and print it once.")
        ] = False,
        allow_host: Annotated[
            list[str] | None,
            typer.Option(
                "--allow-host", metavar="NAME", help="Another name of it, behind a proxy say."
            ),
        ] = None,
        trusted_proxy: Annotated[
            list[str] | None,
            typer.Option(
                "--trusted-proxy",
                metavar="ADDRESS",
                help="A proxy that says who asks: X-Forwarded-For and X-Forwarded-Proto count.",
            ),
        ] = None,
    ) -> None:
        """A page over the lake, for a browser: what is, and what to mend.

        It reads the lake alone, so it works whether or not a pipeline runs. Ctrl-C ends it.
        """
        from distributary.cli.actions.ui import Door, serve_page

        names, proxies = tuple(allow_host or ()), tuple(trusted_proxy or ())
        door = Door(host, port, token_file, new_token, names, proxies)
        serve_page(call, door, lake=lake, file=file)
