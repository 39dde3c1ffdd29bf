"""Cuts of a lake: for every table the version that has exactly the batches up to one.

Commits know nothing of cuts. The ledger knows the version that each batch made of a table, and
the table's log what came after it: commits of other programs, compaction, and the first batch that
is not part of the cut. A question about one table reads that table's rows and commits alone, and
what it costs depends on how much was committed between, not on how old the lake is.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from pydantic_core import PydanticCustomError

from distributary.config.base import parse_moment
from distributary.delta.log import Snapshot, load
from distributary.delta.log_reading import (
    BrokenLogError,
    Commit,
    actions_in,
    commit_name,
    log_names,
    parse_commit,
    read_commit,
)
from distributary.delta.removal.holds import read_holds
from distributary.delta.tables import reaching_table
from distributary.errors import ConfigError, DistributaryError, ErrorCode
from distributary.model import layout
from distributary.model.cut import Cut, CutBatch, CutPoint, CutTable, is_batch
from distributary.model.manifest import app_id
from distributary.model.table import Role
from distributary.model.table_format import DELTA
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.ledger.ledger_rows import (
    PARKED,
    LaneKey,
    LastCommit,
    NewestBatch,
    TableRow,
)
from distributary.observe.status.health import DERIVED
from distributary.publish.formats.table_format_entry import format_at
from distributary.store.base import Store, at, local_folder, stay_inside

STREAM = "stream"
_MERGED = DERIVED - {Role.AGGREGATE}
"""The roles of tables into which a batch is merged by several commits."""
AsOf = int | str | datetime | None
"""The number of a batch, a moment, either as a text, or None for the newest cut."""

_WINDOWS = (64, 512, 4096)
"""So many batches are read of the ledger at a time, until each table has one of them."""
_PROBE = 64
_THREADS = 8
_NUMBER = re.compile(r"[0-9]{1,18}")
_OF_BATCH = re.compile(r"(?:.+:)?[0-9]{1,18}")
_OF_PIPELINE = re.compile(r"(.+):([0-9]{1,18})")


@dataclass(frozen=True, slots=True)
class ListedCut:
    """A cut of one pipeline, as a list names it."""

    pipeline: str
    life: str
    batch: int
    settled_at: datetime
    read: int
    rows: int
    tables: int
    batches: int
    """More than one: older batches that the ledger has summed up, which are no cuts any more."""
    pinned_until: datetime | None = None


class Cuts:
    """The cuts of a lake, by its ledger as it is when the object is made."""

    def __init__(self, lake: str) -> None:
        self.lake = lake
        self._ledger = Ledger(lake).hold()
        self._newest = self._ledger.newest_batches()
        self._commits: dict[str, list[LastCommit]] = {}
        for commit in self._ledger.last_commits():
            if layout.HOME not in layout.inside(lake, commit.path).split("/"):
                self._commits.setdefault(commit.table.casefold(), []).append(commit)
        self.pins = {pin.name: pin for pin in read_holds(lake).pins}
        """The pinned cuts by their names."""
        self._parked: dict[str, list[TableRow]] = {}
        for row in self._ledger.parked():
            self._parked.setdefault(row.table.casefold(), []).append(row)

    # The points at which a lake can be cut.

    @property
    def pipelines(self) -> tuple[str, ...]:
        """Return the pipelines that have settled a batch of their stream."""
        return tuple(sorted({one.pipeline for one in self._streams()}))

    def _streams(self) -> list[NewestBatch]:
        return [one for one in self._newest if one.lane == STREAM]

    def listed(
        self, last: int, *, pipeline: str | None = None, before: int | None = None
    ) -> tuple[ListedCut, ...]:
        """Return cuts of each pipeline's newest life, the newest first, or those before a batch."""
        newest = {one.pipeline: one for one in self._streams()}
        found: list[ListedCut] = []
        for one in newest.values():
            if pipeline not in (None, one.pipeline):
                continue
            end = one.batch if before is None else min(before - 1, one.batch)
            rows = self._ledger.numbered(one.key, end - last + 1, end)
            named = rows.rename_columns(
                ["settled_at" if name == "finished_at" else name for name in rows.column_names]
            )
            for row in named.to_pylist():
                pin = self.pins.get(f"{one.pipeline}:{row['batch']}")
                until = None if pin is None else pin.until
                found.append(ListedCut(one.pipeline, one.life, **row, pinned_until=until))
        found.sort(key=lambda cut: (cut.settled_at, cut.batch), reverse=True)
        return tuple(found[:last])

    def find(self, as_of: AsOf = None, *, pipeline: str | None = None) -> CutPoint:
        """Return a point by a batch's number, by a moment, or the newest one.

        A text may be `41`, `games:41` or `2026-11-18 13:00`. Raises ConfigError.
        """
        if as_of is None:
            return self._point(None)
        if isinstance(as_of, int) and not isinstance(as_of, bool):
            return self.of_batch(as_of, pipeline=pipeline)
        if isinstance(as_of, str):
            text = as_of.strip()
            if _NUMBER.fullmatch(text):
                return self.of_batch(int(text), pipeline=pipeline)
            named = _OF_PIPELINE.fullmatch(text)
            if named and named[1] in self.pipelines:
                return self.of_batch(int(named[2]), pipeline=named[1])
        return self.of_time(_moment(as_of))

    def of_batch(self, number: int, *, pipeline: str | None = None) -> CutPoint:
        """Return the point at which a batch was settled, in the pipeline's newest life."""
        names = self.pipelines
        if pipeline is None and len(names) > 1:
            raise ConfigError(
                "several pipelines of this lake have a batch of this number",
                code=ErrorCode.NOT_FOUND,
                where=self.lake,
                evidence=", ".join(names[:10]),
                next_step=f"write {names[0]}:{number}, or a time",
            )
        lives = [one for one in self._streams() if pipeline in (None, one.pipeline)]
        one = lives[-1] if lives else None
        pin = None if one is None else self.pins.get(f"{one.pipeline}:{number}")
        if one is not None and pin is not None and pin.cut.has(one.pipeline, one.life, number):
            return CutPoint(pin.cut.at, pin.cut.batches, pinned=pin.cut)
        # a larger number than a table can hold is of no batch
        is_number = number.bit_length() < 64
        rows = (
            []
            if one is None or not is_number
            else self._ledger.numbered(one.key, number, number).to_pylist()
        )
        if one is None or not rows or rows[0]["batches"] > 1:
            raise self._no_such_cut(f"batch {number}", one)
        point = self._point(rows[0]["finished_at"])
        limits = {**point.limits, app_id(*one.key): number}
        mine = CutBatch(one.pipeline, one.life, number, rows[0]["finished_at"])
        others = [each for each in point.batches if each.pipeline != one.pipeline]
        batches = tuple(sorted([*others, mine], key=lambda each: each.pipeline))
        return replace(point, batches=batches, limits=limits)

    def of_time(self, moment: datetime) -> CutPoint:
        """Return the point of the batches that were settled by then."""
        pin = self.pins.get(moment.isoformat())
        if pin is not None:
            return CutPoint(pin.cut.at, pin.cut.batches, pinned=pin.cut)
        point = self._point(moment)
        if not point.batches:
            streams = self._streams()
            raise self._no_such_cut(f"a batch settled by {moment.isoformat()}", *streams[:1])
        return point

    def name(self, point: CutPoint) -> str:
        """Return the name under which a cut is pinned: `games:41`, or its time."""
        for one in point.batches:
            if one.settled_at == point.at:
                return f"{one.pipeline}:{one.batch}"
        return "" if point.at is None else point.at.isoformat()

    def _no_such_cut(self, wanted: str, one: NewestBatch | None = None) -> ConfigError:
        newest = "no batch has been settled"
        if one is not None:
            newest = f"the newest batch of {one.pipeline} is {one.batch}"
        return ConfigError(
            f"there is no cut of {wanted}",
            code=ErrorCode.NOT_FOUND,
            where=self.lake,
            evidence=newest,
            next_step="`distributary cuts` lists them; details of old batches are removed after "
            "`maintain.expire.ledger`",
        )

    def _point(self, moment: datetime | None) -> CutPoint:
        lanes: dict[tuple[str, str], list[NewestBatch]] = defaultdict(list)
        for one in self._newest:
            lanes[one.pipeline, one.lane].append(one)
        limits: dict[str, int] = {}
        unlimited: set[str] = set()
        batches: list[CutBatch] = []
        for (pipeline, lane), lives in lanes.items():
            found = [self._settled_by(one, moment) for one in lives]
            chosen = max((n for n, end in enumerate(found) if end is not None), default=-1)
            for n, (one, end) in enumerate(zip(lives, found, strict=True)):
                if n < chosen:
                    unlimited.add(app_id(*one.key))
                else:
                    limits[app_id(*one.key)] = -1 if end is None else end[0]
                if n == chosen and end is not None and lane == STREAM:
                    batches.append(CutBatch(pipeline, one.life, *end))
        batches.sort(key=lambda each: each.pipeline)
        names = frozenset(one.pipeline for one in self._newest)
        return CutPoint(moment, tuple(batches), limits, frozenset(unlimited), names)

    def _settled_by(self, one: NewestBatch, moment: datetime | None) -> tuple[int, datetime] | None:
        """Return the newest batch of a lane that was settled by a moment, by bisection."""
        if moment is None or one.finished_at <= moment:
            return one.batch, one.finished_at
        low, high = -1, one.batch
        while high - low > _PROBE:
            middle = (low + high) // 2
            rows = self._ledger.numbered(one.key, middle, middle + _PROBE - 1).to_pylist()
            if not rows:
                # summed up: older than all that the ledger has in detail
                low = middle + _PROBE - 1
            elif rows[0]["finished_at"] <= moment:
                low = rows[0]["batch"]
            else:
                high = middle
        rows = self._ledger.numbered(one.key, max(low, 0), high).to_pylist()
        settled = [row for row in rows if row["finished_at"] <= moment]
        return (settled[-1]["batch"], settled[-1]["finished_at"]) if settled else None

    # The versions of tables at a point.

    def cut(self, point: CutPoint) -> Cut:
        """Return all tables of a cut."""
        if point.pinned is not None:
            return point.pinned
        return Cut(self.lake, point.at, point.batches, tuple(self.tables(point, self._commits)))

    def with_snapshots(self, cut: Cut) -> Cut:
        """Return a cut with the snapshots of Iceberg mirrors that show its versions."""
        with ThreadPoolExecutor(_THREADS) as pool:
            return replace(cut, tables=tuple(pool.map(_with_snapshot, cut.tables)))

    def fixed(self, point: CutPoint) -> CutPoint:
        """Return a point whose versions stay what they are now."""
        return replace(point, pinned=self.cut(point))

    def tables(self, point: CutPoint, names: Iterable[str]) -> list[CutTable]:
        """Return these tables, as far as they are part of the cut, by name."""
        if point.pinned is not None:
            asked = {name.casefold() for name in names}
            return [one for one in point.pinned.tables if one.table.casefold() in asked]
        wanted = sorted({name.casefold() for name in names} & self._commits.keys())
        starts = self._starts(point, wanted)
        with ThreadPoolExecutor(_THREADS) as pool:
            found = pool.map(lambda name: self._table(point, name, starts.get(name)), wanted)
            return [table for table in found if table is not None]

    def table(self, point: CutPoint, name: str) -> CutTable:
        """Return one table of a cut. Raises ConfigError for one that it does not have."""
        for found in self.tables(point, [name]):
            return found
        since = min((each.since for each in self._commits.get(name.casefold(), ())), default=None)
        raise ConfigError(
            f"table {name} is not part of {point.describe()}",
            code=ErrorCode.NOT_FOUND,
            where=self.lake,
            evidence=f"its first batch was settled at {since.isoformat()}" if since else "",
            next_step="ask for a later cut: `distributary cuts` lists them",
        )

    def _starts(self, point: CutPoint, names: Sequence[str]) -> dict[str, int]:
        """Return for each table the version that the ledger has of its last batch in the cut."""
        starts: dict[str, int] = {}
        lacking: dict[LaneKey, set[str]] = defaultdict(set)
        for name in names:
            for commit in self._commits[name]:
                if commit.lane != STREAM or commit.batch is None or commit.version is None:
                    continue
                key = (commit.pipeline, commit.life, commit.lane)
                limit = point.limit(*key)
                if limit is None or commit.batch <= limit:
                    starts[name] = max(commit.version, starts.get(name, -1))
                elif limit >= 0:
                    lacking[key].add(name)
        for key, tables in lacking.items():
            for name, version in self._versions(key, point.limit(*key) or 0, tables).items():
                starts[name] = max(version, starts.get(name, -1))
        return starts

    def _versions(self, key: LaneKey, limit: int, names: Collection[str]) -> dict[str, int]:
        """Read the versions of the last batches of tables up to a number, from the newest back."""
        found: dict[str, int] = {}
        end = limit
        for width in _WINDOWS:
            rows = self._ledger.versions(key, max(end - width + 1, 0), end)
            columns = (rows[name].to_pylist() for name in ("table", "version"))
            last = {table.casefold(): version for table, version in zip(*columns, strict=True)}
            found |= {n: last[n] for n in names if n in last and n not in found}
            end -= width
            if end < 0 or len(found) == len(names):
                break
        return found

    def _table(self, point: CutPoint, name: str, start: int | None) -> CutTable | None:
        commits = self._commits[name]
        last = commits[-1]
        path = layout.place(self.lake, last.path)
        if local_folder(path):
            stay_inside(self.lake, path)
        with reaching_table(path):
            seen = load(at(path), files=False)
        if seen is None:
            other = format_at(path)
            if other is None or start is None:
                return None
            return CutTable(last.table, last.role, path, other, None)
        merged = any(commit.role in _MERGED for commit in commits)
        with reaching_table(path):
            version = _TableLog(seen, point, merged=merged).version(start, commits)
        if version is None:
            return None
        behind = self._behind(point, name)
        return CutTable(last.table, last.role, path, DELTA, version, behind)

    def written(self, point: CutPoint, table: CutTable) -> int | None:
        """Return the rows that the batches of a cut have written to a table, by the ledger.

        None where batches do not add up to the rows of the table, and for a pinned cut.
        """
        if point.pinned is not None or table.role in DERIVED or table.behind is not None:
            return None
        rows = 0
        for commit in self._commits[table.table.casefold()]:
            limit = point.limit(commit.pipeline, commit.life, commit.lane)
            for row in self._ledger.table_batches(commit).to_pylist():
                if row["outcome"] != PARKED and (limit is None or row["batch"] <= limit):
                    rows += row["rows"]
        return rows

    def refuse_lost(
        self, point: CutPoint, table: CutTable, *, cause: Exception | None = None
    ) -> None:
        """Raise DistributaryError if a table can no longer be read at its version of a cut."""
        if table.version is None:
            return
        try:
            oldest, lost = readable_from(at(table.path), table.version)
        except (OSError, ValueError, BrokenLogError):
            # the table cannot be read for another reason, which the caller knows
            return
        if not lost:
            return
        later = f"; the oldest cut that can: {n}" if (n := self._first_from(table, oldest)) else ""
        raise DistributaryError(
            f"{point.describe()} can no longer be read: table {table.table} has lost version "
            f"{table.version}",
            code=ErrorCode.CUT_LOST,
            where=table.path,
            evidence=f"{lost}; version {oldest} can be read{later}",
            next_step="ask for a later cut (`distributary cuts` lists them)",
        ) from cause

    def _first_from(self, table: CutTable, version: int) -> str:
        """Return the first batch that left a table at this version or a later one."""
        commits = [
            one for one in self._commits.get(table.table.casefold(), ()) if one.lane == STREAM
        ]
        if not commits:
            return ""
        rows = self._ledger.table_batches(commits[-1]).to_pylist()
        later = (r["batch"] for r in rows if r["version"] is not None and r["version"] >= version)
        number = min(later, default=None)
        return "" if number is None else str(number)

    def _behind(self, point: CutPoint, name: str) -> int | None:
        """Return the first batch of the cut that waits for a table that is parked."""
        waiting = (row for row in self._parked.get(name, ()) if row.lane == STREAM)
        limits = ((row.batch, point.limit(row.pipeline, row.life, row.lane)) for row in waiting)
        return min((n for n, limit in limits if limit is None or n <= limit), default=None)


