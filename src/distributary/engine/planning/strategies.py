"""How a pipeline makes rows of its records: as they come and by key, or from change data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from distributary.changes.merge_order import Arrival
from distributary.config.cdc import Cdc, MergeConfig
from distributary.config.pipeline_config import PipelineConfig
from distributary.config.rules.keys import keyed_table
from distributary.decode.change.base import ChangeFormat
from distributary.decode.change.change_formats import CHANGE_FORMATS
from distributary.model.change import ChangeSettings
from distributary.model.table import Role


class Strategy(ABC):
    """What planning, merging and commands ask of the kind of a pipeline's records."""

    role: ClassVar[Role]
    """The role of the tables per type in which a record counts as written."""
    rejects_rows: ClassVar[bool]
    """Whether a rule may turn a record into a dead letter: a change is always landed."""
    retypes: ClassVar[bool]
    """Whether a person may correct the kind of an inferred column."""

    @property
    @abstractmethod
    def merges(self) -> bool:
        """Return whether there are tables that are merged from a log."""

    @abstractmethod
    def merging(self, table: str) -> MergeConfig | None:
        """Return how a table is merged from its log; None if it is appended to."""

    @property
    def arrival(self) -> Arrival:
        """Return the order in which events of the stream arrive."""
        # tables with a key have their own order, which does not depend on the source's log
        return "unknown"

    @property
    def format(self) -> ChangeFormat | None:
        """Return the format of the change events; None for records that are no changes."""
        return None

    @property
    def changes(self) -> ChangeSettings | None:
        """Return the settings of change decoders; None for records that are no changes."""
        return None

    @property
    def source_url(self) -> str | None:
        """Return the address of the database whose replication slots are watched."""
        return None

    @property
    @abstractmethod
    def unregistered(self) -> tuple[str, str] | None:
        """Return why records bring their own schemas, and the section that says so; else None."""


@dataclass(frozen=True, slots=True)
class PlainRecords(Strategy):
    """Records that are rows: they are appended, or merged by the key of their table."""

    role = Role.EACH
    rejects_rows = True
    retypes = True

    config: PipelineConfig

    @property
    def merges(self) -> bool:
        """Return whether any table has a key."""
        return bool(self.config.keys)

    def merging(self, table: str) -> MergeConfig | None:
        """Return the settings of the table's key."""
        return keyed_table(self.config.keys, table)

    @property
    def unregistered(self) -> tuple[str, str] | None:
        """Return None if there is a registry."""
        if self.config.registry is not None:
            return None
        return "without a registry records bring", "registry"


@dataclass(frozen=True, slots=True)
class ChangeData(Strategy):
    """Changes of rows in a database: logs of events, and tables that are merged from them."""

    role = Role.LOG
    rejects_rows = False
    retypes = False

    config: PipelineConfig
    cdc: Cdc

    @property
    def merges(self) -> bool:
        """Return true: every table per type is merged."""
        return True

    def merging(self, table: str) -> MergeConfig | None:
        """Return the settings of change data, which are the same for all tables."""
        return self.cdc

    @property
    def arrival(self) -> Arrival:
        """Return the order that the source promises."""
        return "partitions" if self.config.source.in_order else "files"

    @property
    def format(self) -> ChangeFormat | None:
        """Return the entry of `cdc.format`."""
        return CHANGE_FORMATS[self.cdc.format]

    @property
    def changes(self) -> ChangeSettings | None:
        """Return the settings of change decoders."""
        cdc = self.cdc
        return ChangeSettings(
            format=cdc.format,
            source_type=cdc.source_type or "",
            backfill=cdc.backfill,
            tombstones=cdc.tombstones,
            options=cdc.options,
            from_files=self.config.source.brings_files,
        )

    @property
    def source_url(self) -> str | None:
        """Return `cdc.source_url`, with its password."""
        url = self.cdc.source_url
        return None if url is None else url.get_secret_value()

    @property
    def unregistered(self) -> tuple[str, str] | None:
        """Return that events have the columns of their rows in them."""
        return "change data brings", "cdc"


def strategy_of(config: PipelineConfig) -> Strategy:
    """Return the strategy for the records of a pipeline."""
    return PlainRecords(config) if config.cdc is None else ChangeData(config, config.cdc)
