"""The dashboard put together."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from distributary.errors import DistributaryError
from distributary.web.access import Access
from distributary.web.answers import not_found, refuse
from distributary.web.api import (
    actions,
    batches,
    errors,
    letters,
    pipelines,
    schemas,
    search,
    session,
    tables,
)
from distributary.web.assets import Assets
from distributary.web.guard import Guard, Tell, is_api
from distributary.web.hosts import Hosts
from distributary.web.jobs import Jobs
from distributary.web.live import Live
from distributary.web.reading import Reading
from distributary.web.settings import Settings


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One page over one lake, and what has to be ended with it."""

    app: ASGIApp
    access: Access
    jobs: Jobs
    live: Live
    lake: Reading

    def warm_up(self) -> None:
        """Reads what the first page shows while somebody still types its address."""

        def read() -> None:
            # whoever asks is told what is wrong
            with suppress(DistributaryError):
                self.lake.health()

        threading.Thread(target=read, name="warm-up", daemon=True).start()

    def close(self) -> None:
        """Ends what still listens, then what still runs."""
        self.live.closing = True
        self.jobs.close()


def make_dashboard(settings: Settings, *, tell: Tell = lambda line: None) -> Dashboard:
    """Everything but the server; `tell` hears one line for each request."""
    lake = Reading(settings.lake, options=settings.options, file=settings.file)
    access = Access(settings.token)
    jobs = Jobs(lake=settings.lake, file=settings.file)
    live = Live(lambda: {"lake": lake.stamp(), "jobs": str(jobs.changes)})
    # cookies know hosts, but no ports: two dashboards on one machine must not share one
    cookie = f"distributary_{settings.port}"
    page = Assets()
    routes = [
        *session.routes(access, cookie=cookie),
        *live.routes(),
        *actions.routes(lake, jobs),
        *(
            route
            for module in (pipelines, tables, schemas, batches, letters, errors, search)
            for route in module.routes(lake)
        ),
        *page.routes(),
    ]

    async def nothing(request: Request, error: Exception) -> Response:
        return _no_such_address(request) if is_api(request.url.path) else page.not_found()

    guarded = Guard(
        Starlette(routes=routes, exception_handlers={404: nothing}),
        access=access,
        hosts=Hosts(settings.host, settings.names),
        cookie=cookie,
        tell=tell,
    )
    # with no proxy to trust, nobody may say who asks
    proxied = ProxyHeadersMiddleware(guarded, list(settings.proxies))  # type: ignore[arg-type]
    app = cast(ASGIApp, proxied) if settings.proxies else guarded
    return Dashboard(app, access, jobs, live, lake)


def _no_such_address(request: Request) -> Response:
    return refuse(
        not_found("there is no such address", request.url.path, next_step="see docs/dashboard.md")
    )
