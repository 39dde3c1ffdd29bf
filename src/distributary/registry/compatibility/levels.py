"""Decides whether a subject may take a new version: levels, directions, and a check per format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from distributary.errors import ConfigError
from distributary.model.names import printable
from distributary.model.record import Format


class Level(StrEnum):
    """Confluent's compatibility levels: the promises of a new version to the versions before it."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    """A reader with the new version can read data of the newest old one."""
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    """A reader with the new version can read data of every old one."""
    FORWARD = "FORWARD"
    """A reader with the newest old version can read data of the new one."""
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    """Both directions."""
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def backward(self) -> bool:
        """Return True if the new version must read data of old versions."""
        return self.startswith(("BACKWARD", "FULL"))

    @property
    def forward(self) -> bool:
        """Return True if old versions must read data of the new version."""
        return self.startswith(("FORWARD", "FULL"))

    @property
    def transitive(self) -> bool:
        """Return True if all versions count, and False if only the newest counts."""
        return self.endswith("TRANSITIVE")

    @classmethod
    def of(cls, text: str) -> Level:
        """Return the level with this name, in any case; raise ConfigError if it does not exist."""
        try:
            return cls(text.upper())
        except ValueError:
            raise ConfigError(
                "the compatibility level does not exist",
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
"""Returns the reasons why data of the first schema cannot be read with the second."""


def _check_of(format: Format) -> Unreadable:
    # imported on demand, as in `compile_schema`, because reading schemas needs none of them
    match format:
        case Format.PROTOBUF:
            from distributary.registry.compatibility.protobuf_compatibility import unreadable
        case Format.AVRO:
            from distributary.registry.compatibility.avro_compatibility import unreadable
        case Format.JSON:
            from distributary.registry.compatibility.json_compatibility import unreadable
    return unreadable


def problems(body: bytes, *, format: Format, history: Sequence[Version], level: Level) -> list[str]:
    """Return the reasons why a new version is incompatible with `history`, given oldest first."""
    if level is Level.NONE:
        return []
    messages: list[str] = []
    for old in reversed(history if level.transitive else history[-1:]):
        if old.format is not format:
            # a subject keeps its first format
            messages.append(f"version {old.number} is {old.format}, the new version {format}")
            continue
        if format is Format.PROTOBUF:
            from distributary.registry.compatibility.protobuf_compatibility import reused_numbers

            reused = reused_numbers(old.body, body)
            messages += [f"version {old.number}: {message}" for message in reused]
        unreadable = _check_of(format)
        if level.backward:
            reasons = unreadable(old.body, body)
            messages += [
                f"the new version cannot read version {old.number}: {message}"
                for message in reasons
            ]
        if level.forward:
            reasons = unreadable(body, old.body)
            messages += [
                f"version {old.number} cannot read the new version: {message}"
                for message in reasons
            ]
    return messages
