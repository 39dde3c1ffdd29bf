"""Ports on loopback: which ones, whether they are free, and who has them if not."""

from __future__ import annotations

import random
import socket
from contextlib import closing, suppress
from dataclasses import dataclass

import psutil

from distributary.errors import ErrorCode, SetupError

HOST = "127.0.0.1"
"""The only address on which anything here listens."""

# below the ports that systems give to outgoing connections: one of those could take the port of a
# broker that is down for a moment, and a client that knocks there could even reach itself
_FIRST, _LAST = 15_000, 32_000


@dataclass(frozen=True, slots=True)
class Ports:
    """Where everything listens; 0 for what is not wanted."""

    kafka: int
    registry: int
    controller: int
    """Of the broker, for itself."""
    sasl_plaintext: int = 0
    sasl_ssl: int = 0
    ssl: int = 0
    https: int = 0
    """Of the registry."""


def is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as attempt:
        # connections that ended a moment ago do not hold the port, for Java neither
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port(*, but: set[int]) -> int:
    """A free port that is not one of these."""
    candidates = random.SystemRandom().sample(range(_FIRST, _LAST), k=200)
    for port in candidates:
        if port not in but and is_free(port):
            return port
    raise SetupError(
        "no free port was found",
        code=ErrorCode.PORT_TAKEN,
        where=f"{HOST}, {_FIRST} to {_LAST}",
        next_step="end some of the programs that listen there",
    )


def require_free(port: int, *, service: str) -> None:
    """SetupError with the name of whoever listens there."""
    if is_free(port):
        return
    raise SetupError(
        f"port {port} is taken, and {service} needs one",
        code=ErrorCode.PORT_TAKEN,
        where=f"{HOST}:{port}",
        evidence=_owner(port),
        next_step="end the program that listens there, or choose another port"
        " with --kafka-port or --registry-port",
        port=port,
    )


def _owner(port: int) -> str:
    # not every system lets everybody look
    with suppress(psutil.Error, OSError):
        for each in psutil.net_connections(kind="tcp"):
            if each.status == psutil.CONN_LISTEN and each.laddr.port == port and each.pid:
                return f"{psutil.Process(each.pid).name()}, process {each.pid}"
    return ""
