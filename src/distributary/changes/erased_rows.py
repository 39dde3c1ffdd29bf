"""Erased rows of tables that are merged from a log: all events of a key, and the rows made of them.

A row is the result of all events with its key. If only some of them were erased, an older version
of the row would become the current one. So all events of the key are erased, with its row, its
versions and its tombstones. Rows with other keys do not change, because they depend on no event of
this key. This does not hold for a log in which a row got another key, or in which the columns of
the key have changed: such a log is refused.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.events.log_events import (
    OLD_KEY_MEMBER,
    Definition,
    definitions_of,
    fractional,
    key_texts,
    shortened,
)
from distributary.changes.tombstones import ROW, definition_text
from distributary.decode.base import truths
from distributary.delta.column_merge import columns_of
from distributary.delta.log import DataFile, Snapshot
from distributary.delta.removal.row_removal import RowSelection, rows_in
from distributary.model.change import CHANGE_COLUMNS

_CHANGE = {column.name: column.type for column in CHANGE_COLUMNS}
_ABOUT_KEYS = ("_key", "_envelope")


@dataclass(frozen=True, slots=True)
class LogKeys:
    """The key of a log's rows, or the reason why rows cannot be erased by key."""

    definition: Definition = ()
    refused: str = ""

    @classmethod
    def of(cls, log: Snapshot) -> LogKeys:
        """Read the definition of the key from the events of a log."""
        schema = pa.schema([pa.field(name, _CHANGE[name]) for name in _ABOUT_KEYS])
        names = [column.name for column in columns_of(log.fields)]
        found: set[Definition] = set()
        for file in log.files.values():
            for rows in log.pieces(file, schema):
                definitions, owner = definitions_of(rows.column("_key"), names)
                found.update(definitions[number] for number in np.unique(owner) if number >= 0)
                if truths(pc.match_substring(rows.column("_envelope"), OLD_KEY_MEMBER)).any():
                    return cls(refused="rows of its log got another key: both have the record")
        if len(found) > 1:
            return cls(refused="its rows were identified by other columns before")
        if not found:
            return cls(refused="its events name no key")
        return cls(found.pop())

    def texts(self, state: Snapshot, rows: RowSelection) -> frozenset[str]:
        """Return the keys of the selected rows of a table."""
        if not rows.columns:
            return frozenset()
        chosen = rows_in(state, rows, self.definition)
        return frozenset(key_texts(chosen, self.definition).to_pylist())


@dataclass(frozen=True, slots=True)
class RowsOfKeys:
    """The rows of a table with certain keys; a selection of rows to remove."""

    definition: Definition
    keys: frozenset[str]

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns of the key; none if there is no key to look for."""
        return self.definition if self.keys else ()

    def by_statistics(self, state: Snapshot, file: DataFile) -> bool | None:
        """Return False without keys: no row is erased. Otherwise None: the file must be read."""
        return None if self.keys else False

    def gone(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return a mask of the rows with one of the keys."""
        return _among(key_texts(rows, self.definition), self.keys)


@dataclass(frozen=True, slots=True)
class TombstonesOfKeys:
    """The tombstones of certain keys; `schema` has the columns of the merged table."""

    definition: Definition
    keys: frozenset[str]
    schema: pa.Schema

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns that identify tombstones of the keys; empty without keys."""
        return ("kind", "definition", "key") if self.keys else ()

    def by_statistics(self, state: Snapshot, file: DataFile) -> bool | None:
        """Return False without keys: no row is erased. Otherwise None: the file must be read."""
        return None if self.keys else False

    def gone(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return a mask of the tombstones of the keys."""
        mine = pc.equal(rows.column("definition"), definition_text(self.definition))
        texts = shortened(rows.column("key").combine_chunks(), self._fractional())
        here = pc.and_(pc.equal(rows.column("kind"), ROW), pc.and_(mine, _among(texts, self.keys)))
        return pc.fill_null(here, False)

    def _fractional(self) -> list[str]:
        return fractional(self.schema, self.definition)


@dataclass(frozen=True, slots=True)
class EitherRows:
    """The rows that any of several selections removes."""

    selections: tuple[RowSelection, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns that identify tombstones of the keys; empty without keys."""
        return tuple(dict.fromkeys(name for one in self.selections for name in one.columns))

    def by_statistics(self, state: Snapshot, file: DataFile) -> bool | None:
        """Return whether all rows of a file are removed, or none; None if its rows must be read."""
        answers = [one.by_statistics(state, file) for one in self.selections]
        if True in answers:
            return True
        return None if None in answers else False

    def gone(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return a mask of the rows to remove."""
        found = pa.chunked_array([pa.array(np.zeros(rows.num_rows, np.bool_))])
        for one in self.selections:
            if one.columns:
                found = pc.or_(found, one.gone(rows))
        return found


def _among(texts: pa.Array | pa.ChunkedArray, keys: Collection[str]) -> pa.ChunkedArray:
    return pa.chunked_array([pc.is_in(_whole(texts), pa.array(sorted(keys), pa.string()))])


def _whole(texts: pa.Array | pa.ChunkedArray) -> pa.Array:
    return texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
