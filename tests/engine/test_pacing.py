"""The pace of a run with a freshness, in simulated time."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from distributary.engine.pacing import Pacing

FIXED, EACH = 1.5, 1 / 20_000


def played(
    freshness: float,
    rate: Callable[[float], float],
    *,
    takes: Callable[[int], float] = lambda records: FIXED + EACH * records,
    rounds: int = 60,
) -> list[tuple[float, float, int]]:
    """Run rounds in simulated time; return beginning, age of the oldest record, and records."""
    pacing, now, last, done = Pacing(freshness), 0.0, None, []
    for _ in range(rounds):
        records = 0 if last is None else round(rate(now) * (now - last))
        seconds = takes(records) if records else 0.01
        done.append((now, 0.0 if last is None else now - last + seconds, records))
        pacing.done(records=records, seconds=seconds, since=None if last is None else now - last)
        last, now = now, max(now + seconds, now + pacing.next().interval_seconds)
    return done


@example(freshness=5.0, rate=7985.0)
@given(
    freshness=st.floats(min_value=5, max_value=600), rate=st.floats(min_value=10, max_value=10_000)
)
def test_records_are_as_fresh_as_wanted_in_batches_as_large_as_that_allows(
    freshness: float, rate: float
) -> None:
    # a record waits for one batch and is read by the next: without pauses it is never fresher
    assume(2 * FIXED / (1 - EACH * rate) < 0.999 * freshness)
    settled = played(freshness, lambda _: rate)[10:]
    assert all(age <= freshness for _, age, _ in settled)
    # nothing is given away but the spare part of a batch's duration
    largest = (freshness - FIXED) / (1 / rate + EACH)
    assert all(records >= 0.8 * largest for _, _, records in settled)


def test_a_run_that_cannot_be_so_fresh_has_no_pauses_and_says_so() -> None:
    pacing = Pacing(1.0)
    for _ in range(5):
        pacing.done(records=1000, seconds=2.0, since=2.0)
    pace = pacing.next()
    assert pace.late and pace.interval_seconds == 0.0
    assert pace.batch_seconds >= 2.0


def test_a_faster_stream_makes_shorter_intervals_and_a_slower_one_longer_ones() -> None:
    rounds = played(30.0, lambda now: 2_000 if now < 500 else 12_000 if now < 1000 else 2_000)
    between = [(began, later - began) for (began, _, _), (later, _, _) in pairwise(rounds)]
    calm = [each for began, each in between if 100 < began < 450]
    busy = [each for began, each in between if 600 < began < 950]
    assert max(busy) < min(calm)
    # while the rate rises, one batch is late; the next one is not
    late = [began for began, age, _ in rounds if age > 30.0]
    assert len(late) <= 1


def test_a_pause_of_the_machine_is_forgotten_and_a_slow_machine_is_not() -> None:
    def pace_after(slow: list[int]) -> float:
        pacing = Pacing(60.0)
        for number in range(20):
            seconds = 20.0 if number in slow else 2.0
            pacing.done(records=1000, seconds=seconds, since=50.0)
        return pacing.next().interval_seconds

    assert pace_after([7]) == pytest.approx(pace_after([]))
    assert pace_after([7, 12, 19]) < pace_after([]) - 15


def test_without_records_the_source_is_still_asked_in_time() -> None:
    pacing = Pacing(30.0)
    for _ in range(5):
        pacing.done(records=0, seconds=0.1, since=30.0)
    pace = pacing.next()
    # half of the time is left for the first batch, of which nothing is known
    assert pace.interval_seconds == 15.0 and not pace.late and pace.records == 0
    pacing.done(records=10, seconds=2.0, since=15.0)
    for _ in range(5):
        pacing.done(records=0, seconds=0.1, since=27.0)
    assert pacing.next().interval_seconds == pytest.approx(27.8)


def test_the_slow_first_batch_of_a_process_is_forgotten() -> None:
    pacing = Pacing(20.0)
    pacing.done(records=16_000, seconds=37.0, since=None)
    assert pacing.next().interval_seconds == 0.0
    pacing.done(records=2_000, seconds=3.0, since=37.0)
    assert pacing.next().interval_seconds > 15


def test_a_backlog_says_how_long_records_take_and_not_how_fast_they_come() -> None:
    pacing = Pacing(30.0)
    pacing.done(records=1_000_000, seconds=50.0, since=None)
    pacing.done(records=20_000, seconds=2.0, since=10.0)
    pace = pacing.next()
    assert not pace.late and 20 < pace.interval_seconds < 30
