"""A proposed schema's verdict as Markdown, to be pasted into a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from distributary.cli.words import counted, cut, printable
from distributary.model.table import ChangeKind
from distributary.run.preview import TablePreview
from distributary.run.proposal import Proposal

_LONGEST = 300
_MOST_ROWS = 200
_HARMLESS = re.compile(r"[\w ,.:;/()<>=+'\"-]*", re.ASCII)


def code(text: str) -> str:
    """Text from anywhere as code: it cannot end its cell or line, nor be markup, link or mention.

    What a code span could not hold is spelled in character references, which are never syntax.
    """
    shown = cut(printable(text), _LONGEST).strip()
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
