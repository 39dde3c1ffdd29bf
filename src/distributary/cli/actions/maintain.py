"""`maintain`: what was done to which table, what was left out and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic_core import PydanticCustomError

from distributary.cli.actions.schema import find_table
from distributary.cli.lakes import Lake, find_lake, loaded_of
from distributary.cli.logs import usage_error
from distributary.cli.output import (
    Paper,
    Words,
    brief,
    counted,
    duration,
    listed,
    number,
    size,
    styled,
)
from distributary.cli.verb import Invocation
from distributary.config.base import parse_duration
from distributary.config.lake import LEAST_RETENTION, Maintain, local_path
from distributary.engine.maintain import Job, Report, Step, TableReport, Wishes, jobs_of, maintain
from distributary.errors import ConfigError, ErrorCode
from distributary.observe.ledger import Ledger

_COMMAND = "distributary maintain"
_FILES = (".yaml", ".yml")
_TOLD_EVERY = 100
"""Tables: then whoever waits hears of it."""
_SHOWN = 50


def maintain_lake(
    call: Invocation,
    targets: Sequence[str],
    *,
    lake: str | None,
    steps: Sequence[str],
    retention: str | None,
    force: bool,
    dry_run: bool,
) -> int:
    """Look after the tables that are meant."""
    file, names = _split(targets)
    kept = _retention(retention, force=force)
    found = find_lake(call, lake, file)
    if local_path(found.path) is None:
        raise ConfigError(
            "only a lake on a file system can be maintained",
            where=found.path,
            next_step="use the maintenance of the service that the lake is on",
        )
    wishes = Wishes.of(
        _settings(call, found),
        steps=[Step(step) for step in steps],
        retention=kept,
        force=force,
        dry_run=dry_run,
    )
    jobs = _meant(found, names)

    def told(report: TableReport, done: int, total: int) -> None:
        call.out.step(f"{report.table}: {'failed' if report.error else duration(report.seconds)}")
        if done % _TOLD_EVERY == 0 and done < total:
            call.out.note(f"{done:,} of {counted(total, 'table')}")

    report = maintain(found.path, jobs, wishes, whole_lake=not names, on_table=told)
    call.out.show(_data(report, wishes), lambda paper: _draw(paper, report, wishes))
    for note in report.notes:
        call.out.warn(note)
    return 1 if report.failed else 0


def _split(targets: Sequence[str]) -> tuple[Path | None, list[str]]:
    if targets and targets[0].lower().endswith(_FILES):
        return Path(targets[0]), list(targets[1:])
    return None, list(targets)


def _retention(text: str | None, *, force: bool) -> timedelta | None:
    if text is None:
        return None
    try:
        kept = parse_duration(text)
    except PydanticCustomError as error:
        raise usage_error(f"--retention {error.message()}", command=_COMMAND) from None
    if kept < LEAST_RETENTION and not force:
        raise ConfigError(
            "readers may still look at files that are younger than a day",
            code=ErrorCode.CONFIRMATION_NEEDED,
            where="--retention",
            evidence=text[:100],
            next_step="keep them for 1d at least, or add --force if nobody reads these tables",
        )
    return kept


def _settings(call: Invocation, lake: Lake) -> Maintain:
    """What the pipeline's file says; the usual where a lake has several, or the file is gone."""
    try:
        option = "`distributary maintain FILE`"
        return loaded_of(call, lake, needs=(), option=option).config.maintain
    except ConfigError as error:
        # what a file that is there asks to be kept is not deleted because it was not read
        if lake.file is not None or error.code is ErrorCode.FILE_NOT_TRUSTED:
            raise
        call.out.step(f"with the usual settings: {error.what}")
        return Maintain()


def _meant(lake: Lake, names: Sequence[str]) -> list[Job]:
    jobs = jobs_of(lake.path, pipeline=lake.pipeline)
    if not names:
        return list(jobs)
    tables = Ledger(lake.path, storage_options=lake.options).tables(lake.pipeline, schema_ids=False)
    wanted = {find_table(tables, name).table for name in names}
    return [job for job in jobs if job.table in wanted]


