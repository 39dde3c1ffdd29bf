"""Names of staged files: which batch and which try they belong to."""

from __future__ import annotations

import uuid

from distributary.model.plan import StageOrder


def file_name(order: StageOrder) -> str:
    """A name that no other task, try or batch uses."""
    return f"part-{order.lane}-{order.batch:08d}-{order.attempt}-{uuid.uuid4().hex[:12]}.parquet"
