"""Records that are changes of rows in a database."""

from __future__ import annotations

from typing import Literal

from distributary.config.base import Section


class Cdc(Section):
    """How change events become a log of changes and a table of current rows."""

    format: Literal["datastream", "debezium"]
    """What the events look like."""
    log: bool = True
    """Keep every event, as it is, in `<table>_log`; `rebuild` and `verify` need it."""
    deletes: Literal["hard", "soft"] = "hard"
    """hard: a deleted row is removed; soft: it stays, marked as deleted."""
    backfill: Literal["before_cdc", "by_timestamp"] = "before_cdc"
    """before_cdc: a backfilled row loses against any change of the same row; by_timestamp: the
    later one wins, so that a new backfill can mend lost rows."""
    evolution: Literal["mergeSchema", "overwriteSchema", "none"] = "mergeSchema"
    """When the columns of a source table change: add what is new, take the new columns only, or
    leave the table as it is."""
    history: bool = False
    """Also keep every version of a row, with the times between which it was valid, in
    `<table>_history`."""
