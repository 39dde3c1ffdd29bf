"""`pause` and `continue`: stop the batches of a pipeline for a while, and go on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from distributary.cli.command.lakes import find_lake, loaded_of
from distributary.cli.command.output import since
from distributary.cli.command.verb import (
    FIX,
    DryRun,
    Invocation,
    LakeOption,
    OptionalFile,
    PipelineName,
    option,
    single,
    verb,
)
from distributary.errors import ConfigError, ErrorCode

if TYPE_CHECKING:
    from distributary.store.base import Store

app = single(FIX)


@verb(
    app,
    'pause distributary-demo/games.yaml --note "the registry moves"',
    "pause --lake distributary-demo --dry-run",
)
def pause(
    call: Invocation,
    file: OptionalFile = None,
    lake: LakeOption = None,
    pipeline: PipelineName = None,
    note: Annotated[
        str, option("--note", "The reason; `status` and the page show it.", metavar="TEXT")
    ] = "",
    dry_run: DryRun = False,
) -> int:
    """Pause a pipeline: after its current batch it reads nothing and writes no table.

    A continuous run stays up and waits. A run to the end of the source is refused with exit code
    75. The pause outlives restarts, until `distributary continue` ends it.
    """
    from distributary.engine.progress.claim import liveness
    from distributary.observe.pause import read_pause, write_pause

    name, checkpoint = _find(call, lake, file, pipeline)
    before = read_pause(checkpoint)
    now = before if dry_run else write_pause(checkpoint, note)
    runs = liveness(checkpoint.address) == "running"
    data = {"pipeline": name, "dry_run": dry_run, "was_paused": before is not None, "pause": now}
    data |= {"runs": runs}
    would = "would be paused" if dry_run else "is paused"
    after = "after its current batch" if runs else "it does not run now, and its next run will "
    "wait"
    text = f"{name} {would}: {after}"
    if before is not None:
        text = f"{name} is paused already"
    call.out.show(data, lambda paper: paper.line(text))
    return 0


@verb(app, "continue distributary-demo/games.yaml", name="continue")
def continue_pipeline(
    call: Invocation,
    file: OptionalFile = None,
    lake: LakeOption = None,
    pipeline: PipelineName = None,
    dry_run: DryRun = False,
) -> int:
    """End the pause of a pipeline: a waiting run continues where it stopped."""
    from distributary.engine.progress.claim import liveness
    from distributary.observe.pause import end_pause, read_pause

    name, checkpoint = _find(call, lake, file, pipeline)
    before = read_pause(checkpoint) if dry_run else end_pause(checkpoint)
    runs = liveness(checkpoint.address) == "running"
    data = {"pipeline": name, "dry_run": dry_run, "was_paused": before is not None}
    data |= {"pause": before, "runs": runs}
    if before is None:
        text = f"{name} is not paused"
    else:
        began = "" if before.since is None else f" that began {since(before.since)}"
        text = f"{name}: the pause{began} {'would end' if dry_run else 'has ended'}"
        text += "" if runs else "; it does not run now"
    call.out.show(data, lambda paper: paper.line(text))
    return 0


def _find(
    call: Invocation, lake: str | None, file: Path | None, pipeline: str | None
) -> tuple[str, Store]:
    """Return the name of the pipeline and its checkpoint. Raises ConfigError if it never ran."""
    from distributary.engine.progress.checkpoint import Checkpoint
    from distributary.store.base import absolute, at

    found = find_lake(call, lake, file)
    config = loaded_of(call, found, name=pipeline, needs=("lake",)).config
    checkpoint = at(absolute(config.lake.checkpoint_of(config.name)))
    if Checkpoint.find(checkpoint, pipeline=config.name) is None:
        raise ConfigError(
            f"pipeline {config.name} has no checkpoint to pause",
            code=ErrorCode.NOT_FOUND,
            where=checkpoint.address,
            next_step="run it first",
        )
    return config.name, checkpoint
