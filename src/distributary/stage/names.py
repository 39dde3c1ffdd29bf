"""Names of staged files: which batch and which attempt they belong to."""

from __future__ import annotations

import uuid

from distributary.model.plan import StageOrder

TICKET = "wanted"


def file_name(order: StageOrder) -> str:
    """A name that no other task, attempt or batch uses."""
    return f"{prefix(order)}{uuid.uuid4().hex[:12]}.parquet"


def prefix(order: StageOrder) -> str:
    """How the names of all files of an attempt begin, and of no other."""
    return f"part-{order.lane}-{order.batch:08d}-{order.attempt}-"


def ticket(order: StageOrder) -> str:
    """A file that is there as long as somebody waits for what an attempt writes."""
    return f"{order.folder}/{prefix(order)}{TICKET}"
