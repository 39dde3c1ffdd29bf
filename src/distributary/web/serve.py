"""The server: its socket is bound before anything is printed, and it ends cleanly."""

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
from distributary.web.dashboard import Dashboard

_REQUEST_SECONDS = 15.0
"""The time in which a request must be complete."""
_MOST_CONNECTIONS = 512
_BACKLOG = 128
_COMING = (h11.IDLE, h11.SEND_BODY)


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free port."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, proto)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(_BACKLOG)
        except OSError:
            listening.close()
            raise
        return listening
    except (OSError, OverflowError) as error:
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        raise SetupError(
            f"the dashboard cannot listen on {host}, port {port}",
            code=ErrorCode.PORT_TAKEN,
            where=f"{host}:{port}",
            evidence="another program uses this port" if taken else str(error)[:200],
            next_step="choose another port with --port, or 0 for any free port",
        ) from error


def address_of(listening: socket.socket, host: str) -> str:
    """Return the address for a browser."""
    port = listening.getsockname()[1]
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)  # noqa: S104
    return f"http://[{shown}]:{port}/" if ":" in shown else f"http://{shown}:{port}/"


class Server(uvicorn.Server):
    """A server that ends although pages listen, and answers although other clients are idle."""

    def __init__(self, dashboard: Dashboard) -> None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # the lake needs open files, too
        most = min(_MOST_CONNECTIONS, files // 4) if files > 0 else _MOST_CONNECTIONS
        self._open: Connections[_Protocol] = Connections(most, seconds=_REQUEST_SECONDS)

        class Protocol(_Protocol):
            kept = self._open

        super().__init__(
            uvicorn.Config(
                dashboard.app,
                http=Protocol,
                # the number of connections that are accepted at once, before they are counted
                backlog=min(_BACKLOG, most),
                # invalid requests must not fill the log
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
        """Close connections whose requests are overdue; called ten times a second."""
        for connection in self._open.overdue():
            connection.transport.abort()
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop at a signal."""
        self._dashboard.end_streams()
        super().handle_exit(sig, frame)


class _Protocol(H11Protocol):
    """A connection that is counted while its request is incomplete."""

    kept: Connections[_Protocol]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection; if there are too many, close another one."""
        super().connection_made(transport)
        gone = self.kept.arrived(self, self.client[0] if self.client else "")
        if gone is not None:
            gone.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection."""
        self.kept.left(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take a piece of a request."""
        super().data_received(data)
        self._count()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._count()

    def _count(self) -> None:
        coming = self.conn.their_state in _COMING
        (self.kept.answered if coming else self.kept.asked)(self)


def serve(dashboard: Dashboard, listening: socket.socket) -> None:
    """Serve the dashboard until a signal arrives."""
    dashboard.warm_up()
    try:
        Server(dashboard).run(sockets=[listening])
    finally:
        dashboard.close()
        listening.close()
