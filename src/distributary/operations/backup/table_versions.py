"""The versions of a lake's tables, as first noted, and the commits that came after them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from distributary.delta.log import Snapshot, load
from distributary.delta.log_reading import parse_commit, read_commit
from distributary.engine.planning.table_names import NameEntry
from distributary.model import layout
from distributary.observe.ledger.ledger import Ledger
from distributary.operations.backup.state import MovedError, each, read_document
from distributary.store.base import at, stay_inside


class TableVersions:
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
    entries = each(lambda file: NameEntry.from_json(read_document(names, file.name)), names.files())
    folders |= {table for entry in entries for table in entry.tables}
    for kind in ("changes", "tombstones"):
        folders |= {f"{layout.HOME}/{kind}/{name}" for name in home.folders(kind)}
    return {folder for folder in folders if folder}
