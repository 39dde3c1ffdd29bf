"""The removals of `reset` and `clean`, which a later command completes if interrupted.

The list of removals is stored first. The next command that opens the pipeline completes those of a
killed process, so that no run sees half of them. The claims are taken before, which fences a
process that was only paused: a process of the old life can write nothing any more.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from distributary.engine.planning.table_names import Entries
from distributary.engine.progress.checkpoint import Checkpoint, ManifestCopy
from distributary.engine.progress.claim import CLAIMS, Claim
from distributary.errors import CheckpointError
from distributary.model import layout
from distributary.model.manifest import LANES
from distributary.observe.cards import REMOVAL
from distributary.observe.deadletters import DeadLetters
from distributary.store.base import Store, at, is_remote, reaching, stay_inside
from distributary.store.seal import seal, unseal

if TYPE_CHECKING:
    from distributary.engine.pipeline import Pipeline


_log = logging.getLogger(__name__)
PARKED_FILES = "parked files"


@dataclass(frozen=True, slots=True)
class Removal:
    """One item to remove."""

    kind: str
    """`progress`, `table`, `parked files`, `dead letters`, `ledger`, `card`, `topic`, `subject`."""
    path: str
    table: str = ""
    """The name of the table, topic or subject."""
    rows: int | None = None


def dead_letters_of(pipeline: Pipeline) -> DeadLetters:
    """Return the pipeline's table of dead letters, if its letters are removed from it."""
    return DeadLetters(layout.table(pipeline.lake, pipeline.config.tables.dead_letters))


def take_away(pipeline: Pipeline, removals: Sequence[Removal]) -> None:
    """Remove parts of a pipeline; the next command completes an interrupted removal."""
    card = _card(pipeline)
    with _claimed(pipeline):
        with reaching(card.address):
            text = json.dumps([asdict(each) for each in removals])
            card.write(REMOVAL, seal(text.encode()))
        _carry_out(pipeline, removals)


def finish_removal(pipeline: Pipeline) -> None:
    """Complete an interrupted reset or clean."""
    card = _card(pipeline)
    with reaching(card.address):
        if card.size(REMOVAL) is None:
            return
        removals = _read(card)
    with _claimed(pipeline):
        _log.warning("finishing a removal of %d parts that was interrupted", len(removals))
        _carry_out(pipeline, removals)


def _read(card: Store) -> list[Removal]:
    where = f"{card.address}/{REMOVAL}"
    next_step = "remove the file, then do the reset or clean again"
    try:
        text = unseal(card.read(REMOVAL), where=where, next_step=next_step)
        found = [Removal(**each) for each in json.loads(text)]
        if all(isinstance(text, str) for each in found for text in (each.kind, each.path)):
            return found
        evidence = "no texts"
    except (ValueError, TypeError) as error:
        evidence = type(error).__name__
    raise CheckpointError(
        "a reset or clean was interrupted, and its list of removals cannot be read",
        where=where,
        evidence=evidence,
        next_step=next_step,
    )


def _carry_out(pipeline: Pipeline, removals: Sequence[Removal]) -> None:
    name, kinds = pipeline.config.name, {removal.kind for removal in removals}
    for removal in removals:
        if removal.kind == "dead letters":
            dead_letters_of(pipeline).forget(name)
        elif removal.kind not in ("ledger", "progress", "card"):
            _remove_folder(pipeline.lake, _place(pipeline, removal))
    gone = {removal.table for removal in removals if removal.kind == "table"}
    Entries(pipeline.lake).forget(gone)
    if "ledger" in kinds:
        pipeline.ledger().forget(name)
    for lane in LANES:
        ManifestCopy(pipeline.lake, name, lane).remove()
    _end_life(pipeline.checkpoint, name, begin="card" not in kinds)
    card = _card(pipeline)
    with reaching(card.address):
        if "card" in kinds:
            card.remove_folder()
        else:
            # removed last: as long as it exists, the removal is incomplete
            card.remove(REMOVAL)


def _place(pipeline: Pipeline, removal: Removal) -> str:
    """Return the address of a removal; it must be in this lake, whatever the stored text says."""
    return (
        pipeline.parking
        if removal.kind == PARKED_FILES
        else layout.place(pipeline.lake, removal.path)
    )


def _end_life(checkpoint: Store, pipeline: str, *, begin: bool) -> None:
    """Remove all progress; with `begin` start a new life, so that no checkpoint seems lost."""
    with reaching(checkpoint.address):
        for folder in checkpoint.folders():
            if folder != CLAIMS:
                checkpoint.remove_folder(folder)
        for file in checkpoint.files():
            checkpoint.remove(file.name)
        if begin:
            Checkpoint.begin(checkpoint, pipeline=pipeline)
        else:
            checkpoint.remove_folder()


def _remove_folder(lake: str, path: str) -> None:
    """Remove a table's folder; it is renamed first, so that no reader finds half a table."""
    if not layout.inside(lake, path):
        # the request is stored in the lake, and any writer of the lake could have changed it
        _log.warning("%s is the lake itself: it stays", path)
        return
    removed = Path(layout.removed(lake))
    with reaching(path):
        if is_remote(path):
            at(path).remove_table()
            return
        # if the folder is a link, only the link is removed
        stay_inside(lake, str(removed), os.path.dirname(path))
        while os.path.lexists(path):
            away = removed / uuid.uuid4().hex
            try:
                away.mkdir(parents=True)
                os.rename(path, away / "table")
            except FileNotFoundError:
                # another process has removed it meanwhile
                continue
            except OSError:
                # not on the lake's own disk
                stay_inside(lake, f"{path}/_delta_log")
                at(path).remove_table()
    # leftovers of killed processes are removed as well
    shutil.rmtree(removed, ignore_errors=True)


@contextmanager
def _claimed(pipeline: Pipeline) -> Iterator[None]:
    """Hold the claims of the checkpoint and all its lanes. Raises OwnedError during a run."""
    checkpoint = pipeline.checkpoint
    stay_inside(pipeline.lake, _card(pipeline).address)
    lanes = [checkpoint.below(lane) for lane in LANES]
    if checkpoint.address.startswith(layout.join(pipeline.lake, "")):
        # a checkpoint outside of the lake is known from the pipeline file only
        stay_inside(pipeline.lake, *(each.address for each in (checkpoint, *lanes)))
    lease = pipeline.config.run.lease.total_seconds()
    claims: list[Claim] = []
    try:
        for each in (checkpoint, *(lane for lane in lanes if lane.exists(CLAIMS))):
            claims.append(Claim.take(each, lease=lease))
        yield
    finally:
        for claim in claims:
            claim.release()


def _card(pipeline: Pipeline) -> Store:
    return at(layout.pipeline(pipeline.lake, pipeline.config.name))
