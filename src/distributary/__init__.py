"""One river in, a delta of tables out: one stream of mixed messages becomes one table per type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distributary.lazy_names import imported_on_use

__version__ = "0.1.0"

if TYPE_CHECKING:
    from distributary.engine.loop import RunSummary
    from distributary.errors import DistributaryError, ErrorCode
    from distributary.operations.public_lake import Lake
    from distributary.supervise.public_pipeline import Pipeline

__all__ = ["DistributaryError", "ErrorCode", "Lake", "Pipeline", "RunSummary", "__version__"]

# imported on first use: a Pipeline brings Spark with it, which `--help` does not need
_HOMES = {
    "DistributaryError": "distributary.errors",
    "ErrorCode": "distributary.errors",
    "Lake": "distributary.operations.public_lake",
    "Pipeline": "distributary.supervise.public_pipeline",
    "RunSummary": "distributary.engine.loop",
}

__getattr__ = imported_on_use(__name__, _HOMES)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
