"""`verify`: merged tables against their logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.live import Live

from distributary.cli.actions.moments import microseconds, moment_of
from distributary.cli.actions.schema import find_table
from distributary.cli.failure import usage_error
from distributary.cli.lakes import Lake, find_lake, pipeline_of
from distributary.cli.output import NORMAL, Paper, Words, styled
from distributary.cli.verb import Invocation
from distributary.cli.words import counted, cut, duration, number
from distributary.model.table import Role
from distributary.observe.ledger import Ledger
from distributary.observe.plain import plain
from distributary.observe.rows import TableSummary
from distributary.run.pipeline import Pipeline
from distributary.run.verifying import Checked, verify_table

_COMMAND = "distributary verify"
_SHOWN = 15
_MOST_DIFFERENCES = 10
_LONGEST = 40
_NOTES = 10
"""Lines about progress where nobody watches a terminal."""


def verify_tables(
    call: Invocation,
    tables: Sequence[str],
    *,
    everything: bool,
    as_of: str | None,
    lake: str | None,
    pipeline: str | None,
    file: Path | None,
) -> int:
    """Compare tables with their logs; 1 if one of them differs."""
    if everything == bool(tables):
        raise usage_error("name tables, or say --all, and not both.", command=_COMMAND)
    moment = moment_of(as_of, command=_COMMAND)
    found = find_lake(call, lake, file)
    ledger = Ledger(found.path, storage_options=found.options)
    known = ledger.tables(pipeline or found.pipeline, schema_ids=False)
    chosen = (
        [t for t in known if t.role == Role.MERGED]
        if everything
        else [find_table(known, name) for name in dict.fromkeys(tables)]
    )
    done = _verified(call, found, chosen, as_of_us=microseconds(moment))
    differing = sum(not one.verified.agrees for one in done)
    data = {
        "lake": found.path,
        "as_of": moment,
        "agree": not differing,
        "tables": [_document(one) for one in done],
    }
    call.out.show(data, lambda paper: draw_checked(paper, done, found))
    return 1 if differing else 0


def draw_checked(paper: Paper, done: Sequence[Checked], lake: Lake) -> None:
    """What differs first, then the others, then one line for all."""
    if not done:
        paper.line("there is no merged table here: nothing to verify")
        return
    order = sorted(done, key=lambda one: (one.verified.agrees, one.verified.table))
    paper.table(
        ("TABLE", "ROWS", "BY THE LOG", "CHECKSUM", "BY THE LOG", "RESULT", "TIME"),
        (_cells(one) for one in order[:_SHOWN]),
        right=("ROWS", "BY THE LOG", "TIME"),
        indent=0,
    )
    more = len(order) - _SHOWN
    if more > 0:
        paper.line(f"and {more:,} more")
    for one in order[:_SHOWN]:
        _draw_differences(paper, one, lake)
    _draw_sum(paper, done)


def _verified(
    call: Invocation, lake: Lake, tables: Sequence[TableSummary], *, as_of_us: int | None
) -> list[Checked]:
    pipelines: dict[str, Pipeline] = {}
    done = []
    with _progress(call, len(tables)) as tell:
        for at, known in enumerate(tables):
            tell(at, known.table)
            if known.pipeline not in pipelines:
                pipelines[known.pipeline] = pipeline_of(call, lake, name=known.pipeline)
            done.append(verify_table(pipelines[known.pipeline], known, as_of_us=as_of_us))
    return done


@contextmanager
def _progress(call: Invocation, total: int) -> Iterator[Callable[[int, str], None]]:
    def text(at: int, table: str) -> str:
        return f"verifying {at + 1:,} of {total:,}: {table}"

    if call.out.margin.fancy and call.out.verbosity == NORMAL:
        with Live(console=call.out.margin.console, transient=True) as live:
            yield lambda at, table: live.update(styled(text(at, table), "dim"))
        return

    def note(at: int, table: str) -> None:
        if total > _NOTES and at % -(-total // _NOTES) == 0:
            call.out.note(text(at, table))

    yield note


def _document(one: Checked) -> dict[str, Any]:
    found = one.verified
    return {
        "table": found.table,
        "log": one.log,
        "agrees": found.agrees,
        "rows": found.found,
        "rows_by_log": found.expected,
        "checksum": found.found_checksum,
        "checksum_by_log": found.expected_checksum,
        "missing": found.missing,
        "extra": found.extra,
        "different": found.different,
        "differences": plain(found.differences[:_MOST_DIFFERENCES]),
        "parked_batches": one.parked_batches,
        "unfinished_batch": one.unfinished,
        "seconds": round(found.seconds, 3),
    }


def _cells(one: Checked) -> list[Words]:
    found = one.verified
    result = styled("agree", "green")
    if not found.agrees:
        parts = {"missing": found.missing, "extra": found.extra, "different": found.different}
        text = ", ".join(f"{count:,} {what}" for what, count in parts.items() if count)
        result = styled(text, "bold red")
    return [
        found.table,
        number(found.found),
        number(found.expected),
        found.found_checksum,
        found.expected_checksum,
        result,
        duration(found.seconds),
    ]


def _draw_differences(paper: Paper, one: Checked, lake: Lake) -> None:
    found = one.verified
    if found.agrees:
        return
    paper.line("")
    paper.line(styled(found.table, "bold"), f": what differs from {one.log}")
    paper.table(
        ("KEY", "COLUMN", "EXPECTED", "FOUND"),
        (
            (
                cut(each.key, _LONGEST),
                each.column or "(the row)",
                "-" if each.expected is None else cut(each.expected, _LONGEST),
                "-" if each.found is None else cut(each.found, _LONGEST),
            )
            for each in found.differences[:_MOST_DIFFERENCES]
        ),
    )
    if one.parked_batches:
        waiting = counted(one.parked_batches, "batch", "batches")
        paper.line(f"  {waiting} wait for it: distributary resume {found.table}{lake.flag}")
    elif one.unfinished:
        paper.line("  a batch is half way: run the pipeline, or wait for it, and verify again")
    else:
        mending = f"distributary rebuild {found.table}{lake.flag}"
        paper.line(f"  to make it what its log says: {mending}")


def _draw_sum(paper: Paper, done: Sequence[Checked]) -> None:
    differing = sum(not one.verified.agrees for one in done)
    rows = counted(sum(one.verified.expected for one in done), "row")
    tables = counted(len(done), "table")
    if differing:
        verb = "differs" if differing == 1 else "differ"
        paper.line(styled(f"{differing:,} of {tables} {verb}", "bold red"))
    else:
        paper.line(styled(f"{tables}, {rows}: agree with their logs", "bold green"))
