"""`ui`, `metrics` and `alerts test`: the page over a lake, and what monitoring needs."""

from __future__ import annotations

import ipaddress
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from distributary.cli.command.lakes import find_lake, load_file, read_text
from distributary.cli.command.output import Paper, styled
from distributary.cli.command.verb import (
    LOOK,
    DryRun,
    File,
    FileOption,
    Invocation,
    group,
    option,
    single,
    verb,
)
from distributary.errors import ConfigError, ErrorCode

if TYPE_CHECKING:
    from distributary.observe.alerts.notice import Notice
    from distributary.observe.alerts.targets import AlertTarget, DeliveryOutcome


app = single(LOOK)
alerts_app = group("alerts", "Alerts: send a test message.", panel=LOOK)

PORT = 8642
_SHORTEST = 16
_NO_TARGET = "no target: add one to the file, as in `alerts: {to: [{type: slack, url: ...}]}`"


@verb(
    app,
    "metrics",
    "metrics --grafana > distributary.json",
    "metrics --rules > distributary-rules.yaml",
)
def metrics(
    call: Invocation,
    grafana: Annotated[
        bool, option("--grafana", "Print a dashboard for Grafana to import.")
    ] = False,
    rules: Annotated[bool, option("--rules", "Print alert rules for Prometheus.")] = False,
) -> None:
    """List the metrics; print a dashboard for Grafana, or alert rules.

    `run FILE --metrics 127.0.0.1:9464` serves the metrics.
    """
    from distributary.observe.metrics import CATALOGUE, shipped

    if grafana and rules:
        raise call.usage("--grafana and --rules exclude each other.")
    if grafana:
        text = shipped("grafana-dashboard.json")
        call.out.show({"dashboard": json.loads(text)}, lambda paper: paper.lines(text))
    elif rules:
        text = shipped("alert-rules.yaml")
        call.out.show({"rules": text}, lambda paper: paper.lines(text))
    else:
        names = ("name", "kind", "labels", "help")
        cells = [(m.name, str(m.kind), ", ".join(m.labels), m.help) for m in CATALOGUE]
        call.out.show(
            {"metrics": [{name: getattr(m, name) for name in names} for m in CATALOGUE]},
            lambda paper: paper.table(("metric", "kind", "labels", "what it says"), cells),
        )


@verb(
    app,
    "ui --lake distributary-demo",
    "ui --lake distributary-demo --host 0.0.0.0 --new-token",
    "ui --lake ./games --lake ./shop",
)
def ui(
    call: Invocation,
    lake: Annotated[
        list[str] | None,
        option(
            "--lake",
            "The lake, else as with other commands. Given several times, the page has all lakes.",
            metavar="DIR",
        ),
    ] = None,
    file: FileOption = None,
    host: Annotated[
        str, option("--host", "Address to listen on. Any address but loopback needs a token.")
    ] = "127.0.0.1",
    port: Annotated[
        int, option("--port", "Port to listen on; 0 for a free port.", min=0, max=65535)
    ] = PORT,
    token_file: Annotated[
        Path | None,
        option(
            "--token-file",
            "File with the token that browsers must send; $DISTRIBUTARY_TOKEN by default.",
            metavar="FILE",
        ),
    ] = None,
    new_token: Annotated[bool, option("--new-token", "Create a token and print it once.")] = False,
    allow_host: Annotated[
        list[str] | None,
        option(
            "--allow-host",
            "Another host name of the dashboard, such as that of a proxy.",
            metavar="NAME",
        ),
    ] = None,
    trusted_proxy: Annotated[
        list[str] | None,
        option(
            "--trusted-proxy",
            "Address of a proxy whose headers X-Forwarded-For and X-Forwarded-Proto are trusted.",
            metavar="ADDRESS",
        ),
    ] = None,
) -> None:
    """Serve the dashboard: the state of a lake and its pipelines, and buttons to repair them.

    The dashboard reads the lake only, so no pipeline needs to run. Ctrl-C ends it.
    """
    import secrets

    from distributary.web.dashboard import Settings, make_dashboard
    from distributary.web.serve import address_of, bind, serve

    # a lake without a pipeline is allowed: the page shows the first steps then
    found, *others = [find_lake(call, each, file, empty=True) for each in lake or (None,)]
    token = secrets.token_urlsafe(24) if new_token else _token(host, token_file)
    proxies = tuple(map(_proxy, trusted_proxy or ()))
    listening = bind(host, port)
    settings = Settings(
        lake=found.path,
        others=tuple(each.path for each in others),
        file=None if file is None else str(file.resolve()),
        host=host,
        port=listening.getsockname()[1],
        token=token,
        names=tuple(allow_host or ()),
        proxies=proxies,
    )
    dashboard = make_dashboard(settings, tell=call.out.step)
    url = address_of(listening, host)
    data: dict[str, Any] = {"url": url, "lake": found.path, "token_required": token is not None}
    data |= {"lakes": [each.path for each in (found, *others)]} if others else {}
    data |= {"token": token} if new_token else {}

    def draw(paper: Paper) -> None:
        paper.line("dashboard of ", ", ".join(each.path for each in (found, *others)))
        paper.line(styled(url, "bold"))
        if "token" in data:
            paper.line("token ", styled(data["token"], "bold"), "  (it is not shown again)")

    call.out.show(data, draw)
    # only at a terminal, because the link would end in a log elsewhere
    if dashboard.access.required and sys.stderr.isatty():
        link = f"{url}login#once={dashboard.access.new_link()}"
        call.out.note(f"link for one login within ten minutes: {link}")
    serve(dashboard, listening)


