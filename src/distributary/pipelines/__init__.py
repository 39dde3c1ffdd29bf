"""The decoder inside an Apache Spark Declarative Pipelines project (`spark-pipelines run`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distributary.lazy_names import imported_on_use

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

__getattr__ = imported_on_use(__name__, _HOMES)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
