"""`reset` and `clean`: one-shot, scoped to what this pipeline made, shown before it is done."""

from __future__ import annotations

import shutil
from pathlib import Path

from distributary.errors import OwnedError
from distributary.observe import layout
from distributary.observe.deadletters import DeadLetters
from distributary.publish.folder import Folder
from distributary.run.claim import current_owner, is_alive
from distributary.run.names import forget_names
from distributary.run.pipeline import Pipeline
from distributary.run.produced import SUBJECT, TOPIC, remove_produced
from distributary.run.removal import Removal
from distributary.stores.known import introduce, is_remote


def plan_reset(pipeline: Pipeline) -> list[Removal]:
    """Forgetting progress: the checkpoint, and parked files that belong to its life."""
    introduce(pipeline.lake, pipeline.config.lake.options)
    folder = pipeline.checkpoint_folder
    removals = [Removal("progress", str(folder))] if folder.exists() else []
    parked = Path(pipeline.parking)
    if parked.parent != folder and parked.exists() and any(parked.iterdir()):
        removals.append(Removal("parked files", str(parked)))
    return removals


def plan_clean(pipeline: Pipeline) -> list[Removal]:
    """Removing everything this pipeline made; tables that others write to only lose its rows."""
    name, removals = pipeline.config.name, plan_reset(pipeline)
    ledger = pipeline.ledger()
    shared = _tables_of_others(pipeline)
    for table in ledger.tables(name, schema_ids=False):
        if table.role == "dead_letters" or table.table in shared:
            continue
        removals.append(Removal("table", table.path, table.table, table.rows))
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
    """Do what was shown. The order lets a second call finish what a killed one began."""
    refuse_while_running(pipeline)
    name = pipeline.config.name
    elsewhere = [removal for removal in removals if removal.kind in (TOPIC, SUBJECT)]
    # first, because somebody else has to answer for it
    remove_produced(pipeline.config, elsewhere)
    for removal in (each for each in removals if each not in elsewhere):
        if removal.kind == "dead letters":
            dead_letters_of(pipeline).forget(name)
        elif removal.kind != "ledger":
            _remove(removal.path)
    forget_names(pipeline.lake, {r.table for r in removals if r.kind == "table"})
    # last, because it is the list of what there was to remove
    if any(removal.kind == "ledger" for removal in removals):
        pipeline.ledger().forget(name)


def _remove(path: str) -> None:
    if is_remote(path):
        Folder(path).remove_folder()
    else:
        shutil.rmtree(path, ignore_errors=True)


def refuse_while_running(pipeline: Pipeline) -> None:
    """Nothing is taken away under a running pipeline."""
    folder = pipeline.checkpoint_folder
    owner = current_owner(folder) if folder.exists() else None
    if owner is not None and is_alive(folder, owner):
        raise OwnedError(
            f"the pipeline is running: {owner.describe()}",
            where=str(folder),
            next_step=f"stop it first (kill {owner.pid})",
        )


def dead_letters_of(pipeline: Pipeline) -> DeadLetters:
    """The table of dead letters that this pipeline writes to."""
    path = layout.table(pipeline.lake, pipeline.config.tables.dead_letters)
    return DeadLetters(path, storage_options=pipeline.config.lake.options or None)


def _tables_of_others(pipeline: Pipeline) -> set[str]:
    everything = pipeline.ledger().tables(schema_ids=False)
    return {t.table for t in everything if t.pipeline != pipeline.config.name}
