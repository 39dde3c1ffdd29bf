"""By which names the page may be asked for: a foreign name that points here is an attack."""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

_LOOPBACK_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost"})


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    if host.lower() in _LOOPBACK_NAMES:
        return True
    address = _address(host)
    return address is not None and address.is_loopback


class Hosts:
    """The names of one dashboard.

    A page of a stranger whose name suddenly points to our address (DNS rebinding) sends that name
    as `Host`. An address cannot be made to point elsewhere, so addresses are always right.
    """

    def __init__(self, host: str, names: tuple[str, ...] = ()) -> None:
        self._only_here = is_loopback(host)
        own = () if self._only_here else (socket.gethostname(), socket.getfqdn(), host)
        self._names = {name.lower().rstrip(".") for name in (*_LOOPBACK_NAMES, *own, *names)}

    def knows(self, header: str) -> bool:
        """Whether a `Host` header names this dashboard."""
        name = name_of(header)
        if name is None:
            return False
        address = _address(name)
        if address is not None:
            return address.is_loopback or not self._only_here
        return name.lower().rstrip(".") in self._names


def name_of(header: str) -> str | None:
    """The host in `host:port`, without port and brackets."""
    try:
        parts = urlsplit(f"//{header}")
        _ = parts.port
    except ValueError:
        return None
    return parts.hostname if parts.netloc == header and parts.username is None else None


def same_origin(origin: str, host: str) -> bool:
    """Whether an `Origin` header is that of the page served under this `Host`."""
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
