"""A table that cannot be written now: its batch waits in the parking folder."""

from __future__ import annotations

from distributary.errors import DistributaryError
from distributary.model.manifest import TableEntry
from distributary.observe.events import TableParked
from distributary.publish.base import Mark, Outcome, Published
from distributary.publish.parking import park
from distributary.run.context import RunContext

BEHIND_OTHERS = "waits behind earlier batches"


def reason_of(error: DistributaryError) -> str:
    """Why a table is parked, in one line."""
    return f"{error.code}: {error.evidence or error.what}"


def park_failed(context: RunContext, entry: TableEntry, mark: Mark, reason: str) -> Published:
    """Park the batch of one table."""
    park(entry, mark, folder=context.parking, reason=reason)
    context.bus.publish(
        TableParked(
            pipeline=context.config.name,
            batch=mark.batch,
            table=entry.table.name,
            records=entry.records,
            error=reason,
        )
    )
    return Published(entry.table.name, Outcome.PARKED, error=reason)
