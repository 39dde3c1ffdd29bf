"""The half of a table format that opens tables; `model/table_format.py` has its facts.

`model/table_format.py` lists the formats. A folder is asked for its format where no setting names
it: readers meet tables of any pipeline, and of settings that have changed since.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

from distributary.model.table_format import TABLE_FORMATS
from distributary.publish.base import Held, Publisher
from distributary.publish.formats.readable import ReadableTable
from distributary.publish.formats.written import WrittenFiles
from distributary.store.base import Store, is_remote, local_folder, stay_inside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from distributary.config.pipeline_config import PipelineConfig

T = TypeVar("T")


class TableFormatEntry(ABC):
    """The implementation of one table format, as the program uses it."""

    @abstractmethod
    def publisher(self, config: PipelineConfig, spark: SparkSession | None) -> Publisher:
        """Return the publisher of a pipeline's tables."""

    @abstractmethod
    def is_at(self, path: str) -> bool:
        """Return whether a folder holds a table of this format, by the names of its files."""

    @abstractmethod
    def open(self, path: str, version: int | None = None) -> ReadableTable | None:
        """Open a table for its rows, at its newest version or at `version`; None if there is none.

        Only formats with `has_versions` are asked for a version.
        """

    @abstractmethod
    def written(self, path: str) -> WrittenFiles | None:
        """Open a table for its commits and files, as `verify` compares them; None without one."""

    @abstractmethod
    def held(self, store: Store, app_id: str) -> Held | None:
        """Return the newest version and mark; None if there is no table."""

    def has_commit(self, store: Store, app_id: str, batch: int, version: int) -> bool | None:
        """Return whether a commit carries a batch, by its file alone; None if no file shows it."""
        return None

    def files_of(self, path: str, app_id: str, batch: int) -> tuple[str, ...] | None:
        """Return the files of a batch, where they differ from those that were staged; else None."""
        return None


def format_entry(name: str) -> TableFormatEntry:
    """Return the implementation of a format."""
    entry: TableFormatEntry = import_module(TABLE_FORMATS[name].module).ENTRY
    return entry


def format_at(path: str) -> str | None:
    """Return the name of the format of the table in a folder; None if there is no table."""
    return next((name for name in TABLE_FORMATS if format_entry(name).is_at(path)), None)


def ask_table(path: str, ask: Callable[[TableFormatEntry], T | None]) -> T | None:
    """Ask the implementation of a table's format; None if there is no table.

    In a bucket each format is asked in turn, Delta last: opening a table there costs no more
    requests than finding out its format.
    """
    if not is_remote(path):
        name = format_at(path)
        return None if name is None else ask(format_entry(name))
    answers = (ask(format_entry(name)) for name in reversed(list(TABLE_FORMATS)))
    return next((answer for answer in answers if answer is not None), None)


def open_readable(path: str, version: int | None = None) -> ReadableTable | None:
    """Open the table in a folder for its rows, whichever format it has; None without a table.

    A `version` is that of a format with `has_versions`.
    """
    folder = local_folder(path)
    if folder:
        stay_inside(os.path.dirname(folder), folder)
    return ask_table(path, lambda entry: entry.open(path, version))


def open_written(path: str) -> WrittenFiles | None:
    """Open the table in a folder for its commits and files; None without a table."""
    return ask_table(path, lambda entry: entry.written(path))
