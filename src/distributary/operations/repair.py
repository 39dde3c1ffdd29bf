"""`resume`: a parked table gets its waiting batches, in order.

Only the owner of the checkpoint may publish. Where the pipeline runs, it is asked by a file in the
parking folder and does it between two batches; where it does not, this process takes the claim.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from distributary.changes.rebuild import Verified, verify
from distributary.changes.shape import Undecided
from distributary.config.kafka import KafkaSource, Registry
from distributary.config.pipeline import PipelineConfig
from distributary.delta.commit import mend_lost_commit
from distributary.engine.catalog import unregister
from distributary.engine.parts import make_publisher
from distributary.engine.pipeline import Pipeline
from distributary.engine.progress.checkpoint import Checkpoint, Manifests
from distributary.engine.progress.claim import CLAIMS, Claim, liveness, refuse_owned, state_of
from distributary.engine.progress.recovery import refuse_lost_parking
from distributary.engine.progress.removal import (
    PARKED_FILES,
    Removal,
    dead_letters_of,
    finish_removal,
    take_away,
)
from distributary.engine.requests import (
    Rebuilt,
    Request,
    drained,
    family,
    merged_table,
    rebuild_now,
    request_name,
)
from distributary.errors import (
    ConfigError,
    ErrorCode,
    OwnedError,
    PublishError,
    RegistryError,
    SchemaNotFoundError,
    TableBehindError,
)
from distributary.lab.simulate.kafka import Made, Topics, cards, write_card
from distributary.model import layout
from distributary.observe.gaps import lost_parking
from distributary.observe.pipelines import registrations
from distributary.observe.recording import Accepted
from distributary.observe.rows import TableSummary
from distributary.observe.verify import (
    TableCheck,
    check_table,
    rows_to_accept,
    written_tables,
)
from distributary.publish.base import Outcome, Published
from distributary.publish.parking import ParkedBatch, newest_told, parked
from distributary.registry.http.registry import HttpRegistry
from distributary.source.kafka import Broker
from distributary.store.base import Store, at

_PATIENCE_SECONDS = 120.0
_SHOWN = 10


def waiting(pipeline: Pipeline, table: str | None = None) -> list[ParkedBatch]:
    """What waits for parked tables, oldest first; with a table waits what it is made of."""
    folder = pipeline.parking
    names = None if table is None else family(pipeline.config, table)
    return [p for p in parked(folder) if names is None or p.table in names]


def resume(pipeline: Pipeline, table: str, *, undecided: Undecided = "refuse") -> list[Published]:
    """Publish what waits for a table; stops at the first batch that still fails.

    `undecided` says what the source was, where it goes back in its log for no clear reason.
    """
    finish_removal(pipeline)
    folder = pipeline.parking
    refuse_lost_waiting(pipeline, table)
    if not waiting(pipeline, table):
        raise ConfigError(
            f"nothing is parked for table {table}",
            code=ErrorCode.NOT_FOUND,
            where=folder,
            next_step="`distributary status` lists the parked tables",
        )
    lease = pipeline.config.run.lease.total_seconds()
    try:
        claim = Claim.take(pipeline.checkpoint, lease=lease)
    except OwnedError:
        return _ask_the_owner(pipeline, at(folder), table, undecided)
    try:
        publisher = make_publisher(pipeline.config)
        return drained(
            publisher,
            pipeline.ledger(),
            folder,
            config=pipeline.config,
            table=table,
            undecided=undecided,
        )
    finally:
        claim.release()


def refuse_lost_waiting(pipeline: Pipeline, table: str) -> None:
    """Raise if a batch that waited for a table is gone: later ones must not overtake it."""
    checkpoint = Checkpoint.find(pipeline.checkpoint, pipeline=pipeline.config.name)
    if checkpoint is not None:
        names = family(pipeline.config, table)
        refuse_lost_parking(pipeline.config, pipeline.ledger(), checkpoint.life, names)


def _ask_the_owner(
    pipeline: Pipeline, parking: Store, table: str, undecided: Undecided
) -> list[Published]:
    before = waiting(pipeline, table)
    request = request_name(table)
    word = b"" if undecided == "refuse" else undecided.encode()
    parking.write(request, word, durable=False)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (unanswered := parking.look(request) is not None) and time.monotonic() < deadline:
        time.sleep(0.2)
    left = {batch.folder for batch in waiting(pipeline, table)}
    done = [Published(b.table, Outcome.PUBLISHED) for b in before if b.folder not in left]
    if left:
        why = "the running pipeline has not answered" if unanswered else "it failed again"
        done.append(Published(table, Outcome.PARKED, error=why))
    return done


# `rebuild`: a merged table is made again from its log, by one commit.
#
# Only the owner of the checkpoint may do it. Where the pipeline runs, it is asked by a file and
# does it between two batches; where it does not, this process takes the claim.

_REBUILD_PATIENCE_SECONDS = 600.0
_POLL_SECONDS = 0.1


def rebuild_table(
    pipeline: Pipeline, known: TableSummary, *, as_of_us: int | None = None
) -> Rebuilt:
    """Make one table what its log says, or said at a moment; the others stay as they are."""
    finish_removal(pipeline)
    publisher = make_publisher(pipeline.config)
    # what cannot be done is said before anybody is asked to do it
    merged_table(pipeline.config, known, publisher)
    lease = pipeline.config.run.lease.total_seconds()
    while True:
        try:
            claim = Claim.take(pipeline.checkpoint, lease=lease)
        except OwnedError as owned:
            done = _ask_for_rebuild(pipeline, known.table, as_of_us, owned)
            if done is None:
                # it has ended before it came to it
                continue
            return done
        try:
            return rebuild_now(
                pipeline.config, pipeline.ledger(), known, publisher, as_of_us=as_of_us
            )
        finally:
            claim.release()


def _ask_for_rebuild(
    pipeline: Pipeline, table: str, as_of_us: int | None, owned: OwnedError
) -> Rebuilt | None:
    request = Request(at(pipeline.parking), table, uuid.uuid4().hex, as_of_us)
    request.send()
    try:
        return _awaited(request, pipeline.checkpoint, owned)
    finally:
        request.withdraw()


def _awaited(request: Request, checkpoint: Store, owned: OwnedError) -> Rebuilt | None:
    deadline = time.monotonic() + _REBUILD_PATIENCE_SECONDS
    while time.monotonic() < deadline:
        alive = state_of(checkpoint) == "running"
        answer = request.answer()
        if answer is not None:
            return _told(answer, checkpoint)
        if not alive:
            return None
        time.sleep(_POLL_SECONDS)
    raise OwnedError(
        "the running pipeline was asked, and has not rebuilt the table yet",
        where=owned.where,
        evidence=f"{owned.evidence}; waited {_REBUILD_PATIENCE_SECONDS:.0f} s",
        next_step="it does so between two batches: try again later, or stop it first",
    )


def _told(answer: dict[str, object], checkpoint: Store) -> Rebuilt:
    done = answer.get("rebuilt")
    if isinstance(done, dict):
        return replace(Rebuilt(**done), by_owner=True)
    raise PublishError(
        "the running pipeline could not rebuild the table",
        where=checkpoint.address,
        evidence=str(answer.get("error", "")),
        next_step="fix what it says, and try again",
    )


# `verify`: is a merged table what its log says? Recomputed and compared; nothing is changed.
#
# A running pipeline commits a log before the tables that are made of it. What is found between
# the two would look like a difference, so a difference counts only if no batch came in between.

_TRIES = 3
_VERIFY_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Checked:
    """A comparison, and what has to be known to judge it."""

    verified: Verified
    log: str
    parked_batches: int = 0
    """Batches that wait for the table: their events are in the log already."""
    unfinished: bool = False
    """A batch was under way, or was left half way by a process that ended."""


def verify_table(
    pipeline: Pipeline, known: TableSummary, *, as_of_us: int | None = None
) -> Checked:
    """Compare one table with what its log says, or said at a moment."""
    target = merged_table(pipeline.config, known, make_publisher(pipeline.config))
    manifests = Manifests(pipeline.checkpoint.below("manifests"))
    for _ in range(_TRIES):
        before = _between_batches(pipeline, manifests)
        found = verify(target.log_path, target.order, as_of_us=as_of_us)
        unfinished = manifests.settled() < manifests.newest()
        if found.agrees or (not unfinished and manifests.newest() == before):
            break
        if state_of(pipeline.checkpoint) != "running":
            break
    else:
        unfinished = True
    return Checked(found, target.log, known.parked_batches, unfinished and not found.agrees)


def _between_batches(pipeline: Pipeline, manifests: Manifests) -> int:
    """Wait until the batch that is under way is settled; returns its number."""
    deadline = time.monotonic() + _VERIFY_PATIENCE_SECONDS
    while manifests.settled() < manifests.newest() and time.monotonic() < deadline:
        if state_of(pipeline.checkpoint) != "running":
            break
        time.sleep(_POLL_SECONDS)
    return manifests.newest()


# `reset --table`: a table is taken as it is, because somebody meant it to be so.
#
# Nothing of the table and nothing of the ledger is removed. A row is added to the ledger for
# every lane that has written to the table: batches up to here are no longer looked for in it, and
# its rows count from what they are now.


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What taking a table as it is would say."""

    check: TableCheck
    """The table as it is, and what is wrong with it by the ledger."""
    difference: int
    """Rows that it has more, or fewer, than were written to it."""
    taken: tuple[Accepted, ...]


