"""`reset` and `clean`: remove the progress or all data of one pipeline, after a preview."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from distributary.engine.pipeline import Pipeline
from distributary.engine.planning.table_names import Entries
from distributary.engine.progress.checkpoint import Checkpoint
from distributary.engine.progress.claim import CLAIMS, refuse_owned
from distributary.engine.progress.removal import PARKED_FILES, Removal, dead_letters_of, take_away
from distributary.engine.registrar import drop_schema, schema_of, unregister
from distributary.errors import ConfigError, ErrorCode
from distributary.model import layout
from distributary.model.manifest import app_id
from distributary.operations.repair.produced_topics import SUBJECT, TOPIC, remove_produced
from distributary.publish.parking import held_by
from distributary.store.base import at

_SHOWN = 10


def plan_reset(pipeline: Pipeline) -> list[Removal]:
    """Return the removals of a reset: the checkpoint, and parked files of its life."""
    checkpoint, parking = pipeline.checkpoint.address, at(pipeline.parking)
    removals = [Removal("progress", checkpoint)] if _has_begun(pipeline) else []
    elsewhere = not parking.address.startswith(f"{checkpoint}/")
    if elsewhere and (parking.files() or parking.folders()):
        removals.append(Removal(PARKED_FILES, parking.address))
    return removals


def plan_clean(pipeline: Pipeline) -> list[Removal]:
    """Return the removals of all data of this pipeline, except tables of several writers."""
    name, removals = pipeline.config.name, plan_reset(pipeline)
    ledger = pipeline.ledger()
    shared = {table.table for table in shared_tables(pipeline)}
    tables = [
        Removal("table", layout.place(pipeline.lake, table.path), table.table, table.rows)
        for table in ledger.tables(name, schema_ids=False)
        if table.role != "dead_letters" and table.table not in shared
    ]
    for removal in [*tables, *_unlisted(pipeline)]:
        removals.append(removal)
        tombstones = at(layout.tombstones(pipeline.lake, removal.table))
        if tombstones.exists():
            removals.append(Removal("keys of deleted rows", tombstones.address, removal.table))
    letters = dead_letters_of(pipeline)
    count = sum(letters.count_by_status(pipeline=name).values())
    if count:
        removals.append(Removal("dead letters", letters.path, rows=count))
    if ledger.batches(name, last=1):
        removals.append(Removal("ledger", layout.ledger_table(pipeline.lake, "batches")))
    card = at(layout.pipeline(pipeline.lake, name))
    if card.exists():
        removals.append(Removal("card", card.address))
    return removals


def _unlisted(pipeline: Pipeline) -> Iterator[Removal]:
    """Find tables with batches of this life that the ledger lacks, as an older ledger does.

    The next run would write their rows a second time.
    """
    owner = pipeline.config.name
    checkpoint = Checkpoint.find(pipeline.checkpoint, pipeline=owner)
    if checkpoint is None:
        return
    application = app_id(owner, checkpoint.life)
    listed = {table.table for table in pipeline.ledger().tables(schema_ids=False)}
    for name in sorted((_names(pipeline) | Entries(pipeline.lake).tables()) - listed):
        path = layout.table(pipeline.lake, name)
        held = held_by(path, application)
        if held is not None and held.mark is not None:
            yield Removal("table", path, name)


def _names(pipeline: Pipeline) -> set[str]:
    """Return the names of bronze and of the unified table."""
    tables = pipeline.config.tables
    return {name for name in (tables.bronze, tables.unified and tables.unified.name) if name}


@dataclass(frozen=True, slots=True)
class SharedTable:
    """A table that other pipelines write to as well, so that it stays with all of its rows."""

    table: str
    rows: int | None
    """The rows that this pipeline has written; None if unknown."""
    others: tuple[str, ...]
    """The other pipelines that write to it."""

    def described(self) -> str:
        """Format the number of rows: `394 rows`."""
        return "rows" if self.rows is None else f"{self.rows:,} rows"


def shared_tables(pipeline: Pipeline) -> list[SharedTable]:
    """Find the tables with rows of this pipeline that `clean` keeps because of other pipelines."""
    name, everything = pipeline.config.name, pipeline.ledger().tables(schema_ids=False)
    others: dict[str, set[str]] = defaultdict(set)
    for table in everything:
        if table.pipeline != name:
            others[table.table].add(table.pipeline)
    return [
        SharedTable(table.table, table.rows, tuple(sorted(others[table.table])))
        for table in everything
        # its own rows of the dead letters are removed
        if table.pipeline == name and table.role != "dead_letters" and others.get(table.table)
    ]


def refuse_shared(pipeline: Pipeline, command: str) -> None:
    """Raise if tables remain whose rows the next run would write a second time."""
    shared = [table for table in shared_tables(pipeline) if table.rows != 0]
    if not shared:
        return
    descriptions = [
        f"{t.table} ({t.described()} of it, also {', '.join(t.others)})" for t in shared
    ]
    more = f", and {len(descriptions) - _SHOWN:,} more" if len(descriptions) > _SHOWN else ""
    raise ConfigError(
        f"other pipelines also write to {len(shared):,} of the tables, which stay with all of "
        "their rows: the next run would write the rows of this pipeline a second time",
        code=ErrorCode.CONFIRMATION_NEEDED,
        where=pipeline.lake,
        evidence="; ".join(descriptions[:_SHOWN]) + more,
        next_step=f"`distributary {command} --keep-shared` continues and leaves them as they are; "
        "to empty them, do that for all but one of the pipelines, and then without --keep-shared "
        "for the last one",
    )


SCHEMA = "schema"


def plan_schema(pipeline: Pipeline) -> Removal:
    """Return the removal of the schema in the catalog. Raises ConfigError if there is none."""
    name = schema_of(pipeline.config)
    if not name:
        raise ConfigError(
            "--drop-schema needs a catalog that outlives a session",
            where="lake.catalog",
            next_step="leave out --drop-schema: this pipeline has made no schema",
        )
    return Removal(SCHEMA, "if Distributary made it and nothing else is in it", name)


def remove(pipeline: Pipeline, removals: list[Removal]) -> str:
    """Do the removals; return why the schema stays, if it does although it was to go.

    The next command completes those of a killed process.
    """
    refuse_owned(pipeline.checkpoint)
    elsewhere = [removal for removal in removals if removal.kind in (TOPIC, SUBJECT)]
    # first, because other servers have to answer
    remove_produced(pipeline.config, elsewhere)
    here = [r for r in removals if r not in elsewhere and r.kind != SCHEMA]
    unregister(pipeline, here)
    if here:
        take_away(pipeline, here)
    # last: its folder may be that of the tables
    return drop_schema(pipeline) if any(r.kind == SCHEMA for r in removals) else ""


def _has_begun(pipeline: Pipeline) -> bool:
    """Return whether there is progress to remove; after a lost checkpoint, the ledger has it."""
    place, name = pipeline.checkpoint, pipeline.config.name
    checkpoint = Checkpoint.find(place, pipeline=name)
    there = {*place.folders(), *(file.name for file in place.files())}
    if checkpoint and there - {CLAIMS, "life.json"}:
        return True
    last = pipeline.ledger().batches(name, last=1)
    return bool(last) and (checkpoint is None or checkpoint.life == last[-1].life)
