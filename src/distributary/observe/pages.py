"""The pages of the dashboard, as addresses that no name can break out of."""

from __future__ import annotations

from urllib.parse import quote


class Pages:
    """Addresses below a dashboard; all empty where there is none."""

    def __init__(self, base: str | None) -> None:
        self._base = base.rstrip("/") if base else ""

    def table(self, name: str) -> str:
        """A table."""
        return self._page("tables", name)

    def batch(self, pipeline: str, number: int) -> str:
        """A batch."""
        return self._page("batches", pipeline, str(number))

    def error(self, code: str) -> str:
        """An error code."""
        return self._page("errors", code)

    def pipeline(self, name: str) -> str:
        """A pipeline."""
        return self._page("pipelines", name)

    def _page(self, *parts: str) -> str:
        if not self._base:
            return ""
        path = "/".join(quote(part, safe="", errors="replace") for part in parts)
        return f"{self._base}/{path}"
