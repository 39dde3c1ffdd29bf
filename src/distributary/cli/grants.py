"""`grants`: plan and apply the rights to read and change the tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from distributary.cli.command.lakes import find_lake, load_file
from distributary.cli.command.output import Paper, confirmed, counted, styled
from distributary.cli.command.verb import DEPLOY, DryRun, File, Invocation, Yes, group, option, verb
from distributary.errors import ConfigError, ErrorCode

if TYPE_CHECKING:
    from distributary.config.load import Loaded
    from distributary.deploy.grants import (
        Executor,
        GrantStatement,
        Right,
        RightsBook,
        StatementOutcome,
    )


app = group("grants", "Show and change the privileges on the tables.", panel=DEPLOY)

SPARK, DATABRICKS = "spark", "databricks"
_SHOWN_FAILURES = 20
_SIGNS = {"grant": ("+ ", "green"), "revoke": ("- ", "red")}


@dataclass(frozen=True, slots=True)
class _Case:
    """A pipeline, what it asks for, and what was granted so far."""

    loaded: Loaded
    book: RightsBook
    wanted: frozenset[Right]
    planned: tuple[GrantStatement, ...]

    @property
    def document(self) -> dict[str, Any]:
        """Return the output that both commands share."""
        return {
            "pipeline": self.loaded.config.name,
            "changes": bool(self.planned),
            "rights": len(self.wanted),
            "statements": [statement.as_dict() for statement in self.planned],
        }

    @property
    def summary(self) -> str:
        """Format the numbers of statements: `2 grants, 1 revoke`."""
        counts = Counter(str(statement.verb) for statement in self.planned)
        return ", ".join(counted(counts[verb], verb) for verb in _SIGNS if counts[verb])

    def draw(self, paper: Paper) -> None:
        """Print the statements of the plan."""
        for statement in self.planned:
            sign, style = _SIGNS[statement.verb]
            paper.line(styled(sign, style), statement.sql)
        unchanged = f"unchanged: {counted(len(self.wanted), 'right')} as the file asks for"
        paper.line(self.summary or unchanged)


def _case(call: Invocation, file: Path) -> _Case:
    from distributary.deploy.grants import RightsBook, statements, wanted_rights

    loaded = load_file(call, file)
    config, lake = loaded.config, find_lake(call, file=file)
    book = RightsBook(lake.path, config.name)
    wanted = wanted_rights(config, lake.ledger().tables(config.name))
    return _Case(loaded, book, wanted, statements(wanted, book.read()))


@verb(app, "grants plan distributary-demo/games.yaml")
def plan(
    call: Invocation,
    file: File,
    check: Annotated[bool, option("--check", "Exit with 1 if something would change.")] = False,
) -> int:
    """Show the statements that `grants apply` would run."""
    case = _case(call, file)
    call.out.show(case.document, case.draw)
    return 1 if check and case.planned else 0


@verb(app, "grants apply distributary-demo/games.yaml --dry-run")
def apply(
    call: Invocation,
    file: File,
    through: Annotated[
        Literal["spark", "databricks"] | None,
        option(
            "--through",
            "spark or databricks; by default databricks if the file names a catalog for it.",
            metavar="WAY",
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Grant the privileges of the file, and revoke those that it no longer has.

    Only grants that this command has made are revoked.
    """
    from distributary.deploy.grants import GrantResult, apply_rights

    case = _case(call, file)
    if dry_run or not case.planned:
        call.out.show(case.document | {"dry_run": dry_run, "outcomes": []}, case.draw)
        return 0
    question = f"Run {counted(len(case.planned), 'statement')}?"
    if not confirmed(call, question, yes=yes, evidence=case.summary, draw=case.draw):
        return 1
    outcomes = apply_rights(
        case.book,
        case.wanted,
        _executor(call, case.loaded, through),
        waiting=lambda: call.out.note("waiting for another `grants apply` to end"),
    )
    data = case.document | {"dry_run": False, "outcomes": [o.as_dict() for o in outcomes]}
    call.out.show(data, lambda paper: _draw_outcomes(paper, outcomes))
    failed = [o for o in outcomes if o.result not in (GrantResult.DONE, GrantResult.FOUND)]
    # if every statement failed, the exit code is that of the reason
    if failed and len(failed) == len(outcomes):
        codes = {o.error.exit_code for o in failed if o.error is not None}
        return codes.pop() if len(codes) == 1 else 1
    return 1 if failed else 0


def _executor(call: Invocation, loaded: Loaded, through: str | None) -> Executor:
    from distributary.deploy.grants import CatalogExecutor, SparkExecutor

    config = loaded.config
    databricks = config.deploy.databricks if config.deploy is not None else None
    catalog = config.lake.registered_in
    three_parts = catalog is not None and len(catalog.names) > 1
    named = databricks is not None and (databricks.catalog is not None or three_parts)
    if (through or (DATABRICKS if named else SPARK)) == SPARK:
        from distributary.spark.session import spark_session
        from distributary.spark.settings import SparkSettings

        settings = SparkSettings.of(loaded, log_file=call.log.path, short_lived=True)
        return SparkExecutor(spark_session(settings, app_name=f"{config.name} grants"))
    if databricks is None or not named:
        raise ConfigError(
            "Unity Catalog needs the name of a catalog",
            code=ErrorCode.CONFIG_MISSING_KEY,
            where="deploy.databricks",
            next_step="add it with lake.catalog.name or its own catalog, or use --through spark",
        )
    from distributary.deploy.databricks_workspace import open_workspace

    return CatalogExecutor(open_workspace(databricks))


def _draw_outcomes(paper: Paper, outcomes: Sequence[StatementOutcome]) -> None:
    failed = [(o, o.error) for o in outcomes if o.error is not None]
    for outcome, error in failed[:_SHOWN_FAILURES]:
        paper.line(styled(f"{outcome.result} ", "red"), outcome.statement.sql)
        paper.line(f"    {error.code}  {error.what}: {error.evidence}")
        paper.line(f"    next  {error.next_step}")
    paper.more(len(failed) - _SHOWN_FAILURES)
    counts = Counter(f"{o.statement.verb} {o.result}" for o in outcomes)
    paper.line(", ".join(f"{count:,} {what}" for what, count in counts.items()))
