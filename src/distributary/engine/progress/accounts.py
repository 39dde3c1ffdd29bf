"""Repair of the ledger: rows of damaged files are written again from the manifests.

A file of the ledger holds the rows of a few batches. The log of its table names the batches and the
number of rows. The manifests of the checkpoint have the content of the rows, and the tables their
current versions. Nothing is written unless exactly as many rows are missing as the damaged files
had.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from distributary.delta.commit import Change, rewrite_files, write_rows
from distributary.delta.damage import damage_in, damaged
from distributary.delta.log import DataFile, Snapshot, load
from distributary.delta.tables import committing, reaching_table
from distributary.engine.planning.table_book import table_folder
from distributary.engine.progress.checkpoint import Checkpoint
from distributary.engine.progress.claim import Claim
from distributary.errors import DamagedFileError
from distributary.model import layout
from distributary.model.manifest import Manifest
from distributary.observe.ledger.ledger_rows import ACCEPTED, RESUMED
from distributary.observe.ledger.recording import (
    BATCHES,
    SCHEMAS,
    TABLES,
    BatchTimes,
    batch_key,
    batch_row,
    outcomes,
    schema_rows,
    table_rows,
)
from distributary.publish.base import Outcome, Published
from distributary.publish.parking import held_by, parked
from distributary.store.base import at

if TYPE_CHECKING:
    from distributary.engine.pipeline import Pipeline

_SCHEMAS = {"batches": BATCHES, "tables": TABLES, "schemas": SCHEMAS}
_IDENTITY = {
    "batches": ("pipeline", "life", "lane", "batch"),
    "tables": ("pipeline", "life", "lane", "batch", "table"),
    "schemas": ("pipeline", "batch", "table", "schema_id", "kind", "column"),
}
"""The columns that identify a row among those that a batch wrote."""


@dataclass(frozen=True, slots=True)
class Repair:
    """The rows that replace damaged files of a ledger table."""

    table: str
    files: tuple[str, ...]
    batches: tuple[int, ...]
    rows: int


def mend_ledger(pipeline: Pipeline, *, dry_run: bool = False) -> list[Repair]:
    """Replace damaged files of the ledger. Raises DamagedFileError.

    The new rows come from the manifests. Every file of the ledger is read once.
    """
    found = [(name, state, _damaged(state)) for name, state in _tables(pipeline.lake)]
    broken = [(name, state, files) for name, state, files in found if files]
    if not broken:
        return []
    claim = Claim.take(pipeline.checkpoint, lease=pipeline.config.run.lease.total_seconds())
    try:
        return [_mended(pipeline, *one, dry_run=dry_run) for one in broken]
    finally:
        claim.release()


def _tables(lake: str) -> Iterator[tuple[str, Snapshot]]:
    for name in layout.LEDGER_TABLES:
        state = _state(lake, name)
        if state is not None:
            yield name, state


def _state(lake: str, name: str) -> Snapshot | None:
    """Load a table of the ledger. Raises LakeUnavailableError where its log cannot be read."""
    path = layout.ledger_table(lake, name)
    with reaching_table(path):
        return load(at(path))


def _damaged(state: Snapshot) -> dict[str, str]:
    """Return the paths of missing and unreadable files, each with the reason."""
    why = {path: _damage(state, file) for path, file in state.files.items()}
    return {path: text for path, text in why.items() if text is not None}


def _damage(state: Snapshot, file: DataFile) -> str | None:
    if state.store.size(file.path) != file.size:
        return "it is gone, or has another size"
    return damage_in(state.store, file.path, size=file.size, expected=file.checksum)


def _mended(
    pipeline: Pipeline, name: str, state: Snapshot, why: dict[str, str], *, dry_run: bool
) -> Repair:
    files = [state.files[path] for path in why]
    manifests = _manifests(pipeline, files)
    resumed = _resumed(pipeline) if manifests and name != "schemas" else set()
    made = [_rows(pipeline, name, each, resumed) for each in manifests]
    rows = _without(pa.concat_tables([_SCHEMAS[name].empty_table(), *made]), state, why, name)
    if not manifests or rows.num_rows != sum(file.rows or 0 for file in files):
        raise _refusal(state, why)
    if not dry_run:
        with committing(state.folder, doing="replace a damaged file"):
            change = Change("RECOVER", removed=files, added=[write_rows(rows, state.folder)])
            rewrite_files(state.folder, state, change)
    numbers = tuple(manifest.batch for manifest in manifests)
    return Repair(name, tuple(why), numbers, rows.num_rows)


def _manifests(pipeline: Pipeline, files: Sequence[DataFile]) -> list[Manifest]:
    """Return the manifests of all batches that the files may contain; None if one is missing."""
    name = pipeline.config.name
    checkpoint = Checkpoint.find(pipeline.checkpoint, pipeline=name)
    numbers: set[int] = set()
    for file in files:
        low, high = file.bounds("batch")
        if file.bounds("pipeline") != (name, name) or low is None or high is None:
            return []
        numbers.update(range(low, high + 1))
    if checkpoint is None or not numbers <= set(checkpoint.manifests().numbers()):
        return []
    found = (checkpoint.manifests().read(number) for number in sorted(numbers))
    return [manifest for manifest in found if manifest is not None]


def _resumed(pipeline: Pipeline) -> set[tuple[object, ...]]:
    """Return the batches that were resumed for tables: their first row has the outcome `parked`."""
    state = _state(pipeline.lake, "tables")
    if state is None:
        return set()
    rows = _whole_rows(state, _damaged(state), "tables", [*_IDENTITY["tables"], "outcome"])
    return {tuple(row.values())[:-1] for row in rows if row["outcome"] == RESUMED}


def _rows(
    pipeline: Pipeline, name: str, manifest: Manifest, resumed: set[tuple[object, ...]]
) -> pa.Table:
    """Build the rows that a batch has written to a table of the ledger."""
    moment = datetime.fromisoformat(manifest.created_at)
    if name == "schemas":
        return schema_rows(manifest, at=moment)
    key = batch_key(manifest.app_id, manifest.batch)
    late = {entry.table.name for entry in manifest.tables if (*key, entry.table.name) in resumed}
    results = outcomes(manifest, _published(pipeline, manifest, late))
    if name == "tables":
        return table_rows(key, results, at=moment, counted=manifest.primary_role)
    waiting = {published.table for _, published in results if published.outcome is Outcome.PARKED}
    waits = sum(e.records for e in manifest.primary() if e.table.name in waiting)
    row = batch_row(manifest, results, times=BatchTimes(started_at=moment), finished_at=moment)
    counts = asdict(manifest.with_parked(waits))
    return pa.Table.from_pylist([row | counts | {"stages": 1}], schema=BATCHES)


def _published(pipeline: Pipeline, manifest: Manifest, late: set[str]) -> Iterator[Published]:
    """Return the result of a batch for each table: published, or parked."""
    waiting = late | {
        batch.table
        for batch in parked(pipeline.parking)
        if (batch.mark.app_id, batch.mark.batch) == (manifest.app_id, manifest.batch)
    }
    for entry in manifest.tables:
        name = entry.table.name
        if name in waiting:
            yield Published(name, Outcome.PARKED)
            continue
        held = held_by(table_folder(pipeline.config, name), manifest.app_id)
        yield Published(name, Outcome.SKIPPED, held.version if held and held.exists else None)


def _without(rows: pa.Table, state: Snapshot, why: dict[str, str], name: str) -> pa.Table:
    """Leave out the rows that undamaged files have."""
    names = list(_IDENTITY[name])
    found = _whole_rows(state, why, name, names + ["outcome"] * (name == "tables"))
    # a table that was resumed or accepted has several rows for one batch
    own = (row for row in found if row.pop("outcome", "") not in (ACCEPTED, RESUMED))
    there = {tuple(row.values()) for row in own}
    missing = [tuple(row.values()) not in there for row in rows.select(names).to_pylist()]
    return rows.filter(pa.array(missing, pa.bool_()))


def _whole_rows(
    state: Snapshot, why: dict[str, str], name: str, columns: Sequence[str]
) -> Iterator[dict[str, object]]:
    """Read columns of all undamaged files."""
    schema = pa.schema([_SCHEMAS[name].field(column) for column in columns])
    for path, file in state.files.items():
        if path not in why:
            yield from state.read(file, schema).to_pylist()


def _refusal(state: Snapshot, why: dict[str, str]) -> DamagedFileError:
    path, text = next(iter(why.items()))
    error = damaged(state.folder, path, text)
    error.next_step = (
        "put the file back from a copy, or restore a backup: it also holds rows of batches whose "
        "manifests are no longer in the checkpoint"
    )
    return error
