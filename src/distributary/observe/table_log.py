"""A Delta table by its own log: the files it has now, and what each commit did to its rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
from deltalake import DeltaTable

from distributary.observe.delta import StorageOptions, lake_files, reaching
from distributary.publish.provenance import APP, BATCH, facts_in

_LOG = "_delta_log"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\..*parquet")
OURS = "Distributary"
"""The engine that our own commits name."""


@dataclass(frozen=True, slots=True)
class LogCommit:
    """One commit, and what it did."""

    version: int
    operation: str = ""
    """`DELETE`, `WRITE (Overwrite)`."""
    at: datetime | None = None
    engine: str = ""
    app_id: str = ""
    """Of a commit of a pipeline: which one, in which life and lane."""
    batch: int = -1
    rows: int | None = 0
    """Rows more, or fewer, after it; None where files do not tell."""
    blank: bool = False
    """It is there without a word in it."""

    def describe(self) -> str:
        """`DELETE at version 12, 2026-11-15 12:00 UTC, by delta-rs: 40 rows fewer`."""
        when = f", {self.at:%Y-%m-%d %H:%M} UTC" if self.at else ""
        who = f", by {self.engine}" if self.engine else ""
        what = "an unknown number of rows"
        if self.rows is not None:
            what = f"{abs(self.rows):,} rows {'fewer' if self.rows < 0 else 'more'}"
        return f"{self.operation or 'a commit'} at version {self.version}{when}{who}: {what}"


@dataclass(frozen=True, slots=True)
class History:
    """The commits of a log that are still there, the oldest first."""

    commits: tuple[LogCommit, ...]
    complete: bool
    """Whether it begins with the table itself."""


def live_files(table: DeltaTable) -> pa.Table:
    """The files of a table's newest version: path, size_bytes, num_records."""
    with reaching(table.table_uri):
        facts = pa.table(table.get_add_actions())
    return facts.select(["path", "size_bytes", "num_records"])


def has_deletion_vectors(table: DeltaTable) -> bool:
    """Whether rows may be gone that are still in a file."""
    return "deletionVectors" in (table.protocol().reader_features or ())


def unlike_their_log(
    path: str, files: pa.Table, options: StorageOptions | None = None
) -> tuple[list[str], list[str]]:
    """Of the files that a log names: those that are gone, and those of another size."""
    storage = lake_files(path, options)
    sizes = dict(
        zip(map(unquote, files["path"].to_pylist()), files["size_bytes"].to_pylist(), strict=True)
    )
    # files of a shallow clone are in the folder of another table
    own = {name: size for name, size in sizes.items() if "://" not in name and name[:1] != "/"}
    if storage is None or not own:
        return [], []
    with reaching(path):
        if "://" in path:
            # one request for a thousand files, not one for each
            everything = pa_fs.FileSelector("", recursive=True, allow_not_found=True)
            found = {info.path: info for info in storage.get_file_info(everything)}
        else:
            found = {info.path: info for info in storage.get_file_info(list(own))}
    there = {n: i.size for n, i in found.items() if i.type == pa_fs.FileType.File}
    gone = [name for name in own if name not in there]
    changed = [name for name, size in own.items() if name in there and there[name] != size]
    return gone, changed


def history(table: DeltaTable, path: str, options: StorageOptions | None = None) -> History:
    """What every commit did that the log still has."""
    storage = lake_files(path, options)
    if storage is None:
        return History((), complete=False)
    with reaching(path):
        names = [i.base_name for i in storage.get_file_info(pa_fs.FileSelector(_LOG))]
        versions = sorted(int(m[1]) for m in map(_COMMIT.fullmatch, names) if m)
        first = _first_of_unbroken(versions)
        rows: dict[str, int | None] = {}
        if first > 0:
            points = sorted(int(m[1]) for m in map(_CHECKPOINT.fullmatch, names) if m)
            start = next((point for point in points if point >= first - 1), None)
            if start is None:
                return History((), complete=False)
            old = DeltaTable(path, version=start, storage_options=options)
            known = live_files(old)
            counted = zip(known["path"].to_pylist(), known["num_records"].to_pylist(), strict=True)
            rows = {unquote(name): count for name, count in counted}
            first = start + 1
        commits = [
            _commit(version, _actions(storage, version), rows)
            for version in versions
            if version >= first
        ]
    return History(tuple(commits), complete=first == 0)


def _first_of_unbroken(versions: list[int]) -> int:
    """Where the commits begin that lead to the newest without a gap."""
    first = versions[-1] if versions else 0
    for version in reversed(versions[:-1]):
        if version != first - 1:
            break
        first = version
    return first


def _actions(storage: pa_fs.FileSystem, version: int) -> Iterator[dict[str, Any]]:
    with storage.open_input_stream(f"{_LOG}/{version:020d}.json") as stream:
        text = stream.read().decode("utf-8", "replace")
    for line in text.split("\n"):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError:
                # a line that was cut short says nothing
                continue


def _commit(
    version: int, actions: Iterable[dict[str, Any]], rows: dict[str, int | None]
) -> LogCommit:
    """What a commit says; `rows` of the table's files are brought up to date with it."""
    found = list(actions)
    info: dict[str, Any] = next((a["commitInfo"] for a in found if "commitInfo" in a), {})
    change: int | None = 0
    removed = [unquote(a["remove"]["path"]) for a in found if "remove" in a]
    for path in removed:
        change = _sum(change, rows.pop(path, None), -1)
    for add in (a["add"] for a in found if "add" in a):
        count = rows[unquote(add["path"])] = _rows(add)
        change = _sum(change, count, 1)
    told = facts_in(info)
    batch = str(told.get(BATCH, ""))
    return LogCommit(
        version=version,
        operation=_operation(info),
        at=_moment(info.get("timestamp")),
        engine=str(info.get("engineInfo") or info.get("clientVersion") or "")[:60],
        app_id=str(told.get(APP, "")),
        batch=int(batch) if batch.isdecimal() else -1,
        rows=change,
        blank=not found,
    )


def _rows(add: Mapping[str, Any]) -> int | None:
    """Rows of a file, without those that a deletion vector takes away."""
    try:
        count = json.loads(add.get("stats") or "{}").get("numRecords")
    except (ValueError, AttributeError):
        return None
    gone = (add.get("deletionVector") or {}).get("cardinality", 0)
    return None if count is None else int(count) - int(gone)


def _sum(total: int | None, count: int | None, sign: int) -> int | None:
    return None if total is None or count is None else total + sign * count


def _operation(info: Mapping[str, Any]) -> str:
    name = str(info.get("operation") or "")
    mode = (info.get("operationParameters") or {}).get("mode", "")
    return f"{name} ({mode})" if name == "WRITE" and mode not in ("", "Append") else name


def _moment(milliseconds: object) -> datetime | None:
    if not isinstance(milliseconds, int):
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


@dataclass(frozen=True, slots=True)
class Counted:
    """How many rows a table has by its log, or None and why that is not known."""

    rows: int | None
    why: str = field(default="")


def counted(table: DeltaTable, path: str, options: StorageOptions | None = None) -> Counted:
    """The rows of the newest version, by statistics only."""
    if has_deletion_vectors(table):
        past = history(table, path, options)
        parts = [commit.rows for commit in past.commits]
        if not past.complete or None in parts:
            return Counted(None, "it has deletion vectors, and its log no longer tells all of them")
        return Counted(sum(part or 0 for part in parts))
    counts = live_files(table)["num_records"]
    if counts.null_count:
        return Counted(None, "some of its files do not tell how many rows they have")
    return Counted(pc.sum(counts).as_py() or 0)
