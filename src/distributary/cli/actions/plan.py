"""`plan`: what a run would do to the tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from distributary.cli.lakes import open_pipeline
from distributary.cli.logs import usage_error
from distributary.cli.output import Paper, counted, cut, printable, styled, tally
from distributary.cli.verb import Invocation
from distributary.engine.proposal import Proposal, propose
from distributary.engine.proposed import (
    Preview,
    TablePreview,
    choose_subject,
    judge_of,
    preview,
    read_schema,
)
from distributary.model.table import Change, ChangeKind

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


# A proposed schema's verdict as Markdown, to be pasted into a pull request.

_LONGEST_CELL = 300
_MOST_ROWS = 200
_HARMLESS = re.compile(r"[\w ,.:;/()<>=+'\"-]*", re.ASCII)


def code(text: str) -> str:
    """Text from anywhere as code: it cannot end its cell or line, nor be markup, link or mention.

    What a code span could not hold is spelled in character references, which are never syntax.
    """
    shown = cut(printable(text), _LONGEST_CELL).strip()
    if not shown:
        return ""
    if _HARMLESS.fullmatch(shown):
        return f"`{shown}`"
    spelled = (c if c.isalnum() or c in " -." else f"&#{ord(c)};" for c in shown)
    return f"<code>{''.join(spelled)}</code>"


def markdown(found: Proposal, name: str) -> str:
    """A block with a heading, the verdict, the changes of columns, and the counts."""
    return "\n".join(_lines(found, name)) + "\n"


def _lines(found: Proposal, name: str) -> Iterator[str]:
    yield f"### Schema change: {code(f'{found.subject} v{found.version}')}"
    yield ""
    verdict = "**It would break something.**" if found.breaks else "**Nothing would break.**"
    word = "compatible" if found.compatible else "not compatible"
    yield f"{verdict} {code(name)} is {word} at level `{found.level}`."
    yield ""
    if found.problems:
        yield from _bullets(map(code, found.problems), len(found.problems))
    if found.refusals:
        yield from _bullets(
            (
                f"{'The pipeline would stop' if r.stops else 'Dead letters'}: type "
                f"{code(r.type)}, `{r.code}`, {code(r.message)}"
                for r in found.refusals
            ),
            len(found.refusals),
        )
    yield "#### Tables"
    yield ""
    yield from _tables(found.tables)
    yield "#### Records"
    yield ""
    yield from _records(found)


def _tables(tables: Sequence[TablePreview]) -> Iterator[str]:
    rows = [
        (code(t.name), str(c.kind).replace("_", " "), code(c.column), code(c.before), code(c.after))
        for t in tables
        for c in t.changes
        if c.kind is not ChangeKind.TABLE_CREATED
    ]
    created = [t.name for t in tables if t.new]
    if created:
        yield from _bullets((f"New table {code(each)}" for each in created), len(created))
    if rows:
        yield from _grid(("Table", "Change", "Column", "Before", "After"), rows)
    elif not created:
        yield "No table would change."
        yield ""


def _records(found: Proposal) -> Iterator[str]:
    trial = found.trial
    if found.untried:
        yield f"Not all records were tried: {code(found.untried)}."
        yield ""
    rows = [
        ("tried", f"{trial.records:,}", ""),
        ("decode", f"{trial.decoded:,}", ""),
        *(
            (f"would break: `{each.code}`", f"{each.records:,}", code(each.example))
            for each in trial.breakages
        ),
    ]
    rows += [("would find no place", f"{trial.untried:,}", "")] if trial.untried else []
    rows += [("broken now too", f"{trial.broken_now:,}", "")] if trial.broken_now else []
    yield from _grid(("Records", "Number", "First"), rows)
    if trial.losses:
        losses = [
            (code(x.field), f"{x.vanished:,}", f"{x.changed:,}", code(x.example))
            for x in trial.losses
        ]
        yield from _grid(("Field", "Values that vanish", "Values that change", "First"), losses)
    yield f"Of {counted(found.read, 'record')} read. Nothing was registered or written."


def _bullets(lines: Iterable[str], number: int) -> Iterator[str]:
    for at, line in enumerate(lines):
        if at == _MOST_ROWS:
            yield f"- and {number - at:,} more"
            break
        yield f"- {line}"
    yield ""


def _grid(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(headers)} |"
    yield f"|{'---|' * len(headers)}"
    for row in rows[:_MOST_ROWS]:
        yield f"| {' | '.join(row)} |"
    yield ""
    if len(rows) > _MOST_ROWS:
        yield f"And {len(rows) - _MOST_ROWS:,} more."
        yield ""


# `plan --with-schema`: what a schema that is not registered would do.

_COMMAND = "distributary plan"
_MOST_SHOWN = 20


def show_proposal(
    call: Invocation,
    file: Path,
    schema: Path | None,
    *,
    subject: str | None,
    type: str | None,
    as_markdown: bool,
    check: bool,
) -> int:
    """The verdict on a schema; 1 if it would break something and `check` asks for that."""
    if schema is None:
        raise usage_error(
            "--subject, --type and --markdown are about --with-schema.", command=_COMMAND
        )
    if subject is not None and type is not None:
        raise usage_error("--subject and --type exclude each other.", command=_COMMAND)
    if as_markdown and call.out.is_json:
        raise usage_error("--markdown and --json exclude each other.", command=_COMMAND)
    pipeline = open_pipeline(call, file)
    text, registry = read_schema(schema), judge_of(pipeline.config)
    if subject is None:
        subject = choose_subject(registry, pipeline.config, text=text, path=schema, type=type)
        call.out.step(f"subject {subject}")
    found = propose(pipeline, registry, subject=subject, text=text)

    def draw(paper: Paper) -> None:
        if as_markdown:
            # as it is: a line that a terminal's width has wrapped is no row of a table any more
            paper.console.file.write(markdown(found, schema.name))
        else:
            _draw_proposal(paper, found, schema.name)

    call.out.show({"file": str(schema), **found.as_dict()}, draw)
    return 1 if check and found.breaks else 0


def _draw_proposal(paper: Paper, found: Proposal, name: str) -> None:
    kind = ", ".join(filter(None, (found.format, found.message)))
    about = f" as {found.subject} v{found.version} ({kind})"
    paper.line(styled(name, "bold"), about)
    if found.compatible:
        paper.line(styled(f"compatible at level {found.level}", "green"))
    else:
        paper.line(styled(f"not compatible at level {found.level}:", "bold red"))
        for problem in found.problems[:_MOST_SHOWN]:
            paper.line(f"  {problem}")
        _more(paper, len(found.problems), "problem")
    for table in found.tables:
        _draw_proposed_table(paper, table)
    if not any(table.changes for table in found.tables):
        paper.line("No table would change.")
    for refusal in found.refusals[:_MOST_SHOWN]:
        what = "the pipeline would stop" if refusal.stops else "its records would be dead letters"
        paper.line(styled(f"type {refusal.type}: {what}: {refusal.code}, {refusal.message}", "red"))
    _more(paper, len(found.refusals), "type")
    _draw_trial(paper, found)


def _draw_proposed_table(paper: Paper, table: TablePreview) -> None:
    if not table.changes:
        return
    sign = styled("+ table ", "green") if table.new else "  table "
    paper.line(sign, styled(table.name, "bold"))
    draw_changes(paper, table.changes)


def _draw_trial(paper: Paper, found: Proposal) -> None:
    trial = found.trial
    if found.untried:
        paper.line(styled(f"not all records were tried: {found.untried}", "yellow"))
    tried = counted(trial.records, "record")
    paper.line(f"{tried} tried of {found.read:,} read: {trial.decoded:,} decode.")
    if trial.broken_now:
        paper.line(f"  {counted(trial.broken_now, 'record')} cannot be decoded now either")
    if trial.untried:
        paper.line(f"  {counted(trial.untried, 'record')} would find no place")
    for each in trial.breakages:
        text = f"  {counted(each.records, 'record')} would break: {each.code}, {each.message}"
        paper.line(styled(f"{text}; first {each.example}", "red"))
    for loss in trial.losses[:_MOST_SHOWN]:
        text = f"  {loss.field}: {loss.vanished:,} values vanish, {loss.changed:,} change"
        paper.line(styled(f"{text}; first {loss.example}", "yellow"))
    _more(paper, len(trial.losses), "field")


def _more(paper: Paper, number: int, noun: str) -> None:
    if number > _MOST_SHOWN:
        paper.line(f"  and {counted(number - _MOST_SHOWN, f'more {noun}')}")
