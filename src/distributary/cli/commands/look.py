"""To look at what was done and what would be done. Nothing here starts a JVM or changes a thing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from distributary.cli.verb import (
    LOOK,
    AsOf,
    DryRun,
    File,
    FileOption,
    GroupPage,
    Invocation,
    Lake,
    OptionalFile,
    PipelineName,
    complete_tables,
    show_help,
    verb,
)


def declare(app: typer.Typer) -> None:
    """Adds the commands of this group."""
    _declare_lake(app)
    _declare_file(app)
    _declare_trace(app)
    _declare_verify(app)


def _declare_lake(app: typer.Typer) -> None:
    @verb(
        app,
        panel=LOOK,
        examples=[
            "distributary status --lake distributary-demo",
            "distributary status distributary-demo/games.yaml --partitions",
        ],
    )
    def status(
        call: Invocation,
        file: OptionalFile = None,
        lake: Lake = None,
        partitions: Annotated[
            bool,
            typer.Option("--partitions", help="How far each partition was read; asks the broker."),
        ] = False,
    ) -> None:
        """Lag, freshness, rows, dead letters and parked tables."""
        from distributary.cli.actions.status import show_status

        show_status(call, file=file, lake=lake, partitions=partitions)

    @verb(app, panel=LOOK, examples=["distributary tables --lake distributary-demo"])
    def tables(
        call: Invocation,
        lake: Lake = None,
        pipeline: PipelineName = None,
    ) -> None:
        """Every table with its rows, columns and last commit."""
        from distributary.cli.actions.schema import show_tables

        show_tables(call, lake=lake, pipeline=pipeline)


def _declare_file(app: typer.Typer) -> None:
    @verb(
        app,
        panel=LOOK,
        examples=[
            "distributary validate distributary-demo/games.yaml",
            "distributary validate distributary-demo/games.yaml --show-config",
            "distributary validate --print-schema",
        ],
    )
    def validate(
        call: Invocation,
        file: OptionalFile = None,
        show_config: Annotated[
            bool, typer.Option("--show-config", help="Each value with its origin.")
        ] = False,
        print_schema: Annotated[
            bool, typer.Option("--print-schema", help="The JSON schema of pipeline files.")
        ] = False,
    ) -> None:
        """Check a pipeline file: all that is wrong with it, line by line."""
        from distributary.cli.actions.validate import validate_file

        validate_file(call, file, show_config=show_config, print_schema=print_schema)

    @verb(app, panel=LOOK, examples=["distributary plan distributary-demo/games.yaml"])
    def plan(
        call: Invocation,
        file: File,
        check: Annotated[
            bool,
            typer.Option(
                "--check",
                help="Exit with 1 if a table would change; with a schema, if it would be refused "
                "or break records.",
            ),
        ] = False,
        with_schema: Annotated[
            Path | None,
            typer.Option(
                "--with-schema",
                metavar="SCHEMA",
                help="Try a schema that is not registered, on the last batch.",
            ),
        ] = None,
        subject: Annotated[
            str | None,
            typer.Option(
                "--subject", metavar="NAME", help="Its subject, where its name does not say it."
            ),
        ] = None,
        record_type: Annotated[
            str | None,
            typer.Option("--type", metavar="TYPE", help="The type of record, for its subject."),
        ] = None,
        markdown: Annotated[
            bool, typer.Option("--markdown", help="Print it for a pull request.")
        ] = False,
    ) -> int:
        """The tables, columns and changes that a run would make now.

        With --with-schema, what a schema would do that is not in use yet. Nothing is registered.
        """
        if with_schema is not None or subject is not None or record_type is not None or markdown:
            from distributary.cli.actions.plan import show_proposal

            return show_proposal(
                call,
                file,
                with_schema,
                subject=subject,
                type=record_type,
                as_markdown=markdown,
                check=check,
            )
        from distributary.cli.actions.plan import show_plan

        return show_plan(call, file, check=check)

    @verb(
        app,
        panel=LOOK,
        examples=["distributary doctor", "distributary doctor distributary-demo/games.yaml"],
    )
    def doctor(call: Invocation, file: OptionalFile = None, lake: Lake = None) -> int:
        """Check what a run needs, and say how to mend what does not work."""
        from distributary.cli.actions.doctor import examine

        return examine(call, file=file, lake=lake)


def _declare_trace(app: typer.Typer) -> None:
    @verb(
        app,
        panel=LOOK,
        examples=[
            "distributary trace wrapper/0/42 --lake distributary-demo",
            "distributary trace bronze_events _offset=42 --lake distributary-demo",
            "distributary trace shop_orders id=55000000319 --lake distributary-demo",
        ],
    )
    def trace(
        call: Invocation,
        where: Annotated[
            str,
            typer.Argument(
                help="TOPIC/PARTITION/OFFSET of a record, a change file or a folder of "
                "them, or the name of a table.",
                autocompletion=complete_tables,
            ),
        ],
        key: Annotated[
            list[str] | None,
            typer.Argument(
                metavar="[KEY]...",
                help="COLUMN=VALUE of rows in that table; of change data also the key's values.",
            ),
        ] = None,
        lake: Lake = None,
    ) -> int:
        """Where a record went, or where a row came from.

        A row of change data is shown with every event of its key, in the order of the source. An
        event of a change file is at PATH/NUMBER/PLACE: the file's path and number, and its place.
        Change data to try it on: distributary demo cdc
        """
        from distributary.cli.actions.trace import trace_record, trace_rows

        if not key:
            return trace_record(call, where, lake=lake)
        return trace_rows(call, where, key, lake=lake)


def _declare_verify(app: typer.Typer) -> None:
    @verb(
        app,
        panel=LOOK,
        examples=[
            "distributary verify --all --lake distributary-demo",
            "distributary verify --all --deep --lake distributary-demo",
        ],
    )
    def verify(
        call: Invocation,
        tables: Annotated[
            list[str] | None,
            typer.Argument(
                help="Names of tables.",
                metavar="[TABLE]...",
                autocompletion=complete_tables,
            ),
        ] = None,
        everything: Annotated[bool, typer.Option("--all", help="Every table of the lake.")] = False,
        deep: Annotated[
            bool,
            typer.Option(
                "--deep",
                help="Look at where each row came from, too: no record twice, none missing.",
            ),
        ] = False,
        as_of: AsOf = None,
        lake: Lake = None,
        pipeline: PipelineName = None,
        file: FileOption = None,
    ) -> int:
        """Prove that tables hold what was written to them.

        Every table: is it there, with the batches, the rows and the files that the ledger and its
        own log say; with --deep also record by record. A merged table of change data is computed
        once more from its log and compared value by value. Exit code 1 if one differs. Nothing
        is changed.
        """
        from distributary.cli.actions.verify import verify_tables

        return verify_tables(
            call,
            tables or (),
            everything=everything,
            deep=deep,
            as_of=as_of,
            lake=lake,
            pipeline=pipeline,
            file=file,
        )


# To give monitoring systems what they need.


def declare_metrics(app: typer.Typer) -> None:
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


# The dashboard.

PORT = 8642


def declare_ui(app: typer.Typer) -> None:
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


# Alerts: whether they arrive.

alerts_app = typer.Typer(
    help="Alerts: send a test message.",
    cls=GroupPage,
    callback=show_help,
    invoke_without_command=True,
)


@verb(
    alerts_app,
    panel=LOOK,
    examples=["distributary alerts test distributary-demo/games.yaml --dry-run"],
)
def test(
    call: Invocation,
    file: File,
    to: Annotated[
        str | None, typer.Option("--to", metavar="NAME", help="Only the target of this name.")
    ] = None,
    dry_run: DryRun = False,
) -> int:
    """Send a test message to each target of a pipeline file.

    PagerDuty gets an incident that is resolved at once. Exit code 1 if a target was not reached,
    or if there is none.
    """
    from distributary.cli.actions.ui import test_targets

    return test_targets(call, file, to=to, dry_run=dry_run)
