"""The records that were erased from a lake and must not come back: coordinates, hashed values.

    <lake>/_distributary/erased/key.json             the key of the hashes
    <lake>/_distributary/erased/<id>.json            an erasure: what goes, written before it goes
    <lake>/_distributary/erased/<id>.done            its certificate, written when all of it is gone
    <lake>/_distributary/erased/later-<batch>.json   records that came later with an erased value
    <lake>/_distributary/erased/later-<batch>.done   they have left bronze, too

A record is named by topic, partition, offset and time: a topic that was made again has other
records at the same offsets, with other times. A value is kept as HMAC-SHA256 under the lake's own
key, never as it is. All documents are sealed, and none of them changes once it is written.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.delta.column_merge import columns_of
from distributary.delta.log import DataFile, Snapshot
from distributary.delta.tables import reaching_table
from distributary.errors import CheckpointError
from distributary.evolve.types import side_base
from distributary.model import layout
from distributary.model.cache import Cache
from distributary.model.table import Column
from distributary.store.base import Store, at
from distributary.store.seal import seal, unseal

Flags = npt.NDArray[np.bool_]

FORMAT = 1
_KEY, _DOCUMENT, _DONE, _LATER = "key.json", ".json", ".done", "later-"
_DIGEST_CHARACTERS = 32
_MOST_KNOWN = 64
_NEXT = "put the file back from a copy: it keeps erased records from coming back"

ErasedRecord = tuple[str, int, int, int | None]
"""Topic, partition, offset, and the record's time in microseconds since 1970, if it is known."""


@dataclass(frozen=True, slots=True)
class ErasedValues:
    """Erased values of some columns that belong together."""

    columns: tuple[str, ...]
    """The names of the columns in lower case."""
    digests: frozenset[str]


@dataclass(frozen=True, slots=True)
class ErasedTable:
    """A table from which an erasure removes rows."""

    table: str
    role: str
    path: str
    rows: int


@dataclass(frozen=True, slots=True)
class Erasure:
    """What one erasure removes from all layers, and keeps from coming back."""

    id: str
    begun_at: str
    records: tuple[ErasedRecord, ...] = ()
    values: tuple[ErasedValues, ...] = ()
    tables: tuple[ErasedTable, ...] = ()
    """The rows that were found when it began."""
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the document."""
        return {
            "format": FORMAT,
            "id": self.id,
            "begun_at": self.begun_at,
            "records": _nested(self.records),
            "values": [
                {"columns": list(v.columns), "digests": sorted(v.digests)} for v in self.values
            ],
            "tables": [[t.table, t.role, t.path, t.rows] for t in self.tables],
            "notes": list(self.notes),
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Erasure:
        """Build an erasure from its document. Raises KeyError, TypeError or ValueError."""
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']}")
        return cls(
            id=str(document["id"]),
            begun_at=str(document["begun_at"]),
            records=tuple(_flat(document["records"])),
            values=tuple(
                ErasedValues(tuple(map(str, v["columns"])), frozenset(map(str, v["digests"])))
                for v in document["values"]
            ),
            tables=tuple(ErasedTable(*entry) for entry in document["tables"]),
            notes=tuple(map(str, document["notes"])),
        )


def _nested(records: Iterable[ErasedRecord]) -> dict[str, dict[str, list[list[int | None]]]]:
    found: dict[str, dict[str, list[list[int | None]]]] = {}
    for topic, partition, offset, time in records:
        found.setdefault(topic, {}).setdefault(str(partition), []).append([offset, time])
    return found


def _flat(nested: Mapping[str, Mapping[str, Sequence[Sequence[int | None]]]]) -> Iterator[Any]:
    for topic, partitions in nested.items():
        for partition, places in partitions.items():
            for offset, time in places:
                if type(offset) is not int or not (time is None or type(time) is int):
                    raise TypeError("an offset or a time is not a number")
                yield topic, int(partition), offset, time


# The documents.


def new_id(now: str) -> str:
    """Return an id for an erasure that begins now: ids sort by time."""
    return f"{now[:19].replace(':', '').replace('-', '')}-{secrets.token_hex(4)}".lower()


def lake_key(lake: str) -> bytes:
    """Return the key of the lake's hashes; the first caller makes it."""
    store = at(layout.erased(lake))
    if store.look(_KEY) is None:
        text = json.dumps({"format": FORMAT, "key": secrets.token_hex(32)})
        store.create(_KEY, seal(text.encode()))
    try:
        return bytes.fromhex(_read(store, _KEY)["key"])
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(store, _KEY, error) from error


