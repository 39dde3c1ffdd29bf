"""Recovery of a checkpoint that is lost or ahead of its lake; and checks before a run.

The lake keeps a copy of the newest manifest, with the life of the checkpoint, the batch and the
source's position. Lakes of earlier versions have none: there the ranges in the ledger show how far
the source was read. A batch is in the ledger before the checkpoint marks it as settled, so a
checkpoint with more settled batches than the ledger has an older copy of its lake.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from distributary.config.pipeline_config import PipelineConfig
from distributary.engine.planning.table_book import log_of, merge_config, table_folder
from distributary.engine.progress.checkpoint import Checkpoint, ManifestCopy, Manifests
from distributary.engine.progress.claim import Claim
from distributary.engine.progress.removal import finish_removal
from distributary.engine.seams import make_source
from distributary.errors import (
    CheckpointError,
    DistributaryError,
    DivergedError,
    ErrorCode,
    TableBehindError,
)
from distributary.model.manifest import LANES, Counts, Manifest, SourceRange, app_id
from distributary.model.table import Role
from distributary.observe.cards import refuse_half_restored
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.ledger.ledger_rows import LastCommit
from distributary.observe.ledger.recording import Accepted
from distributary.observe.status.health import DERIVED
from distributary.observe.verify.gaps import lost_parking
from distributary.publish.base import Held
from distributary.publish.parking import Expected, forget, lacking, parked
from distributary.source.base import Position
from distributary.store.base import reaching

if TYPE_CHECKING:
    from distributary.engine.pipeline import Pipeline
    from distributary.observe.ledger.ledger_rows import BatchRow


@dataclass(frozen=True, slots=True)
class Recovery:
    """The facts from which a checkpoint is recovered."""

    life: str
    batch: int
    """The newest decided batch."""
    settled: bool
    """Whether all tables have the batch; if not, the next run finishes it."""
    position: Position
    """The start of the next batch."""
    known_by: str
    """The origin of these facts: `manifest` or `ledger`."""
    back_from: int | None = None
    """The newest settled batch of a checkpoint that is ahead of the lake; None if it was lost."""
    rewrites: bool = False
    """Whether only the newest manifest is damaged, and is written again from the lake's copy."""


def refuse_lost(pipeline: Pipeline) -> None:
    """Raise if there is no checkpoint, but the lake has batches of this pipeline."""
    if _is_there(pipeline):
        return
    last = _last_settled(pipeline)
    copy = ManifestCopy(pipeline.lake, pipeline.config.name).read()
    if last is None and copy is None:
        return
    batch, life = (copy.batch, copy.life) if copy else (last.batch, last.life) if last else (0, "")
    raise CheckpointError(
        "the checkpoint is lost: without it, every record would be read and written again",
        code=ErrorCode.CHECKPOINT_LOST,
        where=pipeline.checkpoint.address,
        evidence=f"the lake has batches up to {batch} of life {life}, this folder has none",
        next_step="put the checkpoint back from a copy, of any age; without one, `distributary "
        "recover FILE` takes its position up from the lake; `distributary reset FILE` starts over",
    )


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A lane whose checkpoint has more settled batches than the ledger."""

    checkpoint: Checkpoint
    lane: str
    settled: int
    in_ledger: int
    """The newest settled batch of the lane in the ledger, or -1."""


def refuse_older_lake(pipeline: Pipeline, lane: str, copy: Manifest | None = None) -> None:
    """Raise if the ledger lacks settled batches, which shows an older copy of the lake.

    Settled batches are known from the checkpoint and from the lake's `copy` of the newest manifest.
    """
    ahead = _ahead(pipeline, lane, copy)
    if ahead is None:
        return
    known = f"ends with batch {ahead.in_ledger}" if ahead.in_ledger >= 0 else "has none of them"
    raise CheckpointError(
        "the lake is older than the checkpoint: it lacks batches that were finished",
        code=ErrorCode.LAKE_BEHIND,
        where=pipeline.lake,
        evidence=f"batch {ahead.settled} of lane {lane} was finished in life "
        f"{ahead.checkpoint.life}, and the lake's ledger {known}",
        next_step="put the newest copy of the lake back; without one, `distributary recover FILE` "
        "takes the checkpoint back to where the lake is, and the next run reads the batches since "
        "then again, as far as the source still has them",
    )


def _ahead(pipeline: Pipeline, lane: str, copy: Manifest | None) -> _Ahead | None:
    """Compare the newest settled batch with that of the ledger."""
    name = pipeline.config.name
    checkpoint = Checkpoint.find(pipeline.checkpoint, pipeline=name)
    if checkpoint is None:
        return None
    with reaching(checkpoint.store.address):
        settled = checkpoint.manifests(lane).settled()
    if copy is not None and copy.life == checkpoint.life:
        # a batch is decided only when the one before it is settled
        settled = max(settled, copy.batch - 1)
    if settled < 0:
        return None
    in_ledger = pipeline.ledger().newest_settled(app_id(name, checkpoint.life, lane))
    return _Ahead(checkpoint, lane, settled, in_ledger) if settled > in_ledger else None


def plan_recovery(pipeline: Pipeline) -> Recovery | None:
    """Return the actions of `recover`; None if nothing is lost."""
    if _is_there(pipeline):
        damaged = _damaged_manifest(pipeline)
        return _way_back(pipeline)[0] if damaged is None else _rewriting(*damaged)
    return _recovery(pipeline)[0]


def recover(pipeline: Pipeline) -> Recovery | None:
    """Write the checkpoint, so that the next run continues after the lake's last batch."""
    refuse_half_restored(pipeline.lake)
    finish_removal(pipeline)
    if _is_there(pipeline):
        damaged = _damaged_manifest(pipeline)
        if damaged is not None:
            return _rewritten(pipeline, *damaged)
        return _taken_back(pipeline)
    claim = Claim.take(pipeline.checkpoint, lease=pipeline.config.run.lease.total_seconds())
    try:
        found, manifest = _recovery(pipeline)
        place, name = pipeline.checkpoint, pipeline.config.name
        first = manifest.source_start or manifest.source_state
        checkpoint = Checkpoint(place, found.life)
        checkpoint.keep_first_position(first)
        checkpoint.manifests().adopt(manifest)
        if found.settled:
            checkpoint.manifests().settle(manifest.batch)
        # written last, because it makes the checkpoint exist
        Checkpoint.begin(place, pipeline=name, life=found.life)
    finally:
        claim.release()
    return found


