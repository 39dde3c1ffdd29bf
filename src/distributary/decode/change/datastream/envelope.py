"""What came with a row beside the row, as JSON text.

Most of it is the same in thousands of events: the parts that have few different values are written
once for each combination of them, the others with Arrow for all events at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from distributary.decode.avro.reader import MICROS
from distributary.decode.change.base import (
    ROW_ID,
    SKIPPED,
    Events,
    Place,
    datastream_places,
    is_backfill,
    kind_of,
    sequence,
    with_halves_together,
)
from distributary.decode.change.values import Ints, Mask, json_texts
from distributary.decode.json import columns
from distributary.model.change import ChangeSettings

# When the source made a change: the ways in which Datastream writes it.
#
# Milliseconds since 1970, or ISO 8601 with `T` or a blank, with or without seconds, fraction and
# offset; without an offset it is UTC.

_CLOCK = r"(\d\d:\d\d)(:\d\d(?:\.\d+)?)?"
_ZONE = r"(?:[Zz]|UTC|([+-]\d\d):?(\d\d)?)?"
_MOMENT = re.compile(rf"\s*(\d{{4}}-\d\d-\d\d)[Tt ]{_CLOCK}\s*{_ZONE}\s*", re.ASCII)
_NUMBER = re.compile(r"-?\d{1,16}", re.ASCII)
# what Arrow reads in the same way, once the Z is gone
_USUAL = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?Z?$"


def moment(text: str, *, unit: int = 1_000) -> int | None:
    """Microseconds since 1970; None for what is no moment of the years 1 to 9999.

    Args:
        text: A moment, or a number of units.
        unit: Microseconds of one.
    """
    found = _MOMENT.fullmatch(text)
    if found is not None:
        day, minutes, seconds, hours_east, minutes_east = found.groups()
        zone = f"{hours_east}:{minutes_east or '00'}" if hours_east else "Z"
        return columns.microseconds(f"{day}T{minutes}{seconds or ':00'}{zone}")
    if _NUMBER.fullmatch(text):
        micros = int(text) * unit
        return micros if MICROS[0] <= micros <= MICROS[1] else None
    return None


def moments(array: pa.Array | None, count: int, *, unit: int = 1_000) -> tuple[Ints, Mask]:
    """Microseconds since 1970 for a whole array, and where there are none."""
    if array is None:
        return np.zeros(count, np.int64), np.ones(count, np.bool_)
    if kinds.is_integer(array.type):
        numbers: Ints = array.cast(pa.int64()).fill_null(MICROS[0] - 1).to_numpy()
        bad = (numbers < MICROS[0] // unit) | (numbers > MICROS[1] // unit)
        return np.where(bad, 0, numbers) * unit, bad
    if not kinds.is_string(array.type):
        return np.zeros(count, np.int64), np.ones(count, np.bool_)
    usual = _usual(array)
    if usual is not None:
        return usual, np.zeros(count, np.bool_)
    coded = array.dictionary_encode()
    found = [moment(text, unit=unit) for text in coded.dictionary.to_pylist()]
    micros = pa.array(found, pa.int64()).take(coded.indices)
    nulls: Mask = micros.is_null().to_numpy(zero_copy_only=False)
    return micros.fill_null(0).to_numpy(), nulls


def _usual(array: pa.StringArray) -> Ints | None:
    """The moments, if all are there and written as Datastream writes them."""
    if array.null_count:
        return None
    if not pc.all(pc.match_substring_regex(array, _USUAL), min_count=0).as_py():
        return None
    try:
        found = pc.utf8_rtrim(array, "Z").cast(pa.timestamp("us")).cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid:
        return None
    inside = len(found) == 0 or (found.min() >= MICROS[0] and found.max() <= MICROS[1])
    return found if inside else None


# What happened to the row of each event, when, and where in the source's order.

_DELETES = pa.array(["DELETE", "UPDATE-DELETE"])
_UPDATES = pa.array(["UPDATE", "UPDATE-INSERT"])
_SUPPLEMENT = "supplementation"


@dataclass(frozen=True, slots=True)
class Facts:
    """One of each per event."""

    micros: Ints
    """When the source made the change."""
    untimed: Mask
    """Whether that is not known."""
    place: Place
    sequence: pa.StructArray
    operation: pa.StringArray
    deleted: Mask
    backfilled: Mask
    supplied: Mask
    """Whether Oracle's log was read again for it, after a rollback."""
    uuid: pa.StringArray


