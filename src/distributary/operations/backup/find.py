"""A consistent state of a lake, found while its pipelines go on.

A batch is written in this order: its manifest, the commits of its tables, its rows in the ledger,
and what may only follow then (events of a hidden log are removed, dead letters are marked). The
ledger's table of batches says atomically, for all pipelines, which batches are settled. So:

1. Note the version of every table (`TableVersions`), the ledger's own tables first.
2. Read the ledger's table of batches: its marks are the settled batches.
3. Read the checkpoints, what is parked, and the small documents of the lake.
4. Extend each table from the noted version up to the newest commit that a settled batch needs.

Every commit in such a state was made before step 2. A table may also have a part of the one batch
that was under way then; its manifest and its staged files belong to the state, and the next run
finishes it, as after a crash. Nothing is locked. If a document changed between the steps, all of
them are repeated (`MovedError`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime

from distributary.delta.log import load
from distributary.delta.log_reading import BrokenLogError
from distributary.engine.progress.claim import living_owner
from distributary.errors import CheckpointError, ConfigError, DistributaryError, ErrorCode
from distributary.model import layout
from distributary.model.manifest import ASIDE, LANES, Manifest, TableEntry
from distributary.model.table_format import DELTA, TABLE_FORMATS
from distributary.observe.cards import (
    Registration,
    registrations,
    trusted_checkpoint,
    unfinished_removal,
)
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.ledger.recording import batch_key
from distributary.observe.status.health import DERIVED
from distributary.operations.backup.checkpoint_documents import FOLDERS, CheckpointDocuments
from distributary.operations.backup.state import (
    BackedUpTable,
    FileSize,
    LakeState,
    MovedError,
    ParkedState,
    PipelineState,
    each,
    read_document,
)
from distributary.operations.backup.table_versions import TableVersions, known_tables, ledger_folder
from distributary.publish.formats.table_format_entry import format_at
from distributary.publish.parking import ENTRY
from distributary.store.base import at, is_remote, reaching, stay_inside


def find_once(lake: str, checkpoints: Mapping[str, str]) -> LakeState:
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
        progress = {
            name: CheckpointDocuments.begin(name, place, marks) for name, place in addresses.items()
        }
        watch = TableVersions(lake)
        watch.note()
        search = _Search(lake, watch, progress)
        search.read()
        _refuse_removals(lake, cards)
        for one in progress.values():
            one.check_life()
        return search.state()


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
        f"the checkpoint of pipeline {card.name} is outside the lake",
        code=ErrorCode.FILE_NOT_TRUSTED,
        where=card.checkpoint,
        evidence="only its card in the lake names the checkpoint",
        next_step="name its pipeline file in the command as well",
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


class _Search:
    """The steps after the versions of the tables were noted."""

    def __init__(
        self, lake: str, watch: TableVersions, progress: Mapping[str, CheckpointDocuments]
    ) -> None:
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
            one.read(layout.parking(self.lake, one.name, one.store.address), self.lake)
        self._check_replays()
        self.documents |= _lake_documents(self.lake)
        self.watch.noted[ledger_folder("batches")] = batches
        if not any(living_owner(one.store) for one in self.progress.values()):
            self._make_agree()
        if (batches := self.watch.noted[ledger_folder("batches")]) is not None:
            self.versions[ledger_folder("batches")] = batches.version
        self._choose_ledger()
        self._choose_tables()

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

    def _can_be_finished(self, one: CheckpointDocuments, batch: int) -> bool:
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

    def _last_in_all(self, ledger: Ledger, one: CheckpointDocuments, settled: int) -> int:
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

    def _choose_ledger(self) -> None:
        """Choose the versions of the ledger's other tables, which are written earlier."""
        folders = [ledger_folder(name) for name in ("tables", "schemas")]
        self.watch.follow(folders)
        for folder in folders:
            version = self.watch.version(folder, self.settled)
            if version >= 0:
                self.versions[folder] = version

    def _choose_tables(self) -> None:
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

    def _manifests_under_way(self) -> Iterator[tuple[CheckpointDocuments, str, Manifest]]:
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

    def state(self) -> LakeState:
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
        return LakeState(
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

    def _pipeline(self, one: CheckpointDocuments) -> PipelineState:
        """Add the documents of a checkpoint as of the state."""
        home = layout.folder_name(one.name)
        for name, data in one.documents.items():
            self.documents[f"checkpoint/{home}/{name}"] = data
        settled = {lane: self.settled.get(one.app(lane), -1) for lane in LANES}
        under_way: dict[str, int] = {}
        for lane, folder in FOLDERS.items():
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
                self.documents[f"{home}/{ENTRY}"] = read_document(at(batch.folder), ENTRY)
                files = tuple(FileSize(file.path, file.size) for file in batch.entry.files)
                yield ParkedState(one.name, place, batch.folder, files)


def _lake_documents(lake: str) -> dict[str, bytes]:
    """Read the documents that the lake holds beside its tables."""
    home = at(layout.join(lake, layout.HOME))
    names = [
        file.name for folder in ("names", "grants") for file in home.files(folder, recursive=True)
    ]
    names += [file.name for file in home.files("erased")]
    for pipeline in home.folders("pipelines"):
        names += [file.name for file in home.files(f"pipelines/{pipeline}/shards")]
        if home.look(f"pipelines/{pipeline}/pipeline.json") is not None:
            names.append(f"pipelines/{pipeline}/pipeline.json")
    texts = each(lambda name: read_document(home, name), names)
    return {f"lake/{layout.HOME}/{name}": text for name, text in zip(names, texts, strict=True)}
