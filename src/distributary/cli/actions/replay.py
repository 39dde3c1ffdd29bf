"""`dlq replay`: dead letters through the pipeline once more."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from distributary.cli.actions.confirm import confirmed
from distributary.cli.actions.selection import Selection
from distributary.cli.actions.sparking import start_spark
from distributary.cli.lakes import find_lake, pipeline_of
from distributary.cli.output import Paper
from distributary.cli.verb import Invocation
from distributary.cli.words import counted, tally
from distributary.run.pipeline import Pipeline
from distributary.run.removal import dead_letters_of
from distributary.run.replay import LANE, Replayed, finish, replay, try_replay


def replay_letters(
    call: Invocation,
    wanted: Selection,
    *,
    lake: str | None,
    file: Path | None,
    dry_run: bool,
    yes: bool,
) -> int:
    """Say what would happen, or do it; 1 if some of them failed again."""
    found = find_lake(call, lake, file)
    pipeline = pipeline_of(call, found, name=wanted.pipeline)
    letters = dead_letters_of(pipeline)
    open_ones = wanted.letters(letters, pipeline=pipeline.config.name, columns=("id",)).num_rows
    if not open_ones and (dry_run or not _unfinished(pipeline)):
        return _show(call, Replayed(), dry_run=dry_run)
    chosen = counted(open_ones, "dead letter")
    ask = wanted.is_everything and open_ones > 0 and not dry_run
    if ask and not confirmed(call, f"Replay all {chosen}?", yes=yes, evidence=chosen):
        return 1
    # before Spark is started for nothing
    pipeline.ready(LANE)
    with start_spark(call, pipeline) as spark, pipeline.open(spark, lane=LANE) as context:
        if dry_run:
            selected = wanted.letters(letters, pipeline=pipeline.config.name)
            return _show(call, try_replay(context, selected), dry_run=True)
        # what an earlier replay has begun is no longer open when it is done: it goes first
        begun = finish(context, letters)
        selected = wanted.letters(letters, pipeline=pipeline.config.name)
        done = replay(context, letters, selected)
    return _show(call, _sum([*begun, done]), dry_run=False)


def _unfinished(pipeline: Pipeline) -> bool:
    return any((pipeline.checkpoint_folder / LANE).glob("selection-*.parquet"))


def _sum(parts: list[Replayed]) -> Replayed:
    failed: dict[str, int] = {}
    tables: dict[str, int] = {}
    for part in parts:
        for into, counts in ((failed, part.failed_again), (tables, part.tables)):
            for name, count in counts.items():
                into[name] = into.get(name, 0) + count
    selected, replayed = (sum(getattr(p, n) for p in parts) for n in ("selected", "replayed"))
    return Replayed(selected, replayed, failed, tables)


def _show(call: Invocation, done: Replayed, *, dry_run: bool) -> int:
    data = {"dry_run": dry_run, **asdict(done)}
    call.out.show(data, lambda paper: _draw(paper, done, dry_run=dry_run))
    return 1 if done.failed_again and not dry_run else 0


def _draw(paper: Paper, done: Replayed, *, dry_run: bool) -> None:
    if not done.selected:
        paper.line("0 to replay")
        return
    into = f", into {tally(done.tables)}" if done.tables and done.replayed else ""
    what = "would decode" if dry_run else "replayed"
    paper.line(f"{done.replayed:,} {what}{into}")
    if done.failed_again:
        still = sum(done.failed_again.values())
        fail = "would fail again" if dry_run else "failed again"
        paper.line(f"{still:,} {fail}: {tally(done.failed_again)}")
