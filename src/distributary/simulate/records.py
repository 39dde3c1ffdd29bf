"""The good messages of the games: record i is a function of the plan, written as wire bytes.

Whole arrays of records are encoded at once, column by column, which is some ten times faster than
building message objects; the tests hold the bytes against the official runtime.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from distributary.simulate.dice import rolls, seed_for, u64
from distributary.simulate.games_plan import GamesPlan
from distributary.simulate.names import user_names
from distributary.simulate.schemas import CHANGED_NUMBER, FIRST_CUSTOM_FIELD
from distributary.simulate.wire import DELIMITED, VARINT, delimited, header, tag, varint

STEP_MILLIS = 20
"""Events follow each other at about this pace."""

_NOTHING = pa.scalar(b"", pa.binary())
_NANOS = pa.array([b"", *(tag(2, VARINT) + varint(ms * 1_000_000) for ms in range(1, 1000))])
_USERS = pa.array([delimited(2, name.encode()) for name in user_names()])
_STABLE, _UNSTABLE = pa.scalar(delimited(4, b"Y")), pa.scalar(delimited(4, b"N"))
_CHANGED = pa.scalar(tag(CHANGED_NUMBER, VARINT) + b"\x01")


def wrap(name: bytes | None, schema_id: int | None, payload: bytes) -> bytes:
    """A wrapper; what is None is left out."""
    return _opening(name, schema_id) + varint(len(payload)) + payload


def _opening(name: bytes | None, schema_id: int | None) -> bytes:
    """A wrapper up to the length of its payload."""
    return (
        (b"" if name is None else delimited(1, name))
        + (b"" if schema_id is None else tag(2, VARINT) + varint(schema_id))
        + tag(3, DELIMITED)
    )


@dataclass(frozen=True, slots=True)
class Encoded:
    """Some records, in the order in which they were asked for."""

    games: pa.UInt64Array
    versions: pa.UInt64Array
    times: pa.UInt64Array
    """Of the events, in milliseconds since 1970."""
    payloads: pa.BinaryArray
    framed: pa.BooleanArray
    values: pa.BinaryArray
    """The payloads in their wrappers, some behind a header."""


class GameRecords:
    """Encodes records by index, for the schemas it has been told of."""

    def __init__(self, plan: GamesPlan, *, wrapper_id: int) -> None:
        self.plan = plan
        self.wrapper_id = wrapper_id
        self.schema_ids: dict[tuple[int, int], int] = {}
        """By game and version."""
        names = [name.encode() for name in plan.names]
        self.names = pa.array(plan.names, pa.string())
        self.keys = pa.array(names, pa.binary())
        self._heads = pa.array([delimited(1, name) for name in names])
        self._customs = pa.array([b"custom_%b_" % name for name in names])
        self._openings = pa.array([], pa.binary())
        self._header = pa.scalar(header(wrapper_id))
        self._seed = seed_for(plan.seed, "records")

    def add_version(self, version: int, schema_ids: list[int]) -> None:
        """Tell the ids of the next version, game by game."""
        self.schema_ids |= {(game, version): id_ for game, id_ in enumerate(schema_ids)}
        named = zip(self.plan.names, schema_ids, strict=True)
        added = pa.array([_opening(name.encode(), schema_id) for name, schema_id in named])
        self._openings = pa.concat_arrays([self._openings, added])

    def times(self, slots: pa.UInt64Array) -> pa.UInt64Array:
        """The moments of slots of the stream; a record that is in time has its index for a slot."""
        return self._times(slots, rolls(self._seed, slots))

    def encode(self, indexes: pa.UInt64Array) -> Encoded:
        """The records with these indexes."""
        plan = self.plan
        rows, games = _divmod(indexes, plan.games)
        rounds, _ = _divmod(rows, plan.records)
        versions = pc.min_element_wise(pc.add(rounds, u64(1)), u64(plan.last_version))
        bits = rolls(self._seed, indexes)
        times = self._times(indexes, bits)
        payloads = self._payloads(rows, games, versions, bits, times)
        place = pc.multiply(pc.subtract(versions, u64(plan.start_version)), u64(plan.games))
        openings = self._openings.take(pc.add(place, games))
        framed = pc.less(pc.shift_right(bits, u64(48)), u64(round(plan.share * 65536)))
        headers = pc.if_else(framed, self._header, _NOTHING)
        values = _join(headers, openings, _prefixed(payloads))
        return Encoded(games, versions, times, payloads, framed, values)

    def _times(self, slots: pa.UInt64Array, bits: pa.UInt64Array) -> pa.UInt64Array:
        jitter = _below(bits, 16, STEP_MILLIS)
        since = pc.add(pc.multiply(slots, u64(STEP_MILLIS)), jitter)
        return pc.add(since, u64(self.plan.start_millis))

    def _payloads(
        self,
        rows: pa.UInt64Array,
        games: pa.UInt64Array,
        versions: pa.UInt64Array,
        bits: pa.UInt64Array,
        times: pa.UInt64Array,
    ) -> pa.BinaryArray:
        custom = _prefixed(_join(self._customs.take(games), pc.cast(rows, pa.string())))
        stable = pc.less(_below(bits, 32, 100), u64(95))
        text, number = pc.if_else(stable, _STABLE, _UNSTABLE), _NOTHING
        if self.plan.type_change:
            last = pc.equal(versions, u64(self.plan.last_version))
            changed = pc.and_(last, pc.equal(games, u64(0)))
            text = pc.if_else(changed, _NOTHING, text)
            number = pc.if_else(pc.and_(changed, stable), _CHANGED, _NOTHING)
        return _join(
            self._heads.take(games),
            _USERS.take(_below(bits, 0, len(_USERS))),
            pa.scalar(tag(3, DELIMITED)),
            _prefixed(_timestamps(times)),
            text,
            *_custom_fields(custom, versions),
            number,
        )


def _custom_fields(custom: pa.BinaryArray, versions: pa.UInt64Array) -> list[Any]:
    """The parts of each record's custom columns: as many columns as its version says."""
    fields: list[Any] = []
    span = pc.min_max(versions).as_py()
    for i in range(span["max"]):
        before = pa.scalar(tag(FIRST_CUSTOM_FIELD + i, DELIMITED))
        if i < span["min"]:
            fields += [before, custom]
        else:
            has = pc.greater(versions, u64(i))
            fields += [pc.if_else(has, before, _NOTHING), pc.if_else(has, custom, _NOTHING)]
    return fields


