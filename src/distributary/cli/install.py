"""`install`, `uninstall` and `package`: put a pipeline where it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from distributary.cli.command.output import Paper, confirmed, counted, size, styled
from distributary.cli.command.verb import (
    DEPLOY,
    DryRun,
    File,
    Invocation,
    Yes,
    argument,
    option,
    single,
    verb,
)
from distributary.deploy.targets.target_types import TARGETS
from distributary.errors import ConfigError

if TYPE_CHECKING:
    from distributary.config.pipeline_config import PipelineConfig
    from distributary.config.shard import Move
    from distributary.deploy.file_targets import InstallStep
    from distributary.deploy.pipeline_file import Installable
    from distributary.deploy.shards import ShardsTarget


app = single(DEPLOY)

_MOST_SHOWN = 20
_STYLES = {
    "create": "green",
    "update": "yellow",
    "remove": "red",
    "edited": "bold yellow",
    "foreign": "bold red",
    "unchanged": "dim",
}
_ENDINGS = (".tar.gz", ".tgz")
"""The suffix of archives. From others, Spark unpacks no permissions: Python could not start."""


*_FIRST, _LAST = TARGETS
if TYPE_CHECKING:
    TargetName = str
    Form = str
else:
    Form = Literal["bundle", "terraform"]
    TargetName = Literal[tuple(TARGETS)]
Target = Annotated[
    TargetName,
    option(
        "--target",
        f"The target: {', '.join(_FIRST)} or {_LAST}.",
        metavar="TARGET",
    ),
]
Out = Annotated[
    Path | None,
    option("--out", "Folder for the files, instead of the default folder.", metavar="DIR"),
]
As = Annotated[
    Form | None,
    option(
        "--as",
        "For databricks (lakeflow: bundle only): the files of an asset bundle or of Terraform, "
        "which their own tools deploy.",
        metavar="bundle|terraform",
    ),
]


@dataclass(frozen=True, slots=True)
class Spread:
    """The jobs of a pipeline, and the types that move between them."""

    place: ShardsTarget
    pipeline: str
    shards: int
    before: int
    """The number of shards so far; 0 for none."""
    moves: tuple[Move, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for `--json`."""
        return {
            "shards": self.shards,
            "shards_before": self.before,
            "moves": [{"type": m.type, "from": m.before, "to": m.after} for m in self.moves],
            "kept": list(self.place.kept),
        }

    def draw(self, paper: Paper) -> None:
        """Print the types that move, and the remaining steps."""
        from distributary.config.shard import job_name

        for move in self.moves[:_MOST_SHOWN]:
            there = job_name(self.pipeline, move.after)
            paper.line(f"moves  {move.type}  {job_name(self.pipeline, move.before)} -> {there}")
        paper.more(len(self.moves) - _MOST_SHOWN, "type", indent=" " * 7)
        if self.before not in (0, self.shards):
            paper.line(f"then   restart {self.pipeline}: it divides the stream from that point on")
        for name in self.place.kept:
            paper.line(f"kept   {name}, until it has finished its own records; then install again")