def _token(host: str, file: Path | None) -> str | None:
    """Return the token that clients on other machines need."""
    from distributary.config.base import is_loopback
    from distributary.web.jobs import TOKEN_VARIABLE

    where = str(file) if file else f"variable {TOKEN_VARIABLE}"
    token = (
        read_text(file, "the file of the token").strip() if file else os.environ.get(TOKEN_VARIABLE)
    )
    if token is not None:
        if len(token) < _SHORTEST:
            raise ConfigError(
                "the token is too short",
                where=where,
                evidence=f"{len(token)} characters; {_SHORTEST} are needed",
                next_step="--new-token creates a safe one",
            )
        return token
    if is_loopback(host):
        return None
    raise ConfigError(
        "anyone with access to this address could read the lake and change it",
        code=ErrorCode.TOKEN_NEEDED,
        where=f"--host {host}",
        next_step=f"set --token-file FILE or {TOKEN_VARIABLE}, or create a token with --new-token",
    )


def _proxy(text: str) -> str:
    """Parse an address or a network; refuse names, because another host could answer for them."""
    try:
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError:
        raise ConfigError(
            "this is not the address of a proxy",
            where="--trusted-proxy",
            evidence=repr(text[:100]),
            next_step="write an address or a network, such as 10.0.0.7 or 10.0.0.0/24",
        ) from None


@verb(alerts_app, "alerts test distributary-demo/games.yaml --dry-run", panel=LOOK)
def test(
    call: Invocation,
    file: File,
    to: Annotated[
        str | None, option("--to", "Only the target of this name.", metavar="NAME")
    ] = None,
    dry_run: DryRun = False,
) -> int:
    """Send a test message to each target of a pipeline file.

    PagerDuty gets an incident that is resolved at once. Exit code 1 if a target was not reached,
    or if there is none.
    """
    from concurrent.futures import ThreadPoolExecutor

    from distributary.observe.alerts.delivery import utc_now
    from distributary.observe.alerts.notice import AlertKind, AlertState, Notice, Severity, page
    from distributary.observe.alerts.targets import make_targets

    config = load_file(call, file).config
    kinds = (target.type for target in config.alerts.to)
    every = list(zip(make_targets(config.alerts), kinds, strict=True))
    wanted = [(target, kind) for target, kind in every if to in (None, target.name)]
    if to is not None and not wanted:
        raise ConfigError(
            "there is no such target",
            code=ErrorCode.NOT_FOUND,
            where=f"alerts.to of {file}",
            evidence=", ".join(target.name for target, _ in every)
            or "the pipeline file has no targets",
            next_step="use --to with one of these names",
        )
    if dry_run:
        shown = [{"name": target.name, "type": kind} for target, kind in wanted]
        data = {"pipeline": config.name, "targets": shown, "dry_run": True}
        text = "\n".join(f"would send a test message to {t.name} ({kind})" for t, kind in wanted)
        call.out.show(data, lambda paper: paper.lines(text or _NO_TARGET))
        return 0
    now = utc_now()
    notice = Notice(
        pipeline=config.name,
        kind=AlertKind.TEST,
        state=AlertState.INFO,
        severity=Severity.INFO,
        what="test message: alerts of this pipeline arrive here",
        at=now,
        since=now,
        where=f"pipeline {config.name}",
        evidence="sent by hand",
        next_step="no action is needed",
        link=page(config.alerts.dashboard_url, "pipelines", config.name),
    )
    with ThreadPoolExecutor(max_workers=8) as pool:
        tried = list(pool.map(lambda each: _try(each[0], each[1], notice), wanted))

    def draw(paper: Paper) -> None:
        for each in tried:
            mark = styled("sent", "green") if each.delivered else styled("failed", "red")
            why = f": {each.why}" if each.why else ""
            paper.line(mark, f"  {each.name} ({each.type}) in {each.seconds:.1f} s{why}")
        if not tried:
            paper.line(_NO_TARGET)

    data = {"pipeline": config.name, "targets": [asdict(each) for each in tried]}
    call.out.show(data, draw)
    return 0 if tried and all(each.delivered for each in tried) else 1


@dataclass(frozen=True, slots=True)
class _Tried:
    """How it went with one target."""

    name: str
    type: str
    delivered: bool
    why: str
    seconds: float


def _try(target: AlertTarget, kind: str, notice: Notice) -> _Tried:
    began = time.monotonic()
    outcome = _sent(target, notice)
    target.close()
    seconds = round(time.monotonic() - began, 3)
    return _Tried(target.name, kind, outcome.delivered, outcome.why, seconds)


def _sent(target: AlertTarget, notice: Notice) -> DeliveryOutcome:
    from distributary.observe.alerts.delivery import utc_now
    from distributary.observe.alerts.notice import AlertState
    from distributary.observe.alerts.targets import DELIVERED

    if not target.one_by_one:
        return target.send(notice)
    raised = replace(notice, state=AlertState.RAISED)
    outcome = target.send(raised)
    if not outcome.delivered:
        return outcome
    ended = target.send(raised.resolved(utc_now()))
    return DELIVERED if ended.delivered else replace(ended, why=f"not resolved: {ended.why}")
