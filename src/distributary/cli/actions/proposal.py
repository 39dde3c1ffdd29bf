"""`plan --with-schema`: what a schema that is not registered would do."""

from __future__ import annotations

from pathlib import Path

from distributary.cli.actions.plan import draw_changes
from distributary.cli.actions.proposal_markdown import markdown
from distributary.cli.failure import usage_error
from distributary.cli.lakes import open_pipeline
from distributary.cli.output import Paper, styled
from distributary.cli.verb import Invocation
from distributary.cli.words import counted
from distributary.run.preview import TablePreview
from distributary.run.proposal import Proposal, propose
from distributary.run.proposal_registry import judge_of, read_schema
from distributary.run.proposal_subject import choose_subject

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
            _draw(paper, found, schema.name)

    call.out.show({"file": str(schema), **found.as_dict()}, draw)
    return 1 if check and found.breaks else 0


def _draw(paper: Paper, found: Proposal, name: str) -> None:
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
        _draw_table(paper, table)
    if not any(table.changes for table in found.tables):
        paper.line("No table would change.")
    for refusal in found.refusals[:_MOST_SHOWN]:
        what = "the pipeline would stop" if refusal.stops else "its records would be dead letters"
        paper.line(styled(f"type {refusal.type}: {what}: {refusal.code}, {refusal.message}", "red"))
    _more(paper, len(found.refusals), "type")
    _draw_trial(paper, found)


def _draw_table(paper: Paper, table: TablePreview) -> None:
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
