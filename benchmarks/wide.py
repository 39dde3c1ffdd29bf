"""Suite `wide`: as `kafka`, with messages of 2,000 bytes and 40 fields, some of them nested."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from benchmarks.kafka import direct_case, floor_case, foreachbatch_case, noop_case
from benchmarks.order import Order, Pair, Suite
from benchmarks.topic import fill, registry_of, serving
from distributary_lab.simulate.base import SchemaSink
from distributary_lab.simulate.dice import WRAPPER, WRAPPER_SUBJECT

VERSIONS = 4
_BYTES = 2_000
_PAYLOADS = 64
"""Different payloads of a version; every game sends them in turn."""
_CHUNK = 20_000


def schema(version: int) -> str:
    """Numbers, texts, a message, a list of them and a map: 40 fields, and one more per version."""
    numbers = [f"  int64 number_{i} = {i + 1};" for i in range(12)]
    shares = [f"  double share_{i} = {i + 21};" for i in range(6)]
    texts = [f"  string text_{i} = {i + 41};" for i in range(18)]
    grown = [f"  optional string grown_{i} = {i + 101};" for i in range(version)]
    return "\n".join(
        [
            'syntax = "proto3";',
            "message event {",
            "  message place {",
            "    string country = 1; string city = 2; double lat = 3; int32 zone = 4;",
            "  }",
            *numbers,
            *shares,
            *texts,
            "  place home = 71;",
            "  repeated place visited = 72;",
            "  map<string, int64> counters = 73;",
            "  bool active = 74;",
            *grown,
            "}",
        ]
    )


class WideGames:
    """Wrapped messages of so many games."""

    def __init__(self, *, games: int, registry: SchemaSink) -> None:
        registry.set_compatibility(WRAPPER_SUBJECT, "FULL")
        registry.register(WRAPPER_SUBJECT, WRAPPER)
        self._names = [f"wide_{number}" for number in range(games)]
        self._payloads = [_payloads(version) for version in range(VERSIONS)]
        self._ids = [
            [registry.register(f"{name}-value", schema(version)) for version in range(VERSIONS)]
            for name in self._names
        ]

    def batches(self, records: int) -> Iterator[pa.RecordBatch]:
        """Games, versions and payloads by a seed."""
        dice = np.random.default_rng(1)
        for start in range(0, records, _CHUNK):
            count = min(_CHUNK, records - start)
            games = dice.integers(0, len(self._names), count)
            versions = dice.integers(0, VERSIONS, count)
            which = dice.integers(0, _PAYLOADS, count)
            values = [
                _wrapped(self._names[g], self._ids[g][v], self._payloads[v][p])
                for g, v, p in zip(games, versions, which, strict=True)
            ]
            keys = [self._names[g].encode() for g in games]
            yield pa.record_batch({"key": pa.array(keys), "value": pa.array(values)})


def _payloads(version: int) -> list[bytes]:
    dice = np.random.default_rng(version)

    def text(size: int) -> bytes:
        return bytes(dice.integers(97, 123, size, dtype=np.uint8))

    def place() -> bytes:
        return (
            _field(1, text(2))
            + _field(2, text(9))
            + _tag(3, 1)
            + np.float64(dice.random()).tobytes()
            + _tag(4, 0)
            + _varint(int(dice.integers(24)))
        )

    def payload() -> bytes:
        parts = [_tag(i + 1, 0) + _varint(int(dice.integers(1 << 40))) for i in range(12)]
        parts += [_tag(i + 21, 1) + np.float64(dice.random()).tobytes() for i in range(6)]
        parts += [_field(71, place()), *(_field(72, place()) for _ in range(3))]
        parts += [
            _field(73, _field(1, text(6)) + _tag(2, 0) + _varint(int(dice.integers(1000))))
            for _ in range(4)
        ]
        parts += [_tag(74, 0) + b"\x01"]
        parts += [_field(i + 101, text(20)) for i in range(version)]
        left = _BYTES - sum(map(len, parts))
        return b"".join(parts) + b"".join(_field(i + 41, text(left // 18 - 3)) for i in range(18))

    return [payload() for _ in range(_PAYLOADS)]


def _wrapped(name: str, schema_id: int, payload: bytes) -> bytes:
    return _field(1, name.encode()) + _tag(2, 0) + _varint(schema_id) + _field(3, payload)


def _field(number: int, content: bytes) -> bytes:
    return _tag(number, 2) + _varint(len(content)) + content


def _tag(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


@contextmanager
def prepared(order: Order) -> Iterator[Order]:
    """A topic with all batches, those that warm up first."""
    with serving(order) as served:
        games = WideGames(games=served.tables, registry=registry_of(served))
        fill(served, games.batches(served.records * served.all_batches))
        yield served


SUITE = Suite(
    name="wide",
    tables=(1, 10, 50, 200, 500, 1000),
    prepared=prepared,
    cases={
        "noop": noop_case,
        "floor": floor_case,
        "direct": direct_case,
        "foreachbatch": foreachbatch_case,
    },
    pairs=(
        Pair("wide_direct_vs_foreachbatch", "direct", "foreachbatch"),
        Pair("wide_direct_vs_arrow_floor", "direct", "floor"),
    ),
    per_table_cases={"foreachbatch": 200},
    # 100 MB a batch instead of 500
    share=0.2,
)