@verb(
    app,
    "install distributary-demo/games.yaml --target systemd --dry-run",
    "install distributary-demo/games.yaml --target airflow --out dags",
    "install distributary-demo/games.yaml --target systemd --shards 2 --dry-run",
)
def install(
    call: Invocation,
    file: File,
    target: Target,
    out: Out = None,
    form: As = None,
    shards: Annotated[
        int | None,
        option(
            "--shards",
            "Distribute the types over N jobs; one more job writes the bronze table that they "
            "read.",
            metavar="N",
            min=1,
            max=256,
        ),
    ] = None,
    dry_run: DryRun = False,
    force: Annotated[
        bool, option("--force", "Replace files that were edited since the last install.")
    ] = False,
    start: Annotated[
        bool, option("--run", "For databricks and lakeflow: start a run when it is installed.")
    ] = False,
) -> int:
    """Deploy a pipeline to the system that will run it.

    Repeated without changes, it does nothing. Secrets are not copied: the deployed file keeps its
    references, such as ${env:NAME}.
    """
    from distributary.deploy.file_targets import (
        Startable,
        StepAction,
        missing_key,
        open_target,
        refuse_conflicts,
        with_placeholder,
    )
    from distributary.deploy.shards import refuse_single

    pipeline, spread = _read(call, file, target), None
    missing = missing_key(target, pipeline) if dry_run else ""
    if missing:
        pipeline = with_placeholder(target, pipeline)
        call.out.warn(f"{missing} is missing: <{missing}> stands for it, and install needs it")
    _warn_unfit(call, target, pipeline, refuse=not missing)
    _refuse_combinations(target, form, shards=shards, start=start)
    if shards is None:
        refuse_single(pipeline)
        place = open_target(target, pipeline, out=out, form=form or "")
    else:
        spread = _plan_spread(target, pipeline, shards=shards, out=out)
        place = spread.place
    steps = place.plan()
    data = _document(pipeline, target, steps, dry_run=dry_run)
    data |= {"missing": [missing] if missing else []}
    data |= spread.as_dict() if spread is not None else {}

    def draw_plan(paper: Paper) -> None:
        for step in steps:
            _draw_steps(paper, [step])
            if step.changes:
                created = step.action is StepAction.CREATE
                paper.lines(step.after if created else step.diff(), indent="    ")
        counts = Counter(str(step.action) for step in steps)
        paper.line(", ".join(f"{count} {action}" for action, count in counts.items()))
        if spread is not None:
            spread.draw(paper)

    if dry_run:
        call.out.show(data, draw_plan)
        return 0
    refuse_conflicts(steps, force=force)
    changed = any(step.changes for step in steps)
    if changed:
        place.apply(steps)
    started = place.start() if start and isinstance(place, Startable) else ""
    data |= {"run": started} if started else {}

    def draw(paper: Paper) -> None:
        if not changed:
            paper.line(f"unchanged: pipeline {pipeline.name} on {target}")
        else:
            _draw_steps(paper, steps)
            if pipeline.variables:
                paper.line(f"needs there: {', '.join(pipeline.variables)}")
            _draw_next(paper, place.next_steps)
        if started:
            paper.line(f"started: {started}")
        if spread is not None:
            spread.draw(paper)

    call.out.show(data | {"changed": changed, "next_steps": list(place.next_steps)}, draw)
    return 0


def _refuse_combinations(target: str, form: str | None, *, shards: int | None, start: bool) -> None:
    """Raise ConfigError for options that do not go together."""
    from distributary.deploy.targets.target_types import target_entry

    if form is not None and shards is not None:
        raise ConfigError(
            "--as and --shards cannot be combined",
            where="command line",
            next_step="install the shards as jobs: leave out --as",
        )
    if shards is not None and not target_entry(target).spreads:
        raise ConfigError(
            f"--shards does not apply to {target}",
            where="command line",
            next_step="leave it out, or install the jobs to another target",
        )
    can_start = target_entry(target).starts_runs and form is None and shards is None
    if start and not can_start:
        raise ConfigError(
            f"--run cannot start what is installed to {target}",
            where="command line",
            next_step="leave out --run, and start it by the commands that install prints",
        )


def _warn_unfit(call: Invocation, name: str, pipeline: Installable, *, refuse: bool) -> None:
    """Print unknown facts about the target; without `refuse`, also settings that do not fit it."""
    from distributary.deploy.refusals import refuse_unfit

    try:
        for warning in refuse_unfit(name, pipeline):
            call.out.warn(warning)
    except ConfigError as error:
        if refuse:
            raise
        call.out.warn(f"{error.what}: {error.next_step}")


def _plan_spread(name: str, pipeline: Installable, *, shards: int, out: Path | None) -> Spread:
    """Plan the jobs from the installed files and the lake."""
    from distributary.config.shard import moves
    from distributary.deploy.shards import installed_shards, spread_target

    config = pipeline.loaded.config if pipeline.loaded is not None else None

    # imported on demand: the check needs Spark's classes, and only a smaller number needs the check
    def is_done(number: int) -> bool:
        from distributary.engine.shards.progress import is_retired

        return config is not None and is_retired(config, number)

    def letters(number: int) -> bool:
        from distributary.engine.shards.progress import has_letters

        return config is not None and has_letters(config, number)

    place = spread_target(
        name, pipeline, shards=shards, out=out, is_done=is_done, has_letters=letters
    )
    before = installed_shards(pipeline)
    known = _types(config, pipeline) if config is not None and before else []
    moved = moves(known, before, shards) if before else ()
    return Spread(place, pipeline.name, shards, before, moved)


def _types(config: PipelineConfig, pipeline: Installable) -> list[str]:
    """Return the types that have tables in the lake, if the lake can be read."""
    from distributary.config.shard import job_name
    from distributary.deploy.shards import numbers_in, shards_folder
    from distributary.engine.shards.progress import is_seen
    from distributary.observe.ledger.ledger import Ledger

    if not is_seen(config):
        return []
    numbers = numbers_in(shards_folder(pipeline), config.name)
    names = {config.name, *(job_name(config.name, number) for number in numbers)}
    known = Ledger(config.lake.address).tables(schema_ids=False)
    return sorted({t.type for t in known if t.type and t.pipeline in names})


