"""`maintain`: tables stay small and quick to read while pipelines write to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from distributary.cli.command.lakes import FoundLake, find_lake, find_table, loaded_of
from distributary.cli.command.output import (
    Paper,
    Words,
    brief,
    counted,
    duration,
    number,
    size,
    styled,
)
from distributary.cli.command.verb import (
    FIX,
    DryRun,
    Invocation,
    LakeOption,
    argument,
    complete_tables,
    option,
    single,
    verb,
)
from distributary.errors import ConfigError, ErrorCode
from distributary.observe.log_format import listed

if TYPE_CHECKING:
    from distributary.config.lake import Maintain
    from distributary.operations.maintain import Report, TableReport


app = single(FIX)

_FILES = (".yaml", ".yml")
_REPORT_EVERY = 100
"""The number of tables between two lines of progress."""
_SHOWN = 50


@verb(
    app,
    "maintain distributary-demo/games.yaml --dry-run",
    "maintain --lake distributary-demo --optimize",
)
def maintain(
    call: Invocation,
    targets: Annotated[
        list[str] | None,
        argument(
            "The pipeline file (optional), and the tables to maintain; by default all tables.",
            metavar="FILE|TABLE",
            autocompletion=complete_tables,
            show_default=False,
        ),
    ] = None,
    lake: LakeOption = None,
    optimize: Annotated[bool, option("--optimize", "Combine small files.")] = False,
    checkpoint: Annotated[
        bool,
        option(
            "--checkpoint", "Write checkpoints of the tables' logs, and remove expired commits."
        ),
    ] = False,
    vacuum: Annotated[
        bool, option("--vacuum", "Delete files that no longer belong to a table.")
    ] = False,
    expire: Annotated[
        bool, option("--expire", "Remove old rows, old dead letters and details of old batches.")
    ] = False,
    retention: Annotated[
        str | None,
        option(
            "--retention",
            "How long to keep files for readers of older versions: 7d.",
            metavar="AGE",
        ),
    ] = None,
    force: Annotated[bool, option("--force", "Allow a retention of less than a day.")] = False,
    at_most: Annotated[
        str | None,
        option(
            "--at-most",
            "Start no further table after this time; the next call continues there: 10m.",
            metavar="TIME",
        ),
    ] = None,
    dry_run: DryRun = False,
) -> int:
    """Compact, clean up and expire, beside running pipelines.

    Without options, the steps of the setting `maintain` are done.
    """
    from distributary.operations.maintain import UpkeepStep, Wishes, jobs_of
    from distributary.operations.maintain import maintain as maintain_tables

    names = list(targets or ())
    file = Path(names.pop(0)) if names and names[0].lower().endswith(_FILES) else None
    kept = None if retention is None else _retention(call, retention, force=force)
    found = find_lake(call, lake, file)
    chosen = {
        UpkeepStep.OPTIMIZE: optimize,
        UpkeepStep.CHECKPOINT: checkpoint,
        UpkeepStep.VACUUM: vacuum,
        UpkeepStep.EXPIRE: expire,
    }
    settings, pipeline = _settings(call, found)
    wishes = Wishes(
        settings,
        [step for step, asked in chosen.items() if asked],
        retention=kept,
        force=force,
        dry_run=dry_run,
        pipeline=pipeline,
        at_most=None if at_most is None else timedelta(seconds=call.seconds("--at-most", at_most)),
    )
    jobs = list(jobs_of(found.path, pipeline=found.pipeline))
    if names:
        tables = found.ledger().tables(found.pipeline, schema_ids=False)
        wanted = {find_table(tables, name).table for name in names}
        jobs = [job for job in jobs if job.table in wanted]

    def show_progress(report: TableReport, done: int, total: int) -> None:
        call.out.step(f"{report.table}: {'failed' if report.error else duration(report.seconds)}")
        if done % _REPORT_EVERY == 0 and done < total:
            call.out.note(f"{done:,} of {counted(total, 'table')}")

    report = maintain_tables(found.path, jobs, wishes, whole_lake=not names, on_table=show_progress)
    data = {
        "lake": report.lake,
        "dry_run": dry_run,
        "steps": [str(step) for step in UpkeepStep if step in wishes.steps],
        "totals": report.totals(),
        "tables": [asdict(table) | {"changed": table.changed} for table in report.tables],
        "ledger": report.ledger,
        "leftovers": report.leftovers,
        "notes": report.notes,
        "error": report.error,
        "seconds": round(report.seconds, 3),
    }
    call.out.show(data, lambda paper: _draw(paper, report, dry_run=dry_run))
    for note in report.notes:
        call.out.warn(note)
    return 1 if report.failed else 0


def _retention(call: Invocation, text: str, *, force: bool) -> timedelta:
    from distributary.config.lake import LEAST_RETENTION

    kept = timedelta(seconds=call.seconds("--retention", text))
    if kept < LEAST_RETENTION and not force:
        raise ConfigError(
            "readers may still use files that are younger than a day",
            code=ErrorCode.CONFIRMATION_NEEDED,
            where="--retention",
            evidence=text[:100],
            next_step="keep them for at least 1d, or add --force if no reader uses these tables",
        )
    return kept


def _settings(call: Invocation, lake: FoundLake) -> tuple[Maintain, str | None]:
    """Return the settings of the pipeline's file, and the pipeline's name.

    The defaults for several pipelines or a missing file.
    """
    from distributary.config.lake import Maintain

    try:
        option = "`distributary maintain FILE`"
        config = loaded_of(call, lake, needs=(), option=option).config
        return config.maintain, config.name
    except ConfigError as error:
        # an unreadable pipeline file stops `maintain`: it may ask for a longer retention
        if lake.file is not None or error.code is ErrorCode.FILE_NOT_TRUSTED:
            raise
        call.out.step(f"with the usual settings: {error.what}")
        return Maintain(), None


def _draw(paper: Paper, report: Report, *, dry_run: bool) -> None:
    changed = [table for table in report.tables if table.changed]
    if changed:
        headers = (
            *("TABLE", "ROLE", "FILES>", "SIZE>", "LOG", "DELETED>", "LETTERS>", "OLD ROWS>"),
            "TIME>",
        )
        paper.table(headers, map(_cells, changed[:_SHOWN]), indent=0)
        paper.more(len(changed) - _SHOWN, "table")
    errors = [(f"{table.table}: ", table.error) for table in report.tables]
    for about, error in [*errors, ("", report.error)]:
        if error:
            text = f"  {about}{error['what']}; {error['evidence']}"
            paper.line(styled(str(error["code"]), "bold red"), text)
    reasons: dict[tuple[str, str], list[str]] = {}
    for table in report.tables:
        for step, why in table.skipped.items():
            reasons.setdefault((step, why), []).append(table.table)
    for (step, why), tables in sorted(reasons.items()):
        paper.line(styled(f"no {step} of {listed(tables)}: {why}", "dim"))
    _draw_totals(paper, report, dry_run=dry_run)


def _cells(table: TableReport) -> Sequence[Words]:
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
        f"{table.rows.rows:,}, {size(table.rows.bytes)}" if table.rows and table.rows.rows else "",
        brief(table.seconds),
    )


def _draw_totals(paper: Paper, report: Report, *, dry_run: bool) -> None:
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
    if totals.rows_removed:
        rows = f"{counted(totals.rows_removed, 'old row')}, {size(totals.row_bytes)}"
        parts.append(f"{rows}, removed from tables")
    if report.ledger and report.ledger.batches:
        parts.append(f"details of {counted(report.ledger.batches, 'batch', 'batches')} summed up")
    if report.leftovers:
        parts.append(f"{counted(report.leftovers, 'leftover')} removed")
    would = "would change" if dry_run else "changed"
    failed = f", {totals.failed:,} failed" if totals.failed else ""
    failed += f", {totals.left:,} left for the next time" if totals.left else ""
    paper.line(
        f"{counted(totals.tables, 'table')}, {totals.changed:,} {would}{failed}"
        + "".join(f"; {part}" for part in parts)
        + f"; {duration(report.seconds)}"
    )