def _data(report: Report, wishes: Wishes) -> dict[str, Any]:
    return {
        "lake": report.lake,
        "dry_run": wishes.dry_run,
        "steps": [str(step) for step in Step if step in wishes.steps],
        "totals": report.totals(),
        "tables": [asdict(table) | {"changed": table.changed} for table in report.tables],
        "ledger": report.ledger,
        "leftovers": report.leftovers,
        "notes": report.notes,
        "error": report.error,
        "seconds": round(report.seconds, 3),
    }


def _draw(paper: Paper, report: Report, wishes: Wishes) -> None:
    changed = [table for table in report.tables if table.changed]
    if changed:
        headers = ("TABLE", "ROLE", "FILES", "SIZE", "LOG", "DELETED", "LETTERS", "TIME")
        right = ("FILES", "SIZE", "DELETED", "LETTERS", "TIME")
        paper.table(headers, map(_row, changed[:_SHOWN]), right=right, indent=0)
        if len(changed) > _SHOWN:
            paper.line(f"and {counted(len(changed) - _SHOWN, 'more table', 'more tables')}")
    for table in report.tables:
        if table.error:
            paper.line(
                styled(str(table.error["code"]), "bold red"),
                f"  {table.table}: {table.error['what']}; {table.error['evidence']}",
            )
    if report.error:
        paper.line(
            styled(str(report.error["code"]), "bold red"),
            f"  {report.error['what']}; {report.error['evidence']}",
        )
    _draw_skipped(paper, report)
    _draw_totals(paper, report, wishes)


def _row(table: TableReport) -> Sequence[Words]:
    done, log, gone = table.optimize, table.checkpoint, table.vacuum
    words = []
    if log and log.checkpoint is not None:
        words.append(f"checkpoint {log.checkpoint}")
    if log and log.removed:
        words.append(f"-{counted(log.removed, 'file')}")
    deleted = gone.removed + gone.orphans if gone else 0
    return (
        table.table,
        table.role,
        f"{done.files_before:,} to {done.files_after:,}" if done else "",
        f"{size(done.bytes_before)} to {size(done.bytes_after)}" if done else "",
        ", ".join(words),
        f"{counted(deleted, 'file')}, {size(gone.bytes)}" if gone and deleted else "",
        number(table.expire.letters) if table.expire and table.expire.letters else "",
        brief(table.seconds),
    )


def _draw_skipped(paper: Paper, report: Report) -> None:
    reasons: dict[tuple[str, str], list[str]] = {}
    for table in report.tables:
        for step, why in table.skipped.items():
            reasons.setdefault((step, why), []).append(table.table)
    for (step, why), tables in sorted(reasons.items()):
        paper.line(styled(f"no {step} of {listed(tables)}: {why}", "dim"))


def _draw_totals(paper: Paper, report: Report, wishes: Wishes) -> None:
    totals = report.totals()
    parts: list[str] = []
    if totals.files_before:
        parts.append(f"{totals.files_before:,} files into {totals.files_after:,}")
    if totals.checkpoints:
        parts.append(counted(totals.checkpoints, "checkpoint"))
    if totals.log_files:
        parts.append(f"{counted(totals.log_files, 'old file')} of logs removed")
    if totals.files_deleted:
        freed = f"{counted(totals.files_deleted, 'file')} deleted, {size(totals.bytes_deleted)}"
        parts.append(freed)
    if totals.dead_letters:
        parts.append(f"{counted(totals.dead_letters, 'dead letter')} expired")
    if report.ledger and report.ledger.batches:
        parts.append(f"details of {counted(report.ledger.batches, 'batch', 'batches')} summed up")
    if report.leftovers:
        parts.append(f"{counted(report.leftovers, 'leftover')} removed")
    would = "would change" if wishes.dry_run else "changed"
    failed = f", {totals.failed:,} failed" if totals.failed else ""
    paper.line(
        f"{counted(totals.tables, 'table')}, {totals.changed:,} {would}{failed}"
        + "".join(f"; {part}" for part in parts)
        + f"; {duration(report.seconds)}"
    )
