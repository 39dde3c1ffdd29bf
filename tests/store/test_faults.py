"""A bucket behind a proxy with faults: what the store says was done, was done, once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta

import pytest

from distributary.store import bucket
from distributary.store.bucket import Bucket
from tests.services.faulty_store import faulty_store
from tests.services.shared import unique
from tests.source.s3_server import BUCKET, S3Server, s3_server


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as started:
        yield started


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of requests fail here: the pauses before the next try would be most of the time."""
    pauses = {"init_backoff": timedelta(milliseconds=2), "max_backoff": timedelta(milliseconds=20)}
    monkeypatch.setattr(bucket, "_RETRIES", {**bucket._RETRIES, "backoff": {**pauses, "base": 2}})


KINDS = {
    "slow down": {"slow_down": 0.3},
    "lost answers": {"lost": 0.3},
    "our own put refuses us": {"own_412": 0.5},
    "all of it": {"slow_down": 0.15, "lost": 0.15, "own_412": 0.2},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_a_store_with_faults_is_a_store(server: S3Server, kind: str, seed: int) -> None:
    dice = random.Random(seed)
    place = f"s3://{BUCKET}/{kind}/{seed}"
    other = Bucket(place, server.options)
    with faulty_store(server.port, seed=seed, **KINDS[kind]) as proxy:
        store = Bucket(place, proxy.before(server.options))
        model: dict[str, bytes] = {}
        versions: dict[str, str] = {}
        for number in range(80):
            name, data = f"f{dice.randrange(6)}", b"%d" % number
            match dice.choice(["create", "write", "swap", "stale", "remove", "read", "copy"]):
                case "create":
                    version = store.create(name, data)
                    assert (version is None) == (name in model)
                    if version is not None:
                        model[name], versions[name] = data, version
                case "write":
                    versions[name] = store.write(name, data)
                    model[name] = data
                case "swap" if name in model:
                    version = store.swap(name, data, unchanged=versions[name])
                    assert version is not None
                    model[name], versions[name] = data, version
                case "stale" if name in model:
                    # another writer comes in between
                    versions[name], model[name] = other.write(name, b"theirs"), b"theirs"
                    assert store.swap(name, data, unchanged='"0"') is None
                    assert store.create(name, data) is None
                case "remove":
                    store.remove(name)
                    model.pop(name, None)
                case "read" if name in model:
                    assert store.read(name) == model[name]
                    assert store.size(name) == len(model[name])
                case "copy" if name in model:
                    store.copy(name, to=store, named="copied")
                    assert store.read("copied") == model[name]
                    store.remove_files(["copied", "none"])
        assert {f.name: other.read(f.name) for f in other.files()} == model
        met = proxy.met()
        assert met.total() > met["good"], met


def test_an_old_token_is_an_error_that_may_pass(server: S3Server) -> None:
    with faulty_store(server.port, expired=(0, 2)) as proxy:
        store = Bucket(f"s3://{BUCKET}/{unique('expired')}", proxy.before(server.options))
        for _ in range(2):
            with pytest.raises(PermissionError) as told:
                store.write("f", b"1")
            assert "canary" not in str(told.value)
        store.write("f", b"1")
        assert store.read("f") == b"1"
