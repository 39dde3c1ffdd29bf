"""What is said about each thing: what, where, the evidence, and the command to type next."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from distributary.config.pipeline import PipelineConfig
from distributary.config.quantity import format_duration
from distributary.errors import ErrorCode
from distributary.observe.alerts.notice import Kind, Notice, Severity, State, listed
from distributary.observe.events import BatchSettled, Failed, SchemaSeen, TableParked, TaskFailed
from distributary.observe.pages import Pages

STOPPED = "stopped"
"""The subject of the failure that ended a pipeline."""


class Wording:
    """Notices of one pipeline."""

    def __init__(self, config: PipelineConfig, mask: Callable[[str], str]) -> None:
        self._mask = mask
        self._name = config.name
        self._lake = config.lake.address
        self._pages = Pages(config.alerts.dashboard_url)

    def failed(self, event: Failed) -> Notice:
        """A batch or the run failed."""
        error, again = event.error, event.retry_in
        tried = "" if again is None else f", tried again in {again:.0f} s"
        return self._notice(
            Kind.FAILURE,
            Severity.CRITICAL if again is None else Severity.WARNING,
            f"stopped: {error.what}" if again is None else f"{error.what}{tried}",
            subject=STOPPED if again is None else str(error.code),
            **self._told_by(event),
        )

    def broken(self, event: Failed) -> Notice:
        """A batch that does not add up was refused."""
        return self._notice(
            Kind.INVARIANT,
            Severity.CRITICAL,
            event.error.what,
            **self._told_by(event),
        )

    def unbalanced(self, event: BatchSettled) -> Notice:
        """A batch was settled and does not add up."""
        return self._notice(
            Kind.INVARIANT,
            Severity.CRITICAL,
            f"batch {event.batch} does not add up",
            at=event.at,
            where=self._place(event.batch),
            evidence=event.counts.equation(),
            next_step=self._command("status"),
            code=str(ErrorCode.ACCOUNTING_BROKEN),
            batch=event.batch,
            link=self._pages.batch(self._name, event.batch),
        )

    def parked(self, event: TableParked) -> Notice:
        """A table waits."""
        return self._notice(
            Kind.PARKED,
            Severity.ERROR,
            f"table {event.table} cannot be written and is parked",
            at=event.at,
            subject=event.table,
            where=f"table {event.table}, batch {event.batch}",
            evidence=f"{event.records:,} records wait; {event.error}",
            next_step=self._command("resume", event.table),
            code=event.error.partition(":")[0] if ":" in event.error else "",
            batch=event.batch,
            link=self._pages.table(event.table),
        )

    def dead_letters(
        self, codes: Counter[str], *, read: int, within: timedelta, at: datetime
    ) -> Notice:
        """Too many dead letters."""
        letters, most = codes.total(), codes.most_common(1)[0][0] if codes else ""
        share = f", {letters / read:.1%} of {read:,} records" if read else ""
        return self._notice(
            Kind.DEAD_LETTERS,
            Severity.WARNING,
            f"{letters:,} dead letters within {format_duration(within)}{share}",
            at=at,
            where=self._place(None),
            evidence=listed(f"{code} {n:,}" for code, n in codes.most_common()),
            next_step=self._command("dlq list", options=("--pipeline", self._name)),
            code=most,
            link=self._pages.error(most) if most else self._pages.pipeline(self._name),
        )

    def stale(self, *, fresh_at: datetime, limit: timedelta) -> Notice:
        """Tables were not brought up to date."""
        return self._notice(
            Kind.FRESHNESS,
            Severity.ERROR,
            f"tables are older than {format_duration(limit)}",
            at=fresh_at + limit,
            where=self._place(None),
            evidence=f"up to date last at {fresh_at:%Y-%m-%dT%H:%M:%SZ}",
            next_step=self._command("status"),
            link=self._pages.pipeline(self._name),
        )

    def schemas(self, seen: Sequence[SchemaSeen], settled: BatchSettled) -> Notice:
        """Versions of schemas that a batch met for the first time."""
        first, alone = seen[0], len(seen) == 1
        what = f"new schema {first.label}" if alone else f"{len(seen):,} new schemas"
        lines = (f"{s.label}: {', '.join(s.changes) or 'no change of columns'}" for s in seen)
        return self._notice(
            Kind.SCHEMA,
            Severity.INFO,
            what,
            at=settled.at,
            subject=f"{settled.lane}-{settled.batch}",
            where=f"{self._place(settled.batch)}, {listed(sorted({s.table for s in seen}))}",
            evidence="; ".join(lines),
            next_step=self._command("schema history", *([first.type] if alone else [])),
            batch=settled.batch,
            link=self._pages.table(first.table)
            if alone
            else self._pages.batch(self._name, settled.batch),
        )

    def tables(self, names: Sequence[str], settled: BatchSettled) -> Notice:
        """Tables that a batch has made."""
        alone = len(names) == 1
        what = f"new table {names[0]}" if alone else f"{len(names):,} new tables"
        return self._notice(
            Kind.TABLE,
            Severity.INFO,
            what,
            at=settled.at,
            subject=f"{settled.lane}-{settled.batch}",
            where=self._place(settled.batch),
            evidence=listed(names, most=50),
            next_step=self._command("tables"),
            batch=settled.batch,
            link=self._pages.table(names[0])
            if alone
            else self._pages.batch(self._name, settled.batch),
        )

    def task_failed(self, event: TaskFailed) -> Notice:
        """Upkeep failed; the pipeline goes on."""
        error = event.error
        return self._notice(
            Kind.FAILURE,
            Severity.WARNING,
            f"{event.task} failed: {error.what}",
            at=event.at,
            once=True,
            subject=f"task-{event.task}",
            where=error.where or self._place(None),
            evidence=error.evidence,
            next_step=error.next_step or self._command("status"),
            code=str(error.code),
            link=self._pages.error(error.code),
        )

    def held_back(self, told: Sequence[Notice], uncounted: int, at: datetime) -> Notice:
        """One message for several that there was no room for."""
        more = f"; {uncounted:,} more were over before they could be told" if uncounted else ""
        worst = min((notice.severity for notice in told), key=list(Severity).index)
        return replace(
            self._notice(
                Kind.HELD_BACK,
                worst,
                f"{len(told):,} messages were held back",
                at=at,
                once=True,
                where=self._place(None),
                evidence=listed(notice.what for notice in told) + more,
                next_step=self._command("status"),
                link=self._pages.pipeline(self._name),
            ),
            since=told[0].since,
        )

    def _notice(
        self, kind: Kind, severity: Severity, what: str, *, at: datetime, **parts: Any
    ) -> Notice:
        # these cannot be over: they are told once
        happened = severity is Severity.INFO or parts.pop("once", False)
        return Notice(
            pipeline=self._name,
            kind=kind,
            state=State.INFO if happened else State.RAISED,
            severity=severity,
            what=what,
            at=at,
            since=at,
            **parts,
        ).cleaned(self._mask)

    def _told_by(self, event: Failed) -> dict[str, Any]:
        """What an error says of itself."""
        error = event.error
        return {
            "at": event.at,
            "where": error.where or self._place(event.batch),
            "evidence": error.evidence,
            "next_step": error.next_step or self._command("status"),
            "code": str(error.code),
            "batch": event.batch,
            "link": self._pages.error(error.code),
        }

    def _place(self, batch: int | None) -> str:
        return f"pipeline {self._name}" + (f", batch {batch}" if batch is not None else "")

    def _command(self, verb: str, *names: str, options: Sequence[str] = ()) -> str:
        return f"distributary {verb} " + shlex.join([*names, *options, "--lake", self._lake])
