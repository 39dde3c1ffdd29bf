from pathlib import Path
from typing import Any

import pytest

from distributary.source.kafka.produced import cards, cards_folder
from distributary_lab.simulate.kafka_sink import ExistingTopic, Notes
from tests.registry.scratch import ScratchRegistry


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def proto(name: str) -> str:
    return f'syntax = "proto3"; message {name} {{ string a = 1; }}'


def notes(registry: Any, *, created: bool = True) -> Notes:
    topic = ExistingTopic("orders", "id-1", 1, created=created)
    return Notes(topic, cluster="c", registry=registry, address="http://r/")


def test_a_card_says_what_was_not_there_before(registry: ScratchRegistry) -> None:
    old = registry.register("old", proto("A"))
    noted = notes(registry)
    noted.set_compatibility("new", "FULL")
    ids = noted.register("new", proto("B")), noted.register("old", proto("A"))
    noted.save()
    noted.save()
    (card,) = cards()
    assert (card.cluster, card.topic, card.topic_id) == ("c", "orders", "id-1")
    assert (card.registry, card.subjects) == ("http://r", ("new",))
    assert card.schema_ids == {"new": (ids[0],), "old": (old,)}


def test_a_topic_that_was_there_is_nobodys(registry: ScratchRegistry) -> None:
    noted = notes(registry, created=False)
    noted.save()
    assert list(cards()) == []
    noted.register("new", proto("B"))
    noted.save()
    assert [card.topic_id for card in cards()] == [None]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "x": 1}'])
def test_a_damaged_card_says_nothing(content: str) -> None:
    cards_folder().mkdir(parents=True)
    (cards_folder() / "x.json").write_text(content)
    assert list(cards()) == []
