"""The server: a socket that is ours before anything is said, and a quiet end."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
from types import FrameType

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from distributary.errors import ErrorCode, SetupError
from distributary.supervise.server import Connections
from distributary.web.app import Dashboard

_REQUEST_SECONDS = 15.0
"""In which a request has to come as a whole."""
_MOST_CONNECTIONS = 512
_BACKLOG = 128
_COMING = (h11.IDLE, h11.SEND_BODY)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, proto)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
            found.listen(_BACKLOG)
        except OSError:
            found.close()
            raise
        return found
    except (OSError, OverflowError) as error:
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        raise SetupError(
            f"the dashboard cannot listen at {host}, port {port}",
            code=ErrorCode.PORT_TAKEN,
            where=f"{host}:{port}",
            evidence="another program listens there" if taken else str(error)[:200],
            next_step="choose another port with --port, or 0 for any that is free",
        ) from error


def address_of(listening: socket.socket, host: str) -> str:
    """What to type into a browser."""
    port = listening.getsockname()[1]
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)  # noqa: S104
    return f"http://[{shown}]:{port}/" if ":" in shown else f"http://{shown}:{port}/"


class Server(uvicorn.Server):
    """Ends also while pages listen, and answers also while others are silent."""

    def __init__(self, dashboard: Dashboard) -> None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # the lake needs some too
        most = min(_MOST_CONNECTIONS, files // 4) if files > 0 else _MOST_CONNECTIONS
        self._open: Connections[_Protocol] = Connections(most, seconds=_REQUEST_SECONDS)

        class Protocol(_Protocol):
            kept = self._open

        super().__init__(
            uvicorn.Config(
                dashboard.app,
                http=Protocol,
                # so many are taken at once, before one of them is counted
                backlog=min(_BACKLOG, most),
                # whatever a stranger sends is no line of a log
                log_level="error",
                access_log=False,
                log_config=None,
                server_header=False,
                date_header=True,
                ws="none",
                lifespan="off",
                proxy_headers=False,
                timeout_graceful_shutdown=5,
                h11_max_incomplete_event_size=64 << 10,
            )
        )
        self._dashboard = dashboard

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: ends those that come too slowly."""
        for each in self._open.overdue():
            each.transport.abort()
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal came."""
        self._dashboard.live.closing = True
        super().handle_exit(sig, frame)


class _Protocol(H11Protocol):
    """A connection that is counted, with what has come of its request."""

    kept: Connections[_Protocol]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody came; for one too many another has to go."""
        super().connection_made(transport)
        gone = self.kept.arrived(self, self.client[0] if self.client else "")
        if gone is not None:
            gone.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self.kept.left(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """A piece of a request."""
        super().data_received(data)
        self._count()

    def on_response_complete(self) -> None:
        """The next request may come."""
        super().on_response_complete()
        self._count()

    def _count(self) -> None:
        coming = self.conn.their_state in _COMING
        (self.kept.answered if coming else self.kept.asked)(self)


def serve(dashboard: Dashboard, listening: socket.socket) -> None:
    """Answers until a signal comes."""
    dashboard.warm_up()
    try:
        Server(dashboard).run(sockets=[listening])
    finally:
        dashboard.close()
        listening.close()
