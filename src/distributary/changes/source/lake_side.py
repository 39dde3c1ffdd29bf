"""The lake's side of a comparison: the rows of a merged table, and the events of its log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.apply import open_target
from distributary.changes.checksum import Words, hash_rows
from distributary.changes.events.log_events import (
    PROPERTY,
    ChangeEvents,
    Definition,
    by_time,
    combined,
    from_text,
)
from distributary.changes.merge_order import MergeOrder
from distributary.changes.rebuild import replay
from distributary.changes.source.base import Moment, Position
from distributary.decode.base import truths
from distributary.delta.log import Snapshot, snapshot_of
from distributary.errors import ConfigError, ErrorCode, SourceError
from distributary.model.change import CHANGE_NAMES, SEQ, SHARD
from distributary.model.incarnation import INCARNATIONS, Incarnations, below, positions

Flags = npt.NDArray[np.bool_]

_PLACES = pa.schema(
    [
        pa.field("_op", pa.string()),
        pa.field("_seq", SEQ),
        pa.field("_source_ts", pa.timestamp("us", "UTC")),
    ]
)
_ARRIVAL = pa.schema(
    [
        pa.field("_topic", pa.string()),
        pa.field("_partition", pa.int32()),
        pa.field("_offset", pa.int64()),
    ]
)
_CLOCK_US = 60_000_000
"""The largest difference between the clocks of two servers."""


@dataclass(frozen=True, slots=True)
class Later:
    """The events of a log at or after the position of a snapshot."""

    keys: Words
    """Hashes of the keys of their rows, sorted."""
    unclear: Words
    """The hashes of the keys of events that the snapshot may or may not have."""
    passed: bool
    """Whether the log has events that the snapshot cannot have."""
    newest: Position | None
    """The highest position in the log."""


class MergedTable:
    """One version of a merged table, with its log as it was then or later."""

    def __init__(self, log_path: str, order: MergeOrder) -> None:
        self.order = replace(order, evolution="none", arrival="unknown")
        self._log_path = log_path
        self.shard: str | None = None
        """The database whose rows are compared, where several share the table."""
        self.refresh()
        self.key: Definition = self._key()

    def refresh(self) -> None:
        """Open the newest versions: first the table, so that the log has all of its events."""
        before, self._columns = open_target(self.order)
        self.table: Snapshot | None = before
        log = snapshot_of(self._log_path)
        if log is None:
            raise ConfigError(
                f"table {self.order.table} has no log",
                code=ErrorCode.NOT_FOUND,
                where=self._log_path,
                next_step="set cdc.log to true: a comparison needs the changes that are made "
                "while it runs",
            )
        log.refuse_unreadable(f"{self.order.table}_log")
        self._log = log
        text = before.property(INCARNATIONS) if before else None
        self._incarnations = Incarnations.from_text(text)

    @property
    def incarnation(self) -> int:
        """Return the number of the newest server that has taken over."""
        return max((start.number for start in self._incarnations.starts), default=0)

    @property
    def incarnations(self) -> Incarnations:
        """Return the servers that have followed each other."""
        return self._incarnations

    @property
    def columns(self) -> pa.Schema:
        """Return the columns of the source's table, as the lake has them."""
        own = [field for field in self._columns.schema if field.name not in CHANGE_NAMES]
        return pa.schema(own)

    @property
    def count(self) -> int | None:
        """Return the number of rows in the files, if it is known."""
        return 0 if self.table is None else self.table.count

    def _key(self) -> Definition:
        spans = from_text(self.table.property(PROPERTY)) if self.table is not None else ()
        if not spans and self.table is not None:
            raise ConfigError(
                f"table {self.order.table} has no key",
                where=self.order.path,
                evidence="no event of it names a key",
                next_step="give the table of the source a primary key",
            )
        return spans[-1].key if spans else ()

    def take_key(self, names: Sequence[str]) -> None:
        """Use the source's key if the lake has no row yet whose event states the key."""
        if not self.key:
            self.key = tuple(sorted(names))

    def rows(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """Read the rows that are not deleted, piece by piece."""
        if self.table is None:
            return
        soft = "_deleted" in self._columns.names
        more = [pa.field("_deleted", pa.bool_())] if soft else []
        if self.shard is not None and SHARD not in schema.names:
            more.append(self.columns.field(SHARD))
        wanted = pa.schema([*schema, *more])
        for file in self.table.files.values():
            for rows in self.table.pieces(file, wanted, lenient=True):
                if soft:
                    rows = rows.filter(pa.array(~truths(rows.column("_deleted"))))
                if self.shard is not None:
                    rows = rows.filter(pc.equal(rows.column(SHARD), self.shard))
                yield rows.select(schema.names)

    def later(self, moment: Moment) -> Later:
        """Find the events of the log that do not stand before a snapshot.

        Raises SourceError where the snapshot is of a server that the log does not follow.
        """
        key = pa.schema([self.columns.field(name) for name in self.key])
        arrival = _ARRIVAL if self._incarnations.starts else pa.schema([])
        found, unclear = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)]
        passed, newest = False, None
        for file in self._log.files.values():
            rows = self._log.read(file, pa.schema([*_PLACES, *arrival]), lenient=True)
            places = _Placed(self._incarnations.applied(rows), moment, self.incarnation)
            self._refuse_unplaced(places)
            newest = max(filter(None, (newest, places.newest)), default=None)
            if not places.later.any():
                continue
            self._refuse_other_server(places, rows, moment)
            passed |= bool(places.beyond.any())
            mask = pa.array(places.later)
            if pc.any(pc.equal(rows.column("_op").filter(mask), "truncate")).as_py():
                raise SourceError(
                    f"table {self.order.table} was emptied while it was compared",
                    code=ErrorCode.SOURCE_BUSY,
                    where=self._log_path,
                    next_step="compare it again",
                )
            hashes = hash_rows(self._log.read(file, key, lenient=True).filter(mask), self.key)
            found.append(hashes)
            unclear.append(hashes[~places.beyond[places.later]])
        return Later(
            np.unique(np.concatenate(found)), np.unique(np.concatenate(unclear)), passed, newest
        )

    def as_of(self, moment: Moment, keys: Words, schema: pa.Schema) -> pa.Table:
        """Compute from the log what rows with some keys were just before a snapshot."""
        sorted_keys = np.unique(keys)

        def chosen(events: ChangeEvents) -> ChangeEvents:
            rows = self._incarnations.applied(events.rows)
            early = ~_Placed(rows, moment, self.incarnation).later
            hashes = hash_rows(rows, self.key)
            wanted = events.truncates | is_among(hashes, sorted_keys)
            return ChangeEvents(events.rows.filter(pa.array(early & wanted)))

        replayed = replay(
            self._log_path, self.order, self._columns, before=self.table, chosen=chosen
        )
        soft = "_deleted" in self._columns.names
        wanted = pa.schema([*schema, *([pa.field("_deleted", pa.bool_())] if soft else [])])
        rows = pa.concat_tables([wanted.empty_table(), *replayed.gather(wanted)])
        if soft:
            rows = rows.filter(pa.array(~truths(rows.column("_deleted"))))
        return rows.select(schema.names)

    def _refuse_unplaced(self, places: _Placed) -> None:
        if places.unplaced:
            raise ConfigError(
                f"the changes of table {self.order.table} have no position in a log",
                where=self._log_path,
                evidence="they are ordered by time or by arrival",
                next_step="a comparison needs events with positions, as Debezium's connectors and "
                "Datastream write them for MySQL, MariaDB and PostgreSQL",
            )

    def _refuse_other_server(self, places: _Placed, rows: pa.Table, moment: Moment) -> None:
        times = rows.column("_source_ts").cast(pa.int64()).fill_null(2**62).to_numpy()
        old = places.beyond & (times < moment.at_us - _CLOCK_US)
        if old.any():
            raise SourceError(
                f"table {self.order.table} has changes that are not in the log of this database",
                code=ErrorCode.SOURCE_UNCLEAR,
                where=self._log_path,
                evidence=f"the database's log is at {moment.text}; an older event of the table has "
                f"position {'/'.join(map(str, places.newest or ()))}",
                next_step="give the address of the server whose log the pipeline follows",
            )


