"""Attempts end with a success, an error that is not worth another, or when there are enough."""

from __future__ import annotations

import pytest

from distributary.retries import attempts_on


class Flaky:
    """Fails a number of times."""

    def __init__(self, failures: int, error: Exception) -> None:
        self.calls = 0
        self._failures, self._error = failures, error

    def __call__(self) -> int:
        self.calls += 1
        if self.calls <= self._failures:
            raise self._error
        return self.calls


@pytest.mark.parametrize("errors", [OSError, (KeyError, OSError), lambda e: isinstance(e, OSError)])
@pytest.mark.parametrize("most", [3, None])
def test_an_attempt_that_succeeds_is_the_last(errors: type[Exception], most: int | None) -> None:
    flaky = Flaky(2, OSError("busy"))
    assert attempts_on(errors, most=most, pause=0, jitter=0)(flaky) == 3


@pytest.mark.parametrize(
    ("error", "calls"), [(OSError("busy"), 3), (ValueError("wrong"), 1), (KeyboardInterrupt(), 1)]
)
def test_the_last_error_is_raised(error: Exception, calls: int) -> None:
    flaky = Flaky(9, error)
    with pytest.raises(type(error)):
        for attempt in attempts_on(OSError, most=3, pause=0, jitter=0):
            with attempt:
                flaky()
    assert flaky.calls == calls


def test_there_is_an_end_in_time() -> None:
    flaky = Flaky(9, OSError("busy"))
    with pytest.raises(OSError, match="busy"):
        attempts_on(OSError, most=None, seconds=0, pause=0, jitter=0)(flaky)
    assert flaky.calls == 1
