"""A consistent state of a lake, found while its pipelines go on.

A batch is written in this order: its manifest, the commits of its tables, its rows in the ledger,
and what may only follow then (events of a hidden log are removed, dead letters are marked). The
ledger's table of batches says atomically, for all pipelines, which batches are settled. So:

1. Note the version of every table (`_Watch`), the ledger's own tables first.
2. Read the ledger's table of batches: its marks are the settled batches.
3. Read the checkpoints, what is parked, and the small documents of the lake.
4. Extend each table from the noted version up to the newest commit that a settled batch needs.

Every commit in such a state was made before step 2. A table may also have a part of the one batch
that was under way then; its manifest and its staged files belong to the state, and the next run
finishes it, as after a crash. Nothing is locked. If a document changed between the steps, all of
them are repeated (`MovedError`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from tenacity import Retrying

from distributary.delta.log import BrokenLogError, Snapshot, load, parse_commit, read_commit
from distributary.engine.names import NameEntry
from distributary.engine.progress.checkpoint import Checkpoint, ManifestCopy
from distributary.engine.progress.claim import living_owner
from distributary.errors import CheckpointError, ConfigError, DistributaryError, ErrorCode
from distributary.model import layout
from distributary.model.manifest import ASIDE, LANES, Manifest, TableEntry, app_id
from distributary.model.table_format import DELTA, TABLE_FORMATS
from distributary.observe.cards import (
    Registration,
    registrations,
    trusted_checkpoint,
    unfinished_removal,
)
from distributary.observe.deadletters import unfinished
from distributary.observe.health import DERIVED
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.ledger.recording import batch_key
from distributary.publish.formats.entry import format_at
from distributary.publish.parking import ENTRY, ParkedBatch, parked
from distributary.retries import attempts_on
from distributary.store.base import (
    Store,
    at,
    is_remote,
    reaching,
    same_place,
    stay_inside,
    unpacked,
)
from distributary.store.seal import unseal

THREADS = 16
_ATTEMPTS, _PAUSE, _JITTER = 8, 0.5, 0.5
_PUT_BACK = "put the checkpoint back from a copy; do not delete the manifest"
_FOLDERS = {lane: "manifests" if lane == "stream" else lane for lane in LANES}
"""The folder of a checkpoint in which a lane keeps its manifests."""
_MANIFEST = re.compile(r"([0-9]{20})\.json(?:\.zst)?")
_NOT_PROGRESS = ("claims/", "runs/", "manifests/", *(f"{lane}/" for lane in ASIDE), "parked/")
"""Folders of a checkpoint that are not copied as they are: owners, work under way, batches."""
_MOMENTARY = frozenset({"pulse.json", "failure.json"})

_A = TypeVar("_A")
_B = TypeVar("_B")


class MovedError(Exception):
    """The lake changed during the search for a state; the message names the change."""


@dataclass(frozen=True, slots=True)
class FileSize:
    """A file that the state needs, with its size in bytes."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class BackedUpTable:
    """A table at the version that belongs to the state."""

    folder: str
    """Below the lake."""
    version: int
    """The version of a Delta table; -1 if the state has no commit of it, or for plain Parquet."""
    format: str = "delta"
    files: tuple[FileSize, ...] = ()
    """Files that no Delta log names: staged ones, and all of a plain Parquet table."""


@dataclass(frozen=True, slots=True)
class PipelineState:
    """The progress of a pipeline."""

    name: str
    life: str
    checkpoint: str
    settled: Mapping[str, int]
    """The newest settled batch of each lane; -1 if there is none."""
    under_way: Mapping[str, int]
    """The decided, unsettled batch of a lane, if the state has a part of it."""