def _timestamps(times: pa.UInt64Array) -> pa.BinaryArray:
    seconds, millis = _divmod(times, 1000)
    # few different seconds in many records: each is encoded once
    distinct = seconds.dictionary_encode()
    encoded = pa.array([tag(1, VARINT) + varint(s) for s in distinct.dictionary.to_pylist()])
    return _join(encoded.take(distinct.indices), _NANOS.take(millis))


def _prefixed(bodies: pa.BinaryArray) -> pa.BinaryArray:
    """Each body behind its length."""
    distinct = pc.binary_length(bodies).dictionary_encode()
    encoded = pa.array([varint(n) for n in distinct.dictionary.to_pylist()])
    return _join(encoded.take(distinct.indices), bodies)


def _join(*parts: Any) -> pa.BinaryArray:
    as_bytes = [pc.cast(part, pa.binary()) for part in parts]
    return pc.binary_join_element_wise(*as_bytes, _NOTHING)


def _divmod(numbers: pa.UInt64Array, by: int) -> tuple[pa.UInt64Array, pa.UInt64Array]:
    quotient = pc.divide(numbers, u64(by))
    return quotient, pc.subtract(numbers, pc.multiply(quotient, u64(by)))


def _below(bits: pa.UInt64Array, shift: int, limit: int) -> pa.UInt64Array:
    """Sixteen of the drawn bits as a number below a limit."""
    drawn = pc.bit_wise_and(pc.shift_right(bits, u64(shift)), u64(0xFFFF))
    return _divmod(drawn, limit)[1]
