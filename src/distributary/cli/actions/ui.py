"""`ui`: the dashboard, until somebody ends it."""

from __future__ import annotations

import ipaddress
import os
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributary.cli.lakes import Lake, find_lake
from distributary.cli.output import Paper, styled
from distributary.cli.verb import Invocation
from distributary.config.lake import local_path
from distributary.errors import ConfigError, ErrorCode
from distributary.web.app import Dashboard, make_dashboard
from distributary.web.hosts import is_loopback
from distributary.web.jobs import TOKEN_VARIABLE
from distributary.web.serve import address_of, bind, serve
from distributary.web.settings import Settings

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
