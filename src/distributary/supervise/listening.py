"""What a kind of listener gives to whoever attaches it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from distributary.config.pipeline import PipelineConfig
from distributary.observe.events import Listener

Render = Callable[[str], tuple[str, bytes]]
"""What `/metrics` answers to an `Accept` header: a content type, and the numbers."""


@dataclass(frozen=True, slots=True)
class Listening:
    """A listener, and what it has to show."""

    listener: Listener
    metrics: Render | None = None


Open = Callable[[Sequence[PipelineConfig]], AbstractContextManager[Listening | None]]
"""Opens a listener for these pipelines; None where none of them asks for it."""