def write_erasure(lake: str, erasure: Erasure) -> None:
    """Write an erasure durably; from then on its records and values do not come back."""
    text = json.dumps(erasure.as_dict(), separators=(",", ":")).encode()
    at(layout.erased(lake)).create(f"{erasure.id}{_DOCUMENT}", seal(text))


def write_later(lake: str, name: str, records: Sequence[ErasedRecord]) -> None:
    """Write down the records of a batch that have an erased value; the same batch writes once."""
    text = json.dumps({"format": FORMAT, "records": _nested(records)}, separators=(",", ":"))
    folder = layout.erased(lake)
    with reaching_table(folder):
        at(folder).write(f"{_LATER}{name}{_DOCUMENT}", seal(text.encode()))


def names_in(lake: str) -> tuple[str, ...]:
    """Return the names of all documents that keep something from coming back."""
    folder = layout.erased(lake)
    with reaching_table(folder):
        names = [info.name for info in at(folder).files()]
    return tuple(sorted(n for n in names if n.endswith(_DOCUMENT) and n != _KEY))


def is_done(lake: str, name: str) -> bool:
    """Return whether everything that a document names has left the tables."""
    folder = layout.erased(lake)
    with reaching_table(folder):
        return at(folder).look(_done(name)) is not None


def _done(name: str) -> str:
    return f"{name.removesuffix(_DOCUMENT)}{_DONE}"


def is_later(name: str) -> bool:
    """Return whether a document names records that came after an erasure."""
    return name.startswith(_LATER)


def finish(lake: str, name: str, certificate: Mapping[str, Any]) -> None:
    """Write the certificate of a document: all that it names is gone."""
    text = json.dumps(certificate, indent=1).encode()
    at(layout.erased(lake)).create(_done(name), seal(text))


def certificate_of(lake: str, name: str) -> dict[str, Any]:
    """Read the certificate of a document. Raises CheckpointError if it is damaged."""
    return _read(at(layout.erased(lake)), _done(name))


