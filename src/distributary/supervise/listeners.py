"""Who listens: what the files of pipelines ask for, attached to a bus in one place.

`up` attaches it once, to the bus on which it says what all its pipelines tell; `run` in the same
way to its own. The process of a pipeline under `up` attaches nothing: it only tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from distributary.config.pipeline import PipelineConfig
from distributary.observe.events import EventBus
from distributary.supervise.alerting import alerting
from distributary.supervise.listening import Open, Render

OPENERS: tuple[Open, ...] = (alerting,)
"""Each kind of listener, once; metrics are served in another way by `run` than by `up`."""


@contextmanager
def listeners_of(
    configs: Sequence[PipelineConfig], bus: EventBus, *, openers: Sequence[Open] = OPENERS
) -> Iterator[Render | None]:
    """While this lasts, the bus has the listeners that the settings ask for.

    Gives what `/metrics` answers, if one of them counts.
    """
    metrics = None
    with ExitStack() as stack:
        for each in openers:
            found = stack.enter_context(each(configs))
            if found is not None:
                # leaves the bus before it is closed
                stack.callback(bus.subscribe(found.listener))
                metrics = metrics or found.metrics
        yield metrics
