"""The removals of `reset` and `clean`: done at once, or completed by the next command.

The removals are stored first. The next command that opens the pipeline completes those of a
killed process, so that no run ever sees half of them. The claims are taken before, which fences a
process that was only paused: an ended life writes nothing any more.
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

from distributary.engine.names import Entries
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
    """Something that would go."""

    kind: str
    """`progress`, `table`, `parked files`, `dead letters`, `ledger`, `card`, `topic`, `subject`."""
    path: str
    table: str = ""
    """The name of a table, a topic or a subject."""
    rows: int | None = None


def dead_letters_of(pipeline: Pipeline) -> DeadLetters:
    """The table of dead letters that this pipeline writes to."""
    return DeadLetters(layout.table(pipeline.lake, pipeline.config.tables.dead_letters))


def take_away(pipeline: Pipeline, removals: Sequence[Removal]) -> None:
    """Remove parts of a pipeline. A process that is killed meanwhile is finished by the next."""
    card = _card(pipeline)
    with _claimed(pipeline):
        with reaching(card.address):
            text = json.dumps([asdict(each) for each in removals])
            card.write(REMOVAL, seal(text.encode()))
        _carry_out(pipeline, removals)


def finish_removal(pipeline: Pipeline) -> None:
    """Finish a reset or clean that was begun and has not ended."""
    card = _card(pipeline)
    with reaching(card.address):
        if card.size(REMOVAL) is None:
            return
        removals = _read(card)
    with _claimed(pipeline):
        _log.warning("finishing a removal of %d parts that was not ended", len(removals))
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
        "a reset or clean was begun, and what it takes away cannot be read",
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
            # last: as long as it is there, what it names is not all gone
            card.remove(REMOVAL)


def _place(pipeline: Pipeline, removal: Removal) -> str:
    """Return the address of a removal; it must be in this lake, whatever the stored text says."""
    return (
        pipeline.parking
        if removal.kind == PARKED_FILES
        else layout.place(pipeline.lake, removal.path)
    )


def _end_life(checkpoint: Store, pipeline: str, *, begin: bool) -> None:
    """Forget all progress; with `begin` a new life starts, so that this is no lost checkpoint."""
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
    """Remove a table; no reader finds half of it, because it is gone before it is taken apart."""
    if not layout.inside(lake, path):
        # the lake asks for it, and whoever can write to it could have asked for anything
        _log.warning("%s is the lake itself: it stays", path)
        return
    removed = Path(layout.removed(lake))
    with reaching(path):
        if is_remote(path):
            at(path).remove_table()
            return
        # the folder itself may be a link, which is all that goes then
        stay_inside(lake, str(removed), os.path.dirname(path))
        while os.path.lexists(path):
            away = removed / uuid.uuid4().hex
            try:
                away.mkdir(parents=True)
                os.rename(path, away / "table")
            except FileNotFoundError:
                # somebody else has just tidied up there
                continue
            except OSError:
                # not on the lake's own disk
                stay_inside(lake, f"{path}/_delta_log")
                at(path).remove_table()
    # what a process that was killed has left is nobody's either
    shutil.rmtree(removed, ignore_errors=True)


@contextmanager
def _claimed(pipeline: Pipeline) -> Iterator[None]:
    """Hold the checkpoint and all its lanes. Raises OwnedError while the pipeline runs."""
    checkpoint = pipeline.checkpoint
    stay_inside(pipeline.lake, _card(pipeline).address)
    lanes = [checkpoint.below(lane) for lane in LANES]
    if checkpoint.address.startswith(layout.join(pipeline.lake, "")):
        # elsewhere it is where the pipeline's file says
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
