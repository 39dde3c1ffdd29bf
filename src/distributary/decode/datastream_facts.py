"""What happened to the row of each event, when, and where in the source's order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.decode.change.order import (
    Place,
    datastream_places,
    is_backfill,
    kind_of,
    sequence,
    with_halves_together,
)
from distributary.decode.datastream_events import Events
from distributary.decode.datastream_times import moments
from distributary.decode.datastream_values import Ints, Mask
from distributary.model.change_settings import ChangeSettings

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