class _Placed:
    """Rows of a log, compared with a snapshot."""

    def __init__(self, rows: pa.Table, moment: Moment, incarnation: int) -> None:
        seq = combined(rows.column("_seq"))
        phase = seq.field("phase").fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        server, places = phase >> 1, positions(rows)
        placed = (places != 0).any(axis=1)
        here = placed & (server == incarnation)
        # rows of an initial snapshot have its position, so they do not prove later changes
        first = ((phase & 1) == 0) & (places == np.array(moment.low)).all(axis=1)
        self.later: Flags = (server > incarnation) | (here & ~first & ~below(places, moment.low))
        """The events at or after the position of the snapshot."""
        self.beyond: Flags = self.later & ~(here & below(places, moment.high))
        """The events that the snapshot cannot have."""
        truncates = truths(pc.equal(rows.column("_op"), "truncate"))
        self.unplaced = bool((((phase & 1) == 1) & ~placed & ~truncates).any())
        self.unplaced |= bool(by_time(seq).any())
        """Whether times, or nothing, give their order."""
        own = places[here]
        self.newest: Position | None = None
        if len(own):
            a, b, c = own[np.lexsort(own.T[::-1])[-1]].tolist()
            self.newest = (a, b, c)


def is_among(values: Words, sorted_values: Words) -> Flags:
    """Mark the values that a sorted array has."""
    if not len(sorted_values):
        return np.zeros(len(values), np.bool_)
    at = np.searchsorted(sorted_values, values)
    at[at == len(sorted_values)] = 0
    found: Flags = sorted_values[at] == values
    return found
