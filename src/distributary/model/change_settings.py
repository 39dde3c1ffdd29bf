"""What a change decoder must be told beside the schema of its events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class ChangeSettings:
    """How the events of one pipeline are to be understood."""

    format: Literal["datastream", "debezium"] = "datastream"
    """What the events look like."""
    source_type: str = ""
    """The kind of database, for events that do not say it; empty: as the events look."""
    backfill: Literal["before_cdc", "by_timestamp"] = "before_cdc"
    """Whether a row that was backfilled loses against any change of it, or only against later ones.
    """
    tombstones: Literal["skip", "delete"] = "skip"
    """Whether a key without a value tells that a row is gone, where nothing else does."""
