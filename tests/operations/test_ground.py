"""What `doctor FILE` proves of a lake's and a checkpoint's store, on good ones and on liars."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distributary.errors import ConfigError
from distributary.operations import ground
from distributary.operations.ground import Proof, prove_claim, prove_store
from distributary.store.base import Info, introduce
from distributary.store.disk import Disk
from tests.services.shared import unique
from tests.source.s3_server import BUCKET, KEYS, S3Server, s3_server


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as started:
        yield started


@pytest.fixture(params=["disk", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """An address, and how to list everything below its parent."""
    if request.param == "disk":
        return str(tmp_path / "not" / "there" / "yet"), lambda: list(tmp_path.rglob("*"))
    started: S3Server = request.getfixturevalue("server")
    address = f"s3://{BUCKET}/{unique('ground')}"
    introduce(address, started.options)

    def listed() -> list[str]:
        from pyarrow.fs import FileSelector

        inside = FileSelector(address.removeprefix("s3://"), recursive=True, allow_not_found=True)
        return [info.path for info in started.files.get_file_info(inside) if info.is_file]

    return address, listed


def by_name(proofs: Iterator[Proof]) -> dict[str, Proof]:
    return {proof.name: proof for proof in proofs}


def test_a_good_store_passes_and_nothing_is_left(place: Any) -> None:
    address, listed = place
    found = by_name(prove_store("lake", address))
    assert {name: proof.passed for name, proof in found.items()} == {
        "lake": True,
        "lake puts": True,
        "lake clock": True,
    }
    assert all(address in proof.tried for proof in found.values())
    claim = prove_claim(address, lease=5)
    assert claim.passed, claim
    assert address in claim.tried
    assert listed() == []


def lying(monkeypatch: pytest.MonkeyPatch, **methods: Any) -> None:
    """A file system that does not do what it says."""

    class Liar(Disk):
        pass

    for name, method in methods.items():
        setattr(Liar, name, method)
    monkeypatch.setattr(ground, "at", lambda address: Liar(str(address)))


def overwrites(self: Disk, name: str, data: bytes, *, durable: bool = True) -> str | None:
    return self.write(name, data)


def swaps(self: Disk, name: str, data: bytes, *, unchanged: str) -> str | None:
    return self.write(name, data)


def never_swaps(self: Disk, name: str, data: bytes, *, unchanged: str) -> str | None:
    return None


@pytest.mark.parametrize(
    "methods", [{"create": overwrites}, {"swap": swaps}, {"swap": never_swaps}]
)
def test_a_store_without_conditional_puts_is_found_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, methods: dict[str, Any]
) -> None:
    lying(monkeypatch, **methods)
    found = by_name(prove_store("checkpoint", str(tmp_path)))
    assert found["checkpoint"].passed
    assert not found["checkpoint puts"].passed
    assert found["checkpoint puts"].fix
    assert list(tmp_path.iterdir()) == []


def denied(self: Disk, *args: Any, **options: Any) -> Any:
    raise PermissionError(13, "Permission denied")


def nothing(self: Disk, *args: Any, **options: Any) -> Any:
    return []


@pytest.mark.parametrize(
    ("method", "instead", "word"),
    [
        ("write", denied, "write"),
        ("files", denied, "list"),
        ("files", nothing, "list"),
        ("read", denied, "read"),
        ("remove", denied, "remove"),
    ],
)
def test_a_right_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: str, instead: Any, word: str
) -> None:
    lying(monkeypatch, **{method: instead})
    (proof,) = prove_store("lake", str(tmp_path))
    assert not proof.passed
    assert f"cannot {word}" in proof.found
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("apart", "passed"), [(0, True), (-3, True), (60, False), (-60, False)])
def test_a_clock_that_is_off_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, apart: float, passed: bool
) -> None:
    def look(self: Disk, name: str) -> Info | None:
        if not Path(self.address, name).exists():
            return None
        # whole seconds, as most stores tell them
        return Info(name, 1, float(int(time.time() + apart)), "1")

    lying(monkeypatch, look=look)
    found = by_name(prove_store("lake", str(tmp_path)))
    assert found["lake clock"].passed is passed


def test_a_claim_that_two_can_have_is_found_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lying(monkeypatch, files=nothing, create=overwrites)
    assert not prove_claim(str(tmp_path), lease=5).passed
    lying(monkeypatch, create=denied)
    assert not prove_claim(str(tmp_path), lease=5).passed


def test_an_address_of_nothing_known_is_an_error() -> None:
    with pytest.raises(ConfigError):
        list(prove_store("lake", "ftp://host/lake"))


def test_a_bucket_that_is_not_there_is_told_without_secrets(server: S3Server) -> None:
    introduce("s3://no-such-bucket/lake", server.options)
    (proof,) = prove_store("lake", "s3://no-such-bucket/lake")
    assert not proof.passed
    for secret in KEYS.values():
        assert secret not in str(proof)
