"""What a cached registry still knows while the registry itself does not answer."""

from __future__ import annotations

import logging
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from distributary.errors import ErrorCode, RegistryError, RegistryUnavailableError
from distributary.errors import SchemaNotFoundError as NotFound
from distributary.registry.cached_registry import CachedRegistry
from tests.registry.loopback import Asked, Says, by_path, registry, serving
from tests.registry.test_registry_cache import V1, V2, Clock, Slow

SUBJECT = "chess-value"


@pytest.fixture
def slow() -> Slow:
    made = Slow()
    made.inner.register(SUBJECT, V1)
    return made


@pytest.fixture
def guid(slow: Slow) -> UUID:
    return slow.inner.guid_of(1)


def test_a_guid_is_asked_for_once_and_outlives_the_process(
    slow: Slow, guid: UUID, tmp_path: Path
) -> None:
    first = CachedRegistry(slow, folder=tmp_path)
    assert first.by_guid(guid) == first.by_guid(guid) == first.by_id(1)
    slow.down = True
    later = CachedRegistry(slow, folder=tmp_path)
    assert later.by_guid(guid) == first.by_id(1)
    assert (slow.asked["by_guid"], slow.asked["by_id"]) == (1, 0)
    with pytest.raises(RegistryUnavailableError):
        later.by_guid(uuid4())


def test_that_a_guid_is_missing_is_not_remembered(slow: Slow, tmp_path: Path) -> None:
    cached = CachedRegistry(slow, folder=tmp_path)
    other = Slow()
    other.inner.register("go-value", V2)
    missing = other.inner.guid_of(1)
    with pytest.raises(NotFound):
        cached.by_guid(missing)
    slow.inner.register("go-value", V2)
    assert cached.by_guid(missing).id == 2


def test_an_old_latest_is_better_than_none(slow: Slow, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    cached = CachedRegistry(slow, latest_seconds=60, clock=clock)
    fresh = cached.latest(SUBJECT)
    slow.down = True
    clock.now += 3600
    with caplog.at_level(logging.WARNING):
        assert cached.latest(SUBJECT) == fresh
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert SUBJECT in caplog.text
    # believed for a moment, so that not every question costs the registry's timeout
    clock.now += 9
    assert cached.latest(SUBJECT) == fresh
    assert slow.asked["latest"] == 2
    slow.down = False
    slow.inner.register(SUBJECT, V2)
    clock.now += 2
    assert cached.latest(SUBJECT).id == 2


def test_a_start_without_the_registry(slow: Slow, tmp_path: Path) -> None:
    warm = CachedRegistry(slow, folder=tmp_path)
    newest = warm.latest(SUBJECT)
    slow.down = True
    cold = CachedRegistry(slow, folder=tmp_path)
    assert cold.latest(SUBJECT) == cold.by_id(1) == newest
    with pytest.raises(RegistryUnavailableError):
        cold.latest("go-value")
    with pytest.raises(RegistryUnavailableError):
        cold.version(SUBJECT, 1)


def test_what_is_kept_is_the_newest_that_was_seen(slow: Slow, tmp_path: Path) -> None:
    clock = Clock()
    warm = CachedRegistry(slow, folder=tmp_path, clock=clock)
    warm.latest(SUBJECT)
    slow.inner.register(SUBJECT, V2)
    clock.now += 61
    warm.latest(SUBJECT)
    slow.down = True
    assert CachedRegistry(slow, folder=tmp_path).latest(SUBJECT).id == 2


def test_a_registry_that_answers_is_believed_over_the_folder(slow: Slow, tmp_path: Path) -> None:
    CachedRegistry(slow, folder=tmp_path).latest(SUBJECT)
    slow.inner.delete_subject(SUBJECT)
    with pytest.raises(NotFound):
        CachedRegistry(slow, folder=tmp_path).latest(SUBJECT)


def test_a_version_is_remembered_through_an_outage_too(slow: Slow) -> None:
    clock = Clock()
    cached = CachedRegistry(slow, clock=clock)
    first = cached.version(SUBJECT, 1)
    slow.down = True
    clock.now += 3600
    assert cached.version(SUBJECT, 1) == first


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"of": "chess-value", "id": 1}', b"\xff"])
def test_a_damaged_pointer_is_no_pointer(
    slow: Slow, guid: UUID, tmp_path: Path, damage: bytes
) -> None:
    warm = CachedRegistry(slow, folder=tmp_path)
    warm.latest(SUBJECT)
    warm.by_guid(guid)
    for path in tmp_path.glob("*-*.json"):
        path.write_bytes(damage)
    slow.down = True
    cold = CachedRegistry(slow, folder=tmp_path)
    with pytest.raises(RegistryUnavailableError):
        cold.latest(SUBJECT)
    with pytest.raises(RegistryUnavailableError):
        cold.by_guid(guid)


def test_names_from_outside_make_no_paths(slow: Slow, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    names = ["../../escape", "a/b", "Chess", "chess", "x" * 400, "\x00"]
    for number, name in enumerate(names):
        slow.inner.register(name, f'syntax = "proto3"; message M{number} {{}}')
        CachedRegistry(slow, folder=folder).latest(name)
    slow.down = True
    cold = CachedRegistry(slow, folder=folder)
    assert [cold.latest(n).message for n in names] == [f"M{n}" for n in range(len(names))]
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


CHESS = {"schema": V1, "schemaType": "PROTOBUF"}
ANSWERS = {
    "GET /schemas/ids/7": CHESS,
    "GET /schemas/ids/7/versions?deleted=true": [{"subject": SUBJECT, "version": 3}],
    f"GET /subjects/{SUBJECT}/versions/latest": {**CHESS, "id": 7, "version": 3},
}


def test_it_stands_before_a_server(tmp_path: Path) -> None:
    with serving(by_path(ANSWERS)) as server, registry(server.url, attempts=1) as inner:
        warm = CachedRegistry(inner, folder=tmp_path)
        newest = warm.latest(SUBJECT)
        assert warm.by_id(7) == newest
        assert "GET /schemas/ids/7" not in server.paths
        for fault in (Says(503), Says(200, b"<html>"), Says(404, b"<html>")):
            server.script = lambda _, fault=fault: fault  # type: ignore[misc]
            cold = CachedRegistry(inner, folder=tmp_path)
            assert cold.latest(SUBJECT) == cold.by_id(7) == newest


def test_a_server_that_denies_us_is_not_an_outage(tmp_path: Path) -> None:
    def answer(asked: Asked) -> Says:
        return by_path(ANSWERS)(asked) if "authorization" in asked.headers else Says(401)

    with serving(answer) as server:
        with registry(server.url, token="known") as inner:
            CachedRegistry(inner, folder=tmp_path).latest(SUBJECT)
        with registry(server.url) as stranger, pytest.raises(RegistryError) as caught:
            CachedRegistry(stranger, folder=tmp_path).latest(SUBJECT)
        assert caught.value.code is ErrorCode.REGISTRY_AUTH
