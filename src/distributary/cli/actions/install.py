"""`install` and `uninstall`: what would be written or removed, and then it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distributary.cli.actions.confirm import confirmed
from distributary.cli.actions.install_shards import Spread, plan_spread
from distributary.cli.output import Paper, styled
from distributary.cli.verb import Invocation
from distributary.cli.words import counted
from distributary.deploy.pipeline_file import Installable, read_for_install
from distributary.deploy.shards import refuse_single, removal_target
from distributary.deploy.steps import Action, Step, refuse_conflicts
from distributary.deploy.targets import TargetName, open_target, warnings

_STYLES = {
    Action.CREATE: "green",
    Action.UPDATE: "yellow",
    Action.REMOVE: "red",
    Action.EDITED: "bold yellow",
    Action.FOREIGN: "bold red",
    Action.UNCHANGED: "dim",
}


def install_pipeline(
    call: Invocation,
    file: Path,
    *,
    target: str,
    out: Path | None,
    shards: int | None,
    dry_run: bool,
    force: bool,
) -> int:
    """Write what differs; with `dry_run` only show it."""
    pipeline = _read(call, file, target)
    spread: Spread | None = None
    if shards is None:
        refuse_single(pipeline)
        place = open_target(TargetName(target), pipeline, out=out)
    else:
        spread = plan_spread(TargetName(target), pipeline, shards=shards, out=out)
        place = spread.place
    steps = place.plan()
    data = _document(pipeline, target, steps, dry_run=dry_run)
    if spread is not None:
        data |= spread.as_dict()
    if dry_run:
        call.out.show(data, lambda paper: _draw_plan(paper, steps, spread))
        return 0
    refuse_conflicts(steps, force=force)
    changed = [step for step in steps if step.changes]
    if changed:
        place.apply(steps)
    done = data | {"changed": bool(changed), "next_steps": list(place.next_steps)}

    def draw(paper: Paper) -> None:
        _draw_done(paper, pipeline, target, steps, place.next_steps)
        if spread is not None:
            spread.draw(paper)

    call.out.show(done, draw)
    return 0


def uninstall_pipeline(
    call: Invocation, file: Path, *, target: str, out: Path | None, dry_run: bool, yes: bool
) -> int:
    """Remove everything that bears the mark of this pipeline, and nothing else."""
    pipeline, name = _read(call, file, target), TargetName(target)
    place = removal_target(name, pipeline, out=out) or open_target(name, pipeline, out=out)
    steps = place.plan_removal()
    data = _document(pipeline, target, steps, dry_run=dry_run)
    if dry_run or not steps:
        call.out.show(data | {"removed": False}, lambda paper: _draw_removal(paper, steps))
        return 0
    if not yes:
        _draw_removal(call.out.margin, steps)
        what = counted(len(steps), "thing")
        question = f"Remove {what} of pipeline {pipeline.name} from {target}?"
        if not confirmed(call, question, yes=yes, evidence=_names(steps)):
            return 1
    place.remove(steps)
    done = data | {"removed": True, "next_steps": list(place.last_steps)}
    text = f"removed {counted(len(steps), 'thing')} of pipeline {pipeline.name} from {target}"
    call.out.show(done, lambda paper: _draw_text(paper, text, place.last_steps))
    return 0


def _read(call: Invocation, file: Path, target: str) -> Installable:
    pipeline = read_for_install(file)
    if pipeline.loaded is not None:
        call.out.mask = pipeline.loaded.mask
    for warning in warnings(TargetName(target), pipeline):
        call.out.warn(warning)
    return pipeline


def _document(
    pipeline: Installable, target: str, steps: Sequence[Step], *, dry_run: bool
) -> dict[str, Any]:
    return {
        "pipeline": pipeline.name,
        "target": target,
        "dry_run": dry_run,
        "changed": False,
        "variables": list(pipeline.variables),
        "steps": [step.as_dict() for step in steps],
    }


def _draw_plan(paper: Paper, steps: Sequence[Step], spread: Spread | None) -> None:
    for step in steps:
        _draw_step(paper, step)
        text = step.after if step.action is Action.CREATE else step.diff()
        if step.changes:
            paper.lines(text, indent="    ")
    paper.line(_tally(steps))
    if spread is not None:
        spread.draw(paper)


def _draw_step(paper: Paper, step: Step) -> None:
    why = f"  ({step.why})" if step.why else ""
    paper.line(styled(f"{step.action:9} ", _STYLES[step.action]), f"{step.kind} {step.name}{why}")


def _draw_done(
    paper: Paper, pipeline: Installable, target: str, steps: Sequence[Step], then: Sequence[str]
) -> None:
    if not any(step.changes for step in steps):
        paper.line(f"unchanged: pipeline {pipeline.name} on {target}")
        return
    for step in steps:
        _draw_step(paper, step)
    if pipeline.variables:
        paper.line(f"needs there: {', '.join(pipeline.variables)}")
    _draw_next(paper, then)


def _draw_removal(paper: Paper, steps: Sequence[Step]) -> None:
    for step in steps:
        _draw_step(paper, step)
    if not steps:
        paper.line("there is nothing to remove")


def _draw_text(paper: Paper, text: str, then: Sequence[str]) -> None:
    paper.line(text)
    _draw_next(paper, then)


def _draw_next(paper: Paper, lines: Sequence[str]) -> None:
    for number, line in enumerate(lines):
        paper.line("next  " if number == 0 else "      ", line)


def _tally(steps: Sequence[Step]) -> str:
    counts = Counter(str(step.action) for step in steps)
    return ", ".join(f"{count} {action}" for action, count in counts.items())


def _names(steps: Sequence[Step]) -> str:
    return ", ".join(step.name for step in steps[:5])
