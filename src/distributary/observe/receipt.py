"""A receipt: what the lake says of its pipelines, whole and with a fingerprint, for an audit.

What is the same for as long as the lake is the same are its facts; the fingerprint is theirs. When
it was written, by which versions, and whether a pipeline was running then stand beside them.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from distributary import durable
from distributary.errors import ConfigError, ErrorCode
from distributary.observe.delta import StorageOptions
from distributary.observe.health import assess, losses_of
from distributary.observe.ledger import Ledger
from distributary.observe.measured import with_measures
from distributary.observe.plain import plain
from distributary.observe.receipt_page import MARK, page
from distributary.observe.rows import BatchRow, SchemaRow, TableSummary
from distributary.observe.status import PipelineStatus, Status

RECEIPT_VERSION = 1
LAST_BATCHES = 60
"""How many of the newest batches are told one by one."""

_TABLE = ("table", "role", "type", "records", "rows", "bytes", "columns", "batches", "version")
_TABLE_TIMES = ("first_seen", "last_commit", "parked_batches", "parked_records", "error")
_BATCH = ("batch", "finished_at", "seconds", "read", "written", "dead_lettered", "parked")
_BATCH_MORE = ("skipped", "rows", "tables", "lag_records", "lag_seconds")
_SCHEMA = ("batch", "at", "type", "table", "schema_id", "schema", "kind", "column", "action")
_PIPELINE = ("name", "file", "checkpoint", "as_of", "totals", "equation", "balanced", "rows")
_PIPELINE_MORE = ("dead_letters", "parked", "failure", "expectations")


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a receipt says, made of plain values."""

    facts: Mapping[str, Any]
    """What the lake tells: equal for as long as the lake is."""
    about: Mapping[str, Any]
    """When and by whom it was written, and how things stood in that moment."""

    @property
    def text(self) -> str:
        """The facts as they stand in the page: one line of JSON that closes no element."""
        return _one_line(self.facts)

    @property
    def sha256(self) -> str:
        """The fingerprint of that line."""
        return hashlib.sha256(self.text.encode("ascii")).hexdigest()

    def page(self) -> bytes:
        """The page, complete in itself."""
        about = {**self.about, "sha256": self.sha256}
        made = page(self.facts, about, facts_text=self.text, about_text=_one_line(about))
        return made.encode("utf-8")


def receipt(
    now: Status,
    *,
    versions: Mapping[str, str],
    storage_options: StorageOptions | None = None,
    mask: Callable[[str], str] = str,
) -> Receipt:
    """Everything about the pipelines of a status; `mask` hides secrets in every text of it."""
    ledger = Ledger(now.lake, storage_options=storage_options)
    tables: dict[str, list[TableSummary]] = {each.name: [] for each in now.pipelines}
    for table in with_measures(
        now.lake, ledger.tables(schema_ids=False), storage_options=storage_options
    ):
        if table.pipeline in tables:
            tables[table.pipeline].append(table)
    facts, moments = [], []
    for each in now.pipelines:
        batches = ledger.batches(each.name, lane="stream", last=LAST_BATCHES)
        history = ledger.schema_history(pipeline=each.name)
        facts.append(_pipeline(each, tables[each.name], batches, history, now))
        moments.append(_moment(each, batches, now.now))
    told = {"version": RECEIPT_VERSION, "lake": now.lake, "pipelines": facts}
    about = {
        "version": RECEIPT_VERSION,
        "written_at": now.now,
        "versions": versions,
        "pipelines": moments,
    }
    return Receipt(_masked(plain(told), mask), _masked(plain(about), mask))


def check_place(path: Path) -> None:
    """Refuses a place where something else would be lost, or where nothing can be written."""
    try:
        found = path.stat()
    except FileNotFoundError:
        if path.parent.is_dir():
            return
        raise _unwritable(path, "there is no such folder") from None
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from error
    if not stat.S_ISREG(found.st_mode):
        raise _unwritable(path, "this is not a file")
    try:
        with path.open("rb") as file:
            ours = file.read(len(MARK)) == MARK.encode("ascii")
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from error
    if not ours:
        raise ConfigError(
            "there is a file already, and it is not a receipt",
            code=ErrorCode.CONFIRMATION_NEEDED,
            where=str(path),
            evidence=f"{found.st_size:,} bytes that would be lost",
            next_step="name another file for the receipt, or remove this one first",
        )


def write_receipt(path: Path, made: Receipt) -> None:
    """Puts the page there, whole or not at all; an older receipt is replaced."""
    check_place(path)
    try:
        durable.replace(path, made.page())
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from error


def _pipeline(
    each: PipelineStatus,
    tables: Sequence[TableSummary],
    batches: Sequence[BatchRow],
    history: Sequence[SchemaRow],
    now: Status,
) -> dict[str, Any]:
    as_of = each.as_of or now.now
    losses = losses_of(now.lake, tables)
    health = {t.table: assess(t, as_of=as_of, loss=losses.get(t.table)).health for t in tables}
    return {
        **_picked(each, _PIPELINE + _PIPELINE_MORE),
        "lag_records": each.lag.lag_records,
        "lag_seconds": each.lag.lag_seconds,
        "changes": each.changes.changes if each.changes else None,
        "batches": [_picked(b, _BATCH + _BATCH_MORE) for b in batches if b.batches == 1],
        "tables": [
            {**_picked(t, _TABLE + _TABLE_TIMES), "health": health[t.table]} for t in tables
        ],
        "schemas": [
            {**_picked(row, _SCHEMA), "before": row.before, "after": row.after, "text": row.text}
            for row in history
        ],
    }


def _moment(each: PipelineStatus, batches: Sequence[BatchRow], now: datetime) -> dict[str, Any]:
    # the status was read first: a batch may have been settled since, and be in the tables only
    then = each.last_batch.key if each.last_batch else None
    newest = batches[-1].key if batches else None
    # whoever reads a receipt may be anywhere
    words = each.lag.words(now=now, tz=UTC) + (" UTC" if each.lag.level_at else "")
    return {
        "name": each.name,
        "state": each.state,
        "age_seconds": each.age_seconds,
        "lag_in_words": words,
        "records_per_second": each.records_per_second,
        "settled_meanwhile": newest != then,
    }


def _picked(value: object, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _masked(value: Any, mask: Callable[[str], str]) -> Any:
    match value:
        case str():
            return mask(value)
        case dict():
            return {key: _masked(item, mask) for key, item in value.items()}
        case list():
            return [_masked(item, mask) for item in value]
    return value


def _one_line(value: Mapping[str, Any]) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    # outside of texts JSON has none of these three: the document stays the same
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _unwritable(path: Path, why: str) -> ConfigError:
    return ConfigError(
        "the receipt cannot be written there",
        where=str(path),
        evidence=why,
        next_step="name a file in a folder that exists and that you may write to",
    )
