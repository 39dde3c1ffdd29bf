"""What every simulator asks of its plan: values that can be, and names that exist."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from enum import StrEnum
from typing import ClassVar, TypeVar

from distributary.errors import ConfigError
from distributary.lab.simulate.dice import seed_for

_FIRST_START = datetime(2024, 1, 1, tzinfo=UTC)
_MINUTES_OF_A_YEAR = 365 * 24 * 60

Choice = TypeVar("Choice", bound=StrEnum)


class Plan:
    """What a simulator is asked to send; a ConfigError where that cannot be."""

    refusal: ClassVar[str]
    """Says that it cannot be."""

    def _need(self, holds: bool, name: str, wanted: str) -> None:
        if not holds:
            raise ConfigError(
                self.refusal,
                where=name,
                evidence=repr(getattr(self, name))[:80],
                next_step=f"use {wanted}",
            )


def some_start(seed: int) -> datetime:
    """Some minute of 2024 that depends on the seed."""
    return _FIRST_START + timedelta(minutes=seed_for(seed, "start") % _MINUTES_OF_A_YEAR)


def chosen(
    names: Iterable[str], kinds: type[Choice], *, what: str, where: str
) -> tuple[Choice, ...]:
    """Values by the names a person types, in their order; an unknown one is a ConfigError."""
    found = []
    for name in names:
        if name not in set(kinds):
            near = get_close_matches(name, list(kinds), n=1)
            raise ConfigError(
                f"there is no such {what}",
                where=where,
                evidence=repr(name)[:80],
                next_step=f"did you mean {near[0]}?" if near else f"one of: {', '.join(kinds)}",
            )
        found.append(kinds(name))
    return tuple(found)