def plan_acceptance(pipeline: Pipeline, table: str) -> Acceptance:
    """What there is to accept about one table of a pipeline."""
    ledger = pipeline.ledger()
    tables = written_tables(pipeline.lake, ledger.last_commits(), parked={}, files={})
    mine = [t for t in tables if pipeline.config.name in t.pipelines]
    known = next((t for t in mine if t.table == table), None)
    if known is None:
        names = ", ".join(t.table for t in mine[:10])
        raise ConfigError(
            f"pipeline {pipeline.config.name} has never written to a table of this name",
            code=ErrorCode.NOT_FOUND,
            where=table,
            evidence=f"its tables: {names}" if names else "it has written to no table",
            next_step="distributary tables",
        )
    check = check_table(known)
    unreadable = next((f for f in check.findings if f.kind == "unreadable"), None)
    if unreadable is not None:
        raise TableBehindError(
            f"{table} cannot be taken as it is: its log cannot be read",
            where=known.path,
            evidence=unreadable.evidence,
            next_step="put it back from a copy; or, if it may go, remove its folder and say this "
            "again",
        )
    version = newest_told(known.path, check.version)
    difference = left = rows_to_accept(known, check)
    # whose rows are gone is not known where several write to one table: its own go first
    # batches that waited for it and are gone are taken as they are, too
    lost = {
        (row.life, row.lane): row.batch
        for row in lost_parking(ledger, pipeline.config.name, pipeline.parking)
        if row.table == table
    }
    lanes = sorted(
        (c for c in known.commits if c.batch is not None or (c.life, c.lane) in lost),
        key=lambda c: (c.pipeline != pipeline.config.name, -c.rows, c.life, c.lane),
    )
    taken = []
    for commit in lanes:
        share = left if left > 0 else max(left, -commit.rows)
        left -= share
        own = commit.pipeline == pipeline.config.name
        newest = max(commit.batch or 0, lost.get((commit.life, commit.lane), 0) if own else 0)
        taken.append(Accepted(commit, newest, share, version))
    return Acceptance(check, difference, tuple(taken))


