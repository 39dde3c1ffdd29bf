"""What a cached registry remembers, for how long, and what it never does."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from uuid import UUID

import pytest

from distributary.errors import RegistryUnavailableError, SchemaNotFoundError
from distributary.model.record import WriterSchema
from distributary.registry.base import SchemaRegistry
from distributary.registry.cached_registry import CachedRegistry
from tests.registry.scratch import ScratchRegistry

PROTO3 = 'syntax = "proto3";'
V1 = PROTO3 + "package game; message Chess { string player = 1; }"
V2 = PROTO3 + "package game; message Chess { string player = 1; int32 rating = 2; }"


class Slow:
    """Counts what it is asked, and can be out of reach."""

    def __init__(self) -> None:
        self.inner = ScratchRegistry()
        self.asked: Counter[str] = Counter()
        self.down = False

    def _ask(self, what: str) -> ScratchRegistry:
        self.asked[what] += 1
        if self.down:
            raise RegistryUnavailableError("down")
        return self.inner

    def by_id(self, schema_id: int) -> WriterSchema:
        return self._ask("by_id").by_id(schema_id)

    def by_id_now(self, schema_id: int) -> WriterSchema:
        return self._ask("by_id_now").by_id_now(schema_id)

    def by_guid(self, guid: UUID) -> WriterSchema:
        return self._ask("by_guid").by_guid(guid)

    def latest(self, subject: str) -> WriterSchema:
        return self._ask("latest").latest(subject)

    def version(self, subject: str, version: int) -> WriterSchema:
        return self._ask("version").version(subject, version)

    def versions(self, subject: str) -> tuple[int, ...]:
        return self._ask("versions").versions(subject)

    def subjects(self) -> tuple[str, ...]:
        return self._ask("subjects").subjects()


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def slow() -> Slow:
    made = Slow()
    made.inner.register("chess-value", V1)
    return made


def test_an_id_is_asked_for_once(slow: Slow) -> None:
    cached = CachedRegistry(slow)
    seam: SchemaRegistry = cached
    first = seam.by_id(1)
    slow.down = True
    assert cached.by_id(1) == first
    assert slow.asked["by_id"] == 1


def test_a_subject_that_an_id_got_later_is_asked_for(slow: Slow, tmp_path: Path) -> None:
    cached = CachedRegistry(slow, folder=tmp_path)
    assert [place.subject for place in cached.by_id(1).subjects] == ["chess-value"]
    slow.inner.register("blitz-value", V1)
    assert [place.subject for place in cached.by_id(1).subjects] == ["chess-value"]
    both = ["blitz-value", "chess-value"]
    assert [place.subject for place in cached.by_id_now(1).subjects] == both
    slow.down = True
    for registry in (cached, CachedRegistry(slow, folder=tmp_path)):
        assert [place.subject for place in registry.by_id(1).subjects] == both


def test_an_id_outlives_the_process_in_a_folder(slow: Slow, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "cache"
    first = CachedRegistry(slow, folder=folder).by_id(1)
    slow.down = True
    later = CachedRegistry(slow, folder=folder)
    assert later.by_id(1) == first == later.by_id(1)
    assert slow.asked["by_id"] == 1
    assert not list(folder.glob(".new-*"))


def test_a_damaged_file_is_asked_for_again_and_mended(slow: Slow, tmp_path: Path) -> None:
    whole = CachedRegistry(slow, folder=tmp_path).by_id(1)
    path = tmp_path / "00000001.json"
    good = path.read_bytes()
    content = json.loads(good)
    other = {**content, "message": "game.Go"}
    damages = [
        b"",
        good[: len(good) // 2],
        b"[]",
        b"{}",
        b"\xff",
        json.dumps(other).encode(),
        json.dumps({**content, "id": 2}).encode(),
        json.dumps({"digest": 1}).encode(),
    ]
    for count, damage in enumerate(damages, 2):
        path.write_bytes(damage)
        assert CachedRegistry(slow, folder=tmp_path).by_id(1) == whole
        assert slow.asked["by_id"] == count
        assert path.read_bytes() == good


def test_a_folder_that_cannot_be_written_is_only_slower(slow: Slow, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    cached = CachedRegistry(slow, folder=blocked / "cache")
    assert cached.by_id(1).message == "game.Chess"
    assert cached.by_id(1).message == "game.Chess"
    assert slow.asked["by_id"] == 1


def test_that_something_is_missing_is_not_remembered(slow: Slow, tmp_path: Path) -> None:
    cached = CachedRegistry(slow, folder=tmp_path)
    for ask in (lambda: cached.by_id(2), lambda: cached.latest("go-value")):
        with pytest.raises(SchemaNotFoundError):
            ask()
    slow.inner.register("go-value", V2)
    assert cached.by_id(2) == cached.latest("go-value")


def test_a_registry_that_is_down_is_not_remembered_either(slow: Slow) -> None:
    cached = CachedRegistry(slow)
    slow.down = True
    with pytest.raises(RegistryUnavailableError):
        cached.by_id(1)
    slow.down = False
    assert cached.by_id(1).id == 1


def test_latest_is_remembered_for_a_while(slow: Slow) -> None:
    clock = Clock()
    cached = CachedRegistry(slow, latest_seconds=30, clock=clock)
    assert cached.latest("chess-value").id == 1
    slow.inner.register("chess-value", V2)
    clock.now += 29
    assert cached.latest("chess-value").id == 1
    clock.now += 2
    assert cached.latest("chess-value").id == 2
    assert slow.asked["latest"] == 2
    assert cached.version("chess-value", 1).id == cached.version("chess-value", 1).id == 1
    assert slow.asked["version"] == 1


def test_lists_are_asked_for_every_time(slow: Slow) -> None:
    cached = CachedRegistry(slow)
    for _ in range(2):
        assert cached.subjects() == ("chess-value",)
        assert cached.versions("chess-value") == (1,)
    assert (slow.asked["subjects"], slow.asked["versions"]) == (2, 2)
