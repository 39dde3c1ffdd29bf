"""Dead letters: grouping, searching and marking; their records are never changed."""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from distributary.delta.tables import conflict_attempts, open_table, reaching_table, read_rows
from distributary.errors import DistributaryError, ErrorCode
from distributary.model import layout
from distributary.model.deadletter import (
    CONTENT,
    DEAD_LETTER_SCHEMA,
    DeadLetterStatus,
    content_keys,
)
from distributary.model.manifest import REPLAYS
from distributary.model.record import TIMESTAMP
from distributary.observe.ledger.ledger import Ledger
from distributary.observe.ledger.ledger_rows import both, same, text
from distributary.observe.ledger.ledger_table import delete_pipeline
from distributary.store.base import Store

_HEX = frozenset("0123456789abcdef")
_AFTER_HEX = "g"
_COORDINATES = re.compile(r"(.+)/(\d{1,9})/(\d{1,18})")
"""Coordinates of a record, in the form of `trace` and `dlq show`."""
_SHOWN = 10
"""The lane of replays, and their folder in a checkpoint."""
_SELECTION = re.compile(r"selection-([0-9]+)\.parquet")


@dataclass(frozen=True, slots=True)
class Reason:
    """All dead letters of one error code."""

    code: str
    count: int
    first_seen: datetime
    last_seen: datetime
    example: str
    """Id of one of them."""
    types: Mapping[str, int]
    """The number of letters of each type; letters without a type have an empty name."""


@dataclass(frozen=True, slots=True)
class ReplayFailure:
    """The reason why a replayed dead letter failed again."""

    code: str
    message: str


_OF_REASONS = ("id", "error_code", "type", "first_seen", "last_seen")
"""The columns for grouping dead letters."""


