"""Repeatable random draws, and the names, wire formats and schemas of the simulated streams.

A draw is a function of a seed and an index. The standard library guarantees only `random()` to stay
the same between Python versions; the bytes of a simulated stream must not depend on the
interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from itertools import count, islice

import pyarrow as pa
import pyarrow.compute as pc

from distributary.registry.compile.avro_schema import varint as any_varint

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31


def seed_for(seed: int, purpose: str) -> int:
    """Derive a seed for one purpose, so that draws for one purpose never shift others."""
    return int.from_bytes(blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest(), "big")


def roll(seed: int, index: int) -> int:
    """Return 64 uniform bits for one index (the finaliser of splitmix64)."""
    x = (seed + index * _STEP) & _MASK
    for shift, factor in _MIX:
        x = ((x ^ (x >> shift)) * factor) & _MASK
    return x ^ (x >> _LAST_SHIFT)


def rolls(seed: int, indexes: pa.UInt64Array) -> pa.UInt64Array:
    """Return `roll` for many indexes; unsigned integers wrap around, as required."""
    x = pc.add(pc.multiply(indexes, u64(_STEP)), u64(seed))
    for shift, factor in _MIX:
        x = pc.multiply(pc.bit_wise_xor(x, pc.shift_right(x, u64(shift))), u64(factor))
    return pc.bit_wise_xor(x, pc.shift_right(x, u64(_LAST_SHIFT)))


def sample(seed: int, population: int, count: int) -> list[int]:
    """Return `count` different numbers below `population`, in a random order.

    A longer sample of the same seed begins with the shorter one.
    """
    moved: dict[int, int] = {}
    picked = []
    for k in range(count):
        j = k + roll(seed, k) % (population - k)
        picked.append(moved.get(j, j))
        moved[j] = moved.get(k, k)
    return picked


def u64(number: int) -> pa.UInt64Scalar:
    """Return the number as an unsigned 64-bit Arrow scalar."""
    return pa.scalar(number, pa.uint64())


# Readable, unique names of games and players.

GAMES = (
    "asteroid checkers backgammon robot wizard spades euchre polo bridge solitaire domino mahjong "
    "go shogi cribbage canasta whist tarot darts bowling billiards snooker croquet hockey soccer "
    "tennis golf cricket rugby hearts curling archery fencing boxing sumo judo rowing sailing "
    "surfing skating skiing racing rally karting puzzle maze trivia hangman bingo lotto roulette "
    "blackjack baccarat pinball chess dungeon kingdom pirate dragon rummy galaxy poker castle"
).split()

MOODS = (
    "amber ancient arctic autumn blazing brave bright bronze calm clever copper cosmic crimson "
    "crystal daring desert electric emerald endless epic fierce frozen gentle giant golden grand "
    "hidden iron ivory jade jolly lucky lunar magic mighty misty neon noble northern quiet rapid "
    "royal ruby rustic scarlet secret silent silver solar stormy swift tiny velvet wild winter"
).split()

ANIMALS = (
    "badger beaver bison crane dingo eagle falcon ferret finch fox gecko heron ibis jackal koala "
    "lemur lynx marten mole moose newt ocelot otter owl panda puffin quail raven robin salmon seal "
    "stoat swan tapir tiger toad viper walrus wombat yak"
).split()


def game_names(how_many: int, *, seed: int) -> tuple[str, ...]:
    """Return names: `chess_game`, then `royal_chess_game`, then `royal_chess_2_game`.

    A longer list of the same seed begins with the shorter one.
    """
    return tuple(islice(_game_names(seed), how_many))


def _game_names(seed: int) -> Iterator[str]:
    for i in sample(seed_for(seed, "games"), len(GAMES), len(GAMES)):
        yield f"{GAMES[i]}_game"
    pairs = [f"{mood}_{game}" for mood in MOODS for game in GAMES]
    order = sample(seed_for(seed, "pairs"), len(pairs), len(pairs))
    for i in order:
        yield f"{pairs[i]}_game"
    for number in count(2):
        for i in order:
            yield f"{pairs[i]}_{number}_game"


def user_names() -> tuple[str, ...]:
    """Return the names of about 2,000 players, such as `amber_otter`, the same for every seed."""
    return tuple(f"{mood}_{animal}" for mood in MOODS for animal in ANIMALS)


# The parts of the protobuf and registry wire formats that the simulators write.
#
# Filling values into a template per schema is several times faster than building message objects;
# tests compare the bytes with the official runtime.

VARINT, DELIMITED, FIXED32 = 0, 2, 5


def varint(number: int) -> bytes:
    """Encode a number of 0 or more with seven bits per byte, lowest first."""
    return _SMALL[number] if number < len(_SMALL) else any_varint(number)


_SMALL = tuple(any_varint(n) for n in range(4096))


def tag(number: int, wire_type: int) -> bytes:
    """Encode the tag in front of a field's value."""
    return varint(number << 3 | wire_type)


