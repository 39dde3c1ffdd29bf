"""Delta tables as an entry of the table of formats."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from distributary.delta.commit import APP, BATCH, facts_in
from distributary.delta.compact import REMOVED
from distributary.delta.log import FORGETS_MARKS, Snapshot, checkpoint_damage, data_file, load
from distributary.delta.log_reading import log_names, parse_commit, read_commit
from distributary.delta.tables import arrow_schema, open_table, reaching_table
from distributary.delta.vectors import BrokenVectorError
from distributary.model.manifest import compact
from distributary.model.table import is_below
from distributary.publish.base import Held, Publisher
from distributary.publish.direct import DirectPublisher
from distributary.publish.formats.readable import ReadableDelta
from distributary.publish.formats.table_format_entry import TableFormatEntry
from distributary.publish.formats.written import (
    KnownFile,
    LogCommit,
    TableHistory,
    compared_sizes,
    rows_held,
)
from distributary.store.base import Store, at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from distributary.config.pipeline_config import PipelineConfig


class DeltaFormat(TableFormatEntry):
    """Delta Lake, written by this process or by Spark."""

    def publisher(self, config: PipelineConfig, spark: SparkSession | None) -> Publisher:
        """Return the publisher that `tables.publisher` names."""
        # a hidden log has no other writer: it needs no features of Spark's
        if config.tables.publisher != "spark" or spark is None or config.hides_logs:
            return DirectPublisher()
        from distributary.publish.spark_publisher import SparkPublisher

        catalog = config.lake.registered_in
        if catalog is not None and catalog.by_session:
            return SparkPublisher(spark, schema=catalog.names)
        return SparkPublisher(spark)

    def is_at(self, path: str) -> bool:
        """Return whether a folder has a Delta log."""
        return at(path).exists("_delta_log")

    def open(self, path: str, version: int | None = None) -> ReadableDelta | None:
        """Open the newest version of a table, or `version`, for its rows; None if there is none."""
        delta = open_table(path, version=version)
        if delta is None:
            return None
        return ReadableDelta(path, delta.version(), arrow_schema(delta), delta)

    def written(self, path: str) -> WrittenDelta | None:
        """Open a table for its commits and files; None if there is none."""
        with reaching_table(path):
            table = load(at(path))
        return None if table is None else WrittenDelta(table)

    def held(self, store: Store, app_id: str) -> Held | None:
        """Return the newest version and mark; None if there is no table."""
        table = load(store, files=False)
        if table is None:
            return None
        mark = table.marks.get(app_id)
        # If the table is set to expire marks, a missing mark proves nothing.
        tells = mark is not None or FORGETS_MARKS not in table.properties
        return Held(True, table.version, mark, tells)

    def has_commit(self, store: Store, app_id: str, batch: int, version: int) -> bool | None:
        """Return whether the commit of a version carries a batch; None if there is no such file."""
        try:
            text = read_commit(store, version)
        except FileNotFoundError:
            return None
        # Searches for the text that our commits have, because that is quicker than parsing. A
        # longer number with the same beginning is a later batch, so the match is right as well.
        mark = compact({"appId": app_id, "version": batch})[:-1]
        if f'"txn":{mark}'.encode() in text:
            return True
        return parse_commit(text, last=True).marks.get(app_id, -1) >= batch


ENTRY = DeltaFormat()


@dataclass(frozen=True, slots=True)
class WrittenDelta:
    """A Delta table as its log describes it: its files, and the changes of each commit."""

    table: Snapshot

    def version(self) -> int:
        """Return the newest version."""
        return self.table.version

    def mark(self, app_id: str) -> int | None:
        """Return the newest batch of an application; None if it has committed none."""
        return self.table.marks.get(app_id)

    def rows(self) -> tuple[int | None, str]:
        """Return the number of rows; or None, and why it is not known."""
        return self.table.count, "some of its files do not say how many rows they have"

    def files(self) -> tuple[int, list[str], list[str]]:
        """Return the number of files, those that are gone, and those of another size."""
        files = self.table.files.values()
        sizes: dict[str, int | None] = {file.path: file.size for file in files}
        sizes |= {f.vector.path: None for f in files if f.vector and f.vector.path}
        # files of a shallow clone are in the folder of another table
        own = {name: size for name, size in sizes.items() if "://" not in name and name[:1] != "/"}
        with reaching_table(self.table.folder):
            return len(sizes), *compared_sizes(own, self.table.store.sizes())

    def contents(self) -> list[KnownFile]:
        """Return the files in the table's own folder."""
        return [
            KnownFile(f.path, f.size, f.checksum, rows_held(f.written, f.bounds("_batch")))
            for f in self.table.files.values()
            if is_below(f.path)
        ]

    def broken_vectors(self) -> Iterator[tuple[str, str]]:
        """Yield files whose deletion vectors cannot be read, and why."""
        for file in self.table.files.values():
            try:
                self.table.gone(file)
            except BrokenVectorError as error:
                yield file.path, str(error)

    def log_damage(self) -> tuple[str, str] | None:
        """Return the newest checkpoint and what differs, if the commits say something else."""
        with reaching_table(self.table.folder):
            return checkpoint_damage(self.table.store)

    def past(self) -> TableHistory:
        """Return the changes of each commit that the log still has."""
        store = self.table.store
        with reaching_table(store.address):
            names = log_names(store)
            versions = list(names.commits)
            gaps = [after for before, after in pairwise(versions) if after != before + 1]
            first = max(gaps, default=min(versions, default=0))
            rows: dict[str, int | None] = {}
            if first > 0:
                start = min((v for v in names.checkpoints if v >= first - 1), default=None)
                old = None if start is None else load(store, version=start)
                if old is None:
                    return TableHistory()
                rows = {path: file.rows for path, file in old.files.items()}
                first = old.version + 1
            later = (version for version in versions if version >= first)
            commits = tuple(_commit(n, _actions(store, n), rows) for n in later)
        return TableHistory(commits, complete=first == 0)

    def commits(self) -> list[tuple[str, int, int]]:
        """Return application, batch and rows of the commits of pipelines."""
        return [(c.app_id, c.batch, c.rows or 0) for c in self.past().commits if c.app_id]


