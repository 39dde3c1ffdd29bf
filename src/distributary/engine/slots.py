"""How much log the source database keeps for its replication slots, asked beside a run.

A thread of its own asks every half minute, because a database may take its time to answer: neither
a batch nor the measuring of the lag waits for it.
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
"""Slots that are kept, those that hold back most."""
_PATIENCE = {"connect_timeout": "10", "tcp_user_timeout": "10000"}
"""Options of the connection: a database that is away is known as such after ten seconds."""


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
    """What the source database said of its slots last, for as long as the context lasts."""

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
        """The newest answer; None before the first."""

    def __enter__(self) -> SlotWatch:
        # nobody waits for its end: the answer of a database may take long
        threading.Thread(target=self._watch, name="slots", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.is_set():
            self.latest = self._look(self.latest or SourceSlots())
            self._ended.wait(self._every)

    def _look(self, before: SourceSlots) -> SourceSlots:
        """Ask the database; what it said before stays known while it does not answer."""
        try:
            return SourceSlots(datetime.now(UTC), self._ask(self._url))
        except DistributaryError as error:
            text = f"{error.what}: {error.evidence}" if error.evidence else error.what
        except Exception as error:
            # a driver may raise anything, and a run goes on whatever it is
            text = f"{type(error).__name__}: {error}"
        text = self._mask(" ".join(text.split()))[:500]
        if text != before.error:
            _log.warning("the replication slots of the source are not known: %s", text)
        return replace(before, error=text)
