"""What the games simulator is asked to send: counts and order follow from the plan alone."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Literal

from distributary.errors import ConfigError
from distributary.simulate.dice import roll, sample, seed_for
from distributary.simulate.kinds import DEFAULT_KINDS, BadKind
from distributary.simulate.names import game_names
from distributary.simulate.schemas import MAX_VERSION

_FIRST_START = datetime(2024, 1, 1, tzinfo=UTC)
_MINUTES_OF_A_YEAR = 365 * 24 * 60


@dataclass(frozen=True, kw_only=True)
class GamesPlan:
    """Exactly `games * rounds * records` good messages, and `bad` bad ones between them.

    A record is known by its index: `(round * records + row) * games + game`, rounds counted from
    version 1, so that a later plan with a higher `start_version` goes on where this one ends.
    """

    games: int = 5
    versions: int = 5
    records: int = 10
    """Good messages per game and round."""
    seed: int = 999
    bad: int = 0
    """Bad messages, in addition to the good ones."""
    bad_kinds: tuple[BadKind, ...] = DEFAULT_KINDS
    late: int = 0
    """How many messages of old versions are held back and sent at the end."""
    type_change: bool = False
    """In the newest version, one field of the first game changes its type."""
    framed: float | Literal["mixed"] = "mixed"
    """The share of messages with the registry's header; `mixed` is half of them."""
    start_version: int = 1
    """The first version that is sent; version v has v columns of its own."""
    rounds: int | None = None
    """A round brings a version; rounds beyond the last version bring more records of it."""
    start: datetime | None = None
    """Time of the first event; without it, some minute of 2024 that depends on the seed."""
    oversize_bytes: int = 16 * 1024 * 1024 + 1
    """Size of an oversize payload."""

    def __post_init__(self) -> None:
        for name in ("games", "versions", "records", "start_version"):
            self._need(getattr(self, name) >= 1, name, "at least 1")
        self._need(self.last_version <= MAX_VERSION, "versions", f"no version above {MAX_VERSION}")
        self._need(self.bad >= 0, "bad", "0 or more")
        self._need(not self.bad or bool(self.bad_kinds), "bad_kinds", "at least one kind")
        self._need(self.round_count >= self.versions, "rounds", "at least as many as versions")
        self._need(self.framed == "mixed" or 0 <= self.share <= 1, "framed", "0 to 1, or mixed")
        self._need(not self.type_change or self.versions > 1, "versions", "2 for a type change")
        most = self.round_size * (self.versions - 1)
        self._need(0 <= self.late <= most, "late", f"0 to {most}, the records of old versions")
        aware = self.start is None or self.start.tzinfo is not None
        self._need(aware and self.start_millis > 0, "start", "a time with a zone, after 1970")
        self._need(self.oversize_bytes >= 1, "oversize_bytes", "at least 1")

    def _need(self, holds: bool, name: str, wanted: str) -> None:
        if not holds:
            raise ConfigError(
                "these games cannot be simulated",
                where=name,
                evidence=repr(getattr(self, name))[:80],
                next_step=f"use {wanted}",
            )

    @property
    def last_version(self) -> int:
        """The newest version that is sent."""
        return self.start_version + self.versions - 1

    @property
    def round_count(self) -> int:
        """How many rounds there are."""
        return self.versions if self.rounds is None else self.rounds

    @property
    def round_size(self) -> int:
        """Good messages that belong to a round."""
        return self.games * self.records

    @property
    def good(self) -> int:
        """Good messages in all."""
        return self.round_size * self.round_count

    @property
    def share(self) -> float:
        """The share of messages with the registry's header."""
        return 0.5 if self.framed == "mixed" else self.framed

    @property
    def start_millis(self) -> int:
        """Time of the first event of version 1, in milliseconds since 1970."""
        minutes = seed_for(self.seed, "start") % _MINUTES_OF_A_YEAR
        start = self.start or _FIRST_START + timedelta(minutes=minutes)
        return int(start.timestamp() * 1000)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The games."""
        return game_names(self.games, seed=self.seed)

    def version_of(self, number: int) -> int:
        """The version that a round brings; rounds count from 0."""
        return min(self.start_version + number, self.last_version)

    def changes_type(self, game: int, version: int) -> bool:
        """Whether this version of a game has the field of another type."""
        return self.type_change and game == 0 and version == self.last_version

    @cached_property
    def _first(self) -> int:
        return (self.start_version - 1) * self.round_size

    @cached_property
    def held_back(self) -> tuple[int, ...]:
        """The records that come late, in the order in which they come."""
        old = self.round_size * (self.versions - 1)
        return tuple(self._first + i for i in sample(seed_for(self.seed, "late"), old, self.late))

    def in_time(self, number: int) -> Sequence[int]:
        """The records of a round that are not held back."""
        start = self._first + number * self.round_size
        indexes = range(start, start + self.round_size)
        held = {index for index in self.held_back if index in indexes}
        return [index for index in indexes if index not in held] if held else indexes

    @property
    def late_slots(self) -> range:
        """The places of the late records in time: after everything else."""
        end = self._first + self.good
        return range(end, end + self.late)

    def good_before(self, number: int) -> int:
        """Good messages that are sent before a round."""
        if number == self.round_count:
            return self.good
        start = self._first + number * self.round_size
        return number * self.round_size - bisect_left(sorted(self.held_back), start)

    def bad_before(self, number: int) -> int:
        """Bad messages that are sent before a round."""
        return bisect_left(range(self.bad), self.good_before(number) + 1, key=self.bad_after)

    def bad_after(self, k: int) -> int:
        """How many good messages stand before the k-th bad one: at least one, and never less."""
        jitter = roll(seed_for(self.seed, "bad positions"), k) % self.good
        return 1 + (k * self.good + jitter) // self.bad

    def bad_kind(self, k: int) -> BadKind:
        """What is wrong with the k-th bad message."""
        return self.bad_kinds[k % len(self.bad_kinds)]
