"""Pipelines are isolated, started again with back-off, given up, stopped; no process is left."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from distributary.config.runtime import Restart
from distributary.errors import (
    ErrorCode,
    LakeUnavailableError,
    SourceError,
    SourceUnavailableError,
)
from distributary.observe.events import (
    BatchSettled,
    BatchStarted,
    Beat,
    Failed,
    Idle,
    ProcessStarted,
    Recovered,
    Stopped,
    encode,
)
from distributary.observe.log_format import LogFormat, LogLine, spell
from distributary.supervise.member import MemberState
from tests.supervise.children import Kept, gone, settled, telling

DONE = 'print(\'{"stopped": "done", "parked": 0}\')'
LAKE_GONE = '{"error": {"code": "LAKE_UNAVAILABLE", "what": "no", "retryable": true}}'
AGAIN = f"print({LAKE_GONE!r}); sys.exit(75)"
RESTARTED_ONCE = Restart.model_validate({"initial": "1ms", "max": 1, "max_crashes": 1})


def once(folder: Path, first: str, then: str) -> str:
    """A script that does one thing in its first life, another in those after it."""
    mark = folder / "mark"
    return (
        f"import os.path\nif not os.path.exists({str(mark)!r}):\n"
        + "".join(
            f"    {line}\n" for line in [f"open({str(mark)!r}, 'w').close()", *first.splitlines()]
        )
        + f"else:\n    {then}\n"
    )


def test_all_done_is_exit_code_zero() -> None:
    kept = Kept({"a": f"{telling(settled(3), Stopped(pipeline='a'))}\n{DONE}", "b": DONE}).run()
    assert kept.states == {"a": "done", "b": "done"}
    assert kept.supervisor.exit_code == 0
    first = kept.supervisor.statuses[0]
    assert (first.counts.read, first.batches, first.is_ready) == (8, 1, True)
    assert [type(e) for e in kept.told if e.pipeline == "a"] == [
        ProcessStarted,
        BatchSettled,
        Stopped,
    ]


def test_a_table_that_waits_is_exit_code_one() -> None:
    waits = '{"stopped": "done", "still_parked": {"tables": 2}}'
    kept = Kept({"a": f"print('{waits}'); sys.exit(1)"}).run()
    assert (kept.states, kept.supervisor.exit_code) == ({"a": "done"}, 1)


def test_an_event_is_filed_under_the_pipeline_that_told_it() -> None:
    kept = Kept({"a": f"{telling(settled(pipeline='somebody else'))}\n{DONE}"}).run()
    assert [e.pipeline for e in kept.events(BatchSettled)] == ["a"]


def test_one_fails_for_good_and_the_others_go_on() -> None:
    config = 'print(\'{"error": {"code": "CONFIG_INVALID", "what": "no"}}\'); sys.exit(2)'
    kept = Kept({"good": f"{telling(settled())}\n{DONE}", "bad": config}).run()
    assert kept.states == {"good": "done", "bad": "failed"}
    assert kept.supervisor.exit_code == 1
    (failed,) = kept.events(Failed)
    assert (failed.pipeline, failed.error.code, failed.retry_in) == (
        "bad",
        ErrorCode.CONFIG_INVALID,
        None,
    )
    assert len(kept.events(ProcessStarted, "bad")) == 1


def test_what_may_pass_is_tried_again_with_longer_pauses() -> None:
    policy = Restart.model_validate({"initial": "8ms", "longest": "20ms", "max": 4})
    kept = Kept({"p": AGAIN}, restart=policy).run()
    assert (kept.states, kept.supervisor.exit_code) == ({"p": "failed"}, 1)
    waits = [e.retry_in for e in kept.events(Failed)]
    assert len(waits) == 5 and waits[-1] is None
    assert all(0.004 <= wait <= 0.02 for wait in waits[:-1])
    assert [e.restarts for e in kept.events(ProcessStarted)] == [0, 1, 2, 3, 4]
    assert kept.supervisor.statuses[0].restarts == 4


def test_a_crash_is_retried_within_its_own_limit() -> None:
    policy = Restart.model_validate({"initial": "1ms", "longest": "2ms", "max_crashes": 2})
    body = "os.write(2, b'Segmentation fault\\n'); os.kill(os.getpid(), 9)"
    kept = Kept({"p": body}, restart=policy).run()
    assert kept.states == {"p": "failed"}
    errors = [e.error for e in kept.events(Failed)]
    assert {e.code for e in errors} == {ErrorCode.PROCESS_DIED} and len(errors) == 3
    assert "SIGKILL" in errors[0].evidence and "Segmentation fault" in errors[0].evidence
    relayed = [line for line in kept.told if isinstance(line, LogLine)]
    assert {(line.pipeline, line.message) for line in relayed} == {("p", "Segmentation fault")}


def test_it_comes_back_after_a_failure(tmp_path: Path) -> None:
    kept = Kept({"p": once(tmp_path, AGAIN, f"{telling(settled())}; {DONE}")}).run()
    assert kept.states == {"p": "done"}
    status = kept.supervisor.statuses[0]
    assert (status.restarts, status.error, status.retry_at) == (1, None, None)


def test_what_ends_a_process_is_told_once_with_what_follows() -> None:
    failed = Failed(pipeline="p", error=SourceUnavailableError("gone", where="there"))
    body = f"{telling(replace(failed, retry_in=0.5), failed)}\nsys.exit(75)"
    kept = Kept({"p": body}, restart=RESTARTED_ONCE).run()
    told = kept.events(Failed)
    # in each of two lives: the process tries again itself, then it ends
    assert [e.error.code for e in told] == [ErrorCode.SOURCE_UNAVAILABLE] * 4
    assert [e.retry_in for e in told][::2] == [0.5, 0.5]
    assert told[1].retry_in is not None and told[3].retry_in is None
    assert told[1].error.where == "there"


def test_a_program_that_cannot_be_started_is_a_failure_like_others() -> None:
    kept = Kept({"p": ""}, restart=RESTARTED_ONCE)
    kept.members[0]._command = ("/nowhere/at/all",)
    kept.run()
    assert kept.states == {"p": "failed"}
    assert [e.error.code for e in kept.events(Failed)] == [ErrorCode.PROCESS_DIED] * 2


def test_garbage_on_the_pipes_does_no_harm() -> None:
    body = f"""
