"""What every decoder of change events has in common, whichever system wrote them.

It turns each event into one row of a log table: the columns of model/change.py, then the columns of
the source's table under their own names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from distributary.decode.base import Expansion, HasColumns, Mask, Positions, nulls
from distributary.decode.json.schema import lake_names
from distributary.model.change import CHANGE_NAMES, SEQ, ChangeSettings
from distributary.model.deadletter import Decoded

ROW_ID = "_row_id"
"""The column that stands in for a key where the source has none but numbers its rows."""
METADATA_NAMES = tuple(
    "_headers _topic _partition _offset _timestamp _schema_id _batch _raw _date".split()
)
"""Columns that the stage may put behind those of the decoder."""
_RESERVED = frozenset((*CHANGE_NAMES, *METADATA_NAMES, ROW_ID, "_old_key"))
"""The last one is a column of histories, and of a merge's own."""
_SUFFIX = "__source"


class ChangeDecoder(HasColumns, Protocol):
    """Decodes change events of one writer schema. Built once per schema and process."""

    @property
    def expansion(self) -> Expansion:
        """How large events become; what is decoded at once should be one of its slices."""

    def decode(self, payloads: pa.BinaryArray, raw: pa.Table) -> Decoded:
        """Decode events without nulls and framing. Never raises for what an event contains.

        `raw` has the source's records that they came in, one each and in the same order.
        """


