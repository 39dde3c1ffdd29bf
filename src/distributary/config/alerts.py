"""What people are told while a pipeline runs, and where."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated

from annotated_types import Ge
from pydantic import BeforeValidator, Field

from distributary.config.alert_targets import Target
from distributary.config.base import Conflict, Section
from distributary.config.quantity import Duration, PositiveDuration, Share
from distributary.config.text import HttpUrl

# a pipeline without work gives a sign of life every half minute
_SHORTEST_FRESHNESS = timedelta(minutes=1)


class DeadLetterRate(Section):
    """How many dead letters are too many."""

    share: Share | None = 0.01
    """Most of the records that were read: 1% or 0.01; not looked at when null."""
    count: int | None = Field(default=None, ge=0, examples=[100])
    """Most dead letters; not looked at when left out."""
    within: PositiveDuration = Field(default=timedelta(minutes=5), examples=["5m"])
    """The time over which they are counted."""

    def conflicts(self) -> Iterator[Conflict]:
        """At least one limit."""
        if self.share is None and self.count is None:
            yield (), "needs share or count"


def _rate(value: object) -> object:
    """`true` is the usual rate, `false` none."""
    match str(value).lower():
        case "true":
            return {}
        case "false":
            return None
    return value


class AlertsOn(Section):
    """What is told."""

    failure: bool = True
    """A batch failed and is tried again, or the pipeline stopped because of it."""
    parked: bool = True
    """A table could not be written, and its batches wait."""
    dead_letters: Annotated[
        DeadLetterRate | None,
        BeforeValidator(_rate, json_schema_input_type=DeadLetterRate | bool | None),
    ] = Field(default_factory=DeadLetterRate)
    """Too many records became dead letters: more than the share or more than the count. true for
    the usual rate, false for never."""
    freshness: Annotated[Duration, Ge(_SHORTEST_FRESHNESS)] | None = Field(
        default=None, examples=["15m"]
    )
    """Tables were not brought up to date for so long; never when left out."""
    invariant: bool = True
    """A batch does not add up."""
    schema_: Annotated[bool, Field(alias="schema")] = False
    """A new version of a schema was met."""
    table: bool = False
    """A new table was made."""


class AtMost(Section):
    """How many messages a target gets; what is beyond waits and is told in one message."""

    messages: int = Field(default=20, ge=1)
    """Most messages."""
    within: PositiveDuration = timedelta(minutes=10)
    """The time over which they are counted."""


class Alerts(Section):
    """Messages to people when something needs them, and when it is over."""

    on: AlertsOn = Field(default_factory=AlertsOn)
    """What is told."""
    to: tuple[Target, ...] = ()
    """Where it is told; nowhere when left out."""
    at_most: AtMost = Field(default_factory=AtMost)
    """How many messages each target gets."""
    dashboard_url: HttpUrl | None = Field(default=None, examples=["http://127.0.0.1:8500"])
    """Address of the dashboard, for links in messages; none when left out."""

    def conflicts(self) -> Iterator[Conflict]:
        """Targets that can be told apart."""
        if len(set(self.names)) != len(self.names):
            yield ("to",), "has two targets of the same name"

    @property
    def names(self) -> tuple[str, ...]:
        """What each target is called, in their order."""
        return tuple(
            target.name or f"{target.type}-{number}" for number, target in enumerate(self.to, 1)
        )