def _damaged_manifest(pipeline: Pipeline) -> tuple[Manifests, Manifest] | None:
    """Return the manifests of a lane whose newest one is damaged, with the lake's copy of it.

    Raises CheckpointError if the lake has no copy of that batch.
    """
    name = pipeline.config.name
    checkpoint = Checkpoint.find(pipeline.checkpoint, pipeline=name)
    if checkpoint is None:
        return None
    for lane in LANES:
        manifests = checkpoint.manifests(lane)
        newest = manifests.newest()
        if newest < 0:
            continue
        try:
            manifests.read(newest)
        except CheckpointError as error:
            copy = ManifestCopy(pipeline.lake, name, lane).read()
            if copy is not None and (copy.life, copy.batch) == (checkpoint.life, newest):
                return manifests, copy
            raise CheckpointError(
                error.what,
                where=error.where,
                evidence=f"{error.evidence}; the lake has no copy of batch {newest}",
                next_step="restore the checkpoint from a copy; do not delete the manifest",
            ) from error
    return None


def _rewriting(manifests: Manifests, copy: Manifest) -> Recovery:
    settled = manifests.settled() >= copy.batch
    position = copy.source_state
    return Recovery(copy.life, copy.batch, settled, position, "manifest", rewrites=True)


def _rewritten(pipeline: Pipeline, manifests: Manifests, copy: Manifest) -> Recovery:
    """Write a damaged manifest again from the lake's copy."""
    claim = Claim.take(pipeline.checkpoint, lease=pipeline.config.run.lease.total_seconds())
    try:
        manifests.replace(copy)
    finally:
        claim.release()
    return _rewriting(manifests, copy)


def _taken_back(pipeline: Pipeline) -> Recovery | None:
    """Set a checkpoint that is ahead of its lake back to the lake's state."""
    found, lanes = _way_back(pipeline)
    if found is None:
        return None
    lease = pipeline.config.run.lease.total_seconds()
    claims: list[Claim] = []
    try:
        for ahead in lanes:
            store = ahead.checkpoint.store
            place = store if ahead.lane == "stream" else store.below(ahead.lane)
            claims.append(Claim.take(place, lease=lease))
        for ahead in lanes:
            _take_back(pipeline, ahead)
    finally:
        for claim in claims:
            claim.release()
    return found


