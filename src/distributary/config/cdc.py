"""Records that are changes of rows in a database."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field

from distributary.config.base import Section
from distributary.config.quantity import Duration
from distributary.config.text import Text


class Cdc(Section):
    """How change events become a log of changes and a table of current rows."""

    format: Literal["datastream", "debezium"]
    """What the events look like."""
    source_type: Text | None = Field(default=None, examples=["postgresql"])
    """Kind of database that the changes come from (mysql, postgresql, oracle, sqlserver), where
    the events do not say it."""
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
    keep_tombstones: Duration = Field(default=timedelta(days=7), examples=["7d"])
    """How long it is remembered that a row was deleted, so that an older change that comes late
    does not bring it back."""
    tombstones: Literal["skip", "delete"] = "skip"
    """What a Kafka message with a key and without a value means. delete: the row with that key is
    gone; for flattened Debezium events, which tell it in no other way by default, and which are
    then named after their topic. Behind events with an envelope it means nothing either way."""
    history: bool = False
    """Also keep every version of a row, with the times between which it was valid, in
    `<table>_history`."""