pipe.write("{{not json\\n\\n[1]\\n" + "x" * 100_000 + "\\n"); pipe.flush()
os.write(1, b"\\xff" * 3_000_000)
os.write(2, b"\\x00\\xff\\x1b[31m\\n" + b"half a line")
{telling(settled(7))}
"""
    kept = Kept({"p": body}).run()
    assert kept.states == {"p": "done"}
    assert [e.batch for e in kept.events(BatchSettled)] == [7]
    said = [line for line in kept.told if isinstance(line, LogLine)]
    assert len(said) == 2
    assert "\x1b" not in spell(said[0], LogFormat.TEXT)


def test_lines_of_its_log_keep_what_they_are_about() -> None:
    line = LogLine(message="m", event="log", level="WARNING", batch=4, table="t", more={"k": 1})
    kept = Kept({"p": f"print({spell(line, LogFormat.JSON)!r}, file=sys.stderr)"}).run()
    (relayed,) = (item for item in kept.told if isinstance(item, LogLine))
    about = (relayed.pipeline, relayed.level, relayed.batch, relayed.table, relayed.more)
    assert about == ("p", "WARNING", 4, "t", {"k": 1})


def stopped_when_running(kept: Kept, *, signals: int = 1) -> None:
    """Asks for a stop as soon as every pipeline has told something."""
    heard = set()

    def listen(item: object) -> None:
        if isinstance(item, Idle):
            heard.add(item.pipeline)
            if len(heard) == len(kept.members):
                for _ in range(signals):
                    os.kill(os.getpid(), signal.SIGTERM)

    kept.on_told = listen


def test_a_signal_stops_all_and_they_end_by_themselves() -> None:
    kept = Kept({name: f"{telling(Idle(pipeline='p'))}\nwait()" for name in "ab"})
    stopped_when_running(kept)
    before = signal.getsignal(signal.SIGTERM)
    kept.run()
    assert kept.states == {"a": "stopped", "b": "stopped"}
    assert kept.supervisor.exit_code == 143
    assert kept.events(Failed) == []
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_pipeline_that_waits_for_its_restart_is_stopped_at_once() -> None:
    policy = Restart.model_validate({"initial": "10m", "longest": "10m"})
    kept = Kept({"p": AGAIN}, restart=policy)
    kept.on_told = lambda item: kept.supervisor.ask() if isinstance(item, Failed) else None
    kept.run()
    assert (kept.states, kept.supervisor.exit_code) == ({"p": "stopped"}, 143)


def test_a_pipeline_that_fails_while_it_is_stopped_has_failed() -> None:
    error = Failed(pipeline="p", error=SourceError("the batch failed"))
    # the signal may come while the first line is still being flushed, or just before a `pause`
    body = f"""