def _way_back(pipeline: Pipeline) -> tuple[Recovery | None, list[_Ahead]]:
    """Find the lanes that are ahead of the lake, and the positions where they continue."""
    name = pipeline.config.name
    copies = ((lane, ManifestCopy(pipeline.lake, name, lane).read()) for lane in LANES)
    found_lanes = (_ahead(pipeline, lane, copy) for lane, copy in copies)
    lanes = [ahead for ahead in found_lanes if ahead is not None]
    if not lanes:
        return None, []
    _refuse_other_life(pipeline, lanes[0].checkpoint)
    first = lanes[0]
    manifest = _manifest_at(pipeline, first)
    start = first.checkpoint.known_first_position() or {}
    position = start if manifest is None else manifest.source_state
    known_by = "manifest" if manifest is None or manifest.tables else "ledger"
    found = Recovery(
        first.checkpoint.life, first.in_ledger, True, position, known_by, back_from=first.settled
    )
    return found, lanes


def _refuse_other_life(pipeline: Pipeline, checkpoint: Checkpoint) -> None:
    """Raise if the newest batch in the lake belongs to another life than the checkpoint."""
    last = _last_settled(pipeline)
    if last is not None and last.life != checkpoint.life:
        raise DivergedError(
            "the lake is of another life than the checkpoint: its tables hold other batches",
            where=pipeline.lake,
            evidence=f"the newest batch of the lake is {last.batch} of life {last.life}; the "
            f"checkpoint is of life {checkpoint.life}",
            next_step="put the newest copy of the lake back; to start over with empty tables, "
            "`distributary reset FILE --with-tables`",
        )


def _take_back(pipeline: Pipeline, ahead: _Ahead) -> None:
    manifests = ahead.checkpoint.manifests(ahead.lane)
    if ahead.in_ledger >= 0 and manifests.text(ahead.in_ledger) is None:
        found = _manifest_at(pipeline, ahead)
        if found is not None:
            manifests.create(found)
    # the letters of a replay are open again in the lake, and a new replay is another batch
    streams = ahead.lane == "stream"
    kept = manifests.decided_behind(ahead.in_ledger) if streams else ahead.in_ledger
    mine = app_id(pipeline.config.name, ahead.checkpoint.life, ahead.lane)
    for batch in parked(pipeline.parking):
        if batch.mark.app_id == mine and batch.mark.batch > kept:
            # its records are read again, under a number that may then have other records
            forget(batch)
    place = ManifestCopy(pipeline.lake, pipeline.config.name, ahead.lane)
    copy = place.read()
    if copy is not None and copy.batch - 1 > ahead.in_ledger:
        # the ledger is older than the copy, so the checkpoint decides
        place.remove()
    manifests.take_back(ahead.in_ledger, kept=kept)


def _manifest_at(pipeline: Pipeline, ahead: _Ahead) -> Manifest | None:
    """Return the manifest of the newest batch that the ledger has; None if it has none."""
    if ahead.in_ledger < 0:
        return None
    found = ahead.checkpoint.manifests(ahead.lane).read(ahead.in_ledger)
    if found is None and ahead.lane == "stream":
        name, life = pipeline.config.name, ahead.checkpoint.life
        copy = ManifestCopy(pipeline.lake, name).read()
        if copy is not None and (copy.life, copy.batch) == (life, ahead.in_ledger):
            return copy
        source = make_source(pipeline.config)
        first = ahead.checkpoint.known_first_position() or source.first()
        return _from_ledger(pipeline, life, ahead.in_ledger, first)
    return found


def _is_there(pipeline: Pipeline) -> bool:
    return Checkpoint.find(pipeline.checkpoint, pipeline=pipeline.config.name) is not None


def _recovery(pipeline: Pipeline) -> tuple[Recovery, Manifest]:
    name = pipeline.config.name
    refusal = pipeline.config.source.irrecoverable
    if refusal is not None:
        raise CheckpointError(
            refusal.what,
            code=ErrorCode.CHECKPOINT_LOST,
            where=pipeline.checkpoint.address,
            next_step=refusal.next_step,
        )
    last = _last_settled(pipeline)
    copy = ManifestCopy(pipeline.lake, name).read()
    if copy is not None and (last is None or copy.life != last.life or copy.batch >= last.batch):
        settled = last is not None and (last.life, last.batch) == (copy.life, copy.batch)
        found = Recovery(copy.life, copy.batch, settled, copy.source_state, "manifest")
        return found, copy
    if last is None:
        raise DistributaryError(
            f"the lake has no trace of a pipeline {name}",
            code=ErrorCode.NOT_FOUND,
            where=pipeline.lake,
            next_step="`distributary run` begins it",
        )
    first = make_source(pipeline.config).first()
    manifest = _from_ledger(pipeline, last.life, last.batch, first)
    return Recovery(last.life, last.batch, True, manifest.source_state, "ledger"), manifest


