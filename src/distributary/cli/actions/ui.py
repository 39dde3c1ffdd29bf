"""`ui`: the dashboard, until somebody ends it."""

from __future__ import annotations

import ipaddress
import os
import secrets
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from distributary.cli.lakes import Lake, find_lake, load_file
from distributary.cli.output import Paper, styled
from distributary.cli.verb import Invocation
from distributary.config.alerts import Alerts
from distributary.config.lake import local_path
from distributary.errors import ConfigError, ErrorCode
from distributary.observe.alerts.delivery import utc_now
from distributary.observe.alerts.notice import Kind, Notice, Pages, Severity, State
from distributary.observe.alerts.targets import DELIVERED, Outcome, Target, make_targets
from distributary.web.access import is_loopback
from distributary.web.app import Dashboard, Settings, make_dashboard
from distributary.web.jobs import TOKEN_VARIABLE
from distributary.web.serve import address_of, bind, serve

_SHORTEST = 16


@dataclass(frozen=True, slots=True)
class Door:
    """Where it listens, and what it asks for."""

    host: str
    port: int
    token_file: Path | None
    new_token: bool
    names: tuple[str, ...]
    proxies: tuple[str, ...]


def serve_page(call: Invocation, door: Door, *, lake: str | None, file: Path | None) -> None:
    """Listen, say where, and answer."""
    found = _lake(call, lake, file)
    token = _token(door)
    proxies = tuple(map(_proxy, door.proxies))
    listening = bind(door.host, door.port)
    settings = Settings(
        lake=found.path,
        options=found.options,
        file=None if file is None else str(file.resolve()),
        host=door.host,
        port=listening.getsockname()[1],
        token=token,
        names=door.names,
        proxies=proxies,
    )
    dashboard = make_dashboard(settings, tell=call.out.step)
    url = address_of(listening, door.host)
    data: dict[str, Any] = {"url": url, "lake": found.path, "token_required": token is not None}
    data |= {"token": token} if door.new_token else {}
    call.out.show(data, lambda paper: _draw(paper, data))
    _offer_link(call, dashboard, url)
    serve(dashboard, listening)


def _lake(call: Invocation, lake: str | None, file: Path | None) -> Lake:
    """Also a folder in which nothing has run yet: the page says what to do then."""
    folder = local_path(lake) if lake is not None and file is None else None
    if folder is not None and folder.is_dir():
        return Lake(str(folder), "--lake")
    return find_lake(call, lake, file)


def _token(door: Door) -> str | None:
    """What everybody has to know, who is not on this machine."""
    if door.new_token:
        return secrets.token_urlsafe(24)
    where = str(door.token_file) if door.token_file else f"variable {TOKEN_VARIABLE}"
    token = _read(door.token_file) if door.token_file else os.environ.get(TOKEN_VARIABLE)
    if token is not None:
        if len(token) < _SHORTEST:
            raise ConfigError(
                "the token is too short to protect anything",
                where=where,
                evidence=f"{len(token)} characters; {_SHORTEST} are needed",
                next_step="--new-token makes a good one",
            )
        return token
    if is_loopback(door.host):
        return None
    raise ConfigError(
        "everybody who reaches this address could read the lake and change it",
        code=ErrorCode.TOKEN_NEEDED,
        where=f"--host {door.host}",
        next_step=f"give --token-file FILE or {TOKEN_VARIABLE}, or let --new-token make one",
    )


def _proxy(text: str) -> str:
    """An address or a network; never a name, which others may answer for."""
    try:
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError:
        raise ConfigError(
            "that is no address of a proxy",
            where="--trusted-proxy",
            evidence=repr(text[:100]),
            next_step="write an address or a network, such as 10.0.0.7 or 10.0.0.0/24",
        ) from None


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "the file of the token cannot be read",
            code=ErrorCode.CONFIG_UNREADABLE,
            where=str(file),
            evidence=type(error).__name__,
            next_step="check its path and rights",
        ) from error


def _draw(paper: Paper, data: dict[str, Any]) -> None:
    paper.line("dashboard of ", data["lake"])
    paper.line(styled(data["url"], "bold"))
    if "token" in data:
        paper.line("token ", styled(data["token"], "bold"), "  (it is not shown again)")


def _offer_link(call: Invocation, dashboard: Dashboard, url: str) -> None:
    """To a person at a terminal only: elsewhere it would end in a log."""
    if dashboard.access.required and sys.stderr.isatty():
        link = f"{url}login#once={dashboard.access.new_link()}"
        call.out.note(f"to log in once, within ten minutes: {link}")


# `alerts test`: one message to each target, at once and without a queue.

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
    call.out.show(data, lambda paper: _draw_alerts(paper, tried))
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


def _draw_alerts(paper: Paper, tried: Sequence[_Tried]) -> None:
    for each in tried:
        mark = styled("sent", "green") if each.delivered else styled("failed", "red")
        why = f": {each.why}" if each.why else ""
        paper.line(mark, f"  {each.name} ({each.type}) in {each.seconds:.1f} s{why}")
    if not tried:
        paper.line(_NO_TARGET)
