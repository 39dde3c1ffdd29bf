import re
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.unknown_fields import UnknownFieldSet

from distributary_lab.simulate.base import Sent, SinkMessage
from distributary_lab.simulate.dice import event_columns
from distributary_lab.simulate.game_records import GamesPlan

Send = Callable[[GamesPlan], tuple[list[SinkMessage], Sent]]


@pytest.mark.parametrize("versions", [1, 5, 14])
def test_bytes_are_what_the_official_runtime_writes(send: Send, reader: Any, versions: int) -> None:
    change = versions > 1
    plan = GamesPlan(versions=versions, records=20, late=20 * (versions - 1), type_change=change)
    messages, sent = send(plan)
    for message in messages:
        wrapper = reader.unwrap(message.value)
        assert message.value is not None
        bare = message.value[6:] if message.value[0] == 0 else message.value
        assert wrapper.SerializeToString(deterministic=True) == bare
        event = reader.parse(wrapper.schema_id, wrapper.payload)
        assert event.SerializeToString(deterministic=True) == wrapper.payload
        assert len(UnknownFieldSet(event)) == 0
        assert wrapper.schema_id in sent.schema_ids[wrapper.game_name].values()


def test_every_field_is_filled_as_its_version_says(send: Send, reader: Any) -> None:
    plan = GamesPlan(games=3, versions=4, records=30)
    messages, sent = send(plan)
    seen = set()
    for message in messages:
        wrapper = reader.unwrap(message.value)
        name = wrapper.game_name
        version = next(v for v, i in sent.schema_ids[name].items() if i == wrapper.schema_id)
        event = reader.parse(wrapper.schema_id, wrapper.payload)
        columns = tuple(field.name for field, _ in event.ListFields())
        assert columns == event_columns(name, version)
        assert message.type == event.game_name == name
        assert message.key == name.encode()
        assert re.fullmatch(r"[a-z]+_[a-z]+", event.user_name)
        assert event.event_timestamp.ToMilliseconds() == message.timestamp
        assert event.is_connection_stable in {"Y", "N"}
        customs = {getattr(event, f"col_{name}_{i}") for i in range(version)}
        assert len(customs) == 1
        assert re.fullmatch(rf"custom_{name}_\d+", next(iter(customs)))
        seen.add((name, *customs))
    assert len(seen) == len(messages)


def test_most_connections_are_stable(send: Send, reader: Any) -> None:
    messages, _ = send(GamesPlan(games=2, versions=1, records=1000))
    stable = 0
    for message in messages:
        wrapper = reader.unwrap(message.value)
        event = reader.parse(wrapper.schema_id, wrapper.payload)
        stable += event.is_connection_stable == "Y"
    assert 0.93 < stable / len(messages) < 0.97


def test_a_changed_field_keeps_its_name_and_becomes_a_number(send: Send, reader: Any) -> None:
    plan = GamesPlan(games=2, versions=2, records=100, type_change=True)
    messages, sent = send(plan)
    changed = sent.schema_ids[plan.names[0]][2]
    values = set()
    for message in messages:
        wrapper = reader.unwrap(message.value)
        event = reader.parse(wrapper.schema_id, wrapper.payload)
        is_number = isinstance(event.is_connection_stable, int)
        assert is_number == (wrapper.schema_id == changed)
        if is_number:
            values.add(event.is_connection_stable)
    assert values == {0, 1}


@pytest.mark.parametrize(
    ("framed", "low", "high"), [("mixed", 0.45, 0.55), (0.0, 0, 0), (1.0, 1, 1), (0.1, 0.07, 0.13)]
)
def test_headers_are_mixed_as_asked(send: Send, framed: Any, low: float, high: float) -> None:
    messages, sent = send(GamesPlan(games=4, versions=1, records=500, framed=framed))
    with_header = sum(m.value is not None and m.value[0] == 0 for m in messages)
    assert low <= with_header / len(messages) <= high
    assert sent.framed == with_header


def test_framing_does_not_change_what_is_inside(send: Send, reader: Any) -> None:
    bare, _ = send(GamesPlan(framed=0.0))
    mixed, _ = send(GamesPlan())
    assert [reader.unwrap(m.value) for m in bare] == [reader.unwrap(m.value) for m in mixed]
