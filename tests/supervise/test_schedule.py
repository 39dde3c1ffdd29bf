"""Upkeep runs again and again, one at a time, and its failure is only told."""

from __future__ import annotations

import signal
import threading
from datetime import timedelta
from pathlib import Path

from distributary.errors import ErrorCode
from distributary.observe.events import Event, Idle, TaskFailed
from distributary.observe.log_format import LogLine
from distributary.supervise.supervisor import Schedule, beside
from tests.supervise.children import Kept, gone, script, telling

RUNNING = f"{telling(Idle(pipeline='p'))}\nwait()"


def scheduled(kept: Kept, body: str, *, every: float, grace: float = 20.0) -> Schedule:
    schedule = Schedule(
        "upkeep",
        script(body),
        pipeline="p",
        every=timedelta(seconds=every),
        grace=grace,
        tell=kept.tell,
    )
    kept.supervisor.schedules = (schedule,)
    return schedule


def test_it_runs_again_and_its_words_go_to_the_log() -> None:
    kept = Kept({"p": RUNNING})
    schedule = scheduled(kept, "print('tidy')", every=0.01)
    kept.on_told = lambda item: kept.supervisor.ask() if schedule.runs >= 3 else None
    kept.run()
    lines = [item for item in kept.told if isinstance(item, LogLine)]
    assert len(lines) >= 3
    assert {(line.event, line.message, line.pipeline) for line in lines} == {
        ("upkeep", "tidy", "p")
    }
    assert kept.events(TaskFailed) == []


def test_a_failure_is_told_and_the_next_run_comes_all_the_same() -> None:
    kept = Kept({"p": RUNNING})
    scheduled(kept, "sys.exit(3)", every=0.01)

    def listen(item: Event | LogLine) -> None:
        if len(kept.events(TaskFailed)) >= 2:
            kept.supervisor.ask(signal.SIGINT)

    kept.on_told = listen
    kept.run()
    failed = kept.events(TaskFailed)
    assert {(e.task, e.error.code) for e in failed} == {("upkeep", ErrorCode.PROCESS_DIED)}
    assert (kept.states, kept.supervisor.exit_code) == ({"p": "stopped"}, 130)


def test_there_are_never_two_at_once(tmp_path: Path) -> None:
    lock = str(tmp_path / "lock")
    body = f"os.mkdir({lock!r}); time.sleep(0.2); os.rmdir({lock!r})"
    kept = Kept({"p": RUNNING})
    schedule = scheduled(kept, body, every=0.001)
    kept.members[0]._happened = lambda line: None  # type: ignore[method-assign]
    ticked = schedule.tick

    def tick(now: float) -> None:
        ticked(now)
        if schedule.runs >= 2 and not kept.supervisor.stopped_by:
            kept.supervisor.ask()

    schedule.tick = tick  # type: ignore[method-assign]
    kept.run()
    assert kept.events(TaskFailed) == []


def test_it_ends_with_the_pipelines(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    body = f"open({str(pid)!r}, 'w').write(str(os.getpid())); wait()"
    kept = Kept({"p": f"while not os.path.exists({str(pid)!r}): time.sleep(0.01)"})
    schedule = scheduled(kept, body, every=0.001)
    kept.run()
    assert kept.states == {"p": "done"}
    assert schedule.ended and gone(int(pid.read_text()), seconds=0)
    assert kept.events(TaskFailed) == []


def test_the_first_run_waits_and_starts_are_spread() -> None:
    kept = Kept({"p": "pass"})
    schedule = scheduled(kept, "pass", every=100)
    schedule._chance = lambda: 0.5
    schedule.tick(1000.0)
    assert schedule.pid is None
    assert schedule._next == 1105.0


def test_beside_a_run_it_goes_on_and_ends_with_it(tmp_path: Path) -> None:
    pid, told, enough = tmp_path / "pid", list[Event | LogLine](), threading.Event()

    def tell(item: Event | LogLine) -> None:
        told.append(item)
        if len(told) >= 2:
            enough.set()

    body = (
        f"runs = len(os.listdir({str(tmp_path)!r}))\n"
        f"open(os.path.join({str(tmp_path)!r}, f'run{{runs}}'), 'w').close()\n"
        "print(runs)\n"
        f"if runs == 2: open({str(pid)!r}, 'w').write(str(os.getpid())); wait()"
    )
    schedule = Schedule(
        "upkeep",
        script(body),
        pipeline="p",
        every=timedelta(milliseconds=10),
        grace=20.0,
        tell=tell,
        describe=lambda printed: f"run {printed}",
    )
    with beside(schedule):
        assert enough.wait(60)
        while not pid.exists() or not pid.read_text():
            threading.Event().wait(0.01)
    assert schedule.ended and gone(int(pid.read_text()), seconds=0)
    assert [item.message for item in told if isinstance(item, LogLine)][:2] == ["run 0", "run 1"]
    assert not any(isinstance(item, TaskFailed) for item in told)