@dataclass(frozen=True, slots=True)
class ParkedState:
    """A parked batch: its entry is among the documents, its files are copied."""

    pipeline: str
    place: str
    """Table and name of the batch, below the pipeline's parking folder."""
    source: str
    """The address of the batch's folder."""
    files: tuple[FileSize, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """A consistent state of a lake and of the progress of its pipelines."""

    lake: str
    taken_at: str
    pipelines: tuple[PipelineState, ...]
    tables: tuple[BackedUpTable, ...]
    parked: tuple[ParkedState, ...]
    documents: Mapping[str, bytes]
    """Documents by their names in a backup: `lake/...`, `checkpoint/<pipeline>/...`, `parked/...`.
    """


def retried() -> Retrying:
    """Return attempts that end with the first one without a MovedError."""
    return attempts_on(MovedError, most=_ATTEMPTS, pause=_PAUSE, jitter=_JITTER)


def find_once(lake: str, checkpoints: Mapping[str, str]) -> Cut:
    """Find a consistent state, in one try. Raises MovedError.

    `checkpoints` are the addresses that pipeline files name, by the names of their pipelines.
    """
    with _reading(lake):
        cards = registrations(lake)
        addresses = {card.name: _address(card, lake, checkpoints) for card in cards}
        _refuse_removals(lake, cards)
        # before the selections of replays are read, so that a replay that ends later is noticed
        began = load(at(layout.ledger_table(lake, "batches")), files=False)
        marks = {} if began is None else began.marks
        progress = {name: _Progress.begin(name, place, marks) for name, place in addresses.items()}
        watch = _Watch(lake)
        watch.note()
        state = _State(lake, watch, progress)
        state.read()
        _refuse_removals(lake, cards)
        for one in progress.values():
            one.check_life()
        return state.cut()


@contextmanager
def _reading(lake: str) -> Iterator[None]:
    try:
        with reaching(lake):
            yield
    except BrokenLogError as error:
        raise DistributaryError(
            "the log of a table cannot be read, so that the table cannot be backed up",
            code=ErrorCode.BACKUP_REFUSED,
            where=lake,
            evidence=str(error),
            next_step="`distributary verify` names the table; repair it first",
        ) from error


def _address(card: Registration, lake: str, named: Mapping[str, str]) -> str:
    """Return the address of a pipeline's checkpoint.

    A card alone is trusted inside the lake only.
    """
    if card.name in named:
        return named[card.name]
    if card.checkpoint.startswith(layout.join(lake, "")):
        return card.checkpoint
    if not is_remote(card.checkpoint) and (place := trusted_checkpoint(card, lake)):
        return str(place)
    raise ConfigError(
        f"the lake has a pipeline {card.name} whose checkpoint is outside of the lake",
        code=ErrorCode.FILE_NOT_TRUSTED,
        where=card.checkpoint,
        evidence="only its card in the lake names the checkpoint",
        next_step="name its pipeline file on the command, beside the others",
    )


def _refuse_removals(lake: str, cards: Iterable[Registration]) -> None:
    for card in cards:
        if unfinished_removal(lake, card.name):
            raise CheckpointError(
                f"a reset or clean of pipeline {card.name} is under way",
                code=ErrorCode.BACKUP_REFUSED,
                where=lake,
                next_step="wait until it has ended; if it was killed, do it again",
            )


def each(work: Callable[[_A], _B], items: Iterable[_A], *, threads: int = THREADS) -> list[_B]:
    """Return the results of `work` for many items, computed in parallel threads."""
    listed = list(items)
    if len(listed) < 2:
        return list(map(work, listed))
    with ThreadPoolExecutor(min(threads, len(listed))) as pool:
        return list(pool.map(work, listed))


# The tables.


class _Watch:
    """The versions of all tables of a lake as first noted, and their later commits."""

    def __init__(self, lake: str) -> None:
        self.lake = lake
        self.noted: dict[str, Snapshot | None] = {}
        self.since: dict[str, list[tuple[int, Mapping[str, int]]]] = {}
        """Commits after the noted version: their versions and marks."""

    def note(self) -> None:
        """Note the version of every table, in the reverse of the order in which a batch writes.

        So no table has a consequence of a commit that another table lacks: the ledger has no rows
        of a commit, and a merged table no deletes of a tombstone, that was not noted.
        """
        for name in ("tables", "schemas"):
            self._look([ledger_folder(name)])
        folders = sorted(known_tables(self.lake))
        tombstone_folders = [f for f in folders if f.startswith(f"{layout.HOME}/tombstones/")]
        self._look([folder for folder in folders if folder not in tombstone_folders])
        self._look(tombstone_folders)

    def _look(self, folders: Sequence[str]) -> None:
        self.noted |= zip(folders, each(self._load, folders), strict=True)

    def _load(self, folder: str) -> Snapshot | None:
        place = layout.join(self.lake, folder)
        stay_inside(self.lake, place)
        return load(at(place), files=False)

    def follow(self, folders: Iterable[str]) -> None:
        """Read the commits of tables since their noted versions; of new tables, all commits."""
        new = [folder for folder in folders if folder not in self.since]
        self.since |= zip(new, each(self._commits, new), strict=True)

    def _commits(self, folder: str) -> list[tuple[int, Mapping[str, int]]]:
        noted = self.noted.get(folder)
        store = at(layout.join(self.lake, folder))
        version = -1 if noted is None else noted.version
        commits: list[tuple[int, Mapping[str, int]]] = []
        while True:
            try:
                data = read_commit(store, version + 1)
            except (FileNotFoundError, NotADirectoryError):
                break
            version += 1
            commits.append((version, parse_commit(data).marks))
        if not commits and noted is None and load(store, files=False) is not None:
            raise MovedError(f"table {folder} is new")
        return commits

    def take_back(self, folder: str, limits: Mapping[str, int]) -> None:
        """Note an older version of a table, without commits beyond the limits."""
        noted = self.noted.get(folder)
        if noted is None:
            return
        beyond = {app for app, most in limits.items() if noted.marks.get(app, -1) > most}
        version, first = noted.version, noted.version + 1
        while beyond and version >= 0:
            try:
                marks = parse_commit(read_commit(noted.store, version)).marks
            except FileNotFoundError:
                raise MovedError(f"the log of {folder} no longer has version {version}") from None
            for app in beyond & marks.keys():
                if marks[app] > limits[app]:
                    first = version
                else:
                    beyond = beyond - {app}
            version -= 1
        if first > noted.version:
            return
        self.noted[folder] = load(noted.store, files=False, version=first - 1) if first else None

    def version(self, folder: str, limits: Mapping[str, int], at_least: int = -1) -> int:
        """Return the lowest version that has every commit up to the limits of each application."""
        noted = self.noted.get(folder)
        version = max(at_least, -1 if noted is None else noted.version)
        for number, marks in self.since[folder]:
            if any(batch <= limits.get(app, -1) for app, batch in marks.items()):
                version = max(version, number)
        return version

    def marks(self, folder: str, version: int) -> dict[str, int]:
        """Return the newest batch of each application at a version."""
        noted = self.noted.get(folder)
        marks_found = dict(noted.marks) if noted is not None else {}
        for number, marks in self.since.get(folder, ()):
            if number <= version:
                marks_found |= marks
        return marks_found

    def newest(self, folder: str) -> int:
        """Return the newest version that was read."""
        noted, since = self.noted.get(folder), self.since.get(folder)
        return since[-1][0] if since else -1 if noted is None else noted.version


def ledger_folder(name: str) -> str:
    """Return the folder of one of the ledger's tables, below the lake."""
    return layout.inside("", layout.ledger_table("", name))


def known_tables(lake: str) -> set[str]:
    """Return the folders, below the lake, of the tables that Distributary writes."""
    folders = {layout.inside(lake, path) for _, path in Ledger(lake).places()}
    home = at(layout.join(lake, layout.HOME))
    names = at(layout.names(lake))
    entries = each(lambda file: NameEntry.from_json(_text(names, file.name)), names.files())
    folders |= {table for entry in entries for table in entry.tables}
    for kind in ("changes", "tombstones"):
        folders |= {f"{layout.HOME}/{kind}/{name}" for name in home.folders(kind)}
    return {folder for folder in folders if folder}


def _text(store: Store, name: str) -> bytes:
    """Read a document. Raises MovedError if it was deleted since it was listed."""
    stay_inside(store.address, f"{store.address}/{name}")
    try:
        return store.read(name)
    except FileNotFoundError:
        raise MovedError(f"{store.address}/{name} is gone") from None


# The progress of one pipeline.


@dataclass(slots=True)
class _Progress:
    """The documents of one checkpoint."""

    name: str
    store: Store
    life: str | None
    ended: dict[str, int]
    """By lane beside the stream: the newest batch that was settled at the start."""
    documents: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, dict[int, tuple[str, bytes]]] = field(default_factory=dict)
    """Manifests by lane and batch: the name of the file in the checkpoint, and its bytes."""
    selections: dict[tuple[str, int], tuple[str, bytes]] = field(default_factory=dict)
    """What unfinished batches beside the stream write, by lane and number."""
    parked: list[ParkedBatch] = field(default_factory=list)

    @classmethod
    def begin(cls, name: str, place: str, marks: Mapping[str, int]) -> _Progress:
        """Note the pipeline's life and its unfinished replays; `marks` are the ledger's."""
        store = at(place)
        checkpoint = Checkpoint.find(store, pipeline=name)
        if checkpoint is None and any(app.startswith(f"distributary/{name}/") for app in marks):
            raise CheckpointError(
                f"the checkpoint of pipeline {name} is lost, so that it cannot be backed up",
                code=ErrorCode.CHECKPOINT_LOST,
                where=place,
                evidence="the lake has batches of this pipeline",
                next_step="`distributary recover FILE` makes it again; then take the backup",
            )
        life = checkpoint.life if checkpoint else None
        ended = {lane: marks.get(app_id(name, life or "", lane), -1) for lane in ASIDE}
        progress = cls(name, store, life, ended)
        progress._read_selections()
        return progress

    def check_life(self) -> None:
        """Raise MovedError if the pipeline was reset meanwhile."""
        checkpoint = Checkpoint.find(self.store, pipeline=self.name)
        if (checkpoint.life if checkpoint else None) != self.life:
            raise MovedError(f"pipeline {self.name} was reset")

    def app(self, lane: str) -> str:
        """Return the application of this life's marks."""
        return app_id(self.name, self.life or "", lane)

    def read(self, parking: str, lake: str) -> None:
        """Read the documents; manifests last, so that every parked batch has one."""
        self.parked = parked(parking, lake=lake)
        for file in self.store.files(recursive=True):
            name = file.name
            if name.startswith(_NOT_PROGRESS) or name in _MOMENTARY:
                continue
            self.documents[name] = _text(self.store, name)
        for lane, folder in _FOLDERS.items():
            self.manifests[lane] = {
                int(match[1]): (file.name, b"")
                for file in self.store.files(folder)
                if (match := _MANIFEST.fullmatch(file.name.rpartition("/")[2]))
            }
        self._read_selections()
        if not any(name.startswith("files/") for name in self.documents):
            # only the checkpoint has the numbers of files, so only its manifests count
            self._read_copy(lake)

    def _read_copy(self, lake: str) -> None:
        """Use the lake's copy of the newest manifest if the checkpoint is older."""
        copy = ManifestCopy(lake, self.name).read()
        if copy is not None and copy.life == self.life:
            data = _text(at(layout.pipeline(lake, self.name)), "decided-stream.json")
            known = (f"manifests/{copy.batch:020d}.json", data)
            self.manifests["stream"].setdefault(copy.batch, known)

    def _read_selections(self) -> None:
        for lane in ASIDE:
            for number in unfinished(self.store, lane):
                if (lane, number) not in self.selections:
                    name = f"{lane}/selection-{number:08d}.parquet"
                    self.selections[lane, number] = name, _text(self.store, name)

    def manifest(self, lane: str, batch: int) -> tuple[str, bytes]:
        """Return the name and bytes of a manifest's file. Raises MovedError."""
        known = self.manifests[lane].get(batch)
        if known is None:
            raise MovedError(f"pipeline {self.name} has no manifest of batch {batch}")
        if not known[1]:
            known = known[0], _text(self.store, known[0])
            self.manifests[lane][batch] = known
        return known

    def decided(self, lane: str, batch: int) -> tuple[Manifest, bytes]:
        """Return a decided batch and its text. Raises MovedError."""
        name, data = self.manifest(lane, batch)
        text = unpacked(data) if name.endswith(".zst") else data
        where = f"{self.store.address}/{name}"
        try:
            document = unseal(text, where=where, next_step=_PUT_BACK)
            return Manifest.from_json(document.decode()), text
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                "a manifest cannot be read, so that the pipeline cannot be backed up",
                where=where,
                evidence=f"{type(error).__name__}: {error}",
                next_step=_PUT_BACK,
            ) from error