def claim(source_metadata: Mapping[str, object]) -> str | None:
    """The source table's names as compact JSON, `["shop","","orders"]`; None if it has no name.

    The three are database, schema and table; empty is what the source does not have.
    """
    table = _name(source_metadata, "table") or _name(source_metadata, "collection")
    if not table:
        return None
    names = [_name(source_metadata, "database"), _name(source_metadata, "schema"), table]
    text = json.dumps(names, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        # half of a surrogate pair is legal in JSON and in no UTF-8: such a name stays escaped
        return json.dumps(names, separators=(",", ":"))
    return text


def _name(source_metadata: Mapping[str, object], part: str) -> str:
    name = source_metadata.get(part)
    return name if isinstance(name, str) else ""


def column_names(names: Iterable[str]) -> dict[str, str]:
    """What the columns of a source's table are called in its log.

    They keep their names, but for characters that lakes refuse and for names that differ by case
    only; one that is called like a column of the log itself ends in `__source`.
    """
    given = lake_names(names, top=False)
    taken = {name.casefold() for name in given.values()} | _RESERVED
    for name, column in given.items():
        if column.casefold() in _RESERVED:
            column += _SUFFIX
            while column.casefold() in taken:
                column += "_"
            taken.add(column.casefold())
            given[name] = column
    return given


def content_hashes(payloads: pa.BinaryArray) -> pa.Int64Array:
    """64 bits of each event's bytes, the same in every process and release."""
    # one digest of 8 bytes after the other, read as numbers at once
    digests = b"".join([blake2b(data, digest_size=8).digest() for data in payloads.to_pylist()])
    return pa.array(np.frombuffer(digests, "<i8"))


@dataclass(frozen=True, slots=True)
class Keys:
    """The columns of each event's key, by number: the events of a table have few different keys."""

    codes: Positions
    names: tuple[tuple[str, ...] | None, ...]
    """By code: None for a key of which nobody can say the columns."""

    def where(self, wanted: Callable[[tuple[str, ...] | None], bool]) -> Mask:
        """Which events have such a key."""
        mask: Mask = np.array([wanted(each) for each in self.names], np.bool_)[self.codes]
        return mask

    def array(self) -> pa.ListArray:
        """`_key` of model/change.py."""
        names = [list(each or ()) for each in self.names]
        return pa.array(names, pa.list_(pa.string())).take(pa.array(self.codes))


def with_members(
    texts: pa.StringArray, members: Iterable[tuple[tuple[str, ...], Mapping[int, Any]]]
) -> pa.StringArray:
    """JSON objects with more members: each with its path, and its values by row."""
    more: dict[int, dict[str, Any]] = {}
    for (*path, name), values in members:
        for row, value in values.items():
            own = more.setdefault(row, {})
            for each in path:
                own = own.setdefault(each, {})
            own[name] = value
    if not more:
        return texts
    rows, added = sorted(more), []
    for row, text in zip(rows, texts.take(pa.array(rows)).to_pylist(), strict=True):
        words = json.dumps(more[row], ensure_ascii=False, separators=(",", ":"))
        words = words.encode("utf-8", "replace").decode()
        added.append(words if text == "{}" else f"{text[:-1]},{words[1:]}")
    return with_values_at(texts, rows, pa.array(added, pa.string()))


def with_values_at(column: pa.Array, rows: Sequence[int] | Positions, values: pa.Array) -> pa.Array:
    """A column with other values in some rows."""
    places = np.arange(len(column))
    places[np.asarray(rows, np.int64)] = len(column) + np.arange(len(rows))
    return pa.concat_arrays([column, values]).take(pa.array(places))


# Datastream events, taken apart: what the decoders of Avro and JSON hand on.

SKIPPED = ("uuid", "source_timestamp")
"""What has a column of its own, and is not told again in the envelope."""


@dataclass(frozen=True, slots=True)
class Events:
    """Some events, part by part; every array has one element for each."""

    positions: Positions
    """Which payloads they are."""
    top: Mapping[str, pa.Array]
    """The envelope, but for the three parts below."""
    sort_keys: pa.Array | None
    """JSON text."""
    metadata: Mapping[str, pa.Array]
    """Of the source."""
    payload: tuple[pa.Array, ...]
    """One column after the other, as the lake has them."""
    told: Mask
    """Which have metadata of the source."""
    filled: Mask
    """Which have a payload."""
    unit: int = 1_000
    """Microseconds of one in a source timestamp that is a number."""
    envelope: pa.Array | None = None
    """The whole envelope as JSON, if it is known already."""
    lost: Mapping[str, Mapping[int, Any]] = field(default_factory=dict)
    """By column, by row: values that the column cannot hold."""
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """By column, by row: milliseconds that a moment's clock was east of UTC."""

    def __len__(self) -> int:
        return len(self.positions)

    def only(self, kept: Mask) -> Events:
        """Those that a mask selects."""
        mask = pa.array(kept)
        place = np.cumsum(kept) - 1
        return replace(
            self,
            positions=self.positions[kept],
            top={name: array.filter(mask) for name, array in self.top.items()},
            sort_keys=None if self.sort_keys is None else self.sort_keys.filter(mask),
            metadata={name: array.filter(mask) for name, array in self.metadata.items()},
            payload=tuple(array.filter(mask) for array in self.payload),
            told=self.told[kept],
            filled=self.filled[kept],
            envelope=None if self.envelope is None else self.envelope.filter(mask),
            lost=_moved(self.lost, kept, place),
            offsets=_moved(self.offsets, kept, place),
        )


def _moved(
    values: Mapping[str, Mapping[int, Any]], kept: Mask, place: Positions
) -> dict[str, dict[int, Any]]:
    return {
        name: {int(place[row]): value for row, value in rows.items() if kept[row]}
        for name, rows in values.items()
    }


# Where in the order of its source a change is: typed numbers, compared one after the other.
#
# | source | a | b | c |
# |---|---|---|---|
# | MySQL, MariaDB | number of the binary log | position in it | row of the event |
# | PostgreSQL | log sequence number | | |
# | SQL Server, Db2 (Datastream) | first part of the LSN | second | third |
# | SQL Server, Db2 (Debezium) | first part of the LSN | second and third | number of the event |
# | Oracle | SCN | redo log and block of `rs_id` | offset of `rs_id` and SSN |
# | MongoDB | seconds | number within the second | |
# | any other (Datastream) | first number of `sort_keys` after the time | second | third |
# | any other (Debezium), and flattened events whose deletes tell no position | | | |
#
# A position that is not there is 0, as of a row that was backfilled. One that cannot be read, in
# any of its parts, is bad: a guess would put the change in a wrong place for ever. What is at one
# place, or has no place, is in the order in which it came.

KINDS = ("mysql", "postgresql", "sqlserver", "oracle")
_ALIASES = {"postgres": "postgresql", "mssql": "sqlserver", "sql_server": "sqlserver"}
_INT64 = 2**63
_ORDER_SUFFIX = re.compile(r"\d+$", re.ASCII)
_HEX = re.compile(r"[0-9a-fA-F]{1,16}", re.ASCII)
_WHOLE = re.compile(r"-?\d{1,19}", re.ASCII)

Triple = tuple[int, int, int]
_NOWHERE: Triple = (0, 0, 0)


class Place(NamedTuple):
    """Positions, and which of them cannot be read."""

    a: Positions
    b: Positions
    c: Positions
    bad: Mask


def kind_of(read_method: str | None, settings: ChangeSettings, told: frozenset[str]) -> str:
    """The kind of database that an event of Datastream came from; empty if nobody can say.

    The method is `mysql-cdc-binlog`, `oracle_dump`, or `cdc` alone. For events that do not say it
    the pipeline's file may; what they have told about their source is the last resort.
    """
    word = re.split(r"[-_]", (read_method or "").lower(), maxsplit=1)[0]
    for name in (word, settings.source_type.lower()):
        kind = _ALIASES.get(name, name)
        if kind in KINDS:
            return kind
    if word in ("cdc", "backfill", ""):
        known = (("scn", "oracle"), ("log_position", "mysql"), ("lsn", "lsn"))
        return next((kind for name, kind in known if name in told), "")
    return ""


def is_backfill(read_method: str | None) -> bool:
    """Whether rows were read, not changed."""
    words = re.split(r"[-_]", (read_method or "").lower())
    return any(word == "backfill" or word.endswith("dump") for word in words)


def datastream_places(events: Events, kind: str, ts: Positions) -> Place:
    """The positions of Datastream's events that came from one kind of database."""
    said, count = events.metadata, len(events)
    if kind == "mysql":
        return _mysql(said.get("log_file"), said.get("log_position"), None, count)
    if kind == "oracle":
        return _oracle(said, count)
    read = _LSN.get(kind)
    return _texts(said.get("lsn"), count, read) if read else _by_sort_keys(events, ts)


def debezium_places(source: Mapping[str, pa.Array], count: int, *, ordered: bool) -> Place:
    """The positions of Debezium's events; none where `ordered` is not the case."""
    if not ordered:
        return _nowhere(count)
    if "pos" in source and "file" in source:
        return _mysql(source["file"], source["pos"], source.get("row"), count)
    if "change_lsn" in source:
        change = _texts(source["change_lsn"], count, _sqlserver_lsn)
        number, bad = _integers(source.get("event_serial_no"), count)
        return Place(change.a, (change.b << 16) | change.c, number, change.bad | bad)
    if "scn" in source:
        return _oracle(source, count)
    zeros = np.zeros(count, np.int64)
    if "lsn" in source:
        numbers, bad = _integers(source["lsn"], count)
        return Place(numbers, zeros, zeros, bad)
    if "ord" in source:
        milliseconds, bad = _integers(source.get("ts_ms"), count)
        number, worse = _integers(source["ord"], count)
        return Place(milliseconds // 1_000, number, zeros, bad | worse)
    return _nowhere(count)


def ties(offsets: pa.Array, partitions: pa.Array) -> pa.Array:
    """A topic's last word: the place in it, as text that sorts in the same way."""
    return pc.binary_join_element_wise(
        pc.utf8_lpad(offsets.cast(pa.string()), 19, "0"),
        pc.utf8_lpad(partitions.cast(pa.string()), 6, "0"),
        ".",
    )


def sequence(
    place: Place,
    *,
    phase: Positions | Mask,
    ts: Positions,
    half: Positions | Mask,
    tie: pa.StringArray,
) -> pa.StructArray:
    """`_seq` of model/change.py."""
    numbers = [phase.astype(np.int32), ts, place.a, place.b, place.c, half.astype(np.int32)]
    return pa.StructArray.from_arrays([*map(pa.array, numbers), tie], fields=list(SEQ))


def with_halves_together(events: Events, ts: Positions, change: pa.StringArray) -> Positions:
    """Times in which both halves of a change of key are at the time of the first.

    MySQL's second half, the new row, comes with a time of one second later. What happens to the
    row within that second would be taken for older.
    """
    if not pc.any(pc.equal(change, "UPDATE-DELETE"), min_count=0).as_py():
        return ts
    file, position = events.metadata.get("log_file"), events.metadata.get("log_position")
    if file is None or position is None:
        return ts
    halves = list(zip(change.to_pylist(), file.to_pylist(), position.to_pylist(), strict=True))
    first: dict[tuple[object, object], int] = {}
    for row, (word, *place) in enumerate(halves):
        # without a position nobody can say what belongs together
        if word == "UPDATE-DELETE" and place[0]:
            at = (place[0], place[1])
            first[at] = min(int(ts[row]), first.get(at, int(ts[row])))
    fixed = ts.copy()
    for row, (word, *place) in enumerate(halves):
        if word == "UPDATE-INSERT":
            fixed[row] = min(int(ts[row]), first.get((place[0], place[1]), int(ts[row])))
    return fixed


def _mysql(
    file: pa.Array | None, position: pa.Array | None, row: pa.Array | None, count: int
) -> Place:
    log = _texts(file, count, _log_file)
    offset, bad = _integers(position, count)
    number, worse = _integers(row, count)
    return Place(log.a, offset, number, log.bad | bad | worse)


def _oracle(said: Mapping[str, pa.Array], count: int) -> Place:
    scn, bad_scn = _integers(said.get("scn"), count)
    ssn, bad_ssn = _integers(said.get("ssn"), count)
    redo = _texts(said.get("rs_id"), count, _rs_id)
    bad = redo.bad | bad_scn | bad_ssn | (ssn >= 2**32)
    return Place(scn, redo.b, redo.c | np.where(bad, 0, ssn), bad)


def _texts(array: pa.Array | None, count: int, read: Callable[[str], Triple | None]) -> Place:
    """Positions that are written as text; each text is read once."""
    if array is None:
        return _nowhere(count)
    if not kinds.is_string(array.type):
        return _nowhere(count)._replace(bad=~nulls(array))
    coded = pc.dictionary_encode(array, null_encoding="encode")
    texts = coded.dictionary.to_pylist()
    found = [read(text.strip()) if text and text.strip() else _NOWHERE for text in texts]
    fits = [each is not None and all(0 <= part < _INT64 for part in each) for each in found]
    triples = [each if fine else _NOWHERE for each, fine in zip(found, fits, strict=True)]
    codes = coded.indices.to_numpy()
    a, b, c = np.array(triples, np.int64).reshape(-1, 3).T[:, codes]
    return Place(a, b, c, ~np.array(fits, np.bool_)[codes])


def _integers(array: pa.Array | None, count: int) -> tuple[Positions, Mask]:
    """Whole numbers, also where they are written as text; nothing is 0, and less is bad."""
    if array is None:
        return np.zeros(count, np.int64), np.zeros(count, np.bool_)
    if kinds.is_integer(array.type):
        numbers: Positions = array.cast(pa.int64()).fill_null(0).to_numpy()
        return np.maximum(numbers, 0), numbers < 0
    place = _texts(array, count, lambda t: (int(t), 0, 0) if _WHOLE.fullmatch(t) else None)
    return place.a, place.bad


def _log_file(name: str) -> Triple | None:
    suffix = _ORDER_SUFFIX.search(name)
    return (int(suffix[0]), 0, 0) if suffix and len(suffix[0]) < 20 else None


def _postgresql_lsn(lsn: str) -> Triple | None:
    parts = _hexes(lsn.split("/"), 2)
    return ((parts[0] << 32) | parts[1], 0, 0) if parts and parts[1] < 2**32 else None


def _sqlserver_lsn(lsn: str) -> Triple | None:
    if lsn[:2].lower() == "0x" and len(lsn) == 22:
        lsn = f"{lsn[2:10]}:{lsn[10:18]}:{lsn[18:]}"
    parts = _hexes(lsn.split(":"), 3)
    # the last two must fit into one number
    if not parts or parts[1] >= 2**47 or parts[2] >= 2**16:
        return None
    return (parts[0], parts[1], parts[2])


def _any_lsn(lsn: str) -> Triple | None:
    return _postgresql_lsn(lsn) if "/" in lsn else _sqlserver_lsn(lsn)


_LSN = {"postgresql": _postgresql_lsn, "sqlserver": _sqlserver_lsn, "lsn": _any_lsn}


def _rs_id(text: str) -> Triple | None:
    parts = _hexes(text.removeprefix("0x").split("."), 3)
    if not parts or parts[1] >= 2**32 or parts[2] >= 2**31:
        return None
    # beside the offset there is room for the SSN, which counts the rows of one redo record
    return (0, (parts[0] << 32) | parts[1], parts[2] << 32)


def _hexes(parts: list[str], count: int) -> list[int] | None:
    """The parts of a position as numbers; None unless there are so many and all are numbers."""
    if len(parts) != count or not all(map(_HEX.fullmatch, parts)):
        return None
    return [int(part, 16) for part in parts]


def _by_sort_keys(events: Events, ts: Positions) -> Place:
    if events.sort_keys is None:
        return _nowhere(len(events))
    rows = np.zeros((len(events), 3), np.int64)
    for row, text in enumerate(events.sort_keys.to_pylist()):
        numbers = _numbers(text)
        if numbers and numbers[0] == ts[row]:
            numbers = numbers[1:]
        kept = numbers[:3]
        rows[row, : len(kept)] = kept
    return Place(rows[:, 0], rows[:, 1], rows[:, 2], np.zeros(len(events), np.bool_))


def _numbers(text: str | None) -> list[int]:
    """The numbers that a list begins with."""
    try:
        values = json.loads(text or "[]")
    except ValueError:
        return []
    numbers: list[int] = []
    for value in values if isinstance(values, list) else ():
        if isinstance(value, str) and _WHOLE.fullmatch(value):
            value = int(value)
        if type(value) is not int or not -_INT64 <= value < _INT64:
            break
        numbers.append(value)
    return numbers


def _nowhere(count: int) -> Place:
    zeros = np.zeros(count, np.int64)
    return Place(zeros, zeros, zeros, np.zeros(count, np.bool_))
