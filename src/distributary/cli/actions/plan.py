"""`plan`: what a run would do to the tables."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from distributary.cli.lakes import open_pipeline
from distributary.cli.output import Paper, styled
from distributary.cli.verb import Invocation
from distributary.cli.words import counted, cut, tally
from distributary.model.table import Change, ChangeKind
from distributary.run.preview import Preview, TablePreview, preview

_MOST_RULES = 20
_LONGEST = 400
"""Of the columns of a new table, whose number nobody limits."""
_COLOURS = {"+": "green", "~": "yellow", "!": "red", "-": "red"}


def show_plan(call: Invocation, file: Path, *, check: bool) -> int:
    """The changes of every table; 1 if there are any and `check` asks for that."""
    found = preview(open_pipeline(call, file))
    changes = found.changes_something
    call.out.show({"changes": changes, **found.as_dict()}, lambda paper: _draw(paper, found))
    return 1 if check and changes else 0


def _draw(paper: Paper, found: Preview) -> None:
    for table in found.tables:
        _draw_table(paper, table)
    if not found.changes_something:
        paper.line("No changes.")
    paper.line(f"{counted(found.records, 'record')} to read.")
    if found.dead_letters:
        lost = sum(found.dead_letters.values())
        paper.line(f"{counted(lost, 'dead letter')} foreseen: {tally(found.dead_letters)}.")
    for unfit in found.unfit_rules[:_MOST_RULES]:
        text = f"expectation {unfit.rule} is not applied to {unfit.table}: {unfit.why}"
        paper.line(styled(text, "yellow"))
    if len(found.unfit_rules) > _MOST_RULES:
        more = len(found.unfit_rules) - _MOST_RULES
        paper.line(f"and {counted(more, 'more pair')} of expectation and table")


def _draw_table(paper: Paper, table: TablePreview) -> None:
    if not (table.new or table.changes):
        return
    records = f"  ({counted(table.records, 'record')})" if table.records else ""
    if table.new:
        paper.line(styled("+ table ", "green"), styled(table.name, "bold"), records)
    else:
        paper.line("  table ", styled(table.name, "bold"), records)
    draw_changes(paper, table.changes)


def draw_changes(paper: Paper, changes: Iterable[Change]) -> None:
    """What happens to the columns of a table, line by line."""
    for change in changes:
        if text := _described(change):
            paper.line("    ", styled(text, _COLOURS.get(text[0], "")))


def _described(change: Change) -> str:
    if change.kind is ChangeKind.TABLE_CREATED:
        return f"+ columns {cut(change.after, _LONGEST)}" if change.after else ""
    text = change.describe()
    return text.replace("+ ", "+ column ", 1) if text.startswith("+ ") else text
