import io
import os
import signal
import threading
import time
from dataclasses import replace
from datetime import timedelta

import pytest
from rich.console import Console

from distributary.cli.command.live import Foreground, Lines, LiveView, batch_line, schema_line
from distributary.errors import SourceUnavailableError
from distributary.model.manifest import Counts
from distributary.observe.events import (
    BatchSettled,
    BatchStarted,
    Beat,
    Event,
    Failed,
    Idle,
    Recovered,
    SchemaSeen,
    StepFinished,
    TableParked,
)
from tests.cli.conftest import Cli

SETTLED = BatchSettled(
    pipeline="games",
    batch=42,
    counts=Counts(10_000, 9_997, 3),
    rows=9_997,
    tables=20,
    seconds=2.0,
    lag_records=1_200,
    lag_seconds=4.0,
    dead_letters={"NULL_VALUE": 3},
    steps={"plan": 0.1, "stage": 1.5, "publish": 0.4},
)


def schema(n: int = 3, *, type: str = "chess") -> SchemaSeen:
    return SchemaSeen(
        pipeline="games",
        batch=42,
        type=type,
        table=f"silver_{type}",
        schema_id=n,
        label=f"{type}-value v{n}",
        changes=("+ rating int",),
    )


def test_a_batch_is_one_line() -> None:
    line = batch_line(SETTLED)
    for part in ("batch 42", "10,000 rows", "5,000 rows/s", "  lag 1,200  ", "20 tables"):
        assert part in line
    assert "3 dead letters" in line
    assert line.endswith("newest record 4.0 s old")
    assert "\n" not in line


def test_a_batch_that_was_only_finished_claims_no_speed() -> None:
    line = batch_line(replace(SETTLED, steps={"publish": 0.1, "settle": 0.1}))
    assert "rows/s" not in line
    assert "finished" in line


def test_a_schema_is_one_line() -> None:
    assert schema_line(schema()) == "schema chess v3: + rating int"


def told(*events: Event, **settings: int) -> tuple[list[str], list[str], list[str]]:
    said: tuple[list[str], list[str], list[str]] = ([], [], [])
    lines = Lines(said[0].append, note=said[1].append, step=said[2].append, **settings)
    for event in events:
        lines(event)
    return said


def test_new_schemas_come_before_their_batch_and_are_limited() -> None:
    many = [schema(1, type=f"type{n}") for n in range(1000)]
    said, _, _ = told(*many, SETTLED, schema(4), SETTLED, most_schemas=2)
    first = [line.split()[0] for line in said]
    assert first == ["schema", "schema", "and", "batch", "schema", "batch"]
    assert said[2] == "and 998 more schemas: distributary schema history"


def test_steps_failures_and_silence_are_told() -> None:
    error = SourceUnavailableError("the broker does not answer")
    said, notes, steps = told(
        StepFinished(pipeline="games", batch=1, step="stage", seconds=1.25),
        Failed(pipeline="games", error=error, retry_in=2.0),
        TableParked(pipeline="games", batch=1, table="silver_go", records=7, error="full"),
        Idle(pipeline="games", batch=42),
    )
    assert steps == ["batch 1  stage 1.2 s"]
    assert "SOURCE_UNAVAILABLE" in notes[0] and "next try in 2.0 s" in notes[0]
    assert "silver_go" in notes[1]
    assert said[0].startswith("idle at ") and "42" in said[0]


def test_a_long_batch_gives_signs_of_life() -> None:
    begun = BatchStarted(pipeline="games", batch=7)
    steps = StepFinished(pipeline="games", batch=7, step="plan", seconds=0.1)

    def beat(seconds: int, lag: int | None = None) -> Beat:
        return Beat(pipeline="games", at=begun.at + timedelta(seconds=seconds), lag_records=lag)

    said, _, _ = told(begun, steps, *(beat(n, 5_000) for n in range(3, 70, 3)))
    assert [line.split("  ")[0] for line in said] == ["batch 7", "batch 7"]
    assert "stage" in said[0] and "lag 5,000" in said[0]
    # nothing is under way: an idle run has lines of its own
    said, _, _ = told(begun, replace(SETTLED, at=begun.at), *(beat(n) for n in range(3, 70, 3)))
    assert len(said) == 1


def test_what_is_tried_again_and_again_is_not_told_each_time() -> None:
    error, start = SourceUnavailableError("the broker does not answer"), SETTLED.at
    tries = [
        Failed(pipeline="games", at=start + timedelta(seconds=n), error=error, retry_in=5.0)
        for n in range(0, 60, 5)
    ]
    _, notes, _ = told(*tries, Recovered(pipeline="games", seconds=60.0), tries[0])
    assert [note.split()[0] for note in notes] == ["retrying:"] * 3 + ["works", "retrying:"]


def drawn(view: LiveView) -> str:
    console = Console(file=io.StringIO(), width=120, color_system=None)
    console.print(view)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_the_view_shows_steps_batches_and_news() -> None:
    view = LiveView("games", trigger="continuous")
    assert "starting Spark" in drawn(view)
    view(BatchStarted(pipeline="games", batch=42, records=10_000))
    view(StepFinished(pipeline="games", batch=42, step="plan", seconds=0.1))
    running = drawn(view)
    assert "batch 42, 10,000 records" in running
    assert "plan 0.1 s" in running and "publish -" in running
    view(schema(type="evil\x1b[31m"))
    assert view.stop() == "finishing batch 42"
    view(SETTLED)
    done = drawn(view)
    assert "read 10,000 = written 9,997 + dead letters 3 + parked 0" in done
    assert "stage 75%" in done
    assert "schema evil\\x1b[31m v3" in done
    assert "\x1b" not in done


def test_the_view_says_what_is_tried_again_and_that_it_works() -> None:
    view = LiveView("games", trigger="continuous")
    view(SETTLED)
    view(Failed(pipeline="games", error=SourceUnavailableError("no answer"), retry_in=1.0))
    view(Failed(pipeline="games", error=SourceUnavailableError("no answer"), retry_in=2.0))
    assert drawn(view).count("SOURCE_UNAVAILABLE") == 1 and "retrying" in drawn(view)
    view(Recovered(pipeline="games", seconds=9.0))
    view(Beat(pipeline="games", lag_records=70, lag_at=SETTLED.at))
    assert "works again after 9.0 s" in drawn(view) and "70 not read yet" in drawn(view)


def test_work_is_done_elsewhere_and_its_error_comes_back() -> None:
    threads: list[threading.Thread] = []
    work = Foreground(lambda: threads.append(threading.current_thread()), stop=threading.Event())
    work.run()
    assert threads[0] is not threading.main_thread()
    assert work.exit_code == 0

    def fail() -> None:
        raise SourceUnavailableError("no answer")

    with pytest.raises(SourceUnavailableError):
        Foreground(fail, stop=threading.Event()).run()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_asks_for_a_stop(number: int, code: int) -> None:
    stop = threading.Event()
    started, told = threading.Event(), []

    def work() -> str:
        started.set()
        stop.wait(30)
        return "finished"

    def send() -> None:
        started.wait(30)
        time.sleep(0.05)
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    run = Foreground(work, stop=stop)
    run.on_stop = lambda: told.append("finishing")
    threading.Thread(target=send).start()
    assert run.run() == "finished"
    assert (run.exit_code, told) == (code, ["finishing"])
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("other", [("--every", "10s"), ("--available-now",)])
def test_triggers_exclude_each_other(cli: Cli, other: tuple[str, ...]) -> None:
    result = cli("run", "games.yaml", "--continuous", *other, "--json")
    assert (result.code, result.json["error"]["where"]) == (2, "command line")
