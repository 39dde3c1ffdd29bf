"""Numbers for a monitoring system."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from distributary.config.base import Section
from distributary.config.text import Text

LOOPBACK = "127.0.0.1"
_LISTEN = re.compile(r"(?:(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):)?([0-9]{1,5})")


def _as_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _listen(value: str) -> str:
    found = _LISTEN.fullmatch(value)
    if found is None or int(found[2]) > 65_535:
        raise PydanticCustomError("listen", "must be host:port, such as 127.0.0.1:9464")
    return f"{found[1] or LOOPBACK}:{int(found[2])}"


Listen = Annotated[
    Text,
    BeforeValidator(_as_text, json_schema_input_type=str | int),
    AfterValidator(_listen),
]
"""An address to listen on, `host:port`; a port alone is one of this machine's own."""


class Metrics(Section):
    """What a run tells Prometheus, or whoever reads its format."""

    listen: Listen | None = Field(default=None, examples=["127.0.0.1:9464"])
    """Address at which `run` serves `/metrics`; a port alone means 127.0.0.1. None when left out.
    It names tables and topics: beyond this machine it needs a token, DISTRIBUTARY_TOKEN."""
    max_tables: int = Field(default=200, ge=0, le=100_000)
    """Most tables of this pipeline that have series of their own; what comes after is told as one,
    named `other`."""


def host_and_port(listen: str) -> tuple[str, int]:
    """The two parts of an address."""
    host, _, port = listen.rpartition(":")
    return host.strip("[]"), int(port)