# The assembly of the state.


class _State:
    """The steps after the versions of the tables were noted."""

    def __init__(self, lake: str, watch: _Watch, progress: Mapping[str, _Progress]) -> None:
        self.lake, self.watch, self.progress = lake, watch, progress
        self.settled: dict[str, int] = {}
        """The newest settled batch of each application."""
        self.under_way: dict[str, int] = {}
        """The batch after it, of applications of which the state has a part of one."""
        self.versions: dict[str, int] = {}
        self.documents: dict[str, bytes] = {}

    def read(self) -> None:
        """Read the ledger, then everything that is written before it."""
        batches = load(at(layout.ledger_table(self.lake, "batches")), files=False)
        self.settled = dict(batches.marks) if batches is not None else {}
        for one in self.progress.values():
            one.read(_parking(self.lake, one), self.lake)
        self._check_replays()
        self.documents |= _lake_documents(self.lake)
        self.watch.noted[ledger_folder("batches")] = batches
        if not any(living_owner(one.store) for one in self.progress.values()):
            self._make_agree()
        if (batches := self.watch.noted[ledger_folder("batches")]) is not None:
            self.versions[ledger_folder("batches")] = batches.version
        self._cut_ledger()
        self._cut_tables()

    def _make_agree(self) -> None:
        """Take a lake without writers back to the last batch that all of its tables have.

        A file-by-file copy of a lake that was made during a run has tables of different times. The
        records that are taken back are read from the source again.
        """
        ledger = Ledger(self.lake)
        while True:
            before = dict(self.settled)
            self._make_each_agree(ledger)
            # taking the ledger back for one pipeline also removes batches of the others
            batches = self.watch.noted[ledger_folder("batches")]
            marks = {} if batches is None else batches.marks
            self.settled = {app: min(n, marks.get(app, -1)) for app, n in self.settled.items()}
            if self.settled == before:
                return

    def _make_each_agree(self, ledger: Ledger) -> None:
        for one in self.progress.values():
            app = one.app("stream")
            settled = self.settled.get(app, -1)
            batch = self._last_in_all(ledger, one, settled)
            known = one.manifests["stream"].keys() | {-1}
            while batch not in known and batch + 1 not in known:
                batch -= 1
            if batch < settled and batch < 0:
                raise MovedError(f"no batch of pipeline {one.name} is in all of its tables")
            self.settled[app] = batch
            for name in layout.LEDGER_TABLES:
                self.watch.take_back(ledger_folder(name), {app: batch})
            newest = self._newest(app)
            if newest <= batch and batch in known:
                continue
            if newest == batch + 1 and batch + 1 in known and self._can_be_finished(one, batch + 1):
                continue
            limits = {app: batch if batch in known else batch + 1}
            for folder in self.watch.noted:
                self.watch.take_back(folder, limits)
            one.parked = [
                waiting
                for waiting in one.parked
                if waiting.mark.batch <= limits.get(waiting.mark.app_id, waiting.mark.batch)
            ]

    def _can_be_finished(self, one: _Progress, batch: int) -> bool:
        """Return whether the staged files of a decided batch exist for tables that lack it."""
        app = one.app("stream")
        for entry in one.decided("stream", batch)[0].tables:
            folder = layout.inside(self.lake, entry.table.path)
            noted, store = self.watch.noted.get(folder), at(layout.join(self.lake, folder))
            if noted is not None and noted.marks.get(app, -1) >= batch:
                continue
            if any(store.size(file.path) != file.size for file in entry.files):
                return False
        return True

    def _newest(self, app: str) -> int:
        noted = (snapshot for snapshot in self.watch.noted.values() if snapshot is not None)
        return max((snapshot.marks.get(app, -1) for snapshot in noted), default=-1)

    def _last_in_all(self, ledger: Ledger, one: _Progress, settled: int) -> int:
        """Return the newest batch that all tables of a pipeline have, according to the ledger."""
        for commit in ledger.last_commits(one.name):
            folder = layout.inside(self.lake, commit.path)
            noted = self.watch.noted.get(folder)
            if commit.app_id != one.app("stream") or noted is None or commit.batch is None:
                continue
            marked = commit.role not in DERIVED
            accepted = -1 if commit.accepted is None else commit.accepted
            mark = max(noted.marks.get(commit.app_id, -1), accepted)
            if mark >= commit.batch if marked else noted.version >= (commit.version or 0):
                continue
            lacking = [
                row["batch"]
                for row in ledger.table_batches(commit).to_pylist()
                if row["version"] is not None
                and row["outcome"] not in ("parked", "accepted")
                and (row["batch"] > mark if marked else row["version"] > noted.version)
            ]
            settled = min([settled, *(batch - 1 for batch in lacking)])
        return settled

    def _check_replays(self) -> None:
        """Raise MovedError if a replay started and ended meanwhile: its selection is gone."""
        for one in self.progress.values():
            for lane, ended in one.ended.items():
                for number in range(ended + 1, self.settled.get(one.app(lane), -1) + 1):
                    if (lane, number) not in one.selections:
                        raise MovedError(f"{lane} {number} of pipeline {one.name} ended")

    def _cut_ledger(self) -> None:
        """Choose the versions of the ledger's other tables, which are written earlier."""
        folders = [ledger_folder(name) for name in ("tables", "schemas")]
        self.watch.follow(folders)
        for folder in folders:
            version = self.watch.version(folder, self.settled)
            if version >= 0:
                self.versions[folder] = version

    def _cut_tables(self) -> None:
        limits = dict(self.settled)
        for name in ("tables", "schemas"):
            marks = self.watch.marks(
                ledger_folder(name), self.versions.get(ledger_folder(name), -1)
            )
            for app, batch in marks.items():
                # rows of a batch whose own row is still missing: its tables have the batch
                limits[app] = max(batch, limits.get(app, -1))
        ledger = Ledger(self.lake)
        if (version := self.versions.get(ledger_folder("tables"))) is not None:
            ledger.hold(tables=version)
        needed: dict[str, int] = {}
        for commit in ledger.last_commits():
            folder = layout.inside(self.lake, commit.path)
            versions = [v for v in (commit.version, commit.accepted_version) if v is not None]
            needed[folder] = max([needed.get(folder, -1), *versions])
        self._formats(ledger)
        self._check_parked(ledger)
        while True:
            self._choose(limits, needed)
            self._find_under_way(limits)
            if not self._read_on(needed):
                break

    def _formats(self, ledger: Ledger) -> None:
        """Refuse tables whose files cannot be copied while a pipeline writes to them."""
        self.plain: dict[str, str] = {}
        paths = {layout.inside(self.lake, path) for _, path in ledger.places()}
        for one in self.progress.values():
            if (newest := max(one.manifests["stream"], default=-1)) >= 0:
                entries = one.decided("stream", newest)[0].tables
                others = (e.table.path for e in entries if e.table.format != DELTA)
                paths |= {layout.inside(self.lake, path) for path in others}
        unversioned = [f for f in sorted(paths) if self.watch.noted.get(f) is None]
        places = [layout.join(self.lake, folder) for folder in unversioned]
        for folder, kind in zip(unversioned, each(format_at, places), strict=True):
            if kind is None:
                continue
            format_ = TABLE_FORMATS[kind]
            if format_.no_backup is not None:
                raise DistributaryError(
                    f"table {folder} is {format_.label}, which this command cannot copy",
                    code=ErrorCode.BACKUP_REFUSED,
                    where=layout.join(self.lake, folder),
                    evidence=format_.no_backup.what,
                    next_step=format_.no_backup.next_step,
                )
            if format_.no_live_backup:
                self.plain[folder] = kind
        running = [p.name for p in self.progress.values() if living_owner(p.store)]
        if self.plain and running:
            folder = min(self.plain)
            format_ = TABLE_FORMATS[self.plain[folder]]
            raise DistributaryError(
                f"table {folder} is {format_.label}, {format_.no_live_backup}",
                code=ErrorCode.BACKUP_REFUSED,
                where=self.lake,
                evidence=f"running: {', '.join(running)}",
                next_step="stop the pipelines of this lake for the time of the backup",
            )

    def _check_parked(self, ledger: Ledger) -> None:
        """Raise MovedError if a batch that the ledger lists as parked was resumed."""
        there = {
            (p.table, *batch_key(p.mark.app_id, p.mark.batch))
            for one in self.progress.values()
            for p in one.parked
        }
        for row in ledger.parked():
            if row.pipeline in self.progress and (row.table, *row.key) not in there:
                raise MovedError(f"table {row.table} was resumed")

    def _choose(self, limits: Mapping[str, int], needed: Mapping[str, int]) -> None:
        folders = {*self.watch.noted, *needed, *self._staged_folders(), *known_tables(self.lake)}
        own = {ledger_folder(name) for name in layout.LEDGER_TABLES}
        tables = sorted(folders - own - self.plain.keys())
        self.watch.follow(tables)
        for folder in tables:
            version = self.watch.version(folder, limits, needed.get(folder, -1))
            if version > self.watch.newest(folder):
                raise MovedError(
                    f"table {folder} ends with version {self.watch.newest(folder)}, and the "
                    f"ledger knows version {version}"
                )
            if version >= 0:
                self.versions[folder] = version

    def _staged_folders(self) -> Iterator[str]:
        for _, _, manifest in self._manifests_under_way():
            for entry in manifest.tables:
                yield layout.inside(self.lake, entry.table.path)

    def _manifests_under_way(self) -> Iterator[tuple[_Progress, str, Manifest]]:
        for one in self.progress.values():
            for lane in LANES:
                if (batch := self.under_way.get(one.app(lane))) is not None:
                    yield one, lane, one.decided(lane, batch)[0]

    def _find_under_way(self, limits: Mapping[str, int]) -> None:
        """Find the batches of which the state has only a part."""
        newest: dict[str, int] = dict(limits)
        for folder, version in self.versions.items():
            for app, batch in self.watch.marks(folder, version).items():
                newest[app] = max(batch, newest.get(app, -1))
        for one in self.progress.values():
            for lane in LANES:
                app = one.app(lane)
                settled = self.settled.get(app, -1)
                waiting = [p.mark.batch for p in one.parked if p.mark.app_id == app]
                newest_batch = max([newest.get(app, -1), *(b for b in waiting if b == settled + 1)])
                decided = one.manifests[lane].keys()
                if newest_batch == settled and settled + 1 in decided:
                    # no pipeline runs: plain tables may have a part of the last decided batch;
                    # without a manifest of the batch before, only this manifest says where that
                    # batch ended
                    if self.plain or settled not in decided | {-1}:
                        newest_batch = settled + 1
                if newest_batch > settled + 1:
                    raise MovedError(
                        f"a table has batch {newest_batch} of pipeline {one.name}, and the ledger "
                        f"ends with batch {settled}"
                    )
                if newest_batch > settled:
                    self.under_way[app] = newest_batch

    def _read_on(self, needed: dict[str, int]) -> bool:
        """Return whether a pipeline that reads a table of this lake needs a later version of it."""
        ids = {
            str(noted.metadata.get("id")): folder
            for folder, noted in self.watch.noted.items()
            if noted is not None
        }
        more = False
        for one in self.progress.values():
            if one.life is None:
                continue
            app = one.app("stream")
            batch = self.under_way.get(app, self.settled.get(app, -1))
            state = one.decided("stream", batch)[0].source_state if batch >= 0 else {}
            folder = ids.get(str(state.get("table") or ""))
            version = state.get("version", state.get("snapshot"))
            if folder is None or not isinstance(version, int):
                continue
            # a position before the first file of a version does not need that version
            version -= 0 if state.get("index") or "snapshot" in state else 1
            if version > self.versions.get(folder, -1):
                needed[folder] = version
                more = True
        return more

    def cut(self) -> Cut:
        """Assemble the state."""
        staged: dict[str, list[FileSize]] = {}
        for one, lane, manifest in self._manifests_under_way():
            waiting = {p.table for p in one.parked if p.mark.batch == manifest.batch}
            for entry in manifest.tables:
                folder = layout.inside(self.lake, entry.table.path)
                if entry.table.name not in waiting and self._lacks(folder, entry, one.app(lane)):
                    files = [FileSize(file.path, file.size) for file in entry.files]
                    staged.setdefault(folder, []).extend(files)
        tables = [
            BackedUpTable(folder, version, files=tuple(staged.pop(folder, ())))
            for folder, version in sorted(self.versions.items())
        ]
        for folder in sorted(self.plain):
            staged.pop(folder, None)
            store = at(layout.join(self.lake, folder))
            stay_inside(self.lake, store.address)
            there = [f for f in store.files(recursive=True) if not f.name.endswith("/lock")]
            listed = tuple(FileSize(file.name, file.size) for file in there)
            tables.append(BackedUpTable(folder, -1, self.plain[folder], listed))
        tables += [
            BackedUpTable(folder, -1, files=tuple(f)) for folder, f in sorted(staged.items())
        ]
        pipelines = tuple(self._pipeline(one) for one in self.progress.values())
        return Cut(
            lake=self.lake,
            taken_at=datetime.now(UTC).isoformat(),
            pipelines=pipelines,
            tables=tuple(tables),
            parked=tuple(self._parked()),
            documents=self.documents,
        )

    def _lacks(self, folder: str, entry: TableEntry, app: str) -> bool:
        if entry.table.role in DERIVED:
            return False
        marks = self.watch.marks(folder, self.versions.get(folder, -1))
        return marks.get(app, -1) < self.under_way[app]

    def _pipeline(self, one: _Progress) -> PipelineState:
        """Add the documents of a checkpoint as of the state."""
        home = layout.folder_name(one.name)
        for name, data in one.documents.items():
            self.documents[f"checkpoint/{home}/{name}"] = data
        settled = {lane: self.settled.get(one.app(lane), -1) for lane in LANES}
        under_way: dict[str, int] = {}
        for lane, folder in _FOLDERS.items():
            batches = {settled[lane]} - {-1}
            if (decided := self.under_way.get(one.app(lane))) is not None:
                under_way[lane] = decided
                # it says where the batch before has ended
                batches = (batches & one.manifests[lane].keys()) | {decided}
            if lane in ASIDE:
                mine = {number for line, number in one.selections if line == lane}
                begun = {n for n in mine if n <= settled[lane] + 1}
                batches |= begun & one.manifests[lane].keys() & set(range(settled[lane] + 1))
                for number in begun:
                    name, data = one.selections[lane, number]
                    self.documents[f"checkpoint/{home}/{name}"] = data
            for batch in sorted(batches):
                name, data = one.manifest(lane, batch)
                self.documents[f"checkpoint/{home}/{name}"] = data
                # the lake's copy of the newest manifest, in the format of `ManifestCopy`
                copy = f"lake/{layout.inside('', layout.pipeline('', one.name))}"
                self.documents[f"{copy}/decided-{lane}.json"] = one.decided(lane, batch)[1]
            if settled[lane] >= 0:
                mark = f"{folder}/{settled[lane]:020d}.settled"
                self.documents[f"checkpoint/{home}/{mark}"] = b""
        return PipelineState(one.name, one.life or "", one.store.address, settled, under_way)

    def _parked(self) -> Iterator[ParkedState]:
        for one in self.progress.values():
            own = {one.app(lane): self.settled.get(one.app(lane), -1) for lane in LANES}
            for batch in one.parked:
                if batch.mark.batch > own.get(batch.mark.app_id, batch.mark.batch) + 1:
                    continue
                place = "/".join(batch.folder.rsplit("/", 2)[1:])
                home = f"parked/{layout.folder_name(one.name)}/{place}"
                self.documents[f"{home}/{ENTRY}"] = _text(at(batch.folder), ENTRY)
                files = tuple(FileSize(file.path, file.size) for file in batch.entry.files)
                yield ParkedState(one.name, place, batch.folder, files)


