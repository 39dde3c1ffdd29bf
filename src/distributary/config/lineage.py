"""Where lineage goes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from pydantic import Field, SecretStr

from distributary.config.base import Conflict, Section
from distributary.config.quantity import Duration, PositiveDuration
from distributary.config.text import HttpUrl, Text


class Lineage(Section):
    """OpenLineage events: what a run reads, what it writes, and which field became which column."""

    url: HttpUrl | None = Field(default=None, examples=["http://127.0.0.1:5000"])
    """Address of a server that speaks OpenLineage, such as Marquez; give this, `file` or both."""
    endpoint: Text = "api/v1/lineage"
    """Path below `url` to which events are posted."""
    token: SecretStr | None = None
    """Bearer token for `url`."""
    file: Text | None = Field(default=None, examples=["./lineage.jsonl"])
    """File to which events are appended, one line each."""
    namespace: Text = "distributary"
    """Namespace of the job; its name is the pipeline's."""
    every: Duration = timedelta(minutes=1)
    """How often a run that goes on tells its counts; new tables and columns are told at once."""
    timeout: PositiveDuration = timedelta(seconds=5)
    """How long to wait for the server. No batch waits for it."""

    def conflicts(self) -> Iterator[Conflict]:
        """Somewhere to go, and a token for a server only."""
        if self.url is None and self.file is None:
            yield (), "needs url or file"
        if self.token is not None and self.url is None:
            yield ("token",), "goes together with url"
