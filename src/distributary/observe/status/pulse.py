"""The pulse of a run for other processes: a small file beside its checkpoint.

The ledger has the settled batches. Only the run itself knows the current batch, the unread records
and the failure that is being retried. It writes them every few seconds (`pulse.json`), and the
error that ended it (`failure.json`). A killed process cannot correct its pulse, so trouble in a
pulse counts only while the owner of the checkpoint is alive.
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
"""The largest number of log lines in a pulse."""
MOST_PARTITIONS = 1000
"""The largest number of partitions with their own lag in a pulse; the sum covers all."""
MOST_HEARTBEATS = 1000
"""The largest number of connectors with heartbeats in a pulse, those with the newest first."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """The unread records of the source."""

    at: datetime
    """The time of the request to the source."""
    records: int
    partitions: Mapping[str, int] = field(default_factory=dict)
    """The unread records by `topic/partition`, the largest backlog first."""
    ends: Mapping[str, int] = field(default_factory=dict)
    """The ends of the same partitions: the offset that their next record will have."""


@dataclass(frozen=True, slots=True)
class UnderWay:
    """The batch under way."""

    batch: int
    started_at: datetime
    step: str
    """The current step: plan, stage, manifest, publish or settle."""
    records: int | None = None
    """The number of its records by the source's own count; None if the source cannot count them."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The pace that a run with `trigger: {freshness: ...}` has chosen, and why."""

    freshness_seconds: float
    """The setting: the time from the arrival of a record until it can be read."""
    interval_seconds: float
    """The time between the beginnings of two batches."""
    batch_seconds: float
    """The expected duration of a batch."""
    records: int
    """The expected number of records in a batch."""
    late: bool = False
    """Whether batches take so long that they follow each other without a pause."""


@dataclass(frozen=True, slots=True)
class HeldRecords:
    """The records that were read but wait for the rest of their transactions in the source."""

    records: int
    transactions: int
    example: str
    """The id of one of the transactions."""
    since: datetime
    """The time of the oldest of these records."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A failure that is being retried."""

    since: datetime
    """The time of the first failure."""
    attempts: int
    """The number of failed attempts."""
    next_try: datetime | None
    error: Mapping[str, Any]
    """The error: code, what, where, evidence and next step."""

    def as_failure(self) -> dict[str, Any]:
        """Convert to a failure as `status` shows it."""
        # untrusted content: any writer of the lake can change this file
        known = {key: value for key, value in self.error.items() if isinstance(value, str | bool)}
        more = {"since": self.since, "attempts": self.attempts, "next_try": self.next_try}
        return {**known, **plain({"at": self.since, **more})}


@dataclass(frozen=True, slots=True)
class Pulse:
    """The last pulse of a run."""

    at: datetime
    trouble: Trouble | None = None
    backlog: Backlog | None = None
    under_way: UnderWay | None = None
    lines: tuple[str, ...] = ()
    """The last log lines, the newest last, including those of the run before."""
    began: datetime | None = None
    """The start of this run; earlier batches belong to other runs."""
    ended: str = ""
    """The end of the run: `done`, `stopped` or `failed`; empty while it runs."""
    heartbeats: Mapping[str, Heartbeat] = field(default_factory=dict)
    """The newest heartbeat of each Debezium connector, by topic, including those of earlier
    runs."""
    slots: SourceSlots | None = None
    """The replication slots of the source; None without `cdc.source_url`."""
    pace: Pace | None = None
    """The pace of its batches, if the trigger is a freshness."""
    held: HeldRecords | None = None
    """The records that the last batch has held back, so that transactions stay whole."""


def write_pulse(checkpoint: Store, pulse: Pulse) -> None:
    """Replace the stored pulse. A failure to write it is ignored: the run matters more."""
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
    """Reset the pulse, because another process owns the checkpoint now."""
    found = read_pulse(checkpoint.address)
    if found is not None:
        now = datetime.now(UTC)
        of_now = replace(found, trouble=None, under_way=None, pace=None, held=None)
        write_pulse(checkpoint, replace(of_now, began=now))


# The error that ended the last run.

_OF_ERRORS: Mapping[str, type] = {
    **dict.fromkeys(("code", "what", "where", "evidence", "next_step"), str),
    "retryable": bool,
    "context": dict,
}
"""The parts of an error, with their types."""


def write_failure(checkpoint: Store, error: DistributaryError) -> None:
    """Store an error; a missing folder is not created.

    Failures are ignored: if nothing can be written, the original error matters more.
    """
    content = {"at": datetime.now(UTC).isoformat(), **error.as_dict()}
    with suppress(OSError):
        if checkpoint.exists():
            checkpoint.write(_FAILURE, json.dumps(content).encode(), durable=False)


def clear_failure(checkpoint: Store) -> None:
    """Remove the error of an earlier run, after a later run has worked."""
    with suppress(OSError):
        checkpoint.remove(_FAILURE)


def read_failure(checkpoint: str) -> dict[str, Any] | None:
    """Return the last run's error, if the run ended with one."""
    try:
        content = json.loads(at(checkpoint).read(_FAILURE))
        # untrusted content: any writer of the lake can change this file
        known = {k: v for k, v in content.items() if isinstance(v, _OF_ERRORS.get(k, ()))}
        return {"at": moment(content["at"]).isoformat(), **known}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
