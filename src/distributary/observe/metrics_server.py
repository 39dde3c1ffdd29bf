"""Serving the metrics of one process, for `run`."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import start_http_server

from distributary.config.metrics import host_and_port
from distributary.errors import ErrorCode, SetupError
from distributary.observe.metrics import Metrics


@contextmanager
def served(metrics: Metrics, listen: str) -> Iterator[str]:
    """Serve while the block runs; gives the address that was bound, port 0 replaced."""
    host, port = host_and_port(listen)
    try:
        server, thread = start_http_server(port, addr=host, registry=metrics.registry)
    except OSError as error:
        taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
        raise SetupError(
            f"metrics cannot be served at {listen}",
            code=ErrorCode.PORT_TAKEN if taken else ErrorCode.CONFIG_INVALID,
            where="metrics.listen, or --metrics",
            evidence=error.strerror or type(error).__name__,
            next_step="choose another port, or an address of this machine",
        ) from error
    try:
        yield f"http://{host if ':' not in host else f'[{host}]'}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
