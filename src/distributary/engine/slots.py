"""The log that the source database keeps for its replication slots, measured beside a run.

A separate thread asks every half minute, because the answer may take long: neither a batch nor the
measurement of the lag waits for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from distributary.config.database import parse_address
from distributary.errors import DistributaryError
from distributary.model.change import Slot, SourceSlots

_log = logging.getLogger(__name__)

ASK_SECONDS = 30.0
MOST_SLOTS = 100
"""The largest number of slots in a report: those that hold back most log."""
_PATIENCE = {"connect_timeout": "10", "tcp_user_timeout": "10000"}
"""Options of the connection: an unreachable database is noticed after ten seconds."""


def ask_slots(url: str) -> tuple[Slot, ...]:
    """Return the slots that decode the changes of a database. Raises DistributaryError."""
    from distributary.changes.source.base import connect

    address = parse_address(url, where="cdc.source_url")
    database = connect(replace(address, options={**_PATIENCE, **address.options}))
    try:
        slots = [slot for slot in database.slots() if slot.database == address.database]
    finally:
        database.close()
    return tuple(sorted(slots, key=lambda slot: (not slot.lost, -slot.bytes))[:MOST_SLOTS])


class SlotWatch:
    """The last report of the source database about its slots, updated during the context."""

    def __init__(
        self,
        url: str,
        *,
        mask: Callable[[str], str] = str,
        every: float = ASK_SECONDS,
        ask: Callable[[str], tuple[Slot, ...]] = ask_slots,
    ) -> None:
        self._url, self._mask, self._every, self._ask = url, mask, every, ask
        self._ended = threading.Event()
        self.latest: SourceSlots | None = None
        """The newest report; None before the first."""

    def __enter__(self) -> SlotWatch:
        # a daemon thread, because the answer of a database may take long
        threading.Thread(target=self._watch, name="slots", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.is_set():
            self.latest = self._look(self.latest or SourceSlots())
            self._ended.wait(self._every)

    def _look(self, before: SourceSlots) -> SourceSlots:
        """Ask the database; without an answer, keep the earlier report."""
        try:
            return SourceSlots(datetime.now(UTC), self._ask(self._url))
        except DistributaryError as error:
            text = f"{error.what}: {error.evidence}" if error.evidence else error.what
        except Exception as error:
            # a driver may raise any error, and the run continues
            text = f"{type(error).__name__}: {error}"
        text = self._mask(" ".join(text.split()))[:500]
        if text != before.error:
            _log.warning("the replication slots of the source are not known: %s", text)
        return replace(before, error=text)
