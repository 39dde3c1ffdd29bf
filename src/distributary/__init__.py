"""One river in, a delta of tables out: one stream of mixed messages becomes one table per type."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from distributary.engine.loop import RunSummary
    from distributary.errors import DistributaryError, ErrorCode
    from distributary.operations.public_lake import Lake
    from distributary.supervise.public_pipeline import Pipeline

__all__ = ["DistributaryError", "ErrorCode", "Lake", "Pipeline", "RunSummary", "__version__"]

# found when they are asked for: a Pipeline brings Spark with it, and `--help` needs none of it
_HOMES = {
    "DistributaryError": "distributary.errors",
    "ErrorCode": "distributary.errors",
    "Lake": "distributary.operations.public_lake",
    "Pipeline": "distributary.supervise.public_pipeline",
    "RunSummary": "distributary.engine.loop",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