def accept(pipeline: Pipeline, plan: Acceptance) -> None:
    """Write it down. Whoever writes to the table must not run meanwhile."""
    refuse_running(pipeline, plan)
    mend_lost_commit(at(plan.check.path))
    pipeline.ledger().accept(plan.taken)


def refuse_running(pipeline: Pipeline, plan: Acceptance) -> None:
    """A batch that is being committed would be counted twice."""
    refuse_owned(pipeline.checkpoint)
    for card in registrations(pipeline.lake):
        if card.name in plan.check.pipelines and liveness(card.checkpoint) == "running":
            raise OwnedError(
                f"pipeline {card.name} is running, and writes to {plan.check.table} too",
                where=card.checkpoint,
                evidence=f"writers: {', '.join(plan.check.pipelines)}",
                next_step="stop it first",
            )


# Topics and subjects that the simulators made for a pipeline, and nobody had before.
#
# A topic goes when a card has its id. A subject goes when a card says that it was not there
# before, when nobody else has added a version to it since, and when no simulated topic of another
# pipeline uses it: else the card of that topic inherits it.

TOPIC, SUBJECT = "topic", "subject"

_log = logging.getLogger(__name__)


def plan_produced(config: PipelineConfig) -> list[Removal]:
    """What was made for this pipeline; asks broker and registry only if a card says something."""
    found = _Found.of(config)
    if found is None:
        return []
    records = _records(found.source, found.topics)
    servers = found.source.bootstrap_servers
    address = next(iter(config.registry.places if config.registry else ()), "").rstrip("/")
    return [
        *(Removal(TOPIC, f"{servers}/{name}", name, records[name]) for name in found.topics),
        *(Removal(SUBJECT, f"{address}/subjects/{name}", name) for name in found.subjects),
    ]