def parking_of(lake: str, name: str, checkpoint: str) -> str:
    """Return the folder of a pipeline's parked batches, as `Lake.parking_of` computes it."""
    return f"{checkpoint}/parked" if is_remote(lake) else layout.parked(lake, name)


def _parking(lake: str, one: _Progress) -> str:
    return parking_of(lake, one.name, one.store.address)


def _lake_documents(lake: str) -> dict[str, bytes]:
    """Read the documents that the lake holds beside its tables."""
    home = at(layout.join(lake, layout.HOME))
    names = [
        file.name for folder in ("names", "grants") for file in home.files(folder, recursive=True)
    ]
    for pipeline in home.folders("pipelines"):
        names += [file.name for file in home.files(f"pipelines/{pipeline}/shards")]
        if home.look(f"pipelines/{pipeline}/pipeline.json") is not None:
            names.append(f"pipelines/{pipeline}/pipeline.json")
    texts = each(lambda name: _text(home, name), names)
    return {f"lake/{layout.HOME}/{name}": text for name, text in zip(names, texts, strict=True)}


def inside_lake(lake: str, place: str) -> str:
    """Return the path of a checkpoint below its lake; empty if it is elsewhere."""
    stem = layout.join(lake, "")
    if place.startswith(stem):
        return place[len(stem) :]
    return "" if not same_place(place, lake) else "."
