"""The seam of change formats, and what all decoders of change events have in common.

A decoder turns events into rows of a log table: the columns of model/change.py, then the columns
of the source's table under their own names.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from distributary.decode.base import (
    DecodeLimits,
    Expansion,
    HasColumns,
    Mask,
    Positions,
    RefusedError,
)
from distributary.decode.json.json_text import parse
from distributary.decode.json.schema import lake_names
from distributary.model.change import CHANGE_NAMES, ChangeSettings
from distributary.model.deadletter import Decoded
from distributary.model.record import Format, WriterSchema

ROW_ID = "_row_id"
"""The column that stands in for a key where the source has none but numbers its rows."""
METADATA_NAMES = tuple(
    "_headers _topic _partition _offset _timestamp _schema_id _batch _raw _date".split()
)
"""Columns that the stage may put behind those of the decoder."""
_RESERVED = frozenset((*CHANGE_NAMES, *METADATA_NAMES, ROW_ID, "_old_key"))
"""The last one is a column of histories, and of a merge's own."""
_SUFFIX = "__source"
_CLAIM_DEPTH = 4


class ChangeDecoder(HasColumns, Protocol):
    """Decodes change events of one writer schema. Built once per schema and process."""

    @property
    def expansion(self) -> Expansion:
        """Return the expected size of events when decoded; each slice is decoded at once."""

    def decode(self, payloads: pa.BinaryArray, raw: pa.Table) -> Decoded:
        """Decode events without nulls and framing. Never raises for what an event contains.

        `raw` has the source's records that they came in, one each and in the same order.
        """


# The seam: everything that the rest of the program asks of a format of change events.

CHANGE, HEARTBEAT, TOMBSTONE, OTHER = range(4)
"""The kinds of records: a change of a row, a heartbeat of a connector, a key without a value, and
others, which are counted and skipped."""


class Records(NamedTuple):
    """The records whose tables are asked for, as columns of one length."""

    topics: pa.StringArray
    """The topics; for files, their paths below the source's root."""
    keys: pa.BinaryArray
    payloads: pa.BinaryArray
    """The values, without the registry's header."""


@dataclass(frozen=True, slots=True)
class Named:
    """The table and the kind of each record."""

    kinds: Positions
    """CHANGE, HEARTBEAT, TOMBSTONE or OTHER."""
    claims: pa.StringArray
    """The table, as `claim` writes it; null where the record names none."""
    payloads: pa.BinaryArray
    """The values, without the schemas that they carry."""
    codes: Positions | None = None
    """The schema that each record carries, as a position in `schemas`; less than 0 for none."""
    schemas: tuple[bytes, ...] = ()


class Subject(NamedTuple):
    """The table of records with one schema."""

    claim: str | None
    """The claim; None for records without a table."""
    is_heartbeat: bool = False


@dataclass(frozen=True, slots=True)
class Recognized:
    """The recognized format of sampled records, with the settings for it."""

    what: str
    """A phrase for people: `Change events of Debezium in JSON`."""
    tables: frozenset[str]
    """The tables that records name, for display; empty if only a schema was seen."""
    each: str | None
    """The template of tables' names; None for one table of rows for each topic."""
    cdc: Mapping[str, Any]
    """The section `cdc` of the pipeline file."""
    source: Mapping[str, Any] = field(default_factory=dict)
    """Settings for the section `source`."""
    note: str = ""
    """A sentence about facts that the records do not show."""


class Sampled(NamedTuple):
    """A record of a sample, parsed if its value is a JSON object."""

    topic: str
    key: bytes | None
    value: bytes | None
    event: Mapping[str, Any] | None


