"""How a run does right now, for other processes: a small file beside its checkpoint.

The ledger says what was done. What is under way, what is not read yet and what is tried again after
a failure is known by the run alone, so it writes that down every few seconds (`pulse.json`), and
the error that ended it (`failure.json`). A process that was killed cannot take anything back: what
a pulse says about trouble counts only as long as the owner of the checkpoint is alive.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from distributary.errors import DistributaryError
from distributary.model.change import Heartbeat, SourceSlots
from distributary.observe.documents import read_as
from distributary.observe.log_format import moment, plain
from distributary.store.base import Store, at

FORMAT = 1
_PULSE, _FAILURE = "pulse.json", "failure.json"
MOST_LINES = 60
"""Lines of its log that a run keeps for others."""
MOST_PARTITIONS = 1000
"""Partitions whose lag is told one by one; the sum is of all."""
MOST_HEARTBEATS = 1000
"""Connectors whose heartbeats are remembered, those with the newest first."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """What the source holds and no table has yet."""

    at: datetime
    """When the source was asked."""
    records: int
    partitions: Mapping[str, int] = field(default_factory=dict)
    """The same by `topic/partition`, the furthest behind first."""


@dataclass(frozen=True, slots=True)
class UnderWay:
    """The batch that is being worked on."""

    batch: int
    started_at: datetime
    step: str
    """plan, stage, manifest, publish or settle."""
    records: int | None = None
    """How many the source says are in it, where it can tell beforehand."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A failure that is tried again."""

    since: datetime
    """When it failed first."""
    attempts: int
    """How often it has failed since."""
    next_try: datetime | None
    error: Mapping[str, Any]
    """Code, what, where, evidence and next step."""

    def as_failure(self) -> dict[str, Any]:
        """Convert to a failure as `status` shows it."""
        # whoever can write to a lake can write what they like into this
        known = {key: value for key, value in self.error.items() if isinstance(value, str | bool)}
        more = {"since": self.since, "attempts": self.attempts, "next_try": self.next_try}
        return {**known, **plain({"at": self.since, **more})}


@dataclass(frozen=True, slots=True)
class Pulse:
    """What a run has said of itself last."""

    at: datetime
    trouble: Trouble | None = None
    backlog: Backlog | None = None
    under_way: UnderWay | None = None
    lines: tuple[str, ...] = ()
    """Its last words, the newest at the end; also those of the run before."""
    began: datetime | None = None
    """When this run began: batches before that were those of another."""
    ended: str = ""
    """How the run ended: `done`, `stopped` or `failed`; empty while it goes on."""
    heartbeats: Mapping[str, Heartbeat] = field(default_factory=dict)
    """The newest heartbeat of each Debezium connector, by topic; also what earlier runs have read.
    """
    slots: SourceSlots | None = None
    """The replication slots of the source; None without `cdc.source_url`."""


def write_pulse(checkpoint: Store, pulse: Pulse) -> None:
    """Put it in place of the one before; where it cannot be written, it is not what counts."""
    with suppress(OSError):
        text = json.dumps({"format": FORMAT, **plain(pulse)}).encode()
        checkpoint.write(_PULSE, text, durable=False)


def read_pulse(checkpoint: str) -> Pulse | None:
    """Return the stored pulse; None if there is none, or if it cannot be read."""
    try:
        return read_as(Pulse, json.loads(at(checkpoint).read(_PULSE)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def begin_pulse(checkpoint: Store) -> None:
    """Another process owns the checkpoint now: what the one before did is no longer under way."""
    found = read_pulse(checkpoint.address)
    if found is not None:
        now = datetime.now(UTC)
        write_pulse(checkpoint, replace(found, trouble=None, under_way=None, began=now))


# Why the last run ended, if an error ended it.

_OF_ERRORS: Mapping[str, type] = {
    **dict.fromkeys(("code", "what", "where", "evidence", "next_step"), str),
    "retryable": bool,
    "context": dict,
}
"""What an error tells of itself, and the types of it."""


def write_failure(checkpoint: Store, error: DistributaryError) -> None:
    """Remember an error; a folder that is not there is not made for it.

    Where the error is that nothing can be written, neither can this: the error is what counts.
    """
    content = {"at": datetime.now(UTC).isoformat(), **error.as_dict()}
    with suppress(OSError):
        if checkpoint.exists():
            checkpoint.write(_FAILURE, json.dumps(content).encode(), durable=False)


def clear_failure(checkpoint: Store) -> None:
    """Forget the error of an earlier run: a later one has worked, or has ended without an error."""
    with suppress(OSError):
        checkpoint.remove(_FAILURE)


def read_failure(checkpoint: str) -> dict[str, Any] | None:
    """Return the last run's error, if the run ended with one."""
    try:
        content = json.loads(at(checkpoint).read(_FAILURE))
        # whoever can write to a lake can write what they like into this
        known = {k: v for k, v in content.items() if isinstance(v, _OF_ERRORS.get(k, ()))}
        return {"at": moment(content["at"]).isoformat(), **known}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