@dataclass(frozen=True, slots=True)
class _TableLog:
    """The log of a table, asked for its version at a point."""

    seen: Snapshot
    point: CutPoint
    merged: bool
    """Whether a batch may have several commits, and only the last one carries its mark."""

    def version(self, start: int | None, commits: Sequence[LastCommit]) -> int | None:
        """Return the version at the point; None if the table has no batch of the cut.

        `start` is the version of its last batch by the ledger, which may be of another table that
        was at this place.
        """
        newest = self.seen.version
        if start is not None and start > newest:
            start = None
        if start is None:
            start = self._searched(commits)
        if start is None or start == newest:
            return start
        if self.point.at is None and not self.merged and self._all_held():
            return newest
        return self._on_from(start)

    def _all_held(self) -> bool:
        return all(self.point.holds(app, batch) for app, batch in self.seen.marks.items())

    def _commit(self, version: int) -> Commit | None:
        try:
            data = read_commit(self.seen.store, version)
        except FileNotFoundError:
            return None
        return parse_commit(data, last=version == self.seen.version)

    def _on_from(self, start: int) -> int:
        """Return the last version of the cut, from one that is part of it."""
        found, half = start, False
        for version in range(start + 1, self.seen.version + 1):
            commit = self._commit(version)
            if commit is None or not self._is_before(commit, version):
                break
            if not all(self.point.holds(app, batch) for app, batch in commit.marks.items()):
                break
            marked = any(map(is_batch, commit.marks))
            if self.merged and not marked and commit.info.get("operation") == "MERGE":
                # a part of a batch: its last commit has the mark
                half = True
            half = half and not marked
            if not half:
                found = version
        return found

    def _is_before(self, commit: Commit, version: int) -> bool:
        if self.point.at is None:
            return True
        stamp = commit.info.get("inCommitTimestamp", commit.info.get("timestamp"))
        if not isinstance(stamp, int):
            info = self.seen.store.look(commit_name(version))
            stamp = 0 if info is None else int(info.modified * 1000)
        return stamp <= self.point.at.timestamp() * 1000

    def _searched(self, commits: Sequence[LastCommit]) -> int | None:
        """Search the log for the last commit of the cut, where the ledger has no version of it.

        The batches of an application only grow from commit to commit.
        """
        names = log_names(self.seen.store)
        found: list[int] = []
        for one in commits:
            limit = self.point.limit(one.pipeline, one.life, one.lane)
            if limit is not None and limit < 0:
                continue
            found += self._last_of(one.app_id, limit, min(names.commits, default=0))
        return max(found, default=None)

    def _last_of(self, app: str, limit: int | None, oldest: int) -> Iterator[int]:
        low, high = oldest - 1, self.seen.version + 1
        while high - low > 1:
            middle = (low + high) // 2
            version, batch = self._next_mark(app, middle, high)
            if batch is None or (limit is not None and batch > limit):
                high = middle
            else:
                low = version
        if low >= oldest:
            yield low

    def _next_mark(self, app: str, first: int, end: int) -> tuple[int, int | None]:
        for version in range(first, end):
            commit = self._commit(version)
            if commit is not None and app in commit.marks:
                return version, commit.marks[app]
        return end, None


