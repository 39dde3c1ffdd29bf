from __future__ import annotations

import shlex
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from distributary.errors import DistributaryError
from distributary.model.change import Heartbeat, Slot, SourceSlots
from distributary.observe.alerts.notice import Notice, Severity, notice_from
from distributary.observe.alerts.rules import Rules
from distributary.observe.events import (
    BatchSettled,
    Beat,
    Idle,
    RecordsHeld,
    Stopped,
    TableResumed,
    TaskFailed,
)
from distributary.observe.status.pulse import HeldRecords
from tests.observe.alerts.scenes import (
    NAME,
    broken,
    failed,
    moment,
    notice,
    parked,
    pipeline,
    seen,
    settled,
    told,
    written,
)


def rules(**on: Any) -> Rules:
    return Rules(pipeline({"on": on, "dashboard_url": "http://127.0.0.1:8500/"}), now=moment())


def test_a_failure_is_raised_once_and_over_with_the_next_batch() -> None:
    watch = rules()
    first = watch.hear(failed(1))
    assert told(first) == [("raised", "games/failure/SOURCE_UNAVAILABLE")]
    assert first[0].severity is Severity.WARNING
    assert first[0].link == "http://127.0.0.1:8500/errors/SOURCE_UNAVAILABLE"
    assert watch.hear(failed(2)) == []
    over = watch.hear(settled(9))
    assert told(over) == [("resolved", "games/failure/SOURCE_UNAVAILABLE")]
    # when the next try is, only while there is one
    assert "5 s" in first[0].what and "5 s" not in over[0].what
    assert watch.hear(settled(10)) == []
    assert told(watch.hear(failed(11))) == [("raised", "games/failure/SOURCE_UNAVAILABLE")]


def test_a_failure_that_ends_the_run_is_told_even_if_it_was_retried_before() -> None:
    watch = rules()
    watch.hear(failed(1))
    last = watch.hear(failed(2, retry_in=None))
    assert told(last) == [("raised", "games/failure/failed")]
    assert last[0].severity is Severity.CRITICAL
    assert last[0].next_step == "start it"
    over = watch.hear(settled(30))
    assert {key for _, key in told(over)} == {
        "games/failure/SOURCE_UNAVAILABLE",
        "games/failure/failed",
    }


@pytest.mark.parametrize(
    "event",
    [
        Idle(pipeline=NAME, at=moment(5)),
        Stopped(pipeline=NAME, at=moment(5), reason="done"),
    ],
)
def test_having_nothing_to_do_ends_a_failure_too(event: Idle | Stopped) -> None:
    watch = rules()
    watch.hear(failed(1))
    assert told(watch.hear(event)) == [("resolved", "games/failure/SOURCE_UNAVAILABLE")]


def test_being_stopped_by_hand_ends_nothing() -> None:
    watch = rules(freshness="1m")
    watch.hear(failed(1))
    assert watch.hear(Stopped(pipeline=NAME, at=moment(5), reason="stopped")) == []
    assert watch.tick(moment(500)) == []
    assert len(watch.memory()["open"]) == 1


def test_a_parked_table_is_over_when_it_is_written_or_resumed() -> None:
    watch = rules()
    assert told(watch.hear(parked("chess"))) == [("raised", "games/parked/chess")]
    assert watch.hear(parked("go", 1))[0].link == "http://127.0.0.1:8500/tables/go"
    assert watch.hear(parked("chess", 2)) == []
    both = ("chess", "go")
    assert watch.hear(settled(3, parked=both, written=(written("chess", outcome="parked"),))) == []
    assert watch.hear(settled(4, batch=1, parked=both)) == []
    resumed = TableResumed(pipeline=NAME, table="go", at=moment(5))
    still = TableResumed(pipeline=NAME, table="go", parked=True, at=moment(5))
    assert watch.hear(still) == []
    assert told(watch.hear(resumed)) == [("resolved", "games/parked/go")]
    over = settled(6, batch=2, written=(written("chess"),))
    assert told(watch.hear(over)) == [("resolved", "games/parked/chess")]


def test_a_table_that_was_resumed_while_nothing_ran_is_over_with_the_next_batch() -> None:
    first = rules()
    first.hear(parked("chess"))
    second = rules()
    second.recall(first.memory())
    assert second.hear(parked("chess", 5)) == []
    assert told(second.hear(settled(9, batch=8))) == [("resolved", "games/parked/chess")]


def test_the_next_step_can_be_pasted() -> None:
    step = rules().hear(parked("chess"))[0].next_step
    words = shlex.split(step)
    assert words[:4] == ["distributary", "resume", "chess", "--lake"]
    assert words[4].endswith("/my lake")


