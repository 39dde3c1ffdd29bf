"""Facts become values that any JSON parser reads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import StrEnum

from distributary.observe.log_format import plain


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Fact:
    at: datetime
    parts: tuple[bytes, ...]
    colour: Colour = Colour.RED


def test_everything_is_plain():
    east = timezone(timedelta(hours=2))
    fact = Fact(datetime(2026, 11, 15, 14, 2, tzinfo=east), (b"\x00\xff",))
    assert plain(fact) == {"at": "2026-11-15T12:02:00.000Z", "parts": ["00ff"], "colour": "red"}
    assert type(plain(fact)["colour"]) is str


def test_values_without_a_json_form():
    values = {
        1: Decimal("1.50"),
        "nan": float("nan"),
        "inf": float("inf"),
        "day": date(2026, 1, 2),
        "naive": datetime(2026, 1, 2),
        "pause": timedelta(seconds=90),
        "set": frozenset({"x"}),
        "none": None,
        "yes": True,
    }
    told = plain(values)
    assert told["1"] == "1.50" and told["nan"] is None and told["inf"] is None
    assert told["naive"] == "2026-01-02T00:00:00.000Z" and told["pause"] == 90.0
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert plain(datetime(2026, 1, 2, tzinfo=UTC)) == "2026-01-02T00:00:00.000Z"
