"""The files of a history: closed versions are kept apart from those that can still get an end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from distributary.merge.keys import Definition, KeyIndex
from distributary.merge.rewrite import MOST_SMALL_FILES, SMALL_FILE, written
from distributary.merge.sequence import Flags, Ints
from distributary.merge.snapshot import LiveFile, Snapshot
from distributary.model.manifest import StagedFile

_CLOSED = "closed"
"""How the names of files begin in which every version has its end."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Versions that are in the table already, and where."""

    rows: pa.Table
    places: Sequence[tuple[LiveFile, Ints]]


def is_closed(file: LiveFile) -> bool:
    """Whether nothing in the file can change unless something comes late."""
    return file.path.startswith(f"{_CLOSED}-")


def find_versions(
    before: Snapshot | None,
    schema: pa.Schema,
    *,
    of: pa.Table | None,
    key: Definition,
    closed: bool,
) -> Stored:
    """The versions of the rows that are in a table, or all; those in closed files if asked to."""
    index = None if of is None else KeyIndex(of, key)
    found: list[pa.Table] = []
    places: list[tuple[LiveFile, Ints]] = []
    for file in before.files if before else ():
        if before is None or (is_closed(file) and not closed):
            continue
        at = None
        if index is not None:
            names = pa.schema([schema.field(name) for name in key])
            at = np.flatnonzero(index.find(before.read(file, names)) >= 0)
            if not len(at):
                continue
        rows = before.read(file, schema)
        at = np.arange(rows.num_rows) if at is None else at
        found.append(rows.take(at))
        places.append((file, at))
    return Stored(pa.concat_tables([schema.empty_table(), *found]), places)


def write_versions(
    before: Snapshot | None, stored: Stored, rows: pa.Table, *, open_: Flags, folder: str
) -> tuple[list[LiveFile], list[StagedFile]]:
    """Write versions in place of those that were stored; returns files to take out and put in."""
    touched = list(stored.places)
    names = {file.path for file, _ in touched}
    rest = [file for file in (before.files if before else ()) if file.path not in names]
    for closed in (False, True):
        small = [f for f in rest if is_closed(f) is closed and f.size <= SMALL_FILE]
        if len(small) >= MOST_SMALL_FILES:
            touched += [(file, np.zeros(0, np.int64)) for file in small]

    def kept(*, closed: bool) -> Iterator[pa.Table]:
        for file, places in touched:
            if before is not None and is_closed(file) is closed:
                keep = np.ones((left := before.read(file, rows.schema)).num_rows, np.bool_)
                keep[places] = False
                yield left.filter(pa.array(keep))
        yield rows.filter(pa.array(open_ ^ closed))

    added = written(kept(closed=False), folder=folder)
    added += written(kept(closed=True), folder=folder, prefix=_CLOSED)
    return [file for file, _ in touched], added
