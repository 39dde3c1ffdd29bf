from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import PydanticCustomError

from distributary.config.runtime import Trigger, TriggerKind

intervals = st.integers(min_value=1, max_value=999_999_999).map(lambda n: timedelta(seconds=n))
triggers = st.one_of(
    st.sampled_from([Trigger(TriggerKind.AVAILABLE_NOW), Trigger(TriggerKind.CONTINUOUS)]),
    intervals.map(lambda interval: Trigger(TriggerKind.EVERY, interval)),
    intervals.map(lambda freshness: Trigger(TriggerKind.FRESHNESS, freshness=freshness)),
)


@given(triggers)
def test_text_of_a_trigger_is_read_back(trigger: Trigger) -> None:
    assert Trigger.parse(str(trigger)) == trigger
    assert Trigger.parse(trigger) is trigger


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("every 10s", 10), ("every 1m", 60), ("every  2h", 7200), ("every 1 m", 60)],
)
def test_interval_is_read(text: str, seconds: int) -> None:
    assert Trigger.parse(text).interval == timedelta(seconds=seconds)


@pytest.mark.parametrize("value", [{"freshness": "30s"}, "freshness 30s", {"freshness": "30 s"}])
def test_freshness_is_read(value: object) -> None:
    trigger = Trigger.parse(value)
    assert (trigger.freshness, trigger.interval) == (timedelta(seconds=30), None)
    assert str(trigger) == "freshness 30s"


@pytest.mark.parametrize(
    "value",
    [
        "",
        "every",
        "every 0s",
        "every s",
        "10s",
        "continuous 10s",
        "every 10s 20s",
        "now",
        5,
        None,
        {"kind": "continuous"},
        "freshness",
        {"freshness": "0s"},
        {"freshness": 30},
        {"freshness": None},
        {"freshness": "30s", "every": "10s"},
    ],
)
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(PydanticCustomError):
        Trigger.parse(value)


@pytest.mark.parametrize(
    ("text", "meant"), [("availablenow", "available_now"), ("continuos", "continuous")]
)
def test_a_misspelt_trigger_has_a_suggestion(text: str, meant: str) -> None:
    with pytest.raises(PydanticCustomError) as caught:
        Trigger.parse(text)
    assert (caught.value.context or {})["suggestion"] == meant