def fail(*_):
    os.write(pipe.fileno(), {(encode(error) + chr(10)).encode()!r})
    os._exit(1)
signal.signal(signal.SIGTERM, fail)
{telling(Idle(pipeline="p"))}
while True: time.sleep(0.05)
"""
    kept = Kept({"p": body})
    stopped_when_running(kept)
    kept.run()
    assert (kept.states, kept.supervisor.exit_code) == ({"p": "failed"}, 143)
    (told,) = kept.events(Failed)
    assert isinstance(told, Failed) and told.retry_in is None


DEAF = f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{telling(Idle(pipeline='p'))}\n"


def test_whoever_does_not_end_in_time_is_killed_with_all_it_started(tmp_path: Path) -> None:
    child = f"{str(tmp_path / 'pid')!r}"
    body = f"""
other = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"],
                         process_group=0)
open({child}, "w").write(str(other.pid))
{DEAF}
while True: time.sleep(60)
"""
    kept = Kept({"p": body}, grace=0.2)
    stopped_when_running(kept)
    kept.run()
    assert kept.states == {"p": "stopped"}
    assert gone(int((tmp_path / "pid").read_text()))


def test_a_second_signal_ends_at_once() -> None:
    kept = Kept({"p": f"{DEAF}\nwhile True: time.sleep(60)"}, grace=600)
    stopped_when_running(kept, signals=2)
    kept.run()
    assert kept.states == {"p": "stopped"}


def test_no_process_is_left_when_the_supervisor_itself_fails() -> None:
    kept = Kept({"p": f"{telling(Idle(pipeline='p'))}\nwait()"})
    seen: list[int | None] = []

    def fail(item: object) -> None:
        if isinstance(item, Idle):
            seen.append(kept.members[0].pid)
            raise MemoryError

    kept.on_told = fail
    try:
        kept.supervisor.run()
    except MemoryError:
        pass
    (pid,) = seen
    assert pid is not None and gone(pid)


def test_what_a_process_leaves_running_is_ended_before_the_next_one_starts(tmp_path: Path) -> None:
    left = tmp_path / "left"
    body = f"""
other = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(0.3)"])
open({str(left)!r}, "w").write(str(other.pid))
"""
    kept = Kept({"p": body}).run()
    assert kept.states == {"p": "done"}
    assert gone(int(left.read_text()), seconds=0)


def test_the_status_follows_what_is_told() -> None:
    kept = Kept({"p": ""})
    status = kept.members[0].status
    assert (status.state, status.is_ready) == (MemberState.WAITING, False)
    begun = status.hearing(BatchStarted(pipeline="p", batch=5))
    assert (begun.state, begun.batch, begun.is_ready) == (MemberState.RUNNING, 5, True)
    failing = begun.hearing(Failed(pipeline="p", error=LakeUnavailableError("no"), retry_in=4.0))
    assert (failing.state, failing.is_ready) == (MemberState.RETRYING, False)
    assert failing.retry_at is not None and failing.why == "retrying: LAKE_UNAVAILABLE"
    again = failing.hearing(BatchStarted(pipeline="p", batch=5))
    assert (again.state, again.is_ready) == (MemberState.RETRYING, False)
    well = again.hearing(settled(5))
    assert (well.is_ready, well.error, well.retry_at) == (True, None, None)


def test_a_source_that_is_away_and_back_leaves_the_batch_under_way() -> None:
    begun = Kept({"p": ""}).members[0].status.hearing(BatchStarted(pipeline="p", batch=5))
    gone = SourceUnavailableError("gone")
    away = begun.hearing(Failed(pipeline="p", error=gone, retry_in=3.0, under_way=True))
    assert (away.state, away.batch, away.is_ready) == (MemberState.RETRYING, 5, False)
    back = away.hearing(Recovered(pipeline="p"))
    assert (back.state, back.batch, back.is_ready) == (MemberState.RUNNING, 5, True)
    measured = back.hearing(Beat(pipeline="p", lag_records=70, lag_at=datetime.now(UTC)))
    assert measured.as_dict()["lag_records"] == 70
