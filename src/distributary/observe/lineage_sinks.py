"""Where lineage events go: a server, a file, or both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx2

from distributary.config.lineage import Lineage
from distributary.config.secrets import hide_credentials

Sink = Callable[[str], None]
"""Takes one event as JSON; raises OSError when it cannot be delivered."""


def sinks(config: Lineage) -> list[Sink]:
    """All that the settings name."""
    found: list[Sink] = []
    if config.url is not None:
        found.append(HttpSink(config))
    if config.file is not None:
        found.append(FileSink(Path(config.file)))
    return found


class FileSink:
    """One line an event, appended."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()

    def __call__(self, event: str) -> None:
        """Append."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(event + "\n")


class HttpSink:
    """Posts events; redirects are not followed, the answer is not read."""

    def __init__(self, config: Lineage) -> None:
        token = config.token.get_secret_value() if config.token is not None else None
        headers = {"Content-Type": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self._url = f"{(config.url or '').rstrip('/')}/{config.endpoint.lstrip('/')}"
        self._client = httpx2.Client(
            headers=headers, timeout=config.timeout.total_seconds(), follow_redirects=False
        )

    def __call__(self, event: str) -> None:
        """Post."""
        try:
            with self._client.stream("POST", self._url, content=event.encode()) as answer:
                status = answer.status_code
        except (httpx2.RequestError, httpx2.InvalidURL, UnicodeError) as error:
            # what such an error says may quote headers
            raise OSError(f"{type(error).__name__} at {hide_credentials(self._url)}") from None
        if not 200 <= status < 300:
            raise OSError(f"status {status} from {hide_credentials(self._url)}")
