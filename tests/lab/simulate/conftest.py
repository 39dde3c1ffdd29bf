"""Reads simulated messages back with the official protobuf runtime."""

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from distributary_lab.simulate.base import Round, Sent, SinkMessage
from distributary_lab.simulate.game_records import GamesPlan
from distributary_lab.simulate.games import stream_rounds
from tests.registry.scratch import ScratchRegistry


class RecordingRegistry:
    """Gives ids from 1 and remembers every call in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.ids: dict[tuple[str, str], int] = {}

    def set_compatibility(self, subject: str, level: str) -> None:
        self.calls.append(("level", subject, level))

    def register(self, subject: str, text: str) -> int:
        self.calls.append(("register", subject, text))
        return self.ids.setdefault((subject, text), len(self.ids) + 1)


class Reader:
    """A consumer that knows a registry and trusts nothing."""

    def __init__(self, registry: ScratchRegistry) -> None:
        self.registry = registry
        self._classes: dict[int, Any] = {}

    def parse(self, schema_id: int, data: bytes) -> Any:
        if schema_id not in self._classes:
            schema = self.registry.by_id(schema_id)
            pool = descriptor_pool.DescriptorPool()
            for file in descriptor_pb2.FileDescriptorSet.FromString(schema.body).file:
                pool.Add(file)
            found = pool.FindMessageTypeByName(schema.message)
            self._classes[schema_id] = message_factory.GetMessageClass(found)
        return self._classes[schema_id].FromString(data)

    def unwrap(self, value: bytes) -> Any:
        wrapper = self.registry.latest("wrapper-value").id
        if value[:1] == b"\x00":
            assert value[:6] == b"\x00" + wrapper.to_bytes(4, "big") + b"\x00"
            value = value[6:]
        return self.parse(wrapper, value)


@pytest.fixture
def recording() -> RecordingRegistry:
    return RecordingRegistry()


@pytest.fixture
def registry() -> ScratchRegistry:
    return ScratchRegistry()


@pytest.fixture
def reader(registry: ScratchRegistry) -> Reader:
    return Reader(registry)


@pytest.fixture
def send(registry: ScratchRegistry) -> Callable[..., tuple[list[SinkMessage], Sent]]:
    """All messages of a plan, and what the simulator says about them."""

    def send(plan: GamesPlan) -> tuple[list[SinkMessage], Sent]:
        messages: list[SinkMessage] = []
        rounds: list[Round] = []
        for each in stream_rounds(plan, registry=registry):
            messages += each.messages()
            rounds.append(each)
        return messages, Sent.total(each.sent() for each in rounds)

    return send
