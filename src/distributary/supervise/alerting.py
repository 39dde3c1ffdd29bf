"""The alerts of pipelines, each by its own settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from distributary.config.pipeline import PipelineConfig
from distributary.observe import layout
from distributary.observe.alerts import attach_alerts
from distributary.observe.events import EventBus
from distributary.supervise.listening import Listening


@contextmanager
def alerting(configs: Sequence[PipelineConfig]) -> Iterator[Listening | None]:
    """While this lasts, people are told; what is open is remembered in the lake."""
    bus = EventBus()
    with ExitStack() as stack:
        told = [stack.enter_context(_of(bus, config)) for config in configs if config.alerts.to]
        yield Listening(bus.publish) if told else None


@contextmanager
def _of(bus: EventBus, config: PipelineConfig) -> Iterator[str]:
    local = config.lake.local_path
    # what is on an object store cannot remember alerts: the checkpoint's folder can
    lake = config.checkpoint_path if local is None else layout.pipeline(str(local), config.name)
    with attach_alerts(bus, config, state_folder=Path(lake)):
        yield config.name