@pytest.mark.parametrize(
    ("rate", "raised"),
    [
        ({"share": "1%", "within": "5m"}, False),
        ({"share": 0.009}, True),
        ({"share": None, "count": 10}, False),
        ({"share": None, "count": 9}, True),
        ({"share": "50%", "count": 9}, True),
        (False, False),
    ],
)
def test_dead_letters_are_counted_by_share_and_by_number(rate: Any, raised: bool) -> None:
    notices = rules(dead_letters=rate).hear(settled(1, read=1000, dead={"NOT_JSON": 10}))
    assert [n.kind for n in notices] == (["dead_letters"] if raised else [])


def test_dead_letters_are_over_when_they_are_out_of_the_window() -> None:
    watch = rules(dead_letters={"share": "1%", "within": "5m"})
    assert watch.hear(settled(1, read=1000, dead={"NOT_JSON": 4, "NULL_VALUE": 6})) == []
    raised = watch.hear(settled(60, read=100, dead={"NOT_JSON": 4}))
    assert told(raised) == [("raised", "games/dead_letters")]
    assert raised[0].code == "NOT_JSON"
    assert "NULL_VALUE 6" in raised[0].evidence
    assert watch.tick(moment(300)) == []
    assert told(watch.tick(moment(361))) == [("resolved", "games/dead_letters")]


def test_replayed_dead_letters_do_not_count() -> None:
    watch = rules(dead_letters={"count": 1})
    assert watch.hear(settled(1, lane="replay", read=100, dead={"NOT_JSON": 90})) == []


def test_a_window_of_many_batches_stays_small() -> None:
    watch = rules(dead_letters={"count": 50})
    for second in range(5000):
        watch.hear(settled(second, batch=second, dead={"NOT_JSON": 1}))
    assert len(watch.memory()["window"]) <= 61
    assert told(watch.tick(moment(5000 + 400)))[0][0] == "resolved"


def test_tables_are_stale_although_nothing_happens() -> None:
    watch = rules(freshness="15m")
    watch.hear(settled(60))
    assert watch.tick(moment(60 + 899)) == []
    raised = watch.tick(moment(60 + 901))
    assert told(raised) == [("raised", "games/freshness")]
    assert raised[0].since == moment(60 + 900)
    assert watch.tick(moment(5000)) == []
    assert told(watch.hear(settled(5001, batch=1))) == [("resolved", "games/freshness")]


def test_a_batch_that_is_far_behind_is_stale_at_once() -> None:
    watch = rules(freshness="15m")
    late = settled(10, lag_records=5000, lag_seconds=3600.0)
    assert told(watch.hear(late)) == [("raised", "games/freshness")]
    # old records are fine once there is nothing behind them
    done = settled(20, batch=1, lag_records=0, lag_seconds=3600.0)
    assert told(watch.hear(done)) == [("resolved", "games/freshness")]


def test_waiting_without_work_is_fresh() -> None:
    watch = rules(freshness="1m")
    for second in range(30, 600, 30):
        assert watch.hear(Idle(pipeline=NAME, at=moment(second))) == []
        assert watch.tick(moment(second + 29)) == []


def test_a_restart_does_not_make_stale_tables_fresh() -> None:
    first = rules(freshness="15m")
    first.tick(moment(1000))
    second = Rules(pipeline({"on": {"freshness": "15m"}}), now=moment(1010))
    second.recall(first.memory())
    assert second.tick(moment(1011)) == []
    assert [each["kind"] for each in second.memory()["open"]] == ["freshness"]
    assert told(second.hear(settled(1020))) == [("resolved", "games/freshness")]


def test_what_is_no_longer_watched_is_over() -> None:
    first = rules(freshness="15m")
    first.tick(moment(1000))
    first.hear(parked("chess", 1001))
    second = rules(parked=False)
    second.recall(first.memory())
    assert {key for _, key in told(second.tick(moment(1100)))} == {
        "games/freshness",
        "games/parked/chess",
    }


def test_a_broken_invariant() -> None:
    watch = rules()
    raised = watch.hear(broken(1))
    assert told(raised) == [("raised", "games/invariant")]
    assert raised[0].severity is Severity.CRITICAL
    assert watch.hear(settled(2, lost=1)) == []
    assert told(watch.hear(settled(3, batch=1))) == [("resolved", "games/invariant")]
    assert told(watch.hear(settled(4, batch=2, lost=1))) == [("raised", "games/invariant")]
    assert told(rules(invariant=False).hear(broken())) == [("raised", "games/failure/failed")]