def remove_produced(config: PipelineConfig, removals: Iterable[Removal]) -> None:
    """Do what was shown, as far as it still holds."""
    shown = {(removal.kind, removal.table) for removal in removals}
    found = _Found.of(config) if shown else None
    if found is None:
        return
    subjects = [name for name in found.subjects if (SUBJECT, name) in shown]
    if subjects and config.registry is not None:
        with HttpRegistry(config.registry) as registry:
            for subject in subjects:
                _delete(registry, subject)
    topics = Topics(found.source.client_options())
    for name in found.topics:
        if (TOPIC, name) in shown:
            topics.delete(name)
    _hand_over(found)


def _delete(registry: HttpRegistry, subject: str) -> None:
    try:
        registry.set_compatibility(subject, None)
        registry.delete_subject(subject, permanent=True)
    except RegistryError as error:
        if error.retryable:
            raise
        # somebody refers to it: then it is no longer for us to remove
        _log.warning("the subject %s stays: %s", subject, error)


@dataclass(frozen=True, slots=True)
class _Found:
    source: KafkaSource
    topics: tuple[str, ...]
    subjects: tuple[str, ...]
    """In the order in which they can go: what refers to others before these."""
    mine: tuple[Made, ...]
    others: tuple[Made, ...]
    """The cards of the same cluster whose topics this pipeline does not read."""

    @classmethod
    def of(cls, config: PipelineConfig) -> _Found | None:
        source, known = config.source, tuple(cards())
        if not isinstance(source, KafkaSource) or not any(_reads(source, c) for c in known):
            return None
        topics = Topics(source.client_options())
        cluster = topics.cluster()
        here = [card for card in known if card.cluster == cluster]
        mine = tuple(card for card in here if _reads(source, card))
        others = tuple(card for card in here if not _reads(source, card))
        made = {(card.topic, card.topic_id) for card in mine}
        there = [topics.find(name) for name in dict.fromkeys(card.topic for card in mine)]
        return cls(
            source,
            tuple(topic.name for topic in there if topic and (topic.name, topic.id) in made),
            _own_subjects(config.registry, mine, others),
            mine,
            others,
        )


def _reads(source: KafkaSource, card: Made) -> bool:
    if source.topic_pattern is not None:
        return re.fullmatch(source.topic_pattern, card.topic) is not None
    return card.topic in source.topics


def _own_subjects(
    config: Registry | None, mine: Sequence[Made], others: Sequence[Made]
) -> tuple[str, ...]:
    addresses = {address.rstrip("/") for address in (config.places if config else ())}
    near = [card for card in mine if card.registry in addresses]
    wanted = {subject for card in others for subject in card.schema_ids}
    made = dict.fromkeys(name for card in near for name in card.subjects)
    candidates = [name for name in made if name not in wanted]
    if config is None or not candidates:
        return ()
    with HttpRegistry(config) as registry:
        return tuple(
            subject
            for subject in reversed(candidates)
            if _is_ours(registry, subject, {i for c in near for i in c.schema_ids.get(subject, ())})
        )


def _is_ours(registry: HttpRegistry, subject: str, ids: set[int]) -> bool:
    try:
        versions = registry.versions(subject)
        return bool(versions) and {registry.version(subject, v).id for v in versions} <= ids
    except SchemaNotFoundError:
        return False


def _records(source: KafkaSource, topics: Sequence[str]) -> dict[str, int]:
    broker = Broker(source.client_options())
    partitions = broker.partitions(topics, None)
    first, last = broker.earliest(partitions), broker.latest(partitions)
    return {
        name: sum(last[one] - first[one] for one in partitions if one[0] == name) for name in topics
    }


