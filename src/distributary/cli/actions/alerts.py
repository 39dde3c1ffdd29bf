"""`alerts test`: one message to each target, at once and without a queue."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from distributary.cli.lakes import load_file
from distributary.cli.output import Paper, styled
from distributary.cli.verb import Invocation
from distributary.config.alerts import Alerts
from distributary.errors import ConfigError, ErrorCode
from distributary.observe.alerts.courier import utc_now
from distributary.observe.alerts.notice import Kind, Notice, Severity, State
from distributary.observe.alerts.targets.base import DELIVERED, Outcome, Target
from distributary.observe.alerts.targets.make import make_targets
from distributary.observe.pages import Pages

_NO_TARGET = "no target: add alerts.to to the file, as in docs/alerts.md"


@dataclass(frozen=True, slots=True)
class _Tried:
    """How it went with one target."""

    name: str
    type: str
    delivered: bool
    why: str
    seconds: float


def test_targets(call: Invocation, file: Path, *, to: str | None, dry_run: bool) -> int:
    """Send, say how it went, and return the exit code."""
    config = load_file(call, file).config
    alerts = config.alerts
    wanted = _chosen(alerts, to, file)
    if dry_run:
        shown = [{"name": target.name, "type": kind} for target, kind in wanted]
        data = {"pipeline": config.name, "targets": shown, "dry_run": True}
        call.out.show(data, lambda paper: _draw_plan(paper, wanted))
        return 0
    notice = _test_notice(config.name, Pages(alerts.dashboard_url).pipeline(config.name))
    with ThreadPoolExecutor(max_workers=8) as pool:
        tried = list(pool.map(lambda each: _try(each[0], each[1], notice), wanted))
    data = {"pipeline": config.name, "targets": [asdict(each) for each in tried]}
    call.out.show(data, lambda paper: _draw(paper, tried))
    return 0 if tried and all(each.delivered for each in tried) else 1


def _chosen(alerts: Alerts, to: str | None, file: Path) -> Sequence[tuple[Target, str]]:
    kinds = [config.type for config in alerts.to]
    every = list(zip(make_targets(alerts), kinds, strict=True))
    found = [(target, kind) for target, kind in every if to in (None, target.name)]
    if to is not None and not found:
        raise ConfigError(
            "there is no such target",
            code=ErrorCode.NOT_FOUND,
            where=f"alerts.to of {file}",
            evidence=", ".join(target.name for target, _ in every) or "it names no target",
            next_step="say --to with one of these names",
        )
    return found


def _test_notice(pipeline: str, link: str) -> Notice:
    now = utc_now()
    return Notice(
        pipeline=pipeline,
        kind=Kind.TEST,
        state=State.INFO,
        severity=Severity.INFO,
        what="a test: alerts of this pipeline arrive here",
        at=now,
        since=now,
        where=f"pipeline {pipeline}",
        evidence="sent by hand",
        next_step="nothing is to be done",
        link=link,
    )


def _try(target: Target, kind: str, notice: Notice) -> _Tried:
    began = time.monotonic()
    outcome = _sent(target, notice)
    target.close()
    seconds = round(time.monotonic() - began, 3)
    return _Tried(target.name, kind, outcome.delivered, outcome.why, seconds)


def _sent(target: Target, notice: Notice) -> Outcome:
    if not target.one_by_one:
        return target.send(notice)
    raised = replace(notice, state=State.RAISED)
    outcome = target.send(raised)
    if not outcome.delivered:
        return outcome
    ended = target.send(raised.resolved(utc_now()))
    return DELIVERED if ended.delivered else replace(ended, why=f"not resolved: {ended.why}")


def _draw_plan(paper: Paper, wanted: Sequence[tuple[Target, str]]) -> None:
    for target, kind in wanted:
        paper.line(f"would send a test message to {target.name} ({kind})")
    if not wanted:
        paper.line(_NO_TARGET)


def _draw(paper: Paper, tried: Sequence[_Tried]) -> None:
    for each in tried:
        mark = styled("sent", "green") if each.delivered else styled("failed", "red")
        why = f": {each.why}" if each.why else ""
        paper.line(mark, f"  {each.name} ({each.type}) in {each.seconds:.1f} s{why}")
    if not tried:
        paper.line(_NO_TARGET)