def _from_ledger(pipeline: Pipeline, life: str, batch: int, first: Position) -> Manifest:
    """Build a manifest that holds only the position of the source."""
    name = pipeline.config.name
    read = pipeline.ledger().read_ranges(name, life=life).to_pylist()
    ranges = tuple(
        SourceRange(r["topic"], r["partition"], r["first"], r["end"], r["records"]) for r in read
    )
    source = make_source(pipeline.config)
    return Manifest(
        pipeline=name,
        life=life,
        batch=batch,
        epoch=0,
        ranges=pipeline.ledger().settled_ranges(name, life, "stream", batch) or (),
        tables=(),
        counts=Counts(),
        dead_letters={},
        schemas=(),
        created_at=datetime.now(UTC).isoformat(),
        source_state=dict(source.retrace(first, ranges)),
    )


def _last_settled(pipeline: Pipeline) -> BatchRow | None:
    rows = pipeline.ledger().batches(pipeline.config.name, lane="stream", last=1)
    return rows[-1] if rows else None


# The check before a run that every table has the batches that were settled for it. A table that was
# removed, or restored from an older copy, would get the next batch, and the records in between
# would be in no table. So the run is refused, with the names of such tables.

_SHOWN = 10
_THREADS = 32
"""The number of threads for an object store, where each question is a request."""


@dataclass(frozen=True, slots=True)
class Behind:
    """A table that lacks settled batches."""

    commit: LastCommit
    held: Held
    batches: tuple[int, ...]
    """The missing batches, as far as the ledger still lists them one by one."""

    def describe(self) -> str:
        """`silver_go (there is no table; batches 0 to 7)`."""
        known = self.held
        lane = "" if self.commit.lane == "stream" else f" of its {self.commit.lane}"
        has = "there is no table" if not known.exists else f"it ends with {_batch(known.mark)}"
        if known.exists and self.commit.role in DERIVED:
            has = f"it is at version {known.version} instead of {self.commit.version}"
        return f"{self.commit.table} ({has}; finished: {spelled(self.batches)}{lane})"


def refuse_behind(config: PipelineConfig, ledger: Ledger, life: str) -> None:
    """Raise TableBehindError if a table of this pipeline lacks batches settled in this life."""
    refuse_lost_parking(config, ledger, life)
    found = behind(config, ledger, life)
    if not found:
        return
    names = list(dict.fromkeys(one.commit.table for one in found))
    more = f", and {len(names) - _SHOWN:,} more tables" if len(names) > _SHOWN else ""
    descriptions = [one for one in found if one.commit.table in names[:_SHOWN]]
    raise TableBehindError(
        f"{len(names):,} of the pipeline's tables lack batches that were written to them",
        where=config.lake.address,
        evidence="; ".join(one.describe() for one in descriptions) + more,
        next_step=_next_step(config, descriptions),
        tables=",".join(names[:_SHOWN]),
    )


def refuse_lost_parking(
    config: PipelineConfig, ledger: Ledger, life: str, tables: Collection[str] | None = None
) -> None:
    """Raise TableBehindError if parked batches of the given tables are missing."""
    folder = config.lake.parking_of(config.name)
    lost = [
        row
        for row in lost_parking(ledger, config.name, folder, life=life)
        if tables is None or row.table in tables
    ]
    if not lost:
        return
    names = list(dict.fromkeys(row.table for row in lost))
    examples = [f"{n} ({spelled(r.batch for r in lost if r.table == n)})" for n in names[:_SHOWN]]
    roles = {row.table: row.role for row in lost}
    rebuilt = [
        name
        for name in names
        if roles[name] == Role.MERGED and _has_log(config, name) and log_of(name) not in roles
    ]
    without_copy = (
        f"`distributary rebuild {rebuilt[0]}` makes the table again from its log, which has them"
        if rebuilt
        else f"`distributary reset FILE --table {names[0]}` takes the table as it is: what it "
        "lacks is then in no table"
    )
    waited = "1 table" if len(names) == 1 else f"{len(names):,} tables"
    raise TableBehindError(
        f"parked batches of {waited} are missing from their folder",
        where=folder,
        evidence="; ".join(examples),
        next_step=f"put this folder back from a newer copy; if there is none, {without_copy}",
        tables=",".join(names[:_SHOWN]),
    )