def _hand_over(found: _Found) -> None:
    """The cards go; what others still use is theirs from now on."""
    left = {subject: card for card in found.mine for subject in card.subjects}
    for heir in found.others:
        gained = [subject for subject in left if subject in heir.schema_ids]
        if not gained:
            continue
        ids = dict(heir.schema_ids)
        for subject in gained:
            before = left.pop(subject).schema_ids.get(subject, ())
            ids[subject] = tuple(sorted({*ids[subject], *before}))
        write_card(replace(heir, subjects=(*heir.subjects, *gained), schema_ids=ids))
    for card in found.mine:
        card.path.unlink(missing_ok=True)


# `reset` and `clean`: one-shot, scoped to what this pipeline made, shown before it is done.


def plan_reset(pipeline: Pipeline) -> list[Removal]:
    """Forgetting progress: the checkpoint, and parked files that belong to its life."""
    checkpoint, parking = pipeline.checkpoint.address, at(pipeline.parking)
    removals = [Removal("progress", checkpoint)] if _has_begun(pipeline) else []
    elsewhere = not parking.address.startswith(f"{checkpoint}/")
    if elsewhere and (parking.files() or parking.folders()):
        removals.append(Removal(PARKED_FILES, parking.address))
    return removals


def plan_clean(pipeline: Pipeline) -> list[Removal]:
    """Removing everything this pipeline made; tables that others write to stay as they are."""
    name, removals = pipeline.config.name, plan_reset(pipeline)
    ledger = pipeline.ledger()
    shared = {table.table for table in shared_tables(pipeline)}
    for table in ledger.tables(name, schema_ids=False):
        if table.role == "dead_letters" or table.table in shared:
            continue
        path = layout.place(pipeline.lake, table.path)
        removals.append(Removal("table", path, table.table, table.rows))
        gone = at(layout.tombstones(pipeline.lake, table.table))
        if gone.exists():
            removals.append(Removal("memory of deleted rows", gone.address, table.table))
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


@dataclass(frozen=True, slots=True)
class SharedTable:
    """A table that other pipelines write to as well, so that it stays with all of its rows."""

    table: str
    rows: int | None
    """Rows that the pipeline which is reset or cleaned has written; None where unknown."""
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
        # of the dead letters, its own rows go
        if table.pipeline == name and table.role != "dead_letters" and others.get(table.table)
    ]


def refuse_shared(pipeline: Pipeline, command: str) -> None:
    """Raise if tables stay whose rows a later run of this pipeline would write once more."""
    shared = [table for table in shared_tables(pipeline) if table.rows != 0]
    if not shared:
        return
    told = [f"{t.table} ({t.described()} of it, also {', '.join(t.others)})" for t in shared]
    more = f", and {len(told) - _SHOWN:,} more" if len(told) > _SHOWN else ""
    raise ConfigError(
        f"{len(shared):,} of the tables are written by other pipelines too, and stay with all of "
        "their rows: the next run would write those of this pipeline a second time",
        code=ErrorCode.CONFIRMATION_NEEDED,
        where=pipeline.lake,
        evidence="; ".join(told[:_SHOWN]) + more,
        next_step=f"`distributary {command} --keep-shared` goes on, and leaves them as they are; "
        "to empty them, do that for all but one of the pipelines, and then without --keep-shared "
        "for the last one",
    )


def remove(pipeline: Pipeline, removals: list[Removal]) -> None:
    """Do what was shown. What a killed process has begun is finished by the next command."""
    refuse_owned(pipeline.checkpoint)
    elsewhere = [removal for removal in removals if removal.kind in (TOPIC, SUBJECT)]
    # first, because somebody else has to answer for it
    remove_produced(pipeline.config, elsewhere)
    here = [removal for removal in removals if removal not in elsewhere]
    unregister(pipeline, here)
    if here:
        take_away(pipeline, here)


def _has_begun(pipeline: Pipeline) -> bool:
    """Whether there is progress to forget; that of a lost checkpoint is in the ledger."""
    place, name = pipeline.checkpoint, pipeline.config.name
    checkpoint = Checkpoint.find(place, pipeline=name)
    there = {*place.folders(), *(file.name for file in place.files())}
    if checkpoint and there - {CLAIMS, "life.json"}:
        return True
    last = pipeline.ledger().batches(name, last=1)
    return bool(last) and (checkpoint is None or checkpoint.life == last[-1].life)
