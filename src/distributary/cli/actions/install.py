"""`install` and `uninstall`: what would be written or removed, and then it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributary.cli.output import Paper, confirmed, counted, size, styled
from distributary.cli.verb import Invocation
from distributary.config.pipeline import PipelineConfig
from distributary.config.source import Move, job_name, moves
from distributary.deploy.files import (
    Action,
    Step,
    TargetName,
    open_target,
    refuse_conflicts,
    warnings,
)
from distributary.deploy.package import WHEEL, contents, pack, packages, wheel_contents, write_wheel
from distributary.deploy.pipeline_file import Installable, read_for_install
from distributary.deploy.shards import (
    ShardsTarget,
    installed_shards,
    numbers_in,
    refuse_single,
    removal_target,
    shards_folder,
    spread_target,
)
from distributary.errors import ConfigError

# `install --shards`: which types get another job, and which jobs may not go yet.

_MOST_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Spread:
    """The jobs of a pipeline, and what changes for its types."""

    place: ShardsTarget
    pipeline: str
    shards: int
    before: int
    """The number of shards so far; 0 for none."""
    moves: tuple[Move, ...]

    def as_dict(self) -> dict[str, Any]:
        """The same for `--json`."""
        return {
            "shards": self.shards,
            "shards_before": self.before,
            "moves": [{"type": m.type, "from": m.before, "to": m.after} for m in self.moves],
            "kept": list(self.place.kept),
        }

    def draw(self, paper: Paper) -> None:
        """What moves, and what is left to do."""
        for move in self.moves[:_MOST_SHOWN]:
            there = job_name(self.pipeline, move.after)
            paper.line(f"moves  {move.type}  {job_name(self.pipeline, move.before)} -> {there}")
        if len(self.moves) > _MOST_SHOWN:
            paper.line(f"       and {counted(len(self.moves) - _MOST_SHOWN, 'more type')}")
        if self.before not in (0, self.shards):
            paper.line(f"then   restart {self.pipeline}: it divides the stream where it stands")
        for name in self.place.kept:
            paper.line(f"kept   {name}, until it has settled what is its own; then install again")


def plan_spread(
    name: TargetName, pipeline: Installable, *, shards: int, out: Path | None
) -> Spread:
    """Look at what is installed and at the lake, and say what would be."""
    config = pipeline.loaded.config if pipeline.loaded is not None else None

    # it takes Spark's classes to ask, and nobody asks when the number grows
    def is_done(number: int) -> bool:
        from distributary.engine.shards import is_retired

        return config is not None and is_retired(config, number)

    def letters(number: int) -> bool:
        from distributary.engine.shards import has_letters

        return config is not None and has_letters(config, number)

    place = spread_target(
        name, pipeline, shards=shards, out=out, is_done=is_done, has_letters=letters
    )
    before = installed_shards(pipeline)
    known = _types(config, pipeline) if config is not None and before else []
    moved = moves(known, before, shards) if before else ()
    return Spread(place, pipeline.name, shards, before, moved)


def _types(config: PipelineConfig, pipeline: Installable) -> list[str]:
    """The types that have tables in the lake, where it is to be seen."""
    from distributary.observe.ledger import Ledger

    lake = config.lake.local_path
    if lake is None or not lake.is_dir():
        return []
    numbers = numbers_in(shards_folder(pipeline), config.name)
    names = {config.name, *(job_name(config.name, number) for number in numbers)}
    ledger = Ledger(str(lake), storage_options=config.lake.options or None)
    known = ledger.tables(schema_ids=False)
    return sorted({t.type for t in known if t.type and t.pipeline in names})


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


# `package`: the Python packages of this environment as one file, or Distributary as a wheel.

# of an archive with another name, Spark unpacks no rights: its Python could not be started
_ENDINGS = (".tar.gz", ".tgz")


def package_environment(call: Invocation, out: Path, *, dry_run: bool) -> int:
    """Write the archive or the wheel; with `dry_run` only say what would be in it."""
    wheel = out.suffix == ".whl"
    if wheel and out.name != WHEEL:
        raise ConfigError(
            "pip takes a wheel by its own name only",
            where=str(out),
            next_step=f"name it {WHEEL}",
        )
    if not wheel and not out.name.endswith(_ENDINGS):
        raise ConfigError(
            "Spark unpacks archives by the end of their names",
            where=str(out),
            next_step=f"name it with .tar.gz at its end, or {WHEEL} for an image",
        )
    if dry_run:
        found = wheel_contents() if wheel else contents()
        names = ("distributary",) if wheel else packages()
        files, held = len(found), sum(p.stat().st_size for p in found.values())
    else:
        if not wheel:
            call.out.note("packing; this takes a minute")
        done = write_wheel(out) if wheel else pack(out)
        names, files, held = done.packages, done.files, done.bytes
    data = {
        "path": str(out),
        "dry_run": dry_run,
        "packages": list(names),
        "files": files,
        "bytes": held,
    }
    what = f"{counted(len(names), 'package')}, {counted(files, 'file')}, {size(held)}"
    call.out.show(data, lambda paper: _draw(paper, out, what, dry_run=dry_run))
    return 0


def _draw(paper: Paper, out: Path, what: str, *, dry_run: bool) -> None:
    paper.line(f"would pack {what} before compression" if dry_run else f"{out}: {what}")