def _with_snapshot(table: CutTable) -> CutTable:
    # imported here, because other questions about cuts need no mirror
    from distributary.iceberg.mirror import snapshot_of_version

    if table.version is None:
        return table
    with reaching_table(table.path):
        return replace(table, snapshot=snapshot_of_version(at(table.path), table.version))


def measured(cuts: Cuts, point: CutPoint, table: CutTable) -> dict[str, Any]:
    """Return a table of a cut with its rows, columns and bytes, as far as its log has them."""
    found: Snapshot | None = None
    if table.version is not None:
        try:
            with reaching_table(table.path):
                found = load(at(table.path), version=table.version)
        except DistributaryError as error:
            cuts.refuse_lost(point, table, cause=error)
            raise
    return {
        "table": table.table,
        "role": table.role,
        "path": table.path,
        "format": table.format,
        "version": table.version,
        "behind": table.behind,
        "rows": None if found is None else found.count,
        "columns": None if found is None else len(found.fields),
        "bytes": None if found is None else found.size,
    }


def names_batch(as_of: str) -> bool:
    """Return whether a text names a cut by a batch, such as `41` or `games:41`."""
    return _OF_BATCH.fullmatch(as_of.strip()) is not None and not _is_moment(as_of)


def _is_moment(text: str) -> bool:
    try:
        parse_moment(text)
    except PydanticCustomError:
        return False
    return True


