"""To mend: parked tables, a pipeline that must begin anew, and what it leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from distributary.cli.verb import (
    DEPLOY,
    MEND,
    AsOf,
    DryRun,
    File,
    FileOption,
    GroupPage,
    Invocation,
    Lake,
    PipelineName,
    TableArgument,
    Yes,
    complete_tables,
    show_help,
    verb,
)


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
        from distributary.cli.actions.mend import rebuild_from_log

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
            from distributary.cli.actions.mend import accept_table

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


# To keep: tables stay small and quick to read while pipelines write to them.

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


def declare_maintain(app: typer.Typer) -> None:
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


# To deploy: put a pipeline where it runs, and say who may read its tables.

TARGETS = ("airflow", "databricks", "kubernetes", "spark-submit", "systemd")
"""What `--target` takes; the same as `TargetName`, which would import too much for a help page."""


def _target(value: str) -> str:
    if value not in TARGETS:
        raise typer.BadParameter(f"must be one of {', '.join(TARGETS)}")
    return value


def _through(value: str | None) -> str | None:
    if value not in (None, "spark", "databricks"):
        raise typer.BadParameter("must be spark or databricks")
    return value


Target = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="TARGET",
        help="Where to: airflow, databricks, kubernetes, spark-submit or systemd.",
        callback=_target,
        autocompletion=lambda: list(TARGETS),
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Folder of the files, in place of the usual one."),
]

grants = typer.Typer(
    cls=GroupPage, help="Say and change who may read the tables.", rich_markup_mode=None
)


@grants.callback(invoke_without_command=True)
def _grants(ctx: typer.Context) -> None:
    show_help(ctx)


def declare_deploy(app: typer.Typer) -> None:
    """Adds the commands of this group."""
    _declare_install(app)
    app.add_typer(grants, name="grants", rich_help_panel=DEPLOY)


def _declare_install(app: typer.Typer) -> None:
    @verb(
        app,
        panel=DEPLOY,
        examples=[
            "distributary install distributary-demo/games.yaml --target systemd --dry-run",
            "distributary install distributary-demo/games.yaml --target airflow --out dags",
            "distributary install distributary-demo/games.yaml --target systemd --shards 2 "
            "--dry-run",
        ],
    )
    def install(
        call: Invocation,
        file: File,
        target: Target,
        out: Out = None,
        shards: Annotated[
            int | None,
            typer.Option(
                "--shards",
                metavar="N",
                min=1,
                max=256,
                help="Spread the types over N jobs, beside one that lands bronze for them.",
            ),
        ] = None,
        dry_run: DryRun = False,
        force: Annotated[
            bool, typer.Option("--force", help="Replace what somebody edited since.")
        ] = False,
    ) -> int:
        """Put a pipeline where it runs from now on.

        Done twice, it changes nothing the second time. Secrets stay where they are: the file is
        passed on with its references.
        """
        from distributary.cli.actions.install import install_pipeline

        return install_pipeline(
            call, file, target=target, out=out, shards=shards, dry_run=dry_run, force=force
        )

    @verb(
        app,
        panel=DEPLOY,
        examples=["distributary uninstall distributary-demo/games.yaml --target systemd --dry-run"],
    )
    def uninstall(
        call: Invocation,
        file: File,
        target: Target,
        out: Out = None,
        dry_run: DryRun = False,
        yes: Yes = False,
    ) -> int:
        """Remove what `install` has written, and nothing else."""
        from distributary.cli.actions.install import uninstall_pipeline

        return uninstall_pipeline(call, file, target=target, out=out, dry_run=dry_run, yes=yes)

    @verb(
        app,
        panel=DEPLOY,
        examples=["distributary package environment.tar.gz --dry-run"],
    )
    def package(
        call: Invocation,
        out: Annotated[
            Path,
            typer.Argument(help="The archive, or the wheel, to write.", metavar="OUT.tar.gz|WHEEL"),
        ],
        dry_run: DryRun = False,
    ) -> int:
        """Pack what Spark's executors need of Python into one file.

        For spark-submit --archives OUT.tar.gz#environment with
        --conf spark.pyspark.python=./environment/bin/python

        With the name of a wheel at its end, Distributary alone as it is installed here, for an
        image that asks no index for it.
        """
        from distributary.cli.actions.install import package_environment

        return package_environment(call, out, dry_run=dry_run)


@verb(grants, examples=["distributary grants plan distributary-demo/games.yaml"])
def plan(
    call: Invocation,
    file: File,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 if something would change.")
    ] = False,
) -> int:
    """Show the statements that `grants apply` would run."""
    from distributary.cli.actions.grants import show_grants

    return show_grants(call, file, check=check)


@verb(grants, examples=["distributary grants apply distributary-demo/games.yaml --dry-run"])
def apply(
    call: Invocation,
    file: File,
    through: Annotated[
        str | None,
        typer.Option(
            "--through",
            metavar="WAY",
            help="spark or databricks; by the file's deploy.databricks.catalog when left out.",
            callback=_through,
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Grant what the file asks for, and revoke what it no longer asks for.

    Only what was granted by this command is ever revoked.
    """
    from distributary.cli.actions.grants import apply_grants

    return apply_grants(call, file, through=through, dry_run=dry_run, yes=yes)