def test_new_schemas_and_tables_of_a_batch_are_one_message_each() -> None:
    watch = rules(schema=True, table=True)
    names = [f"t{n}" for n in range(1000)]
    for name in names:
        assert watch.hear(seen(name)) == []
    made = tuple(written(name, created=True) for name in names)
    notices = watch.hear(settled(1, written=made))
    assert told(notices) == [("info", "games/schema/stream-0"), ("info", "games/table/stream-0")]
    assert notices[0].what == "1,000 new schemas"
    assert len(notices[0].evidence) <= 1500
    one = [*watch.hear(seen("chess", batch=1)), *watch.hear(settled(2, batch=1))]
    assert one[0].evidence == "chess-value v3: + rating int"
    assert one[0].link == "http://127.0.0.1:8500/tables/chess"
    assert not watch.memory()["open"]


def test_new_schemas_and_tables_are_told_only_where_it_is_wanted() -> None:
    watch = rules()
    watch.hear(seen("chess"))
    assert watch.hear(settled(1, written=(written("chess", created=True),))) == []


def test_upkeep_that_fails_is_told_and_never_open() -> None:
    watch = rules()
    event = TaskFailed(pipeline=NAME, task="maintain", error=DistributaryError("no room"))
    assert told(watch.hear(event)) == [("info", "games/failure/task-maintain")]
    assert not watch.memory()["open"]


def test_no_secret_and_no_control_character_gets_into_a_notice() -> None:
    watch = Rules(pipeline(), now=moment(), mask=lambda text: text.replace("s3cret", "***"))
    error = DistributaryError("x" * 5000, where="a\nb", evidence="key s3cret\x1b[2J", code=None)
    told_first = watch.hear(failed(error=error))[0]
    assert told_first.evidence == "key ***\\x1b[2J"
    assert told_first.where == "a\\nb"
    assert len(told_first.what) <= 300


def test_a_notice_survives_a_file() -> None:
    one: Notice = notice(batch=4, link="http://d/tables/chess")
    assert notice_from(one.as_dict()) == one
    over = one.resolved(moment(9))
    assert notice_from(over.as_dict()) == over
    assert one.key == over.key
    assert one.thread == over.thread
    assert one.occasion != over.occasion
    again = notice(at=100)
    assert again.key == one.key
    assert again.occasion != one.occasion


@pytest.mark.parametrize("memory", [{}, {"open": 3, "window": "x"}, {"open": [1, {}, None]}])
def test_a_memory_that_is_none_is_no_memory(memory: dict[str, Any]) -> None:
    watch = rules()
    watch.recall(memory)
    assert not watch.memory()["open"]
    assert watch.tick(moment(1)) == []


def test_alerts_of_another_pipeline_are_not_ours() -> None:
    other = rules()
    other.hear(parked("chess"))
    watch = Rules(pipeline(name="orders"), now=moment())
    watch.recall(other.memory())
    assert not watch.memory()["open"]


def test_a_clock_that_goes_back_does_not_end_an_alert_before_it_began() -> None:
    watch = rules()
    watch.hear(failed(100))
    over = watch.hear(settled(50))[0]
    assert over.at >= over.since
    assert over.at - over.since < timedelta(seconds=1)


BEATS = "__debezium-heartbeat.shop"


def heard(at: float, *, sent: float, looked: float | None, topic: str = BEATS) -> Beat:
    """Build a sign of life after a connector was heard, and its topic was looked at."""
    looked_at = None if looked is None else moment(looked)
    return Beat(
        pipeline=NAME, at=moment(at), heartbeats={topic: Heartbeat(moment(sent), looked_at)}
    )


def test_a_silent_source_is_raised_once_and_over_with_its_next_heartbeat() -> None:
    watch = rules(silent_source="15m")
    assert watch.hear(heard(899, sent=0, looked=899)) == []
    (raised,) = watch.hear(heard(901, sent=0, looked=901))
    assert told([raised]) == [("raised", f"games/silent_source/{BEATS}")]
    assert raised.severity is Severity.ERROR and "shop" in raised.what
    assert watch.hear(heard(1000, sent=0, looked=1000)) == []
    # it is read, and the topic was not looked at again yet
    over = watch.hear(heard(1003, sent=1002, looked=None))
    assert told(over) == [("resolved", f"games/silent_source/{BEATS}")]


def test_a_source_without_heartbeats_is_not_called_silent() -> None:
    watch = rules(silent_source="1m")
    assert watch.hear(Beat(pipeline=NAME, at=moment(9000))) == []
    assert watch.tick(moment(99_000)) == []


def test_a_pipeline_that_is_behind_does_not_call_its_source_silent() -> None:
    watch = rules(silent_source="1m")
    assert watch.hear(heard(9000, sent=0, looked=None)) == []
    assert watch.hear(heard(9000, sent=0, looked=30)) == []


def test_each_connector_is_silent_by_itself() -> None:
    watch = rules(silent_source="1m")
    both = {BEATS: Heartbeat(moment(0), moment(90)), "b": Heartbeat(moment(0), moment(95))}
    assert len(watch.hear(Beat(pipeline=NAME, at=moment(96), heartbeats=both))) == 2
    # the topic of one is not read any more
    over = watch.hear(heard(99, sent=0, looked=99))
    assert told(over) == [("resolved", "games/silent_source/b")]


