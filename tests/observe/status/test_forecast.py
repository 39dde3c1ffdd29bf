"""Lag in words, from batches that never ran."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.observe.ledger.ledger_rows import BatchRow
from distributary.observe.status.forecast import Trend, forecast, short_number

START = datetime(2026, 11, 15, 14, 0, tzinfo=UTC)


def batch(n, *, read=90_000, lag=0, seconds=10.0, every=10.0, start=START, publish=6.1, **changes):
    finished = start + timedelta(seconds=n * every)
    values = {
        "pipeline": "p",
        "life": "l",
        "lane": "stream",
        "batch": n,
        "started_at": finished - timedelta(seconds=seconds),
        "finished_at": finished,
        "read": read,
        "written": read,
        "lag_records": lag,
        "lag_seconds": 3.0,
        "plan_seconds": 0.1,
        "stage_seconds": 2.0,
        "manifest_seconds": 0.1,
        "publish_seconds": publish,
        "stages": 1,
        "source_hash": "",
    }
    zeros = ("dead_lettered", "parked", "skipped", "rows", "files", "tables", "bytes")
    return BatchRow(**{**dict.fromkeys(zeros, 0), **values, **changes})


def words(told):
    return told.words(now=START + timedelta(minutes=2), tz=UTC)


def test_catching_up_says_when_it_will_have_caught_up():
    # we read 9,000/s, the producer makes 1,000/s: the lag shrinks by 8,000/s
    rows = [batch(n, lag=2_160_000 - n * 80_000) for n in range(13)]
    told = forecast(rows)
    assert told.trend is Trend.CATCHING_UP
    assert (told.our_rate, told.producer_rate, told.net_rate) == (9000, 1000, 8000)
    assert told.caught_up_at == rows[-1].finished_at + timedelta(seconds=150)
    assert words(told) == "1.2 M behind, catching up at 8,000/s, caught up at 14:04"


def test_falling_behind_names_both_rates_and_the_slowest_step():
    rows = [batch(n, lag=100_000 + n * 30_000) for n in range(10)]
    told = forecast(rows)
    assert told.trend is Trend.FALLING_BEHIND
    assert words(told) == ("falling behind: producer 12,000/s, we 9,000/s, step publish takes 61 %")


def test_no_lag_is_caught_up():
    assert words(forecast([batch(n) for n in range(5)])) == "caught up"


def test_what_arrives_during_a_batch_is_no_lag():
    # 1,000/s arrive, a batch takes 2 s: 2,000 are waiting whenever one ends
    rows = [batch(n, read=10_000, lag=2_000, seconds=2.0) for n in range(5)]
    assert forecast(rows).trend is Trend.CAUGHT_UP


def test_a_finite_backlog_is_not_caught_up_before_it_is_read():
    rows = [batch(n, read=5_000, lag=10_000 - n * 5_000, seconds=2.0) for n in range(2)]
    assert forecast(rows).trend is Trend.CATCHING_UP


def test_a_distance_that_stays_is_neither():
    rows = [batch(n, lag=1_000_000) for n in range(5)]
    assert forecast(rows).trend is Trend.HOLDING


def test_one_batch_is_no_trend():
    assert words(forecast([batch(0, lag=1234)])) == "1,234 behind"


def test_a_stopped_pipeline_makes_no_forecast():
    rows = [batch(n, lag=500_000 - n * 80_000) for n in range(5)]
    assert forecast(rows, running=False).trend is Trend.BEHIND
    assert forecast([*rows, batch(9, lag=0)], running=False).trend is Trend.CAUGHT_UP


@pytest.mark.parametrize("rows", [[], [batch(0, lag=None)]])
def test_a_source_that_does_not_tell_is_unknown(rows):
    assert forecast(rows).trend is Trend.UNKNOWN
    assert words(forecast(rows)) == "unknown"


def test_a_pause_does_not_count_as_slowness():
    later = START + timedelta(hours=8)
    before = [batch(n, lag=100) for n in range(10)]
    after = [batch(10 + n, lag=900_000 - n * 80_000, start=later) for n in range(4)]
    told = forecast([*before, *after])
    assert told.trend is Trend.CATCHING_UP and told.net_rate == 8000


def test_a_moment_far_ahead_has_a_date_and_beyond_it_none():
    slow = [batch(n, lag=100_000_000 - n * 10_000) for n in range(5)]
    assert words(forecast(slow)).endswith("caught up at 2026-11-16 17:46")
    slower = [batch(n, lag=100_000_000_000 - n * 10_000) for n in range(5)]
    assert forecast(slower).caught_up_at is None
    assert "caught up at" not in words(forecast(slower))


def test_a_moment_that_passed_is_now():
    rows = [batch(n, read=10_000, lag=20_000 - n * 10_000) for n in range(2)]
    told = forecast(rows)
    assert told.words(now=START + timedelta(hours=2), tz=UTC).endswith("caught up at 16:00")


def test_sums_of_old_batches_are_not_rates():
    rows = [batch(0, batches=500, read=10**9, lag=7), batch(1, lag=5)]
    assert forecast(rows).our_rate == 9000


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (999_999, "999,999"), (1_234_567, "1.2 M"), (4.2e9, "4.2 G"), (7e12, "7.0 T")],
)
def test_numbers_for_people(value, text):
    assert short_number(value) == text


facts = st.tuples(
    st.integers(0, 10**12),
    st.none() | st.integers(0, 10**12),
    st.floats(0, 10**5),
    st.integers(0, 9),
)


@given(st.lists(facts, max_size=30), st.booleans())
def test_any_history_can_be_said_in_words(history, running):
    rows = [
        batch(n, read=read, lag=lag, seconds=seconds, publish=seconds * step / 9)
        for n, (read, lag, seconds, step) in enumerate(history)
    ]
    told = forecast(rows, running=running)
    assert words(told)
    assert told.caught_up_at is None or told.trend is Trend.CATCHING_UP
    assert 0 <= told.slowest_share <= 1
