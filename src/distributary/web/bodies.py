"""What is sent to us: small, and JSON."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request

from distributary.errors import ConfigError

_MOST_BYTES = 64 << 10


async def read_json(request: Request) -> dict[str, Any]:
    """The object in a request's body."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise _unusable(f"more than {_MOST_BYTES:,} bytes")
    try:
        found = json.loads(bytes(body))
    except (ValueError, RecursionError):
        raise _unusable("no JSON") from None
    if not isinstance(found, dict):
        raise _unusable("no object")
    return found


def _unusable(evidence: str) -> ConfigError:
    return ConfigError("the request cannot be used", evidence=evidence, next_step="send one object")
