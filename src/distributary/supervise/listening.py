"""What a kind of listener gives to whoever attaches it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from distributary.config.pipeline import PipelineConfig
from distributary.observe.events import Listener


@dataclass(frozen=True, slots=True)
class Listening:
    """A listener, and what it has to show."""

    listener: Listener
    metrics: Callable[[], bytes] | None = None
    """What `/metrics` answers."""


Open = Callable[[Sequence[PipelineConfig]], AbstractContextManager[Listening | None]]
"""Opens a listener for these pipelines; None where none of them asks for it."""
