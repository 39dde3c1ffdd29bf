"""The bad messages of the games: each fails in one known way, whatever the seed."""

from __future__ import annotations

from dataclasses import dataclass

from distributary.simulate.dice import roll, seed_for
from distributary.simulate.kinds import HOSTILE_NAMES, BadKind
from distributary.simulate.records import GameRecords, wrap
from distributary.simulate.wire import DELIMITED, delimited, header, tag, varint

_UNKNOWN_ID = 2_000_000_000
_UNKNOWN_IDS = 3
"""Few different ones: each may cost its reader a question to the registry."""


@dataclass(frozen=True, slots=True)
class Event:
    """The good record that stands before a bad one, which is made from it."""

    game: int
    version: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class BadMessage:
    """A message that must end in the dead letters."""

    kind: BadKind
    key: bytes | None
    value: bytes | None


def bad_message(records: GameRecords, event: Event, *, k: int) -> BadMessage:
    """The k-th bad message."""
    kind = records.plan.bad_kind(k)
    bits = roll(seed_for(records.plan.seed, "bad"), k)
    if kind is BadKind.NULL_VALUE:
        return BadMessage(kind, records.plan.names[event.game].encode(), None)
    if kind is BadKind.EMPTY_VALUE:
        return BadMessage(kind, records.plan.names[event.game].encode(), b"")
    key, value = _unframed(kind, records, event, bits)
    # as often as the good ones have it, so that a pipeline without bare messages gets none
    framed = (bits >> 11) / (1 << 53) < records.plan.share
    return BadMessage(kind, key, header(records.wrapper_id) + value if framed else value)


def _unframed(
    kind: BadKind, records: GameRecords, event: Event, bits: int
) -> tuple[bytes | None, bytes]:
    name = records.plan.names[event.game].encode()
    schema_id, payload = records.schema_ids[event.game, event.version], event.payload
    match kind:
        case BadKind.NOT_A_WRAPPER:
            return None, _not_a_wrapper(bits)
        case BadKind.UNKNOWN_SCHEMA_ID:
            return name, wrap(name, _UNKNOWN_ID + bits % _UNKNOWN_IDS, payload)
        case BadKind.BROKEN_PAYLOAD:
            # one byte of the user's name is left: its length then points past the end
            return name, wrap(name, schema_id, payload[: len(delimited(1, name)) + 3])
        case BadKind.NO_TYPE:
            return None, wrap(None, schema_id, payload)
        case BadKind.NO_SCHEMA_ID:
            return name, wrap(name, None, payload)
        case BadKind.WRONG_SUBJECT:
            return name, wrap(name, _foreign_id(records, event), payload)
        case BadKind.OVERSIZE_PAYLOAD:
            # a later value of a field replaces an earlier one, so the event stays a valid one
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


def _foreign_id(records: GameRecords, event: Event) -> int:
    """The id of another game, or of the wrapper when there is only one game."""
    other = (event.game + 1) % records.plan.games
    return records.wrapper_id if other == event.game else records.schema_ids[other, event.version]