def read_erasure(lake: str, name: str) -> Erasure:
    """Read an erasure, or records that came later. Raises CheckpointError if it is damaged."""
    store = at(layout.erased(lake))
    document = _read(store, name)
    try:
        if is_later(name):
            return Erasure(name, "", tuple(_flat(document["records"])))
        return Erasure.of(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(store, name, error) from error


def _read(store: Store, name: str) -> dict[str, Any]:
    where = f"{store.address}/{name}"
    try:
        document = json.loads(unseal(store.read(name), where=where, next_step=_NEXT))
    except ValueError as error:
        raise _damaged(store, name, error) from error
    if not isinstance(document, dict):
        raise _damaged(store, name, TypeError("not an object"))
    return document


def _damaged(store: Store, name: str, error: Exception) -> CheckpointError:
    return CheckpointError(
        "a document of an erasure is damaged",
        where=f"{store.address}/{name}",
        evidence=f"{type(error).__name__}: {error}",
        next_step=_NEXT,
    )


# The rows that are erased.


def digest(key: bytes, columns: Sequence[str], texts: Sequence[str]) -> str:
    """Return the hash of values of some columns."""
    parts = [part.encode("utf-8", "surrogatepass") for part in (*columns, *texts)]
    framed = b"".join(b"%d:%s" % (len(part), part) for part in parts)
    return hmac.digest(key, framed, "sha256").hex()[:_DIGEST_CHARACTERS]


def texts_of(rows: pa.Table, names: Sequence[str]) -> pa.ChunkedArray:
    """Return the values of a column and its side columns as texts.

    At most one of them has a value in a row. Raises ArrowException if no type has texts.
    """
    found, refused = [], None
    for name in names:
        column = rows.column(name)
        try:
            found.append(column if pa.types.is_string(column.type) else column.cast(pa.string()))
        except pa.ArrowException as error:
            refused = error
    if refused is not None and not found:
        raise refused
    return found[0] if len(found) == 1 else pc.coalesce(*found)


def with_side_columns(columns: Sequence[Column]) -> dict[str, tuple[str, ...]]:
    """Return the columns of a table by their names in lower case, each before its side columns."""
    names: dict[str, tuple[str, ...]] = {c.name.lower(): (c.name,) for c in columns}
    for column in columns:
        base = side_base(column.comment).lower()
        if base in names:
            names[base] += (column.name,)
    return names


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """The topic, partition, offset and time of rows, as columns of their table."""

    topic: str = "_topic"
    partition: str = "_partition"
    offset: str = "_offset"
    time: str = "_timestamp"

    def names(self, have: Iterable[str]) -> tuple[str, ...]:
        """Return the columns of a table; none if it does not say where rows came from."""
        known = set(have)
        if not {self.topic, self.partition, self.offset} <= known:
            return ()
        return (self.topic, self.partition, self.offset, *({self.time} & known))


IN_LETTERS = RowPlaces("topic", "partition", "offset", "timestamp")
IN_TABLES = RowPlaces()


class KnownErased:
    """All that is erased from a lake, ready to be compared with rows."""

    def __init__(self, erasures: Iterable[Erasure], key: bytes = b"") -> None:
        self._key = key
        self.values: dict[tuple[str, ...], set[str]] = {}
        times: dict[tuple[str, int], dict[int, set[int | None]]] = {}
        for erasure in erasures:
            for values in erasure.values:
                self.values.setdefault(values.columns, set()).update(values.digests)
            for topic, partition, offset, time in erasure.records:
                places = times.setdefault((topic, partition), {})
                places.setdefault(offset, set()).add(time)
        self._times = times
        self._offsets = {place: np.array(sorted(found)) for place, found in times.items()}

    def __bool__(self) -> bool:
        return bool(self._times or self.values)

    def at_places(self, rows: pa.Table | pa.RecordBatch, places: RowPlaces) -> Flags:
        """Return a mask of the rows that came from erased records."""
        found = np.zeros(rows.num_rows, np.bool_)
        topics = rows.column(places.topic)
        known = set(pc.unique(topics).to_pylist()) if self._times else set()
        for (topic, partition), offsets in self._offsets.items():
            if topic not in known:
                continue
            here = pc.and_(
                pc.equal(topics, topic), pc.equal(rows.column(places.partition), partition)
            )
            here = pc.and_(here, pc.is_in(rows.column(places.offset), pa.array(offsets)))
            for row in np.flatnonzero(_numpy(here)).tolist():
                found[row] = self._same_time(rows, row, places, (topic, partition))
        return found

    def _same_time(
        self, rows: pa.Table | pa.RecordBatch, row: int, places: RowPlaces, place: tuple[str, int]
    ) -> bool:
        times = self._times[place][rows.column(places.offset)[row].as_py()]
        if None in times or places.time not in rows.schema.names:
            return True
        time = rows.column(places.time)[row]
        return not time.is_valid or time.value in times

    def with_values(self, rows: pa.Table, names: Mapping[str, Sequence[str]]) -> Flags:
        """Return a mask of the rows with erased values.

        `names` has columns with their side columns by their erased name. Columns whose values are
        no texts have no erased values.
        """
        found = np.zeros(rows.num_rows, np.bool_)
        for columns, digests in self.values.items():
            if not all(name in names for name in columns):
                continue
            try:
                texts = [texts_of(rows, names[name]) for name in columns]
            except pa.ArrowException:
                continue
            found |= self._hashed(columns, texts, digests)
        return found

    def _hashed(
        self, columns: tuple[str, ...], texts: list[pa.ChunkedArray], digests: set[str]
    ) -> Flags:
        if len(texts) == 1:
            different = pc.unique(texts[0]).to_pylist()
            hits = [t for t in different if t is not None and self._is_in(columns, (t,), digests)]
            return _numpy(pc.is_in(texts[0], pa.array(hits, texts[0].type)))
        rows = zip(*(column.to_pylist() for column in texts), strict=True)
        known: dict[tuple[str, ...], bool] = {}
        mask = []
        for row in rows:
            if row not in known:
                known[row] = None not in row and self._is_in(columns, row, digests)
            mask.append(known[row])
        return np.array(mask, np.bool_)

    def _is_in(self, columns: Sequence[str], texts: Sequence[str], digests: set[str]) -> bool:
        return digest(self._key, columns, texts) in digests

    def places_of(self) -> set[tuple[str, int]]:
        """Return the topics and partitions of erased records."""
        return set(self._times)

    def offsets_of(self, place: tuple[str, int]) -> tuple[int, int]:
        """Return the lowest and the highest erased offset of a partition."""
        offsets = self._offsets[place]
        return int(offsets[0]), int(offsets[-1])


def _numpy(mask: Any) -> Flags:
    filled: Flags = pc.fill_null(mask, False).to_numpy(zero_copy_only=False)
    return filled


@dataclass(frozen=True, slots=True)
class ErasedRows:
    """The erased rows of one table, by their records and by their values."""

    known: KnownErased = field(compare=False)
    places: RowPlaces
    place_columns: tuple[str, ...]
    value_columns: Mapping[str, tuple[str, ...]]
    """The table's columns, with their side columns, by their names in lower case."""

    @classmethod
    def of(cls, known: KnownErased, table: Snapshot, places: RowPlaces) -> ErasedRows:
        """Return the erased rows of a table."""
        columns = columns_of(table.fields)
        names = [column.name for column in columns]
        wanted = {name for group in known.values for name in group}
        there = {} if places is IN_LETTERS else with_side_columns(columns)
        own = {name: own for name, own in there.items() if name in wanted}
        whole = {n for group in known.values if own.keys() >= {*group} for n in group}
        return cls(known, places, places.names(names), {n: own[n] for n in sorted(whole)})

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns that identify erased rows."""
        values = (name for own in self.value_columns.values() for name in own)
        return tuple(dict.fromkeys([*self.place_columns, *values]))

    def by_statistics(self, state: Snapshot, file: DataFile) -> bool | None:
        """Return False if a file's bounds rule out erased rows; None if it must be read."""
        if not self.columns:
            return False
        if self.value_columns:
            return None
        low, high = file.bounds(self.places.offset)
        if not isinstance(low, int) or not isinstance(high, int):
            return None
        ranges = (self.known.offsets_of(place) for place in self.known.places_of())
        return None if any(low <= last and high >= first for first, last in ranges) else False

    def gone(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return a mask of the erased rows."""
        found = np.zeros(rows.num_rows, np.bool_)
        if self.place_columns:
            found |= self.known.at_places(rows, self.places)
        if self.value_columns:
            found |= self.known.with_values(rows, self.value_columns)
        return pa.chunked_array([pa.array(found)])


@dataclass(frozen=True, slots=True)
class ErasedPlan:
    """What tasks need to keep erased records out: the lake, and its documents when a run began."""

    lake: str = ""
    names: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.names)

    def known(self) -> KnownErased:
        """Return the erased records; a process reads the documents once."""
        return _KNOWN.get((self.lake, self.names), lambda: read_all(self.lake, self.names))


_KNOWN: Cache[KnownErased] = Cache(_MOST_KNOWN)


def erased_plan(lake: str) -> ErasedPlan:
    """Return what keeps erased records of a lake out now."""
    return ErasedPlan(lake, names_in(lake))


def read_all(lake: str, names: Sequence[str]) -> KnownErased:
    """Read documents of a lake into one. Raises CheckpointError if one is damaged."""
    with reaching_table(layout.erased(lake)):
        erasures = [read_erasure(lake, name) for name in names]
        return KnownErased(erasures, lake_key(lake) if any(e.values for e in erasures) else b"")
