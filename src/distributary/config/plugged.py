"""Payload formats and sources of other packages, which name them by entry points.

Entry points are searched only when a pipeline file names a format or a source that Distributary
does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from distributary.errors import ConfigError

FORMATS_GROUP = "distributary.formats"
"""The group of entry points of payload formats; each names a `PayloadFormat`."""
SOURCES_GROUP = "distributary.sources"
"""The group of entry points of sources; each names a class of settings (`SourceConfig`)."""


@cache
def plugged(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group that installed packages have, by name."""
    return {point.name: point for point in entry_points(group=group)}


def load_plugged(group: str, name: str) -> Any:
    """Load what an entry point names. Raise KeyError without one, and ConfigError if it fails."""
    point = plugged(group)[name]
    try:
        return point.load()
    except Exception as error:
        raise ConfigError(
            f"{name} cannot be loaded",
            where=f"{point.value}, of the package {point.dist.name if point.dist else '?'}",
            evidence=f"{type(error).__name__}: {error}",
            next_step="install the package again, or remove it",
        ) from error
