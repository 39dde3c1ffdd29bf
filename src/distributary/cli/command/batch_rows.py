"""Rows of the tables that a batch wrote, printed by a run that is asked for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from distributary.cli.command.output import NORMAL, READER_GONE, Output, Paper, counted, styled
from distributary.cli.command.row_output import WIDEST, cell_text, draw_rows, json_rows
from distributary.config.pipeline_config import PipelineConfig
from distributary.engine.planning.table_book import table_folder
from distributary.errors import DistributaryError
from distributary.model.table import Role
from distributary.observe.events import BatchSettled, Event, TableWritten
from distributary.observe.status.health import DERIVED, open_listed
from distributary.operations.query import ResultColumn, newest
from distributary.publish.base import Outcome

_MOST_TABLES = 10
_MOST_KEPT = 100
"""The largest number of tables in the document of `--json`, which is printed at the end."""
_WIDEST_JSON = 1000


class BatchRows:
    """A listener that prints the newest rows of each table that a batch wrote.

    With `--json` the rows are kept for the document; of a long run, those of the last tables.
    """

    def __init__(
        self, config: PipelineConfig, out: Output, *, count: int, on_closed: Callable[[], None]
    ) -> None:
        """Create the listener; `on_closed` is called when the reader of the output has gone."""
        self._config, self._out = config, out
        self._count = count
        self._on_closed = on_closed
        self._kept: deque[dict[str, Any]] = deque(maxlen=_MOST_KEPT)

    @property
    def document(self) -> list[dict[str, Any]]:
        """Return the kept rows for JSON."""
        return list(self._kept)

    def __call__(self, event: Event) -> None:
        """Show the rows of a batch that has been settled."""
        if isinstance(event, BatchSettled) and (self._out.is_json or self._is_shown):
            tables = [table for table in event.written if self._has_rows(table)]
            for table in tables[:_MOST_TABLES]:
                self._show(event.batch, table)
            more = len(tables) - _MOST_TABLES
            if more > 0 and not self._out.is_json:
                self._draw(lambda paper: paper.more(more, "table"))

    @property
    def _is_shown(self) -> bool:
        return self._out.verbosity >= NORMAL

    def _has_rows(self, table: TableWritten) -> bool:
        if table.outcome == Outcome.PARKED or (
            # a hidden log is empty after the merge
            table.role == Role.LOG and self._config.hides_logs
        ):
            return False
        # the rows of a table that is made of a log are not counted; without a version it is missing
        return table.version is not None if table.role in DERIVED else table.rows > 0

    def _show(self, batch: int, written: TableWritten) -> None:
        try:
            columns, rows = self._newest(written)
        except Exception as error:
            # the batch is settled: a table that cannot be read now must not end the run
            why = error.what if isinstance(error, DistributaryError) else type(error).__name__
            self._out.note(f"rows of {written.table} cannot be shown: {why}")
            return
        if self._out.is_json:
            # cut at once, because the rows stay in memory until the end
            values = json_rows(columns, rows, _WIDEST_JSON)
            about = {"batch": batch, "table": written.table}
            self._kept.append({**about, "columns": columns, "rows": values})
            return
        cells = [[cell_text(value, WIDEST) for value in row] for row in rows]

        def draw(paper: Paper) -> None:
            count = counted(len(cells), "newest row")
            paper.line(styled(written.table, "bold"), f"  batch {batch}, {count}")
            draw_rows(paper, columns, cells)

        self._draw(draw)

    def _newest(self, written: TableWritten) -> tuple[list[ResultColumn], list[tuple[Any, ...]]]:
        """Read the newest rows of a table, no more than the batch has added."""
        opened = open_listed(written.table, table_folder(self._config, written.table))
        added = self._count if written.role in DERIVED else written.rows
        rows = newest(opened, min(self._count, added))
        columns = [ResultColumn(field.name, str(field.type)) for field in rows.schema]
        return columns, list(zip(*rows.to_pydict().values(), strict=True))

    def _draw(self, draw: Callable[[Paper], None]) -> None:
        try:
            self._out.show({}, draw)
        except READER_GONE:
            self._on_closed()