def delimited(number: int, body: bytes) -> bytes:
    """Encode a string, bytes or message field."""
    return tag(number, DELIMITED) + varint(len(body)) + body


def header(schema_id: int) -> bytes:
    """Return the registry's header for a file's first message: magic, schema id, message index."""
    return b"\x00" + schema_id.to_bytes(4, "big") + b"\x00"


# Schemas that the simulators register.

WRAPPER_SUBJECT = "wrapper-value"
WRAPPER = """\
message wrapper {
  optional string game_name = 1;
  optional int32 schema_id = 2;
  optional bytes payload = 3;
}
"""

PEOPLE_SUBJECT = "people-value"

FIRST_CUSTOM_FIELD = 5
CHANGED_FIELD = "is_connection_stable"
CHANGED_NUMBER = 10_000
"""A field number above all custom columns and below protobuf's reserved range."""
MAX_VERSION = 5_000


def event_subject(game: str) -> str:
    """Return the subject of a game's event."""
    return f"{game}-value"


def custom_columns(game: str, version: int) -> tuple[str, ...]:
    """Return the custom columns of a game: version v has v of them."""
    return tuple(f"col_{game}_{i}" for i in range(version))


def event_columns(game: str, version: int) -> tuple[str, ...]:
    """Return the names of all fields of a game's event; a changed type keeps its name."""
    common = ("game_name", "user_name", "event_timestamp", CHANGED_FIELD)
    return (*common, *custom_columns(game, version))


def event(game: str, version: int, *, changed: bool = False) -> str:
    """Return the schema of a game's event; `changed` makes a string field a number field."""
    lines = [
        'syntax = "proto3";',
        'import "google/protobuf/timestamp.proto";',
        "message event {",
        "  reserved 4;" if changed else None,
        "  string game_name = 1;",
        "  string user_name = 2;",
        "  google.protobuf.Timestamp event_timestamp = 3;",
        None if changed else f"  string {CHANGED_FIELD} = 4;",
        *(
            f"  optional string {column} = {FIRST_CUSTOM_FIELD + i};"
            for i, column in enumerate(custom_columns(game, version))
        ),
        f"  int32 {CHANGED_FIELD} = {CHANGED_NUMBER};" if changed else None,
        "}",
    ]
    return "".join(f"{line}\n" for line in lines if line is not None)


def person_columns(version: int) -> tuple[str, ...]:
    """Return all fields of a person: version v has v measures."""
    return ("id", "name", "email", "quantity", *(f"measure{i}" for i in range(version)))


def person(version: int) -> str:
    """Return the schema of a person with `version` measures; the message name stays the same."""
    measures = "".join(
        f"  optional float measure{i} = {FIRST_CUSTOM_FIELD + i};\n" for i in range(version)
    )
    return f"""\
syntax = "proto2";
package example;
message Person {{
  optional int64 id = 1;
  optional string name = 2;
  optional string email = 3;
  optional int64 quantity = 4;
{measures}}}
"""
