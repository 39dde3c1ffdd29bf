from typing import Any

import pytest

from distributary.errors import ConfigError
from distributary_lab.simulate.games import PeoplePlan, stream_people


def people(plan: PeoplePlan, registry: Any) -> list[Any]:
    return [m for each in stream_people(plan, registry=registry) for m in each.messages()]


def test_every_person_decodes_with_its_own_version(registry: Any, reader: Any) -> None:
    messages = people(PeoplePlan(versions=4, records=5), registry)
    assert len(messages) == 20
    ids = set()
    for n, message in enumerate(messages):
        version = n // 5 + 1
        assert message.value[0] == message.value[5] == 0
        schema_id = int.from_bytes(message.value[1:5], "big")
        assert registry.by_id(schema_id).version_in("people-value") == version
        body = message.value[6:]
        person = reader.parse(schema_id, body)
        assert person.SerializeToString(deterministic=True) == body
        measures = [f"measure{i}" for i in range(version)]
        names = [field.name for field, _ in person.ListFields()]
        assert names == ["id", "name", "email", "quantity", *measures]
        assert person.email == f"jdoe{n}@example.com"
        assert message.key == b"%d.%d" % (version, n % 5)
        ids.add(person.id)
    assert len(ids) == 20


def test_the_message_keeps_its_full_name(registry: Any) -> None:
    people(PeoplePlan(versions=3, records=1), registry)
    names = {registry.version("people-value", v).message for v in (1, 2, 3)}
    assert names == {"example.Person"}


def test_the_same_seed_gives_the_same_people(recording: Any) -> None:
    plan = PeoplePlan(versions=2, records=50)
    assert people(plan, recording) == people(plan, recording)
    assert people(plan, recording) != people(PeoplePlan(versions=2, records=50, seed=1), recording)


def test_the_level_is_set_first_and_once(recording: Any) -> None:
    people(PeoplePlan(versions=2, records=1), recording)
    assert [call[:2] for call in recording.calls] == [
        ("level", "people-value"),
        ("register", "people-value"),
        ("register", "people-value"),
    ]


def test_a_round_tells_what_it_sent(registry: Any) -> None:
    for each in stream_people(PeoplePlan(versions=3, records=15_000), registry=registry):
        count = sum(len(batch) for batch in each.arrow())
        sent = each.sent()
        assert count == sent.messages == sent.framed == 15_000
        assert sent.per_type == {"Person": {each.version: 15_000}}
        assert sent.first_position == each.number * 15_000
        assert sent.columns["Person"][4:] == tuple(f"measure{i}" for i in range(each.version))


def test_a_later_plan_goes_on_with_new_people(registry: Any) -> None:
    whole = people(PeoplePlan(versions=4, records=3), registry)
    first = people(PeoplePlan(versions=2, records=3), registry)
    rest = people(PeoplePlan(versions=2, records=3, start_version=3), registry)
    assert first + rest == whole


@pytest.mark.parametrize("wrong", [{"versions": 0}, {"records": 0}, {"subject": ""}], ids=str)
def test_what_cannot_be_sent_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        PeoplePlan(**wrong)
