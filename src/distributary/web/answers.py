"""Answers and refusals: one JSON format for both, without details of the machine."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from distributary.errors import ConfigError, DistributaryError, ErrorCode
from distributary.observe.log_format import plain

_log = logging.getLogger(__name__)

VERSION = 1
_LONGEST = 300
"""The longest text of a parameter."""
STATUS = {
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.CONFIG_INVALID: 400,
    ErrorCode.CONFIRMATION_NEEDED: 409,
    ErrorCode.ACTION_RUNNING: 409,
    ErrorCode.ACCESS_DENIED: 403,
    ErrorCode.LAKE_UNAVAILABLE: 503,
    ErrorCode.QUERY_INVALID: 400,
    ErrorCode.QUERY_STOPPED: 422,
    ErrorCode.CUT_LOST: 410,
}
"""HTTP statuses of errors that are not defects of the dashboard."""

Read = Callable[[Request], Mapping[str, Any]]
Reads = dict[str, Read]
"""The function that reads the data, by address."""


def answer(data: Mapping[str, Any], *, status: int = 200) -> Response:
    """Return a document as an answer.

    Its content comes from outside and is only ever shown as text.
    """
    # every other text is sent unchanged, but half of a surrogate pair is not valid UTF-8
    text = json.dumps({"version": VERSION, **plain(data)}, ensure_ascii=False)
    body = text.encode("utf-8", "replace")
    return Response(body, status_code=status, media_type="application/json")


def refuse(error: DistributaryError, *, status: int | None = None) -> Response:
    """Return an error as an answer: code, what, where, evidence and next step."""
    return answer({"error": parts_of(error)}, status=status or STATUS.get(error.code, 500))


def parts_of(error: DistributaryError) -> dict[str, Any]:
    """Return the parts of an error, for data that could not be added to an answer."""
    return {key: value for key, value in error.as_dict().items() if key != "context"}


def some(value: object, *names: str) -> dict[str, Any]:
    """Return some attributes of an object, by name."""
    return {name: getattr(value, name) for name in names}


def routes_of(reads: Reads) -> list[Route]:
    """Return endpoints for functions; Starlette calls each in a thread."""

    def endpoint(read: Read, request: Request) -> Response:
        try:
            return answer(read(request))
        except DistributaryError as error:
            return refuse(error)
        except Exception as error:
            return unexpected(error)

    return [Route(path, partial(endpoint, read)) for path, read in reads.items()]


def unexpected(error: Exception) -> Response:
    """Return the answer to a defect; the details are in the log only."""
    _log.error("the dashboard could not answer", exc_info=error)
    defect = DistributaryError(
        "the dashboard could not answer",
        evidence=type(error).__name__,
        next_step="read the log of `distributary ui`, and report it",
    )
    return refuse(defect)


def not_found(what: str, name: str, *, next_step: str) -> DistributaryError:
    """Return the error for something that does not exist."""
    return DistributaryError(
        what, code=ErrorCode.NOT_FOUND, evidence=repr(name[:100]), next_step=next_step
    )


def text(request: Request, name: str) -> str | None:
    """Return a parameter; an empty one counts as missing."""
    value = request.query_params.get(name) or None
    if value is not None and len(value) > _LONGEST:
        raise wrong(name, f"it has {len(value):,} characters")
    return value


def whole(request: Request, name: str, default: int, *, low: int = 0, high: int) -> int:
    """Return a parameter that is a number, limited to its bounds."""
    value = request.query_params.get(name)
    if not value:
        return default
    if not (value.isascii() and value.isdecimal() and len(value) < 20):
        raise wrong(name, repr(value[:40]))
    return min(max(int(value), low), high)


def wrong(name: str, evidence: str) -> ConfigError:
    """Return the error for an invalid parameter."""
    return ConfigError(
        f"the parameter {name} cannot be used",
        evidence=evidence,
        next_step="its values are in the documentation, page Dashboard",
    )


# Request bodies: small JSON documents.

_MOST_BYTES = 64 << 10


async def read_json(request: Request) -> dict[str, Any]:
    """Return the object in a request's body."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise _unusable(f"more than {_MOST_BYTES:,} bytes")
    try:
        document = json.loads(bytes(body))
    except (ValueError, RecursionError):
        raise _unusable("no JSON") from None
    if not isinstance(document, dict):
        raise _unusable("no object")
    return document


def _unusable(evidence: str) -> ConfigError:
    return ConfigError(
        "the request cannot be used", evidence=evidence, next_step="send one JSON object"
    )
