import json
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from distributary.errors import ConfigError
from distributary.registry.folder import FileRegistry
from distributary_lab.simulate.base import Sent, SinkMessage, deliver, paced
from distributary_lab.simulate.game_records import GamesPlan
from distributary_lab.simulate.games import stream_rounds

Send = Callable[[GamesPlan], tuple[list[SinkMessage], Sent]]


class ListSink:
    """Keeps what it is given, one list per write."""

    def __init__(self) -> None:
        self.writes: list[list[SinkMessage]] = []

    def write(self, messages: Any) -> None:
        self.writes.append(list(messages))


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 5, 10), (3, 2, 7), (70, 3, 2)])
def test_exactly_as_many_messages_as_were_asked_for(send: Send, shape: tuple[int, ...]) -> None:
    games, versions, records = shape
    plan = GamesPlan(games=games, versions=versions, records=records)
    messages, sent = send(plan)
    assert len(messages) == sent.messages == sent.good == games * versions * records
    assert sent.per_type == {
        name: {version: records for version in range(1, versions + 1)} for name in plan.names
    }
    assert Counter(m.type for m in messages) == dict.fromkeys(plan.names, versions * records)
    assert (sent.first_position, sent.last_position) == (0, len(messages) - 1)


def test_the_default_plan_is_250_messages_of_5_games() -> None:
    assert GamesPlan().good == 250
    assert len(set(GamesPlan().names)) == 5


def test_the_same_seed_gives_the_same_bytes(recording: Any) -> None:
    plan = GamesPlan(bad=40, late=9, type_change=True)
    once, again = (
        [m for each in stream_rounds(plan, registry=type(recording)()) for m in each.messages()]
        for _ in range(2)
    )
    assert once == again
    other = GamesPlan(bad=40, late=9, type_change=True, seed=1)
    rounds = stream_rounds(other, registry=type(recording)())
    assert once != [m for each in rounds for m in each.messages()]


def test_the_bytes_of_the_default_seed_stay_as_they_are(recording: Any) -> None:
    digest = sha256()
    plan = GamesPlan(bad=40, late=9, type_change=True)
    for each in stream_rounds(plan, registry=recording):
        for message in each.messages():
            digest.update(repr(tuple(message)).encode())
    assert digest.hexdigest()[:16] == "568f6d8c49ecea4e"


def test_columns_and_messages_are_the_same(recording: Any) -> None:
    plan = GamesPlan(bad=40, late=9)
    rounds = zip(
        stream_rounds(plan, registry=type(recording)()),
        stream_rounds(plan, registry=type(recording)()),
        strict=True,
    )
    for left, right in rounds:
        rows = [row for batch in right.arrow() for row in batch.to_pylist()]
        assert [(m.type, m.key, m.value) for m in left.messages()] == [
            (row["type"], row["key"], row["value"]) for row in rows
        ]
        assert left.sent() == right.sent()


def test_a_version_comes_for_all_games_before_the_next(send: Send, reader: Any) -> None:
    plan = GamesPlan(games=4, versions=3, records=5)
    messages, sent = send(plan)
    version_of = {i: v for ids in sent.schema_ids.values() for v, i in ids.items()}
    versions = [version_of[reader.unwrap(m.value).schema_id] for m in messages]
    assert versions == sorted(versions)
    assert {m.type for m in messages[:4]} == set(plan.names)


def test_late_records_come_last_and_change_no_count(send: Send, reader: Any) -> None:
    plan = GamesPlan(games=4, versions=3, records=5, late=6)
    messages, sent = send(plan)
    assert sent.good == len(messages) == 60
    assert sent.late == 6
    assert all(by == {1: 5, 2: 5, 3: 5} for by in sent.per_type.values())
    version_of = {i: v for ids in sent.schema_ids.values() for v, i in ids.items()}
    versions = [version_of[reader.unwrap(m.value).schema_id] for m in messages]
    assert versions[:-6] == sorted(versions[:-6])
    assert max(versions[-6:]) < 3
    newest = messages[-7].timestamp
    for message in messages[-6:]:
        wrapper = reader.unwrap(message.value)
        event = reader.parse(wrapper.schema_id, wrapper.payload)
        assert event.event_timestamp.ToMilliseconds() < newest < message.timestamp


def test_late_records_are_the_records_they_would_have_been(send: Send) -> None:
    in_time, _ = send(GamesPlan())
    late, _ = send(GamesPlan(late=50))
    assert Counter(m.value for m in in_time) == Counter(m.value for m in late)
    assert [m.value for m in in_time] != [m.value for m in late]


def test_messages_are_sent_in_the_order_of_their_times(send: Send) -> None:
    messages, sent = send(GamesPlan(late=20, bad=30))
    times = [m.timestamp for m in messages]
    assert times == sorted(times)
    assert (sent.first_time, sent.last_time) == (times[0], times[-1])


