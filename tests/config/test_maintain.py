"""The `maintain` section."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pydantic import ValidationError

from distributary.config.lake import Maintain


def test_everything_has_a_default() -> None:
    settings = Maintain()
    assert settings.every == timedelta(minutes=30)
    assert settings.steps == ("optimize", "checkpoint", "vacuum", "expire")
    assert settings.vacuum.retention == timedelta(days=7)
    assert settings.expire.open_dead_letters is None


@pytest.mark.parametrize(("told", "commits"), [(20, 20), ("20", 20), ("20 commits", 20)])
def test_commits_may_be_called_commits(told: object, commits: int) -> None:
    assert Maintain.model_validate({"checkpoint": {"every": told}}).checkpoint.every == commits


@pytest.mark.parametrize(
    "wrong",
    [
        {"checkpoint": {"every": "20 days"}},
        {"checkpoint": {"every": 0}},
        {"optimize": {"min_files": 1}},
        {"optimize": {"target_size": 0}},
        {"vacuum": {"retention": "1h"}},
        {"every": "0s"},
        {"steps": ["sweep"]},
        {"expire": {"ledger": "soon"}},
        {"sweep": {}},
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Maintain.model_validate(wrong)


@pytest.mark.parametrize("told", ["off", False, None])
def test_upkeep_beside_a_run_can_be_turned_off(told: object) -> None:
    settings = Maintain.model_validate({"every": told})
    assert settings.every is None
    assert Maintain.model_validate(settings.model_dump()).every is None
