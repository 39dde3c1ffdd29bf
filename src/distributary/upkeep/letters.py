"""Dead letters that are done with leave their table after a while; open ones stay.

Only files that hold such letters are written again, without them, beside pipelines that append and
commands that mark: a file that was marked meanwhile is left for the next time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from distributary.merge.events import read_file
from distributary.model.deadletter import DEAD_LETTER_SCHEMA, DeadLetterStatus
from distributary.upkeep.rewrite import stored_schema, write_together
from distributary.upkeep.state import DataFile, TableState
from distributary.upkeep.swap import Exchange, Swap, drop, exchange

_LOOKED_AT = ("status", "first_seen", "last_seen")


@dataclass(frozen=True, slots=True)
class Expiry:
    """Which letters go."""

    before: datetime
    """Those that were last seen earlier."""
    open_too: bool = False
    """Also letters that nobody has replayed or discarded."""

    def keep(self, rows: pa.Table) -> pa.Table:
        """The letters that stay."""
        return rows.filter(pc.invert(self.gone(rows)))

    def gone(self, rows: pa.Table) -> pa.ChunkedArray:
        """Which letters go; one without a time or a status stays."""
        seen = pc.coalesce(rows.column("last_seen"), rows.column("first_seen"))
        old = pc.less(seen, pa.scalar(self.before, seen.type))
        if not self.open_too:
            done = [str(DeadLetterStatus.REPLAYED), str(DeadLetterStatus.DISCARDED)]
            old = pc.and_(old, pc.is_in(rows.column("status"), pa.array(done)))
        return pc.fill_null(old, False)


@dataclass(frozen=True, slots=True)
class ExpiredLetters:
    """What was removed, or would be."""

    letters: int = 0
    version: int | None = None
    left: int = 0
    """Letters in files that somebody else has changed meanwhile."""


def expire_letters(
    state: TableState,
    expiry: Expiry,
    *,
    ready: Callable[[], None] = lambda: None,
    dry_run: bool = False,
) -> tuple[TableState, ExpiredLetters]:
    """Remove letters from their table. Raises BusyError, OvertakenError and OSError."""
    counts = {path: _count(state, file, expiry) for path, file in state.files.items()}
    held = [file for path, file in state.files.items() if counts[path]]
    found = sum(counts.values())
    if dry_run or not held:
        return state, ExpiredLetters(found)
    ready()
    schema = stored_schema(state)
    swaps: list[Swap] = []
    try:
        for file in held:
            made = write_together(state, [file], schema, keep=expiry.keep)
            swaps.append(Swap((file,), made.file))
    except BaseException:
        drop(state.folder, swaps)
        raise
    after, done = exchange(state, swaps, Exchange("DELETE", True, ready))
    gone = sum(counts[file.path] for swap in done for file in swap.removed)
    return after, ExpiredLetters(gone, after.version if done else None, found - gone)


def _count(state: TableState, file: DataFile, expiry: Expiry) -> int:
    wanted = pa.schema([DEAD_LETTER_SCHEMA.field(name) for name in _LOOKED_AT])
    rows = read_file(f"{state.folder}/{file.path}", wanted)
    return int(pc.sum(expiry.gone(rows)).as_py() or 0)
