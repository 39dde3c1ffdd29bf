"""Whether there is a restart, and after how long."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.config.runtime import Restart
from distributary.errors import DistributaryError, ErrorCode, SourceUnavailableError
from distributary.supervise.member import EndKind, EndVerdict, Streak, judge, pause

POLICY = Restart.model_validate({"initial": "1s", "longest": "5m", "reset_after": "10m"})


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_a_pause_doubles_up_to_the_longest_and_varies_by_half(failures: int, luck: float) -> None:
    full = min(2.0 ** min(failures - 1, 20), 300.0)
    assert full / 2 <= pause(POLICY, failures, chance=lambda: luck) <= full


@given(st.integers(1, 30))
def test_pauses_never_get_shorter(failures: int) -> None:
    one, next_one = (pause(POLICY, n, chance=lambda: 0.5) for n in (failures, failures + 1))
    assert one <= next_one


def test_failures_in_a_row_are_counted_and_a_long_life_begins_anew() -> None:
    passing, crashed = EndVerdict(EndKind.PASSING), EndVerdict(EndKind.CRASHED)
    streak = Streak()
    for verdict in (passing, crashed, passing):
        streak = streak.after(verdict, ran=1, policy=POLICY)
    assert streak == Streak(3, 1)
    assert streak.after(crashed, ran=600, policy=POLICY) == Streak(1, 1)


@pytest.mark.parametrize(
    ("kind", "settings", "streak", "over"),
    [
        (EndKind.PASSING, {}, Streak(10_000, 10), False),
        (EndKind.PASSING, {"max": 3}, Streak(3), False),
        (EndKind.PASSING, {"max": 3}, Streak(4), True),
        (EndKind.PASSING, {"max": 0}, Streak(1), True),
        (EndKind.CRASHED, {}, Streak(10, 10), False),
        (EndKind.CRASHED, {}, Streak(11, 11), True),
        (EndKind.CRASHED, {"max_crashes": "unlimited"}, Streak(99, 99), False),
        (EndKind.CRASHED, {"max_crashes": "unlimited", "max": 3}, Streak(4, 1), True),
        (EndKind.FINAL, {"max_crashes": "unlimited"}, Streak(1), True),
    ],
)
def test_limits(kind: EndKind, settings: dict[str, object], streak: Streak, over: bool) -> None:
    assert streak.is_over(EndVerdict(kind), Restart.model_validate(settings)) is over


def told(code: str, *, retryable: bool = False) -> str:
    return json.dumps({"error": {"code": code, "what": "w", "retryable": retryable}})


@pytest.mark.parametrize(
    ("code", "printed", "kind"),
    [
        (0, "", EndKind.DONE),
        (0, '{"stopped": "done", "parked": 0}', EndKind.DONE),
        (1, '{"stopped": "done", "still_parked": {"tables": 1}}', EndKind.DONE),
        (2, told("CONFIG_INVALID"), EndKind.FINAL),
        (2, "", EndKind.FINAL),
        (75, told("CHECKPOINT_OWNED"), EndKind.PASSING),
        (75, "", EndKind.PASSING),
        (1, told("COMMIT_FAILED", retryable=True), EndKind.PASSING),
        (1, told("BATCH_FAILED"), EndKind.CRASHED),
        (1, told("CHECKPOINT_DIVERGED"), EndKind.FINAL),
        (1, told("JAVA_MISSING"), EndKind.FINAL),
        (1, told("NO_SUCH_CODE"), EndKind.CRASHED),
        (1, "", EndKind.CRASHED),
        (1, "[" * 100_000, EndKind.CRASHED),
        (-9, "", EndKind.CRASHED),
        (-200, "", EndKind.CRASHED),
        # somebody else has stopped it
        (143, '{"stopped": "stopped", "parked": 0}', EndKind.CRASHED),
    ],
)
def test_what_an_exit_means(code: int, printed: str, kind: EndKind) -> None:
    verdict = judge(code, printed, last_error=None, last_line="")
    assert verdict.kind is kind
    assert (verdict.error is None) is (kind is EndKind.DONE)


def test_the_last_event_explains_an_end_without_a_document() -> None:
    error = SourceUnavailableError("gone")
    verdict = judge(1, "", last_error=error, last_line="noise")
    assert (verdict.kind, verdict.error) == (EndKind.PASSING, error)


def test_a_silent_death_has_its_own_code() -> None:
    error = judge(-11, "", last_error=None, last_line="x" * 10_000).error
    assert isinstance(error, DistributaryError)
    assert error.code is ErrorCode.PROCESS_DIED
    assert "SIGSEGV" in error.evidence and len(error.evidence) < 1000


@pytest.mark.parametrize("value", ["many", -1, 1.5, True, None, "", [], "1_0"])
def test_a_limit_is_a_number_or_unlimited(value: object) -> None:
    with pytest.raises(ValueError):
        Restart.model_validate({"max": value})


def test_a_limit_may_come_from_a_variable() -> None:
    assert Restart.model_validate({"max": " 7 "}).max == 7


def test_pauses_cannot_shrink() -> None:
    with pytest.raises(ValueError):
        Restart.model_validate({"initial": "10s", "longest": "1s"})
