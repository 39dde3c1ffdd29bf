"""To mend: parked tables, a pipeline that must begin anew, and what it leaves behind."""

from __future__ import annotations

from typing import Annotated

import typer

from distributary.cli.completion import complete_tables
from distributary.cli.options import (
    AsOf,
    DryRun,
    File,
    FileOption,
    Lake,
    PipelineName,
    TableArgument,
    Yes,
)
from distributary.cli.verb import MEND, Invocation, verb


def declare(app: typer.Typer) -> None:
    """Adds the commands of this group."""

    @verb(
        app,
        panel=MEND,
        examples=["distributary resume bronze_events --dry-run --lake distributary-demo"],
    )
    def resume(
        call: Invocation,
        table: TableArgument,
        lake: Lake = None,
        pipeline: PipelineName = None,
        file: FileOption = None,
        dry_run: DryRun = False,
    ) -> int:
        """Give a parked table the batches that wait for it, in order."""
        from distributary.cli.actions.mend import resume_table

        return resume_table(call, table, lake=lake, pipeline=pipeline, file=file, dry_run=dry_run)

    @verb(
        app,
        panel=MEND,
        examples=[
            "distributary rebuild shop_orders --lake distributary-demo --dry-run",
            "distributary rebuild shop_orders --lake distributary-demo",
        ],
    )
    def rebuild(
        call: Invocation,
        table: TableArgument,
        as_of: AsOf = None,
        lake: Lake = None,
        pipeline: PipelineName = None,
        file: FileOption = None,
        dry_run: DryRun = False,
    ) -> int:
        """Make a table of change data anew from its log.

        All of its rows are replaced by one commit; the log and all other tables stay as they are.
        A pipeline that runs is asked to do it between two batches. Try it after: distributary
        demo cdc
        """
        from distributary.cli.actions.rebuild import rebuild_from_log

        return rebuild_from_log(
            call,
            table,
            as_of=as_of,
            lake=lake,
            pipeline=pipeline,
            file=file,
            dry_run=dry_run,
        )

    @verb(
        app,
        panel=MEND,
        examples=[
            "distributary reset distributary-demo/games.yaml --dry-run",
            "distributary reset distributary-demo/games.yaml --table bronze_events --dry-run",
        ],
    )
    def reset(
        call: Invocation,
        file: File,
        with_tables: Annotated[
            bool, typer.Option("--with-tables", help="Remove its tables and their history too.")
        ] = False,
        table: Annotated[
            str | None,
            typer.Option(
                "--table",
                metavar="NAME",
                help="Keep all progress, and take this table as it is: what it lacks is accepted.",
                autocompletion=complete_tables,
            ),
        ] = None,
        dry_run: DryRun = False,
        yes: Yes = False,
    ) -> int:
        """Forget how far a pipeline has read.

        With --table nothing is forgotten: a table that was removed, truncated or put back from a
        copy on purpose counts as it is from now on, for `run` and for `verify`.
        """
        if table is not None:
            from distributary.cli.actions.accept import accept_table

            return accept_table(
                call, file, table, with_tables=with_tables, dry_run=dry_run, yes=yes
            )
        from distributary.cli.actions.mend import reset_pipeline

        return reset_pipeline(call, file, with_tables=with_tables, dry_run=dry_run, yes=yes)

    @verb(
        app,
        panel=MEND,
        examples=["distributary recover distributary-demo/games.yaml --dry-run"],
    )
    def recover(call: Invocation, file: File, dry_run: DryRun = False) -> int:
        """Make a lost checkpoint anew from what the lake knows.

        The next run goes on where the tables are: nothing is read twice, and a batch that was
        under way is finished. A checkpoint that is there is left alone.
        """
        from distributary.cli.actions.mend import recover_pipeline

        return recover_pipeline(call, file, dry_run=dry_run)

    @verb(
        app,
        panel=MEND,
        examples=["distributary clean distributary-demo/games.yaml --dry-run"],
    )
    def clean(call: Invocation, file: File, dry_run: DryRun = False, yes: Yes = False) -> int:
        """Remove everything that a pipeline has made, and nothing else."""
        from distributary.cli.actions.mend import clean_pipeline

        return clean_pipeline(call, file, dry_run=dry_run, yes=yes)
