"""To deploy: put a pipeline where it runs, and say who may read its tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from distributary.cli.help import GroupPage, show_help
from distributary.cli.options import DryRun, File, Yes
from distributary.cli.verb import DEPLOY, Invocation, verb

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


def declare(app: typer.Typer) -> None:
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
        from distributary.cli.actions.package import package_environment

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