def _actions(store: Store, version: int) -> list[dict[str, Any]]:
    text = read_commit(store, version).decode("utf-8", "replace")
    found = []
    for line in text.split("\n"):
        # a line that was cut short cannot be parsed
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def _commit(
    version: int, actions: Sequence[dict[str, Any]], rows: dict[str, int | None]
) -> LogCommit:
    """Return a commit of the log, and update `rows` of the table's files."""
    info: dict[str, Any] = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
    removed = [rows.pop(unquote(a["remove"]["path"]), None) for a in actions if "remove" in a]
    added = {unquote(a["add"]["path"]): data_file(a["add"]).rows for a in actions if "add" in a}
    rows |= added
    known = None not in removed and None not in added.values()
    facts = facts_in(info)
    batch, name = str(facts.get(BATCH, "")), str(info.get("operation") or "")
    mode = (info.get("operationParameters") or {}).get("mode", "")
    at = info.get("timestamp")
    return LogCommit(
        version=version,
        operation=f"{name} ({mode})" if name == "WRITE" and mode not in ("", "Append") else name,
        at=datetime.fromtimestamp(at / 1000, UTC) if isinstance(at, int) else None,
        engine=str(info.get("engineInfo") or info.get("clientVersion") or "")[:60],
        app_id=str(facts.get(APP, "")),
        batch=int(batch) if batch.isdecimal() else -1,
        rows=sum(n or 0 for n in added.values()) - sum(n or 0 for n in removed) if known else None,
        blank=not actions,
        counted=any((a.get("txn") or {}).get("appId") == REMOVED for a in actions),
    )
