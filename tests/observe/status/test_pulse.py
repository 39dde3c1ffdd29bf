"""What a run says of itself while it runs, and what others make of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, timedelta
from pathlib import Path

import pytest

from distributary.errors import SourceUnavailableError
from distributary.model.change import Heartbeat
from distributary.observe.cards import Registration, register
from distributary.observe.status.pulse import (
    Backlog,
    HeldRecords,
    Pulse,
    Trouble,
    UnderWay,
    begin_pulse,
    read_pulse,
    write_failure,
    write_pulse,
)
from distributary.observe.status.status import status
from distributary.store.base import at


@pytest.fixture
def stands(lake, noon, tmp_path):
    """From a state and a pulse to how the pipeline stands."""
    place = tmp_path / "checkpoint"
    register(lake.path, Registration("games", "games.yaml", str(place)))
    for batch in range(3):
        lake.settle(lake.manifest(batch, entries=[lake.entry("chess", records=60)]), lag_records=0)
    place.mkdir()

    def ask(state, pulse=None, *, minutes=1):
        if pulse is not None:
            write_pulse(at(place), pulse)
        now = noon + timedelta(minutes=minutes)
        (found,) = status(lake.path, liveness=lambda _: state, now=now, tz=UTC).pipelines
        return found

    ask.place = place
    return ask


def troubled(noon) -> Pulse:
    error = SourceUnavailableError("the broker does not answer", where="h:1").as_dict()
    error.pop("context", None)
    later = noon + timedelta(seconds=50)
    return Pulse(later, Trouble(noon + timedelta(seconds=45), 3, later, error))


def test_what_is_written_is_read_again(tmp_path: Path, noon) -> None:
    whole = Pulse(
        noon,
        troubled(noon).trouble,
        Backlog(noon, 12, {"t/0": 7, "t/1": 5}),
        UnderWay(4, noon, "stage", 100),
        ("batch 4 begins",),
        heartbeats={"beats": Heartbeat(noon, noon), "others": Heartbeat(noon)},
        held=HeldRecords(3, 2, "571", noon),
    )
    write_pulse(at(tmp_path), whole)
    assert read_pulse(str(tmp_path)) == whole
    begin_pulse(at(tmp_path))
    found = read_pulse(str(tmp_path))
    assert found is not None and found.began is not None
    assert replace(found, began=None) == replace(whole, trouble=None, under_way=None, held=None)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", '{"at": 3}', '{"at": "2026-11-15", "trouble": 1}', "[" * 99999]
)
def test_a_pulse_that_a_stranger_wrote_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "pulse.json").write_text(text)
    assert read_pulse(str(tmp_path)) is None


def test_a_pipeline_that_tries_again_is_retrying(stands, noon) -> None:
    found = stands("running", troubled(noon))
    assert found.state == "retrying"
    assert found.failure["code"] == "SOURCE_UNAVAILABLE"
    assert (found.failure["attempts"], found.failure["since"]) == (3, "2026-11-15T12:00:45.000Z")
    assert found.failure["next_try"] == "2026-11-15T12:00:50.000Z"


def test_a_process_that_died_while_it_tried_again_is_not_retrying(stands, noon) -> None:
    found = stands("crashed", troubled(noon))
    assert (found.state, found.failure, found.records_per_second) == ("crashed", None, None)
    write_failure(at(stands.place), SourceUnavailableError("gave up"))
    assert stands("stopped").failure["what"] == "gave up"


@pytest.mark.parametrize("ended", ["done", "stopped", "failed"])
def test_a_run_that_has_ended_says_how(stands, noon, ended: str) -> None:
    assert stands("stopped", Pulse(noon, ended=ended)).state == ended
    # how a process does that is there, or was killed, is known by its claim
    assert stands("running").state == "running"
    assert stands("crashed").state == "crashed"


@pytest.mark.parametrize("ended", ["", "running", "<b>"])
def test_an_end_that_nobody_knows_is_a_stop(stands, noon, ended: str) -> None:
    assert stands("stopped").state == "stopped"
    assert stands("stopped", Pulse(noon, ended=ended)).state == "stopped"


def test_an_error_of_the_last_run_is_a_failure(stands, noon) -> None:
    write_failure(at(stands.place), SourceUnavailableError("gave up"))
    found = stands("stopped", Pulse(noon, ended="done"))
    assert (found.state, found.failure["code"]) == ("failed", "SOURCE_UNAVAILABLE")


def test_lag_is_what_was_measured_last(stands, noon) -> None:
    measured = noon + timedelta(seconds=40)
    found = stands("running", Pulse(measured, backlog=Backlog(measured, 900, {"t/0": 900})))
    assert (found.lag.lag_records, found.lag.lag_at) == (900, measured)
    assert found.lag_in_words.startswith("900 behind")
    assert found.backlog.partitions == {"t/0": 900}
    # what a batch has settled since then counts more
    older = Pulse(noon, backlog=Backlog(noon - timedelta(minutes=5), 900))
    assert stands("running", older).lag.lag_records == 0


@pytest.mark.parametrize("state", ["stopped", "running"])
def test_a_source_without_offsets_that_was_read_to_its_end_has_no_lag(lake, noon, state) -> None:
    place = f"{lake.path}/checkpoint"
    register(lake.path, Registration("files", "files.yaml", place))
    lake.settle(lake.manifest(0, pipeline="files"), lag_records=None)
    later = noon + timedelta(minutes=9)

    def ask():
        (found,) = status(lake.path, liveness=lambda _: state, now=later, tz=UTC).pipelines
        return found

    assert (ask().lag_in_words, ask().lag.lag_at) == ("unknown", None)
    Path(place).mkdir()
    write_pulse(at(place), Pulse(noon, backlog=Backlog(noon, 0)))
    found = ask()
    # with its age: what came since is not known
    assert (found.lag_in_words, found.lag.lag_records, found.lag.lag_at) == ("caught up", 0, noon)
    write_failure(at(place), SourceUnavailableError("the broker does not answer"))
    if state == "stopped":
        assert ask().lag_in_words.startswith("unknown since 12:00")


@pytest.mark.parametrize("state", ["running", "unknown", "crashed"])
def test_a_broker_that_is_dead_is_never_caught_up(stands, noon, state) -> None:
    zero = Backlog(noon, 0, {"t/0": 0})
    assert stands(state, Pulse(noon, backlog=zero)).lag_in_words == "caught up"
    found = stands(state, replace(troubled(noon), backlog=zero))
    assert found.lag_in_words.startswith("unknown since 12:00")
    assert "the source does not answer" in found.lag_in_words
    assert (found.lag.lag_records, found.lag.last_known_records) == (None, 0)


def test_trouble_that_is_not_of_the_source_leaves_the_lag(stands, noon) -> None:
    before = troubled(noon)
    assert before.trouble is not None
    other = replace(before.trouble, error={"code": "REGISTRY_UNAVAILABLE", "what": "gone"})
    assert stands("crashed", replace(before, trouble=other)).lag_in_words == "caught up"


def test_only_what_runs_has_a_batch_under_way_and_a_speed(stands, noon) -> None:
    pulse = Pulse(noon, under_way=UnderWay(4, noon, "stage"))
    assert stands("running", pulse).under_way.step == "stage"
    assert stands("running").records_per_second
    assert stands("crashed").under_way is None
    assert stands("crashed").records_per_second is None


def test_a_run_that_was_started_again_does_not_show_the_speed_of_the_one_before(
    stands, noon
) -> None:
    long_ago, later = noon - timedelta(hours=1), noon + timedelta(hours=1)
    assert stands("running", Pulse(noon, began=long_ago)).records_per_second
    assert stands("running", Pulse(noon, began=later)).records_per_second is None


def test_heartbeats_are_told_with_the_longest_silent_first(stands, noon) -> None:
    later = noon + timedelta(seconds=30)
    beats = {
        "__debezium-heartbeat.shop": Heartbeat(later, later),
        "__debezium-heartbeat.bank": Heartbeat(noon, later),
    }
    found = stands("running", Pulse(later, heartbeats=beats)).heartbeats
    told = [(beat.connector, beat.silent_seconds, beat.looked_at) for beat in found]
    assert told == [("bank", 30.0, later), ("shop", 0.0, later)]
    # where a run has read none, nothing is said about its source
    assert stands("running", Pulse(later)).heartbeats == ()