class ChangeFormat(ABC):
    """A format of change events: an entry of `CHANGE_FORMATS`."""

    name: ClassVar[str]
    """The value of `cdc.format`."""
    label: ClassVar[str]
    """The name for people."""
    images: ClassVar[tuple[str, ...]] = ()
    """Members of JSON events that hold rows; an event without them is itself the row."""
    decoded_together: ClassVar[bool] = False
    """Whether all events of a batch are decoded together, because halves of one change and copies
    are looked for among them."""
    tombstones_may_delete: ClassVar[bool] = False
    """Whether a key without a value can be the only record of a delete."""

    @abstractmethod
    def decoder(
        self,
        schema: WriterSchema,
        settings: ChangeSettings,
        limits: DecodeLimits,
        *,
        keys: WriterSchema | None = None,
    ) -> ChangeDecoder:
        """Return the decoder for a schema of events, and one of the records' keys. DecodeError."""

    @abstractmethod
    def recognize(self, records: Sequence[Sampled]) -> Recognized | None:
        """Return what records without the registry's header are; None if not of this format."""

    def carries_schemas(self, payload: Format) -> bool:
        """Return whether records may carry their schemas."""
        return False

    def names_in_records(self, payload: Format) -> bool:
        """Return whether `name_tables` knows the tables of records; otherwise their schema does."""
        return payload is Format.JSON

    def name_tables(self, records: Records, settings: ChangeSettings) -> Named:
        """Return the table of each record: by default, the one that its key names."""
        kinds = np.full(len(records.payloads), CHANGE)
        return Named(kinds, records.keys.cast(pa.string()), records.payloads)

    def subject(self, schema: WriterSchema, claim: str) -> Subject:
        """Return the table that records with a schema are about, by what the records name."""
        return Subject(claim)

    def recognize_schema(self, schema: WriterSchema) -> Recognized | None:
        """Return what records with the registry's header are; None if not of this format."""
        return None


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


def claim_parts(text: bytes) -> tuple[str, str, str] | None:
    """Return database, schema and table of a claim; None for a text that is none."""
    try:
        parts = parse(text, max_depth=_CLAIM_DEPTH)
    except RefusedError:
        return None
    if not isinstance(parts, list) or len(parts) != 3 or not parts[2]:
        return None
    database, schema, table = (str(part or "") for part in parts)
    return database, schema, table


_ENOUGH = 0.8
"""The share of sampled events that must be of a format; the others would be dead letters."""


def mostly(
    events: Sequence[Mapping[str, Any]],
    read: Callable[[Mapping[str, Any]], Mapping[str, Any] | None],
) -> list[Mapping[str, Any]] | None:
    """Read each sampled event; None unless enough of them can be read."""
    matches = [match for event in events if (match := read(event)) is not None]
    return matches if matches and len(matches) >= _ENOUGH * len(events) else None


def _name(source_metadata: Mapping[str, object], part: str) -> str:
    name = source_metadata.get(part)
    return name if isinstance(name, str) else ""


def column_names(names: Iterable[str]) -> dict[str, str]:
    """Return the names of a source table's columns in its log.

    They keep their names, except for characters that lakes refuse and names that differ by case
    only; a name of the log's own columns gets `__source` at its end.
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
    """Hash the bytes of each event to 64 bits, equal in every process and release."""
    # one digest of 8 bytes after the other, read as numbers at once
    digests = b"".join([blake2b(data, digest_size=8).digest() for data in payloads.to_pylist()])
    return pa.array(np.frombuffer(digests, "<i8"))


@dataclass(frozen=True, slots=True)
class Keys:
    """The columns of each event's key, by number: the events of a table have few different keys."""

    codes: Positions
    names: tuple[tuple[str, ...] | None, ...]
    """The columns by code; None for a key whose columns are unknown."""

    def where(self, wanted: Callable[[tuple[str, ...] | None], bool]) -> Mask:
        """Return which events have a key that satisfies a condition."""
        mask: Mask = np.array([wanted(each) for each in self.names], np.bool_)[self.codes]
        return mask

    def array(self) -> pa.ListArray:
        """Return the keys as the column `_key` of model/change.py."""
        names = [list(each or ()) for each in self.names]
        return pa.array(names, pa.list_(pa.string())).take(pa.array(self.codes))


def with_members(
    texts: pa.StringArray, members: Iterable[tuple[tuple[str, ...], Mapping[int, Any]]]
) -> pa.StringArray:
    """Return JSON objects with added members, given by path, with values by row."""
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
    """Return a column with replaced values in some rows."""
    places = np.arange(len(column))
    places[np.asarray(rows, np.int64)] = len(column) + np.arange(len(rows))
    return pa.concat_arrays([column, values]).take(pa.array(places))