@verb(app, "uninstall distributary-demo/games.yaml --target systemd --dry-run")
def uninstall(
    call: Invocation,
    file: File,
    target: Target,
    out: Out = None,
    form: As = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Remove the files and jobs that `install` made, and nothing else."""
    from distributary.deploy.file_targets import open_target
    from distributary.deploy.shards import removal_target

    pipeline, name = _read(call, file, target), target
    spread = None if form else removal_target(name, pipeline, out=out)
    place = spread or open_target(name, pipeline, out=out, form=form or "")
    steps = place.plan_removal()
    data = _document(pipeline, target, steps, dry_run=dry_run)

    def draw_plan(paper: Paper) -> None:
        _draw_steps(paper, steps)
        if not steps:
            paper.line("there is nothing to remove")

    if dry_run or not steps:
        call.out.show(data | {"removed": False}, draw_plan)
        return 0
    what = f"{counted(len(steps), 'thing')} of pipeline {pipeline.name} from {target}"
    named = ", ".join(step.name for step in steps[:5])
    if not confirmed(call, f"Remove {what}?", yes=yes, evidence=named, draw=draw_plan):
        return 1
    place.remove(steps)

    def draw(paper: Paper) -> None:
        paper.line(f"removed {what}")
        _draw_next(paper, place.last_steps)

    call.out.show(data | {"removed": True, "next_steps": list(place.last_steps)}, draw)
    return 0


def _read(call: Invocation, file: Path, target: str) -> Installable:
    from distributary.deploy.file_targets import warnings
    from distributary.deploy.pipeline_file import read_for_install

    pipeline = read_for_install(file)
    if pipeline.loaded is not None:
        call.out.mask = pipeline.loaded.mask
    for warning in warnings(target, pipeline):
        call.out.warn(warning)
    return pipeline


def _document(
    pipeline: Installable, target: str, steps: Sequence[InstallStep], *, dry_run: bool
) -> dict[str, Any]:
    return {
        "pipeline": pipeline.name,
        "target": target,
        "dry_run": dry_run,
        "changed": False,
        "variables": list(pipeline.variables),
        "steps": [step.as_dict() for step in steps],
    }


def _draw_steps(paper: Paper, steps: Sequence[InstallStep]) -> None:
    for step in steps:
        why = f"  ({step.why})" if step.why else ""
        sign = styled(f"{step.action:9} ", _STYLES[step.action])
        paper.line(sign, f"{step.kind} {step.name}{why}")


def _draw_next(paper: Paper, lines: Sequence[str]) -> None:
    for number, line in enumerate(lines):
        paper.line("next  " if number == 0 else "      ", line)


@verb(app, "package environment.tar.gz --dry-run")
def package(
    call: Invocation,
    out: Annotated[
        Path, argument("The archive, or the wheel, to write.", metavar="OUT.tar.gz|WHEEL")
    ],
    without_pyspark: Annotated[
        bool,
        option("--without-pyspark", "For a wheel on a runtime that has PySpark itself."),
    ] = False,
    dry_run: DryRun = False,
) -> int:
    """Pack the Python packages that Spark's executors need into one file.

    For spark-submit --archives OUT.tar.gz#environment with
    --conf spark.pyspark.python=./environment/bin/python

    If the name is that of a wheel, the file holds Distributary only, as it is installed here. Use
    it for images that are built without a package index.
    """
    from distributary.deploy.package import RUNTIMES_OWN, WHEEL, wheel_contents, write_wheel
    from distributary.spark import packages

    wheel = out.suffix == ".whl"
    if wheel and out.name != WHEEL:
        raise ConfigError(
            "pip accepts a wheel only under its own name",
            where=str(out),
            next_step=f"name it {WHEEL}",
        )
    if not wheel and not out.name.endswith(_ENDINGS):
        raise ConfigError(
            "Spark recognises archives by the suffix of their names",
            where=str(out),
            next_step=f"use a name that ends with .tar.gz, or {WHEEL} for an image",
        )
    if dry_run:
        found = wheel_contents() if wheel else packages.contents()
        names = ("distributary",) if wheel else packages.packages()
        files, held = len(found), sum(p.stat().st_size for p in found.values())
    else:
        if not wheel:
            call.out.note("packing; this takes a minute")
        own = RUNTIMES_OWN if without_pyspark else ()
        done = write_wheel(out, without=own) if wheel else packages.pack(out)
        names, files, held = done.packages, done.files, done.bytes
    about = {"path": str(out), "dry_run": dry_run, "packages": list(names)}
    what = f"{counted(len(names), 'package')}, {counted(files, 'file')}, {size(held)}"
    text = f"would pack {what} before compression" if dry_run else f"{out}: {what}"
    data = about | {"files": files, "bytes": held}
    call.out.show(data, lambda paper: paper.line(text))
    return 0
