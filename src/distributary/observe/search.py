"""The search for a record's rows: first the files of its batch, then, if need be, whole tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import pyarrow.fs as pa_fs

from distributary.model.table import Role
from distributary.observe import layout
from distributary.observe.delta import StorageOptions, lake_files, reaching
from distributary.observe.locate import (
    Coordinates,
    Place,
    files_holding,
    places_in_file,
    places_in_table,
)
from distributary.observe.readable import files_of
from distributary.observe.rows import ACCEPTED, PARKED, RESUMED, TableRow


class Search:
    """Looks for one record in the tables of one lake."""

    def __init__(
        self, lake: str, wanted: Coordinates, *, storage_options: StorageOptions | None = None
    ) -> None:
        self._lake = lake
        self._wanted = wanted
        self._options = storage_options

    def places(self, rows: Iterable[TableRow]) -> tuple[Place, ...]:
        """The record's rows, given what the ledger says of the batches that read it."""
        with reaching(self._lake):
            files = lake_files(self._lake, self._options)
            if files is None:
                return ()
            current = last_word(rows)
            found = self._written(files, [row for row in current if row.outcome != PARKED])
            waiting = [row for row in current if row.outcome == PARKED]
            found += self._waiting(files, waiting, certain=bool(found))
        return tuple(sorted(found, key=lambda p: (p.table, p.file or "", p.row or 0)))

    def _written(self, files: pa_fs.FileSystem, rows: Sequence[TableRow]) -> list[Place]:
        listed = [(row, self._files(row)) for row in rows]
        by_path = {
            f"{layout.inside(self._lake, row.path)}/{name}": (row, name)
            for row, names in listed
            for name in names
        }
        hits, gone = files_holding(files, by_path, self._wanted)
        # sums of old batches name no files, and compacted files are gone: such tables are
        # searched as a whole
        whole = {row.table: row for row, names in listed if not names}
        whole |= {by_path[path][0].table: by_path[path][0] for path in gone}
        by_table: dict[str, list[str]] = defaultdict(list)
        for path in sorted(hits):
            by_table[by_path[path][0].table].append(path)
        found: list[Place] = []
        for table, paths in by_table.items():
            row = by_path[paths[0]][0]
            known = self._in_table(row, {by_path[path][1] for path in paths})
            if known is None:
                whole[table] = row
            else:
                found += known or self._in_folder(files, row, paths)
        for row in whole.values():
            found += self._in_table(row, None) or ()
        return found

    def _files(self, row: TableRow) -> tuple[str, ...]:
        return files_of(layout.place(self._lake, row.path), row)

    def _in_table(self, row: TableRow, only: Iterable[str] | None) -> tuple[Place, ...] | None:
        return places_in_table(
            self._lake,
            layout.inside(self._lake, row.path),
            self._wanted,
            table=row.table,
            role=row.role,
            only=only,
            storage_options=self._options,
        )

    def _in_folder(
        self,
        files: pa_fs.FileSystem,
        row: TableRow,
        paths: Iterable[str],
        *,
        parked: bool = False,
    ) -> list[Place]:
        return [
            place
            for path in sorted(paths)
            for place in places_in_file(
                files, path, self._wanted, table=row.table, role=row.role, parked=parked
            )
        ]

    def _waiting(
        self, files: pa_fs.FileSystem, rows: Sequence[TableRow], *, certain: bool
    ) -> list[Place]:
        found: list[Place] = []
        for row in rows:
            waits = _below(files, self._lake, row)
            hits, _ = files_holding(files, waits, self._wanted)
            found += self._in_folder(files, row, hits, parked=True)
            if not waits and not certain:
                # the offsets fit, and nothing else is known of the record: it must be in there
                found.append(Place(row.table, row.role, None, None, parked=True))
        return found


def _below(files: pa_fs.FileSystem, lake: str, row: TableRow) -> list[str]:
    """The batch's files among all that wait for the table; files have names of their own."""
    folder = layout.join(layout.parked(lake, row.pipeline), row.table)
    inside = folder[len(layout.join(lake, "")) :]
    listing = files.get_file_info(pa_fs.FileSelector(inside, allow_not_found=True, recursive=True))
    endings = tuple(f"/{name}" for name in row.files)
    return [info.path for info in listing if endings and info.path.endswith(endings)]


def last_word(rows: Iterable[TableRow]) -> list[TableRow]:
    """What batches did last: no dead letters, no parked rows of what was resumed since."""
    kept = [row for row in rows if row.role != Role.DEAD_LETTERS and row.outcome != ACCEPTED]
    resumed = {(row.key, row.table) for row in kept if row.outcome == RESUMED}
    return [row for row in kept if row.outcome != PARKED or (row.key, row.table) not in resumed]
