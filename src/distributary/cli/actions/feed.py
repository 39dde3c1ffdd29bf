"""The simulated side of a demo: one round of records after the other."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from distributary.cli.actions.demo_folder import DemoFolder
from distributary.cli.actions.demo_scene import Scene
from distributary.cli.verb import Invocation
from distributary.registry.files import FileRegistry
from distributary.simulate import DeltaSink, Round, Sent
from distributary.simulate.base import ArrowSink, Sink


class Feed(Protocol):
    """Something that is sent in rounds, when it is asked to."""

    def next(self) -> bool:
        """Send one more round; False when there is none."""
        ...

    @property
    def messages(self) -> int:
        """How many records were sent so far."""
        ...


class RoundFeed:
    """Registers the schemas of a round and sends its records."""

    def __init__(self, rounds: Iterator[Round], sink: Sink) -> None:
        self._rounds, self._sink = rounds, sink
        self._parts: list[Sent] = []

    def next(self) -> bool:
        """Send one more round; False when there is none."""
        each = next(self._rounds, None)
        if each is None:
            return False
        if isinstance(self._sink, ArrowSink):
            self._sink.write_arrow(each.arrow())
        else:
            self._sink.write(each.messages())
        self._parts.append(each.sent())
        return True

    @property
    def sent(self) -> Sent:
        """Everything so far."""
        return Sent.total(self._parts)

    @property
    def messages(self) -> int:
        """How many records were sent so far."""
        return self.sent.messages


@contextmanager
def open_feed(call: Invocation, folder: DemoFolder, scene: Scene) -> Iterator[RoundFeed]:
    """What the demo sends, with whatever has to run for it; writes the pipeline's file."""
    if not scene.kafka:
        folder.write_file()
        registry = FileRegistry(folder.schemas, durable=False)
        yield RoundFeed(scene.rounds(registry), DeltaSink(folder.source))
        return
    from distributary.dev.artifacts import ensure_artifacts
    from distributary.dev.services import Services
    from distributary.simulate.outlet import KafkaTarget, open_outlet

    # outside of the services: fetching takes long the first time, and should be seen
    ensure_artifacts(call.out.note)
    call.out.note("starting a broker and a registry")
    with (
        tempfile.TemporaryDirectory(prefix="distributary-demo-") as home,
        Services(Path(home)) as services,
    ):
        folder.write_file(kafka=services.kafka, registry=services.registry)
        target = KafkaTarget(
            topic=scene.topic,
            bootstrap_servers=services.kafka,
            registry_url=services.registry,
        )
        call.out.note(f"broker {services.kafka}, registry {services.registry}")
        # they go as a whole: there will be nothing to clean
        with open_outlet(target, noted=False) as outlet:
            yield RoundFeed(scene.rounds(outlet.registry), outlet.sink)
        call.out.note("stopping them")
