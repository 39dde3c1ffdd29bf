"""What every commit says about the batch it came from, and how to find it again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from distributary.publish.base import Mark

APP = "distributary.app"
BATCH = "distributary.batch"
SOURCE = "distributary.source"
PIPELINE = "distributary.pipeline"
USER_METADATA = "userMetadata"
"""Where Delta's Spark writer puts what a user wants to say of a commit: one string."""


def facts(mark: Mark) -> dict[str, str]:
    """The keys that a commit carries beside its transaction mark."""
    return {
        APP: mark.app_id,
        BATCH: str(mark.batch),
        SOURCE: mark.source_hash,
        PIPELINE: pipeline_of(mark.app_id),
    }


def facts_in(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of `facts` in a commit's own description, whichever publisher wrote it."""
    if APP in info:
        return info
    try:
        told = json.loads(info.get(USER_METADATA) or "{}")
    except (TypeError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def source_in(info: Mapping[str, Any], mark: Mark) -> str | None:
    """The source fingerprint in a commit's description, if it is the commit of that batch."""
    told = facts_in(info)
    if told.get(APP) != mark.app_id or told.get(BATCH) != str(mark.batch):
        return None
    source = told.get(SOURCE)
    return source if isinstance(source, str) else None


def pipeline_of(app_id: str) -> str:
    """The pipeline's name in the application id of its marks."""
    return app_id.removeprefix("distributary/").rsplit("/", 2)[0]


def lane_of(app_id: str) -> str:
    """The lane in the application id of its marks."""
    return app_id.rsplit("/", 1)[-1]
