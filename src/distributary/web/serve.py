"""The server: a socket that is ours before anything is said, and a quiet end."""

from __future__ import annotations

import errno
import socket
from types import FrameType

import uvicorn

from distributary.errors import ErrorCode, SetupError
from distributary.web.app import Dashboard


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
            found.listen(128)
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
    """Ends also while pages listen."""

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(
            uvicorn.Config(
                dashboard.app,
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

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal came."""
        self._dashboard.live.closing = True
        super().handle_exit(sig, frame)

    def stop(self) -> None:
        """The same from another thread."""
        self._dashboard.live.closing = True
        self.should_exit = True


def serve(dashboard: Dashboard, listening: socket.socket) -> None:
    """Answers until a signal comes."""
    dashboard.warm_up()
    try:
        Server(dashboard).run(sockets=[listening])
    finally:
        dashboard.close()
        listening.close()
