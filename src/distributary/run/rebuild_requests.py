"""The owner's part of `rebuild`: make a table anew from its log, on its own or when asked.

A request is a file `<table>.rebuild` beside the parked tables, its answer `<table>.rebuilt`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distributary.config.pipeline import PipelineConfig
from distributary.errors import ConfigError, DistributaryError, ErrorCode
from distributary.merge.rebuild import rebuild
from distributary.observe.ledger import Ledger
from distributary.observe.rows import TableSummary
from distributary.publish.base import Publisher
from distributary.run.behind import accept_rebuilt
from distributary.run.from_log import merged_table
from distributary.run.writing import replace_atomically

_REQUEST, _ANSWER = ".rebuild", ".rebuilt"
_LONGEST_ERROR = 500


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A table that was made anew."""

    table: str
    log: str
    rows: int
    version: int
    """-1: the log leaves no row, and there is no table."""
    seconds: float
    by_owner: bool = False
    """The running pipeline did it."""


@dataclass(frozen=True, slots=True)
class Request:
    """A table that somebody wants to have made anew by the owner."""

    folder: Path
    table: str
    id: str
    as_of_us: int | None = None

    def send(self) -> None:
        """Leave it where the owner looks."""
        body = {"id": self.id, "as_of_us": self.as_of_us}
        replace_atomically(self._path(_REQUEST), json.dumps(body))

    def withdraw(self) -> None:
        """Nobody waits for it any more."""
        self._path(_REQUEST).unlink(missing_ok=True)

    def answer(self) -> dict[str, Any] | None:
        """What the owner says to it: `rebuilt` or `error`; None so far."""
        path = self._path(_ANSWER)
        try:
            answer: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        if answer.get("id") != self.id:
            return None
        path.unlink(missing_ok=True)
        return answer

    def _path(self, suffix: str) -> Path:
        return self.folder / f"{self.table}{suffix}"


def wanted(folder: str) -> list[Path]:
    """The requests that wait."""
    return sorted(Path(folder).glob(f"*{_REQUEST}"))


def answer_requests(
    config: PipelineConfig, ledger: Ledger, publisher: Publisher, folder: str
) -> None:
    """Make the tables that somebody asks for."""
    for path in wanted(folder):
        answer = _answer(config, ledger, publisher, path)
        replace_atomically(path.with_suffix(_ANSWER), json.dumps(answer))
        path.unlink(missing_ok=True)


def rebuild_now(
    config: PipelineConfig,
    ledger: Ledger,
    known: TableSummary,
    publisher: Publisher,
    *,
    as_of_us: int | None,
) -> Rebuilt:
    """Make a table anew; the caller owns the checkpoint."""
    target = merged_table(config, known, publisher)
    result = rebuild(target.log_path, target.order, as_of_us=as_of_us)
    accept_rebuilt(config, ledger, target.table, result.version)
    rows = result.counts.inserted
    return Rebuilt(target.table, target.log, rows, result.version, result.seconds)


def _answer(
    config: PipelineConfig, ledger: Ledger, publisher: Publisher, path: Path
) -> dict[str, object]:
    number = ""
    try:
        request = json.loads(path.read_text(encoding="utf-8"))
        number, as_of_us = str(request["id"]), request["as_of_us"]
        name = path.name.removesuffix(_REQUEST)
        known = next((t for t in ledger.tables(config.name) if t.table == name), None)
        if known is None:
            raise ConfigError("there is no such table", code=ErrorCode.NOT_FOUND, where=name)
        done = rebuild_now(config, ledger, known, publisher, as_of_us=as_of_us)
    except (DistributaryError, ValueError, KeyError, TypeError, OSError) as error:
        # a request that cannot be fulfilled is no reason for the pipeline to stop
        told = f"{error.code}: {error.what}" if isinstance(error, DistributaryError) else str(error)
        return {"id": number, "error": told[:_LONGEST_ERROR]}
    return {"id": number, "rebuilt": asdict(done)}
