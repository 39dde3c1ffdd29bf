"""Whether a subject may take a new version: levels, directions, and one table of formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from distributary.errors import ConfigError
from distributary.model.names import printable
from distributary.model.record import Format
from distributary.registry.compatibility import avro, json, protobuf


class Level(StrEnum):
    """What a new version owes to the versions before it; the words are Confluent's."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    """A reader with the new version can read data of the newest old one."""
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    """...of every old one."""
    FORWARD = "FORWARD"
    """A reader with the newest old version can read data of the new one."""
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    """Both."""
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def backward(self) -> bool:
        """Whether the new version must read what was written before."""
        return self.startswith(("BACKWARD", "FULL"))

    @property
    def forward(self) -> bool:
        """Whether old versions must read what will be written."""
        return self.startswith(("FORWARD", "FULL"))

    @property
    def transitive(self) -> bool:
        """Whether all versions count, or only the newest."""
        return self.endswith("TRANSITIVE")

    @classmethod
    def of(cls, text: str) -> Level:
        """The level with this name, in any case; ConfigError when there is none."""
        try:
            return cls(text.upper())
        except ValueError:
            raise ConfigError(
                "there is no such compatibility level",
                where="registry",
                evidence=printable(text),
                next_step=f"use one of {', '.join(cls)}",
            ) from None


@dataclass(frozen=True, slots=True)
class Version:
    """One accepted version of a subject."""

    number: int
    format: Format
    body: bytes


@dataclass(frozen=True, slots=True)
class Rules:
    """What a format has to say."""

    unreadable: Callable[[bytes, bytes], list[str]]
    """Why data of the first schema cannot be read with the second; empty when it can."""
    broken_promises: Callable[[bytes, bytes], list[str]]
    """What the first, older schema ruled out and the second, newer one does all the same."""


RULES: Mapping[Format, Rules] = {
    Format.PROTOBUF: Rules(protobuf.unreadable, protobuf.reused_numbers),
    Format.AVRO: Rules(avro.unreadable, avro.no_promises),
    Format.JSON: Rules(json.unreadable, json.no_promises),
}


def problems(body: bytes, *, format: Format, history: Sequence[Version], level: Level) -> list[str]:
    """Why a new version is not compatible with those before it; empty when it is.

    Args:
        body: The compiled new version.
        format: Its format; a subject keeps the format it began with.
        history: The accepted versions, oldest first.
        level: What has to hold.
    """
    if level is Level.NONE or not history:
        return []
    found: list[str] = []
    for old in reversed(history if level.transitive else history[-1:]):
        if old.format is not format:
            found.append(f"version {old.number} is {old.format}, the new version {format}")
            continue
        rules = RULES.get(format)
        if rules is None:
            return [f"there are no compatibility rules for {format}: set the level to NONE"]
        found += [f"version {old.number}: {m}" for m in rules.broken_promises(old.body, body)]
        if level.backward:
            reasons = rules.unreadable(old.body, body)
            found += [f"the new version cannot read version {old.number}: {m}" for m in reasons]
        if level.forward:
            reasons = rules.unreadable(body, old.body)
            found += [f"version {old.number} cannot read the new version: {m}" for m in reasons]
    return found