def test_silence_is_remembered_and_over_when_nobody_asks_for_it_any_more() -> None:
    first = rules(silent_source="1m")
    first.hear(heard(90, sent=0, looked=90))
    second = rules(silent_source="1m")
    second.recall(first.memory())
    assert second.hear(heard(95, sent=0, looked=95)) == []
    third = rules()
    third.recall(first.memory())
    assert told(third.tick(moment(100))) == [("resolved", f"games/silent_source/{BEATS}")]


SLOT = Slot("shop", active=False, bytes=1_001, database="shop")


def held(at: float, *slots: Slot, error: str = "") -> Beat:
    """Build a sign of life after the database was asked for its slots."""
    return Beat(pipeline=NAME, at=moment(at), slots=SourceSlots(moment(at), slots, error))


def holding(limit: int | None = 1000) -> Rules:
    config = pipeline()
    on = config.alerts.on.model_copy(update={"held_log": limit})
    alerts = config.alerts.model_copy(update={"on": on})
    return Rules(config.model_copy(update={"alerts": alerts}), now=moment())


def test_a_slot_that_holds_back_log_is_raised_once_and_over_when_it_moves_on() -> None:
    watch = holding()
    assert watch.hear(held(1, replace(SLOT, bytes=1000))) == []
    (raised,) = watch.hear(held(2, SLOT))
    assert told([raised]) == [("raised", "games/held_log/shop")]
    assert raised.severity is Severity.ERROR and "no reader" in raised.evidence
    assert watch.hear(held(3, replace(SLOT, bytes=9000))) == []
    # a database that is away says nothing new
    assert watch.hear(held(4, replace(SLOT, bytes=9000), error="away")) == []
    assert told(watch.hear(held(5, replace(SLOT, bytes=0)))) == [
        ("resolved", "games/held_log/shop")
    ]


def test_a_slot_that_has_lost_log_is_another_alert_and_over_when_it_is_dropped() -> None:
    watch = holding()
    watch.hear(held(1, SLOT))
    found = watch.hear(held(2, replace(SLOT, bytes=0, lost=True)))
    assert told(found) == [
        ("raised", "games/held_log/shop (lost)"),
        ("resolved", "games/held_log/shop"),
    ]
    assert found[0].severity is Severity.CRITICAL
    assert told(watch.hear(held(3))) == [("resolved", "games/held_log/shop (lost)")]


def test_held_log_is_remembered_until_the_database_has_answered() -> None:
    first = holding()
    first.hear(held(1, SLOT))
    second = holding()
    second.recall(first.memory())
    nothing = Beat(pipeline=NAME, at=moment(2), slots=SourceSlots(error="away"))
    assert second.hear(nothing) == []
    assert told(second.hear(held(3))) == [("resolved", "games/held_log/shop")]
    third = holding(None)
    third.recall(first.memory())
    assert told(third.tick(moment(4))) == [("resolved", "games/held_log/shop")]


def waiting(at: float, since: float | None) -> BatchSettled | RecordsHeld:
    """Build the event of a batch that holds records back, or none."""
    held = None if since is None else HeldRecords(12, 2, "571", moment(since))
    if held is not None and at % 2:
        return RecordsHeld(pipeline=NAME, at=moment(at), batch=3, held=held)
    return replace(settled(at), held=held)


def test_records_that_wait_for_the_end_of_a_transaction() -> None:
    config = pipeline()
    on = config.alerts.on.model_copy(update={"held_transactions": timedelta(seconds=60)})
    alerts = config.alerts.model_copy(update={"on": on})
    config = config.model_copy(update={"alerts": alerts})
    watch = Rules(config, now=moment())
    # while old records are read, each batch holds back others: the age of a record says nothing
    for at in range(0, 200, 20):
        assert watch.hear(waiting(at, at - 900)) == []
    assert watch.hear(waiting(200, -700)) == []
    assert watch.hear(waiting(259, -700)) == []
    (raised,) = watch.hear(waiting(260, -700))
    assert told([raised]) == [("raised", "games/held_transactions")]
    assert "12 records of 2 transactions, such as 571" in raised.evidence
    assert watch.hear(waiting(281, -700)) == []
    # a restart does not end it, the transaction does
    second = Rules(config, now=moment(290))
    second.recall(watch.memory())
    assert second.hear(waiting(291, -700)) == []
    assert told(second.hear(waiting(300, None))) == [("resolved", "games/held_transactions")]
    assert told(watch.hear(waiting(300, -600))) == [("resolved", "games/held_transactions")]
