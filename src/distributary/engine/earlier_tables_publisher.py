"""The publisher of pipelines whose Iceberg tables an earlier version may have written.

Such a table has no Delta log. It gets one before the first commit to it, by the run that owns the
pipeline; a trial run only reads its columns.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from distributary.catalog.mirror_catalog import MirrorCatalog
from distributary.config.lake import LakeConfig
from distributary.delta.column_merge import columns_of
from distributary.delta.tables import committing
from distributary.errors import (
    CatalogError,
    CatalogUnavailableError,
    DistributaryError,
    LakeUnavailableError,
    PublishError,
)
from distributary.iceberg.earlier_tables import EarlierTable, is_earlier
from distributary.publish.base import TableColumns
from distributary.publish.direct import DirectPublisher
from distributary.publish.formats.iceberg_format import refuse_earlier
from distributary.store.base import at

_log = logging.getLogger(__name__)


class EarlierTablesPublisher(DirectPublisher):
    """A publisher to Delta tables, which gives a log to Iceberg tables without one."""

    def __init__(self, lake: LakeConfig, *, adopts: bool) -> None:
        super().__init__()
        self._catalog = MirrorCatalog(lake)
        self._adopts = adopts

    def current_columns(self, path: str) -> TableColumns | None:
        """Return the table's current columns and partitioning; None if there is no table."""
        if not self._adopts and is_earlier(path):
            return TableColumns(columns_of(self._earlier(path).fields))
        return super().current_columns(path)

    def adopt(self, paths: Iterable[str]) -> None:
        """Give a log to the tables of these folders, even if no batch changes them."""
        for path in filter(is_earlier, paths):
            try:
                with self._open(path, doing="give a Delta log to a table"):
                    pass
            except DistributaryError as error:
                _log.warning("%s: %s; %s", path, error.what, error.evidence)

    def _begin(self, path: str) -> None:
        if not is_earlier(path):
            return
        if not self._adopts:
            refuse_earlier(path)
        with committing(path, doing="give a Delta log to a table"):
            self._earlier(path).adopt()
        _log.info("%s has a Delta log now, beside its Iceberg metadata", path)

    def _earlier(self, path: str) -> EarlierTable:
        store = at(path)
        try:
            return EarlierTable.of(store, self._catalog.pointer(path.rpartition("/")[2], store))
        except CatalogError as error:
            away = isinstance(error, CatalogUnavailableError)
            kind = LakeUnavailableError if away else PublishError
            raise kind(
                error.what,
                where=path,
                evidence=error.evidence,
                next_step=error.next_step,
                reason="format",
            ) from error
