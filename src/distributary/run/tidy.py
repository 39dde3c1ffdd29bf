"""`reset` and `clean`: one-shot, scoped to what this pipeline made, shown before it is done."""

from __future__ import annotations

from pathlib import Path

from distributary.observe import layout
from distributary.publish.folder import Folder
from distributary.run.checkpoint import Checkpoint
from distributary.run.claim import CLAIMS, refuse_owned
from distributary.run.pipeline import Pipeline
from distributary.run.produced import SUBJECT, TOPIC, remove_produced
from distributary.run.removal import PARKED_FILES, Removal, dead_letters_of, take_away


def plan_reset(pipeline: Pipeline) -> list[Removal]:
    """Forgetting progress: the checkpoint, and parked files that belong to its life."""
    folder = pipeline.checkpoint_folder
    removals = [Removal("progress", str(folder))] if _has_begun(pipeline) else []
    parked = Path(pipeline.parking)
    if parked.parent != folder and parked.exists() and any(parked.iterdir()):
        removals.append(Removal(PARKED_FILES, str(parked)))
    return removals


def plan_clean(pipeline: Pipeline) -> list[Removal]:
    """Removing everything this pipeline made; tables that others write to only lose its rows."""
    name, removals = pipeline.config.name, plan_reset(pipeline)
    ledger = pipeline.ledger()
    shared = _tables_of_others(pipeline)
    for table in ledger.tables(name, schema_ids=False):
        if table.role == "dead_letters" or table.table in shared:
            continue
        path = layout.place(pipeline.lake, table.path)
        removals.append(Removal("table", path, table.table, table.rows))
        gone = Folder(layout.tombstones(pipeline.lake, table.table))
        if gone.exists():
            removals.append(Removal("memory of deleted rows", gone.path, table.table))
    letters = dead_letters_of(pipeline)
    count = sum(letters.count_by_status(pipeline=name).values())
    if count:
        removals.append(Removal("dead letters", letters.path, rows=count))
    if ledger.batches(name, last=1):
        removals.append(Removal("ledger", layout.ledger_table(pipeline.lake, "batches")))
    card = Folder(layout.pipeline(pipeline.lake, name))
    if card.exists():
        removals.append(Removal("card", card.path))
    return removals


def remove(pipeline: Pipeline, removals: list[Removal]) -> None:
    """Do what was shown. What a killed process has begun is finished by the next command."""
    refuse_owned(pipeline.checkpoint_folder)
    elsewhere = [removal for removal in removals if removal.kind in (TOPIC, SUBJECT)]
    # first, because somebody else has to answer for it
    remove_produced(pipeline.config, elsewhere)
    here = [removal for removal in removals if removal not in elsewhere]
    if here:
        take_away(pipeline, here)


def _has_begun(pipeline: Pipeline) -> bool:
    """Whether there is progress to forget; that of a lost checkpoint is in the ledger."""
    folder, name = pipeline.checkpoint_folder, pipeline.config.name
    checkpoint = Checkpoint.find(folder, pipeline=name)
    if checkpoint and any(path.name not in (CLAIMS, "life.json") for path in folder.iterdir()):
        return True
    last = pipeline.ledger().batches(name, last=1)
    return bool(last) and (checkpoint is None or checkpoint.life == last[-1].life)


def _tables_of_others(pipeline: Pipeline) -> set[str]:
    everything = pipeline.ledger().tables(schema_ids=False)
    return {t.table for t in everything if t.pipeline != pipeline.config.name}
