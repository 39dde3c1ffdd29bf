"""Why a run failed is remembered where that can be written, and in no other case in the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from distributary.errors import LakeUnavailableError
from distributary.observe.status.pulse import clear_failure, read_failure, write_failure
from distributary.store.base import at
from distributary.store.disk import Disk


def test_a_failure_is_remembered_and_forgotten(tmp_path: Path) -> None:
    write_failure(at(tmp_path), LakeUnavailableError("the lake is read-only"))
    known = read_failure(str(tmp_path))
    assert known is not None and known["code"] == "LAKE_UNAVAILABLE"
    clear_failure(at(tmp_path))
    assert read_failure(str(tmp_path)) is None


@pytest.mark.parametrize(
    "told",
    [
        "[" * 100_000,
        "[]",
        "{}",
        '{"at": 5}',
        '{"at": "yesterday"}',
    ],
)
def test_what_is_no_failure_is_passed_over(tmp_path: Path, told: str) -> None:
    (tmp_path / "failure.json").write_text(told)
    assert read_failure(str(tmp_path)) is None


def test_a_failure_that_cannot_be_written_hides_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*args: object, **kwargs: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Disk, "write", read_only)
    monkeypatch.setattr(Disk, "remove", read_only)
    write_failure(at(tmp_path), LakeUnavailableError("the lake is read-only"))
    clear_failure(at(tmp_path))
    write_failure(at(tmp_path / "gone"), LakeUnavailableError("the lake is away"))
    assert read_failure(str(tmp_path)) is None