def facts_of(events: Events, settings: ChangeSettings) -> Facts:
    """The facts about events that have a source and a payload."""
    count = len(events)
    methods = texts_of(events.top.get("read_method"), count)
    coded = pc.dictionary_encode(methods, null_encoding="encode")
    codes, names = coded.indices.to_numpy(), coded.dictionary.to_pylist()
    backfilled = _by_code(codes, [is_backfill(name) for name in names])
    change = pc.utf8_upper(texts_of(events.metadata.get("change_type"), count))
    micros, untimed = moments(events.top.get("source_timestamp"), count, unit=events.unit)
    ts = with_halves_together(events, micros // 1_000, change)
    told = frozenset(events.metadata)
    place = _placed(events, codes, [kind_of(name, settings, told) for name in names], ts)
    deleted = _is_in(change, _DELETES) | _flags(events.metadata.get("is_deleted"), count)
    uuid = texts_of(events.top.get("uuid"), count).fill_null("")
    later = ~backfilled & (settings.backfill == "before_cdc")
    half = ~_is_in(change, _DELETES[1:])
    return Facts(
        micros=micros,
        untimed=untimed,
        place=place,
        sequence=sequence(place, phase=later, ts=ts, half=half, tie=uuid),
        operation=_operations(change, deleted, backfilled),
        deleted=deleted,
        backfilled=backfilled,
        supplied=_by_code(codes, [_SUPPLEMENT in (name or "").lower() for name in names]),
        uuid=uuid,
    )


def texts_of(array: pa.Array | None, count: int) -> pa.StringArray:
    """An array as text; null where it holds something else."""
    if array is None or not pa.types.is_string(array.type):
        return pa.nulls(count, pa.string())
    return array


def _placed(
    events: Events, codes: npt.NDArray[np.integer], kinds: Sequence[str], ts: Ints
) -> Place:
    """Positions, each read as the kind of its source has them."""
    first, *others = dict.fromkeys(kinds)
    place = datastream_places(events, first, ts)
    for kind in others:
        chosen = _by_code(codes, [each == kind for each in kinds])
        other = datastream_places(events, kind, ts)
        place = Place(
            np.where(chosen, other.a, place.a),
            np.where(chosen, other.b, place.b),
            np.where(chosen, other.c, place.c),
            np.where(chosen, other.bad, place.bad),
        )
    return place


def _operations(change: pa.StringArray, deleted: Mask, backfilled: Mask) -> pa.StringArray:
    updated = _is_in(change, _UPDATES)
    words = pa.array(["insert", "update", "read", "delete"])
    codes = np.where(updated, 1, 0)
    codes = np.where(backfilled, 2, codes)
    return words.take(pa.array(np.where(deleted, 3, codes)))


def _flags(array: pa.Array | None, count: int) -> Mask:
    if array is None:
        return np.zeros(count, np.bool_)
    if pa.types.is_string(array.type):
        array = pc.equal(pc.utf8_lower(array), "true")
    elif pa.types.is_integer(array.type):
        array = pc.not_equal(array, 0)
    elif not pa.types.is_boolean(array.type):
        return np.zeros(count, np.bool_)
    flags: Mask = array.fill_null(False).to_numpy(zero_copy_only=False)
    return flags


def _is_in(array: pa.Array, values: pa.Array) -> Mask:
    mask: Mask = pc.is_in(array, values).to_numpy(zero_copy_only=False)
    return mask


def _by_code(codes: npt.NDArray[np.integer], flags: list[bool]) -> Mask:
    mask: Mask = np.array(flags, np.bool_)[codes]
    return mask


# The key of each event: which columns, as the source says, under their names in the log.

_MARK = "\x1f"
_TEXTS = pa.list_(pa.string())


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys by number: events have few different ones."""

    codes: npt.NDArray[np.int64]
    columns: tuple[tuple[str, ...] | None, ...]
    """By code: the names in the log; None where one is not among the columns."""

    def array(self) -> pa.Array:
        """`_key` of model/change.py."""
        found = [list(names or ()) for names in self.columns]
        return pa.array(found, _TEXTS).take(pa.array(self.codes))

    def missing(self) -> Mask:
        """Which events have a key that is not in their payload."""
        flags = np.array([names is None for names in self.columns], np.bool_)
        mask: Mask = flags[self.codes]
        return mask


def keys_of(events: Events, names: Mapping[str, str]) -> Keys:
    """The key of each event.

    Args:
        events: The events.
        names: What the payload's columns are called in the log, by their names in the source.
    """
    folded = {name.casefold(): column for name, column in reversed(list(names.items()))}
    count = len(events)
    lists = [events.metadata.get(part) for part in ("primary_keys", "replication_index")]
    codes, found = _distinct([_names(each) for each in lists if each is not None], count)
    row_ids = events.metadata.get("row_id")
    columns: list[tuple[str, ...] | None] = [_resolved(each, names, folded) for each in found]
    if row_ids is not None and pa.types.is_string(row_ids.type) and () in columns:
        given = pc.greater(pc.binary_length(row_ids), 0).fill_null(False)
        keyless = np.array([each == () for each in columns], np.bool_)[codes]
        chosen = keyless & given.to_numpy(zero_copy_only=False)
        codes = np.where(chosen, len(columns), codes)
        columns.append((ROW_ID,))
    return Keys(codes, tuple(columns))


def _resolved(
    wanted: tuple[str | None, ...], names: Mapping[str, str], folded: Mapping[str, str]
) -> tuple[str, ...] | None:
    columns: list[str] = []
    for name in wanted:
        # the very name first: a source may have two columns that differ by case only
        column = None if name is None else names.get(name, folded.get(name.casefold()))
        if column is None:
            return None
        columns += [] if column in columns else [column]
    return tuple(columns)


def _names(array: pa.Array) -> pa.ListArray:
    """Lists of names; what is something else names no column."""
    if pa.types.is_list(array.type) and pa.types.is_string(array.type.value_type):
        return array
    return pa.array([[None] if valid else None for valid in array.is_valid().to_pylist()], _TEXTS)


def _distinct(
    lists: list[pa.Array], count: int
) -> tuple[npt.NDArray[np.int64], list[tuple[str | None, ...]]]:
    """Which list of names each event has, the first that is not empty, and the different ones."""
    texts: pa.Array = pa.repeat(pa.scalar("", pa.string()), count)
    for each in reversed(lists):
        joined = marked(each)
        filled = pc.fill_null(pc.greater(pc.binary_length(joined), 0), False)
        texts = pc.if_else(filled, joined, texts)
    codes = texts.dictionary_encode().indices.to_numpy().astype(np.int64)
    _, rows = np.unique(codes, return_index=True)
    found = []
    for row in rows.tolist():
        values = (each[row].as_py() for each in lists)
        found.append(tuple(next(filter(None, values), ())))
    return codes, found


def marked(lists: pa.ListArray) -> pa.StringArray:
    """Lists of texts, each as one text that no other list becomes."""
    texts = lists.values
    if pc.any(pc.match_substring(texts, _MARK), min_count=0).as_py():
        texts = pc.replace_substring(texts, _MARK, f"{_MARK}0")
    ended = pc.binary_join_element_wise(texts.fill_null(f"{_MARK}2"), f"{_MARK}1", "")
    array = pa.Array.from_buffers(
        _TEXTS, len(lists), lists.buffers()[:2], lists.null_count, lists.offset, [ended]
    )
    return pc.binary_join(array, "")


MAX_DIFFERENT = 64
"""Values of a part that has few of them."""
_COMBINATIONS = 2**40

_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
Codes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Object:
    """The members of an object: those with few values, and those with many."""

    few: Sequence[tuple[str, Codes, Sequence[str]]]
    """Name, number of the value by row, and the values as JSON."""
    many: Sequence[tuple[str, pa.Array]]


def envelopes(events: Events) -> pa.StringArray:
    """The envelope of each event, without what has a column of its own."""
    if events.envelope is not None:
        return _with_more(events.envelope, events)
    count = len(events)
    top = {name: array for name, array in events.top.items() if name not in SKIPPED}
    parts: list[Any] = [*_written(_sorted(top, count), count, opening="{")]
    if events.sort_keys is not None:
        parts += [_comma(parts, '"sort_keys":'), pc.fill_null(events.sort_keys, "null")]
    if events.metadata:
        opening = _comma(parts, '"source_metadata":{')
        parts += _written(_sorted(events.metadata, count), count, opening=opening)
        parts.append("}")
    parts = parts or ["{"]
    text = pc.binary_join_element_wise(*parts, "}", "")
    if isinstance(text, pa.Scalar):
        text = pa.repeat(text, count)
    return _with_more(text, events)


def _comma(parts: Sequence[Any], text: str) -> str:
    return f",{text}" if parts else f"{{{text}"


def _sorted(members: Mapping[str, pa.Array], count: int) -> _Object:
    few, many = [], []
    for name, array in members.items():
        coded = _coded(array)
        if coded is None:
            many.append((name, array))
        else:
            few.append((name, *coded))
    return _Object(few, many)


def _coded(array: pa.Array) -> tuple[Codes, list[str]] | None:
    """The number of each value and the values as JSON, if there are few."""
    type_ = array.type
    if kinds.is_string(type_) or kinds.is_boolean(type_):
        values = array
    elif kinds.is_list(type_) and kinds.is_string(type_.value_type):
        values = marked(array)
    else:
        return None
    # a look at the first tells of most that are all different
    head = values[: 4 * MAX_DIFFERENT]
    if len(head) < len(values) and pc.count_distinct(head, mode="all").as_py() > MAX_DIFFERENT:
        return None
    coded = pc.dictionary_encode(values, null_encoding="encode")
    if len(coded.dictionary) > MAX_DIFFERENT:
        return None
    codes = coded.indices.to_numpy().astype(np.int64)
    _, rows = np.unique(codes, return_index=True)
    return codes, [_dumps(array[row].as_py()) for row in rows.tolist()]


def _written(members: _Object, count: int, *, opening: str) -> Iterable[Any]:
    """The members of an object as parts of a text, without the bracket at its end."""
    first = opening
    for few in _manageable(members.few):
        yield _combined(few, count, first)
        first = ","
    for name, array in members.many:
        yield f"{first}{json.dumps(name)}:"
        yield pc.fill_null(_texts(array), "null")
        first = ","
    if first is opening:
        yield opening


def _manageable(
    few: Sequence[tuple[str, Codes, Sequence[str]]],
) -> Iterable[list[tuple[str, Codes, Sequence[str]]]]:
    """Members in groups that do not have too many combinations to be counted."""
    group: list[tuple[str, Codes, Sequence[str]]] = []
    combinations = 1
    for each in few:
        combinations *= len(each[2])
        if combinations > _COMBINATIONS:
            yield group
            group, combinations = [], len(each[2])
        group.append(each)
    if group:
        yield group


def _combined(
    few: Sequence[tuple[str, Codes, Sequence[str]]], count: int, opening: str
) -> pa.Array:
    """Several members as one text for each combination of their values."""
    codes: Codes = np.zeros(count, np.int64)
    for _, numbers, texts in few:
        codes = codes * len(texts) + numbers
    coded = pa.array(codes).dictionary_encode()
    _, rows = np.unique(coded.indices.to_numpy(), return_index=True)
    combined = [
        opening + ",".join(f"{json.dumps(n)}:{texts[numbers[row]]}" for n, numbers, texts in few)
        for row in rows.tolist()
    ]
    return pa.array(combined, pa.string()).take(coded.indices)


def _texts(array: pa.Array) -> pa.Array:
    return array.cast(pa.string()) if kinds.is_integer(array.type) else json_texts(array)


def _with_more(texts: pa.StringArray, events: Events) -> pa.StringArray:
    """Envelopes with what had no place in the columns."""
    if not events.lost and not events.offsets:
        return texts
    more: dict[int, dict[str, dict[str, Any]]] = {}
    for part, values in (("rescued", events.lost), ("offsets", events.offsets)):
        for column, rows in values.items():
            for row, value in rows.items():
                more.setdefault(row, {}).setdefault(part, {})[column] = value
    if not more:
        return texts
    added: list[str] = [""] * len(texts)
    for row, parts in more.items():
        added[row] = _dumps(parts)[1:-1]
    inner = pc.utf8_slice_codeunits(texts, 0, -1)
    array = pa.array(added, pa.string())
    comma = pc.if_else(
        pc.or_(pc.equal(array, ""), pc.equal(inner, "{")), "", pa.scalar(",", pa.string())
    )
    return pc.binary_join_element_wise(inner, comma, array, "}", "")
