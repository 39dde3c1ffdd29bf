"""The files of a table that change, written again: without the rows that left, with new ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.merge.commit import write_rows
from distributary.merge.decide import Decision
from distributary.merge.plan import Plan
from distributary.merge.sequence import Flags
from distributary.merge.shape import Shape
from distributary.merge.snapshot import LiveFile
from distributary.merge.target import Part, Target, at_once
from distributary.model.manifest import StagedFile

SMALL_FILE = 8 * 2**20
"""Bytes: files up to this size are put together when there are too many."""
MOST_SMALL_FILES = 4
LARGEST_OUTPUT = 128 * 2**20
"""Bytes in memory: more rows go to another file."""


def rewrite(
    target: Target, made: Plan, shape: Shape, *, folder: str
) -> tuple[list[LiveFile], list[StagedFile]]:
    """Write the rows of changed files and the winners; returns files to take out and to put in."""
    changed = [part for part in made.parts if shape.rewritten or made.changed(part)]
    if made.winners.num_rows or changed:
        changed += _too_small([part for part in made.parts if part not in changed])
    large = [part for part in changed if part.file.size > SMALL_FILE]
    small = [part for part in changed if part.file.size <= SMALL_FILE]

    def again(part: Part) -> list[StagedFile]:
        return written([_kept(target, part, made)], folder=folder)

    added = [file for files in at_once(again, large) for file in files]
    rest = (_kept(target, part, made) for part in small)
    added += written(chain(rest, [made.winners]), folder=folder)
    return [part.file for part in changed], added


def written(tables: Iterable[pa.Table], *, folder: str, prefix: str = "merged") -> list[StagedFile]:
    """Rows as few files, none of which takes more memory than it may."""
    files: list[StagedFile] = []
    waiting: list[pa.Table] = []
    for table in tables:
        if not table.num_rows:
            continue
        while table.nbytes > 2 * LARGEST_OUTPUT and table.num_rows > 1:
            rows = max(1, table.num_rows * LARGEST_OUTPUT // table.nbytes)
            files.append(write_rows(table.slice(0, rows), folder, prefix=prefix))
            table = table.slice(rows)
        waiting.append(table)
        if sum(each.nbytes for each in waiting) >= LARGEST_OUTPUT:
            files.append(write_rows(pa.concat_tables(waiting), folder, prefix=prefix))
            waiting = []
    if waiting:
        files.append(write_rows(pa.concat_tables(waiting), folder, prefix=prefix))
    return files


def _too_small(parts: Sequence[Part]) -> list[Part]:
    small = [part for part in parts if part.file.size <= SMALL_FILE]
    return small if len(small) >= MOST_SMALL_FILES else []


def _kept(target: Target, part: Part, made: Plan) -> pa.Table:
    return staying(target.rows(part.file), part, made.decision, drop=target.forgotten(part.file))


def staying(
    rows: pa.Table, part: Part, decision: Decision, *, drop: Flags | None = None
) -> pa.Table:
    """The rows of a file that stay, those marked that are deleted from now on."""
    keep = np.ones(rows.num_rows, np.bool_) if drop is None else ~drop
    keep[part.places[decision.gone[part.known]]] = False
    marked = part.places[decision.marked[part.known]]
    if len(marked):
        flags = np.zeros(rows.num_rows, np.bool_)
        flags[marked] = True
        at = rows.schema.get_field_index("_deleted")
        deleted = pc.or_(rows.column(at).fill_null(False), pa.array(flags))
        rows = rows.set_column(at, rows.schema.field(at), deleted)
    return rows if keep.all() else rows.filter(pa.array(keep))
