"""The pause of a pipeline: a small file beside its checkpoint, which its run looks for.

A person writes it with `pause` and removes it with `continue`, from any machine that reaches the
checkpoint. It outlives the process, so that a restart does not end the pause.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from distributary.observe.documents import read_as
from distributary.observe.log_format import plain
from distributary.store.base import Store, at, reaching

FORMAT = 1
_PAUSE = "pause.json"
_BUCKET_SECONDS = 5.0
"""The seconds between two looks at a bucket, where each is a request."""
LONGEST_NOTE = 300


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of a pipeline: no batch is read and no table is written."""

    since: datetime | None = None
    """The beginning of the pause; None if the file cannot be read, which still counts as a
    pause."""
    note: str = ""
    """The reason that the person gave who paused the pipeline."""


def write_pause(checkpoint: Store, note: str = "") -> Pause:
    """Pause a pipeline; a pause that exists keeps its beginning and gets the new note."""
    with reaching(checkpoint.address):
        before = read_pause(checkpoint)
        since = before.since if before is not None else None
        now = datetime.now(UTC).replace(microsecond=0)
        pause = Pause(since or now, note[:LONGEST_NOTE])
        checkpoint.write(_PAUSE, json.dumps({"format": FORMAT, **plain(pause)}).encode())
    return pause


def end_pause(checkpoint: Store) -> Pause | None:
    """Remove the pause and return it; None if the pipeline was not paused."""
    with reaching(checkpoint.address):
        before = read_pause(checkpoint)
        if before is not None:
            checkpoint.remove(_PAUSE)
    return before


def read_pause(checkpoint: Store | str) -> Pause | None:
    """Return the pause of a checkpoint; None if there is none."""
    store = at(checkpoint) if isinstance(checkpoint, str) else checkpoint
    try:
        data = store.read(_PAUSE)
    except FileNotFoundError:
        return None
    try:
        found = read_as(Pause, json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Pause()
    return Pause(found.since, found.note[:LONGEST_NOTE])


class PauseWatch:
    """A watch for the pause of one checkpoint; it reads from a bucket every few seconds only."""

    def __init__(self, checkpoint: Store) -> None:
        self._checkpoint = checkpoint
        self._every = 0.0 if checkpoint.asks_for_free else _BUCKET_SECONDS
        self._looked_at = -self._every
        self._found: Pause | None = None

    def look(self) -> Pause | None:
        """Return the pause as it was at the last look; an unreachable checkpoint changes nothing.

        The next batch reports a checkpoint that cannot be reached.
        """
        now = time.monotonic()
        if self._every and now - self._looked_at < self._every:
            return self._found
        try:
            self._found = read_pause(self._checkpoint)
        except OSError:
            return self._found
        self._looked_at = now
        return self._found
