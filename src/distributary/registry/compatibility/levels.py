"""Whether a subject may take a new version: levels, directions, and one table of formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from distributary.errors import ConfigError
from distributary.model.names import printable
from distributary.model.record import Format


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


Unreadable = Callable[[bytes, bytes], list[str]]
"""Why data of the first schema cannot be read with the second; empty when it can."""


def _check_of(format: Format) -> Unreadable:
    # one by one, as `compile_schema` does: who only looks for a schema needs none of them
    match format:
        case Format.PROTOBUF:
            from distributary.registry.compatibility.protobuf import unreadable
        case Format.AVRO:
            from distributary.registry.compatibility.avro import unreadable
        case Format.JSON:
            from distributary.registry.compatibility.json import unreadable
    return unreadable


def problems(body: bytes, *, format: Format, history: Sequence[Version], level: Level) -> list[str]:
    """Why a compiled new version is not compatible with those before it, given oldest first."""
    if level is Level.NONE:
        return []
    found: list[str] = []
    for old in reversed(history if level.transitive else history[-1:]):
        if old.format is not format:
            # a subject keeps the format it began with
            found.append(f"version {old.number} is {old.format}, the new version {format}")
            continue
        if format is Format.PROTOBUF:
            from distributary.registry.compatibility.protobuf import reused_numbers

            reused = reused_numbers(old.body, body)
            found += [f"version {old.number}: {m}" for m in reused]
        unreadable = _check_of(format)
        if level.backward:
            reasons = unreadable(old.body, body)
            found += [f"the new version cannot read version {old.number}: {m}" for m in reasons]
        if level.forward:
            reasons = unreadable(body, old.body)
            found += [f"version {old.number} cannot read the new version: {m}" for m in reasons]
    return found
