"""Who lands what: the keys of all runs, spread over tasks by what they weigh.

Hop one has counted every key, so the spread is exact: a light table is the work of one task, a
heavy one is cut by rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from distributary.model.plan import Rejected, Route, RouteKey
from distributary.stage.runs import Run

_ROWS_PER_KEY = 100
"""What the fixed cost of a key is worth in rows."""
_SMALLEST_CUT = 5_000
"""A table is not cut into pieces of fewer rows: each of them is a file."""


class Slice(NamedTuple):
    """Rows of a run."""

    path: str
    start: int
    rows: int


@dataclass(frozen=True, slots=True)
class Share:
    """Records of one key, for one task."""

    key: RouteKey
    slices: tuple[Slice, ...]


@dataclass(slots=True)
class Load:
    """What one task of hop two does: the shares of each of its tables."""

    tables: dict[str, list[Share]] = field(default_factory=dict)
    letters: list[str] = field(default_factory=list)
    """Files of dead letters that hop one has written."""


def spread(
    runs: Iterable[Run],
    letters: Sequence[str],
    routes: Mapping[RouteKey, Route | Rejected],
    *,
    tasks: int,
    by_run: bool = False,
) -> list[Load]:
    """Loads of about the same weight; fewer than `tasks` where there is less to do.

    With `by_run` what lies together in a run stays together.
    """
    tables = _by_table(runs, routes)
    weights = {name: sum(map(_weight, shares)) for name, shares in tables.items()}
    fair = max(1, -(-sum(weights.values()) // tasks))
    loads, filled = [Load() for _ in range(tasks)], [0] * tasks
    for name in sorted(tables, key=lambda name: (-weights[name], name)):
        rows = sum(_rows(share) for share in tables[name])
        pieces = min(tasks, max(1, round(weights[name] / fair)), max(1, rows // _SMALLEST_CUT))
        cut = _cut_by_run if by_run else _cut
        for piece in cut(tables[name], -(-rows // pieces)):
            lightest = filled.index(min(filled))
            loads[lightest].tables.setdefault(name, []).extend(piece)
            filled[lightest] += sum(map(_weight, piece))
    loads[filled.index(min(filled))].letters.extend(letters)
    return [load for load in loads if load.tables or load.letters]


def table_of(route: Route | Rejected) -> str:
    """Under which name records are landed together; empty for those that have no table."""
    return (route.table or f"type:{route.type}") if isinstance(route, Route) else ""


def _by_table(
    runs: Iterable[Run], routes: Mapping[RouteKey, Route | Rejected]
) -> dict[str, list[Share]]:
    slices: dict[RouteKey, list[Slice]] = defaultdict(list)
    for run in runs:
        for r in run.ranges:
            slices[r.key].append(Slice(run.path, r.start, r.count))
    tables: dict[str, list[Share]] = defaultdict(list)
    for key in sorted(slices):
        tables[table_of(routes[key])].append(Share(key, tuple(slices[key])))
    return tables


def _rows(share: Share) -> int:
    return sum(s.rows for s in share.slices)


def _weight(share: Share) -> int:
    return _rows(share) + _ROWS_PER_KEY


def _cut(shares: Sequence[Share], rows: int) -> Iterator[list[Share]]:
    """The shares in their order, in pieces of so many rows."""
    piece: list[Share] = []
    room = rows
    for share in shares:
        mine: list[Slice] = []
        for path, start, count in share.slices:
            end = start + count
            while start < end:
                taken = min(room, end - start)
                mine.append(Slice(path, start, taken))
                start, room = start + taken, room - taken
                if not room:
                    yield [*piece, Share(share.key, tuple(mine))]
                    piece, mine, room = [], [], rows
        if mine:
            piece.append(Share(share.key, tuple(mine)))
    if piece:
        yield piece


def _cut_by_run(shares: Sequence[Share], rows: int) -> Iterator[list[Share]]:
    """The shares in pieces of so many rows, or more where the rows of a run are more."""
    runs: dict[str, dict[RouteKey, list[Slice]]] = {}
    for share in shares:
        for one in share.slices:
            runs.setdefault(one.path, {}).setdefault(share.key, []).append(one)
    piece: list[Share] = []
    room = rows
    for keys in runs.values():
        piece += [Share(key, tuple(slices)) for key, slices in keys.items()]
        room -= sum(one.rows for slices in keys.values() for one in slices)
        if room <= 0:
            yield piece
            piece, room = [], rows
    if piece:
        yield piece
