"""`/api/messages`: messages of a pipeline's source, by offset or time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from distributary.web.answers import Reads, text, whole, wrong
from distributary.web.reading import LakeReader

if TYPE_CHECKING:
    from distributary.model.record import Partition

_MOST = 100
_MOST_OFFSET = 2**63 - 1


def reads(lake: LakeReader) -> Reads:
    """Return the addresses of this module."""

    def messages(request: Request) -> dict[str, Any]:
        # these import Spark, without starting it
        from distributary.engine.pipeline import Pipeline
        from distributary.operations.messages import browse
        from distributary.source.source_entry import Browsing

        name = text(request, "pipeline") or ""
        limit = whole(request, "limit", 20, low=1, high=_MOST)
        wanted = Browsing(_partition(request), _start(request), limit)
        page = browse(Pipeline(lake.settings(name)), wanted)
        return {"now": datetime.now(UTC), "pipeline": name, "lake": lake.lake, **page.as_dict()}

    return {"/api/messages": messages}


def _partition(request: Request) -> Partition | None:
    topic = text(request, "topic")
    return None if topic is None else (topic, whole(request, "partition", 0, high=2**31 - 1))


def _start(request: Request) -> int | datetime | None:
    """Return the offset or the time of the first message; None for the newest messages."""
    at = text(request, "at")
    if at is None:
        given = text(request, "offset")
        return None if given is None else whole(request, "offset", 0, high=_MOST_OFFSET)
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        raise wrong("at", "not a time in ISO 8601") from None
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
