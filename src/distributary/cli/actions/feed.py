"""The simulated side of a demo: one round of records after the other."""

from __future__ import annotations

from distributary.cli.actions.demo_folder import DemoFolder
from distributary.registry.files import FileRegistry
from distributary.simulate import DeltaSink, GamesPlan, Sent, stream_rounds


class Feed:
    """Registers the schemas of a round and sends its records, when it is asked to."""

    def __init__(self, plan: GamesPlan, folder: DemoFolder) -> None:
        registry = FileRegistry(folder.schemas, durable=False)
        self._rounds = stream_rounds(plan, registry=registry)
        self._sink = DeltaSink(folder.source)
        self._parts: list[Sent] = []

    def next(self) -> bool:
        """Send one more round; False when there is none."""
        each = next(self._rounds, None)
        if each is None:
            return False
        self._sink.write_arrow(each.arrow())
        self._parts.append(each.sent())
        return True

    @property
    def sent(self) -> Sent:
        """Everything so far."""
        return Sent.total(self._parts)
