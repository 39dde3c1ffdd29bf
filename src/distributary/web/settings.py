"""What the dashboard is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass, field

from distributary.observe.delta import StorageOptions


@dataclass(frozen=True, slots=True)
class Settings:
    """One dashboard over one lake."""

    lake: str
    options: StorageOptions | None = field(default=None, repr=False)
    """Credentials of the lake."""
    file: str | None = None
    """The pipeline file that was given: it is trusted, whatever the lake says."""
    host: str = "127.0.0.1"
    port: int = 0
    token: str | None = field(default=None, repr=False)
    """What everybody must know who wants to see anything; None: whoever reaches it may look."""
    names: tuple[str, ...] = ()
    """Names by which the page may be asked for besides those of this machine."""
    proxies: tuple[str, ...] = ()
    """Addresses and networks whose word counts about who asks, and whether by TLS."""