def behind(
    config: PipelineConfig, ledger: Ledger, life: str, table: str | None = None
) -> list[Behind]:
    """Return all tables that lack settled batches, or one of them, by name."""
    commits = [
        commit
        for commit in ledger.last_commits(config.name)
        if commit.life == life
        and commit.required is not None
        and table in (None, commit.table)
        and _is_written(config, commit)
    ]

    def ask(commit: LastCommit) -> Held | None:
        return lacking(_expected(config, commit))

    if config.lake.is_local:
        # threads would cost more than a few system calls for each table
        answers = list(map(ask, commits))
    else:
        with ThreadPoolExecutor(_THREADS) as pool:
            answers = list(pool.map(ask, commits))
    found = [
        Behind(commit, held, _missing(ledger, commit, held))
        for commit, held in zip(commits, answers, strict=True)
        if held is not None
    ]
    return sorted(found, key=lambda one: (one.commit.table, one.commit.lane))


def accept_rebuilt(config: PipelineConfig, ledger: Ledger, table: str, version: int) -> None:
    """Record that a rebuilt table has all batches, although it has no marks of them.

    This includes parked batches whose files are missing.
    """
    commits = [c for c in ledger.last_commits(config.name) if c.table == table]
    for life in {commit.life for commit in commits}:
        found = behind(config, ledger, life, table)
        ledger.accept([Accepted(b.commit, b.commit.batch or 0, 0, version) for b in found])
    folder = config.lake.parking_of(config.name)
    lost = {
        (row.life, row.lane): row.batch
        for row in lost_parking(ledger, config.name, folder)
        if row.table == table
    }
    ledger.accept(
        [
            Accepted(c, max(c.batch or 0, lost[c.life, c.lane]), 0, version)
            for c in commits
            if (c.life, c.lane) in lost
        ]
    )


def spelled(batches: Iterable[int]) -> str:
    """Format numbers of batches: `batch 7`, `batches 3 to 7`, `batches 3, 5 and 9 to 12`."""
    runs: list[list[int]] = []
    for number in sorted(set(batches)):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    parts = [str(first) if first == last else f"{first} to {last}" for first, last in runs]
    if len(parts) > _SHOWN:
        parts = [*parts[: _SHOWN - 1], f"{len(parts) - _SHOWN + 1} more"]
    text = ", ".join(parts[:-1]) + (" and " if parts[1:] else "") + "".join(parts[-1:])
    return f"batch {text}" if len(runs) == 1 and runs[0][0] == runs[0][1] else f"batches {text}"


def _expected(config: PipelineConfig, commit: LastCommit) -> Expected:
    return Expected(
        path=table_folder(config, commit.table),
        app_id=commit.app_id,
        batch=commit.batch or 0,
        version=commit.version or 0,
        marked=commit.role not in DERIVED,
    )


def _is_written(config: PipelineConfig, commit: LastCommit) -> bool:
    """Return whether the pipeline file still has a table.

    For a type that was not seen yet, the answer is yes.
    """
    tables = config.tables
    unified = tables.unified.name if tables.unified else None
    fixed = {Role.BRONZE: tables.bronze, Role.UNIFIED: unified}
    fixed[Role.DEAD_LETTERS] = tables.dead_letters
    return commit.role not in fixed or fixed[Role(commit.role)] == commit.table


def _missing(ledger: Ledger, commit: LastCommit, held: Held) -> tuple[int, ...]:
    marked = commit.role not in DERIVED
    rows = ledger.table_batches(commit).to_pylist()
    floor = -1 if commit.accepted is None else commit.accepted
    if marked and held.exists and held.mark is not None:
        floor = max(floor, held.mark)
    return tuple(
        row["batch"]
        for row in rows
        if row["version"] is not None
        and row["outcome"] not in ("parked", "accepted")
        and row["batch"] > floor
        and (marked or not held.exists or row["version"] > held.version)
    ) or ((commit.batch,) if commit.batch is not None else ())


def _next_step(config: PipelineConfig, found: Iterable[Behind]) -> str:
    names = {one.commit.table: one.commit.role for one in found}
    first = next(iter(names))
    parts = [
        "put the newest copy of the tables back",
        "if this lake is a copy that was made while the pipeline ran, `distributary backup FILE "
        "PLACE` and `distributary restore PLACE` into an empty lake take all tables back to the "
        "last batch that they have in common",
    ]
    merged = [name for name, role in names.items() if role == Role.MERGED]
    if merged and _has_log(config, merged[0]):
        parts.append(f"`distributary rebuild {merged[0]}` makes it again from its log")
    parts.append(
        f"if it was meant to be, `distributary reset FILE --table {first}` takes it as it is: what "
        "it lacks is then in no table"
    )
    return "; ".join(parts)


def _has_log(config: PipelineConfig, table: str) -> bool:
    """Return whether a table can be rebuilt from its log."""
    how = merge_config(config, table)
    return how is not None and how.log


def _batch(mark: int | None) -> str:
    return "no batch of this pipeline" if mark is None else f"batch {mark}"
