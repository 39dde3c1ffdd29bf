"""Many pipelines as a table that redraws itself, and as they are in the end."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from distributary.cli.actions.lines import lag_text
from distributary.cli.output import Paper, styled
from distributary.cli.words import brief, counted, cut, number
from distributary.errors import DistributaryError
from distributary.supervise.status import PipelineStatus, State

_NEWS = 6
_MOST = 30
_LONGEST = 160
_COLOURS = {
    State.RUNNING: "green",
    State.DONE: "green",
    State.FAILING: "yellow",
    State.BACKOFF: "yellow",
    State.FAILED: "bold red",
}
_WORST = (State.FAILED, State.BACKOFF, State.FAILING)
_HEADERS = ("PIPELINE", "STATE", "BATCH", "ROWS/S", "LAG", "DEAD LETTERS", "PARKED", "RESTARTS")
_LEFT = ("PIPELINE", "STATE", "NEXT RETRY")


class UpView:
    """Drawn a few times a second; news come from any thread."""

    def __init__(self, statuses: Callable[[], Sequence[PipelineStatus]]) -> None:
        self._statuses = statuses
        self._lock = threading.Lock()
        self._news: deque[Text] = deque(maxlen=_NEWS)
        self._stopping = False

    def stop(self) -> None:
        """A stop was asked for."""
        self._stopping = True
        self.say("stopping; Ctrl-C again ends at once")

    def say(self, text: str) -> None:
        """Something that happened."""
        with self._lock:
            self._news.append(styled(cut(text, _LONGEST), "dim"))

    def __rich__(self) -> RenderableType:
        """The view as it is now."""
        statuses = self._statuses()
        well = sum(each.is_ready for each in statuses)
        title = f"{counted(len(statuses), 'pipeline')}, {well:,} well"
        parts: list[RenderableType] = [
            styled(f"{title}, stopping" if self._stopping else title, "bold"),
            _table(statuses),
        ]
        with self._lock:
            if self._news:
                parts += [Text(""), *self._news]
        return Group(*parts)


def _table(statuses: Sequence[PipelineStatus]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in (*_HEADERS, "NEXT RETRY"):
        table.add_column(name, justify="left" if name in _LEFT else "right")
    # the worst first, as far as there is room for all
    order = sorted(statuses, key=lambda each: each.state not in _WORST)
    for each in order[:_MOST]:
        table.add_row(*_cells(each), _retry(each))
    if len(order) > _MOST:
        table.add_row(styled(f"and {len(order) - _MOST:,} more", "dim"))
    return table


def _cells(status: PipelineStatus) -> list[Text]:
    settled, dead, parked = status.settled, status.counts.dead_lettered, status.counts.parked
    last = None if settled is None else settled.batch
    return [
        styled(status.name, "bold"),
        styled(_state(status), _COLOURS.get(status.state, "")),
        styled(number(status.batch if status.batch is not None else last), ""),
        styled(number(None if settled is None else settled.records_per_second), ""),
        styled("-" if settled is None else lag_text(settled), ""),
        styled(number(dead), "yellow" if dead else ""),
        styled(number(parked), "red" if parked else ""),
        styled(number(status.restarts), ""),
    ]


def _state(status: PipelineStatus) -> str:
    return str(status.state) if status.error is None else f"{status.state} {status.error.code}"


def _retry(status: PipelineStatus) -> Text:
    if status.retry_at is None:
        return Text("")
    left = (status.retry_at - datetime.now(UTC)).total_seconds()
    return styled(f"in {brief(max(left, 0.0))}", "yellow")


def draw_outcome(paper: Paper, statuses: Sequence[PipelineStatus]) -> None:
    """How each of them ended."""
    paper.table(_HEADERS, [_cells(each) for each in statuses], right=_HEADERS[2:], indent=0)
    for each in statuses:
        if each.error is not None:
            paper.line(styled(f"{each.name}  ", "bold"), _why(each.error))


def _why(error: DistributaryError) -> str:
    parts = (str(error.code), error.what, error.where, error.evidence)
    return "  ".join(cut(part, _LONGEST) for part in parts if part)
