"""A pipeline with alerts, and events as they come, in a time of their own."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from distributary.config.pipeline_config import PipelineConfig
from distributary.errors import AccountingError, DistributaryError, SourceUnavailableError
from distributary.model.manifest import Counts
from distributary.observe.alerts.notice import AlertKind, AlertState, Notice, Severity
from distributary.observe.events import BatchSettled, Failed, SchemaSeen, TableParked, TableWritten

NAME = "games"
START = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


def moment(seconds: float = 0) -> datetime:
    return START + timedelta(seconds=seconds)


def pipeline(alerts: Mapping[str, Any] | None = None, *, name: str = NAME) -> PipelineConfig:
    return PipelineConfig.model_validate(
        {
            "name": name,
            "source": {"type": "kafka", "bootstrap_servers": "127.0.0.1:1", "topics": ["t"]},
            "payload": {"format": "json"},
            "tables": {"each": "{topic}"},
            "lake": {"path": "./my lake"},
            "trigger": "continuous",
            "alerts": alerts or {},
        }
    )


def settled(
    at: float = 0,
    *,
    batch: int = 0,
    read: int = 100,
    dead: Mapping[str, int] | None = None,
    lost: int = 0,
    parked: tuple[str, ...] = (),
    written: tuple[TableWritten, ...] = (),
    name: str = NAME,
    **rest: Any,
) -> BatchSettled:
    letters = sum((dead or {}).values())
    return BatchSettled(
        pipeline=name,
        at=moment(at),
        batch=batch,
        counts=Counts(read=read, written=read - letters - lost, dead_lettered=letters),
        rows=read,
        tables=len(written),
        seconds=1.0,
        dead_letters=dead or {},
        parked_tables=parked,
        written=written,
        **rest,
    )


def written(table: str, *, outcome: str = "published", created: bool = False) -> TableWritten:
    return TableWritten(table, "each", 1, 1, 1, outcome, version=0, created=created)


def failed(
    at: float = 0,
    *,
    retry_in: float | None = 5.0,
    error: DistributaryError | None = None,
    name: str = NAME,
) -> Failed:
    what = error or SourceUnavailableError("no broker", where="127.0.0.1:1", next_step="start it")
    return Failed(pipeline=name, at=moment(at), error=what, retry_in=retry_in, batch=7)


def broken(at: float = 0) -> Failed:
    return failed(at, retry_in=None, error=AccountingError("batch 7 does not add up"))


def parked(table: str, at: float = 0, *, error: str = "COMMIT_FAILED: disk full") -> TableParked:
    return TableParked(pipeline=NAME, at=moment(at), batch=7, table=table, records=12, error=error)


def seen(table: str, at: float = 0, *, batch: int = 0, version: int = 3) -> SchemaSeen:
    return SchemaSeen(
        pipeline=NAME,
        at=moment(at),
        batch=batch,
        type=table,
        table=table,
        schema_id=version,
        label=f"{table}-value v{version}",
        changes=("+ rating int",),
    )


def notice(
    subject: str = "chess",
    *,
    state: AlertState = AlertState.RAISED,
    kind: AlertKind = AlertKind.PARKED,
    at: float = 0,
    **rest: Any,
) -> Notice:
    given: dict[str, Any] = {
        "pipeline": NAME,
        "severity": Severity.ERROR,
        "what": f"table {subject} is parked",
        "where": f"table {subject}",
        "evidence": "disk full",
        "next_step": f"distributary resume {subject}",
        "code": "COMMIT_FAILED",
        "since": moment(at),
        "at": moment(at),
    }
    return Notice(kind=kind, state=state, subject=subject, **(given | rest))


def told(notices: list[Notice]) -> list[tuple[str, str]]:
    return [(str(n.state), n.key) for n in notices]
