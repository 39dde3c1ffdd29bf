"""`grants plan` and `grants apply`: the statements, and then they are carried out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributary.cli.lakes import find_lake, load_file
from distributary.cli.output import Paper, confirmed, counted, styled
from distributary.cli.verb import Invocation
from distributary.config.load import Loaded
from distributary.deploy.grants import (
    CatalogExecutor,
    Executor,
    Outcome,
    Result,
    Right,
    RightsBook,
    SparkExecutor,
    Statement,
    Verb,
    apply_rights,
    statements,
    wanted_rights,
)
from distributary.errors import ConfigError, ErrorCode
from distributary.observe.ledger import Ledger

SPARK, DATABRICKS = "spark", "databricks"
_SHOWN_FAILURES = 20
_SIGNS = {Verb.GRANT: ("+ ", "green"), Verb.REVOKE: ("- ", "red")}


@dataclass(frozen=True, slots=True)
class _Case:
    """A pipeline, what it asks for, and what was granted so far."""

    loaded: Loaded
    book: RightsBook
    wanted: frozenset[Right]
    planned: tuple[Statement, ...]

    @property
    def document(self) -> dict[str, Any]:
        """What both commands say."""
        return {
            "pipeline": self.loaded.config.name,
            "changes": bool(self.planned),
            "rights": len(self.wanted),
            "statements": [statement.as_dict() for statement in self.planned],
        }


def show_grants(call: Invocation, file: Path, *, check: bool) -> int:
    """The statements that `apply` would run; 1 if there are any and `check` asks for that."""
    case = _case(call, file)
    call.out.show(case.document, lambda paper: _draw_plan(paper, case))
    return 1 if check and case.planned else 0


def apply_grants(
    call: Invocation, file: Path, *, through: str | None, dry_run: bool, yes: bool
) -> int:
    """Grant what is missing and revoke what is not asked for any more; 1 if some failed."""
    case = _case(call, file)
    if dry_run or not case.planned:
        data = case.document | {"dry_run": dry_run, "outcomes": []}
        call.out.show(data, lambda paper: _draw_plan(paper, case))
        return 0
    if not yes:
        _draw_plan(call.out.margin, case)
        question = f"Run {counted(len(case.planned), 'statement')}?"
        if not confirmed(call, question, yes=yes, evidence=_tally(case.planned)):
            return 1
    executor = _executor(call, case.loaded, through)
    outcomes = apply_rights(
        case.book,
        case.wanted,
        executor,
        waiting=lambda: call.out.note("waiting for another `grants apply` to end"),
    )
    data = case.document | {"dry_run": False, "outcomes": [o.as_dict() for o in outcomes]}
    call.out.show(data, lambda paper: _draw_outcomes(paper, outcomes))
    return _code(outcomes)


def _case(call: Invocation, file: Path) -> _Case:
    loaded = load_file(call, file)
    config = loaded.config
    lake = find_lake(call, file=file)
    tables = Ledger(lake.path, storage_options=lake.options).tables(config.name)
    book = RightsBook(lake.path, config.name, storage_options=lake.options)
    wanted = wanted_rights(config, tables)
    return _Case(loaded, book, wanted, statements(wanted, book.read()))


def _executor(call: Invocation, loaded: Loaded, through: str | None) -> Executor:
    config = loaded.config
    databricks = config.deploy.databricks if config.deploy is not None else None
    named = databricks is not None and databricks.catalog is not None
    if (through or (DATABRICKS if named else SPARK)) == SPARK:
        from distributary.spark.session import spark_session
        from distributary.spark.settings import SparkSettings

        settings = SparkSettings.from_config(
            config.spark, sealed=loaded.sealed, log_file=call.log.path, short_lived=True
        )
        return SparkExecutor(spark_session(settings, app_name=f"{config.name} grants"))
    if databricks is None or not named:
        raise ConfigError(
            "Unity Catalog needs the name of a catalog",
            code=ErrorCode.CONFIG_MISSING_KEY,
            where="deploy.databricks.catalog",
            next_step="add it, or use --through spark",
        )
    from distributary.deploy.databricks import open_workspace

    return CatalogExecutor(open_workspace(databricks))


def _code(outcomes: Sequence[Outcome]) -> int:
    failed = [o for o in outcomes if o.result not in (Result.DONE, Result.FOUND)]
    # nothing at all could be done: the reason decides, else a part of it is missing
    if failed and len(failed) == len(outcomes):
        codes = {o.error.exit_code for o in failed if o.error is not None}
        return codes.pop() if len(codes) == 1 else 1
    return 1 if failed else 0


def _draw_plan(paper: Paper, case: _Case) -> None:
    for statement in case.planned:
        sign, style = _SIGNS[statement.verb]
        paper.line(styled(sign, style), statement.sql)
    if case.planned:
        paper.line(_tally(case.planned))
    else:
        paper.line(f"unchanged: {counted(len(case.wanted), 'right')} as the file asks for")


def _draw_outcomes(paper: Paper, outcomes: Sequence[Outcome]) -> None:
    failed = [o for o in outcomes if o.error is not None]
    for outcome in failed[:_SHOWN_FAILURES]:
        paper.line(styled(f"{outcome.result} ", "red"), outcome.statement.sql)
        if outcome.error is not None:
            paper.line(f"    {outcome.error.code}  {outcome.error.what}: {outcome.error.evidence}")
            paper.line(f"    next  {outcome.error.next_step}")
    if len(failed) > _SHOWN_FAILURES:
        paper.line(f"and {counted(len(failed) - _SHOWN_FAILURES, 'more')}")
    counts = Counter(f"{o.statement.verb} {o.result}" for o in outcomes)
    paper.line(", ".join(f"{count:,} {what}" for what, count in counts.items()))


def _tally(planned: Sequence[Statement]) -> str:
    counts = Counter(statement.verb for statement in planned)
    return ", ".join(counted(counts[verb], str(verb)) for verb in Verb if counts[verb])
