"""The records of the games simulator: record i is a function of the plan, as wire bytes.

Whole arrays of records are encoded column by column, which is about ten times faster than building
message objects; tests compare the bytes with the official runtime.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from distributary_lab.simulate.base import (
    DEFAULT_KINDS,
    HOSTILE_NAMES,
    BadKind,
    SimulationPlan,
    some_start,
)
from distributary_lab.simulate.dice import (
    CHANGED_NUMBER,
    DELIMITED,
    FIRST_CUSTOM_FIELD,
    MAX_VERSION,
    VARINT,
    delimited,
    game_names,
    header,
    roll,
    rolls,
    sample,
    seed_for,
    tag,
    u64,
    user_names,
    varint,
)

# The plan: counts and order of messages follow from it alone.


@dataclass(frozen=True, kw_only=True)
class GamesPlan(SimulationPlan):
    """Exactly `games * versions * records` good messages, with `bad` bad ones in between.

    A round brings a version. The index of a record is `(round * records + row) * games + game`,
    with rounds counted from version 1, so that a later plan with a higher `start_version` continues
    where this one ends.
    """

    refusal = "these games cannot be simulated"

    games: int = 5
    versions: int = 5
    records: int = 10
    """Number of good messages per game and round."""
    seed: int = 999
    bad: int = 0
    """Number of bad messages, in addition to the good ones."""
    bad_kinds: tuple[BadKind, ...] = DEFAULT_KINDS
    late: int = 0
    """Number of messages of old versions that are held back and sent at the end."""
    type_change: bool = False
    """In the newest version, one field of the first game changes its type."""
    framed: float | Literal["mixed"] = "mixed"
    """Share of messages with the registry's header; `mixed` is half of them."""
    start_version: int = 1
    """The first version to send; version v has v custom columns."""
    oversize_bytes: int = 16 * 1024 * 1024 + 1
    """Size of an oversize payload in bytes."""

    def __post_init__(self) -> None:
        for name in ("games", "versions", "records", "start_version"):
            self._need(getattr(self, name) >= 1, name, "at least 1")
        self._need(self.last_version <= MAX_VERSION, "versions", f"no version above {MAX_VERSION}")
        self._need(self.bad >= 0, "bad", "0 or more")
        self._need(not self.bad or bool(self.bad_kinds), "bad_kinds", "at least one kind")
        self._need(self.framed == "mixed" or 0 <= self.share <= 1, "framed", "0 to 1, or mixed")
        self._need(not self.type_change or self.versions > 1, "versions", "2 for a type change")
        most = self.round_size * (self.versions - 1)
        self._need(0 <= self.late <= most, "late", f"0 to {most}, the records of old versions")
        self._need(self.oversize_bytes >= 1, "oversize_bytes", "at least 1")

    @property
    def last_version(self) -> int:
        """Return the newest version that is sent."""
        return self.start_version + self.versions - 1

    @property
    def round_size(self) -> int:
        """Return the number of good messages of a round."""
        return self.games * self.records

    @property
    def good(self) -> int:
        """Return the number of all good messages."""
        return self.round_size * self.versions

    @property
    def share(self) -> float:
        """Return the share of messages with the registry's header."""
        return 0.5 if self.framed == "mixed" else self.framed

    @property
    def start_millis(self) -> int:
        """Return the time of the first event of version 1, in milliseconds since 1970."""
        return int(some_start(self.seed).timestamp() * 1000)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the names of the games."""
        return game_names(self.games, seed=self.seed)

    def version_of(self, number: int) -> int:
        """Return the version of a round; rounds are numbered from 0."""
        return self.start_version + number

    def changes_type(self, game: int, version: int) -> bool:
        """Return true when a field has another type in this version of a game."""
        return self.type_change and game == 0 and version == self.last_version

    @cached_property
    def _first(self) -> int:
        return (self.start_version - 1) * self.round_size

    @cached_property
    def held_back(self) -> tuple[int, ...]:
        """Return the records that are sent late, in the order of sending."""
        old = self.round_size * (self.versions - 1)
        return tuple(self._first + i for i in sample(seed_for(self.seed, "late"), old, self.late))

    def in_time(self, number: int) -> Sequence[int]:
        """Return the records of a round that are not held back."""
        start = self._first + number * self.round_size
        indexes = range(start, start + self.round_size)
        held = {index for index in self.held_back if index in indexes}
        return [index for index in indexes if index not in held] if held else indexes

    @property
    def late_slots(self) -> range:
        """Return the time slots of the late records, after all others."""
        end = self._first + self.good
        return range(end, end + self.late)

    def good_before(self, number: int) -> int:
        """Return the number of good messages before a round."""
        if number == self.versions:
            return self.good
        start = self._first + number * self.round_size
        return number * self.round_size - bisect_left(sorted(self.held_back), start)

    def bad_before(self, number: int) -> int:
        """Return the number of bad messages before a round."""
        return bisect_left(range(self.bad), self.good_before(number) + 1, key=self.bad_after)

    def bad_after(self, k: int) -> int:
        """Return the number of good messages before the k-th bad one, at least 1."""
        jitter = roll(seed_for(self.seed, "bad positions"), k) % self.good
        return 1 + (k * self.good + jitter) // self.bad

    def bad_kind(self, k: int) -> BadKind:
        """Return the defect of the k-th bad message."""
        return self.bad_kinds[k % len(self.bad_kinds)]


STEP_MILLIS = 20
"""Average time between two events."""

_NOTHING = pa.scalar(b"", pa.binary())
_NANOS = pa.array([b"", *(tag(2, VARINT) + varint(ms * 1_000_000) for ms in range(1, 1000))])
_USERS = pa.array([delimited(2, name.encode()) for name in user_names()])
_STABLE, _UNSTABLE = pa.scalar(delimited(4, b"Y")), pa.scalar(delimited(4, b"N"))
_CHANGED = pa.scalar(tag(CHANGED_NUMBER, VARINT) + b"\x01")


def wrap(name: bytes | None, schema_id: int | None, payload: bytes) -> bytes:
    """Encode a wrapper; fields that are None are left out."""
    return _opening(name, schema_id) + varint(len(payload)) + payload


def _opening(name: bytes | None, schema_id: int | None) -> bytes:
    """Encode a wrapper up to the length of its payload."""
    return (
        (b"" if name is None else delimited(1, name))
        + (b"" if schema_id is None else tag(2, VARINT) + varint(schema_id))
        + tag(3, DELIMITED)
    )


@dataclass(frozen=True, slots=True)
class Encoded:
    """Encoded records, in the order of the requested indexes."""

    games: pa.UInt64Array
    versions: pa.UInt64Array
    times: pa.UInt64Array
    """Times of the events, in milliseconds since 1970."""
    payloads: pa.BinaryArray
    framed: pa.BooleanArray
    values: pa.BinaryArray
    """The payloads in their wrappers, some after a header."""


class GameRecords:
    """An encoder of records by index, for the versions added to it."""

    def __init__(self, plan: GamesPlan, *, wrapper_id: int) -> None:
        self.plan = plan
        self.wrapper_id = wrapper_id
        self.schema_ids: dict[tuple[int, int], int] = {}
        """Schema ids by game and version."""
        names = [name.encode() for name in plan.names]
        self.names = pa.array(plan.names, pa.string())
        self.keys = pa.array(names, pa.binary())
        self._heads = pa.array([delimited(1, name) for name in names])
        self._customs = pa.array([b"custom_%b_" % name for name in names])
        self._openings = pa.array([], pa.binary())
        self._header = pa.scalar(header(wrapper_id))
        self._seed = seed_for(plan.seed, "records")

    def add_version(self, version: int, schema_ids: list[int]) -> None:
        """Add the schema ids of the next version, one for each game."""
        self.schema_ids |= {(game, version): id_ for game, id_ in enumerate(schema_ids)}
        named = zip(self.plan.names, schema_ids, strict=True)
        added = pa.array([_opening(name.encode(), schema_id) for name, schema_id in named])
        self._openings = pa.concat_arrays([self._openings, added])

    def times(self, slots: pa.UInt64Array) -> pa.UInt64Array:
        """Return the times of slots in the stream; the slot of a record in time is its index."""
        return self._times(slots, rolls(self._seed, slots))

    def encode(self, indexes: pa.UInt64Array) -> Encoded:
        """Encode the records with these indexes."""
        plan = self.plan
        rows, games = _divmod(indexes, plan.games)
        rounds, _ = _divmod(rows, plan.records)
        versions = pc.add(rounds, u64(1))
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
    """Return the parts of the custom columns: each record has as many as its version."""
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
    # many records share a second, so each second is encoded once
    distinct = seconds.dictionary_encode()
    encoded = pa.array([tag(1, VARINT) + varint(s) for s in distinct.dictionary.to_pylist()])
    return _join(encoded.take(distinct.indices), _NANOS.take(millis))


def _prefixed(bodies: pa.BinaryArray) -> pa.BinaryArray:
    """Put the length of each body in front of it."""
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
    """Return sixteen of the drawn bits as a number below a limit."""
    drawn = pc.bit_wise_and(pc.shift_right(bits, u64(shift)), u64(0xFFFF))
    return _divmod(drawn, limit)[1]


# Bad messages: each fails in one known way, for every seed.

_UNKNOWN_ID = 2_000_000_000
_UNKNOWN_IDS = 3
"""Number of unknown ids, small because each may cost its reader a request to the registry."""


class GoodRecord(NamedTuple):
    """The good record before a bad one, which is derived from it."""

    game: int
    version: int
    payload: bytes


def bad_message(
    records: GameRecords, record: GoodRecord, *, k: int
) -> tuple[bytes | None, bytes | None]:
    """Return key and value of the k-th bad message, which must become a dead letter."""
    kind, plan = records.plan.bad_kind(k), records.plan
    bits = roll(seed_for(plan.seed, "bad"), k)
    if kind in (BadKind.NULL_VALUE, BadKind.EMPTY_VALUE):
        return plan.names[record.game].encode(), None if kind is BadKind.NULL_VALUE else b""
    key, value = _unframed(kind, records, record, bits)
    # as often as in good messages: a pipeline that expects headers only gets no bare message
    framed = (bits >> 11) / (1 << 53) < plan.share
    return key, header(records.wrapper_id) + value if framed else value


def _unframed(
    kind: BadKind, records: GameRecords, record: GoodRecord, bits: int
) -> tuple[bytes | None, bytes]:
    game, version, payload = record
    name = records.plan.names[game].encode()
    schema_id = records.schema_ids[game, version]
    match kind:
        case BadKind.NOT_A_WRAPPER:
            return None, _not_a_wrapper(bits)
        case BadKind.UNKNOWN_SCHEMA_ID:
            return name, wrap(name, _UNKNOWN_ID + bits % _UNKNOWN_IDS, payload)
        case BadKind.BROKEN_PAYLOAD:
            # one byte of the user's name is left, so its length points past the end
            return name, wrap(name, schema_id, payload[: len(delimited(1, name)) + 3])
        case BadKind.NO_TYPE:
            return None, wrap(None, schema_id, payload)
        case BadKind.NO_SCHEMA_ID:
            return name, wrap(name, None, payload)
        case BadKind.WRONG_SUBJECT:
            other = (game + 1) % records.plan.games
            # with one game only, the wrapper's schema is the wrong one
            alone = other == game
            foreign = records.wrapper_id if alone else records.schema_ids[other, version]
            return name, wrap(name, foreign, payload)
        case BadKind.OVERSIZE_PAYLOAD:
            # a later value of a field replaces an earlier one, so the event stays valid
            large = payload + delimited(2, b"x" * records.plan.oversize_bytes)
            return name, wrap(name, schema_id, large)
        case _:
            name = HOSTILE_NAMES[kind].encode()
            return name, wrap(name, schema_id, payload)


def _not_a_wrapper(bits: int) -> bytes:
    noise = bits.to_bytes(8, "big")
    field = 1 + bits % 15
    if bits & 1 << 40:
        # wire types 6 and 7 do not exist
        return tag(field, 6 + (bits >> 41 & 1)) + noise
    return tag(field, DELIMITED) + varint(100 + (bits >> 8) % 1000) + noise