def test_the_level_is_set_before_a_version_is_registered(recording: Any) -> None:
    plan = GamesPlan(games=2, versions=2, records=1)
    deliver(stream_rounds(plan, registry=recording), sink=ListSink())
    what = [call[:2] if call[0] == "register" else call for call in recording.calls]
    first, second = (f"{name}-value" for name in plan.names)
    assert what == [
        ("level", "wrapper-value", "FULL"),
        ("register", "wrapper-value"),
        ("level", first, "FULL"),
        ("register", first),
        ("level", second, "FULL"),
        ("register", second),
        ("register", first),
        ("register", second),
    ]


def test_schemas_appear_with_their_round(recording: Any) -> None:
    rounds = stream_rounds(GamesPlan(games=3, versions=2, records=1), registry=recording)
    next(rounds)
    assert len(recording.ids) == 1 + 3
    next(rounds)
    assert len(recording.ids) == 1 + 6


def test_a_type_change_is_registered_without_a_level(recording: Any) -> None:
    plan = GamesPlan(games=2, versions=3, records=1, type_change=True)
    sent = deliver(stream_rounds(plan, registry=recording), sink=ListSink())
    changed = f"{plan.names[0]}-value"
    at = recording.calls.index(("level", changed, "NONE"))
    assert recording.calls[at + 1][:2] == ("register", changed)
    assert "int32 is_connection_stable" in recording.calls[at + 1][2]
    assert sent.good == 6
    assert sent.type_changes == {plan.names[0]: "is_connection_stable"}
    assert ("level", f"{plan.names[1]}-value", "NONE") not in recording.calls


def test_a_later_plan_goes_on_where_an_earlier_one_ended(send: Send) -> None:
    whole, _ = send(GamesPlan(versions=4))
    first, _ = send(GamesPlan(versions=2))
    rest, sent = send(GamesPlan(versions=2, start_version=3))
    assert [m.value for m in first + rest] == [m.value for m in whole]
    assert all(set(by) == {3, 4} for by in sent.per_type.values())


def test_a_folder_registry_takes_all_versions(tmp_path: Path) -> None:
    plan = GamesPlan(games=3, versions=3, records=2, type_change=True)
    registry = FileRegistry(tmp_path / "schemas")
    sent = deliver(stream_rounds(plan, registry=registry), sink=ListSink())
    assert set(registry.subjects()) == {"wrapper-value", *(f"{n}-value" for n in plan.names)}
    for name, ids in sent.schema_ids.items():
        assert registry.versions(f"{name}-value") == (1, 2, 3)
        for version, schema_id in ids.items():
            assert registry.version(f"{name}-value", version).id == schema_id
    again = deliver(stream_rounds(plan, registry=registry), sink=ListSink())
    assert again == sent


def test_the_columns_of_the_newest_version_are_told(send: Send) -> None:
    plan = GamesPlan(games=2, versions=2, records=1)
    _, sent = send(plan)
    for name in plan.names:
        common = ("game_name", "user_name", "event_timestamp", "is_connection_stable")
        assert sent.columns[name] == (*common, f"col_{name}_0", f"col_{name}_1")


def test_a_round_is_one_write(recording: Any) -> None:
    sink, seen = ListSink(), []
    rounds = stream_rounds(GamesPlan(versions=3), registry=recording)
    sent = deliver(rounds, sink=sink, on_round=lambda r: seen.append(r))
    assert [len(write) for write in sink.writes] == [50, 50, 50]
    assert [r.version for r in seen] == [1, 2, 3]
    assert sum(r.sent().good for r in seen) == sent.good


def test_a_pace_is_kept_without_drift() -> None:
    now, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    messages = [SinkMessage(None, b"%d" % i, (), i, "t") for i in range(100)]
    beats = []
    for beat in paced(messages, rate=20, clock=lambda: now[0], sleep=sleep):
        beats.append(beat)
        now[0] += 0.1
    assert [m for beat in beats for m in beat] == messages
    assert {len(beat) for beat in beats} == {10}
    assert now[0] == pytest.approx(100 + 90 / 20 + 0.1)
    with pytest.raises(ConfigError):
        next(paced(messages, rate=0))


def test_a_paced_stream_sends_the_same(recording: Any) -> None:
    plan = GamesPlan(games=2, versions=2, records=2)
    fast, slow = ListSink(), ListSink()
    sent = deliver(stream_rounds(plan, registry=recording), sink=fast)
    again = stream_rounds(plan, registry=recording)
    assert deliver(again, sink=slow, rate=1_000_000) == sent
    assert list(chain(*fast.writes)) == list(chain(*slow.writes))


def test_the_report_is_plain_json(send: Send) -> None:
    _, sent = send(GamesPlan(games=2, versions=2, records=3, bad=4))
    told = json.loads(json.dumps(sent.as_dict()))
    assert told == sent.as_dict()
    assert told["messages"] == 16
    assert all(by == {"1": 3, "2": 3} for by in told["per_type"].values())
    assert Sent.total([]) == Sent()