class DeadLetters:
    """The dead-letter table, which pipelines append to at the same time."""

    def __init__(self, path: str) -> None:
        self.path = path

    def reasons(
        self, *, status: str | None = DeadLetterStatus.OPEN, pipeline: str | None = None
    ) -> tuple[Reason, ...]:
        """Group dead letters by error code, the largest group first."""
        return _reasons(self._read(_OF_REASONS, same(status=status, pipeline=pipeline)))

    def summary(self, *, pipeline: str) -> tuple[dict[str, int], tuple[Reason, ...]]:
        """Return the counts by status, and the reasons of open dead letters, from one read."""
        rows = self._read([*_OF_REASONS, "status"], same(pipeline=pipeline))
        is_open = pc.equal(rows["status"], str(DeadLetterStatus.OPEN))
        return _by_status(rows), _reasons(rows.filter(is_open))

    def count_by_status(self, *, pipeline: str | None = None) -> dict[str, int]:
        """Return the number of dead letters for every status."""
        return _by_status(self._read(["status"], same(pipeline=pipeline)))

    def select(
        self,
        *,
        reason: str | None = None,
        type: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        topic: str | None = None,
        partition: int | None = None,
        offsets: int | tuple[int, int] | None = None,
        id: str | None = None,
        pipeline: str | None = None,
        status: str | None = DeadLetterStatus.OPEN,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Return the dead letters that satisfy all given conditions, in the order of the source.

        `since` and `until` (exclusive) compare the time of the first failure; `offsets` is one
        offset, or the first and the last of a range. A record is returned once, even if it became a
        dead letter again after a reset.
        """
        first_seen = pc.field("first_seen")
        where = both(
            same(
                error_code=reason,
                type=type,
                topic=topic,
                partition=partition,
                id=id,
                pipeline=pipeline,
                status=status,
            ),
            None if since is None else first_seen >= pc.scalar(since.astimezone(UTC)),
            None if until is None else first_seen < pc.scalar(until.astimezone(UTC)),
            _within(offsets),
        )
        names = list(columns or DEAD_LETTER_SCHEMA.names)
        needed = [*names, *(n for n in ("id", "topic", "partition", "offset") if n not in names)]
        rows = self._read(needed, where, limit=limit)
        if _any_twice(rows):
            needed = [*names, *(n for n in ("id", *CONTENT) if n not in names)]
            rows = _once_each(self._read(needed, where, limit=limit))
        order = [(name, "ascending") for name in ("topic", "partition", "offset")]
        return rows.sort_by(order).select(names)

    def get(self, id_prefix: str) -> dict[str, Any]:
        """Return the one dead letter with this id prefix or these coordinates, in any status."""
        prefix = id_prefix.strip().lower()
        found: list[dict[str, Any]] = []
        if there := _COORDINATES.fullmatch(id_prefix.strip()):
            topic, partition, offset = there[1], int(there[2]), int(there[3])
            rows = self.select(topic=topic, partition=partition, offsets=offset, status=None)
            found = rows.to_pylist()
        elif prefix and _HEX.issuperset(prefix):
            where = (text("id") >= prefix) & (text("id") < prefix + _AFTER_HEX)
            found = _once_each(self._read(None, where, limit=1000)).to_pylist()
        if len(found) == 1:
            return found[0]
        some = ", ".join(sorted(row["id"] for row in found)[:_SHOWN])
        raise DistributaryError(
            "several dead letters have an id that begins like this"
            if found
            else "there is no such dead letter",
            code=ErrorCode.NOT_FOUND,
            where=self.path,
            evidence=f"{id_prefix[:40]!r}" + (f" fits {some}" if some else ""),
            next_step="give more digits of the id" if found else "list them: `dlq list`",
        )

    def mark_replayed(self, ids: Iterable[str], *, replay: int) -> int:
        """Mark open dead letters that a replay wrote to their tables; return how many."""
        rows = _same_for_all(ids, note=f"replay {replay}", status=DeadLetterStatus.REPLAYED)
        updates = {"status": "s.status", "note": "s.note", "last_seen": "s.at"}
        return self._mark(rows, {**updates, "attempts": "t.attempts + 1"})

    def discard(self, ids: Iterable[str], *, note: str) -> int:
        """Mark open dead letters as discarded, with a note; return how many."""
        rows = _same_for_all(ids, note=note, status=DeadLetterStatus.DISCARDED)
        return self._mark(rows, {"status": "s.status", "note": "s.note"})

    def mark_failed_again(self, failures: Mapping[str, ReplayFailure], *, at: datetime) -> int:
        """Mark open dead letters, by id, that failed again in a replay; return how many.

        `at` is the time of the replay, the same in every call for it: so a second call changes
        nothing.
        """
        rows = pa.table(
            {
                "id": pa.array(failures.keys(), pa.string()),
                "code": pa.array([f.code for f in failures.values()], pa.string()),
                "message": pa.array([f.message for f in failures.values()], pa.string()),
                "at": pa.repeat(pa.scalar(at.astimezone(UTC), TIMESTAMP), len(failures)),
            }
        )
        updates = {
            "error_code": "s.code",
            "error_message": "s.message",
            "last_seen": "s.at",
            "attempts": "t.attempts + 1",
        }
        return self._mark(rows, updates, unless_tried_since=at.astimezone(UTC))

    def forget(self, pipeline: str) -> None:
        """Remove all dead letters of a pipeline, for `clean`."""
        with reaching_table(self.path):
            for attempt in conflict_attempts():
                with attempt:
                    table = open_table(self.path)
                    if table is not None:
                        delete_pipeline(table, pipeline)

    def _mark(
        self, rows: pa.Table, updates: dict[str, str], *, unless_tried_since: datetime | None = None
    ) -> int:
        """Mark any number of ids in one commit; retry while other commits come first."""
        with reaching_table(self.path):
            for attempt in conflict_attempts():
                with attempt:
                    table = open_table(self.path)
                    if table is None:
                        return 0
                    where = same(status=DeadLetterStatus.OPEN)
                    if unless_tried_since is not None:
                        where = both(where, pc.field("last_seen") < pc.scalar(unless_tried_since))
                    where = both(where, text("id").isin(rows["id"].combine_chunks()))
                    open_ones = read_rows(table, columns=["id", "batch"], where=where)
                    if not len(open_ones):
                        return 0
                    wanted = pc.field("id").isin(pc.unique(open_ones["id"]))
                    merge = table.merge(
                        rows.filter(wanted),
                        f"t.id = s.id AND t.status = '{DeadLetterStatus.OPEN}'"
                        + _bounds(open_ones["batch"]),
                        source_alias="s",
                        target_alias="t",
                    )
                    done = merge.when_matched_update(updates).execute()
        return int(done["num_target_rows_updated"])

    def _read(
        self,
        columns: Sequence[str] | None,
        where: pc.Expression | None,
        *,
        limit: int | None = None,
    ) -> pa.Table:
        table = open_table(self.path)
        if table is None:
            return DEAD_LETTER_SCHEMA.empty_table().select(columns or DEAD_LETTER_SCHEMA.names)
        return read_rows(table, columns=columns, where=where, limit=limit)


def _by_status(rows: pa.Table) -> dict[str, int]:
    counts = {str(status): 0 for status in DeadLetterStatus}
    for row in rows.group_by("status").aggregate([([], "count_all")]).to_pylist():
        counts[row["status"]] = row["count_all"]
    return counts


def _reasons(rows: pa.Table) -> tuple[Reason, ...]:
    grouped = rows.group_by(["error_code", "type"]).aggregate(
        [("id", "count"), ("id", "min"), ("first_seen", "min"), ("last_seen", "max")]
    )
    by_code: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in grouped.to_pylist():
        by_code[row["error_code"] or ""].append(row)
    found = [_reason(code, group) for code, group in by_code.items()]
    return tuple(sorted(found, key=lambda reason: (-reason.count, reason.code)))


def _bounds(batches: pa.ChunkedArray) -> str:
    """Return the lowest and the highest batch of the marked rows.

    With these bounds, files of other batches are not read, and a concurrent append of a newer batch
    is no conflict.
    """
    if batches.null_count:
        return ""
    ends = pc.min_max(batches).as_py()
    return f" AND t.batch >= {int(ends['min'])} AND t.batch <= {int(ends['max'])}"


def _same_for_all(ids: Iterable[str], *, note: str, status: DeadLetterStatus) -> pa.Table:
    unique = pc.unique(pa.array(list(ids), pa.string()))
    moment = pa.scalar(datetime.now(UTC), TIMESTAMP)
    values = {"note": pa.scalar(note), "status": pa.scalar(str(status)), "at": moment}
    return pa.table({"id": unique} | {n: pa.repeat(v, len(unique)) for n, v in values.items()})


def _any_twice(rows: pa.Table) -> bool:
    return bool(pc.count_distinct(rows["id"]).as_py() < len(rows))


def _once_each(rows: pa.Table) -> pa.Table:
    """Keep each record once; records of a source that was created again shared older ids."""
    if not _any_twice(rows):
        return rows
    ids = rows["id"].to_pylist()
    first = {key: n for n, key in reversed([*enumerate(zip(ids, content_keys(rows), strict=True))])}
    return rows.take(pa.array(sorted(first.values()), pa.int64()))


def _reason(code: str, group: list[dict[str, Any]]) -> Reason:
    types: Counter[str] = Counter()
    for row in group:
        types[row["type"] or ""] += row["id_count"]
    return Reason(
        code=code,
        count=types.total(),
        first_seen=min(row["first_seen_min"] for row in group),
        last_seen=max(row["last_seen_max"] for row in group),
        example=min(row["id_min"] for row in group),
        types=dict(sorted(types.items(), key=lambda item: (-item[1], item[0]))),
    )


def _within(offsets: int | tuple[int, int] | None) -> pc.Expression | None:
    if offsets is None:
        return None
    first, last = offsets if isinstance(offsets, tuple) else (offsets, offsets)
    return (pc.field("offset") >= first) & (pc.field("offset") <= last)


# The dead letters of a lake: each pipeline has its own table, or shares one.


def letter_tables(lake: str, *, pipeline: str | None = None) -> dict[str, DeadLetters]:
    """Return the dead letters of each pipeline of a lake; two may share a table."""
    folders = Ledger(lake).dead_letters()
    return {
        name: DeadLetters(layout.place(lake, path))
        for name, path in folders.items()
        if pipeline in (None, name)
    }


def unfinished(checkpoint: Store, lane: str = REPLAYS) -> list[int]:
    """Return the numbers of a lane's batches that were begun and not ended, the oldest first."""
    found = (_SELECTION.fullmatch(file.name) for file in checkpoint.below(lane).files())
    return sorted(int(one[1]) for one in found if one)


def find_letter(tables: dict[str, DeadLetters], id: str, *, lake: str) -> dict[str, Any]:
    """Return the one dead letter of a lake whose id begins with this text."""
    failure: DistributaryError | None = None
    for letters in {each.path: each for each in tables.values()}.values():
        try:
            return letters.get(id)
        except DistributaryError as error:
            failure = error
    raise failure or DistributaryError(
        "there are no dead letters in this lake", code=ErrorCode.NOT_FOUND, where=lake
    )


# Hexadecimal display of bytes, with a mark at one byte.

_PER_LINE = 16
_HEAD = 16
_AROUND = 4
_LONGEST_SHOWN = 200
"""The number of lines shown at the beginning, and on each side of the marked byte."""


def hexdump(
    data: bytes, *, mark: int | None = None, label: str = "", head: int = _HEAD
) -> Iterator[str]:
    """Format 16 bytes per line; of a long value, only the beginning and the part at the mark."""
    total = (len(data) + _PER_LINE - 1) // _PER_LINE
    marked = None if mark is None else min(mark, max(len(data) - 1, 0)) // _PER_LINE
    skipped = 0
    for line in range(total):
        near = marked is not None and abs(line - marked) <= _AROUND
        if line >= head and not near:
            skipped += 1
            continue
        if skipped:
            yield f"... {skipped * _PER_LINE:,} bytes"
            skipped = 0
        start = line * _PER_LINE
        row, half = data[start : start + _PER_LINE], _PER_LINE // 2
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{start:08x}  {row[:half].hex(' '):23}  {row[half:].hex(' '):23}  |{text}|"
        if mark is not None and line == marked:
            at = mark % _PER_LINE
            yield f"{'':{10 + at * 3 + (at >= half)}}^^ {label}".rstrip()
    if skipped:
        yield f"... {len(data) - (total - skipped) * _PER_LINE:,} bytes more"
    if mark is not None and mark >= len(data):
        yield f"the data ends before byte {mark}"


def short_bytes(data: bytes | None) -> dict[str, Any] | None:
    """Return the first bytes as text if they are UTF-8, else as hex."""
    if data is None:
        return None
    try:
        # a character that the limit cuts in two is left out
        whole = len(data) <= _LONGEST_SHOWN
        shown = getincrementaldecoder("utf-8")().decode(data[:_LONGEST_SHOWN], final=whole)
        kind = "text"
    except UnicodeDecodeError:
        shown, kind = data[: _LONGEST_SHOWN // 2].hex(" "), "hex"
    return {"bytes": len(data), "kind": kind, "shown": shown}
