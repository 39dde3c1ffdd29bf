"""`validate` and `plan`: a pipeline file is checked, and what a run would do is shown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from distributary.cli.command.lakes import load_file, open_pipeline, read_text
from distributary.cli.command.output import Paper, counted, styled, tally
from distributary.cli.command.verb import LOOK, File, Invocation, OptionalFile, option, single, verb
from distributary.cli.inspect.schema_versions import draw_compatibility
from distributary.errors import ErrorCode
from distributary.model.names import one_line
from distributary.observe.log_format import cut

if TYPE_CHECKING:
    from distributary.model.table import ColumnChange
    from distributary.operations.plan.schema_proposal import SchemaProposal
    from distributary.operations.plan.trial_registry import Preview, TablePreview


app = single(LOOK)

_MOST_SHOWN = 20
_LONGEST = 400
"""The largest number of characters of the list of columns of a new table."""
_COLOURS = {"+": "green", "~": "yellow", "!": "red", "-": "red"}


@verb(
    app,
    "validate distributary-demo/games.yaml",
    "validate distributary-demo/games.yaml --show-config",
    "validate --print-schema",
)
def validate(
    call: Invocation,
    file: OptionalFile = None,
    show_config: Annotated[
        bool, option("--show-config", "Print each value with its origin.")
    ] = False,
    print_schema: Annotated[
        bool, option("--print-schema", "Print the JSON schema of pipeline files.")
    ] = False,
) -> None:
    """Check a pipeline file, and list its mistakes line by line."""
    from distributary.config.file.show import as_json, json_schema, rows

    if print_schema:
        schema = json_schema()
        call.out.show({"schema": schema}, lambda paper: paper.lines(json.dumps(schema, indent=2)))
        return
    if file is None:
        raise call.usage("Missing argument 'FILE'.")
    loaded = load_file(call, file)
    config, found = loaded.config, len(loaded.warnings)
    data = {"file": loaded.file, "pipeline": config.name, "valid": True}

    def draw_settings(paper: Paper) -> None:
        paper.table(
            ("SETTING", "VALUE", "FROM"),
            ((row.key, row.text, styled(str(row.origin), "dim")) for row in rows(loaded)),
            indent=0,
        )

    def draw(paper: Paper) -> None:
        about = f"pipeline {config.name}, source {config.source.type}, trigger {config.trigger}"
        about += f", part {config.shard.part} of {config.shard.of}" if config.shard else ""
        about += f", {counted(found, 'warning')}" if found else ""
        paper.line(styled(loaded.file, "bold"), f" is valid: {about}")

    if show_config:
        call.out.show(data | as_json(loaded), draw_settings)
    else:
        warnings = [warning.as_dict() for warning in loaded.warnings]
        call.out.show(data | {"warnings": warnings}, draw)


@verb(app, "plan distributary-demo/games.yaml")
def plan(
    call: Invocation,
    file: File,
    check: Annotated[
        bool,
        option(
            "--check",
            "Exit with 1 if a table would change; with a schema, if it would be refused "
            "or break records.",
        ),
    ] = False,
    with_schema: Annotated[
        Path | None,
        option(
            "--with-schema",
            "File of an unregistered schema, to try on the records of the last batch.",
            metavar="SCHEMA",
        ),
    ] = None,
    subject: Annotated[
        str | None,
        option(
            "--subject", "Subject of the schema, if the file name does not name it.", metavar="NAME"
        ),
    ] = None,
    record_type: Annotated[
        str | None, option("--type", "Type of record, to find the subject.", metavar="TYPE")
    ] = None,
    markdown: Annotated[bool, option("--markdown", "Print Markdown for a pull request.")] = False,
) -> int:
    """Show the tables, columns and changes that a run would make now.

    --with-schema shows what an unregistered schema would change, without registering it.
    """
    from distributary.operations.plan.schema_proposal import propose
    from distributary.operations.plan.trial_registry import choose_subject, judge_of, preview

    if with_schema is None:
        if subject is not None or record_type is not None or markdown:
            raise call.usage("--subject, --type and --markdown need --with-schema.")
        found = preview(open_pipeline(call, file))
        changes = found.changes_something
        data = {"changes": changes, **found.as_dict()}
        call.out.show(data, lambda paper: draw_preview(paper, found))
        return 1 if check and changes else 0
    if subject is not None and record_type is not None:
        raise call.usage("--subject and --type exclude each other.")
    if markdown and call.out.is_json:
        raise call.usage("--markdown and --json exclude each other.")
    pipeline = open_pipeline(call, file)
    config = pipeline.config
    what, code = "the proposed schema's file", ErrorCode.CONFIG_INVALID
    text, registry = read_text(with_schema, what, code=code), judge_of(config)
    if subject is None:
        subject = choose_subject(registry, config, text=text, path=with_schema, type=record_type)
        call.out.step(f"subject {subject}")
    proposal = propose(pipeline, registry, subject=subject, text=text)

    def draw(paper: Paper) -> None:
        if markdown:
            # written unwrapped: a wrapped line is no row of a Markdown table
            paper.console.file.write(as_markdown(proposal, with_schema.name))
        else:
            _draw_proposal(paper, proposal, with_schema.name)

    call.out.show({"file": str(with_schema), **proposal.as_dict()}, draw)
    return 1 if check and proposal.breaks else 0


def draw_preview(paper: Paper, found: Preview, *, most: int | None = None) -> None:
    """Print what a run would read, and the tables that it would make or change, at most `most`."""
    changed = [table for table in found.tables if table.new or table.changes or table.shaped]
    for table in changed[:most]:
        records = f"  ({counted(table.records, 'record')})" if table.records else ""
        _draw_table(paper, table, records)
    paper.more(len(changed) - len(changed[:most]), "table")
    if not found.changes_something:
        paper.line("No changes.")
    looked_at, among = counted(found.records, "record"), ""
    if found.waiting is None:
        paper.line(f"{looked_at} to read in the next batch.")
    elif found.waiting > found.records:
        every = counted(found.waiting, "record")
        paper.line(f"{every} to read; sampled the next {looked_at}.")
        among = f" among the {looked_at} sampled"
    else:
        paper.line(f"{looked_at} to read.")
    if found.dead_letters:
        lost = counted(sum(found.dead_letters.values()), "dead letter")
        paper.line(f"At least {lost} foreseen{among}: {tally(found.dead_letters)}.")
    for wrong in found.refused_shapes[:_MOST_SHOWN]:
        text = f"shape {wrong.setting}, type {wrong.type}: {wrong.why}"
        paper.line(styled(_placed(wrong.place, text), "red"))
    paper.more(len(found.refused_shapes) - _MOST_SHOWN, "pair", indent="")
    if found.filtered:
        paper.line(f"{counted(found.filtered, 'record')} filtered by `shape`{among}.")
    for limited in found.limited_shapes[:_MOST_SHOWN]:
        text = f"shape {limited.setting}, table {limited.table}: {limited.why}"
        paper.line(styled(_placed(limited.place, text), "yellow"))
    paper.more(len(found.limited_shapes) - _MOST_SHOWN, "pair", indent="")
    if found.raw_layers:
        paper.line(f"Masked values stay readable in: {', '.join(found.raw_layers)}.")
    for unfit in found.unfit_rules[:_MOST_SHOWN]:
        text = f"expectation {unfit.rule} is not applied to {unfit.table}: {unfit.why}"
        paper.line(styled(text, "yellow"))
    more = len(found.unfit_rules) - _MOST_SHOWN
    if more > 0:
        paper.line(f"and {counted(more, 'more pair')} of expectation and table")


def _placed(place: str, text: str) -> str:
    return f"{place}  {text}" if place else text


def _draw_table(paper: Paper, table: TablePreview, records: str = "") -> None:
    sign = styled("+ table ", "green") if table.new else "  table "
    paper.line(sign, styled(table.name, "bold"), records)
    draw_changes(paper, table.changes)
    if table.shaped:
        columns = ", ".join(f"{name} {type_}" for name, type_ in table.shaped)
        how = "groups with" if str(table.role) == "aggregate" else "shaped to"
        paper.line("    ", f"{how} {cut(columns, _LONGEST)}")
    if table.masks:
        paper.line("    ", f"masked: {cut(', '.join(table.masks), _LONGEST)}")


def draw_changes(paper: Paper, changes: Iterable[ColumnChange]) -> None:
    """Print the changes of a table's columns, line by line."""
    for change in changes:
        if text := _described(change):
            paper.line("    ", styled(text, _COLOURS.get(text[0], "")))