def _moment(value: object) -> datetime:
    try:
        return parse_moment(value).astimezone(UTC)
    except PydanticCustomError:
        raise ConfigError(
            "this is neither a batch nor a time",
            where="--as-of",
            evidence=repr(value)[:100],
            next_step="write the number of a batch (41), or a time: '2026-11-18 13:00'",
        ) from None


# Versions that can no longer be read.


def oldest_version(store: Store) -> int:
    """Return the oldest version of a table that its log can still tell."""
    names = log_names(store)
    first = max(names.commits, default=0)
    while first - 1 in names.commits:
        first -= 1
    if first == 0:
        return 0
    return min((v for v in names.checkpoints if v >= first - 1), default=first)


def readable_from(store: Store, version: int) -> tuple[int, str]:
    """Return the oldest version from `version` on whose rows are there, and what is lost before.

    The text is empty if it is `version` itself.
    """
    oldest = oldest_version(store)
    if oldest > version:
        return oldest, "its log begins later"
    old, new = load(store, version=version), load(store)
    if old is None or new is None or old.version != version:
        return version, "there is no such version"
    lost = {p for p in old.files if p not in new.files and store.look(p) is None}
    if not lost:
        return version, ""
    words = f"{len(lost)} of its files were deleted, among them {min(lost)}"
    for later in range(version + 1, new.version + 1):
        actions = actions_in(read_commit(store, later), last=later == new.version)
        lost -= {unquote(action["remove"]["path"]) for action in actions if "remove" in action}
        if not lost:
            return later, words
    return new.version, words
