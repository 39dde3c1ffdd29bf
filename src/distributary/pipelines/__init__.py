"""The decoder inside an Apache Spark Declarative Pipelines project (`spark-pipelines run`)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributary.pipelines.flows import dead_letters, decoded
    from distributary.pipelines.known_types import KnownType, types

__all__ = ["KnownType", "dead_letters", "decoded", "types"]

# imported on first use: the supervisor of a project needs no decoder
_HOMES = {
    "KnownType": "distributary.pipelines.known_types",
    "dead_letters": "distributary.pipelines.flows",
    "decoded": "distributary.pipelines.flows",
    "types": "distributary.pipelines.known_types",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