def _described(change: ColumnChange) -> str:
    from distributary.model.table import ChangeKind

    if change.kind is ChangeKind.TABLE_CREATED:
        return f"+ columns {cut(change.after, _LONGEST)}" if change.after else ""
    text = change.describe()
    return text.replace("+ ", "+ column ", 1) if text.startswith("+ ") else text


def _draw_proposal(paper: Paper, found: SchemaProposal, name: str) -> None:
    kind = ", ".join(filter(None, (found.format, found.message)))
    paper.line(styled(name, "bold"), f" as {found.subject} v{found.version} ({kind})")
    draw_compatibility(paper, found.level, found.problems[:_MOST_SHOWN])
    paper.more(len(found.problems) - _MOST_SHOWN, "problem", indent="  ")
    for table in found.tables:
        if table.changes or table.shaped:
            _draw_table(paper, table)
    if not any(table.changes for table in found.tables):
        paper.line("No table would change.")
    for refusal in found.refusals[:_MOST_SHOWN]:
        what = "the pipeline would stop" if refusal.stops else "its records would be dead letters"
        text = f"type {refusal.type}: {what}: {refusal.code}, {refusal.message}"
        paper.line(styled(_placed(refusal.place, text), "red"))
    paper.more(len(found.refusals) - _MOST_SHOWN, "type", indent="  ")
    _draw_trial(paper, found)


def _draw_trial(paper: Paper, found: SchemaProposal) -> None:
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
    paper.more(len(trial.losses) - _MOST_SHOWN, "field", indent="  ")


# A proposed schema's verdict as Markdown, to be pasted into a pull request.

_LONGEST_CELL = 300
_MOST_ROWS = 200
_HARMLESS = re.compile(r"[\w ,.:;/()<>=+'\"-]*", re.ASCII)


def code(text: str) -> str:
    """Text from anywhere as code: it cannot end its cell or line, nor be markup, link or mention.

    What a code span could not hold is spelled in character references, which are never syntax.
    """
    shown = cut(one_line(text), _LONGEST_CELL).strip()
    if not shown:
        return ""
    if _HARMLESS.fullmatch(shown):
        return f"`{shown}`"
    spelled = (c if c.isalnum() or c in " -." else f"&#{ord(c)};" for c in shown)
    return f"<code>{''.join(spelled)}</code>"


def as_markdown(found: SchemaProposal, name: str) -> str:
    """Format the verdict, the changes of columns and the counts as Markdown with a heading."""
    return "\n".join(_lines(found, name)) + "\n"


def _lines(found: SchemaProposal, name: str) -> Iterator[str]:
    yield f"### Schema change: {code(f'{found.subject} v{found.version}')}"
    yield ""
    verdict = (
        "**This change would break records or the pipeline.**"
        if found.breaks
        else "**Nothing would break.**"
    )
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
    from distributary.model.table import ChangeKind

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


def _records(found: SchemaProposal) -> Iterator[str]:
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
